//! `status`, `pools` and `instances` as tables.

use std::io::{self, Write};

use super::table::{BAD, BOLD, Cell, DIM, GOOD, Table, duration};
use crate::control::protocol::{Configuration, Instance, LastReload, Pool, Status};

pub(super) fn status(status: &Status, out: &mut dyn Write) -> io::Result<()> {
    let Status { version, pid, .. } = status;
    let up = duration(status.uptime_seconds as f64);
    write!(out, "{BOLD}routerd {version}{BOLD:#}, pid {pid}, up {up}")?;
    if let Some(file) = &status.config_file {
        write!(out, ", {file}")?;
    }
    if let Some(group) = &status.group {
        write!(out, ", group {group}")?;
    }
    writeln!(out)?;
    configuration(&status.configuration, out)?;
    let datapath = &status.datapath;
    let style = if datapath.loaded { GOOD } else { BAD };
    writeln!(out, "data path    {style}{}{style:#}", datapath.detail)?;
    if datapath.loaded {
        writeln!(out, "flows        {} of {}", datapath.flows, datapath.max_flows)?;
        if datapath.l4_max_flows > 0 {
            writeln!(out, "layer 4      {} flows of {}", datapath.l4_flows, datapath.l4_max_flows)?;
            if datapath.l4_unroutable_instances > 0 {
                let count = datapath.l4_unroutable_instances;
                writeln!(
                    out,
                    "             {BAD}no route to {count} instances{BAD:#}; see `routerctl instances`"
                )?;
            }
        }
    }
    for (number, at) in datapath.interfaces.iter().enumerate() {
        let title = if number == 0 { "interfaces" } else { "" };
        writeln!(out, "{title:<13}{} by {}: {}", at.interface, at.hook, at.reason)?;
        for advice in &at.advice {
            writeln!(out, "{:<13}  {BAD}{advice}{BAD:#}", "")?;
        }
    }
    let count = &status.connections;
    writeln!(
        out,
        "connections  {} accepted, {} open, {} requests",
        count.accepted, count.open, count.requests
    )?;
    writeln!(
        out,
        "             {} bound, {} handed off, {} relayed, {} refused, {} retries",
        count.bound, count.handed_off, count.relayed, count.refused, count.retries
    )?;

    writeln!(out)?;
    let mut listeners = Table::new(&["LISTENER", "ADDRESS", "PROTOCOL", "SOURCE", "OFFLOAD"]);
    for listener in &status.listeners {
        listeners.row(vec![
            Cell::new(&listener.name),
            Cell::new(listener.address),
            Cell::new(&listener.protocol),
            Cell::new(&listener.source),
            Cell::new(&listener.offload),
        ]);
    }
    listeners.print(out)?;

    writeln!(out)?;
    let mut pools = Table::new(&["POOL", "SERVING", ">SESSIONS"]);
    for pool in &status.pools {
        pools.row(vec![
            Cell::new(&pool.name),
            serving(pool.serving, pool.instances),
            Cell::number(pool.sessions),
        ]);
    }
    pools.print(out)?;

    for (title, reasons) in [
        ("NOT BOUND BECAUSE", &status.unbound),
        ("RELAYED BECAUSE", &status.relayed),
        ("REFUSED BECAUSE", &status.refused),
    ] {
        if reasons.is_empty() {
            continue;
        }
        writeln!(out)?;
        let mut table = Table::new(&[title, ">COUNT"]);
        for (reason, count) in reasons {
            table.row(vec![Cell::new(reason), Cell::number(count)]);
        }
        table.print(out)?;
    }
    Ok(())
}

pub(super) fn pools(pools: &[Pool], out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&["POOL", "SERVING", ">SESSIONS", "METHOD", "ON UNAVAILABLE", "CHECK"]);
    for pool in pools {
        table.row(vec![
            Cell::new(&pool.name),
            serving(pool.serving, pool.instances.len()),
            Cell::number(pool.sessions),
            Cell::new(&pool.method),
            Cell::new(pool.on_unavailable.as_deref().unwrap_or("by listener")),
            Cell::optional(pool.check.as_ref()),
        ]);
    }
    table.print(out)
}

pub(super) fn instances(instances: &[Instance], out: &mut dyn Write) -> io::Result<()> {
    let titles = [
        "POOL",
        "INSTANCE",
        "ADDRESS",
        "HEALTH",
        "ADMIN",
        "LOAD",
        ">WEIGHT",
        ">SESSIONS",
        ">LIMIT",
        ">TOTAL",
        "GROUP",
        "HEALTH DETAIL",
    ];
    let mut table = Table::new(&titles);
    for instance in instances {
        table.row(vec![
            Cell::new(&instance.pool),
            Cell::new(&instance.name),
            Cell::new(instance.address),
            health(instance),
            admin(instance),
            load(instance),
            Cell::number(instance.weight),
            Cell::number(instance.sessions),
            Cell::number(instance.max_sessions.map_or_else(|| "-".to_owned(), |limit| limit.to_string())),
            Cell::number(instance.sessions_total),
            Cell::optional(instance.group.as_ref()),
            match &instance.obstacle {
                Some(obstacle) => Cell::new(obstacle).style(BAD),
                None => Cell::optional(instance.health_detail.as_ref()),
            },
        ]);
    }
    table.print(out)
}

/// Only what an operator may have to do something about.
fn configuration(status: &Configuration, out: &mut dyn Write) -> io::Result<()> {
    let not_applied = status.changes_not_applied;
    if status.changes > 0 {
        write!(out, "changes      {} made at run time", status.changes)?;
        if not_applied > 0 {
            write!(out, ", {BAD}{not_applied} of them not in force{BAD:#}")?;
        }
        writeln!(out, "; see `routerctl changes`")?;
    }
    if let Some(LastReload { error: Some(error), .. }) = &status.last_reload {
        let first = error.lines().next().unwrap_or_default();
        writeln!(out, "reload       {BAD}the last one was refused{BAD:#}: {first}")?;
    }
    for setting in &status.needs_restart {
        writeln!(out, "restart      {BAD}needed{BAD:#} for {setting}")?;
    }
    Ok(())
}

fn serving(serving: usize, all: usize) -> Cell {
    let style = match serving {
        0 => BAD,
        _ if serving == all => GOOD,
        _ => DIM,
    };
    Cell::new(format!("{serving}/{all}")).style(style)
}

pub(super) fn health(instance: &Instance) -> Cell {
    let style = if instance.health == "up" { GOOD } else { BAD };
    Cell::new(&instance.health).style(style)
}

/// The load status, with what is known of processors and memory.
fn load(instance: &Instance) -> Cell {
    let load = &instance.reported;
    if load.reported_seconds_ago.is_none() {
        return Cell::new("-").style(DIM);
    }
    let mut text = load.status.clone();
    for (name, value) in [("cpu", load.averages.get("cpu")), ("mem", load.averages.get("memory"))] {
        if let Some(value) = value {
            text.push_str(&format!(" {name} {value:.0}%"));
        }
    }
    if let Some(value) = load.agent_value {
        text.push_str(&format!(" agent {value}"));
    }
    let style = match load.status.as_str() {
        "exhausted" => BAD,
        "available" => GOOD,
        _ => BOLD,
    };
    Cell::new(text).style(style)
}

pub(super) fn admin(instance: &Instance) -> Cell {
    let cell = Cell::new(&instance.admin);
    if instance.admin == "enabled" { cell } else { cell.style(DIM) }
}
