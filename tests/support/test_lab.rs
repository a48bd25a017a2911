//! A lab for one story.

use std::ops::Deref;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::lab::{Host, Lab};
use crate::watchdog::Watchdog;

/// A fresh lab, taken down when the story ends, however it ends. A story that hangs is ended. Stories wait for one another, across processes.
///
/// `ROUTER_LAB` names another lab than `rt-test`, for several test runs on one machine.
#[derive(Debug)]
pub struct TestLab {
    _watchdog: Watchdog,
    lab: Lab,
    _turn: UnixListener,
}

impl TestLab {
    /// Waits for its turn and raises a lab with this many backends.
    pub fn with_backends(backends: u8) -> Self {
        let name = std::env::var("ROUTER_LAB").unwrap_or_else(|_| "rt-test".to_owned());
        let turn = wait_for_turn(&name);
        Lab::down(&name).expect("the remains of an earlier story can be removed");
        let lab = Lab::up(&name, backends).expect("the lab comes up");
        Self { _watchdog: Watchdog::over(&lab), lab, _turn: turn }
    }

    /// Runs `ip` on a host.
    ///
    /// # Panics
    /// With its complaint, if it fails.
    pub fn ip(&self, host: Host, arguments: &str) {
        let mut command = self.command(host, "ip");
        let output = command.args(arguments.split(' ')).output().expect("ip starts");
        assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// An abstract socket is a lock that leaves nothing behind, whatever happens to its holder.
fn wait_for_turn(name: &str) -> UnixListener {
    let address = SocketAddr::from_abstract_name(format!("router-lab-{name}")).expect("the name is short");
    let began = Instant::now();
    loop {
        match UnixListener::bind_addr(&address) {
            Ok(turn) => return turn,
            Err(error) if began.elapsed() > Duration::from_secs(600) => {
                panic!("another test run has used the lab {name} for ten minutes: {error}")
            }
            Err(_) => sleep(Duration::from_millis(50)),
        }
    }
}

impl Deref for TestLab {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        if let Err(error) = Lab::down(self.lab.name()) {
            eprintln!("cannot take the lab down: {error:#}");
        }
    }
}
