//! Daemons that are killed in the middle of binding a connection, at each step of it: the client gets its answer from the next one, or is told at once that there
//! is nobody, and nothing stays behind.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use support::lab::{Family, Host};
use support::{Connection, Entry, Router, Scene, pinned};

/// A daemon comes back within some seconds, and clients send again after 0.2, 0.6, 1.4 and 3 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a client asks for, and which step its connection then comes to.
const STEPS: [(&str, Request); 9] = [
    ("Choose", Request::Whole("/choose")),
    ("InsertKeys", Request::Whole("/insert-keys")),
    ("InsertClientKey", Request::Whole("/insert-client-key")),
    ("SendSyn", Request::Whole("/send-syn")),
    ("Retract", Request::Whole("/dead")),
    ("RemoveKeys", Request::Whole("/dead")),
    ("Release", Request::Whole("/release")),
    ("LetSocketLive", Request::Part),
    ("NoteSocket", Request::Part),
];

#[derive(Clone, Copy, Debug)]
enum Request {
    Whole(&'static str),
    /// Its first half, which gets a socket.
    Part,
}

support::over_both_families! {
    a_daemon_that_is_killed_at_any_step_leaves_an_answer_or_a_reset
}

/// A pool whose instance refuses; all others of the scene are as they are.
fn rules_with_a_dead_instance(family: Family) -> String {
    let gone = SocketAddr::new(family.address(Host::Backend(1)), 10);
    format!(
        "[[pool]]\nname = \"dead\"\n[[pool.instance]]\nname = \"gone\"\naddress = \"{gone}\"\n\n\
         [[rule]]\nname = \"dead\"\nmatch = 'PathPrefix(\"/dead\")'\npool = \"dead\"\n"
    )
}

/// The status that a client gets; `None` if it is reset.
fn outcome(mut connection: Connection, request: Request) -> Option<u16> {
    match speak(&mut connection, request) {
        Ok(status) => Some(status),
        Err(error) => {
            let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
            assert!(kinds.contains(&error.kind()), "neither an answer nor a reset: {error}");
            None
        }
    }
}

fn speak(connection: &mut Connection, request: Request) -> io::Result<u16> {
    match request {
        Request::Whole(path) => {
            connection.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))?;
        }
        Request::Part => {
            connection.send("GET /part HTTP/1.1\r\n")?;
            thread::sleep(Duration::from_millis(50));
            connection.send("Host: a\r\nConnection: close\r\n\r\n")?;
        }
    }
    connection.reply().map(|reply| reply.status)
}

/// Binds a connection to its end, with which everything is to end.
fn nothing_is_left(scene: &Scene) {
    scene.warm_up();
    pinned::assert_no_connection_is_left(&scene.lab.pin_dir());
}

fn a_daemon_that_is_killed_at_any_step_leaves_an_answer_or_a_reset(family: Family) {
    let mut scene = Scene::binding(family, 1, &rules_with_a_dead_instance(family));
    for (step, request) in STEPS {
        nothing_is_left(&scene);
        scene.router.stop_before(step);
        let connection = scene.connect(Entry::Bind);
        let client = thread::spawn(move || outcome(connection, request));
        scene.router.eventually(PATIENCE, &format!("the daemon comes to {step}"), Router::is_stopped);
        if matches!(request, Request::Part) {
            // The rest of the request comes while the daemon stands still: nobody may acknowledge it and be gone.
            thread::sleep(Duration::from_millis(300));
        }
        scene.router.kill();
        scene.router.stop_nowhere();
        let killed = Instant::now();
        scene.router.restart();
        let status = client.join().expect("the client is answered or reset");
        println!("{step}: {status:?}, {:?} after the daemon's death", killed.elapsed());
        if let Some(status) = status {
            let served = if matches!(request, Request::Whole("/dead")) { 503 } else { 200 };
            assert_eq!(status, served, "{step}");
        }
    }
    nothing_is_left(&scene);
    scene.assert_no_segment_was_spoiled();
}
