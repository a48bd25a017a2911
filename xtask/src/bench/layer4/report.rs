//! What people read of the transfers.

use std::fmt::Write;

use super::contender::{Contender, Hook};
use super::iperf::{Load, Protocol, UDP_LENGTH, UDP_RATE};
use super::throughput::{Extent, Turn, version};
use crate::bench::figures::median;
use crate::bench::machine::Machine;
use crate::bench::report::number;
use crate::topology::Family;

/// Of plain routing's rate, at TC.
const TARGET: f64 = 0.95;

/// One contender under one load.
#[derive(Debug)]
struct Row {
    contender: Contender,
    gigabits: f64,
    least: f64,
    greatest: f64,
    packets: f64,
    lost: f64,
    /// Within a round, the median over the rounds.
    to_routing: f64,
    to_nftables: f64,
    /// CPU seconds of the machine for each gigabyte.
    cpu: f64,
}

fn rows(turns: &[Turn], load: Load, family: Family) -> Vec<Row> {
    Contender::all().into_iter().filter_map(|contender| row(turns, load, family, contender)).collect()
}

fn row(turns: &[Turn], load: Load, family: Family, contender: Contender) -> Option<Row> {
    let of = |contender: Contender| {
        turns.iter().filter(move |turn| (turn.load, turn.family, turn.contender) == (load, family, contender))
    };
    let over = |value: fn(&Turn) -> f64| median(of(contender).map(value).collect());
    let gigabits = |turn: &Turn| turn.moved.bits_per_second / 1e9;
    let ratio = |other: Contender| {
        let in_round = |turn: &Turn| {
            let other = of(other).find(|other| other.round == turn.round)?;
            Some(gigabits(turn) / gigabits(other))
        };
        median(of(contender).filter_map(in_round).collect())
    };
    Some(Row {
        contender,
        gigabits: over(gigabits)?,
        least: of(contender).map(gigabits).fold(f64::INFINITY, f64::min),
        greatest: of(contender).map(gigabits).fold(0.0, f64::max),
        packets: over(|turn| turn.moved.packets_per_second)?,
        lost: over(|turn| turn.moved.lost)?,
        to_routing: ratio(Contender::Routing)?,
        to_nftables: ratio(Contender::Nftables)?,
        cpu: over(|turn| turn.cpu / (turn.moved.bits_per_second / 8e9 * turn.seconds))?,
    })
}

impl Row {
    /// Whether the router keeps up with plain routing.
    fn verdict(&self) -> &'static str {
        match self.contender {
            Contender::Router(Hook::Tc, _) if self.to_routing >= TARGET => "pass",
            Contender::Router(Hook::Tc, _) => "short",
            _ => "",
        }
    }

    fn cells(&self, protocol: Protocol) -> Vec<String> {
        let ratio = |value: f64| format!("{value:.2}");
        let mut cells = vec![self.contender.name(), number(self.gigabits)];
        cells.push(format!("{} – {}", number(self.least), number(self.greatest)));
        if protocol == Protocol::Udp {
            cells.extend([number(self.packets), format!("{:.2} %", self.lost * 100.0)]);
        }
        cells.extend([
            ratio(self.to_routing),
            ratio(self.to_nftables),
            number(self.cpu),
            self.verdict().into(),
        ]);
        cells
    }
}

fn headings(protocol: Protocol) -> Vec<&'static str> {
    let mut headings = vec!["", "Gb/s", "least – greatest"];
    if protocol == Protocol::Udp {
        headings.extend(["packets/s", "lost"]);
    }
    headings.extend(["× routing", "× nftables", "machine CPU, s/GB", ""]);
    headings
}

fn title(load: Load, family: Family) -> String {
    format!("{}, {}", load.name(), if family == Family::V4 { "IPv4" } else { "IPv6" })
}

fn loads() -> impl Iterator<Item = (Load, Family)> {
    Load::ALL.into_iter().flat_map(|load| Family::BOTH.map(|family| (load, family)))
}

/// For the terminal.
pub fn table(turns: &[Turn]) -> String {
    let mut text = String::new();
    for (load, family) in loads() {
        let rows = rows(turns, load, family);
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{}", title(load, family));
        let headings = headings(load.protocol).into_iter().map(str::to_owned).collect();
        for cells in std::iter::once(headings).chain(rows.iter().map(|row| row.cells(load.protocol))) {
            let cells: Vec<String> = cells;
            let _ = write!(text, "  {:<28}", cells[0]);
            for cell in &cells[1..] {
                let _ = write!(text, " {cell:>17}");
            }
            text.push('\n');
        }
    }
    text
}

/// For `docs/BENCHMARKS.md`.
pub fn section(turns: &[Turn], extent: Extent, machine: &Machine) -> String {
    let mut text = format!(
        "## Layer 4: throughput

Written by `cargo xtask bench --l4-throughput` on {} (commit {}, {} × {}, {}, {}). The target at TC is {TARGET} × plain routing.
",
        machine.date,
        machine.commit,
        machine.processors,
        machine.processor,
        machine.kernel,
        version(),
    );
    for (load, family) in loads() {
        let rows = rows(turns, load, family);
        if rows.is_empty() {
            continue;
        }
        let headings = headings(load.protocol);
        let _ = writeln!(text, "\n### {}\n", title(load, family));
        let _ =
            writeln!(text, "| {} |\n| --- |{}", headings.join(" | "), " ---: |".repeat(headings.len() - 1));
        for row in &rows {
            let _ = writeln!(text, "| {} |", row.cells(load.protocol).join(" | "));
        }
    }
    let Extent { rounds, seconds, .. } = extent;
    let rate = UDP_RATE / 1_000_000;
    let _ = write!(
        text,
        "
- The lab as above: client, gateway and one instance, joined by veth pairs and a bridge; iperf3 from the client to the instance. {rounds} rounds in
  each of which all take turns of {seconds} s (UDP: {} s), beginning with others each time. Ratios are formed within a round; the tables show medians over the rounds.
- UDP is sent at {rate} Mb/s in datagrams of {UDP_LENGTH} bytes, which plain routing carries while nothing else is busy; what counts is what arrives, and what it
  costs the machine. Client, gateway and instance share its processors: where ranges are wide, a ratio a few hundredths below the target is within them.
- A turn of the router counts only if its own counters say that it has carried the packets. Its kernel programs are there only for its own turns, and so is connection tracking.
- With `dsr-l2` and `dsr-ipip` the instance's answers (acknowledgements) come back through the gateway too, as plain routing. The instance takes outer headers off by a kernel
  program of the bench, as a tunnel device would.
- In XDP, TCP is slower in this lab, and only here: a veth pair with XDP at one end gives up segmentation offload, so TCP travels in packets of 1,500 bytes
  instead of 64 kB. That is why `attach = \"auto\"` chooses TC on veth. What XDP saves shows in the cost of a packet, above, and on real network cards.
",
        Load { protocol: Protocol::Udp, flows: 1 }.seconds(seconds)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::super::contender::Mode;
    use super::super::iperf::Moved;
    use super::*;

    fn turn(round: usize, contender: Contender, gigabits: f64) -> Turn {
        let moved = Moved { bits_per_second: gigabits * 1e9, packets_per_second: 80_000.0, lost: 0.015 };
        Turn { round, family: Family::V6, load: Load::ALL[2], contender, moved, cpu: 1.0, seconds: 1.0 }
    }

    #[test]
    fn both_reports_show_ratios_of_the_same_round_and_the_verdict() {
        let (snat, wrapped) =
            (Contender::Router(Hook::Tc, Mode::Snat), Contender::Router(Hook::Tc, Mode::DsrIpip));
        let turns: Vec<Turn> = (0..3)
            .flat_map(|round| {
                // In each round the machine is as fast as it is.
                let speed = [1.0, 3.0, 2.0][round];
                [(Contender::Routing, 1.0), (Contender::Nftables, 0.5), (snat, 0.96), (wrapped, 0.9)]
                    .map(|(contender, share)| turn(round, contender, speed * share))
            })
            .collect();
        let extent = Extent { rounds: 3, seconds: 2, quick: false };
        for text in [table(&turns), section(&turns, extent, &Machine::look())] {
            for part in ["UDP ×1, IPv6", "1.92", "0.96", "80 000", "1.50 %", "pass", "short", "0.50"] {
                assert!(text.contains(part), "{part} is missing in:\n{text}");
            }
            assert!(!text.contains("TCP ×1"), "what was not measured is left out:\n{text}");
        }
    }
}
