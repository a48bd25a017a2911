//! Accepts connections, reads the first request, and carries it to the instance that the rules chose.

pub mod budget;
pub mod buffer;
pub mod endpoint;
pub mod head;
pub mod http;
pub mod refuse;
