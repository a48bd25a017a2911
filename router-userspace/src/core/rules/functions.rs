//! The functions of the rule language: their names, what they take, and how a call becomes a predicate.

use std::ops::RangeInclusive;

use ipnet::IpNet;
use regex::{RegexBuilder, bytes};

use super::ExpressionError;
use super::expression::{Argument, Call};
use super::predicate::{NamePattern, Predicate, ValueTest, bare_host};
use crate::core::{networks, path};

/// Greatest size of one compiled regular expression, in bytes.
const REGEX_SIZE_LIMIT: usize = 1 << 20;

const ANY_NUMBER: RangeInclusive<usize> = 1..=usize::MAX;

/// A function: its name, how many arguments it takes, and an example.
struct Function {
    name: &'static str,
    arity: RangeInclusive<usize>,
    example: &'static str,
    build: fn(&Call) -> Result<Predicate, ExpressionError>,
}

const fn function(
    name: &'static str,
    arity: RangeInclusive<usize>,
    example: &'static str,
    build: fn(&Call) -> Result<Predicate, ExpressionError>,
) -> Function {
    Function { name, arity, example, build }
}

const FUNCTIONS: &[Function] = &[
    function("Any", 0..=0, r#"Any()"#, |_| Ok(Predicate::Any)),
    function("Host", ANY_NUMBER, r#"Host("a.example", "b.example")"#, |call| {
        Ok(Predicate::Host(each(call, host_name)?))
    }),
    function("HostSuffix", ANY_NUMBER, r#"HostSuffix("example")"#, |call| {
        Ok(Predicate::HostSuffix(each(call, host_name)?))
    }),
    function("HostRegexp", ANY_NUMBER, r#"HostRegexp("^[a-z]+\.example$")"#, |call| {
        Ok(Predicate::HostRegexp(each(call, |argument| regex(argument, true))?))
    }),
    function("Path", ANY_NUMBER, r#"Path("/login")"#, |call| Ok(Predicate::Path(each(call, whole_path)?))),
    function("PathPrefix", ANY_NUMBER, r#"PathPrefix("/api/")"#, |call| {
        Ok(Predicate::PathPrefix(each(call, path_prefix)?))
    }),
    function("PathSuffix", ANY_NUMBER, r#"PathSuffix("/edit")"#, |call| {
        Ok(Predicate::PathSuffix(each(call, not_empty)?))
    }),
    function("PathContains", ANY_NUMBER, r#"PathContains("/v2/")"#, |call| {
        Ok(Predicate::PathContains(each(call, not_empty)?))
    }),
    function("PathRegexp", ANY_NUMBER, r#"PathRegexp("^/user/\d+$")"#, |call| {
        Ok(Predicate::PathRegexp(each(call, |argument| regex(argument, false))?))
    }),
    function("Extension", ANY_NUMBER, r#"Extension("png", "gif")"#, |call| {
        Ok(Predicate::Extension(each(call, extension)?))
    }),
    function("Method", ANY_NUMBER, r#"Method("GET", "HEAD")"#, |call| {
        Ok(Predicate::Method(each(call, |argument| token(argument, "an HTTP method"))?))
    }),
    function("Header", 1..=2, r#"Header("X-Tenant", "acme")"#, |call| header(call, equals)),
    function("HeaderPrefix", 2..=2, r#"HeaderPrefix("User-Agent", "curl/")"#, |call| {
        header(call, |argument| Ok(ValueTest::StartsWith(argument.value.as_bytes().into())))
    }),
    function("HeaderContains", 2..=2, r#"HeaderContains("User-Agent", "Mobile")"#, |call| {
        header(call, |argument| Ok(ValueTest::Contains(argument.value.as_bytes().into())))
    }),
    function("HeaderRegexp", 2..=2, r#"HeaderRegexp("Accept", "^image/")"#, |call| header(call, matches)),
    function("Cookie", 1..=2, r#"Cookie("beta", "1")"#, |call| cookie(call, equals)),
    function("CookieRegexp", 2..=2, r#"CookieRegexp("tier", "^(gold|silver)$")"#, |call| {
        cookie(call, matches)
    }),
    function("Query", 1..=2, r#"Query("debug", "1")"#, |call| query(call, equals)),
    function("QueryRegexp", 2..=2, r#"QueryRegexp("id", "^\d+$")"#, |call| query(call, matches)),
    function("ClientIP", ANY_NUMBER, r#"ClientIP("10.0.0.0/8", "2001:db8::/32")"#, |call| {
        Ok(Predicate::ClientIp(each(call, network)?))
    }),
    function("HostSNI", ANY_NUMBER, r#"HostSNI("a.example", "*.b.example")"#, |call| {
        Ok(Predicate::HostSni(each(call, name_pattern)?))
    }),
    function("HostSNISuffix", ANY_NUMBER, r#"HostSNISuffix("example")"#, |call| {
        Ok(Predicate::HostSniSuffix(each(call, host_name)?))
    }),
    function("ALPN", ANY_NUMBER, r#"ALPN("h2")"#, |call| Ok(Predicate::Alpn(each(call, alpn_protocol)?))),
    function("Listener", ANY_NUMBER, r#"Listener("web")"#, |call| {
        Ok(Predicate::Listener(each(call, not_empty)?))
    }),
    function("User", ANY_NUMBER, r#"User("alice")"#, |call| Ok(Predicate::User(each(call, not_empty)?))),
    function("Group", ANY_NUMBER, r#"Group("finance")"#, |call| Ok(Predicate::Group(each(call, not_empty)?))),
    function("Resource", ANY_NUMBER, r#"Resource("sales")"#, |call| {
        Ok(Predicate::Resource(each(call, not_empty)?))
    }),
    function("ResourcePrefix", ANY_NUMBER, r#"ResourcePrefix("eu-")"#, |call| {
        Ok(Predicate::ResourcePrefix(each(call, not_empty)?))
    }),
    function("ResourceRegexp", ANY_NUMBER, r#"ResourceRegexp("^q[1-4]-")"#, |call| {
        Ok(Predicate::ResourceRegexp(each(call, |argument| regex(argument, false))?))
    }),
    function("Http10", 0..=0, r#"Http10()"#, |_| Ok(Predicate::Http10)),
    function("Tls", 0..=0, r#"Tls()"#, |_| Ok(Predicate::Tls)),
];

/// The functions that an expression can use.
pub fn function_names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().map(|function| function.name)
}

/// Checks a call and compiles it.
pub(super) fn predicate(call: &Call) -> Result<Predicate, ExpressionError> {
    let Some(function) = FUNCTIONS.iter().find(|function| function.name == call.name) else {
        return Err(unknown(call));
    };
    let given = call.arguments.len();
    if !function.arity.contains(&given) {
        let (least, most) = (*function.arity.start(), *function.arity.end());
        let takes = match (least, most) {
            (0, 0) => "no arguments".to_owned(),
            (1, usize::MAX) => "at least one argument".to_owned(),
            (least, most) if least == most => format!("exactly {least} arguments"),
            (least, most) => format!("{least} or {most} arguments"),
        };
        // The first argument too many is what is wrong, else the whole call.
        let span = call.arguments.get(most).map_or(call.span.clone(), |extra| extra.span.clone());
        return Err(ExpressionError::new(
            span,
            format!("{} takes {takes}, not {given}", call.name),
            format!("for example {}", function.example),
        ));
    }
    (function.build)(call)
}

fn unknown(call: &Call) -> ExpressionError {
    let span = call.name_span.clone();
    let distance = |name: &str| strsim::damerau_levenshtein(&name.to_lowercase(), &call.name.to_lowercase());
    // Comparing costs the product of both lengths, and nobody mistypes a name into a long text.
    let nearest = function_names()
        .filter(|_| call.name.len() <= 64)
        .min_by_key(|name| distance(name))
        .filter(|name| distance(name) <= 1 + name.len() / 4);
    let help = match nearest {
        Some(name) => format!("did you mean {name}?"),
        None => format!("the functions are {}", function_names().collect::<Vec<_>>().join(", ")),
    };
    ExpressionError::new(span, format!("there is no function {}", call.name), help)
}

fn each<T>(
    call: &Call,
    convert: impl Fn(&Argument) -> Result<T, ExpressionError>,
) -> Result<Box<[T]>, ExpressionError> {
    call.arguments.iter().map(convert).collect()
}

fn invalid(argument: &Argument, message: impl Into<String>, help: impl Into<String>) -> ExpressionError {
    ExpressionError::new(argument.span.clone(), message, help)
}

fn not_empty(argument: &Argument) -> Result<Box<str>, ExpressionError> {
    if argument.value.is_empty() {
        return Err(invalid(argument, "the argument is empty", "write what the request must contain"));
    }
    Ok(argument.value.as_str().into())
}

fn host_name(argument: &Argument) -> Result<Box<str>, ExpressionError> {
    let host = bare_host(&argument.value);
    if host.contains('*') {
        return Err(invalid(
            argument,
            "a host name has no wildcards",
            "use HostSuffix(\"example\") or HostRegexp(…)",
        ));
    }
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '?' | '#' | '@');
    if host.is_empty() || argument.value.contains(odd) {
        let help = "write the host alone, without scheme and path, such as \"a.example\"";
        return Err(invalid(argument, format!("{:?} is not a host name", argument.value), help));
    }
    if !host.is_ascii() {
        let help = "write an international name in its ASCII form (xn--…), as browsers send it";
        return Err(invalid(argument, format!("{:?} is not ASCII", argument.value), help));
    }
    Ok(host.to_ascii_lowercase().into())
}

/// A server name, or what stands for several: `*.example` for one label below it, as in certificates, and `*` for every name and none.
fn name_pattern(argument: &Argument) -> Result<NamePattern, ExpressionError> {
    let Some(rest) = argument.value.strip_prefix('*') else {
        return match host_name(argument) {
            Err(error) if argument.value.contains('*') => Err(ExpressionError {
                message: "a wildcard stands for the whole first label".to_owned(),
                help: "write \"*.example\", or use HostSNISuffix(\"example\")".to_owned(),
                ..error
            }),
            name => Ok(NamePattern::Exact(name?)),
        };
    };
    if rest.is_empty() {
        return Ok(NamePattern::Any);
    }
    let below = rest.strip_prefix('.').filter(|parent| !parent.is_empty() && !parent.contains('*'));
    let Some(parent) = below else {
        let help = "write \"*.example\" for the names just below example, or \"*\" for every name";
        return Err(invalid(argument, format!("{:?} is not a server name", argument.value), help));
    };
    let parent = host_name(&Argument { value: parent.to_owned(), span: argument.span.clone() })?;
    Ok(NamePattern::Below(format!(".{parent}").into()))
}

/// A protocol's name as IANA registers it (RFC 7301 §6); at most 255 bytes.
fn alpn_protocol(argument: &Argument) -> Result<Box<[u8]>, ExpressionError> {
    if (1..=255).contains(&argument.value.len()) {
        return Ok(argument.value.as_bytes().into());
    }
    let help = "write a name such as \"h2\" or \"http/1.1\"";
    Err(invalid(argument, format!("{:?} is not a protocol", argument.value), help))
}

fn whole_path(argument: &Argument) -> Result<Box<str>, ExpressionError> {
    reachable_path(argument, "")
}

/// Any path may go on behind a prefix, so what stands at its end is not judged alone.
fn path_prefix(argument: &Argument) -> Result<Box<str>, ExpressionError> {
    reachable_path(argument, "x")
}

/// A path that no normalised path can equal would be a rule that silently never matches.
fn reachable_path(argument: &Argument, tail: &str) -> Result<Box<str>, ExpressionError> {
    let path = argument.value.as_str();
    if !path.starts_with('/') {
        let help = format!("write \"/{path}\", or use PathContains(…) or PathSuffix(…)");
        return Err(invalid(argument, "a path begins with /", help));
    }
    if path.contains('?') {
        return Err(invalid(argument, "the query is not part of the path", "use Query(\"name\", \"value\")"));
    }
    let whole = format!("{path}{tail}");
    match path::normalise(&whole) {
        Ok(normal) if normal == whole => Ok(path.into()),
        Ok(normal) => {
            let normal = normal.strip_suffix(tail).unwrap_or(&normal);
            Err(invalid(
                argument,
                "this path can never match: rules see normalised paths",
                format!("write {normal:?}"),
            ))
        }
        Err(error) => Err(invalid(
            argument,
            format!("this path can never match: {error}"),
            "write the path as it is after decoding and without dot segments",
        )),
    }
}

fn extension(argument: &Argument) -> Result<Box<str>, ExpressionError> {
    let extension = argument.value.strip_prefix('.').unwrap_or(&argument.value);
    if extension.is_empty() || extension.contains(['.', '/']) {
        let help = "write what follows the last dot, such as \"png\"; for more use PathSuffix(…)";
        return Err(invalid(argument, format!("{:?} is not a file extension", argument.value), help));
    }
    Ok(extension.into())
}

/// A token of RFC 9110 §5.6.2.
fn token(argument: &Argument, what: &str) -> Result<Box<str>, ExpressionError> {
    let is_token_char = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if argument.value.is_empty() || !argument.value.bytes().all(is_token_char) {
        let help = "it is made of letters, digits and !#$%&'*+-.^_`|~";
        return Err(invalid(argument, format!("{:?} is not {what}", argument.value), help));
    }
    Ok(argument.value.as_str().into())
}

type BuildTest = fn(&Argument) -> Result<ValueTest, ExpressionError>;

fn equals(argument: &Argument) -> Result<ValueTest, ExpressionError> {
    Ok(ValueTest::Equals(argument.value.as_bytes().into()))
}

fn matches(argument: &Argument) -> Result<ValueTest, ExpressionError> {
    bytes::RegexBuilder::new(&argument.value)
        .size_limit(REGEX_SIZE_LIMIT)
        .build()
        .map(ValueTest::Matches)
        .map_err(|error| regex_error(argument, &error))
}

/// The test of a call `F("name")` or `F("name", "value")`.
fn value_test(call: &Call, build: BuildTest) -> Result<ValueTest, ExpressionError> {
    call.arguments.get(1).map_or(Ok(ValueTest::Present), build)
}

fn header(call: &Call, build: BuildTest) -> Result<Predicate, ExpressionError> {
    Ok(Predicate::Header(token(&call.arguments[0], "a header name")?, value_test(call, build)?))
}

fn cookie(call: &Call, build: BuildTest) -> Result<Predicate, ExpressionError> {
    Ok(Predicate::Cookie(token(&call.arguments[0], "a cookie name")?, value_test(call, build)?))
}

fn query(call: &Call, build: BuildTest) -> Result<Predicate, ExpressionError> {
    Ok(Predicate::Query(not_empty(&call.arguments[0])?, value_test(call, build)?))
}

/// The networks of a `ClientIP`; `None` if one is wrong, which compiling has reported.
pub(super) fn networks(call: &Call) -> Option<Vec<IpNet>> {
    call.arguments.iter().map(|argument| network(argument).ok()).collect()
}

fn network(argument: &Argument) -> Result<IpNet, ExpressionError> {
    networks::parse(argument.value.trim()).ok_or_else(|| {
        let help = "write an address or a network, such as \"10.0.0.0/8\" or \"2001:db8::/32\"";
        invalid(argument, format!("{:?} is not a network", argument.value), help)
    })
}

fn regex(argument: &Argument, ignore_case: bool) -> Result<regex::Regex, ExpressionError> {
    RegexBuilder::new(&argument.value)
        .size_limit(REGEX_SIZE_LIMIT)
        .case_insensitive(ignore_case)
        .build()
        .map_err(|error| regex_error(argument, &error))
}

fn regex_error(argument: &Argument, error: &regex::Error) -> ExpressionError {
    match error {
        regex::Error::CompiledTooBig(limit) => invalid(
            argument,
            format!("the regular expression needs more than {limit} bytes when compiled"),
            "make its repetitions smaller, or split it",
        ),
        // The last line says what is wrong; those before draw a picture of the expression.
        other => {
            let text = other.to_string();
            let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            let help = "see https://docs.rs/regex/#syntax; look-around and back-references do not exist";
            invalid(argument, format!("not a regular expression: {reason}"), help)
        }
    }
}
