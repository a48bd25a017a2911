//! Spellings of a path: what rules see, what is refused, and that no spelling dodges a rule.

use proptest::prelude::*;
use router::core::decide::Outcome;
use router::core::path::{PathError, normalise};
use router::core::table::Action;

use crate::support::*;

fn normal(raw: &str) -> String {
    normalise(raw).unwrap_or_else(|error| panic!("{raw}: {error}")).into_owned()
}

#[test]
fn ordinary_paths_stay_as_they_are_and_are_not_copied() {
    for path in ["/", "/a", "/a/", "/a/b.c/d..e", "/a;x=1", "/a b", "/é", "/a.", "/~u/*&=+@:,"] {
        assert!(matches!(normalise(path), Ok(std::borrow::Cow::Borrowed(same)) if same == path), "{path}");
    }
}

#[test]
fn escapes_are_decoded_where_they_mean_only_themselves() {
    assert_eq!(normal("/%61%2Eb"), "/a.b");
    assert_eq!(normal("/caf%c3%a9"), "/café");
    assert_eq!(normal("/a%20b"), "/a b");
    assert_eq!(normal("/group%2fproject"), "/group/project");
}

#[test]
fn escapes_that_would_mean_something_else_stay() {
    assert_eq!(normal("/100%25"), "/100%25");
    assert_eq!(normal("/%252e%252e/x"), "/%252e%252e/x");
    assert_eq!(normal("/a%3fb%23c"), "/a%3Fb%23c");
    assert_eq!(normal("/a%0d%0ab%7f"), "/a%0D%0Ab%7F");
    assert_eq!(normal("/caf%e9"), "/caf%E9", "Latin-1 is not UTF-8");
    assert_eq!(normal("/%ff%61%c3"), "/%FFa%C3");
    assert_eq!(normal("/%ed%a0%80"), "/%ED%A0%80", "a surrogate is no character");
}

#[test]
fn dot_segments_are_resolved_however_they_are_spelled() {
    assert_eq!(normal("/a/./b"), "/a/b");
    assert_eq!(normal("/a/../b"), "/b");
    assert_eq!(normal("/a/b/.."), "/a/");
    assert_eq!(normal("/a/."), "/a/");
    assert_eq!(normal("/a/.."), "/");
    for dots in ["%2e%2e", ".%2E", "%2e.", "..;x=1", "%2e%2e;", "%c0%ae%c0%ae", "%e0%80%ae.", "%f0%80%80%ae."]
    {
        assert_eq!(normal(&format!("/public/{dots}/admin")), "/admin", "{dots}");
    }
    assert_eq!(normal("/.well-known/x"), "/.well-known/x");
    assert_eq!(normal("/..a/b.."), "/..a/b..");
}

#[test]
fn repeated_slashes_are_merged() {
    assert_eq!(normal("//a///b//"), "/a/b/");
    assert_eq!(normal("//"), "/");
}

#[test]
fn what_no_server_should_get_is_refused() {
    for (path, error) in [
        ("", PathError::NotAbsolute),
        ("a", PathError::NotAbsolute),
        ("/%", PathError::BadEscape),
        ("/%4", PathError::BadEscape),
        ("/%zz", PathError::BadEscape),
        ("/%4é", PathError::BadEscape),
        ("/%+1", PathError::BadEscape),
        ("/a%00.png", PathError::Nul),
        ("/a%c0%80", PathError::Nul),
        ("/a#b", PathError::Fragment),
        ("/a?b", PathError::Query),
        ("/..", PathError::AboveRoot),
        ("/a/../..", PathError::AboveRoot),
        ("/%2e%2e/x", PathError::AboveRoot),
        ("/a%2f..%2fb", PathError::Ambiguous),
        ("/public/a%2fb/../../admin", PathError::Ambiguous),
        ("/pub/../admin//../pub", PathError::Ambiguous),
        ("/a/b%c0%af../c", PathError::Ambiguous),
    ] {
        assert_eq!(normalise(path), Err(error), "{path:?}");
    }
}

#[test]
fn a_rule_cannot_be_dodged_by_spelling() {
    let rules = vec![
        rule("admin", r#"PathPrefix("/admin")"#, Action::Deny { status: 403 }),
        rule("public", r#"PathPrefix("/public")"#, FIRST),
    ];
    let table = table(rules, vec![pool("p", [instance("a")])]);
    for path in [
        "/%61dmin",
        "//admin",
        "/./admin",
        "/public/../admin",
        "/public/%2e%2e/admin",
        "/public/..;/admin/x",
        "/%2fadmin",
    ] {
        assert_eq!(table.outcome(&get(path)), Outcome::AmbiguousPath, "{path}");
        assert_eq!(table.live("a"), 0);
    }
    for path in ["/admin/%2e/x", "/admin//x", "/admin/%41"] {
        assert_eq!(table.outcome(&get(path)), Outcome::Deny { status: 403 }, "{path}: one rule, either way");
    }
    assert_eq!(table.rule_for(&get("/public/caf%C3%A9/a//b")), "public", "odd spelling, same rule: served");
}

/// Paths made of the pieces that people attack with.
fn odd_path() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("/"),
        Just("."),
        Just(".."),
        Just("%2e"),
        Just("%2F"),
        Just("%c0%ae"),
        Just("%c0%af"),
        Just("%25"),
        Just("2e"),
        Just("%e9"),
        Just("%e2%82"),
        Just("%ac"),
        Just("%0a"),
        Just(";x"),
        Just("a"),
        Just("é"),
        Just(" "),
        Just("%3f"),
        Just("%23"),
        Just("\\"),
        Just("%5c"),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| format!("/{}", pieces.concat()))
}

fn holds_for(raw: &str) {
    let Ok(path) = normalise(raw) else { return };
    assert_eq!(normalise(&path).as_deref(), Ok(&*path), "normalising twice changes nothing: {raw:?}");
    assert!(path.starts_with('/') && !path.contains("//"), "{raw:?} became {path:?}");
    let no_dots = |segment: &str| !matches!(segment.split(';').next(), Some("." | ".."));
    assert!(path.split('/').all(no_dots), "{raw:?} became {path:?}");
    assert!(
        !path.contains(['#', '?']) && !path.contains(|c: char| c.is_ascii_control()),
        "{raw:?} became {path:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_normal_path_is_absolute_stays_normal_and_never_climbs(raw in odd_path()) {
        holds_for(&raw);
    }

    #[test]
    fn no_text_makes_normalising_panic(raw in any::<String>(), rooted in any::<bool>()) {
        holds_for(&if rooted { format!("/{raw}") } else { raw });
    }

    #[test]
    fn every_byte_written_as_an_escape_reads_as_the_byte_itself(text in "[a-zA-Z0-9_~é€-]{1,12}") {
        let escaped: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        prop_assert_eq!(normal(&format!("/{escaped}")), format!("/{text}"));
    }
}
