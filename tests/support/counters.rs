//! What the kernel of a host has counted.

use crate::lab::{Host, Lab};

/// A counter of `/proc/net/netstat` or `/proc/net/snmp`, such as `PAWSEstab`, `InCsumErrors` (of TCP: `Tcp.InCsumErrors`).
///
/// # Panics
/// If the kernel has no counter of this name.
pub fn counter(lab: &Lab, host: Host, name: &str) -> u64 {
    let (group, name) = name.split_once('.').map_or((None, name), |(group, name)| (Some(group), name));
    // `/proc/net` would show the namespace of the process's main thread.
    for file in ["netstat", "snmp"] {
        let text = lab.read(host, &format!("/proc/thread-self/net/{file}")).expect("the lab is up");
        if let Some(value) = find(&text, group, name) {
            return value;
        }
    }
    panic!("the kernel of {host} has no counter {name}");
}

/// Packets that a receiver rejected because of their timestamps: zero as long as those are translated rightly.
pub fn paws_drops(lab: &Lab, host: Host) -> u64 {
    counter(lab, host, "PAWSEstab")
}

/// TCP segments with a wrong checksum.
pub fn checksum_errors(lab: &Lab, host: Host) -> u64 {
    counter(lab, host, "Tcp.InCsumErrors")
}

/// Connections in the connection tracking of a host; 0 where it tracks none.
pub fn tracked_connections(lab: &Lab, host: Host) -> u64 {
    let count = lab.read(host, "/proc/sys/net/netfilter/nf_conntrack_count");
    count.map_or(0, |text| text.trim().parse().expect("the kernel prints a number"))
}

/// The files have pairs of lines: `Tcp: name name …` and `Tcp: value value …`.
fn find(text: &str, group: Option<&str>, wanted: &str) -> Option<u64> {
    let lines: Vec<&str> = text.lines().collect();
    lines.chunks_exact(2).find_map(|pair| {
        let ((kind, names), (_, values)) = (pair[0].split_once(':')?, pair[1].split_once(':')?);
        if group.is_some_and(|group| kind != group && kind != format!("{group}Ext")) {
            return None;
        }
        let position = names.split_whitespace().position(|name| name == wanted)?;
        values.split_whitespace().nth(position)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn a_counter_is_found_by_its_name_and_group() {
        let text = "Ip: Forwarding InCsumErrors\nIp: 1 7\nTcp: ActiveOpens InCsumErrors\nTcp: 5 -1\n\
                    Udp: InCsumErrors\nUdp: 9\n";
        assert_eq!(find(text, None, "ActiveOpens"), Some(5));
        assert_eq!(find(text, None, "InCsumErrors"), Some(7));
        assert_eq!(find(text, Some("Udp"), "InCsumErrors"), Some(9));
        assert_eq!(find(text, Some("Tcp"), "InCsumErrors"), None, "not a count");
        assert_eq!(find(text, None, "Other"), None);
    }
}
