//! The routes of `router_common::path`, each a function with a stack frame of its own: the verifier adds up the frames along calls and permits
//! 512 bytes, so the ordinary route returns before a rarer one is called.

use aya_ebpf::bindings::{__sk_buff, TC_ACT_REDIRECT};
use aya_ebpf::programs::TcContext;
use router_common::abi::transparent::MARK;
use router_common::path::fragment::{Fragmented, Step, conduct, take};
use router_common::path::parse::Version;
use router_common::path::ports::Keys;
use router_common::path::{Rare, Verdict, carry_ordinary, carry_rare, transparent};
use router_common::wire::ipv4::Ipv4;
use router_common::wire::ipv6::Ipv6;

use crate::egress;
use crate::flows::KernelFlows;
use crate::packet::Skb;

/// Takes the packet along the route that it needs, and delivers what goes up to sockets that bear a client's address. Returns what the kernel shall do with it.
#[inline(always)]
pub fn carry(skb: *mut __sk_buff) -> i32 {
    let action = carry_along(skb);
    if action == egress::NEXT_PROGRAM && is_for_a_socket(skb) != 0 {
        // SAFETY: the context is the program's own.
        unsafe { (*skb).mark = MARK };
    }
    action
}

#[inline(never)]
fn is_for_a_socket(skb: *mut __sk_buff) -> u32 {
    let ctx = TcContext::new(skb);
    transparent::is_for_a_socket(&Skb::new(&ctx), &KernelFlows).into()
}

#[inline(always)]
fn carry_along(skb: *mut __sk_buff) -> i32 {
    let left = ordinary(skb);
    let mtu = left as u32;
    match left >> 32 {
        0 => left as i32,
        ICMP_V4 => icmp_v4(skb),
        ICMP_V6 => icmp_v6(skb),
        FRAGMENT_V4 => fragment_v4(skb),
        FRAGMENT_V6 => fragment_v6(skb),
        TOO_LONG_V4 => too_long_v4(skb, mtu),
        _ => too_long_v6(skb, mtu),
    }
}

// A register's high half names the route that goes on, and the low half holds its MTU. With 0 in the high half, the packet has arrived.
const ICMP_V4: u64 = 1;
const ICMP_V6: u64 = 2;
const FRAGMENT_V4: u64 = 3;
const FRAGMENT_V6: u64 = 4;
const TOO_LONG_V4: u64 = 5;
const TOO_LONG_V6: u64 = 6;

#[inline(never)]
fn ordinary(skb: *mut __sk_buff) -> u64 {
    let ctx = TcContext::new(skb);
    let mut packet = Skb::new(&ctx);
    packet.make_headers_linear();
    match carry_ordinary(&mut packet, &KernelFlows, &KernelFlows) {
        Ok(verdict) => egress::act(&ctx, verdict, verdict.reason()) as u32 as u64,
        Err(Rare::Icmp(Version::V4)) => ICMP_V4 << 32,
        Err(Rare::Icmp(Version::V6)) => ICMP_V6 << 32,
        Err(Rare::Fragment(Version::V4)) => FRAGMENT_V4 << 32,
        Err(Rare::Fragment(Version::V6)) => FRAGMENT_V6 << 32,
        Err(Rare::TooLong { version: Version::V4, mtu }) => TOO_LONG_V4 << 32 | mtu as u64,
        Err(Rare::TooLong { version: Version::V6, mtu }) => TOO_LONG_V6 << 32 | mtu as u64,
    }
}

#[inline(never)]
fn icmp_v4(skb: *mut __sk_buff) -> i32 {
    rare(skb, Rare::Icmp(Version::V4))
}

#[inline(never)]
fn icmp_v6(skb: *mut __sk_buff) -> i32 {
    rare(skb, Rare::Icmp(Version::V6))
}

#[inline(never)]
fn fragment_v4(skb: *mut __sk_buff) -> i32 {
    fragment::<Ipv4>(skb, first_fragment_v4, later_fragment_v4)
}

#[inline(never)]
fn fragment_v6(skb: *mut __sk_buff) -> i32 {
    fragment::<Ipv6>(skb, first_fragment_v6, later_fragment_v6)
}

#[inline(never)]
fn first_fragment_v4(skb: *mut __sk_buff) -> i32 {
    step::<Ipv4>(skb, Step::First)
}

#[inline(never)]
fn first_fragment_v6(skb: *mut __sk_buff) -> i32 {
    step::<Ipv6>(skb, Step::First)
}

#[inline(never)]
fn later_fragment_v4(skb: *mut __sk_buff) -> i32 {
    step::<Ipv4>(skb, Step::Later)
}

#[inline(never)]
fn later_fragment_v6(skb: *mut __sk_buff) -> i32 {
    step::<Ipv6>(skb, Step::Later)
}

#[inline(always)]
fn fragment<I: Fragmented>(
    skb: *mut __sk_buff,
    first: fn(*mut __sk_buff) -> i32,
    later: fn(*mut __sk_buff) -> i32,
) -> i32
where
    KernelFlows: Keys<I::Key>,
{
    let ctx = TcContext::new(skb);
    let take = |_: &mut Skb<'_>, step| match step {
        Step::Pass(reason) => egress::act(&ctx, Verdict::Pass(reason), reason),
        Step::First => first(skb),
        Step::Later => later(skb),
    };
    let is_forwarded = |action: &i32| *action == TC_ACT_REDIRECT;
    conduct::<I, _, _, _, i32>(&mut Skb::new(&ctx), &KernelFlows, &KernelFlows, take, is_forwarded)
}

#[inline(always)]
fn step<I: Fragmented>(skb: *mut __sk_buff, step: Step) -> i32
where
    KernelFlows: Keys<I::Key>,
{
    let ctx = TcContext::new(skb);
    let verdict = take::<I, _, _, _>(&mut Skb::new(&ctx), &KernelFlows, &KernelFlows, step);
    egress::act(&ctx, verdict, verdict.reason())
}

#[inline(never)]
pub fn too_long_v4(skb: *mut __sk_buff, mtu: u32) -> i32 {
    rare(skb, Rare::TooLong { version: Version::V4, mtu })
}

#[inline(never)]
pub fn too_long_v6(skb: *mut __sk_buff, mtu: u32) -> i32 {
    rare(skb, Rare::TooLong { version: Version::V6, mtu })
}

#[inline(always)]
fn rare(skb: *mut __sk_buff, rare: Rare) -> i32 {
    let ctx = TcContext::new(skb);
    let verdict = carry_rare(&mut Skb::new(&ctx), &KernelFlows, &KernelFlows, rare);
    egress::act(&ctx, verdict, verdict.reason())
}
