//! The trace of a decision: what was looked at and why the others lost. It comes from the decision's own code,
//! watched by a witness, and changes nothing.

mod words;

use std::time::Instant;

use router_common::abi::reason::CookieEvent;

use super::begin::Pretend;
use super::choose::{Choice, Exclusion, LostBy, Standing, load};
use super::decide::{Attempt, Decision, Outcome, Witness};
use super::health::Reachability;
use super::identity::{Identity, TooLong};
use super::load::LoadStatus;
use super::pool::{InstanceId, Method, PoolId};
use super::request::Request;
use super::rules::Test;
use super::status::AdminState;
use super::table::{RoutingTable, Rule, RuleRef};

/// One function call of a rule's expression, and whether it held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestTrace {
    /// The call as written in the rule.
    pub text: String,
    pub holds: bool,
}

/// What happened at one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleResult {
    Selected,
    /// The part of the condition that did not hold.
    NoMatch {
        failed: String,
    },
    Disabled,
}

/// One rule that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTrace {
    pub name: String,
    pub condition: String,
    pub result: RuleResult,
    /// The calls that were evaluated, in order; those that no longer mattered are not among them.
    pub tests: Vec<TestTrace>,
}

/// What became of one instance of the selected rule's pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceResult {
    Chosen,
    Excluded(Exclusion),
    Lost(LostBy),
}

/// The live session that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTrace {
    /// Where it lives; `None` if that instance is no longer configured.
    pub id: Option<InstanceId>,
    /// Whether the instance may still serve it.
    pub usable: bool,
}

/// Who asks for what, as far as the request says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityTrace {
    /// Whether there is a session key. The key itself may be a secret.
    pub has_session_key: bool,
    pub user: Option<String>,
    pub groups: Vec<String>,
    pub resource: Option<String>,
    /// Whether a user or groups were sent from an address that is not trusted.
    pub untrusted: bool,
    /// What was ignored because it was too long.
    pub too_long: TooLong,
}

/// One instance of the selected rule's pools.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceTrace {
    pub id: InstanceId,
    pub pool: String,
    pub name: String,
    pub reachability: Reachability,
    pub admin: AdminState,
    pub sessions: u32,
    pub weight: u32,
    /// sessions × 100 / weight; `None` with weight 0.
    pub load: Option<f64>,
    pub load_status: LoadStatus,
    /// What the method compares, the largest winning where it is a quantity that is spare; `None` if it is not known, or
    /// the load is what is compared.
    pub figure: Option<f64>,
    pub result: InstanceResult,
}

/// Everything that led to an outcome.
#[derive(Clone, Debug)]
pub struct Trace {
    pub identity: IdentityTrace,
    pub session: Option<SessionTrace>,
    /// The rules that were tried, up to the selected one; the default rule is not among them.
    pub rules: Vec<RuleTrace>,
    /// What the rule's persistence cookie says, if the request carries one.
    pub cookie: Option<CookieEvent>,
    pub rule: RuleRef,
    pub rule_name: String,
    /// The rule that the path as it was sent selects, when that differs from the normalised path.
    pub raw_path_rule: Option<String>,
    /// The method that was asked for last, and the one that chose; they differ if it lacked a fresh figure of a candidate.
    pub asked_method: Method,
    pub method: Method,
    /// The pools that were tried, in order; more than one after `pool:NAME`.
    pub pools: Vec<PoolId>,
    pub instances: Vec<InstanceTrace>,
    pub outcome: Outcome<()>,
}

impl RoutingTable {
    /// Explains the decision that [`RoutingTable::decide`] would make now.
    pub fn explain(&self, request: &Request<'_>, attempt: &Attempt<'_>) -> Trace {
        let mut watch = Watch::default();
        let identity = self.identities().identify(request);
        let decision = self.resolve(request, &identity, attempt, &mut watch, Pretend);
        self.trace(watch, &decision, attempt.now)
    }

    /// Decides as [`RoutingTable::decide`] does, at the cost of a look at every rule, and shows how.
    pub fn decide_and_explain(&self, request: &Request<'_>, attempt: &Attempt<'_>) -> (Decision, Trace) {
        let mut watch = Watch::default();
        let decision = self.decide_before(request, attempt, &mut watch);
        let trace = self.trace(watch, &decision, attempt.now);
        (decision, trace)
    }

    fn trace<S>(&self, watch: Watch, decision: &Decision<S>, now: Instant) -> Trace {
        let winner = watch.choice;
        let asked_method = watch.method;
        let method = winner.map_or(asked_method, |choice| choice.method);
        let instances = watch.instances.into_iter().map(|(id, standing)| {
            let instance = self.instance(id);
            let result = match (&standing, &winner) {
                (Err(exclusion), _) => InstanceResult::Excluded(*exclusion),
                (Ok(standing), Some(winner)) if winner.id != id => {
                    InstanceResult::Lost(winner.standing.reason_against(standing, method))
                }
                _ => InstanceResult::Chosen,
            };
            let sessions = standing.map_or_else(|_| instance.status.sessions().live(), |s| s.tally().live());
            InstanceTrace {
                id,
                pool: self.pool(id.pool).name.clone(),
                name: instance.name.clone(),
                reachability: instance.status.reachability(),
                admin: instance.status.admin(),
                sessions,
                weight: instance.weight,
                load: load(sessions, self.pool(id.pool).weight(instance, now)),
                load_status: instance.status.load_status(),
                figure: standing
                    .ok()
                    .and_then(|standing| shown(asked_method, standing.figure(asked_method)?)),
                result,
            }
        });
        Trace {
            instances: instances.collect(),
            rules: watch.rules,
            cookie: decision.cookie,
            rule: decision.rule,
            rule_name: self.rule_name(decision.rule).to_owned(),
            raw_path_rule: watch
                .raw_path_rule
                .filter(|rule| *rule != decision.rule)
                .map(|rule| self.rule_name(rule).to_owned()),
            identity: watch.identity,
            session: watch.session,
            asked_method,
            method,
            pools: watch.pools,
            outcome: decision.outcome.without_session(),
        }
    }
}

/// A figure as operators know it: what is spare is compared by its negative.
fn shown(method: Method, figure: f64) -> Option<f64> {
    match method {
        Method::FewestSessions | Method::ConsistentHash => None,
        Method::LeastCpu | Method::MostFreeMemory => Some(-figure),
        _ => Some(figure),
    }
}

/// Writes down what a decision looks at.
#[derive(Default)]
struct Watch {
    rules: Vec<RuleTrace>,
    /// Calls of the rule that is being tried: place and result.
    tests: Vec<(std::ops::Range<usize>, bool)>,
    raw_path_rule: Option<RuleRef>,
    instances: Vec<(InstanceId, Result<Standing, Exclusion>)>,
    /// How many of them belong to pools before the last ones.
    of_earlier_pools: usize,
    choice: Option<Choice>,
    identity: IdentityTrace,
    session: Option<SessionTrace>,
    pools: Vec<PoolId>,
    method: Method,
}

impl Witness for Watch {
    const SEES_EVERY_RULE: bool = true;

    fn identity(&mut self, identity: &Identity<'_>) {
        self.identity = IdentityTrace {
            has_session_key: identity.session.is_some(),
            user: identity.user.as_deref().map(str::to_owned),
            groups: identity.groups().map(str::to_owned).collect(),
            resource: identity.resource.as_deref().map(str::to_owned),
            untrusted: identity.untrusted,
            too_long: identity.too_long,
        };
    }

    fn session(&mut self, id: Option<InstanceId>, usable: bool) {
        self.session = Some(SessionTrace { id, usable });
    }

    fn pools(&mut self, pools: &[PoolId], method: Method) {
        self.pools.extend(pools);
        self.method = method;
        self.of_earlier_pools = self.instances.len();
    }

    fn test(&mut self, test: &Test, holds: bool) {
        self.tests.push((test.span(), holds));
    }

    fn rule(&mut self, rule: &Rule, matched: Option<bool>) {
        let condition = &rule.condition;
        let tests = std::mem::take(&mut self.tests);
        let result = match (matched, tests.last()) {
            (Some(true), _) => RuleResult::Selected,
            (Some(false), Some((last, _))) => {
                RuleResult::NoMatch { failed: condition.failed_part(last.clone()).to_owned() }
            }
            _ => RuleResult::Disabled,
        };
        self.rules.push(RuleTrace {
            name: rule.name.clone(),
            condition: condition.source().to_owned(),
            result,
            tests: tests
                .into_iter()
                .map(|(span, holds)| TestTrace { text: condition.text(span).to_owned(), holds })
                .collect(),
        });
    }

    fn raw_path_selects(&mut self, rule: RuleRef) {
        self.raw_path_rule = Some(rule);
    }

    fn instance(&mut self, id: InstanceId, standing: Result<Standing, Exclusion>) {
        self.instances.push((id, standing));
    }

    fn again(&mut self) {
        self.instances.truncate(self.of_earlier_pools);
    }

    fn chosen(&mut self, choice: &Choice) {
        self.choice = Some(*choice);
    }
}
