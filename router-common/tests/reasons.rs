//! Holds `docs/OPERATIONS.md` to the reasons that packets are counted by.

use std::collections::BTreeMap;

use router_common::abi::reason::PacketReason;

const OPERATIONS: &str = include_str!("../../docs/OPERATIONS.md");

#[test]
fn operators_are_told_of_every_reason_what_it_says() {
    let section = OPERATIONS.split("\n## ").find(|section| section.starts_with("Reasons of packets\n"));
    let rows = section.expect("such a section").lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        Some((cells.next()?.trim_end_matches('`'), cells.next()?))
    });
    let documented: BTreeMap<&str, &str> = rows.collect();
    let counted: BTreeMap<&str, &str> =
        PacketReason::ALL.iter().map(|reason| (reason.name(), reason.description().trim())).collect();
    assert_eq!(documented, counted);
}
