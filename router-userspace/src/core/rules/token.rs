//! Text to tokens.
//!
//! A string is written `"…"` or `` `…` ``. Between double quotes `\"` is a quote and `\\` a backslash; any other
//! backslash stands for itself, so that `"\d+\.png"` is the regular expression it looks like. Between
//! backticks nothing is special.

use std::ops::Range;

use winnow::LocatingSlice;
use winnow::ascii::multispace0;
use winnow::combinator::{alt, delimited, preceded, repeat};
use winnow::prelude::*;
use winnow::stream::Location;
use winnow::token::{any, none_of, take_till, take_while};

use super::ExpressionError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Open,
    Close,
    Comma,
    And,
    Or,
    Not,
    Name(String),
    Text(String),
}

#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub token: Token,
    pub span: Range<usize>,
}

type Input<'a> = LocatingSlice<&'a str>;

pub(super) fn tokens(source: &str) -> Result<Vec<Placed>, ExpressionError> {
    let mut input = LocatingSlice::new(source);
    let mut tokens = Vec::new();
    loop {
        skip_space(&mut input);
        if input.is_empty() {
            return Ok(tokens);
        }
        let start = input.current_token_start();
        match token.with_span().parse_next(&mut input) {
            Ok((token, span)) => tokens.push(Placed { token, span }),
            Err(_) => return Err(unreadable(source, start)),
        }
    }
}

fn skip_space(input: &mut Input<'_>) {
    let _: winnow::Result<&str> = multispace0.parse_next(input);
}

fn token(input: &mut Input<'_>) -> winnow::Result<Token> {
    alt((
        '('.value(Token::Open),
        ')'.value(Token::Close),
        ','.value(Token::Comma),
        "&&".value(Token::And),
        "||".value(Token::Or),
        '!'.value(Token::Not),
        name.map(Token::Name),
        quoted.map(Token::Text),
        raw.map(Token::Text),
    ))
    .parse_next(input)
}

/// A function's name. No function's name has these marks in it, but an argument that someone forgot to quote has.
fn name(input: &mut Input<'_>) -> winnow::Result<String> {
    take_while(1.., |c: char| c.is_alphanumeric() || "_-./:*".contains(c))
        .map(str::to_owned)
        .parse_next(input)
}

fn quoted(input: &mut Input<'_>) -> winnow::Result<String> {
    let escaped = preceded('\\', any).map(|c| match c {
        '"' | '\\' => c.to_string(),
        other => format!("\\{other}"),
    });
    let plain = none_of(['"', '\\']).map(String::from);
    let pieces = repeat(0.., alt((plain, escaped))).fold(String::new, |mut text, piece: String| {
        text.push_str(&piece);
        text
    });
    delimited('"', pieces, '"').parse_next(input)
}

fn raw(input: &mut Input<'_>) -> winnow::Result<String> {
    delimited('`', take_till(0.., '`').map(str::to_owned), '`').parse_next(input)
}

/// Says why no token begins at `start`.
fn unreadable(source: &str, start: usize) -> ExpressionError {
    let rest = &source[start..];
    let first = rest.chars().next().unwrap_or_default();
    let one = start..start + first.len_utf8();
    match first {
        '"' | '`' => ExpressionError::new(
            start..source.len(),
            "this string does not end",
            format!("close it with {first} (inside \"…\" write \\\" for a quote)"),
        ),
        '\'' => ExpressionError::new(one, "a string cannot begin with '", "write strings as \"…\" or `…`"),
        '&' => ExpressionError::new(one, "a single &", "write && for \"and\""),
        '|' => ExpressionError::new(one, "a single |", "write || for \"or\""),
        other => ExpressionError::new(
            one,
            format!("unexpected character {other:?}"),
            "an expression is made of functions such as Host(\"a.example\"), &&, ||, ! and parentheses",
        ),
    }
}
