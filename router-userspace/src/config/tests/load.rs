//! Thresholds, agents and reports, as an operator writes them.

use std::time::Duration;

use super::{BASE, TestFile, problems, problems_of, warnings};
use crate::config::parse;
use crate::core::load::{LoadPolicy, Metric, Threshold};
use crate::core::pool::AllDown;

/// The smallest configuration with more in its pool.
fn with_pool(extra: &str) -> String {
    BASE.replace("name = \"app\"\n", &format!("name = \"app\"\n{extra}\n"))
}

fn refused(extra: &str) -> String {
    problems(&with_pool(extra)).replace("r.toml:", "")
}

#[test]
fn a_pool_that_says_nothing_is_judged_by_the_usual_thresholds_and_waits_for_no_reports() {
    let plan = parse("r.toml", BASE).unwrap();
    let pool = &plan.table.pools()[0];
    assert_eq!(pool.load, LoadPolicy::default());
    assert_eq!((pool.all_down, pool.slow_start), (AllDown::FailClosed, Duration::ZERO));
    assert!(pool.agent.is_none() && pool.registration.is_none() && plan.reports.is_none());
    let same = parse("r.toml", &with_pool("thresholds = {}")).unwrap();
    assert_eq!(same.table.pools()[0].load, LoadPolicy::default(), "the defaults are written twice");
}

#[test]
fn thresholds_are_numbers_pairs_or_switched_off_and_an_instance_says_only_what_differs() {
    let pool = "thresholds = { strained_cpu = 60, exhausted_cpu = -1, strained_sessions = [200, 150], window = \"30s\" }";
    let text = with_pool(pool)
        .replace("name = \"app1\"", "name = \"app1\"\nnode = \"host7\"\nthresholds = { strained_cpu = -1 }");
    let plan = parse("r.toml", &text).unwrap();
    let pool = &plan.table.pools()[0];
    let threshold = |enter, leave| Some(Threshold { enter, leave });
    let thresholds = &pool.load.thresholds;
    assert_eq!(thresholds.of(Metric::Cpu).strained, threshold(60.0, 55.0));
    assert_eq!(thresholds.of(Metric::Cpu).exhausted, None);
    assert_eq!(thresholds.of(Metric::Memory).strained, threshold(75.0, 70.0), "left out: the default");
    assert_eq!(thresholds.of(Metric::Sessions).strained, threshold(200.0, 150.0));
    assert_eq!(pool.load.window, Duration::from_secs(30));
    let instance = &pool.instances[0];
    assert_eq!(instance.node.as_deref(), Some("host7"));
    assert_eq!(pool.thresholds(instance).of(Metric::Cpu).strained, None);
    assert_eq!(pool.thresholds(instance).of(Metric::Sessions).strained, threshold(200.0, 150.0));
}

#[test]
fn thresholds_that_make_no_sense_are_refused() {
    const HELP: &str = "write where it begins, or [begin, end], or -1 to switch it off";
    assert_eq!(
        refused("thresholds = { strained_cpu = 101 }"),
        format!("8:31: `strained_cpu` must be a number from 0 to 100, or -1, not the number 101 ({HELP})")
    );
    assert_eq!(
        refused("thresholds = { strained_cpu = [50, 60] }"),
        "8:31: `strained_cpu` ends above its begin: 60 is greater than 50 (write [60, 50])"
    );
    assert_eq!(
        refused("thresholds = { strained_cpu = [50] }"),
        "8:31: `strained_cpu` must be one number or two (write where it begins and where it ends, such as [50, 45])"
    );
    assert_eq!(
        refused("thresholds = { strained_cpu = 95 }"),
        "8:31: `strained_cpu` must not be above `exhausted_cpu`: [95, 90] and [90, 85] (an instance is strained before it is exhausted; -1 switches one off)"
    );
    assert_eq!(refused("thresholds = { strained_cpu = 95, exhausted_cpu = -1 }"), "");
}

#[test]
fn an_agents_value_is_known_for_as_long_as_three_of_its_answers() {
    let plan = parse("r.toml", &with_pool("agent = { port = 1510, interval = \"1m\" }")).unwrap();
    let pool = &plan.table.pools()[0];
    assert_eq!(pool.load.report_ttl, Duration::from_secs(180));
    assert!(!pool.load.must_report, "an agent that cannot be reached is no failure");
    assert_eq!(pool.agent.as_ref().unwrap().port, 1510);
    assert_eq!(
        refused("agent = { port = 1510, timeout = \"3s\" }"),
        "8:34: an agent's `timeout` (3s) must not be longer than its `interval` (2s) (or questions to one agent would overlap)"
    );
}

#[test]
fn reports_need_a_listener_and_a_token_and_a_pool_may_consist_of_those_who_report() {
    let file = TestFile::holding("app.token", "0123456789abcdef\n");
    let reports =
        format!("reports = {{ token_file = \"{}\", ttl = \"6s\", allow_registration = true }}", file.path());
    assert_eq!(
        refused(&reports),
        "8:11: pool `app` is to report, but nobody listens for reports (add [reports] with a line such as: listen = \"10.0.2.1:9190\")"
    );
    let listen = "[reports]\nlisten = \"10.0.2.1:9190\"\n";
    let text = format!(
        "[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\n[[pool]]\nname = \"app\"\n{reports}\n{listen}"
    );
    let plan = parse("r.toml", &text).unwrap();
    let pool = &plan.table.pools()[0];
    assert!(pool.instances.is_empty() && pool.load.must_report);
    assert_eq!(pool.load.report_ttl, Duration::from_secs(6));
    assert_eq!(pool.registration.unwrap().forget_after, Duration::from_secs(600));
    let plan = plan.reports.unwrap();
    assert_eq!(plan.listen, "10.0.2.1:9190".parse().unwrap());
    assert!(plan.tokens[0].pool == "app" && plan.tokens[0].token.is(b"0123456789abcdef"));
    assert_eq!(
        warnings(&format!("{BASE}{listen}")),
        "r.toml:13:10: warning: no pool has `reports`, so every report will be refused (add reports = { token_file = \"…\" } to the pools whose instances report)"
    );
    assert_eq!(
        problems(
            &text
                .replace("{ token_file", "{ ttl = \"6s\", forget_after = \"5s\", token_file")
                .replace(", ttl = \"6s\", allow", ", allow")
        ),
        "r.toml:6:40: `forget_after` (5s) must not be shorter than `ttl` (6s) (an instance is out of contact before it is forgotten)"
    );
}

#[test]
fn reports_do_not_come_in_where_clients_do() {
    assert_eq!(
        problems_of("[reports]\nlisten = \"10.0.1.1:80\"\n"),
        "2:10: `listen` 10.0.1.1:80 is the address of a listener (use another port)"
    );
}
