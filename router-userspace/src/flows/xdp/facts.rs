//! What is to be known of an interface before XDP is attached to it.

use std::collections::HashMap;
use std::io;

use netlink_packet_core::DefaultNla;

use crate::flows::generic_netlink::{GenericNetlink, attributes};
use crate::flows::netlink::Netlink;

/// An interface's facts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// What kind of virtual interface it is, such as `veth`; `None` for a network card.
    pub kind: Option<String>,
    /// Its driver runs XDP programs and sends frames on for them.
    pub native: bool,
    /// Packets are put together before the stack sees them: in software (GRO), or by the card (LRO).
    pub merges: bool,
    /// VLAN interfaces lie on it, and their tags are taken off before XDP sees a frame.
    pub hides_vlan_tags: bool,
}

// `linux/netdev.h`
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_BASIC: u64 = 1 << 0;
const NETDEV_XDP_ACT_REDIRECT: u64 = 1 << 1;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 1 << 2;

// `linux/ethtool_netlink.h`
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const NLA_F_NESTED: u16 = 1 << 15;

/// As ethtool(8) shows them.
const MERGING: [&str; 3] = ["rx-gro", "rx-lro", "rx-gro-hw"];
const TAKES_VLAN_TAGS_OFF: &str = "rx-vlan-hw-parse";

/// The facts of the interface of this index.
pub fn of(index: u32) -> io::Result<Facts> {
    let links = Netlink::open()?.links()?;
    let mut generic = GenericNetlink::open()?;
    let active = active_features(&mut generic, index)?;
    let can = drivers(&mut generic)?.get(&index).copied().unwrap_or(0);
    let is_active = |name: &str| active.iter().any(|feature| feature == name);
    let below_vlans = links.iter().any(|link| link.below == Some(index) && link.is("vlan"));
    Ok(Facts {
        kind: links.iter().find(|link| link.index == index).and_then(|link| link.kind.clone()),
        native: can & (NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT)
            == NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT,
        merges: MERGING.iter().any(|name| is_active(name)),
        hides_vlan_tags: below_vlans && is_active(TAKES_VLAN_TAGS_OFF),
    })
}

/// The indexes of interfaces whose drivers send what native XDP gives to them.
pub fn senders() -> io::Result<Vec<u32>> {
    let drivers = drivers(&mut GenericNetlink::open()?)?;
    let sends = |(_, can): &(u32, u64)| can & NETDEV_XDP_ACT_NDO_XMIT != 0;
    Ok(drivers.into_iter().filter(sends).map(|(index, _)| index).collect())
}

/// What each interface's driver can do: `NETDEV_XDP_ACT_*`.
fn drivers(netlink: &mut GenericNetlink) -> io::Result<HashMap<u32, u64>> {
    let family = netlink.family("netdev")?;
    let mut drivers = HashMap::new();
    netlink.get(family, NETDEV_CMD_DEV_GET, Vec::new(), true, |attributes| {
        let find = |kind| attributes.iter().find(|(found, _)| *found == kind).map(|(_, value)| value);
        let index = find(NETDEV_A_DEV_IFINDEX).and_then(|value| number(value));
        if let Some(index) = index {
            let can = find(NETDEV_A_DEV_XDP_FEATURES).and_then(|value| number(value)).unwrap_or(0);
            drivers.insert(index as u32, can);
        }
    })?;
    Ok(drivers)
}

fn active_features(netlink: &mut GenericNetlink, index: u32) -> io::Result<Vec<String>> {
    let family = netlink.family("ethtool")?;
    let mut header = 8u16.to_ne_bytes().to_vec();
    header.extend(ETHTOOL_A_HEADER_DEV_INDEX.to_ne_bytes());
    header.extend(index.to_ne_bytes());
    let question = DefaultNla::new(ETHTOOL_A_FEATURES_HEADER | NLA_F_NESTED, header);
    let mut names = Vec::new();
    netlink.get(family, ETHTOOL_MSG_FEATURES_GET, vec![question], false, |found| {
        let active = within(found.iter().cloned(), ETHTOOL_A_FEATURES_ACTIVE);
        let bits = within(active.into_iter(), ETHTOOL_A_BITSET_BITS);
        for (_, bit) in bits {
            let name = attributes(&bit).find(|(kind, _)| *kind == ETHTOOL_A_BITSET_BIT_NAME);
            names.extend(
                name.map(|(_, name)| String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()),
            );
        }
    })?;
    Ok(names)
}

/// The attributes within the one of this kind.
fn within(attributes_: impl Iterator<Item = (u16, Vec<u8>)>, kind: u16) -> Vec<(u16, Vec<u8>)> {
    attributes_
        .filter(|(found, _)| *found == kind)
        .flat_map(|(_, value)| attributes(&value).collect::<Vec<_>>())
        .collect()
}

/// A number of 4 or 8 bytes.
fn number(value: &[u8]) -> Option<u64> {
    match value.len() {
        4 => Some(u32::from_ne_bytes(value.try_into().ok()?).into()),
        8 => Some(u64::from_ne_bytes(value.try_into().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_puts_packets_together_and_runs_no_native_xdp() {
        let facts = of(1).unwrap();
        assert!(facts.merges && !facts.native && !facts.hides_vlan_tags, "{facts:?}");
        assert!(!senders().unwrap().contains(&1));
    }
}
