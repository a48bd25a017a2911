//! `routerctl simulate`, which needs no daemon.

use std::fs;
use std::path::{Path, PathBuf};

use router::cli::Exit;

use crate::cli::{Ran, run};
use crate::daemon::Directory;

const LOG: &str = "\
10.2.0.1 - - [30/Nov/2026:10:00:00 +0000] \"GET /maps/1 HTTP/1.1\" 200 5 \"-\" \"curl\" \"gis.example\"
yesterday's news
10.2.0.2 - - [30/Nov/2026:10:00:01 +0000] \"GET /other HTTP/1.1\" 200 5 \"-\" \"curl\" \"gis.example\"
10.2.0.3 - - [30/Nov/2026:10:00:02 +0000] \"GET /maps/2 HTTP/1.1\" 200 5 \"-\" \"curl\" \"gis.example\"
";

fn config(directory: &Path, name: &str, method: &str) -> PathBuf {
    let file = directory.join(name);
    let text = format!(
        "[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\nresource = {{ query = \"map\" }}\n\
         [[pool]]\nname = \"p\"\nmethod = \"{method}\"\n\
         [[pool.instance]]\nname = \"a\"\naddress = \"10.1.0.1:80\"\n\
         [[pool.instance]]\nname = \"b\"\naddress = \"10.1.0.2:80\"\n\
         [[rule]]\nname = \"maps\"\nmatch = 'Host(\"gis.example\") && PathPrefix(\"/maps/\")'\npool = \"p\"\n"
    );
    fs::write(&file, text).unwrap();
    file
}

fn simulate(directory: &Directory, arguments: &[&str]) -> Ran {
    run(&directory.path().join("no.sock"), &[&["simulate"], arguments].concat())
}

fn line<'a>(ran: &'a Ran, begin: &str) -> Vec<&'a str> {
    let line = ran.out.lines().find(|line| line.starts_with(begin));
    line.unwrap_or_else(|| panic!("no line {begin:?} in\n{}{}", ran.out, ran.err))
        .split_whitespace()
        .collect()
}

#[test]
fn two_configurations_stand_side_by_side() {
    let directory = Directory::new();
    let a = config(directory.path(), "a.toml", "fewest-sessions");
    let b = config(directory.path(), "b.toml", "round-robin");
    let ran = simulate(
        &directory,
        &[
            "--config",
            a.to_str().unwrap(),
            "--against",
            b.to_str().unwrap(),
            "--count",
            "2000",
            "--resources",
            "20",
        ],
    );
    assert_eq!((ran.err.as_str(), ran.exit), ("", Exit::Ok));
    assert!(ran.out.starts_with("2000 requests in "), "{}", ran.out);
    assert_eq!(line(&ran, "served"), ["served", "2000", "2000", "+0"]);
    assert_eq!(line(&ran, "default"), ["default", "2000", "2000", "+0", "100.00", "%", "100.00", "%"]);
    assert_eq!(line(&ran, "method"), ["method", "fewest-sessions", "round-robin"]);
    let requests = |name: &str, column: usize| line(&ran, name)[column].parse::<u32>().unwrap();
    for column in [1, 2] {
        assert_eq!(requests("a ", column) + requests("b ", column), 2000);
    }
}

#[test]
fn an_access_log_is_simulated_and_what_is_wrong_with_it_is_said() {
    let directory = Directory::new();
    let file = config(directory.path(), "a.toml", "fewest-sessions");
    let log = directory.path().join("access.log");
    fs::write(&log, LOG).unwrap();
    let arguments = ["--config", file.to_str().unwrap(), "--requests", log.to_str().unwrap()];
    let ran = simulate(&directory, &arguments);
    assert_eq!((ran.err.as_str(), ran.exit), ("", Exit::Ok));
    assert!(ran.out.starts_with("3 requests in 2.0 s of simulated time"), "{}", ran.out);
    assert!(ran.out.contains("1 of 4 lines skipped: no time"), "{}", ran.out);
    assert!(ran.out.contains("the first of them is line 2"), "{}", ran.out);
    assert_eq!(line(&ran, "maps"), ["maps", "2", "66.67", "%"]);
    let json = simulate(&directory, &[&arguments[..], &["--json"]].concat());
    let report: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(report["requests"], 3);
    assert_eq!(report["log"]["first_malformed"], 2);
    assert_eq!(report["configurations"][0]["outcomes"]["served"], 3);
}

#[test]
fn every_mistake_of_both_files_is_shown_with_its_place() {
    let directory = Directory::new();
    let a = config(directory.path(), "a.toml", "no-such-method");
    let b = config(directory.path(), "b.toml", "neither-this");
    let ran = simulate(&directory, &["--config", a.to_str().unwrap(), "--against", b.to_str().unwrap()]);
    assert_eq!((ran.out.as_str(), ran.exit), ("", Exit::Negative));
    assert!(ran.err.contains("a.toml:7:10") && ran.err.contains("b.toml:7:10"), "{}", ran.err);
}

#[test]
fn a_question_that_makes_no_sense_says_why() {
    let directory = Directory::new();
    let file = config(directory.path(), "a.toml", "fewest-sessions");
    for (arguments, says) in [
        (["--requests", "no-such.log"], "no-such.log: No such file"),
        (["--listener", "none"], "has no listener \"none\"; it has web"),
        (["--rate", "0"], "from 0.001"),
        (["--stay", "soon"], "such as 90s"),
        (["--path", "maps"], "begins with /"),
    ] {
        let ran = simulate(&directory, &[&["--config", file.to_str().unwrap()][..], &arguments].concat());
        assert_eq!((ran.out.as_str(), ran.exit), ("", Exit::Usage), "{arguments:?}");
        assert!(ran.err.contains(says), "{}", ran.err);
    }
}
