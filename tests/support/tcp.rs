//! What two ends of a TCP connection have agreed, as their kernel tells: a story about an option must see that the option was in force.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};

const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WINDOW_SCALING: u8 = 4;

/// The options of a connection, from its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub timestamps: bool,
    pub sack: bool,
    /// What the peer announced and what this end announced, if scaling was agreed.
    pub scales: Option<(u8, u8)>,
    /// The greatest segment that this end sends, in bytes without options.
    pub segment: u32,
}

/// What this end's kernel knows of the connection.
pub fn agreed(stream: &TcpStream) -> io::Result<Agreed> {
    let info = info(stream)?;
    let has = |option| info.tcpi_options & option != 0;
    let scales = info.tcpi_snd_rcv_wscale;
    Ok(Agreed {
        timestamps: has(TIMESTAMPS),
        sack: has(SACK),
        scales: has(WINDOW_SCALING).then_some((scales & 15, scales >> 4)),
        segment: info.tcpi_snd_mss,
    })
}

/// Segments that this end has sent again.
pub fn retransmissions(stream: &TcpStream) -> io::Result<u32> {
    info(stream).map(|info| info.tcpi_total_retrans)
}

/// Connects when the first bytes are written, which may then be in the SYN (TCP Fast Open, RFC 7413).
pub fn connect_with_data(target: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP))?;
    let on: libc::c_int = 1;
    // SAFETY: the option is an integer, and lives during the call.
    let result = unsafe {
        let length = size_of_val(&on) as libc::socklen_t;
        let option = libc::TCP_FASTOPEN_CONNECT;
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, option, (&raw const on).cast(), length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    socket.connect(&target.into())?;
    Ok(socket.into())
}

fn info(stream: &TcpStream) -> io::Result<libc::tcp_info> {
    // SAFETY: a structure of integers; all-zero is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the buffer is `length` bytes long, and any bytes are a valid `tcp_info`.
    let result = unsafe {
        let place = (&raw mut info).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, place, &mut length)
    };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}
