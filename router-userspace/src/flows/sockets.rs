//! Reading a live TCP socket's state, and leaving it without a word on the wire.
//!
//! `TCP_REPAIR` (Linux 3.5, made for checkpoint and restore) does both: it shows sequence numbers, and a socket that is closed in repair
//! mode sends neither FIN nor RST. Leaving repair mode is done with -1, which sends no window probe; it also
//! clears SO_REUSEADDR, without which a restarted daemon meets EADDRINUSE, so that is set again.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{c_int, c_void};

const TCP_REPAIR: c_int = 19;
const TCP_REPAIR_QUEUE: c_int = 20;
const TCP_QUEUE_SEQ: c_int = 21;
const TCP_TIMESTAMP: c_int = 24;

const REPAIR_ON: c_int = 1;
const REPAIR_OFF_WITHOUT_PROBE: c_int = -1;

const QUEUE_NONE: c_int = 0;
const QUEUE_RECEIVE: c_int = 1;
const QUEUE_SEND: c_int = 2;

const TCPI_OPT_TIMESTAMPS: u8 = 1;
const TCPI_OPT_SACK: u8 = 2;
const TCPI_OPT_ECN: u8 = 8;

/// States of TCP_INFO (`include/net/tcp_states.h`).
const TCP_ESTABLISHED: u8 = 1;
const TCP_TIME_WAIT: u8 = 6;
const TCP_CLOSE: u8 = 7;
const TCP_CLOSE_WAIT: u8 = 8;
const TCP_LAST_ACK: u8 = 9;
const TCP_CLOSING: u8 = 11;

/// The options that both ends agreed in the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    pub timestamps: bool,
    pub sack: bool,
    pub ecn: bool,
    /// The peer's window scale (0–14): received windows are shifted by it.
    pub peer_scale: u8,
    /// Our own window scale: what we announced.
    pub our_scale: u8,
}

/// What a socket knows of its connection at one moment. Sequence numbers are as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketState {
    pub agreed: Agreed,
    /// The sequence number of the next byte to be written.
    pub write_seq: u32,
    /// The sequence number behind the last byte received in order.
    pub rcv_nxt: u32,
    /// Bytes received and not yet read.
    pub unread: u32,
    /// Bytes written and not yet acknowledged by the peer.
    pub unacked: u32,
    /// The socket's timestamp clock minus the monotonic clock in ms; up to 1 too low.
    pub clock_offset: u32,
    /// Bytes that the peer permits us to send beyond what it has acknowledged.
    pub peer_window: u32,
}

/// Why a socket's state does not allow a handoff.
#[derive(Debug)]
pub enum StateError {
    /// One side has closed its direction.
    HalfClosed,
    /// Its timestamps tick in µs, which the packet path does not translate.
    MicrosecondClock,
    /// The kernel refused.
    Refused(io::Error),
}

impl From<io::Error> for StateError {
    fn from(error: io::Error) -> Self {
        Self::Refused(error)
    }
}

/// A socket in repair mode. Dropping it without [`Repair::close_silently`] leaves repair mode.
#[derive(Debug)]
pub struct Repair {
    socket: Option<OwnedFd>,
}

impl Repair {
    /// Enters repair mode. Packets are still received and acknowledged, and what was written is still sent again when it gets lost; a close,
    /// also by the death of the process, is silent.
    pub fn enter(socket: OwnedFd) -> Result<Self, (io::Error, OwnedFd)> {
        match set_int(&socket, libc::IPPROTO_TCP, TCP_REPAIR, REPAIR_ON) {
            Ok(()) => Ok(Self { socket: Some(socket) }),
            Err(error) => Err((error, socket)),
        }
    }

    pub fn socket(&self) -> &OwnedFd {
        self.socket.as_ref().expect("present until closed or left")
    }

    /// Reads what a handoff needs.
    pub fn state(&self) -> Result<SocketState, StateError> {
        let socket = self.socket();
        let info = tcp_info(socket)?;
        if info.tcpi_state != TCP_ESTABLISHED {
            return Err(StateError::HalfClosed);
        }
        let agreed = Agreed::from_info(&info);
        let mut clock_offset = 0;
        if agreed.timestamps {
            let clock = get_int(socket, libc::IPPROTO_TCP, TCP_TIMESTAMP)? as u32;
            // The lowest bit tells the unit, not the time.
            if clock & 1 != 0 {
                return Err(StateError::MicrosecondClock);
            }
            clock_offset = clock.wrapping_sub(monotonic_ms());
        }
        set_int(socket, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, QUEUE_SEND)?;
        let write_seq = get_int(socket, libc::IPPROTO_TCP, TCP_QUEUE_SEQ)? as u32;
        let unacked = ioctl_int(socket, libc::TIOCOUTQ)? as u32;
        set_int(socket, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, QUEUE_RECEIVE)?;
        let (rcv_nxt, unread) = self.receive_queue()?;
        // In the send queue's repair mode the kernel would hold back what was written.
        set_int(socket, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, QUEUE_NONE)?;
        Ok(SocketState {
            agreed,
            write_seq,
            rcv_nxt,
            unread,
            unacked,
            clock_offset,
            peer_window: info.tcpi_snd_wnd,
        })
    }

    /// The end of the receive queue and its length, of one moment: bytes may arrive between two calls.
    fn receive_queue(&self) -> io::Result<(u32, u32)> {
        let socket = self.socket();
        let mut rcv_nxt = get_int(socket, libc::IPPROTO_TCP, TCP_QUEUE_SEQ)?;
        loop {
            let unread = unread(socket)?;
            let again = get_int(socket, libc::IPPROTO_TCP, TCP_QUEUE_SEQ)?;
            if again == rcv_nxt {
                return Ok((rcv_nxt as u32, unread));
            }
            rcv_nxt = again;
        }
    }

    /// Writes what the send buffer takes, and is back in repair mode afterwards. `WouldBlock` where it takes nothing.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.outside(|socket| {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the buffer is valid for its length.
            let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
            usize::try_from(sent).map_err(|_| io::Error::last_os_error())
        })
    }

    /// Reads what has been received; 0 where the peer has closed its direction. `WouldBlock` where there is nothing.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.outside(|socket| {
            let at = buffer.as_mut_ptr().cast();
            // SAFETY: the buffer is valid for its length.
            let received = unsafe { libc::recv(socket.as_raw_fd(), at, buffer.len(), libc::MSG_DONTWAIT) };
            usize::try_from(received).map_err(|_| io::Error::last_os_error())
        })
    }

    /// Sends FIN behind what has been written.
    pub fn shut_down_write(&self) -> io::Result<()> {
        self.outside(|socket| socket2::SockRef::from(socket).shutdown(std::net::Shutdown::Write))
    }

    /// Closes with RST.
    pub fn abort(mut self) {
        if let Some(socket) = self.socket.take() {
            leave_repair(&socket);
            // Fails only on a socket that is closed already.
            let _ = socket2::SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO));
        }
    }

    /// Ordinary calls are refused in repair mode.
    fn outside<T>(&self, call: impl FnOnce(&OwnedFd) -> io::Result<T>) -> io::Result<T> {
        let socket = self.socket();
        set_int(socket, libc::IPPROTO_TCP, TCP_REPAIR, REPAIR_OFF_WITHOUT_PROBE)?;
        let result = call(socket);
        set_int(socket, libc::IPPROTO_TCP, TCP_REPAIR, REPAIR_ON)?;
        result
    }

    /// Leaves repair mode; the socket works as before.
    pub fn leave(mut self) -> OwnedFd {
        let socket = self.socket.take().expect("present until closed or left");
        leave_repair(&socket);
        socket
    }

    /// Closes the socket. Nothing is sent, and the kernel forgets the connection.
    pub fn close_silently(mut self) {
        drop(self.socket.take());
    }
}

impl Drop for Repair {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            leave_repair(socket);
        }
    }
}

fn leave_repair(socket: &OwnedFd) {
    // Neither call can fail on a socket that has entered repair mode.
    let _ = set_int(socket, libc::IPPROTO_TCP, TCP_REPAIR, REPAIR_OFF_WITHOUT_PROBE);
    let _ = set_int(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
}

impl Agreed {
    fn from_info(info: &TcpInfo) -> Self {
        Self {
            timestamps: info.tcpi_options & TCPI_OPT_TIMESTAMPS != 0,
            sack: info.tcpi_options & TCPI_OPT_SACK != 0,
            ecn: info.tcpi_options & TCPI_OPT_ECN != 0,
            peer_scale: info.tcpi_wscales & 15,
            our_scale: info.tcpi_wscales >> 4,
        }
    }
}

/// The kernel's `struct tcp_info` as far as it is used here (`include/uapi/linux/tcp.h`); `libc`'s ends before `tcpi_snd_wnd`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct TcpInfo {
    tcpi_state: u8,
    tcpi_ca_state: u8,
    tcpi_retransmits: u8,
    tcpi_probes: u8,
    tcpi_backoff: u8,
    tcpi_options: u8,
    /// Low half: the peer's scale; high half: ours.
    tcpi_wscales: u8,
    tcpi_rates: u8,
    words: [u32; 24],
    quads: [u64; 4],
    segments: [u32; 2],
    more: [u32; 4],
    delivery_rate: u64,
    busy: [u64; 3],
    delivered: [u32; 2],
    sent: [u64; 2],
    dsack_dups: u32,
    reord_seen: u32,
    rcv_ooopack: u32,
    /// Since Linux 5.4.
    tcpi_snd_wnd: u32,
}

const _: () = assert!(std::mem::offset_of!(TcpInfo, tcpi_snd_wnd) == 228);

fn tcp_info(socket: &impl AsRawFd) -> io::Result<TcpInfo> {
    let mut info = TcpInfo::default();
    let mut len = size_of::<TcpInfo>() as libc::socklen_t;
    // SAFETY: the buffer is `len` bytes long and any bytes are a valid `TcpInfo`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast::<c_void>(),
            &mut len,
        )
    };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

/// Bytes received and not yet read.
pub fn unread(socket: &impl AsRawFd) -> io::Result<u32> {
    ioctl_int(socket, libc::FIONREAD).map(|bytes| bytes as u32)
}

/// What has become of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Both directions are open.
    Open,
    /// The peer has closed its direction, and everything up to there has been received.
    Closed,
    /// The connection is gone.
    Reset,
}

/// Whether the peer has closed its direction, or the connection is gone.
pub fn peer(socket: &impl AsRawFd) -> io::Result<Peer> {
    Ok(match tcp_info(socket)?.tcpi_state {
        TCP_CLOSE => Peer::Reset,
        TCP_CLOSE_WAIT | TCP_LAST_ACK | TCP_TIME_WAIT | TCP_CLOSING => Peer::Closed,
        _ => Peer::Open,
    })
}

/// Milliseconds of the monotonic clock, modulo 2^32.
fn monotonic_ms() -> u32 {
    (monotonic_ns() / 1_000_000) as u32
}

/// Nanoseconds of CLOCK_MONOTONIC, the clock of `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn set_int(socket: &impl AsRawFd, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the option value is one int.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast::<c_void>(), len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get_int(socket: &impl AsRawFd, level: c_int, option: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the option value is one int.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast::<c_void>(), &mut len)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

fn ioctl_int(socket: &impl AsRawFd, request: libc::Ioctl) -> io::Result<c_int> {
    let mut value: c_int = 0;
    // SAFETY: both requests store one int.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &mut value) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn both_ends_read_the_same_agreement() {
        let (client, server) = pair();
        let agreed = |socket: &TcpStream| Agreed::from_info(&tcp_info(socket).unwrap());
        let (ours, theirs) = (agreed(&client), agreed(&server));
        assert_eq!((ours.timestamps, ours.sack), (theirs.timestamps, theirs.sack));
        assert_eq!((ours.peer_scale, ours.our_scale), (theirs.our_scale, theirs.peer_scale));
    }

    #[test]
    fn a_peer_that_has_shut_down_is_seen() {
        let (client, server) = pair();
        assert_eq!(peer(&server).unwrap(), Peer::Open);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        (&server).read_to_end(&mut rest).unwrap();
        assert_eq!(peer(&server).unwrap(), Peer::Closed);
    }

    #[test]
    fn state_counts_what_is_unread_and_a_left_socket_still_works() {
        let (mut client, server) = pair();
        client.write_all(b"hello").unwrap();
        let mut peeked = [0; 5];
        while server.peek(&mut peeked).unwrap() < 5 {}
        let repair = match Repair::enter(server.into()) {
            Ok(repair) => repair,
            // Without CAP_NET_ADMIN there is nothing to test.
            Err((error, _)) => {
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
                return eprintln!("skipped: TCP_REPAIR needs CAP_NET_ADMIN");
            }
        };
        let state = repair.state().unwrap();
        assert_eq!(state.unread, 5);
        assert_eq!(state.unacked, 0);
        let mut server = TcpStream::from(repair.leave());
        server.write_all(b"hello back").unwrap();
        let mut answer = [0; 10];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"hello back");
    }

    #[test]
    fn a_silent_close_tells_the_peer_nothing() {
        let (client, server) = pair();
        let Ok(repair) = Repair::enter(server.into()) else {
            return eprintln!("skipped: TCP_REPAIR needs CAP_NET_ADMIN");
        };
        repair.close_silently();
        client.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        let error = (&client).read(&mut [0; 1]).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
    }
}
