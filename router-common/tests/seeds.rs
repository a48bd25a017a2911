//! Replays the seeds of the fuzz target for packets; `tests/suite/parity` shows the same ones to the kernel programs.

mod bench;
#[path = "../../fuzz/bodies/packet_path.rs"]
mod packet_path;
#[path = "../../fuzz/bodies/seeds.rs"]
mod seeds;

#[test]
fn packets() {
    seeds::replay("packet_path", packet_path::check);
}
