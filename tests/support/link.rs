//! A cable between two interfaces, in a network namespace of the calling thread alone. Frames go in and come out as they are.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Its other end is `far`, where programs can be attached.
#[derive(Debug)]
pub struct Link {
    near: PacketSocket,
}

/// Sends frames out of one interface as they are, and receives what arrives there but not what it sends itself.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl Link {
    pub const FAR: &str = "far";

    /// Moves the calling thread into a new namespace, for good: use a thread of its own.
    pub fn new() -> Result<Self> {
        // SAFETY: changes the calling thread's namespace only.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error()).context("cannot make a network namespace");
        }
        ip("link add near type veth peer name far")?;
        // Nobody speaks unasked.
        for end in ["near", "far"] {
            ip(&format!("link set {end} addrgenmode none arp off mtu 9000 up"))?;
        }
        Ok(Self { near: PacketSocket::on("near")? })
    }

    /// The interface index of an end.
    pub fn index(end: &str) -> Result<u32> {
        let name = std::ffi::CString::new(end)?;
        // SAFETY: a terminated string.
        match unsafe { libc::if_nametoindex(name.as_ptr()) } {
            0 => Err(io::Error::last_os_error()).with_context(|| format!("no interface {end}")),
            index => Ok(index),
        }
    }

    /// The link-layer address of an end.
    pub fn address(end: &str) -> Result<[u8; 6]> {
        let output = Command::new("ip").args(["-brief", "link", "show", end]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let words = text.split_whitespace().nth(2).with_context(|| format!("no address: {text}"))?;
        let bytes: Vec<u8> =
            words.split(':').map(|word| u8::from_str_radix(word, 16)).collect::<Result<_, _>>()?;
        bytes.try_into().map_err(|_| anyhow::anyhow!("not an Ethernet address: {words}"))
    }

    /// Sends a frame from the near to the far end. It has arrived when this returns.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        self.near.send(frame)
    }

    /// A frame that has come from the far end.
    pub fn receive(&self, within: Duration) -> Result<Vec<u8>> {
        self.near.receive(within)
    }
}

impl PacketSocket {
    /// Opens it in the calling thread's namespace.
    pub fn on(interface: &str) -> Result<Self> {
        packet_socket(interface).map(Self)
    }

    pub fn send(&self, frame: &[u8]) -> Result<()> {
        // SAFETY: the buffer is as long as said.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent != frame.len() as isize {
            return Err(io::Error::last_os_error())
                .with_context(|| format!("cannot send a frame of {} bytes", frame.len()));
        }
        Ok(())
    }

    /// A frame that has arrived.
    pub fn receive(&self, within: Duration) -> Result<Vec<u8>> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, valid for the call.
        if unsafe { libc::poll(&mut poll, 1, within.as_millis() as i32) } != 1 {
            bail!("no frame came within {within:?}");
        }
        let mut frame = vec![0; 65_536];
        // SAFETY: the buffer is as long as said.
        let len = unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        frame.truncate(len);
        Ok(frame)
    }
}

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output().context("cannot start ip")?;
    if !output.status.success() {
        bail!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn packet_socket(interface: &str) -> Result<OwnedFd> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: plain arguments.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error()).context("cannot open a packet socket");
    }
    // SAFETY: a new descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all-zero is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = Link::index(interface)? as i32;
    let ignore_own: libc::c_int = 1;
    // SAFETY: both buffers are as long as said.
    let bound = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            (&raw const ignore_own).cast(),
            size_of::<libc::c_int>() as u32,
        ) == 0
            && libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) == 0
    };
    if bound { Ok(socket) } else { Err(io::Error::last_os_error()).context("cannot bind a packet socket") }
}
