//! What happens when the selected rule's pool cannot serve: never the next rule.

use std::time::Instant;

use router::core::decide::{Attempt, Outcome};
use router::core::placement;
use router::core::pool::{OnUnavailable, PoolId};
use router::core::request::Request;
use router::core::table::{DefaultRule, RoutingTable, RuleRef};

use crate::support::*;

fn dead_and_alive() -> Vec<router::core::pool::Pool> {
    vec![pool("dead", [instance("a").down()]), pool("alive", [instance("b")])]
}

fn unavailable(action: OnUnavailable) -> Outcome<()> {
    Outcome::Unavailable { action, pool: None }
}

#[test]
fn a_matching_rule_takes_precedence_over_later_ones_even_if_its_pool_is_down() {
    let rules = vec![rule("first", "Any()", FIRST), rule("second", "Any()", SECOND)];
    let outcome = table(rules, dead_and_alive()).outcome(&get("/"));
    assert_eq!(outcome, unavailable(OnUnavailable::Status503));
}

#[test]
fn the_pool_says_what_happens_and_a_rule_overrides_it() {
    let mut pools = dead_and_alive();
    pools[0].on_unavailable = Some(OnUnavailable::Silent);
    let mut rules = vec![rule("own", r#"Path("/own")"#, FIRST), rule("pool's", r#"Path("/pool")"#, FIRST)];
    rules[0].overrides.on_unavailable = Some(OnUnavailable::Reset);
    let table = table(rules, pools);
    assert_eq!(table.outcome(&get("/own")), unavailable(OnUnavailable::Reset));
    assert_eq!(table.outcome(&get("/pool")), unavailable(OnUnavailable::Silent));
}

#[test]
fn without_http_the_default_is_a_reset() {
    let table = one_pool([instance("a").down()]);
    let request = Request { listener: "raw", client: [10, 1, 2, 3].into(), tls: None, http: None };
    assert_eq!(
        without_session(table.decide(&request, &Attempt::first(Instant::now())).outcome),
        unavailable(OnUnavailable::Reset)
    );
}

#[test]
fn the_default_rule_follows_its_only_pool() {
    let mut pools = dead_and_alive();
    pools[0].on_unavailable = Some(OnUnavailable::Silent);
    let default = DefaultRule { pools: vec![PoolId(0)], ..DefaultRule::default() };
    let table = RoutingTable::new(vec![], default, pools, None).unwrap();
    assert_eq!(table.outcome(&get("/")), unavailable(OnUnavailable::Silent));
}

#[test]
fn a_pool_without_instances_is_unavailable_and_so_is_a_table_without_pools() {
    assert_eq!(one_pool([]).outcome(&get("/")), unavailable(OnUnavailable::Status503));
    assert_eq!(table(vec![], vec![]).outcome(&get("/")), unavailable(OnUnavailable::Status503));
}

#[test]
fn at_layer_4_instances_out_of_reach_make_way_for_spares_and_for_the_pool_to_fall_back_to() {
    let mut pools =
        vec![pool("near", [instance("a"), instance("hot").spare()]), pool("far", [instance("b")])];
    pools[0].on_unavailable = Some(OnUnavailable::Pool(PoolId(1)));
    let table = table(vec![rule("r", "Any()", FIRST)], pools);
    let served_without = |lost: &[&str]| -> Vec<String> {
        let within_reach = |id| !lost.contains(&table.instance(id).name.as_str());
        let members = placement::members(&table, RuleRef::Rule(0), Instant::now(), &within_reach);
        members.instances.iter().map(|(id, _)| table.instance(*id).name.clone()).collect()
    };
    assert_eq!(served_without(&[]), ["a"]);
    assert_eq!(served_without(&["a"]), ["hot"]);
    assert_eq!(served_without(&["a", "hot"]), ["b"]);
    assert!(served_without(&["a", "hot", "b"]).is_empty());
}
