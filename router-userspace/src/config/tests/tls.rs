//! TLS listeners: keys that they do not have, and rules that no request can satisfy. TLS checks: which keys they have, and the
//! certificates that they trust.

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use super::{BASE, TestFile, problems, warnings};
use crate::config::parse;
use crate::core::health::{CheckKind, TlsCheck};

fn certificate() -> String {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

fn with_check(keys: &str) -> String {
    BASE.replace("name = \"app\"", &format!("name = \"app\"\ncheck = {{ {keys} }}"))
}

/// The TLS check of a configuration that is valid.
fn tls_check(keys: &str) -> TlsCheck {
    let plan = parse("r.toml", &with_check(keys)).unwrap_or_else(|errors| panic!("{errors}"));
    match &plan.table.pools()[0].check.as_ref().unwrap().kind {
        CheckKind::Tls(check) => check.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn certificates_are_verified_exactly_if_authorities_are_given() {
    let file = TestFile::holding("ca-good", &format!("# two\n{}{}", certificate(), certificate()));
    let path = file.path();
    for (keys, authorities) in [
        ("type = \"tls\"".to_owned(), None),
        ("type = \"tls\", verify = false".to_owned(), None),
        (format!("type = \"tls\", ca_file = \"{path}\""), Some(2)),
        (format!("type = \"tls\", verify = true, ca_file = \"{path}\""), Some(2)),
    ] {
        let check = tls_check(&keys);
        assert_eq!(check.authorities.map(|list| list.len()), authorities, "{keys}");
    }
    let check = tls_check("type = \"tls\", server_name = \"app.example\", alpn = [\"h2\", \"http/1.1\"]");
    assert_eq!(check.server_name.as_deref(), Some("app.example"));
    assert_eq!(check.alpn, ["h2", "http/1.1"]);
}

#[test]
fn what_contradicts_itself_is_shown_in_its_place() {
    let said = |keys: &str| problems(&with_check(keys));
    assert_eq!(
        said("type = \"tls\", verify = true"),
        "r.toml:8:34: `verify = true` needs a `ca_file` (name the certificates to trust; those of this host are usually in /etc/ssl/certs/ca-certificates.crt)"
    );
    assert!(
        said("type = \"tls\", verify = false, ca_file = \"/etc/router/ca.pem\"")
            .starts_with("r.toml:8:51: `ca_file` has no meaning with `verify = false`")
    );
    assert_eq!(
        said("type = \"tls\", path = \"/health\""),
        "r.toml:8:32: `path` has no meaning for a check of type \"tls\" (remove it, or set type = \"http\")"
    );
    assert_eq!(
        said("type = \"http\", server_name = \"app.example\""),
        "r.toml:8:40: `server_name` has no meaning for a check of type \"http\" (remove it, or set type = \"tls\")"
    );
    assert!(said("type = \"tls\", server_name = \"10.0.0.1\"").contains("is not a DNS name: \"10.0.0.1\""));
    assert!(said("type = \"tls\", server_name = \"a b\"").contains("is not a DNS name"));
    assert!(
        said("type = \"tls\", alpn = [\"h2\", \"\"]").starts_with("r.toml:8:39: `alpn` is not a protocol")
    );
}

#[test]
fn a_file_without_usable_certificates_is_named() {
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (name, text, wanted) in [
        ("empty", "", "are none"),
        ("pem", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", "are not in PEM form"),
        ("broken", &format!("{}{broken}", certificate()), "cannot be used: number 2 "),
    ] {
        let file = TestFile::holding(name, text);
        let said = problems(&with_check(&format!("type = \"tls\", ca_file = \"{}\"", file.path())));
        assert!(said.starts_with("r.toml:8:35: the certificates in ") && said.contains(wanted), "{said}");
    }
    let said = problems(&with_check("type = \"tls\", ca_file = \"/nowhere/ca.pem\""));
    assert!(said.contains("cannot be read: No such file"), "{said}");
    let said = problems(&with_check("type = \"tls\", ca_file = \"/dev/zero\""));
    assert!(said.contains("is not a regular file"), "{said}");
}

/// The smallest configuration with a TLS listener, with these lines in it.
fn secure(lines: &str) -> String {
    BASE.replace("name = \"web\"", &format!("name = \"secure\"\nprotocol = \"tls\"\n{lines}"))
}

#[test]
fn a_tls_listener_has_no_keys_about_http() {
    assert_eq!(problems(&secure("")), "");
    let usual = "offload = \"handoff\"\nheader_timeout = \"3s\"\nsession = { client_address = true }";
    assert_eq!(problems(&secure(usual)), "");
    for (line, key) in [
        ("once_only = true", "once_only"),
        ("forwarded_for = false", "forwarded_for"),
        ("allow_http09 = false", "allow_http09"),
        ("pipelining = true", "pipelining"),
        ("retry_after = \"5s\"", "retry_after"),
        ("user = { header = \"X-User\", trusted_sources = [\"10.0.0.0/8\"] }", "user"),
        ("groups = { header = \"X-Groups\", trusted_sources = [\"10.0.0.0/8\"] }", "groups"),
        ("resource = { query = \"map\" }", "resource"),
    ] {
        let said = problems(&secure(line));
        let wanted = format!("`{key}` has no meaning for a listener of protocol \"tls\" (remove it)");
        assert!(said.starts_with("r.toml:5:") && said.contains(&wanted), "{said}");
    }
    assert_eq!(
        problems(&secure("session = { cookie = \"JSESSIONID\" }")),
        "r.toml:5:11: sessions of a listener of protocol \"tls\" can go by the client's address only (write session = { client_address = true })"
    );
}

#[test]
fn a_client_hello_may_be_as_long_as_a_record_unless_the_listener_says_otherwise() {
    let length = |text: &str| parse("r.toml", text).unwrap().listeners[0].max_header_bytes;
    assert_eq!(length(BASE), 65_536);
    assert_eq!(length(&secure("")), 16_384);
    assert_eq!(length(&secure("max_header_bytes = 4096")), 4_096);
}

#[test]
fn a_rule_that_no_request_can_satisfy_is_shown_at_the_function_that_is_in_the_way() {
    let rule = |condition: &str| format!("[[rule]]\nname = \"r\"\nmatch = '{condition}'\npool = \"app\"\n");
    let said = |listeners: &str, condition: &str| problems(&format!("{}{listeners}", rule(condition)));
    assert_eq!(
        said(BASE, r#"ClientIP("10.0.0.0/8") && HostSNI("a")"#),
        "r.toml:3:36: no request can ever satisfy this rule: `HostSNI` is about listeners of protocol \"tls\" (the listeners are web (http))"
    );
    assert_eq!(
        said(&secure(""), r#"PathPrefix("/a") || Header("X")"#),
        "r.toml:3:10: no request can ever satisfy this rule: `PathPrefix` is about listeners of protocol \"http\" (the listeners are secure (tls))"
    );
    let both = format!("{}\n[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:8080\"\n", secure(""));
    for fine in [
        r#"Host("a") || HostSNI("a")"#,
        r#"Host("a")"#,
        r#"!Host("a")"#,
        r#"Listener("secure") && ALPN("h2")"#,
    ] {
        assert_eq!(said(&both, fine), "", "{fine}");
    }
    for (condition, function) in [
        (r#"Host("a") && HostSNI("a")"#, "`Host`"),
        (r#"Listener("secure") && Method("GET")"#, "`Method`"),
        (r#"Listener("web") && !(Any() && !Tls())"#, "`Tls`"),
    ] {
        let said = said(&both, condition);
        assert!(
            said.contains(&format!("no request can ever satisfy this rule: {function}")),
            "{condition}: {said}"
        );
    }
}

#[test]
fn a_cookie_that_no_client_can_bring_is_warned_of() {
    let keys = TestFile::holding("tls-cookie.key", &format!("{}\n", "ab".repeat(32)));
    let persistence = format!("persistence = {{ cookie = \"RTID\", key_file = \"{}\" }}\n", keys.path());
    let rule = |condition: &str| {
        format!("[[rule]]\nname = \"r\"\nmatch = '{condition}'\npool = \"app\"\n{persistence}")
    };
    let wanted = "`persistence` has no effect: only connections of secure (tls) come to this rule, and cookies are of HTTP";
    let secure = secure("");
    let said = warnings(&format!("{secure}{}", rule("Any()")));
    assert!(said.contains(wanted) && said.starts_with("r.toml:"), "{said}");
    let said = warnings(&format!("{secure}[default_rule]\n{persistence}"));
    assert!(said.contains(wanted), "{said}");
    let web = "[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\n";
    let both = format!("{web}{}", secure.replace("10.0.1.1:80", "10.0.1.1:443"));
    assert!(warnings(&format!("{both}{}", rule(r#"HostSNI("a.example")"#))).contains(wanted));
    for met_over_http in ["Any()", r#"Host("a.example") || HostSNI("a.example")"#, r#"Listener("web")"#] {
        assert_eq!(warnings(&format!("{both}{}", rule(met_over_http))), "", "{met_over_http}");
    }
}
