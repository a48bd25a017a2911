//! Rust sources as tokens, so that comments and strings cannot be mistaken for code.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

use super::Finding;
use crate::workspace;

/// Directories of the repository that hold Rust sources.
const DIRECTORIES: [&str; 8] = [
    "router-agent",
    "router-common",
    "router-ebpf",
    "router-report",
    "router-userspace",
    "tests",
    "xtask",
    "fuzz",
];

#[derive(Debug)]
pub struct Source {
    /// Relative to the repository.
    pub path: PathBuf,
    pub text: String,
    tokens: Vec<Token>,
}

#[derive(Debug)]
struct Token {
    text: String,
    line: usize,
}

/// A path such as `crate::core::pool` with the line in which it begins. A `use` with braces has several.
#[derive(Debug, PartialEq, Eq)]
pub struct CodePath {
    pub segments: Vec<String>,
    pub line: usize,
}

impl Source {
    pub fn read_all() -> Result<Vec<Self>> {
        let mut sources = Vec::new();
        for directory in DIRECTORIES {
            read_directory(Path::new(directory), &mut sources)?;
        }
        Ok(sources)
    }

    pub fn new(path: impl Into<PathBuf>, text: impl Into<String>) -> Result<Self> {
        let (path, text) = (path.into(), text.into());
        let stream: TokenStream = text.parse().map_err(|error| anyhow!("{}: {error}", path.display()))?;
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        Ok(Self { path, text, tokens })
    }

    pub fn finding(&self, line: usize, text: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, text: text.into() }
    }

    /// Lines in which a token stands.
    pub fn lines_with(&self, token: &str) -> impl Iterator<Item = usize> {
        self.tokens.iter().filter(move |found| found.text == token).map(|found| found.line)
    }

    /// Lines in which a macro is called.
    pub fn calls(&self, name: &str) -> impl Iterator<Item = usize> {
        let pairs = self.tokens.windows(2);
        pairs.filter(move |pair| pair[0].text == name && pair[1].text == "!").map(|pair| pair[0].line)
    }

    /// Every path in code that is not compiled for tests only.
    pub fn paths(&self) -> Vec<CodePath> {
        let mut paths = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            if let Some(behind) = self.end_of_test_item(at) {
                at = behind;
                continue;
            }
            let begins = at == 0 || self.tokens[at - 1].text != "::";
            if begins && is_identifier(&self.tokens[at].text) {
                self.branches(at, &[], self.tokens[at].line, &mut paths);
            }
            at += 1;
        }
        paths
    }

    /// Reads a path, or all paths of a tree with braces; returns where it ends.
    fn branches(&self, mut at: usize, before: &[String], line: usize, paths: &mut Vec<CodePath>) -> usize {
        let mut segments = before.to_vec();
        loop {
            match self.text_at(at) {
                "{" => {
                    at += 1;
                    while !matches!(self.text_at(at), "}" | "") {
                        at = self.branches(at, &segments, line, paths).max(at + 1);
                        if self.text_at(at) == "as" {
                            at += 2;
                        }
                        if self.text_at(at) == "," {
                            at += 1;
                        }
                    }
                    return at + 1;
                }
                name if is_identifier(name) || name == "*" => {
                    segments.push(name.to_owned());
                    at += 1;
                    if self.text_at(at) != "::" || !continues(self.text_at(at + 1)) {
                        paths.push(CodePath { segments, line });
                        return at;
                    }
                    at += 1;
                }
                _ => return at,
            }
        }
    }

    /// If a `#[cfg(test)]` begins here: where the item behind it ends.
    fn end_of_test_item(&self, at: usize) -> Option<usize> {
        const ATTRIBUTE: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
        let found = self.tokens.get(at..at + ATTRIBUTE.len())?;
        if !found.iter().map(|token| token.text.as_str()).eq(ATTRIBUTE) {
            return None;
        }
        let mut depth = 0;
        for (offset, token) in self.tokens[at + ATTRIBUTE.len()..].iter().enumerate() {
            match token.text.as_str() {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            if depth == 0 && matches!(token.text.as_str(), "}" | ";") {
                return Some(at + ATTRIBUTE.len() + offset + 1);
            }
        }
        None
    }

    fn text_at(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| &token.text)
    }
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|first: char| first == '_' || first.is_alphabetic())
}

fn continues(text: &str) -> bool {
    is_identifier(text) || text == "{" || text == "*"
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        let text = match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                tokens.push(Token { text: open.to_owned(), line });
                flatten(group.stream(), tokens);
                tokens.push(Token { text: close.to_owned(), line: group.span_close().start().line });
                continue;
            }
            // `::` comes as two colons, the first of them joint.
            TokenTree::Punct(punct) if punct.as_char() == ':' => {
                if let Some(first) = tokens.last_mut().filter(|last| last.text == ":+") {
                    first.text = "::".to_owned();
                    continue;
                }
                if punct.spacing() == Spacing::Joint { ":+".to_owned() } else { ":".to_owned() }
            }
            TokenTree::Punct(punct) => punct.as_char().to_string(),
            TokenTree::Ident(ident) => ident.to_string(),
            TokenTree::Literal(_) => "\"literal\"".to_owned(),
        };
        tokens.push(Token { text, line });
    }
}

fn read_directory(directory: &Path, sources: &mut Vec<Source>) -> Result<()> {
    let Ok(entries) = fs::read_dir(workspace::root().join(directory)) else { return Ok(()) };
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    for name in names {
        let path = directory.join(&name);
        let full = workspace::root().join(&path);
        if full.is_dir() && name != "target" {
            read_directory(&path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                fs::read_to_string(&full).with_context(|| format!("cannot read {}", path.display()))?;
            sources.push(Source::new(path, text)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        let source = Source::new("a.rs", text).unwrap();
        source
            .paths()
            .into_iter()
            .map(|path| path.segments.join("::"))
            .filter(|path| path.contains("::"))
            .collect()
    }

    #[test]
    fn a_tree_of_uses_is_read_branch_by_branch() {
        let found = paths("use crate::{core::{pool::Pool, rules as r}, flows::*};");
        for wanted in ["crate::core::pool::Pool", "crate::core::rules", "crate::flows::*"] {
            assert!(found.iter().any(|path| path == wanted), "{wanted} is not in {found:?}");
        }
    }

    #[test]
    fn paths_are_found_in_expressions_and_macros_but_not_in_comments_strings_and_tests() {
        let text = r#"
            // crate::a::b
            fn f() { g("crate::c::d", crate::e::f::<u8>()); println!("{}", crate::g::h); }
            #[cfg(test)]
            mod tests { use crate::i::j; }
            #[cfg(test)]
            mod more;
            fn g(x: crate::k::l) {}
        "#;
        assert_eq!(paths(text), ["crate::e::f", "crate::g::h", "crate::k::l"]);
    }
}
