//! The trace of a decision: what was looked at and why the others lost. It comes from the decision's own code,
//! watched by a witness, and changes nothing.

use super::choose::{Choice, Exclusion, LostBy, Standing, load};
use super::decide::{Attempt, Outcome, Witness};
use super::health::Reachability;
use super::pool::{InstanceId, Method};
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
    pub result: InstanceResult,
}

/// Everything that led to an outcome.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The rules that were tried, up to the selected one; the default rule is not among them.
    pub rules: Vec<RuleTrace>,
    pub rule: RuleRef,
    pub rule_name: String,
    /// The rule that the path as it was sent selects, when that differs from the normalised path.
    pub raw_path_rule: Option<String>,
    pub method: Method,
    pub instances: Vec<InstanceTrace>,
    pub outcome: Outcome<()>,
}

impl RoutingTable {
    /// Explains the decision that [`RoutingTable::decide`] would make now.
    pub fn explain(&self, request: &Request<'_>, attempt: &Attempt<'_>) -> Trace {
        let mut watch = Watch::default();
        let decision = self.resolve(request, attempt, &mut watch, |_| Some(()));
        let method = self.method(decision.rule);
        let winner = watch.choice;
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
                load: load(sessions, instance.weight),
                result,
            }
        });
        Trace {
            instances: instances.collect(),
            rules: watch.rules,
            rule: decision.rule,
            rule_name: self.rule_name(decision.rule).to_owned(),
            raw_path_rule: watch
                .raw_path_rule
                .filter(|rule| *rule != decision.rule)
                .map(|rule| self.rule_name(rule).to_owned()),
            method,
            outcome: decision.outcome,
        }
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
    choice: Option<Choice>,
}

impl Witness for Watch {
    const SEES_EVERY_RULE: bool = true;

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

    fn chosen(&mut self, choice: &Choice) {
        self.choice = Some(*choice);
    }
}
