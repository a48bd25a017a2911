//! Debian packages.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{fs, io};

use anyhow::{Context, Result, bail};

use crate::progress::Step;

/// Whether a package is installed; an unknown one is not.
pub fn installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}", package])
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

/// Installs packages from freshly read lists. Services that come with them are not started.
pub fn install(packages: &[&str]) -> Result<()> {
    let _quiet = NoServices::begin().context("cannot keep the packages from starting services")?;
    let step = Step::begin("reading the package lists");
    apt_get(&step, &["update"])?;
    step.done();
    let step = Step::begin(format!("installing {}", packages.join(" ")));
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    apt_get(&step, &arguments)?;
    step.done();
    Ok(())
}

fn apt_get(step: &Step, arguments: &[&str]) -> Result<()> {
    let mut child = Command::new("apt-get")
        .args([
            "-o",
            "APT::Status-Fd=1",
            "-o",
            "DPkg::Lock::Timeout=300",
            "-o",
            "Dpkg::Options::=--force-confdef",
        ])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start apt-get")?;
    let errors = child.stderr.take().expect("stderr is a pipe");
    let errors = std::thread::spawn(move || io::read_to_string(errors).unwrap_or_default());
    for line in BufReader::new(child.stdout.take().expect("stdout is a pipe")).lines() {
        let line = line.context("reading apt-get's output")?;
        if let Some((percent, doing)) = status(&line) {
            step.at(percent, doing);
        }
    }
    let status = child.wait()?;
    let errors = errors.join().unwrap_or_default();
    if !status.success() {
        bail!("`apt-get {}` failed:\n{}", arguments.join(" "), errors.trim());
    }
    Ok(())
}

/// Reads apt's status lines: `dlstatus:1:12.5:Retrieving file …`, `pmstatus:nginx:40.0:Unpacking nginx`.
/// Downloading counts as the first half.
fn status(line: &str) -> Option<(u64, &str)> {
    let mut fields = line.splitn(4, ':');
    let kind = fields.next()?;
    let percent: f64 = fields.nth(1)?.parse().ok()?;
    let doing = fields.next()?;
    match kind {
        "dlstatus" => Some((percent as u64 / 2, doing)),
        "pmstatus" => Some((50 + percent as u64 / 2, doing)),
        _ => None,
    }
}

/// While this lives, packages do not start their services (Debian policy 9.3.3: exit code 101 of `policy-rc.d`).
/// An administrator's own policy is left alone.
struct NoServices {
    ours: bool,
}

const POLICY: &str = "/usr/sbin/policy-rc.d";
const POLICY_TEXT: &str =
    "#!/bin/sh\n# Written by the router's setup while it installs packages; safe to remove.\nexit 101\n";

impl NoServices {
    fn begin() -> io::Result<Self> {
        if fs::read_to_string(POLICY).is_ok_and(|text| text == POLICY_TEXT) {
            return Ok(Self { ours: true }); // left by a setup that was killed
        }
        if Path::new(POLICY).exists() {
            return Ok(Self { ours: false });
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(POLICY)?;
        io::Write::write_all(&mut file, POLICY_TEXT.as_bytes())?;
        Ok(Self { ours: true })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.ours {
            let _ = fs::remove_file(POLICY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::status;

    #[test]
    fn progress_is_read_from_apts_status_lines() {
        assert_eq!(status("dlstatus:1:50.0:Retrieving file 1 of 2"), Some((25, "Retrieving file 1 of 2")));
        assert_eq!(
            status("pmstatus:nginx:50.0:Unpacking nginx (amd64)"),
            Some((75, "Unpacking nginx (amd64)"))
        );
        assert_eq!(status("Setting up nginx (1.22.1) ..."), None);
        assert_eq!(status("pmconffile:/etc/x: 'a' 'b' 1 1"), None);
    }
}
