//! From the state of two sockets to the constants of one flow. Pure arithmetic; everything else of a handoff is around it.
//!
//! The daemon forwards the byte stream unchanged, except that the client's head is replaced by another one. So
//! the sequence numbers of the two legs differ by constants, which are known *before* the head is sent. What the sockets have acknowledged and the other
//! side has not is in custody: `ack_cut` and `seq_cut` tell the packet path which packets still belong to the sockets.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use router_common::abi::flow::{
    FLAG_ERASE_TIMESTAMPS, FLAG_IPV6, FLAG_LIVE, FLAG_TIMESTAMPS, Flow, Progress, Translation,
};
use router_common::abi::key::{FlowKey, address_of, words_of};
use router_common::abi::reason::RelayReason;
use router_common::abi::shared::Shared32;
use router_common::wire::checksum::Diff;

use super::sockets::SocketState;

/// Most bytes in custody of one socket: while they are, pure acknowledgements are held back, and with them window
/// updates and SACK.
pub const MAX_CUSTODY: u32 = 64 * 1024;

/// The four ends of a connection through the router, all of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    pub client: SocketAddr,
    pub vip: SocketAddr,
    pub source: SocketAddr,
    pub instance: SocketAddr,
}

impl Ends {
    /// The ends, without what only means something to this host. A reason where packets cannot be translated between them.
    pub fn new(ends: [SocketAddr; 4]) -> Result<Self, RelayReason> {
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        let [client, vip, source, instance] = ends.map(plain);
        let ends = [client, vip, source, instance];
        if ends.iter().any(|end| matches!(end.ip(), IpAddr::V6(address) if address.is_unicast_link_local())) {
            return Err(RelayReason::LinkLocal);
        }
        if ends.iter().any(|end| end.is_ipv6() != client.is_ipv6()) {
            return Err(RelayReason::Family);
        }
        Ok(Self { client, vip, source, instance })
    }

    /// The tuple of packets from the client.
    pub fn client_key(&self) -> FlowKey {
        key(self.client, self.vip)
    }

    /// The tuple of packets from the instance.
    pub fn instance_key(&self) -> FlowKey {
        key(self.instance, self.source)
    }

    pub(super) fn family_flag(&self) -> u32 {
        if self.client.is_ipv6() { FLAG_IPV6 } else { 0 }
    }

    /// Reads the ends back from a filled flow.
    pub fn of(flow: &Flow) -> Self {
        let [to_instance, to_client] = &flow.translations;
        let is_ipv6 = to_instance.traits.get() & FLAG_IPV6 != 0;
        let end = |address: &[Shared32; 4], ports: &Shared32, which: usize| {
            let words = [0, 1, 2, 3].map(|word: usize| address[word].get());
            let ports = ports.get().to_ne_bytes();
            let port = u16::from_be_bytes([ports[2 * which], ports[2 * which + 1]]);
            SocketAddr::new(address_of(words, is_ipv6), port)
        };
        Self {
            source: end(&to_instance.source, &to_instance.ports, 0),
            instance: end(&to_instance.destination, &to_instance.ports, 1),
            vip: end(&to_client.source, &to_client.ports, 0),
            client: end(&to_client.destination, &to_client.ports, 1),
        }
    }
}

fn key(source: SocketAddr, destination: SocketAddr) -> FlowKey {
    FlowKey::tcp(source, destination).expect("the ends of a flow are of one family")
}

/// Bytes that the daemon has read from the client and not sent, and what it will send for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The head that is sent instead of the client's; 0 in mid-stream.
    pub new_head: u32,
    /// Client bytes behind the head, sent unchanged.
    pub surplus: u32,
}

/// Indexes of the next hops towards both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHops {
    pub to_client: u32,
    pub to_instance: u32,
}

/// What a sender sends at once, whatever window it is given: ten segments (RFC 6928), and as many bytes more as it has been
/// acknowledged (slow start).
const FIRST_FLIGHT: u32 = 10 * 1460;
/// A sender that has been silent for longer than its retransmission time-out starts slowly again (RFC 5681 §4.1). Few
/// time-outs are longer (RFC 6298 §2).
const SLOW_START_AGAIN: Duration = Duration::from_secs(1);
/// A receiver discards the one segment that crosses its window's edge, and a sender repairs the loss of one without waiting.
const ONE_SEGMENT: u32 = 1460;

/// Whether packets can be translated between two legs in these states.
pub fn compatible(client: &SocketState, instance: &SocketState, pending: Pending) -> Result<(), RelayReason> {
    let (a, b) = (client.agreed, instance.agreed);
    // What the client did not agree must not reach it. The other way round a stack ignores what it did not agree: timestamps
    // are erased, and an instance without SACK never sends any.
    let unknown_to_client = b.timestamps && !a.timestamps || b.sack && !a.sack;
    if unknown_to_client || a.ecn != b.ecn {
        return Err(RelayReason::OptionMismatch);
    }
    if client.unacked > MAX_CUSTODY || instance.unacked > MAX_CUSTODY || client.unread > MAX_CUSTODY {
        return Err(RelayReason::Custody);
    }
    let to_instance = pending.new_head + pending.surplus + client.unread;
    if overruns(client, to_instance, instance) || overruns(instance, instance.unread, client) {
        return Err(RelayReason::Window);
    }
    Ok(())
}

/// Whether `from` may send so much that it will not fit the window of `to` behind the `held` bytes that are ours to send. It goes by the window
/// that our socket has given it until the first acknowledgement of `to` reaches it, and nothing tells it of what is discarded.
fn overruns(from: &SocketState, held: u32, to: &SocketState) -> bool {
    let grown = if from.silent > SLOW_START_AGAIN { 0 } else { from.received };
    let flight = from.own_window.min(FIRST_FLIGHT.saturating_add(grown));
    to.unacked + held + flight > to.peer_window.saturating_add(ONE_SEGMENT)
}

/// Fills a free slot. No key names it yet, so nobody reads it meanwhile.
pub fn fill(
    flow: &Flow,
    ends: &Ends,
    client: &SocketState,
    instance: &SocketState,
    pending: Pending,
    next_hops: NextHops,
    now: u64,
) {
    // Where the client's own bytes go on behind its head, in its sequence space and in ours towards the instance.
    let head_end = client.rcv_nxt.wrapping_sub(client.unread).wrapping_sub(pending.surplus);
    let new_head_end = instance.write_seq.wrapping_add(pending.new_head);
    let to_instance = new_head_end.wrapping_sub(head_end);
    // All that was read from the instance has been written to the client.
    let response_read = instance.rcv_nxt.wrapping_sub(instance.unread);
    let to_client = client.write_seq.wrapping_sub(response_read);

    let both = client.agreed.timestamps && instance.agreed.timestamps;
    let erase = client.agreed.timestamps && !instance.agreed.timestamps;
    let live = FLAG_LIVE | ends.family_flag();
    let client_flags =
        live | if both { FLAG_TIMESTAMPS } else { 0 } | if erase { FLAG_ERASE_TIMESTAMPS } else { 0 };
    let instance_flags = live | if both { FLAG_TIMESTAMPS } else { 0 };

    let [from_client, from_instance] = &flow.translations;
    address(from_client, (ends.client, ends.vip), (ends.source, ends.instance));
    from_client.seq_delta.set(to_instance);
    from_client.ack_cut.set(client.write_seq);
    from_client.seq_cut.set(head_end);
    from_client.clock_offset.set(instance.clock_offset);
    from_client.next_hop.set(next_hops.to_instance);

    address(from_instance, (ends.instance, ends.source), (ends.vip, ends.client));
    from_instance.seq_delta.set(to_client);
    from_instance.ack_cut.set(new_head_end.wrapping_add(pending.surplus));
    from_instance.seq_cut.set(response_read);
    from_instance.clock_offset.set(client.clock_offset);
    from_instance.next_hop.set(next_hops.to_client);

    let [client_progress, instance_progress] = &flow.progress;
    begin(client_progress, client, now);
    begin(instance_progress, instance, now);

    from_client.traits.set(Translation::pack_traits(
        client_flags,
        client.agreed.peer_scale,
        instance.agreed.our_scale,
    ));
    from_instance.traits.set(Translation::pack_traits(
        instance_flags,
        instance.agreed.peer_scale,
        client.agreed.our_scale,
    ));
}

pub(super) fn address(
    translation: &Translation,
    old: (SocketAddr, SocketAddr),
    new: (SocketAddr, SocketAddr),
) {
    let mut diff = Diff::default();
    for (place, old, new) in [(&translation.source, old.0, new.0), (&translation.destination, old.1, new.1)] {
        for ((word, old), new) in place.iter().zip(words_of(old.ip())).zip(words_of(new.ip())) {
            diff.replace(old, new);
            word.set(new);
        }
    }
    translation.address_diff.set(diff.fold());
    let [a, b] = [new.0.port(), new.1.port()].map(u16::to_be_bytes);
    translation.ports.set(u32::from_ne_bytes([a[0], a[1], b[0], b[1]]));
}

/// The progress of a sender as our socket towards it knows it.
fn begin(progress: &Progress, socket: &SocketState, now: u64) {
    let acknowledged = socket.write_seq.wrapping_sub(socket.unacked);
    progress.last_seen.set(now);
    progress.born.set(now);
    progress.packets.set(0);
    progress.bytes.set(0);
    progress.max_ack.set(acknowledged);
    progress.max_seq.set(socket.rcv_nxt);
    progress.window_edge.set(acknowledged.wrapping_add(socket.peer_window));
    progress.fin_end.set(0);
    progress.fin_seen.set(0);
    progress.rst_seen.set(0);
    progress.timestamp_delta.set(0);
}

#[cfg(test)]
mod tests {
    use super::super::sockets::Agreed;
    use super::*;

    fn ends_of(ends: [&str; 4]) -> Result<Ends, RelayReason> {
        Ends::new(ends.map(|end| end.parse().unwrap()))
    }

    fn ends() -> Ends {
        ends_of(["10.77.1.2:40000", "10.77.1.10:80", "10.77.2.1:20000", "10.77.2.11:8080"]).unwrap()
    }

    fn socket(write_seq: u32, rcv_nxt: u32) -> SocketState {
        SocketState { write_seq, rcv_nxt, peer_window: 65535, own_window: 65160, ..SocketState::default() }
    }

    const NOTHING: Pending = Pending { new_head: 0, surplus: 0 };

    #[test]
    fn the_ends_are_read_back_from_the_flow() {
        let ipv6 = ["[fd77:1::2]:40000", "[fd77:1::10]:80", "[fd77:2::1]:20000", "[fd77:2::11]:8080"];
        let flow = Flow::default();
        for ends in [ends(), ends_of(ipv6).unwrap(), ends()] {
            let next_hops = NextHops { to_client: 1, to_instance: 2 };
            fill(&flow, &ends, &socket(1, 2), &socket(3, 4), NOTHING, next_hops, 7);
            assert_eq!(Ends::of(&flow), ends);
        }
    }

    #[test]
    fn ends_of_two_families_are_no_flow_but_ipv4_in_ipv6_form_is_ipv4() {
        let mixed = ["[fd77:1::2]:40000", "[fd77:1::10]:80", "10.77.2.1:20000", "10.77.2.11:8080"];
        assert_eq!(ends_of(mixed), Err(RelayReason::Family));
        let mapped =
            ["[::ffff:10.77.1.2]:40000", "[::ffff:10.77.1.10]:80", "10.77.2.1:20000", "10.77.2.11:8080"];
        assert_eq!(ends_of(mapped), Ok(ends()));
        let on_the_link = ["[fe80::2%3]:40000", "[fd77:1::10]:80", "[fd77:2::1]:20000", "[fd77:2::11]:8080"];
        assert_eq!(ends_of(on_the_link), Err(RelayReason::LinkLocal));
    }

    #[test]
    fn the_byte_behind_the_clients_head_follows_the_new_head() {
        // A head of 100 bytes is replaced by one of 140; 20 bytes of body were read behind it and 5 wait unread.
        let client = SocketState { unread: 5, ..socket(9_000, 1_000 + 100 + 20 + 5) };
        let instance = socket(50_000, 70_000);
        let flow = Flow::default();
        let next_hops = NextHops { to_client: 1, to_instance: 2 };
        fill(&flow, &ends(), &client, &instance, Pending { new_head: 140, surplus: 20 }, next_hops, 7);
        let [from_client, from_instance] = &flow.translations;
        assert_eq!(from_client.seq_cut.get(), 1_100);
        assert_eq!(1_100u32.wrapping_add(from_client.seq_delta.get()), 50_140);
        assert_eq!(from_instance.ack_cut.get(), 50_160);
        assert_eq!(70_000u32.wrapping_add(from_instance.seq_delta.get()), 9_000);
        assert_eq!(from_client.ack_cut.get(), 9_000);
    }

    #[test]
    fn what_the_client_did_not_agree_keeps_the_connection_in_user_space() {
        let with = |timestamps, sack, ecn| SocketState {
            agreed: Agreed { timestamps, sack, ecn, ..Agreed::default() },
            ..socket(0, 0)
        };
        let compatible = |client: &_, instance: &_| compatible(client, instance, NOTHING);
        let all = with(true, true, false);
        assert_eq!(compatible(&all, &all), Ok(()));
        assert_eq!(compatible(&all, &with(false, true, false)), Ok(()));
        assert_eq!(compatible(&all, &with(true, false, false)), Ok(()));
        assert_eq!(compatible(&with(false, true, false), &all), Err(RelayReason::OptionMismatch));
        assert_eq!(compatible(&with(true, false, false), &all), Err(RelayReason::OptionMismatch));
        assert_eq!(compatible(&with(true, true, true), &all), Err(RelayReason::OptionMismatch));
    }

    #[test]
    fn a_sender_that_may_send_more_than_the_other_side_takes_is_relayed() {
        let instance = socket(0, 0);
        let upload = |received, surplus, own_window| {
            let client = SocketState { received, own_window, ..socket(0, received) };
            compatible(&client, &instance, Pending { new_head: 130, surplus })
        };
        assert_eq!(upload(100, 0, 65_060), Ok(()), "the first flight is short, whatever the window");
        assert_eq!(
            upload(15_000, 14_900, 50_160),
            Ok(()),
            "a head that grows a little is within one segment"
        );
        assert_eq!(upload(60_000, 59_900, 50_000), Err(RelayReason::Window));
        // A client takes less than an instance, which has sent 100 kB without loss, was permitted: it fits once the instance has rested.
        let narrow = SocketState { peer_window: 104_448, ..socket(0, 0) };
        let download = |silent| {
            let instance = SocketState { received: 100_043, own_window: 161_792, silent, ..socket(0, 0) };
            compatible(&narrow, &instance, NOTHING)
        };
        assert_eq!(download(Duration::from_millis(900)), Err(RelayReason::Window));
        assert_eq!(download(Duration::from_millis(1_200)), Ok(()));
        let reluctant = SocketState { peer_window: 8_000, ..socket(0, 0) };
        assert_eq!(compatible(&reluctant, &instance, NOTHING), Err(RelayReason::Window));
    }
}
