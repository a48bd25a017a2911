//! Every key of the configuration: its name, its default as it would be written, and an example.
//!
//! This is the one list: reading takes its defaults from here, unknown keys are compared with it, and a test
//! holds `docs/CONFIGURATION.md` to it.

/// One table of the file.
#[derive(Debug)]
pub struct Section {
    /// As it is written: `[daemon]`, `[[listener]]`.
    pub title: &'static str,
    pub keys: &'static [Key],
}

#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    /// The value of a key that is left out, as TOML.
    pub default: Option<&'static str>,
    /// A usual value, as TOML.
    pub example: &'static str,
}

impl Section {
    /// The entry of a key that the code asks for.
    pub(super) fn key(&self, name: &str) -> &'static Key {
        let found = self.keys.iter().find(|key| key.name == name);
        found.unwrap_or_else(|| panic!("{} has no key {name} in its schema", self.title))
    }
}

impl Key {
    /// What to do when the key is missing.
    pub(super) fn ask(&self) -> String {
        format!("add a line such as: {} = {}", self.name, self.example)
    }
}

const fn key(name: &'static str, example: &'static str) -> Key {
    Key { name, default: None, example }
}

const fn with_default(name: &'static str, default: &'static str) -> Key {
    Key { name, default: Some(default), example: default }
}

pub static ROOT: Section = Section {
    title: "the configuration",
    keys: &[
        key("daemon", "{}"),
        key("datapath", "{}"),
        key("listener", "[]"),
        key("pool", "[]"),
        key("rule", "[]"),
        key("default_rule", "{}"),
        key("reports", "{}"),
        key("group", "[]"),
    ],
};

pub static DAEMON: Section = Section {
    title: "[daemon]",
    keys: &[
        with_default("control_socket", "\"/run/router/control.sock\""),
        key("control_group", "\"router\""),
        with_default("state_dir", "\"/var/lib/router\""),
        key("admin_listen", "\"127.0.0.1:9180\""),
        key("group", "\"rack-a\""),
        key("workers", "2"),
        with_default("session_limit", "1_000_000"),
    ],
};

pub static DATAPATH: Section = Section {
    title: "[datapath]",
    keys: &[
        with_default("interfaces", "\"auto\""),
        with_default("attach", "\"auto\""),
        key("interface", "[{ name = \"eth1\", attach = \"xdp\" }]"),
        with_default("max_flows", "1_000_000"),
        with_default("flow_idle_timeout", "\"1h\""),
        with_default("pin_dir", "\"/sys/fs/bpf/router\""),
        key("source_addresses", "[\"10.0.2.1\"]"),
        with_default("source_ports", "\"20000-59999\""),
        with_default("notrack", "true"),
        with_default("l4_max_flows", "1_000_000"),
        with_default("l4_source_ports", "\"10000-19999\""),
        with_default("l4_new_flows", "100_000"),
        with_default("udp_idle_timeout", "\"1m\""),
        with_default("maglev_size", "65_537"),
        with_default("l4_tables", "\"auto\""),
    ],
};

pub static INTERFACE: Section =
    Section { title: "[[datapath.interface]]", keys: &[key("name", "\"eth1\""), key("attach", "\"xdp\"")] };

pub static LISTENER: Section = Section {
    title: "[[listener]]",
    keys: &[
        key("name", "\"web\""),
        key("address", "\"10.0.1.1:80\""),
        with_default("protocol", "\"http\""),
        with_default("source", "\"snat\""),
        with_default("echo", "true"),
        with_default("offload", "\"auto\""),
        with_default("offload_after_bytes", "65_536"),
        with_default("offload_after", "\"10s\""),
        with_default("offload_second_request", "true"),
        with_default("once_only", "true"),
        with_default("header_timeout", "\"10s\""),
        with_default("max_header_bytes", "65_536"),
        with_default("forwarded_for", "true"),
        with_default("allow_http09", "false"),
        with_default("pipelining", "true"),
        with_default("connect_timeout", "\"3s\""),
        with_default("connect_retries", "3"),
        with_default("idle_timeout", "\"1h\""),
        with_default("half_closed_timeout", "\"2m\""),
        with_default("retry_after", "\"5s\""),
        with_default("backlog", "4096"),
        with_default("defer_accept", "true"),
        key("max_segment", "1400"),
        with_default("initial_window", "14_600"),
        key("accept_proxy_protocol", "{ from = [\"10.0.0.0/8\"] }"),
        key("session", "{ cookie = \"JSESSIONID\" }"),
        key("user", "{ header = \"X-User\", trusted_sources = [\"10.0.0.0/8\"] }"),
        key("groups", "{ header = \"X-Groups\", trusted_sources = [\"10.0.0.0/8\"] }"),
        key("resource", "{ query = \"map\" }"),
    ],
};

pub static ACCEPT_PROXY_PROTOCOL: Section =
    Section { title: "`accept_proxy_protocol` of a [[listener]]", keys: &[key("from", "[\"10.0.0.0/8\"]")] };

pub static SESSION: Section = Section {
    title: "`session` of a [[listener]]",
    keys: &[
        key("cookie", "\"JSESSIONID\""),
        key("header", "\"X-Session\""),
        key("query", "\"session\""),
        with_default("client_address", "false"),
        with_default("user_resource", "false"),
        with_default("idle_timeout", "\"30m\""),
    ],
};

pub static USER: Section = Section {
    title: "`user` of a [[listener]]",
    keys: &[
        key("header", "\"X-User\""),
        key("cookie", "\"user\""),
        key("query", "\"user\""),
        with_default("basic_auth", "false"),
        key("trusted_sources", "[\"10.0.0.0/8\"]"),
    ],
};

pub static GROUPS: Section = Section {
    title: "`groups` of a [[listener]]",
    keys: &[key("header", "\"X-Groups\""), key("trusted_sources", "[\"10.0.0.0/8\"]")],
};

pub static RESOURCE: Section = Section {
    title: "`resource` of a [[listener]]",
    keys: &[
        key("path_regex", "'^/analysis/([^/]+)'"),
        key("header", "\"X-Resource\""),
        key("query", "\"map\""),
    ],
};

pub static POOL: Section = Section {
    title: "[[pool]]",
    keys: &[
        key("name", "\"web\""),
        with_default("method", "\"fewest-sessions\""),
        with_default("affinity", "100"),
        with_default("allow_exhausted", "false"),
        with_default("queue_limit", "1_000"),
        key("on_unavailable", "\"503\""),
        key("check", "{ type = \"tcp\" }"),
        with_default("all_down", "\"fail-closed\""),
        key("slow_start", "\"30s\""),
        key("thresholds", "{ strained_cpu = 60 }"),
        key("agent", "{ port = 1510 }"),
        key("reports", "{ token_file = \"/etc/router/web.token\" }"),
        key("proxy_protocol", "\"v2\""),
        key("instance", "[]"),
    ],
};

pub static CHECK: Section = Section {
    title: "`check` of a [[pool]]",
    keys: &[
        key("type", "\"http\""),
        key("path", "\"/health\""),
        key("host", "\"app.example\""),
        key("server_name", "\"app.example\""),
        key("verify", "true"),
        key("ca_file", "\"/etc/router/ca.pem\""),
        key("alpn", "[\"h2\", \"http/1.1\"]"),
        with_default("expect", "[\"200-399\"]"),
        with_default("interval", "\"2s\""),
        with_default("timeout", "\"1s\""),
        with_default("rise", "2"),
        with_default("fall", "3"),
        with_default("initial", "\"down\""),
    ],
};

pub static INSTANCE: Section = Section {
    title: "[[pool.instance]]",
    keys: &[
        key("name", "\"app1\""),
        key("address", "\"10.0.2.11:80\""),
        with_default("weight", "100"),
        key("group", "\"rack-a\""),
        key("max_sessions", "500"),
        with_default("spare", "false"),
        with_default("state", "\"enable\""),
        key("node", "\"host7\""),
        key("thresholds", "{ strained_cpu = 80 }"),
    ],
};

pub static THRESHOLDS: Section = Section {
    title: "`thresholds` of a [[pool]]",
    keys: &[
        with_default("strained_cpu", "[50, 45]"),
        with_default("exhausted_cpu", "[90, 85]"),
        with_default("strained_memory", "[75, 70]"),
        with_default("exhausted_memory", "[98, 93]"),
        with_default("strained_sessions", "-1"),
        with_default("exhausted_sessions", "-1"),
        with_default("strained_temp_disk", "-1"),
        with_default("exhausted_temp_disk", "-1"),
        with_default("strained_paging", "-1"),
        with_default("exhausted_paging", "-1"),
        with_default("strained_calls_per_core", "-1"),
        with_default("exhausted_calls_per_core", "-1"),
        with_default("window", "\"10s\""),
    ],
};

pub static INSTANCE_THRESHOLDS: Section = Section {
    title: "`thresholds` of a [[pool.instance]]",
    keys: &[
        key("strained_cpu", "80"),
        key("exhausted_cpu", "95"),
        key("strained_memory", "80"),
        key("exhausted_memory", "98"),
        key("strained_sessions", "200"),
        key("exhausted_sessions", "400"),
        key("strained_temp_disk", "80"),
        key("exhausted_temp_disk", "95"),
        key("strained_paging", "100"),
        key("exhausted_paging", "1_000"),
        key("strained_calls_per_core", "2"),
        key("exhausted_calls_per_core", "8"),
    ],
};

pub static AGENT: Section = Section {
    title: "`agent` of a [[pool]]",
    keys: &[
        with_default("type", "\"check\""),
        key("port", "1510"),
        with_default("interval", "\"2s\""),
        with_default("timeout", "\"1s\""),
        with_default("require_response", "false"),
        with_default("send", "\"\""),
    ],
};

pub static POOL_REPORTS: Section = Section {
    title: "`reports` of a [[pool]]",
    keys: &[
        key("token_file", "\"/etc/router/web.token\""),
        with_default("ttl", "\"10s\""),
        with_default("required", "true"),
        with_default("allow_registration", "false"),
        with_default("forget_after", "\"10m\""),
        with_default("max_registered", "256"),
    ],
};

pub static REPORTS: Section = Section { title: "[reports]", keys: &[key("listen", "\"10.0.2.1:9190\"")] };

pub static RULE: Section = Section {
    title: "[[rule]]",
    keys: &[
        key("name", "\"reports\""),
        key("match", "'PathPrefix(\"/reports\")'"),
        key("pool", "\"web\""),
        with_default("enabled", "true"),
        key("on_unavailable", "\"503\""),
        key("method", "\"fewest-sessions\""),
        key("affinity", "0"),
        key("allow_exhausted", "true"),
        key("persistence", "{ cookie = \"RTID\", key_file = \"/etc/router/cookie.key\" }"),
        key("preload", "{ resources = [\"sales\"], request = \"GET /analysis/{resource}\" }"),
        key("action", "\"deny\""),
        key("status", "403"),
    ],
};

pub static PRELOAD: Section = Section {
    title: "`preload` of a [[rule]]",
    keys: &[
        key("resources", "[\"sales\"]"),
        key("request", "\"GET /analysis/{resource}\""),
        with_default("instances", "1"),
        key("host", "\"app.example\""),
        key("headers", "[\"X-Preload: {resource}\"]"),
        key("headers_file", "\"/etc/router/preload.headers\""),
        with_default("expect", "[\"200-299\"]"),
        with_default("every", "\"10m\""),
        with_default("timeout", "\"1m\""),
        with_default("days", "\"mon-sun\""),
        with_default("window", "\"00:00-24:00\""),
        with_default("retries", "3"),
        with_default("retry_delay", "\"5s\""),
        with_default("load_on_exhausted", "false"),
        with_default("update_exhausted", "true"),
    ],
};

pub static DEFAULT_RULE: Section = Section {
    title: "[default_rule]",
    keys: &[
        key("pools", "[\"web\"]"),
        key("on_unavailable", "\"503\""),
        key("method", "\"fewest-sessions\""),
        key("affinity", "0"),
        key("allow_exhausted", "true"),
        key("persistence", "{ cookie = \"RTID\", key_file = \"/etc/router/cookie.key\" }"),
    ],
};

pub static PERSISTENCE: Section = Section {
    title: "`persistence` of a rule",
    keys: &[
        key("cookie", "\"RTID\""),
        key("key_file", "\"/etc/router/cookie.key\""),
        with_default("age", "\"0s\""),
        key("domain", "\"shop.example\""),
        with_default("path", "\"/\""),
        with_default("secure", "false"),
        with_default("http_only", "true"),
        key("same_site", "\"lax\""),
        with_default("generation", "1"),
    ],
};

pub static GROUP: Section =
    Section { title: "[[group]]", keys: &[key("name", "\"finance\""), key("users", "[\"alice\"]")] };

/// Every table, in the order of the documentation.
pub static SECTIONS: &[&Section] = &[
    &ROOT,
    &DAEMON,
    &DATAPATH,
    &LISTENER,
    &ACCEPT_PROXY_PROTOCOL,
    &SESSION,
    &USER,
    &GROUPS,
    &RESOURCE,
    &POOL,
    &CHECK,
    &THRESHOLDS,
    &AGENT,
    &POOL_REPORTS,
    &INTERFACE,
    &INSTANCE,
    &INSTANCE_THRESHOLDS,
    &RULE,
    &PRELOAD,
    &DEFAULT_RULE,
    &PERSISTENCE,
    &GROUP,
    &REPORTS,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_examples_are_toml() {
        for section in SECTIONS {
            for key in section.keys {
                assert_eq!(
                    section.keys.iter().filter(|other| other.name == key.name).count(),
                    1,
                    "{}",
                    key.name
                );
                toml::de::DeValue::parse(key.example).expect(key.example);
            }
        }
    }
}
