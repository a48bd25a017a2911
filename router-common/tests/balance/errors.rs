//! ICMP errors about packets of Layer-4 flows.

use router_common::abi::balance::Mode;
use router_common::abi::reason::PacketReason as Reason;
use router_common::path::Verdict;
use router_common::wire::{PROTOCOL_TCP as TCP, PROTOCOL_UDP as UDP};

use crate::PORT;
use crate::bench::*;

const ROUTER: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 99, 0, 1);

#[test]
fn an_error_about_a_packet_to_an_instance_goes_to_the_client_and_shows_what_the_client_sent() {
    let tables = tables(16);
    for (protocol, mode) in [TCP, UDP].into_iter().flat_map(|one| MODES.map(|mode| (one, mode))) {
        let original = from_client((CLIENT, PORT), mode, protocol, SYN, b"hello, instance");
        let (_, sent) = carry(&tables, &original);
        // Those about wrapped packets come to us.
        if mode == Mode::DsrIpip {
            continue;
        }
        for shown in [28, 28 + 12, sent.len() - 14] {
            let error = too_long(&sent, 14, ROUTER, 1_280, shown);
            let (outcome, told) = carry(&tables, &error);
            if !mode.sees_answers() {
                assert_eq!((outcome, told), (None, error), "{mode:?}: the client is not hidden from routers");
                continue;
            }
            assert_eq!(outcome.unwrap().reason, Reason::L4ErrorForwarded, "{mode:?}");
            assert_eq!(outcome.unwrap().verdict(), Verdict::Redirect { interface: 1 });
            assert_eq!(&told[..6], &CLIENT_MAC);
            assert_eq!(ends(&told, 42), ((CLIENT, PORT), (VIP, port_of(mode))), "the packet as it was sent");
            assert_eq!((&told[26..30], &told[30..34]), (&VIP.octets()[..], &CLIENT.octets()[..]));
            assert_icmp_checksums(&told);
            if 28 + 12 < shown || protocol == UDP && shown >= 28 {
                let inner = original[34..].iter().zip(&told[62..]).filter(|(one, other)| one != other);
                assert_eq!(inner.count(), 0, "{mode:?} {protocol}: the transport header as it was sent");
            }
        }
    }
}

#[test]
fn an_error_about_an_answer_goes_to_the_instance() {
    let tables = tables(16);
    for (protocol, mode) in [TCP, UDP].into_iter().flat_map(|one| MODES.map(|mode| (one, mode))) {
        let (_, sent) = carry(&tables, &from_client((CLIENT, PORT), mode, protocol, SYN, b"hello"));
        let answer = match mode.sees_answers() {
            true => {
                let (source, destination) = ends(&sent, 14);
                carry(&tables, &frame(destination, source, protocol, SYN | ACK, b"welcome")).1
            }
            false => frame((VIP, port_of(mode)), (CLIENT, PORT), protocol, SYN | ACK, b"welcome"),
        };
        let error = too_long(&answer, 14, ROUTER, 1_280, 28);
        let (outcome, told) = carry(&tables, &error);
        assert_eq!(outcome.unwrap().reason, Reason::L4ErrorForwarded, "{mode:?}");
        assert_eq!(outcome.unwrap().verdict(), Verdict::Redirect { interface: INTERFACE });
        assert_eq!(&told[..6], &INSTANCE_MAC);
        if mode.sees_answers() {
            let (source, destination) = ends(&sent, 14);
            assert_eq!(
                ends(&told, 42),
                (destination, source),
                "{mode:?}: the answer as the instance sent it"
            );
            assert_icmp_checksums(&told);
        } else {
            assert_eq!(
                told[told.len() - (error.len() - 14)..],
                error[14..],
                "{mode:?}: unchanged, maybe wrapped"
            );
            assert_eq!(told.len() - error.len(), if mode == MODES[3] { 20 } else { 0 });
        }
    }
}

#[test]
fn where_no_flow_is_stored_the_ring_says_whose_answer_it_was() {
    let tables = tables(16);
    let answer = frame((VIP, port_of(MODES[3])), (CLIENT, PORT), TCP, ACK, b"welcome");
    let (outcome, told) = carry(&tables, &too_long(&answer, 14, ROUTER, 1_280, 28));
    assert_eq!(outcome.unwrap().reason, Reason::L4ErrorForwarded);
    let syn = from_client((CLIENT, PORT), MODES[3], TCP, SYN, b"");
    assert_eq!(told[30..34], carry(&tables, &syn).1[30..34], "the same instance");
}

#[test]
fn an_error_about_something_else_is_for_the_stack() {
    let tables = tables(16);
    for lost in [
        frame((VIP, port_of(MODES[0])), (CLIENT, PORT), TCP, ACK, b"no such flow"),
        frame((SOURCE, 12_345), (instance_address(1), 8080), TCP, ACK, b"no such flow"),
        frame((SOURCE, 22), (CLIENT, PORT), TCP, ACK, b"no such listener"),
    ] {
        let error = too_long(&lost, 14, ROUTER, 1_280, 28);
        assert_eq!(carry(&tables, &error), (None, error));
    }
    let answer = frame((VIP, port_of(MODES[3])), (CLIENT, PORT), TCP, ACK, b"welcome");
    let mut reply = too_long(&answer, 14, ROUTER, 1_280, 28);
    reply[34] = 0;
    assert_eq!(carry(&tables, &reply), (None, reply.clone()), "an echo reply");
}
