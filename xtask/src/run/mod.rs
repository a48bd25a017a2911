//! `cargo xtask run`: the router at work, on a machine that has nothing but Rust yet.
//!
//! Without arguments: in the lab, with `examples/quickstart.toml`. With arguments behind `--`: on this host.

mod requests;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::daemon::{Daemon, Profile};
use crate::lab::RemovedAtTheEnd;
use crate::topology::{DEFAULT_NAME, Lab, VIP};
use crate::{build, setup, workspace};

const EXAMPLE: &str = "examples/quickstart.toml";
/// The quickstart's pools name instances on four backends.
const BACKENDS: u8 = 4;

pub fn run(once: bool, arguments: &[std::ffi::OsString]) -> Result<()> {
    if !workspace::is_root() {
        bail!("the router works in the kernel, and its lab is made of network namespaces: run this as root");
    }
    if arguments.is_empty() { in_the_lab(once) } else { on_this_host(arguments) }
}

/// Becomes routerd.
fn on_this_host(arguments: &[std::ffi::OsString]) -> Result<()> {
    build::run(true)?;
    let routerd = workspace::target_dir().join("release/routerd");
    let error = Command::new(&routerd).args(arguments).exec();
    bail!("cannot start {}: {error}", routerd.display())
}

fn in_the_lab(once: bool) -> Result<()> {
    setup::ensure(setup::For::Lab)?;
    build::run(false)?;
    let interrupted = workspace::interruption()?;
    let _lab_is_removed = RemovedAtTheEnd(DEFAULT_NAME);
    let lab = Lab::up(DEFAULT_NAME, BACKENDS)?;
    let mut daemon = Daemon::start(&lab, &workspace::root().join(EXAMPLE), Profile::Debug)?;
    daemon.wait_for_instances(&interrupted)?;
    let wrong = requests::show(&lab, &daemon, &interrupted)?;
    if interrupted.load(Ordering::Relaxed) {
        return Ok(());
    }
    if !once {
        print_commands(&daemon);
        while !interrupted.load(Ordering::Relaxed) {
            daemon.must_be_running()?;
            sleep(Duration::from_millis(100));
        }
        println!("\nremoving the lab");
    }
    daemon.stop()?;
    if wrong > 0 {
        bail!("{wrong} requests were not routed as the rules say");
    }
    Ok(())
}

fn print_commands(daemon: &Daemon) {
    println!(
        "
The lab stays until Ctrl-C. Try, in another terminal:
  cargo xtask lab exec client -- curl -s http://{VIP}/                          a request
  cargo xtask lab exec client -- curl -s http://{VIP}/files/200m -o /dev/null   a handoff
  export ROUTER_SOCKET={}
  {routerctl} status
  {routerctl} instances
  {routerctl} flows
  {routerctl} explain --listener web --client 10.77.1.2 --path /admin
  cargo xtask lab exec backend1 -- sh -c 'kill $(cat {}/backend1/nginx.pid)'    an instance dies
routerd's log: {}",
        daemon.socket().display(),
        daemon.lab_dir().display(),
        daemon.log_file().display(),
        routerctl = daemon.routerctl_path().display(),
    );
}
