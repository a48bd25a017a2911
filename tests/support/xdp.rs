//! What XDP needs of the lab's virtual interfaces.

use crate::lab::{Host, Lab};

/// The other ends of the gateway's interfaces, in the order client, backends.
const PEERS: [(Host, &str); 2] = [(Host::Client, "eth0"), (Host::Switch, "gateway")];

/// Peers complete their checksums, and take what XDP sends.
pub fn open(lab: &Lab) {
    set(lab, &["tx", "off", "gro", "on"]);
}

/// Sets features of the other ends of the gateway's interfaces, as ethtool(8) takes them.
pub fn set(lab: &Lab, features: &[&str]) {
    for (host, interface) in PEERS {
        let set = lab.command(host, "ethtool").args(["-K", interface]).args(features).output();
        assert!(
            set.expect("ethtool starts").status.success(),
            "ethtool -K {interface} {features:?} on {host}"
        );
    }
}
