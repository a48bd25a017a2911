//! The daemon's command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use router_report::parse_duration;

/// A load balancer that routes HTTP connections by rule and hands them to the kernel.
#[derive(Clone, Debug, Parser)]
#[command(name = "routerd", version)]
pub struct Arguments {
    /// The configuration file.
    #[arg(short, long, value_name = "FILE", default_value = "/etc/router/router.toml")]
    pub config: PathBuf,
    /// Only say whether the configuration is valid: exit 0 if it is, 1 if not.
    #[arg(long)]
    pub check: bool,
    /// Start the kernel data path anew if an earlier daemon has left one with another layout. Its flows end.
    #[arg(long)]
    pub replace: bool,
    /// What to log: a level, or targets with levels, such as `info,access=off`.
    #[arg(long, value_name = "FILTER", env = "ROUTER_LOG", default_value = "info")]
    pub log: String,
    /// How to log.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Log one line for each connection.
    #[arg(long)]
    pub access_log: bool,
    /// How long to wait, when told to end, for relayed connections. Handed-off ones go on without the daemon.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub stop_timeout: Duration,
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text).ok_or("expected a number with a unit, such as 500ms, 5s or 1m")
}

/// The shape of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_duration_has_a_unit() {
        let arguments = |text| Arguments::try_parse_from(["routerd", "--stop-timeout", text]);
        assert_eq!(arguments("1500ms").unwrap().stop_timeout, Duration::from_millis(1500));
        assert!(arguments("5").is_err());
    }
}
