//! iperf3: a client in the lab, and servers on the instance's host.

use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::topology::{Host, Lab};
use crate::workspace;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    Tcp,
    Udp,
}

/// How one run moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Load {
    pub protocol: Protocol,
    /// How many flows there are at a time.
    pub flows: u16,
}

impl Load {
    pub const ALL: [Self; 4] = [
        Self { protocol: Protocol::Tcp, flows: 1 },
        Self { protocol: Protocol::Tcp, flows: 4 },
        Self { protocol: Protocol::Udp, flows: 1 },
        Self { protocol: Protocol::Udp, flows: 4 },
    ];

    /// UDP is sent at one rate from the beginning, and needs half of the time.
    pub fn seconds(self, seconds: u64) -> u64 {
        if self.protocol == Protocol::Udp { seconds.div_ceil(2) } else { seconds }
    }

    pub fn name(self) -> String {
        let protocol = if self.protocol == Protocol::Tcp { "TCP" } else { "UDP" };
        format!("{protocol} ×{}", self.flows)
    }
}

/// Bits a second that all UDP flows together are sent with: what plain routing carries without loss on a small machine.
pub const UDP_RATE: u64 = 500_000_000;
/// Bytes of a datagram: with two IPv6 headers around it, it still fits an MTU of 1500.
pub const UDP_LENGTH: u64 = 1_400;

/// What arrived.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Moved {
    pub bits_per_second: f64,
    /// Of UDP.
    pub packets_per_second: f64,
    /// Share of the datagrams that did not arrive.
    pub lost: f64,
}

/// Runs for so many seconds.
pub fn run(lab: &Lab, load: Load, to: SocketAddr, seconds: u64) -> Result<Moved> {
    let began = Instant::now();
    loop {
        let value = once(lab, load, to, seconds)?;
        match value["error"].as_str() {
            None => return read(load, &value),
            // The server has not done with the run before.
            Some(error) if error.contains("busy") && began.elapsed() < Duration::from_secs(5) => {
                sleep(Duration::from_millis(50));
            }
            Some(error) => bail!("iperf3: {error}"),
        }
    }
}

fn once(lab: &Lab, load: Load, to: SocketAddr, seconds: u64) -> Result<Value> {
    let mut command = lab.command(Host::Client, "timeout");
    command.args([&(seconds + 10).to_string(), "iperf3", "--json", "--connect-timeout", "3000"]);
    command.args(["-c", &to.ip().to_string(), "-p", &to.port().to_string()]);
    command.args(["-t", &seconds.to_string(), "-P", &load.flows.to_string()]);
    if load.protocol == Protocol::Udp {
        let each = UDP_RATE / u64::from(load.flows);
        command.args(["-u", "-b", &each.to_string(), "-l", &UDP_LENGTH.to_string()]);
    }
    let output = command.stdin(Stdio::null()).output().context("cannot start iperf3")?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("iperf3 ended ({}) without figures", output.status))
}

fn read(load: Load, value: &Value) -> Result<Moved> {
    let number = |object: &str, name: &str| {
        let found = value["end"][object][name].as_f64();
        found.with_context(|| format!("iperf3 has no {object}.{name}"))
    };
    let moved = match load.protocol {
        Protocol::Tcp => Moved {
            bits_per_second: number("sum_received", "bits_per_second")?,
            packets_per_second: 0.0,
            lost: 0.0,
        },
        Protocol::Udp => {
            let (sent, lost) = (number("sum", "packets")?, number("sum", "lost_packets")?);
            let packets_per_second = (sent - lost) / number("sum", "seconds")?;
            Moved {
                bits_per_second: packets_per_second * UDP_LENGTH as f64 * 8.0,
                packets_per_second,
                lost: lost / sent,
            }
        }
    };
    ensure!(moved.bits_per_second > 0.0, "nothing moved");
    Ok(moved)
}

/// Servers, which end with this.
#[derive(Debug)]
pub struct Servers(Vec<Child>);

impl Servers {
    pub fn start(lab: &Lab, addresses: &[SocketAddr]) -> Result<Self> {
        let mut servers = Self(Vec::new());
        for address in addresses {
            let child = lab
                .command(Host::Backend(1), "iperf3")
                .args(["-s", "-B", &address.ip().to_string(), "-p", &address.port().to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .context("cannot start iperf3")?;
            servers.0.push(child);
        }
        Ok(servers)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &mut self.0 {
            workspace::terminate(server);
            // It is over either way.
            let _ = server.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_udp_only_what_arrived_counts() {
        let load = Load { protocol: Protocol::Udp, flows: 1 };
        let value = json!({"end": {"sum": {"packets": 1000, "lost_packets": 100, "seconds": 2.0}}});
        let moved = read(load, &value).unwrap();
        assert_eq!((moved.packets_per_second, moved.lost), (450.0, 0.1));
        assert_eq!(moved.bits_per_second, 450.0 * 1400.0 * 8.0);
        assert!(read(load, &json!({"end": {}})).is_err());
    }
}
