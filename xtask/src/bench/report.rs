//! What people read: the table on the terminal, and `docs/BENCHMARKS.md`.

use std::fmt::Write;

use super::contender::Contender;
use super::figures::Figure;
use super::machine::Machine;
use super::reloads::Reloaded;
use super::targets::Verdict;
use super::workload::Workload;
use super::wrk::Counted;

/// How the run was made.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    pub rounds: usize,
    pub quick: bool,
    /// Seconds of one turn.
    pub transfer_seconds: f64,
    pub request_seconds: f64,
}

/// A number with as many digits as mean something, and spaces between thousands.
pub fn number(value: f64) -> String {
    if value >= 999.5 {
        let digits = format!("{value:.0}");
        let groups: Vec<&str> =
            digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
        return groups.join(" ");
    }
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

const HEADINGS: [&str; 7] =
    ["", "median", "least – greatest", "× routing", "× HAProxy http", "gateway CPU", "machine CPU"];

fn cells(figure: &Figure) -> [String; 7] {
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    [
        figure.contender.name().to_owned(),
        number(figure.rate),
        format!("{} – {}", number(figure.least), number(figure.greatest)),
        ratio(figure.to_routing),
        ratio(figure.to_haproxy_http),
        number(figure.gateway_cost),
        number(figure.machine_cost),
    ]
}

/// For the terminal.
pub fn table(figures: &[Figure], verdicts: &[Verdict], reloaded: &[Reloaded]) -> String {
    let mut text = String::new();
    for workload in Workload::ALL {
        let rows: Vec<_> = figures.iter().filter(|figure| figure.workload == workload).collect();
        if rows.is_empty() {
            continue;
        }
        let (unit, cost) = (workload.unit(), workload.cost_unit());
        let _ = writeln!(text, "\n{}: {unit}; CPU in {cost}", workload.name());
        let mut line = |cells: [String; 7]| {
            let [name, median, range, routing, haproxy, gateway, machine] = cells;
            let _ = writeln!(
                text,
                "  {name:<16} {median:>8} {range:>19} {routing:>10} {haproxy:>15} {gateway:>12} {machine:>12}"
            );
        };
        line(HEADINGS.map(str::to_owned));
        rows.iter().for_each(|figure| line(cells(figure)));
    }
    text.push('\n');
    for verdict in verdicts {
        let _ = writeln!(text, "{:<12} {:>6}  {}", verdict.word(), verdict.shown(), verdict.target);
    }
    for Reloaded { contender, reloads, seen } in reloaded {
        let (requests, failed) = (seen.requests, seen.failed());
        let _ = writeln!(text, "{contender}: {reloads} reloads, {requests} requests, {failed} failed");
    }
    text
}

/// For `docs/BENCHMARKS.md`, which lies beside `benchmarks.svg`.
pub fn document(
    machine: &Machine,
    course: Course,
    figures: &[Figure],
    verdicts: &[Verdict],
    reloaded: &[Reloaded],
) -> String {
    let mut text = String::from(
        "# Benchmarks\n\nWritten by `cargo xtask bench`; run it to get the figures of your machine.\n\n\
         ![Throughput of each contender at each workload](benchmarks.svg)\n\n## Targets\n\n\
         | target | reached | |\n| --- | ---: | --- |\n",
    );
    for verdict in verdicts {
        let _ = writeln!(text, "| {} | {} | {} |", verdict.target, verdict.shown(), verdict.word());
    }
    text.push_str("\n## Figures\n");
    for workload in Workload::ALL {
        let rows: Vec<_> = figures.iter().filter(|figure| figure.workload == workload).collect();
        if rows.is_empty() {
            continue;
        }
        let (unit, cost) = (workload.unit(), workload.cost_unit());
        let _ = writeln!(text, "\n### {}\n\n{unit}; CPU in {cost}.\n", workload.name());
        let _ = writeln!(text, "| {} |\n| --- |{}", HEADINGS.join(" | "), " ---: |".repeat(6));
        for figure in rows {
            let _ = writeln!(text, "| {} |", cells(figure).join(" | "));
        }
    }
    text.push_str(&reloads(reloaded));
    text.push_str(&method(course, figures, machine.processors));
    text.push_str(&surroundings(machine));
    text
}

fn reloads(reloaded: &[Reloaded]) -> String {
    let mut text = String::from(
        "\n## Reloads under load\n\n\
         wrk asks for 1 kB on 64 connections while the configuration is changed and reloaded, five times a second at most. Half of the connections are kept \
         alive, half serve one request each; of the router's, half are handed off. HAProxy passes its listening sockets to each new process.\n\n\
         | | reloads | requests | failed: connecting | reading | writing | status | time-out |\n| --- |",
    );
    text.push_str(&" ---: |".repeat(7));
    for Reloaded { contender, reloads, seen } in reloaded {
        let Counted { requests, connect, read, write, status, timeout, .. } = seen;
        let _ = write!(
            text,
            "\n| {contender} | {reloads} | {requests} | {connect} | {read} | {write} | {status} | {timeout} |"
        );
    }
    text.push('\n');
    text
}

fn method(course: Course, figures: &[Figure], processors: usize) -> String {
    let Course { rounds, quick, transfer_seconds, request_seconds } = course;
    let run = if quick { " This was a quick run: take its figures as a hint." } else { "" };
    let share = |contender, workload| {
        let found =
            figures.iter().find(|figure| (figure.contender, figure.workload) == (contender, workload));
        let share = found.and_then(|figure| figure.handed_off);
        share.map_or("unknown".to_owned(), |share| format!("{:.1} %", share * 100.0))
    };
    format!(
        "
## Method

- The lab: client, gateway and instance are network namespaces of one machine, joined by veth pairs and a bridge. One
  nginx with one process is the only instance, the same for everybody. Segmentation offloads are on, as they are by default.
- {rounds} rounds. In each round every workload is run, and in each workload the contenders take turns of
  {transfer_seconds} s (bodies) or {request_seconds} s (requests), beginning with another one in every round. Ratios are formed
  within a round; the tables show medians over the rounds.{run}
- All contenders are on one gateway, on ports of their own. Each has two threads or processes, logs nothing, and adds
  `X-Forwarded-For` if it speaks HTTP. HAProxy has its defaults; nginx keeps a pool of connections to the instance, and passes
  bodies on without storing them. What costs others something even while it is idle is there only for its own turn: the
  router with its kernel programs, and the rules of nftables with connection tracking.
- Bodies are 200 MB, one on a connection. The client checks status, length and the offset written into every page; what
  was uploaded is compared byte for byte. Small requests are made by wrk, on 64 connections where nothing else is said; a run counts only with the
  right size of responses and not one error.
- *Gateway CPU* is the CPU time of the contender's processes by the scheduler's clock, with what clearing away costs
  afterwards. On veth it includes the work of softirqs that a system call sets off, such as the peer's receiving.
  *Machine CPU* is what all processors were busy with: client, gateway and instance.
- By routerd's own count, of the connections of `router, handoff` {} were handed off in the downloads and {} in
  connect-request-close; of those of `router, auto` {} and {}; of those of `router, bind` {} were bound in connect-request-close, and never had a socket.

## Limits

- Client, gateway and instance share {processors} processors: client and instance take most of them, and a contender that
  needs less CPU leaves more to them. On real hardware the gateway is alone on its machine, and the differences in gateway CPU count.
- Veth has no wire: a gigabyte is passed on by reference, in packets of 64 kB. Throughput is bounded by copying at the
  client (and by storing, with uploads), so plain routing and a handed-off connection come out close to one another.
- In connect-request-close, plain routing needs one handshake and every proxy two. A relayed connection is accepted, read,
  connected, written, read, written and closed twice; no proxy with sockets avoids that (`router, bind` has none), but one that keeps a pool of
  connections to the instance (nginx) saves the second handshake, at the price of sharing connections between clients.
",
        share(Contender::RouterHandoff, Workload::Downloads),
        share(Contender::RouterHandoff, Workload::Connections),
        share(Contender::RouterAuto, Workload::Downloads),
        share(Contender::RouterAuto, Workload::Connections),
        share(Contender::RouterBind, Workload::Connections),
    )
}

fn surroundings(machine: &Machine) -> String {
    let Machine { date, commit, processor, processors, memory_gb, kernel, haproxy, nginx, wrk, nftables } =
        machine;
    format!(
        "
## Machine

| | |
| --- | --- |
| date | {date} |
| router | commit {commit}, release build |
| processor | {processors} × {processor} |
| memory | {memory_gb} GB |
| kernel | {kernel} |
| HAProxy | {haproxy} |
| nginx | {nginx} |
| wrk | {wrk} |
| nftables | {nftables} |
"
    )
}

#[cfg(test)]
mod tests {
    use super::super::figures::{self, tests::measurement};
    use super::super::targets;
    use super::*;

    #[test]
    fn numbers_keep_three_digits_or_their_thousands() {
        assert_eq!(number(44_218.4), "44 218");
        assert_eq!(number(999.6), "1 000");
        assert_eq!(number(2_000_000.0), "2 000 000");
        assert_eq!(
            (number(115.2), number(40.52), number(0.376)),
            ("115".into(), "40.5".into(), "0.38".into())
        );
    }

    #[test]
    fn both_reports_show_every_figure_and_every_target() {
        let measurements =
            [measurement(0, Contender::Routing, 47_000), measurement(0, Contender::RouterAuto, 45_500)];
        let (figures, verdicts) = (figures::of(&measurements), targets::verdicts(&measurements));
        let course = Course { rounds: 1, quick: true, transfer_seconds: 1.0, request_seconds: 2.0 };
        let seen = Counted { requests: 12_345, read: 67, ..Counted::default() };
        let reloaded = [Reloaded { contender: "router", reloads: 8, seen }];
        let document = document(&Machine::look(), course, &figures, &verdicts, &reloaded);
        for text in [table(&figures, &verdicts, &reloaded), document] {
            for part in
                ["47 000", "45 500", "0.97", "router, auto", "not measured", "keep-alive", "12345", "67"]
            {
                assert!(text.contains(part), "{part} is missing in:\n{text}");
            }
        }
    }
}
