//! Our SYN to an instance: with our own numbers and clock, and with the options that the client has.

use router_common::abi::binding::{AGREED_SACK, AGREED_SCALING, AGREED_TIMESTAMPS, Stash};
use router_common::abi::flow::{FLAG_IPV6, Flow};
use router_common::abi::key::Side;
use router_common::abi::next_hop::NextHop;
use router_common::path::binding::handshake::options;
use router_common::path::binding::own::{Content, Own, Sending};
use router_common::wire::bytes_of;
use router_common::wire::ipv4::Ipv4;
use router_common::wire::ipv6::Ipv6;
use router_common::wire::tcp::SYN;

/// The whole frame.
pub fn frame(flow: &Flow, stash: &Stash, next_hop: &NextHop) -> Vec<u8> {
    if flow.translation(Side::Client).traits.get() & FLAG_IPV6 != 0 {
        build::<Ipv6>(flow, stash, next_hop)
    } else {
        build::<Ipv4>(flow, stash, next_hop)
    }
}

fn build<I: Sending>(flow: &Flow, stash: &Stash, next_hop: &NextHop) -> Vec<u8> {
    let to_instance = flow.translation(Side::Client);
    let word = |at: usize| (to_instance.source[at].get(), to_instance.destination[at].get());
    let words = [word(0), word(1), word(2), word(3)];
    let agreed = stash.agreed.get() as u8;
    let scale = (stash.agreed.get() >> 8) as u8;
    let has = |option: u8| agreed & option != 0;
    let content = Content {
        ethernet: [0, 1, 2].map(|at: usize| next_hop.ethernet[at].get()),
        source: words.map(|(source, _)| source),
        destination: words.map(|(_, destination)| destination),
        ports: to_instance.ports.get(),
        seq: stash.seq.get().wrapping_sub(1),
        ack: 0,
        flags: SYN,
        // Not scaled in a SYN; what the client has opened comes with the next packet.
        window: u16::MAX,
        payload: 0,
        payload_sum: 0,
    };
    let options = options(
        stash.segment.get() as u16,
        has(AGREED_SCALING).then_some(scale),
        has(AGREED_SACK),
        has(AGREED_TIMESTAMPS).then_some((stash.timestamp.get(), 0)),
    );
    bytes_of(&Own::<I, 5>::new(&content, options)).to_vec()
}
