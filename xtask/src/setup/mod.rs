//! `cargo xtask setup`: installs what is missing where it may, and otherwise says in one message what to install.

mod apt;
mod linker;

use anyhow::{Result, anyhow, bail};

use crate::toolchain::{self, Toolchain};
use crate::workspace;

/// What the caller is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// Compiling the workspace.
    Building,
    /// Compiling it, and running it in the lab.
    Lab,
}

/// A program that the lab runs, and the Debian package that brings it.
const LAB_PROGRAMS: [(&str, &str); 20] = [
    ("ping", "iputils-ping"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("nsenter", "util-linux"),
    ("nft", "nftables"),
    ("ethtool", "ethtool"),
    ("tcpdump", "tcpdump"),
    ("curl", "curl"),
    ("openssl", "openssl"),
    ("wrk", "wrk"),
    ("iperf3", "iperf3"),
    ("nginx", "nginx-light"),
    ("haproxy", "haproxy"),
    ("bpftool", "bpftool"),
    ("conntrack", "conntrack"),
    ("nsd", "nsd"),
    ("kdig", "knot-dnsutils"),
    ("perf", "linux-perf"),
    ("python3", "python3"),
    ("chromium", "chromium"),
];

/// Debian's BPF compiler.
const COMPILER_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "libstd-rust-web-dev-bpf"];

/// What `bpf-linker` is built from. Its own LLVM stays needed when it runs.
const LINKER_PACKAGES: [&str; 4] = ["llvm-22-dev", "libpolly-22-dev", "zlib1g-dev", "libzstd-dev"];

pub fn run() -> Result<()> {
    let toolchain = ensure(For::Lab)?;
    let core = if toolchain.build_core { " and core from source" } else { "" };
    println!(
        "setup: everything is there; kernel programs are built with {} (by {}){core} and linked by {}",
        toolchain.rustc.display(),
        toolchain.cargo.display(),
        toolchain.linker.display()
    );
    Ok(())
}

/// Makes sure that everything for `purpose` is there.
pub fn ensure(purpose: For) -> Result<Toolchain> {
    let missing = Missing::look(purpose)?;
    if !missing.packages.is_empty() {
        if !(workspace::is_root() && workspace::which("apt-get").is_some()) {
            bail!("{}", missing.advice());
        }
        apt::install(&missing.packages).map_err(|error| error.context(missing.advice()))?;
    }
    // A linker that was there may run again, now that its LLVM is back.
    if missing.linker && Missing::look(purpose)?.linker {
        linker::install()?;
    }
    let left = Missing::look(purpose)?;
    if !left.packages.is_empty() {
        bail!("something is missing even after its installation: {}", left.advice());
    }
    find_toolchain()
        .map_err(|parts| anyhow!(parts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))
}

fn find_toolchain() -> Result<Toolchain, Vec<toolchain::Missing>> {
    toolchain::find(&workspace::tools_dir().join("bin"))
}

#[derive(Debug)]
struct Missing {
    packages: Vec<&'static str>,
    linker: bool,
}

impl Missing {
    fn look(purpose: For) -> Result<Self> {
        let mut packages = Vec::new();
        let mut linker = false;
        if let Err(parts) = find_toolchain() {
            for part in &parts {
                match part {
                    toolchain::Missing::Compiler => packages.extend(COMPILER_PACKAGES),
                    toolchain::Missing::Linker => linker = true,
                    toolchain::Missing::Setting(..) => bail!("{part}"),
                }
            }
            if linker {
                packages.extend(LINKER_PACKAGES);
            }
        }
        packages.retain(|package| !apt::installed(package));
        if purpose == For::Lab {
            packages.extend(
                LAB_PROGRAMS
                    .iter()
                    .filter(|(program, _)| workspace::which(program).is_none())
                    .map(|(_, package)| *package),
            );
        }
        packages.dedup();
        Ok(Self { packages, linker })
    }

    /// Everything that one has to type, in one message.
    fn advice(&self) -> String {
        let mut text = String::from("as root on Debian 12, or by their like elsewhere, please install:\n");
        if !self.packages.is_empty() {
            text.push_str(&format!("  apt-get install {}\n", self.packages.join(" ")));
        }
        if self.linker {
            text.push_str(&format!("  {}\n", linker::shown()));
        }
        if self.packages.contains(&COMPILER_PACKAGES[0]) {
            text.push_str(
                "Instead of Debian's compiler, rustup's will do: \
                 rustup toolchain install nightly --component rust-src\n",
            );
        }
        text
    }
}
