//! Fragments of Layer-4 flows' datagrams.

use router_common::abi::balance::Mode;
use router_common::abi::reason::PacketReason as Reason;
use router_common::wire::{PROTOCOL_TCP as TCP, PROTOCOL_UDP as UDP, checksum};

use crate::bench::*;
use crate::{PORT, stored};

/// What a receiver makes of both.
fn whole([first, rest]: &[Vec<u8>; 2], ip: usize) -> Vec<u8> {
    let mut frame = [first, &rest[ip + 20..]].concat();
    let length = (frame.len() - ip) as u16;
    frame[ip + 2..ip + 4].copy_from_slice(&length.to_be_bytes());
    frame[ip + 6..ip + 8].fill(0);
    frame[ip + 10..ip + 12].fill(0);
    let sum = checksum::full(&frame[ip..ip + 20], 0).to_ne_bytes();
    frame[ip + 10..ip + 12].copy_from_slice(&sum);
    frame
}

#[test]
fn a_datagram_in_pieces_arrives_as_it_was_in_both_directions() {
    for (protocol, mode) in [TCP, UDP].into_iter().flat_map(|one| MODES.map(|mode| (one, mode))) {
        let tables = tables(16);
        let question = from_client((CLIENT, PORT), mode, protocol, SYN, &[7; 900]);
        let pieces = cut(&question, 9, 400);
        let sent = pieces.each_ref().map(|piece| {
            let (outcome, sent) = carry(&tables, piece);
            assert!(outcome.is_some_and(|outcome| !outcome.is_dropped()), "{mode:?}: {outcome:?}");
            sent
        });
        let inner = 14 + if mode == Mode::DsrIpip { 20 } else { 0 };
        let arrived = whole(&sent, inner);
        assert_checksums(&arrived, inner);
        assert_eq!(arrived[inner + 20 + 20..], question[54..], "{mode:?}: the same bytes");
        assert_eq!(stored(&tables), 1);
        if !mode.sees_answers() {
            continue;
        }
        let (source, destination) = ends(&arrived, inner);
        let answer = frame(destination, source, protocol, SYN | ACK, &[8; 900]);
        let back = cut(&answer, 9, 400).map(|piece| {
            let (outcome, back) = carry(&tables, &piece);
            assert_eq!(outcome.unwrap().reason, Reason::L4Answered);
            back
        });
        let back = whole(&back, 14);
        assert_eq!(ends(&back, 14), ((VIP, port_of(mode)), (CLIENT, PORT)));
        assert_checksums(&back, 14);
    }
}

#[test]
fn a_piece_that_comes_too_early_or_too_late_is_dropped_and_counted() {
    let mut tables = tables(16);
    let [first, rest] = cut(&from_client((CLIENT, PORT), Mode::Snat, UDP, 0, &[7; 900]), 9, 400);
    assert_eq!(carry(&tables, &rest).0.unwrap().reason, Reason::L4FragmentUnknown);
    assert_eq!(carry(&tables, &first).0.unwrap().reason, Reason::L4Placed);
    assert_eq!(carry(&tables, &rest).0.unwrap().reason, Reason::L4Forwarded);
    tables.ticks += 30;
    assert_eq!(carry(&tables, &rest).0.unwrap().reason, Reason::L4FragmentUnknown);
}

#[test]
fn pieces_of_others_are_left_alone() {
    let tables = tables(16);
    for packet in [
        frame((instance_address(1), 8080), (SOURCE, 10_001), UDP, 0, &[7; 900]),
        frame((CLIENT, PORT), (SOURCE, 22), UDP, 0, &[7; 900]),
    ] {
        for piece in cut(&packet, 9, 400) {
            assert_eq!(carry(&tables, &piece), (None, piece));
        }
    }
    // A first piece too short for its header could hide what it is.
    let [short, _] = cut(&from_client((CLIENT, PORT), Mode::Snat, TCP, SYN, &[7; 900]), 9, 16);
    assert_eq!(carry(&tables, &short), (None, short));
}
