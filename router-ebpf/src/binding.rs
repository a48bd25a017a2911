//! The kernel's side of `path::binding`: its tables, and the kernel's SYN cookies.

use core::ops::Range;

use aya_ebpf::bindings::{__sk_buff, BPF_F_CURRENT_NETNS, bpf_sock_tuple, iphdr, ipv6hdr, tcphdr};
use aya_ebpf::helpers::{
    bpf_clone_redirect, bpf_get_smp_processor_id, bpf_sk_release, bpf_skb_change_tail, bpf_skb_load_bytes,
    bpf_skb_store_bytes, bpf_skc_lookup_tcp, bpf_tcp_raw_check_syncookie_ipv4,
    bpf_tcp_raw_check_syncookie_ipv6, bpf_tcp_raw_gen_syncookie_ipv4, bpf_tcp_raw_gen_syncookie_ipv6,
};
use aya_ebpf::maps::ring_buf::RingBufEntry;
use aya_ebpf::programs::TcContext;
use router_common::abi::binding::{
    ARRIVAL_BYTES, ARRIVAL_SEGMENT, Arrival, ArrivalRecord, BindingSettings, BoundEndpoint, BoundListener,
    Embryo, LARGE_ARRIVAL_BYTES, STASH_BYTES, Stash,
};
use router_common::abi::flow::Flow;
use router_common::abi::key::{FlowKeyV4, FlowKeyV6, FlowRef};
use router_common::abi::next_hop::NextHop;
use router_common::abi::shared::Shared32;
use router_common::path::answer_budget::AnswerBudget;
use router_common::path::binding;
use router_common::path::binding::own::Sending;
use router_common::path::binding::ports::{Bindings, Socket};
use router_common::path::binding::{Occasion, Step};
use router_common::path::family::Family;
use router_common::path::fragment::{Datagram, DatagramKey};
use router_common::path::parse::{self, Headers, Version};
use router_common::path::ports::{Clock, Flows, Fragments, Keys, Packet};
use router_common::wire::ethernet::Ethernet;
use router_common::wire::ipv4::Ipv4;
use router_common::wire::ipv6::Ipv6;
use router_common::wire::tcp::Tcp;

use crate::egress;
use crate::flows::KernelFlows;
use crate::maps::{
    ARRIVALS_0, ARRIVALS_1, ARRIVALS_2, ARRIVALS_3, ARRIVALS_4, ARRIVALS_5, ARRIVALS_6, ARRIVALS_7,
    BINDING_SETTINGS, BOUND_LISTENERS, EMBRYOS, EMBRYOS6, HEADER_SCRATCH, STASHES,
};
use crate::packet::Skb;

const BPF_F_RECOMPUTE_CSUM: u64 = 1 << 0;

/// Takes the packet along its route. Returns what the kernel shall do with it.
#[inline(always)]
pub fn carry(ctx: &TcContext) -> i32 {
    let skb = ctx.skb.skb;
    match parse::arriving(&Skb::new(ctx)) {
        Ok(Version::V4) => conclude(step_v4(skb), |slot, repeated| send_v4(skb, slot, repeated)),
        Ok(Version::V6) => conclude(step_v6(skb), |slot, repeated| send_v6(skb, slot, repeated)),
        Err(_) => egress::NEXT_PROGRAM,
    }
}

// A register's high half says what goes on, and the low half holds the flow's slot. With 0 in the high half, the low one is what the kernel shall do.
const SEND_BOUND: u64 = 1;
const SEND_REPEATED: u64 = 2;

#[inline(always)]
fn step<I: Sending>(skb: *mut __sk_buff) -> u64
where
    KernelBindings: for<'p> Bindings<I, Skb<'p>>,
{
    let ctx = TcContext::new(skb);
    let mut packet = Skb::new(&ctx);
    packet.make_headers_linear();
    match binding::step::<I, _, _>(&mut packet, &KernelBindings) {
        Some(Step::Verdict(verdict)) => egress::act(&ctx, verdict, verdict.reason()) as u32 as u64,
        Some(Step::Send { slot, occasion: Occasion::Bound }) => SEND_BOUND << 32 | slot as u64,
        Some(Step::Send { slot, occasion: Occasion::Repeated }) => SEND_REPEATED << 32 | slot as u64,
        None => egress::NEXT_PROGRAM as u32 as u64,
    }
}

#[inline(always)]
fn send<I: Sending>(skb: *mut __sk_buff, slot: u32, repeated: u32) -> i32
where
    KernelBindings: for<'p> Bindings<I, Skb<'p>>,
{
    let ctx = TcContext::new(skb);
    let occasion = if repeated == 0 { Occasion::Bound } else { Occasion::Repeated };
    let verdict = binding::send::<I, _, _>(&mut Skb::new(&ctx), &KernelBindings, slot, occasion);
    egress::act(&ctx, verdict, verdict.reason())
}

#[inline(always)]
fn conclude(left: u64, send: impl FnOnce(u32, u32) -> i32) -> i32 {
    match left >> 32 {
        0 => left as i32,
        SEND_BOUND => send(left as u32, 0),
        _ => send(left as u32, 1),
    }
}

#[inline(never)]
fn step_v4(skb: *mut __sk_buff) -> u64 {
    step::<Ipv4>(skb)
}

#[inline(never)]
fn step_v6(skb: *mut __sk_buff) -> u64 {
    step::<Ipv6>(skb)
}

#[inline(never)]
fn send_v4(skb: *mut __sk_buff, slot: u32, repeated: u32) -> i32 {
    send::<Ipv4>(skb, slot, repeated)
}

#[inline(never)]
fn send_v6(skb: *mut __sk_buff, slot: u32, repeated: u32) -> i32 {
    send::<Ipv6>(skb, slot, repeated)
}

/// The flow table, and the tables of delayed binding.
struct KernelBindings;

/// A TCP header with its options, as the kernel's helpers read it.
#[repr(C)]
pub struct HeaderBytes {
    bytes: [u8; Tcp::LEN + Tcp::MAX_OPTIONS],
    len: u32,
}

/// The TCP header of a packet, copied, and how long it is.
#[inline(always)]
fn header<I: Family>(skb: *mut __sk_buff, len: u32) -> Option<(*mut HeaderBytes, u32)> {
    const LEAST: u32 = Tcp::LEN as u32;
    const MOST: u32 = (Tcp::LEN + Tcp::MAX_OPTIONS) as u32;
    let scratch = HEADER_SCRATCH.get_ptr_mut(0)?;
    let at = (Ethernet::LEN + I::LEN) as u32;
    // SAFETY: the scratch memory is this CPU's and has room for the greatest length.
    unsafe {
        // Through memory, so that the verifier sees the bounds.
        (&raw mut (*scratch).len).write_volatile(len);
        let len = (&raw const (*scratch).len).read_volatile();
        if len < LEAST || len > MOST || bpf_skb_load_bytes(skb.cast(), at, scratch.cast(), len) != 0 {
            return None;
        }
        Some((scratch, len))
    }
}

/// `BPF_TCP_LISTEN` and `BPF_TCP_TIME_WAIT` (`include/uapi/linux/bpf.h`).
const LISTEN: u32 = 10;
const TIME_WAIT: u32 = 6;

/// What the kernel has for the connection with this tuple.
///
/// # Safety
/// `tuple` has `len` bytes, as many as a family's part of `bpf_sock_tuple`.
#[inline(always)]
unsafe fn socket(skb: *mut __sk_buff, tuple: *const bpf_sock_tuple, len: u32) -> Socket {
    // SAFETY: as the caller says; what is found is looked at before it is given back.
    unsafe {
        let socket = bpf_skc_lookup_tcp(skb.cast(), tuple.cast_mut(), len, BPF_F_CURRENT_NETNS as u64, 0);
        if socket.is_null() {
            return Socket::None;
        }
        let state = (*socket).state;
        bpf_sk_release(socket.cast());
        match state {
            LISTEN => Socket::None,
            TIME_WAIT => Socket::Ended,
            _ => Socket::Live,
        }
    }
}

/// A family's helpers.
trait Cookies: Family {
    /// `ports` as in the packet.
    fn socket(&self, skb: *mut __sk_buff, ports: u32) -> Socket;

    /// # Safety
    /// `tcp` has `len` bytes.
    unsafe fn generate(&self, tcp: *mut tcphdr, len: u32) -> i64;

    /// # Safety
    /// `tcp` has as many bytes as a header without options.
    unsafe fn is_valid(&self, tcp: *mut tcphdr) -> bool;
}

impl Cookies for Ipv4 {
    #[inline(always)]
    fn socket(&self, skb: *mut __sk_buff, ports: u32) -> Socket {
        let ([source, ..], [destination, ..]) = self.addresses();
        let tuple = [source, destination, ports];
        // SAFETY: addresses and ports in the order of `bpf_sock_tuple`.
        unsafe { socket(skb, tuple.as_ptr().cast(), size_of_val(&tuple) as u32) }
    }

    #[inline(always)]
    unsafe fn generate(&self, tcp: *mut tcphdr, len: u32) -> i64 {
        // SAFETY: as the caller says; `self` is a whole header, which the helper only reads.
        unsafe { bpf_tcp_raw_gen_syncookie_ipv4((&raw const *self).cast_mut().cast::<iphdr>(), tcp, len) }
    }

    #[inline(always)]
    unsafe fn is_valid(&self, tcp: *mut tcphdr) -> bool {
        // SAFETY: as above.
        unsafe { bpf_tcp_raw_check_syncookie_ipv4((&raw const *self).cast_mut().cast::<iphdr>(), tcp) == 0 }
    }
}

impl Cookies for Ipv6 {
    #[inline(always)]
    fn socket(&self, skb: *mut __sk_buff, ports: u32) -> Socket {
        let ([a, b, c, d], [e, f, g, h]) = self.addresses();
        let tuple = [a, b, c, d, e, f, g, h, ports];
        // SAFETY: as above.
        unsafe { socket(skb, tuple.as_ptr().cast(), size_of_val(&tuple) as u32) }
    }

    #[inline(always)]
    unsafe fn generate(&self, tcp: *mut tcphdr, len: u32) -> i64 {
        // SAFETY: as above.
        unsafe { bpf_tcp_raw_gen_syncookie_ipv6((&raw const *self).cast_mut().cast::<ipv6hdr>(), tcp, len) }
    }

    #[inline(always)]
    unsafe fn is_valid(&self, tcp: *mut tcphdr) -> bool {
        // SAFETY: as above.
        unsafe { bpf_tcp_raw_check_syncookie_ipv6((&raw const *self).cast_mut().cast::<ipv6hdr>(), tcp) == 0 }
    }
}

#[inline(always)]
fn generate<I: Cookies>(packet: &Skb<'_>, tcp: *mut HeaderBytes, len: u32) -> Option<u32> {
    let ip: &I = packet.view(Ethernet::LEN)?;
    // SAFETY: the header was copied with this length.
    let cookie = unsafe { ip.generate(tcp.cast(), len) };
    (cookie >= 0).then_some(cookie as u32)
}

/// Room in a ring. One call for each: the kernel must see which ring it is.
#[inline(always)]
fn reserve<T: 'static>(ring: u32) -> Option<RingBufEntry<T>> {
    match ring {
        0 => ARRIVALS_0.reserve(0),
        1 => ARRIVALS_1.reserve(0),
        2 => ARRIVALS_2.reserve(0),
        3 => ARRIVALS_3.reserve(0),
        4 => ARRIVALS_4.reserve(0),
        5 => ARRIVALS_5.reserve(0),
        6 => ARRIVALS_6.reserve(0),
        _ => ARRIVALS_7.reserve(0),
    }
}

/// Puts a record into the ring that has room for so many bytes of the packet.
#[inline(always)]
fn tell<const BYTES: usize>(skb: *mut __sk_buff, ring: u32, offset: u32, arrival: &Arrival) -> bool {
    let Some(mut entry) = reserve::<ArrivalRecord<BYTES>>(ring) else { return false };
    let record = entry.as_mut_ptr();
    // SAFETY: the entry is ours until it is submitted; bytes behind the arrival's length are whatever lay there, and nobody reads them.
    let loaded = unsafe {
        (*record).arrival = *arrival;
        // Through memory, so that the verifier sees the bounds.
        let length = (&raw const (*record).arrival.length).read_volatile();
        length != 0
            && length <= BYTES as u32
            && bpf_skb_load_bytes(skb.cast(), offset, (&raw mut (*record).bytes).cast(), length) == 0
    };
    if loaded {
        entry.submit(0)
    } else {
        entry.discard(0)
    }
    loaded
}

macro_rules! bindings {
    ($($ip:ty, $key:ty: $embryos:ident;)*) => { $(
        impl Bindings<$ip, Skb<'_>> for KernelBindings {
            #[inline(always)]
            fn settings(&self) -> Option<&BindingSettings> {
                BINDING_SETTINGS.get(0)
            }

            #[inline(always)]
            fn processor(&self) -> u32 {
                // SAFETY: the helper only returns a number.
                unsafe { bpf_get_smp_processor_id() }
            }

            #[inline(always)]
            fn listener(&self, endpoint: &BoundEndpoint) -> Option<BoundListener> {
                // SAFETY: a word that is copied at once.
                unsafe { BOUND_LISTENERS.get(endpoint).copied() }
            }

            #[inline(always)]
            fn embryo(&self, key: &$key) -> Option<Embryo> {
                // SAFETY: copied at once. One that is being replaced is told by its numbers.
                unsafe { $embryos.get(key).copied() }
            }

            #[inline(always)]
            fn remember_embryo(&self, key: &$key, embryo: &Embryo) {
                // Where it fails, the client sends again.
                let _ = $embryos.insert(key, embryo, 0);
            }

            #[inline(always)]
            fn stash(&self, index: u32) -> Option<&Stash> {
                STASHES.get(index)
            }

            #[inline(always)]
            fn cookie(&self, packet: &Skb<'_>, header_len: usize) -> Option<u32> {
                let (tcp, len) = header::<$ip>(packet.as_ptr(), header_len as u32)?;
                generate::<$ip>(packet, tcp, len)
            }

            #[inline(always)]
            fn acknowledges_cookie(&self, packet: &Skb<'_>) -> bool {
                let Some(Headers { ip, tcp, .. }) = packet.view::<Headers<$ip>>(0) else { return false };
                // SAFETY: both are whole headers in the packet, which the helper only reads.
                unsafe { ip.is_valid((&raw const *tcp).cast_mut().cast()) }
            }

            #[inline(always)]
            fn socket(&self, packet: &Skb<'_>) -> Socket {
                let Some(Headers { ip, tcp, .. }) = packet.view::<Headers<$ip>>(0) else { return Socket::None };
                ip.socket(packet.as_ptr(), tcp.ports.raw())
            }

            #[inline(always)]
            fn smallest_cookie(&self, packet: &Skb<'_>) -> Option<u32> {
                let (tcp, len) = header::<$ip>(packet.as_ptr(), Tcp::LEN as u32)?;
                // SAFETY: this CPU's own memory, as long as a header.
                let header = unsafe { &mut *tcp.cast::<Tcp>() };
                header.seq.set(header.seq.get().wrapping_sub(1));
                header.data_offset = (Tcp::LEN as u8 / 4) << 4;
                generate::<$ip>(packet, tcp, len)
            }

            #[inline(always)]
            fn arrived(&self, packet: &Skb<'_>, ring: u32, bytes: Range<usize>, embryo: &Embryo) -> bool {
                let Some(ip) = packet.view::<$ip>(Ethernet::LEN) else { return false };
                let (source, destination) = ip.addresses();
                let arrival = Arrival {
                    event: ARRIVAL_SEGMENT,
                    slot: 0,
                    source,
                    destination,
                    is_ipv6: <$ip>::IS_IPV6 as u32,
                    length: bytes.len() as u32,
                    embryo: *embryo,
                };
                let start = bytes.start as u32;
                if bytes.len() <= ARRIVAL_BYTES {
                    tell::<ARRIVAL_BYTES>(packet.as_ptr(), ring, start, &arrival)
                } else {
                    tell::<LARGE_ARRIVAL_BYTES>(packet.as_ptr(), ring, start, &arrival)
                }
            }

            #[inline(always)]
            fn tell(&self, ring: u32, event: u32, slot: u32) -> bool {
                let Some(mut entry) = reserve::<Arrival>(ring) else { return false };
                entry.write(Arrival { event, slot, ..Arrival::default() });
                entry.submit(0);
                true
            }

            #[inline(always)]
            fn send_copy(&self, packet: &mut Skb<'_>, interface: u32) -> bool {
                // SAFETY: the context is the program's own.
                unsafe { bpf_clone_redirect(packet.as_ptr(), interface, 0) == 0 }
            }

            #[inline(always)]
            fn append(&self, packet: &mut Skb<'_>, offset: usize, stash: &Stash) -> bool {
                let (skb, length) = (packet.as_ptr(), stash.length.get());
                if length == 0 || length > STASH_BYTES as u32 {
                    return false;
                }
                // SAFETY: the context is the program's own; the stash has room for the greatest length.
                unsafe {
                    bpf_skb_change_tail(skb, offset as u32 + length, 0) == 0
                        && bpf_skb_store_bytes(
                            skb,
                            offset as u32,
                            stash.bytes.as_ptr().cast(),
                            length,
                            BPF_F_RECOMPUTE_CSUM,
                        ) == 0
                }
            }
        }

        impl Keys<$key> for KernelBindings {
            #[inline(always)]
            fn find(&self, key: &$key) -> Option<FlowRef> {
                KernelFlows.find(key)
            }

            #[inline(always)]
            fn forget(&self, key: &$key) {
                KernelFlows.forget(key);
            }
        }
    )* };
}

bindings! {
    Ipv4, FlowKeyV4: EMBRYOS;
    Ipv6, FlowKeyV6: EMBRYOS6;
}

impl Flows for KernelBindings {
    #[inline(always)]
    fn flow(&self, slot: u32) -> Option<&Flow> {
        KernelFlows.flow(slot)
    }

    #[inline(always)]
    fn next_hop(&self, index: u32) -> Option<&NextHop> {
        KernelFlows.next_hop(index)
    }

    #[inline(always)]
    fn answer_budget(&self) -> Option<&AnswerBudget> {
        KernelFlows.answer_budget()
    }
}

impl Fragments for KernelBindings {
    #[inline(always)]
    fn remember(&self, key: &DatagramKey, datagram: &Datagram) {
        KernelFlows.remember(key, datagram);
    }

    #[inline(always)]
    fn recall(&self, key: &DatagramKey) -> Option<Datagram> {
        KernelFlows.recall(key)
    }

    #[inline(always)]
    fn forget_datagram(&self, key: &DatagramKey) {
        KernelFlows.forget_datagram(key);
    }
}

impl Clock for KernelBindings {
    #[inline(always)]
    fn now(&self) -> u64 {
        KernelFlows.now()
    }

    #[inline(always)]
    fn coarse_now(&self) -> u64 {
        KernelFlows.coarse_now()
    }

    #[inline(always)]
    fn fix_once(&self, cell: &Shared32, value: u32) -> u32 {
        KernelFlows.fix_once(cell, value)
    }
}
