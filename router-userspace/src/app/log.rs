//! Where log lines go: to standard error, which systemd and containers collect.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::fmt;

use super::arguments::{Arguments, LogFormat};
use crate::proxy::access;

/// Installs the log for the whole process.
pub fn start(arguments: &Arguments) -> Result<(), ParseError> {
    let filter = filter(&arguments.log, arguments.access_log)?;
    let lines = fmt().with_env_filter(filter).with_writer(stderr);
    let installed = match arguments.log_format {
        LogFormat::Text => lines.with_ansi(stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    // Somebody has installed one already: a test, which then sees the lines.
    drop(installed);
    Ok(())
}

/// A line for every connection costs too much to be the default; whoever names the target has decided.
fn filter(directives: &str, access_log: bool) -> Result<EnvFilter, ParseError> {
    let filter = EnvFilter::builder().parse(directives)?;
    if directives.contains(access::TARGET) {
        return Ok(filter);
    }
    let level = if access_log { "info" } else { "off" };
    Ok(filter.add_directive(format!("{}={level}", access::TARGET).parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_access_log_is_off_until_it_is_asked_for() {
        assert!(filter("info", false).unwrap().to_string().contains("access=off"));
        assert!(filter("info", true).unwrap().to_string().contains("access=info"));
        assert!(filter("warn,access=debug", false).unwrap().to_string().contains("access=debug"));
        assert!(filter("info,,access==", false).is_err());
    }
}
