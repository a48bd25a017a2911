//! Detaching at once.
//!
//! A link whose pin is removed goes when the kernel comes to it, some milliseconds later, and until then nothing else can be attached in its place.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BPF_OBJ_GET: libc::c_long = 7;
const BPF_LINK_DETACH: libc::c_long = 34;

/// The part of the kernel's `union bpf_attr` for BPF_OBJ_GET.
#[repr(C)]
struct ObjectAttributes {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Detaches the program behind a pinned link, which then hangs in the air.
pub fn detach(pin: &Path) -> io::Result<()> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let attributes = ObjectAttributes { path: path.as_ptr() as u64, fd: 0, flags: 0 };
    // SAFETY: the attributes are as the command wants them, and the path outlives the call.
    let link = unsafe { bpf(BPF_OBJ_GET, &attributes)? };
    // SAFETY: a new descriptor that nobody else owns.
    let link = unsafe { OwnedFd::from_raw_fd(link) };
    // SAFETY: the command wants one descriptor.
    unsafe { bpf(BPF_LINK_DETACH, &link.as_raw_fd())? };
    Ok(())
}

/// # Safety
/// `attributes` are those of the command.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<i32> {
    // SAFETY: the attributes are as long as said.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
