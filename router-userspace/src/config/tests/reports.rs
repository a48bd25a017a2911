//! What an operator sees: order, places, carets, and how much of it.

use super::{BASE, problems};
use crate::config::parse;

#[test]
fn an_empty_file_lacks_what_a_router_needs() {
    let wanted = "r.toml: there is no [[pool]] (add one with a name and at least one instance)\n\
                  r.toml: there is no [[listener]] (add one with a name and an address)";
    assert_eq!(problems(""), wanted);
    assert_eq!(problems("# only a comment\n"), wanted);
}

#[test]
fn broken_toml_is_shown_where_it_breaks() {
    assert_eq!(
        problems("[daemon]\nworkers = = 2\nstate_dir = [\n"),
        "r.toml:2:11: TOML: extra `=`, expected nothing (see https://toml.io for the syntax)\n\
         r.toml:2:13: TOML: unexpected key or value, expected newline, `#` (see https://toml.io for the syntax)\n\
         r.toml:3:13: TOML: unclosed array, expected `]` (see https://toml.io for the syntax)"
    );
    assert_eq!(
        problems("[daemon]\nworkers = 1\nworkers = 2\n"),
        "r.toml:3:1: TOML: duplicate key (each key may be written once in a table; [[name]] begins another table)"
    );
}

#[test]
fn all_problems_are_listed_at_once_in_the_order_of_the_file() {
    let text = r#"
[daemon]
workers = 0
wrokers = 3

[[listener]]
name = "my site"
adress = "10.0.1.1:80"
header_timeout = 10

[[pool]]
name = "app"

[[rule]]
name = "api"
match = 'Host("api.example"'
pool = "ap"
"#;
    let found = problems(text);
    let places: Vec<&str> = found.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(
        places,
        [
            "r.toml:3:11",
            "r.toml:4:1",
            "r.toml:6:1",
            "r.toml:7:8",
            "r.toml:8:1",
            "r.toml:9:18",
            "r.toml:11:1",
            "r.toml:16:14",
            "r.toml:17:8"
        ],
        "{found}"
    );
}

#[test]
fn the_report_for_people_has_the_source_line_a_caret_and_help() {
    let text = "[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\n[[pool]]\nname = \"app\"\n\
                [[pool.instance]]\nname = \"app1\"\nadress = \"10.0.2.11:80\"\naddress = \"10.0.2.11:80\"\n";
    let report = parse("router.toml", text).expect_err("a bad key").graphical(false);
    let wanted = "  × unknown key `adress` in [[pool.instance]]
   ╭─[router.toml:8:1]
 7 │ name = \"app1\"
 8 │ adress = \"10.0.2.11:80\"
   · ^^^^^^
 9 │ address = \"10.0.2.11:80\"
   ╰────
  help: did you mean `address`?
";
    assert_eq!(report.trim_matches('\n'), wanted.trim_matches('\n'));
}

#[test]
fn a_warning_looks_like_one() {
    let text = format!("{BASE}[daemon]\ngroup = \"rack-a\"\n");
    let report = parse("router.toml", &text).expect("usable").warnings.graphical(false);
    assert!(
        report.trim_start().starts_with("⚠ no instance is of this router's group `rack-a`\n"),
        "{report}"
    );
}

#[test]
fn thousands_of_problems_are_counted_rather_than_printed() {
    let text = format!("{BASE}{}", "[[rule]]\nname = \"r\"\nmatch = '('\npool = \"x\"\n".repeat(1_000));
    let errors = parse("r.toml", &text).expect_err("bad rules");
    assert_eq!(errors.len(), 2_999, "999 repeated names, 1000 expressions, 1000 pools");
    let printed = errors.to_string();
    assert_eq!(printed.lines().count(), 101);
    assert_eq!(printed.lines().last(), Some("r.toml: and 2899 more problems"));
}
