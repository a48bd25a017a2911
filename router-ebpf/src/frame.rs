//! The kernel's side of `path::ports::Packet` in XDP: the frame as the driver has it, every checksum complete.

use core::mem::size_of;

use aya_ebpf::helpers::{
    bpf_xdp_adjust_head, bpf_xdp_adjust_tail, bpf_xdp_get_buff_len, bpf_xdp_load_bytes, bpf_xdp_store_bytes,
};
use aya_ebpf::programs::XdpContext;
use router_common::path::family::Family;
use router_common::path::options::Scratch;
use router_common::path::ports::Packet;
use router_common::path::xdp::is_for;
use router_common::wire::checksum::Diff;
use router_common::wire::ethernet::Ethernet;
use router_common::wire::{Net16, Wire};

use crate::maps::XDP_INTERFACES;
use crate::scratch;

/// A frame at the XDP hook.
pub struct Frame<'a> {
    ctx: &'a XdpContext,
}

impl<'a> Frame<'a> {
    #[inline(always)]
    pub fn new(ctx: &'a XdpContext) -> Self {
        Self { ctx }
    }

    #[inline(always)]
    fn replace_checksum(&mut self, offset: usize, change: impl FnOnce(u16) -> u16) -> bool {
        let Some(place) = self.view_mut::<Net16>(offset) else { return false };
        place.set_raw(change(place.raw()));
        true
    }
}

impl Packet for Frame<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        // SAFETY: the context is the program's own.
        (unsafe { bpf_xdp_get_buff_len(self.ctx.ctx) }) as usize
    }

    /// XDP does not see a tag that the network card took off. So the daemon keeps it off interfaces where cards do that below VLAN interfaces.
    #[inline(always)]
    fn has_vlan_tag(&self) -> bool {
        false
    }

    #[inline(always)]
    fn interface(&self) -> u32 {
        // SAFETY: the context is the program's own.
        unsafe { (*self.ctx.ctx).ingress_ifindex }
    }

    /// Nor does it see whether a frame was put together: that is then longer than any MTU, and left to the stack.
    #[inline(always)]
    fn part_size(&self) -> u32 {
        0
    }

    /// Drivers give headers in one piece.
    #[inline(always)]
    fn make_linear(&mut self, _: usize) {}

    #[inline(always)]
    fn is_for_this_host(&self) -> bool {
        let (Some(interface), Some(ethernet)) =
            (XDP_INTERFACES.get(self.interface()), self.view::<Ethernet>(0))
        else {
            return false;
        };
        is_for(ethernet, interface)
    }

    #[inline(always)]
    fn view<T: Wire>(&self, offset: usize) -> Option<&T> {
        let start = self.ctx.data() + offset;
        if start + size_of::<T>() > self.ctx.data_end() {
            return None;
        }
        // SAFETY: in bounds by the check above, which the verifier repeats; `Wire` types are valid for any bytes at any alignment.
        Some(unsafe { &*(start as *const T) })
    }

    #[inline(always)]
    fn view_mut<T: Wire>(&mut self, offset: usize) -> Option<&mut T> {
        let start = self.ctx.data() + offset;
        if start + size_of::<T>() > self.ctx.data_end() {
            return None;
        }
        // SAFETY: as in `view`; `&mut self` makes it the only reference.
        Some(unsafe { &mut *(start as *mut T) })
    }

    #[inline(always)]
    fn load_options<'s>(&self, offset: usize, len: usize) -> Option<&'s Scratch>
    where
        Self: 's,
    {
        scratch::load_options(len, |bytes, len| {
            // SAFETY: `bytes` has room for `len` bytes; the helper checks the range in the frame.
            unsafe { bpf_xdp_load_bytes(self.ctx.ctx, offset as u32, bytes, len) == 0 }
        })
    }

    #[inline(always)]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
        let mut words = [0; N];
        // SAFETY: `words` has so many bytes; the helper checks the range in the frame.
        let loaded = unsafe {
            bpf_xdp_load_bytes(
                self.ctx.ctx,
                offset as u32,
                words.as_mut_ptr().cast(),
                size_of::<[u32; N]>() as u32,
            )
        };
        (loaded == 0).then_some(words)
    }

    #[inline(always)]
    fn store<const N: usize>(&mut self, offset: usize, bytes: &[u8; N]) -> bool {
        // SAFETY: `bytes` has N bytes; the helper checks the range in the frame.
        unsafe {
            bpf_xdp_store_bytes(self.ctx.ctx, offset as u32, bytes.as_ptr().cast_mut().cast(), N as u32) == 0
        }
    }

    #[inline(always)]
    fn become_frame<T: Wire>(&mut self, frame: &T) -> bool {
        let len = size_of::<T>() as i32;
        let change = len - self.len() as i32;
        // SAFETY: the context is the program's own; `frame` has `len` bytes, and the helpers check all ranges.
        unsafe {
            bpf_xdp_adjust_tail(self.ctx.ctx, change) == 0
                && bpf_xdp_store_bytes(self.ctx.ctx, 0, (&raw const *frame).cast_mut().cast(), len as u32)
                    == 0
        }
    }

    /// Cards that have summed up a frame do not tell XDP.
    #[inline(always)]
    fn fix_sum(&mut self, _: Diff) {}

    #[inline(always)]
    fn fix_checksum(&mut self, offset: usize, pseudo: Diff, rest: Diff, _: Option<Diff>) -> bool {
        self.replace_checksum(offset, |sum| rest.apply(pseudo.apply(sum)))
    }

    #[inline(always)]
    fn fix_udp_checksum(&mut self, offset: usize, pseudo: Diff, rest: Diff, _: Option<Diff>) -> bool {
        self.replace_checksum(offset, |sum| match sum {
            0 => 0,
            sum => match rest.apply(pseudo.apply(sum)) {
                0 => u16::MAX,
                sum => sum,
            },
        })
    }

    #[inline(always)]
    fn encapsulate<I: Family>(&mut self) -> bool {
        // SAFETY: the context is the program's own.
        unsafe { bpf_xdp_adjust_head(self.ctx.ctx, -(I::LEN as i32)) == 0 }
    }
}
