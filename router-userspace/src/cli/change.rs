//! `reload`, `changes`, and the commands that change rules, instances and pools of a running daemon.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use serde_json::Value;

use super::client::{Answer, Client};
use super::table::{BAD, BOLD, Cell, DIM, GOOD, Table, duration};
use super::{Exit, Failure};
use crate::control::protocol::{
    Applied, Change, ChangeRequest, Changes, DropRequest, How, Place, ReloadRequest, Settings, WriteRequest,
};

/// How a change is made.
#[derive(Clone, Debug, Args)]
pub(super) struct Manner {
    /// Only say what would change
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    expected: Expected,
}

#[derive(Clone, Debug, Args)]
pub(super) struct Expected {
    /// Only if the configuration still has this revision, as `status` and `changes` show it
    #[arg(long, value_name = "REVISION")]
    if_revision: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum ChangesCommand {
    /// The changes in the order in which they apply (the same as no command)
    List,
    /// Undo one change, or all
    Drop {
        /// The change's number, or `all`
        #[arg(value_name = "ID", value_parser = change_id)]
        id: WhichChanges,
        #[command(flatten)]
        manner: Manner,
    },
    /// Make the changes part of the configuration file; its comments and layout stay
    Write {
        #[command(flatten)]
        expected: Expected,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum WhichChanges {
    All,
    One(u64),
}

fn change_id(text: &str) -> Result<WhichChanges, String> {
    match text {
        "all" => Ok(WhichChanges::All),
        number => number.parse().map(WhichChanges::One).map_err(|_| "give a number, or `all`".to_owned()),
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum RuleCommand {
    /// Let a rule decide again
    Enable {
        #[arg(value_name = "RULE")]
        rule: String,
        #[command(flatten)]
        manner: Manner,
    },
    /// Skip a rule
    Disable {
        #[arg(value_name = "RULE")]
        rule: String,
        #[command(flatten)]
        manner: Manner,
    },
    /// Give a rule another place; the first rule that holds decides
    Move {
        #[arg(value_name = "RULE")]
        rule: String,
        #[command(flatten)]
        place: RequiredPlace,
        #[command(flatten)]
        manner: Manner,
    },
    /// Let a rule lead to another pool
    Map {
        #[arg(value_name = "RULE")]
        rule: String,
        #[arg(value_name = "POOL")]
        pool: String,
        #[command(flatten)]
        manner: Manner,
    },
    /// Set keys of a rule, as in the configuration
    Set {
        #[arg(value_name = "RULE")]
        rule: String,
        #[command(flatten)]
        keys: RequiredKeys,
        #[command(flatten)]
        manner: Manner,
    },
    /// Add a rule; without a place it comes last, before the default rule
    Add {
        #[arg(value_name = "RULE")]
        rule: String,
        /// Its condition, such as 'PathPrefix("/reports")'
        #[arg(long = "match", value_name = "EXPRESSION")]
        condition: String,
        /// The pool that serves it
        #[arg(long, value_name = "POOL", required_unless_present = "deny", conflicts_with = "deny")]
        pool: Option<String>,
        /// Refuse the requests, with this HTTP status
        #[arg(long, value_name = "STATUS", num_args = 0..=1, default_missing_value = "403")]
        deny: Option<u16>,
        #[command(flatten)]
        place: OptionalPlace,
        #[command(flatten)]
        keys: Keys,
        #[command(flatten)]
        manner: Manner,
    },
    /// Remove a rule
    Remove {
        #[arg(value_name = "RULE")]
        rule: String,
        #[command(flatten)]
        manner: Manner,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum InstanceCommand {
    /// Set the state, the weight or other keys of an instance
    Set {
        #[arg(value_name = "INSTANCE")]
        instance: String,
        /// enable, drain or maintenance
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        #[arg(long, value_name = "WEIGHT")]
        weight: Option<u32>,
        #[command(flatten)]
        keys: Keys,
        #[command(flatten)]
        manner: Manner,
    },
    /// Add an instance to a pool
    Add {
        #[arg(value_name = "INSTANCE")]
        instance: String,
        #[arg(long, value_name = "POOL")]
        pool: String,
        /// Its address and port
        #[arg(long, value_name = "ADDRESS:PORT")]
        address: String,
        #[arg(long, value_name = "WEIGHT")]
        weight: Option<u32>,
        #[command(flatten)]
        keys: Keys,
        #[command(flatten)]
        manner: Manner,
    },
    /// Remove an instance from its pool; connections that are there go on
    Remove {
        #[arg(value_name = "INSTANCE")]
        instance: String,
        #[command(flatten)]
        manner: Manner,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum PoolCommand {
    /// Set keys of a pool, as in the configuration
    Set {
        #[arg(value_name = "POOL")]
        pool: String,
        #[command(flatten)]
        keys: RequiredKeys,
        #[command(flatten)]
        manner: Manner,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct RequiredPlace {
    /// Before this rule
    #[arg(long, value_name = "RULE")]
    before: Option<String>,
    /// After this rule
    #[arg(long, value_name = "RULE")]
    after: Option<String>,
    /// Before all others
    #[arg(long)]
    first: bool,
    /// Behind all others, before the default rule
    #[arg(long)]
    last: bool,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
pub(super) struct OptionalPlace {
    /// Before this rule
    #[arg(long, value_name = "RULE")]
    before: Option<String>,
    /// After this rule
    #[arg(long, value_name = "RULE")]
    after: Option<String>,
    /// Before all others
    #[arg(long)]
    first: bool,
}

#[derive(Debug, Args)]
pub(super) struct Keys {
    /// Keys as in the configuration, such as max_sessions=500; `KEY=` goes back to the default
    #[arg(value_name = "KEY=VALUE", value_parser = setting)]
    keys: Vec<(String, Value)>,
}

#[derive(Debug, Args)]
pub(super) struct RequiredKeys {
    /// Keys as in the configuration, such as check.interval=5s; `KEY=` goes back to the default
    #[arg(value_name = "KEY=VALUE", value_parser = setting, required = true)]
    keys: Vec<(String, Value)>,
}

/// A value as TOML would have it; what is none is a string, so that `method=least-cpu` needs no quotes.
fn setting(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE, such as weight=50")?;
    let plain = || Value::String(value.to_owned());
    let parsed = match value {
        "" => Value::Null,
        value => match format!("v = {value}").parse::<toml::Table>() {
            Ok(mut table) => match table.remove("v") {
                Some(toml::Value::Datetime(_)) | None => plain(),
                Some(value) => serde_json::to_value(value).unwrap_or_else(|_| plain()),
            },
            Err(_) => plain(),
        },
    };
    Ok((key.trim().to_owned(), parsed))
}

fn settings(keys: &[(String, Value)]) -> Settings {
    keys.iter().cloned().collect()
}

fn place(before: &Option<String>, after: &Option<String>, first: bool) -> Place {
    match (before, after) {
        (Some(rule), _) => Place::Before(rule.clone()),
        (_, Some(rule)) => Place::After(rule.clone()),
        _ if first => Place::First,
        _ => Place::Last,
    }
}

pub(super) fn rule(
    client: &Client,
    command: &RuleCommand,
    json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let set = |rule: &str, key: &str, value: Value| Change::RuleSet {
        rule: rule.to_owned(),
        settings: [(key.to_owned(), value)].into_iter().collect(),
    };
    let (change, manner) = match command {
        RuleCommand::Enable { rule, manner } => (set(rule, "enabled", true.into()), manner),
        RuleCommand::Disable { rule, manner } => (set(rule, "enabled", false.into()), manner),
        RuleCommand::Map { rule, pool, manner } => (set(rule, "pool", pool.as_str().into()), manner),
        RuleCommand::Set { rule, keys, manner } => {
            (Change::RuleSet { rule: rule.clone(), settings: settings(&keys.keys) }, manner)
        }
        RuleCommand::Move { rule, place: at, manner } => {
            (Change::RuleMove { rule: rule.clone(), to: place(&at.before, &at.after, at.first) }, manner)
        }
        RuleCommand::Remove { rule, manner } => (Change::RuleRemove { rule: rule.clone() }, manner),
        RuleCommand::Add { rule, condition, pool, deny, place: at, keys, manner } => {
            let mut settings = settings(&keys.keys);
            settings.insert("name".to_owned(), rule.as_str().into());
            settings.insert("match".to_owned(), condition.as_str().into());
            if let Some(pool) = pool {
                settings.insert("pool".to_owned(), pool.as_str().into());
            }
            if let Some(status) = deny {
                settings.insert("action".to_owned(), "deny".into());
                settings.insert("status".to_owned(), (*status).into());
            }
            let to = Some(place(&at.before, &at.after, at.first)).filter(|to| *to != Place::Last);
            (Change::RuleAdd { settings, to }, manner)
        }
    };
    make(client, change, manner, json, out)
}

pub(super) fn instance(
    client: &Client,
    command: &InstanceCommand,
    json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let (change, manner) = match command {
        InstanceCommand::Set { instance, state, weight, keys, manner } => {
            let mut settings = settings(&keys.keys);
            settings.extend(state.as_ref().map(|state| ("state".to_owned(), state.as_str().into())));
            settings.extend(weight.map(|weight| ("weight".to_owned(), weight.into())));
            (Change::InstanceSet { instance: instance.clone(), settings }, manner)
        }
        InstanceCommand::Add { instance, pool, address, weight, keys, manner } => {
            let mut settings = settings(&keys.keys);
            settings.insert("name".to_owned(), instance.as_str().into());
            settings.insert("address".to_owned(), address.as_str().into());
            settings.extend(weight.map(|weight| ("weight".to_owned(), weight.into())));
            (Change::InstanceAdd { pool: pool.clone(), settings }, manner)
        }
        InstanceCommand::Remove { instance, manner } => {
            (Change::InstanceRemove { instance: instance.clone() }, manner)
        }
    };
    make(client, change, manner, json, out)
}

pub(super) fn pool(
    client: &Client,
    command: &PoolCommand,
    json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let PoolCommand::Set { pool, keys, manner } = command;
    let change = Change::PoolSet { pool: pool.clone(), settings: settings(&keys.keys) };
    make(client, change, manner, json, out)
}

fn make(
    client: &Client,
    change: Change,
    manner: &Manner,
    json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let Manner { dry_run, expected: Expected { if_revision } } = manner.clone();
    let request = ChangeRequest { changes: vec![change], dry_run, revision: if_revision };
    applied(client.post("/v1/changes", &request)?, json, out)
}

pub(super) fn reload(
    client: &Client,
    manner: &Manner,
    json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let Manner { dry_run, expected: Expected { if_revision } } = manner.clone();
    applied(client.post("/v1/reload", &ReloadRequest { dry_run, revision: if_revision })?, json, out)
}

pub(super) fn changes(
    client: &Client,
    command: Option<&ChangesCommand>,
    json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    match command {
        None | Some(ChangesCommand::List) => {
            let answer = client.get::<Changes>("/v1/changes")?;
            if !answer.print_json(json, out)? {
                list(&answer.value, out)?;
            }
            Ok(Exit::Ok)
        }
        Some(ChangesCommand::Drop { id, manner }) => {
            let Manner { dry_run, expected: Expected { if_revision } } = manner.clone();
            let id = match id {
                WhichChanges::All => None,
                WhichChanges::One(id) => Some(*id),
            };
            let request = DropRequest { id, dry_run, revision: if_revision };
            applied(client.post("/v1/changes/drop", &request)?, json, out)
        }
        Some(ChangesCommand::Write { expected }) => {
            let request = WriteRequest { revision: expected.if_revision.clone() };
            let answer = client.post::<Changes>("/v1/changes/write", &request)?;
            if !answer.print_json(json, out)? {
                let Changes { written, config_file, changes, .. } = &answer.value;
                writeln!(out, "{} written to {config_file}", counted(written.unwrap_or(0), "change"))?;
                if !changes.is_empty() {
                    writeln!(out, "{} not in force, and not written", counted(changes.len(), "change"))?;
                }
            }
            Ok(Exit::Ok)
        }
    }
}

fn list(changes: &Changes, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{DIM}revision {}{DIM:#}", changes.revision)?;
    if changes.changes.is_empty() {
        return writeln!(out, "no run-time changes: the daemon runs what {} says", changes.config_file);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let mut table = Table::new(&[">ID", "AGE", "CHANGE", "IN FORCE"]);
    for entry in &changes.changes {
        let in_force = match &entry.obstacle {
            None => Cell::new("yes").style(GOOD),
            Some(obstacle) => Cell::new(format!("no: {obstacle}")).style(BAD),
        };
        let age = duration(now.saturating_sub(entry.made_at) as f64);
        let id = usize::try_from(entry.id).unwrap_or(usize::MAX);
        table.row(vec![Cell::number(id), Cell::new(age), Cell::new(&entry.change), in_force]);
    }
    table.print(out)
}

fn applied(answer: Answer<Applied>, json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    if answer.print_json(json, out)? {
        return Ok(Exit::Ok);
    }
    let Applied { dry_run, differences, needs_restart, not_applied, warnings, .. } = &answer.value;
    for one in differences {
        let (style, sign) = match one.how {
            How::Added => (GOOD, "+"),
            How::Removed => (BAD, "-"),
            How::Changed => (BOLD, "~"),
            How::Moved => (BOLD, ">"),
        };
        let name = [one.what.as_str(), one.name.as_str()].join(" ");
        writeln!(out, "{style}{sign} {} {}{style:#} {}", name.trim_end(), one.how.name(), one.detail)?;
    }
    for entry in not_applied {
        let obstacle = entry.obstacle.as_deref().unwrap_or_default();
        writeln!(out, "{BAD}! change {} is not in force{BAD:#} ({}): {obstacle}", entry.id, entry.change)?;
    }
    for setting in needs_restart {
        writeln!(out, "{BAD}! needs a restart{BAD:#}: {setting}")?;
    }
    for warning in warnings {
        let line = warning.line.map(|line| format!(":{line}")).unwrap_or_default();
        writeln!(out, "{DIM}warning{DIM:#}: {}{line}: {}", warning.file, warning.message)?;
    }
    let verdict = match (dry_run, differences.is_empty()) {
        (true, true) => "nothing would change",
        (true, false) => "nothing was changed: this was a dry run",
        (false, true) => "nothing differs from before",
        (false, false) => "in force",
    };
    writeln!(out, "{verdict}")?;
    Ok(Exit::Ok)
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_need_quotes_only_where_they_could_be_mistaken() {
        let value = |text| setting(text).unwrap().1;
        assert_eq!(value("weight=50"), Value::from(50));
        assert_eq!(value("forwarded_for=true"), Value::from(true));
        assert_eq!(value("method=least-cpu"), Value::from("least-cpu"));
        assert_eq!(value("slow_start=30s"), Value::from("30s"));
        assert_eq!(value("group=\"50\""), Value::from("50"));
        assert_eq!(value("expect=[\"200-299\"]"), serde_json::json!(["200-299"]));
        assert_eq!(value("check={ type = \"tcp\" }"), serde_json::json!({ "type": "tcp" }));
        assert_eq!(value("group="), Value::Null);
        assert_eq!(value("match=Path(\"/a=b\")"), Value::from("Path(\"/a=b\")"));
        assert!(setting("weight").is_err());
    }
}
