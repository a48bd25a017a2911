//! HAProxy and nginx as oracles: a head that either of them refuses, the router must not accept.
//!
//! Whatever the router accepts goes, after a handoff, byte for byte to a server that frames the stream alone. Two
//! widely used servers stand for all: where they disagree with us, a smuggled request may hide. Skipped where
//! they are not installed.

mod corpus;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use router::proxy::http;
use router::proxy::http::scan::HeadLimits;

/// A server that answers 200 to whatever it accepts. Ended when dropped.
struct Oracle {
    name: &'static str,
    port: u16,
    process: Child,
    directory: PathBuf,
}

impl Oracle {
    /// `None` if the program is not installed.
    fn start(name: &'static str, arguments: &[&str], configuration: &str) -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let directory = std::env::temp_dir().join(format!("router-oracle-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("configuration");
        let text =
            configuration.replace("PORT", &port.to_string()).replace("DIR", directory.to_str().unwrap());
        fs::write(&file, text).unwrap();
        let program = ["/usr/sbin", "/usr/bin", "/usr/local/sbin"].map(|bin| Path::new(bin).join(name));
        let program = program.iter().find(|program| program.exists())?;
        let process = Command::new(program)
            .args(arguments)
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(directory.join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let oracle = Self { name, port, process, directory };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(oracle.directory.join("stderr")).unwrap();
            assert!(began.elapsed() < Duration::from_secs(10), "{name} does not start: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(oracle)
    }

    /// The status that it answers; `None` if it closes without one.
    fn status(&self, head: &[u8]) -> Option<u16> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        connection.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        connection.write_all(head).unwrap();
        let mut status_line = [0; 12];
        connection.read_exact(&mut status_line).ok()?;
        std::str::from_utf8(&status_line[9..]).ok()?.parse().ok()
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn haproxy() -> Option<Oracle> {
    Oracle::start(
        "haproxy",
        &["-db", "-f"],
        "global\n  maxconn 100\n\
         defaults\n  mode http\n  timeout client 2s\n  timeout server 2s\n  timeout connect 2s\n\
         frontend f\n  bind 127.0.0.1:PORT\n  http-request return status 200\n",
    )
}

fn nginx() -> Option<Oracle> {
    Oracle::start(
        "nginx",
        &["-p", "/tmp", "-e", "stderr", "-c"],
        "worker_processes 1; daemon off; master_process off; pid DIR/pid;\n\
         events { worker_connections 100; }\n\
         http { access_log off; client_header_timeout 2s; client_body_timeout 2s;\n\
           large_client_header_buffers 8 64k;\n\
           client_body_temp_path DIR/b; proxy_temp_path DIR/p; fastcgi_temp_path DIR/f;\n\
           uwsgi_temp_path DIR/u; scgi_temp_path DIR/s;\n\
           server { listen 127.0.0.1:PORT; location / { return 200; } } }\n",
    )
}

/// What we accept although an oracle does not, and why that is right.
fn is_known_difference(oracle: &str, head: &http::HttpHead<'_>, status: Option<u16>) -> Option<&'static str> {
    let odd_method = |byte: u8| !(byte.is_ascii_uppercase() || byte == b'_' || byte == b'-');
    match (oracle, status) {
        ("nginx", Some(400)) if head.method.bytes().any(odd_method) => Some(
            "RFC 9110 §9.1: methods are tokens, and case matters; unknown ones are the instance's affair",
        ),
        ("nginx", Some(400)) if head.raw_path == "*" => {
            Some("RFC 9110 §9.3.7: OPTIONS may ask about the server")
        }
        ("nginx", Some(417)) => Some("an expectation that it does not know; not a reading of the head"),
        _ => None,
    }
}

#[test]
fn what_haproxy_or_nginx_refuse_is_never_accepted() {
    let oracles: Vec<Oracle> = [haproxy(), nginx()].into_iter().flatten().collect();
    if oracles.len() < 2 {
        eprintln!("skipped: install haproxy and nginx to compare with them");
        return;
    }
    let (mut accepted, mut failures) = (0, Vec::new());
    for bytes in corpus::mutations().into_iter().chain(corpus::classics()) {
        let Ok(Some((head, length))) = http::read(&bytes, &HeadLimits::default()) else { continue };
        if head.path().is_err() {
            continue;
        }
        accepted += 1;
        let mut sent = Vec::new();
        http::rewrite::rewrite(&bytes[..length], &head, None, &mut sent);
        sent.extend_from_slice(&bytes[length..]);
        for oracle in &oracles {
            let status = oracle.status(&sent);
            if !matches!(status, Some(200 | 100)) && is_known_difference(oracle.name, &head, status).is_none()
            {
                failures.push(format!(
                    "{} says {status:?} to {:?}",
                    oracle.name,
                    sent.escape_ascii().to_string()
                ));
            }
        }
    }
    assert!(accepted > 300, "only {accepted} heads were accepted at all: the corpus no longer fits");
    assert!(failures.is_empty(), "{} differences:\n{}", failures.len(), failures.join("\n"));
}
