//! Keeps what the router remembers of sessions and users tidy, and over a restart.

use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};

use crate::core::memory::places::{PlaceKey, PlaceView, Places};
use crate::core::table::RoutingTable;

const FILE: &str = "sessions.json";
/// How often what was idle for too long is forgotten.
const SWEEP: Duration = Duration::from_secs(5);
/// How often a snapshot is written; a daemon that is killed loses what began after the last one.
const SNAPSHOT: Duration = Duration::from_secs(30);
/// A list is taken in one piece.
const ALL: usize = usize::MAX;

/// The snapshot, as it is stored.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Snapshot {
    /// Seconds since the epoch.
    saved_at: u64,
    sessions: Vec<Entry>,
    users: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    listener: String,
    /// Any bytes.
    key: Vec<u8>,
    pool: String,
    instance: String,
    address: SocketAddr,
    idle_seconds: u64,
    idle_timeout_seconds: u64,
}

/// Where the snapshot lies.
pub fn file(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// Sweeps and saves from time to time, as long as the runtime lives.
pub async fn keep(table: Arc<ArcSwap<RoutingTable>>, file: PathBuf) {
    let mut saved = Instant::now();
    loop {
        tokio::time::sleep(SWEEP).await;
        let (table, file) = (table.load_full(), file.clone());
        let now = Instant::now();
        let due = now.saturating_duration_since(saved) >= SNAPSHOT;
        if due {
            saved = now;
        }
        // Both go through whole tables, and checks should not wait for that.
        let work = tokio::task::spawn_blocking(move || {
            table.memory().sweep(now);
            if due {
                save_and_log(&table, &file);
            }
        });
        // It can only fail by a panic, which has been logged.
        let _ = work.await;
    }
}

/// Writes a snapshot; failing is no reason not to serve.
pub fn save_and_log(table: &RoutingTable, file: &Path) {
    if let Err(error) = save(table, file) {
        tracing::warn!(%error, file = %file.display(), "sessions cannot be stored, and would be forgotten by a restart");
    }
}

fn save(table: &RoutingTable, file: &Path) -> io::Result<()> {
    let now = Instant::now();
    let memory = table.memory();
    let entries = |places: &Places| -> Vec<Entry> {
        places.list(now, ALL).into_iter().filter_map(|view| entry(table, view)).collect()
    };
    let saved_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let snapshot = Snapshot { saved_at, sessions: entries(&memory.sessions), users: entries(&memory.users) };
    if snapshot.sessions.is_empty() && snapshot.users.is_empty() && !file.exists() {
        return Ok(());
    }
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    // Whole or not at all. Session keys are secrets.
    let unfinished = file.with_extension("new");
    let _ = fs::remove_file(&unfinished);
    let mut out = io::BufWriter::new(
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?,
    );
    serde_json::to_writer(&mut out, &snapshot)?;
    out.flush()?;
    out.get_ref().sync_all()?;
    fs::rename(&unfinished, file)
}

fn entry(table: &RoutingTable, view: PlaceView) -> Option<Entry> {
    // An instance that is no longer configured has nothing to come back to.
    let id = table.id_of(view.instance)?;
    let (pool, instance) = (table.pool(id.pool), table.instance(id));
    Some(Entry {
        listener: view.scope,
        key: view.key,
        pool: pool.name.clone(),
        instance: instance.name.clone(),
        address: instance.address,
        idle_seconds: view.idle.as_secs(),
        idle_timeout_seconds: view.idle_timeout.as_secs(),
    })
}

/// Puts back what a snapshot has, as far as it is still of use.
pub fn restore(table: &RoutingTable, file: &Path) {
    let text = match fs::read(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            tracing::warn!(%error, file = %file.display(), "stored sessions cannot be read; beginning without them");
            return;
        }
    };
    match serde_json::from_slice::<Snapshot>(&text) {
        Ok(snapshot) => {
            let count = put_back(table, snapshot);
            tracing::info!(sessions = count, "sessions restored");
        }
        Err(error) => {
            tracing::warn!(%error, file = %file.display(), "stored sessions are damaged; beginning without them");
        }
    }
}

/// How many sessions came back.
fn put_back(table: &RoutingTable, snapshot: Snapshot) -> usize {
    let now = Instant::now();
    let today = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let away = today.saturating_sub(snapshot.saved_at);
    let memory = table.memory();
    let put = |places: &Places, entry: Entry| {
        let same = |pool: &str, instance: &crate::core::pool::Instance| {
            pool == entry.pool && instance.name == entry.instance && instance.address == entry.address
        };
        let Some((_, _, instance)) = table.instances().find(|(_, pool, instance)| same(&pool.name, instance))
        else {
            return false;
        };
        let idle = Duration::from_secs(entry.idle_seconds.saturating_add(away));
        let idle_timeout = Duration::from_secs(entry.idle_timeout_seconds);
        // A host that was started later than the session was used knows no such moment.
        let used = now.checked_sub(idle).filter(|_| idle <= idle_timeout);
        let Some(used) = used else { return false };
        let key = PlaceKey { scope: &entry.listener, key: &entry.key };
        places.restore(key, instance.status.sessions(), idle_timeout, used);
        true
    };
    for user in snapshot.users {
        put(&memory.users, user);
    }
    snapshot.sessions.into_iter().filter_map(|entry| put(&memory.sessions, entry).then_some(())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"
        [[listener]]
        name = "web"
        address = "10.0.1.1:80"
        session = { cookie = "S" }
        [[pool]]
        name = "app"
        [[pool.instance]]
        name = "app1"
        address = "10.0.2.11:80"
        [[pool.instance]]
        name = "app2"
        address = "10.0.2.12:80"
    "#;

    fn table(text: &str) -> RoutingTable {
        crate::config::parse("r.toml", text).unwrap_or_else(|errors| panic!("{errors}")).table
    }

    fn key(key: &[u8]) -> PlaceKey<'_> {
        PlaceKey { scope: "web", key }
    }

    fn remember(table: &RoutingTable, name: &str, session: &[u8], used: Instant) {
        let (_, _, instance) = table.instances().find(|(_, _, instance)| instance.name == name).unwrap();
        let counters = instance.status.sessions();
        table.memory().sessions.restore(key(session), counters, Duration::from_secs(600), used);
    }

    fn home(table: &RoutingTable, session: &[u8]) -> Option<String> {
        let instance = table.memory().sessions.find(key(session), Instant::now())?;
        Some(table.instance(table.id_of(instance)?).name.clone())
    }

    #[test]
    fn sessions_come_back_after_a_restart_to_the_instances_that_are_still_there() {
        let folder = std::env::temp_dir().join(format!("router-remembered-{}", std::process::id()));
        let file = file(&folder);
        let before = table(CONFIG);
        remember(&before, "app1", b"one", Instant::now());
        remember(&before, "app2", b"\xff\0two", Instant::now());
        save(&before, &file).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600, "session keys are secrets");

        let after = table(CONFIG);
        restore(&after, &file);
        assert_eq!(home(&after, b"one").as_deref(), Some("app1"));
        assert_eq!(home(&after, b"\xff\0two").as_deref(), Some("app2"));

        let moved = table(&CONFIG.replace("10.0.2.11", "10.0.2.99"));
        restore(&moved, &file);
        assert_eq!(home(&moved, b"one"), None, "that address is another process");
        assert_eq!(home(&moved, b"\xff\0two").as_deref(), Some("app2"));

        fs::write(&file, "{ not json").unwrap();
        let fresh = table(CONFIG);
        restore(&fresh, &file);
        assert!(fresh.memory().sessions.is_empty(), "a damaged file is no reason not to start");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_session_that_was_idle_for_too_long_meanwhile_does_not_come_back() {
        let before = table(CONFIG);
        remember(&before, "app1", b"one", Instant::now());
        let list = before.memory().sessions.list(Instant::now(), ALL);
        let entries = list.into_iter().filter_map(|view| entry(&before, view)).collect();
        let after = table(CONFIG);
        assert_eq!(put_back(&after, Snapshot { saved_at: 0, sessions: entries, users: vec![] }), 0);
    }
}
