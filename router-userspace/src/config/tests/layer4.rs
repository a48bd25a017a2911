//! Layer-4 listeners: what they can be told, and what they cannot.

use super::problems;
use crate::config::parse;

/// A file with a Layer-4 listener that has these further lines, an instance with this address, and more.
fn file(lines: &str, instance: &str, more: &str) -> String {
    format!(
        "[[listener]]\nname = \"dns\"\naddress = \"10.0.1.1:53\"\nprotocol = \"udp\"\n{lines}\n\n\
         [[pool]]\nname = \"p\"\n\n[[pool.instance]]\nname = \"a\"\naddress = \"{instance}\"\n\n{more}"
    )
}

fn said(lines: &str) -> String {
    problems(&file(lines, "10.0.2.11:53", ""))
}

#[test]
fn a_layer_4_listener_remembers_clients_by_their_address_if_it_is_told_to() {
    let plan =
        |lines| parse("r.toml", &file(lines, "10.0.2.11:53", "")).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(plan("").listeners[0].client_affinity, None);
    let session = plan("session = { client_address = true, idle_timeout = \"5m\" }");
    assert_eq!(session.listeners[0].client_affinity, Some(std::time::Duration::from_secs(300)));
}

#[test]
fn what_needs_a_connection_in_user_space_has_no_meaning() {
    for (line, key) in [
        ("offload = \"relay\"", "offload"),
        ("idle_timeout = \"1m\"", "idle_timeout"),
        ("forwarded_for = true", "forwarded_for"),
        ("accept_proxy_protocol = { from = [\"10.0.0.1\"] }", "accept_proxy_protocol"),
    ] {
        let said = said(line);
        assert!(
            said.starts_with("r.toml:5:")
                && said.contains(&format!("`{key}` has no meaning for a listener of protocol \"udp\"")),
            "{said}"
        );
    }
    assert!(said("session = { cookie = \"ID\" }").contains("by the client's address only"));
}

#[test]
fn echo_requests_are_answered_by_layer_4_listeners_alone_unless_they_are_told_not_to() {
    let plan =
        |lines| parse("r.toml", &file(lines, "10.0.2.11:53", "")).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(plan("").listeners[0].echo);
    assert!(!plan("echo = false").listeners[0].echo);
    for protocol in ["http", "tls"] {
        let said =
            problems(&file("echo = true", "10.0.2.11:53", "").replace("\"udp\"", &format!("\"{protocol}\"")));
        assert!(said.starts_with("r.toml:5:8: `echo` has no meaning for a listener of protocol"), "{said}");
    }
}

#[test]
fn what_no_packet_could_be_carried_by_is_shown_in_its_place() {
    let other_family = problems(&file("", "[fd00::11]:53", ""));
    assert!(
        other_family.starts_with(
            "r.toml:12:11: instance [fd00::11]:53 and listener 10.0.1.1:53 are of different families"
        ),
        "{other_family}"
    );
    let wildcard = problems(&file("", "10.0.2.11:53", "").replace("10.0.1.1:53", "0.0.0.0:53"));
    assert!(
        wildcard.starts_with("r.toml:3:11: a listener with protocol \"udp\" needs an address of its own"),
        "{wildcard}"
    );
    let ring = problems(&file("", "10.0.2.11:53", "[datapath]\nmaglev_size = 65536\n"));
    assert!(
        ring.contains("`maglev_size` must be a prime, and 65536 is none (the next one is 65537)"),
        "{ring}"
    );
    let ports = problems(&file("", "10.0.2.11:53", "[datapath]\nl4_source_ports = \"19000-21000\"\n"));
    assert!(
        ports.contains("`l4_source_ports` 19000-21000 and `source_ports` 20000-59999 overlap"),
        "{ports}"
    );
    let queue = problems(&file(
        "",
        "10.0.2.11:53",
        "[[rule]]\nname = \"r\"\nmatch = 'Listener(\"dns\")'\npool = \"p\"\non_unavailable = \"503\"\n",
    ));
    assert!(queue.contains("`on_unavailable` of this rule cannot be done for protocol \"udp\""), "{queue}");
}

#[test]
fn rules_about_requests_never_hold_on_a_layer_4_listener() {
    let rule = "[[rule]]\nname = \"r\"\nmatch = 'PathPrefix(\"/a\")'\npool = \"p\"\n";
    let said = problems(&file("", "10.0.2.11:53", rule));
    assert!(
        said.contains(
            "no request can ever satisfy this rule: `PathPrefix` is about listeners of protocol \"http\""
        ),
        "{said}"
    );
}

#[test]
fn how_packets_travel_must_go_with_what_the_listener_and_its_instances_are() {
    for protocol in ["http", "tls"] {
        let proxied = |source: &str| {
            let text = file(&format!("source = \"{source}\""), "10.0.2.11:53", "");
            problems(&text.replace("\"udp\"", &format!("\"{protocol}\"")))
        };
        assert_eq!(proxied("transparent"), "");
        let direct = proxied("dsr-l2");
        assert!(
            direct.starts_with(&format!(
                "r.toml:5:10: `source = \"dsr-l2\"` does not go together with protocol \"{protocol}\""
            )),
            "{direct}"
        );
    }
    let other_family =
        problems(&file("source = \"transparent\"", "[fd00::11]:53", "").replace("\"udp\"", "\"http\""));
    assert!(
        other_family.contains(
            "r.toml:12:11: with `source = \"transparent\"` clients of listener 10.0.1.1:53 connect to instance [fd00::11]:53 with their own addresses"
        ),
        "{other_family}"
    );
    for source in ["dsr-l2", "dsr-ipip"] {
        let other_port = problems(&file(&format!("source = \"{source}\""), "10.0.2.11:5353", ""));
        assert!(
            other_port.starts_with(&format!(
                "r.toml:12:11: with `source = \"{source}\"` packets arrive at instance 10.0.2.11:5353 still addressed to port 53"
            )),
            "{other_port}"
        );
    }
    let elsewhere = "[[pool]]\nname = \"q\"\n[[pool.instance]]\nname = \"b\"\naddress = \"10.0.2.12:53\"\n\n\
                     [[rule]]\nname = \"r\"\nmatch = 'Listener(\"dns\")'\npool = \"q\"\n\n[default_rule]\npools = [\"p\"]\n";
    assert_eq!(
        problems(&file("source = \"dsr-l2\"", "10.0.2.11:80", elsewhere)),
        "",
        "no client comes to that instance"
    );
}

/// One VIP, port and transport has one listener, whatever the protocols: there is no precedence to know.
#[test]
fn listeners_whose_packets_could_not_be_told_apart_are_refused() {
    let second = |protocol: &str, address: &str| {
        problems(&file(
            "",
            "10.0.2.11:53",
            &format!("[[listener]]\nname = \"other\"\naddress = \"{address}\"\nprotocol = \"{protocol}\"\n"),
        ))
    };
    let third = |first: &str, protocol: &str, address: &str| {
        problems(&file(
            "",
            "10.0.2.11:53",
            &format!(
                "[[listener]]\nname = \"one\"\naddress = \"10.0.1.9:443\"\nprotocol = \"{first}\"\n\n\
                 [[listener]]\nname = \"two\"\naddress = \"{address}\"\nprotocol = \"{protocol}\"\n"
            ),
        ))
    };
    // The same VIP and port with UDP twice.
    let twice = second("udp", "10.0.1.1:53");
    assert!(
        twice.starts_with("r.toml:16:11: listener address 10.0.1.1:53 is already listened on"),
        "{twice}"
    );
    // TCP in eBPF and connections in user space, either way round, and by a wildcard.
    for (first, protocol) in [("tcp", "http"), ("http", "tcp"), ("tls", "tcp"), ("tcp", "tcp")] {
        let said = third(first, protocol, "10.0.1.9:443");
        assert!(
            said.starts_with("r.toml:21:11: listener address 10.0.1.9:443 is already listened on"),
            "{first} and {protocol}: {said}"
        );
    }
    for first in ["tcp", "tls"] {
        let said = third(first, "http", "0.0.0.0:443");
        assert!(
            said.starts_with("r.toml:21:11: listener address 0.0.0.0:443 is already listened on"),
            "{first}: {said}"
        );
    }
    let mapped = second("udp", "[::ffff:10.0.1.1]:53");
    assert!(
        mapped.starts_with("r.toml:16:11: ") && mapped.contains("is an IPv4 address in IPv6 form"),
        "{mapped}"
    );
    // What can be told apart: the other transport, another port, another VIP, and sockets that take whatever is no datagram of a VIP's.
    assert_eq!(second("tcp", "10.0.1.1:53"), "");
    assert_eq!(second("udp", "10.0.1.1:54"), "");
    assert_eq!(second("udp", "10.0.1.2:53"), "");
    assert_eq!(second("http", "0.0.0.0:53"), "");
}
