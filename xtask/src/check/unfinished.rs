//! Marks of unfinished work.

use super::Finding;
use super::source::Source;

const MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Put together here, or this file would be a finding.
const WORDS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("HA", "CK")];

pub fn marks(source: &Source) -> Vec<Finding> {
    let calls = MACROS.into_iter().flat_map(|name| {
        source.calls(name).map(move |line| source.finding(line, format!("`{name}!` is unfinished work")))
    });
    let words = source.text.lines().enumerate().filter_map(|(number, line)| {
        let word = WORDS.into_iter().find(|word| line.contains(word))?;
        Some(source.finding(number + 1, format!("`{word}` is unfinished work")))
    });
    calls.chain(words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_work_is_found_in_code_and_comments() {
        let text = format!("fn f() {{ dbg!(1); }}\n// {}: more\nfn g() {{ todo() }}", WORDS[0]);
        let found = marks(&Source::new("a.rs", text).unwrap());
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [1, 2]);
    }
}
