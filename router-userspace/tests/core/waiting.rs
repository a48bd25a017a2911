//! When a pool cannot serve: other pools, and waiting in line.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use router::core::decide::{Attempt, Outcome};
use router::core::memory::queue::Ticket;
use router::core::pool::{OnUnavailable, PoolId};
use router::core::table::RoutingTable;

use crate::support::*;

const QUEUE: OnUnavailable = OnUnavailable::Queue { patience: Duration::from_secs(5) };

#[test]
fn another_pool_serves_when_the_first_cannot_and_the_way_goes_on_from_there() {
    let mut pools = vec![
        pool("first", [instance("a").down()]),
        pool("second", [instance("b").down()]),
        pool("third", [instance("c")]),
    ];
    pools[0].on_unavailable = Some(OnUnavailable::Pool(PoolId(1)));
    pools[1].on_unavailable = Some(OnUnavailable::Pool(PoolId(2)));
    let table = table(vec![rule("r", "Any()", FIRST)], pools);
    assert_eq!(table.goes_to(&get("/")), "c");
    let trace = get("/").seen(|request| table.explain(request, &Attempt::first(Instant::now())));
    assert_eq!(trace.pools, [PoolId(0), PoolId(1), PoolId(2)]);
    assert_eq!(trace.instances.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    table.instance(table.id("c")).status.set_admin(router::core::status::AdminState::Maintenance);
    let last = Outcome::Unavailable { action: OnUnavailable::Status503, pool: None };
    assert_eq!(table.outcome(&get("/")), last);
}

/// One pool for one session at a time.
fn busy_pool() -> RoutingTable {
    let mut pool = pool("pool", [instance("a").max_sessions(1)]);
    pool.on_unavailable = Some(QUEUE);
    table(vec![rule("r", "Any()", FIRST)], vec![pool])
}

#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Whether the ticket has been called by now.
fn called(ticket: &Ticket, calls: &Arc<Calls>) -> bool {
    let waker = Waker::from(Arc::clone(calls));
    pin!(ticket.called()).poll(&mut Context::from_waker(&waker)) == Poll::Ready(())
}

#[test]
fn a_full_pool_asks_to_wait_in_its_line() {
    let table = busy_pool();
    let _held = table.place(&get("/"), &[]).unwrap();
    let Outcome::Unavailable { action, pool } = table.ask(&get("/")).outcome else { panic!("full") };
    assert_eq!((action, pool), (QUEUE, Some(PoolId(0))));
}

#[test]
fn the_first_in_line_is_called_when_a_session_ends_and_nobody_overtakes_it() {
    let table = busy_pool();
    let held = table.place(&get("/"), &[]).unwrap();
    let queues = &table.memory().queues;
    let calls: [Arc<Calls>; 2] = Default::default();
    let first = queues.enter("pool", 10).unwrap();
    let second = queues.enter("pool", 10).unwrap();
    assert!(!called(&first, &calls[0]) && !called(&second, &calls[1]));
    drop(held);
    assert_eq!(calls.each_ref().map(|calls| calls.0.load(Ordering::SeqCst)), [1, 0]);
    assert!(called(&first, &calls[0]) && first.is_first() && !second.is_first());

    assert!(table.place(&get("/"), &[]).is_none(), "there is room, but two came before");
    let attempt = Attempt { first_in_line: true, ..Attempt::first(Instant::now()) };
    let decision = get("/").seen(|request| table.decide(request, &attempt));
    assert_eq!(decision.outcome.instance(), Some(table.id("a")));
    drop(first);
    assert!(called(&second, &calls[1]), "leaving the line calls the next");
    drop(second);
    assert_eq!(queues.waiting(), 0);
    drop(decision);
    assert_eq!(table.goes_to(&get("/")), "a", "nobody waits any more");
}

#[test]
fn a_line_is_bounded_and_who_leaves_it_makes_room() {
    let table = busy_pool();
    let queues = &table.memory().queues;
    let first = queues.enter("pool", 2).unwrap();
    let second = queues.enter("pool", 2).unwrap();
    assert!(queues.enter("pool", 2).is_none());
    assert!(queues.enter("other", 2).is_some(), "each pool has its own line");
    assert_eq!((queues.counts.entered.get(), queues.counts.full.get()), (3, 1));
    drop(second);
    assert!(queues.enter("pool", 2).is_some());
    drop(first);
    assert_eq!(queues.waiting(), 0);
}

#[test]
fn sessions_of_a_reloaded_table_call_the_same_line() {
    let before = busy_pool();
    let held = before.place(&get("/"), &[]).unwrap();
    let mut after = busy_pool();
    after.carry_over(&before);
    let (ticket, calls) = (after.memory().queues.enter("pool", 2).unwrap(), Arc::default());
    assert!(!called(&ticket, &calls));
    drop(held);
    assert!(called(&ticket, &calls));
}
