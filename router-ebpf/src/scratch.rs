//! Working memory of `path::options`, which is too large for the stack.

use router_common::path::options::Scratch;
use router_common::wire::tcp::Tcp;

use crate::maps::OPTIONS_SCRATCH;

/// Lets `load` copy `len` bytes of options into this CPU's scratch memory. `None` where that fails or `len` is not that of options.
#[inline(always)]
pub fn load_options<'s>(
    len: usize,
    load: impl FnOnce(*mut core::ffi::c_void, u32) -> bool,
) -> Option<&'s Scratch> {
    let scratch = OPTIONS_SCRATCH.get_ptr_mut(0)?;
    // SAFETY: the scratch memory belongs to this CPU, and programs at the hooks of packets run with bottom halves off, so nothing
    // else uses it before this program ends. The buffer has `MAX_OPTIONS` bytes and `len` is at most that.
    unsafe {
        // Through memory, so that the bounds check below is made by the program and not only proved by the compiler:
        // the verifier must see it.
        (*scratch).len.set(len as u32);
        let len = (*scratch).len.get();
        if len == 0 || len > Tcp::MAX_OPTIONS as u32 {
            return None;
        }
        if !load((&raw mut (*scratch).bytes).cast(), len) {
            return None;
        }
        Some(&*scratch)
    }
}
