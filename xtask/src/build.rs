//! `cargo xtask build`: everything that ships.

use anyhow::Result;

use crate::{setup, workspace};

pub fn run(release: bool) -> Result<()> {
    setup::ensure(setup::For::Building)?;
    let mut command = workspace::cargo();
    command.args(["build", "--package", "router-userspace", "--package", "router-agent", "--bins"]);
    if release {
        command.arg("--release");
    }
    workspace::succeed(&mut command)?;
    let directory = workspace::target_dir().join(if release { "release" } else { "debug" });
    println!("built routerd, routerctl and router-agent in {}", directory.display());
    Ok(())
}
