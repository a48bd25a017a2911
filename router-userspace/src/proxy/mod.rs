//! Accepts connections, reads the first request, and carries it to the instance that the rules chose.
//!
//! Read [`connection`] first: it is the route of a first request, top to bottom.

pub mod access;
pub mod budget;
pub mod buffer;
mod carry;
pub mod connect;
pub mod connection;
mod cookies;
pub mod direction;
mod endpoint;
pub mod head;
pub mod http;
mod line;
pub mod listener;
pub mod offload;
pub mod refuse;
pub mod relay;
mod response_timer;
pub mod settings;
pub mod sockopt;
pub mod source;
