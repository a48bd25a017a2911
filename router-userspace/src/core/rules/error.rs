//! What is wrong with an expression, where, and what to do about it.

use std::ops::Range;

/// An error in an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}; {help}")]
pub struct ExpressionError {
    /// The offending bytes of the expression. Empty, at the end, if something is missing there.
    pub span: Range<usize>,
    pub message: String,
    /// What to do.
    pub help: String,
}

impl ExpressionError {
    pub(super) fn new(span: Range<usize>, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { span, message: message.into(), help: help.into() }
    }
}
