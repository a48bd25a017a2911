//! How long packets may be that leave by an interface.

use std::os::fd::AsRawFd;

use nix::net::if_::if_indextoname;

/// In bytes from the IP header on; `None` if the interface is gone.
pub fn of_interface(index: u32) -> Option<u32> {
    let name = if_indextoname(index).ok()?;
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).ok()?;
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name.to_bytes()) {
        *place = *byte as libc::c_char;
    }
    // SAFETY: the request is as this call takes it, and the name is shorter than its place.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &mut request) };
    // SAFETY: the call has written this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    (result == 0).then_some(mtu.cast_unsigned())
}
