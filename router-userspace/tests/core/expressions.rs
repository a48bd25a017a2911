//! The grammar: precedence, strings, and errors that say where and what to do.

use proptest::prelude::*;
use router::core::rules::{compile, function_names};

use crate::support::*;

/// Whether an expression over T (true) and F (false) holds.
fn truth(expression: &str) -> bool {
    let text = expression.replace('T', "Any()").replace('F', "Http10()");
    get("/").matches(&text)
}

#[test]
fn not_binds_closer_than_and_and_and_closer_than_or() {
    assert!(truth("T || F && F"));
    assert!(truth("F && F || T"));
    assert!(!truth("(T || F) && F"));
    assert!(truth("!F && T"));
    assert!(!truth("!(F || T)"));
    assert!(truth("!!T"));
    assert!(!truth("!!!T"));
    assert!(truth("!(F && (T || F)) && !(!T)"));
    assert!(truth(" T\n\t&& T "));
}

#[test]
fn strings_in_both_quotations() {
    let ask = get("/").header("X", r#"say "hi" \ `"#);
    assert!(ask.matches(r#"HeaderContains("X", "\"hi\" \\")"#));
    assert!(ask.matches(r#"HeaderContains("X", `"hi" \`)"#));
    assert!(
        get("/a1.png").matches(r#"PathRegexp("\d\.png$")"#),
        "a backslash before anything else stands for itself"
    );
    assert!(ask.matches(r#"!Header("X", "é€")"#));
}

/// Compiles, and returns the offending text, the message and the help.
fn error(source: &str) -> (String, String, String) {
    let error = compile(source).expect_err(source);
    (source[error.span].to_owned(), error.message, error.help)
}

#[track_caller]
fn complains(source: &str, token: &str, message: &str, help: &str) {
    let (at, said, advice) = error(source);
    assert_eq!(at, token, "{source}: {said}");
    assert!(said.contains(message), "{source}: {said}");
    assert!(advice.contains(help), "{source}: {advice}");
}

#[test]
fn errors_point_at_the_offending_token_and_say_what_to_do() {
    complains("", "", "empty", "Any()");
    complains("Any() Any()", "Any", "unexpected Any", "&& or ||");
    complains("Any() &&", "", "ends too early", "a function");
    complains("&& Any()", "&&", "unexpected &&", "a function");
    complains("Any() & Any()", "&", "single &", "&&");
    complains("Any() | Any()", "|", "single |", "||");
    complains("Any() and Any()", "and", "unexpected and", "&&");
    complains("not Any()", "not", "not followed by (", "write !");
    complains("(Any()", "(", "never closed", ")");
    complains("(Any() Any()", "Any", "unexpected Any", ")");
    complains("Any())", ")", "unexpected )", "the end");
    complains("Any(", "", "ends too early", "a string");
    complains(r#"Host("a""#, "(", "never closed", ")");
    complains(r#"Host("a" "b")"#, r#""b""#, "unexpected string", ", or )");
    complains("Host(a.example)", "a.example", "not a string", r#""a.example""#);
    complains("PathPrefix(/x)", "/x", "not a string", r#""/x""#);
    complains(r#"Host("a.example)"#, r#""a.example)"#, "does not end", "close it with \"");
    complains("Host(`a)", "`a)", "does not end", "`");
    complains("Host('a')", "'", "cannot begin with '", "\"");
    complains("Host(\"a\") @", "@", "unexpected character '@'", "&&");
    complains("é", "é", "not followed by (", "call a function");
}

#[test]
fn unknown_functions_get_a_suggestion() {
    complains(
        r#"Any() && PathPrefx("/x")"#,
        "PathPrefx",
        "no function PathPrefx",
        "did you mean PathPrefix?",
    );
    complains(r#"pathprefix("/x")"#, "pathprefix", "no function", "PathPrefix?");
    complains(r#"ClientIp("10.0.0.0/8")"#, "ClientIp", "no function", "ClientIP?");
    complains(r#"Headers("K", "v")"#, "Headers", "no function", "Header?");
    complains("Weather()", "Weather", "no function", "the functions are Any, Host");
}

#[test]
fn the_wrong_number_of_arguments_points_at_the_first_too_many() {
    complains(r#"Any("x")"#, r#""x""#, "takes no arguments, not 1", "for example Any()");
    complains("Host()", "Host()", "at least one argument, not 0", "Host(\"a.example\"");
    complains(r#"Header("a", "b", "c")"#, r#""c""#, "1 or 2 arguments, not 3", "Header(\"X-Tenant\"");
    complains(r#"HeaderRegexp("a")"#, r#"HeaderRegexp("a")"#, "exactly 2 arguments, not 1", "HeaderRegexp(");
}

#[test]
fn arguments_that_can_never_match_are_errors() {
    complains(r#"Host("*.example")"#, r#""*.example""#, "no wildcards", "HostSuffix");
    complains(r#"Host("http://a.example/")"#, r#""http://a.example/""#, "not a host name", "without scheme");
    complains(r#"Host("münchen.example")"#, r#""münchen.example""#, "not ASCII", "xn--");
    complains(r#"HostSNI("www*.example")"#, r#""www*.example""#, "whole first label", "HostSNISuffix");
    complains(r#"HostSNI("*example")"#, r#""*example""#, "not a server name", "\"*.example\"");
    complains(r#"HostSNI("*.*.example")"#, r#""*.*.example""#, "not a server name", "\"*.example\"");
    complains(r#"HostSNISuffix("*.example")"#, r#""*.example""#, "no wildcards", "HostSuffix");
    complains(r#"ALPN("")"#, r#""""#, "not a protocol", "\"h2\"");
    complains(r#"Path("login")"#, r#""login""#, "begins with /", "\"/login\"");
    complains(r#"PathPrefix("/a?b")"#, r#""/a?b""#, "query", "Query(");
    complains(r#"Path("/a%20b")"#, r#""/a%20b""#, "never match", "\"/a b\"");
    complains(r#"PathPrefix("/a//b/")"#, r#""/a//b/""#, "never match", "\"/a/b/\"");
    complains(r#"PathPrefix("/a/../..")"#, r#""/a/../..""#, "never match", "");
    complains(r#"Path("/a%zz")"#, r#""/a%zz""#, "never match", "");
    complains(r#"PathContains("")"#, r#""""#, "empty", "");
    complains(r#"Extension("tar.gz")"#, r#""tar.gz""#, "not a file extension", "PathSuffix");
    complains(r#"Method("GE T")"#, r#""GE T""#, "not an HTTP method", "letters");
    complains(r#"Header("X Y", "v")"#, r#""X Y""#, "not a header name", "letters");
    complains(r#"ClientIP("10.0.0.0/33")"#, r#""10.0.0.0/33""#, "not a network", "10.0.0.0/8");
    complains(r#"ClientIP("localhost")"#, r#""localhost""#, "not a network", "10.0.0.0/8");
    for fine in
        [r#"PathPrefix("/a/.")"#, r#"PathPrefix("/")"#, r#"Path("/100%25")"#, r#"PathPrefix("/.well-known")"#]
    {
        assert!(compile(fine).is_ok(), "{fine}");
    }
}

#[test]
fn regular_expressions_are_checked_and_bounded() {
    complains(
        r#"PathRegexp("a(b")"#,
        r#""a(b""#,
        "not a regular expression: unclosed group",
        "docs.rs/regex",
    );
    complains(r#"HeaderRegexp("A", "(?=x)")"#, r#""(?=x)""#, "not a regular expression: look-around", "");
    complains(r#"PathRegexp("(a{1000}){1000}")"#, r#""(a{1000}){1000}""#, "1048576 bytes", "smaller");
    complains(r#"CookieRegexp("a", "(\w{500}){500}")"#, r#""(\w{500}){500}""#, "1048576 bytes", "smaller");
}

#[test]
fn ten_thousand_parentheses_are_a_clear_error_and_no_stack_overflow() {
    let deep = |open: &str, close: &str, n: usize| format!("{}Any(){}", open.repeat(n), close.repeat(n));
    for (open, close) in [("(", ")"), ("!(", ")"), ("(Any() && ", ")"), ("(Any() || !", ")")] {
        let (_, message, help) = error(&deep(open, close, 10_000));
        assert!(message.contains("nested more than 128 deep") && help.contains("flatter"), "{message}");
        assert!(get("/").matches(&deep(open, close, 128)), "{open}");
    }
    assert!(compile(&"(".repeat(10_000)).is_err());
    assert!(get("/").matches(&format!("{}Any()", "!".repeat(10_000))));
    assert!(get("/").matches(&vec!["Any()"; 10_000].join(" && ")));
    assert!(!get("/").matches(&vec!["Http10()"; 10_000].join(" || ")));
}

#[test]
fn the_listeners_that_a_rule_names_can_be_checked() {
    let condition = compile(r#"Any() && (Listener("a", "b") || !Listener("c"))"#).unwrap();
    let names: Vec<_> = condition.listeners().map(|argument| argument.value.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

/// A random expression, and what it evaluates to.
fn expression() -> impl Strategy<Value = (String, bool)> {
    let leaf = any::<bool>().prop_map(|value| (if value { "Any()" } else { "Http10()" }.to_owned(), value));
    leaf.prop_recursive(6, 64, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|(text, value)| (format!("!({text})"), !value)),
            (inner.clone(), inner.clone()).prop_map(|((a, x), (b, y))| (format!("({a}) && ({b})"), x && y)),
            (inner.clone(), inner.clone()).prop_map(|((a, x), (b, y))| (format!("(({a})||({b}))"), x || y)),
            (inner.clone(), inner.clone(), inner)
                .prop_map(|((a, x), (b, y), (c, z))| (format!("({a}) || ({b}) && !({c})"), x || y && !z)),
        ]
    })
}

/// Text made of what expressions are made of.
fn fragments() -> impl Strategy<Value = String> {
    let names: Vec<&'static str> = function_names().collect();
    let piece = prop_oneof![
        prop::sample::select(names),
        prop::sample::select(vec![
            "(", ")", ",", "&&", "||", "!", "\"a\"", "\"/x\"", "`\\d`", "\"", "\\", " ", "é", "'", "User"
        ]),
    ];
    prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
}

fn never_panics(source: &str) {
    match compile(source) {
        Ok(condition) => {
            let explained = get("/x").seen(|request| condition.explain(request));
            assert_eq!(explained.matched, get("/x").seen(|request| condition.matches(request)));
            assert_eq!(explained.matched, explained.failed.is_none());
        }
        Err(error) => {
            assert!(
                source.get(error.span.clone()).is_some(),
                "{source:?}: {:?} is no place in it",
                error.span
            );
            assert!(!error.message.is_empty() && !error.help.is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn jumps_give_what_logic_gives((text, value) in expression()) {
        prop_assert_eq!(get("/").matches(&text), value, "{}", text);
    }

    #[test]
    fn any_text_compiles_or_fails_at_a_place_in_it(source in any::<String>()) {
        never_panics(&source);
    }

    #[test]
    fn any_heap_of_tokens_compiles_or_fails_at_a_place_in_it(source in fragments()) {
        never_panics(&source);
    }
}
