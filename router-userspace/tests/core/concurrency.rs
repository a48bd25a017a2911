//! Several workers decide at the same moment.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use router::core::pool::Method;
use router::core::session::Session;
use router::core::table::RoutingTable;

use crate::support::*;

const WORKERS: usize = 8;

/// `count` clients, decided by all workers at once; the sessions that got an instance.
fn rush(table: &RoutingTable, count: usize) -> Vec<Session> {
    let (start, next) = (Barrier::new(WORKERS), AtomicUsize::new(0));
    let worker = || {
        start.wait();
        let mut held = vec![];
        while next.fetch_add(1, Ordering::Relaxed) < count {
            held.extend(table.place(&get("/"), &[]).map(|(_, session)| session));
        }
        held
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    })
}

#[test]
fn a_hundred_concurrent_clients_over_four_equal_instances_are_exactly_25_each() {
    let table = one_pool(["a", "b", "c", "d"].map(instance));
    for round in 0..300 {
        let held = rush(&table, 100);
        assert_eq!(held.len(), 100);
        assert_eq!(["a", "b", "c", "d"].map(|name| table.live(name)), [25; 4], "round {round}");
        drop(held);
        assert_eq!(["a", "b", "c", "d"].map(|name| table.live(name)), [0; 4]);
    }
}

#[test]
fn a_double_weight_holds_exactly_twice_the_sessions() {
    let table = one_pool([instance("a").weight(200), instance("b"), instance("c")]);
    for _ in 0..100 {
        let _held = rush(&table, 100);
        assert_eq!(["a", "b", "c"].map(|name| table.live(name)), [50, 25, 25]);
    }
}

#[test]
fn concurrent_turns_of_round_robin_are_as_even_as_turns_one_by_one() {
    let mut pool = pool("p", [instance("a").weight(200), instance("b"), instance("c")]);
    pool.method = Method::RoundRobin;
    let table = table(vec![], vec![pool]);
    for round in 1..=100u64 {
        drop(rush(&table, 100));
        let total = ["a", "b", "c"].map(|name| table.instance(table.id(name)).status.sessions().total());
        assert_eq!(total, [50 * round, 25 * round, 25 * round]);
    }
}

#[test]
fn no_rush_puts_more_than_max_sessions_on_an_instance() {
    let table = one_pool((0..40).map(|number| instance(&format!("i{number}")).max_sessions(1)));
    for round in 0..100 {
        let held = rush(&table, 100);
        assert_eq!(held.len(), 40, "round {round}");
        assert!(table.instances().all(|(_, _, instance)| instance.status.sessions().live() == 1));
    }
}

#[test]
fn sessions_that_come_and_go_on_every_worker_leave_nothing_behind() {
    let table = one_pool(["a", "b", "c"].map(instance));
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                for _ in 0..2000 {
                    table.goes_to(&get("/"));
                }
            });
        }
    });
    assert_eq!(["a", "b", "c"].map(|name| table.live(name)), [0; 3]);
    let total: u64 = table.instances().map(|(_, _, instance)| instance.status.sessions().total()).sum();
    assert_eq!(total, 2000 * WORKERS as u64);
}
