//! What people read of floods.

use std::fmt::Write;

use super::super::machine::Machine;
use super::super::report::number;
use super::sender::Kind;
use super::{Outcome, PACKETS, Turn};

/// Of their rate without a flood, clients are to keep so much.
const KEPT: f64 = 0.75;
/// A forged acknowledgement may cost so much, ns.
const CHALLENGE: f64 = 1_000.0;

fn median(values: impl Iterator<Item = f64>) -> f64 {
    super::super::figures::median(values.collect()).unwrap_or(0.0)
}

/// Rates beside this flood.
fn turns(outcome: &Outcome, flood: Option<Kind>) -> impl Iterator<Item = &Turn> {
    outcome.turns.iter().filter(move |turn| turn.flood == flood)
}

/// What clients kept of the rate that they had without a flood in the same round.
fn kept(outcome: &Outcome, flood: Option<Kind>) -> f64 {
    let calm =
        |round| turns(outcome, None).find(|turn| turn.round == round).map_or(f64::NAN, |turn| turn.rate);
    median(turns(outcome, flood).map(|turn| turn.rate / calm(turn.round)))
}

pub fn table(outcome: &Outcome) -> String {
    let mut text = String::from(
        "| beside | packets/s | connections/s | of those without a flood | kernel programs, ns a packet | routerd, MB |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for flood in [None, Some(Kind::Syn), Some(Kind::Ack)] {
        let name = flood.map_or("nothing", Kind::name);
        let packets = match flood {
            None => "–".to_owned(),
            Some(_) => number(median(turns(outcome, flood).map(|turn| turn.packet_rate))),
        };
        let rate = number(median(turns(outcome, flood).map(|turn| turn.rate)));
        let cost = outcome.costs.iter().find(|(kind, _)| Some(*kind) == flood);
        let cost = cost.map_or("–".to_owned(), |(_, cost)| {
            format!("{} (of which answering {})", number(cost.all), number(cost.answering))
        });
        let resident = turns(outcome, flood).map(|turn| turn.resident as f64 / 1e6);
        let (least, most) =
            resident.fold((f64::MAX, 0.0_f64), |(least, most), one| (least.min(one), most.max(one)));
        let kept = kept(outcome, flood);
        let _ = writeln!(
            text,
            "| {name} | {packets} | {rate} | {} | {cost} | {least:.1} – {most:.1} |",
            number(kept)
        );
    }
    for kind in [Kind::Syn, Kind::Ack] {
        let kept = kept(outcome, Some(kind));
        let _ = writeln!(
            text,
            "\n- Beside {}: {} of the rate, {KEPT} wanted: {}.",
            kind.name(),
            number(kept),
            judged(kept >= KEPT)
        );
    }
    if let Some((_, cost)) = outcome.costs.iter().find(|(kind, _)| *kind == Kind::Ack) {
        let _ = writeln!(
            text,
            "- A forged acknowledgement costs {} ns, {} allowed: {}.",
            number(cost.all),
            number(CHALLENGE),
            judged(cost.all <= CHALLENGE)
        );
    }
    text
}

fn judged(met: bool) -> &'static str {
    if met { "met" } else { "not met" }
}

pub fn section(outcome: &Outcome, rounds: usize, machine: &Machine) -> String {
    format!(
        "## Floods\n\nWritten by `cargo xtask bench --flood` on {} (commit {}, {} × {}, Linux {}). wrk makes short connections to a listener with `offload = \"bind\"`, 64 at a time, while {} forged \
         segments or more come from one processor as fast as it sends them, each from another address; {rounds} rounds, medians. Client, flood, gateway and instance share the \
         processors, so part of what clients lose is what sending the flood costs. What the kernel programs spend is measured by the kernel's own clock, without clients.\n\n{}",
        machine.date,
        machine.commit,
        machine.processors,
        machine.processor,
        machine.kernel,
        number(f64::from(PACKETS)),
        table(outcome)
    )
}
