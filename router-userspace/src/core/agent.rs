//! The text protocol of agents, as HAProxy's agent checks and Equalizer's server agents speak it: one line of words,
//! separated by spaces, tabs or commas.

use std::fmt;
use std::time::Duration;

use super::status::AdminState;

/// The longest line that is looked at, in bytes.
pub const MAX_LINE: usize = 512;
/// The greatest weight, in percent or absolute, that an agent may ask for.
const MAX_WEIGHT: u16 = 1_000;

/// How the agents of a pool's instances are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSpec {
    /// On the instance's own address.
    pub port: u16,
    /// From the start of one question to the start of the next, before jitter.
    pub interval: Duration,
    /// How long one answer may take in all.
    pub timeout: Duration,
    /// Whether an instance whose agent cannot be reached is down.
    pub require_response: bool,
    /// Sent once the connection is there; often nothing.
    pub send: Vec<u8>,
}

/// The weight that an agent asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentWeight {
    /// Percent of the configured weight.
    Percent(u16),
    /// In place of the configured weight.
    Absolute(u16),
}

impl AgentWeight {
    /// The weight that results for an instance with this configured weight, at most 1000. More than 0 % of a weight
    /// above 0 is at least 1.
    pub fn of(self, configured: u32) -> u32 {
        match self {
            Self::Absolute(weight) => weight.into(),
            Self::Percent(percent) => {
                let exact = u64::from(configured) * u64::from(percent);
                exact.div_ceil(100).min(MAX_WEIGHT.into()) as u32
            }
        }
    }
}

impl fmt::Display for AgentWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Absolute(weight) => weight.fmt(f),
        }
    }
}

/// What one line said. What it did not mention stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentReport {
    /// Whether the instance serves: `up`, or `down`, `fail`, `stopped` and -1.
    pub up: Option<bool>,
    /// `ready`, `drain` or `maint`.
    pub admin: Option<AdminState>,
    /// `75%`, `weight:75%` or `weight:75`.
    pub weight: Option<AgentWeight>,
    /// `maxconn:N`; 0 lifts the limit.
    pub max_sessions: Option<u32>,
    /// A bare number from 0 (idle) to 100 (full).
    pub value: Option<u8>,
    /// What follows a `#`.
    pub text: String,
    /// Words that mean nothing, or have a number out of range. They are left out; the others count.
    pub ignored: u32,
}

impl AgentReport {
    /// Reads a line, with or without its end. Bytes after the first line, or after [`MAX_LINE`], are not looked at.
    /// If words contradict each other, the last one counts.
    pub fn parse(line: &[u8]) -> Self {
        let line = &line[..line.len().min(MAX_LINE)];
        let line = line.split(|byte| matches!(byte, b'\r' | b'\n' | b'\0')).next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let (words, text) = line.split_once('#').unwrap_or((&line, ""));
        let text = text.trim().chars().filter(|c| !c.is_control()).collect();
        let mut report = AgentReport { text, ..AgentReport::default() };
        for word in words.split([' ', '\t', ',']).filter(|word| !word.is_empty()) {
            if report.word(&word.to_ascii_lowercase()).is_none() {
                report.ignored += 1;
            }
        }
        report
    }

    /// Whether no word of the line meant anything.
    pub fn is_empty(&self) -> bool {
        let Self { up, admin, weight, max_sessions, value, .. } = self;
        up.is_none() && admin.is_none() && weight.is_none() && max_sessions.is_none() && value.is_none()
    }

    fn word(&mut self, word: &str) -> Option<()> {
        match word {
            "up" => self.up = Some(true),
            "down" | "fail" | "failed" | "stopped" => self.up = Some(false),
            "ready" => self.admin = Some(AdminState::Enabled),
            "drain" => self.admin = Some(AdminState::Drain),
            "maint" => self.admin = Some(AdminState::Maintenance),
            "-1" => self.up = Some(false),
            _ => {
                if let Some(limit) = word.strip_prefix("maxconn:") {
                    self.max_sessions = Some(number(limit)?);
                } else if let Some(weight) = word.strip_prefix("weight:") {
                    self.weight = Some(match weight.strip_suffix('%') {
                        Some(percent) => AgentWeight::Percent(up_to(percent, MAX_WEIGHT)?),
                        None => AgentWeight::Absolute(up_to(weight, MAX_WEIGHT)?),
                    });
                } else if let Some(percent) = word.strip_suffix('%') {
                    self.weight = Some(AgentWeight::Percent(up_to(percent, MAX_WEIGHT)?));
                } else {
                    self.value = Some(up_to(word, 100)?);
                    self.up = Some(true);
                }
            }
        }
        Some(())
    }
}

/// A number of digits only: no sign, no point.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn up_to<T: std::str::FromStr + PartialOrd>(text: &str, max: T) -> Option<T> {
    number(text).filter(|number| *number <= max)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(line: &str) -> AgentReport {
        AgentReport::parse(line.as_bytes())
    }

    #[test]
    fn haproxys_words_mean_what_its_users_expect() {
        assert_eq!(parse("75%\n").weight, Some(AgentWeight::Percent(75)));
        assert_eq!(parse("weight:75%\n").weight, Some(AgentWeight::Percent(75)));
        assert_eq!(parse("weight:30\n").weight, Some(AgentWeight::Absolute(30)));
        assert_eq!(parse("maxconn:20\n").max_sessions, Some(20));
        for (word, admin) in
            [("ready", AdminState::Enabled), ("drain", AdminState::Drain), ("MAINT", AdminState::Maintenance)]
        {
            assert_eq!(parse(word).admin, Some(admin), "{word}");
        }
        assert_eq!(parse("up").up, Some(true));
        for word in ["down", "fail", "stopped", "Down#too hot", "down # too hot"] {
            assert_eq!(parse(word).up, Some(false), "{word}");
        }
        assert_eq!(parse("down # too hot 50%\r\n").text, "too hot 50%");
    }

    #[test]
    fn a_bare_number_is_equalizers_agent_value_and_minus_one_is_down() {
        assert_eq!((parse("0").value, parse("0").up), (Some(0), Some(true)));
        assert_eq!(parse("100\n").value, Some(100));
        assert_eq!((parse("-1\n").value, parse("-1\n").up), (None, Some(false)));
    }

    #[test]
    fn words_may_be_separated_by_spaces_tabs_and_commas() {
        let report = parse("up, 80%\tmaxconn:7,,ready#all well\nnothing of this");
        let expected = AgentReport {
            up: Some(true),
            admin: Some(AdminState::Enabled),
            weight: Some(AgentWeight::Percent(80)),
            max_sessions: Some(7),
            value: None,
            text: "all well".to_owned(),
            ignored: 0,
        };
        assert_eq!(report, expected);
    }

    #[test]
    fn odd_words_are_ignored_and_counted_and_the_others_count() {
        let odd =
            "101 -2 +5 1.5 1e1 50%% weight: weight:1001 maxconn:-1 maxconn:99999999999 % \u{fffd} sideways";
        let report = parse(&format!("{odd} up"));
        assert_eq!((report.ignored, report.up, report.value, report.weight), (13, Some(true), None, None));
        assert!(parse("sideways").is_empty() && parse("").is_empty() && !parse("up").is_empty());
    }

    #[test]
    fn weights_are_shares_of_the_configured_one() {
        assert_eq!(AgentWeight::Percent(75).of(100), 75);
        assert_eq!(AgentWeight::Percent(1).of(10), 1, "little is not nothing");
        assert_eq!(AgentWeight::Percent(0).of(100), 0);
        assert_eq!(AgentWeight::Percent(1000).of(1000), 1000);
        assert_eq!(AgentWeight::Absolute(30).of(100), 30);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_report(line in prop::collection::vec(any::<u8>(), 0..2_000)) {
            let report = AgentReport::parse(&line);
            prop_assert!(report.value.is_none_or(|value| value <= 100));
            prop_assert!(report.ignored as usize <= MAX_LINE);
            prop_assert!(report.text.len() <= 3 * MAX_LINE);
        }
    }
}
