//! The contenders' configurations: two threads each, nothing logged, `X-Forwarded-For` added by all that speak HTTP.

use std::path::Path;

use super::contender::{Contender, instance};

/// One routerd with a listener for each way of carrying a connection.
pub fn router(control_socket: &Path, pin_dir: &Path) -> String {
    let mut text = format!(
        r#"[daemon]
control_socket = "{}"
workers = 2

[datapath]
interfaces = ["client", "backends"]
source_addresses = ["10.77.2.1"]
source_ports = "20000-59999"
max_flows = 200_000
pin_dir = "{}"

[[pool]]
name = "instance"

[[pool.instance]]
name = "instance1"
address = "{}"
"#,
        control_socket.display(),
        pin_dir.display(),
        instance()
    );
    for (contender, offload) in [
        (Contender::RouterAuto, "auto"),
        (Contender::RouterBind, "bind"),
        (Contender::RouterHandoff, "handoff"),
        (Contender::RouterRelay, "relay"),
    ] {
        text.push_str(&format!(
            "\n[[listener]]\nname = \"{offload}\"\naddress = \"{}\"\noffload = \"{offload}\"\n",
            contender.address()
        ));
    }
    text
}

pub fn haproxy() -> String {
    haproxy_with("")
}

/// A new process gets the listening sockets of the old one through `socket`.
pub fn haproxy_that_reloads(socket: &Path) -> String {
    haproxy_with(&format!("    stats socket {} mode 600 level admin expose-fd listeners\n", socket.display()))
}

fn haproxy_with(globals: &str) -> String {
    format!(
        "global
    nbthread 2
    maxconn 4000
{globals}
defaults
    timeout connect 3s
    timeout client 1h
    timeout server 1h

listen by-connection
    mode tcp
    bind {tcp}
    server instance1 {instance}

listen by-request
    mode http
    option forwardfor
    bind {http}
    server instance1 {instance}
",
        tcp = Contender::HaproxyTcp.address(),
        http = Contender::HaproxyHttp.address(),
        instance = instance(),
    )
}

/// Bodies are passed on as they come: by default nginx stores them in files first.
pub fn nginx(directory: &Path) -> String {
    format!(
        r#"daemon off;
user root;
worker_processes 2;
pid {directory}/nginx.pid;
error_log stderr;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_max_body_size 0;
    client_body_temp_path {directory}/temporary;
    proxy_temp_path {directory}/temporary;
    fastcgi_temp_path {directory}/temporary;
    uwsgi_temp_path {directory}/temporary;
    scgi_temp_path {directory}/temporary;
    keepalive_requests 10000000;
    upstream instances {{
        server {instance};
        keepalive 128;
        keepalive_requests 10000000;
    }}
    server {{
        listen {listen} backlog=4096;
        location / {{
            proxy_pass http://instances;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_request_buffering off;
            proxy_max_temp_file_size 0;
        }}
    }}
}}
"#,
        directory = directory.display(),
        instance = instance(),
        listen = Contender::Nginx.address(),
    )
}

/// Connections are tracked on the whole host as long as this is loaded.
pub fn nftables() -> String {
    let listen = Contender::Nftables.address();
    format!(
        "table ip bench {{
    chain arriving {{
        type nat hook prerouting priority dstnat;
        ip daddr {} tcp dport {} dnat to {}
    }}
}}
",
        listen.ip(),
        listen.port(),
        instance()
    )
}
