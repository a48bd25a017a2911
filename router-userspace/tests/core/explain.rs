//! `explain` says what a decision would do and why, and changes nothing.

use std::time::Instant;

use router::core::choose::{Exclusion, LostBy};
use router::core::decide::{Attempt, Outcome};
use router::core::explain::{InstanceResult, RuleResult, Trace};
use router::core::rules::compile;
use router::core::status::AdminState;
use router::core::table::{DefaultRule, RoutingTable, RuleRef};

use crate::support::*;

fn explain(table: &RoutingTable, ask: &Ask) -> Trace {
    ask.seen(|request| table.explain(request, &Attempt::first(Instant::now())))
}

#[test]
fn each_rule_that_was_tried_says_which_part_failed() {
    let condition = r#"Method("GET") && (Host("b.example") || Path("/y")) && Any()"#;
    let mut rules = vec![
        rule("no", condition, SECOND),
        rule("off", "Any()", SECOND),
        rule("yes", r#"PathPrefix("/x") && !Http10()"#, FIRST),
        rule("later", "Any()", SECOND),
    ];
    rules[1].enabled = false;
    let table = table(rules, vec![pool("p", [instance("a")]), pool("q", [])]);
    let trace = explain(&table, &get("/x"));

    let results: Vec<_> = trace.rules.iter().map(|rule| (rule.name.as_str(), &rule.result)).collect();
    let failed = RuleResult::NoMatch { failed: r#"Host("b.example") || Path("/y")"#.into() };
    assert_eq!(
        results,
        [("no", &failed), ("off", &RuleResult::Disabled), ("yes", &RuleResult::Selected)],
        "no rule after the selected one is looked at"
    );
    let tests: Vec<_> = trace.rules[0].tests.iter().map(|test| (test.text.as_str(), test.holds)).collect();
    let seen = [(r#"Method("GET")"#, true), (r#"Host("b.example")"#, false), (r#"Path("/y")"#, false)];
    assert_eq!(tests, seen, "what no longer mattered was not evaluated");
    assert_eq!((trace.rule, trace.rule_name.as_str()), (RuleRef::Rule(2), "yes"));
}

#[test]
fn each_instance_says_its_load_and_why_it_lost() {
    let pools = vec![pool(
        "p",
        [
            instance("chosen").group("rack-a"),
            instance("far"),
            instance("loaded").group("rack-a"),
            instance("draining").group("rack-a").state(AdminState::Drain),
            instance("maintained").state(AdminState::Maintenance),
            instance("dead").down(),
            instance("unweighted").weight(0),
            instance("full").max_sessions(0),
            instance("more").group("rack-a").weight(200),
            instance("last").group("rack-a"),
        ],
    )];
    let table = RoutingTable::new(vec![], DefaultRule::default(), pools, Some("rack-a".into())).unwrap();
    let held = [("chosen", 1), ("loaded", 3), ("more", 2), ("last", 1)]
        .map(|(name, count)| sessions(table.instance(table.id(name)), count));
    let trace = explain(&table, &get("/"));

    let results: Vec<_> = trace.instances.iter().map(|seen| (seen.name.as_str(), seen.result)).collect();
    use InstanceResult::{Chosen, Excluded, Lost};
    assert_eq!(
        results,
        [
            ("chosen", Chosen),
            ("far", Lost(LostBy::Group)),
            ("loaded", Lost(LostBy::Load)),
            ("draining", Lost(LostBy::Draining)),
            ("maintained", Excluded(Exclusion::Maintenance)),
            ("dead", Excluded(Exclusion::Down)),
            ("unweighted", Excluded(Exclusion::NoWeight)),
            ("full", Excluded(Exclusion::Full)),
            ("more", Lost(LostBy::Sessions)),
            ("last", Lost(LostBy::Order)),
        ]
    );
    let more = &trace.instances[8];
    assert_eq!((more.sessions, more.weight, more.load), (2, 200, Some(1.0)));
    assert_eq!(trace.instances[6].load, None, "there is no load without a weight");
    assert_eq!(trace.outcome, Outcome::Instance { id: table.id("chosen"), session: () });
    drop(held);
}

#[test]
fn the_least_recently_chosen_wins_and_the_others_say_so() {
    let table = one_pool(["a", "b"].map(instance));
    assert_eq!(table.goes_to(&get("/")), "a");
    let trace = explain(&table, &get("/"));
    assert_eq!(trace.instances[0].result, InstanceResult::Lost(LostBy::ChosenLater));
    assert_eq!(trace.instances[1].result, InstanceResult::Chosen);
}

#[test]
fn explaining_changes_nothing_and_the_next_decision_does_what_it_said() {
    let table = one_pool(["a", "b", "c"].map(instance));
    for _ in 0..7 {
        let Outcome::Instance { id, .. } = explain(&table, &get("/")).outcome else { panic!("an instance") };
        let again = explain(&table, &get("/")).outcome;
        assert_eq!(again, Outcome::Instance { id, session: () });
        assert_eq!(table.goes_to(&get("/")), table.instance(id).name);
    }
    assert_eq!(["a", "b", "c"].map(|name| table.live(name)), [0; 3]);
}

#[test]
fn an_ambiguous_path_shows_the_rule_of_each_spelling() {
    let rules =
        vec![rule("admin", r#"PathPrefix("/admin")"#, FIRST), rule("public", r#"PathPrefix("/pub")"#, FIRST)];
    let table = table(rules, vec![pool("p", [instance("a")])]);
    let trace = explain(&table, &get("/pub/../admin"));
    assert_eq!(trace.outcome, Outcome::AmbiguousPath);
    assert_eq!((trace.rule_name.as_str(), trace.raw_path_rule.as_deref()), ("admin", Some("public")));
    assert!(trace.instances.is_empty());
    assert_eq!(explain(&table, &get("/pub/%61")).raw_path_rule, None, "both spellings select the same rule");
}

#[test]
fn an_unavailable_pool_shows_why_each_instance_cannot_serve() {
    let table = one_pool([instance("a").down()]);
    let trace = explain(&table, &get("/"));
    assert!(matches!(trace.outcome, Outcome::Unavailable { .. }));
    assert_eq!(trace.instances[0].result, InstanceResult::Excluded(Exclusion::Down));
}

#[test]
fn a_condition_alone_explains_itself() {
    let condition = compile(r#"Any() && !(Method("GET") && Path("/x")) && Tls()"#).unwrap();
    let explained = get("/x").seen(|request| condition.explain(request));
    assert!(!explained.matched);
    assert_eq!(explained.failed.as_deref(), Some(r#"!(Method("GET") && Path("/x"))"#));
    assert_eq!(
        get("/y").method("POST").seen(|request| condition.explain(request)).failed.as_deref(),
        Some("Tls()")
    );
}

#[test]
fn a_decision_that_is_explained_is_the_one_that_is_made() {
    let pools = || vec![pool("p", [instance("a"), instance("b"), instance("c")])];
    let rules = || vec![rule("no", r#"Path("/y")"#, FIRST), rule("yes", r#"PathPrefix("/x")"#, FIRST)];
    let (plain, explained) = (table(rules(), pools()), table(rules(), pools()));
    let mut sessions = Vec::new();
    for _ in 0..7 {
        let decision = get("/x").seen(|request| plain.decide(request, &Attempt::first(Instant::now())));
        let (same, trace) =
            get("/x").seen(|request| explained.decide_and_explain(request, &Attempt::first(Instant::now())));
        assert_eq!((same.rule, same.outcome.instance()), (decision.rule, decision.outcome.instance()));
        assert_eq!(trace.outcome.instance(), same.outcome.instance());
        assert_eq!(trace.rules.len(), 2, "rules are shown that the index would have skipped");
        let chosen = trace.instances.iter().find(|one| one.result == InstanceResult::Chosen).unwrap();
        assert_eq!((Some(chosen.id), trace.instances.len()), (same.outcome.instance(), 3));
        sessions.extend([decision, same]);
    }
    for one in [&plain, &explained] {
        let counts: Vec<_> =
            one.pools()[0].instances.iter().map(|instance| instance.status.sessions().live()).collect();
        assert_eq!(counts.iter().sum::<u32>(), 7, "{counts:?}: each decision began one session");
    }
}
