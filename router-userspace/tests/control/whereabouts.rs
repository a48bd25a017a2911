//! Where packets would go, as the control socket and `routerctl` tell it. What the kernel programs say is made up here.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use data_encoding::BASE64;
use etherparse::PacketBuilder;
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
use router::cli::Exit;
use router::control::protocol::{PacketVerdict, WhereAnswer};
use router::flows::trace::{Entrance, Expected, Step, Trace, TraceError, Traces, Word};
use router::flows::xdp::Hook;
use router_common::abi::reason::PacketReason;
use router_common::abi::trace::SaidVerdict;

use crate::cli::run;
use crate::daemon::{Answer, Daemon};

/// Sends everything to port 80 to an instance of the test's daemon, with other sequence numbers; drops what goes elsewhere.
pub struct FixedTracer;

const SEQUENCE_CHANGE: u32 = 5;

impl Traces for FixedTracer {
    fn trace(&self, frame: &[u8], interface: u32) -> Result<Trace, TraceError> {
        if frame.len() < 54 {
            return Err(TraceError::Length(frame.len(), 34));
        }
        let said = |verdict, reason| Step {
            program: "router_layer4",
            word: Some(Word { verdict, reason, interface, next_hop: 0 }),
            left: None,
        };
        let first = Step { program: "router_ingress", word: None, left: None };
        let mut frame = frame.to_vec();
        let is_web = frame[36..38] == 80_u16.to_be_bytes();
        if !is_web {
            let steps = vec![first, said(SaidVerdict::Drop, PacketReason::L4Denied)];
            return Ok(Trace { steps, frame, hook: Hook::Tc, next_hop: None });
        }
        frame[30..34].copy_from_slice(&[10, 0, 2, 21]);
        let sequence = u32::from_be_bytes(frame[38..42].try_into().unwrap());
        frame[38..42].copy_from_slice(&sequence.wrapping_add(SEQUENCE_CHANGE).to_be_bytes());
        let steps = vec![first, said(SaidVerdict::Redirect, PacketReason::Forwarded)];
        Ok(Trace { steps, frame, hook: Hook::Tc, next_hop: Some([10, 0, 2, 21].into()) })
    }

    fn entrances(&self) -> Vec<Entrance> {
        vec![Entrance { name: "lo".to_owned(), index: 1, mac: Some([2, 0, 0, 0, 0, 9]) }]
    }

    fn entrance_from(&self, source: IpAddr) -> Option<Entrance> {
        let is_known = source.to_string().starts_with("10.");
        self.entrances().pop().filter(|_| is_known)
    }

    fn expected(&self, source: SocketAddr, _: SocketAddr) -> Result<Option<Expected>, TraceError> {
        let in_flow = source.port() == 40_000;
        Ok(in_flow.then_some(Expected { sequence: 700, acknowledgement: 900 }))
    }
}

fn frame(port: u16, payload: usize) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [2, 0, 0, 0, 0, 9])
        .ipv4([10, 1, 2, 3], [10, 0, 1, 1], 64)
        .tcp(50_000, port, 7, 1_000)
        .syn();
    let mut frame = Vec::new();
    builder.write(&mut frame, &vec![0; payload]).unwrap();
    frame
}

fn ask(daemon: &Daemon, packets: &str) -> Answer {
    daemon.post("/v1/where", format!(r#"{{"packets": [{packets}]}}"#))
}

#[test]
fn a_described_packet_gets_the_numbers_of_its_flow_and_its_way_is_told() {
    let daemon = Daemon::start();
    let answer = ask(
        &daemon,
        r#"{"kind": "described", "protocol": "tcp", "source": "10.1.2.3:40000", "destination": "10.0.1.1:80"}"#,
    );
    let WhereAnswer { packets } = serde_json::from_str(&answer.body).unwrap();
    let fate = packets[0].fate.as_ref().unwrap();
    assert_eq!((packets[0].packet.flags.as_deref(), packets[0].packet.sequence), (Some("ack"), Some(700)));
    assert_eq!((fate.verdict, fate.reason.as_str()), (PacketVerdict::Forward, "forwarded"));
    assert_eq!((fate.listener.as_deref(), fate.instance.as_deref()), (Some("web"), Some("gis1")));
    let leaves = fate.leaves.as_ref().unwrap();
    assert_eq!(leaves.sequence_change, Some(SEQUENCE_CHANGE));
    assert_eq!(leaves.packet.destination_end(), "10.0.2.21:80".parse().ok());

    let ran = run(&daemon.socket, &["where", "tcp", "10.1.2.3:40001", "10.0.1.1:80", "--flags", "fin|ack"]);
    assert_eq!(
        ran.out,
        "\
tcp 10.1.2.3:40001 → 10.0.1.1:80 fin|ack, 54 bytes, arriving by lo, to listener web
  router_ingress: not one of its packets
  router_layer4: forwarded
forwarded: forwarded: Translated and sent to the other side.
  instance gis1
  leaves by lo to 10.0.2.21 (02:00:00:00:00:09)
  as tcp 10.1.2.3:40001 → 10.0.2.21:80 fin|ack, 54 bytes
  sequence +5
"
    );
    assert_eq!(ran.exit, Exit::Ok);
    let ran = run(&daemon.socket, &["where", "tcp", "10.1.2.3:40001", "10.0.1.1:81"]);
    assert!(ran.out.contains("dropped: l4_denied: The first packet of a flow"), "{}", ran.out);
    assert_eq!(ran.exit, Exit::Negative);
}

#[test]
fn what_cannot_be_asked_is_told_with_what_to_do() {
    let daemon = Daemon::start();
    let described = |rest: &str| {
        format!(
            r#"{{"kind": "described", "protocol": "tcp", "source": "10.1.2.3:1", "destination": "10.0.1.1:80"{rest}}}"#
        )
    };
    for (packet, error) in [
        (described(r#", "flags": "syn|what""#), "is no TCP flag"),
        (described(r#", "interface": "eth7""#), "the kernel programs see no packet of interface"),
        (described(r#", "colour": "red""#), "unknown field"),
        (
            described("").replace("10.1.2.3", "192.0.2.1"),
            "by which interface packets from 192.0.2.1 would arrive",
        ),
        (described("").replace("10.1.2.3:1", "[fd77::1]:1"), "by which interface"),
        (
            described(r#", "interface": "lo""#).replace("10.1.2.3:1", "[fd77::1]:1"),
            "not of one version of IP",
        ),
        (described("").replace("tcp", "sctp"), "cannot be described"),
        (described(r#", "sequence": 1"#).replace("tcp", "udp"), "UDP has no flags and no sequence numbers"),
        (described(r#", "payload_bytes": 65535"#), "there is no such packet"),
        (r#"{"kind": "captured", "frame": "?", "interface": "lo"}"#.to_owned(), "is no base64"),
        (
            r#"{"kind": "captured", "frame": "AAAA", "length": 2, "interface": "lo"}"#.to_owned(),
            "3 bytes of a frame of 2 bytes",
        ),
        (
            r#"{"kind": "captured", "frame": "AAAA", "length": 4000000000, "interface": "lo"}"#.to_owned(),
            "of 4000000000 bytes",
        ),
        (
            r#"{"kind": "captured", "frame": "AAAA"}"#.to_owned(),
            "by which interface this packet would arrive",
        ),
    ] {
        let answer = ask(&daemon, &packet);
        assert_eq!(answer.status, 400, "{packet}: {answer:?}");
        assert!(answer.body.contains(error), "{packet}: {answer:?}");
    }
    let many = vec![described(""); 257].join(",");
    let answer = ask(&daemon, &many);
    assert!(answer.status == 400 && answer.body.contains("257 packets at once"), "{answer:?}");
    let short =
        format!(r#"{{"kind": "captured", "frame": "{}", "interface": "lo"}}"#, BASE64.encode(&[0; 20]));
    let answer = ask(&daemon, &[short, described("")].join(","));
    let WhereAnswer { packets } = serde_json::from_str(&answer.body).unwrap();
    assert!(packets[0].error.as_deref().unwrap().contains("20 bytes cannot be asked about"), "{answer:?}");
    assert!(packets[1].fate.is_some(), "the others are answered: {answer:?}");
}

/// A capture in the daemon's directory.
fn pcap(daemon: &Daemon, name: &str, datalink: DataLink, frames: &[Vec<u8>]) -> PathBuf {
    let path = daemon.socket.with_file_name(name);
    let header = PcapHeader { datalink, ..PcapHeader::default() };
    let mut file = PcapWriter::with_header(std::fs::File::create(&path).unwrap(), header).unwrap();
    for frame in frames {
        // Only the beginning of long frames was captured.
        let data = &frame[..frame.len().min(96)];
        file.write_packet(&PcapPacket::new(Duration::ZERO, frame.len() as u32, data)).unwrap();
    }
    path
}

fn where_pcap(daemon: &Daemon, path: &Path, more: &[&str]) -> crate::cli::Ran {
    run(&daemon.socket, &[&["where", "--pcap", path.to_str().unwrap()], more].concat())
}

#[test]
fn every_packet_of_a_capture_is_answered_in_a_line() {
    let daemon = Daemon::start();
    // More than one request takes.
    let frames: Vec<_> = (0..600).map(|number| frame(if number == 300 { 81 } else { 80 }, 1_400)).collect();
    let path = pcap(&daemon, "many.pcap", DataLink::ETHERNET, &frames);
    let ran = where_pcap(&daemon, &path, &[]);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Ok, ""));
    assert_eq!(ran.out.lines().count(), 601, "{}", ran.out);
    assert!(
        ran.out.lines().nth(1).unwrap().contains("1454 bytes"),
        "the length is that of the whole frame: {}",
        ran.out
    );
    let dropped: Vec<_> = ran.out.lines().filter(|line| line.contains("dropped")).collect();
    assert!(dropped.len() == 1 && dropped[0].trim_start().starts_with("301 "), "{dropped:?}");

    let ran = where_pcap(&daemon, &path, &["--limit", "3"]);
    assert!(ran.out.ends_with("the first 3 packets; --limit asks about more\n"), "{}", ran.out);
    let ran = run(&daemon.socket, &["--json", "where", "--pcap", path.to_str().unwrap()]);
    assert_eq!(serde_json::from_str::<WhereAnswer>(&ran.out).unwrap().packets.len(), 600);
}

#[test]
fn pcapng_is_read_too() {
    let daemon = Daemon::start();
    let path = daemon.socket.with_file_name("one.pcapng");
    let mut file = PcapNgWriter::new(std::fs::File::create(&path).unwrap()).unwrap();
    let interface =
        InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0xffff, options: vec![] };
    file.write_pcapng_block(interface).unwrap();
    let data = frame(80, 0);
    file.write_pcapng_block(EnhancedPacketBlock {
        interface_id: 0,
        timestamp: Duration::ZERO,
        original_len: data.len() as u32,
        data: data.into(),
        options: vec![],
    })
    .unwrap();
    let ran = where_pcap(&daemon, &path, &["--interface", "lo"]);
    assert!(ran.out.lines().count() == 2 && ran.out.contains("gis1"), "{}{}", ran.out, ran.err);
}

#[test]
fn captures_that_cannot_be_read_are_told_from_one_another() {
    let daemon = Daemon::start();
    let cooked = pcap(&daemon, "any.pcap", DataLink::LINUX_SLL, &[frame(80, 0)]);
    let text = daemon.socket.with_file_name("text.pcap");
    std::fs::write(&text, "10.1.2.3 > 10.0.1.1: syn, and more that is no capture at all").unwrap();
    let cut = pcap(&daemon, "cut.pcap", DataLink::ETHERNET, &[frame(80, 0), frame(80, 0)]);
    let whole = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &whole[..whole.len() - 5]).unwrap();
    for (path, error) in [
        (cooked, "holds no Ethernet frames but LINUX_SLL; capture on an Ethernet interface"),
        (text, "is no pcap or pcapng file"),
        (cut, "is damaged behind 1 packets"),
        (PathBuf::from("/nonexistent.pcap"), "cannot read /nonexistent.pcap"),
    ] {
        let ran = where_pcap(&daemon, &path, &[]);
        assert_eq!(ran.exit, Exit::Usage, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains(error), "{}", ran.err);
    }
}
