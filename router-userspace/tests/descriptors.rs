//! Connections of every kind come and go, and the process holds exactly what it held before. One test alone
//! in its process, since it counts the descriptors of the whole process.

#[path = "proxy/actors.rs"]
#[allow(dead_code, reason = "shared with the stories of the proxy")]
mod actors;

use std::fs;
use std::io::Write;
use std::time::Duration;

use actors::*;

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_connections_of_every_kind_leave_no_descriptor_behind() {
    let proxy = proxy([nobody(), echo_head(), keep_alive()])
        .with(|settings| settings.header_timeout = Duration::from_millis(300))
        .start();
    // Whatever is opened once and kept, is open after this.
    proxy.ask(get("/"));
    proxy.wait_until_idle();
    let before = descriptors();
    let accepted = proxy.counters().accepted.get();
    for _ in 0..10 {
        std::thread::scope(|scope| {
            for number in 0..100 {
                let proxy = &proxy;
                scope.spawn(move || match number % 5 {
                    0 => drop(proxy.ask("GET / HTTP/9.9\r\n\r\n")),
                    1 => drop(proxy.connect()),
                    2 => {
                        let mut client = proxy.connect();
                        client.write_all(b"GET / HT").unwrap();
                        abort(client);
                    }
                    3 => {
                        let mut client = proxy.connect();
                        send_get(&mut client, "/");
                        read_response(&mut client);
                        abort(client);
                    }
                    _ => assert!(proxy.ask(get("/")).starts_with("HTTP/1.1 200 ")),
                });
            }
        });
    }
    eventually("all have been accepted", || proxy.counters().accepted.get() == accepted + 1000);
    proxy.wait_until_idle();
    eventually("every descriptor has been closed", || descriptors() == before);
    assert_eq!((proxy.context.heads.heads(), proxy.context.heads.memory()), (0, 0));
    assert_eq!(proxy.sessions(), [0; 3]);
}
