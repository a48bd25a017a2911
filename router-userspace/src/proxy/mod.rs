//! Accepts connections, reads the first request, and carries it to the instance that the rules chose.

pub mod http;
