//! Clients that come back by a persistence cookie.

use std::fs;
use std::time::Duration;

use support::lab::{Family, Host, peers};
use support::router::configuration;
use support::{Connection, Curl, Entry, Reply, Router, TestLab, router};

const ENTRIES: [Entry; 3] = [Entry::Handoff, Entry::Auto, Entry::Relay];

fn settings(lab: &TestLab, generation: u32) -> String {
    fs::create_dir_all(lab.host_dir(Host::Gateway)).unwrap();
    let key_file = lab.host_dir(Host::Gateway).join("cookie.key");
    fs::write(&key_file, "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n").unwrap();
    let listeners: String = [("handoff", 80), ("auto", 81), ("relay", 82)]
        .map(|(way, port)| {
            format!(
                "[[listener]]\nname = \"{way}\"\naddress = \"10.77.1.10:{port}\"\noffload = \"{way}\"\n\n"
            )
        })
        .concat();
    let rest = format!(
        r#"{listeners}
[[pool]]
name = "web"
check = {{ type = "tcp", interval = "200ms", timeout = "100ms", fall = 2, rise = 1 }}

{instances}
[[rule]]
name = "web"
match = 'Any()'
pool = "web"
persistence = {{ cookie = "RTID", key_file = "{}", generation = {generation} }}
"#,
        key_file.display(),
        instances = router::instances(Family::V4, "web", 2)
    );
    configuration(lab, "", "", &rest)
}

fn start() -> (TestLab, Router) {
    let lab = TestLab::with_backends(2);
    let router = Router::start(&lab, &settings(&lab, 1));
    router.eventually(Duration::from_secs(5), "both instances serve", |router| {
        router.ctl(["status"])["pools"][0]["serving"] == 2
    });
    (lab, router)
}

fn event(router: &Router, event: &str) -> u64 {
    let series = format!("router_cookies_total{{event=\"{event}\"}} ");
    let metrics = router.metrics();
    metrics.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).expect("it is counted")
}

/// `RTID=value`, as a client sends it back.
fn cookie(reply: &Reply) -> String {
    let field = reply.headers.get("set-cookie").expect("a cookie is set");
    assert!(field.ends_with("; Path=/; HttpOnly"), "{field}");
    field.split(';').next().unwrap().to_owned()
}

fn get(lab: &TestLab, entry: Entry, cookie: Option<&str>) -> Reply {
    let mut curl = Curl::new(lab);
    if let Some(cookie) = cookie {
        curl = curl.header(&format!("Cookie: theme=dark; {cookie}"));
    }
    let reply = curl.get(entry.url("/"));
    assert_eq!(reply.status, 200);
    reply
}

#[test]
#[ignore = "needs root"]
fn a_client_comes_back_to_its_instance_on_every_way_and_gets_no_second_cookie() {
    let (lab, router) = start();
    for entry in ENTRIES {
        let first = get(&lab, entry, None);
        let name = first.instance().unwrap().to_owned();
        let cookie = cookie(&first);
        assert!(
            !cookie.contains("web") && !cookie.contains("10.77"),
            "{cookie} says nothing of what is behind"
        );
        // Without a cookie, requests take turns.
        for _ in 0..5 {
            let again = get(&lab, entry, Some(&cookie));
            assert_eq!(again.instance(), Some(&*name), "{entry:?}");
            assert_eq!(again.headers.get("set-cookie"), None, "{entry:?}");
        }
    }
    assert_eq!((event(&router, "inserted"), event(&router, "honoured")), (3, 15));
}

#[test]
#[ignore = "needs root"]
fn a_connection_is_handed_off_behind_the_head_that_got_the_cookie() {
    let (lab, router) = start();
    for entry in Entry::OFFLOADING {
        let mut connection =
            Connection::open(&lab, Host::Client, &entry.address().to_string()).expect("the router accepts");
        let first = connection.get("/files/64k").unwrap();
        assert_eq!((first.status, first.body.len()), (200, 64 * 1024), "{entry:?}");
        cookie(&first);
        let second = connection.get("/files/64k").unwrap();
        assert!(second.body == first.body, "{entry:?}");
        assert_eq!(second.headers.get("set-cookie"), None, "only the first response gets it");
        let client = format!("--client={}", connection.local_address());
        router.eventually(Duration::from_secs(10), "the connection is handed off", |router| {
            router.ctl(["flows", &client])["count"] == 1
        });
        let third = connection.get("/files/64k").unwrap();
        assert!(third.body == first.body && third.instance() == first.instance(), "{entry:?}");
    }
    assert_eq!(event(&router, "inserted"), 2);
}

#[test]
#[ignore = "needs root"]
fn a_cookie_whose_instance_is_gone_leads_to_a_new_choice_and_a_new_cookie() {
    let (lab, router) = start();
    let first = get(&lab, Entry::Auto, None);
    let old = cookie(&first);
    let number = first.instance().unwrap().chars().last().and_then(|digit| digit.to_digit(10)).unwrap();
    peers::stop_one(&lab, number as u8).unwrap();
    router.eventually(Duration::from_secs(10), "one instance is left", |router| {
        router.ctl(["status"])["pools"][0]["serving"] == 1
    });
    let second = get(&lab, Entry::Auto, Some(&old));
    assert_ne!(second.instance(), first.instance());
    let new = cookie(&second);
    assert_eq!(event(&router, "cannot_serve"), 1);
    assert_eq!(get(&lab, Entry::Auto, Some(&new)).instance(), second.instance());
}

#[test]
#[ignore = "needs root"]
fn forged_cut_and_outdated_cookies_are_ignored_and_replaced() {
    let (lab, mut router) = start();
    let good = cookie(&get(&lab, Entry::Auto, None));
    // Another character of the value; the last one says less than a byte, and may stand for the same in two ways.
    let (before, rest) = good.split_at(30);
    let forged = format!("{before}{}{}", if rest.starts_with('A') { 'B' } else { 'A' }, &rest[1..]);
    for bad in [&forged, &good[..30].to_owned(), &"RTID=".to_owned(), &format!("RTID={}", "A".repeat(6000))] {
        cookie(&get(&lab, Entry::Auto, Some(bad)));
    }
    assert_eq!(event(&router, "forged"), 4);
    // Of several cookies with the name, the good one counts: a path or domain may have left an older one.
    let both = get(&lab, Entry::Auto, Some(&format!("{forged}; {good}")));
    assert_eq!(both.headers.get("set-cookie"), None);

    router.stop();
    fs::write(router.configuration_file(), settings(&lab, 2)).unwrap();
    router.restart();
    router.eventually(Duration::from_secs(5), "both instances serve", |router| {
        router.ctl(["status"])["pools"][0]["serving"] == 2
    });
    cookie(&get(&lab, Entry::Auto, Some(&good)));
    assert_eq!(event(&router, "generation"), 1);
}
