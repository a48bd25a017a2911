//! The rule language: `Host("a.example") && (PathPrefix("/x") || !Cookie("beta"))`.
//!
//! The way of an expression: text → [`token`] → [`expression`] (a tree with places in the text) → [`functions`]
//! (each call checked and turned into a predicate) → [`program`] (tests with jumps, which requests run through).
//! [`predicate`] says what each function means for a request.
//!
//! [`possible`] tells which conditions can never hold where.
//!
//! Many rules: [`cover`] finds the literals that a condition cannot hold without, and [`index`] looks them up.

mod client;
mod cover;
mod error;
mod expression;
pub(super) mod fields;
mod functions;
mod index;
mod possible;
mod predicate;
mod prefixes;
mod program;
mod token;

use std::ops::Range;

pub use client::ClientCondition;
pub use error::ExpressionError;
pub use expression::{Argument, Call, Expression};
pub use functions::function_names;
pub use index::Index;
pub use possible::Obstacle;
pub use predicate::View;
pub use program::Test;

use super::identity::Identity;
use program::Program;

/// A compiled condition.
#[derive(Clone, Debug)]
pub struct Match {
    source: String,
    expression: Expression,
    program: Program,
}

/// How an evaluation went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    pub matched: bool,
    /// The part of the condition that did not hold, as written; `None` if it matched.
    pub failed: Option<String>,
    /// The calls that were evaluated, as written and in order, and whether each held.
    pub tests: Vec<(String, bool)>,
}

/// Parses and compiles an expression.
pub fn compile(source: &str) -> Result<Match, ExpressionError> {
    let expression = expression::parse(source)?;
    let program = program::compile(&expression)?;
    Ok(Match { source: source.to_owned(), expression, program })
}

impl Match {
    /// The expression as written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The expression as a tree.
    pub fn expression(&self) -> &Expression {
        &self.expression
    }

    /// The listeners that the expression names, so that the configuration can check that they exist.
    pub fn listeners(&self) -> impl Iterator<Item = &Argument> {
        let calls = self.expression.calls().into_iter();
        calls.filter(|call| call.name == "Listener").flat_map(|call| &call.arguments)
    }

    /// Whether the request satisfies the condition, by its normalised path.
    pub fn matches(&self, request: &super::request::Request<'_>) -> bool {
        self.evaluate(&View::normalised(request, &Identity::default()), |_, _| ())
    }

    /// Evaluates as [`Match::matches`] does, and says what was looked at.
    pub fn explain(&self, request: &super::request::Request<'_>) -> Explained {
        let mut tests = Vec::new();
        let mut last = None;
        let identity = Identity::default();
        let matched = self.evaluate(&View::normalised(request, &identity), |test, holds| {
            tests.push((self.text(test.span()).to_owned(), holds));
            last = Some(test.span());
        });
        let failed = if matched { None } else { last.map(|span| self.failed_part(span).to_owned()) };
        Explained { matched, failed, tests }
    }

    /// Runs the condition; `seen` is told each call that was evaluated and whether it held.
    pub(super) fn evaluate(&self, view: &View<'_>, seen: impl FnMut(&Test, bool)) -> bool {
        self.program.run(view, seen)
    }

    /// The text at a place in the expression.
    pub(super) fn text(&self, span: Range<usize>) -> &str {
        &self.source[span]
    }

    /// The part that did not hold, given the place of the call that was evaluated last.
    pub(super) fn failed_part(&self, last: Range<usize>) -> &str {
        self.text(self.expression.conjunct_at(last.start))
    }
}
