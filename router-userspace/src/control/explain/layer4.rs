//! `explain` for Layer-4 listeners: rules by the core that builds the packet path's tables, the instance by the kernel programs themselves.

use std::net::SocketAddr;

use router_common::abi::reason::PacketReason;

use super::{ExplainedOutcome, Explanation, Refusal, State};
use crate::control::protocol::{DescribedPacket, ExplainRequest, Fate, Listener, PacketVerdict};
use crate::control::whereabouts;
use crate::core::placement;
use crate::core::table::{RoutingTable, RuleRef};

/// Whose port is asked about if none is named. The Maglev table may have another instance for another port, unless clients have affinity.
const ANY_PORT: u16 = 40_000;

/// Makes what the core's trace says about rules and candidates the explanation of a new flow.
pub fn explain(
    state: &State,
    table: &RoutingTable,
    listener: &Listener,
    asked: &ExplainRequest,
    trace: Explanation,
) -> Result<Explanation, Refusal> {
    let client = asked.client.to_canonical();
    if client.is_ipv4() != listener.address.is_ipv4() {
        let error =
            format!("{client} cannot be a client of listener {}, {}", listener.name, listener.address);
        return Err(Refusal::bad_request(
            error,
            "Layer-4 listeners are of one version of IP: give an address of theirs",
        ));
    }
    let port = asked.client_port.unwrap_or(ANY_PORT);
    let packet = DescribedPacket {
        protocol: listener.protocol.clone(),
        source: SocketAddr::new(client, port),
        destination: listener.address,
        flags: (listener.protocol == "tcp").then(|| "syn".to_owned()),
        interface: None,
        vlan: None,
        payload_bytes: 0,
        sequence: None,
        acknowledgement: None,
    };
    let fate = whereabouts::of_new_packet(state, &packet)?;
    let selected = placement::by_client(table, &listener.name, listener.address.ip())
        .into_iter()
        .filter(|one| one.network.contains(&client))
        .max_by_key(|one| one.network.prefix_len());
    let rule = selected.map_or(RuleRef::Default, |selected| selected.rule);
    let outcome = outcome(table, rule, &fate);
    let chosen = match &outcome {
        ExplainedOutcome::Instance { instance, .. } => Some(instance.clone()),
        _ => None,
    };
    let mut explanation = Explanation {
        outcome,
        method: chosen.is_some().then(|| "maglev".to_owned()),
        fell_back_from: None,
        session: None,
        ..trace
    };
    if let (Some(selected), Some(last)) = (selected, explanation.rules.last_mut()) {
        last.because = format!("{}; clients of {} select it", last.because, selected.network);
    }
    for one in &mut explanation.instances {
        let was_candidate = one.load.is_some();
        one.chosen = chosen.as_ref() == Some(&one.instance.name);
        (one.load, one.figure) = (None, None);
        if one.chosen {
            one.because = format!("the kernel programs choose it: {}", fate.description);
        } else if was_candidate {
            one.because = format!("the kernel programs choose another for {}", SocketAddr::new(client, port));
        }
    }
    Ok(explanation)
}

fn outcome(table: &RoutingTable, rule: RuleRef, fate: &Fate) -> ExplainedOutcome {
    let name = table.rule_name(rule).to_owned();
    let instance = fate.instance.as_ref().and_then(|name| {
        let mut instances = table.instances();
        instances.find(|(_, _, instance)| instance.name == *name)
    });
    if let (PacketVerdict::Forward, Some((_, pool, instance))) = (fate.verdict, instance) {
        return ExplainedOutcome::Instance {
            rule: name,
            pool: pool.name.clone(),
            instance: instance.name.clone(),
            address: instance.address,
        };
    }
    if fate.reason == PacketReason::L4Unavailable.name() {
        let pools = placement::reachable_pools(table, rule);
        return ExplainedOutcome::Unavailable {
            rule: name,
            pools: pools.iter().map(|&pool| table.pool(pool).name.clone()).collect(),
            action: if fate.verdict == PacketVerdict::Drop { "silent" } else { "reset" }.to_owned(),
        };
    }
    ExplainedOutcome::NotPlaced {
        rule: name,
        reason: fate.reason.clone(),
        description: fate.description.clone(),
        dropped: fate.verdict == PacketVerdict::Drop,
    }
}
