//! What is wrong with a configuration: every problem at once, each with its place, the source line and what to do.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity, SourceCode,
};

/// A range of bytes in the configuration's text.
pub type Span = Range<usize>;

/// How many problems are printed before the rest is only counted.
const SHOWN: usize = 100;

/// One problem: what is wrong, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// One sentence without a full stop.
    pub message: String,
    /// The offending bytes; `None` if the file itself is the problem.
    pub span: Option<Span>,
    /// An earlier place that the message refers to, and what it is.
    pub earlier: Option<(Span, String)>,
    /// What to do; empty if the message says it all.
    pub help: String,
}

impl Problem {
    pub fn at(span: Span, message: impl Into<String>) -> Problem {
        Problem { message: message.into(), span: Some(span), earlier: None, help: String::new() }
    }

    pub fn of_file(message: impl Into<String>) -> Problem {
        Problem { message: message.into(), span: None, earlier: None, help: String::new() }
    }

    pub fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = help.into();
        self
    }

    pub fn earlier(mut self, span: Span, what: impl Into<String>) -> Problem {
        self.earlier = Some((span, what.into()));
        self
    }
}

/// Every problem of one configuration, in the order of their places. Never empty when it is an error.
#[derive(Clone)]
pub struct Problems {
    severity: Severity,
    name: String,
    source: Arc<NamedSource<Arc<str>>>,
    text: Arc<str>,
    list: Vec<Problem>,
}

/// Why a configuration was refused. [`fmt::Display`] gives one `file:line:column: message` line for each problem.
pub type ConfigErrors = Problems;

/// A problem with its place counted out, for programs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Located {
    pub file: String,
    /// From 1; `None` if the file itself is the problem.
    pub line: Option<usize>,
    /// In characters, from 1.
    pub column: Option<usize>,
    pub message: String,
    pub help: String,
    /// Whether the configuration is usable nevertheless.
    pub warning: bool,
}

impl Problems {
    /// What makes the configuration unusable.
    pub fn errors(name: &str, text: Arc<str>, list: Vec<Problem>) -> Problems {
        Problems::new(Severity::Error, name, text, list)
    }

    /// What works and is probably not meant.
    pub fn warnings(name: &str, text: Arc<str>, list: Vec<Problem>) -> Problems {
        Problems::new(Severity::Warning, name, text, list)
    }

    fn new(severity: Severity, name: &str, text: Arc<str>, mut list: Vec<Problem>) -> Problems {
        list.sort_by_key(|problem| problem.span.as_ref().map_or(0, |span| span.start));
        list.dedup();
        let source = Arc::new(NamedSource::new(name, Arc::clone(&text)).with_language("TOML"));
        Problems { severity, name: name.to_owned(), source, text, list }
    }

    /// A problem with the file itself, whose text is not known.
    pub(super) fn unreadable(name: &str, problem: Problem) -> Problems {
        Problems::errors(name, Arc::from(""), vec![problem])
    }

    /// The file, as it was named when it was read.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter()
    }

    /// Every problem with its line and column.
    pub fn located(&self) -> Vec<Located> {
        let lines = LineStarts::of(&self.text);
        let locate = |problem: &Problem| {
            let place = problem.span.as_ref().map(|span| lines.place(&self.text, span.start));
            Located {
                file: self.name.clone(),
                line: place.map(|(line, _)| line),
                column: place.map(|(_, column)| column),
                message: problem.message.clone(),
                help: problem.help.clone(),
                warning: self.severity == Severity::Warning,
            }
        };
        self.list.iter().map(locate).collect()
    }

    /// A report for people: each problem with its source line and a caret under the offending text.
    pub fn graphical(&self, color: bool) -> String {
        let mut theme = if color { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        (theme.characters.underline, theme.characters.underbar, theme.characters.uarrow) = ('^', '^', '^');
        let handler = GraphicalReportHandler::new_themed(theme).with_width(100).with_links(false);
        let mut report = String::new();
        for problem in self.list.iter().take(SHOWN) {
            // Writing to a `String` cannot fail; a label outside the text can, and then the plain line serves.
            if handler
                .render_report(&mut report, &Shown { problem, severity: self.severity, source: &self.source })
                .is_err()
            {
                report.push_str(&problem.message);
                report.push('\n');
            }
        }
        report.push_str(&self.rest());
        report
    }

    fn rest(&self) -> String {
        match self.list.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!("{}: and {more} more problems\n", self.name),
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.located().iter().take(SHOWN).enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        let rest = self.rest();
        if rest.is_empty() { Ok(()) } else { write!(f, "\n{}", rest.trim_end()) }
    }
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file)?;
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "{line}:{column}:")?;
        }
        let severity = if self.warning { "warning: " } else { "" };
        write!(f, " {severity}{}", self.message)?;
        if self.help.is_empty() { Ok(()) } else { write!(f, " ({})", self.help) }
    }
}

impl fmt::Debug for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Problems {}

/// One problem as miette draws it.
struct Shown<'a> {
    problem: &'a Problem,
    severity: Severity,
    source: &'a NamedSource<Arc<str>>,
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem.message)
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.problem.span.is_none() {
            write!(f, "{}: ", self.source.name())?;
        }
        f.write_str(&self.problem.message)
    }
}

impl std::error::Error for Shown<'_> {}

impl Diagnostic for Shown<'_> {
    fn severity(&self) -> Option<Severity> {
        Some(self.severity)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        (!self.problem.help.is_empty()).then(|| Box::new(&self.problem.help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.problem.span.is_some().then_some(self.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.problem.span.clone()?;
        let mut labels = vec![LabeledSpan::new_primary_with_span(None, span)];
        if let Some((span, what)) = &self.problem.earlier {
            labels.push(LabeledSpan::new_with_span(Some(what.clone()), span.clone()));
        }
        Some(Box::new(labels.into_iter()))
    }
}

/// Where each line begins, so that many places are found quickly in a large file.
struct LineStarts(Vec<usize>);

impl LineStarts {
    fn of(text: &str) -> LineStarts {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        LineStarts(std::iter::once(0).chain(breaks).collect())
    }

    /// Line and column of a byte, both from 1; the column counts characters.
    fn place(&self, text: &str, byte: usize) -> (usize, usize) {
        let line = self.0.partition_point(|start| *start <= byte).max(1);
        let start = self.0[line - 1];
        let column =
            text.get(start..byte.min(text.len())).map_or(byte - start, |before| before.chars().count());
        (line, column + 1)
    }
}
