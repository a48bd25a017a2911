//! A decision on the common path must not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use router::core::decide::Attempt;
use router::core::load::Report;
use router::core::pool::Method;

use crate::support::*;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is passed on to the system allocator unchanged; counting touches only a thread-local cell.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, that is from the system allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_decision_over_ten_rules_allocates_nothing() {
    let mut rules: Vec<_> = [
        r#"Host("b.example")"#,
        r#"HostSuffix("other.example")"#,
        r#"PathPrefix("/api") && Method("POST")"#,
        r#"Extension("png", "gif")"#,
        r#"Header("X-Tenant", "acme") || HeaderContains("User-Agent", "Mobile")"#,
        r#"Cookie("beta", "1")"#,
        r#"Query("debug", "1")"#,
        r#"ClientIP("192.168.0.0/16", "2001:db8::/32")"#,
        r#"PathRegexp("^/user/[0-9]+$")"#,
    ]
    .map(|condition| rule("other", condition, SECOND))
    .into();
    rules.push(rule("last", r#"Host("a.example") && !Http10()"#, FIRST));
    let table = table(rules, vec![pool("p", ["a", "b"].map(instance)), pool("q", [])]);
    let ask = get("/analysis/1?a=b").header("User-Agent", "curl/8").header("Cookie", "a=1; beta=0");
    ask.seen(|request| {
        drop(table.decide(request, &Attempt::first(Instant::now()))); // regular expressions set up their scratch space once
        let before = ALLOCATIONS.get();
        for _ in 0..100 {
            let decision = table.decide(request, &Attempt::first(Instant::now()));
            assert_eq!(table.rule_name(decision.rule), "last");
        }
        assert_eq!(ALLOCATIONS.get() - before, 0);
    });
}

#[test]
fn a_decision_over_ten_thousand_rules_and_a_hundred_instances_allocates_nothing() {
    let condition = |number| match number % 4 {
        0 => format!("Host(\"t{number}.example\")"),
        1 => format!("HostSuffix(\"d{number}.example\") && PathPrefix(\"/app\")"),
        2 => format!("Header(\"X-Tenant\", \"t{number}\") || Cookie(\"tenant\", \"t{number}\")"),
        _ => format!("Host(\"a.example\") && PathPrefix(\"/t{number}/\") && !ClientIP(\"192.168.0.0/16\")"),
    };
    let rules = (0..10_000).map(|number| rule(&format!("r{number}"), &condition(number), FIRST)).collect();
    let table = table(rules, vec![pool("p", (0..100).map(|number| instance(&format!("i{number}"))))]);
    let ask = get("/t9999/report?a=b").header("User-Agent", "curl/8").header("Cookie", "tenant=none; beta=0");
    ask.seen(|request| {
        drop(table.decide(request, &Attempt::first(Instant::now())));
        let before = ALLOCATIONS.get();
        for _ in 0..100 {
            let decision = table.decide(request, &Attempt::first(Instant::now()));
            assert_eq!(table.rule_name(decision.rule), "r9999");
        }
        assert_eq!(ALLOCATIONS.get() - before, 0);
    });
}

#[test]
fn no_method_allocates() {
    for method in Method::ALL {
        let mut pool = pool("p", (0..100).map(|number| instance(&format!("i{number}"))));
        pool.method = method;
        let table = table(vec![], vec![pool]);
        let now = Instant::now();
        for (_, _, instance) in table.instances() {
            let report = Report { cpu_idle_percent: Some(90.0), agent_value: Some(5), ..Report::default() };
            let pool = &table.pools()[0];
            instance.status.report(&report, &pool.load, pool.thresholds(instance), now);
            instance.status.sessions().response().observe(Duration::from_millis(5), now);
        }
        get("/").seen(|request| {
            let before = ALLOCATIONS.get();
            for _ in 0..100 {
                assert!(table.decide(request, &Attempt::first(now)).outcome.instance().is_some());
            }
            assert_eq!(ALLOCATIONS.get() - before, 0, "{method:?}");
        });
    }
}
