//! What the loaded program costs for one packet.

use std::time::Duration;

use router_common::abi::reason::{PacketReason, XdpReason};
use support::Datapath;

use router_common::abi::balance::{Endpoint, Mode, Target};
use router_common::path::balance::memory::MemoryTables;
use router_common::wire::PROTOCOL_TCP;
use support::layer4::{Layer4, stay_on_this_cpu};
use support::xdp_maps::KnownInterfaces;

use crate::compare::LOOPBACK;
use crate::layer4::bench as bench4;
use crate::pictures::bench::ip::Ip;
use crate::pictures::bench::{self, TcpPacket};

#[test]
#[ignore = "needs root"]
fn translating_a_packet_costs_well_below_a_microsecond() {
    let datapath = Datapath::load().unwrap();
    for ip in Ip::BOTH {
        translating_costs(&datapath, ip);
    }
}

fn translating_costs(datapath: &Datapath, ip: Ip) {
    let table = bench::Bench::mirrored(ip).flows;
    for hop in &table.next_hops {
        // What goes out comes in again.
        hop.ethernet[0].set(0);
        hop.ethernet[1].set(0);
    }
    datapath.hold(&table).unwrap();
    let edge = bench::INSTANCE_ISN_DELTA;
    let rounds = 200_000;
    for (name, packet) in [
        ("no options", TcpPacket::from_client(ip).payload(b"0123456789ab")),
        ("timestamps", TcpPacket::from_client(ip).timestamps(7, 9)),
        ("timestamps and SACK", TcpPacket::from_client(ip).timestamps(7, 9).sack(&[(edge, edge), (1, 2)])),
        (
            "timestamps in an unusual place",
            TcpPacket::from_client(ip).raw_options(&[8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 1, 1]),
        ),
        ("no flow", TcpPacket::from_client(ip).source_port(1)),
    ] {
        // Two flows take turns: each round undoes the one before.
        let mut original = packet.build();
        original[ip.ttl()] = 64;
        original[..6].copy_from_slice(&LOOPBACK);
        bench::set_checksums(&mut original);
        let counted_before = datapath.packets().unwrap();
        let cost = (0..5)
            .map(|_| {
                let ran = datapath.ingress_again_and_again(&original, rounds).unwrap();
                assert_eq!(ran.frame[12..], original[12..], "an even number of rounds gives the packet back");
                ran.duration
            })
            .min()
            .unwrap();
        println!("{:>5} ns  {name}, {ip:?}", cost.as_nanos());
        let forwarded = PacketReason::Forwarded.index();
        let carried = datapath.packets().unwrap()[forwarded] - counted_before[forwarded];
        assert_eq!(carried, if name == "no flow" { 0 } else { 5 * u64::from(rounds) });
        // A machine under load may be slow, but not by this much.
        assert!(cost.as_nanos() < 1_000, "{name}, {ip:?}: {} ns", cost.as_nanos());
    }
}

/// Flows of one test, so that tables and frames are those of many.
const MANY: u32 = 100_000;

#[test]
#[ignore = "needs root"]
fn layer_4_packets_cost_well_below_a_microsecond() {
    stay_on_this_cpu();
    let tables = bench4::tables(MANY as usize / 10);
    for hop in &tables.next_hops {
        // What goes out comes in again.
        hop.ethernet[0].set(0);
        hop.ethernet[1].set(0);
    }
    let frame = |mode, port, flags| {
        bench4::from_client((bench4::CLIENT, port), mode, PROTOCOL_TCP, flags, b"0123456789")
    };
    let mut rows: Vec<(&str, Vec<u8>)> = Vec::new();
    let direct = frame(Mode::DsrL2, 1_025, bench4::ACK);
    bench4::carry(&tables, &direct);
    rows.push(("flow, dsr-l2", direct));
    let (there, back) = by_turns(&tables);
    rows.push(("flow, snat", there));
    // Ends what is not known: it is placed by the Maglev table and not stored.
    rows.push(("Maglev table alone, dsr-l2", frame(Mode::DsrL2, 1_026, bench4::FIN)));
    let layer4 = Layer4::load(&tables).unwrap();
    let mut nothing = direct_of(&rows).to_vec();
    nothing[12..14].copy_from_slice(&[0x88, 0xb5]);
    layer4.xdp.hold(&KnownInterfaces::sending(|_| true)).unwrap();
    let rounds = 2_000_000;
    let costs = |frame: &[u8]| {
        let at_tc = cost_of(|| layer4.run(frame, rounds).unwrap().duration);
        (at_tc, cost_of(|| layer4.run_xdp(frame, rounds).unwrap().duration))
    };
    let (tc_base, xdp_base) = costs(&nothing);
    println!(
        "Layer 4, 64-byte TCP, one flow, one CPU, net of a frame that is not IP (TC {tc_base} ns, XDP {xdp_base} ns):"
    );
    for (name, frame) in &rows {
        let carried = || layer4.xdp.frames().unwrap()[XdpReason::Carried.index()];
        let before = carried();
        let (tc, xdp) = costs(frame);
        let (tc, xdp) = (tc.saturating_sub(tc_base), xdp.saturating_sub(xdp_base));
        println!("TC {tc:>5} ns, XDP {xdp:>5} ns  {name}");
        assert_eq!(carried() - before, 11 * u64::from(rounds), "{name}: XDP has carried all");
        assert!(tc < 1_000 && xdp < 1_000, "{name}: {tc} ns, {xdp} ns");
    }
    drop(back);
    // Wrapped packets cannot be sent through again: each is sent once.
    let wrapped = frame(Mode::DsrIpip, 1_025, bench4::ACK);
    layer4.run(&wrapped, 1).unwrap();
    let once = |frames: &mut dyn Iterator<Item = Vec<u8>>| {
        let mut costs: Vec<u128> =
            frames.map(|frame| layer4.run(&frame, 1).unwrap().duration.as_nanos()).collect();
        costs.sort_unstable();
        costs[costs.len() / 2]
    };
    let base = once(&mut (0..20_000).map(|_| nothing.clone()));
    let flow = once(&mut (0..20_000).map(|_| wrapped.clone())) - base;
    let once_in_xdp = |frame: &[u8]| {
        let mut costs: Vec<u128> =
            (0..20_000).map(|_| layer4.run_xdp(frame, 1).unwrap().duration.as_nanos()).collect();
        costs.sort_unstable();
        costs[costs.len() / 2]
    };
    let in_xdp = once_in_xdp(&wrapped).saturating_sub(once_in_xdp(&nothing));
    println!("Each packet sent once, net of the same:\nTC {flow:>5} ns, XDP {in_xdp:>5} ns  flow, dsr-ipip");
    let many = |number: u32| {
        let client = std::net::Ipv4Addr::from(0x0a4d_0000 + number / 32_768);
        bench4::from_client(
            (client, 1_025 + (number % 32_768) as u16),
            Mode::DsrL2,
            PROTOCOL_TCP,
            bench4::ACK,
            b"0123456789",
        )
    };
    let new = once(&mut (0..MANY).map(many)) - base;
    println!("{new:>5} ns  new flow, dsr-l2, stored ({MANY} of them)");
    let among = once(&mut (0..MANY).step_by(5).map(|number| many(number * 7_919 % MANY))) - base;
    println!("{among:>5} ns  flow among {MANY}, dsr-l2");
    println!("{:.1} bytes a flow", (1_024.0 + 64.0) / router::flows::balance::FLOWS_PER_BUCKET as f64);
}

fn direct_of<'a>(rows: &'a [(&str, Vec<u8>)]) -> &'a [u8] {
    &rows[0].1
}

/// Two flows that undo each other: what goes to the instance of one comes from the client of the other. Returns the packets of both.
fn by_turns(tables: &MemoryTables) -> (Vec<u8>, Vec<u8>) {
    let there = bench4::from_client((bench4::CLIENT, 2_000), Mode::Snat, PROTOCOL_TCP, bench4::SYN, b"");
    let (_, sent) = bench4::carry(tables, &there);
    let ((source, port), (instance, instance_port)) = bench4::ends(&sent, 14);
    // The instance is a listener too, whose only instance is the first listener.
    let service = tables.services.len() as u32 - 1;
    let index = 1 + u32::from(instance.octets()[3] - 11);
    let back_service = &tables.services[service as usize];
    bench4::set(&back_service.address, bench4::words(instance));
    back_service.port.set(Endpoint::pack_port(instance_port.to_be(), PROTOCOL_TCP, false));
    back_service.mode.set(Mode::Snat as u32);
    for endpoint in tables.endpoints.iter().flat_map(|bucket| &bucket.endpoints) {
        if endpoint.target.get() == Target::Instance(index).pack() {
            endpoint.target.set(Target::Service(service).pack());
        }
    }
    let other =
        &tables.instances[bench4::instance_index(PROTOCOL_TCP, index % bench4::INSTANCES + 1) as usize];
    let group = &tables.groups[2];
    group.ring.set(0);
    for cell in tables.rings.iter().take(8).flat_map(|chunk| &chunk.0) {
        cell.set(bench4::instance_index(PROTOCOL_TCP, index % bench4::INSTANCES + 1) as u16);
    }
    bench4::set(&other.address, bench4::words(bench4::VIP));
    bench4::set(&other.source, bench4::words(bench4::CLIENT));
    other.port.set(Endpoint::pack_port(bench4::port_of(Mode::Snat).to_be(), PROTOCOL_TCP, false));
    back_service.group.set(2);
    let syn = bench4::frame((source, port), (instance, instance_port), PROTOCOL_TCP, bench4::SYN, b"");
    let (outcome, _) = bench4::carry(tables, &syn);
    assert_eq!(outcome.unwrap().reason, PacketReason::L4Placed);
    for flow in tables.flows.iter().flat_map(|bucket| &bucket.flows).filter(|flow| flow.service() == service)
    {
        flow.target.set(flow.instance() | u32::from(2_000u16.to_be()) << 16);
    }
    let there =
        bench4::from_client((bench4::CLIENT, 2_000), Mode::Snat, PROTOCOL_TCP, bench4::ACK, b"0123456789");
    let (_, mut sent) = bench4::carry(tables, &there);
    sent[..12].fill(0);
    let (_, again) = bench4::carry(tables, &sent);
    assert_eq!(again[26..38], there[26..38], "a round and its opposite give the packet back");
    (there, sent)
}

/// The median of 11 runs, in nanoseconds a round.
fn cost_of(run: impl Fn() -> Duration) -> u128 {
    let mut costs: Vec<u128> = (0..11).map(|_| run().as_nanos()).collect();
    costs.sort_unstable();
    costs[5]
}
