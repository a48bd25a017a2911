//! Instances that come and go under a thousand Layer-4 connections: those of the others never notice.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use support::Connection;
use support::balanced::Balanced;
use support::lab::{Family, peers};

const CONNECTIONS: usize = 1_000;
const ASKING: usize = 4;

/// A connection, and who serves it.
struct Served {
    connection: Connection,
    instance: String,
}

/// What became of connections to the instance that comes and goes, and how many answers all together have got.
#[derive(Default)]
struct Seen {
    answers: AtomicU64,
    broken: AtomicU64,
    ends: AtomicBool,
}

/// Asks on all connections, one after the other, until told to end. Returns those that are left.
///
/// # Panics
/// If a connection of an instance that stays breaks, or is answered by another one.
fn ask_again_and_again(mut served: Vec<Served>, seen: &Seen) -> Vec<Served> {
    while !seen.ends.load(Ordering::Relaxed) {
        served.retain_mut(|Served { connection, instance }| match connection.get("/whoami") {
            Ok(reply) => {
                assert_eq!(reply.text().trim(), instance);
                seen.answers.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(error) => {
                assert_eq!(instance, "backend1", "a connection of {instance} is broken: {error}");
                seen.broken.fetch_add(1, Ordering::Relaxed);
                false
            }
        });
    }
    served
}

/// New connections get to the first instance again, or do not any more.
fn wait_for_first(scene: &Balanced, wanted: bool, when: &str) {
    let first_is_met = || {
        // A connection may meet an instance of which the checks do not know yet that it is gone.
        let names = (0..30).map(|_| scene.connect().and_then(|mut one| one.get("/whoami")));
        names.flatten().any(|reply| reply.text().trim() == "backend1")
    };
    scene.router.eventually(Duration::from_secs(30), when, |_| first_is_met() == wanted);
}

#[test]
#[ignore = "needs root"]
fn an_instance_is_drained_removed_killed_and_returned_under_load_and_no_connection_of_the_others_breaks() {
    let check = "check = { type = \"tcp\", interval = \"200ms\", timeout = \"200ms\", fall = 2, rise = 2 }";
    let scene = Balanced::with(Family::V4, 3, "", "", check);
    let served: Vec<Served> = (0..CONNECTIONS)
        .map(|_| {
            let mut connection = scene.connect().unwrap();
            let instance = connection.get("/whoami").unwrap().text().trim().to_owned();
            Served { connection, instance }
        })
        .collect();
    let of = |served: &[Served], name: &str| served.iter().filter(|one| one.instance == name).count();
    let of_first = of(&served, "backend1");
    assert!(of_first > 200, "{of_first} of {CONNECTIONS}: a third, about");
    let seen = Seen::default();
    let (mut shares, mut rest) = (Vec::new(), served.into_iter());
    for _ in 0..ASKING {
        shares.push(rest.by_ref().take(CONNECTIONS / ASKING).collect::<Vec<_>>());
    }
    let left: Vec<Served> = thread::scope(|scope| {
        let asking: Vec<ScopedJoinHandle<'_, Vec<Served>>> =
            shares.into_iter().map(|share| scope.spawn(|| ask_again_and_again(share, &seen))).collect();
        // Those who ask end also when the story fails here.
        let _ends = EndsAll(&seen.ends);
        comes_and_goes(&scene, &seen);
        seen.ends.store(true, Ordering::Relaxed);
        asking
            .into_iter()
            .flat_map(|share| share.join().expect("no connection of the others breaks"))
            .collect()
    });
    let (answers, broken) = (seen.answers.into_inner(), seen.broken.into_inner());
    println!("{answers} answers; {broken} of {of_first} connections broke with their instance");
    assert_eq!(left.len(), CONNECTIONS - of_first);
    assert_eq!(broken, of_first as u64);
    assert!(answers > 10 * CONNECTIONS as u64, "{answers} answers are no load");
}

struct EndsAll<'a>(&'a AtomicBool);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn comes_and_goes(scene: &Balanced, seen: &Seen) {
    // Everybody has been served meanwhile, whatever has just happened.
    let all_are_asked = |when: &str| {
        let before = seen.answers.load(Ordering::Relaxed);
        let wanted = before + 2 * CONNECTIONS as u64;
        scene
            .router
            .eventually(Duration::from_secs(60), when, |_| seen.answers.load(Ordering::Relaxed) > wanted);
    };
    let set = |state: &str| scene.router.ctl(["instance", "set", "nginx1", "--state", state]);
    set("drain");
    wait_for_first(scene, false, "drained, it gets no new connection");
    all_are_asked("drained");
    assert_eq!(seen.broken.load(Ordering::Relaxed), 0, "drained, it keeps its connections");
    set("enable");
    wait_for_first(scene, true, "it gets connections again");

    let file = scene.router.configuration_file();
    let whole = fs::read_to_string(&file).unwrap();
    let entry = whole.find("[[pool.instance]]\nname = \"nginx1\"").unwrap();
    let length = whole[entry..].find("\n\n").unwrap();
    fs::write(&file, [&whole[..entry], &whole[entry + length..]].concat()).unwrap();
    scene.router.ctl(["reload"]);
    wait_for_first(scene, false, "removed, it gets no new connection");
    all_are_asked("removed");
    assert_eq!(seen.broken.load(Ordering::Relaxed), 0, "removed, its connections go on to their end");
    fs::write(&file, &whole).unwrap();
    scene.router.ctl(["reload"]);
    wait_for_first(scene, true, "back in the file, it gets connections again");

    peers::stop_one(&scene.lab, 1).unwrap();
    wait_for_first(scene, false, "killed, it gets no new connection");
    all_are_asked("killed");
    peers::start_one(&scene.lab, 1).unwrap();
    wait_for_first(scene, true, "returned, it gets connections again");
    all_are_asked("returned");
}
