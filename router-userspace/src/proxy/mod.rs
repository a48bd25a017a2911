//! Accepts connections, reads the first request, and carries it to the instance that the rules chose.
//!
//! Read [`connection`] first: it is the route of a first request, top to bottom. Where every request is routed, it branches off
//! to `per_request`.

pub mod access;
pub mod announced;
mod bind;
pub mod budget;
pub mod buffer;
mod carry;
mod choice;
pub mod connect;
pub mod connection;
mod cookies;
pub mod decision_log;
pub mod direction;
mod endpoint;
mod first_request;
pub mod head;
pub mod http;
mod line;
pub mod listener;
pub mod offload;
mod per_request;
pub mod refuse;
pub mod relay;
mod response_timer;
pub mod settings;
pub mod sockopt;
pub mod source;
pub mod tls;
