//! What operators see of preloads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Zoned;
use router::cli::Exit;
use router::core::health::Failure;
use router::core::pool::{Instance, Pool, PoolId};
use router::core::preload::{LoadFailure, LoadRequest, Preload, Schedule, Wanted};
use router::core::rules::compile;
use router::core::table::{Action, DefaultRule, Overrides, RoutingTable, Rule};
use serde_json::Value;

use crate::cli::run;
use crate::daemon::Daemon;

/// A rule that opens two resources on one instance: the first opens, the second does not.
fn preload(daemon: &Daemon) {
    let preload = Preload {
        resources: vec!["sales".to_owned(), "stock".to_owned()],
        instances: Wanted::Number(1),
        request: LoadRequest {
            method: "GET".to_owned(),
            path: "/{resource}".to_owned(),
            host: None,
            headers: Vec::new(),
        },
        expect: vec![200..=299],
        every: Duration::from_secs(600),
        timeout: Duration::from_secs(1),
        schedule: Schedule::ALWAYS,
        retries: 0,
        retry_delay: Duration::from_secs(1),
        load_on_exhausted: false,
        update_exhausted: true,
    };
    let rule = Rule {
        name: "maps".to_owned(),
        enabled: true,
        condition: compile("Any()").unwrap(),
        action: Action::Pool(PoolId(0)),
        overrides: Overrides::default(),
        persistence: None,
        preload: Some(Arc::new(preload)),
        hits: Arc::default(),
    };
    let instances = vec![Instance::new("gis1", "10.0.2.11:80".parse().unwrap(), None)];
    let pool = Pool { name: "gis".to_owned(), instances, ..Pool::default() };
    let table = RoutingTable::new(vec![rule], DefaultRule::default(), vec![pool], None).unwrap();
    let table = Arc::new(table);
    let mut planner = daemon.state.preloads.lock().unwrap();
    let now = Instant::now();
    let (tasks, _) = planner.step(&table, now, &Zoned::now(), &mut || 0);
    assert_eq!(tasks.len(), 2);
    for task in tasks {
        let failed = Err(LoadFailure::Instance(Failure::Status(500)));
        let result = if task.resource == "sales" { Ok(200) } else { failed };
        planner.finish(&table, task.ticket, result, now, 0);
    }
}

#[test]
fn each_resource_is_listed_with_its_instance_result_and_next_run() {
    let daemon = Daemon::start();
    preload(&daemon);
    let ran = run(&daemon.socket, &["--json", "preloads"]);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Ok, ""));
    let list: Value = serde_json::from_str(&ran.out).unwrap();
    let [sales, stock] = list.as_array().unwrap().as_slice() else { panic!("{list}") };
    assert_eq!((&sales["state"], &sales["loaded"]), (&"loaded".into(), &true.into()));
    assert_eq!((&sales["last"]["status"], &sales["last"]["failure"]), (&200.into(), &Value::Null));
    assert_eq!((&stock["state"], &stock["loaded"]), (&"stopped".into(), &false.into()));
    assert_eq!(stock["last"]["failure"], "HTTP status 500");
    assert_eq!(stock["failed_attempts"], 1);
    for row in [sales, stock] {
        assert_eq!(
            (&row["rule"], &row["pool"], &row["instance"]),
            (&"maps".into(), &"gis".into(), &"gis1".into())
        );
        assert!((500.0..=660.0).contains(&row["next_in_seconds"].as_f64().unwrap()), "{row}");
        assert!(row["next"].as_i64().unwrap() > row["last"]["at"].as_i64().unwrap(), "{row}");
    }

    let table = run(&daemon.socket, &["preloads"]).out;
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1][..5], ["maps", "sales", "gis", "gis1", "loaded"], "{table}");
    assert_eq!(rows[2][..5], ["maps", "stock", "gis", "gis1", "stopped"], "{table}");
    assert!(table.contains("HTTP status 500"), "{table}");
}

#[test]
fn preloads_are_counted_by_state_and_requests_by_result() {
    let daemon = Daemon::start();
    preload(&daemon);
    let metrics = daemon.get("/metrics").body;
    for line in [
        "router_preloads{state=\"loaded\"} 1",
        "router_preloads{state=\"stopped\"} 1",
        "router_preloads_loaded 1",
        "router_preload_requests_total{result=\"succeeded\"} 1",
        "router_preload_requests_total{result=\"status\"} 1",
        "router_preload_requests_total{result=\"refused\"} 0",
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line} is not in\n{metrics}");
    }
}
