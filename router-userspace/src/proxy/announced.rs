//! Who a connection's client is: whoever opened it, or whom a proxy in front announces (PROXY protocol).
//!
//! Exactly the header is taken from the socket, and everything behind it stays there, so what follows begins as it does on any connection.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use router_common::abi::reason::RefuseReason;
use tokio::time::{Instant, timeout_at};

use super::budget::HeadBudget;
use super::buffer::Buffer;
use super::endpoint::Endpoint;
use super::head::HeadFailure;
use crate::core::proxy_protocol::{self, Announced, HeaderError, MAX_HEADER, ProxyProtocol};

/// The far end of a connection, as rules, sessions and instances see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    pub address: SocketAddr,
    /// Where it connected to, if a proxy in front has said so; else that is the socket's own address.
    pub destination: Option<SocketAddr>,
}

impl Client {
    /// Whoever opened the connection.
    pub fn peer(peer: SocketAddr) -> Self {
        Self { address: SocketAddr::new(peer.ip().to_canonical(), peer.port()), destination: None }
    }

    pub fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    /// What an instance of a pool with `protocol` gets before anything else; `reached` is where the client's connection ends.
    pub fn announce(
        &self,
        protocol: Option<ProxyProtocol>,
        reached: impl FnOnce() -> Option<SocketAddr>,
    ) -> Vec<u8> {
        let Some(protocol) = protocol else { return Vec::new() };
        // A socket whose address cannot be read is gone, and with it the connection.
        let destination = self.destination.or_else(reached);
        let destination =
            destination.map_or(self.address, |to| SocketAddr::new(to.ip().to_canonical(), to.port()));
        protocol.header(self.address, destination)
    }
}

/// Who must announce clients on a listener, and is believed.
pub fn must_announce(sources: &[IpNet], peer: IpAddr) -> bool {
    sources.iter().any(|source| source.contains(&peer.to_canonical()))
}

/// Reads the header with which the connection of `peer` must begin, until `deadline`.
pub async fn read_header(
    mut endpoint: Endpoint,
    peer: SocketAddr,
    deadline: Instant,
    budget: &HeadBudget,
) -> Result<(Endpoint, Client), HeadFailure> {
    let closed = |reason| HeadFailure { reason, any_received: false, client: None };
    let mut header = Vec::new();
    match step(&mut endpoint, &mut header) {
        Ok(Some(announced)) => return Ok((endpoint, client(peer, announced))),
        Ok(None) => {}
        Err(reason) => return Err(closed(reason)),
    }
    // Many clients come by way of one proxy, which is trusted: only the bound on all heads together holds for it.
    let Some(_place) = budget.admit_trusted() else { return Err(closed(RefuseReason::TooManyHeads)) };
    let mut endpoint = endpoint.register().map_err(|_| closed(RefuseReason::OutOfResources))?;
    loop {
        match timeout_at(deadline, endpoint.readable()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(closed(RefuseReason::ClientGone)),
            Err(_) => return Err(closed(RefuseReason::HeaderTimeout)),
        }
        match step(&mut endpoint, &mut header) {
            Ok(Some(announced)) => return Ok((endpoint, client(peer, announced))),
            Ok(None) => {}
            Err(reason) => return Err(closed(reason)),
        }
    }
}

/// Takes what is there of the header, behind what has been taken of it before. `None` if its end is missing.
fn step(endpoint: &mut Endpoint, header: &mut Vec<u8>) -> Result<Option<Announced>, RefuseReason> {
    use std::io::ErrorKind::{Interrupted, WouldBlock};
    let taken = header.len();
    let mut seen = Buffer::take();
    match endpoint.peek(&mut seen, MAX_HEADER - taken) {
        Ok(0) => return Err(RefuseReason::ClientGone),
        Ok(_) => {}
        Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => return Ok(None),
        Err(_) => return Err(RefuseReason::ClientGone),
    }
    header.extend_from_slice(seen.pending());
    let announced = proxy_protocol::read(header).map_err(|error| match error {
        HeaderError::Missing => RefuseReason::ProxyHeaderMissing,
        HeaderError::Malformed => RefuseReason::BadProxyHeader,
    })?;
    let end = announced.map_or(header.len(), |announced| announced.length);
    endpoint.discard(end - taken).map_err(|_| RefuseReason::ClientGone)?;
    Ok(announced)
}

/// Why a connection is refused that began with `bytes`: a header where none may be has a reason of its own.
pub fn refusal_of(bytes: &[u8], reason: RefuseReason) -> RefuseReason {
    if proxy_protocol::is_header(bytes) { RefuseReason::ProxyHeaderUnexpected } else { reason }
}

fn client(peer: SocketAddr, announced: Announced) -> Client {
    match announced.ends {
        Some((address, destination)) => Client { address, destination: Some(destination) },
        None => Client::peer(peer),
    }
}
