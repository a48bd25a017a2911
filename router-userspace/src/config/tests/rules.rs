//! Rules: where they lead, and errors in their expressions.

use super::{BASE, problems_of};
use crate::config::parse;

#[test]
fn rules_lead_somewhere_and_are_named_once() {
    let rule = |lines: &str| problems_of(&format!("[[rule]]\nname = \"r\"\nmatch = 'Any()'\n{lines}\n"));
    assert_eq!(
        rule("pool = \"ap\""),
        "4:8: rule `r` names pool `ap`, which does not exist (did you mean `app`?)"
    );
    assert_eq!(
        rule("pool = \"maps\""),
        "4:8: rule `r` names pool `maps`, which does not exist (known pools: app)"
    );
    assert_eq!(rule(""), "2:8: rule `r` does nothing (add pool = \"NAME\", or action = \"deny\")");
    assert_eq!(
        rule("pool = \"app\"\naction = \"deny\""),
        "2:8: rule `r` has both a pool and an action (keep one of the two)"
    );
    assert_eq!(rule("action = \"drop\""), "4:10: `action` cannot be \"drop\" (use \"deny\")");
    assert_eq!(
        rule("pool = \"app\"\nstatus = 404"),
        "5:10: `status` has a meaning only with action = \"deny\" (remove it, or replace the pool by action = \"deny\")"
    );
    assert_eq!(
        rule("action = \"deny\"\non_unavailable = \"reset\""),
        "5:18: `on_unavailable` has no meaning in a rule that denies (remove it)"
    );
    assert_eq!(
        problems_of("[[rule]]\nname = \"default\"\nmatch = 'Any()'\npool = \"app\"\n"),
        "2:8: `default` is the name of the default rule (choose another name; the rule that is always last is written as [default_rule])"
    );
    let twice = "[[rule]]\nname = \"r\"\nmatch = 'Any()'\npool = \"app\"\n".repeat(2);
    assert_eq!(problems_of(&twice), "6:8: two rules are named `r` (give each rule its own name)");
    assert_eq!(
        problems_of("[default_rule]\npools = [\"app\", \"app\", \"b\"]\n"),
        "2:17: the default rule names pool `app` twice (remove one)\n\
         2:24: the default rule names pool `b`, which does not exist (known pools: app)"
    );
    assert_eq!(
        problems_of("[default_rule]\npools = []\n"),
        "2:9: the default rule has no pools (name at least one, or leave `pools` out to use every pool)"
    );
}

/// The text that the report marks in a rule whose `match` is written as `written`.
fn marked(written: &str) -> (String, String) {
    let text = format!("{BASE}[[rule]]\nname = \"r\"\npool = \"app\"\nmatch = {written}\n");
    let errors = parse("r.toml", &text).expect_err("the expression is wrong");
    assert_eq!(errors.len(), 1, "{errors}");
    let problem = errors.iter().next().unwrap();
    (problem.message.clone(), text[problem.span.clone().unwrap()].to_owned())
}

#[test]
fn an_expression_error_points_at_the_token_however_the_string_is_written() {
    for written in [
        r#"'Host("a") && Hots("b")'"#,
        r#""Host(\"a\") && Hots(\"b\")""#,
        r#""Path(\"/\u00e9\") && \u0048ost(\"\x61\") && Path(\"/\U0001F600\") && Hots(\"b\")""#,
        "'''\n  Path(\"/é\")\n  && Hots(\"b\")\n'''",
        "\"\"\"\nHost(\\\"a\\\") && \\\n\n    Hots(\\\"b\\\")\"\"\"",
    ] {
        assert_eq!(marked(written), ("there is no function Hots".to_owned(), "Hots".to_owned()), "{written}");
    }
    let (message, at) = marked(r#"'Host("a"'"#);
    assert_eq!((message.as_str(), at.as_str()), ("this ( is never closed", "("));
    let (message, at) = marked(r#""ClientIP(\"10.0.0.0/33\")""#);
    assert_eq!((message.as_str(), at.as_str()), ("\"10.0.0.0/33\" is not a network", r#"\"10.0.0.0/33\""#));
    let (message, _) = marked("''");
    assert_eq!(message, "the expression is empty");
}

#[test]
fn a_rule_that_names_a_listener_that_is_not_there_is_shown_at_its_name() {
    let rule = |condition: &str| {
        problems_of(&format!("[[rule]]\nname = \"r\"\nmatch = '{condition}'\npool = \"app\"\n"))
    };
    assert_eq!(rule("Listener(\"web\")"), "");
    assert_eq!(
        rule("Any() && !Listener(\"web\", \"wbe\")"),
        "3:36: there is no listener `wbe`, so this never holds (did you mean `web`?)"
    );
    assert_eq!(
        rule("Listener(\"api\")"),
        "3:19: there is no listener `api`, so this never holds (known listeners: web)"
    );
}

#[test]
fn what_would_take_too_much_memory_or_stack_is_refused_in_its_place() {
    let rule = |condition: &str| format!("[[rule]]\nname = \"r\"\nmatch = '{condition}'\npool = \"app\"\n");
    let huge = problems_of(&rule(r#"Any() && PathRegexp("[a-z]{1000}{1000}")"#));
    assert!(huge.starts_with("3:30: ") && huge.contains("bytes when compiled"), "{huge}");
    let deep = problems_of(&rule(&format!("{}Any(){}", "(".repeat(10_000), ")".repeat(10_000))));
    assert!(deep.starts_with("3:138: parentheses are nested more than 128 deep"), "{deep}");
    let long = problems_of(&rule(&vec!["Http10()"; 100_000].join(" && ")));
    assert_eq!(long, "", "long is not deep");
}
