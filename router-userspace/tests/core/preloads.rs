//! Resources that are opened ahead of users: where, when, and what failures lead to. Time passes as the stories say.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Zoned;
use jiff::civil::date;
use jiff::tz::TimeZone;
use proptest::prelude::*;
use router::core::health::{Failure, Observation};
use router::core::load::Report;
use router::core::pool::Instance;
use router::core::preload::schedule::Days;
use router::core::preload::{
    CONCURRENT, Event, LoadFailure, LoadRequest, PlaceState, Planner, Preload, Schedule, Task, Verdict,
    Wanted,
};
use router::core::status::AdminState;
use router::core::table::{RoutingTable, Rule};

use crate::support::*;

const SECOND: Duration = Duration::from_secs(1);

fn preload(resources: &[&str], instances: usize) -> Preload {
    Preload {
        resources: resources.iter().map(|&name| name.to_owned()).collect(),
        instances: Wanted::Number(instances),
        request: LoadRequest {
            method: "GET".to_owned(),
            path: "/map/{resource}".to_owned(),
            host: None,
            headers: Vec::new(),
        },
        expect: vec![200..=299],
        every: Duration::from_secs(600),
        timeout: SECOND,
        schedule: Schedule::ALWAYS,
        retries: 2,
        retry_delay: 4 * SECOND,
        load_on_exhausted: false,
        update_exhausted: true,
    }
}

fn preloading(preload: Preload) -> Rule {
    Rule { preload: Some(Arc::new(preload)), ..rule("maps", "Any()", FIRST) }
}

/// Instances that differ in their addresses, so that they can be told apart after a reload.
fn instances(names: &[&str]) -> Vec<Instance> {
    let one = |(name, last): (&&str, u8)| {
        let mut instance = instance(name);
        instance.address = ([10, 77, 2, last], 80).into();
        instance
    };
    names.iter().zip(11..).map(one).collect()
}

/// A planner, its table, and the time.
struct Story {
    planner: Planner,
    table: Arc<RoutingTable>,
    start: Instant,
    /// What clocks show at the start.
    wall: Zoned,
    now: Duration,
    events: Vec<Event>,
}

impl Story {
    fn of(preload: Preload, names: &[&str]) -> Self {
        Self::with_table(table(vec![preloading(preload)], vec![pool("p", instances(names))]))
    }

    fn with_table(table: RoutingTable) -> Self {
        let mut story = Self {
            planner: Planner::default(),
            table: Arc::new(with_identities(table)),
            start: Instant::now(),
            // A Monday.
            wall: date(2026, 6, 1).at(12, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap(),
            now: Duration::ZERO,
            events: Vec::new(),
        };
        assert!(story.after(Duration::ZERO).is_empty(), "starts spread out");
        story
    }

    fn now(&self) -> Instant {
        self.start + self.now
    }

    fn wall(&self) -> Zoned {
        &self.wall + self.now
    }

    /// What is begun after some time.
    fn after(&mut self, time: Duration) -> Vec<Task> {
        self.now += time;
        // In the middle of every jitter.
        let (tasks, events) = self.planner.step(&self.table, self.now(), &self.wall(), &mut || u32::MAX / 2);
        self.events.extend(events);
        tasks
    }

    fn finish(&mut self, task: Task, result: Result<u16, LoadFailure>) -> Verdict {
        self.planner.finish(&self.table, task.ticket, result, self.now(), u32::MAX / 2)
    }

    /// Begins what is due after some time and lets all of it succeed, until nothing is left; where it was, sorted.
    fn succeed(&mut self, time: Duration) -> Vec<(String, String)> {
        let mut done = Vec::new();
        let mut tasks = self.after(time);
        while !tasks.is_empty() {
            for task in tasks {
                done.push((task.resource.clone(), task.instance.clone()));
                self.finish(task, Ok(200));
            }
            tasks = self.after(Duration::ZERO);
        }
        done.sort();
        done
    }

    fn fail(&mut self, time: Duration) -> Verdict {
        let task = self.after(time).pop().expect("a request is due");
        self.finish(task, Err(LoadFailure::Instance(Failure::Status(503))))
    }

    /// Who has the resource because of a preload.
    fn holders(&self, resource: &str) -> BTreeSet<String> {
        let holders = self.table.memory().resources.holders(resource);
        let all = self.table.instances();
        let holding = all.filter(|(.., instance)| holders.contains(instance.status.sessions()));
        holding.map(|(.., instance)| instance.name.clone()).collect()
    }

    fn kill(&self, name: &str) {
        let status = &self.table.instance(self.table.id(name)).status;
        status.observe(Some(&check()), Observation::TrafficFailed(Failure::Refused), self.now()).unwrap();
    }

    fn states(&self) -> Vec<(Option<String>, PlaceState)> {
        let rows = self.planner.view(self.now(), &self.wall());
        rows.into_iter().map(|row| (row.instance, row.state)).collect()
    }

    /// Replaces the table as a reload does.
    fn reload(&mut self, rules: Vec<Rule>, names: &[&str]) {
        let mut next = with_identities(table(rules, vec![pool("p", instances(names))]));
        next.carry_over(&self.table);
        self.table = Arc::new(next);
        self.planner.begin_stopped_anew(self.now());
    }

    fn exhaust(&self, name: &str, idle: f64) {
        let report = Report { cpu_idle_percent: Some(idle), ..Report::default() };
        let id = self.table.id(name);
        self.table.take_report(id, &report, None, self.now());
    }
}

fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> Vec<(String, String)> {
    pairs.map(|(resource, instance)| (resource.to_owned(), instance.to_owned())).into()
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[test]
fn a_resource_is_opened_on_as_many_different_instances_as_asked_and_users_go_there() {
    let mut story = Story::of(preload(&["sales"], 2), &["a", "b", "c"]);
    assert_eq!(story.succeed(SECOND), pairs([("sales", "a"), ("sales", "b")]));
    assert_eq!(story.holders("sales"), names(["a", "b"]));
    let table = &story.table;
    let _busy = ["a", "b"].map(|name| sessions(table.instance(table.id(name)), 9));
    assert!(["a", "b"].contains(&table.goes_to(&get("/map/sales")).as_str()));
    assert_eq!(table.goes_to(&get("/map/other")), "c");
}

#[test]
fn several_resources_spread_over_the_instances() {
    let mut story = Story::of(preload(&["one", "two", "three", "four"], 1), &["a", "b"]);
    let mut count = HashMap::<String, usize>::new();
    for (_, instance) in story.succeed(SECOND) {
        *count.entry(instance).or_default() += 1;
    }
    assert_eq!(count, HashMap::from([("a".to_owned(), 2), ("b".to_owned(), 2)]));
}

#[test]
fn all_means_every_instance_and_a_new_one_gets_it_too() {
    let every = Preload { instances: Wanted::All, ..preload(&["sales"], 1) };
    let mut story = Story::of(every.clone(), &["a", "b"]);
    assert_eq!(story.succeed(SECOND), pairs([("sales", "a"), ("sales", "b")]));
    story.reload(vec![preloading(every)], &["a", "b", "c"]);
    assert_eq!(story.succeed(SECOND), pairs([("sales", "c")]));
    assert!(story.events.is_empty(), "{:?}", story.events);
}

#[test]
fn a_preload_survives_the_death_of_its_instance() {
    let mut story = Story::of(preload(&["sales"], 1), &["a", "b"]);
    let first = story.succeed(SECOND).pop().unwrap().1;
    story.kill(&first);
    let second = if first == "a" { "b" } else { "a" };
    assert_eq!(story.succeed(SECOND), pairs([("sales", second)]));
    assert_eq!(story.holders("sales"), names([second]));
    let (rule, resource) = ("maps".to_owned(), "sales".to_owned());
    assert_eq!(story.events, [Event::InstanceGone { rule, resource, instance: first }]);
}

#[test]
fn maintenance_drain_and_removal_are_ways_to_go_as_well() {
    for how in [AdminState::Drain, AdminState::Maintenance] {
        let mut story = Story::of(preload(&["sales"], 2), &["a", "b"]);
        story.succeed(SECOND);
        story.table.instance(story.table.id("a")).status.set_admin(how);
        assert!(story.succeed(SECOND).is_empty());
        assert_eq!(story.holders("sales"), names(["b"]));
        assert_eq!(story.states()[1], (None, PlaceState::NoInstance));
        story.table.instance(story.table.id("a")).status.set_admin(AdminState::Enabled);
        assert_eq!(story.succeed(SECOND), pairs([("sales", "a")]), "it came back after {how:?}");
    }
    let mut story = Story::of(preload(&["sales"], 1), &["a", "b"]);
    story.succeed(SECOND);
    story.reload(vec![preloading(preload(&["sales"], 1))], &["b"]);
    story.succeed(SECOND);
    assert_eq!(story.holders("sales"), names(["b"]));
}

#[test]
fn an_answer_that_comes_after_its_instance_died_marks_nothing() {
    let mut story = Story::of(preload(&["sales"], 1), &["a"]);
    let task = story.after(SECOND).pop().unwrap();
    story.kill("a");
    assert!(story.after(SECOND).is_empty());
    assert_eq!(story.finish(task, Ok(200)), Verdict::GivenUp);
    assert!(story.table.memory().resources.is_empty());
}

#[test]
fn it_is_refreshed_every_interval_whether_it_took_long_or_not() {
    let mut story = Story::of(preload(&["sales"], 1), &["a"]);
    let task = story.after(SECOND).pop().unwrap();
    story.now += 100 * SECOND;
    assert_eq!(story.finish(task, Ok(200)), Verdict::Loaded { first: true });
    assert!(story.after(499 * SECOND).is_empty());
    let task = story.after(SECOND).pop().expect("ten minutes after the last one began");
    assert_eq!(story.states(), [(Some("a".to_owned()), PlaceState::Refreshing)]);
    assert_eq!(story.finish(task, Ok(204)), Verdict::Loaded { first: false });
}

#[test]
fn repeated_failures_stop_and_the_next_turn_begins_elsewhere() {
    let mut story = Story::of(preload(&["sales"], 1), &["a", "b"]);
    let seconds = |verdict| match verdict {
        Verdict::Retry { after } => after.as_secs_f64().round(),
        other => panic!("{other:?}"),
    };
    assert_eq!(seconds(story.fail(SECOND)), 4.0);
    let first = story.states()[0].0.clone().unwrap();
    assert_eq!(seconds(story.fail(5 * SECOND)), 8.0, "each pause is longer");
    let verdict = story.fail(9 * SECOND);
    assert!(matches!(verdict, Verdict::Stopped { .. }), "{verdict:?}");
    assert_eq!(story.states(), [(Some(first.clone()), PlaceState::Stopped)]);
    assert!(story.after(500 * SECOND).is_empty(), "it is quiet");
    let next = story.after(100 * SECOND).pop().expect("the next turn");
    assert_ne!(next.instance, first);
    story.finish(next, Ok(200));
    assert_eq!(story.planner.counts.failed.total(), 3);
    assert_eq!(story.planner.counts.succeeded.get(), 1);
}

#[test]
fn a_reload_begins_what_has_stopped_and_keeps_what_is_loaded() {
    let mut story = Story::of(preload(&["sales", "stock"], 1), &["a"]);
    for task in story.after(SECOND) {
        let failure = LoadFailure::Instance(Failure::Malformed);
        let result = if task.resource == "sales" { Ok(200) } else { Err(failure) };
        story.finish(task, result);
    }
    story.fail(5 * SECOND);
    assert!(matches!(story.fail(9 * SECOND), Verdict::Stopped { .. }));
    story.reload(vec![preloading(preload(&["sales", "stock"], 1))], &["a"]);
    assert_eq!(story.holders("sales"), names(["a"]));
    assert_eq!(story.succeed(Duration::ZERO), pairs([("stock", "a")]));
    // Another interval is another preload.
    let other = Preload { every: Duration::from_secs(60), ..preload(&["sales"], 1) };
    story.reload(vec![preloading(other.clone())], &["a"]);
    story.after(Duration::ZERO);
    assert_eq!((story.holders("sales"), story.holders("stock")), (names([]), names([])));
    assert_eq!(story.succeed(SECOND), pairs([("sales", "a")]));
    story.reload(vec![Rule { enabled: false, ..preloading(other) }], &["a"]);
    story.after(SECOND);
    assert!(story.table.memory().resources.is_empty() && story.planner.is_empty());
}

#[test]
fn a_loaded_resource_whose_refreshes_all_fail_is_loaded_no_longer() {
    let mut story = Story::of(preload(&["sales"], 1), &["a"]);
    story.succeed(SECOND);
    story.fail(600 * SECOND);
    story.fail(5 * SECOND);
    assert_eq!(story.holders("sales"), names(["a"]), "it may be a passing fault");
    story.fail(9 * SECOND);
    assert_eq!(story.holders("sales"), names([]));
}

#[test]
fn what_two_rules_have_opened_stays_while_one_of_them_wants_it() {
    let other = Rule { name: "other".to_owned(), ..preloading(preload(&["sales"], 1)) };
    let rules = || vec![preloading(preload(&["sales"], 1)), other.clone()];
    let mut story = Story::with_table(table(rules(), vec![pool("p", instances(&["a"]))]));
    assert_eq!(story.succeed(SECOND).len(), 2);
    story.reload(vec![other.clone()], &["a"]);
    story.after(SECOND);
    assert_eq!(story.holders("sales"), names(["a"]));
}

#[test]
fn exhausted_instances_are_spared_as_the_rule_says() {
    let mut story = Story::of(preload(&["sales"], 1), &["a", "b"]);
    story.exhaust("a", 1.0);
    assert_eq!(story.succeed(SECOND), pairs([("sales", "b")]), "nothing is opened on an exhausted one");
    story.exhaust("b", 1.0);
    assert_eq!(story.succeed(600 * SECOND), pairs([("sales", "b")]), "what is open is refreshed");

    let spare = Preload { update_exhausted: false, load_on_exhausted: true, ..preload(&["sales"], 1) };
    let mut story = Story::of(spare, &["a"]);
    story.exhaust("a", 1.0);
    assert_eq!(story.succeed(SECOND), pairs([("sales", "a")]));
    assert!(story.succeed(600 * SECOND).is_empty(), "not refreshed while exhausted");
    story.exhaust("a", 100.0);
    assert_eq!(story.succeed(SECOND), pairs([("sales", "a")]), "refreshed once it has room");
}

#[test]
fn nothing_is_requested_outside_of_the_window_and_what_is_open_stays_open() {
    let weekdays = (0..5).fold(Days::NONE, Days::with);
    let office = Schedule { days: weekdays, from: 6 * 60, to: 20 * 60 };
    let mut story = Story::of(Preload { schedule: office, ..preload(&["sales"], 1) }, &["a", "b"]);
    let first = story.succeed(SECOND).pop().unwrap().1;
    // Monday noon and eight hours.
    assert!(story.after(8 * 3_600 * SECOND).is_empty());
    assert_eq!(story.holders("sales"), names([first.as_str()]));
    story.kill(&first);
    assert!(story.after(SECOND).is_empty());
    assert_eq!(story.states(), [(None, PlaceState::Waiting)]);
    let row = story.planner.view(story.now(), &story.wall()).pop().unwrap();
    let morning = date(2026, 6, 2).at(6, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap();
    assert_eq!(row.next, Some(morning));
    assert_eq!(story.succeed(10 * 3_600 * SECOND).len(), 1);
}

#[test]
fn only_so_many_requests_are_under_way_and_each_counts_as_a_session() {
    let resources: Vec<String> = (0..50).map(|number| number.to_string()).collect();
    let resources: Vec<&str> = resources.iter().map(String::as_str).collect();
    let mut story = Story::of(preload(&resources, 1), &["a"]);
    let tasks = story.after(SECOND);
    assert_eq!(tasks.len(), CONCURRENT);
    assert_eq!(story.table.live("a"), CONCURRENT as u32);
    assert!(story.after(SECOND).is_empty());
    for task in tasks {
        story.finish(task, Ok(200));
    }
    assert_eq!(story.succeed(Duration::ZERO).len(), 50 - CONCURRENT, "all get their turn");
    assert_eq!(story.table.live("a"), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Admin(usize, AdminState),
    Finish(bool),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn whatever_happens_marks_are_where_the_plan_says_and_places_differ(
        wanted in 1usize..4,
        steps in prop::collection::vec(
            prop_oneof![
                (0u64..700).prop_map(Step::Pass),
                (0usize..4, prop::sample::select(AdminState::ALL.to_vec())).prop_map(|(at, how)| Step::Admin(at, how)),
                any::<bool>().prop_map(Step::Finish),
            ],
            1..60,
        ),
    ) {
        let all = ["a", "b", "c", "d"];
        let mut story = Story::of(preload(&["x", "y"], wanted), &all);
        let mut running = Vec::new();
        for step in steps {
            match step {
                Step::Pass(seconds) => running.extend(story.after(Duration::from_secs(seconds))),
                Step::Admin(at, how) => story.table.instance(story.table.id(all[at])).status.set_admin(how),
                Step::Finish(good) if !running.is_empty() => {
                    let failure = LoadFailure::Instance(Failure::Refused);
                    let task = running.remove(0);
                    story.finish(task, if good { Ok(200) } else { Err(failure) });
                }
                Step::Finish(_) => {}
            }
            prop_assert!(running.len() <= CONCURRENT);
            for resource in ["x", "y"] {
                let rows = story.planner.view(story.now(), &story.wall());
                let rows: Vec<_> = rows.into_iter().filter(|row| row.resource == resource).collect();
                let at: Vec<_> = rows.iter().filter_map(|row| row.instance.clone()).collect();
                prop_assert!(at.len() <= wanted);
                prop_assert_eq!(at.iter().collect::<BTreeSet<_>>().len(), at.len(), "{:?}", at);
                let loaded: BTreeSet<_> =
                    rows.iter().filter(|row| row.loaded).filter_map(|row| row.instance.clone()).collect();
                prop_assert_eq!(&loaded, &story.holders(resource));
            }
        }
        drop(running);
        prop_assert!(all.iter().all(|name| story.table.live(name) == 0));
    }
}
