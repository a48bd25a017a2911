//! The index over the rules finds what a walk over all of them finds: `decide` asks the index, `explain` walks.

use proptest::prelude::*;
use proptest::sample::select;
use router::core::decide::Attempt;
use router::core::identity::{Identities, IdentitySpec, Place, ResourceSource, UserSource};
use router::core::rules::function_names;
use router::core::table::RoutingTable;

use crate::support::*;

/// Calls of every function, and such as differ from each other by little.
const CALLS: &[&str] = &[
    "Any()",
    "Http10()",
    "Tls()",
    r#"Host("a.example")"#,
    r#"Host("b.example", "www.A.example")"#,
    r#"HostSuffix("example")"#,
    r#"HostSuffix(".a.example")"#,
    r#"HostSuffix("ww.a.example", "b.example")"#,
    r#"HostRegexp("^www")"#,
    r#"Path("/")"#,
    r#"Path("/a/b")"#,
    r#"Path("/A/b", "/a")"#,
    r#"PathPrefix("/")"#,
    r#"PathPrefix("/a")"#,
    r#"PathPrefix("/a/")"#,
    r#"PathPrefix("/a/b", "/b")"#,
    r#"PathSuffix("b")"#,
    r#"PathContains("/b")"#,
    r#"PathRegexp("^/[ab]$")"#,
    r#"Extension("png")"#,
    r#"Method("GET")"#,
    r#"Method("get", "POST")"#,
    r#"Header("X-Tenant")"#,
    r#"Header("x-tenant", "acme")"#,
    r#"Header("X-Tenant", "Acme")"#,
    r#"Header("X-Tenan", "acme")"#,
    r#"HeaderPrefix("X-Tenant", "ac")"#,
    r#"HeaderContains("X-Tenant", "cm")"#,
    r#"HeaderRegexp("X-Tenant", "^a")"#,
    r#"Cookie("tier")"#,
    r#"Cookie("tier", "gold")"#,
    r#"Cookie("Tier", "gold")"#,
    r#"CookieRegexp("tier", "^g")"#,
    r#"Query("x")"#,
    r#"Query("x", "1")"#,
    r#"Query("x", "a b")"#,
    r#"QueryRegexp("x", "^\d$")"#,
    r#"ClientIP("10.0.0.0/8")"#,
    r#"ClientIP("10.1.2.3")"#,
    r#"ClientIP("0.0.0.0/0", "2001:db8::/32")"#,
    r#"ClientIP("10.1.2.0/30", "2001:db8::1")"#,
    r#"ClientIP("::/0")"#,
    r#"HostSNI("a.example", "www.b.example")"#,
    r#"HostSNI("*.a.example")"#,
    r#"HostSNI("*")"#,
    r#"HostSNI("example", "*.Example")"#,
    r#"HostSNISuffix("a.example")"#,
    r#"HostSNISuffix(".example")"#,
    r#"ALPN("h2")"#,
    r#"Listener("web")"#,
    r#"Listener("other", "third")"#,
    r#"User("acme")"#,
    r#"Group("Acme", "acme")"#,
    r#"Resource("1")"#,
    r#"ResourcePrefix("a")"#,
    r#"ResourceRegexp("^[a1]")"#,
];

#[test]
fn every_function_takes_part() {
    for name in function_names() {
        assert!(CALLS.iter().any(|call| call.starts_with(&format!("{name}("))), "{name} is not compared");
    }
}

fn condition() -> impl Strategy<Value = String> {
    let call = select(CALLS).prop_map(str::to_owned);
    call.prop_recursive(4, 12, 3, |part| {
        prop_oneof![
            proptest::collection::vec(part.clone(), 2..4)
                .prop_map(|parts| format!("({})", parts.join(" && "))),
            proptest::collection::vec(part.clone(), 2..4)
                .prop_map(|parts| format!("({})", parts.join(" || "))),
            part.prop_map(|part| format!("!({part})")),
        ]
    })
}

fn rules() -> impl Strategy<Value = RoutingTable> {
    proptest::collection::vec((condition(), prop::bool::weighted(0.9)), 0..40).prop_map(|conditions| {
        let rules = conditions.into_iter().enumerate().map(|(number, (condition, enabled))| {
            let mut rule = rule(&number.to_string(), &condition, FIRST);
            rule.enabled = enabled;
            rule
        });
        // User and group are what the tenant's header says, and the resource is a parameter of the query.
        let spec = IdentitySpec {
            user: Some(anywhere(UserSource::In(Place::Header("X-Tenant".to_owned())))),
            groups: Some(anywhere("X-Tenant".to_owned())),
            resource: Some(ResourceSource::In(Place::Query("x".to_owned()))),
            session: None,
        };
        let identities = Identities::new([("web".to_owned(), spec)].into(), []);
        table(rules.collect(), vec![pool("pool", [instance("only")])]).with_identities(identities)
    })
}

fn request() -> impl Strategy<Value = Ask> {
    let targets = select(
        &[
            "/",
            "/a",
            "/a/",
            "/a/b",
            "/A/b",
            "/%61/b",
            "/a//b",
            "/a/./b",
            "/b.png",
            "/ab",
            "/a/b?x=1",
            "/?x=a+b",
            "/?x=a%20b&x=1",
            "/?%78=1",
            "/?x",
            "/b?y=1&&x=2",
        ][..],
    );
    let hosts = select(
        &[
            None,
            Some("a.example"),
            Some("A.Example:80"),
            Some("www.a.example."),
            Some("xb.example"),
            Some("b.example"),
            Some("example"),
            Some("[2001:db8::1]:80"),
        ][..],
    );
    let headers = select(
        &[
            ("X-Tenant", "acme"),
            ("x-TENANT", "Acme"),
            ("X-Tenant", ""),
            ("X-Tenan", "acme"),
            ("Cookie", "tier=gold"),
            ("cookie", "a=1; tier=\"gold\"; Tier=gold"),
            ("Cookie", "tier=silver;x"),
            ("Accept", "*/*"),
        ][..],
    );
    let clients = select(&["10.1.2.3", "10.1.2.4", "11.0.0.1", "2001:db8::1", "2001:db9::1"][..]);
    // A client's server name and protocols.
    type Hello = Option<(Option<&'static str>, &'static [&'static [u8]])>;
    const HELLOS: &[Hello] = &[
        None,
        Some((None, &[])),
        Some((Some("A.example"), &[])),
        Some((Some("www.a.example"), &[b"h2"])),
        Some((Some("xa.example"), &[b"http/1.1", b"h2"])),
        Some((Some("example"), &[b"H2"])),
    ];
    let hellos = select(HELLOS);
    let others = (select(&["GET", "get", "POST"][..]), select(&["web", "other", "we"][..]), hellos);
    (targets, hosts, proptest::collection::vec(headers, 0..4), clients, others).prop_map(
        |(target, host, headers, client, (method, listener, tls))| {
            let mut ask = get(target).method(method).client(client);
            (ask.host, ask.listener, ask.tls) = (host, listener, tls);
            headers.into_iter().fold(ask, |ask, (name, value)| ask.header(name, value))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn the_index_finds_the_rule_that_a_walk_over_all_rules_finds(
        table in rules(),
        requests in proptest::collection::vec(request(), 1..12),
    ) {
        for ask in &requests {
            ask.seen(|request| {
                let attempt = Attempt::first(std::time::Instant::now());
                let (decided, explained) = (table.decide(request, &attempt), table.explain(request, &attempt));
                assert_eq!(decided.rule, explained.rule, "{request:?}\n{:#?}", explained.rules);
                assert_eq!(without_session(decided.outcome), explained.outcome);
            });
        }
    }
}

#[test]
fn a_request_with_more_keys_than_usual_finds_its_rule_too() {
    let count = 200;
    let mut rules: Vec<_> = (0..count)
        .map(|number| rule(&number.to_string(), &format!(r#"Query("k{number}", "v") && Tls()"#), FIRST))
        .collect();
    rules.push(rule("last", r#"Query("k7", "v")"#, FIRST));
    let table = table(rules, vec![pool("pool", [instance("only")])]);
    let query: Vec<String> = (0..count).map(|number| format!("k{number}=v")).collect();
    assert_eq!(table.rule_for(&get(&format!("/?{}", query.join("&")))), "last");
}

#[test]
fn a_host_longer_than_any_name_still_has_its_suffix() {
    let table = table(
        vec![rule("domain", r#"HostSuffix("example")"#, FIRST)],
        vec![pool("pool", [instance("only")])],
    );
    let host: &'static str = format!("{}example", "a.".repeat(400)).leak();
    assert_eq!(table.rule_for(&get("/").host(host)), "domain");
}
