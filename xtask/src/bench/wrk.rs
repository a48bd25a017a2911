//! Small requests, many at a time, by wrk.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::contender::Contender;
use super::meter::{Meter, Usage};
use crate::topology::{Host, Lab};

/// Connections at a time.
const CONNECTIONS: &str = "64";
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
    keep_alive: bool,
    length: Duration,
    meter: &Meter,
) -> Result<Answered> {
    let script = lab.host_dir(Host::Client).join("counted.lua");
    fs::create_dir_all(lab.host_dir(Host::Client))?;
    fs::write(&script, SCRIPT)?;
    let mut command = lab.command(Host::Client, "wrk");
    command.args(["-t", "2", "-c", CONNECTIONS, "-d", &format!("{}s", length.as_secs().max(1)), "-s"]);
    command.arg(&script);
    if !keep_alive {
        command.args(["-H", "Connection: close"]);
    }
    command.arg(format!("http://{}/files/1k", contender.address()));
    let before = meter.read()?;
    let output = command.output().context("cannot start wrk")?;
    let usage = meter.read()? - before;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk failed: {text}{}", String::from_utf8_lossy(&output.stderr));
    let counted = text.lines().find_map(|line| line.strip_prefix("counted "));
    let counted = counted.with_context(|| format!("wrk printed no figures: {text}"))?;
    let (requests, seconds) = judge(counted)?;
    Ok(Answered { requests, seconds, usage })
}

/// Requests and seconds, if every response was whole and nothing went wrong.
fn judge(counted: &str) -> Result<(u64, f64)> {
    let numbers: Vec<u64> = counted.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [requests, microseconds, bytes, connect, read, write, status, timeout] = numbers[..] else {
        anyhow::bail!("wrk's figures are not understood: {counted}");
    };
    ensure!(
        [connect, read, write, status, timeout] == [0; 5],
        "wrk saw errors: {connect} connecting, {read} reading, {write} writing, {status} statuses, {timeout} time-outs"
    );
    ensure!(requests > 0 && microseconds > 0, "wrk got no answer");
    let each = bytes / requests;
    let expected = BODY + HEAD.start()..=BODY + HEAD.end();
    ensure!(expected.contains(&each), "responses had {each} bytes instead of {expected:?}");
    Ok((requests, microseconds as f64 / 1e6))
}

#[cfg(test)]
mod tests {
    use super::judge;

    #[test]
    fn figures_count_only_if_every_response_was_whole() {
        assert_eq!(judge("1000 2000000 1300000 0 0 0 0 0").unwrap(), (1000, 2.0));
        assert!(judge("1000 2000000 1300000 0 1 0 0 0").is_err(), "a connection was reset");
        assert!(judge("1000 2000000 1300000 0 0 0 3 0").is_err(), "not every status was 200");
        assert!(judge("1000 2000000 300000 0 0 0 0 0").is_err(), "bodies are missing");
        assert!(judge("0 2000000 0 0 0 0 0 0").is_err());
        assert!(judge("1000").is_err());
    }
}
