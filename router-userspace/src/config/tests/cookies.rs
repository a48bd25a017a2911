//! A rule's persistence cookie: key files and attributes.

use super::{TestFile, problems};

const GOOD: &str = "# of this week\n00112233445566778899AABBCCDDEEFF00112233445566778899aabbccddeeff\n\n";

fn refused(keys: &str) -> String {
    let rule = format!(
        "[[rule]]\nname = \"web\"\nmatch = 'Any()'\npool = \"web\"\npersistence = {{ {keys} }}\n\
         [[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\n\
         [[pool]]\nname = \"web\"\n[[pool.instance]]\nname = \"a\"\naddress = \"10.0.2.1:80\"\n"
    );
    problems(&rule)
}

#[test]
fn a_good_key_file_is_taken() {
    let file = TestFile::holding("key-good", GOOD);
    let keys = format!("cookie = \"RTID\", key_file = \"{}\", age = \"1h\"", file.path());
    assert_eq!(refused(&keys), "");
}

#[test]
fn a_key_file_that_cannot_serve_is_named_with_its_line_and_never_shown() {
    let secret = "00112233445566778899aabbccddeeff";
    for (name, text, wanted) in [
        ("short", format!("{GOOD}{secret}\n"), "has no key of 64 hexadecimal digits in line 4"),
        ("empty", "# nothing\n".to_owned(), "holds no key"),
    ] {
        let file = TestFile::holding(&format!("key-{name}"), &text);
        let said = refused(&format!("cookie = \"RTID\", key_file = \"{}\"", file.path()));
        assert!(said.starts_with("r.toml:5:45: the key file ") && said.contains(wanted), "{said}");
        assert!(!said.contains(secret), "{said}");
    }
    let said = refused("cookie = \"RTID\", key_file = \"/nowhere/cookie.key\"");
    assert!(said.contains("cannot be read") && said.contains("openssl rand -hex 32"), "{said}");
    let said = refused("cookie = \"RTID\", key_file = \"/dev/zero\"");
    assert!(said.contains("is not a regular file"), "{said}");
}

#[test]
fn attributes_that_no_browser_takes_are_refused() {
    let file = TestFile::holding("key-attributes", GOOD);
    for (attribute, wanted) in [
        ("same_site = \"none\"", "browsers refuse a cookie with same_site = \"none\" that is not secure"),
        ("path = \"shop\"", "a cookie's path begins with '/'"),
        ("domain = \"a.example; Secure\"", "`domain` cannot stand in a cookie"),
    ] {
        let said = refused(&format!("cookie = \"RTID\", key_file = \"{}\", {attribute}", file.path()));
        assert!(said.contains(wanted), "{said}");
    }
    let said = refused(&format!("cookie = \"a cookie\", key_file = \"{}\"", file.path()));
    assert!(said.contains("`cookie` is not a name that HTTP allows"), "{said}");
}
