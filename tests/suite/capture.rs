//! `routerctl capture`: packets that are not carried on, with the reason beside each, in a file that tcpdump reads.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use etherparse::PacketBuilder;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use support::lab::{Family, Host};
use support::link::{Link, PacketSocket};
use support::{Router, TestLab, router, xdp};

const SILENT: u16 = 8080;
const NOBODY: u16 = 9;

/// A Layer-4 listener whose only instance takes no connections, so that what comes to it is dropped.
fn start(lab: &TestLab) -> Router {
    start_with(lab, "")
}

/// The same with further lines of `[datapath]`.
fn start_with(lab: &TestLab, datapath: &str) -> Router {
    let address = SocketAddr::new(Family::V4.vip(), SILENT);
    let instance = SocketAddr::new(Family::V4.address(Host::Backend(1)), 80);
    let rest = format!(
        "[[listener]]\nname = \"stream\"\naddress = \"{address}\"\nprotocol = \"tcp\"\n\n\
         [[pool]]\nname = \"nobody\"\non_unavailable = \"silent\"\n\n\
         [[pool.instance]]\nname = \"resting\"\naddress = \"{instance}\"\nstate = \"maintenance\"\n\n\
         [default_rule]\npools = [\"nobody\"]\n"
    );
    Router::start(lab, &router::configuration(lab, "", datapath, &rest))
}

/// Sends SYNs from these ports while a capture runs, and waits for it to end.
fn capture(lab: &TestLab, router: &Router, path: &Path, arguments: &[&str], send: &[(u16, u16)]) {
    let mut command = router.routerctl();
    command.args(["capture", "--seconds", "60", "--write"]).arg(path).args(arguments);
    let mut capture = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(capture.stderr.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().starts_with("capturing"));
    self::send(lab, send);
    assert!(capture.wait().unwrap().success());
}

/// Source ports and comments of the packets of a file.
fn read(path: &Path) -> Vec<(u16, String)> {
    let mut file = PcapNgReader::new(File::open(path).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = file.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            assert_eq!((packet.data.len(), packet.original_len), (256, 454), "only the beginning is kept");
            let [EnhancedPacketOption::Comment(comment)] = &packet.options[..] else {
                panic!("no comment: {packet:?}")
            };
            packets.push((u16::from_be_bytes([packet.data[34], packet.data[35]]), comment.to_string()));
        }
    }
    packets
}

#[test]
#[ignore = "needs root"]
fn dropped_packets_are_kept_with_their_reasons_and_others_only_when_asked_for() {
    let lab = TestLab::with_backends(1);
    let router = start(&lab);
    let path = lab.host_dir(Host::Gateway).join("captured.pcapng");
    let send: Vec<_> = (1..=5).map(|number| (number, SILENT)).collect();
    // Packets to nobody are passed up, and no drop.
    let both: Vec<_> = [(100, NOBODY)].into_iter().chain(send.iter().copied()).collect();

    capture(&lab, &router, &path, &["--count", "5"], &both);
    let dropped = "dropped, l4_unavailable: The first packet of a flow for which there is no instance.";
    let expected: Vec<_> = (1..=5).map(|number| (number, dropped.to_owned())).collect();
    assert_eq!(read(&path), expected);

    let output = Command::new("tcpdump").args(["-nr"]).arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 5, "{output:?}");
    assert!(text.lines().all(|line| line.contains("> 10.77.1.10.8080: Flags [S]")), "{text}");

    capture(
        &lab,
        &router,
        &path,
        &["--reason", "no_flow", "--count", "2"],
        &[(7, SILENT), (8, NOBODY), (9, NOBODY)],
    );
    // What goes to a Layer-4 listener passes the program for handed-off connections first.
    let passed = "passed up, no_flow: No flow has this tuple; the stack decides.";
    assert_eq!(read(&path), [(7, passed.to_owned()), (8, passed.to_owned())]);
}

#[test]
#[ignore = "needs root"]
fn what_xdp_drops_is_kept_as_well() {
    let lab = TestLab::with_backends(1);
    xdp::open(&lab);
    let router = start_with(&lab, "attach = \"xdp\"");
    let path = lab.host_dir(Host::Gateway).join("captured.pcapng");
    let send: Vec<_> = (1..=5).map(|number| (number, SILENT)).collect();
    capture(&lab, &router, &path, &["--count", "5"], &send);
    let dropped = "dropped, l4_unavailable: The first packet of a flow for which there is no instance.";
    let expected: Vec<_> = (1..=5).map(|number| (number, dropped.to_owned())).collect();
    assert_eq!(read(&path), expected);
    let metrics = router.metrics();
    assert!(metrics.contains("router_xdp_frames_total{reason=\"dropped\"} 5\n"), "{metrics}");
}

#[test]
#[ignore = "needs root"]
fn a_flood_is_kept_within_bounds_and_what_is_beyond_is_counted() {
    const FLOOD: u16 = 3_000;
    let lab = TestLab::with_backends(1);
    let router = start(&lab);
    let begun = router.post("/v1/capture", "{}");
    let flood: Vec<_> = (1..=FLOOD).map(|port| (port, SILENT)).collect();
    let counted = || {
        router.metrics().lines().find_map(|line| {
            line.strip_prefix("router_packets_total{reason=\"l4_unavailable\"} ")?.parse::<u64>().ok()
        })
    };
    send(&lab, &flood);
    let number = &begun["capture"];
    let catch = router.post("/v1/capture", &format!("{{\"capture\": {number}, \"end\": true}}"));
    let kept = catch["packets"].as_array().unwrap().len() as u64;
    assert_eq!(counted(), Some(FLOOD.into()));
    assert!((100..=200).contains(&kept), "{kept} packets were kept");
    assert_eq!(catch["missed"], u64::from(FLOOD) - kept, "{kept} were kept");
    let next = router.post("/v1/capture", &format!("{{\"capture\": {number}}}"));
    assert!(next["error"].as_str().unwrap().starts_with("the capture has ended"), "{next}");
}

/// Sends SYNs from and to these ports.
fn send(lab: &TestLab, ports: &[(u16, u16)]) {
    let (wire, own) = lab
        .inside(Host::Client, || (PacketSocket::on("eth0").unwrap(), Link::address("eth0").unwrap()))
        .unwrap();
    let gateway = lab.inside(Host::Gateway, || Link::address("client").unwrap()).unwrap();
    for (source, destination) in ports {
        let builder = PacketBuilder::ethernet2(own, gateway)
            .ipv4([10, 77, 1, 2], [10, 77, 1, 10], 64)
            .tcp(*source, *destination, 1, 1_000)
            .syn();
        let mut frame = Vec::new();
        builder.write(&mut frame, &[7; 400]).unwrap();
        wire.send(&frame).unwrap();
    }
}
