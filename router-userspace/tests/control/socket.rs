//! Who may connect to the control socket, and whose place it takes.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use router::control::socket::{ControlSocket, SocketError};

use crate::daemon::{Daemon, Directory};

#[test]
fn only_the_daemon_s_user_may_connect_unless_a_group_is_named() {
    let directory = Directory::new();
    let path = directory.path().join("not/yet/there/control.sock");
    let socket = ControlSocket::bind(&path, None).unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    drop(socket);
    assert!(!path.exists(), "the daemon leaves no socket behind");

    let gid = nix::unistd::getgid();
    let group = nix::unistd::Group::from_gid(gid).unwrap().unwrap().name;
    let _socket = ControlSocket::bind(&path, Some(&group)).unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o777, metadata.gid()), (0o660, gid.as_raw()));
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = Directory::new();
    let path = directory.path().join("control.sock");
    // As a killed daemon leaves it.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let live = ControlSocket::bind(&path, None).unwrap();

    let error = ControlSocket::bind(&path, None).unwrap_err();
    assert!(matches!(error, SocketError::InUse(_)), "{error}");
    assert!(error.to_string().contains("another daemon answers"), "{error}");
    assert!(path.exists(), "a refused daemon does not take the other's socket away");
    drop(live);
}

#[test]
fn a_daemon_whose_socket_was_replaced_leaves_its_successor_s_alone() {
    let directory = Directory::new();
    let path = directory.path().join("control.sock");
    let old = ControlSocket::bind(&path, None).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _new = ControlSocket::bind(&path, None).unwrap();
    drop(old);
    assert!(path.exists());
}

#[test]
fn each_obstacle_is_named_with_its_remedy() {
    let directory = Directory::new();
    let file = directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = ControlSocket::bind(&file, None).unwrap_err().to_string();
    assert!(error.contains("exists and is not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");

    let path = directory.path().join("control.sock");
    let error = ControlSocket::bind(&path, Some("no-such-group")).unwrap_err().to_string();
    assert!(error.contains("groupadd --system no-such-group"), "{error}");
    assert!(!path.exists());

    let long = directory.path().join("x".repeat(120));
    let error = ControlSocket::bind(&long, None).unwrap_err().to_string();
    assert!(error.contains("too long"), "{error}");

    let below_a_file = file.join("control.sock");
    let error = ControlSocket::bind(&below_a_file, None).unwrap_err().to_string();
    assert!(error.contains("cannot create the directory"), "{error}");
}

#[test]
fn a_stopped_server_ends_its_connections_and_removes_its_socket() {
    let daemon = Daemon::start();
    let idle = daemon.connect();
    assert_eq!(daemon.get("/healthz").status, 200, "so the connection before it has been accepted too");
    let path = daemon.socket.clone();
    drop(daemon);
    assert!(!path.exists());
    let mut end = [0];
    idle.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(std::io::Read::read(&mut &idle, &mut end).unwrap(), 0);
}

#[test]
fn the_control_thread_yields_to_the_threads_that_carry_connections() {
    let daemon = Daemon::start();
    assert_eq!(daemon.get("/healthz").status, 200);
    let nice = |task: &Path| -> Option<i32> {
        let stat = std::fs::read_to_string(task.join("stat")).ok()?;
        // Fields after the name in parentheses; nice is the 19th of all.
        stat.rsplit_once(") ")?.1.split(' ').nth(16)?.parse().ok()
    };
    let control_threads = || -> Vec<i32> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| Some(task.ok()?.path()));
        let is_control = |task: &PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "control")
        };
        tasks.filter(is_control).filter_map(|task| nice(&task)).collect()
    };
    // Other tests start servers meanwhile, whose threads are about to lower themselves.
    let began = Instant::now();
    while !control_threads().iter().all(|nice| *nice == 10) {
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", control_threads());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!control_threads().is_empty());
    let main = PathBuf::from(format!("/proc/self/task/{}", std::process::id()));
    assert_eq!(nice(Path::new("/proc/thread-self")), nice(&main), "only the control thread is lowered");
}
