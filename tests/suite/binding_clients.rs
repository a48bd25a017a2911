//! The clients that there are, on bound connections: programs, libraries, proxies and a browser, each as its users run it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use support::behind::{Behind, ip};
use support::lab::{Family, Host, peers};
use support::nginx::await_listener;
use support::{Curl, Entry, Scene, peer};

support::over_both_families! {
    curl_and_wrk_are_served
    a_program_in_python_that_keeps_its_connection_is_served
    a_proxy_of_nginx_in_front_of_the_router_is_served
    a_browser_loads_a_page_of_fifty_objects_and_opens_a_websocket
    a_client_behind_a_second_gateway_with_a_small_mtu_is_served
}

fn scene(family: Family) -> Scene {
    let scene = Scene::binding(family, 1, "");
    scene.warm_up();
    scene
}

/// What a program has printed.
fn output(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program starts");
    let (text, complaints) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{text}\n{complaints}");
    text.into_owned()
}

fn assert_well(scene: &Scene) {
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}

fn curl_and_wrk_are_served(family: Family) {
    let scene = scene(family);
    let before = scene.bound();
    let reply = Curl::new(&scene.lab).get(scene.url(Entry::Bind, "/files/64k"));
    assert_eq!((reply.status, reply.body.len()), (200, 64 << 10));
    scene.become_bound(before, 1);

    let mut wrk = scene.lab.command(Host::Client, "wrk");
    wrk.args([
        "--threads=1",
        "--connections=16",
        "--duration=2s",
        "--timeout=10s",
        "--header=Connection: close",
    ]);
    wrk.arg(scene.url(Entry::Bind, "/files/1k"));
    let text = output(wrk);
    // Both lines are left out where there is nothing to tell.
    assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
    assert_well(&scene);
    assert!(scene.bound() - before > 100, "{} were bound\n{text}", scene.bound() - before);
}

fn a_program_in_python_that_keeps_its_connection_is_served(family: Family) {
    const PROGRAM: &str = r#"
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=60)
for number in range(20):
    connection.request("GET", "/files/64k")
    reply = connection.getresponse()
    assert reply.status == 200 and len(reply.read()) == 64 << 10, reply.status
connection.request("PUT", "/upload/python", body=b"x" * 300_000)
assert connection.getresponse().read() is not None
connection.request("GET", "/upload/python")
reply = connection.getresponse()
print(len(reply.read()))
"#;
    let scene = scene(family);
    let before = scene.bound();
    let vip = scene.address(Entry::Bind);
    let mut python = scene.lab.command(Host::Client, "python3");
    python.args(["-c", PROGRAM]).arg(vip.ip().to_string()).arg(vip.port().to_string());
    assert_eq!(output(python).trim(), "300000");
    scene.become_bound(before, 1);
    assert_well(&scene);
}

/// Another nginx in front: on the client's host, and asked there.
fn a_proxy_of_nginx_in_front_of_the_router_is_served(family: Family) {
    const REQUESTS: u64 = 40;
    let scene = scene(family);
    let before = scene.bound();
    let directory = scene.lab.host_dir(Host::Client);
    fs::create_dir_all(directory.join("temporary")).unwrap();
    let listener = SocketAddr::new(family.address(Host::Client), 8088);
    let file = directory.join("proxy.conf");
    fs::write(&file, proxy(&directory.display().to_string(), listener, scene.address(Entry::Bind))).unwrap();
    let log = directory.join("proxy.log");
    let mut proxy =
        peers::nginx(&scene.lab, Host::Client, &file, File::create(&log).unwrap()).spawn().unwrap();
    await_listener(&scene.lab, Host::Client, listener, &|| fs::read_to_string(&log).unwrap_or_default());
    for number in 0..REQUESTS {
        let reply = Curl::new(&scene.lab).get(format!("http://{listener}/files/64k?{number}"));
        assert_eq!((reply.status, reply.body.len()), (200, 64 << 10), "{reply:?}");
    }
    proxy.kill().unwrap();
    proxy.wait().unwrap();
    // It opens a connection for each request.
    scene.become_bound(before, REQUESTS);
    assert_well(&scene);
}

fn proxy(directory: &str, listener: SocketAddr, vip: SocketAddr) -> String {
    format!(
        "daemon off;\nmaster_process off;\nuser root;\npid {directory}/proxy.pid;\nerror_log stderr;\nevents {{}}\n\
         http {{\n  access_log off;\n  client_body_temp_path {directory}/temporary;\n  proxy_temp_path {directory}/temporary;\n\
         fastcgi_temp_path {directory}/temporary;\n  uwsgi_temp_path {directory}/temporary;\n  scgi_temp_path {directory}/temporary;\n\
         server {{ listen {listener}; location / {{ proxy_pass http://{vip}; }} }}\n}}\n"
    )
}

/// Objects of the page.
const OBJECTS: usize = 50;

/// The last object comes when the page has heard its own word over the WebSocket, so that a page that is whole has done that too.
fn a_browser_loads_a_page_of_fifty_objects_and_opens_a_websocket(family: Family) {
    let scene = scene(family);
    let before = scene.bound();
    let heard = Arc::new((Mutex::new(String::new()), Condvar::new()));
    let _peer = scene.peer({
        let heard = Arc::clone(&heard);
        move |stream| serve_page(stream, &heard)
    });
    let profile = scene.lab.host_dir(Host::Client).join("profile");
    fs::create_dir_all(&profile).unwrap();
    let mut browser = scene.lab.command(Host::Client, "timeout");
    browser.args([
        "90",
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
    ]);
    browser.args([
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ]);
    browser.arg(format!("--user-data-dir={}", profile.display()));
    browser.arg("--dump-dom").arg(scene.url(Entry::Bind, "/peer/page"));
    let page = output(browser);
    assert!(page.contains(&format!("data-loaded=\"{OBJECTS}\"")), "{page}");
    assert_eq!(*heard.0.lock().unwrap(), "heard hello");
    let bound = scene.bound() - before;
    println!("the browser has opened {bound} connections and more");
    assert!(
        bound >= 2,
        "{bound} connections were bound: one for the page at least, and one for the WebSocket"
    );
    assert_well(&scene);
}

fn serve_page(stream: TcpStream, heard: &(Mutex<String>, Condvar)) -> io::Result<()> {
    let mut first = [0; 17];
    while stream.peek(&mut first)? < first.len() {}
    if first.starts_with(b"GET /peer/socket ") {
        return echo(stream, heard);
    }
    let mut stream = stream;
    loop {
        let head = String::from_utf8_lossy(&peer::read_head(&mut stream)?).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default();
        let (kind, body) = if path == "/peer/page" {
            ("text/html", page())
        } else if path == format!("/peer/object/{OBJECTS}") {
            let words = heard.0.lock().unwrap();
            let (words, waited) =
                heard.1.wait_timeout_while(words, Duration::from_secs(60), |words| words.is_empty()).unwrap();
            assert!(!waited.timed_out(), "the page hears nothing: {words}");
            ("text/javascript", loaded())
        } else {
            ("text/javascript", loaded())
        };
        let length = body.len();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}")?;
    }
}

/// Counts itself, after some bytes that several packets carry.
fn loaded() -> String {
    let count = "document.body.dataset.loaded = Number(document.body.dataset.loaded || 0) + 1;";
    format!("// {}\n{count}\n", "x".repeat(20_000))
}

fn page() -> String {
    let socket = r#"<script>
const socket = new WebSocket(`ws://${location.host}/peer/socket`);
socket.onopen = () => socket.send("hello");
socket.onmessage = message => socket.send("heard " + message.data);
</script>"#;
    let objects: String =
        (1..=OBJECTS).map(|number| format!("<script src=\"/peer/object/{number}\"></script>\n")).collect();
    format!("<!doctype html><title>page</title><body>{socket}\n{objects}</body>\n")
}

/// Sends the first word back, and keeps the second.
fn echo(stream: TcpStream, heard: &(Mutex<String>, Condvar)) -> io::Result<()> {
    let mut socket = tungstenite::accept(stream).map_err(|error| io::Error::other(error.to_string()))?;
    let word = socket.read().map_err(io::Error::other)?;
    socket.send(word).map_err(io::Error::other)?;
    let word = socket.read().map_err(io::Error::other)?;
    *heard.0.lock().unwrap() = word.to_text().map_err(io::Error::other)?.to_owned();
    heard.1.notify_all();
    // Until the page is left.
    let _ = socket.read();
    Ok(())
}

fn a_client_behind_a_second_gateway_with_a_small_mtu_is_served(family: Family) {
    let scene = scene(family);
    let behind = Behind::client(&scene.lab);
    ip(&scene.lab, Host::Client, "link set behind mtu 1400");
    let before = scene.bound();
    let received = scene.lab.state_dir().join("received");
    let original = scene.lab.state_dir().join("files/64k");
    for _ in 0..3 {
        let curl = Curl::for_files_by(behind.command("curl"));
        assert_eq!(curl.download(scene.url(Entry::Bind, "/files/64k"), &received), Ok(200));
        assert!(fs::read(&received).unwrap() == fs::read(&original).unwrap(), "the file arrives changed");
        let curl = Curl::for_files_by(behind.command("curl"));
        let up = curl.upload(&original, scene.url(Entry::Bind, "/upload/behind"));
        assert!(matches!(up, Ok(201 | 204)), "{up:?}");
        let stored = scene.lab.host_dir(Host::Backend(1)).join("upload/behind");
        assert!(fs::read(stored).unwrap() == fs::read(&original).unwrap(), "the upload arrives changed");
    }
    scene.become_bound(before, 6);
    assert_well(&scene);
}
