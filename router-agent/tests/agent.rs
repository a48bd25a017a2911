//! The agent as a program, and what a router hears from it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use router_report::Report;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const PATIENCE: Duration = Duration::from_secs(30);

/// Takes as many reports as there are answers, each on a connection of its own.
struct Router {
    address: String,
    taken: JoinHandle<Vec<(String, Report)>>,
}

impl Router {
    fn answering(answers: &[&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answers = answers.to_vec();
        let taken = std::thread::spawn(move || {
            answers
                .into_iter()
                .map(|answer| {
                    let mut stream = BufReader::new(listener.accept().unwrap().0);
                    stream.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        assert_ne!(stream.read_line(&mut head).unwrap(), 0);
                    }
                    let field = |name: &str| {
                        head.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned()
                    };
                    let mut body = vec![0; field("Content-Length: ").parse().unwrap()];
                    stream.read_exact(&mut body).unwrap();
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                    assert!(head.starts_with("POST /v1/report HTTP/1.1\r\n"));
                    (field("Authorization: "), serde_json::from_slice(&body).unwrap())
                })
                .collect()
        });
        Self { address, taken }
    }
}

const TAKEN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("router-agent-run-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("token"), format!("\n{TOKEN}\n")).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn once(folder: &Folder, router: &str, further: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_router-agent"))
        .args(["--once", "--router", router])
        .arg("--token-file")
        .arg(folder.0.join("token"))
        .args(further)
        .args(if further.contains(&"--interval") { &[][..] } else { &["--interval", "100ms"] })
        .output()
        .unwrap()
}

#[test]
fn the_agent_reports_the_host_that_it_runs_on_for_each_of_its_instances() {
    let folder = Folder::new("host");
    let router = Router::answering(&[TAKEN, TAKEN]);
    let further = ["--instance", "gis1", "--instance", "gis2", "--capacity", "250", "--temp-dir", "/"];
    let done = once(&folder, &router.address, &further);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let taken = router.taken.join().unwrap();
    let names: Vec<_> = taken.iter().map(|(_, report)| &*report.instance).collect();
    assert_eq!(names, ["gis1", "gis2"]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    for (token, report) in taken {
        assert_eq!(token, format!("Bearer {TOKEN}"));
        assert!(report.time.is_some_and(|time| (now - 60.0..=now).contains(&time)));
        assert_eq!(report.cpu_capacity, Some(250.0));
        assert!(report.cpu_idle_percent.is_some_and(|idle| (0.0..=100.0).contains(&idle)));
        assert!(report.memory_free_bytes > Some(0) && report.memory_free_bytes <= report.memory_total_bytes);
        assert!(report.virtual_memory_free_bytes >= report.memory_free_bytes);
        assert!(report.temp_disk_used_percent.is_some_and(|used| (0.0..=100.0).contains(&used)));
        assert!(report.pages_per_second.is_some());
        assert_eq!((report.sessions, report.loaded_resources), (None, None), "nobody has said");
    }
}

#[test]
fn the_application_says_what_only_it_knows() {
    let folder = Folder::new("application");
    let command = folder.0.join("status");
    let script = "#!/bin/sh\necho \"{\\\"sessions\\\": 12, \\\"loaded_resources\\\": [\\\"$1-map\\\"]}\"\n";
    std::fs::write(&command, script).unwrap();
    std::fs::set_permissions(&command, PermissionsExt::from_mode(0o700)).unwrap();
    let command = command.display().to_string();
    let router = Router::answering(&[TAKEN]);
    let done = once(&folder, &router.address, &["--instance", "gis1", "--status-command", &command]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let (_, report) = router.taken.join().unwrap().remove(0);
    assert_eq!(report.sessions, Some(12));
    assert_eq!(report.loaded_resources, Some(vec!["gis1-map".to_owned()]));
}

#[test]
fn the_agent_says_what_is_wrong() {
    let folder = Folder::new("wrong");
    let refusing = Router::answering(&[
        "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\nthe token is not one of any pool",
    ]);
    let unused = "127.0.0.1:9".to_owned();
    let missing = folder.0.join("missing").display().to_string();
    for (router, further, wanted) in [
        (&refusing.address, &[][..], "the token is not one of any pool"),
        (&unused, &["--address", "10.0.0.1:80", "--address", "10.0.0.2:80"], "give --address once for each"),
        (&unused, &["--status-command", &missing], "cannot run --status-command"),
        (&unused, &["--interval", "1ms"], "write a duration from 100ms to 1h"),
        (&unused, &["--status-file", "x", "--status-command", "y"], "cannot be used with"),
    ] {
        let done = once(&folder, router, &[&["--instance", "gis1"], further].concat());
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && said.contains(wanted), "{further:?}: {said}");
    }
    refusing.taken.join().unwrap();
}
