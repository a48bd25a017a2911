//! The compiled form: tests with jumps.
//!
//! Each test knows where to go on if it holds and if it does not: to another test, or to the end. `&&`, `||`
//! and `!` have become jumps, so evaluating needs neither recursion nor a stack, looks at nothing that no longer
//! matters, and the last test that ran is the one that settled the result.

use std::ops::Range;

use super::ExpressionError;
use super::expression::Expression;
use super::functions;
use super::predicate::{Predicate, View};

/// One call of the expression, and what follows from it.
#[derive(Clone, Debug)]
pub struct Test {
    predicate: Predicate,
    on_true: Next,
    on_false: Next,
    span: Range<usize>,
}

impl Test {
    /// The call's place in the expression, in bytes.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Test(u32),
    Done(bool),
}

#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Evaluation begins at the first; there is at least one.
    tests: Box<[Test]>,
}

pub(super) fn compile(expression: &Expression) -> Result<Program, ExpressionError> {
    let mut tests = Vec::new();
    emit(expression, Next::Done(true), Next::Done(false), &mut tests)?;
    Ok(Program { tests: tests.into() })
}

/// Appends the tests of `expression`, which go on to `on_true` or `on_false`.
fn emit(
    expression: &Expression,
    on_true: Next,
    on_false: Next,
    tests: &mut Vec<Test>,
) -> Result<(), ExpressionError> {
    match expression {
        Expression::Not(part, _) => emit(part, on_false, on_true, tests),
        Expression::Call(call) => {
            let predicate = functions::predicate(call)?;
            tests.push(Test { predicate, on_true, on_false, span: call.span.clone() });
            Ok(())
        }
        Expression::All(parts, _) => emit_chain(parts, on_true, on_false, true, tests),
        Expression::Any(parts, _) => emit_chain(parts, on_true, on_false, false, tests),
    }
}

/// In a chain of `&&` (`while_true`) or `||`, each part but the last goes on to the next part, or settles the chain.
fn emit_chain(
    parts: &[Expression],
    on_true: Next,
    on_false: Next,
    while_true: bool,
    tests: &mut Vec<Test>,
) -> Result<(), ExpressionError> {
    let mut start = tests.len();
    let (last, others) = parts.split_last().expect("a chain has parts");
    for part in others {
        let next = Next::Test((start + part.call_count()) as u32);
        let (on_true, on_false) = if while_true { (next, on_false) } else { (on_true, next) };
        emit(part, on_true, on_false, tests)?;
        start = tests.len();
    }
    emit(last, on_true, on_false, tests)
}

impl Program {
    /// Those of the expression's calls, in the order of the text.
    pub(super) fn predicates(&self) -> impl Iterator<Item = &Predicate> {
        self.tests.iter().map(|test| &test.predicate)
    }

    pub(super) fn run(&self, view: &View<'_>, mut seen: impl FnMut(&Test, bool)) -> bool {
        let mut at = 0;
        loop {
            let test = &self.tests[at as usize];
            let holds = test.predicate.holds(view);
            seen(test, holds);
            match if holds { test.on_true } else { test.on_false } {
                Next::Test(next) => at = next,
                Next::Done(matched) => return matched,
            }
        }
    }
}
