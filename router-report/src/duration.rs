//! Durations as people write them.

use std::time::Duration;

/// Parses `500ms`, `10s`, `1m30s`, `2h`, `1d`: whole numbers, each followed by its unit.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let unit = &rest[digits..];
        let end = unit.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(unit.len());
        let milliseconds = match &unit[..end] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(Duration::from_millis(number.checked_mul(milliseconds)?))?;
        rest = &unit[end..];
    }
    Some(total)
}

/// A duration as the configuration would write it, to the millisecond.
pub fn format_duration(duration: Duration) -> String {
    let mut rest = duration.as_millis();
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, milliseconds) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)]
    {
        if rest >= milliseconds {
            text.push_str(&format!("{}{unit}", rest / milliseconds));
            rest %= milliseconds;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, milliseconds) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in [
            "",
            "10",
            "s",
            "10 s",
            "1.5s",
            "-1s",
            "10sec",
            "10s5",
            "99999999999999999999s",
            "18446744073709551615d",
            "١s",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_formatted_duration_reads_back(milliseconds in 0u64..10_000_000_000) {
            let duration = Duration::from_millis(milliseconds);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Some(duration));
        }

        #[test]
        fn arbitrary_text_is_a_duration_or_nothing(text in "\\PC{0,30}") {
            let _ = parse_duration(&text);
        }
    }
}
