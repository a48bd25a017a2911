//! The kernel programs: entry points of a few lines each. The packet's route itself is `router_common::path`.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(
    target_arch = "bpf",
    feature(core_intrinsics, adt_const_params),
    allow(internal_features, incomplete_features)
)]

#[cfg(target_arch = "bpf")]
mod balance;
#[cfg(target_arch = "bpf")]
mod binding;
#[cfg(target_arch = "bpf")]
mod capture;
#[cfg(target_arch = "bpf")]
mod egress;
#[cfg(target_arch = "bpf")]
mod flows;
#[cfg(target_arch = "bpf")]
mod frame;
#[cfg(target_arch = "bpf")]
mod layer4;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod packet;
#[cfg(target_arch = "bpf")]
mod routes;
#[cfg(target_arch = "bpf")]
mod scratch;
#[cfg(target_arch = "bpf")]
mod trace;
#[cfg(target_arch = "bpf")]
mod xdp;

#[cfg(target_arch = "bpf")]
mod programs {
    use aya_ebpf::macros::{classifier, xdp};
    use aya_ebpf::programs::{TcContext, XdpContext};
    use router_common::abi::reason::PacketReason;
    use router_common::path::Verdict;
    use router_common::path::stray_ending::is_stray;
    use router_common::path::syn_options;

    use crate::egress;
    use crate::flows::KernelFlows;
    use crate::layer4;
    use crate::packet::Skb;
    use crate::routes;

    /// Packets of Layer-4 listeners are sent on; all others go to the next program, which is [`router_ingress`].
    ///
    /// A program of its own: hosts without such listeners do not run it, and each of the two has the verifier's whole budget and 512 bytes of stack.
    #[classifier]
    pub fn router_layer4(ctx: TcContext) -> i32 {
        layer4::carry(&ctx)
    }

    /// Packets of handed-off connections are translated and sent on; all others go up the stack.
    #[classifier]
    pub fn router_ingress(ctx: TcContext) -> i32 {
        routes::carry(ctx.skb.skb)
    }

    /// Begins connections that have no socket; all other packets go up the stack.
    ///
    /// Behind [`router_ingress`]: most packets belong to flows, and do not come here.
    #[classifier]
    pub fn router_binding(ctx: TcContext) -> i32 {
        crate::binding::carry(&ctx)
    }

    /// Frames of handed-off connections are translated and sent on before the stack; it and [`router_ingress`] get all others.
    #[xdp]
    pub fn router_xdp(ctx: XdpContext) -> u32 {
        crate::xdp::carry(ctx.ctx)
    }

    /// The same for hosts with Layer-4 listeners.
    #[xdp]
    pub fn router_xdp_layer4(ctx: XdpContext) -> u32 {
        crate::xdp::balance_or_carry(ctx.ctx)
    }

    /// Erases options from the SYNs of connections to instances whose client did not offer them, and stops endings of
    /// flows that go on.
    #[classifier]
    pub fn router_egress(ctx: TcContext) -> i32 {
        let mut packet = Skb::new(&ctx);
        if is_stray(&packet, &KernelFlows) {
            let reason = PacketReason::StrayEnding;
            return egress::act(&ctx, Verdict::Drop(reason), reason);
        }
        syn_options::erase(&mut packet, &KernelFlows);
        egress::NEXT_PROGRAM
    }
}

#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// Built for the host, this crate is an empty program, so that workspace-wide commands work.
#[cfg(not(target_arch = "bpf"))]
fn main() {}
