//! Small requests, many at a time, by wrk.

use std::fs;
use std::io::Read;
use std::ops::AddAssign;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use super::contender::Contender;
use super::meter::{Meter, Usage};
use super::workload::Workload;
use crate::topology::{Host, Lab};
use crate::workspace;

/// Bytes of the file that is asked for.
const BODY: u64 = 1024;
/// A response's head has at least, and at most, so many.
const HEAD: std::ops::RangeInclusive<u64> = 80..=600;

/// Prints exact figures at the end; wrk's own output is rounded.
const SCRIPT: &str = r#"done = function(summary, latency, requests)
    local e = summary.errors
    io.write(string.format("counted %d %d %d %d %d %d %d %d\n", summary.requests, summary.duration, summary.bytes,
        e.connect, e.read, e.write, e.status, e.timeout))
end
"#;

/// What wrk has seen.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    pub requests: u64,
    pub seconds: f64,
    pub usage: Usage,
}

/// Asks for a small file for so long: on kept-alive connections, or with a connection for each request.
pub fn run(
    lab: &Lab,
    contender: Contender,
    workload: Workload,
    length: Duration,
    meter: &Meter,
) -> Result<Answered> {
    let connections = workload.at_a_time();
    let mut command = command(lab, contender, !workload.closes(), (connections.min(2), connections), length)?;
    let before = meter.read()?;
    let output = command.output().context("cannot start wrk")?;
    let usage = meter.read()? - before;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk failed: {text}{}", String::from_utf8_lossy(&output.stderr));
    let counted = Counted::read(&text)?;
    counted.judge()?;
    Ok(Answered { requests: counted.requests, seconds: counted.microseconds as f64 / 1e6, usage })
}

fn command(
    lab: &Lab,
    contender: Contender,
    keep_alive: bool,
    (threads, connections): (u16, u16),
    length: Duration,
) -> Result<Command> {
    let mut command = lab.command(Host::Client, "wrk");
    command.args(["-t", &threads.to_string(), "-c", &connections.to_string()]);
    command.args(["-d", &format!("{}s", length.as_secs().max(1)), "-s"]).arg(script(lab)?);
    if !keep_alive {
        command.args(["-H", "Connection: close"]);
    }
    command.arg(format!("http://{}/files/1k", contender.address()));
    Ok(command)
}

fn script(lab: &Lab) -> Result<PathBuf> {
    let directory = lab.host_dir(Host::Client);
    fs::create_dir_all(&directory)?;
    // Put in place whole: a wrk that has just been started may be reading it.
    let (script, written) = (directory.join("counted.lua"), directory.join("counted.lua.new"));
    fs::write(&written, SCRIPT)?;
    fs::rename(&written, &script)?;
    Ok(script)
}

/// Requests that go on until they are told to end.
#[derive(Debug)]
pub struct Load(Child);

impl Load {
    /// A bound, for when nobody tells them.
    const LONGEST: Duration = Duration::from_secs(300);

    pub fn start(lab: &Lab, contender: Contender, keep_alive: bool, connections: u16) -> Result<Self> {
        let mut command = command(lab, contender, keep_alive, (1, connections), Self::LONGEST)?;
        let child = command.args(["--timeout", "20"]).stdout(Stdio::piped()).spawn();
        Ok(Self(child.context("cannot start wrk")?))
    }

    /// What the clients have seen.
    pub fn end(mut self) -> Result<Counted> {
        ensure!(self.0.try_wait()?.is_none(), "wrk has ended by itself");
        workspace::signal(&mut self.0, libc::SIGINT);
        let mut text = String::new();
        self.0.stdout.take().context("wrk's output is a pipe")?.read_to_string(&mut text)?;
        Counted::read(&text)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It may have ended; then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// wrk's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counted {
    pub requests: u64,
    pub microseconds: u64,
    pub bytes: u64,
    /// Connections that could not be made.
    pub connect: u64,
    /// Answers that did not come, or not whole.
    pub read: u64,
    pub write: u64,
    /// Answers that were no success.
    pub status: u64,
    pub timeout: u64,
}

impl Counted {
    /// From what the script prints at the end.
    fn read(text: &str) -> Result<Self> {
        let counted = text.lines().find_map(|line| line.strip_prefix("counted "));
        let counted = counted.with_context(|| format!("wrk printed no figures: {text}"))?;
        let numbers: Vec<u64> = counted.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [requests, microseconds, bytes, connect, read, write, status, timeout] = numbers[..] else {
            bail!("wrk's figures are not understood: {counted}");
        };
        Ok(Self { requests, microseconds, bytes, connect, read, write, status, timeout })
    }

    /// Whether every response was whole and nothing went wrong.
    fn judge(&self) -> Result<()> {
        let Self { requests, microseconds, bytes, connect, read, write, status, timeout } = self;
        ensure!(
            self.failed() == 0,
            "wrk saw errors: {connect} connecting, {read} reading, {write} writing, {status} statuses, {timeout} time-outs"
        );
        ensure!(*requests > 0 && *microseconds > 0, "wrk got no answer");
        let each = bytes / requests;
        let expected = BODY + HEAD.start()..=BODY + HEAD.end();
        ensure!(expected.contains(&each), "responses had {each} bytes instead of {expected:?}");
        Ok(())
    }

    /// Requests that were not answered as they should.
    pub fn failed(&self) -> u64 {
        self.connect + self.read + self.write + self.status + self.timeout
    }
}

/// Of clients that asked at the same time.
impl AddAssign for Counted {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.microseconds = self.microseconds.max(other.microseconds);
        self.bytes += other.bytes;
        self.connect += other.connect;
        self.read += other.read;
        self.write += other.write;
        self.status += other.status;
        self.timeout += other.timeout;
    }
}

#[cfg(test)]
mod tests {
    use super::Counted;

    fn judge(figures: &str) -> anyhow::Result<Counted> {
        let counted = Counted::read(&format!("Running\ncounted {figures}\n"))?;
        counted.judge().map(|()| counted)
    }

    #[test]
    fn figures_count_only_if_every_response_was_whole() {
        let whole = judge("1000 2000000 1300000 0 0 0 0 0").unwrap();
        assert_eq!((whole.requests, whole.microseconds), (1000, 2_000_000));
        assert!(judge("1000 2000000 1300000 0 1 0 0 0").is_err(), "a connection was reset");
        assert!(judge("1000 2000000 1300000 0 0 0 3 0").is_err(), "not every status was 200");
        assert!(judge("1000 2000000 300000 0 0 0 0 0").is_err(), "bodies are missing");
        assert!(judge("0 2000000 0 0 0 0 0 0").is_err());
        assert!(judge("1000").is_err());
    }

    #[test]
    fn figures_of_clients_at_the_same_time_add_up() {
        let mut all = Counted::read("counted 10 2000 30 1 2 3 4 5").unwrap();
        all += Counted::read("counted 1 3000 3 1 1 1 1 1").unwrap();
        assert_eq!((all.requests, all.microseconds, all.bytes, all.failed()), (11, 3000, 33, 20));
    }
}
