use super::*;

/// Addresses whose last byte is below 100 are near, those below 200 behind a router, and to the others there is no route.
struct Made {
    mtu: u32,
    refuses_marked: bool,
}

impl Host for Made {
    fn route(&mut self, to: IpAddr) -> Option<Route> {
        let last = match to {
            IpAddr::V4(to) => to.octets()[3],
            IpAddr::V6(to) => to.octets()[15],
        };
        let gateway = if last < 100 { to } else { [10, 0, 2, 254].into() };
        (last < 200).then_some(Route { interface: 7, gateway })
    }

    fn mtu(&self, interface: u32) -> Option<u32> {
        (interface == 7).then_some(self.mtu)
    }

    fn refuses_marked(&self, _: u32) -> bool {
        self.refuses_marked
    }
}

fn warnings_of(source: &str, instance: &str, mtu: u32) -> Vec<String> {
    let text = format!(
        "[[listener]]\nname = \"stream\"\naddress = \"10.0.1.1:80\"\nprotocol = \"tcp\"\nsource = \"{source}\"\n\n\
         [[listener]]\nname = \"web\"\naddress = \"10.0.1.1:81\"\n\n\
         [[pool]]\nname = \"pool\"\n\n[[pool.instance]]\nname = \"one\"\naddress = \"{instance}:80\"\n\n\
         [default_rule]\npools = [\"pool\"]\n"
    );
    let plan = crate::config::parse("router.toml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    judge(&plan.listeners, &plan.table, &mut Made { mtu, refuses_marked: true })
        .into_iter()
        .map(|warning| warning.message)
        .collect()
}

#[test]
fn each_mode_is_warned_of_what_cannot_work_with_it() {
    let near = "10.0.2.11";
    let behind = "10.0.2.111";
    let nowhere = "10.0.2.211";
    for source in ["snat", "transparent", "dsr-l2"] {
        assert_eq!(warnings_of(source, near, 1_280), Vec::<String>::new(), "{source}");
        let warnings = warnings_of(source, nowhere, 1_500);
        assert!(
            warnings.len() == 1 && warnings[0].starts_with("no route leads to instance one (10.0.2.211:80)"),
            "{warnings:?}"
        );
    }
    assert_eq!(warnings_of("snat", behind, 1_500), Vec::<String>::new());
    for (source, what) in
        [("transparent", "must come back through this host"), ("dsr-l2", "does not get there")]
    {
        let warnings = warnings_of(source, behind, 1_500);
        assert!(warnings.len() == 1 && warnings[0].contains(what), "{source}: {warnings:?}");
        assert!(warnings[0].contains("behind the router 10.0.2.254"), "{warnings:?}");
    }
}

#[test]
fn wrapped_packets_need_twenty_bytes_more() {
    assert_eq!(warnings_of("dsr-ipip", "10.0.2.111", 1_520), Vec::<String>::new());
    let warnings = warnings_of("dsr-ipip", "10.0.2.111", 1_519);
    assert!(warnings.len() == 1 && warnings[0].contains("more than 1499 bytes"), "{warnings:?}");
}

#[test]
fn a_way_on_which_wrapped_ipv6_packets_cannot_be_small_enough_is_warned_of() {
    let warnings_of = |mtu| {
        let text = "[[listener]]\nname = \"stream\"\naddress = \"[fd00::1]:80\"\nprotocol = \"tcp\"\nsource = \"dsr-ipip\"\n\n\
             [[pool]]\nname = \"pool\"\n\n[[pool.instance]]\nname = \"one\"\naddress = \"[fd00::2]:80\"\n\n\
             [default_rule]\npools = [\"pool\"]\n";
        let plan = crate::config::parse("router.toml", text).unwrap_or_else(|errors| panic!("{errors}"));
        let warnings = judge(&plan.listeners, &plan.table, &mut Made { mtu, refuses_marked: false });
        warnings.into_iter().map(|warning| warning.message).collect::<Vec<_>>()
    };
    assert_eq!(warnings_of(1_540), Vec::<String>::new());
    let (narrow, hopeless) = (warnings_of(1_320), warnings_of(1_319));
    assert!(narrow.len() == 1 && narrow[0].contains("more than 1280 bytes are refused"), "{narrow:?}");
    assert!(hopeless.len() == 1 && hopeless[0].contains("whatever they are told"), "{hopeless:?}");
}

#[test]
fn connections_in_clients_names_need_instances_that_answer_through_this_host_and_their_answers_must_be_let_in()
 {
    let warnings_of = |instance: &str, refuses_marked: bool| {
        let text = format!(
            "[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\nsource = \"transparent\"\n\n\
             [[pool]]\nname = \"pool\"\n\n[[pool.instance]]\nname = \"one\"\naddress = \"{instance}:80\"\n\n\
             [[rule]]\nname = \"r\"\nmatch = 'PathPrefix(\"/a\")'\npool = \"pool\"\n"
        );
        let plan = crate::config::parse("router.toml", &text).unwrap_or_else(|errors| panic!("{errors}"));
        let warnings = judge(&plan.listeners, &plan.table, &mut Made { mtu: 1_500, refuses_marked });
        warnings.into_iter().map(|warning| warning.message).collect::<Vec<_>>()
    };
    assert_eq!(warnings_of("10.0.2.11", false), Vec::<String>::new());
    assert_eq!(warnings_of("10.0.2.211", false), Vec::<String>::new(), "connecting says so");
    let strict = warnings_of("10.0.2.11", true);
    assert!(strict.len() == 1 && strict[0].contains("src_valid_mark"), "{strict:?}");
    let behind = warnings_of("10.0.2.111", false);
    assert!(behind.len() == 1 && behind[0].contains("must come back through this host"), "{behind:?}");
}
