//! Requests of an access log, line by line. What is no request is counted, and never ends the simulation.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::time::Duration;

use serde::Serialize;

use super::arrival::Arrival;
use super::log_line::{Malformed, parse};
use super::synthetic::Timing;

/// A longer line is skipped.
const MAX_LINE_BYTES: usize = 65_536;

/// What was read of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogReport {
    pub lines: u64,
    /// Lines that are no request, by what is wrong with them.
    pub malformed: BTreeMap<String, u64>,
    /// The number of the first of them, from 1.
    pub first_malformed: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Log<R> {
    reader: R,
    /// How long connections stay; and when they come, if not when the log says.
    timing: Timing,
    own_pace: bool,
    host: Option<String>,
    /// The time of the first request, and how far the latest is after it.
    epoch: Option<f64>,
    latest: Duration,
    line: Vec<u8>,
    pub bytes: u64,
    pub report: LogReport,
}

impl<R: BufRead> Log<R> {
    /// `host` is asked for where a line does not say which. With `own_pace`, requests come as `timing` says.
    pub fn new(reader: R, timing: Timing, own_pace: bool, host: Option<String>) -> Self {
        Self {
            reader,
            timing,
            own_pace,
            host,
            epoch: None,
            latest: Duration::ZERO,
            line: Vec::new(),
            bytes: 0,
            report: LogReport::default(),
        }
    }

    /// The next request; `None` at the end of the log.
    pub fn next(&mut self) -> io::Result<Option<Arrival>> {
        while let Some(line) = self.read_line()? {
            self.report.lines += 1;
            let parsed = line.and_then(|()| {
                let text = std::str::from_utf8(&self.line).map_err(|_| Malformed::NotText)?;
                parse(text.trim_end_matches(['\r', '\n']))
            });
            match parsed {
                Ok((arrival, time)) => return Ok(Some(self.timed(arrival, time))),
                Err(reason) => {
                    *self.report.malformed.entry(reason.to_string()).or_default() += 1;
                    self.report.first_malformed.get_or_insert(self.report.lines);
                }
            }
        }
        Ok(None)
    }

    fn timed(&mut self, mut arrival: Arrival, time: f64) -> Arrival {
        if self.own_pace {
            self.latest = self.timing.arrive();
        } else {
            let after = time - *self.epoch.get_or_insert(time);
            // Lines are written when requests end, so some stand behind later ones.
            self.latest = Duration::try_from_secs_f64(after).map_or(self.latest, |at| at.max(self.latest));
        }
        (arrival.at, arrival.stay) = (self.latest, self.timing.stay());
        arrival.host = arrival.host.or_else(|| self.host.clone());
        arrival
    }

    /// Reads a line into `self.line`, or skips it if it is too long; `None` at the end.
    fn read_line(&mut self) -> io::Result<Option<Result<(), Malformed>>> {
        self.line.clear();
        let mut too_long = false;
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                let nothing = self.line.is_empty() && !too_long;
                return Ok((!nothing).then_some(if too_long { Err(Malformed::TooLong) } else { Ok(()) }));
            }
            let end = buffer.iter().position(|&byte| byte == b'\n');
            let taken = end.map_or(buffer.len(), |end| end + 1);
            too_long |= self.line.len() + taken > MAX_LINE_BYTES;
            if !too_long {
                self.line.extend_from_slice(&buffer[..taken]);
            }
            self.reader.consume(taken);
            self.bytes += taken as u64;
            if end.is_some() {
                return Ok(Some(if too_long { Err(Malformed::TooLong) } else { Ok(()) }));
            }
        }
    }
}
