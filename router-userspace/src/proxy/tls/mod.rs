//! The ClientHello: all that a TLS connection shows of itself before it is encrypted (RFC 8446 §4.1.2).
//!
//! It is read, never answered: the instance gets it unchanged, and completes the handshake with the client. [`records`] finds its end
//! in whatever pieces it comes, [`client_hello`] takes it apart, [`alert`] refuses.
//!
//! Strict where rules look, lenient elsewhere: a name or protocol that two servers might read differently is refused, what only the
//! instance understands (versions, ciphers, other extensions, GREASE) is left to it.

pub mod alert;
pub mod client_hello;
pub mod records;

#[cfg(test)]
mod tests;
