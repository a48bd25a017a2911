//! HAProxy on a host of the lab.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use crate::lab::{Host, Lab};
use crate::nginx::await_listener;

/// Ended when dropped.
#[derive(Debug)]
pub struct Haproxy(Child);

impl Haproxy {
    /// Starts it with these sections, and waits until it listens on `address`.
    ///
    /// # Panics
    /// With its log, if it does not.
    pub fn start(lab: &Lab, host: Host, address: SocketAddr, sections: &str) -> Self {
        let directory = lab.host_dir(host);
        fs::create_dir_all(&directory).expect("a directory can be made");
        let (file, log) = (directory.join("haproxy.cfg"), directory.join("haproxy.log"));
        let defaults = "defaults\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n";
        fs::write(&file, format!("{defaults}\n{sections}\n")).expect("a file can be written");
        let haproxy = lab
            .command(host, "haproxy")
            .arg("-db")
            .arg("-f")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).expect("a log can be made"))
            .spawn();
        let haproxy = Self(haproxy.expect("haproxy starts"));
        await_listener(lab, host, address, &|| fs::read_to_string(&log).unwrap_or_default());
        haproxy
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
