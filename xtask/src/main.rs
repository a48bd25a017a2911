//! Project automation: `cargo xtask COMMAND`. Each command is one module.

#[path = "../../router-userspace/build/toolchain.rs"]
mod toolchain;

#[path = "../../tests/support/lab/mod.rs"]
#[allow(dead_code, reason = "the tests use more of the lab")]
mod topology;

mod bench;
mod build;
mod check;
mod daemon;
mod fuzz;
mod lab;
mod progress;
mod run;
mod setup;
mod test;
mod verify;
mod workspace;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Project automation of the router.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what building, the lab and the tests need; quick when nothing is missing.
    Setup,
    /// Build the kernel programs, the daemon and its tools.
    Build {
        /// Build with optimisations.
        #[arg(long)]
        release: bool,
    },
    /// Show the router at work in the lab; or, with arguments for routerd behind `--`, run it on this host.
    Run {
        /// Do not stay; succeed only if every request was routed as the rules say.
        #[arg(long)]
        once: bool,
        /// Arguments for routerd on this host, such as `--config FILE`.
        #[arg(last = true, conflicts_with = "once")]
        arguments: Vec<OsString>,
    },
    /// Check formatting, lints, and who may use whom.
    Check,
    /// Load the kernel programs and compare what they cost the verifier with the record.
    Verify {
        /// Record the costs instead.
        #[arg(long)]
        update: bool,
    },
    /// Run everything that this machine can run.
    Test,
    /// Compare the router with plain routing, nftables, HAProxy and nginx, and write docs/BENCHMARKS.md.
    Bench(bench::Selection),
    /// Run the fuzz targets for a while.
    Fuzz {
        /// One target; all of them, if left out.
        target: Option<String>,
        /// How long each target runs.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Raise and take down the lab, and run commands on its hosts.
    Lab {
        #[command(subcommand)]
        action: lab::Action,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Setup => setup::run(),
        Command::Build { release } => build::run(release),
        Command::Run { once, arguments } => run::run(once, &arguments),
        Command::Check => check::run(),
        Command::Verify { update } => verify::run(update),
        Command::Test => test::run(),
        Command::Bench(selection) => bench::run(&selection),
        Command::Fuzz { target, seconds } => fuzz::run(target, seconds),
        Command::Lab { action } => lab::run(action),
    }
}
