//! How one of several candidates is picked. The worked examples bear their names.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use router::core::choose::LostBy;
use router::core::decide::Attempt;
use router::core::explain::InstanceResult;
use router::core::load::Report;
use router::core::methods::response::FRESH;
use router::core::pool::{Instance, Method};
use router::core::table::{Overrides, RoutingTable};

use crate::support::*;

const MEGABYTE: u64 = 1 << 20;

fn by(method: Method, instances: impl IntoIterator<Item = Instance>) -> RoutingTable {
    let mut pool = pool("pool", instances);
    pool.method = method;
    table(vec![], vec![pool])
}

fn observe(table: &RoutingTable, name: &str, milliseconds: u64, now: Instant) {
    let counters = table.instance(table.id(name)).status.sessions();
    counters.response().observe(Duration::from_millis(milliseconds), now);
}

/// Where `count` requests go whose sessions end at once.
fn turns(table: &RoutingTable, count: usize) -> String {
    (0..count).map(|_| table.goes_to(&get("/"))).collect()
}

#[test]
fn least_cpu_london_capacity_500_idle_25_weight_75_beats_paris_capacity_100_idle_50_weight_100() {
    let table = by(Method::LeastCpu, [instance("paris"), instance("london").weight(75)]);
    let now = Instant::now();
    let cpu = |capacity, idle| Report {
        cpu_capacity: Some(capacity),
        cpu_idle_percent: Some(idle),
        ..Report::default()
    };
    report(&table, "london", &cpu(500.0, 25.0), now);
    report(&table, "paris", &cpu(100.0, 50.0), now);
    // Both are strained by their CPU, so the method decides.
    let trace = get("/").seen(|request| table.explain(request, &Attempt::first(now)));
    let figure = |name: &str| trace.instances.iter().find(|one| one.name == name).unwrap().figure;
    assert_eq!((figure("london"), figure("paris")), (Some(9375.0), Some(5000.0)));
    assert_eq!(table.place_at(&get("/"), now).unwrap().0, "london");
}

#[test]
fn most_free_memory_london_250_mb_weight_100_paris_500_mb_weight_75_chooses_paris() {
    let table = by(Method::MostFreeMemory, [instance("london"), instance("paris").weight(75)]);
    let now = Instant::now();
    let free = |megabytes: u64| Report {
        memory_total: Some(800 * MEGABYTE),
        memory_free: Some(700 * MEGABYTE),
        virtual_memory_free: Some(megabytes * MEGABYTE),
        ..Report::default()
    };
    report(&table, "london", &free(250), now);
    report(&table, "paris", &free(500), now);
    assert_eq!(table.place_at(&get("/"), now).unwrap().0, "paris");
    let trace = get("/").seen(|request| table.explain(request, &Attempt::first(now)));
    let figures: Vec<_> = trace.instances.iter().map(|one| one.figure.unwrap() / MEGABYTE as f64).collect();
    assert_eq!(figures, [250.0, 375.0]);
    assert_eq!(trace.instances[0].result, InstanceResult::Lost(LostBy::Load));
}

#[test]
fn without_a_fresh_report_of_every_candidate_the_choice_falls_back_to_sessions_and_is_counted() {
    let methods = [
        Method::LeastCpu,
        Method::MostFreeMemory,
        Method::ServerAgent,
        Method::FastestResponse,
        Method::Adaptive,
    ];
    for method in methods {
        let table = by(method, [instance("reports"), instance("silent")]);
        let now = Instant::now();
        let all = Report {
            cpu_idle_percent: Some(90.0),
            memory_free: Some(MEGABYTE),
            agent_value: Some(1),
            ..Report::default()
        };
        report(&table, "reports", &all, now);
        observe(&table, "reports", 1, now);
        let _held = sessions(table.instance(table.id("reports")), 1);
        let trace = get("/").seen(|request| table.explain(request, &Attempt::first(now)));
        assert_eq!((trace.asked_method, trace.method), (method, Method::FewestSessions));
        assert_eq!(table.memory().counts.fallbacks(method).get(), 0, "explaining counts nothing");
        assert_eq!(table.place_at(&get("/"), now).unwrap().0, "silent", "{method:?}");
        assert_eq!(table.memory().counts.fallbacks(method).get(), 1);
    }
}

#[test]
fn an_instance_that_is_no_candidate_need_not_report() {
    let table = by(Method::ServerAgent, [instance("a"), instance("b"), instance("gone").down()]);
    let now = Instant::now();
    for (name, value) in [("a", 40), ("b", 30)] {
        report(&table, name, &Report { agent_value: Some(value), ..Report::default() }, now);
    }
    let _held = sessions(table.instance(table.id("b")), 5);
    assert_eq!(table.place_at(&get("/"), now).unwrap().0, "b");
    assert_eq!(table.memory().counts.fallbacks(Method::ServerAgent).get(), 0);
}

#[test]
fn round_robin_takes_turns_whatever_the_sessions() {
    let table = by(Method::RoundRobin, ["a", "b", "c"].map(instance));
    let _held = sessions(table.instance(table.id("a")), 50);
    assert_eq!(turns(&table, 9), "abcabcabc");
}

#[test]
fn round_robin_spreads_the_turns_of_a_heavy_instance() {
    let table = by(Method::RoundRobin, [instance("a").weight(300), instance("b")]);
    assert_eq!(turns(&table, 8), "abaaabaa");
    let table = by(Method::RoundRobin, [instance("a").weight(500), instance("b"), instance("c")]);
    let seen = turns(&table, 70);
    assert_eq!(["a", "b", "c"].map(|name| seen.matches(name).count()), [50, 10, 10]);
    assert!(!seen.contains("aaaaaa"), "never in a row: {seen}");
}

#[test]
fn round_robin_lets_nobody_catch_up_after_a_pause() {
    let table = by(Method::RoundRobin, ["a", "b"].map(instance));
    let b = table.instance(table.id("b"));
    turns(&table, 2);
    b.status.set_admin(router::core::status::AdminState::Maintenance);
    assert_eq!(turns(&table, 20), "a".repeat(20));
    b.status.set_admin(router::core::status::AdminState::Enabled);
    let seen = turns(&table, 10);
    assert_eq!(seen.matches('b').count(), 5, "{seen}");
}

#[test]
fn fastest_response_prefers_the_smallest_weighted_average() {
    let table =
        by(Method::FastestResponse, [instance("slow"), instance("fast"), instance("big").weight(400)]);
    let now = Instant::now();
    for (name, milliseconds) in [("slow", 50), ("fast", 20), ("big", 60)] {
        observe(&table, name, milliseconds, now);
    }
    assert_eq!(table.place_at(&get("/"), now).unwrap().0, "big", "60 ms × 100 / 400 is 15");
}

#[test]
fn an_instance_that_was_slow_long_ago_is_tried_again() {
    let table = by(Method::FastestResponse, [instance("was-slow"), instance("fast")]);
    let now = Instant::now();
    observe(&table, "was-slow", 5_000, now);
    let later = now + FRESH + Duration::from_secs(1);
    observe(&table, "fast", 1, later);
    let _held = sessions(table.instance(table.id("fast")), 1);
    assert_eq!(table.place_at(&get("/"), later).unwrap().0, "was-slow");
}

#[test]
fn server_agent_takes_the_lowest_value_and_ties_go_to_the_fewest_sessions() {
    let table = by(Method::ServerAgent, ["a", "b", "c"].map(instance));
    let now = Instant::now();
    for (name, value) in [("a", 20), ("b", 10), ("c", 10)] {
        report(&table, name, &Report { agent_value: Some(value), ..Report::default() }, now);
    }
    let _held = sessions(table.instance(table.id("b")), 1);
    assert_eq!(table.place_at(&get("/"), now).unwrap().0, "c");
}

#[test]
fn adaptive_weighs_response_time_sessions_and_agent_together() {
    let table = by(Method::Adaptive, ["a", "b"].map(instance));
    let now = Instant::now();
    for name in ["a", "b"] {
        observe(&table, name, 10, now);
    }
    let held = sessions(table.instance(table.id("a")), 1);
    assert_eq!(table.place_at(&get("/"), now).unwrap().0, "b", "fewer sessions");
    observe(&table, "b", 1_000, now);
    assert_eq!(table.place_at(&get("/"), now).unwrap().0, "a", "b has become slow");
    drop(held);
    report(&table, "a", &Report { agent_value: Some(100), ..Report::default() }, now);
    observe(&table, "a", 800, now);
    assert_eq!(table.place_at(&get("/"), now).unwrap().0, "b", "a's agent says that it is full");
}

#[test]
fn a_rule_can_ask_for_another_method_than_its_pool() {
    let mut own = rule("own", r#"PathPrefix("/own")"#, FIRST);
    own.overrides = Overrides { method: Some(Method::RoundRobin), ..Overrides::default() };
    let table = table(vec![own], vec![pool("pool", ["a", "b"].map(instance))]);
    let _held = sessions(table.instance(table.id("a")), 3);
    let seen: String = (0..4).map(|_| table.goes_to(&get("/own"))).collect();
    assert_eq!(seen, "abab");
    assert_eq!(table.goes_to(&get("/")), "b");
}

/// Where each of many clients goes.
fn homes(table: &RoutingTable, clients: u32) -> HashMap<String, String> {
    (0..clients)
        .map(|number| {
            let client = format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255);
            let home = table.goes_to(&get("/").client(Box::leak(client.clone().into_boxed_str())));
            (client, home)
        })
        .collect()
}

#[test]
fn consistent_hash_sends_a_client_to_the_same_instance_whatever_its_load() {
    let table = by(Method::ConsistentHash, ["a", "b", "c"].map(instance));
    let home = table.goes_to(&get("/"));
    let _held = sessions(table.instance(table.id(&home)), 100);
    assert_eq!([(); 5].map(|()| table.goes_to(&get("/"))), [(); 5].map(|()| home.clone()));
}

#[test]
fn consistent_hash_goes_by_the_session_key_then_the_user_then_the_address() {
    let table =
        with_identities(by(Method::ConsistentHash, (0..50).map(|number| instance(&format!("i{number}")))));
    let by_user = |client| table.goes_to(&get("/").header("X-User", "alice").client(client));
    assert_eq!(by_user("10.0.0.1"), by_user("10.9.9.9"), "the user decides, not the address");
    let homes: Vec<_> = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
        .map(|client| table.goes_to(&get("/").client(client)))
        .into();
    assert!(homes.iter().any(|home| *home != homes[0]), "addresses differ");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn consistent_hash_is_balanced_by_weight(count in 2usize..20, heavy in 1u32..4) {
        let names: Vec<_> = (0..count).map(|number| format!("i{number}")).collect();
        let instances = names.iter().enumerate();
        let table = by(
            Method::ConsistentHash,
            instances.map(|(number, name)| instance(name).weight(if number == 0 { 100 * heavy } else { 100 })),
        );
        let clients = 1_000 * count as u32;
        let homes = homes(&table, clients);
        let share = f64::from(clients) / (count as f64 - 1.0 + f64::from(heavy));
        for (number, name) in names.iter().enumerate() {
            let got = homes.values().filter(|home| *home == name).count() as f64;
            let wanted = share * if number == 0 { f64::from(heavy) } else { 1.0 };
            prop_assert!((got / wanted - 1.0).abs() < 0.25, "{name}: {got} instead of {wanted}");
        }
    }

    #[test]
    fn when_an_instance_leaves_only_its_own_clients_move(count in 2usize..20, leaving in 0usize..20) {
        let table = by(Method::ConsistentHash, (0..count).map(|number| instance(&format!("i{number}"))));
        let gone = format!("i{}", leaving % count);
        let before = homes(&table, 2_000);
        table.instance(table.id(&gone)).status.set_admin(router::core::status::AdminState::Maintenance);
        for (client, home) in homes(&table, 2_000) {
            prop_assert_ne!(&home, &gone);
            prop_assert!(before[&client] == home || before[&client] == gone, "{client} moved without need");
        }
    }

    #[test]
    fn when_an_instance_is_added_few_clients_move_elsewhere(count in 3usize..20) {
        let names = |count| (0..count).map(|number| instance(&format!("i{number}")));
        let before = homes(&by(Method::ConsistentHash, names(count)), 2_000);
        let after = homes(&by(Method::ConsistentHash, names(count + 1)), 2_000);
        let new = format!("i{count}");
        let needless = after.iter().filter(|(client, home)| **home != new && before[*client] != **home).count();
        prop_assert!(needless < 200, "{needless} of 2000 moved between instances that stayed");
    }
}
