//! A rule's preload: what is taken, and the words for what is wrong.

use std::time::Duration;

use super::{BASE, TestFile, parse, problems_of, warnings};
use crate::core::preload::schedule::{DAY, Days};
use crate::core::preload::{Preload, Schedule, Wanted};

fn rule(keys: &str) -> String {
    format!("[[rule]]\nname = \"maps\"\nmatch = 'Any()'\npool = \"app\"\n[rule.preload]\n{keys}\n")
}

const LEAST: &str = "resources = [\"sales\"]\nrequest = \"GET /open?map={resource}\"";

fn read(keys: &str) -> Preload {
    let plan = parse("r.toml", &format!("{BASE}{}", rule(keys))).unwrap_or_else(|errors| panic!("{errors}"));
    let preload = plan.table.rules()[0].preload.as_ref().expect("a preload");
    (**preload).clone()
}

#[test]
fn a_preload_needs_only_its_resources_and_its_request() {
    let preload = read(LEAST);
    assert_eq!(preload.resources, ["sales"]);
    assert_eq!(
        (preload.request.method.as_str(), preload.request.path.as_str()),
        ("GET", "/open?map={resource}")
    );
    assert_eq!((preload.instances, preload.every), (Wanted::Number(1), Duration::from_secs(600)));
    assert_eq!(preload.schedule, Schedule::ALWAYS);
    assert!(!preload.load_on_exhausted && preload.update_exhausted);
}

#[test]
fn days_and_windows_are_read_as_people_write_them() {
    let schedule = |days: &str, window: &str| {
        read(&format!("{LEAST}\ndays = \"{days}\"\nwindow = \"{window}\"")).schedule
    };
    let some = |days: &[u8]| days.iter().fold(Days::NONE, |days, &day| days.with(day));
    let office = schedule("mon-fri", "06:00-20:30");
    assert_eq!(office, Schedule { days: some(&[0, 1, 2, 3, 4]), from: 360, to: 1_230 });
    assert_eq!(schedule("sat-mon, Wed", "22:00-04:00").days, some(&[5, 6, 0, 2]));
    assert_eq!(schedule("sun", "18:00-00:00").to, DAY, "until midnight");
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    for (keys, wanted) in [
        ("resources = []\nrequest = \"GET /\"", "6:13: `resources` must name 1 to 1000, not 0"),
        ("resources = [\"a\", \"a\"]\nrequest = \"GET /{resource}\"", "6:19: resource `a` is named twice"),
        ("resources = [\"a\\n\"]\nrequest = \"GET /\"", "6:14: `resources` is not the name of a resource"),
        ("resources = [\"a\", \"b\"]\nrequest = \"GET /\"", "7:11: `request` is the same for each"),
        ("resources = [\"a\"]\nrequest = \"/a\"", "7:11: `request` is not a method and a path"),
        ("resources = [\"a\"]\nrequest = \"GET a\"", "7:11: `request` is not a method and a path"),
        ("request = \"GET /\"", "5:1: `preload` of a [[rule]] has no `resources`"),
    ] {
        let said = problems_of(&rule(keys));
        assert!(said.starts_with(wanted), "{keys}: {said}");
    }
    for (key, wanted) in [
        ("instances = 0", "8:13: `instances` must be from 1 to 65535, not 0"),
        ("instances = \"most\"", "8:13: `instances` must be a number or \"all\", not \"most\""),
        ("days = \"mon-fry\"", "8:8: `days` are not days of the week"),
        ("days = \"\"", "8:8: `days` are not days of the week"),
        ("window = \"6-20\"", "8:10: `window` is not a window of the day"),
        ("window = \"06:00-24:01\"", "8:10: `window` is not a window of the day"),
        ("window = \"08:00-08:00\"", "8:10: `window` is empty: 08:00-08:00"),
        ("headers = [\"Host: a\"]", "8:12: `headers` cannot set Host, which the router writes itself"),
        ("headers = [\"A: b\\r\\nC: d\"]", "8:12: `headers` has no header field"),
        ("expect = []", "8:10: `expect` is empty"),
        ("evry = \"1m\"", "8:1: unknown key `evry` in `preload` of a [[rule]]"),
    ] {
        let said = problems_of(&rule(&format!("{LEAST}\n{key}")));
        assert!(said.starts_with(wanted), "{key}: {said}");
    }
    let denies = "[[rule]]\nname = \"no\"\nmatch = 'Any()'\naction = \"deny\"\npreload = { resources = [\"a\"], request = \"GET /\" }\n";
    assert!(problems_of(denies).contains("`preload` has no meaning in a rule that denies"));
}

#[test]
fn a_preload_whose_resource_no_listener_finds_is_warned_of() {
    let text = format!("{BASE}{}", rule(LEAST));
    assert!(warnings(&text).contains("no listener finds resources in requests"), "{}", warnings(&text));
    let found = text.replacen("[[pool]]", "resource = { query = \"map\" }\n[[pool]]", 1);
    assert_eq!(warnings(&found), "");
}

#[test]
fn secret_fields_come_from_a_file_and_are_never_shown() {
    let with = |file: &TestFile| {
        format!("{LEAST}\nheaders = [\"X-Why: preload\"]\nheaders_file = \"{}\"", file.path())
    };
    let good =
        TestFile::holding("good.headers", "# for the maps\nAuthorization: Bearer hush\n\nX-Map:{resource}\n");
    let request = read(&with(&good)).request;
    let head = String::from_utf8(request.head("sales", "10.0.2.11:80".parse().unwrap())).unwrap();
    for field in ["X-Why: preload", "Authorization: Bearer hush", "X-Map: sales"] {
        assert!(head.contains(&format!("\r\n{field}\r\n")), "{head}");
    }
    let shown = format!("{request:?}");
    assert!(shown.contains("Authorization: (secret)") && !shown.contains("hush"), "{shown}");

    for (text, wanted) in [
        ("# none\n", "holds no header field"),
        ("A: b\nBearer hush\n", "has no header field in line 2"),
        ("Host: hush\n", "sets Host in line 1, which the router writes itself (use the key `host`)"),
    ] {
        let file = TestFile::holding("bad.headers", text);
        let said = problems_of(&rule(&with(&file)));
        assert!(said.starts_with("9:16: the headers file /") && said.contains(wanted), "{said}");
        assert!(!said.contains("hush"), "{said}");
    }
}
