//! A network behind one of the lab's hosts, which is its router.

use std::fs;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::{Host, Lab};

/// Runs `ip` on a host of the lab.
///
/// # Panics
/// If it fails.
pub fn ip(lab: &Lab, host: Host, arguments: &str) {
    run(lab.command(host, "ip").args(arguments.split(' ')));
}

/// Runs a command to its end.
///
/// # Panics
/// If it fails.
pub fn run(command: &mut Command) {
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A namespace behind the client, which is its router.
#[derive(Debug)]
pub struct Behind(Child);

impl Behind {
    pub fn client(lab: &Lab) -> Self {
        // Bounded, whatever becomes of this process.
        let child = lab.command(Host::Client, "unshare").args(["--net", "sleep", "300"]).spawn();
        let behind = Self(child.expect("unshare starts"));
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let client = lab.inside(Host::Client, || fs::read_link("/proc/thread-self/ns/net")).unwrap().unwrap();
        let began = Instant::now();
        let moved = || {
            fs::read_link(format!("/proc/{}/ns/net", behind.0.id())).is_ok_and(|it| it != own && it != client)
        };
        while !moved() {
            assert!(began.elapsed() < Duration::from_secs(10), "unshare makes a namespace");
            thread::sleep(Duration::from_millis(5));
        }
        lab.sysctl(Host::Client, "net.ipv4.ip_forward", "1").unwrap();
        lab.sysctl(Host::Client, "net.ipv6.conf.all.forwarding", "1").unwrap();
        ip(lab, Host::Client, &format!("link add behind type veth peer name eth0 netns {}", behind.0.id()));
        for command in [
            "link set behind up",
            "addr add 10.77.9.1/24 dev behind",
            "addr add fd77:9::1/64 dev behind nodad",
        ] {
            ip(lab, Host::Client, command);
        }
        for command in [
            "link set lo up",
            "link set eth0 up",
            "addr add 10.77.9.5/24 dev eth0",
            "addr add fd77:9::5/64 dev eth0 nodad",
            "route add default via 10.77.9.1",
            "route add default via fd77:9::1",
        ] {
            behind.ip(command);
        }
        ip(lab, Host::Gateway, "route add 10.77.9.0/24 via 10.77.1.2 dev client");
        ip(lab, Host::Gateway, "route add fd77:9::/64 via fd77:1::2 dev client");
        behind
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0.id())).arg("--").arg(program);
        command
    }

    pub fn ip(&self, arguments: &str) {
        run(self.command("ip").args(arguments.split(' ')));
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
