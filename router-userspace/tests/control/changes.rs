//! Reloads and run-time changes as an operator asks for them.

use serde_json::json;

use router::cli::Exit;

use crate::cli::{Ran, run};
use crate::daemon::Daemon;

fn routerctl(daemon: &Daemon, line: &[&str]) -> Ran {
    run(&daemon.socket, line)
}

#[test]
fn a_rule_is_disabled_listed_written_back_and_gone_from_the_list() {
    let daemon = Daemon::start();
    let said = routerctl(&daemon, &["rule", "disable", "gis"]);
    assert_eq!(
        (said.exit, said.out.as_str()),
        (Exit::Ok, "~ rule gis changed enabled (default) → false\nin force\n")
    );
    let listed = routerctl(&daemon, &["changes"]);
    assert!(listed.out.contains("rule gis: enabled = false"), "{}", listed.out);
    assert!(routerctl(&daemon, &["status"]).out.contains("1 made at run time"));

    let written = routerctl(&daemon, &["changes", "write"]);
    assert!(written.out.starts_with("1 change written to "), "{}", written.out);
    assert!(daemon.file().contains("name = \"gis\"   # all maps"), "comments stay");
    assert!(daemon.file().contains("enabled = false"));
    assert!(routerctl(&daemon, &["changes"]).out.contains("no run-time changes"));
}

#[test]
fn every_command_changes_what_it_says() {
    let daemon = Daemon::start();
    let say = |line: &[&str]| {
        let said = routerctl(&daemon, line);
        assert_eq!(said.exit, Exit::Ok, "{}{}", said.out, said.err);
        said.out.lines().next().unwrap().to_owned()
    };
    assert_eq!(say(&["rule", "move", "admin", "--before", "gis"]), "> rule admin moved now first");
    assert_eq!(say(&["rule", "move", "admin", "--last"]), "> rule gis moved now first");
    assert_eq!(say(&["rule", "map", "gis", "web"]), r#"~ rule gis changed pool "maps" → "web""#);
    assert_eq!(
        say(&["rule", "map", "default", "maps"]),
        r#"~ default_rule changed pools ["web"] → ["maps"]"#
    );
    let add = ["rule", "add", "new", "--match", r#"Host("n")"#, "--pool", "web", "--after", "gis"];
    assert_eq!(say(&add).trim_end(), "+ rule new added");
    assert_eq!(
        say(&["rule", "add", "no", "--match", r#"Method("TRACE")"#, "--deny"]).trim_end(),
        "+ rule no added"
    );
    assert_eq!(
        say(&["rule", "set", "gis", "on_unavailable=503"]),
        r#"~ rule gis changed on_unavailable (default) → "503""#
    );
    assert_eq!(say(&["rule", "enable", "gis"]), "~ rule gis changed enabled (default) → true");
    assert_eq!(say(&["rule", "remove", "new"]).trim_end(), "- rule new removed");
    assert_eq!(
        say(&["instance", "set", "gis2", "--state", "drain", "--weight", "10"]),
        r#"~ instance gis2 changed state (default) → "drain", weight 50 → 10"#
    );
    assert_eq!(
        say(&["instance", "add", "gis9", "--pool", "maps", "--address", "10.0.2.29:80", "max_sessions=5"]),
        "+ instance gis9 added to pool maps"
    );
    assert_eq!(say(&["instance", "remove", "gis9"]), "- instance gis9 removed from pool maps");
    assert_eq!(
        say(&["pool", "set", "maps", "check={ type = \"tcp\" }"]),
        r#"~ pool maps changed check (default) → { type = "tcp" }"#
    );
    let rehearsed = routerctl(&daemon, &["changes", "drop", "all", "--dry-run"]).out;
    assert!(
        rehearsed.contains("- rule no removed") && rehearsed.ends_with("this was a dry run\n"),
        "{rehearsed}"
    );
    say(&["changes", "drop", "all"]);
    assert!(routerctl(&daemon, &["changes"]).out.contains("no run-time changes"));
}

#[test]
fn what_makes_no_sense_is_refused_with_the_place_and_the_remedy() {
    let daemon = Daemon::start();
    let refused = |line: &[&str], exit: Exit, text: &str| {
        let said = routerctl(&daemon, line);
        assert_eq!(said.exit, exit, "{}{}", said.out, said.err);
        assert!(said.err.contains(text), "{}", said.err);
    };
    refused(&["rule", "enable", "gsi"], Exit::Negative, "did you mean gis?");
    refused(&["rule", "disable", "default"], Exit::Negative, "always enabled");
    refused(&["rule", "move", "default", "--first"], Exit::Negative, "always last");
    refused(&["rule", "move", "gis"], Exit::Usage, "--before");
    refused(&["rule", "move", "gis", "--first", "--last"], Exit::Usage, "cannot be used with");
    refused(&["rule", "map", "gis", "nowhere"], Exit::Negative, "nowhere");
    refused(&["rule", "add", "x", "--match", "Host(", "--pool", "web"], Exit::Negative, "ends too early");
    refused(&["instance", "set", "gis1", "--state", "asleep"], Exit::Negative, "asleep");
    refused(&["instance", "set", "gis1"], Exit::Negative, "names no key");
    refused(&["instance", "set", "gis1", "weight"], Exit::Usage, "KEY=VALUE");
    refused(&["instance", "remove", "web1"], Exit::Negative, "has no instance");
    refused(&["changes", "drop", "7"], Exit::Negative, "there is no change 7");
    refused(&["changes", "drop", "x"], Exit::Usage, "give a number");
    daemon.edit("pool = \"maps\"", "pool = \"mops\"");
    refused(&["reload"], Exit::Negative, "router.toml:28:8: rule `gis` names pool `mops`");
    refused(&["changes", "write", "--if-revision", "0"], Exit::Negative, "somebody else has changed it");
    assert!(routerctl(&daemon, &["changes"]).out.contains("no run-time changes"));
}

#[test]
fn a_rehearsed_reload_shows_the_plan_and_does_nothing() {
    let daemon = Daemon::start();
    let before = daemon.get("/v1/changes").json()["revision"].clone();
    daemon.edit("weight = 50", "weight = 60");
    daemon.edit("[daemon]\n", "[daemon]\nworkers = 7\n");
    let said = routerctl(&daemon, &["reload", "--dry-run"]);
    assert_eq!(
        said.out,
        "~ instance gis2 changed weight 50 → 60\n\
         ! needs a restart: [daemon] workers (default) → 7\n\
         nothing was changed: this was a dry run\n"
    );
    assert_eq!(daemon.get("/v1/changes").json()["revision"], before);
    let applied = daemon.post("/v1/reload", "").json();
    assert_ne!(applied["revision"], before);
    assert_eq!(applied["differences"][0]["how"], "changed");
    assert_eq!(
        daemon.get("/v1/status").json()["configuration"]["needs_restart"][0],
        "[daemon] workers (default) → 7"
    );
}

#[test]
fn programs_make_several_changes_at_once_and_only_on_what_they_have_seen() {
    let daemon = Daemon::start();
    let revision = daemon.get("/v1/changes").json()["revision"].clone();
    let changes = json!([
        { "change": "rule-move", "rule": "admin", "to": "first" },
        { "change": "instance-set", "instance": "gis1", "settings": { "weight": 7 } },
    ]);
    let request = json!({ "changes": changes, "revision": revision });
    let answer = daemon.post("/v1/changes", request.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(daemon.get("/v1/changes").json()["changes"].as_array().unwrap().len(), 2);
    let again = daemon.post("/v1/changes", request.to_string());
    assert_eq!(again.status, 409, "{}", again.body);
    assert!(again.error().0.contains("somebody else"), "{}", again.body);
    let unknown = daemon.post("/v1/changes", r#"{ "changes": [{ "change": "rule-paint" }] }"#);
    assert_eq!(unknown.status, 400, "{}", unknown.body);
    let nothing = daemon.post("/v1/changes", r#"{ "changes": [] }"#);
    assert_eq!(nothing.status, 400, "{}", nothing.body);
}
