//! Tokens to a tree. `!` binds closer than `&&`, and `&&` closer than `||`.
//!
//! The tree is kept apart from what requests run through, so that an index over many rules can be built from it.

use std::ops::Range;

use super::ExpressionError;
use super::token::{Placed, Token, tokens};

/// How deep parentheses may be nested. No rule that people write comes near, and the stack stays small.
const MAX_DEPTH: usize = 128;

/// A part of an expression with its place in the text, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// All hold; at least two.
    All(Vec<Expression>, Range<usize>),
    /// One at least holds; at least two.
    Any(Vec<Expression>, Range<usize>),
    Not(Box<Expression>, Range<usize>),
    Call(Call),
}

/// One call, such as `Header("K", "v")`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    pub name_span: Range<usize>,
    pub arguments: Vec<Argument>,
    pub span: Range<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    pub value: String,
    pub span: Range<usize>,
}

impl Expression {
    pub fn span(&self) -> Range<usize> {
        match self {
            Self::All(_, span) | Self::Any(_, span) | Self::Not(_, span) => span.clone(),
            Self::Call(call) => call.span.clone(),
        }
    }

    /// Every call, in the order of the text.
    pub fn calls(&self) -> Vec<&Call> {
        match self {
            Self::All(parts, _) | Self::Any(parts, _) => parts.iter().flat_map(Self::calls).collect(),
            Self::Not(part, _) => part.calls(),
            Self::Call(call) => vec![call],
        }
    }

    pub(super) fn call_count(&self) -> usize {
        match self {
            Self::All(parts, _) | Self::Any(parts, _) => parts.iter().map(Self::call_count).sum(),
            Self::Not(part, _) => part.call_count(),
            Self::Call(_) => 1,
        }
    }

    /// The smallest part that holds `place` and without which the whole cannot hold.
    pub(super) fn conjunct_at(&self, place: usize) -> Range<usize> {
        if let Self::All(parts, _) = self
            && let Some(part) = parts.iter().find(|part| part.span().contains(&place))
        {
            return part.conjunct_at(place);
        }
        self.span()
    }
}

pub(super) fn parse(source: &str) -> Result<Expression, ExpressionError> {
    let tokens = tokens(source)?;
    if tokens.is_empty() {
        return Err(ExpressionError::new(
            0..source.len(),
            "the expression is empty",
            "write Any() to match everything",
        ));
    }
    let mut parser = Parser { tokens: &tokens, next: 0, end: source.len(), depth: 0 };
    let expression = parser.any()?;
    match parser.peek() {
        None => Ok(expression),
        Some(_) => Err(parser.unexpected("the end of the expression, && or ||")),
    }
}

struct Parser<'a> {
    tokens: &'a [Placed],
    next: usize,
    end: usize,
    depth: usize,
}

impl Parser<'_> {
    fn any(&mut self) -> Result<Expression, ExpressionError> {
        self.chain(Token::Or, Self::all, Expression::Any)
    }

    fn all(&mut self) -> Result<Expression, ExpressionError> {
        self.chain(Token::And, Self::not, Expression::All)
    }

    /// `part (operator part)*`
    fn chain(
        &mut self,
        operator: Token,
        part: fn(&mut Self) -> Result<Expression, ExpressionError>,
        join: fn(Vec<Expression>, Range<usize>) -> Expression,
    ) -> Result<Expression, ExpressionError> {
        let start = self.place().start;
        let first = part(self)?;
        if self.peek() != Some(&operator) {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.take(&operator) {
            parts.push(part(self)?);
        }
        Ok(join(parts, start..self.last_end()))
    }

    /// `!`* primary. Two `!` cancel out, so a long row of them needs no depth.
    fn not(&mut self) -> Result<Expression, ExpressionError> {
        let start = self.place().start;
        let mut negated = false;
        while self.take(&Token::Not) {
            negated = !negated;
        }
        let inner = self.primary()?;
        Ok(if negated { Expression::Not(Box::new(inner), start..self.last_end()) } else { inner })
    }

    fn primary(&mut self) -> Result<Expression, ExpressionError> {
        match self.peek() {
            Some(Token::Open) => self.group(),
            Some(Token::Name(_)) => self.call(),
            _ => Err(self.unexpected("a function such as Host(\"a.example\"), ! or (")),
        }
    }

    fn group(&mut self) -> Result<Expression, ExpressionError> {
        let open = self.place();
        if self.depth == MAX_DEPTH {
            return Err(ExpressionError::new(
                open,
                format!("parentheses are nested more than {MAX_DEPTH} deep"),
                "write the condition flatter, or split it into several rules",
            ));
        }
        self.depth += 1;
        self.next += 1;
        let inner = self.any()?;
        self.depth -= 1;
        if !self.take(&Token::Close) {
            return Err(self.unclosed(open));
        }
        Ok(inner)
    }

    fn call(&mut self) -> Result<Expression, ExpressionError> {
        let name_span = self.place();
        let Some(Token::Name(name)) = self.peek().cloned() else {
            return Err(self.unexpected("a function"));
        };
        self.next += 1;
        let open = self.place();
        if !self.take(&Token::Open) {
            return Err(ExpressionError::new(
                name_span,
                format!("{name} is not followed by ("),
                match name.to_ascii_lowercase().as_str() {
                    "and" => "write && for \"and\"".to_owned(),
                    "or" => "write || for \"or\"".to_owned(),
                    "not" => "write ! for \"not\"".to_owned(),
                    _ => format!("call a function as {name}(\"…\"); write strings as \"…\""),
                },
            ));
        }
        let mut arguments = Vec::new();
        if !self.take(&Token::Close) {
            loop {
                arguments.push(self.argument()?);
                if self.take(&Token::Close) {
                    break;
                }
                if !self.take(&Token::Comma) {
                    return Err(if self.peek().is_none() {
                        self.unclosed(open)
                    } else {
                        self.unexpected(", or ) after an argument")
                    });
                }
            }
        }
        let span = name_span.start..self.last_end();
        Ok(Expression::Call(Call { name, name_span, arguments, span }))
    }

    fn argument(&mut self) -> Result<Argument, ExpressionError> {
        let span = self.place();
        match self.peek() {
            Some(Token::Text(value)) => {
                let value = value.clone();
                self.next += 1;
                Ok(Argument { value, span })
            }
            Some(Token::Name(name)) => Err(ExpressionError::new(
                span,
                format!("the argument {name} is not a string"),
                format!("write it as \"{name}\""),
            )),
            _ => Err(self.unexpected("a string such as \"a.example\"")),
        }
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next).map(|placed| &placed.token)
    }

    fn take(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        self.next += usize::from(found);
        found
    }

    /// The place of the next token, or of the end.
    fn place(&self) -> Range<usize> {
        self.tokens.get(self.next).map_or(self.end..self.end, |placed| placed.span.clone())
    }

    /// The end of the token that was taken last.
    fn last_end(&self) -> usize {
        self.tokens[self.next - 1].span.end
    }

    fn unexpected(&self, wanted: &str) -> ExpressionError {
        let message = match self.peek() {
            None => "the expression ends too early".to_owned(),
            Some(Token::Open) => "unexpected (".to_owned(),
            Some(Token::Close) => "unexpected )".to_owned(),
            Some(Token::Comma) => "unexpected ,".to_owned(),
            Some(Token::And) => "unexpected &&".to_owned(),
            Some(Token::Or) => "unexpected ||".to_owned(),
            Some(Token::Not) => "unexpected !".to_owned(),
            Some(Token::Name(name)) => format!("unexpected {name}"),
            Some(Token::Text(_)) => "unexpected string".to_owned(),
        };
        ExpressionError::new(self.place(), message, format!("here stands {wanted}"))
    }

    fn unclosed(&self, open: Range<usize>) -> ExpressionError {
        if self.peek().is_some() {
            return self.unexpected("&&, || or )");
        }
        ExpressionError::new(open, "this ( is never closed", "add the missing )")
    }
}
