//! `docs/ROUTING.md` shows every function of the language, and every example in it is one that the router accepts.

use router::core::path::normalise;
use router::core::rules::{compile, function_names};

fn documentation() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ROUTING.md");
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The first code span of each row of the table of functions.
fn documented_functions(text: &str) -> Vec<String> {
    let table = text.split("| function | holds if |").nth(1).expect("the table of functions");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('`').nth(1).expect("an example").replace("\\|", "|")).collect()
}

#[test]
fn the_table_has_every_function_in_order_with_an_example_that_compiles() {
    let text = documentation();
    let examples = documented_functions(&text);
    let names: Vec<_> = examples.iter().map(|example| example.split('(').next().unwrap()).collect();
    assert_eq!(names, function_names().collect::<Vec<_>>());
    for example in &examples {
        compile(example).unwrap_or_else(|error| panic!("{example}: {error}"));
    }
}

#[test]
fn the_conditions_in_the_configuration_examples_compile() {
    let text = documentation();
    let conditions: Vec<_> =
        text.lines().filter(|line| line.starts_with("match")).map(|line| line.split('\'').nth(1)).collect();
    assert!(conditions.len() >= 2);
    for condition in conditions {
        let condition = condition.expect("a condition in single quotes");
        compile(condition).unwrap_or_else(|error| panic!("{condition}: {error}"));
    }
}

#[test]
fn the_table_of_paths_says_what_is_so() {
    for (sent, seen) in [
        ("/caf%C3%A9", "/café"),
        ("/a%2Fb", "/a/b"),
        ("/a%3Fb%23c", "/a%3Fb%23c"),
        ("/caf%E9", "/caf%E9"),
        ("/a/x/../b", "/a/b"),
        ("//a///b", "/a/b"),
        ("/a/..;x=1/b", "/b"),
        ("/a/%C0%AE%C0%AE/b", "/b"),
    ] {
        assert!(documentation().contains(&format!("`{sent}`")), "{sent} is not in the table");
        assert_eq!(normalise(sent).unwrap(), seen);
    }
}

/// The files that the table of proofs names, by where they may lie.
fn source(file: &str) -> Option<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let (room, name) = file.split_once('/').unwrap_or(("", file));
    let places = match room {
        "suite" => vec![format!("tests/{file}")],
        "router-common" => vec![file.to_owned()],
        "agent" => vec![format!("router-agent/tests/{name}"), format!("router-agent/src/{name}")],
        "config" => vec![format!("router-userspace/src/config/tests/{name}")],
        "core" | "proxy" => {
            vec![format!("router-userspace/tests/{file}"), format!("router-userspace/src/{file}")]
        }
        "control" => vec![format!("router-userspace/tests/{file}")],
        "" => vec![format!("router-userspace/tests/{file}")],
        _ => vec![format!("router-userspace/src/{file}")],
    };
    // A file may have become a directory of them.
    let in_directory = |at: &String| {
        let entries = std::fs::read_dir(format!("{root}/{}", at.trim_end_matches(".rs"))).ok();
        entries.into_iter().flatten().flatten().map(|entry| entry.path())
    };
    let files =
        places.iter().map(|at| format!("{root}/{at}").into()).chain(places.iter().flat_map(in_directory));
    let texts: Vec<_> = files.filter_map(|file| std::fs::read_to_string(file).ok()).collect();
    (!texts.is_empty()).then(|| texts.concat())
}

#[test]
fn what_proves_each_behaviour_is_there() {
    let text = documentation();
    let table = text.split("| behaviour | tests |").nth(1).expect("the table of proofs");
    let mut proofs = 0;
    for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let mut file = None;
        for span in row.split('|').nth(2).expect("tests").split('`').skip(1).step_by(2) {
            if span.ends_with(".rs") {
                file = Some((span, source(span).unwrap_or_else(|| panic!("there is no {span}"))));
            } else {
                let (name, source) = file.as_ref().unwrap_or_else(|| panic!("{span} is in no file"));
                assert!(source.contains(&format!("fn {span}(")), "{name} has no test {span}");
                proofs += 1;
            }
        }
    }
    assert!(proofs > 80, "{proofs} proofs");
}
