//! Names and addresses that may be used once.

use std::collections::HashMap;
use std::hash::Hash;

use super::super::reader::{Placed, Report};
use super::super::report::{Problem, Span};

/// Values seen so far, each with its first place.
pub(super) struct Unique<'r, 't, T> {
    report: &'r Report<'t>,
    first: HashMap<T, Span>,
}

impl<'r, 't, T: Hash + Eq + Clone> Unique<'r, 't, T> {
    pub fn new(report: &'r Report<'t>) -> Self {
        Unique { report, first: HashMap::new() }
    }

    /// Reports `value` with the given message and help if it was seen before.
    pub fn see(&mut self, value: &Placed<T>, describe: impl FnOnce(&T) -> (String, String)) {
        match self.first.get(&value.value) {
            Some(earlier) => {
                let (message, help) = describe(&value.value);
                let problem = Problem::at(value.span.clone(), message).help(help);
                self.report.add(problem.earlier(earlier.clone(), "first used here"));
            }
            None => {
                self.first.insert(value.value.clone(), value.span.clone());
            }
        }
    }
}
