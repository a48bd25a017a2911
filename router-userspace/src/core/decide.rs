//! The route of a first request: `session → rules → selected rule → candidates → preference → method → instance`.
//!
//! [`RoutingTable::decide`] begins the session itself, in one step with the choice, so that workers that decide at the
//! same moment see each other's choices. [`RoutingTable::explain`](super::explain) runs the same code and begins nothing.

use std::time::Instant;

use router_common::abi::reason::CookieEvent;

use super::begin::{Begin, Real};
use super::candidates::Judge;
use super::choose::{Choice, Exclusion, Standing, Terms};
use super::identity::Identity;
use super::memory::places::PlaceKey;
use super::methods::consistent_hash::{Ring, stable_hash};
use super::persistence::Persistence;
use super::pool::{InstanceId, Method, OnUnavailable, PoolId};
use super::request::Request;
use super::rules::fields::cookie_values;
use super::rules::{Test, View};
use super::session::{InstanceKey, Session};
use super::table::{Action, Overrides, RoutingTable, Rule, RuleRef};

/// Cookies of one name that are looked into.
const MAX_COOKIES: usize = 8;

/// What becomes of a request. `S` is the session that began with the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<S = Session> {
    /// This instance serves. Keep the session until the connection's real end, or drop it before another try.
    Instance { id: InstanceId, session: S },
    /// A rule refuses the request with this HTTP status.
    Deny { status: u16 },
    /// No instance of the rule's pools can serve. `action` is a final one, or [`OnUnavailable::Queue`] in the line of `pool`.
    Unavailable { action: OnUnavailable, pool: Option<PoolId> },
    /// The path as sent and the path as normalised select different rules: 400.
    AmbiguousPath,
}

impl<S> Outcome<S> {
    /// The instance that serves, if one does.
    pub fn instance(&self) -> Option<InstanceId> {
        match self {
            Self::Instance { id, .. } => Some(*id),
            _ => None,
        }
    }

    pub(super) fn without_session(&self) -> Outcome<()> {
        match *self {
            Self::Instance { id, .. } => Outcome::Instance { id, session: () },
            Self::Deny { status } => Outcome::Deny { status },
            Self::Unavailable { action, pool } => Outcome::Unavailable { action, pool },
            Self::AmbiguousPath => Outcome::AmbiguousPath,
        }
    }
}

/// The outcome, and the rule that led to it.
#[derive(Debug)]
pub struct Decision<S = Session> {
    pub rule: RuleRef,
    pub outcome: Outcome<S>,
    /// What became of the rule's persistence cookie, if the request carries one; of several, of the one that was honoured or the last.
    pub cookie: Option<CookieEvent>,
}

/// One try to place a request.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// The instances that this request could not connect to; they are left out.
    pub tried: &'a [InstanceId],
    pub now: Instant,
    /// The same moment in seconds since 1970, by which the age of cookies is told.
    pub unix_time: u32,
    /// Whether the request is the first of its line, so that nobody waits before it.
    pub first_in_line: bool,
}

impl Attempt<'_> {
    /// A request that has tried nothing yet. Set `unix_time` too where cookies may be read.
    pub fn first(now: Instant) -> Self {
        Self { tried: &[], now, unix_time: 0, first_in_line: false }
    }
}

/// Watches a decision being made; [`()`] watches nothing and costs nothing.
pub(super) trait Witness {
    /// Whether it is shown every rule up to the selected one, which takes longer than finding that one.
    const SEES_EVERY_RULE: bool = false;
    fn identity(&mut self, _identity: &Identity<'_>) {}
    /// The request belongs to a live session on this instance, which can serve it or not.
    fn session(&mut self, _id: Option<InstanceId>, _usable: bool) {}
    fn test(&mut self, _test: &Test, _holds: bool) {}
    /// `matched` is `None` for a disabled rule.
    fn rule(&mut self, _rule: &Rule, _matched: Option<bool>) {}
    fn raw_path_selects(&mut self, _rule: RuleRef) {}
    /// The instances of these pools come next, and this method is asked for.
    fn pools(&mut self, _pools: &[PoolId], _method: Method) {}
    fn instance(&mut self, _id: InstanceId, _standing: Result<Standing, Exclusion>) {}
    /// Another worker was quicker: the instances of these pools are judged once more.
    fn again(&mut self) {}
    fn chosen(&mut self, _choice: &Choice) {}
}

impl Witness for () {}

/// A request on its way through one decision.
struct Route<'a, B, W> {
    request: &'a Request<'a>,
    attempt: &'a Attempt<'a>,
    identity: &'a Identity<'a>,
    /// The instance on which the request's session lives.
    seen: Option<InstanceKey>,
    begin: B,
    witness: &'a mut W,
}

impl RoutingTable {
    /// Decides where a request goes, and begins its session there.
    ///
    /// The ids in the decision and in the attempt belong to this table: a connection keeps one snapshot for all its tries.
    ///
    /// Allocates nothing when the path needed no normalising, no rule looks into escaped query values, and the request
    /// has no session key, user or resource.
    pub fn decide(&self, request: &Request<'_>, attempt: &Attempt<'_>) -> Decision {
        self.decide_before(request, attempt, &mut ())
    }

    pub(super) fn decide_before(
        &self,
        request: &Request<'_>,
        attempt: &Attempt<'_>,
        witness: &mut impl Witness,
    ) -> Decision {
        let identity = self.identities().identify(request);
        if identity.untrusted {
            self.memory().counts.untrusted.add(1);
        }
        identity.too_long.parts().for_each(|part| self.memory().counts.too_long.add(part));
        let begin = Real { table: self, listener: request.listener, identity: &identity, now: attempt.now };
        self.resolve(request, &identity, attempt, witness, begin)
    }

    pub(super) fn resolve<B: Begin>(
        &self,
        request: &Request<'_>,
        identity: &Identity<'_>,
        attempt: &Attempt<'_>,
        witness: &mut impl Witness,
        begin: B,
    ) -> Decision<B::Session> {
        witness.identity(identity);
        let mut route = Route { request, attempt, identity, seen: None, begin, witness };
        if let Some((id, session)) = self.resume(&mut route) {
            let outcome = Outcome::Instance { id, session };
            return Decision { rule: RuleRef::ActiveSession, outcome, cookie: None };
        }
        let rule = self.select(&View::normalised(request, identity), route.witness);
        if let Some(raw) = View::raw(request, identity) {
            let raw_rule = self.select(&raw, &mut ());
            route.witness.raw_path_selects(raw_rule);
            if raw_rule != rule {
                return Decision { rule, outcome: Outcome::AmbiguousPath, cookie: None };
            }
        }
        if let RuleRef::Rule(index) = rule
            && let Action::Deny { status } = self.rules()[index].action
        {
            return Decision { rule, outcome: Outcome::Deny { status }, cookie: None };
        }
        let pools = self.pools_of(rule);
        let cookie = self.read_cookie(&route, rule, pools);
        if let Some(Ok(id)) = cookie
            && let Some(session) = route.begin.come_back(id, route.seen)
        {
            let outcome = Outcome::Instance { id, session };
            return Decision { rule, outcome, cookie: Some(CookieEvent::Honoured) };
        }
        let action = self.overrides(rule).on_unavailable.or_else(|| match pools {
            &[pool] => self.pool(pool).on_unavailable,
            _ => None,
        });
        let outcome = self.place(&mut route, rule, pools, action, self.pools().len());
        Decision { rule, outcome, cookie: cookie.and_then(Result::err) }
    }

    /// The instance that the request's cookie names, if the rule keeps its clients by one, or why the cookie is ignored.
    fn read_cookie<B: Begin>(
        &self,
        route: &Route<'_, B, impl Witness>,
        rule: RuleRef,
        pools: &[PoolId],
    ) -> Option<Result<InstanceId, CookieEvent>> {
        let persistence = self.persistence(rule)?;
        let http = route.request.http.as_ref()?;
        let headers = http.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("cookie"));
        let mut values =
            headers.flat_map(|header| cookie_values(header.value, persistence.cookie.as_bytes()));
        let mut read = None;
        // A browser may hold several of one name, of different paths and domains.
        for value in values.by_ref().take(MAX_COOKIES) {
            let named = persistence
                .open(value, route.attempt.unix_time)
                .and_then(|name| self.named(&name, pools).ok_or(CookieEvent::UnknownInstance))
                .and_then(|id| self.usable(id, route.attempt).then_some(id).ok_or(CookieEvent::CannotServe));
            read = Some(named);
            if named.is_ok() {
                break;
            }
        }
        read
    }

    fn named(&self, name: &str, pools: &[PoolId]) -> Option<InstanceId> {
        pools.iter().find_map(|&pool| {
            let index = self.pool(pool).instances.iter().position(|instance| instance.name == name)?;
            Some(InstanceId { pool, index: index as u16 })
        })
    }

    /// Whether an instance may serve somebody who was there before.
    fn usable(&self, id: InstanceId, attempt: &Attempt<'_>) -> bool {
        let judge = Judge::of(self.pool(id.pool), None, attempt.now);
        !attempt.tried.contains(&id) && judge.usable(self.instance(id)).is_ok()
    }

    /// The instance of the request's live session, if it may still serve: before any rule.
    fn resume<B: Begin>(&self, route: &mut Route<'_, B, impl Witness>) -> Option<(InstanceId, B::Session)> {
        let key = PlaceKey { scope: route.request.listener, key: route.identity.session.as_deref()? };
        route.seen = self.memory().sessions.find(key, route.attempt.now);
        let id = self.id_of(route.seen?);
        let served = id.filter(|&id| self.usable(id, route.attempt));
        route.witness.session(id, served.is_some());
        let served = served?;
        Some((served, route.begin.resume(served, route.seen)?))
    }

    /// Chooses among the instances of `pools`, or does what is to be done if none can serve. `left` is how many more pools may
    /// be tried; the configuration has no cycles, so it never runs out.
    fn place<B: Begin>(
        &self,
        route: &mut Route<'_, B, impl Witness>,
        rule: RuleRef,
        pools: &[PoolId],
        action: Option<OnUnavailable>,
        left: usize,
    ) -> Outcome<B::Session> {
        let line = pools.first().copied();
        let must_wait = matches!(action, Some(OnUnavailable::Queue { .. }))
            && !route.attempt.first_in_line
            && line.is_some_and(|pool| self.memory().queues.waiting_for(&self.pool(pool).name) > 0);
        if !must_wait && let Some((id, session)) = self.serve(route, rule, pools) {
            return Outcome::Instance { id, session };
        }
        match action {
            Some(OnUnavailable::Pool(next)) if left > 0 => {
                let action = self.pool(next).on_unavailable;
                self.place(route, rule, &[next], action, left - 1)
            }
            Some(OnUnavailable::Pool(_)) | None => {
                let http = route.request.http.is_some();
                let action = if http { OnUnavailable::Status503 } else { OnUnavailable::Reset };
                Outcome::Unavailable { action, pool: line }
            }
            Some(action) => Outcome::Unavailable { action, pool: line },
        }
    }

    fn serve<B: Begin>(
        &self,
        route: &mut Route<'_, B, impl Witness>,
        rule: RuleRef,
        pools: &[PoolId],
    ) -> Option<(InstanceId, B::Session)> {
        let Overrides { affinity, allow_exhausted, .. } = self.overrides(rule);
        let method = self.method(rule, pools);
        let resource = route.identity.resource.as_deref();
        route.witness.pools(pools, method);
        loop {
            let holders = resource.map(|name| self.memory().resources.holders(name)).unwrap_or_default();
            let terms = Terms {
                pools,
                method,
                allow_exhausted,
                resource,
                holders: &holders,
                last: self.last_instance(route.identity, pools, affinity, route.attempt.now),
                ring: (method == Method::ConsistentHash).then(|| self.ring(pools)).flatten(),
                key: hash_key(route),
                tried: route.attempt.tried,
                now: route.attempt.now,
            };
            let choice = self.choose(&terms, |id, standing| route.witness.instance(id, standing))?;
            if let Some(session) = route.begin.claim(&choice, &terms, route.seen) {
                route.witness.chosen(&choice);
                return Some((choice.id, session));
            }
            route.witness.again();
            // A failed claim means that another worker's succeeded: choose again with what it left. It may have been
            // for the same session, which then lives there.
            if let Some(resumed) = self.resume(route) {
                return Some(resumed);
            }
        }
    }

    /// The instance of `pools` that served the user last, if affinity is asked for.
    fn last_instance(
        &self,
        identity: &Identity<'_>,
        pools: &[PoolId],
        affinity: Option<bool>,
        now: Instant,
    ) -> Option<InstanceId> {
        let user = identity.user.as_deref()?;
        let key = PlaceKey { scope: "", key: user.as_bytes() };
        let id = self.id_of(self.memory().users.find(key, now)?)?;
        let wanted = affinity.unwrap_or_else(|| self.pool(id.pool).affinity);
        (wanted && pools.contains(&id.pool)).then_some(id)
    }

    /// The first enabled rule whose condition holds, else the default rule.
    /// A witness that wants to see every rule is shown a walk over all of them, which finds the same.
    fn select<W: Witness>(&self, view: &View<'_>, witness: &mut W) -> RuleRef {
        if W::SEES_EVERY_RULE {
            return self.select_plainly(view, witness);
        }
        let holds = |place: usize| self.rules()[place].condition.evaluate(view, |_, _| ());
        self.index().first(view, holds).map_or(RuleRef::Default, RuleRef::Rule)
    }

    fn select_plainly(&self, view: &View<'_>, witness: &mut impl Witness) -> RuleRef {
        for (index, rule) in self.rules().iter().enumerate() {
            if !rule.enabled {
                witness.rule(rule, None);
                continue;
            }
            let matched = rule.condition.evaluate(view, |test, holds| witness.test(test, holds));
            witness.rule(rule, Some(matched));
            if matched {
                return RuleRef::Rule(index);
            }
        }
        RuleRef::Default
    }

    /// How one of several candidates of these pools is picked: as the rule says, else as the first pool says.
    pub fn method(&self, rule: RuleRef, pools: &[PoolId]) -> Method {
        let by_pool = || pools.first().map(|&pool| self.pool(pool).method);
        self.overrides(rule).method.or_else(by_pool).unwrap_or_default()
    }

    /// What the rule says otherwise than its pool.
    pub fn overrides(&self, rule: RuleRef) -> Overrides {
        match rule {
            RuleRef::Rule(index) => self.rules()[index].overrides,
            RuleRef::Default => self.default_rule().overrides,
            RuleRef::ActiveSession => Overrides::default(),
        }
    }

    /// The cookie by which the rule's clients come back.
    pub fn persistence(&self, rule: RuleRef) -> Option<&Persistence> {
        match rule {
            RuleRef::Rule(index) => self.rules()[index].persistence.as_deref(),
            RuleRef::Default => self.default_rule().persistence.as_deref(),
            RuleRef::ActiveSession => None,
        }
    }

    pub(super) fn ring(&self, pools: &[PoolId]) -> Option<&Ring> {
        match pools {
            &[pool] => self.rings().of_pool(pool),
            // Only the default rule has several pools.
            _ => self.rings().of_default_rule(),
        }
    }
}

/// What `consistent-hash` goes by: the session key, else the user, else the client's address.
fn hash_key<B, W>(route: &Route<'_, B, W>) -> u64 {
    let Identity { session, user, .. } = route.identity;
    match (session, user) {
        (Some(key), _) => stable_hash(key),
        (None, Some(user)) => stable_hash(user.as_bytes()),
        (None, None) => match route.request.client {
            std::net::IpAddr::V4(address) => stable_hash(&address.octets()),
            std::net::IpAddr::V6(address) => stable_hash(&address.octets()),
        },
    }
}
