//! Where an interface's packets are to be met, and why.

use std::collections::BTreeMap;

use super::facts::Facts;

/// What the configuration wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    Auto,
    Xdp,
    Tc,
}

/// The same for each interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wishes {
    pub everywhere: Attach,
    /// Those that have a wish of their own.
    pub of: BTreeMap<String, Attach>,
}

impl Wishes {
    pub fn of(&self, interface: &str) -> Attach {
        self.of.get(interface).copied().unwrap_or(self.everywhere)
    }
}

/// Where packets are met first. TC, which is always attached, gets what XDP leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Tc,
    /// In the driver.
    XdpNative,
    /// In the kernel's general code, after a socket buffer has been made.
    XdpGeneric,
}

impl Hook {
    /// As `routerctl status` and metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tc => "tc",
            Self::XdpNative => "xdp-native",
            Self::XdpGeneric => "xdp-generic",
        }
    }
}

/// The hook for an interface with these facts, and the reason in words. Where the facts are not known, `facts` says why.
pub fn choose(attach: Attach, facts: Result<&Facts, &str>) -> (Hook, String) {
    let (hook, reason) = match (attach, facts) {
        (Attach::Tc, _) => (Hook::Tc, "as configured".to_owned()),
        (Attach::Xdp, Err(error)) => {
            (Hook::XdpGeneric, format!("as configured; what its driver can do is not known: {error}"))
        }
        (Attach::Auto, Err(error)) => (Hook::Tc, format!("what its driver can do is not known: {error}")),
        (_, Ok(facts)) if facts.hides_vlan_tags => {
            let text =
                "XDP would not see the tags of the VLANs on it: `ethtool -K INTERFACE rxvlan off` first";
            (Hook::Tc, text.to_owned())
        }
        (Attach::Xdp, Ok(facts)) if facts.native => (Hook::XdpNative, "as configured".to_owned()),
        (Attach::Xdp, Ok(_)) => (Hook::XdpGeneric, "as configured; its driver has no native XDP".to_owned()),
        (Attach::Auto, Ok(facts)) => automatic(facts),
    };
    (hook, reason)
}

fn automatic(facts: &Facts) -> (Hook, String) {
    if facts.kind.as_deref() == Some("veth") {
        let text = "a veth passes on packets that are put together and checksums that are left out, which only TC can carry";
        return (Hook::Tc, text.to_owned());
    }
    if !facts.native {
        return (Hook::Tc, "its driver has no native XDP".to_owned());
    }
    if facts.merges {
        let text = "packets are put together (GRO or LRO), which makes long transfers cheaper by TC";
        return (Hook::Tc, text.to_owned());
    }
    (
        Hook::XdpNative,
        "its driver has native XDP, and packets are not put together (GRO and LRO are off)".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Facts {
        Facts { native: true, ..Facts::default() }
    }

    #[test]
    fn auto_takes_xdp_only_where_the_driver_has_it_and_nothing_speaks_for_tc() {
        let auto = |facts: &Facts| choose(Attach::Auto, Ok(facts)).0;
        assert_eq!(auto(&card()), Hook::XdpNative);
        assert_eq!(auto(&Facts { native: false, ..card() }), Hook::Tc);
        assert_eq!(auto(&Facts { merges: true, ..card() }), Hook::Tc);
        assert_eq!(auto(&Facts { hides_vlan_tags: true, ..card() }), Hook::Tc);
        assert_eq!(auto(&Facts { kind: Some("veth".to_owned()), ..card() }), Hook::Tc);
        assert_eq!(choose(Attach::Auto, Err("no such family")).0, Hook::Tc);
    }

    #[test]
    fn xdp_that_is_asked_for_is_native_where_the_driver_has_it() {
        let xdp = |facts: &Facts| choose(Attach::Xdp, Ok(facts)).0;
        assert_eq!(xdp(&card()), Hook::XdpNative);
        assert_eq!(xdp(&Facts { merges: true, ..card() }), Hook::XdpNative);
        assert_eq!(xdp(&Facts { native: false, ..card() }), Hook::XdpGeneric);
        assert_eq!(choose(Attach::Xdp, Err("no such family")).0, Hook::XdpGeneric);
    }

    #[test]
    fn hidden_vlan_tags_keep_xdp_away_even_where_it_is_asked_for() {
        let (hook, reason) = choose(Attach::Xdp, Ok(&Facts { hides_vlan_tags: true, ..card() }));
        assert_eq!(hook, Hook::Tc);
        assert!(reason.contains("rxvlan off"), "{reason}");
    }
}
