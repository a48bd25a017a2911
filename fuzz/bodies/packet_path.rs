//! Any packets in any flow: carried as a plain model says, or left alone; and marks move only where they may.

use crate::bench::check::{carry_as_the_model_says, marks_moved_rightly};
use crate::bench::model::Marks;
use crate::bench::{self, case::Case};
use router_common::path::memory::Frame;
use router_common::path::syn_options::erase;

pub fn check(bytes: &[u8]) {
    let case = Case::draw(bytes);
    let table = case.flow.table();
    let flow = &table.flows[0];
    for packet in &case.packets {
        for frame in [packet.odd_frame(&case.flow), packet.frame(&case.flow)] {
            let old = Marks::of(flow);
            carry_as_the_model_says(&table, &frame);
            marks_moved_rightly(flow, &frame, &old);
        }
        let syn = packet.odd_frame(&case.flow);
        let mut erased = Frame(syn.clone());
        erase(&mut erased, |_| Some(3));
        assert!(erased.0 == syn || bench::checksum_errors(&erased.0)[1] == bench::checksum_errors(&syn)[1]);
    }
}
