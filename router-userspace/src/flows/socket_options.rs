//! The options of TCP sockets that the standard libraries do not know: their numbers, structures and calls.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{c_int, c_void};

pub const TCP_REPAIR: c_int = 19;
pub const TCP_REPAIR_QUEUE: c_int = 20;
pub const TCP_QUEUE_SEQ: c_int = 21;
pub const TCP_REPAIR_OPTIONS: c_int = 22;
pub const TCP_TIMESTAMP: c_int = 24;
pub const TCP_REPAIR_WINDOW: c_int = 29;

/// The start of the kernel's `struct tcp_info` (`include/uapi/linux/tcp.h`); the kernel writes no more than it is asked for.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct TcpInfo {
    pub tcpi_state: u8,
    tcpi_ca_state: u8,
    tcpi_retransmits: u8,
    tcpi_probes: u8,
    tcpi_backoff: u8,
    pub tcpi_options: u8,
    /// Low half: the peer's scale; high half: ours.
    pub tcpi_wscales: u8,
    tcpi_rates: u8,
    /// From `tcpi_rto` to `tcpi_last_ack_sent`.
    words: [u32; 11],
    /// In ms.
    pub tcpi_last_data_recv: u32,
    /// From `tcpi_last_ack_recv` to `tcpi_total_retrans`.
    more_words: [u32; 12],
    tcpi_pacing_rate: u64,
    tcpi_max_pacing_rate: u64,
    tcpi_bytes_acked: u64,
    /// Since Linux 4.1.
    pub tcpi_bytes_received: u64,
}

const _: () = assert!(std::mem::offset_of!(TcpInfo, tcpi_last_data_recv) == 52);
const _: () = assert!(std::mem::offset_of!(TcpInfo, tcpi_bytes_received) == 128);

pub fn tcp_info(socket: &impl AsRawFd) -> io::Result<TcpInfo> {
    let mut info = TcpInfo::default();
    get(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    Ok(info)
}

/// The kernel's `struct tcp_repair_window` (`include/uapi/linux/tcp.h`, since Linux 4.8).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RepairWindow {
    snd_wl1: u32,
    pub snd_wnd: u32,
    max_window: u32,
    rcv_wnd: u32,
    rcv_wup: u32,
}

impl RepairWindow {
    /// The sequence number behind the last byte that the peer may send.
    pub fn receive_edge(self) -> u32 {
        self.rcv_wup.wrapping_add(self.rcv_wnd)
    }
}

impl RepairWindow {
    /// Of a connection whose peer's next byte is `seq`: what the peer takes, and what it has been permitted to send.
    pub fn new(seq: u32, send: u32, receive: u32) -> Self {
        Self { snd_wl1: seq, snd_wnd: send, max_window: send, rcv_wnd: receive, rcv_wup: seq }
    }
}

/// Sets both windows of a connection that is established in repair mode.
pub fn set_repair_window(socket: &impl AsRawFd, windows: RepairWindow) -> io::Result<()> {
    set(socket, TCP_REPAIR_WINDOW, &[windows])
}

/// An option that both ends have agreed in their handshake.
#[derive(Clone, Copy, Debug)]
pub enum Agreed {
    /// Greatest segment that the peer takes, in bytes.
    MaxSegment(u16),
    WindowScale {
        peer: u8,
        ours: u8,
    },
    Sack,
    Timestamps,
}

/// The kernel's `struct tcp_repair_opt`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RepairOption {
    code: u32,
    value: u32,
}

/// Sets what the handshake of a connection in repair mode has agreed.
pub fn set_repair_options(socket: &impl AsRawFd, agreed: &[Agreed]) -> io::Result<()> {
    let option = |agreed: &Agreed| match *agreed {
        Agreed::MaxSegment(bytes) => RepairOption { code: 2, value: u32::from(bytes) },
        Agreed::WindowScale { peer, ours } => {
            RepairOption { code: 3, value: u32::from(peer) | u32::from(ours) << 16 }
        }
        Agreed::Sack => RepairOption { code: 4, value: 0 },
        Agreed::Timestamps => RepairOption { code: 8, value: 0 },
    };
    let options: Vec<_> = agreed.iter().map(option).collect();
    set(socket, TCP_REPAIR_OPTIONS, &options)
}

fn set<T: Copy>(socket: &impl AsRawFd, option: c_int, values: &[T]) -> io::Result<()> {
    let len = size_of_val(values) as libc::socklen_t;
    // SAFETY: the option's value is `len` bytes long.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, option, values.as_ptr().cast::<c_void>(), len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Both windows. The socket must be in repair mode.
pub fn repair_window(socket: &OwnedFd) -> io::Result<RepairWindow> {
    let mut windows = RepairWindow::default();
    get(socket, libc::IPPROTO_TCP, TCP_REPAIR_WINDOW, &mut windows)?;
    Ok(windows)
}

pub fn set_int(socket: &impl AsRawFd, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the option value is one int.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast::<c_void>(), len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub fn get_int(socket: &impl AsRawFd, level: c_int, option: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    get(socket, level, option, &mut value)?;
    Ok(value)
}

/// A type of which any bytes are a value.
trait Plain {}
impl Plain for c_int {}
impl Plain for TcpInfo {}
impl Plain for RepairWindow {}

/// Reads an option's value, or as much of it as `value` holds.
fn get<T: Plain>(socket: &impl AsRawFd, level: c_int, option: c_int, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is `len` bytes long, and whatever the kernel writes to it is valid.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (value as *mut T).cast::<c_void>(), &mut len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub fn ioctl_int(socket: &impl AsRawFd, request: libc::Ioctl) -> io::Result<c_int> {
    let mut value: c_int = 0;
    // SAFETY: both requests store one int.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &mut value) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
