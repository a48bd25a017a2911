//! Token files of pools that report.

use super::{TestFile, problems};
use crate::config::{Running, parse};

fn site(pools: &[(&str, &str)]) -> String {
    let mut text = "[reports]\nlisten = \"10.0.2.1:9190\"\n\
                    [[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\n"
        .to_owned();
    for (pool, file) in pools {
        let instance = format!("[[pool.instance]]\nname = \"{pool}1\"\naddress = \"{pool}:80\"\n");
        let instance = instance.replace("web:", "10.0.2.1:").replace("maps:", "10.0.2.2:");
        text.push_str(&format!(
            "[[pool]]\nname = \"{pool}\"\nreports = {{ token_file = \"{file}\" }}\n{instance}"
        ));
    }
    text
}

#[test]
fn each_line_is_a_token_so_that_it_can_be_changed_without_a_gap() {
    let web = TestFile::holding("web.token", "# of this year\n0123456789abcdef\n\n fedcba9876543210 \n");
    let maps = TestFile::holding("maps.token", "0123456789abcdefg");
    let pools = [("web", web.path().to_string()), ("maps", maps.path().to_string())];
    let plan = parse("r.toml", &site(&pools.each_ref().map(|(pool, file)| (*pool, file.as_str())))).unwrap();
    let tokens = plan.reports.unwrap().tokens;
    let fits = |token: &[u8]| -> Vec<&str> {
        tokens.iter().filter(|own| own.token.is(token)).map(|own| own.pool.as_str()).collect()
    };
    assert_eq!(fits(b"0123456789abcdef"), ["web"]);
    assert_eq!(fits(b"fedcba9876543210"), ["web"]);
    assert_eq!(fits(b"0123456789abcdefg"), ["maps"]);
    for wrong in [&b""[..], b"0123456789abcde", b"0123456789ABCDEF", b"0123456789abcdefgh", b"# of this year"]
    {
        assert!(fits(wrong).is_empty());
    }
    assert!(!format!("{tokens:?}").contains("0123"), "secrets are not shown");
}

#[test]
fn token_files_that_protect_nothing_are_all_named_at_once_and_never_shown() {
    let short = TestFile::holding("short.token", "0123456789abcdef\nhush-hush\n");
    let empty = TestFile::holding("empty.token", "\n# none yet\n");
    let said = problems(&site(&[("web", &short.path().to_string()), ("maps", &empty.path().to_string())]));
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].starts_with("r.toml:8:26: the token file /"), "{said}");
    assert!(lines[0].contains("short.token has no token in line 2: 16 or more letters"), "{said}");
    assert!(lines[1].starts_with("r.toml:14:26: the token file /"), "{said}");
    assert!(lines[1].contains("empty.token holds no token (make one with"), "{said}");
    assert!(!said.contains("hush") && !said.contains("0123"), "{said}");

    let said = problems(&site(&[("web", "/nowhere/token")]));
    assert!(said.contains("the token file /nowhere/token cannot be read: No such file"), "{said}");
    let said = problems(&site(&[("web", "/dev/zero")]));
    assert!(said.contains("is not a regular file"), "{said}");
    let long = TestFile::holding("long.token", &"0123456789abcdef\n".repeat(5_000));
    let said = problems(&site(&[("web", &long.path().to_string())]));
    assert!(said.contains("is longer than 65536 bytes"), "{said}");
}

#[test]
fn a_reload_says_which_files_hold_something_else_though_the_configuration_is_the_same() {
    let token = TestFile::holding("reloaded.token", "0123456789abcdef\n");
    let state = std::env::temp_dir().join(format!("router-tokens-state-{}", std::process::id()));
    let text = format!(
        "[daemon]\nstate_dir = \"{}\"\n{}",
        state.display(),
        site(&[("web", &token.path().to_string())])
    );
    let file = TestFile::holding("reloaded.toml", &text);
    let mut running = Running::start(&file.0).unwrap().running;
    assert!(running.reload().unwrap().differences.is_empty());
    std::fs::write(&token.0, "fedcba9876543210\n").unwrap();
    let next = running.reload().unwrap();
    let differences: Vec<_> =
        next.differences.iter().map(|one| format!("{} {} {}", one.what, one.name, one.how.name())).collect();
    assert_eq!(differences, [format!("file {} changed", token.path())]);
    running.keep(next);
    assert!(running.reload().unwrap().differences.is_empty());
    std::fs::write(&token.0, "short\n").unwrap();
    let refused = running.reload().unwrap_err().to_string();
    assert!(refused.contains(".toml:10:26: the token file") && !refused.contains("short\n"), "{refused}");
}
