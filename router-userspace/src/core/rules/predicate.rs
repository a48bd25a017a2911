//! What each function means for a request. A function that asks for something the request does not have (a path on a
//! connection without HTTP, say) does not hold.

use ipnet::IpNet;
use regex::{Regex, bytes};

use super::super::identity::Identity;
use super::super::request::{ClientHello, HttpVersion, Request};
use super::fields;

/// A request seen through one spelling of its path.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    request: &'a Request<'a>,
    identity: &'a Identity<'a>,
    path: Option<&'a str>,
}

impl<'a> View<'a> {
    /// The path as rules see it.
    pub fn normalised(request: &'a Request<'a>, identity: &'a Identity<'a>) -> Self {
        Self { request, identity, path: request.http.as_ref().map(|http| http.path) }
    }

    /// The path as it was sent, if that is another spelling.
    pub fn raw(request: &'a Request<'a>, identity: &'a Identity<'a>) -> Option<Self> {
        let http = request.http.as_ref()?;
        (http.raw_path != http.path).then_some(Self { request, identity, path: Some(http.raw_path) })
    }

    pub(super) fn request(&self) -> &'a Request<'a> {
        self.request
    }

    pub(super) fn path(&self) -> Option<&'a str> {
        self.path
    }

    fn any_resource(&self, texts: &Texts, holds: impl Fn(&str, &str) -> bool) -> bool {
        let resource = self.identity.resource.as_deref();
        resource.is_some_and(|resource| texts.iter().any(|text| holds(resource, text)))
    }

    fn headers(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let headers = self.request.http.as_ref().map_or(&[][..], |http| http.headers);
        headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    }
}

/// What a value is compared with.
#[derive(Clone, Debug)]
pub(super) enum ValueTest {
    Present,
    Equals(Box<[u8]>),
    StartsWith(Box<[u8]>),
    Contains(Box<[u8]>),
    Matches(bytes::Regex),
}

impl ValueTest {
    fn holds(&self, value: &[u8]) -> bool {
        match self {
            Self::Present => true,
            Self::Equals(wanted) => value == &**wanted,
            Self::StartsWith(wanted) => value.starts_with(wanted),
            Self::Contains(wanted) => contains(value, wanted),
            Self::Matches(regex) => regex.is_match(value),
        }
    }
}

fn contains(value: &[u8], wanted: &[u8]) -> bool {
    wanted.is_empty() || value.windows(wanted.len()).any(|window| window == wanted)
}

type Texts = Box<[Box<str>]>;

/// Which server names one argument of `HostSNI` stands for. Lower case, without a trailing dot.
#[derive(Clone, Debug)]
pub(super) enum NamePattern {
    /// Every one, and none.
    Any,
    Exact(Box<str>),
    /// Names of one more label; with the leading dot.
    Below(Box<str>),
}

impl NamePattern {
    fn holds(&self, name: Option<&str>) -> bool {
        let Some(name) = name else { return matches!(self, Self::Any) };
        match self {
            Self::Any => true,
            Self::Exact(wanted) => name.eq_ignore_ascii_case(wanted),
            Self::Below(parent) => {
                in_domain(name, parent) && !name[..name.len() - parent.len()].contains('.')
            }
        }
    }
}

/// One compiled call. Where it holds several values, one of them suffices.
#[derive(Clone, Debug)]
pub(super) enum Predicate {
    Any,
    /// Lower case, without port and trailing dot.
    Host(Texts),
    /// Lower case, without trailing dot; with a leading dot, the domain itself does not match.
    HostSuffix(Texts),
    HostRegexp(Box<[Regex]>),
    Path(Texts),
    PathPrefix(Texts),
    PathSuffix(Texts),
    PathContains(Texts),
    PathRegexp(Box<[Regex]>),
    /// Without the dot.
    Extension(Texts),
    Method(Texts),
    Header(Box<str>, ValueTest),
    Cookie(Box<str>, ValueTest),
    Query(Box<str>, ValueTest),
    ClientIp(Box<[IpNet]>),
    HostSni(Box<[NamePattern]>),
    /// As in [`Self::HostSuffix`].
    HostSniSuffix(Texts),
    Alpn(Box<[Box<[u8]>]>),
    Listener(Texts),
    User(Texts),
    Group(Texts),
    Resource(Texts),
    ResourcePrefix(Texts),
    ResourceRegexp(Box<[Regex]>),
    Http10,
    Tls,
}

impl Predicate {
    pub(super) fn holds(&self, view: &View<'_>) -> bool {
        let request = view.request;
        match self {
            Self::Any => true,
            Self::ClientIp(networks) => networks.iter().any(|network| network.contains(&request.client)),
            Self::Listener(names) => names.iter().any(|name| **name == *request.listener),
            Self::Tls => request.tls.is_some(),
            Self::HostSni(_) | Self::HostSniSuffix(_) | Self::Alpn(_) => {
                request.tls.as_ref().is_some_and(|hello| self.hello_holds(hello))
            }
            Self::User(names) => {
                view.identity.user.as_deref().is_some_and(|user| names.iter().any(|name| **name == *user))
            }
            Self::Group(names) => {
                view.identity.groups().any(|group| names.iter().any(|name| **name == *group))
            }
            Self::Resource(texts) => view.any_resource(texts, |resource, text| resource == text),
            Self::ResourcePrefix(texts) => {
                view.any_resource(texts, |resource, text| resource.starts_with(text))
            }
            Self::ResourceRegexp(regexes) => view
                .identity
                .resource
                .as_deref()
                .is_some_and(|resource| regexes.iter().any(|regex| regex.is_match(resource))),
            Self::Header(name, test) => view.headers(name).any(|value| test.holds(value)),
            Self::Cookie(name, test) => view
                .headers("cookie")
                .flat_map(|header| fields::cookie_values(header, name.as_bytes()))
                .any(|value| test.holds(value)),
            Self::Path(texts) => any_path(view, texts, |path, text| path == text),
            Self::PathPrefix(texts) => any_path(view, texts, |path, text| path.starts_with(text)),
            Self::PathSuffix(texts) => any_path(view, texts, |path, text| path.ends_with(text)),
            Self::PathContains(texts) => any_path(view, texts, |path, text| path.contains(text)),
            Self::PathRegexp(regexes) => {
                view.path.is_some_and(|path| regexes.iter().any(|regex| regex.is_match(path)))
            }
            Self::Extension(texts) => view
                .path
                .and_then(extension)
                .is_some_and(|extension| texts.iter().any(|text| extension.eq_ignore_ascii_case(text))),
            Self::Host(_) | Self::HostSuffix(_) | Self::HostRegexp(_) => {
                let host = request.http.as_ref().and_then(|http| http.host);
                host.is_some_and(|host| self.host_holds(bare_host(host)))
            }
            Self::Method(_) | Self::Query(..) | Self::Http10 => {
                request.http.as_ref().is_some_and(|http| match self {
                    Self::Method(texts) => texts.iter().any(|text| **text == *http.method),
                    Self::Query(name, test) => http.query.is_some_and(|query| {
                        fields::query_values(query, name.as_bytes()).any(|value| test.holds(&value))
                    }),
                    _ => http.version == HttpVersion::Http10,
                })
            }
        }
    }

    fn hello_holds(&self, hello: &ClientHello<'_>) -> bool {
        match self {
            Self::HostSni(patterns) => patterns.iter().any(|pattern| pattern.holds(hello.server_name)),
            Self::HostSniSuffix(suffixes) => {
                hello.server_name.is_some_and(|name| suffixes.iter().any(|suffix| in_domain(name, suffix)))
            }
            Self::Alpn(protocols) => {
                hello.alpn.iter().any(|offered| protocols.iter().any(|wanted| **wanted == **offered))
            }
            _ => false,
        }
    }

    fn host_holds(&self, host: &str) -> bool {
        match self {
            Self::Host(names) => names.iter().any(|name| host.eq_ignore_ascii_case(name)),
            Self::HostSuffix(suffixes) => suffixes.iter().any(|suffix| in_domain(host, suffix)),
            Self::HostRegexp(regexes) => regexes.iter().any(|regex| regex.is_match(host)),
            _ => false,
        }
    }
}

fn any_path(view: &View<'_>, texts: &Texts, holds: impl Fn(&str, &str) -> bool) -> bool {
    view.path.is_some_and(|path| texts.iter().any(|text| holds(path, text)))
}

/// What follows the last dot of the last segment.
fn extension(path: &str) -> Option<&str> {
    let segment = path.rsplit('/').next()?;
    segment.rsplit_once('.').map(|(_, extension)| extension)
}

/// `www.example` is in the domain `example`, and so is `example` itself; only the former is in `.example`.
fn in_domain(host: &str, suffix: &str) -> bool {
    let Some(start) = host.len().checked_sub(suffix.len()) else { return false };
    let ends = host.as_bytes()[start..].eq_ignore_ascii_case(suffix.as_bytes());
    ends && (start == 0 || suffix.starts_with('.') || host.as_bytes()[start - 1] == b'.')
        && !(start == 0 && suffix.starts_with('.'))
}

/// A host without port, without the brackets of an IPv6 address and without a trailing dot.
pub(super) fn bare_host(host: &str) -> &str {
    let host = if let Some(rest) = host.strip_prefix('[') {
        rest.split(']').next().unwrap_or(rest)
    } else {
        match host.split_once(':') {
            Some((name, port)) if !port.contains(':') => name,
            _ => host,
        }
    };
    host.strip_suffix('.').unwrap_or(host)
}
