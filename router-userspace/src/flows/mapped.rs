//! A BPF array map in this process's memory: filling a flow and reading its progress cost no system call.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use router_common::abi::balance;
use router_common::abi::binding::{BindingSettings, Stash};
use router_common::abi::capture::{CaptureBudget, Wanted};
use router_common::abi::flow::Flow;
use router_common::abi::next_hop::NextHop;
use router_common::abi::xdp;

/// Types that may be shared with kernel programs: all fields are atomics, every bit pattern is valid.
///
/// # Safety
/// `repr(C)`, a multiple of 8 bytes long (the stride of array maps), and valid for any bytes that another party writes at any time.
pub unsafe trait SharedWithKernel: Sync {}

// SAFETY: atomics only, 256 bytes.
unsafe impl SharedWithKernel for Flow {}
// SAFETY: atomics only, 48 bytes.
unsafe impl SharedWithKernel for NextHop {}

// SAFETY: atomics only, 64 bytes.
unsafe impl SharedWithKernel for balance::Settings {}
// SAFETY: atomics only, 128 bytes.
unsafe impl SharedWithKernel for balance::EndpointBucket {}
// SAFETY: atomics only, 64 bytes.
unsafe impl SharedWithKernel for balance::Service {}
// SAFETY: atomics only, 64 bytes.
unsafe impl SharedWithKernel for balance::Instance {}
// SAFETY: atomics only, 8 bytes.
unsafe impl SharedWithKernel for balance::Group {}
// SAFETY: atomics only, 8 bytes.
unsafe impl SharedWithKernel for balance::Tunnel {}
// SAFETY: atomics only, 64 bytes.
unsafe impl SharedWithKernel for balance::RingChunk {}
// SAFETY: atomics only, 16 bytes.
unsafe impl SharedWithKernel for balance::Link {}
// SAFETY: atomics only, 1024 bytes.
unsafe impl SharedWithKernel for balance::FlowBucket {}
// SAFETY: atomics only, 64 bytes.
unsafe impl SharedWithKernel for balance::ReplyBucket {}

// SAFETY: atomics only, 24 bytes.
unsafe impl SharedWithKernel for BindingSettings {}
// SAFETY: atomics only, 1536 bytes.
unsafe impl SharedWithKernel for Stash {}

// SAFETY: atomics only, 8 bytes.
unsafe impl SharedWithKernel for Wanted {}
// SAFETY: atomics only, 8 bytes.
unsafe impl SharedWithKernel for CaptureBudget {}
// SAFETY: atomics only, 16 bytes.
unsafe impl SharedWithKernel for xdp::Interface {}

/// All values of a map made with BPF_F_MMAPABLE.
#[derive(Debug)]
pub struct Mapped<T: SharedWithKernel> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: the memory is shared with the kernel already; `T` is `Sync`.
unsafe impl<T: SharedWithKernel> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: SharedWithKernel> Sync for Mapped<T> {}

impl<T: SharedWithKernel> Mapped<T> {
    /// Maps the `len` values of an array map.
    pub fn new(map: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        let bytes = len * size_of::<T>();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(start.cast::<T>()) {
            Some(start) if start.as_ptr().cast::<libc::c_void>() != libc::MAP_FAILED => {
                Ok(Self { start, len })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl<T: SharedWithKernel> Deref for Mapped<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `len` values and lives as long as `self`; page alignment suffices for `T`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: SharedWithKernel> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the range that `new` has mapped.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len * size_of::<T>()) };
    }
}
