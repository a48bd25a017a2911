//! Networks of clients, as people write them.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

/// An address, or a network in CIDR notation (RFC 4632). Clients are never IPv4 in IPv6 form (RFC 4291 §2.5.5.2), so `::ffff:10.0.0.0/104` is
/// `10.0.0.0/8`. `None` if it is neither.
pub fn parse(text: &str) -> Option<IpNet> {
    let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()?;
    Some(match network {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => match v6.addr().to_ipv4_mapped() {
            Some(v4) => Ipv4Net::new(v4, v6.prefix_len() - 96).map_or(network, IpNet::V4),
            None => network,
        },
        _ => network,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_networks_of_both_families_are_read_and_mapped_ones_are_ipv4() {
        for (text, network) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("fd77:1::2", "fd77:1::2/128"),
            ("::ffff:10.1.2.3", "10.1.2.3/32"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            // Holds more than IPv4.
            ("::/0", "::/0"),
        ] {
            assert_eq!(parse(text), Some(network.parse().unwrap()), "{text}");
        }
        assert_eq!((parse("10.0.0.0/33"), parse("fd77::1%eth0"), parse("host")), (None, None, None));
    }
}
