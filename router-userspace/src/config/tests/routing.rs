//! Methods, affinity, what happens when nobody can serve, and where identities come from.

use super::{BASE, problems};
use crate::config::parse;
use crate::core::identity::{Place, SessionSource, UserSource};
use crate::core::pool::{Method, OnUnavailable, PoolId};

/// Three pools; `extra` holds what each says when it cannot serve.
fn three(extra: [&str; 3], rules: &str) -> String {
    let mut text = "[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\n".to_owned();
    for (number, (name, extra)) in ["a", "b", "c"].into_iter().zip(extra).enumerate() {
        text.push_str(&format!(
            "[[pool]]\nname = \"{name}\"\n{extra}\n[[pool.instance]]\nname = \"{name}1\"\naddress = \"10.0.2.{number}:80\"\n"
        ));
    }
    text + rules
}

#[test]
fn another_pool_and_a_queue_are_read() {
    let extra = ["on_unavailable = \"pool:b\"", "on_unavailable = \"queue:1m30s\"", "queue_limit = 7"];
    let plan = parse("r.toml", &three(extra, "")).unwrap_or_else(|errors| panic!("{errors}"));
    let pools = plan.table.pools();
    assert_eq!(pools[0].on_unavailable, Some(OnUnavailable::Pool(PoolId(1))));
    let patience = std::time::Duration::from_secs(90);
    assert_eq!(pools[1].on_unavailable, Some(OnUnavailable::Queue { patience }));
    assert_eq!((pools[2].queue_limit, pools[0].queue_limit), (7, 1_000));
}

#[test]
fn a_cycle_of_pools_is_an_error_with_its_place_and_its_way() {
    let extra = ["on_unavailable = \"pool:b\"", "on_unavailable = \"pool:c\"", "on_unavailable = \"pool:a\""];
    let said = problems(&three(extra, ""));
    assert!(
        said.starts_with("r.toml:6:18: pool `a` leads back to a pool that was tried: a → b → c → a"),
        "{said}"
    );
    let itself = problems(&three(["on_unavailable = \"pool:a\"", "", ""], ""));
    assert!(
        itself.starts_with("r.toml:6:18: pool `a` leads back to a pool that was tried: a → a"),
        "{itself}"
    );
}

#[test]
fn a_rule_that_leads_back_to_its_own_pool_is_an_error() {
    let rule = "[[rule]]\nname = \"r\"\nmatch = \"Any()\"\npool = \"a\"\non_unavailable = \"pool:b\"\n";
    let said = problems(&three(["", "on_unavailable = \"pool:a\"", ""], rule));
    assert!(said.contains("rule `r` leads back to a pool that was tried: a → b → a"), "{said}");
    assert!(parse("r.toml", &three(["", "on_unavailable = \"pool:c\"", ""], rule)).is_ok());
}

#[test]
fn a_pool_that_does_not_exist_is_named() {
    let said = problems(&three(["on_unavailable = \"pool:bb\"", "", ""], ""));
    assert_eq!(said, "r.toml:6:18: pool `a` names pool `bb`, which does not exist (did you mean `b`?)");
}

#[test]
fn wrong_values_of_the_choice_are_told() {
    let pool = |line: &str| problems(&BASE.replace("name = \"app\"", &format!("name = \"app\"\n{line}")));
    for (line, wanted) in [
        ("affinity = 50", "r.toml:8:12: `affinity` must be 0 or 100, not the number 50"),
        ("method = \"random\"", "r.toml:8:10: `method` cannot be \"random\""),
        ("on_unavailable = \"queue:soon\"", "r.toml:8:18: `on_unavailable` is not a duration: \"soon\""),
        ("on_unavailable = \"queue:2h\"", "r.toml:8:18: `on_unavailable` must be from 10ms to 1h, not 2h"),
        ("on_unavailable = \"pool:\"", "r.toml:8:18: `on_unavailable` cannot be \"pool:\""),
        ("queue_limit = 0", "r.toml:8:15: `queue_limit` must be from 1 to 1000000, not 0"),
    ] {
        let said = pool(line);
        assert!(said.starts_with(wanted), "{said}");
    }
}

#[test]
fn every_method_has_its_name() {
    for method in Method::ALL {
        let text = BASE.replace("name = \"app\"", &format!("name = \"app\"\nmethod = \"{}\"", method.name()));
        assert_eq!(parse("r.toml", &text).expect("a method").table.pools()[0].method, method);
    }
}

#[test]
fn a_listener_says_where_identities_are() {
    let keys = "session = { cookie = \"S\", idle_timeout = \"5m\" }\n\
                user = { basic_auth = true, trusted_sources = [\"10.0.0.0/8\", \"::1\"] }\n\
                groups = { header = \"X-Groups\", trusted_sources = [\"10.0.0.0/8\"] }\n\
                resource = { path_regex = '^/map/([^/]+)' }";
    let text = BASE.replace("name = \"web\"", &format!("name = \"web\"\n{keys}"))
        + "[[group]]\nname = \"finance\"\nusers = [\"alice\"]\n";
    let plan = parse("r.toml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    let spec = plan.table.identities().of_listener("web").expect("a listener");
    let session = spec.session.as_ref().unwrap();
    assert_eq!(session.source, SessionSource::In(Place::Cookie("S".to_owned())));
    assert_eq!(session.idle_timeout.as_secs(), 300);
    let user = spec.user.as_ref().unwrap();
    assert_eq!((&user.source, user.trusted.len()), (&UserSource::BasicAuth, 2));
    assert!(spec.resource.is_some() && spec.groups.is_some());
}

#[test]
fn what_is_wrong_about_identities_is_told() {
    let listener = |line: &str| problems(&BASE.replace("name = \"web\"", &format!("name = \"web\"\n{line}")));
    for (line, wanted) in [
        ("session = {}", "`session` of a [[listener]] says not where to look"),
        (
            "session = { cookie = \"a\", query = \"b\" }",
            "`session` of a [[listener]] says more than one place to look",
        ),
        ("session = { cookie = \"a b\" }", "`cookie` is not a name: \"a b\""),
        (
            "session = { user_resource = true }",
            "`user_resource` needs both a `user` and a `resource` of the listener",
        ),
        ("user = { header = \"X-User\" }", "`user` of a [[listener]] has no `trusted_sources`"),
        (
            "user = { header = \"X\", trusted_sources = [\"ten\"] }",
            "`trusted_sources` has \"ten\", which is not a network",
        ),
        ("resource = { path_regex = '^/map/' }", "`path_regex` captures nothing"),
        ("resource = { path_regex = '(' }", "`path_regex` is not a regular expression"),
    ] {
        let said = listener(line);
        assert!(said.starts_with("r.toml:4:") && said.contains(wanted), "{said}");
    }
}
