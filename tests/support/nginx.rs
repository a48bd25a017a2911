//! A further nginx on a backend, beside the one that every backend has, for what a story needs of it.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::lab::{Host, Lab, peers};

/// Ended when dropped.
#[derive(Debug)]
pub struct Nginx(Child);

/// Where it has its files.
pub fn directory(lab: &Lab, number: u8) -> PathBuf {
    let directory = lab.host_dir(Host::Backend(number)).join("further");
    fs::create_dir_all(directory.join("temporary")).expect("a directory can be made");
    directory
}

impl Nginx {
    /// Starts it with these lines in its `http` block, and waits until it listens on `port`.
    ///
    /// # Panics
    /// With its log, if it does not.
    pub fn start(lab: &Lab, number: u8, port: u16, http: &str) -> Self {
        let host = Host::Backend(number);
        let directory = directory(lab, number);
        let file = directory.join("nginx.conf");
        fs::write(&file, configuration(&directory.display().to_string(), http))
            .expect("a file can be written");
        let log = directory.join("error.log");
        let log_file = File::create(&log).expect("a log can be made");
        let nginx = Self(peers::nginx(lab, host, &file, log_file).spawn().expect("nginx starts"));
        await_listener(lab, host, SocketAddr::new(lab.backend_address(number), port), &|| {
            fs::read_to_string(&log).unwrap_or_default()
        });
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until somebody listens on an address of `host`.
///
/// # Panics
/// With what `log` returns, if nobody does.
pub fn await_listener(lab: &Lab, host: Host, address: SocketAddr, log: &dyn Fn() -> String) {
    let began = Instant::now();
    let connects = || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
    while !lab.inside(host, connects).unwrap_or(false) {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "nobody listens on {address}; the log:\n{}",
            log()
        );
        sleep(Duration::from_millis(10));
    }
}

fn configuration(directory: &str, http: &str) -> String {
    format!(
        r#"# Generated for a story.
daemon off;
master_process off;
user root;
pid {directory}/nginx.pid;
error_log stderr;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    default_type application/octet-stream;
    client_max_body_size 0;
    client_body_temp_path {directory}/temporary;
    proxy_temp_path {directory}/temporary;
    fastcgi_temp_path {directory}/temporary;
    uwsgi_temp_path {directory}/temporary;
    scgi_temp_path {directory}/temporary;
    {http}
}}
"#
    )
}
