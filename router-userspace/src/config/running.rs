//! The configuration that a daemon runs: its file as it was read, the run-time changes, and what both make together.
//!
//! Nothing here touches the daemon. A change is first composed into a whole [`Next`], which the caller installs and then
//! keeps; whatever fails before that has changed nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::changes::edit::edited;
use super::changes::journal::{self, Journal, MAX_ENTRIES};
use super::changes::{Change, Entry, shortened};
use super::diff::{self, Difference, How};
use super::{ConfigErrors, Plan, parse, source};

/// The configuration in force.
#[derive(Debug)]
pub struct Running {
    file: PathBuf,
    state_dir: PathBuf,
    /// The file's text when it was last read.
    text: String,
    /// With the changes applied.
    effective: String,
    /// Files that were read with it, and a hash of what they held.
    files: BTreeMap<PathBuf, u64>,
    /// What the daemon was started with: some settings stay until it is started again.
    at_start: String,
    journal: Journal,
}

/// What a daemon starts with.
#[derive(Debug)]
pub struct Started {
    pub running: Running,
    /// Of the file and the changes together.
    pub plan: Plan,
    /// That the stored changes could not be read or brought up to date, and what has become of them.
    pub damage: Option<String>,
}

/// A configuration that could come into force.
#[derive(Debug)]
pub struct Next {
    pub plan: Plan,
    /// What differs from the running one.
    pub differences: Vec<Difference>,
    /// What will not differ until the daemon is started again.
    pub needs_restart: Vec<String>,
    text: String,
    effective: String,
    journal: Journal,
}

impl Next {
    /// Run-time changes that do not apply to it.
    pub fn not_applied(&self) -> impl Iterator<Item = &Entry> {
        self.journal.entries.iter().filter(|entry| entry.obstacle.is_some())
    }
}

/// Why a configuration does not come into force. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("{0}")]
    Invalid(ConfigErrors),
    #[error("{change}: {reason}")]
    DoesNotApply { change: String, reason: String },
    #[error("the configuration is at revision {actual}, not {expected}: somebody else has changed it")]
    Revision { expected: String, actual: String },
    #[error("there is no change {0}")]
    NoSuchChange(u64),
    #[error("there are {MAX_ENTRIES} run-time changes already")]
    TooMany,
    #[error("the change names nothing to do")]
    Empty,
    #[error("{} has changed on disk since it was read", .0.display())]
    ChangedOnDisk(PathBuf),
    #[error("{} cannot be written: {error}", path.display())]
    NotWritten { path: PathBuf, error: io::Error },
    /// What the daemon needs for it could not be had, such as a listener's port.
    #[error("{0}")]
    NotInstalled(String),
}

impl Running {
    /// Reads a valid file, and the changes from its state directory.
    pub fn start(file: &Path) -> Result<Started, ConfigErrors> {
        let text = source::read(file)?;
        let alone = parse(&file.display().to_string(), &text)?;
        let state_dir = alone.daemon.state_dir.clone();
        let (mut journal, mut damage) = journal::load(&state_dir);
        if journal.written_into.take().is_some_and(|revision_of_file| revision_of_file == revision(&text)) {
            // The earlier daemon was stopped before it could do so.
            journal = journal.written_back();
            if let Err(error) = journal::save(&state_dir, &journal) {
                let path = journal::file(&state_dir).display().to_string();
                damage =
                    Some(format!("run-time changes that were written back stay listed in {path}: {error}"));
            }
        }
        let running = Self {
            file: file.to_owned(),
            state_dir,
            effective: text.clone(),
            files: BTreeMap::new(),
            at_start: text.clone(),
            text: text.clone(),
            journal: Journal::default(),
        };
        let next = running.compose(text, journal)?;
        let running = Self {
            text: next.text,
            at_start: next.effective.clone(),
            effective: next.effective,
            files: next.plan.files.clone(),
            journal: next.journal,
            ..running
        };
        Ok(Started { running, plan: next.plan, damage })
    }

    /// The file read anew, with the changes that still apply.
    pub fn reload(&self) -> Result<Next, Refused> {
        let text = source::read(&self.file).map_err(Refused::Invalid)?;
        self.compose(text, self.journal.clone()).map_err(Refused::Invalid)
    }

    /// All of these changes, or none. `now` is in seconds since the epoch.
    pub fn change(&self, changes: Vec<Change>, now: u64) -> Result<Next, Refused> {
        if changes.is_empty() {
            return Err(Refused::Empty);
        }
        let mut journal = self.journal.clone();
        if journal.entries.len() + changes.len() > MAX_ENTRIES {
            return Err(Refused::TooMany);
        }
        let first = journal.next_id;
        for change in changes {
            journal.entries.push(Entry { id: journal.next_id, made_at: now, change, obstacle: None });
            journal.next_id += 1;
        }
        let mut next = self.compose(self.text.clone(), journal).map_err(Refused::Invalid)?;
        if let Some(entry) = next.not_applied().find(|entry| entry.id >= first) {
            let reason = entry.obstacle.clone().unwrap_or_default();
            return Err(Refused::DoesNotApply { change: entry.change.to_string(), reason });
        }
        next.journal.entries = shortened(&self.text, next.journal.entries);
        Ok(next)
    }

    /// Without the change of this number, or without any.
    pub fn without(&self, id: Option<u64>) -> Result<Next, Refused> {
        let mut journal = self.journal.clone();
        journal.entries.retain(|entry| id.is_some_and(|id| id != entry.id));
        if let Some(id) = id
            && journal.entries.len() == self.journal.entries.len()
        {
            return Err(Refused::NoSuchChange(id));
        }
        self.compose(self.text.clone(), journal).map_err(Refused::Invalid)
    }

    /// Makes the changes that are in force part of the file, whose comments and layout stay. Returns how many there were. Wherever it
    /// is interrupted, a restart finds each change either in the file or in the journal.
    pub fn write_back(&mut self) -> Result<usize, Refused> {
        let journal = self.journal.written_back();
        let written = self.journal.entries.len() - journal.entries.len();
        self.expect_file_unchanged()?;
        if written == 0 {
            return Ok(0);
        }
        self.announce_write_back()?;
        self.write_file()?;
        self.journal = journal;
        self.save(&self.journal)?;
        Ok(written)
    }

    fn expect_file_unchanged(&self) -> Result<(), Refused> {
        let on_disk = fs::read(&self.file).map_err(not_written(&self.file))?;
        if on_disk == self.text.as_bytes() { Ok(()) } else { Err(Refused::ChangedOnDisk(self.file.clone())) }
    }

    /// Says in the journal which file will have its changes.
    pub(super) fn announce_write_back(&self) -> Result<(), Refused> {
        self.save(&Journal { written_into: Some(self.revision()), ..self.journal.clone() })
    }

    pub(super) fn write_file(&mut self) -> Result<(), Refused> {
        // What a link points to is what has to be replaced.
        let file = fs::canonicalize(&self.file).unwrap_or_else(|_| self.file.clone());
        let like = fs::metadata(&file).map_err(not_written(&file))?;
        journal::replace(&file, self.effective.as_bytes(), Some(&like)).map_err(not_written(&file))?;
        self.text = self.effective.clone();
        Ok(())
    }

    fn save(&self, journal: &Journal) -> Result<(), Refused> {
        journal::save(&self.state_dir, journal).map_err(not_written(&journal::file(&self.state_dir)))
    }

    /// Stores the changes of `next`, so that a restart finds them. Before anything is installed: what is in force must survive.
    pub fn store(&self, next: &Next) -> Result<(), Refused> {
        let same = next.journal == self.journal;
        if same || next.journal.entries.is_empty() && self.journal.entries.is_empty() {
            return Ok(());
        }
        self.save(&next.journal)
    }

    /// `next` comes into force now; returns its plan.
    pub fn keep(&mut self, next: Next) -> Plan {
        self.text = next.text;
        self.effective = next.effective;
        self.files = next.plan.files.clone();
        self.journal = next.journal;
        next.plan
    }

    pub fn changes(&self) -> &[Entry] {
        &self.journal.entries
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Settings of the file that wait for a restart.
    pub fn needs_restart(&self) -> Vec<String> {
        diff::needs_restart(&self.at_start, &self.effective)
    }

    /// Tells one configuration from another. The same text has the same revision, also after a restart.
    pub fn revision(&self) -> String {
        revision(&self.effective)
    }

    /// Refuses if the configuration is not the one that the operator has seen.
    pub fn expect_revision(&self, expected: Option<&str>) -> Result<(), Refused> {
        let actual = self.revision();
        match expected {
            Some(expected) if expected != actual => {
                Err(Refused::Revision { expected: expected.to_owned(), actual })
            }
            _ => Ok(()),
        }
    }

    /// Fails only if the file's own text is not valid; changes that cannot be applied to it are left out, and say why.
    fn compose(&self, text: String, mut journal: Journal) -> Result<Next, ConfigErrors> {
        let name = self.file.display().to_string();
        let changed_name = format!("{name} with run-time changes");
        let (plan, effective) = if journal.entries.is_empty() {
            (parse(&name, &text)?, text.clone())
        } else {
            if text != self.text {
                parse(&name, &text)?;
            }
            let (effective, obstacles) = edited(&text, journal.entries.iter().map(|entry| &entry.change));
            for (entry, obstacle) in journal.entries.iter_mut().zip(obstacles) {
                entry.obstacle = obstacle.map(|obstacle| obstacle.to_string());
            }
            match parse(&changed_name, &effective) {
                Ok(plan) => (plan, effective),
                Err(_) => one_by_one(&changed_name, &text, &mut journal, parse(&name, &text)?),
            }
        };
        let mut differences = diff::differences(&self.effective, &effective);
        differences.extend(rewritten(&self.files, &plan.files));
        Ok(Next {
            plan,
            differences,
            needs_restart: diff::needs_restart(&self.at_start, &effective),
            text,
            effective,
            journal,
        })
    }
}

fn not_written(path: &Path) -> impl FnOnce(io::Error) -> Refused {
    let path = path.to_owned();
    move |error| Refused::NotWritten { path, error }
}

/// Applies the changes each for itself, and leaves out those with which the configuration would not be valid.
fn one_by_one(name: &str, text: &str, journal: &mut Journal, alone: Plan) -> (Plan, String) {
    let mut valid = (alone, text.to_owned());
    for entry in &mut journal.entries {
        let (attempt, mut obstacles) = edited(&valid.1, std::iter::once(&entry.change));
        entry.obstacle = obstacles.pop().flatten().map(|obstacle| obstacle.to_string());
        if entry.obstacle.is_some() {
            continue;
        }
        match parse(name, &attempt) {
            Ok(plan) => valid = (plan, attempt),
            // The first problem is what the change is about; the others follow from it.
            Err(errors) => entry.obstacle = errors.iter().next().map(said),
        }
    }
    valid
}

fn said(problem: &super::Problem) -> String {
    match problem.help.as_str() {
        "" => problem.message.clone(),
        help => format!("{} ({help})", problem.message),
    }
}

fn revision(text: &str) -> String {
    format!("{:016x}", source::hash(text.as_bytes()))
}

/// Files that the configuration still names, and that hold something else than before.
fn rewritten(before: &BTreeMap<PathBuf, u64>, after: &BTreeMap<PathBuf, u64>) -> Vec<Difference> {
    let differs = |(file, hash): &(&PathBuf, &u64)| before.get(*file).is_some_and(|old| old != *hash);
    let difference = |(file, _): (&PathBuf, &u64)| Difference {
        what: "file".to_owned(),
        name: file.display().to_string(),
        how: How::Changed,
        detail: "what is in it".to_owned(),
    };
    after.iter().filter(differs).map(difference).collect()
}
