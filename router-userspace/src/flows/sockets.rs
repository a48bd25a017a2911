//! Reading a live TCP socket's state, and leaving it without a word on the wire.
//!
//! `TCP_REPAIR` (Linux 3.5, made for checkpoint and restore) does both: it shows sequence numbers, and a socket that is closed in repair
//! mode sends neither FIN nor RST. Sockets are in that mode for these moments only: in between the kernel keeps for them what is not acknowledged yet,
//! even when the daemon is killed. Leaving repair mode is done with -1, which sends no window probe; it also
//! clears SO_REUSEADDR, without which a restarted daemon meets EADDRINUSE, so that is set again.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use libc::c_int;
use socket2::SockRef;

use super::socket_options::{
    TCP_QUEUE_SEQ, TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_TIMESTAMP, TcpInfo, get_int, ioctl_int, repair_window,
    set_int, tcp_info,
};

const REPAIR_ON: c_int = 1;
const REPAIR_OFF_WITH_PROBE: c_int = 0;
const REPAIR_OFF_WITHOUT_PROBE: c_int = -1;

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
    /// Bytes that we have permitted the peer to send beyond `rcv_nxt`.
    pub own_window: u32,
    /// Bytes received in all; `u32::MAX` stands for more.
    pub received: u32,
    /// For how long the peer has sent no data.
    pub silent: Duration,
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

/// Reads what a handoff needs. The socket is as before afterwards.
pub fn state(socket: &OwnedFd) -> Result<SocketState, StateError> {
    let _repair = RepairMode::enter(socket)?;
    set_int(socket, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, QUEUE_SEND)?;
    let write_seq = get_int(socket, libc::IPPROTO_TCP, TCP_QUEUE_SEQ)? as u32;
    let unacked = ioctl_int(socket, libc::TIOCOUTQ)? as u32;
    set_int(socket, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, QUEUE_RECEIVE)?;
    let (rcv_nxt, unread) = receive_queue(socket)?;
    // After `rcv_nxt`, so that the window's edge is not behind it.
    let windows = repair_window(socket)?;
    // Now, and not before: a FIN counts in `rcv_nxt` and not in `unread`, and it may come at any time.
    let info = tcp_info(socket)?;
    if info.tcpi_state != TCP_ESTABLISHED {
        return Err(StateError::HalfClosed);
    }
    let agreed = Agreed::from_info(&info);
    let mut clock_offset = 0;
    if agreed.timestamps {
        clock_offset =
            offset_between(|| Ok(get_int(socket, libc::IPPROTO_TCP, TCP_TIMESTAMP)? as u32), monotonic_ms)?;
    }
    Ok(SocketState {
        agreed,
        write_seq,
        rcv_nxt,
        unread,
        unacked,
        clock_offset,
        peer_window: windows.snd_wnd,
        own_window: windows.receive_edge().wrapping_sub(rcv_nxt),
        received: info.tcpi_bytes_received.try_into().unwrap_or(u32::MAX),
        silent: Duration::from_millis(info.tcpi_last_data_recv.into()),
    })
}

/// A timestamp clock minus the monotonic one, in ms. Whoever is interrupted between reading the two would find the first one late; timestamps that are translated by
/// such an offset are older than what our socket has sent, and discarded (PAWS, RFC 7323 §5). So both are read within one ms, or
/// else the offset errs on the other side.
fn offset_between(
    clock: impl Fn() -> io::Result<u32>,
    monotonic_ms: impl Fn() -> u32,
) -> Result<u32, StateError> {
    const TRIES: usize = 8;
    let (mut offset, mut least) = (0, u32::MAX);
    for _ in 0..TRIES {
        let before = monotonic_ms();
        let clock = clock()?;
        let took = monotonic_ms().wrapping_sub(before);
        // The lowest bit tells the unit, not the time.
        if clock & 1 != 0 {
            return Err(StateError::MicrosecondClock);
        }
        if took < least {
            (offset, least) = (clock.wrapping_sub(before), took);
        }
        if took == 0 {
            break;
        }
    }
    Ok(offset)
}

/// The end of the receive queue and its length, of one moment: bytes may arrive between two calls.
fn receive_queue(socket: &OwnedFd) -> io::Result<(u32, u32)> {
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

/// Sends the acknowledgement that the socket has put off, if there is one.
pub fn acknowledge(socket: &OwnedFd) -> io::Result<()> {
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1)
}

/// Gives the peer no larger window than it has, whatever is read from now on.
pub fn hold_window(socket: &OwnedFd) -> io::Result<()> {
    // The kernel takes its own minimum instead, which is about one segment.
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, 1)
}

/// Whether the peer may send less than two usual segments more.
pub fn has_used_up_window(socket: &OwnedFd) -> io::Result<bool> {
    const ROOM: u32 = 2 * 1460;
    let _repair = RepairMode::enter(socket)?;
    set_int(socket, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, QUEUE_RECEIVE)?;
    let (rcv_nxt, _) = receive_queue(socket)?;
    Ok(repair_window(socket)?.receive_edge().wrapping_sub(rcv_nxt) < ROOM)
}

/// Asks the peer to tell its window once more.
pub fn probe_window(socket: &OwnedFd) -> io::Result<()> {
    set_int(socket, libc::IPPROTO_TCP, TCP_REPAIR, REPAIR_ON)?;
    set_int(socket, libc::IPPROTO_TCP, TCP_REPAIR, REPAIR_OFF_WITH_PROBE)
}

/// Lets a connection that was made in repair mode begin to live: it acknowledges what it has received.
pub fn begin_to_live(socket: &OwnedFd) -> io::Result<()> {
    set_int(socket, libc::IPPROTO_TCP, TCP_REPAIR, REPAIR_OFF_WITH_PROBE)?;
    set_int(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
}

/// Closes the socket. Nothing is sent, and the kernel forgets the connection.
pub fn close_silently(socket: OwnedFd) {
    // Fails only without the privilege that `state` needed too.
    let _ = set_int(&socket, libc::IPPROTO_TCP, TCP_REPAIR, REPAIR_ON);
}

/// Closes the socket with RST.
pub fn abort(socket: OwnedFd) {
    // Fails only on a socket that is closed already.
    let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
}

/// Writes what the send buffer takes. `WouldBlock` where it takes nothing.
pub fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    SockRef::from(socket).send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
}

/// Reads what has been received; 0 where the peer has closed its direction. `WouldBlock` where there is nothing.
pub fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    let at = buffer.as_mut_ptr().cast();
    // SAFETY: the buffer is valid for its length.
    let received = unsafe { libc::recv(socket.as_raw_fd(), at, buffer.len(), libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// A socket is in repair mode while this lives. Packets are still received and acknowledged.
struct RepairMode<'a>(&'a OwnedFd);

impl<'a> RepairMode<'a> {
    fn enter(socket: &'a OwnedFd) -> io::Result<Self> {
        set_int(socket, libc::IPPROTO_TCP, TCP_REPAIR, REPAIR_ON)?;
        Ok(Self(socket))
    }
}

impl Drop for RepairMode<'_> {
    fn drop(&mut self) {
        // Neither call can fail on a socket that has entered repair mode.
        let _ = set_int(self.0, libc::IPPROTO_TCP, TCP_REPAIR, REPAIR_OFF_WITHOUT_PROBE);
        let _ = set_int(self.0, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    }
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

    /// Without CAP_NET_ADMIN there is nothing to test.
    fn may_repair(socket: &OwnedFd) -> bool {
        match state(socket) {
            Err(StateError::Refused(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("skipped: TCP_REPAIR needs CAP_NET_ADMIN");
                false
            }
            _ => true,
        }
    }

    #[test]
    fn state_counts_what_is_unread_and_the_socket_still_works() {
        let (mut client, server) = pair();
        client.write_all(b"hello").unwrap();
        let mut peeked = [0; 5];
        while server.peek(&mut peeked).unwrap() < 5 {}
        let server: OwnedFd = server.into();
        if !may_repair(&server) {
            return;
        }
        let state = state(&server).unwrap();
        assert_eq!((state.unread, state.unacked), (5, 0));
        assert_eq!(send(&server, b"hello back").unwrap(), 10);
        let mut answer = [0; 10];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"hello back");
    }

    /// Where the FIN comes in the middle of reading, the numbers must not be off by one.
    #[test]
    fn a_fin_that_comes_while_the_state_is_read_is_either_seen_or_not_counted() {
        for _ in 0..300 {
            let (mut client, server) = pair();
            client.write_all(b"hello").unwrap();
            let server: OwnedFd = server.into();
            if !may_repair(&server) {
                return;
            }
            let first = unread_start(&server);
            let closing =
                std::thread::spawn(move || client.shutdown(std::net::Shutdown::Write).map(|()| client));
            while let Ok(state) = state(&server) {
                assert_eq!(state.rcv_nxt.wrapping_sub(state.unread), first);
            }
            closing.join().unwrap().unwrap();
        }
    }

    /// The sequence number of the first unread byte.
    fn unread_start(socket: &OwnedFd) -> u32 {
        while unread(socket).unwrap() < 5 {}
        let state = state(socket).unwrap();
        state.rcv_nxt.wrapping_sub(state.unread)
    }

    #[test]
    fn an_interruption_between_two_clocks_does_not_set_one_of_them_back() {
        use std::cell::Cell;

        // The socket's clock is 1000 ms ahead. The first reading is interrupted for 5 ms behind it.
        let (now, interruptions) = (Cell::new(50), Cell::new(vec![5]));
        let clock = || {
            let read = now.get() + 1000;
            let mut left = interruptions.take();
            now.set(now.get() + left.pop().unwrap_or(0));
            interruptions.set(left);
            Ok(read & !1)
        };
        let offset = offset_between(clock, || now.get()).unwrap();
        assert!((999..=1000).contains(&offset), "{offset}");

        // On a host that interrupts every reading it errs on the side of being ahead.
        let always = || {
            now.set(now.get() + 3);
            Ok((now.get() + 1000) & !1)
        };
        assert!(offset_between(always, || now.get()).unwrap() >= 1000);
    }

    #[test]
    fn a_silent_close_tells_the_peer_nothing() {
        let (client, server) = pair();
        let server: OwnedFd = server.into();
        if !may_repair(&server) {
            return;
        }
        close_silently(server);
        client.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        let error = (&client).read(&mut [0; 1]).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
    }
}
