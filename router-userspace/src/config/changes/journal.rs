//! Where run-time changes survive a restart: one small file in the state directory, replaced as a whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Entry;

/// The layout of the file. A daemon that finds another one sets the file aside.
const VERSION: u32 = 1;

/// As many changes as are kept; who has more should write them back into the file.
pub const MAX_ENTRIES: usize = 10_000;

/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    next_id: u64,
    changes: Vec<Entry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    written_into: Option<String>,
}

/// All run-time changes, in the order in which they apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    pub entries: Vec<Entry>,
    pub next_id: u64,
    /// While the changes in force are being written back: the revision that the file gets. A daemon that finds a file of this
    /// revision was stopped between writing the file and emptying the journal.
    pub written_into: Option<String>,
}

impl Default for Journal {
    fn default() -> Self {
        Self { entries: Vec::new(), next_id: 1, written_into: None }
    }
}

impl Journal {
    /// Without the changes in force, which the file has now.
    pub fn written_back(&self) -> Self {
        let waiting = self.entries.iter().filter(|entry| entry.obstacle.is_some());
        Self { entries: waiting.cloned().collect(), next_id: self.next_id, written_into: None }
    }
}

/// Reads the journal. One that cannot be read is renamed, so that it is not lost, and the second value says so: a daemon
/// starts without changes rather than not at all.
pub fn load(state_dir: &Path) -> (Journal, Option<String>) {
    let path = file(state_dir);
    let damage = match read(&path) {
        Ok(journal) => return (journal, None),
        Err(error) => error,
    };
    let aside = path.with_extension("json.damaged");
    let kept = match fs::rename(&path, &aside) {
        Ok(()) => format!("it is now {}", aside.display()),
        Err(error) => format!("it could not be renamed to {}: {error}", aside.display()),
    };
    let text = format!(
        "the run-time changes in {} cannot be read ({damage}), so none is in force; {kept}",
        path.display()
    );
    (Journal::default(), Some(text))
}

fn read(path: &Path) -> Result<Journal, String> {
    let size = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Journal::default()),
        Err(error) => return Err(error.to_string()),
    };
    if size > MAX_BYTES {
        return Err(format!("larger than {} MiB", MAX_BYTES >> 20));
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    // The version first: another one may have other fields.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Versioned { version } = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("its version is {version}, and this routerd knows version {VERSION}"));
    }
    let stored: Stored = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    let greatest = stored.changes.iter().map(|entry| entry.id).max().unwrap_or(0);
    Ok(Journal {
        next_id: stored.next_id.max(greatest + 1),
        entries: stored.changes,
        written_into: stored.written_into,
    })
}

/// Replaces the journal on disk: after a crash at any moment it is the old one or the new one.
pub fn save(state_dir: &Path, journal: &Journal) -> io::Result<()> {
    let Journal { entries, next_id, written_into } = journal.clone();
    let stored = Stored { version: VERSION, next_id, changes: entries, written_into };
    let mut text = serde_json::to_vec_pretty(&stored)?;
    text.push(b'\n');
    fs::DirBuilder::new().recursive(true).mode(0o750).create(state_dir)?;
    replace(&file(state_dir), &text, None)
}

pub fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("changes.json")
}

/// Writes a file anew beside the old one and renames it into its place. It keeps mode and owner of `like`, or is readable by
/// the daemon's user alone.
pub fn replace(path: &Path, bytes: &[u8], like: Option<&fs::Metadata>) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let new = directory.join(format!(".{name}.{}.new", std::process::id()));
    let written = (|| {
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&new)?;
        if let Some(like) = like {
            let own = file.metadata()?;
            if (own.uid(), own.gid()) != (like.uid(), like.gid()) {
                fchown(&file, Some(like.uid()), Some(like.gid()))?;
            }
            file.set_permissions(like.permissions())?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::super::Change;
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("router-journal-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn changes_are_there_again_after_a_restart() {
        let directory = directory("again");
        assert_eq!(load(&directory), (Journal::default(), None), "a first start");
        let change = Change::RuleRemove { rule: "old".to_owned() };
        let entries = vec![Entry { id: 7, made_at: 1, change, obstacle: None }];
        let journal = Journal { entries, next_id: 9, written_into: None };
        save(&directory, &journal).unwrap();
        save(&directory, &journal).unwrap();
        assert_eq!(load(&directory), (journal, None));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left lying about");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_damaged_journal_is_set_aside_and_named() {
        for damaged in ["", "{", "{\"version\": 1}", "{\"version\": 2, \"entries\": []}", "[]"] {
            let directory = directory("damaged");
            fs::create_dir_all(&directory).unwrap();
            fs::write(file(&directory), damaged).unwrap();
            let (journal, message) = load(&directory);
            assert_eq!(journal, Journal::default());
            let message = message.expect(damaged);
            assert!(message.contains("changes.json.damaged"), "{message}");
            assert_eq!(fs::read_to_string(directory.join("changes.json.damaged")).unwrap(), damaged);
            assert_eq!(load(&directory), (Journal::default(), None));
            fs::remove_dir_all(directory).unwrap();
        }
    }
}
