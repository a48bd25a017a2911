//! Routers between here and instances with `dsr-ipip`, over both versions of IP.

use router_common::abi::balance::Mode;
use router_common::abi::reason::PacketReason as Reason;
use router_common::path::Verdict;
use router_common::path::balance::Outcome;
use router_common::path::balance::memory::MemoryTables;
use router_common::wire::PROTOCOL_TCP as TCP;

use crate::bench::ip::Ip;
use crate::bench::*;

/// Ticks in ten minutes, and a few more.
const TEN_MINUTES: u32 = 8_960;

/// A client's segment whose payload has this length. Nobody may fragment it.
fn segment(ip: Ip, flags: u8, len: usize) -> Vec<u8> {
    let (client, vip) = ((client(ip, 0), 40_000), (vip(ip), port_of(Mode::DsrIpip)));
    let mut frame = frame(client, vip, TCP, flags, &vec![7; len]);
    if ip == Ip::V4 {
        frame[20] = 0x40;
        frames::set_header_checksum(ip, &mut frame);
    } else {
        // A flow label of its own.
        frame[15..18].copy_from_slice(&[3, 0x45, 0x67]);
    }
    frame
}

/// What a router says of a packet that was sent, of which it shows so many bytes behind the outer header.
fn told(ip: Ip, sent: &[u8], mtu: u16, shown: usize) -> Vec<u8> {
    let [high, low] = mtu.to_be_bytes();
    let kind = if ip == Ip::V4 { [3, 4] } else { [2, 0] };
    frames::error(
        ip,
        ip.router(),
        [kind[0], kind[1], 0, 0, 0, 0, high, low],
        &sent[14..14 + ip.header() + shown],
    )
}

/// What the client is told of when it sends so much; `None` if it is sent on.
fn answer_to(tables: &MemoryTables, ip: Ip, len: usize) -> Option<u32> {
    carry(tables, &segment(ip, ACK, len)).0.and_then(Outcome::mtu_to_tell)
}

fn counted(tables: &MemoryTables, error: &[u8]) -> Reason {
    let (outcome, after) = carry(tables, error);
    assert_eq!(after, error, "it is not changed");
    outcome.expect("it is about a tunnel").reason
}

#[test]
fn clients_are_told_of_the_mtu_that_a_router_has_told_until_ten_minutes_later() {
    for ip in Ip::BOTH {
        for shown in [8, 60] {
            let tables = tables(16);
            carry(&tables, &segment(ip, SYN, 0));
            let (_, sent) = carry(&tables, &segment(ip, ACK, 1_400 - ip.header()));
            assert_eq!(counted(&tables, &told(ip, &sent, 1_400, shown)), Reason::L4TunnelMtu, "{ip:?}");
            let fits = 1_400 - 2 * ip.header() - 20;
            assert_eq!(answer_to(&tables, ip, fits), None, "{ip:?}");
            assert_eq!(answer_to(&tables, ip, fits + 1), Some(1_400 - ip.header() as u32), "{ip:?}");
            // A wider way is nobody's to tell of (RFC 8201 §4), a narrower one is.
            assert_eq!(counted(&tables, &told(ip, &sent, 1_450, shown)), Reason::L4TunnelMtu);
            assert_eq!(answer_to(&tables, ip, fits + 1), Some(1_400 - ip.header() as u32), "{ip:?}");
            counted(&tables, &told(ip, &sent, 1_300, shown));
            assert_eq!(answer_to(&tables, ip, fits), Some(1_300 - ip.header() as u32), "{ip:?}");
            tables.settings.now.set(NOW + TEN_MINUTES);
            assert_eq!(answer_to(&tables, ip, fits + 1), None, "{ip:?}: the way may be wider now");
        }
    }
}

#[test]
fn no_router_makes_packets_shorter_than_every_link_carries() {
    for (ip, least) in [(Ip::V4, 576), (Ip::V6, 1_280)] {
        for mtu in [0, 68, 575] {
            let tables = tables(16);
            let (_, sent) = carry(&tables, &segment(ip, SYN, 1_300));
            counted(&tables, &told(ip, &sent, mtu, 8));
            assert_eq!(answer_to(&tables, ip, 1_300), Some(least - ip.header() as u32), "{ip:?}: {mtu}");
        }
    }
}

#[test]
fn who_has_not_seen_our_packets_is_not_believed() {
    for ip in Ip::BOTH {
        let tables = tables(16);
        let (_, sent) = carry(&tables, &segment(ip, SYN, 1_300));
        // The identification, or the flow label.
        for at in if ip == Ip::V4 { 18..20 } else { 16..18 } {
            let mut guessed = sent.clone();
            guessed[at] ^= 0x80;
            assert_eq!(
                counted(&tables, &told(ip, &guessed, 1_300, 8)),
                Reason::L4TunnelErrorForged,
                "{ip:?}"
            );
        }
        let mut other = sent.clone();
        let last_of_source = ip.addresses().start + ip.addresses().len() / 2 - 1;
        other[last_of_source] ^= 1;
        assert_eq!(carry(&tables, &told(ip, &other, 1_300, 8)).0, None, "{ip:?}: from another host");
        assert_eq!(answer_to(&tables, ip, 1_300), None, "{ip:?}");
    }
}

#[test]
fn the_parts_of_a_packet_that_was_put_together_bear_the_mark_too() {
    let tables = tables(16);
    let (_, mut sent) = carry(&tables, &segment(Ip::V4, SYN, 1_300));
    let number = u16::from_be_bytes([sent[18], sent[19]]);
    assert_eq!(number, TUNNEL_MARK as u16);
    for (part, reason) in [(44, Reason::L4TunnelMtu), (200, Reason::L4TunnelErrorForged)] {
        sent[18..20].copy_from_slice(&number.wrapping_add(part).to_be_bytes());
        assert_eq!(counted(&tables, &told(Ip::V4, &sent, 1_300, 8)), reason, "{part}");
    }
}

#[test]
fn what_may_be_fragmented_on_its_way_is_sent_on() {
    let tables = tables(16);
    let (_, sent) = carry(&tables, &segment(Ip::V4, SYN, 1_300));
    counted(&tables, &told(Ip::V4, &sent, 1_300, 8));
    let mut frame = segment(Ip::V4, ACK, 1_300);
    frame[20] = 0;
    frames::set_header_checksum(Ip::V4, &mut frame);
    let (outcome, after) = carry(&tables, &frame);
    assert_eq!(outcome.unwrap().mtu_to_tell(), None);
    assert_eq!(after[18..20], frame[18..20], "its fragments have the sender's number");
}

#[test]
fn other_errors_about_tunnels_are_for_the_stack_and_counted() {
    for (ip, kinds) in [(Ip::V4, [[3, 1], [11, 0]]), (Ip::V6, [[1, 0], [3, 0]])] {
        for [kind, code] in kinds {
            let tables = tables(16);
            let (_, sent) = carry(&tables, &segment(ip, SYN, 10));
            let error = frames::error(ip, ip.router(), [kind, code, 0, 0, 0, 0, 0, 0], &sent[14..]);
            let outcome = carry(&tables, &error).0.unwrap();
            assert_eq!(outcome.verdict(), Verdict::Pass(Reason::L4TunnelError), "{ip:?}");
        }
    }
}
