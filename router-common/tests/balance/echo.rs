//! Echo requests to VIPs.

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::PacketBuilder;
use proptest::prelude::*;
use router_common::abi::reason::PacketReason as Reason;
use router_common::path::Verdict;
use router_common::path::balance::memory::MemoryTables;
use router_common::wire::{PROTOCOL_ICMPV6, PROTOCOL_UDP, checksum};

use crate::bench::*;

/// [`vip`] of IPv6.
const VIP6: [u8; 16] = [0xfd, 0x77, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];
const CLIENT6: Ipv6Addr = Ipv6Addr::new(0xfd77, 1, 0, 0, 0, 0, 0, 2);

fn echo_request6(source: Ipv6Addr, len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..len - 8).map(|place| (place * 3) as u8).collect();
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(CLIENT_MAC, OWN_MAC)
        .ipv6(source.octets(), VIP6, 61)
        .icmpv6_echo_request(0x1234, 1)
        .write(&mut bytes, &payload)
        .unwrap();
    bytes
}

fn reason(tables: &MemoryTables, frame: &[u8]) -> Option<Reason> {
    let (outcome, after) = carry(tables, frame);
    if outcome.is_none_or(|outcome| outcome.reason != Reason::L4EchoAnswered) {
        assert_eq!(after, frame, "unchanged");
    }
    outcome.map(|outcome| outcome.reason)
}

/// The sum of ICMPv6's pseudo-header.
fn pseudo(frame: &[u8]) -> u64 {
    let len = (frame.len() - 54) as u32;
    let head = [&frame[22..54], &len.to_be_bytes(), &[0, 0, 0, PROTOCOL_ICMPV6]].concat();
    u64::from(!checksum::full(&head, 0))
}

proptest! {
    #[test]
    fn a_request_to_a_vip_with_instances_comes_back_as_it_was(len in 8..1_480usize) {
        let tables = tables(16);
        let (outcome, after) = carry(&tables, &echo_request(CLIENT, VIP, len));
        let before = echo_request(CLIENT, VIP, len);
        let outcome = outcome.unwrap();
        prop_assert_eq!(outcome.reason, Reason::L4EchoAnswered);
        prop_assert_eq!(outcome.verdict(), Verdict::Redirect { interface: 1 });
        prop_assert_eq!(&after[..12], &[CLIENT_MAC, OWN_MAC].concat()[..]);
        prop_assert_eq!((&after[26..30], &after[30..34]), (&VIP.octets()[..], &CLIENT.octets()[..]));
        prop_assert_eq!((after[22], &after[34..36]), (64, &[0, 0][..]), "a fresh time to live; a reply");
        prop_assert_eq!(&after[38..], &before[38..], "identifier, number and payload");
        prop_assert_eq!(checksum::full(&after[14..34], 0), 0);
        prop_assert_eq!(checksum::full(&after[34..], 0), 0);

        let before = echo_request6(CLIENT6, len);
        let (outcome, after) = carry(&tables, &before);
        prop_assert_eq!(outcome.unwrap().reason, Reason::L4EchoAnswered);
        prop_assert_eq!((&after[22..38], &after[38..54]), (&VIP6[..], &CLIENT6.octets()[..]));
        prop_assert_eq!((after[21], &after[54..56]), (64, &[129, 0][..]));
        prop_assert_eq!(&after[58..], &before[58..]);
        prop_assert_eq!(checksum::full(&after[54..], pseudo(&after)), 0);
    }

    #[test]
    fn a_request_of_which_one_bit_has_changed_on_its_way_is_dropped(len in 8..700usize, at in 0usize..700, bit in 0..8) {
        let mut frame = echo_request(CLIENT, VIP, len);
        let at = 36 + at % (len - 2);
        frame[at] ^= 1u8 << bit;
        prop_assert_eq!(reason(&tables(16), &frame), Some(Reason::L4EchoMalformed));
    }
}

#[test]
fn a_vip_without_instances_is_silent_and_any_other_address_the_stack_s() {
    let tables = tables(16);
    assert_eq!(reason(&tables, &echo_request(CLIENT, IDLE_VIP, 64)), Some(Reason::L4EchoUnavailable));
    assert_eq!(reason(&tables, &echo_request(CLIENT, SOURCE, 64)), None);
    let mut reply = echo_request(CLIENT, VIP, 64);
    reply[34] = 0;
    assert_eq!(reason(&tables, &reply), None, "an echo reply");
    let mut timestamp = echo_request(CLIENT, VIP, 64);
    timestamp[34] = 13;
    assert_eq!(reason(&tables, &timestamp), None, "another question");
    let mut overheard = echo_request(CLIENT, VIP, 64);
    overheard[0] |= 1;
    assert_eq!(reason(&tables, &overheard), None, "to a group of hosts");
    assert_eq!(reason(&tables, &echo_request(CLIENT, VIP, 64)[..60]), None, "shorter than it says");
}

#[test]
fn nobody_else_can_be_made_to_hear_an_answer() {
    let tables = tables(16);
    for source in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255, 255, 255, 255], VIP.octets()] {
        let frame = echo_request(Ipv4Addr::from(source), VIP, 64);
        assert_eq!(reason(&tables, &frame), Some(Reason::L4EchoMalformed), "{source:?}");
    }
    for source in ["::", "::1", "ff02::1", "fd77:1::10"] {
        let frame = echo_request6(source.parse().unwrap(), 64);
        assert_eq!(reason(&tables, &frame), Some(Reason::L4EchoMalformed), "{source}");
    }
    let mut frame = echo_request(CLIENT, VIP, 64);
    frame[6..12].fill(0xff);
    assert_eq!(reason(&tables, &frame), Some(Reason::L4EchoMalformed), "from all hosts");
}

#[test]
fn what_is_too_long_to_be_answered_here_is_the_stack_s_unless_the_vip_is_silent() {
    let tables = tables(16);
    let longest = echo_request(CLIENT, VIP, 9_216 - 20);
    assert_eq!(reason(&tables, &longest), Some(Reason::L4EchoAnswered));
    assert_eq!(reason(&tables, &echo_request(CLIENT, VIP, 9_216 - 19)), Some(Reason::L4EchoTooLong));
    for (vip, expected) in [(VIP, Reason::L4EchoTooLong), (IDLE_VIP, Reason::L4EchoUnavailable)] {
        for piece in cut(&echo_request(CLIENT, vip, 2_000), 9, 1_480) {
            assert_eq!(reason(&tables, &piece), Some(expected));
        }
    }
    let [_, other] = cut(&frame((CLIENT, 1), (VIP, 99), PROTOCOL_UDP, 0, &[7; 900]), 9, 400);
    assert_eq!(reason(&tables, &other), Some(Reason::L4FragmentUnknown), "not of ICMP");
}

#[test]
fn bytes_behind_the_packet_are_not_summed_up() {
    let mut padded = echo_request(CLIENT, VIP, 9);
    padded.resize(60, 0xa5);
    assert_eq!(reason(&tables(16), &padded), Some(Reason::L4EchoAnswered));
}
