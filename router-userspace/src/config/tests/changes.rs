//! Run-time changes: edits of the configuration that survive a restart and can be written back.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use serde_json::json;

use super::super::changes::{Change, Place, Settings};
use super::super::running::Started;
use super::super::{Next, Refused, Running};

const FILE: &str = r#"# Our gateway.
[daemon]
state_dir = "STATE"

[[listener]]
name = "web"
address = "10.0.1.1:80"

# The application.
[[pool]]
name = "app"   # two instances
check = { type = "tcp", interval = "2s" }

[[pool.instance]]
name = "app1"
address = "10.0.2.11:80"
weight = 100   # the new machine

[[pool.instance]]
name = "app2"
address = "10.0.2.12:80"

# First of all.
[[rule]]
name = "one"
match = 'Path("/one")'
pool = "app"

[[rule]]
name = "two"   # the second
match = 'Path("/two")'
action = "deny"
status = 404

# For everybody else.
[default_rule]
pools = ["app"]
"#;

/// A configuration file in a directory of its own, which is removed at the end.
struct Site {
    directory: PathBuf,
    running: Running,
}

impl Site {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("router-changes-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let state = directory.join("state").display().to_string();
        fs::write(directory.join("router.toml"), FILE.replace("STATE", &state)).unwrap();
        let Started { running, damage, .. } = Running::start(&directory.join("router.toml")).unwrap();
        assert_eq!(damage, None);
        Self { directory, running }
    }

    fn try_change(&mut self, change: Change) -> Result<(), Refused> {
        let next = self.running.change(vec![change], 1)?;
        self.install(next);
        Ok(())
    }

    #[track_caller]
    fn change(&mut self, change: Change) {
        self.try_change(change).unwrap();
    }

    fn install(&mut self, next: Next) {
        self.running.store(&next).unwrap();
        self.running.keep(next);
    }

    fn restart(&mut self) {
        self.running = Running::start(&self.directory.join("router.toml")).unwrap().running;
    }

    /// The file as it is on disk.
    fn text(&self) -> String {
        fs::read_to_string(self.directory.join("router.toml")).unwrap()
    }

    /// Edits the file as an operator would.
    fn edit(&self, from: &str, to: &str) {
        assert!(self.text().contains(from));
        fs::write(self.directory.join("router.toml"), self.text().replace(from, to)).unwrap();
    }

    fn rules(&self) -> Vec<String> {
        let plan = self.running.reload().unwrap().plan;
        plan.table.rules().iter().map(|rule| rule.name.clone()).collect()
    }

    fn changes(&self) -> Vec<String> {
        self.running.changes().iter().map(|entry| entry.change.to_string()).collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn settings(value: serde_json::Value) -> Settings {
    value.as_object().unwrap().clone()
}

fn set_rule(rule: &str, value: serde_json::Value) -> Change {
    Change::RuleSet { rule: rule.to_owned(), settings: settings(value) }
}

fn set_instance(instance: &str, value: serde_json::Value) -> Change {
    Change::InstanceSet { instance: instance.to_owned(), settings: settings(value) }
}

fn move_rule(rule: &str, to: Place) -> Change {
    Change::RuleMove { rule: rule.to_owned(), to }
}

fn add_rule(name: &str, to: Option<Place>) -> Change {
    let value = json!({ "name": name, "match": "Any()", "pool": "app" });
    Change::RuleAdd { settings: settings(value), to }
}

#[test]
fn changes_survive_a_restart_and_writing_them_back_keeps_every_comment() {
    let mut site = Site::new("write-back");
    site.change(move_rule("two", Place::Before("one".to_owned())));
    site.change(set_instance("app1", json!({ "weight": 50, "state": "drain" })));
    site.change(add_rule("three", None));
    site.change(Change::PoolSet {
        pool: "app".to_owned(),
        settings: settings(json!({ "check.interval": "5s" })),
    });
    site.restart();
    assert_eq!(site.rules(), ["two", "one", "three"]);
    assert_eq!(site.changes().len(), 4);
    let revision = site.running.revision();

    assert_eq!(site.running.write_back().unwrap(), 4);
    assert_eq!(site.running.revision(), revision, "writing back changes nothing about what runs");
    let expected = FILE
        .replace("STATE", &site.directory.join("state").display().to_string())
        .replace("weight = 100   # the new machine\n", "weight = 50   # the new machine\nstate = \"drain\"\n")
        .replace("interval = \"2s\"", "interval = \"5s\"");
    let one = "\n# First of all.\n[[rule]]\nname = \"one\"\nmatch = 'Path(\"/one\")'\npool = \"app\"\n";
    let three = "\n[[rule]]\nname = \"three\"\nmatch = \"Any()\"\npool = \"app\"\n";
    let expected =
        expected.replace(one, "").replace("status = 404\n", &format!("status = 404\n{one}{three}"));
    assert_eq!(site.text(), expected);
    site.restart();
    assert!(site.changes().is_empty());
    assert_eq!(site.running.revision(), revision);
}

#[test]
fn a_daemon_that_dies_while_it_writes_back_lists_no_change_twice_and_loses_none() {
    let mut site = Site::new("crash");
    site.change(add_rule("three", None));
    site.change(move_rule("two", Place::First));
    site.change(Change::RuleRemove { rule: "one".to_owned() });
    site.change(add_rule("four", Some(Place::After("two".to_owned()))));
    site.change(set_instance("app2", json!({ "weight": 7 })));
    // The last one has an obstacle: its instance is gone from the file.
    site.edit("name = \"app2\"", "name = \"app3\"");
    let next = site.running.reload().unwrap();
    site.install(next);
    let (revision, rules) = (site.running.revision(), site.rules());
    assert_eq!(rules, ["two", "four", "three"]);

    // It dies before the file is replaced: every change is still one.
    site.running.announce_write_back().unwrap();
    site.restart();
    assert_eq!((site.running.revision(), site.changes().len()), (revision.clone(), 5));

    // It dies before the journal is emptied: the file has the changes, except the one that does not apply.
    site.running.announce_write_back().unwrap();
    site.running.write_file().unwrap();
    for _ in 0..2 {
        site.restart();
        assert_eq!(site.changes(), ["instance app2: weight = 7"]);
        assert_eq!((site.running.revision(), site.rules()), (revision.clone(), rules.clone()));
    }
    // The operator brings back what the last one refers to, and nothing of the others comes back with it.
    site.edit("name = \"app3\"", "name = \"app2\"");
    site.restart();
    assert_eq!((site.running.changes()[0].obstacle.clone(), site.changes().len()), (None, 1));
    assert_eq!(site.running.write_back().unwrap(), 1);
}

#[test]
fn a_file_that_was_edited_meanwhile_is_not_overwritten() {
    let mut site = Site::new("edited");
    site.change(set_rule("one", json!({ "enabled": false })));
    site.edit("# Our gateway.", "# Our good gateway.");
    assert!(matches!(site.running.write_back(), Err(Refused::ChangedOnDisk(_))));
    let next = site.running.reload().unwrap();
    site.install(next);
    site.running.write_back().unwrap();
    assert!(site.text().starts_with("# Our good gateway."));
    assert!(site.text().contains("enabled = false"));
}

#[test]
fn the_file_keeps_its_mode_and_a_link_stays_a_link() {
    use std::os::unix::fs::PermissionsExt;
    let mut site = Site::new("mode");
    let (file, target) = (site.directory.join("router.toml"), site.directory.join("real.toml"));
    fs::rename(&file, &target).unwrap();
    std::os::unix::fs::symlink(&target, &file).unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
    site.change(set_rule("one", json!({ "enabled": false })));
    site.running.write_back().unwrap();
    assert!(fs::symlink_metadata(&file).unwrap().is_symlink());
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(site.text().contains("enabled = false"));
}

#[test]
fn a_change_that_makes_no_sense_is_refused_and_says_why() {
    let mut site = Site::new("refused");
    let mut refused = |change: Change, expected: &str| {
        let error = site.try_change(change).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(set_rule("on", json!({ "enabled": false })), "there is no rule on; did you mean one?");
    refused(set_rule("default", json!({ "enabled": false })), "always enabled");
    refused(set_rule("one", json!({ "pool": "ap" })), "did you mean `app`?");
    refused(set_rule("one", json!({ "colour": "red" })), "unknown key `colour`");
    refused(set_rule("one", json!({ "name": "uno" })), "cannot be set at run time");
    refused(set_rule("one", json!({ "match": "Host(\"a\"" })), "never closed");
    refused(set_rule("one", json!({})), "names no key");
    refused(move_rule("default", Place::First), "always last");
    refused(move_rule("one", Place::After("default".to_owned())), "always last");
    refused(move_rule("one", Place::Before("one".to_owned())), "relative to itself");
    refused(add_rule("two", None), "there is a rule two already");
    refused(Change::RuleRemove { rule: "default".to_owned() }, "cannot be removed");
    refused(set_instance("app1", json!({ "weight": -1 })), "weight");
    refused(set_instance("app1", json!({ "state": "off" })), "state");
    let instance = json!({ "name": "app3", "address": "10.0.2.11:80" });
    let add = Change::InstanceAdd { pool: "app".to_owned(), settings: settings(instance) };
    refused(add, "two instances have the address 10.0.2.11:80");
    assert!(site.changes().is_empty());
    assert!(!site.directory.join("state/changes.json").exists());
}

#[test]
fn a_change_that_cannot_be_stored_is_refused() {
    let site = Site::new("stored");
    fs::write(site.directory.join("state"), "a file where a folder should be").unwrap();
    let next = site.running.change(vec![set_rule("one", json!({ "enabled": false }))], 1).unwrap();
    let error = site.running.store(&next).unwrap_err();
    assert!(matches!(error, Refused::NotWritten { .. }), "{error}");
    assert!(error.to_string().contains("state/changes.json cannot be written"), "{error}");
    assert!(site.changes().is_empty());
}

#[test]
fn several_changes_apply_together_or_not_at_all() {
    let site = Site::new("together");
    let good = set_rule("one", json!({ "enabled": false }));
    let bad = set_rule("one", json!({ "pool": "nowhere" }));
    assert!(site.running.change(vec![good.clone(), bad], 1).is_err());
    // Each alone would name a pool without instances, or one that no file has.
    let pools = site.running.change(vec![good, move_rule("two", Place::First)], 1).unwrap();
    assert_eq!(pools.plan.table.rules()[0].name, "two");
    assert!(!pools.plan.table.rules()[1].enabled);
}

#[test]
fn a_reload_keeps_the_changes_that_still_apply_and_names_the_others() {
    let mut site = Site::new("reload");
    site.change(set_rule("one", json!({ "enabled": false })));
    site.change(set_instance("app2", json!({ "weight": 10 })));
    site.edit("name = \"one\"", "name = \"uno\"");
    let next = site.running.reload().unwrap();
    let lost: Vec<_> = next.not_applied().map(|entry| entry.obstacle.clone().unwrap()).collect();
    assert_eq!(lost, ["there is no rule one; `routerctl rules` lists them"]);
    assert!(next.plan.table.rules()[0].enabled);
    assert_eq!(next.plan.table.instances().nth(1).unwrap().2.weight, 10);
    site.install(next);
    assert_eq!(site.changes().len(), 2, "it is kept in case that the rule comes back");

    site.edit("name = \"uno\"", "name = \"one\"");
    let next = site.running.reload().unwrap();
    assert_eq!(next.not_applied().count(), 0);
    assert!(!next.plan.table.rules()[0].enabled);
}

#[test]
fn a_change_that_would_make_the_new_file_invalid_is_left_out() {
    let mut site = Site::new("invalid");
    let instance = json!({ "name": "app3", "address": "10.0.2.13:80" });
    site.change(Change::InstanceAdd { pool: "app".to_owned(), settings: settings(instance) });
    site.change(set_rule("one", json!({ "enabled": false })));
    site.edit("address = \"10.0.2.12:80\"", "address = \"10.0.2.13:80\"");
    let next = site.running.reload().unwrap();
    let lost: Vec<_> = next.not_applied().map(|entry| entry.change.to_string()).collect();
    assert_eq!(lost, ["instance app3 added to pool app: address = \"10.0.2.13:80\""]);
    assert!(!next.plan.table.rules()[0].enabled, "the other one applies");
}

#[test]
fn an_invalid_file_changes_nothing_and_its_errors_have_their_places() {
    let site = Site::new("broken");
    site.edit("pool = \"app\"", "pool = \"ap\"");
    let Err(Refused::Invalid(errors)) = site.running.reload() else { panic!("it is not valid") };
    let place = &errors.located()[0];
    assert!(place.file.ends_with("router.toml"));
    assert_eq!((place.line, place.column), (Some(27), Some(8)), "{errors}");
}

#[test]
fn a_change_can_be_dropped_and_so_can_all() {
    let mut site = Site::new("dropped");
    site.change(set_rule("one", json!({ "enabled": false })));
    site.change(set_rule("two", json!({ "pool": "app" })));
    let next = site.running.without(Some(1)).unwrap();
    site.install(next);
    assert_eq!(site.changes(), ["rule two: pool = \"app\""]);
    assert!(matches!(site.running.without(Some(1)), Err(Refused::NoSuchChange(1))));
    let next = site.running.without(None).unwrap();
    site.install(next);
    site.restart();
    assert!(site.changes().is_empty());
    site.change(set_rule("one", json!({ "enabled": false })));
    assert_eq!(site.running.changes()[0].id, 3, "a number is never used again");
}

#[test]
fn a_later_change_of_the_same_thing_takes_the_place_of_the_earlier() {
    let mut site = Site::new("shortened");
    for weight in 1..50 {
        site.change(set_instance("app1", json!({ "weight": weight })));
        site.change(move_rule("two", if weight % 2 == 0 { Place::First } else { Place::Last }));
    }
    assert_eq!(site.changes(), ["instance app1: weight = 49", "rule two: moved to the last place"]);
    for number in 0..50 {
        let instance = json!({ "name": format!("i{number}"), "address": "10.0.2.99:80" });
        site.change(Change::InstanceAdd { pool: "app".to_owned(), settings: settings(instance) });
        site.change(set_instance(&format!("i{number}"), json!({ "weight": 3 })));
        site.change(Change::InstanceRemove { instance: format!("i{number}") });
    }
    assert_eq!(site.changes().len(), 2, "what came and went leaves nothing behind");
}

#[test]
fn two_operators_do_not_overwrite_each_other() {
    let mut site = Site::new("revision");
    let seen = site.running.revision();
    site.running.expect_revision(Some(&seen)).unwrap();
    site.change(set_rule("one", json!({ "enabled": false })));
    assert!(matches!(site.running.expect_revision(Some(&seen)), Err(Refused::Revision { .. })));
    site.running.expect_revision(None).unwrap();
}

#[test]
fn the_default_rule_can_be_mapped_to_another_pool() {
    let mut site = Site::new("default");
    site.edit("[default_rule]\npools = [\"app\"]\n", "");
    let next = site.running.reload().unwrap();
    site.install(next);
    site.change(set_rule("default", json!({ "pool": "app" })));
    site.running.write_back().unwrap();
    assert!(site.text().contains("\n[default_rule]\npools = [\"app\"]\n"), "{}", site.text());
}

#[test]
fn a_rule_that_denied_can_be_mapped_to_a_pool_and_back() {
    let mut site = Site::new("deny");
    site.change(set_rule("two", json!({ "pool": "app" })));
    site.change(set_rule("two", json!({ "action": "deny" })));
    site.running.write_back().unwrap();
    let two = site.text().split("name = \"two\"").nth(1).unwrap().to_owned();
    assert!(two.contains("action = \"deny\"") && !two.contains("status"), "{two}");
}

/// What an operator does to the order of rules, by numbers that pick among those there are.
#[derive(Clone, Debug)]
enum Step {
    Before(usize, usize),
    After(usize, usize),
    First(usize),
    Last(usize),
    Add(usize),
    Remove(usize),
    WriteBack,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let two = || (any::<usize>(), any::<usize>());
    prop_oneof![
        4 => two().prop_map(|(rule, other)| Step::Before(rule, other)),
        4 => two().prop_map(|(rule, other)| Step::After(rule, other)),
        1 => any::<usize>().prop_map(Step::First),
        1 => any::<usize>().prop_map(Step::Last),
        3 => any::<usize>().prop_map(Step::Add),
        2 => any::<usize>().prop_map(Step::Remove),
        1 => Just(Step::WriteBack),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn rules_come_in_the_order_in_which_they_were_put(steps in proptest::collection::vec(step(), 1..24)) {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let mut site = Site::new(&format!("order-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let mut model = vec!["one".to_owned(), "two".to_owned()];
        for (number, step) in steps.into_iter().enumerate() {
            let names = model.clone();
            let pick = |index: usize| names.get(index.checked_rem(names.len())?).cloned();
            let mut put = |name: String, place: Place| {
                let Some(from) = model.iter().position(|rule| *rule == name) else { return };
                let rule = model.remove(from);
                let at = |other: &String| model.iter().position(|rule| rule == other).unwrap();
                let to = match &place {
                    Place::First => 0,
                    Place::Last => model.len(),
                    Place::Before(other) => at(other),
                    Place::After(other) => at(other) + 1,
                };
                model.insert(to, rule);
                site.change(move_rule(&name, place));
            };
            match step {
                Step::Before(rule, other) | Step::After(rule, other) => {
                    let (Some(rule), Some(other)) = (pick(rule), pick(other)) else { continue };
                    if rule == other {
                        continue;
                    }
                    let before = matches!(step, Step::Before(..));
                    put(rule, if before { Place::Before(other) } else { Place::After(other) });
                }
                Step::First(rule) => pick(rule).into_iter().for_each(|rule| put(rule, Place::First)),
                Step::Last(rule) => pick(rule).into_iter().for_each(|rule| put(rule, Place::Last)),
                Step::Add(other) => {
                    let name = format!("n{number}");
                    let place = pick(other).map(Place::Before);
                    let at = pick(other).and_then(|other| model.iter().position(|rule| *rule == other));
                    model.insert(at.unwrap_or(model.len()), name.clone());
                    site.change(add_rule(&name, place));
                }
                Step::Remove(rule) => {
                    let Some(rule) = pick(rule) else { continue };
                    model.retain(|other| *other != rule);
                    site.change(Change::RuleRemove { rule });
                }
                Step::WriteBack => drop(site.running.write_back().unwrap()),
                Step::Restart => site.restart(),
            }
            prop_assert_eq!(site.rules(), model.clone());
        }
        site.running.write_back().unwrap();
        prop_assert_eq!(site.rules(), model);
        for kept in ["# Our gateway.", "# The application.", "# two instances", "# the new machine", "# For everybody else."] {
            prop_assert!(site.text().contains(kept), "{}", site.text());
        }
    }
}

#[test]
fn ten_thousand_rules_can_be_changed_too() {
    let mut site = Site::new("many");
    let rules: String = (0..10_000)
        .map(|number| {
            format!("[[rule]]\nname = \"r{number}\"\nmatch = 'Host(\"h{number}\")'\npool = \"app\"\n\n")
        })
        .collect();
    site.edit("# First of all.\n", &rules);
    let next = site.running.reload().unwrap();
    site.install(next);
    site.change(move_rule("r9999", Place::First));
    site.change(set_rule("r5000", json!({ "enabled": false })));
    assert_eq!(site.rules()[..2], ["r9999", "r0"]);
}
