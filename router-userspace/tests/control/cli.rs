//! What `routerctl` prints, and what it tells the shell.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use router::cli::{self, Exit};
use router::control::{Opened, Settings, State, Timeouts};

use socket2::SockRef;

use crate::daemon::{Daemon, Directory, Heads, PATIENCE};

pub struct Ran {
    pub exit: Exit,
    pub out: String,
    pub err: String,
}

pub fn run(socket: &Path, arguments: &[&str]) -> Ran {
    let (mut out, mut err) = (anstream::StripStream::new(Vec::new()), anstream::StripStream::new(Vec::new()));
    let line =
        ["routerctl", "--socket", socket.to_str().unwrap()].into_iter().chain(arguments.iter().copied());
    let exit = cli::run(line, &mut out, &mut err);
    let text = |stream: anstream::StripStream<Vec<u8>>| String::from_utf8(stream.into_inner()).unwrap();
    Ran { exit, out: text(out), err: text(err) }
}

/// Compares line by line; `expected` begins with a line break and is indented as the source is.
#[track_caller]
fn assert_prints(ran: &Ran, exit: Exit, expected: &str) {
    assert_eq!((ran.err.as_str(), ran.exit), ("", exit));
    let margin = expected.lines().nth(1).map_or(0, |line| line.len() - line.trim_start().len());
    let expected: Vec<&str> = expected.lines().skip(1).map(|line| line.get(margin..).unwrap_or("")).collect();
    let expected = expected.join("\n").trim_end().to_owned();
    assert!(ran.out.trim_end() == expected, "printed:\n{}\nexpected:\n{expected}", ran.out);
}

#[test]
fn status_shows_the_daemon_at_a_glance() {
    let daemon = Daemon::start();
    let mut status = run(&daemon.socket, &["status"]);
    let (first, rest) = status.out.split_once('\n').unwrap();
    assert!(first.starts_with("routerd 0.1.0, pid "), "{first}");
    assert!(first.ends_with(", /etc/router/router.toml"), "{first}");
    status.out = rest.to_owned();
    assert_prints(
        &status,
        Exit::Ok,
        "
        data path    TCX ingress on eth0, eth1
        flows        3 of 1000
        interfaces   eth0 by xdp-native: as configured
                       set something
                     eth1 by tc: its driver has no native XDP
        connections  3 accepted, 1 open, 3 requests
                     0 bound, 1 handed off, 1 relayed, 1 refused, 2 retries

        LISTENER  ADDRESS      PROTOCOL  SOURCE  OFFLOAD
        web       10.0.1.1:80  http      snat    auto

        POOL  SERVING  SESSIONS
        web   1/1             0
        maps  2/4             3
        lost  0/1             0

        RELAYED BECAUSE  COUNT
        short                1

        REFUSED BECAUSE  COUNT
        denied               1
        ",
    );
}

#[test]
fn pools_instances_rules_and_flows_are_aligned_tables() {
    let daemon = Daemon::start();
    assert_prints(
        &run(&daemon.socket, &["pools"]),
        Exit::Ok,
        "
        POOL  SERVING  SESSIONS  METHOD           ON UNAVAILABLE  CHECK
        web   1/1             0  fewest-sessions  by listener     -
        maps  2/4             3  fewest-sessions  by listener     http /health every 2s, timeout 1s, rise 2, fall 3
        lost  0/1             0  fewest-sessions  reset           http /health every 2s, timeout 1s, rise 2, fall 3
        ",
    );
    assert_prints(
        &run(&daemon.socket, &["rules"]),
        Exit::Ok,
        r#"
        #  RULE     ACTION               REQUESTS  MATCH
        1  old      pool web (disabled)         0  Path("/old")
        2  gis      pool maps                   2  PathPrefix("/gis") && Host("gis.example")
        3  admin    deny 403                    0  PathPrefix("/admin") && !ClientIP("10.0.0.0/8")
        4  lost     pool lost                   0  PathPrefix("/lost")
        5  default  pool web                    0  Any()
        "#,
    );
    assert_prints(
        &run(&daemon.socket, &["flows", "--client", "10.0.0.0/8"]),
        Exit::Ok,
        "
        CLIENT          LISTENER  RULE  INSTANCE  SOURCE          STATE      AGE  IDLE  TO INSTANCE  TO CLIENT
        10.1.2.4:50002  web       gis   gis2      10.0.2.1:20002  closing  1h 1m  0.5s      2.0 KiB    5.0 MiB
        10.1.2.3:50001  web       gis   gis1      10.0.2.1:20001  direct     30s  0.5s      2.0 KiB    5.0 MiB
        ",
    );
    assert_prints(&run(&daemon.socket, &["flows", "--count", "--instance", "gis2"]), Exit::Ok, "\n1");
    let some = run(&daemon.socket, &["flows", "--limit", "2"]);
    assert!(some.out.contains("\n2 of 3 flows; --limit shows more"), "{}", some.out);

    let instances = run(&daemon.socket, &["instances"]).out;
    let lines: Vec<_> = instances.lines().collect();
    assert!(
        lines[0].starts_with(
            "POOL  INSTANCE  ADDRESS       HEALTH  ADMIN        LOAD               WEIGHT  SESSIONS"
        ),
        "{instances}"
    );
    assert!(
        lines[3].starts_with(
            "maps  gis2      10.0.2.22:80  up      enabled      available cpu 20%      50         2"
        ),
        "{instances}"
    );
    assert!(lines[4].contains("down") && lines[4].contains("connection refused, 0 s ago"), "{instances}");
    assert!(lines[5].contains("maintenance"), "{instances}");

    let reasons = run(&daemon.socket, &["reasons"]).out;
    let line = reasons.lines().find(|line| line.starts_with("forwarded")).unwrap();
    assert!(line.ends_with("   4711  Translated and sent to the other side."), "{reasons}");
}

#[test]
fn explain_prints_rule_by_rule_and_instance_by_instance() {
    let daemon = Daemon::start();
    let ask = |more: &[&str]| {
        let line = [&["explain", "--listener", "web", "--client", "10.1.2.3"][..], more].concat();
        run(&daemon.socket, &line)
    };
    assert_prints(
        &ask(&["--path", "/gis/./map?x=1", "--header", "Host: gis.example", "--method", "POST"]),
        Exit::Ok,
        r#"
        POST /gis/./map?x=1 from 10.1.2.3 on listener web
        rules see the path /gis/map

        #  RULE  RESULT    BECAUSE
        1  old   disabled  disabled rules are skipped
        2  gis   match     PathPrefix("/gis") holds, Host("gis.example") holds

        INSTANCE  POOL  ADDRESS       HEALTH  ADMIN        WEIGHT  SESSIONS  LOAD  RESULT      BECAUSE
        gis1      maps  10.0.2.21:80  up      enabled         100         1  1.00  chosen      comes first among the candidates
        gis2      maps  10.0.2.22:80  up      enabled          50         2  4.00  not chosen  load 4.00 against 1.00
        gis3      maps  10.0.2.23:80  down    enabled         100         0     -  not chosen  down: connection refused
        gis4      maps  10.0.2.24:80  down    maintenance     100         0     -  not chosen  in maintenance

        rule gis sends it to instance gis1 (10.0.2.21:80) of pool maps, by fewest-sessions
        "#,
    );
    assert_prints(
        &ask(&["--path", "/lost"]),
        Exit::Negative,
        r#"
        GET /lost from 10.1.2.3 on listener web

        #  RULE   RESULT    BECAUSE
        1  old    disabled  disabled rules are skipped
        2  gis    no match  PathPrefix("/gis") does not hold
        3  admin  no match  PathPrefix("/admin") does not hold
        4  lost   match     PathPrefix("/lost") holds

        INSTANCE  POOL  ADDRESS       HEALTH  ADMIN    WEIGHT  SESSIONS  LOAD  RESULT      BECAUSE
        gone      lost  10.0.2.31:80  down    enabled     100         0     -  not chosen  down: not checked yet

        rule lost selects it, but no instance of pool lost can serve: the connection is reset
        "#,
    );
    let last = |ran: Ran| (ran.exit, ran.out.lines().last().unwrap_or_default().to_owned());
    let denied =
        run(&daemon.socket, &["explain", "--listener", "web", "--client", "192.0.2.1", "--path", "/admin"]);
    assert_eq!(last(denied), (Exit::Negative, "rule admin refuses it with status 403".to_owned()));
    let (exit, line) = last(ask(&["--path", "/x/%2e%2e/admin", "--client", "192.0.2.1"]));
    assert_eq!(
        (exit, line.as_str()),
        (Exit::Usage, ""),
        "an argument given twice is an error of the command line"
    );
    let odd = run(
        &daemon.socket,
        &["explain", "--listener", "web", "--client", "192.0.2.1", "--path", "/x/%2e%2e/admin"],
    );
    let expected =
        "refused with status 400: the path as sent selects rule default, normalised it selects admin";
    assert_eq!(last(odd), (Exit::Negative, expected.to_owned()));
    let (exit, line) = last(ask(&["--method", "CONNECT"]));
    assert!(line.contains("refuses it before any rule: method_not_allowed: CONNECT"), "{line}");
    assert_eq!(exit, Exit::Negative);
}

#[test]
fn json_is_what_the_daemon_said() {
    let daemon = Daemon::start();
    for command in ["rules", "reasons", "flows"] {
        let printed = run(&daemon.socket, &[command, "--json"]);
        assert_eq!(printed.exit, Exit::Ok);
        assert_eq!(printed.out.trim_end(), daemon.get(&format!("/v1/{command}")).body, "{command}");
    }
    let counted = run(&daemon.socket, &["--json", "flows", "--count"]);
    assert_eq!(counted.out, "{\"count\":3}\n");
    let explained = run(
        &daemon.socket,
        &["explain", "--listener", "web", "--client", "10.1.2.3", "--path", "/lost", "--json"],
    );
    let value: serde_json::Value = serde_json::from_str(&explained.out).unwrap();
    assert_eq!((explained.exit, &value["outcome"]["kind"]), (Exit::Negative, &"unavailable".into()));
}

#[test]
fn shells_learn_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(Path::new("/nonexistent"), &["completions", shell]);
        assert_eq!((ran.exit, ran.err.as_str()), (Exit::Ok, ""));
        for word in ["instances", "explain", "check", "http-version"] {
            assert!(ran.out.contains(word), "{shell}: {word} is missing");
        }
    }
}

#[test]
fn each_failure_is_one_sentence_with_a_remedy_and_its_own_exit_code() {
    let directory = Directory::new();
    let missing = directory.path().join("control.sock");
    let ran = run(&missing, &["status"]);
    assert_eq!((ran.exit, ran.out.as_str(), ran.err.lines().count()), (Exit::NoAnswer, "", 1));
    assert!(ran.err.contains("is routerd running"), "{}", ran.err);
    assert!(ran.err.contains(missing.to_str().unwrap()), "{}", ran.err);

    drop(UnixListener::bind(&missing).unwrap());
    let ran = run(&missing, &["status"]);
    assert!(ran.err.contains("nobody answers on the control socket"), "{}", ran.err);
    std::fs::remove_file(&missing).unwrap();
    std::fs::write(&missing, "").unwrap();
    let ran = run(&missing, &["status"]);
    assert!(ran.err.contains("is not the control socket of a routerd"), "{}", ran.err);

    let daemon = Daemon::start();
    let ran = run(&daemon.socket, &["explain", "--listener", "wbe", "--client", "10.1.2.3"]);
    assert_eq!(ran.err, "routerctl: there is no listener \"wbe\"; did you mean \"web\"?\n");
    assert_eq!(ran.exit, Exit::Usage);

    for (arguments, complaint) in [
        (&["explain", "--listener", "web", "--client", "home"][..], "invalid IP address"),
        (&["explain", "--listener", "web", "--client", "10.1.2.3", "--header", "Host"], "needs a colon"),
        (&["flows", "--limit", "0"], "0 is not in 1..=100000"),
        (&["polls"], "unrecognized subcommand 'polls'"),
        (&[], "Usage: routerctl"),
    ] {
        let ran = run(&daemon.socket, arguments);
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Usage, ""), "{arguments:?}");
        assert!(ran.err.contains(complaint), "{arguments:?}: {}", ran.err);
    }
    let help = run(&daemon.socket, &["--help"]);
    assert_eq!((help.exit, help.err.as_str()), (Exit::Ok, ""));
    assert!(help.out.contains("Exit codes:\n  0  done"), "{}", help.out);
}

#[test]
fn another_program_or_another_version_on_the_socket_is_recognised() {
    for (answer, complaint) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "is not the control socket of a routerd"),
        ("SSH-2.0-OpenSSH_9.2\r\n", "is not the control socket of a routerd"),
        (
            "HTTP/1.1 404 Not Found\r\nrouter-control-version: 2\r\ncontent-length: 0\r\n\r\n",
            "speaks control version 2 and this routerctl 1",
        ),
        ("", "the connection to"),
    ] {
        let directory = Directory::new();
        let path = directory.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        SockRef::from(&listener).set_read_timeout(Some(PATIENCE)).unwrap();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let _ = stream.read(&mut [0; 1024]);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let ran = run(&path, &["status"]);
        other.join().unwrap();
        assert!(ran.err.contains(complaint) && ran.err.lines().count() == 1, "{answer:?}: {}", ran.err);
        assert_eq!(ran.exit, Exit::NoAnswer);
    }
}

/// Root may connect whatever the mode says, so this needs another user: the program itself, run by `setpriv`.
#[test]
fn a_user_without_permission_learns_which_group_to_join() {
    if !nix::unistd::geteuid().is_root() {
        let daemon = Daemon::start();
        std::fs::set_permissions(&daemon.socket, std::fs::Permissions::from_mode(0o000)).unwrap();
        let ran = run(&daemon.socket, &["status"]);
        assert!(ran.err.contains("may not use the control socket"), "{}", ran.err);
        return;
    }
    let group = nix::unistd::Group::from_gid(0.into()).unwrap().unwrap().name;
    let daemon = Daemon::with(|settings| settings.group = Some(group.clone()));
    // The program must be where the other user can run it.
    let directory = Directory::new();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("routerctl");
    std::fs::copy(env!("CARGO_BIN_EXE_routerctl"), &program).unwrap();
    let ran = std::process::Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&program)
        .arg("--socket")
        .arg(&daemon.socket)
        .arg("status")
        .output()
        .unwrap();
    let err = String::from_utf8(ran.stderr).unwrap();
    assert!(err.contains("may not use the control socket"), "{err}");
    assert!(err.contains(&format!("usermod -aG {group} USER")), "{err}");
    assert_eq!(ran.status.code(), Some(3));
    assert!(!err.contains('\u{1b}'), "no colours into a pipe");
}

#[test]
fn check_validates_a_file_without_a_daemon_and_shows_every_mistake_in_its_place() {
    let nowhere = Path::new("/nonexistent/control.sock");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let good = examples.join("quickstart.toml");
    let ran = run(nowhere, &["check", good.to_str().unwrap()]);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Ok, ""));
    assert!(ran.out.ends_with("quickstart.toml: valid\n"), "{}", ran.out);

    let directory = Directory::new();
    let bad = directory.path().join("bad.toml");
    let text = std::fs::read_to_string(&good).unwrap();
    std::fs::write(
        &bad,
        format!("{text}\n[daemon_]\n\n[[rule]]\nname = \"x\"\nmatch = 'Hots(\"a\")'\npool = \"nope\"\n"),
    )
    .unwrap();
    let ran = run(nowhere, &["check", bad.to_str().unwrap()]);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Negative, ""));
    assert!(ran.out.contains("Hots"), "{}", ran.out);
    assert!(ran.out.trim_end().ends_with("bad.toml: 3 errors"), "{}", ran.out);
    let ran = run(nowhere, &["check", "--json", bad.to_str().unwrap()]);
    let check: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.exit, &check["valid"]), (Exit::Negative, &false.into()));
    let lines = text.lines().count() as u64;
    let found: Vec<_> =
        check["errors"].as_array().unwrap().iter().map(|e| e["line"].as_u64().unwrap() - lines).collect();
    assert_eq!(found, [2, 6, 7]);

    let ran = run(nowhere, &["check", "/nonexistent/router.toml"]);
    assert_eq!(ran.exit, Exit::Negative);
    assert!(ran.out.contains("/nonexistent/router.toml"), "{}", ran.out);
}

#[test]
fn the_quickstart_explains_its_own_requests() {
    let directory = Directory::new();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart.toml");
    let plan = router::config::load(&file).unwrap_or_else(|errors| panic!("{errors}"));
    for (_, pool, instance) in plan.table.instances() {
        let seen = router::core::health::Observation::CheckPassed;
        instance.status.observe(pool.check.as_ref(), seen, std::time::Instant::now());
    }
    let state = State {
        preloads: Arc::default(),
        table: Arc::new(arc_swap::ArcSwap::from_pointee(plan.table)),
        counters: Arc::default(),
        flows: None,
        layer4: None,
        tracer: None,
        captures: None,
        ports: Arc::new(router::flows::ports::PortAllocator::new(20_000..=20_009)),
        datapath: "not loaded: this is a test".to_owned(),
        heads: Box::new(Heads),
        listeners: Arc::new(arc_swap::ArcSwap::from_pointee(plan.listeners.iter().map(Into::into).collect())),
        configurator: Arc::new(crate::configurator::File::new(directory.path())),
        config_file: Some(file),
        started: std::time::Instant::now(),
        started_at: std::time::SystemTime::now(),
    };
    let settings = Settings {
        socket: directory.path().join("control.sock"),
        group: None,
        admin_listen: None,
        timeouts: Timeouts::default(),
    };
    let server = Opened::new(&settings).unwrap().serve(Arc::new(state)).unwrap();
    let listener = &plan.listeners[0].name;
    let ran = run(
        server.socket().path(),
        &["explain", "--listener", listener, "--client", "10.77.1.2", "--path", "/admin"],
    );
    assert_eq!((ran.err.as_str(), ran.exit), ("", Exit::Negative), "{}", ran.out);
    assert!(ran.out.trim_end().ends_with("refuses it with status 403"), "{}", ran.out);
    let ran = run(server.socket().path(), &["explain", "--listener", listener, "--client", "10.77.1.2"]);
    assert_eq!((ran.err.as_str(), ran.exit), ("", Exit::Ok), "{}", ran.out);
}
