//! Reads what a rule opens ahead of users. Each value alone; what they mean to each other is `plan::preload`'s matter.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

use super::file;
use super::reader::{Placed, Section, describe};
use super::report::{Problem, Span};
use super::schema;
use super::values::{self, Found, Wrong};
use crate::core::identity::MAX_IDENTITY_BYTES;
use crate::core::preload::Wanted;
use crate::core::preload::schedule::{DAY as MINUTES_OF_DAY, Days};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// Name and value of a header field.
pub(super) type Field = (String, String);

pub(super) struct Preload {
    pub span: Span,
    pub resources: Option<Placed<Vec<Placed<String>>>>,
    /// Method and path.
    pub request: Option<Placed<(String, String)>>,
    pub instances: Placed<Wanted>,
    pub host: Option<Placed<String>>,
    pub headers: Option<Placed<Vec<Placed<Field>>>>,
    pub headers_file: Option<Placed<PathBuf>>,
    pub expect: Placed<Vec<Placed<RangeInclusive<u16>>>>,
    pub every: Placed<Duration>,
    pub timeout: Placed<Duration>,
    pub days: Placed<Days>,
    /// Begin and end, in minutes after midnight.
    pub window: Placed<(u16, u16)>,
    pub retries: Placed<u32>,
    pub retry_delay: Placed<Duration>,
    pub load_on_exhausted: Placed<bool>,
    pub update_exhausted: Placed<bool>,
}

pub(super) fn read(section: Section<'_, '_>) -> Preload {
    if !section.has("resources") {
        let message = format!("{} has no `resources`", section.title());
        let help = schema::PRELOAD.key("resources").ask();
        section.report().add(Problem::at(section.span.clone(), message).help(help));
    }
    let preload = Preload {
        span: section.span.clone(),
        resources: section.list("resources", resource),
        request: section.required("request", request),
        instances: section.defaulted("instances", instances),
        host: section.optional("host", file::host),
        headers: section.list("headers", header),
        headers_file: section.optional("headers_file", values::path),
        expect: section.defaulted_list("expect", values::status_range),
        every: section.defaulted("every", values::duration(SECOND..=30 * DAY)),
        timeout: section.defaulted("timeout", values::duration(10 * MILLISECOND..=DAY)),
        days: section.defaulted("days", days),
        window: section.defaulted("window", window),
        retries: section.defaulted("retries", values::integer(0..=100)),
        retry_delay: section.defaulted("retry_delay", values::duration(10 * MILLISECOND..=DAY)),
        load_on_exhausted: section.defaulted("load_on_exhausted", values::boolean),
        update_exhausted: section.defaulted("update_exhausted", values::boolean),
    };
    section.finish();
    preload
}

fn resource(found: Found<'_>) -> Result<String, Wrong> {
    let text = values::string(found)?;
    let fits = (1..=MAX_IDENTITY_BYTES).contains(&text.len());
    if fits && !text.contains(char::is_control) {
        return Ok(text);
    }
    Err(Wrong::new(format!("is not the name of a resource: {}", describe(found))).help(format!(
        "1 to {MAX_IDENTITY_BYTES} bytes without control characters, as the listener's `resource` finds it"
    )))
}

fn request(found: Found<'_>) -> Result<(String, String), Wrong> {
    const HELP: &str = "write a method and a path: \"GET /analysis/{resource}\"";
    let text = values::string(found).map_err(|wrong| wrong.help(HELP))?;
    let wrong = || Wrong::new(format!("is not a method and a path: {}", describe(found))).help(HELP);
    let (method, path) = text.split_once(' ').ok_or_else(wrong)?;
    values::token(&DeValue::String(method.into())).map_err(|_| wrong())?;
    file::request_target(&DeValue::String(path.into())).map_err(|_| wrong())?;
    if method == "CONNECT" {
        return Err(wrong());
    }
    Ok((method.to_owned(), path.to_owned()))
}

fn instances(found: Found<'_>) -> Result<Wanted, Wrong> {
    const HELP: &str = "a number, or \"all\" for every instance of the pool";
    match found {
        DeValue::String(text) if text == "all" => Ok(Wanted::All),
        DeValue::Integer(_) => values::integer(1..=65_535u16)(found)
            .map(|number| Wanted::Number(number.into()))
            .map_err(|wrong| wrong.help(HELP)),
        other => Err(Wrong::new(format!("must be a number or \"all\", not {}", describe(other))).help(HELP)),
    }
}

/// Fields that the router writes itself.
const OWN_FIELDS: [&str; 4] = ["connection", "content-length", "transfer-encoding", "host"];

/// Why a line is no header field of a preload.
pub(super) enum NoField {
    Malformed,
    /// The router writes this one itself.
    Own(String),
}

/// Reads `Name: value`.
pub(super) fn field(text: &str) -> Result<Field, NoField> {
    let (name, value) = text.split_once(':').ok_or(NoField::Malformed)?;
    values::token(&DeValue::String(name.into())).map_err(|_| NoField::Malformed)?;
    if value.contains(char::is_control) || value.len() > 8_192 {
        return Err(NoField::Malformed);
    }
    if OWN_FIELDS.contains(&name.to_ascii_lowercase().as_str()) {
        return Err(NoField::Own(name.to_owned()));
    }
    Ok((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
}

/// What to do about a field that the router writes itself.
pub(super) fn instead_of(own: &str) -> &'static str {
    if own.eq_ignore_ascii_case("host") { "use the key `host`" } else { "remove it" }
}

fn header(found: Found<'_>) -> Result<Field, Wrong> {
    const HELP: &str = "write name and value: \"X-Preload: yes\"; what is secret belongs into `headers_file`";
    let text = values::string(found).map_err(|wrong| wrong.help(HELP))?;
    field(&text).map_err(|no| match no {
        NoField::Malformed => Wrong::new(format!("has no header field: {}", describe(found))).help(HELP),
        NoField::Own(name) => {
            Wrong::new(format!("cannot set {name}, which the router writes itself")).help(instead_of(&name))
        }
    })
}

const WEEK: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

fn days(found: Found<'_>) -> Result<Days, Wrong> {
    const HELP: &str = "write days and ranges of days, such as \"mon-fri\" or \"mon,wed,sat-sun\"";
    let text = values::string(found).map_err(|wrong| wrong.help(HELP))?;
    let wrong = || Wrong::new(format!("are not days of the week: {}", describe(found))).help(HELP);
    let number =
        |name: &str| WEEK.iter().position(|day| day.eq_ignore_ascii_case(name.trim())).ok_or_else(wrong);
    let mut days = Days::NONE;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        // A range may go over the end of the week.
        let count = (last + 7 - first) % 7;
        days = (0..=count).fold(days, |days, offset| days.with((first + offset) as u8));
    }
    Ok(days)
}

fn window(found: Found<'_>) -> Result<(u16, u16), Wrong> {
    const HELP: &str = "write begin and end in the host's local time, such as \"06:00-20:00\"";
    let text = values::string(found).map_err(|wrong| wrong.help(HELP))?;
    let wrong = || Wrong::new(format!("is not a window of the day: {}", describe(found))).help(HELP);
    let time = |text: &str| {
        let (hours, minutes) = text.trim().split_once(':')?;
        let number = |text: &str| (text.len() == 2).then(|| text.parse::<u16>().ok()).flatten();
        let (hours, minutes) = (number(hours)?, number(minutes)?);
        let time = hours * 60 + minutes;
        (minutes < 60 && time <= MINUTES_OF_DAY).then_some(time)
    };
    let (from, to) = text.split_once('-').ok_or_else(wrong)?;
    match (time(from), time(to)) {
        (Some(from), Some(to)) if from == to => {
            Err(Wrong::new(format!("is empty: {text}")).help("for the whole day, write \"00:00-24:00\""))
        }
        (Some(from), Some(to)) if from < MINUTES_OF_DAY && to > 0 => Ok((from, to)),
        // Until midnight is until 24:00.
        (Some(from), Some(0)) if from < MINUTES_OF_DAY => Ok((from, MINUTES_OF_DAY)),
        _ => Err(wrong()),
    }
}
