//! What comes before the method: spares, load status, affinity, and resources that are loaded already.

use std::time::Instant;

use router::core::choose::{Exclusion, LostBy};
use router::core::decide::{Attempt, Outcome};
use router::core::explain::{InstanceResult, Trace};
use router::core::identity::{IdentityPart, MAX_IDENTITY_BYTES};
use router::core::load::Report;
use router::core::pool::OnUnavailable;
use router::core::status::AdminState;
use router::core::table::{Overrides, RoutingTable};

use crate::support::*;

fn explain(table: &RoutingTable, ask: &Ask, now: Instant) -> Trace {
    ask.seen(|request| table.explain(request, &Attempt::first(now)))
}

fn result(trace: &Trace, name: &str) -> InstanceResult {
    trace.instances.iter().find(|one| one.name == name).expect("an instance").result
}

#[test]
fn a_spare_serves_only_while_no_ordinary_instance_can() {
    let table = one_pool([instance("spare").spare(), instance("a")]);
    let _held = sessions(table.instance(table.id("a")), 500);
    assert_eq!(table.goes_to(&get("/")), "a", "however loaded");
    assert_eq!(
        result(&explain(&table, &get("/"), Instant::now()), "spare"),
        InstanceResult::Lost(LostBy::Spare)
    );
    table.instance(table.id("a")).status.set_admin(AdminState::Maintenance);
    assert_eq!(table.goes_to(&get("/")), "spare");
}

#[test]
fn a_spare_comes_before_a_draining_instance() {
    let table = one_pool([instance("a").state(AdminState::Drain), instance("spare").spare()]);
    assert_eq!(table.goes_to(&get("/")), "spare");
    assert_eq!(
        result(&explain(&table, &get("/"), Instant::now()), "a"),
        InstanceResult::Lost(LostBy::Draining)
    );
}

#[test]
fn a_strained_instance_serves_only_while_all_are_strained() {
    let table = one_pool(["a", "b"].map(instance));
    let now = Instant::now();
    busy(&table, "a", 60.0, now);
    let _held = sessions(table.instance(table.id("b")), 9);
    assert_eq!(table.place_at(&get("/"), now).unwrap().0, "b", "health beats load");
    assert_eq!(result(&explain(&table, &get("/"), now), "a"), InstanceResult::Lost(LostBy::LoadStatus));
    busy(&table, "b", 60.0, now);
    assert_eq!(table.place_at(&get("/"), now).unwrap().0, "a", "both are strained, so sessions decide again");
}

#[test]
fn an_exhausted_instance_gets_nothing_new_unless_pool_or_rule_allow_it() {
    let mut lenient = rule("lenient", r#"Path("/lenient")"#, FIRST);
    lenient.overrides = Overrides { allow_exhausted: Some(true), ..Overrides::default() };
    let table = table(vec![lenient], vec![pool("p", [instance("a")])]);
    let now = Instant::now();
    busy(&table, "a", 95.0, now);
    assert!(table.place_at(&get("/"), now).is_none());
    let trace = explain(&table, &get("/"), now);
    assert_eq!(result(&trace, "a"), InstanceResult::Excluded(Exclusion::Exhausted));
    assert_eq!(table.place_at(&get("/lenient"), now).unwrap().0, "a");
}

#[test]
fn when_everything_is_exhausted_nothing_falls_through_to_a_later_rule() {
    let mut pools = vec![pool("p", [instance("a")]), pool("q", [instance("b")])];
    pools[0].on_unavailable = Some(OnUnavailable::Reset);
    let rules = vec![rule("first", "Any()", FIRST), rule("second", "Any()", SECOND)];
    let table = table(rules, pools);
    busy(&table, "a", 95.0, Instant::now());
    let wanted = Outcome::Unavailable { action: OnUnavailable::Reset, pool: None };
    assert_eq!(table.outcome(&get("/")), wanted);
    assert_eq!(table.instance(table.id("b")).status.sessions().total(), 0);
}

#[test]
fn an_exhausted_pool_uses_its_spare() {
    let table = one_pool([instance("a"), instance("spare").spare()]);
    let now = Instant::now();
    busy(&table, "a", 95.0, now);
    assert_eq!(table.place_at(&get("/"), now).unwrap().0, "spare");
}

#[test]
fn a_user_comes_back_to_the_last_instance() {
    let table = with_identities(one_pool(["a", "b", "c"].map(instance)));
    let alice = get("/").header("X-User", "alice");
    let home = table.goes_to(&alice);
    let _held = sessions(table.instance(table.id(&home)), 50);
    assert_eq!([(); 4].map(|()| table.goes_to(&alice)), [(); 4].map(|()| home.clone()));
    let other = ["a", "b", "c"].into_iter().find(|name| *name != home).unwrap();
    assert_eq!(
        result(&explain(&table, &alice, Instant::now()), other),
        InstanceResult::Lost(LostBy::Affinity)
    );
    assert_eq!(table.memory().counts.by_affinity.get(), 4);
}

#[test]
fn with_affinity_0_a_user_goes_where_there_is_most_room() {
    let mut free = rule("free", r#"PathPrefix("/free")"#, FIRST);
    free.overrides = Overrides { affinity: Some(false), ..Overrides::default() };
    let table = with_identities(table(vec![free], vec![pool("p", ["a", "b"].map(instance))]));
    let home = table.goes_to(&get("/").header("X-User", "alice"));
    let _held = sessions(table.instance(table.id(&home)), 5);
    assert_ne!(table.goes_to(&get("/free").header("X-User", "alice")), home);
}

#[test]
fn affinity_does_not_hold_a_user_on_an_instance_that_may_get_nothing_new() {
    let table = with_identities(one_pool(["a", "b"].map(instance)));
    let alice = get("/").header("X-User", "alice");
    let home = table.goes_to(&alice);
    table.instance(table.id(&home)).status.set_admin(AdminState::Drain);
    assert_ne!(table.goes_to(&alice), home);
}

#[test]
fn a_user_from_an_address_that_is_not_trusted_is_nobody_and_that_is_counted() {
    let table = with_identities(one_pool(["a", "b"].map(instance)));
    let forged = get("/").header("X-User", "alice").client("192.0.2.1");
    let seen = [(); 4].map(|()| table.goes_to(&forged));
    assert_eq!(seen, ["a", "b", "a", "b"], "no affinity");
    assert_eq!(table.memory().counts.untrusted.get(), 4);
    assert!(table.memory().users.is_empty());
}

#[test]
fn a_value_that_is_too_long_is_ignored_counted_and_explained() {
    let table = with_identities(one_pool(["a", "b"].map(instance)));
    let long: &'static str = "x".repeat(MAX_IDENTITY_BYTES + 1).leak();
    let longest = &long[1..];
    let ask = |value: &'static str| {
        get(&format!("/map/{value}")).header("X-User", value).header("Cookie", format!("S={value}").leak())
    };
    let now = Instant::now();
    let too_long = explain(&table, &ask(long), now).identity.too_long;
    let parts = [IdentityPart::SessionKey, IdentityPart::User, IdentityPart::Resource];
    assert_eq!(too_long.parts().collect::<Vec<_>>(), parts);
    let counts = &table.memory().counts.too_long;
    assert_eq!(counts.total(), 0, "explaining changes nothing");
    drop(table.place_at(&ask(long), now).unwrap());
    assert_eq!(parts.map(|part| counts.get(part)), [1, 1, 1]);
    assert!(table.memory().users.is_empty() && table.memory().sessions.is_empty());
    drop(table.place_at(&ask(longest), now).unwrap());
    assert_eq!((counts.total(), table.memory().users.len(), table.memory().sessions.len()), (3, 1, 1));
}

#[test]
fn a_resource_opens_on_a_second_instance_only_when_the_first_is_strained() {
    let table = with_identities(one_pool(["a", "b"].map(instance)));
    let now = Instant::now();
    let sales = get("/map/sales");
    let mut held = vec![table.place_at(&sales, now).unwrap()];
    let first = held[0].0.clone();
    for _ in 0..20 {
        held.push(table.place_at(&sales, now).unwrap());
        assert_eq!(held.last().unwrap().0, first, "it is loaded there");
    }
    let second = if first == "a" { "b" } else { "a" };
    assert_eq!(result(&explain(&table, &sales, now), second), InstanceResult::Lost(LostBy::Resource));
    assert_eq!(table.place_at(&get("/map/other"), now).unwrap().0, second, "others go where there is room");
    busy(&table, &first, 60.0, now);
    held.push(table.place_at(&sales, now).unwrap());
    assert_eq!(held.last().unwrap().0, second, "load cascades");
    busy(&table, &first, 10.0, now + std::time::Duration::from_secs(60));
    drop(held);
    assert!(table.memory().resources.is_empty(), "nobody has it open any more");
}

#[test]
fn a_resource_that_an_instance_reports_or_that_is_preloaded_counts_as_loaded() {
    let table = with_identities(one_pool(["a", "b"].map(instance)));
    let now = Instant::now();
    let _held = sessions(table.instance(table.id("b")), 7);
    let loaded = Report { resources: Some(vec!["sales".to_owned()]), ..Report::default() };
    report(&table, "b", &loaded, now);
    assert_eq!(table.place_at(&get("/map/sales"), now).unwrap().0, "b");
    let b = table.instance(table.id("b")).status.sessions();
    table.memory().resources.mark_preloaded("stock", b, true);
    assert_eq!(table.place_at(&get("/map/stock"), now).unwrap().0, "b");
    table.memory().resources.mark_preloaded("stock", b, false);
    assert_eq!(table.place_at(&get("/map/stock"), now).unwrap().0, "a");
}

#[test]
fn rules_see_user_group_and_resource() {
    for (condition, holds) in [
        (r#"User("alice")"#, true),
        (r#"User("bob", "carol")"#, false),
        (r#"Group("staff")"#, true),
        (r#"Group("finance")"#, true),
        (r#"Group("taff")"#, false),
        (r#"Resource("q1-sales")"#, true),
        (r#"ResourcePrefix("q1")"#, true),
        (r#"ResourceRegexp("^q[2-4]")"#, false),
        (r#"Group("finance") && !Resource("q2-sales")"#, true),
    ] {
        let table =
            with_identities(table(vec![rule("this", condition, FIRST)], vec![pool("p", [instance("a")])]));
        let ask = get("/map/q1-sales/view").header("X-User", "alice").header("X-Groups", "it, staff");
        assert_eq!(table.rule_for(&ask) == "this", holds, "{condition}");
        let forged = ask.client("192.0.2.1");
        let needs_trust = condition.contains("User") || condition.contains("Group");
        assert_eq!(table.rule_for(&forged) == "this", holds && !needs_trust, "{condition} from elsewhere");
    }
}
