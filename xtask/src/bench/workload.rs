//! What is measured, and one turn of it.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::Serialize;

use super::contender::Contender;
use super::gateway::{Counts, Gateway};
use super::meter::Meter;
use super::transfer::{self, Window};
use super::wrk;
use crate::topology::{Host, Lab, peers};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// One large file at a time.
    Download,
    /// Four at a time.
    Downloads,
    Upload,
    /// Small requests on 64 kept-alive connections.
    KeepAlive,
    /// Connect, one small request, close; then the next.
    SingleConnections,
    /// 64 at a time.
    Connections,
    /// 256 at a time.
    ManyConnections,
}

impl Workload {
    pub const ALL: [Self; 7] = [
        Self::Download,
        Self::Downloads,
        Self::Upload,
        Self::KeepAlive,
        Self::SingleConnections,
        Self::Connections,
        Self::ManyConnections,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Download => "HTTP download ×1",
            Self::Downloads => "HTTP download ×4",
            Self::Upload => "HTTP upload ×1",
            Self::KeepAlive => "keep-alive, 1 kB, 64 connections",
            Self::SingleConnections => "connect-request-close, 1 kB, one at a time",
            Self::Connections => "connect-request-close, 1 kB, 64 at a time",
            Self::ManyConnections => "connect-request-close, 1 kB, 256 at a time",
        }
    }

    pub fn moves_bytes(self) -> bool {
        matches!(self, Self::Download | Self::Downloads | Self::Upload)
    }

    /// Connections at a time.
    pub fn at_a_time(self) -> u16 {
        match self {
            Self::Download | Self::Upload | Self::SingleConnections => 1,
            Self::Downloads => 4,
            Self::KeepAlive | Self::Connections => 64,
            Self::ManyConnections => 256,
        }
    }

    /// Whether a connection serves one small request.
    pub fn closes(self) -> bool {
        matches!(self, Self::SingleConnections | Self::Connections | Self::ManyConnections)
    }

    /// Of [`Measurement::rate`].
    pub fn unit(self) -> &'static str {
        match self {
            Self::Download | Self::Downloads | Self::Upload => "Gb/s",
            Self::KeepAlive => "requests/s",
            Self::SingleConnections | Self::Connections | Self::ManyConnections => "connections/s",
        }
    }

    /// Of [`Measurement::gateway_cost`] and [`Measurement::machine_cost`].
    pub fn cost_unit(self) -> &'static str {
        match self {
            Self::Download | Self::Downloads | Self::Upload => "s/GB",
            Self::KeepAlive => "µs/request",
            Self::SingleConnections | Self::Connections | Self::ManyConnections => "µs/connection",
        }
    }
}

/// One turn of one contender.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    pub round: usize,
    pub workload: Workload,
    pub contender: Contender,
    /// Bytes, or requests.
    pub amount: u64,
    pub seconds: f64,
    /// CPU time (s) of the contender's processes for this amount, the clearing away included.
    pub gateway_cpu: f64,
    /// CPU time (s) of all processors meanwhile: client, gateway and instance.
    pub machine_cpu: f64,
    /// Of the first requests that routerd has read in this turn, how many connections were handed off.
    pub handed_off: Option<(u64, u64)>,
}

impl Measurement {
    pub fn rate(&self) -> f64 {
        let each = if self.workload.moves_bytes() { 8.0 / 1e9 } else { 1.0 };
        self.amount as f64 * each / self.seconds
    }

    pub fn gateway_cost(&self) -> f64 {
        self.cost(self.gateway_cpu)
    }

    pub fn machine_cost(&self) -> f64 {
        self.cost(self.machine_cpu)
    }

    fn cost(&self, seconds: f64) -> f64 {
        let scale = if self.workload.moves_bytes() { 1e9 } else { 1e6 };
        seconds * scale / self.amount as f64
    }
}

/// What all turns share.
#[derive(Debug)]
pub struct Course<'a> {
    lab: &'a Lab,
    gateway: Gateway<'a>,
    window: Window,
    requests_for: Duration,
    file: Vec<u8>,
}

/// Of [`peers::FILES`].
const FILE: &str = "200m";

impl<'a> Course<'a> {
    pub fn new(lab: &'a Lab, gateway: Gateway<'a>, window: Window, requests_for: Duration) -> Result<Self> {
        let file = fs::read(peers::files_dir(lab).join(FILE)).context("cannot read the lab's large file")?;
        Ok(Self { lab, gateway, window, requests_for, file })
    }

    /// Gives `contender` its turn, and checks that it has done its work, in the way that its name says.
    pub fn measure(&mut self, round: usize, workload: Workload, contender: Contender) -> Result<Measurement> {
        self.gateway.turn(contender)?;
        let meter = Meter::new(self.gateway.processes(contender));
        let before = self.gateway.settle()?;
        let mut measurement = if workload.moves_bytes() {
            self.transfers(workload, contender, &meter)?
        } else {
            self.requests(workload, contender, &meter)?
        };
        measurement.round = round;
        if let (Some(before), Some(after)) = (before, self.gateway.settle()?) {
            measurement.handed_off = Some(handed_off(workload, contender, &before, &after)?);
        }
        Ok(measurement)
    }

    pub fn end(self) -> Result<()> {
        self.gateway.stop()
    }

    fn transfers(&self, workload: Workload, contender: Contender, meter: &Meter) -> Result<Measurement> {
        let (to, size) = (contender.address(), self.file.len() as u64);
        let connections = usize::from(workload.at_a_time());
        let moved = transfer::keep_moving(self.lab, connections, self.window, meter, |bytes| {
            if workload == Workload::Upload {
                transfer::upload(to, "/upload/bench", &self.file, bytes)
            } else {
                transfer::download(to, &format!("/files/{FILE}"), size, bytes)
            }
        })?;
        ensure!(moved.bytes > 0, "nothing moved");
        if workload == Workload::Upload {
            let stored = self.lab.host_dir(Host::Backend(1)).join("upload/bench");
            transfer::holds(&stored, &self.file)?;
            fs::remove_file(stored)?;
        }
        Ok(Measurement {
            round: 0,
            workload,
            contender,
            amount: moved.bytes,
            seconds: moved.usage.elapsed,
            gateway_cpu: moved.usage.processes,
            machine_cpu: moved.usage.machine,
            handed_off: None,
        })
    }

    fn requests(&self, workload: Workload, contender: Contender, meter: &Meter) -> Result<Measurement> {
        let begin = meter.read()?;
        let answered = wrk::run(self.lab, contender, workload, self.requests_for, meter)?;
        self.gateway.settle()?;
        let usage = meter.read()? - begin;
        Ok(Measurement {
            round: 0,
            workload,
            contender,
            amount: answered.requests,
            seconds: answered.seconds,
            gateway_cpu: usage.processes,
            machine_cpu: answered.usage.machine,
            handed_off: None,
        })
    }
}

/// Connections handed off, of the first requests read; an error if that is not what the contender stands for.
fn handed_off(
    workload: Workload,
    contender: Contender,
    before: &Counts,
    after: &Counts,
) -> Result<(u64, u64)> {
    let (handed_off, requests) = (after.handed_off - before.handed_off, after.requests - before.requests);
    ensure!(requests > 0, "routerd has counted no request");
    // When wrk ends, it leaves its connections in the middle of something.
    let tolerated = if workload.closes() { u64::from(workload.at_a_time()) + requests / 100 } else { 0 };
    let as_named = match (contender, workload) {
        (Contender::RouterRelay, _) => handed_off == 0,
        // Whether a short connection is worth it is the router's decision.
        (Contender::RouterAuto, _) if workload.closes() => true,
        _ => handed_off + tolerated >= requests,
    };
    let reasons = after.relayed.iter().filter(|(reason, count)| before.relayed.get(*reason) != Some(count));
    let reasons: Vec<&str> = reasons.map(|(reason, _)| reason.as_str()).collect();
    ensure!(
        as_named,
        "{handed_off} of {requests} connections were handed off; relayed were some for {reasons:?}"
    );
    Ok((handed_off, requests))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(requests: u64, handed_off: u64) -> Counts {
        Counts { requests, handed_off, ..Counts::default() }
    }

    #[test]
    fn a_contender_that_does_not_do_what_it_is_called_is_an_error() {
        let outcome =
            |contender, workload, after| handed_off(workload, contender, &counts(10, 5), &after).is_ok();
        let (relay, forced) = (Contender::RouterRelay, Contender::RouterHandoff);
        assert!(outcome(relay, Workload::Downloads, counts(20, 5)));
        assert!(!outcome(relay, Workload::Downloads, counts(20, 6)));
        assert!(outcome(forced, Workload::Downloads, counts(20, 15)));
        assert!(!outcome(forced, Workload::Downloads, counts(20, 14)));
        assert!(!outcome(forced, Workload::Downloads, counts(10, 5)), "nothing was counted");
        assert!(outcome(forced, Workload::Connections, counts(10_010, 9_900)));
        assert!(!outcome(forced, Workload::Connections, counts(10_010, 9_000)));
        assert!(outcome(forced, Workload::ManyConnections, counts(10_010, 9_650)));
        assert!(!outcome(forced, Workload::SingleConnections, counts(10_010, 9_900)));
        assert!(outcome(Contender::RouterAuto, Workload::Connections, counts(10_010, 5)));
        assert!(!outcome(Contender::RouterAuto, Workload::KeepAlive, counts(74, 5)));
    }

    #[test]
    fn rates_and_costs_have_the_units_that_they_name() {
        let measurement = Measurement {
            round: 0,
            workload: Workload::Downloads,
            contender: Contender::Nginx,
            amount: 5_000_000_000,
            seconds: 4.0,
            gateway_cpu: 2.5,
            machine_cpu: 5.0,
            handed_off: None,
        };
        assert_eq!((measurement.rate(), measurement.gateway_cost()), (10.0, 0.5));
        let requests = Measurement { workload: Workload::KeepAlive, amount: 100_000, ..measurement };
        assert_eq!((requests.rate(), requests.machine_cost()), (25_000.0, 50.0));
    }
}
