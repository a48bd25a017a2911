//! Values that are right by themselves and wrong together.

use super::{BASE, problems, problems_of, warnings};

#[test]
fn an_instance_belongs_to_exactly_one_pool() {
    let second = |name: &str, address: &str| {
        problems_of(&format!(
            "[[pool]]\nname = \"other\"\n[[pool.instance]]\nname = \"{name}\"\naddress = \"{address}\"\n"
        ))
    };
    assert_eq!(
        second("app1", "10.0.2.12:80"),
        "4:8: two instances are named `app1` (instance names are unique across all pools)"
    );
    assert_eq!(
        second("app2", "10.0.2.11:80"),
        "5:11: two instances have the address 10.0.2.11:80 (an instance belongs to exactly one pool)"
    );
    assert_eq!(second("app2", "10.0.2.11:81"), "");
}

#[test]
fn listeners_do_not_share_a_name_or_an_address() {
    let second = |name: &str, address: &str| {
        problems_of(&format!("[[listener]]\nname = \"{name}\"\naddress = \"{address}\"\n"))
    };
    const HELP: &str = "use another address or port; 0.0.0.0 and [::] cover every address of their family";
    assert_eq!(
        second("web", "10.0.1.2:80"),
        "2:8: two listeners are named `web` (give each listener its own name)"
    );
    assert_eq!(
        second("b", "10.0.1.1:80"),
        format!("3:11: listener address 10.0.1.1:80 is already listened on ({HELP})")
    );
    assert_eq!(
        second("b", "0.0.0.0:80"),
        format!("3:11: listener address 0.0.0.0:80 is already listened on ({HELP})")
    );
    assert_eq!(second("b", "[::]:80"), "", "IPv6 listeners are IPv6 only");
    assert_eq!(second("b", "10.0.1.1:81"), "");
    assert_eq!(
        problems_of("[daemon]\nadmin_listen = \"0.0.0.0:80\"\n"),
        "2:16: `admin_listen` 0.0.0.0:80 is the address of a listener (use another port)"
    );
}

#[test]
fn source_addresses_and_ports_fit_listeners_and_instances() {
    assert_eq!(
        warnings(&format!("{BASE}[datapath]\nsource_addresses = [\"fd00::1\"]\n")),
        "r.toml:11:11: warning: `source_addresses` has no IPv4 address for 10.0.2.11:80, so the route decides which one is used (add one of this host's)"
    );
    assert_eq!(
        problems_of("[datapath]\nsource_addresses = [\"10.0.2.1\", \"10.0.2.1\", \"0.0.0.0\"]\n"),
        "2:33: `source_addresses` lists 10.0.2.1 twice\n2:45: `source_addresses` must name addresses of this host, not 0.0.0.0"
    );
    assert_eq!(
        problems_of(
            "[datapath]\nsource_addresses = [\"10.0.2.1\"]\n[[listener]]\nname = \"b\"\naddress = \"10.0.2.1:20000\"\n"
        ),
        "5:11: port 20000 lies within the router's own source ports 20000-59999 (use another port, or set `source_ports` in [datapath] to leave it out)"
    );
}

#[test]
fn pools_have_names_and_instances() {
    assert_eq!(
        problems_of("[[pool]]\nname = \"app\"\n"),
        "1:1: pool `app` has no instance (add [[pool.instance]] with a name and an address below it)\n\
         2:8: two pools are named `app` (give each pool its own name)"
    );
    assert_eq!(
        problems_of("[[pool]]\n[[pool.instance]]\n"),
        "1:1: [[pool]] has no `name` (add a line such as: name = \"web\")\n\
         2:1: [[pool.instance]] has no `name` (add a line such as: name = \"app1\")\n\
         2:1: [[pool.instance]] has no `address` (add a line such as: address = \"10.0.2.11:80\")"
    );
    assert_eq!(
        problems("[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\n[pool]\nname = \"app\"\n"),
        "r.toml:4:2: `pool` must be a list of tables, not a table (write [[pool]] in double brackets, once for each)"
    );
    assert_eq!(
        problems_of("[[pool]]\nname = \"b\"\ninstance = [3]\n"),
        "1:1: pool `b` has no instance (add [[pool.instance]] with a name and an address below it)\n\
         3:13: `instance` must hold tables only, not the number 3 (write each as [[pool.instance]])"
    );
}

#[test]
fn checks_make_sense_as_a_whole() {
    let check = |check: &str| {
        let found =
            problems(&BASE.replace("name = \"app\"", &format!("name = \"app\"\ncheck = {{ {check} }}")));
        found.trim_start_matches("r.toml:").to_owned()
    };
    assert_eq!(check("type = \"http\", interval = \"1s\", timeout = \"1s\""), "");
    assert_eq!(
        check("type = \"tcp\", interval = \"1s\", timeout = \"2s\""),
        "8:52: a check's `timeout` (2s) must not be longer than its `interval` (1s) (or checks of one instance would overlap)"
    );
    assert_eq!(
        check("type = \"tcp\", interval = \"500ms\""),
        "8:36: a check's `timeout` (1s) must not be longer than its `interval` (500ms) (or checks of one instance would overlap)"
    );
    assert_eq!(
        check("path = \"/\""),
        "8:9: `check` of a [[pool]] has no `type` (add a line such as: type = \"http\")"
    );
    assert_eq!(
        check("type = \"tcp\", path = \"/\""),
        "8:32: `path` has no meaning for a check of type \"tcp\" (remove it, or set type = \"http\")"
    );
    assert_eq!(
        check("type = \"http\", path = \"health check\""),
        "8:33: `path` is not a path that can be requested: \"health check\" (begin with '/', write spaces and other special characters percent-encoded)"
    );
    assert_eq!(
        check("type = \"http\", host = \"a\\r\\nX: 1\""),
        "8:33: `host` is not a host name: \"a\\r\\nX: 1\""
    );
    assert_eq!(
        check("type = \"http\", expect = []"),
        "8:35: `expect` is empty, so no answer could pass the check (leave it out to expect 200-399)"
    );
    assert_eq!(
        check("type = \"http\", expect = [\"2xx\", 99]"),
        "8:36: `expect` is not a range of HTTP statuses: \"2xx\" (write statuses from 100 to 599, such as [200, \"300-399\"])\n\
         r.toml:8:43: `expect` must be from 100 to 599, not 99 (write statuses from 100 to 599, such as [200, \"300-399\"])"
    );
}

#[test]
fn what_can_only_be_relayed_from_one_family_to_the_other_is_a_warning() {
    let six = BASE.replace("10.0.2.11:80", "[fd00::11]:80");
    assert_eq!(
        warnings(&six),
        "r.toml:4:11: warning: connections from IPv4 listener 10.0.1.1:80 to IPv6 instances are relayed, never handed off, and there are no others"
    );
    let mixed = format!("{BASE}[[pool.instance]]\nname = \"six\"\naddress = \"[fd00::11]:80\"\n");
    assert_eq!(
        warnings(&mixed),
        "r.toml:14:11: warning: connections from one family to the other are relayed, never handed off, and this pool has instances of both (a pool for each family, chosen by `Listener` or `ClientIP` in rules, avoids it)"
    );
    let apart = format!(
        "{BASE}[[listener]]\nname = \"web6\"\naddress = \"[fd00::1]:80\"\n\
         [[pool]]\nname = \"app6\"\n[[pool.instance]]\nname = \"a6\"\naddress = \"[fd00::11]:80\"\n\
         [[rule]]\nname = \"six\"\nmatch = 'Listener(\"web6\")'\npool = \"app6\"\n\
         [default_rule]\npools = [\"app\"]\n"
    );
    assert_eq!(warnings(&apart), "", "both families have listeners and instances");
}

#[test]
fn what_works_and_is_probably_not_meant_is_a_warning() {
    let other = "[[pool]]\nname = \"other\"\n[[pool.instance]]\nname = \"o1\"\naddress = \"[fd00::1]:80\"\nweight = 0\n";
    assert_eq!(
        warnings(&format!("{BASE}{other}[default_rule]\npools = [\"app\"]\n")),
        "r.toml:12:1: warning: every instance of pool `other` has weight 0, so none gets new connections\n\
         r.toml:13:8: warning: no rule leads to pool `other` (name it in a [[rule]] or in [default_rule])"
    );
    assert_eq!(
        warnings(&format!("{BASE}[daemon]\ngroup = \"rack-a\"\n")),
        "r.toml:13:9: warning: no instance is of this router's group `rack-a` (give instances near this router the same `group`, or remove it here)"
    );
    let rules = "[[rule]]\nname = \"all\"\nmatch = 'Any()'\npool = \"app\"\n[[rule]]\nname = \"late\"\nmatch = 'Host(\"a\")'\npool = \"app\"\n";
    assert_eq!(
        warnings(&format!("{BASE}{rules}")),
        "r.toml:17:8: warning: rule `late` is never tried: rule `all` before it always holds (the first rule that holds decides)"
    );
}
