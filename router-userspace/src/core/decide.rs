//! The route of a first request: `rules → selected rule → candidates → instance → session`.
//!
//! [`RoutingTable::decide`] begins the session itself, in one step with the choice, so that workers that decide at the
//! same moment see each other's choices. [`RoutingTable::explain`](super::explain) runs the same code and begins nothing.

use std::time::Instant;

use super::choose::{Choice, Exclusion, Standing};
use super::pool::{InstanceId, OnUnavailable};
use super::request::Request;
use super::rules::{Test, View};
use super::session::Session;
use super::table::{Action, RoutingTable, Rule, RuleRef};

/// What becomes of a request. `S` is the session that began with the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<S = Session> {
    /// This instance serves. Keep the session until the connection's real end, or drop it before another try.
    Instance { id: InstanceId, session: S },
    /// A rule refuses the request with this HTTP status.
    Deny { status: u16 },
    /// No instance of the rule's pools can serve.
    Unavailable { action: OnUnavailable },
    /// The path as sent and the path as normalised select different rules: 400.
    AmbiguousPath,
}

/// One try to place a request.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// The instances that this request could not connect to; they are left out.
    pub tried: &'a [InstanceId],
    pub now: Instant,
}

impl Attempt<'_> {
    /// A request that has tried nothing yet.
    pub fn first(now: Instant) -> Self {
        Self { tried: &[], now }
    }
}

/// The outcome, and the rule that led to it.
#[derive(Debug)]
pub struct Decision<S = Session> {
    pub rule: RuleRef,
    pub outcome: Outcome<S>,
}

/// Watches a decision being made; [`()`] watches nothing and costs nothing.
pub(super) trait Witness {
    /// Whether it is shown every rule up to the selected one, which takes longer than finding that one.
    const SEES_EVERY_RULE: bool = false;
    fn test(&mut self, _test: &Test, _holds: bool) {}
    /// `matched` is `None` for a disabled rule.
    fn rule(&mut self, _rule: &Rule, _matched: Option<bool>) {}
    fn raw_path_selects(&mut self, _rule: RuleRef) {}
    fn instance(&mut self, _id: InstanceId, _standing: Result<Standing, Exclusion>) {}
    fn chosen(&mut self, _choice: &Choice) {}
}

impl Witness for () {}

impl RoutingTable {
    /// Decides where a request goes, and begins its session there.
    ///
    /// The ids in the decision and in the attempt belong to this table: a connection keeps one snapshot for all its tries.
    ///
    /// Allocates nothing when the path needed no normalising and no rule looks into escaped query values.
    pub fn decide(&self, request: &Request<'_>, attempt: &Attempt<'_>) -> Decision {
        self.resolve(request, attempt, &mut (), |choice| {
            self.instance(choice.id).status.sessions().claim(choice.standing.tally(), choice.turn)
        })
    }

    /// `claim` begins the session; `None` if the instance's counters changed since the choice was made.
    pub(super) fn resolve<S>(
        &self,
        request: &Request<'_>,
        attempt: &Attempt<'_>,
        witness: &mut impl Witness,
        claim: impl Fn(&Choice) -> Option<S>,
    ) -> Decision<S> {
        let rule = self.select(&View::normalised(request), witness);
        if let Some(raw) = View::raw(request) {
            let raw_rule = self.select(&raw, &mut ());
            witness.raw_path_selects(raw_rule);
            if raw_rule != rule {
                return Decision { rule, outcome: Outcome::AmbiguousPath };
            }
        }
        if let RuleRef::Rule(index) = rule
            && let Action::Deny { status } = self.rules()[index].action
        {
            return Decision { rule, outcome: Outcome::Deny { status } };
        }
        let pools = self.pools_of(rule);
        let method = self.method(rule);
        loop {
            let chosen =
                self.choose(pools, method, attempt.tried, |id, standing| witness.instance(id, standing));
            let Some(choice) = chosen else {
                let action = self.on_unavailable(rule, request);
                return Decision { rule, outcome: Outcome::Unavailable { action } };
            };
            // A failed claim means that another worker's succeeded: choose again with what it left.
            if let Some(session) = claim(&choice) {
                witness.chosen(&choice);
                return Decision { rule, outcome: Outcome::Instance { id: choice.id, session } };
            }
        }
    }

    /// The first enabled rule whose condition holds, else the default rule. A witness that wants to see every rule is
    /// shown a walk over all of them, which finds the same.
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

    /// How the rule picks among candidates: as it says, else as its first pool says.
    pub fn method(&self, rule: RuleRef) -> super::pool::Method {
        let own = match rule {
            RuleRef::Rule(index) => self.rules()[index].overrides.method,
            RuleRef::Default => self.default_rule().overrides.method,
        };
        own.or_else(|| self.pools_of(rule).first().map(|&pool| self.pool(pool).method)).unwrap_or_default()
    }

    fn on_unavailable(&self, rule: RuleRef, request: &Request<'_>) -> OnUnavailable {
        let own = match rule {
            RuleRef::Rule(index) => self.rules()[index].overrides.on_unavailable,
            RuleRef::Default => self.default_rule().overrides.on_unavailable,
        };
        let only_pool = match self.pools_of(rule) {
            &[pool] => self.pool(pool).on_unavailable,
            _ => None,
        };
        let by_protocol =
            if request.http.is_some() { OnUnavailable::Status503 } else { OnUnavailable::Reset };
        own.or(only_pool).unwrap_or(by_protocol)
    }
}
