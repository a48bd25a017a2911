//! Frames that leave by an interface as they are (packet(7)). What the kernel programs do at the way out they meet too.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Sends whole frames, and receives none.
#[derive(Debug)]
pub struct FrameSocket(OwnedFd);

impl FrameSocket {
    /// Needs CAP_NET_RAW.
    pub fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: plain arguments. Protocol 0 receives nothing.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a frame with its Ethernet header.
    pub fn send(&self, interface: u32, frame: &[u8]) -> io::Result<()> {
        // SAFETY: all-zero is a valid address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = interface as i32;
        address.sll_halen = 6;
        // What the frame's own header says, so that the kernel counts and filters it as such.
        if let Some([a, b]) = frame.get(12..14) {
            address.sll_protocol = u16::from_ne_bytes([*a, *b]);
        }
        // SAFETY: the frame and the address are valid for their lengths.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
