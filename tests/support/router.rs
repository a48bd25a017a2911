//! routerd on the lab's gateway.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pcap_file::pcap::{PcapPacket, PcapWriter};
use serde_json::Value;

use crate::lab::{Family, Host, Lab};
use crate::unix;

/// In a router's directory: names the step at which it is to stop.
const STOP_BEFORE: &str = "stop-before";

/// A running daemon; stopped when dropped. Its log is shown when the story fails.
#[derive(Debug)]
pub struct Router {
    lab: Lab,
    child: Child,
    directory: PathBuf,
    /// A command that starts the rest of its arguments, such as `setpriv`; often none.
    wrapper: Vec<String>,
    arguments: Vec<String>,
}

/// The settings that place a router in the lab; a story adds listeners, pools and rules.
///
/// `daemon` and `datapath` are further lines of those two tables, `rest` is everything behind them.
pub fn configuration(lab: &Lab, daemon: &str, datapath: &str, rest: &str) -> String {
    let directory = directory(lab);
    format!(
        r#"[daemon]
control_socket = "{socket}"
state_dir = "{state}"
{daemon}

[datapath]
interfaces = ["client", "backends"]
source_addresses = ["10.77.2.1", "fd77:2::1"]
pin_dir = "{pins}"
{datapath}

{rest}
"#,
        socket = directory.join("control.sock").display(),
        state = directory.join("state").display(),
        pins = lab.pin_dir().display(),
    )
}

/// Instances of the pool above them, one on each of the first backends: with `name` `"web"`, `web1`, `web2` and so on.
pub fn instances(family: Family, name: &str, count: u8) -> String {
    let instance = |number| {
        let address = SocketAddr::new(family.address(Host::Backend(number)), 80);
        format!("[[pool.instance]]\nname = \"{name}{number}\"\naddress = \"{address}\"\n\n")
    };
    (1..=count).map(instance).collect()
}

fn directory(lab: &Lab) -> PathBuf {
    lab.host_dir(Host::Gateway)
}

impl Router {
    /// Starts routerd with this configuration and waits until it serves.
    ///
    /// # Panics
    /// With its log, if it ends or does not serve within 20 seconds.
    pub fn start(lab: &Lab, configuration: &str) -> Self {
        Self::start_with(lab, configuration, &[])
    }

    /// The same, with further arguments; a restart uses them too.
    pub fn start_with(lab: &Lab, configuration: &str, arguments: &[&str]) -> Self {
        Self::start_by(lab, &[], configuration, arguments)
    }

    /// The same, started by another command, such as `setpriv` with its arguments.
    pub fn start_by(lab: &Lab, wrapper: &[&str], configuration: &str, arguments: &[&str]) -> Self {
        let directory = directory(lab);
        fs::create_dir_all(directory.join("state")).expect("the state directory can be made");
        fs::write(directory.join("router.toml"), configuration).expect("the configuration can be written");
        let (wrapper, arguments) = (owned(wrapper), owned(arguments));
        let child = spawn(lab, &directory, &wrapper, &arguments);
        let mut router = Self { lab: lab.clone(), child, directory, wrapper, arguments };
        router.wait_until_it_serves();
        router
    }

    /// Starts routerd again with the same files, after [`kill`](Self::kill) or [`stop`](Self::stop).
    pub fn restart(&mut self) {
        self.child = spawn(&self.lab, &self.directory, &self.wrapper, &self.arguments);
        self.wait_until_it_serves();
    }

    /// The same, once with other arguments.
    pub fn restart_with(&mut self, arguments: &[&str]) {
        self.child = spawn(&self.lab, &self.directory, &self.wrapper, &owned(arguments));
        self.wait_until_it_serves();
    }

    fn wait_until_it_serves(&mut self) {
        let began = Instant::now();
        while !self.answers() {
            if let Some(status) = self.child.try_wait().expect("routerd can be waited for") {
                panic!("routerd ended ({status}); its log:\n{}", self.log());
            }
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "routerd does not serve; its log:\n{}",
                self.log()
            );
            sleep(Duration::from_millis(10));
        }
    }

    /// The control socket is open before the listeners are, and is answered after them.
    fn answers(&self) -> bool {
        self.ask("/healthz").is_ok_and(|answer| answer.ends_with("ok\n"))
    }

    /// Everything that Prometheus would read.
    pub fn metrics(&self) -> String {
        self.ask("/metrics").expect("routerd answers")
    }

    fn ask(&self, path: &str) -> io::Result<String> {
        let mut stream = unix::connect(&self.socket(), Duration::from_secs(5))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    }

    /// The daemon's answer to a body, whatever its status.
    pub fn post(&self, path: &str, body: &str) -> Value {
        let mut stream = unix::connect(&self.socket(), Duration::from_secs(5)).expect("routerd listens");
        let length = body.len();
        write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}")
            .expect("routerd reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("routerd answers");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or_else(|error| panic!("no JSON ({error}): {answer}"))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where routerctl and `curl --unix-socket` reach it.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    pub fn configuration_file(&self) -> PathBuf {
        self.directory.join("router.toml")
    }

    /// Everything that routerd has printed, over all restarts.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("routerd.log")).unwrap_or_default()
    }

    /// Sends a signal, such as `libc::SIGHUP`.
    pub fn signal(&self, signal: i32) {
        send(&self.child, signal);
    }

    /// Stops it (SIGSTOP) as soon as it comes to this step, by the name that `flows::steps` has for it; also the daemon of a restart.
    pub fn stop_before(&self, step: &str) {
        fs::write(self.directory.join(STOP_BEFORE), step).expect("the file can be written");
    }

    /// Lets it, and the next one, come to an end.
    pub fn stop_nowhere(&self) {
        fs::remove_file(self.directory.join(STOP_BEFORE)).expect("it was to stop somewhere");
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        let path = format!("/proc/{}/stat", self.pid());
        let stat = fs::read_to_string(path).expect("the daemon is not reaped");
        // The state follows the name, which is in parentheses (proc_pid_stat(5)).
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Ends it as `kill -9` does.
    pub fn kill(&mut self) {
        self.child.kill().expect("routerd can be killed");
        self.child.wait().expect("routerd can be waited for");
        // Its death leaves the socket's file behind; readiness is told by the next daemon's.
        let _ = fs::remove_file(self.socket());
    }

    /// Asks it to end, as systemd does, and waits for it.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(libc::SIGTERM);
        self.wait(Duration::from_secs(20))
    }

    fn wait(&mut self, limit: Duration) -> ExitStatus {
        ended_within(&mut self.child, limit)
            .unwrap_or_else(|| panic!("routerd does not end; its log:\n{}", self.log()))
    }

    /// Runs routerctl with `--json` and returns what it printed.
    pub fn ctl<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Value {
        let output = self.routerctl().arg("--json").args(arguments).output().expect("routerctl starts");
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).unwrap_or_else(|error| {
            panic!("routerctl printed no JSON ({error}): {text}{}", String::from_utf8_lossy(&output.stderr))
        })
    }

    /// What `routerctl where` answers about frames that would arrive by an interface of the gateway: one object for each.
    pub fn whereabouts(&self, frames: &[Vec<u8>], interface: &str) -> Vec<Value> {
        let path = self.directory.join("asked.pcap");
        let file = File::create(&path).expect("the capture can be made");
        let mut capture = PcapWriter::new(file).expect("the capture can be written");
        for frame in frames {
            let packet = PcapPacket::new(Duration::ZERO, frame.len() as u32, frame);
            capture.write_packet(&packet).expect("the capture can be written");
        }
        let path = path.to_str().expect("the lab's paths are UTF-8");
        let answer = self.ctl(["where", "--pcap", path, "--interface", interface]);
        let packets = answer["packets"].as_array().expect("routerctl prints packets").clone();
        assert_eq!(packets.len(), frames.len(), "one answer for each frame");
        packets
    }

    /// routerctl, told where the daemon is.
    pub fn routerctl(&self) -> Command {
        let mut command = Command::new(binary("routerctl"));
        command.arg("--socket").arg(self.socket());
        command
    }

    /// Repeats `condition` until it holds.
    ///
    /// # Panics
    /// With routerd's log, when it does not hold within `limit`.
    pub fn eventually(&self, limit: Duration, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !condition(self) {
            assert!(began.elapsed() < limit, "not within {limit:?}: {what}; routerd's log:\n{}", self.log());
            sleep(Duration::from_millis(20));
        }
    }

    /// Open file descriptors of the daemon.
    pub fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("routerd runs").count()
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("routerd's log:\n{}", self.log());
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(libc::SIGTERM);
            let began = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && began.elapsed() < Duration::from_secs(5) {
                sleep(Duration::from_millis(10));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sends a signal to a child that has not been waited for.
///
/// # Panics
/// If it is gone.
pub fn send(child: &Child, signal: i32) {
    let number = child.id();
    // SAFETY: kill has no memory effects; the child has not been waited for, so the number is still its own.
    let result = unsafe { libc::kill(number as i32, signal) };
    assert_eq!(result, 0, "process {number} is gone");
}

/// How a process ended; `None` if it still runs after `limit`.
pub fn ended_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let began = Instant::now();
    loop {
        match child.try_wait().expect("a child can be waited for") {
            None if began.elapsed() < limit => sleep(Duration::from_millis(10)),
            ended => return ended,
        }
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn spawn(lab: &Lab, directory: &Path, wrapper: &[String], arguments: &[String]) -> Child {
    let log = File::options().create(true).append(true).open(directory.join("routerd.log"));
    let log = log.expect("the log can be opened");
    let binary = binary("routerd");
    let mut command = match wrapper {
        [] => lab.command(Host::Gateway, binary),
        [program, rest @ ..] => {
            let mut command = lab.command(Host::Gateway, program);
            command.args(rest).arg(binary);
            command
        }
    };
    command
        .arg("--config")
        .arg(directory.join("router.toml"))
        .args(arguments)
        .env("ROUTERD_STOP_BEFORE", directory.join(STOP_BEFORE))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a descriptor is free"))
        .stderr(log)
        .spawn()
        .expect("nsenter starts")
}

/// A binary of ours, built with the same profile as this test.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let directory = test.parent().and_then(Path::parent).expect("tests lie in target/PROFILE/deps");
    let binary = directory.join(name);
    assert!(
        binary.is_file(),
        "{} is missing: cargo build --package router-userspace --package router-agent --bins",
        binary.display()
    );
    binary
}
