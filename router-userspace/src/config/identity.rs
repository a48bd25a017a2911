//! Reads where listeners find session keys, users, groups and resources.

use std::time::Duration;

use ipnet::IpNet;
use regex::{Regex, RegexBuilder};
use toml::de::DeValue;

use super::reader::{Placed, Section, describe};
use super::report::{Problem, Span};
use super::schema;
use super::values::{self, Found, Wrong};
use crate::core::identity::{
    IdentitySpec, Place, ResourceSource, SessionSource, SessionSpec, Trusted, UserSource,
};
use crate::core::networks;

/// Greatest size of a compiled `path_regex`, in bytes.
const REGEX_SIZE_LIMIT: usize = 1 << 20;
/// The longest idle time-out of a session.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

/// What one listener looks for.
pub(super) struct Identity {
    pub spec: IdentitySpec,
    /// `user_resource`, if it is what sessions go by: it needs both a user and a resource.
    pub user_resource: Option<Placed<bool>>,
    /// Where the tables are, if they are there.
    pub session_span: Option<Span>,
    pub user_span: Option<Span>,
    pub groups_span: Option<Span>,
    pub resource_span: Option<Span>,
}

/// One `[[group]]`.
pub(super) struct Group {
    pub name: Option<Placed<String>>,
    pub users: Vec<String>,
}

pub(super) fn group(section: Section<'_, '_>) -> Group {
    let users = section.list("users", |found| {
        let name = values::string(found)?;
        if name.is_empty() { Err(Wrong::new("must not be empty")) } else { Ok(name) }
    });
    if !section.has("users") {
        let problem = Problem::at(section.span.clone(), "[[group]] has no `users`");
        section.report().add(problem.help(schema::GROUP.key("users").ask()));
    }
    let group = Group {
        name: section.required("name", group_name),
        users: users.map_or_else(Vec::new, |list| list.value.into_iter().map(|user| user.value).collect()),
    };
    section.finish();
    group
}

fn group_name(found: Found<'_>) -> Result<String, Wrong> {
    let name = values::string(found)?;
    if name.is_empty() || name.contains(',') {
        return Err(Wrong::new(format!("is not the name of a group: {}", describe(found)))
            .help("it must not be empty and has no commas"));
    }
    Ok(name)
}

pub(super) fn read(listener: &Section<'_, '_>) -> Identity {
    let mut user_resource = None;
    let tables = [
        listener.table("session", &schema::SESSION),
        listener.table("user", &schema::USER),
        listener.table("groups", &schema::GROUPS),
        listener.table("resource", &schema::RESOURCE),
    ];
    let [session_span, user_span, groups_span, resource_span] =
        tables.each_ref().map(|table| table.as_ref().map(|section| section.span.clone()));
    let [of_session, of_user, of_groups, of_resource] = tables;
    let spec = IdentitySpec {
        session: of_session.and_then(|section| session(section, &mut user_resource)),
        user: of_user.and_then(user),
        groups: of_groups.and_then(groups),
        resource: of_resource.and_then(resource),
    };
    Identity { spec, user_resource, session_span, user_span, groups_span, resource_span }
}

fn session(section: Section<'_, '_>, user_resource: &mut Option<Placed<bool>>) -> Option<SessionSpec> {
    let client_address = section.defaulted("client_address", values::boolean);
    let by_user = section.defaulted("user_resource", values::boolean);
    let mut sources: Vec<SessionSource> = places(&section).into_iter().map(SessionSource::In).collect();
    sources.extend(client_address.value.then_some(SessionSource::ClientAddress));
    sources.extend(by_user.value.then_some(SessionSource::UserAndResource));
    let idle_timeout =
        section.defaulted("idle_timeout", values::duration(Duration::from_secs(1)..=LONGEST)).value;
    let source = only_one(
        &section,
        sources,
        "cookie = \"NAME\", header = \"NAME\", query = \"NAME\", client_address = true or user_resource = true",
    );
    if by_user.value {
        *user_resource = Some(by_user);
    }
    section.finish();
    Some(SessionSpec { source: source?, idle_timeout })
}

fn user(section: Section<'_, '_>) -> Option<Trusted<UserSource>> {
    let mut sources: Vec<UserSource> = places(&section).into_iter().map(UserSource::In).collect();
    let basic = section.defaulted("basic_auth", values::boolean).value;
    sources.extend(basic.then_some(UserSource::BasicAuth));
    let trusted = section.required("trusted_sources", network_list);
    let wanted = "header = \"NAME\", cookie = \"NAME\", query = \"NAME\" or basic_auth = true";
    let source = only_one(&section, sources, wanted);
    section.finish();
    Some(Trusted { source: source?, trusted: trusted?.value })
}

fn groups(section: Section<'_, '_>) -> Option<Trusted<String>> {
    let header = section.required("header", field_name);
    let trusted = section.required("trusted_sources", network_list);
    section.finish();
    Some(Trusted { source: header?.value, trusted: trusted?.value })
}

fn resource(section: Section<'_, '_>) -> Option<ResourceSource> {
    let mut sources = Vec::new();
    if let Some(name) = section.optional("header", field_name) {
        sources.push(ResourceSource::In(Place::Header(name.value)));
    }
    if let Some(name) = section.optional("query", parameter) {
        sources.push(ResourceSource::In(Place::Query(name.value)));
    }
    if let Some(regex) = section.optional("path_regex", capture) {
        sources.push(ResourceSource::Path(regex.value));
    }
    let wanted = "path_regex = 'REGEX', header = \"NAME\" or query = \"NAME\"";
    let source = only_one(&section, sources, wanted);
    section.finish();
    source
}

/// The places of header, cookie and query that are named.
fn places(section: &Section<'_, '_>) -> Vec<Place> {
    let header = section.optional("header", field_name).map(|name| Place::Header(name.value));
    let cookie = section.optional("cookie", field_name).map(|name| Place::Cookie(name.value));
    let query = section.optional("query", parameter).map(|name| Place::Query(name.value));
    [header, cookie, query].into_iter().flatten().collect()
}

fn only_one<T>(section: &Section<'_, '_>, mut sources: Vec<T>, wanted: &str) -> Option<T> {
    let written = ["cookie", "header", "query", "path_regex"].iter().any(|key| section.has(key));
    let message = match sources.len() {
        1 => return sources.pop(),
        // One that is written and wrong has been reported already.
        0 if written => return None,
        0 => "says not where to look",
        _ => "says more than one place to look",
    };
    let message = format!("{} {message}", section.title());
    section.report().add(Problem::at(section.span.clone(), message).help(format!("write one of {wanted}")));
    None
}

/// The name of a header field or cookie: a token of RFC 9110 §5.6.2.
fn field_name(found: Found<'_>) -> Result<String, Wrong> {
    let name = values::string(found)?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !name.is_empty() && name.bytes().all(is_token) {
        return Ok(name);
    }
    Err(Wrong::new(format!("is not a name: {}", describe(found)))
        .help("letters, digits and !#$%&'*+-.^_`|~, such as \"X-User\""))
}

fn parameter(found: Found<'_>) -> Result<String, Wrong> {
    let name = values::string(found)?;
    if name.is_empty() { Err(Wrong::new("must not be empty")) } else { Ok(name) }
}

pub(super) fn network_list(found: Found<'_>) -> Result<Vec<IpNet>, Wrong> {
    const HELP: &str = "write a list of networks and addresses, such as [\"10.0.0.0/8\", \"2001:db8::1\"]";
    let DeValue::Array(elements) = found else {
        return Err(Wrong::new(format!("must be a list, not {}", describe(found))).help(HELP));
    };
    let network = |element: &DeValue<'_>| {
        let text = values::string(element).map_err(|wrong| wrong.help(HELP))?;
        networks::parse(&text).ok_or_else(|| {
            Wrong::new(format!("has {}, which is not a network", describe(element))).help(HELP)
        })
    };
    elements.iter().map(|element| network(element.get_ref())).collect()
}

fn capture(found: Found<'_>) -> Result<Regex, Wrong> {
    let text = values::string(found)?;
    let regex = RegexBuilder::new(&text).size_limit(REGEX_SIZE_LIMIT).build().map_err(|error| {
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Wrong::new(format!("is not a regular expression: {reason}"))
    })?;
    if regex.captures_len() < 2 {
        return Err(Wrong::new("captures nothing")
            .help("put what names the resource in parentheses: '^/map/([^/]+)'"));
    }
    Ok(regex)
}
