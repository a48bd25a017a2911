//! The routing table: everything that a decision reads, as one immutable snapshot. A change of the
//! configuration builds a new table and swaps it in whole, so no request ever sees half of a change.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::counters::Count;
use super::health::{Observation, Transition};
use super::identity::Identities;
use super::memory::{Memory, MemoryLimits};
use super::methods::consistent_hash::Ring;
use super::persistence::Persistence;
use super::pool::{Instance, InstanceId, Method, OnUnavailable, Pool, PoolId};
use super::preload::Preload;
use super::rules::{Index, Match};
use super::session::{InstanceCounters, InstanceKey};
use super::status::InstanceStatus;

/// What a rule does with the requests that it selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An instance of this pool serves.
    Pool(PoolId),
    /// The request is answered with this HTTP status, 400–599; without HTTP the connection is reset.
    Deny { status: u16 },
}

/// What a rule says otherwise than its pool. What is left out is as the pool says; with several pools (in the default
/// rule), as the first one says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    pub method: Option<Method>,
    pub on_unavailable: Option<OnUnavailable>,
    /// Whether a user comes back to the instance that served the user last.
    pub affinity: Option<bool>,
    /// Whether exhausted instances may serve.
    pub allow_exhausted: Option<bool>,
}

/// `if condition then action`. The order of rules is the order of their importance.
#[derive(Clone, Debug)]
pub struct Rule {
    pub name: String,
    /// A disabled rule is skipped.
    pub enabled: bool,
    pub condition: Match,
    pub action: Action,
    pub overrides: Overrides,
    /// The cookie by which a client comes back to its instance.
    pub persistence: Option<Arc<Persistence>>,
    /// What is opened on the pool's instances ahead of users.
    pub preload: Option<Arc<Preload>>,
    /// Requests that the rule selected.
    pub hits: Arc<Count>,
}

/// The rule that is always true and always last.
#[derive(Clone, Debug, Default)]
pub struct DefaultRule {
    /// Instances of all these pools are candidates. Empty in [`RoutingTable::new`] means every pool.
    pub pools: Vec<PoolId>,
    pub overrides: Overrides,
    pub persistence: Option<Arc<Persistence>>,
    pub hits: Arc<Count>,
}

/// A rule of one routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleRef {
    /// Its place in [`RoutingTable::rules`].
    Rule(usize),
    Default,
    /// No rule: the request belongs to a session that lives on an instance.
    ActiveSession,
}

/// What reports call the choice that no rule made.
pub const ACTIVE_SESSION_NAME: &str = "active-session";
/// The default rule's name in reports.
pub const DEFAULT_RULE_NAME: &str = "default";

/// Why a table cannot be built. The configuration reports these with their places before it comes to this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error("rule {rule:?} names pool number {pool}, but there are only {pools} pools")]
    UnknownPool { rule: String, pool: u16, pools: usize },
    #[error("more than 65535 {0}")]
    TooMany(&'static str),
}

/// An immutable snapshot of rules, pools and instances.
#[derive(Clone, Debug)]
pub struct RoutingTable {
    rules: Vec<Rule>,
    index: Index,
    default_rule: DefaultRule,
    pools: Vec<Pool>,
    group: Option<String>,
    /// Counters of instances that earlier tables had, while sessions live on there.
    left: Vec<(SocketAddr, Arc<InstanceCounters>)>,
    identities: Identities,
    memory: Arc<Memory>,
    rings: Rings,
    places: HashMap<InstanceKey, InstanceId>,
    active_session_hits: Arc<Count>,
}

/// The rings of `consistent-hash`; empty if nobody asks for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Rings {
    by_pool: Vec<Option<Ring>>,
    default_rule: Option<Ring>,
}

impl Rings {
    pub(super) fn of_pool(&self, pool: PoolId) -> Option<&Ring> {
        self.by_pool.get(usize::from(pool.0))?.as_ref()
    }

    pub(super) fn of_default_rule(&self) -> Option<&Ring> {
        self.default_rule.as_ref()
    }
}

impl RoutingTable {
    /// `group` is this router's own load balancing group.
    pub fn new(
        rules: Vec<Rule>,
        mut default_rule: DefaultRule,
        pools: Vec<Pool>,
        group: Option<String>,
    ) -> Result<Self, TableError> {
        let limit = usize::from(u16::MAX);
        if pools.len() > limit {
            return Err(TableError::TooMany("pools"));
        }
        if pools.iter().any(|pool| pool.instances.len() > limit) {
            return Err(TableError::TooMany("instances in one pool"));
        }
        let named = rules.iter().filter_map(|rule| match rule.action {
            Action::Pool(pool) => Some((rule.name.as_str(), pool)),
            Action::Deny { .. } => None,
        });
        let by_default = default_rule.pools.iter().map(|&pool| (DEFAULT_RULE_NAME, pool));
        if let Some((rule, pool)) =
            named.chain(by_default).find(|(_, pool)| usize::from(pool.0) >= pools.len())
        {
            return Err(TableError::UnknownPool { rule: rule.to_owned(), pool: pool.0, pools: pools.len() });
        }
        if default_rule.pools.is_empty() {
            default_rule.pools = (0..pools.len()).map(|index| PoolId(index as u16)).collect();
        }
        let enabled = rules.iter().enumerate().filter(|(_, rule)| rule.enabled);
        let index = Index::new(enabled.map(|(place, rule)| (place, &rule.condition)));
        let mut table = Self {
            rules,
            index,
            default_rule,
            pools,
            group,
            left: Vec::new(),
            identities: Identities::default(),
            memory: Arc::default(),
            rings: Rings::default(),
            places: HashMap::new(),
            active_session_hits: Arc::default(),
        };
        table.rings = table.build_rings();
        table.settle();
        Ok(table)
    }

    /// Looks for session keys, users, groups and resources as `identities` say.
    pub fn with_identities(mut self, identities: Identities) -> Self {
        self.identities = identities;
        self
    }

    /// Remembers so much. To be called before the first decision: what was remembered is forgotten.
    pub fn with_memory(mut self, limits: MemoryLimits) -> Self {
        self.memory = Memory::new(limits);
        self.settle();
        self
    }

    fn build_rings(&self) -> Rings {
        let wanted = |method: Option<Method>| method == Some(Method::ConsistentHash);
        let of_default = wanted(self.default_rule.overrides.method);
        // A rule's method holds in every pool that it may come to.
        let of_any_pool = of_default || self.rules.iter().any(|rule| wanted(rule.overrides.method));
        let of = |pools: &[PoolId]| {
            let members = self.instances().filter(|(id, ..)| pools.contains(&id.pool));
            Ring::build(members.map(|(id, _, instance)| (id, instance)))
        };
        let pools =
            self.pools.iter().zip(0..).map(|(pool, number)| {
                (of_any_pool || wanted(Some(pool.method))).then(|| of(&[PoolId(number)]))
            });
        let by_pool: Vec<_> = pools.collect();
        let asked = of_default
            || self.default_rule.pools.first().is_some_and(|&pool| wanted(Some(self.pool(pool).method)));
        let several = self.default_rule.pools.len() > 1;
        Rings { by_pool, default_rule: (asked && several).then(|| of(&self.default_rule.pools)) }
    }

    /// The same table with other instances.
    pub(super) fn with_pools(&self, pools: Vec<Pool>) -> Self {
        let mut next = Self { pools, ..self.clone() };
        next.rings = next.build_rings();
        next.settle();
        next
    }

    /// Takes over the instances that joined by themselves, where the pool still lets instances join and nothing in the
    /// configuration has their name or address.
    fn keep_registered(&mut self, previous: &RoutingTable) {
        let joined: Vec<_> = previous
            .instances()
            .filter(|(_, _, instance)| instance.registered)
            .filter(|(_, _, instance)| !self.has_name(&instance.name) && !self.has_address(instance.address))
            .map(|(_, pool, instance)| (pool.name.clone(), instance.clone()))
            .collect();
        if joined.is_empty() {
            return;
        }
        for (name, instance) in joined {
            let pool = self.pools.iter_mut().find(|pool| pool.name == name && pool.registration.is_some());
            if let Some(pool) = pool {
                pool.instances.push(instance);
            }
        }
        self.rings = self.build_rings();
    }

    pub(super) fn has_name(&self, name: &str) -> bool {
        self.instances().any(|(_, _, instance)| instance.name == name)
    }

    pub(super) fn has_address(&self, address: std::net::SocketAddr) -> bool {
        self.instances().any(|(_, _, instance)| instance.address == address)
    }

    /// Takes note of whose state the instances have, after that may have changed.
    fn settle(&mut self) {
        self.places =
            self.instances().map(|(id, _, instance)| (instance.status.sessions().key(), id)).collect();
        for (_, _, instance) in self.instances() {
            instance.status.sessions().announce_ends_to(&self.memory.queues);
        }
    }

    /// What is remembered of earlier decisions.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub fn identities(&self) -> &Identities {
        &self.identities
    }

    pub(super) fn rings(&self) -> &Rings {
        &self.rings
    }

    /// The instance with this key, if this table has it.
    pub fn id_of(&self, instance: InstanceKey) -> Option<InstanceId> {
        self.places.get(&instance).copied()
    }

    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Finds the first enabled rule that matches.
    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    pub fn default_rule(&self) -> &DefaultRule {
        &self.default_rule
    }

    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// This router's own load balancing group.
    pub fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// # Panics
    /// If `id` is from another table.
    pub fn pool(&self, id: PoolId) -> &Pool {
        &self.pools[usize::from(id.0)]
    }

    /// # Panics
    /// If `id` is from another table.
    pub fn instance(&self, id: InstanceId) -> &Instance {
        &self.pool(id.pool).instances[usize::from(id.index)]
    }

    /// Every instance of every pool.
    pub fn instances(&self) -> impl Iterator<Item = (InstanceId, &Pool, &Instance)> {
        self.pools.iter().zip(0..).flat_map(|(pool, number)| {
            let ids = (0..).map(move |index| InstanceId { pool: PoolId(number), index });
            pool.instances.iter().zip(ids).map(move |(instance, id)| (id, pool, instance))
        })
    }

    /// The rule's name, for logs and reports.
    pub fn rule_name(&self, rule: RuleRef) -> &str {
        match rule {
            RuleRef::Rule(index) => &self.rules[index].name,
            RuleRef::Default => DEFAULT_RULE_NAME,
            RuleRef::ActiveSession => ACTIVE_SESSION_NAME,
        }
    }

    /// How many requests the rule selected. The proxy adds one for each request, however often it retries.
    pub fn hits(&self, rule: RuleRef) -> &Count {
        match rule {
            RuleRef::Rule(index) => &self.rules[index].hits,
            RuleRef::Default => &self.default_rule.hits,
            RuleRef::ActiveSession => &self.active_session_hits,
        }
    }

    /// The pools whose instances serve the rule; none if it denies.
    pub fn pools_of(&self, rule: RuleRef) -> &[PoolId] {
        match rule {
            RuleRef::Rule(index) => match &self.rules[index].action {
                Action::Pool(pool) => std::slice::from_ref(pool),
                Action::Deny { .. } => &[],
            },
            RuleRef::Default => &self.default_rule.pools,
            RuleRef::ActiveSession => &[],
        }
    }

    /// Takes in what a check or a connection showed about an instance; returns the change if there is one.
    pub fn observe(&self, id: InstanceId, seen: Observation, now: std::time::Instant) -> Option<Transition> {
        self.instance(id).status.observe(self.pool(id.pool).check.as_ref(), seen, now)
    }

    /// Takes over live state from the table that this one replaces: sessions, health and admin state of instances
    /// with the same pool, name and address, and hits of rules with the same name. A state that was set while the daemon
    /// ran stays, unless the configuration now asks for another one than before. An instance that has another name or pool
    /// than before, or that comes back, takes over the sessions that live at its address, and is checked anew.
    pub fn carry_over(&mut self, previous: &RoutingTable) {
        let before: HashMap<_, _> = previous
            .instances()
            .map(|(_, pool, old)| ((&*pool.name, &*old.name, old.address), old))
            .collect();
        // Sessions are at an address, whatever the instance there is called.
        let now = previous.instances().map(|(_, _, old)| (old.address, Arc::clone(old.status.sessions())));
        let mut counters: HashMap<_, _> = previous.left.iter().cloned().chain(now).collect();
        self.keep_registered(previous);
        for pool in &mut self.pools {
            for instance in &mut pool.instances {
                let identity = (pool.name.as_str(), instance.name.as_str(), instance.address);
                let Some(before) = before.get(&identity) else {
                    if let Some(counters) = counters.remove(&instance.address) {
                        instance.status =
                            InstanceStatus::counting(instance.state, pool.check.as_ref(), counters);
                    }
                    continue;
                };
                counters.remove(&instance.address);
                instance.status = Arc::clone(&before.status);
                if pool.check.is_none() {
                    instance.status.trust();
                }
                if pool.agent.is_none() {
                    instance.status.forget_agent();
                }
                if instance.state != before.state {
                    instance.status.set_admin(instance.state);
                }
            }
        }
        self.left = counters.into_iter().filter(|(_, counters)| counters.live() > 0).collect();
        let before: HashMap<_, _> = previous.rules.iter().map(|rule| (rule.name.as_str(), rule)).collect();
        for rule in &mut self.rules {
            if let Some(old) = before.get(rule.name.as_str()) {
                rule.hits = Arc::clone(&old.hits);
            }
        }
        self.default_rule.hits = Arc::clone(&previous.default_rule.hits);
        self.active_session_hits = Arc::clone(&previous.active_session_hits);
        let limits = self.memory.limits();
        self.memory = Arc::clone(&previous.memory);
        self.memory.set_limits(limits);
        self.settle();
    }
}
