//! Packets to sockets that bear a client's address.

pub mod bench;

use bench::ip::Ip;
use bench::{Bench, TcpPacket};
use router_common::abi::key::FlowKey;
use router_common::path::memory::{Frame, MemoryFlows};
use router_common::path::transparent::is_for_a_socket;

/// Where one connection has been opened in a client's name, and packets from its instance.
fn opened(ip: Ip) -> (MemoryFlows, TcpPacket) {
    let ends = ip.ends();
    let mut flows = Bench::with(ip, 0).flows;
    flows.transparent = vec![FlowKey::tcp(ends.instance, ends.source).unwrap()];
    (flows, TcpPacket::from_instance(ip))
}

#[test]
fn what_comes_back_to_such_a_connection_is_for_its_socket() {
    for ip in Ip::BOTH {
        let (flows, answer) = opened(ip);
        assert!(is_for_a_socket(&Frame(answer.clone().build()), &flows), "{ip:?}");
        assert!(
            !is_for_a_socket(&Frame(answer.clone().source_port(9).build()), &flows),
            "of another connection"
        );
        assert!(!is_for_a_socket(&Frame(answer.clone().reversed().build()), &flows), "on its way there");
        let mut overheard = answer.build();
        overheard[0] |= 1;
        assert!(!is_for_a_socket(&Frame(overheard), &flows), "to a group of hosts");
    }
}

#[test]
fn so_is_a_router_s_error_about_what_the_connection_has_sent() {
    for ip in Ip::BOTH {
        let (flows, answer) = opened(ip);
        let ends = ip.ends();
        let error = |lost: &[u8]| Frame(ip.too_big(&lost[14..], ip.router(), ends.source.ip(), 1_280));
        assert!(is_for_a_socket(&error(&answer.clone().reversed().build()), &flows), "{ip:?}");
        assert!(!is_for_a_socket(&error(&answer.clone().reversed().source_port(9).build()), &flows));
        assert!(!is_for_a_socket(&error(&answer.build()), &flows), "about what comes from the instance");
    }
}
