//! What instances report, and what a decision can read of it.

use std::time::{Duration, Instant};

use router::core::agent::AgentReport;
use router::core::health::{Failure, Observation, Reachability, Transition};
use router::core::load::{LoadPolicy, LoadStatus, Report};
use router::core::pool::{AllDown, Instance, Pool};
use router::core::status::{AdminState, Changes};

use crate::support::{InstanceExt, check, instance, pool};

const SECOND: Duration = Duration::from_secs(1);

fn cpu(percent: f64) -> Report {
    Report { cpu_idle_percent: Some(100.0 - percent), ..Report::default() }
}

/// A pool whose only instance must report.
fn reporting() -> Pool {
    Pool { load: LoadPolicy { must_report: true, ..LoadPolicy::default() }, ..pool("p", [instance("a")]) }
}

fn report(pool: &Pool, report: &Report, now: Instant) -> Changes {
    let instance = &pool.instances[0];
    instance.status.report(report, &pool.load, pool.thresholds(instance), now)
}

fn advance(pool: &Pool, now: Instant) -> Changes {
    let instance = &pool.instances[0];
    instance.status.advance(&pool.load, pool.thresholds(instance), now)
}

fn said(pool: &Pool, line: &str, now: Instant) -> Changes {
    let instance = &pool.instances[0];
    instance.status.agent(&AgentReport::parse(line.as_bytes()), &pool.load, pool.thresholds(instance), now)
}

#[test]
fn a_report_changes_the_load_status_and_says_so_once() {
    let pool = reporting();
    let status = &pool.instances[0].status;
    let now = Instant::now();
    assert_eq!(status.load_status(), LoadStatus::Available);
    let changes = report(&pool, &cpu(95.0), now);
    assert_eq!(changes.load, Some((LoadStatus::Available, LoadStatus::Exhausted)));
    assert_eq!(status.load_status(), LoadStatus::Exhausted);
    assert_eq!(report(&pool, &cpu(95.0), now + SECOND).load, None);
    assert_eq!(status.readings(&pool.load, now + SECOND)[0].average, 95.0);
}

#[test]
fn an_average_that_moves_without_a_report_changes_the_status_in_time() {
    let pool = reporting();
    let now = Instant::now();
    report(&pool, &cpu(80.0), now);
    report(&pool, &cpu(80.0), now + 4 * SECOND);
    assert_eq!(report(&pool, &cpu(10.0), now + 6 * SECOND).load, None, "the average is still above");
    let changes = advance(&pool, now + 13 * SECOND);
    assert_eq!(changes.load, Some((LoadStatus::Strained, LoadStatus::Available)));
}

#[test]
fn an_instance_with_thresholds_of_its_own_is_judged_by_them() {
    let mut pool = reporting();
    pool.instances[0].thresholds = Some(Box::new(router::core::load::Thresholds::OFF));
    assert_eq!(report(&pool, &cpu(100.0), Instant::now()).load, None);
}

#[test]
fn a_silent_instance_is_out_of_contact_and_rejoins_with_its_next_report() {
    let pool = reporting();
    let status = &pool.instances[0].status;
    let ttl = pool.load.report_ttl;
    let now = Instant::now();
    report(&pool, &cpu(99.0), now);
    assert_eq!(advance(&pool, now + ttl).reachability, None);
    let lost = advance(&pool, now + ttl + SECOND);
    let transition = Transition { to: Reachability::OutOfContact, failure: None };
    assert_eq!(lost.reachability, Some(transition));
    assert_eq!(status.reachability(), Reachability::OutOfContact);
    assert_eq!(status.load_status(), LoadStatus::Available, "what it said is too old to count");
    assert_eq!(advance(&pool, now + ttl + 2 * SECOND).reachability, None, "said once");
    let back = report(&pool, &cpu(10.0), now + ttl + 3 * SECOND);
    assert_eq!(back.reachability.unwrap().to, Reachability::Up);
    assert_eq!(status.health_counts().lost_contact.get(), 1);
}

#[test]
fn an_instance_that_never_reports_is_given_the_same_time() {
    let pool = reporting();
    let now = Instant::now();
    assert_eq!(advance(&pool, now).reachability, None);
    assert_eq!(advance(&pool, now + pool.load.report_ttl).reachability, None);
    assert!(advance(&pool, now + pool.load.report_ttl + SECOND).reachability.is_some());
}

#[test]
fn an_instance_that_need_not_report_any_more_is_back_in_contact() {
    let mut pool = reporting();
    let now = Instant::now();
    advance(&pool, now);
    advance(&pool, now + 60 * SECOND);
    assert_eq!(pool.instances[0].status.reachability(), Reachability::OutOfContact);
    pool.load.must_report = false;
    assert_eq!(advance(&pool, now + 61 * SECOND).reachability.unwrap().to, Reachability::Up);
    pool.load.must_report = true;
    assert_eq!(advance(&pool, now + 62 * SECOND).reachability, None, "its time begins anew");
}

#[test]
fn an_agent_weighs_limits_drains_and_takes_down() {
    let pool = reporting();
    let one = &pool.instances[0];
    let now = Instant::now();
    said(&pool, "50% maxconn:3 drain", now);
    assert_eq!(pool.weight(one, now), 50);
    assert_eq!((one.status.max_sessions(None), one.status.max_sessions(Some(2))), (Some(3), Some(2)));
    assert_eq!(one.status.admin(), AdminState::Drain);
    assert_eq!(said(&pool, "ready 40", now), Changes::default());
    assert_eq!(one.status.admin(), AdminState::Enabled);
    assert_eq!(one.status.gauges().agent_value(pool.load.report_ttl, now), Some(40));
    let down = said(&pool, "-1 #disk is gone", now).reachability.unwrap();
    assert_eq!((down.to, down.failure), (Reachability::Down, Some(Failure::AgentSaysDown)));
    assert_eq!(one.status.agent_text(), "disk is gone");
    assert_eq!(said(&pool, "up", now).reachability.unwrap().to, Reachability::Up);
}

#[test]
fn what_the_operator_wants_stays_when_the_agent_says_ready() {
    let pool = pool("p", [instance("a").state(AdminState::Maintenance)]);
    let now = Instant::now();
    said(&pool, "ready", now);
    assert_eq!(pool.instances[0].status.admin(), AdminState::Maintenance);
    pool.instances[0].status.set_admin(AdminState::Enabled);
    said(&pool, "maint", now);
    assert_eq!(pool.instances[0].status.admin(), AdminState::Maintenance);
    assert_eq!(pool.instances[0].status.operator_admin(), AdminState::Enabled);
    pool.instances[0].status.forget_agent();
    assert_eq!(pool.instances[0].status.admin(), AdminState::Enabled);
}

#[test]
fn a_line_that_says_nothing_is_no_sign_of_life() {
    let pool = reporting();
    let now = Instant::now();
    advance(&pool, now);
    advance(&pool, now + 60 * SECOND);
    assert_eq!(said(&pool, "sideways", now + 61 * SECOND), Changes::default());
    let status = &pool.instances[0].status;
    assert_eq!(status.reachability(), Reachability::OutOfContact);
    assert_eq!(status.health_counts().agent_words_ignored.get(), 1);
}

#[test]
fn an_instance_that_comes_back_starts_slowly_and_one_that_was_found_up_does_not() {
    let mut pool = pool("p", [instance("a")]);
    pool.slow_start = 10 * SECOND;
    let one: &Instance = &pool.instances[0];
    let now = Instant::now();
    let see = |seen, after| one.status.observe(Some(&check()), seen, now + after * SECOND);
    see(Observation::CheckPassed, 0);
    assert_eq!(pool.weight(one, now), 100);
    see(Observation::TrafficFailed(Failure::Refused), 1);
    see(Observation::CheckPassed, 2);
    see(Observation::CheckPassed, 3);
    let weights = [3, 4, 8, 13, 20].map(|after| pool.weight(one, now + after * SECOND));
    assert_eq!(weights, [1, 10, 50, 100, 100]);
}

#[test]
fn a_pool_fails_open_only_if_it_says_so_and_every_check_fails() {
    let failed = |one: Instance| {
        one.status.observe(Some(&check()), Observation::CheckFailed(Failure::Status(500)), Instant::now());
        one
    };
    let mut pool = pool("p", [failed(instance("a")), instance("b")]);
    pool.all_down = AllDown::FailOpen;
    assert!(!pool.fails_open(), "b has not been checked");
    pool.instances[1] = failed(instance("b"));
    assert!(pool.fails_open());
    assert_eq!(pool.instances[0].status.reachability_without_checks(), Reachability::Up);
    pool.all_down = AllDown::FailClosed;
    assert!(!pool.fails_open());
}

#[test]
fn resources_are_known_as_long_as_their_report_counts() {
    let pool = reporting();
    let status = &pool.instances[0].status;
    let now = Instant::now();
    let ttl = pool.load.report_ttl;
    let loaded = Report { resources: Some(vec!["sales".to_owned()]), ..Report::default() };
    report(&pool, &loaded, now);
    report(&pool, &cpu(10.0), now + SECOND);
    assert!(status.reports_loaded("sales", ttl, now + ttl) && !status.reports_loaded("hr", ttl, now));
    assert!(!status.reports_loaded("sales", ttl, now + ttl + SECOND));
    report(&pool, &Report { resources: Some(vec![]), ..Report::default() }, now + SECOND);
    assert!(!status.reports_loaded("sales", ttl, now + SECOND));
}
