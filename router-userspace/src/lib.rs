//! The userspace half of the router.
//!
//! Rooms and the arrows between them (enforced by `cargo xtask check`):
//! `core` imports nothing of ours; `config → core`; `proxy → core, flows`; `probe → core`;
//! `flows → core::session, router-common`; `control → core, config, flows`;
//! `simulate → config, core`; `surroundings → config, core, flows::netlink`; `cli → config, control::protocol, simulate, surroundings`; `app` uses all, and nothing uses `app`.

pub mod app;
pub mod cli;
pub mod config;
pub mod control;
pub mod core;
pub mod flows;
pub mod probe;
pub mod proxy;
pub mod simulate;
pub mod surroundings;
