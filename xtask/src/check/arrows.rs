//! Who may use whom: between the packages, and between the rooms of `router-userspace`.

use std::fs;
use std::path::{Component, PathBuf};

use anyhow::{Context, Result};

use super::Finding;
use super::source::Source;
use crate::workspace;

/// A package, and those of ours that it may depend on. Nothing depends on the tests or on xtask.
const PACKAGES: [(&str, &[&str]); 7] = [
    ("router-agent", &["router-report"]),
    ("router-common", &[]),
    ("router-ebpf", &["router-common"]),
    ("router-report", &[]),
    ("router-userspace", &["router-common", "router-report"]),
    ("tests", &["router-common", "router-userspace"]),
    ("xtask", &[]),
];

const OURS: [&str; 7] = [
    "router-agent",
    "router-common",
    "router-ebpf",
    "router-report",
    "router-userspace",
    "router-tests",
    "xtask",
];

/// A room, and what it may use of the other rooms. `app` may use all, and is used by none.
const ROOMS: [(&str, &[&str]); 10] = [
    ("core", &[]),
    ("config", &["core"]),
    ("proxy", &["core", "flows"]),
    ("probe", &["core"]),
    ("flows", &["core::session"]),
    ("control", &["core", "config", "flows"]),
    ("simulate", &["core", "config"]),
    ("surroundings", &["core", "config", "flows::netlink"]),
    ("cli", &["config", "control::protocol", "simulate", "surroundings"]),
    ("app", &["core", "config", "proxy", "probe", "flows", "control", "simulate", "surroundings", "cli"]),
];

/// What `core` may not touch, because time, randomness and the state of the world are its arguments.
const IMPURE: [&str; 21] = [
    "tokio",
    "aya",
    "libc",
    "socket2",
    "rand",
    "std::fs",
    "std::env",
    "std::process",
    "std::thread",
    "std::os",
    "std::io",
    "Instant::now",
    "SystemTime::now",
    "Zoned::now",
    "Timestamp::now",
    "TimeZone::system",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "UnixListener",
];

pub fn between_packages() -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (package, allowed) in PACKAGES {
        let path = PathBuf::from(package).join("Cargo.toml");
        let text = fs::read_to_string(workspace::root().join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        let manifest: toml::Table = text.parse().with_context(|| path.display().to_string())?;
        for dependency in dependencies(&manifest) {
            if OURS.contains(&dependency.as_str()) && !allowed.contains(&dependency.as_str()) {
                let text = format!("{package} may not depend on {dependency}");
                findings.push(Finding { path: path.clone(), line: 1, text });
            }
        }
    }
    Ok(findings)
}

/// Names of all dependencies: for running, for tests, for building, and for single targets.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let targets = targets.into_iter().flat_map(|targets| targets.values()).filter_map(toml::Value::as_table);
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    [manifest]
        .into_iter()
        .chain(targets)
        .flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)?.as_table()))
        .flat_map(|dependencies| dependencies.keys().cloned())
        .collect()
}

pub fn between_rooms(source: &Source) -> Vec<Finding> {
    let Some(module) = module(source) else { return Vec::new() };
    let Some(room) = module.first() else { return Vec::new() };
    let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| name == room) else {
        return vec![source.finding(1, format!("`{room}` is no room of the house"))];
    };
    let mut findings = Vec::new();
    for path in source.paths() {
        if let Some(target) = absolute(&module, &path.segments)
            && let Some(other) = target.first().filter(|other| *other != room)
            && ROOMS.iter().any(|(name, _)| name == other)
            && !allowed.iter().any(|arrow| begins_with(&target, arrow))
        {
            let text = format!("`{room}` may not use `{}`", target.join("::"));
            findings.push(source.finding(path.line, text));
        }
        if room == "core"
            && let Some(impure) = IMPURE.iter().find(|impure| touches(&path.segments, impure))
        {
            findings.push(source.finding(path.line, format!("`core` is pure and may not use `{impure}`")));
        }
        if room != "flows" && path.segments[0] == "aya" && path.segments.len() > 1 {
            findings.push(source.finding(path.line, "only `flows` may use `aya`"));
        }
    }
    findings
}

/// The module of a file of the library, such as `[core, rules]`; none for binaries and for test modules.
fn module(source: &Source) -> Option<Vec<String>> {
    let relative = source.path.strip_prefix("router-userspace/src").ok()?.with_extension("");
    let name = |part: Component<'_>| part.as_os_str().to_string_lossy().into_owned();
    let mut module: Vec<String> = relative.components().map(name).collect();
    if module[0] == "bin" || module[0] == "lib" || module.iter().any(|part| part == "tests") {
        return None;
    }
    module.pop_if(|last| last == "mod");
    Some(module)
}

/// Resolves a path of this library to one that begins with a room.
fn absolute(module: &[String], segments: &[String]) -> Option<Vec<String>> {
    let supers = segments.iter().take_while(|segment| *segment == "super").count();
    match segments[0].as_str() {
        "crate" => Some(segments[1..].to_vec()),
        "super" => Some([&module[..module.len().checked_sub(supers)?], &segments[supers..]].concat()),
        _ => None,
    }
}

fn begins_with(path: &[String], arrow: &str) -> bool {
    let mut segments = path.iter();
    arrow.split("::").all(|wanted| segments.next().is_some_and(|segment| segment == wanted))
}

/// Whether a path begins with this crate or module, or has this type or function in it.
fn touches(path: &[String], impure: &str) -> bool {
    let wanted: Vec<&str> = impure.split("::").collect();
    let anywhere = wanted[0].starts_with(char::is_uppercase);
    let found = |window: &[String]| window.iter().eq(wanted.iter().copied());
    if anywhere {
        path.windows(wanted.len()).any(found)
    } else {
        path.len() >= wanted.len().max(2) && found(&path[..wanted.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(file: &str, text: &str) -> Vec<String> {
        let source = Source::new(format!("router-userspace/src/{file}"), text).unwrap();
        between_rooms(&source).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn allowed_arrows_pass() {
        let allowed = [
            ("proxy/mod.rs", "use crate::{core::rules::Rule, flows::table::FlowTable};"),
            ("flows/table.rs", "use crate::core::session::Session; use aya::Ebpf;"),
            ("cli/mod.rs", "use crate::control::protocol::Status;"),
            ("core/rules/mod.rs", "use super::pool::Pool; use std::net::IpAddr; use std::time::Instant;"),
            ("app.rs", "use crate::proxy; use crate::control::State;"),
            ("bin/routerd.rs", "use router::app;"),
            ("core/pool.rs", "#[cfg(test)] mod tests { use crate::flows::table; }"),
        ];
        for (file, text) in allowed {
            assert_eq!(findings(file, text), Vec::<String>::new(), "{file}: {text}");
        }
    }

    #[test]
    fn arrows_against_the_rules_are_found_however_they_are_written() {
        let refused = [
            ("core/pool.rs", "use crate::flows;", "`core` may not use `flows`"),
            ("core/pool.rs", "use super::super::config::Plan;", "`core` may not use `config::Plan`"),
            ("flows/table.rs", "use crate::core::{session, pool};", "`flows` may not use `core::pool`"),
            ("proxy/relay.rs", "fn f() { crate::probe::check() }", "`proxy` may not use `probe::check`"),
            ("cli/mod.rs", "use crate::control::server;", "`cli` may not use `control::server`"),
            ("control/mod.rs", "use crate::app::run;", "`control` may not use `app::run`"),
            ("proxy/mod.rs", "use aya::maps;", "only `flows` may use `aya`"),
            (
                "core/health.rs",
                "let now = std::time::Instant::now();",
                "`core` is pure and may not use `Instant::now`",
            ),
            ("core/health.rs", "use std::{fs, fmt};", "`core` is pure and may not use `std::fs`"),
            ("attic/mod.rs", "", "`attic` is no room of the house"),
        ];
        for (file, text, finding) in refused {
            assert!(
                findings(file, text).contains(&finding.to_owned()),
                "{file}: {text}: {:?}",
                findings(file, text)
            );
        }
    }
}
