//! A handful of requests, and what became of each: what the instance says, and what the router has counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::daemon::Daemon;
use crate::topology::{Host, Lab, VIP};

/// A request, and what the rules of `examples/quickstart.toml` say about it.
struct Request {
    shown: &'static str,
    curl: &'static [&'static str],
    /// How often the path is requested, all on one connection.
    times: usize,
    path: &'static str,
    rule: &'static str,
    status: u16,
    /// Instances that the rule may choose; none if it refuses.
    instances: &'static [&'static str],
}

const WEB: &[&str] = &["web1", "web2"];
const PLAIN: Request =
    Request { shown: "GET /", curl: &[], times: 1, path: "/", rule: "default", status: 200, instances: WEB };

const REQUESTS: [Request; 7] = [
    PLAIN,
    Request { shown: "GET / again", ..PLAIN },
    Request { shown: "GET / five times, one connection", times: 5, ..PLAIN },
    Request {
        shown: "GET /files/200m",
        path: "/files/200m",
        rule: "downloads",
        instances: &["files1"],
        ..PLAIN
    },
    Request {
        shown: "GET / with Host: api.example",
        curl: &["--header", "Host: api.example"],
        rule: "api-host",
        instances: &["api1"],
        ..PLAIN
    },
    Request {
        shown: "GET / with Cookie: beta=1",
        curl: &["--cookie", "beta=1"],
        rule: "beta-users",
        instances: &["api1"],
        ..PLAIN
    },
    Request { shown: "GET /admin", path: "/admin", rule: "no-admin", status: 403, instances: &[], ..PLAIN },
];

/// Prints the table; returns how many requests were not routed as the rules say.
pub fn show(lab: &Lab, daemon: &Daemon, interrupted: &AtomicBool) -> Result<usize> {
    println!("\n{:<34} {:<12} {:<10} {:<24}", "request", "rule", "instance", "way");
    let names = instance_names(daemon)?;
    let mut wrong = 0;
    for request in &REQUESTS {
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
        let before = Counts::read(daemon)?;
        let reply = send(lab, request)?;
        let (rule, way) = Counts::wait_for_change(daemon, &before)?;
        let instance = reply.instance.as_ref().map(|host| names.get(host).unwrap_or(host).as_str());
        let complaint = request.complaint(&rule, instance, reply.status);
        println!("{:<34} {:<12} {:<10} {way:<24}", request.shown, rule, instance.unwrap_or("-"));
        if let Some(complaint) = complaint {
            println!("  WRONG: {complaint}");
            wrong += 1;
        }
    }
    Ok(wrong)
}

impl Request {
    fn complaint(&self, rule: &str, instance: Option<&str>, status: u16) -> Option<String> {
        if rule != self.rule {
            return Some(format!("the rules say `{}`", self.rule));
        }
        if status != self.status {
            return Some(format!("status {status} instead of {}", self.status));
        }
        match instance {
            Some(name) if !self.instances.contains(&name) => {
                Some(format!("the pool has {:?}", self.instances))
            }
            None if !self.instances.is_empty() => Some("no instance answered".to_owned()),
            _ => None,
        }
    }
}

/// What the client saw.
struct Reply {
    status: u16,
    /// The host that answered, as its nginx names itself.
    instance: Option<String>,
}

fn send(lab: &Lab, request: &Request) -> Result<Reply> {
    let mut command = lab.command(Host::Client, "curl");
    command.args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*", "--dump-header", "-"]);
    command.args(request.curl);
    for _ in 0..request.times {
        command.args(["--output", "/dev/null", &format!("http://{VIP}{}", request.path)]);
    }
    let output = command.output().context("cannot start curl")?;
    let heads = String::from_utf8_lossy(&output.stdout);
    let fields = |name: &str| -> Vec<String> {
        let lines = heads.lines().filter_map(|line| line.split_once(':'));
        lines
            .filter(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
            .collect()
    };
    let mut instances = fields("x-instance");
    instances.dedup();
    if instances.len() > 1 {
        bail!("one connection was answered by several instances: {instances:?}");
    }
    let status = heads.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    let Some(status) = status.filter(|_| output.status.success()) else {
        bail!("`{}` failed: {}", request.shown, String::from_utf8_lossy(&output.stderr).trim());
    };
    Ok(Reply { status, instance: instances.pop() })
}

/// Names in the configuration by the hosts that serve them.
fn instance_names(daemon: &Daemon) -> Result<BTreeMap<String, String>> {
    let instances = daemon.ask(&["instances"])?;
    let instances = instances.as_array().context("routerctl lists no instances")?;
    let pair = |instance: &Value| -> Option<(String, String)> {
        let address = instance["address"].as_str()?.rsplit_once(':')?.0;
        let number = address.rsplit('.').next()?.parse::<u8>().ok()?.checked_sub(10)?;
        Some((Host::Backend(number).to_string(), instance["name"].as_str()?.to_owned()))
    };
    Ok(instances.iter().filter_map(pair).collect())
}

/// What the router has counted so far.
struct Counts {
    rules: BTreeMap<String, u64>,
    ways: BTreeMap<String, u64>,
}

impl Counts {
    fn read(daemon: &Daemon) -> Result<Self> {
        let rules = daemon.ask(&["rules"])?;
        let rules = rules.as_array().context("routerctl lists no rules")?;
        let requests = |rule: &Value| Some((rule["name"].as_str()?.to_owned(), rule["requests"].as_u64()?));
        let status = daemon.ask(&["status"])?;
        let mut ways = BTreeMap::new();
        ways.insert("handed off".to_owned(), status["connections"]["handed_off"].as_u64().unwrap_or(0));
        for kind in ["relayed", "refused"] {
            let reasons = status[kind].as_object().into_iter().flatten();
            ways.extend(
                reasons.filter_map(|(reason, count)| Some((format!("{kind}: {reason}"), count.as_u64()?))),
            );
        }
        Ok(Self { rules: rules.iter().filter_map(requests).collect(), ways })
    }

    /// The rule that decided one more request, and the way that one more connection went. A relayed connection is
    /// counted when it ends, a moment after its client has seen everything.
    fn wait_for_change(daemon: &Daemon, before: &Self) -> Result<(String, String)> {
        let began = Instant::now();
        loop {
            let now = Self::read(daemon)?;
            let rule = grown(&before.rules, &now.rules);
            let way = grown(&before.ways, &now.ways);
            if let (Some(rule), Some(way)) = (rule, way) {
                return Ok((rule, way));
            }
            if began.elapsed() > Duration::from_secs(5) {
                bail!("the router has not counted a request that was answered");
            }
            sleep(Duration::from_millis(20));
        }
    }
}

fn grown(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> Option<String> {
    let grew = |(name, count): &(&String, &u64)| **count > before.get(*name).copied().unwrap_or(0);
    now.iter().find(grew).map(|(name, _)| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_went_elsewhere_is_complained_about() {
        let request = &REQUESTS[0];
        assert_eq!(request.complaint("default", Some("web2"), 200), None);
        assert!(request.complaint("downloads", Some("web2"), 200).is_some());
        assert!(request.complaint("default", Some("files1"), 200).is_some());
        assert!(request.complaint("default", None, 200).is_some());
        assert!(request.complaint("default", Some("web1"), 503).is_some());
    }

    #[test]
    fn the_counter_that_grew_is_found() {
        let before = BTreeMap::from([("handed off".to_owned(), 3)]);
        let mut now = before.clone();
        assert_eq!(grown(&before, &now), None);
        now.insert("relayed: short".to_owned(), 1);
        assert_eq!(grown(&before, &now).as_deref(), Some("relayed: short"));
    }
}
