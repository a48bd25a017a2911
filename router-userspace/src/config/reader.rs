//! Walks one table of the configuration, key by key, and collects what is wrong instead of stopping at it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::report::{Problem, Span};
use super::schema;
use super::source::hash;
use super::suggest::closest;
use super::values::{Found, Wrong};

/// A value and where it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed<T> {
    pub value: T,
    /// A default's place is the header of its table.
    pub span: Span,
    /// Whether the value is written in the file; otherwise it is the default.
    pub written: bool,
}

impl<T> Placed<T> {
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Placed<U> {
        Placed { value: change(self.value), span: self.span, written: self.written }
    }
}

/// How many problems are collected.
const MAX_PROBLEMS: usize = 10_000;

/// The text and the problems found in it so far.
pub(super) struct Report<'t> {
    pub text: &'t str,
    problems: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
    files: RefCell<FileHashes>,
}

/// Files that a configuration names and that were read with it, and a hash of what they held.
pub(super) type FileHashes = BTreeMap<PathBuf, u64>;

/// What was found besides the configuration itself.
pub(super) struct Findings {
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
    pub files: FileHashes,
}

impl<'t> Report<'t> {
    pub fn new(text: &'t str) -> Report<'t> {
        Report { text, problems: RefCell::default(), warnings: RefCell::default(), files: RefCell::default() }
    }

    pub fn add(&self, problem: Problem) {
        let mut problems = self.problems.borrow_mut();
        // Nobody reads so many, and a file of some megabytes could have millions.
        if problems.len() < MAX_PROBLEMS {
            problems.push(problem);
        }
    }

    /// Something that works and is probably not meant.
    pub fn warn(&self, problem: Problem) {
        self.warnings.borrow_mut().push(problem);
    }

    /// A file that the configuration names held this.
    pub fn has_read(&self, file: &Path, content: &[u8]) {
        self.files.borrow_mut().insert(file.to_owned(), hash(content));
    }

    pub fn into_findings(self) -> Findings {
        Findings {
            problems: self.problems.into_inner(),
            warnings: self.warnings.into_inner(),
            files: self.files.into_inner(),
        }
    }
}

/// One table, read by the keys of its schema. End with [`Section::finish`].
pub(super) struct Section<'r, 't> {
    pub span: Span,
    schema: &'static schema::Section,
    table: &'r DeTable<'t>,
    report: &'r Report<'t>,
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<'r, 't> Section<'r, 't> {
    pub fn new(
        schema: &'static schema::Section,
        table: &'r DeTable<'t>,
        span: Span,
        report: &'r Report<'t>,
    ) -> Section<'r, 't> {
        Section { span, schema, table, report, asked: RefCell::default() }
    }

    /// A key that must be given.
    pub fn required<T>(
        &self,
        key: &'static str,
        read: impl Fn(Found<'_>) -> Result<T, Wrong>,
    ) -> Option<Placed<T>> {
        if self.value(key).is_none() {
            let message = format!("{} has no `{key}`", self.schema.title);
            self.report.add(Problem::at(self.span.clone(), message).help(self.schema.key(key).ask()));
        }
        self.optional(key, read)
    }

    /// A key that may be left out. `None` also if its value is wrong, which is then reported.
    pub fn optional<T>(
        &self,
        key: &'static str,
        read: impl Fn(Found<'_>) -> Result<T, Wrong>,
    ) -> Option<Placed<T>> {
        let (value, span) = self.value(key)?;
        match read(value) {
            Ok(value) => Some(Placed { value, span, written: true }),
            Err(wrong) => {
                self.refuse(key, wrong, span);
                None
            }
        }
    }

    /// A key with a default, which is read from the schema's text exactly as a written value would be.
    pub fn defaulted<T>(&self, key: &'static str, read: impl Fn(Found<'_>) -> Result<T, Wrong>) -> Placed<T> {
        if let Some(placed) = self.optional(key, &read) {
            return placed;
        }
        self.defaulted_from_schema(key, read)
    }

    fn defaulted_from_schema<T>(&self, key: &str, read: impl Fn(Found<'_>) -> Result<T, Wrong>) -> Placed<T> {
        let text = self.schema.key(key).default.expect("the schema gives this key a default");
        let default = DeValue::parse(text).expect("a default is a TOML value");
        match read(default.get_ref()) {
            Ok(value) => Placed { value, span: self.span.clone(), written: false },
            Err(wrong) => panic!("the default {text} is refused: {}", wrong.about(key)),
        }
    }

    /// A list with a default; see [`Section::list`].
    pub fn defaulted_list<T>(
        &self,
        key: &'static str,
        read: impl Fn(Found<'_>) -> Result<T, Wrong>,
    ) -> Placed<Vec<Placed<T>>> {
        if let Some(list) = self.list(key, &read) {
            return list;
        }
        self.defaulted_from_schema(key, |found| {
            let elements = found.as_array().expect("the default is a list");
            let read_one = |element: &toml::Spanned<DeValue<'_>>| {
                let value = read(element.get_ref())?;
                Ok(Placed { value, span: self.span.clone(), written: false })
            };
            elements.iter().map(read_one).collect()
        })
    }

    /// A list whose elements are read one by one, each with its own problems.
    pub fn list<T>(
        &self,
        key: &'static str,
        read: impl Fn(Found<'_>) -> Result<T, Wrong>,
    ) -> Option<Placed<Vec<Placed<T>>>> {
        let (value, span) = self.value(key)?;
        let Some(elements) = value.as_array() else {
            self.refuse(key, Wrong::new(format!("must be a list, not {}", describe(value))), span);
            return None;
        };
        let mut list = Vec::new();
        for element in elements.iter() {
            let span = element.span();
            match read(element.get_ref()) {
                Ok(value) => list.push(Placed { value, span, written: true }),
                Err(wrong) => self.refuse(key, wrong, span),
            }
        }
        // A list of which nothing is usable is as good as wrong; only one written empty is empty.
        let usable = !list.is_empty() || elements.is_empty();
        usable.then_some(Placed { value: list, span, written: true })
    }

    /// A table inside this one, or an empty one in its place if it is left out.
    pub fn table(&self, key: &'static str, schema: &'static schema::Section) -> Option<Section<'r, 't>> {
        let (value, span) = self.value(key)?;
        match value.as_table() {
            Some(table) => Some(Section::new(schema, table, span, self.report)),
            None => {
                let wrong = Wrong::new(format!("must be a table, not {}", describe(value)));
                self.refuse(key, wrong.help(format!("write it as {}", schema.title)), span);
                None
            }
        }
    }

    /// The tables of an array such as `[[pool]]`.
    pub fn tables(&self, key: &'static str, schema: &'static schema::Section) -> Vec<Section<'r, 't>> {
        let Some((value, span)) = self.value(key) else { return Vec::new() };
        let Some(elements) = value.as_array() else {
            let message = format!("`{key}` must be a list of tables, not {}", describe(value));
            let help = format!("write {} in double brackets, once for each", schema.title);
            self.report.add(Problem::at(self.place_of_key(key).unwrap_or(span), message).help(help));
            return Vec::new();
        };
        let mut sections = Vec::new();
        for element in elements.iter() {
            match element.get_ref().as_table() {
                Some(table) => sections.push(Section::new(schema, table, element.span(), self.report)),
                None => {
                    let wrong =
                        Wrong::new(format!("must hold tables only, not {}", describe(element.get_ref())));
                    self.refuse(key, wrong.help(format!("write each as {}", schema.title)), element.span());
                }
            }
        }
        sections
    }

    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    pub fn title(&self) -> &'static str {
        self.schema.title
    }

    pub fn report(&self) -> &'r Report<'t> {
        self.report
    }

    pub fn is_list(&self, key: &str) -> bool {
        self.table.get(key).is_some_and(|value| value.get_ref().is_array())
    }

    fn value(&self, key: &'static str) -> Option<(&'r DeValue<'t>, Span)> {
        self.asked.borrow_mut().insert(self.schema.key(key).name);
        let value = self.table.get(key)?;
        Some((value.get_ref(), value.span()))
    }

    fn place_of_key(&self, key: &str) -> Option<Span> {
        self.table.get_key_value(key).map(|(key, _)| key.span())
    }

    fn refuse(&self, key: &str, wrong: Wrong, span: Span) {
        self.report.add(Problem::at(span, wrong.about(key)).help(wrong.help));
    }

    /// Reports every key of the table that the schema does not have.
    pub fn finish(self) {
        // The other way round: a key that the schema has and no code reads would be accepted and ignored.
        let unread = self.schema.keys.iter().find(|key| !self.asked.borrow().contains(key.name));
        debug_assert!(unread.is_none(), "nobody reads {unread:?} of {}", self.schema.title);
        for (key, _) in self.table.iter() {
            let name: &str = key.get_ref();
            let title = self.schema.title;
            if self.schema.keys.iter().any(|known| known.name == name) {
                continue;
            }
            let known: Vec<&str> = self.schema.keys.iter().map(|key| key.name).collect();
            let help = match closest(name, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known keys: {}", known.join(", ")),
            };
            self.report.add(Problem::at(key.span(), format!("unknown key `{name}` in {title}")).help(help));
        }
    }
}

/// A TOML value in words, for "must be …, not …".
pub(super) fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) if text.chars().count() <= 40 => format!("{:?}", text.as_ref()),
        DeValue::String(_) => "a long string".to_owned(),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => "a date or time".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
