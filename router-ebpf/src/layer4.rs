//! The routes of `router_common::path::balance`, each a function with a stack frame of its own, as in [`routes`].

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use router_common::path::balance::encapsulate::Outer;
use router_common::path::balance::{Outcome, Rare, carry_ordinary, carry_rare};
use router_common::path::parse::{self, Version};
use router_common::wire::ipv4::Ipv4;
use router_common::wire::ipv6::Ipv6;

use crate::balance::KernelTables;
use crate::packet::Skb;
use crate::{egress, routes};

/// Takes the packet along the route that it needs. Returns what the kernel shall do with it.
#[inline(always)]
pub fn carry(ctx: &TcContext) -> i32 {
    let skb = ctx.skb.skb;
    match parse::arriving(&Skb::new(ctx)) {
        Ok(Version::V4) => match ordinary_v4(skb) {
            left if left >> 32 == 0 => left as i32,
            ICMP => icmp_v4(skb),
            FRAGMENT => fragment_v4(skb),
            mtu => routes::too_long_v4(skb, mtu as u32),
        },
        Ok(Version::V6) => match ordinary_v6(skb) {
            left if left >> 32 == 0 => left as i32,
            ICMP => icmp_v6(skb),
            FRAGMENT => fragment_v6(skb),
            mtu => routes::too_long_v6(skb, mtu as u32),
        },
        Err(_) => egress::NEXT_PROGRAM,
    }
}

// What the ordinary route returns: with 0 in the high half an action, with 1 the MTU that the packet exceeds, and otherwise the route that goes on.
const TOO_LONG: u64 = 1 << 32;
const ICMP: u64 = 2 << 32;
const FRAGMENT: u64 = 3 << 32;

#[inline(never)]
fn ordinary_v4(skb: *mut __sk_buff) -> u64 {
    ordinary::<Ipv4>(skb)
}

#[inline(never)]
fn ordinary_v6(skb: *mut __sk_buff) -> u64 {
    ordinary::<Ipv6>(skb)
}

#[inline(always)]
fn ordinary<I: Outer>(skb: *mut __sk_buff) -> u64 {
    let ctx = TcContext::new(skb);
    let mut packet = Skb::new(&ctx);
    packet.make_datagram_linear::<I>();
    match carry_ordinary::<I, _, _>(&mut packet, &KernelTables) {
        Ok(Some(outcome)) => match outcome.mtu_to_tell() {
            Some(mtu) => TOO_LONG | mtu as u64,
            None => act(&ctx, outcome) as u32 as u64,
        },
        Ok(None) => egress::NEXT_PROGRAM as u32 as u64,
        Err(Rare::Icmp) => ICMP,
        Err(Rare::Fragment) => FRAGMENT,
    }
}

#[inline(never)]
fn icmp_v4(skb: *mut __sk_buff) -> i32 {
    rare::<Ipv4>(skb, Rare::Icmp)
}

#[inline(never)]
fn icmp_v6(skb: *mut __sk_buff) -> i32 {
    rare::<Ipv6>(skb, Rare::Icmp)
}

#[inline(never)]
fn fragment_v4(skb: *mut __sk_buff) -> i32 {
    rare::<Ipv4>(skb, Rare::Fragment)
}

#[inline(never)]
fn fragment_v6(skb: *mut __sk_buff) -> i32 {
    rare::<Ipv6>(skb, Rare::Fragment)
}

#[inline(always)]
fn rare<I: Outer>(skb: *mut __sk_buff, rare: Rare) -> i32 {
    let ctx = TcContext::new(skb);
    match carry_rare::<I, _, _>(&mut Skb::new(&ctx), &KernelTables, rare) {
        Some(outcome) => act(&ctx, outcome),
        None => egress::NEXT_PROGRAM,
    }
}

#[inline(always)]
fn act(ctx: &TcContext, outcome: Outcome) -> i32 {
    egress::act(ctx, outcome.verdict(), outcome.reason)
}
