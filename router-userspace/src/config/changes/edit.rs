//! Applies changes to the text of a configuration. Comments, order and layout of everything else stay.

use serde_json::Value as Json;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::super::schema;
use super::super::suggest::closest;
use super::{Change, Place, Settings};
use crate::core::table::DEFAULT_RULE_NAME;

/// Why a change cannot be made to this configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Obstacle(String);

impl Obstacle {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// The text with every change applied that can be, and for each change why it cannot, if so.
pub(crate) fn edited<'c>(
    text: &str,
    changes: impl Iterator<Item = &'c Change>,
) -> (String, Vec<Option<Obstacle>>) {
    let mut document = match text.parse::<DocumentMut>() {
        Ok(document) => document,
        Err(error) => {
            let obstacle = Obstacle::new(format!("the configuration cannot be edited: {error}"));
            return (text.to_owned(), changes.map(|_| Some(obstacle.clone())).collect());
        }
    };
    let mut applied: Vec<&Change> = Vec::new();
    let mut obstacles = Vec::new();
    for change in changes {
        let obstacle = apply(change, &mut document).err();
        match obstacle {
            None => applied.push(change),
            // What failed may have done half of its work. Failures are rare, and copies of a large document are slow.
            Some(_) => {
                document = text.parse().unwrap_or_default();
                applied.iter().for_each(|change| drop(apply(change, &mut document)));
            }
        }
        obstacles.push(obstacle);
    }
    (if applied.is_empty() { text.to_owned() } else { document.to_string() }, obstacles)
}

fn apply(change: &Change, document: &mut DocumentMut) -> Result<(), Obstacle> {
    let root = document.as_table_mut();
    match change {
        Change::RuleSet { rule, settings } if rule == DEFAULT_RULE_NAME => set_default_rule(root, settings),
        Change::RuleSet { rule, settings } => {
            let rules = tables(root, "rule");
            let index = position(rules, "rule", rule)?;
            let table = rules.get_mut(index).expect("it was found there");
            // A rule has either a pool or an action; naming one ends the other.
            if settings.contains_key("pool") && !settings.contains_key("action") {
                table.remove("action");
                table.remove("status");
            }
            if settings.contains_key("action") && !settings.contains_key("pool") {
                table.remove("pool");
            }
            set_all(table, settings, &schema::RULE)
        }
        Change::RuleMove { rule, to } => {
            not_default(rule, "moved")?;
            let rules = tables(root, "rule");
            let from = position(rules, "rule", rule)?;
            if matches!(to, Place::Before(other) | Place::After(other) if other == rule) {
                return Err(Obstacle::new(format!("rule {rule} cannot be moved relative to itself")));
            }
            let positions = positions(rules);
            let table = rules.remove(from);
            let to = target(rules, to)?;
            rules.insert(to, table);
            lay_out(rules, &positions);
            Ok(())
        }
        Change::RuleAdd { settings, to } => {
            let name = name_of(settings, "rule")?;
            not_default(name, "added")?;
            let rules = tables(root, "rule");
            absent(rules, "rule", name)?;
            let table = new_table(settings, &schema::RULE)?;
            let positions = positions(rules);
            let to = target(rules, to.as_ref().unwrap_or(&Place::Last))?;
            rules.insert(to, table);
            lay_out(rules, &positions);
            Ok(())
        }
        Change::RuleRemove { rule } => {
            not_default(rule, "removed")?;
            let rules = tables(root, "rule");
            let index = position(rules, "rule", rule)?;
            rules.remove(index);
            if rules.is_empty() {
                root.remove("rule");
            }
            Ok(())
        }
        Change::InstanceSet { instance, settings } => {
            let (pool, index) = find_instance(root, instance)?;
            let instances = instances(root, pool);
            set_all(instances.get_mut(index).expect("it was found there"), settings, &schema::INSTANCE)
        }
        Change::InstanceAdd { pool, settings } => {
            let name = name_of(settings, "instance")?;
            let pool = position(tables(root, "pool"), "pool", pool)?;
            if find_instance(root, name).is_ok() {
                return Err(Obstacle::new(format!("there is an instance {name} already")));
            }
            let table = new_table(settings, &schema::INSTANCE)?;
            instances(root, pool).push(table);
            Ok(())
        }
        Change::InstanceRemove { instance } => {
            let (pool, index) = find_instance(root, instance)?;
            instances(root, pool).remove(index);
            Ok(())
        }
        Change::PoolSet { pool, settings } => {
            let pools = tables(root, "pool");
            let index = position(pools, "pool", pool)?;
            set_all(pools.get_mut(index).expect("it was found there"), settings, &schema::POOL)
        }
    }
}

fn set_default_rule(root: &mut Table, settings: &Settings) -> Result<(), Obstacle> {
    if settings.contains_key("enabled") {
        return Err(Obstacle::new("the default rule is always enabled: it decides what no other rule does"));
    }
    let mut settings = settings.clone();
    if let Some(pool) = settings.remove("pool") {
        settings.insert("pools".to_owned(), Json::Array(vec![pool]));
    }
    let item = root.entry("default_rule").or_insert_with(|| Item::Table(Table::new()));
    let table = item.as_table_like_mut().ok_or_else(|| Obstacle::new("default_rule is not a table"))?;
    set_all(table, &settings, &schema::DEFAULT_RULE)
}

fn not_default(rule: &str, what: &str) -> Result<(), Obstacle> {
    if rule == DEFAULT_RULE_NAME {
        return Err(Obstacle::new(format!(
            "the default rule cannot be {what}: it is always there and always last"
        )));
    }
    Ok(())
}

/// The tables `[[key]]`, made if there is none. A list of inline tables becomes such.
fn tables<'t>(parent: &'t mut Table, key: &str) -> &'t mut ArrayOfTables {
    let item = parent.entry(key).or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    if !item.is_array_of_tables() {
        let listed = std::mem::take(item);
        *item = Item::ArrayOfTables(listed.into_array_of_tables().unwrap_or_default());
    }
    item.as_array_of_tables_mut().expect("it was made one")
}

fn instances(root: &mut Table, pool: usize) -> &mut ArrayOfTables {
    tables(tables(root, "pool").get_mut(pool).expect("the pool was found there"), "instance")
}

fn named(table: &Table) -> Option<&str> {
    table.get("name").and_then(Item::as_str)
}

fn position(tables: &ArrayOfTables, what: &str, name: &str) -> Result<usize, Obstacle> {
    tables
        .iter()
        .position(|table| named(table) == Some(name))
        .ok_or_else(|| missing(what, name, tables.iter().filter_map(named)))
}

fn missing<'n>(what: &str, name: &str, known: impl Iterator<Item = &'n str>) -> Obstacle {
    match closest(name, known) {
        Some(near) => Obstacle::new(format!("there is no {what} {name}; did you mean {near}?")),
        None => Obstacle::new(format!("there is no {what} {name}; `routerctl {what}s` lists them")),
    }
}

fn absent(tables: &ArrayOfTables, what: &str, name: &str) -> Result<(), Obstacle> {
    match position(tables, what, name) {
        Ok(_) => Err(Obstacle::new(format!("there is a {what} {name} already"))),
        Err(_) => Ok(()),
    }
}

/// The pool's place and the instance's in it.
fn find_instance(root: &mut Table, name: &str) -> Result<(usize, usize), Obstacle> {
    let pools = tables(root, "pool").len();
    let mut known = Vec::new();
    for pool in 0..pools {
        for (index, instance) in instances(root, pool).iter().enumerate() {
            match named(instance) {
                Some(found) if found == name => return Ok((pool, index)),
                other => known.extend(other.map(str::to_owned)),
            }
        }
    }
    Err(missing("instance", name, known.iter().map(String::as_str)))
}

fn name_of<'s>(settings: &'s Settings, what: &str) -> Result<&'s str, Obstacle> {
    let name = settings.get("name").and_then(Json::as_str);
    name.ok_or_else(|| Obstacle::new(format!("the new {what} has no name")))
}

/// Where a rule goes among `rules`, which it is not one of.
fn target(rules: &ArrayOfTables, place: &Place) -> Result<usize, Obstacle> {
    match place {
        Place::First => Ok(0),
        Place::Last => Ok(rules.len()),
        Place::Before(other) if other == DEFAULT_RULE_NAME => Ok(rules.len()),
        Place::After(other) if other == DEFAULT_RULE_NAME => {
            Err(Obstacle::new("no rule comes after the default rule, which is always last"))
        }
        Place::Before(other) => position(rules, "rule", other),
        Place::After(other) => Ok(position(rules, "rule", other)? + 1),
    }
}

fn positions(tables: &ArrayOfTables) -> Vec<Option<isize>> {
    tables.iter().map(Table::position).collect()
}

/// Gives the tables the places in the text that they had together, in their new order. A table more than before shares the
/// last place, and comes behind the one that is there.
fn lay_out(tables: &mut ArrayOfTables, positions: &[Option<isize>]) {
    let last = positions.len().saturating_sub(1);
    for (index, table) in tables.iter_mut().enumerate() {
        place(table, positions.get(index.min(last)).copied().flatten());
    }
}

/// Tables inside a table follow it.
fn place(table: &mut Table, position: Option<isize>) {
    table.set_position(position);
    for (_, item) in table.iter_mut() {
        match item {
            Item::Table(inner) => place(inner, position),
            Item::ArrayOfTables(list) => list.iter_mut().for_each(|inner| place(inner, position)),
            _ => {}
        }
    }
}

fn new_table(settings: &Settings, schema: &schema::Section) -> Result<Table, Obstacle> {
    let mut table = Table::new();
    // In the order in which people write them; unknown keys come last, for the configuration to complain of.
    let known = schema.keys.iter().map(|key| key.name).filter(|key| settings.contains_key(*key));
    for key in known {
        set(&mut table, key, &settings[key], schema)?;
    }
    for (key, value) in
        settings.iter().filter(|(key, _)| !schema.keys.iter().any(|known| known.name == **key))
    {
        set(&mut table, key, value, schema)?;
    }
    Ok(table)
}

fn set_all(table: &mut dyn TableLike, settings: &Settings, schema: &schema::Section) -> Result<(), Obstacle> {
    if settings.is_empty() {
        return Err(Obstacle::new("the change names no key; give at least one as KEY=VALUE"));
    }
    settings.iter().try_for_each(|(key, value)| set(table, key, value, schema))
}

fn set(table: &mut dyn TableLike, key: &str, value: &Json, schema: &schema::Section) -> Result<(), Obstacle> {
    if let Some((outer, inner)) = key.split_once('.') {
        if !table.contains_key(outer) && !value.is_null() {
            table.insert(outer, Item::Value(InlineTable::new().into()));
        }
        let Some(item) = table.get_mut(outer) else { return Ok(()) };
        let Some(nested) = item.as_table_like_mut() else {
            return Err(Obstacle::new(format!("`{outer}` is not a table, so it has no `{inner}`")));
        };
        return set(nested, inner, value, schema);
    }
    if ["name", "instance"].contains(&key) && table.contains_key(key) {
        return Err(Obstacle::new(format!(
            "`{key}` of {} cannot be set at run time; add a new one",
            schema.title
        )));
    }
    if value.is_null() {
        table.remove(key);
        return Ok(());
    }
    let mut new = toml(&as_meant(key, value, schema))?;
    match table.get_mut(key) {
        Some(Item::Value(old)) => {
            // With the comment behind it.
            *new.decor_mut() = old.decor().clone();
            *old = new;
        }
        _ => {
            table.insert(key, Item::Value(new));
        }
    }
    Ok(())
}

/// A number for a key whose values are strings is meant as one: `on_unavailable=503`.
fn as_meant(key: &str, value: &Json, schema: &schema::Section) -> Json {
    let is_text = schema.keys.iter().any(|known| known.name == key && known.example.starts_with('"'));
    match value {
        Json::Number(number) if is_text => Json::String(number.to_string()),
        value => value.clone(),
    }
}

fn toml(value: &Json) -> Result<Value, Obstacle> {
    Ok(match value {
        Json::Null => return Err(Obstacle::new("null stands for a key that is removed, not inside a value")),
        Json::Bool(value) => (*value).into(),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => integer.into(),
            (None, Some(float)) => float.into(),
            (None, None) => return Err(Obstacle::new(format!("the number {number} is too large"))),
        },
        Json::String(text) => text.as_str().into(),
        Json::Array(elements) => {
            let mut array = Array::new();
            for element in elements {
                array.push(toml(element)?);
            }
            array.into()
        }
        Json::Object(fields) => {
            let mut table = InlineTable::new();
            for (key, value) in fields {
                table.insert(key, toml(value)?);
            }
            table.into()
        }
    })
}
