//! The configuration: from a TOML file to a [`Plan`] that is valid as a whole, or to every reason why it is not.
//!
//! A file alone: [`load`]. A file with what operators change at run time: [`Running`].
//!
//! The route: [`load`] → TOML syntax → `file` (each value alone) → `plan` (what values mean to each other). Nothing
//! here touches the system beyond reading the one file.

pub mod changes;
mod check;
mod cookie;
mod diff;
mod file;
mod identity;
mod load;
pub mod plan;
mod preload;
mod reader;
mod report;
pub mod running;
pub mod schema;
mod secret_file;
mod settings;
mod source;
mod suggest;
mod toml_string;
mod values;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use toml::de::DeTable;

pub use changes::Change;
pub use diff::{Difference, How};
pub use plan::{DaemonPlan, DatapathPlan, ListenerPlan, Plan, PoolToken, ReportsPlan, Token};
pub use report::{ConfigErrors, Located, Problem, Problems};
pub use running::{Next, Refused, Running};
pub use settings::{Attach, Interfaces, Layer4Tables, Offload, Protocol, Source};

use reader::{Findings, Report};

/// Reads and validates a configuration file. Errors name the file as `path` does.
pub fn load(path: &Path) -> Result<Plan, ConfigErrors> {
    let text = source::read(path)?;
    parse(&path.display().to_string(), &text)
}

/// Validates a configuration; `name` stands for the file in errors.
///
/// Broken TOML ends the check: what the rest was meant to say is not known. Otherwise every problem is listed.
pub fn parse(name: &str, text: &str) -> Result<Plan, ConfigErrors> {
    let shared: Arc<str> = Arc::from(text);
    let (document, broken) = DeTable::parse_recoverable(text);
    if !broken.is_empty() {
        let list = broken.into_iter().map(|error| source::syntax_problem(text, &error)).collect();
        return Err(Problems::errors(name, shared, list));
    }
    let report = Report::new(text);
    let file = file::read(document.get_ref(), &report);
    let plan = plan::build(file, &report);
    let Findings { problems, warnings, files } = report.into_findings();
    match plan {
        Some(mut plan) if problems.is_empty() => {
            plan.warnings = Problems::warnings(name, shared, warnings);
            plan.files = files;
            Ok(plan)
        }
        _ => Err(Problems::errors(name, shared, problems)),
    }
}
