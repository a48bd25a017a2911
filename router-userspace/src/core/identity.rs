//! Who asks for what: session key, user, groups and resource of a request, read from where the operator says.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ipnet::IpNet;
use regex::Regex;

use super::counters::Reason;
use super::request::{HttpRequest, Request};
use super::rules::fields::{cookie_values, query_values};

/// A longer value is not looked at: it would only fill the tables.
pub const MAX_IDENTITY_BYTES: usize = 1_024;

/// A place in an HTTP request that carries one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The first header of this name.
    Header(String),
    Cookie(String),
    /// A parameter of the query, decoded.
    Query(String),
}

/// Where the session key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionSource {
    In(Place),
    ClientAddress,
    /// The user and the resource together.
    UserAndResource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSpec {
    pub source: SessionSource,
    /// A session without open connections is over after so long.
    pub idle_timeout: Duration,
}

/// Where the user's name is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserSource {
    In(Place),
    /// The name of `Authorization: Basic` (RFC 7617).
    BasicAuth,
}

/// Something that is believed only from clients in `trusted`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trusted<T> {
    pub source: T,
    pub trusted: Vec<IpNet>,
}

impl<T> Trusted<T> {
    fn trusts(&self, client: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&client))
    }
}

/// Where the resource is.
#[derive(Clone, Debug)]
pub enum ResourceSource {
    In(Place),
    /// What the first group of the expression captures of the path.
    Path(Regex),
}

/// Where the requests of one listener carry all this.
#[derive(Clone, Debug, Default)]
pub struct IdentitySpec {
    pub session: Option<SessionSpec>,
    pub user: Option<Trusted<UserSource>>,
    /// The name of a header that lists groups, separated by commas.
    pub groups: Option<Trusted<String>>,
    pub resource: Option<ResourceSource>,
}

/// What every listener looks for, and the groups that the configuration gives to users.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    listeners: HashMap<String, IdentitySpec>,
    groups: HashMap<String, Vec<String>>,
}

/// What was found in one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity<'a> {
    pub session: Option<Cow<'a, [u8]>>,
    /// How long the session may be idle; zero without one.
    pub idle_timeout: Duration,
    pub user: Option<Cow<'a, str>>,
    /// A list of groups, separated by commas, as it was sent.
    sent_groups: Option<&'a str>,
    /// The groups that the configuration gives to the user.
    known_groups: &'a [String],
    pub resource: Option<Cow<'a, str>>,
    /// Whether a user or groups were sent from an address that is not trusted.
    pub untrusted: bool,
    /// What was ignored because it was longer than [`MAX_IDENTITY_BYTES`].
    pub too_long: TooLong,
}

/// A value that may be found in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityPart {
    SessionKey,
    User,
    Groups,
    Resource,
}

impl IdentityPart {
    pub fn name(self) -> &'static str {
        match self {
            Self::SessionKey => "session_key",
            Self::User => "user",
            Self::Groups => "groups",
            Self::Resource => "resource",
        }
    }
}

impl Reason for IdentityPart {
    const ALL: &'static [Self] = &[Self::SessionKey, Self::User, Self::Groups, Self::Resource];

    fn index(self) -> usize {
        self as usize
    }
}

/// Parts that were too long to be looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TooLong(u8);

impl TooLong {
    pub fn parts(self) -> impl Iterator<Item = IdentityPart> {
        IdentityPart::ALL.iter().copied().filter(move |part| self.0 & 1 << part.index() != 0)
    }

    /// The value, unless it is too long, which is noted.
    fn bounded<T>(
        &mut self,
        part: IdentityPart,
        value: Option<T>,
        length: impl Fn(&T) -> usize,
    ) -> Option<T> {
        let value = value?;
        if length(&value) > MAX_IDENTITY_BYTES {
            self.0 |= 1 << part.index();
            return None;
        }
        Some(value)
    }
}

impl Identity<'_> {
    /// Every group of the user.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        let sent = self.sent_groups.into_iter().flat_map(|list| list.split(',')).map(str::trim);
        sent.filter(|group| !group.is_empty()).chain(self.known_groups.iter().map(String::as_str))
    }
}

impl Identities {
    /// `members` are the users of each group.
    pub fn new(
        listeners: HashMap<String, IdentitySpec>,
        members: impl IntoIterator<Item = (String, Vec<String>)>,
    ) -> Self {
        let mut groups: HashMap<String, Vec<String>> = HashMap::new();
        for (group, users) in members {
            for user in users {
                groups.entry(user).or_default().push(group.clone());
            }
        }
        Self { listeners, groups }
    }

    /// What the listener looks for; `None` if nothing.
    pub fn of_listener(&self, listener: &str) -> Option<&IdentitySpec> {
        self.listeners.get(listener)
    }

    /// Reads the identity of a request.
    pub fn identify<'a>(&'a self, request: &'a Request<'a>) -> Identity<'a> {
        let mut identity = Identity::default();
        let Some(spec) = self.listeners.get(request.listener) else { return identity };
        let http = request.http.as_ref();
        if let Some(user) = &spec.user {
            let sent = http.and_then(|http| user_of(&user.source, http));
            let trusted = user.trusts(request.client);
            identity.untrusted |= sent.is_some() && !trusted;
            let user = sent.filter(|_| trusted);
            identity.user = identity.too_long.bounded(IdentityPart::User, user, |user| user.len());
        }
        if let Some(groups) = &spec.groups {
            let sent = http.and_then(|http| header(http, &groups.source)).and_then(text);
            let trusted = groups.trusts(request.client);
            identity.untrusted |= sent.is_some() && !trusted;
            let groups = sent.filter(|_| trusted);
            identity.sent_groups = identity.too_long.bounded(IdentityPart::Groups, groups, |list| list.len());
        }
        if let Some(user) = identity.user.as_deref() {
            identity.known_groups = self.groups.get(user).map_or(&[], Vec::as_slice);
        }
        let resource = spec.resource.as_ref().and_then(|source| resource_of(source, http?));
        identity.resource = identity.too_long.bounded(IdentityPart::Resource, resource, |name| name.len());
        if let Some(session) = &spec.session {
            identity.idle_timeout = session.idle_timeout;
            identity.session = match &session.source {
                SessionSource::In(place) => {
                    let key = http.and_then(|http| value(place, http));
                    identity.too_long.bounded(IdentityPart::SessionKey, key, |key| key.len())
                }
                SessionSource::ClientAddress => Some(address_bytes(request.client)),
                SessionSource::UserAndResource => identity
                    .user
                    .as_deref()
                    .zip(identity.resource.as_deref())
                    .map(|(user, resource)| [user.as_bytes(), b"\0", resource.as_bytes()].concat().into()),
            };
        }
        identity
    }
}

fn address_bytes(address: IpAddr) -> Cow<'static, [u8]> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec().into(),
        IpAddr::V6(address) => address.octets().to_vec().into(),
    }
}

fn user_of<'a>(source: &UserSource, http: &HttpRequest<'a>) -> Option<Cow<'a, str>> {
    match source {
        UserSource::In(place) => value(place, http).and_then(into_text),
        UserSource::BasicAuth => {
            let (scheme, credentials) = text(header(http, "authorization")?)?.split_once(' ')?;
            if !scheme.eq_ignore_ascii_case("basic") {
                return None;
            }
            let decoded = BASE64.decode(credentials.trim()).ok()?;
            let end = decoded.iter().position(|&byte| byte == b':')?;
            into_text(decoded[..end].to_vec().into()).filter(|name| !name.is_empty())
        }
    }
}

fn resource_of<'a>(source: &ResourceSource, http: &HttpRequest<'a>) -> Option<Cow<'a, str>> {
    match source {
        ResourceSource::In(place) => value(place, http).and_then(into_text),
        ResourceSource::Path(regex) => {
            let captured = regex.captures(http.path)?.get(1)?.as_str();
            (!captured.is_empty()).then_some(captured.into())
        }
    }
}

/// The value at a place, if it is there and not empty.
fn value<'a>(place: &Place, http: &HttpRequest<'a>) -> Option<Cow<'a, [u8]>> {
    let found: Cow<'a, [u8]> = match place {
        Place::Header(name) => header(http, name)?.into(),
        Place::Cookie(name) => http
            .headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case("cookie"))
            .find_map(|header| cookie_values(header.value, name.as_bytes()).next().map(<[u8]>::to_vec))?
            .into(),
        Place::Query(name) => query_values(http.query?, name.as_bytes()).next()?.into_owned().into(),
    };
    (!found.is_empty()).then_some(found)
}

fn header<'a>(http: &HttpRequest<'a>, name: &str) -> Option<&'a [u8]> {
    let found = http.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?.value;
    (!found.is_empty()).then_some(found)
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn into_text(bytes: Cow<'_, [u8]>) -> Option<Cow<'_, str>> {
    match bytes {
        Cow::Borrowed(bytes) => text(bytes).map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    }
}
