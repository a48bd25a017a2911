//! Replays the seeds of the fuzz targets for packets and errors; `tests/suite/parity` shows the same ones to the kernel programs.

mod bench;
#[path = "../../fuzz/bodies/icmp_error.rs"]
mod icmp_error;
#[path = "../../fuzz/bodies/packet_path.rs"]
mod packet_path;
#[path = "../../fuzz/bodies/seeds.rs"]
mod seeds;

#[test]
fn packets() {
    seeds::replay("packet_path", packet_path::check);
}

#[test]
fn errors() {
    seeds::replay("icmp_error", icmp_error::check);
}
