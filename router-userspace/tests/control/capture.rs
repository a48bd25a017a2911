//! Captures of packets that are not carried on, as the control socket and `routerctl` tell them. The packets are made up here.

use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use router::cli::Exit;
use router::control::protocol::CaptureAnswer;
use router::flows::capture::{CaptureError, Captured, Captures, Catch, Wish};
use router_common::abi::reason::PacketReason;

use crate::cli::run;
use crate::daemon::Daemon;

/// At every visit one packet comes, and one is missed.
#[derive(Default)]
pub struct FixedCaptures(Mutex<Running>);

#[derive(Default)]
struct Running {
    number: u64,
    wish: Option<Wish>,
    visits: u64,
}

impl Captures for FixedCaptures {
    fn begin(&self, wish: &Wish) -> Result<u64, CaptureError> {
        let mut running = self.0.lock().unwrap();
        if running.wish.is_some() {
            return Err(CaptureError::Busy);
        }
        *running = Running { number: running.number + 1, wish: Some(wish.clone()), visits: 0 };
        Ok(running.number)
    }

    fn visit(&self, number: u64) -> Result<Catch, CaptureError> {
        let mut running = self.0.lock().unwrap();
        let wish = running.wish.clone().filter(|_| running.number == number).ok_or(CaptureError::Ended)?;
        running.visits += 1;
        let reason = match wish {
            Wish::Dropped => PacketReason::StraddlesHead,
            Wish::Reasons(reasons) => reasons[0],
        };
        let packet = Captured {
            time: UNIX_EPOCH + Duration::from_millis(1_000_500 * running.visits),
            reason,
            dropped: reason == PacketReason::StraddlesHead,
            interface: if running.visits.is_multiple_of(2) { "eth0".to_owned() } else { "eth1".to_owned() },
            frame: vec![7; 60],
            length: 1_500,
        };
        Ok(Catch { packets: vec![packet], missed: 1 })
    }

    fn end(&self, number: u64) -> Result<Catch, CaptureError> {
        let mut running = self.0.lock().unwrap();
        running.wish.take().filter(|_| running.number == number).ok_or(CaptureError::Ended)?;
        Ok(Catch::default())
    }
}

#[test]
fn packets_are_printed_as_they_come_until_there_are_enough() {
    let daemon = Daemon::start();
    let ran = run(&daemon.socket, &["capture", "--count", "3"]);
    assert_eq!(ran.exit, Exit::Ok);
    let lines: Vec<_> = ran.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ran.out);
    assert_eq!(
        lines[0],
        "1970-01-01T00:16:40.500000Z eth1 dropped straddles_head: ethertype 0x0707, 1500 bytes"
    );
    assert_eq!(ran.err, "capturing, for 3 packets or 10 seconds\n3 packets; 2 more came than are kept\n");
    let ran = run(&daemon.socket, &["capture", "--count", "1", "--reason", "no_flow"]);
    assert!(ran.out.contains("passed up no_flow"), "the capture before has ended: {}{}", ran.out, ran.err);
    let ran = run(&daemon.socket, &["--json", "capture", "--count", "2"]);
    let answer: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((answer["packets"].as_array().unwrap().len(), &answer["missed"]), (2, &1.into()), "{answer}");
}

#[test]
fn a_file_keeps_the_reason_beside_each_packet() {
    let daemon = Daemon::start();
    let path = daemon.socket.with_file_name("dropped.pcapng");
    let ran = run(&daemon.socket, &["capture", "--count", "3", "--write", path.to_str().unwrap()]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Ok, ""), "{}", ran.err);
    let mut file = PcapNgReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    let (mut interfaces, mut packets) = (0, Vec::new());
    while let Some(block) = file.next_block() {
        match block.unwrap() {
            Block::InterfaceDescription(_) => interfaces += 1,
            Block::EnhancedPacket(packet) => {
                packets.push((
                    packet.interface_id,
                    packet.original_len,
                    packet.options[0].clone().into_owned(),
                ));
            }
            _ => {}
        }
    }
    let comment = EnhancedPacketOption::Comment(
        "dropped, straddles_head: A segment that starts inside the replaced head and ends behind it; the sender will send it again.".into(),
    );
    assert_eq!(interfaces, 2);
    assert_eq!(packets, [(0, 1_500, comment.clone()), (1, 1_500, comment.clone()), (0, 1_500, comment)]);

    let ran = run(&daemon.socket, &["capture", "--count", "1", "--write", "/nonexistent/file"]);
    assert!(ran.exit == Exit::Usage && ran.err.contains("cannot write /nonexistent/file"), "{}", ran.err);
}

#[test]
fn one_capture_runs_at_a_time_and_mistakes_are_told() {
    let daemon = Daemon::start();
    let ask = |body: &str| daemon.post("/v1/capture", body.to_owned());
    let answer: CaptureAnswer = serde_json::from_str(&ask("").body).unwrap();
    assert_eq!((answer.packets.len(), answer.missed), (1, 1));
    for (body, status, error) in [
        ("{}".to_owned(), 409, "another capture is running"),
        (format!("{{\"capture\": {}}}", answer.capture + 1), 409, "the capture has ended"),
        (
            format!("{{\"capture\": {}, \"reasons\": [\"no_flow\"]}}", answer.capture),
            400,
            "reasons cannot be changed",
        ),
        (r#"{"reasons": ["no_flows"]}"#.to_owned(), 400, "did you mean \\\"no_flow\\\"?"),
        (r#"{"wait_ms": 60000}"#.to_owned(), 400, "wait at most 2000 ms"),
    ] {
        let answer = ask(&body);
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert!(answer.body.contains(error), "{body}: {answer:?}");
    }
    let end = ask(&format!("{{\"capture\": {}, \"end\": true}}", answer.capture));
    assert_eq!(end.status, 200, "{end:?}");
}
