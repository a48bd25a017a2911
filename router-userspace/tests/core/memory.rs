//! Sessions: they stay where they are, whatever rules and loads do, until they are idle for too long.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use router::core::decide::{Attempt, Outcome};
use router::core::memory::MemoryLimits;
use router::core::memory::places::PlaceKey;
use router::core::session::Session;
use router::core::status::AdminState;
use router::core::table::{ACTIVE_SESSION_NAME, Action, RoutingTable};

use crate::support::*;

const SECOND: Duration = Duration::from_secs(1);

fn two() -> RoutingTable {
    with_identities(one_pool(["a", "b"].map(instance)))
}

fn with_session(key: &'static str) -> Ask {
    get("/").header("Cookie", Box::leak(format!("x=1; S={key}").into_boxed_str()))
}

#[test]
fn a_session_stays_on_its_instance_across_strain_exhaustion_and_drain() {
    let table = two();
    let now = Instant::now();
    let (home, _held) = table.place_at(&with_session("one"), now).unwrap();
    let stays = |why: &str| assert_eq!(table.place_at(&with_session("one"), now).unwrap().0, home, "{why}");
    let _others = sessions(table.instance(table.id(&home)), 50);
    stays("load");
    busy(&table, &home, 60.0, now);
    stays("strained");
    busy(&table, &home, 99.0, now);
    stays("exhausted");
    table.instance(table.id(&home)).status.set_admin(AdminState::Drain);
    stays("draining");
    assert_ne!(table.place_at(&with_session("two"), now).unwrap().0, home, "a new session goes elsewhere");
}

#[test]
fn an_active_session_comes_before_any_rule() {
    let rules = vec![rule("first", r#"Path("/")"#, FIRST), rule("no", "Any()", Action::Deny { status: 403 })];
    let table = with_identities(table(rules, vec![pool("p", ["a", "b"].map(instance))]));
    let (home, _held) = table.place(&with_session("one"), &[]).unwrap();
    let mut elsewhere = with_session("one");
    elsewhere.target = "/elsewhere".to_owned();
    let decision = table.ask(&elsewhere);
    assert_eq!(table.rule_name(decision.rule), ACTIVE_SESSION_NAME);
    assert_eq!(decision.outcome.instance(), Some(table.id(&home)));
    let trace = elsewhere.seen(|request| table.explain(request, &Attempt::first(Instant::now())));
    assert!(trace.rules.is_empty() && trace.session.is_some_and(|session| session.usable));
}

#[test]
fn a_session_whose_instance_is_down_or_in_maintenance_moves_and_stays_there() {
    let table = two();
    let (home, _held) = table.place(&with_session("one"), &[]).unwrap();
    table.instance(table.id(&home)).status.set_admin(AdminState::Maintenance);
    let (second, _held) = table.place(&with_session("one"), &[]).unwrap();
    assert_ne!(second, home);
    table.instance(table.id(&home)).status.set_admin(AdminState::Enabled);
    assert_eq!(table.goes_to(&with_session("one")), second, "it does not move back");
    assert_eq!(table.memory().counts.sessions_moved.get(), 1);
}

#[test]
fn a_session_ends_after_its_idle_time_but_not_while_a_connection_is_open() {
    let table = two();
    let now = Instant::now();
    let (home, held) = table.place_at(&with_session("one"), now).unwrap();
    let memory = table.memory();
    memory.sweep(now + 300 * SECOND);
    assert_eq!(memory.sessions.len(), 1, "its connection is open");
    drop(held);
    let _busy = sessions(table.instance(table.id(&home)), 9);
    let later = now + 330 * SECOND;
    assert_eq!(table.place_at(&with_session("one"), later).unwrap().0, home, "idle for half a minute");
    memory.sweep(later + 61 * SECOND);
    assert!(memory.sessions.is_empty());
    assert_eq!(memory.sessions.expired.get(), 1);
    assert_ne!(table.place_at(&with_session("one"), later + 62 * SECOND).unwrap().0, home, "a new session");
}

#[test]
fn sessions_of_two_listeners_are_two_sessions_even_with_the_same_key() {
    let table = two();
    table.goes_to(&with_session("one"));
    let mut other = with_session("one");
    other.listener = "other";
    table.goes_to(&other);
    assert_eq!(table.memory().sessions.len(), 1, "the other listener looks for no sessions");
}

#[test]
fn a_reload_keeps_sessions_and_forgets_those_of_instances_that_are_gone() {
    let before = two();
    let (home, _held) = before.place(&with_session("one"), &[]).unwrap();
    let mut same = two();
    same.carry_over(&before);
    let _busy = sessions(same.instance(same.id(&home)), 9);
    assert_eq!(same.goes_to(&with_session("one")), home);
    let mut without = with_identities(one_pool([instance("c")]));
    without.carry_over(&same);
    assert_eq!(without.goes_to(&with_session("one")), "c");
}

#[test]
fn the_table_of_sessions_is_bounded_and_evictions_are_counted() {
    let table = two().with_memory(MemoryLimits::of(64));
    for number in 0..1_000 {
        table.goes_to(&with_session(Box::leak(format!("s{number}").into_boxed_str())));
    }
    let sessions = &table.memory().sessions;
    assert!(sessions.len() <= 64);
    assert_eq!(sessions.evicted.get() as usize, 1_000 - sessions.len());
}

#[test]
fn a_reload_may_change_how_many_sessions_are_remembered() {
    let sized = |limit| two().with_memory(MemoryLimits::of(limit));
    let before = sized(64 * 64);
    let now = Instant::now();
    let session = |number: u64| with_session(Box::leak(format!("s{number}").into_boxed_str()));
    let known = |table: &RoutingTable, number: u64| {
        let key = format!("s{number}");
        let key = PlaceKey { scope: "web", key: key.as_bytes() };
        table.memory().sessions.find(key, now + SECOND).is_some()
    };
    // The first of all is the only one that is still connected.
    let held = before.place_at(&session(0), now).unwrap();
    for number in 1..400 {
        before.place_at(&session(number), now + Duration::from_millis(number)).unwrap();
    }
    assert_eq!(before.memory().sessions.len(), 400);

    let mut smaller = sized(128);
    smaller.carry_over(&before);
    let sessions = &smaller.memory().sessions;
    let left: Vec<u64> = (0..400).filter(|&number| known(&smaller, number)).collect();
    assert!(left.len() == sessions.len() && left.len() <= 128, "{left:?}");
    assert_eq!(sessions.evicted.get() as usize, 400 - left.len());
    assert!(left.contains(&0), "who is connected stays");
    // Each of the 64 parts keeps its two latest, so the latest of all is among them.
    assert!(left.contains(&399), "{left:?}");

    let mut larger = sized(64 * 64);
    larger.carry_over(&smaller);
    let kept = left.len();
    for number in 400..600 {
        larger.place_at(&session(number), now + Duration::from_millis(number)).unwrap();
    }
    assert_eq!(larger.memory().sessions.len(), kept + 200, "there is room again, and nothing more is lost");
    drop(held);
}

/// Six equal requests of six workers at the same moment, and where each went.
fn place_at_once(table: &RoutingTable, ask: &Ask) -> Vec<(String, Session)> {
    let start = Barrier::new(6);
    thread::scope(|scope| {
        let place = || {
            start.wait();
            table.place(ask, &[]).unwrap()
        };
        let workers: Vec<_> = (0..6).map(|_| scope.spawn(place)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

#[test]
fn connections_of_one_session_that_come_at_the_same_moment_meet_on_one_instance() {
    for round in 0..200 {
        let table = with_identities(one_pool(["a", "b", "c", "d"].map(instance)));
        let homes = place_at_once(&table, &with_session("one"));
        assert!(homes.iter().all(|(home, _)| *home == homes[0].0), "round {round}: {homes:?}");
        assert_eq!(table.live(&homes[0].0), 6);
    }
}

#[test]
fn a_resource_that_is_asked_for_at_the_same_moment_opens_once() {
    for round in 0..200 {
        let table = with_identities(one_pool(["a", "b", "c", "d"].map(instance)));
        let homes = place_at_once(&table, &get("/map/sales"));
        assert!(homes.iter().all(|(home, _)| *home == homes[0].0), "round {round}: {homes:?}");
    }
}

#[test]
fn a_session_keeps_its_resource_loaded_after_the_connection_has_closed() {
    let table = two();
    let now = Instant::now();
    let mut sales = with_session("one");
    sales.target = "/map/sales".to_owned();
    let (home, held) = table.place_at(&sales, now).unwrap();
    drop(held);
    let _busy = sessions(table.instance(table.id(&home)), 9);
    assert_eq!(table.place_at(&get("/map/sales"), now).unwrap().0, home);
    table.memory().sweep(now + 61 * SECOND);
    assert_ne!(table.place_at(&get("/map/sales"), now + 61 * SECOND).unwrap().0, home, "the session is over");
}

#[test]
fn a_list_shows_sessions_and_a_snapshot_brings_them_back() {
    let before = two();
    let now = Instant::now();
    let (home, _held) = before.place_at(&with_session("one"), now).unwrap();
    let list = before.memory().sessions.list(now, 10);
    assert_eq!((list.len(), list[0].scope.as_str(), list[0].connections), (1, "web", 1));
    assert_eq!(before.id_of(list[0].instance), Some(before.id(&home)));

    let after = two();
    let _busy = sessions(after.instance(after.id(&home)), 9);
    let key = router::core::memory::places::PlaceKey { scope: &list[0].scope, key: &list[0].key };
    let counters = after.instance(after.id(&home)).status.sessions();
    after.memory().sessions.restore(key, counters, list[0].idle_timeout, now);
    assert_eq!(after.place_at(&with_session("one"), now).unwrap().0, home);
    assert!(matches!(after.outcome(&get("/")), Outcome::Instance { .. }));
}
