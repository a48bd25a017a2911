//! The configuration of the test's daemon: a real file with real changes, installed nowhere.

use std::path::Path;
use std::sync::Mutex;

use router::config::{Next, Refused, Running};
use router::control::configuration::Configurator;
use router::control::protocol::{
    Applied, ChangeRequest, Changes, Configuration, DropRequest, LastReload, ReloadRequest, WriteRequest,
    located,
};

pub const FILE: &str = r#"[daemon]
state_dir = "STATE"

[[listener]]
name = "web"
address = "10.0.1.1:80"

[[pool]]
name = "web"
[[pool.instance]]
name = "web1"
address = "10.0.2.11:80"

# The maps.
[[pool]]
name = "maps"
[[pool.instance]]
name = "gis1"
address = "10.0.2.21:80"
[[pool.instance]]
name = "gis2"
address = "10.0.2.22:80"
weight = 50

[[rule]]
name = "gis"   # all maps
match = 'PathPrefix("/gis") && Host("gis.example")'
pool = "maps"

[[rule]]
name = "admin"
match = 'PathPrefix("/admin")'
action = "deny"

[default_rule]
pools = ["web"]
"#;

pub struct File(Mutex<Running>);

impl File {
    pub fn new(directory: &Path) -> Self {
        let file = directory.join("router.toml");
        let state = directory.join("state").display().to_string();
        std::fs::write(&file, FILE.replace("STATE", &state)).unwrap();
        Self(Mutex::new(Running::start(&file).unwrap().running))
    }

    fn exchange(
        &self,
        revision: Option<&str>,
        dry_run: bool,
        compose: impl FnOnce(&Running) -> Result<Next, Refused>,
    ) -> Result<Applied, Refused> {
        let mut running = self.0.lock().unwrap();
        running.expect_revision(revision)?;
        let next = compose(&running)?;
        let mut applied = Applied {
            dry_run,
            revision: String::new(),
            differences: next.differences.clone(),
            needs_restart: next.needs_restart.clone(),
            not_applied: next.not_applied().cloned().collect(),
            warnings: located(&next.plan.warnings),
        };
        if !dry_run {
            running.store(&next)?;
            running.keep(next);
        }
        applied.revision = running.revision();
        Ok(applied)
    }
}

fn changes(running: &Running, written: Option<usize>) -> Changes {
    Changes {
        revision: running.revision(),
        config_file: running.file().display().to_string(),
        changes: running.changes().to_vec(),
        written,
    }
}

impl Configurator for File {
    fn reload(&self, request: &ReloadRequest) -> Result<Applied, Refused> {
        self.exchange(request.revision.as_deref(), request.dry_run, Running::reload)
    }

    fn change(&self, request: &ChangeRequest) -> Result<Applied, Refused> {
        let change = |running: &Running| running.change(request.changes.clone(), 1_700_000_000);
        self.exchange(request.revision.as_deref(), request.dry_run, change)
    }

    fn drop_changes(&self, request: &DropRequest) -> Result<Applied, Refused> {
        self.exchange(request.revision.as_deref(), request.dry_run, |running| running.without(request.id))
    }

    fn write_changes(&self, request: &WriteRequest) -> Result<Changes, Refused> {
        let mut running = self.0.lock().unwrap();
        running.expect_revision(request.revision.as_deref())?;
        let written = running.write_back()?;
        Ok(changes(&running, Some(written)))
    }

    fn changes(&self) -> Changes {
        changes(&self.0.lock().unwrap(), None)
    }

    fn status(&self) -> Configuration {
        let running = self.0.lock().unwrap();
        let changes = running.changes();
        Configuration {
            revision: running.revision(),
            changes: changes.len(),
            changes_not_applied: changes.iter().filter(|entry| entry.obstacle.is_some()).count(),
            needs_restart: running.needs_restart(),
            reloads: 1,
            reloads_refused: 0,
            last_reload: Some(LastReload { at: 1_700_000_000, error: None }),
        }
    }
}
