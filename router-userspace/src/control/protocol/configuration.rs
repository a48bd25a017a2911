//! Reloading and run-time changes.

use serde::{Deserialize, Serialize};

use super::Problem;
pub use crate::config::changes::{Change, Entry, Place, Settings};
pub use crate::config::{Difference, How};
use crate::config::{Located, Problems};

/// Body of `POST /v1/reload`: reads the configuration file anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReloadRequest {
    /// Only say what would change.
    pub dry_run: bool,
    /// Refuse unless the configuration in force has this revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// Body of `POST /v1/changes`: all of these changes at once, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeRequest {
    pub changes: Vec<Change>,
    #[serde(default)]
    pub dry_run: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// Body of `POST /v1/changes/drop`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DropRequest {
    /// All of them if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    pub dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// Body of `POST /v1/changes/write`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WriteRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// Answer to a reload or a change: what has come into force, or would have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// True if nothing was done.
    pub dry_run: bool,
    /// Of the configuration in force now.
    pub revision: String,
    pub differences: Vec<Difference>,
    /// Settings whose new values wait until the daemon is started again.
    pub needs_restart: Vec<String>,
    /// Run-time changes that do not apply to the configuration, each with its obstacle.
    pub not_applied: Vec<Entry>,
    pub warnings: Vec<Problem>,
}

/// `GET /v1/changes`, and the answer to writing them back: the changes that are left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    pub revision: String,
    pub config_file: String,
    /// In the order in which they apply.
    pub changes: Vec<Entry>,
    /// How many have just become part of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<usize>,
}

/// What `GET /v1/status` says about the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// Changes with every change of the configuration.
    pub revision: String,
    /// Run-time changes, whether they apply or not.
    pub changes: usize,
    /// Those that do not apply.
    pub changes_not_applied: usize,
    /// Reloads that came into force since the daemon started.
    pub reloads: u64,
    /// Reloads that were refused because the file was not valid, or for another reason.
    pub reloads_refused: u64,
    pub last_reload: Option<LastReload>,
    /// Settings of the configuration that wait until the daemon is started again.
    pub needs_restart: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastReload {
    /// In seconds since the epoch.
    pub at: u64,
    /// Why it was refused; absent if it came into force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The problems of a configuration with their places.
pub fn located(problems: &Problems) -> Vec<Problem> {
    let problem = |Located { file, message, help, line, column, .. }| {
        let help = Some(help).filter(|help| !help.is_empty());
        Problem { file, message, help, line, column }
    };
    problems.located().into_iter().map(problem).collect()
}
