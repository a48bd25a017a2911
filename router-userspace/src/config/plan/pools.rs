//! Pools: unique names, an instance in exactly one pool.

use super::super::file::{File, Instance, Pool};
use super::super::reader::Report;
use super::super::report::Problem;
use super::unavailable::PoolNames;
use super::unique::Unique;
use super::{check, load};
use crate::core::health::CheckSpec;
use crate::core::load::Thresholds;
use crate::core::pool::{self, PoolId};
use crate::core::status::InstanceStatus;

/// As many pools and instances as their numbers can tell apart.
const MAX_POOLS: usize = 4_096;
const MAX_INSTANCES: usize = 65_535;

pub(super) fn plan(file: &File, report: &Report<'_>) -> Option<Vec<pool::Pool>> {
    if !file.has_pool {
        report.add(
            Problem::of_file("there is no [[pool]]").help("add one with a name and at least one instance"),
        );
    }
    let instances = || file.pools.iter().flat_map(|pool| &pool.instances);
    if file.pools.len() > MAX_POOLS || instances().count() > MAX_INSTANCES {
        let message = format!("more than {MAX_POOLS} pools or {MAX_INSTANCES} instances");
        report.add(Problem::at(file.pools[0].span.clone(), message));
        return None;
    }
    let mut names = Unique::new(report);
    for name in file.pools.iter().filter_map(|pool| pool.name.as_ref()) {
        names.see(name, |name| {
            (format!("two pools are named `{name}`"), "give each pool its own name".to_owned())
        });
    }
    let mut names = Unique::new(report);
    for name in instances().filter_map(|instance| instance.name.as_ref()) {
        names.see(name, |name| {
            (
                format!("two instances are named `{name}`"),
                "instance names are unique across all pools".to_owned(),
            )
        });
    }
    let mut addresses = Unique::new(report);
    for address in instances().filter_map(|instance| instance.address.as_ref()) {
        addresses.see(address, |address| {
            (
                format!("two instances have the address {address}"),
                "an instance belongs to exactly one pool".to_owned(),
            )
        });
    }
    if let Some(own) = &file.daemon.group
        && instances().all(|instance| instance.group.as_ref().is_none_or(|group| group.value != own.value))
    {
        let message = format!("no instance is of this router's group `{}`", own.value);
        let help = "give instances near this router the same `group`, or remove it here";
        report.warn(Problem::at(own.span.clone(), message).help(help));
    }
    let names = PoolNames::of(file);
    let pools = file.pools.iter().zip(0..);
    let pools: Vec<Option<pool::Pool>> =
        pools.map(|(pool, number)| one(pool, PoolId(number), &names, report)).collect();
    pools.into_iter().collect()
}

fn one(pool: &Pool, id: PoolId, names: &PoolNames<'_>, report: &Report<'_>) -> Option<pool::Pool> {
    let name = pool.name.as_ref();
    let called = name.map_or_else(|| "this pool".to_owned(), |name| format!("pool `{}`", name.value));
    let registration = load::registration(pool, report);
    if pool.instances.is_empty() && registration.is_some() {
        // They will come by themselves.
    } else if pool.instances.is_empty() {
        let message = format!("{called} has no instance");
        let help = "add [[pool.instance]] with a name and an address below it";
        report.add(Problem::at(pool.span.clone(), message).help(help));
    } else if pool.instances.iter().all(|instance| instance.weight.value == 0) {
        let message = format!("every instance of {called} has weight 0, so none gets new connections");
        report.warn(Problem::at(pool.span.clone(), message));
    }
    let on_unavailable = names.resolve(pool.on_unavailable.as_ref(), &[id], &called, report);
    let check = pool.check.as_ref().map(|check| check::spec(check, report));
    let policy = load::policy(pool, report);
    let instances: Option<Vec<pool::Instance>> = {
        let initial = check.as_ref().and_then(|check| check.as_ref());
        pool.instances.iter().map(|one| instance(one, initial, &policy.thresholds, report)).collect()
    };
    Some(pool::Pool {
        name: name?.value.clone(),
        method: pool.method.value,
        affinity: pool.affinity.value,
        allow_exhausted: pool.allow_exhausted.value,
        queue_limit: pool.queue_limit.value as usize,
        on_unavailable,
        check: match check {
            Some(check) => Some(check?),
            None => None,
        },
        all_down: pool.all_down.value,
        slow_start: load::slow_start(pool),
        load: policy,
        agent: match &pool.agent {
            Some(agent) => Some(load::agent(agent, report)?),
            None => None,
        },
        proxy_protocol: pool.proxy_protocol.as_ref().map(|version| version.value),
        registration,
        instances: instances?,
    })
}

fn instance(
    instance: &Instance,
    check: Option<&CheckSpec>,
    pool: &Thresholds,
    report: &Report<'_>,
) -> Option<pool::Instance> {
    Some(pool::Instance {
        name: instance.name.as_ref()?.value.clone(),
        address: instance.address.as_ref()?.value,
        weight: instance.weight.value,
        group: instance.group.as_ref().map(|group| group.value.clone()),
        max_sessions: instance.max_sessions.as_ref().map(|limit| limit.value),
        spare: instance.spare.value,
        state: instance.state.value,
        node: instance.node.as_ref().map(|node| node.value.clone()),
        registered: false,
        thresholds: instance.thresholds.as_ref().map(|own| Box::new(load::thresholds(pool, own, report))),
        status: InstanceStatus::new(instance.state.value, check),
    })
}
