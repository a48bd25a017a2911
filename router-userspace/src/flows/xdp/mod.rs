//! XDP, the short cut past the stack: where it is attached and why, and what its programs must know of interfaces.

mod attached;
mod choice;
mod detach;
mod facts;

pub use attached::{Attachment, Xdp};
pub use choice::{Attach, Hook, Wishes};
