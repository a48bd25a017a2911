//! Segments in fragments.

use router_common::abi::key::Side;
use router_common::abi::reason::PacketReason::*;
use router_common::path::Verdict;
use router_common::path::fragment::PATIENCE;

use super::bench::Bench;
use super::bench::{self, ip::Ip};
use super::untouched;

/// A segment's two fragments: its TCP header and the first bytes of its payload, and the rest.
pub fn fragments(ip: Ip, frame: &[u8], identification: u16) -> [Vec<u8>; 2] {
    let split = ip.tcp() + 24;
    let part = |field: u16, bytes: &[u8]| {
        let mut part = frame[..ip.tcp()].to_vec();
        let [high, low] = field.to_be_bytes();
        let [id_high, id_low] = identification.to_be_bytes();
        match ip {
            Ip::V4 => {
                part[18..20].copy_from_slice(&[id_high, id_low]);
                // The same field, with flags and offset the other way round.
                let field = field >> 3 | (field & 1) << 13;
                part[20..22].copy_from_slice(&field.to_be_bytes());
            }
            Ip::V6 => {
                part[ip.protocol()] = 44;
                part.extend([6, 0, high, low, 0, 0, id_high, id_low]);
            }
        }
        part.extend(bytes);
        let length = ip.length_to_write(part.len() - 14);
        part[ip.length_field()].copy_from_slice(&length);
        if ip == Ip::V4 {
            part[24..26].fill(0);
            let checksum = ip.header_error(&part).to_ne_bytes();
            part[24..26].copy_from_slice(&checksum);
        }
        part
    };
    [part(1, &frame[ip.tcp()..split]), part(24, &frame[split..])]
}

/// The datagram that a receiver puts together.
pub fn put_together(ip: Ip, [first, rest]: [&[u8]; 2]) -> Vec<u8> {
    let header = if ip == Ip::V6 { 8 } else { 0 };
    let mut whole = first[..ip.tcp()].to_vec();
    match ip {
        Ip::V4 => whole[20..22].fill(0),
        Ip::V6 => whole[ip.protocol()] = 6,
    }
    whole.extend(&first[ip.tcp() + header..]);
    whole.extend(&rest[ip.tcp() + header..]);
    let length = ip.length_to_write(whole.len() - 14);
    whole[ip.length_field()].copy_from_slice(&length);
    if ip == Ip::V4 {
        whole[24..26].fill(0);
        let checksum = ip.header_error(&whole).to_ne_bytes();
        whole[24..26].copy_from_slice(&checksum);
    }
    whole
}

pub fn fragments_follow_the_first_and_are_put_together_to_what_a_whole_segment_becomes(ip: Ip) {
    let bench = Bench::direct(ip);
    let segment = || bench.by_client().seq(5_000).payload(b"a payload of thirty bytes, say");
    let [first, rest] = fragments(ip, &segment().build(), 7);
    let first = bench.carry_frame(first);
    let rest = bench.carry_frame(rest);
    let way = Verdict::Redirect { interface: bench::TO_INSTANCE_INTERFACE };
    assert_eq!((first.verdict, rest.verdict), (way, way));
    let whole = put_together(ip, [&first.after, &rest.after]);
    let mut wanted = bench.carry(segment()).after;
    if ip == Ip::V4 {
        wanted[18..20].copy_from_slice(&[0, 7]);
        wanted[20..22].fill(0);
        wanted[24..26].copy_from_slice(&whole[24..26]);
    }
    assert_eq!(whole, wanted);
    assert_eq!(bench::checksum_errors(&whole), [0, 0]);
}

pub fn a_fragment_that_comes_before_the_first_is_the_stack_s(ip: Ip) {
    let bench = Bench::direct(ip);
    let segment = bench.by_client().payload(b"a payload of thirty bytes, say").build();
    let [first, rest] = fragments(ip, &segment, 7);
    untouched(&bench.carry_frame(rest.clone()), Verdict::Pass(Fragment));
    assert!(matches!(bench.carry_frame(first).verdict, Verdict::Redirect { .. }));
    assert!(matches!(bench.carry_frame(rest).verdict, Verdict::Redirect { .. }));
    let [_, of_another] = fragments(ip, &segment, 8);
    untouched(&bench.carry_frame(of_another), Verdict::Pass(Fragment));
}

pub fn a_datagram_of_no_flow_is_the_stack_s_though_its_name_was_a_flow_s_before(ip: Ip) {
    let bench = Bench::direct(ip);
    let payload = b"a payload of thirty bytes, say";
    let [first, rest] = fragments(ip, &bench.by_client().payload(payload).build(), 7);
    assert!(matches!(bench.carry_frame(first).verdict, Verdict::Redirect { .. }));
    let [other, _] = fragments(ip, &bench.by_client().source_port(9).payload(payload).build(), 7);
    untouched(&bench.carry_frame(other), Verdict::Pass(NoFlow));
    untouched(&bench.carry_frame(rest), Verdict::Pass(Fragment));
}

pub fn a_later_fragment_is_not_believed_of_a_flow_that_has_ended_meanwhile_or_long_after(ip: Ip) {
    let [first, rest] =
        fragments(ip, &Bench::direct(ip).by_client().payload(b"a payload of thirty bytes, say").build(), 7);
    let bench = Bench::direct(ip);
    bench.carry_frame(first.clone());
    bench.flow().translation(Side::Client).traits.set(0);
    untouched(&bench.carry_frame(rest.clone()), Verdict::Pass(Fragment));

    let bench = Bench::direct(ip);
    bench.carry_frame(first);
    for datagram in bench.flows.datagrams.borrow_mut().values_mut() {
        datagram.seen = datagram.seen.wrapping_sub(PATIENCE + 1);
    }
    untouched(&bench.carry_frame(rest), Verdict::Pass(Fragment));
}

pub fn a_first_fragment_without_its_whole_tcp_header_is_the_stack_s(ip: Ip) {
    let bench = Bench::direct(ip);
    let segment = bench.by_client().timestamps(1, 2).payload(b"a payload of thirty bytes, say").build();
    // Four bytes of the options lie in the other.
    let [first, rest] = fragments(ip, &segment, 7);
    untouched(&bench.carry_frame(first), Verdict::Pass(Truncated));
    untouched(&bench.carry_frame(rest), Verdict::Pass(Fragment));
}
