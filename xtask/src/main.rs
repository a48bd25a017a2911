//! Project automation: `cargo xtask COMMAND`. Each command is one module.

#[path = "../../router-userspace/build/toolchain.rs"]
mod toolchain;

#[path = "../../tests/support/lab/mod.rs"]
#[allow(dead_code, reason = "the tests use more of the lab")]
mod topology;

mod build;
mod lab;
mod progress;
mod setup;
mod workspace;

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
        Command::Lab { action } => lab::run(action),
    }
}
