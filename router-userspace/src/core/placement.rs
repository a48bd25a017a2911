//! Who serves the clients of a listener below HTTP: rules as a function of the client's address, and the members of the Maglev
//! table that a rule leads to.
//!
//! There is no decision for each connection here: the packet path looks both up in tables that are built of what these functions say.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::candidates::{Judge, Tier};
use super::methods::maglev::{self, Member};
use super::pool::{InstanceId, OnUnavailable, PoolId};
use super::request::Protocol;
use super::rules::ClientCondition;
use super::table::{Action, RoutingTable, RuleRef};

/// What happens to clients from one network, but for those in a smaller one of the same list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRule {
    pub network: IpNet,
    pub rule: RuleRef,
}

/// Who may be given new flows by one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// With the weights that count now.
    pub instances: Vec<(InstanceId, u32)>,
    /// Whether clients get no answer at all while there are none; otherwise they are reset.
    pub silent: bool,
}

/// The rule that each client of `listener` selects. The network of all addresses of its family comes first.
pub fn by_client(table: &RoutingTable, listener: &str, address: IpAddr) -> Vec<ClientRule> {
    let conditions: Vec<(RuleRef, ClientCondition)> = table
        .rules()
        .iter()
        .enumerate()
        .filter(|(_, rule)| rule.enabled)
        .map(|(place, rule)| (RuleRef::Rule(place), rule.condition.by_client(listener)))
        .collect();
    let everybody = match address {
        IpAddr::V4(_) => IpNet::V4(Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(Ipv6Net::default()),
    };
    let named = conditions.iter().flat_map(|(_, condition)| condition.networks());
    let same_family = |network: &IpNet| network.addr().is_ipv4() == address.is_ipv4();
    let networks: BTreeSet<IpNet> = named.filter(same_family).map(|network| network.trunc()).collect();
    let select = |network: &IpNet| {
        let selected = conditions.iter().find(|(_, condition)| condition.holds(network));
        selected.map_or(RuleRef::Default, |(rule, _)| *rule)
    };
    let others = networks.into_iter().filter(|network| *network != everybody);
    let all = std::iter::once(everybody).chain(others);
    all.map(|network| ClientRule { network, rule: select(&network) }).collect()
}

/// Who may be given new flows by a rule that does not deny: the best tier of its pools, or else of the pool that it falls back to. Whoever packets cannot
/// be sent to is left out before a tier is chosen, so that others take its place.
pub fn members(
    table: &RoutingTable,
    rule: RuleRef,
    now: Instant,
    is_within_reach: &dyn Fn(InstanceId) -> bool,
) -> Members {
    let overrides = match rule {
        RuleRef::Rule(place) => table.rules()[place].overrides,
        RuleRef::Default | RuleRef::ActiveSession => table.default_rule().overrides,
    };
    let mut pools = table.pools_of(rule).to_vec();
    let mut reaction = overrides.on_unavailable.or_else(|| match *pools {
        [pool] => table.pool(pool).on_unavailable,
        _ => None,
    });
    let mut tried = Vec::new();
    loop {
        let instances = of_pools(table, &pools, overrides.allow_exhausted, now, is_within_reach);
        let silent = reaction == Some(OnUnavailable::Silent);
        tried.append(&mut pools);
        match reaction {
            Some(OnUnavailable::Pool(next)) if instances.is_empty() && !tried.contains(&next) => {
                pools = vec![next];
                reaction = table.pool(next).on_unavailable;
            }
            _ => return Members { instances, silent },
        }
    }
}

/// Every pool that a rule's clients may come to.
pub fn reachable_pools(table: &RoutingTable, rule: RuleRef) -> Vec<PoolId> {
    let mut pools = table.pools_of(rule).to_vec();
    let own = match rule {
        RuleRef::Rule(place) => table.rules()[place].overrides.on_unavailable,
        RuleRef::Default | RuleRef::ActiveSession => table.default_rule().overrides.on_unavailable,
    };
    let mut next = 0;
    let follow = |reaction: Option<OnUnavailable>, pools: &mut Vec<PoolId>| {
        if let Some(OnUnavailable::Pool(pool)) = reaction
            && !pools.contains(&pool)
        {
            pools.push(pool);
        }
    };
    follow(own, &mut pools);
    while let Some(&pool) = pools.get(next) {
        follow(table.pool(pool).on_unavailable, &mut pools);
        next += 1;
    }
    pools
}

/// Every pool that the clients of a listener may come to whose requests, or ClientHellos, are read.
pub fn pools_of_listener(table: &RoutingTable, listener: &str, protocol: Protocol) -> Vec<PoolId> {
    let rules = table.rules().iter().enumerate();
    let possible = rules
        .filter(|(_, rule)| rule.condition.possible(listener, protocol).is_ok())
        .map(|(place, _)| RuleRef::Rule(place));
    let selectable = possible.chain([RuleRef::Default]).filter(|rule| !denies(table, *rule));
    let pools: BTreeSet<PoolId> = selectable.flat_map(|rule| reachable_pools(table, rule)).collect();
    pools.into_iter().collect()
}

fn of_pools(
    table: &RoutingTable,
    pools: &[PoolId],
    allow_exhausted: Option<bool>,
    now: Instant,
    is_within_reach: &dyn Fn(InstanceId) -> bool,
) -> Vec<(InstanceId, u32)> {
    let mut best: Vec<(InstanceId, u32, Tier)> = Vec::new();
    for &id in pools {
        let pool = table.pool(id);
        let judge = Judge::of(pool, allow_exhausted, now);
        for (instance, index) in pool.instances.iter().zip(0..) {
            let one = InstanceId { pool: id, index };
            if is_within_reach(one)
                && let Ok(candidate) = judge.candidate(instance, instance.status.sessions().tally())
            {
                best.push((one, candidate.weight, candidate.tier));
            }
        }
    }
    let Some(tier) = best.iter().map(|(.., tier)| *tier).min() else { return Vec::new() };
    best.retain(|(.., of)| *of == tier);
    let near =
        |id: &InstanceId| table.group().is_some() && table.instance(*id).group.as_deref() == table.group();
    if best.iter().any(|(id, ..)| near(id)) {
        best.retain(|(id, ..)| near(id));
    }
    best.into_iter().map(|(id, weight, _)| (id, weight)).collect()
}

/// The Maglev table of these members, as indexes into them; [`maglev::NOBODY`] everywhere if there are none.
pub fn ring(table: &RoutingTable, members: &Members, size: usize) -> Box<[u32]> {
    let fillers: Vec<_> = members
        .instances
        .iter()
        .map(|(id, weight)| Member { name: &table.instance(*id).name, weight: *weight })
        .collect();
    maglev::fill(size, &fillers)
}

/// Whether a rule refuses its clients.
pub fn denies(table: &RoutingTable, rule: RuleRef) -> bool {
    matches!(rule, RuleRef::Rule(place) if matches!(table.rules()[place].action, Action::Deny { .. }))
}

/// What has become of an instance, as far as flows that it has are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// A client that was served here may come back, also with a new flow.
    pub takes_returning_clients: bool,
    /// Its checks say that it is down, and they are believed.
    pub down: bool,
}

/// The standing of an instance.
pub fn standing(table: &RoutingTable, id: InstanceId, now: Instant) -> Standing {
    let judge = Judge::of(table.pool(id.pool), Some(true), now);
    match judge.usable(table.instance(id)) {
        Ok(_) => Standing { takes_returning_clients: true, down: false },
        Err(super::candidates::Exclusion::Down) => Standing { takes_returning_clients: false, down: true },
        Err(_) => Standing { takes_returning_clients: false, down: false },
    }
}
