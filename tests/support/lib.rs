//! What the stories in `suite` are told with: the lab and its actors.
//!
//! Stories that need the lab carry `#[ignore = "needs root"]`, so that plain `cargo test` works for everyone and says what it
//! left out; `cargo xtask test` runs them.

pub mod balanced;
pub mod behind;
mod bound;
mod connection;
pub mod counters;
mod curl;
pub mod datapath;
pub mod forger;
pub mod fragments;
pub mod haproxy;
pub mod lab;
pub mod layer4;
pub mod link;
pub mod nginx;
pub mod peer;
pub mod pinger;
pub mod pinned;
pub mod restoring;
pub mod router;
pub mod scene;
pub mod stage;
pub mod tcp;
mod test_lab;
pub mod tls;
pub mod unix;
mod unruly;
pub mod unwrapper;
mod watchdog;
pub mod xdp;
pub mod xdp_maps;

pub use connection::Connection;
pub use curl::{Curl, Reply};
pub use datapath::Datapath;
pub use link::Link;
pub use peer::Peer;
pub use router::Router;
pub use scene::{Entry, Scene};
pub use test_lab::TestLab;
pub use unruly::UnrulyCable;

/// Tells each of these stories over IPv4 and over IPv6.
#[macro_export]
macro_rules! over_both_families {
    ($($story:ident)*) => {
        mod over_ipv4 {
            $(
                #[test]
                #[ignore = "needs root"]
                fn $story() {
                    super::$story($crate::lab::Family::V4);
                }
            )*
        }

        mod over_ipv6 {
            $(
                #[test]
                #[ignore = "needs root"]
                fn $story() {
                    super::$story($crate::lab::Family::V6);
                }
            )*
        }
    };
}
