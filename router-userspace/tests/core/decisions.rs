//! The order of the decision: rules first, then candidates, group, load, sessions, and the turn.

use std::time::Instant;

use router::core::decide::Outcome;
use router::core::health::{Failure, Observation};
use router::core::pool::PoolId;
use router::core::session::Session;
use router::core::status::AdminState;
use router::core::table::{Action, DefaultRule, RoutingTable, TableError};

use crate::support::*;

/// Places `count` long sessions and returns where they went.
fn next(table: &RoutingTable, count: usize, held: &mut Vec<Session>) -> Vec<String> {
    (0..count)
        .map(|_| {
            let (name, session) = table.place(&get("/"), &[]).expect("an instance");
            held.push(session);
            name
        })
        .collect()
}

#[test]
fn equal_weights_london_10_sessions_paris_12_the_next_two_go_to_london() {
    let table = one_pool([instance("london"), instance("paris")]);
    let mut held = sessions(table.instance(table.id("london")), 10);
    held.extend(sessions(table.instance(table.id("paris")), 12));
    assert_eq!(next(&table, 2, &mut held), ["london", "london"]);
    assert_eq!((table.live("london"), table.live("paris")), (12, 12));
}

#[test]
fn london_lowered_to_weight_50_with_10_sessions_paris_12_the_next_eight_go_to_paris() {
    let table = one_pool([instance("london").weight(50), instance("paris")]);
    let mut held = sessions(table.instance(table.id("london")), 10);
    held.extend(sessions(table.instance(table.id("paris")), 12));
    assert_eq!(next(&table, 8, &mut held), ["paris"; 8]);
    assert_eq!(next(&table, 1, &mut held), ["london"], "at equal load the fewest sessions win");
}

#[test]
fn one_instance_in_100_with_weight_200_receives_twice_what_each_other_receives() {
    let names: Vec<String> = (0..100).map(|number| format!("i{number}")).collect();
    let table =
        one_pool(names.iter().map(|name| instance(name).weight(if name == "i42" { 200 } else { 100 })));
    let mut held = vec![];
    next(&table, 101 * 5, &mut held);
    for name in &names {
        assert_eq!(table.live(name), if name == "i42" { 10 } else { 5 }, "{name}");
    }
}

#[test]
fn equal_requests_that_end_at_once_land_equally_on_each_instance() {
    let table = one_pool(["a", "b", "c"].map(instance));
    let order: Vec<String> = (0..9).map(|_| table.goes_to(&get("/"))).collect();
    assert_eq!(order, ["a", "b", "c", "a", "b", "c", "a", "b", "c"]);
}

#[test]
fn an_instance_that_comes_back_takes_its_turn_and_no_more() {
    let table = one_pool(["a", "b", "c"].map(instance));
    let b = table.instance(table.id("b"));
    b.status.set_admin(AdminState::Maintenance);
    assert_eq!([(); 4].map(|()| table.goes_to(&get("/"))), ["a", "c", "a", "c"]);
    b.status.set_admin(AdminState::Enabled);
    assert_eq!([(); 4].map(|()| table.goes_to(&get("/"))), ["b", "a", "c", "b"]);
}

#[test]
fn the_first_rule_that_matches_is_selected() {
    let table = table(
        vec![rule("narrow", r#"PathPrefix("/x/y")"#, SECOND), rule("wide", r#"PathPrefix("/x")"#, FIRST)],
        vec![pool("p", [instance("a")]), pool("q", [instance("b")])],
    );
    assert_eq!(table.goes_to(&get("/x/y/z")), "b");
    assert_eq!(table.goes_to(&get("/x/other")), "a");
    assert_eq!(table.rule_for(&get("/x/y")), "narrow");
}

#[test]
fn a_disabled_rule_is_skipped() {
    let mut rules = vec![rule("off", "Any()", SECOND), rule("on", "Any()", FIRST)];
    rules[0].enabled = false;
    let table = table(rules, vec![pool("p", [instance("a")]), pool("q", [instance("b")])]);
    assert_eq!(table.rule_for(&get("/")), "on");
}

#[test]
fn without_a_match_the_default_rule_uses_every_instance_of_every_pool() {
    let table = table(
        vec![rule("never", r#"Host("other.example")"#, FIRST)],
        vec![pool("p", [instance("a")]), pool("q", [instance("b")])],
    );
    assert_eq!([(); 4].map(|()| table.goes_to(&get("/"))), ["a", "b", "a", "b"]);
    assert_eq!(table.rule_for(&get("/")), "default");
}

#[test]
fn the_default_rule_keeps_to_its_pools_if_it_names_some() {
    let default = DefaultRule { pools: vec![PoolId(1)], ..DefaultRule::default() };
    let pools = vec![pool("p", [instance("a")]), pool("q", [instance("b")])];
    let table = RoutingTable::new(vec![], default, pools, None).unwrap();
    assert_eq!([(); 2].map(|()| table.goes_to(&get("/"))), ["b", "b"]);
}

#[test]
fn a_deny_rule_refuses_with_its_status_and_begins_no_session() {
    let table = table(
        vec![rule("no", r#"PathPrefix("/admin")"#, Action::Deny { status: 403 })],
        vec![pool("p", [instance("a")])],
    );
    assert_eq!(table.outcome(&get("/admin/x")), Outcome::Deny { status: 403 });
    assert_eq!(table.live("a"), 0);
}

#[test]
fn weight_0_is_never_picked() {
    let table = one_pool([instance("a").weight(0), instance("b")]);
    assert_eq!([(); 3].map(|()| table.goes_to(&get("/"))), ["b"; 3]);
}

#[test]
fn an_instance_with_max_sessions_gets_no_more() {
    let table = one_pool([instance("a").max_sessions(1), instance("b")]);
    let mut held = vec![];
    assert_eq!(next(&table, 4, &mut held), ["a", "b", "b", "b"]);
    held.remove(0);
    assert_eq!(next(&table, 1, &mut held), ["a"], "one session ended, so there is room for one");
}

#[test]
fn down_and_maintenance_get_nothing() {
    let table = one_pool([instance("a").down(), instance("b").state(AdminState::Maintenance), instance("c")]);
    assert_eq!([(); 3].map(|()| table.goes_to(&get("/"))), ["c"; 3]);
}

#[test]
fn draining_gets_nothing_new_while_another_can_serve() {
    let table = one_pool([instance("a").state(AdminState::Drain), instance("b")]);
    let mut held = vec![];
    assert_eq!(next(&table, 20, &mut held), ["b"; 20], "however loaded the other is");
}

#[test]
fn draining_still_serves_when_every_other_is_down_or_full() {
    for other in [instance("b").down(), instance("b").max_sessions(0), instance("b").weight(0)] {
        let table = one_pool([instance("a").state(AdminState::Drain), other]);
        assert_eq!(table.goes_to(&get("/")), "a");
    }
}

#[test]
fn a_draining_instance_that_is_down_does_not_serve() {
    let table = one_pool([instance("a").state(AdminState::Drain).down()]);
    assert!(table.place(&get("/"), &[]).is_none());
}

#[test]
fn instances_of_the_routers_group_come_before_less_loaded_ones() {
    let pools = vec![pool("p", [instance("far"), instance("near").group("rack-a")])];
    let table = RoutingTable::new(vec![], DefaultRule::default(), pools, Some("rack-a".into())).unwrap();
    let _held = sessions(table.instance(table.id("near")), 50);
    assert_eq!(table.goes_to(&get("/")), "near");
    table.instance(table.id("near")).status.set_admin(AdminState::Maintenance);
    assert_eq!(table.goes_to(&get("/")), "far", "no candidate shares the group, so all stay");
}

#[test]
fn an_enabled_instance_of_another_group_comes_before_a_draining_one_of_ours() {
    let near = instance("near").group("rack-a").state(AdminState::Drain);
    let pools = vec![pool("p", [near, instance("far").group("rack-b")])];
    let table = RoutingTable::new(vec![], DefaultRule::default(), pools, Some("rack-a".into())).unwrap();
    assert_eq!(table.goes_to(&get("/")), "far");
}

#[test]
fn a_router_without_a_group_does_not_look_at_groups() {
    let table = one_pool([instance("a").group("rack-a"), instance("b")]);
    assert_eq!([(); 2].map(|()| table.goes_to(&get("/"))), ["a", "b"]);
}

#[test]
fn a_retry_leaves_out_what_was_tried() {
    let table = one_pool(["a", "b"].map(instance));
    let (first, session) = table.place(&get("/"), &[]).unwrap();
    assert_eq!((first.as_str(), table.live("a")), ("a", 1));
    drop(session);
    assert_eq!(table.live("a"), 0, "the failed try counts no session");
    let (second, _session) = table.place(&get("/"), &[table.id("a")]).unwrap();
    assert_eq!(second, "b");
    assert!(table.place(&get("/"), &[table.id("a"), table.id("b")]).is_none());
}

#[test]
fn a_refused_connection_keeps_the_next_requests_away_and_checks_bring_the_instance_back() {
    let table = one_pool(["a", "b"].map(instance));
    let now = Instant::now();
    let down = table.observe(table.id("a"), Observation::TrafficFailed(Failure::Refused), now);
    assert!(down.is_some());
    assert_eq!([(); 2].map(|()| table.goes_to(&get("/"))), ["b"; 2]);
    // The first check decides at once; the instance is up again.
    assert!(table.observe(table.id("a"), Observation::CheckPassed, now).is_some());
    assert_eq!(table.goes_to(&get("/")), "a");
}

#[test]
fn a_pool_without_checks_never_takes_an_instance_down_for_good() {
    let mut unchecked = pool("p", [instance("a")]);
    unchecked.check = None;
    let table = table(vec![], vec![unchecked]);
    let refused = Observation::TrafficFailed(Failure::Refused);
    assert_eq!(table.observe(table.id("a"), refused, Instant::now()), None);
    assert_eq!(table.goes_to(&get("/")), "a");
}

#[test]
fn a_reload_keeps_sessions_health_hits_and_run_time_states() {
    let build = |b_state| {
        let instances = [instance("a"), instance("b").state(b_state)];
        table(vec![rule("r", "Any()", FIRST)], vec![pool("p", instances)])
    };
    let old = build(AdminState::Enabled);
    let (_, _session) = old.place(&get("/"), &[]).unwrap();
    old.hits(old.ask(&get("/")).rule).add(7);
    old.instance(old.id("a")).status.set_admin(AdminState::Drain);
    old.observe(old.id("b"), Observation::TrafficFailed(Failure::Refused), Instant::now()).unwrap();

    let mut new = build(AdminState::Enabled);
    new.carry_over(&old);
    assert_eq!(new.live("a"), 1);
    assert_eq!(new.rules()[0].hits.get(), 7);
    assert_eq!(
        new.instance(new.id("a")).status.admin(),
        AdminState::Drain,
        "set at run time, not in the file"
    );
    assert_eq!(new.goes_to(&get("/")), "a", "b is still known to be down");

    let mut edited = build(AdminState::Maintenance);
    edited.carry_over(&new);
    assert_eq!(
        edited.instance(edited.id("b")).status.admin(),
        AdminState::Maintenance,
        "the file was edited"
    );
}

#[test]
fn an_instance_that_moved_to_another_address_starts_anew() {
    let old = one_pool([instance("a")]);
    let (_, _session) = old.place(&get("/"), &[]).unwrap();
    let mut moved = instance("a");
    moved.address.set_port(81);
    let mut new = one_pool([moved]);
    new.carry_over(&old);
    assert_eq!(new.live("a"), 0);
}

#[test]
fn sessions_stay_with_the_address_when_an_instance_is_renamed_or_removed_and_brought_back() {
    let at = |name: &str, port: u16| {
        let mut instance = instance(name);
        instance.address.set_port(port);
        instance
    };
    let first = one_pool([at("a", 81), at("b", 82)]);
    let (chosen, session) = first.place(&get("/"), &[]).unwrap();
    assert_eq!(chosen, "a");

    let mut renamed = table(vec![], vec![pool("other", [at("new", 81), at("b", 82)])]);
    renamed.carry_over(&first);
    assert_eq!(renamed.live("new"), 1);
    let mut removed = one_pool([at("b", 82)]);
    removed.carry_over(&renamed);
    let mut still_removed = one_pool([at("b", 82)]);
    still_removed.carry_over(&removed);
    let mut back = one_pool([at("a", 81), at("b", 82)]);
    back.carry_over(&still_removed);
    assert_eq!(back.live("a"), 1);
    assert_eq!(back.goes_to(&get("/")), "b", "it has fewer sessions");
    drop(session);
    assert_eq!(back.live("a"), 0);
}

#[test]
fn a_rule_that_names_a_pool_that_is_not_there_makes_no_table() {
    let broken = RoutingTable::new(
        vec![rule("r", "Any()", SECOND)],
        DefaultRule::default(),
        vec![pool("p", [])],
        None,
    );
    assert_eq!(broken.unwrap_err(), TableError::UnknownPool { rule: "r".into(), pool: 1, pools: 1 });
}
