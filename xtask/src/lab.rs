//! `cargo xtask lab`: the lab by hand.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;

use anyhow::{Result, bail};
use clap::Subcommand;

use crate::topology::{DEFAULT_NAME, Family, Host, Lab};
use crate::{setup, workspace};

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Raise the lab; one that is up stays.
    Up {
        /// How many instances it has.
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=i64::from(crate::topology::MAX_BACKENDS)))]
        backends: u8,
    },
    /// Take the lab down, also one that was killed half-way.
    Down,
    /// Run a command on a host of the lab.
    Exec {
        /// client, gateway, switch, or backend1, backend2, ...
        host: Host,
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

pub fn run(action: Action) -> Result<()> {
    if !workspace::is_root() {
        bail!("the lab is made of network namespaces, which need root: run this as root");
    }
    match action {
        Action::Up { backends } => {
            setup::ensure(setup::For::Lab)?;
            print_hosts(&Lab::up(DEFAULT_NAME, backends)?);
            Ok(())
        }
        Action::Down => Lab::down(DEFAULT_NAME),
        Action::Exec { host, command } => exec(host, &command),
    }
}

fn print_hosts(lab: &Lab) {
    let both = |host| Family::BOTH.map(|family| family.address(host).to_string()).join(", ");
    let [vips, sources] =
        [Family::vip, Family::source].map(|of| Family::BOTH.map(|family| of(family).to_string()).join(", "));
    println!("client    {}", both(Host::Client));
    println!("gateway   {} (VIPs {vips}); {sources} towards the backends", both(Host::Gateway));
    for number in 1..=lab.backends() {
        println!("{:<9} {}", format!("backend{number}"), both(Host::Backend(number)));
    }
    println!("try: cargo xtask lab exec client -- curl -s http://{}/whoami", lab.backend_address(1));
}

fn exec(host: Host, command: &[OsString]) -> Result<()> {
    let Some(lab) = Lab::find(DEFAULT_NAME) else { bail!("the lab is not up: cargo xtask lab up") };
    if !lab.hosts().contains(&host) {
        bail!("the lab has {} backends; there is no {host}", lab.backends());
    }
    let error = lab.command(host, &command[0]).args(&command[1..]).exec();
    bail!("cannot start {}: {error}", command[0].display())
}

/// Takes a lab down, with everything in it, however the run ends.
pub struct RemovedAtTheEnd(pub &'static str);

impl Drop for RemovedAtTheEnd {
    fn drop(&mut self) {
        if let Err(error) = Lab::down(self.0) {
            eprintln!("cannot take the lab {} down: {error:#}", self.0);
        }
    }
}
