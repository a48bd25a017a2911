//! Reads what comes first on a connection, a request's head or a ClientHello: bounded in bytes, in time and in number.
//!
//! The deadline is absolute. A client that sends one byte every few seconds gains nothing by it.

use std::net::IpAddr;

use router_common::abi::reason::RefuseReason;
use tokio::time::{Instant, timeout_at};

use super::budget::HeadBudget;
use super::buffer::Buffer;
use super::endpoint::Endpoint;

/// Finds the end of a head in everything received so far; it is asked again when there is more. `None` while the end is missing.
pub trait FindEnd: FnMut(&[u8]) -> Result<Option<usize>, RefuseReason> {}

impl<F: FnMut(&[u8]) -> Result<Option<usize>, RefuseReason>> FindEnd for F {}

/// A complete head and what came behind it.
#[derive(Debug)]
pub struct FirstBytes {
    /// The head and the surplus, as received.
    pub bytes: Buffer,
    pub head_len: usize,
}

impl FirstBytes {
    pub fn head(&self) -> &[u8] {
        &self.bytes.pending()[..self.head_len]
    }

    /// Client bytes behind the head: body, or further requests. They go on verbatim.
    pub fn surplus(&self) -> &[u8] {
        &self.bytes.pending()[self.head_len..]
    }
}

/// No complete head came.
#[derive(Debug)]
pub struct HeadFailure {
    pub reason: RefuseReason,
    /// Whether the client has sent anything: browsers open connections ahead, and an answer to nothing confuses them.
    pub any_received: bool,
    /// To answer on. `None` if the socket is gone.
    pub client: Option<Endpoint>,
}

/// Reads until the head is complete, or until `deadline`.
pub async fn read_head(
    mut client: Endpoint,
    address: IpAddr,
    mut find_end: impl FindEnd,
    deadline: Instant,
    budget: &HeadBudget,
) -> Result<(Endpoint, FirstBytes), HeadFailure> {
    let mut bytes = Buffer::take();
    // Most heads are here already.
    match step(&mut client, &mut bytes) {
        Ok(Received::Bytes) => match find_end(bytes.pending()) {
            Ok(Some(head_len)) => return Ok((client, FirstBytes { bytes, head_len })),
            Ok(None) => {}
            Err(reason) => return Err(HeadFailure { reason, any_received: true, client: Some(client) }),
        },
        Ok(Received::Nothing) => {}
        Err(reason) => return Err(HeadFailure { reason, any_received: false, client: Some(client) }),
    }
    let any_received = !bytes.is_empty();
    let Ok(client) = client.register() else {
        return Err(HeadFailure { reason: RefuseReason::OutOfResources, any_received, client: None });
    };
    read_rest(client, address, find_end, deadline, budget, bytes).await
}

async fn read_rest(
    mut client: Endpoint,
    address: IpAddr,
    mut find_end: impl FindEnd,
    deadline: Instant,
    budget: &HeadBudget,
    first: Buffer,
) -> Result<(Endpoint, FirstBytes), HeadFailure> {
    let mut any_received = !first.is_empty();
    let Some(mut half) =
        budget.admit(address).and_then(|mut half| half.append(first.pending()).then_some(half))
    else {
        return Err(HeadFailure { reason: RefuseReason::TooManyHeads, any_received, client: Some(client) });
    };
    drop(first);

    let reason = loop {
        match timeout_at(deadline, client.readable()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => break RefuseReason::ClientGone,
            Err(_) => break RefuseReason::HeaderTimeout,
        }
        let mut bytes = Buffer::take();
        match step(&mut client, &mut bytes) {
            Ok(Received::Bytes) => {}
            Ok(Received::Nothing) => continue,
            Err(reason) => break reason,
        }
        any_received = true;
        if !half.append(bytes.pending()) {
            break RefuseReason::TooManyHeads;
        }
        match find_end(half.bytes()) {
            Ok(Some(head_len)) => {
                let bytes = bytes.refilled(half.bytes());
                return Ok((client, FirstBytes { bytes, head_len }));
            }
            Ok(None) => {}
            Err(reason) => break reason,
        }
    };
    Err(HeadFailure { reason, any_received, client: Some(client) })
}

enum Received {
    Bytes,
    Nothing,
}

fn step(client: &mut Endpoint, bytes: &mut Buffer) -> Result<Received, RefuseReason> {
    match client.receive(bytes) {
        Ok(0) => Err(RefuseReason::ClientGone),
        Ok(_) => Ok(Received::Bytes),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(Received::Nothing),
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(Received::Nothing),
        Err(_) => Err(RefuseReason::ClientGone),
    }
}
