//! Socket options that no library offers.

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::flows::table::TcpOptions;

/// The part of the kernel's `struct tcp_info` that the proxy needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// `TCP_ESTABLISHED` is 1.
    state: u8,
    /// `TCPI_OPT_*`: 1 timestamps, 2 SACK, 4 window scaling, 8 ECN.
    options: u8,
    /// Payload bytes of the largest segment that we send, without TCP options.
    send_segment: u32,
}

impl TcpInfo {
    /// A timestamps option with its padding.
    const TIMESTAMPS_LEN: u32 = 12;

    /// Whether both directions are open: neither side has closed or reset.
    pub fn is_open(self) -> bool {
        self.state == 1
    }

    pub fn options(self) -> TcpOptions {
        TcpOptions {
            timestamps: self.options & 1 != 0,
            sack: self.options & 2 != 0,
            window_scaling: self.options & 4 != 0,
            ecn: self.options & 8 != 0,
        }
    }

    /// The maximum segment size that the peer announced, as far as the route lets us use it; within what
    /// `TCP_MAXSEG` takes.
    pub fn announced_segment(self) -> u32 {
        let options = if self.options().timestamps { Self::TIMESTAMPS_LEN } else { 0 };
        (self.send_segment + options).clamp(88, 32_767)
    }
}

/// What the kernel knows about a connection.
pub fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    // Up to and including tcpi_snd_mss; the kernel writes no more than it is asked for.
    let mut words = [0u32; 5];
    let mut length = size_of_val(&words) as libc::socklen_t;
    let pointer = words.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `length` bytes, which `words` has.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, pointer, &mut length)
    })?;
    Ok(TcpInfo {
        state: words[0].to_ne_bytes()[0],
        options: words[1].to_ne_bytes()[1],
        send_segment: words[4],
    })
}

/// Gives the peer at most `bytes` more at a time, once it has used up what it was given before. The window's scale stays as
/// agreed. The kernel raises the limit when a reader that keeps up makes it enlarge the buffer.
pub fn clamp_window(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes as libc::c_int)
}

/// Keeps what the peer has sent and may still send before anything is read below about twice `bytes`: the kernel doubles them, since segments take
/// more memory than they have bytes.
pub fn limit_receiving(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes as libc::c_int)
}

/// Takes the limit off again: the window may grow to about `bytes`. Without the privilege to exceed
/// `net.core.rmem_max`, that is the bound.
pub fn allow_receiving(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let bytes = bytes as libc::c_int;
    if set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
        set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
    }
    // A buffer of fixed size does not raise the clamp by itself.
    set(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes)
}

/// Lets the kernel choose the port when connecting instead of when binding, so that it need be unique only
/// towards one peer.
pub fn choose_port_late(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Lets a socket bind to addresses that are not this host's (ip(7), `IP_TRANSPARENT`).
pub fn be_transparent(socket: BorrowedFd<'_>, is_ipv4: bool) -> io::Result<()> {
    match is_ipv4 {
        true => set(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1),
        false => set(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1),
    }
}

/// Says whether a listening socket gives out connections only when their first bytes are there. A client that has sent nothing is given out
/// after about a second all the same: with the first handshake that it repeats (tcp(7), `TCP_DEFER_ACCEPT`).
pub fn defer_accept(listening: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    set(listening, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, on.into())
}

/// Bytes that were sent and that the peer has not acknowledged.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: TIOCOUTQ on a TCP socket writes one int.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Bytes that have come and that nobody has read.
pub fn unread(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD on a socket writes one int.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

fn set(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads one int, which pointer and length describe.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_real_connection_tells_its_options_and_its_unread_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let info = tcp_info(server.as_fd()).unwrap();
        assert!(info.options().window_scaling, "Linux offers it unless told not to");
        assert!((88..=32_767).contains(&info.announced_segment()));
        limit_receiving(server.as_fd(), 64 * 1024).unwrap();
        allow_receiving(server.as_fd(), 1024 * 1024).unwrap();

        client.set_nonblocking(true).unwrap();
        while client.write(&[7; 65536]).is_ok() {}
        assert!(unacknowledged(client.as_fd()).unwrap() > 0, "the window is full of unread bytes");
    }

    #[test]
    fn who_has_said_something_is_accepted_before_who_has_not() {
        let overtakes = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            defer_accept(listener.as_fd(), true).unwrap();
            let address = listener.local_addr().unwrap();
            let _silent = TcpStream::connect(address).unwrap();
            let mut speaking = TcpStream::connect(address).unwrap();
            speaking.write_all(b"GET").unwrap();
            listener.accept().unwrap().1 == speaking.local_addr().unwrap()
        };
        // A host that is held up for a second gives out the silent one too.
        assert!((0..20).any(|_| overtakes()));
    }
}
