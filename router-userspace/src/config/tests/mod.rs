//! Whole configurations, good and bad, with the exact words that an operator reads.

use std::path::{Display, PathBuf};

use super::parse;

mod accepted;
mod arbitrary;
mod changes;
mod cookies;
mod files;
mod layer4;
mod load;
mod preloads;
mod reference;
mod reports;
mod routing;
mod rules;
mod tls;
mod together;
mod tokens;
mod values;

/// A file beside the configuration; removed when dropped.
struct TestFile(PathBuf);

impl TestFile {
    fn holding(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("router-config-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> Display<'_> {
        self.0.display()
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The smallest valid configuration.
const BASE: &str = r#"
[[listener]]
name = "web"
address = "10.0.1.1:80"

[[pool]]
name = "app"

[[pool.instance]]
name = "app1"
address = "10.0.2.11:80"
"#;

/// What is wrong with `text`, one line for each problem.
fn problems(text: &str) -> String {
    match parse("r.toml", text) {
        Ok(_) => String::new(),
        Err(errors) => {
            assert!(!errors.is_empty());
            errors.to_string()
        }
    }
}

/// What is wrong when `extra` is appended to the smallest valid configuration, with lines counted from `extra`'s first.
fn problems_of(extra: &str) -> String {
    let lines = BASE.matches('\n').count();
    let shift = |line: &str| {
        let Some((number, rest)) = line.strip_prefix("r.toml:").and_then(|rest| rest.split_once(':')) else {
            return line.to_owned();
        };
        match number.parse::<usize>() {
            Ok(number) if number > lines => format!("{}:{rest}", number - lines),
            _ => line.to_owned(),
        }
    };
    problems(&format!("{BASE}{extra}")).lines().map(shift).collect::<Vec<_>>().join("\n")
}

fn warnings(text: &str) -> String {
    parse("r.toml", text).expect("valid").warnings.to_string()
}
