//! The kernel's side of `path::ports::Packet`: direct packet access where offsets are constant, helpers elsewhere.

use core::mem::size_of;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::{
    bpf_csum_update, bpf_l4_csum_replace, bpf_skb_adjust_room, bpf_skb_change_tail, bpf_skb_load_bytes,
    bpf_skb_pull_data, bpf_skb_store_bytes,
};
use aya_ebpf::programs::TcContext;
use router_common::path::balance::datagram::Headers as Datagram;
use router_common::path::balance::tables::Tables;
use router_common::path::family::Family;
use router_common::path::options::Scratch;
use router_common::path::parse::{Headers, Version, version};
use router_common::path::ports::Packet;
use router_common::path::sum;
use router_common::wire::Wire;
use router_common::wire::checksum::Diff;
use router_common::wire::ipv4::Ipv4;
use router_common::wire::ipv6::Ipv6;

use crate::balance::KernelTables;
use crate::scratch;

/// `linux/if_packet.h`
const PACKET_HOST: u32 = 0;
const BPF_F_PSEUDO_HDR: u64 = 1 << 4;
const BPF_F_RECOMPUTE_CSUM: u64 = 1 << 0;
/// `enum bpf_adj_room_mode`
const BPF_ADJ_ROOM_MAC: u32 = 1;
/// More than lies before a TCP header.
const CUT: u32 = Headers::<Ipv6>::LEN as u32;
/// A checksum of 0 stays, and none becomes 0.
const BPF_F_MARK_MANGLED_0: u64 = 1 << 5;
const BPF_F_ADJ_ROOM_ENCAP_L3_IPV4: u64 = 1 << 1;
const BPF_F_ADJ_ROOM_ENCAP_L3_IPV6: u64 = 1 << 2;

/// A socket buffer at a TC hook.
pub struct Skb<'a> {
    ctx: &'a TcContext,
}

impl<'a> Skb<'a> {
    #[inline(always)]
    pub fn new(ctx: &'a TcContext) -> Self {
        Self { ctx }
    }

    #[inline(always)]
    pub fn as_ptr(&self) -> *mut __sk_buff {
        self.ctx.skb.skb
    }

    /// Brings the headers of a packet that may be carried into the directly accessible part, where the packet is long enough.
    #[inline(always)]
    pub fn make_headers_linear(&mut self) {
        match version(self) {
            Ok(Version::V4) => self.make_linear(Headers::<Ipv4>::LEN),
            Ok(Version::V6) => self.make_linear(Headers::<Ipv6>::LEN),
            // Ethernet headers always are: the stack has read them.
            Err(_) => {}
        }
    }

    /// The same for a datagram, which may end before a TCP header would.
    #[inline(always)]
    pub fn make_datagram_linear<I: Family>(&mut self) {
        self.make_linear(Datagram::<I>::LEN);
        self.make_linear(Headers::<I>::LEN);
    }
}

impl Packet for Skb<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.ctx.len() as usize
    }

    #[inline(always)]
    fn has_vlan_tag(&self) -> bool {
        // SAFETY: the context is the program's own.
        unsafe { (*self.ctx.skb.skb).vlan_present != 0 }
    }

    #[inline(always)]
    fn interface(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.ctx.skb.skb).ifindex }
    }

    #[inline(always)]
    fn part_size(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.ctx.skb.skb).gso_size }
    }

    #[inline(always)]
    fn make_linear(&mut self, len: usize) {
        if self.ctx.data() + len > self.ctx.data_end() && self.ctx.len() as usize >= len {
            // A failure leaves the packet as it is, and `view` finds it too short.
            // SAFETY: the context is the program's own.
            unsafe { bpf_skb_pull_data(self.ctx.skb.skb, len as u32) };
        }
    }

    #[inline(always)]
    fn is_for_this_host(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.ctx.skb.skb).pkt_type == PACKET_HOST }
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
            // SAFETY: `bytes` has room for `len` bytes; the helper checks the range in the packet.
            unsafe { bpf_skb_load_bytes(self.ctx.as_ptr().cast(), offset as u32, bytes, len) == 0 }
        })
    }

    #[inline(always)]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
        let mut words = [0; N];
        // SAFETY: `words` has so many bytes; the helper checks the range in the packet.
        let loaded = unsafe {
            bpf_skb_load_bytes(
                self.ctx.as_ptr().cast(),
                offset as u32,
                words.as_mut_ptr().cast(),
                size_of::<[u32; N]>() as u32,
            )
        };
        (loaded == 0).then_some(words)
    }

    #[inline(always)]
    fn sum(&self, offset: usize, len: usize) -> Option<u64> {
        match packet_sum(self.ctx.skb.skb, offset as u32, len as u32) {
            TOO_SHORT => None,
            sum => Some(sum),
        }
    }

    #[inline(always)]
    fn store<const N: usize>(&mut self, offset: usize, bytes: &[u8; N]) -> bool {
        // SAFETY: `bytes` has N bytes; the helper checks the range in the packet.
        unsafe {
            bpf_skb_store_bytes(self.ctx.skb.skb, offset as u32, bytes.as_ptr().cast(), N as u32, 0) == 0
        }
    }

    /// The checksum of a received packet may be left to the network card that sends it on, and that card would then overwrite bytes in the middle of
    /// the new frame. The kernel gives that up when the place where such a checksum begins is cut off: so bytes are cut off at the front, twice,
    /// since it looks before it cuts.
    #[inline(always)]
    fn become_frame<T: Wire>(&mut self, frame: &T) -> bool {
        let (skb, len) = (self.ctx.skb.skb, size_of::<T>() as u32);
        // SAFETY: the context is the program's own, and the helpers check all ranges; `frame` has `len` bytes.
        unsafe {
            bpf_skb_change_tail(skb, len + CUT + 1, 0) == 0
                && bpf_skb_adjust_room(skb, -(CUT as i32), BPF_ADJ_ROOM_MAC, 0) == 0
                && bpf_skb_adjust_room(skb, -1, BPF_ADJ_ROOM_MAC, 0) == 0
                && bpf_skb_store_bytes(skb, 0, (&raw const *frame).cast(), len, BPF_F_RECOMPUTE_CSUM) == 0
        }
    }

    #[inline(always)]
    fn fix_sum(&mut self, change: Diff) {
        // SAFETY: the context is the program's own. Without such a sum this does nothing.
        unsafe { bpf_csum_update(self.ctx.skb.skb, change.fold()) };
    }

    #[inline(always)]
    fn fix_checksum(&mut self, offset: usize, pseudo: Diff, rest: Diff, header: Option<Diff>) -> bool {
        if let Some(header) = header {
            // The first call below takes it for granted that an IPv4 header's checksum balances what `pseudo` changes, and corrects the card's sum for
            // the TCP checksum alone. (BPF_F_IPV6 says that there is none, but kernels before 6.16 refuse it.)
            self.fix_sum(header);
        }
        let skb = self.ctx.skb.skb;
        // A size of 0 means that the difference itself is given.
        // SAFETY: the context is the program's own; the helper checks the offset.
        unsafe {
            bpf_l4_csum_replace(skb, offset as u32, 0, pseudo.fold() as u64, BPF_F_PSEUDO_HDR) == 0
                && bpf_l4_csum_replace(skb, offset as u32, 0, rest.fold() as u64, 0) == 0
        }
    }

    #[inline(always)]
    fn fix_udp_checksum(&mut self, offset: usize, pseudo: Diff, rest: Diff, header: Option<Diff>) -> bool {
        let skb = self.ctx.skb.skb;
        if let Some(header) = header {
            // As above.
            // SAFETY: the context is the program's own.
            unsafe { bpf_csum_update(skb, header.fold()) };
        }
        // SAFETY: as above; the helper checks the offset.
        unsafe {
            let flags = BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0;
            bpf_l4_csum_replace(skb, offset as u32, 0, pseudo.fold() as u64, flags) == 0
                && bpf_l4_csum_replace(skb, offset as u32, 0, rest.fold() as u64, BPF_F_MARK_MANGLED_0) == 0
        }
    }

    #[inline(always)]
    fn encapsulate<I: Family>(&mut self) -> bool {
        // The kernel notes where the inner packet begins, so that it can cut super-packets into segments; it makes them smaller by the outer header.
        let family = if I::IS_IPV6 { BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 } else { BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 };
        // SAFETY: the context is the program's own.
        unsafe { bpf_skb_adjust_room(self.ctx.skb.skb, I::LEN as i32, BPF_ADJ_ROOM_MAC, family) == 0 }
    }
}

/// No sum: the words of the longest packet add up to less.
const TOO_SHORT: u64 = u64::MAX;

/// Global: the verifier follows the loops inside once, whoever calls it.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn packet_sum(skb: *mut __sk_buff, offset: u32, len: u32) -> u64 {
    let ctx = TcContext::new(skb);
    let sum = sum::of(&Skb::new(&ctx), offset as usize, len as usize, |number| KernelTables.opaque(number));
    sum.unwrap_or(TOO_SHORT)
}
