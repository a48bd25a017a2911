//! What lies in the pinned maps, written out: they outlive the daemon that made them, so none of this changes unnoticed.

use std::fmt::Write;
use std::mem::{align_of, offset_of, size_of};

use router_common::abi::LAYOUT_VERSION;
use router_common::abi::flow::{
    FLAG_BINDING, FLAG_DIRECT, FLAG_ERASE_TIMESTAMPS, FLAG_IPV6, FLAG_LIVE, FLAG_STASH, FLAG_TIMESTAMPS,
    Flow, Progress, Translation,
};
use router_common::abi::key::{FlowKeyV4, FlowKeyV6, FlowRef, Side};
use router_common::abi::next_hop::{AF_INET, AF_INET6, NextHop};
use router_common::abi::reason::{PacketReason, XdpReason};
use router_common::abi::xdp::Interface;
use router_common::path::syn_options::{ERASE_SACK, ERASE_TIMESTAMPS};

/// A line of each field's offset behind one of the type's size and alignment.
macro_rules! layout {
    ($text:ident, $name:ident { $($field:ident)* }) => {
        write!($text, "{} {}/{}:", stringify!($name), size_of::<$name>(), align_of::<$name>()).unwrap();
        $(write!($text, " {} {}", stringify!($field), offset_of!($name, $field)).unwrap();)*
        writeln!($text).unwrap();
    };
}

fn layout() -> String {
    let mut text = format!("version {LAYOUT_VERSION}\n");
    layout!(text, FlowKeyV4 { source destination source_port destination_port protocol zero });
    layout!(text, FlowKeyV6 { source destination source_port destination_port protocol zero });
    layout!(text, Flow { translations progress });
    layout!(text, Translation {
        source destination ports seq_delta ack_cut seq_cut clock_offset address_diff next_hop traits
    });
    layout!(text, Progress {
        last_seen packets bytes born max_ack max_seq window_edge fin_end fin_seen rst_seen timestamp_delta
        stash
    });
    layout!(text, NextHop { interface resolved family address ethernet mtu reserved });
    {
        use router_common::abi::balance::{
            Affinity, AffinityKey, Endpoint, EndpointBucket, Flow, FlowBucket, Group, Instance, Link,
            NewFlows, ReplyBucket, RuleKey, Service, Settings, Tunnel,
        };
        writeln!(text, "Layer 4").unwrap();
        layout!(text, Settings {
            now endpoints endpoint_seeds flow_seed buckets ring_size ring_chunks new_flow_limit first_port ports
            tunnel_mark reserved
        });
        layout!(text, Endpoint { address port target reserved });
        layout!(text, EndpointBucket { endpoints });
        layout!(text, Service { address port mode flags rules group affinity_idle reserved });
        layout!(text, Instance { address source port next_hop flags tunnel reserved });
        layout!(text, Tunnel { path_mtu told });
        layout!(text, Group { ring otherwise });
        layout!(text, Link { address mtu reserved });
        layout!(text, Flow {
            client origin target last_seen born bytes_to_instance bytes_to_client neighbour neighbour_end
            client_next interface instance_next state
        });
        layout!(text, FlowBucket { overflow tags flows });
        layout!(text, ReplyBucket { refs });
        layout!(text, RuleKey { set client });
        layout!(text, AffinityKey { service client });
        layout!(text, Affinity { instance seen });
        layout!(text, NewFlows { began count scratch reserved });
    }
    {
        use router_common::abi::binding::{BindingSettings, BoundEndpoint, BoundListener, Embryo, Stash};
        layout!(text, BindingSettings { attended_until clock_offset generation rings reserved });
        layout!(text, BoundEndpoint { address port is_ipv6 });
        layout!(text, BoundListener { max_segment window });
        layout!(text, Embryo { state generation seq ack echo told segment window scale agreed segments ring });
        layout!(text, Stash {
            length sum seq timestamp client_ack client_echo window agreed instance_seq instance_timestamp segment
            next total early instance_segment ring bytes
        });
    }
    layout!(text, Interface { ethernet sends reserved });
    let traits = Translation::pack_traits(0, 1, 1);
    let flags =
        [FLAG_LIVE, FLAG_DIRECT, FLAG_TIMESTAMPS, FLAG_ERASE_TIMESTAMPS, FLAG_IPV6, FLAG_BINDING, FLAG_STASH];
    writeln!(text, "traits {flags:?}, scales {traits:#x}").unwrap();
    writeln!(text, "address families {:?}", [AF_INET, AF_INET6]).unwrap();
    writeln!(text, "flow reference {:?}", FlowRef::new(1, Side::Instance)).unwrap();
    writeln!(text, "erased from a SYN {:?}", [ERASE_TIMESTAMPS, ERASE_SACK]).unwrap();
    let reasons: Vec<_> = PacketReason::ALL.iter().map(|reason| reason.name()).collect();
    writeln!(text, "packets by {}", reasons.join(" ")).unwrap();
    let reasons: Vec<_> = XdpReason::ALL.iter().map(|reason| reason.name()).collect();
    writeln!(text, "frames by {}", reasons.join(" ")).unwrap();
    text
}

const RECORDED: &str = include_str!("layout.txt");

#[test]
fn a_change_of_what_is_pinned_has_a_new_version() {
    let layout = layout();
    assert!(
        layout == RECORDED,
        "what lies in pinned maps has changed. If the recorded version has been released, raise LAYOUT_VERSION: \
         a daemon must not adopt what it would misread. Then record in tests/layout.txt:\n{layout}"
    );
}
