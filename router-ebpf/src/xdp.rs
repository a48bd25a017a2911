//! The routes of `router_common::path::xdp`, and from what becomes of a frame to what the kernel shall do with it.
//!
//! As in `routes`, each step is a function with a stack frame of its own.

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::bindings::xdp_md;
use aya_ebpf::maps::PerCpuArray;
use aya_ebpf::programs::XdpContext;
use aya_log_ebpf::debug;
use router_common::abi::reason::{PacketReason, XdpReason};
use router_common::abi::xdp::Interface;
use router_common::path::Verdict;
use router_common::path::parse::Version;
use router_common::path::xdp::{self, Interfaces, Outcome, Ready};
use router_common::wire::ipv4::Ipv4;
use router_common::wire::ipv6::Ipv6;

use crate::balance::KernelTables;
use crate::capture;
use crate::flows::KernelFlows;
use crate::frame::Frame;
use crate::maps::{PACKETS, XDP_DEVICES, XDP_FRAMES, XDP_INTERFACES};
use crate::trace;

struct KernelInterfaces;

impl Interfaces for KernelInterfaces {
    #[inline(always)]
    fn interface(&self, index: u32) -> Option<&Interface> {
        XDP_INTERFACES.get(index)
    }
}

const FLOWS: Ready<KernelFlows, KernelInterfaces> =
    Ready { inner: KernelFlows, interfaces: KernelInterfaces };
const TABLES: Ready<KernelTables, KernelInterfaces> =
    Ready { inner: KernelTables, interfaces: KernelInterfaces };

/// Is no action of XDP.
const NOT_LAYER4: u32 = u32::MAX;

/// Takes the frame of a handed-off connection along its route.
#[inline(always)]
pub fn carry(xdp: *mut xdp_md) -> u32 {
    match arriving(xdp) {
        V4 => carry_v4(xdp),
        V6 => carry_v6(xdp),
        _ => XDP_PASS,
    }
}

/// The same, after Layer 4 has had a look at it.
#[inline(always)]
pub fn balance_or_carry(xdp: *mut xdp_md) -> u32 {
    match arriving(xdp) {
        V4 => match balance_v4(xdp) {
            NOT_LAYER4 => carry_v4(xdp),
            action => action,
        },
        V6 => match balance_v6(xdp) {
            NOT_LAYER4 => carry_v6(xdp),
            action => action,
        },
        _ => XDP_PASS,
    }
}

const V4: u32 = 0;
const V6: u32 = 1;
const NEITHER: u32 = 2;

#[inline(never)]
fn arriving(xdp: *mut xdp_md) -> u32 {
    match xdp::arriving(&Frame::new(&XdpContext::new(xdp))) {
        Ok(Version::V4) => V4,
        Ok(Version::V6) => V6,
        Err(reason) => {
            passed(reason);
            NEITHER
        }
    }
}

#[inline(never)]
fn carry_v4(xdp: *mut xdp_md) -> u32 {
    let ctx = XdpContext::new(xdp);
    let mut frame = Frame::new(&ctx);
    act(&ctx, xdp::carry_as::<Ipv4, _, _, _, _>(&mut frame, &FLOWS, &KernelFlows))
}

#[inline(never)]
fn carry_v6(xdp: *mut xdp_md) -> u32 {
    let ctx = XdpContext::new(xdp);
    let mut frame = Frame::new(&ctx);
    act(&ctx, xdp::carry_as::<Ipv6, _, _, _, _>(&mut frame, &FLOWS, &KernelFlows))
}

#[inline(never)]
fn balance_v4(xdp: *mut xdp_md) -> u32 {
    let ctx = XdpContext::new(xdp);
    let mut frame = Frame::new(&ctx);
    match xdp::balance_as::<Ipv4, _, _, _>(&mut frame, &TABLES) {
        Some(outcome) => act(&ctx, outcome),
        None => NOT_LAYER4,
    }
}

#[inline(never)]
fn balance_v6(xdp: *mut xdp_md) -> u32 {
    let ctx = XdpContext::new(xdp);
    let mut frame = Frame::new(&ctx);
    match xdp::balance_as::<Ipv6, _, _, _>(&mut frame, &TABLES) {
        Some(outcome) => act(&ctx, outcome),
        None => NOT_LAYER4,
    }
}

#[inline(always)]
fn act(ctx: &XdpContext, outcome: Outcome) -> u32 {
    match outcome {
        Outcome::Pass(reason) => passed(reason),
        Outcome::Drop(reason) => dropped(ctx, reason),
        Outcome::Redirect { interface, reason } => match XDP_DEVICES.redirect(interface, XDP_DROP as u64) {
            Ok(action) => {
                count(&PACKETS, reason.index());
                count(&XDP_FRAMES, XdpReason::Carried.index());
                trace::say(Verdict::Redirect { interface }, reason);
                action
            }
            // It was deleted.
            Err(_) => dropped(ctx, PacketReason::XdpWayLost),
        },
    }
}

#[inline(always)]
fn passed(reason: XdpReason) -> u32 {
    count(&XDP_FRAMES, reason.index());
    XDP_PASS
}

#[inline(never)]
fn dropped(ctx: &XdpContext, reason: PacketReason) -> u32 {
    count(&PACKETS, reason.index());
    count(&XDP_FRAMES, XdpReason::Dropped.index());
    trace::say(Verdict::Drop(reason), reason);
    capture::sample_dropped(ctx.ctx, reason);
    debug!(ctx, "XDP dropped a packet, reason {}", reason.index() as u32);
    XDP_DROP
}

#[inline(always)]
fn count(packets: &PerCpuArray<u64>, index: usize) {
    if let Some(packets) = packets.get_ptr_mut(index as u32) {
        // SAFETY: a per-CPU cell; programs on one CPU do not interrupt each other at this hook.
        unsafe { *packets += 1 };
    }
}
