//! `sessions`: users' work that stays on its instance.

use std::io::Write;

use super::Failure;
use super::client::Client;
use super::table::{Cell, Table, duration};
use crate::control::protocol::Sessions;

pub(super) fn run(client: &Client, limit: u32, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let answer = client.get::<Sessions>(&format!("/v1/sessions?limit={limit}"))?;
    if answer.print_json(json, out)? {
        return Ok(());
    }
    let Sessions { count, users, resources, waiting, sessions } = answer.value;
    let titles =
        ["SESSION", "LISTENER", "POOL", "INSTANCE", ">CONNECTIONS", ">IDLE", ">ENDS AFTER", "RESOURCES"];
    let mut table = Table::new(&titles);
    for session in &sessions {
        table.row(vec![
            Cell::new(&session.id),
            Cell::new(&session.listener),
            Cell::optional(session.pool.as_ref()),
            Cell::optional(session.instance.as_ref()),
            Cell::number(session.connections),
            Cell::number(duration(session.idle_seconds)),
            Cell::number(duration(session.idle_timeout_seconds)),
            Cell::new(session.resources.join(", ")),
        ]);
    }
    table.print(out)?;
    let shown = sessions.len();
    writeln!(
        out,
        "\n{shown} of {count} sessions; {users} users and {resources} resources remembered, {waiting} requests waiting"
    )?;
    Ok(())
}
