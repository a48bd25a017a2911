//! Opens the connection to an instance.
//!
//! A connection that may be handed off is bound to a port that the router owns, and its segments are limited
//! to what the client's connection can carry, since packets will pass from one to the other.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use router_common::abi::reason::RefuseReason;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::time::timeout;

use super::endpoint::Endpoint;
use super::settings::Context;
use super::sockopt::{self, TcpInfo};
use crate::core::health::Failure;
use crate::flows::ports::{PortAllocator, PortLease};
use crate::flows::table::FlowTable;

/// How many of our ports are tried when another process sits on them.
const PORT_TRIES: usize = 16;

/// A connection to an instance on which nothing has been sent.
#[derive(Debug)]
pub struct Connected {
    pub endpoint: Endpoint,
    /// `None` if the kernel chose the port: such a connection is not handed off.
    pub source_port: Option<PortLease>,
}

/// Why there is no connection. Nothing has been sent in any case, so another instance may be tried.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the instance cannot be reached: {0}")]
    Instance(Failure),
    #[error(
        "no source port is free, neither of the router's nor of the kernel's: enlarge source_ports or add to source_addresses"
    )]
    NoSourcePort,
    #[error("this host cannot open the connection: {0}")]
    Local(#[source] io::Error),
}

impl ConnectError {
    /// Under which reason the client's request is refused if nobody else serves it.
    pub fn reason(&self) -> RefuseReason {
        match self {
            Self::Instance(_) => RefuseReason::ConnectFailed,
            Self::NoSourcePort => RefuseReason::NoSourcePort,
            Self::Local(_) => RefuseReason::OutOfResources,
        }
    }
}

/// What the client's connection asks of the one to the instance.
#[derive(Clone, Copy)]
pub struct ForHandoff<'a> {
    pub flows: &'a dyn FlowTable,
    pub client: TcpInfo,
}

impl fmt::Debug for ForHandoff<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForHandoff").field("client", &self.client).finish_non_exhaustive()
    }
}

/// Connects within `patience`; in the name of this client, if there is one, with its address. `for_handoff` if the connection may become a flow of the packet path.
pub async fn connect(
    context: &Context,
    instance: SocketAddr,
    patience: Duration,
    in_name_of: Option<IpAddr>,
    for_handoff: Option<ForHandoff<'_>>,
) -> Result<Connected, ConnectError> {
    let is_on_own_port = in_name_of.is_some() || for_handoff.is_some();
    let on_own_port = is_on_own_port.then(|| start_on_own_port(context, instance, in_name_of, for_handoff));
    let (socket, source_port) = match on_own_port.transpose() {
        Ok(Some((socket, lease))) => (socket, Some(lease)),
        // A connection that can only be relayed is better than none.
        Ok(None) | Err(ConnectError::NoSourcePort) if in_name_of.is_none() => {
            (start_on_any_port(context, instance)?, None)
        }
        Ok(None) => return Err(ConnectError::NoSourcePort),
        Err(error) => return Err(error),
    };
    let endpoint = Endpoint::Detached(socket);
    // A near instance may have answered already, and then there is nothing to wait for.
    if endpoint.is_connected() {
        return Ok(Connected { endpoint, source_port });
    }
    let endpoint = endpoint.register().map_err(ConnectError::Local)?;
    match timeout(patience, endpoint.writable()).await {
        Err(_) => Err(ConnectError::Instance(Failure::TimedOut)),
        Ok(Err(error)) => Err(ConnectError::Local(error)),
        Ok(Ok(())) => match endpoint.socket().take_error() {
            Ok(None) => Ok(Connected { endpoint, source_port }),
            Ok(Some(error)) | Err(error) => Err(judge(error)),
        },
    }
}

/// Binds to a port of the router's own and starts to connect.
fn start_on_own_port(
    context: &Context,
    instance: SocketAddr,
    in_name_of: Option<IpAddr>,
    for_handoff: Option<ForHandoff<'_>>,
) -> Result<(Socket, PortLease), ConnectError> {
    for _ in 0..PORT_TRIES {
        let lease = match in_name_of {
            Some(client) => claim(context, client, instance)?,
            None => take_port(context, &context.ports, instance)?,
        };
        let source = lease.source();
        let socket = open(instance)?;
        // Ports of closed connections in TIME_WAIT, and ports in use towards other instances, can be bound.
        socket.set_reuse_address(true).map_err(ConnectError::Local)?;
        if in_name_of.is_some() {
            sockopt::be_transparent(socket.as_fd(), instance.is_ipv4()).map_err(ConnectError::Local)?;
        }
        if let Some(for_handoff) = for_handoff {
            socket.set_tcp_mss(for_handoff.client.announced_segment()).map_err(ConnectError::Local)?;
        }
        if let Err(error) = socket.bind(&source.into()) {
            match error.kind() {
                ErrorKind::AddrInUse => continue,
                ErrorKind::AddrNotAvailable => context.sources.forget(instance.ip()),
                _ => {}
            }
            return Err(ConnectError::Local(error));
        }
        if let Some(for_handoff) = for_handoff {
            for_handoff.flows.prepare(for_handoff.client.options(), source, instance);
        }
        match start(&socket, instance) {
            Ok(()) => return Ok((socket, lease)),
            // The last connection on this tuple is in TIME_WAIT and too young.
            Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) => {}
            Err(error) => return Err(judge(error)),
        }
    }
    Err(ConnectError::NoSourcePort)
}

/// A port on the client's address.
fn claim(context: &Context, client: IpAddr, instance: SocketAddr) -> Result<PortLease, ConnectError> {
    let client = client.to_canonical();
    if client.is_ipv4() != instance.is_ipv4() {
        let error =
            format!("{client} cannot be the source of a connection to {instance}: they are of two families");
        return Err(ConnectError::Local(io::Error::new(ErrorKind::InvalidInput, error)));
    }
    let flows = context.flows.as_deref();
    flows.and_then(|flows| flows.claim(client, instance)).ok_or(ConnectError::NoSourcePort)
}

/// The port towards `instance` that has rested longest, of one of the source addresses.
pub(super) fn take_port(
    context: &Context,
    ports: &PortAllocator,
    instance: SocketAddr,
) -> Result<PortLease, ConnectError> {
    let mut configured = false;
    for source in context.sources.configured(instance.ip()) {
        configured = true;
        if let Some(lease) = ports.take(source, instance) {
            return Ok(lease);
        }
    }
    if configured {
        return Err(ConnectError::NoSourcePort);
    }
    let source: IpAddr = context.sources.by_route(instance.ip()).map_err(judge)?;
    ports.take(source, instance).ok_or(ConnectError::NoSourcePort)
}

/// Starts to connect from a port that the kernel chooses.
fn start_on_any_port(context: &Context, instance: SocketAddr) -> Result<Socket, ConnectError> {
    let socket = open(instance)?;
    if let Some(source) = context.sources.configured(instance.ip()).next() {
        sockopt::choose_port_late(socket.as_fd()).map_err(ConnectError::Local)?;
        socket.bind(&SocketAddr::new(source, 0).into()).map_err(ConnectError::Local)?;
    }
    match start(&socket, instance) {
        Ok(()) => Ok(socket),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Err(ConnectError::NoSourcePort),
        Err(error) => Err(judge(error)),
    }
}

fn open(instance: SocketAddr) -> Result<Socket, ConnectError> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket =
        Socket::new(Domain::for_address(instance), kind, Some(Protocol::TCP)).map_err(ConnectError::Local)?;
    socket.set_tcp_nodelay(true).map_err(ConnectError::Local)?;
    // The request completes the handshake: it comes at once, and saves a segment.
    socket.set_tcp_quickack(false).map_err(ConnectError::Local)?;
    Ok(socket)
}

fn start(socket: &Socket, instance: SocketAddr) -> io::Result<()> {
    match socket.connect(&instance.into()) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
        result => result,
    }
}

/// Tells the instance's failures from ours.
fn judge(error: io::Error) -> ConnectError {
    ConnectError::Instance(match error.kind() {
        ErrorKind::ConnectionRefused => Failure::Refused,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Failure::Reset,
        ErrorKind::TimedOut => Failure::TimedOut,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Failure::Unreachable,
        _ => return ConnectError::Local(error),
    })
}
