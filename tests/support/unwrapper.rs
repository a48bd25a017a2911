//! Takes the packets of `dsr-ipip` out of their outer header, on kernels without tunnel devices.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::TestLab;
use crate::lab::{Family, Host};

/// Gives what is inside of the packets to the backend's own stack.
#[derive(Debug)]
pub struct Unwrapper {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Unwrapper {
    pub fn start(lab: &TestLab, number: u8, family: Family) -> Self {
        let host = Host::Backend(number);
        let (tunnel, wrapped) = lab.inside(host, || (tun(), raw(family))).unwrap();
        let up = lab.command(host, "ip").args(["link", "set", "unwrapped", "up"]).status().unwrap();
        assert!(up.success(), "the tunnel's device comes up");
        let _ = lab.sysctl(host, "net.ipv4.conf.unwrapped.rp_filter", "0");
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            let mut packet = vec![0; 65_536];
            while !told.load(Ordering::Relaxed) {
                let Ok(length) = (&wrapped).read(&mut packet) else { continue };
                // An IPv4 raw socket gives the outer header too.
                let from = if family == Family::V4 { 20 } else { 0 };
                let bytes = &packet[from..length];
                let _ = (&tunnel).write_all(&[&checksum_is_left(bytes)[..], bytes].concat());
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Unwrapper {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Tells the stack that the transport's checksum need not be complete, as between virtual interfaces it is not (`struct virtio_net_hdr`).
fn checksum_is_left(packet: &[u8]) -> [u8; 10] {
    let (protocol, start) = if packet[0] >> 4 == 4 { (packet[9], 20u16) } else { (packet[6], 40) };
    let offset: u16 = if protocol == 6 { 16 } else { 6 };
    let mut header = [0; 10];
    let is_fragment =
        if packet[0] >> 4 == 4 { packet[6] & 0x3f != 0 || packet[7] != 0 } else { protocol == 44 };
    if is_fragment {
        // Who cuts a datagram into pieces completes its checksum before.
        return header;
    }
    header[0] = 1;
    header[6..8].copy_from_slice(&start.to_ne_bytes());
    header[8..10].copy_from_slice(&offset.to_ne_bytes());
    header
}

fn raw(family: Family) -> Socket {
    let (domain, protocol) = if family == Family::V4 { (Domain::IPV4, 4) } else { (Domain::IPV6, 41) };
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(protocol))).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    socket
}

fn tun() -> File {
    let file = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(b"unwrapped") {
        *place = *byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    // SAFETY: the request is as this call takes it.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) };
    assert_eq!(made, 0, "{}", io::Error::last_os_error());
    file
}
