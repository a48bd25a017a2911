//! Any packets in any flow, over both versions of IP: carried as a plain model says, or left alone; and marks move only where they may.

use crate::bench::check::{carry_as_the_model_says, marks_moved_rightly};
use crate::bench::model::Marks;
use crate::bench::{self, case::Case, ip::Ip};
use router_common::path::memory::{Frame, UnwantedEverywhere};
use router_common::path::syn_options::erase;

pub fn check(bytes: &[u8]) {
    let case = Case::draw(bytes);
    for ip in Ip::BOTH {
        check_over(ip, &case);
    }
}

fn check_over(ip: Ip, case: &Case) {
    let table = case.flow.table(ip);
    let flow = &table.flows[0];
    for packet in &case.packets {
        for frame in [packet.odd_frame(ip, &case.flow), packet.frame(ip, &case.flow)] {
            let old = Marks::of(flow);
            carry_as_the_model_says(&table, &frame);
            marks_moved_rightly(flow, &frame, &old);
        }
        let syn = packet.odd_frame(ip, &case.flow);
        let mut erased = Frame(syn.clone());
        erase(&mut erased, &UnwantedEverywhere(Some(3)));
        assert!(erased.0 == syn || bench::checksum_errors(&erased.0)[1] == bench::checksum_errors(&syn)[1]);
    }
}
