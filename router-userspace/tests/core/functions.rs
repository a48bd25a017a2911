//! What each function of the rule language holds for.

use router::core::request::{HttpVersion, Request};
use router::core::rules::compile;

use crate::support::*;

#[track_caller]
fn holds(ask: &Ask, expression: &str) {
    assert!(ask.matches(expression), "{expression} should hold");
}

#[track_caller]
fn fails(ask: &Ask, expression: &str) {
    assert!(!ask.matches(expression), "{expression} should not hold");
}

#[test]
fn any_holds_for_everything() {
    holds(&get("/"), "Any()");
}

#[test]
fn host_ignores_case_port_and_trailing_dot() {
    for host in
        ["gis-1.example", "GIS-1.Example", "gis-1.example.", "gis-1.example:8080", "gis-1.example.:80"]
    {
        holds(&get("/").host(host), r#"Host("gis-1.example")"#);
    }
    holds(&get("/").host("b.example"), r#"Host("a.example", "B.EXAMPLE.:443")"#);
    fails(&get("/").host("x.gis-1.example"), r#"Host("gis-1.example")"#);
    for host in ["[2001:db8::1]:80", "[2001:DB8::1]", "2001:db8::1"] {
        holds(&get("/").host(host), r#"Host("[2001:db8::1]")"#);
    }
}

#[test]
fn host_suffix_is_a_domain_with_all_below_it() {
    for host in ["example.com", "www.example.com", "a.b.EXAMPLE.com.", "www.example.com:80"] {
        holds(&get("/").host(host), r#"HostSuffix("example.com")"#);
    }
    fails(&get("/").host("badexample.com"), r#"HostSuffix("example.com")"#);
    fails(&get("/").host("com"), r#"HostSuffix("example.com")"#);
    holds(&get("/").host("www.example.com"), r#"HostSuffix(".example.com")"#);
    fails(&get("/").host("example.com"), r#"HostSuffix(".example.com")"#);
}

#[test]
fn host_regexp_ignores_case_and_is_not_anchored() {
    holds(&get("/").host("WWW3.example:80"), r#"HostRegexp("^www\d\.example$")"#);
    holds(&get("/").host("xwww.example"), r#"HostRegexp("www")"#);
    fails(&get("/").host("www.example"), r#"HostRegexp("^www\d")"#);
}

#[test]
fn a_request_without_a_host_has_none_to_match() {
    let mut ask = get("/");
    ask.host = None;
    fails(&ask, r#"HostRegexp(".*")"#);
    holds(&ask, r#"!Host("a.example")"#);
}

#[test]
fn path_is_the_whole_normalised_path_without_the_query() {
    holds(&get("/login?next=/"), r#"Path("/logout", "/login")"#);
    fails(&get("/login/"), r#"Path("/login")"#);
    fails(&get("/Login"), r#"Path("/login")"#);
    holds(&get("/a/%2e%2e/log%69n"), r#"Path("/login")"#);
}

#[test]
fn path_prefix_is_a_plain_prefix_as_in_traefik() {
    for path in ["/api", "/api/", "/api/v1", "/apiary"] {
        holds(&get(path), r#"PathPrefix("/api")"#);
    }
    fails(&get("/apiary"), r#"PathPrefix("/api/")"#);
    fails(&get("/v1/api"), r#"PathPrefix("/api")"#);
}

#[test]
fn path_suffix_contains_and_regexp() {
    holds(&get("/doc/1/edit"), r#"PathSuffix("/edit")"#);
    fails(&get("/doc/1/edit/x"), r#"PathSuffix("/edit")"#);
    holds(&get("/a/v2/b"), r#"PathContains("/v1/", "/v2/")"#);
    fails(&get("/a/v3/b?x=/v2/"), r#"PathContains("/v2/")"#);
    holds(&get("/user/42"), r#"PathRegexp("^/user/\d+$")"#);
    holds(&get("/user/42"), "PathRegexp(`er/\\d`)");
    fails(&get("/user/x"), r#"PathRegexp("^/user/\d+$")"#);
}

#[test]
fn extension_is_what_follows_the_last_dot_of_the_last_segment() {
    holds(&get("/img/a.tar.PNG?x=1"), r#"Extension("gif", ".png")"#);
    fails(&get("/img.png/a"), r#"Extension("png")"#);
    fails(&get("/img/png"), r#"Extension("png")"#);
    fails(&get("/img/a.tar.png"), r#"Extension("tar")"#);
}

#[test]
fn methods_keep_their_case() {
    holds(&get("/").method("HEAD"), r#"Method("GET", "HEAD")"#);
    fails(&get("/").method("get"), r#"Method("GET")"#);
}

#[test]
fn a_repeated_header_holds_if_any_of_its_values_does() {
    let ask = get("/").header("X-Tag", "blue").header("x-tag", "red, green");
    holds(&ask, r#"Header("X-TAG")"#);
    holds(&ask, r#"Header("X-Tag", "blue")"#);
    holds(&ask, r#"Header("X-Tag", "red, green")"#);
    fails(&ask, r#"Header("X-Tag", "green")"#);
    fails(&ask, r#"Header("X-Tag", "Blue")"#);
    holds(&ask, r#"HeaderPrefix("X-Tag", "red")"#);
    fails(&ask, r#"HeaderPrefix("X-Tag", "green")"#);
    holds(&ask, r#"HeaderContains("X-Tag", "green")"#);
    holds(&ask, r#"HeaderContains("X-Tag", "")"#);
    holds(&ask, r#"HeaderRegexp("X-Tag", "^b.*e$")"#);
    fails(&ask, r#"HeaderRegexp("X-Tag", "^green")"#);
    fails(&ask, r#"Header("X-Other")"#);
}

#[test]
fn header_values_need_not_be_utf_8() {
    let mut ask = get("/");
    ask.headers.push(("X-Name", b"caf\xe9"));
    holds(&ask, r#"HeaderPrefix("X-Name", "caf")"#);
    holds(&ask, r#"HeaderRegexp("X-Name", "^caf")"#);
    fails(&ask, r#"Header("X-Name", "café")"#);
}

#[test]
fn cookies_may_be_spread_over_several_headers() {
    let ask = get("/").header("Cookie", "a=1; tier=silver").header("cookie", "tier=\"gold\"; b=2");
    holds(&ask, r#"Cookie("tier")"#);
    holds(&ask, r#"Cookie("tier", "silver")"#);
    holds(&ask, r#"Cookie("tier", "gold")"#);
    holds(&ask, r#"Cookie("b", "2")"#);
    fails(&ask, r#"Cookie("Tier")"#);
    fails(&ask, r#"Cookie("tier", "bronze")"#);
    holds(&ask, r#"CookieRegexp("tier", "^go")"#);
    fails(&ask, r#"CookieRegexp("a", "^go")"#);
}

#[test]
fn query_names_and_values_are_decoded() {
    let ask = get("/x?q=a%20b&q=c+d&flag&n%61me=x");
    holds(&ask, r#"Query("q", "a b")"#);
    holds(&ask, r#"Query("q", "c d")"#);
    holds(&ask, r#"Query("flag")"#);
    holds(&ask, r#"Query("flag", "")"#);
    holds(&ask, r#"Query("name", "x")"#);
    holds(&ask, r#"QueryRegexp("q", "^a b$")"#);
    fails(&ask, r#"Query("q", "a%20b")"#);
    fails(&get("/x"), r#"Query("q")"#);
    fails(&get("/x?"), r#"Query("q")"#);
}

#[test]
fn client_ip_takes_addresses_and_networks_of_both_families() {
    let networks = r#"ClientIP("192.0.2.7", "10.0.0.0/8", "2001:db8::/32")"#;
    for client in ["10.255.0.1", "192.0.2.7", "2001:db8:1::1"] {
        holds(&get("/").client(client), networks);
    }
    for client in ["11.0.0.1", "192.0.2.8", "2001:db9::1", "::ffff:10.0.0.1"] {
        fails(&get("/").client(client), networks);
    }
    holds(&get("/").client("10.9.9.9"), r#"ClientIP("10.1.2.3/8")"#);
    holds(&get("/").client("10.9.9.9"), r#"ClientIP("::ffff:10.0.0.0/104")"#);
}

#[test]
fn listener_version_and_tls() {
    let mut ask = get("/");
    holds(&ask, r#"Listener("api", "web")"#);
    fails(&ask, r#"Listener("Web")"#);
    fails(&ask, "Http10() || Tls()");
    ask.version = HttpVersion::Http10;
    holds(&ask, "Http10()");
    ask.tls = Some((None, &[]));
    holds(&ask, "Tls()");
}

/// A client that asks for this name, or for none, and offers these protocols.
fn hello(server_name: Option<&'static str>, alpn: &'static [&'static [u8]]) -> Ask {
    Ask { tls: Some((server_name, alpn)), ..get("/") }
}

#[test]
fn server_names() {
    let www = hello(Some("WWW.a.example"), &[]);
    holds(&www, r#"HostSNI("b.example", "www.A.example")"#);
    fails(&www, r#"HostSNI("a.example", "ww.a.example", "example")"#);
    for name in ["*.a.example", "*.A.Example.", "*"] {
        holds(&www, &format!(r#"HostSNI("{name}")"#));
    }
    fails(&www, r#"HostSNI("*.example", "*.www.a.example", "*.b.example")"#);
    fails(&hello(Some("a.example"), &[]), r#"HostSNI("*.a.example")"#);
    fails(&hello(Some("xa.example"), &[]), r#"HostSNI("*.a.example") || HostSNISuffix("a.example")"#);
    holds(&www, r#"HostSNISuffix("example")"#);
    holds(&hello(Some("a.example"), &[]), r#"HostSNISuffix("a.example")"#);
    fails(&hello(Some("a.example"), &[]), r#"HostSNISuffix(".a.example")"#);
}

#[test]
fn without_a_server_name_only_every_name_holds() {
    let nameless = hello(None, &[]);
    holds(&nameless, r#"HostSNI("*")"#);
    fails(&nameless, r#"HostSNI("*.example", "example") || HostSNISuffix("example")"#);
    for of_tls in [r#"HostSNI("*")"#, r#"HostSNISuffix("example")"#, r#"ALPN("h2")"#] {
        fails(&get("/"), of_tls);
    }
}

#[test]
fn offered_protocols() {
    let browser = hello(Some("a.example"), &[b"h2", b"http/1.1"]);
    holds(&browser, r#"ALPN("acme-tls/1", "http/1.1")"#);
    fails(&browser, r#"ALPN("H2", "http/1.0")"#);
    fails(&hello(Some("a.example"), &[]), r#"ALPN("h2")"#);
}

#[test]
fn without_http_only_the_connection_can_match() {
    let request = Request { listener: "raw", client: [10, 1, 2, 3].into(), tls: None, http: None };
    let matches = |expression: &str| compile(expression).unwrap().matches(&request);
    assert!(matches(r#"Any() && Listener("raw") && ClientIP("10.0.0.0/8")"#));
    for http in
        [r#"PathPrefix("/")"#, r#"HostRegexp("")"#, r#"Header("Host")"#, r#"Method("GET")"#, r#"Query("a")"#]
    {
        assert!(!matches(http), "{http}");
    }
}
