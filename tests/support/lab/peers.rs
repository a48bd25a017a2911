//! The instances' servers: an nginx on every backend.
//!
//! | request | answer |
//! | --- | --- |
//! | any path | the instance's name and what it saw of the request, one line each |
//! | `/whoami` | the instance's name |
//! | `/files/1k`, `/files/64k`, `/files/200m` | a file of that size ([`FILES`]), the same bytes on every instance |
//! | `PUT /upload/NAME` | stores the body under [`Lab::host_dir`]`/upload/NAME`; `GET` returns it, `DELETE` removes it |

use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Host, Lab, processes};

/// Names and sizes (bytes) of the files that every instance serves under `/files/`.
pub const FILES: [(&str, u64); 3] = [("1k", 1 << 10), ("64k", 64 << 10), ("200m", 200 << 20)];

/// The directory of the served files.
pub fn files_dir(lab: &Lab) -> PathBuf {
    lab.state_dir().join("files")
}

pub fn start(lab: &Lab) -> Result<()> {
    let files = files_dir(lab);
    fs::create_dir_all(&files)?;
    for (name, size) in FILES {
        generate(&files.join(name), size).with_context(|| format!("cannot generate {name}"))?;
    }
    for number in 1..=lab.backends {
        start_nginx(lab, number)?;
    }
    (1..=lab.backends).try_for_each(|number| wait_for_answer(lab, number))
}

/// Starts the server of a backend again.
pub fn start_one(lab: &Lab, number: u8) -> Result<()> {
    start_nginx(lab, number)?;
    wait_for_answer(lab, number)
}

/// Ends the server of a backend: its port refuses.
pub fn stop_one(lab: &Lab, number: u8) -> Result<()> {
    let pid = fs::read_to_string(lab.host_dir(Host::Backend(number)).join("nginx.pid"))?;
    let pid = pid.trim().parse().context("nginx writes its number")?;
    // SAFETY: kill has no memory effects; nginx of this lab wrote the number and removes the file when it ends.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    let began = Instant::now();
    while answers(lab, number) {
        if began.elapsed() > Duration::from_secs(10) {
            bail!("nginx on backend{number} does not end");
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn wait_for_answer(lab: &Lab, number: u8) -> Result<()> {
    let began = Instant::now();
    while !answers(lab, number) {
        if began.elapsed() > Duration::from_secs(10) {
            let log = fs::read_to_string(lab.host_dir(Host::Backend(number)).join("error.log"));
            bail!("nginx on backend{number} does not answer; its log:\n{}", log.unwrap_or_default());
        }
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Whether the server of a backend accepts connections.
pub fn answers(lab: &Lab, number: u8) -> bool {
    let address = SocketAddr::new(lab.backend_address(number), 80);
    let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
    lab.inside(Host::Backend(number), connect).unwrap_or(false)
}

/// Noise (xorshift64*) with the offset written into every page, so that nothing can be lost, repeated or swapped
/// unnoticed.
fn generate(path: &Path, size: u64) -> Result<()> {
    const PAGE: usize = 4096;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = vec![0; 1 << 20];
    for word in noise.chunks_exact_mut(8) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        word.copy_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    let mut file = File::create(path)?;
    let mut offset = 0;
    while offset < size {
        for (number, page) in noise.chunks_exact_mut(PAGE).enumerate() {
            page[..8].copy_from_slice(&(offset + (number * PAGE) as u64).to_le_bytes());
        }
        let length = noise.len().min((size - offset) as usize);
        file.write_all(&noise[..length])?;
        offset += length as u64;
    }
    Ok(())
}

fn start_nginx(lab: &Lab, number: u8) -> Result<()> {
    let host = Host::Backend(number);
    let directory = lab.host_dir(host);
    for part in ["upload", "temporary"] {
        fs::create_dir_all(directory.join(part))?;
    }
    let configuration = directory.join("nginx.conf");
    fs::write(&configuration, configuration_of(&host.to_string(), &directory, &files_dir(lab)))?;
    let log = File::create(directory.join("error.log"))?;
    let server = nginx(lab, host, &configuration, log).spawn().context("cannot start nginx")?;
    processes::record(&lab.state_dir(), server.id())
}

/// Nginx on a host, with its complaints in `log`.
pub fn nginx(lab: &Lab, host: Host, configuration: &Path, log: File) -> Command {
    let mut command = lab.command(host, "nginx");
    command.arg("-c").arg(configuration).args(["-e", "stderr"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command
}

fn configuration_of(name: &str, directory: &Path, files: &Path) -> String {
    let (directory, files) = (directory.display(), files.display());
    format!(
        r#"# Generated by the lab.
daemon off;
user root;
worker_processes 1;
worker_rlimit_nofile 65536;
pid {directory}/nginx.pid;
error_log stderr;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    default_type application/octet-stream;
    sendfile on;
    tcp_nopush on;
    keepalive_timeout 75s;
    keepalive_requests 10000000;
    client_max_body_size 0;
    client_body_temp_path {directory}/temporary;
    proxy_temp_path {directory}/temporary;
    fastcgi_temp_path {directory}/temporary;
    uwsgi_temp_path {directory}/temporary;
    scgi_temp_path {directory}/temporary;
    server {{
        listen 80 backlog=8192;
        listen [::]:80 backlog=8192;
        add_header X-Instance {name} always;
        location / {{
            default_type text/plain;
            return 200 "instance: {name}
request: $request
host: $http_host
x-forwarded-for: $http_x_forwarded_for
peer: $remote_addr:$remote_port
request-on-connection: $connection_requests
";
        }}
        location = /whoami {{ default_type text/plain; return 200 "{name}\n"; }}
        location = /health {{ default_type text/plain; return 200 "ok\n"; }}
        location /files/ {{ alias {files}/; }}
        location /upload/ {{
            alias {directory}/upload/;
            dav_methods PUT DELETE;
            create_full_put_path on;
        }}
    }}
}}
"#
    )
}
