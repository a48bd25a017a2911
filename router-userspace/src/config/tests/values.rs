//! Single values and keys that are wrong.

use super::{BASE, problems, problems_of};

#[test]
fn unknown_keys_are_answered_with_the_nearest_known_one() {
    assert_eq!(
        problems_of("adress = \"10.0.2.12:80\"\n"),
        "1:1: unknown key `adress` in [[pool.instance]] (did you mean `address`?)"
    );
    assert_eq!(
        problems_of("[daemon]\ncolour = 1\n"),
        "2:1: unknown key `colour` in [daemon] (known keys: control_socket, control_group, state_dir, admin_listen, group, workers, session_limit)"
    );
    assert_eq!(
        problems_of("[listeners]\n"),
        "1:2: unknown key `listeners` in the configuration (did you mean `listener`?)"
    );
}

#[test]
fn wrong_values_say_what_is_wanted() {
    let listener = |line: &str| problems(&BASE.replace("name = \"web\"", &format!("name = \"web\"\n{line}")));
    for (line, wanted) in [
        (
            "accept_proxy_protocol = { from = [] }",
            "4:34: `from` is empty, so nobody could announce clients (name the proxies in front, or remove the table)",
        ),
        (
            "accept_proxy_protocol = true",
            "4:25: `accept_proxy_protocol` must be a table, not true (write it as `accept_proxy_protocol` of a [[listener]])",
        ),
        ("offload = \"atuo\"", "4:11: `offload` cannot be \"atuo\" (did you mean \"auto\"?)"),
        (
            "offload = 1",
            "4:11: `offload` must be a string, not the number 1 (use \"auto\", \"bind\", \"handoff\" or \"relay\")",
        ),
        (
            "header_timeout = 10",
            "4:18: `header_timeout` must be a duration, not the number 10 (a number and a unit (ms, s, m, h or d) in quotes, such as \"500ms\", \"10s\" or \"1m30s\")",
        ),
        (
            "header_timeout = \"10 sec\"",
            "4:18: `header_timeout` is not a duration: \"10 sec\" (a number and a unit (ms, s, m, h or d) in quotes, such as \"500ms\", \"10s\" or \"1m30s\")",
        ),
        ("header_timeout = \"0s\"", "4:18: `header_timeout` must be from 100ms to 1d, not 0s"),
        (
            "max_header_bytes = 5000000000",
            "4:20: `max_header_bytes` must be from 1024 to 1048576, not 5000000000",
        ),
        (
            "max_header_bytes = \"64k\"",
            "4:20: `max_header_bytes` must be a whole number from 1024 to 1048576, not \"64k\"",
        ),
        (
            "max_header_bytes = -99999999999999999999999999",
            "4:20: `max_header_bytes` must be from 1024 to 1048576, not -99999999999999999999999999",
        ),
        ("once_only = \"no\"", "4:13: `once_only` must be true or false, not \"no\" (without quotes)"),
        (
            "forwarded_for = \"yes\"",
            "4:17: `forwarded_for` must be true or false, not \"yes\" (without quotes)",
        ),
    ] {
        assert_eq!(listener(line), format!("r.toml:{wanted}"));
    }
    for (extra, wanted) in [
        (
            "[daemon]\ncontrol_socket = \"run/x\"",
            "2:18: `control_socket` must be an absolute path, not \"run/x\"",
        ),
        (
            "[datapath]\ninterfaces = \"eth0\"",
            "2:14: `interfaces` must be a list or \"auto\", not \"eth0\" (name the interfaces of clients and instances: [\"eth0\", \"eth1\"])",
        ),
        (
            "[datapath]\ninterfaces = [\"eth0\", \"a/b\", 3]",
            "2:23: `interfaces` is not an interface name: \"a/b\" (1 to 15 characters, as `ip link` shows it)\n2:30: `interfaces` must be an interface name, not the number 3",
        ),
        (
            "[datapath]\ninterfaces = []",
            "2:14: `interfaces` is empty (name the interfaces of clients and instances, or write \"auto\")",
        ),
        (
            "[datapath]\nsource_ports = \"60000-20000\"",
            "2:16: `source_ports` begins above its end: 60000-20000 (write \"20000-60000\")",
        ),
        (
            "[datapath]\nsource_ports = \"80-2000\"",
            "2:16: `source_ports` must not use ports below 1024: 80-2000 (write the lowest and the highest port, from 1024 to 65535, such as \"20000-59999\")",
        ),
        (
            "[datapath]\nsource_ports = 20000",
            "2:16: `source_ports` must be a range of ports, not the number 20000 (write the lowest and the highest port, from 1024 to 65535, such as \"20000-59999\")",
        ),
        (
            "[datapath]\nsource_ports = \"20000-70000\"",
            "2:16: `source_ports` is not a range of ports: \"20000-70000\" (write the lowest and the highest port, from 1024 to 65535, such as \"20000-59999\")",
        ),
        (
            "[datapath]\nsource_addresses = [\"10.0.2.1/24\"]",
            "2:21: `source_addresses` is not an IP address: \"10.0.2.1/24\" (write \"10.0.2.1\" or \"fd00::1\", without a port or prefix length)",
        ),
        ("weight = 1001", "1:10: `weight` must be from 0 to 1000, not 1001"),
        ("state = \"enabled\"", "1:9: `state` cannot be \"enabled\" (did you mean \"enable\"?)"),
        (
            "[[rule]]\nname = \"r\"\nmatch = 'Any()'\naction = \"deny\"\nstatus = 200",
            "5:10: `status` must be from 400 to 599, not 200",
        ),
    ] {
        assert_eq!(problems_of(extra), wanted);
    }
    let long = format!("[daemon]\ncontrol_socket = \"/{}\"", "x".repeat(107));
    assert_eq!(
        problems_of(&long),
        "2:18: `control_socket` is too long for a Unix socket: 108 bytes (at most 107 bytes; use a shorter folder such as /run/router)"
    );
}

#[test]
fn addresses_are_literal_and_have_a_port() {
    let at = |address: &str| {
        problems(&BASE.replace("10.0.2.11:80", address))
            .trim_start_matches("r.toml:11:11: `address` ")
            .to_owned()
    };
    const EXAMPLE: &str = "write \"10.0.1.1:80\", or \"[2001:db8::1]:80\" for IPv6";
    assert_eq!(
        at("10.0.2.11"),
        format!("is not an address and port: \"10.0.2.11\" (the port is missing: {EXAMPLE})")
    );
    assert_eq!(
        at("app1.example:80"),
        format!("is not an address and port: \"app1.example:80\" (host names are not resolved: {EXAMPLE})")
    );
    assert_eq!(at("10.0.2.300:80"), format!("is not an address and port: \"10.0.2.300:80\" ({EXAMPLE})"));
    assert_eq!(at("10.0.2.11:0"), "must have a port from 1 to 65535, not 0");
    assert_eq!(at("224.0.0.1:80"), "must be a unicast address, not 224.0.0.1");
    assert_eq!(
        at("[::ffff:10.0.2.11]:80"),
        "is an IPv4 address in IPv6 form: ::ffff:10.0.2.11 (write 10.0.2.11)"
    );
    assert_eq!(
        at("[fe80::11]:80"),
        "is a link-local address, which means nothing without its interface: fe80::11 (use a global address, or a unique local one such as fd00::1)"
    );
    assert_eq!(at("[fd77:2::11%3]:80"), format!("must not name an interface: [fd77:2::11%3]:80 ({EXAMPLE})"));
    assert_eq!(
        at("0.0.0.0:81"),
        "r.toml:11:11: an instance cannot have the address 0.0.0.0 (write the address that the server listens on)"
    );
    assert_eq!(
        at("10.0.1.1:80"),
        "r.toml:11:11: instance address 10.0.1.1:80 is a listener's own (the router would connect to itself for ever)"
    );
}

#[test]
fn what_cannot_be_bound_says_why() {
    let listener = |lines: &str| {
        problems(&BASE.replace("name = \"web\"", &format!("name = \"web\"\noffload = \"bind\"\n{lines}")))
    };
    for (line, wanted) in [
        (
            "source = \"transparent\"",
            "`offload = \"bind\"` does not go together with `source = \"transparent\"`",
        ),
        ("once_only = false", "`offload = \"bind\"` does not go together with `once_only = false`"),
        (
            "accept_proxy_protocol = { from = [\"10.0.0.0/8\"] }",
            "`offload = \"bind\"` does not go together with `accept_proxy_protocol`",
        ),
    ] {
        assert!(listener(line).contains(wanted), "{}", listener(line));
    }
    let everywhere = problems(
        &BASE
            .replace("name = \"web\"", "name = \"web\"\noffload = \"bind\"")
            .replace("10.0.1.1:80", "0.0.0.0:80"),
    );
    assert!(everywhere.contains("an address that covers all of a family"), "{everywhere}");
}
