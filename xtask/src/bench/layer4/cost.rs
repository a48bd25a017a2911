//! What a Layer-4 packet costs the kernel programs: a bench of the tests' package measures it, and this shows it.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::bench::document::{self, Part};
use crate::bench::machine::Machine;
use crate::bench::report::number;
use crate::workspace;

/// Bytes of map memory that a flow may take; Katran's takes 120.8.
const FLOW_BYTES: f64 = 121.0;

#[derive(Debug, Deserialize)]
struct Measured {
    runs: usize,
    rounds: u32,
    packets: u32,
    flow_bytes: f64,
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    case: String,
    family: String,
    /// ns.
    limit: Option<f64>,
    /// What Katran's paper or tests have, in ns.
    katran: Option<String>,
    #[serde(rename = "TC")]
    tc: Option<Cost>,
    #[serde(rename = "XDP")]
    xdp: Option<Cost>,
}

#[derive(Debug, Deserialize)]
struct Cost {
    ns: f64,
    least: f64,
    greatest: f64,
    /// Every frame was a packet of its own.
    new_packets: bool,
}

pub fn run(quick: bool, json: Option<&Path>) -> Result<()> {
    let file = workspace::target_dir().join("layer4-cost.json");
    let mut command = workspace::cargo();
    // The kernel programs are the same in every profile; the rest only prepares.
    command.args(["bench", "--profile", "dev", "--package", "router-tests", "--bench", "layer4", "--"]);
    command.arg("--json").arg(&file).args(quick.then_some("--quick"));
    workspace::succeed(&mut command)?;
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let measured: Measured = serde_json::from_str(&text).context("the bench's figures are not understood")?;
    println!("{}", table(&measured));
    if let Some(path) = json {
        fs::write(path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if quick {
        return Ok(());
    }
    document::publish(Part::Layer4Cost, &section(&measured, &Machine::look()))
}

const HEADINGS: [&str; 5] = ["", "TC", "XDP", "limit", "Katran"];

impl Measured {
    fn rows(&self) -> Vec<[String; 5]> {
        let dash = || "-".to_owned();
        let mut rows: Vec<[String; 5]> = self
            .cases
            .iter()
            .map(|case| {
                let cost = |cost: &Option<Cost>| cost.as_ref().map_or_else(dash, |cost| case.shown(cost));
                [
                    format!("{}, {}", case.case, case.family),
                    cost(&case.tc),
                    cost(&case.xdp),
                    case.limit.map_or_else(dash, number_of_ns),
                    case.katran.clone().unwrap_or_else(dash),
                ]
            })
            .collect();
        let bytes = format!("{:.1} B{}", self.flow_bytes, mark(self.flow_bytes, Some(FLOW_BYTES)));
        rows.push([
            "map memory of a flow".into(),
            bytes.clone(),
            bytes,
            format!("{FLOW_BYTES} B"),
            "120.8 B".into(),
        ]);
        rows
    }
}

impl Case {
    fn shown(&self, cost: &Cost) -> String {
        let apart = if cost.new_packets { "*" } else { "" };
        let Cost { ns, least, greatest, .. } = cost;
        let range =
            if least == greatest { String::new() } else { format!(" ({least:.0} – {greatest:.0})") };
        // The limits are for packets in a stream.
        let limit = self.limit.filter(|_| !cost.new_packets);
        format!("{ns:.0}{apart}{range}{}", mark(*ns, limit))
    }
}

fn number_of_ns(ns: f64) -> String {
    format!("{ns:.0}")
}

/// Whether what has a limit keeps to it.
fn mark(value: f64, limit: Option<f64>) -> &'static str {
    match limit {
        None => "",
        Some(limit) if value <= limit => " pass",
        Some(_) => " over",
    }
}

/// For the terminal.
fn table(measured: &Measured) -> String {
    let mut text = String::from(
        "\nns for one frame of 64 bytes (IPv6: 80), medians (least – greatest), net of restoring the frame and an empty program:\n",
    );
    for [name, tc, xdp, limit, katran] in [HEADINGS.map(str::to_owned)].into_iter().chain(measured.rows()) {
        let _ = writeln!(text, "  {name:<56} {tc:>24} {xdp:>24} {limit:>6} {katran:>8}");
    }
    text.push_str("  * each frame a packet of its own\n");
    text
}

/// For `docs/BENCHMARKS.md`.
fn section(measured: &Measured, machine: &Machine) -> String {
    let Measured { runs, rounds, packets, .. } = measured;
    let mut text = format!(
        "## Layer 4: cost of a packet

Written by `cargo xtask bench --l4` on {} (commit {}, {} × {}, {}). ns for one frame: medians (least – greatest).

| {} |
| --- |{}
",
        machine.date,
        machine.commit,
        machine.processors,
        machine.processor,
        machine.kernel,
        HEADINGS.join(" | "),
        " ---: |".repeat(4)
    );
    for row in measured.rows() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    let _ = write!(
        text,
        "
- Measured by BPF_PROG_TEST_RUN on one CPU, {runs} runs of {} frames each (new flows: half as many); a flood is one run with a frame from every address. 64 bytes
  of TCP over IPv4; over IPv6, whose header is longer, 80.
- The frame is restored in every round: otherwise the second would meet what the first has made of it. A program of the bench writes the
  frame anew, with the next source address, takes an outer header off, and goes on with the loaded program by a tail call. The same with an
  empty program instead is measured too, and subtracted. Taking the outer header off is not: in XDP, `dsr-ipip` pays for it here.
- What became of the frames is counted: all but the one in 65,536 that XDP leaves to TC (its checksum looks as if a network card were to make it)
  must have met what the row says.
- \\* At TC the kernel wraps a packet once in its life, and nothing takes that back. So each frame is a packet of its own, in
  a call of its own, {} in a run, of which the median counts. The CPU has been in user space meanwhile, and what it remembers of the program is cold: these
  figures are higher than in a stream of packets, for which the limits are.
- The flow table has its default size (`l4_max_flows`), for new flows two and a half times as much. *Among* many, each frame belongs to a flow that was not met
  for long: the cost is that of memory. The flood meets the default limit of new flows that are stored (`l4_new_flows`).
- Katran's figures were measured in the same way on another machine of this kind; they tell the magnitude.
",
        number(f64::from(*rounds)),
        number(f64::from(*packets)),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_its_limit_is_said_to_be() {
        let text = r#"{"runs": 11, "rounds": 2000000, "packets": 100000, "flow_bytes": 108.8, "cases": [
            {"case": "flow hit, dsr-ipip", "family": "IPv4", "limit": 100, "katran": "126–134",
             "TC": {"ns": 102, "least": 101, "greatest": 103, "new_packets": true},
             "XDP": {"ns": 61, "least": 60, "greatest": 62, "new_packets": false}},
            {"case": "flow hit, snat", "family": "IPv4", "limit": 130, "katran": null,
             "TC": {"ns": 132, "least": 130, "greatest": 133, "new_packets": false}},
            {"case": "SYN flood", "family": "IPv4", "limit": null, "katran": null,
             "XDP": {"ns": 99, "least": 99, "greatest": 99, "new_packets": false}}]}"#;
        let measured: Measured = serde_json::from_str(text).unwrap();
        for shown in [table(&measured), section(&measured, &Machine::look())] {
            for part in [
                "102* (101 – 103)",
                "132 (130 – 133) over",
                "61 (60 – 62) pass",
                "99",
                "108.8 B pass",
                "126–134",
            ] {
                assert!(shown.contains(part), "{part} is missing in:\n{shown}");
            }
        }
    }
}
