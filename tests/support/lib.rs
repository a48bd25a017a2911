//! What the stories in `suite` are told with: the lab and its actors.
//!
//! Stories that need the lab carry `#[ignore = "needs root"]`, so that plain `cargo test` works for everyone and says what it
//! left out; `cargo xtask test` runs them.

mod curl;
pub mod lab;
mod test_lab;

pub use curl::{Curl, Reply};
pub use test_lab::TestLab;
