use super::*;

/// Addresses whose last byte is below 100 are near, those below 200 behind a router, and to the others there is no route.
struct Made {
    mtu: u32,
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
}

fn warnings_of(source: &str, instance: &str, mtu: u32) -> Vec<String> {
    let text = format!(
        "[[listener]]\nname = \"stream\"\naddress = \"10.0.1.1:80\"\nprotocol = \"tcp\"\nsource = \"{source}\"\n\n\
         [[listener]]\nname = \"web\"\naddress = \"10.0.1.1:81\"\n\n\
         [[pool]]\nname = \"pool\"\n\n[[pool.instance]]\nname = \"one\"\naddress = \"{instance}:80\"\n\n\
         [default_rule]\npools = [\"pool\"]\n"
    );
    let plan = crate::config::parse("router.toml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    judge(&plan.listeners, &plan.table, &mut Made { mtu })
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
