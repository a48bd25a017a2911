//! Sessions that live on instances.

use std::time::Instant;

use super::protocol::{SessionEntry, SessionQuery, Sessions};
use super::state::State;
use crate::core::memory::places::PlaceView;
use crate::core::methods::consistent_hash::stable_hash;
use crate::core::table::RoutingTable;

/// How many are shown if nobody says.
const DEFAULT_LIMIT: usize = 1_000;

pub fn list(state: &State, query: &SessionQuery) -> Sessions {
    let table = state.table.load();
    let memory = table.memory();
    let mut list = memory.sessions.list(Instant::now(), query.limit.unwrap_or(DEFAULT_LIMIT));
    list.sort_by_key(|view| (view.scope.clone(), view.idle));
    Sessions {
        count: memory.sessions.len(),
        users: memory.users.len(),
        resources: memory.resources.len(),
        waiting: memory.queues.waiting(),
        sessions: list.into_iter().map(|view| entry(&table, view)).collect(),
    }
}

fn entry(table: &RoutingTable, view: PlaceView) -> SessionEntry {
    let id = table.id_of(view.instance);
    SessionEntry {
        id: format!("{:016x}", stable_hash(&view.key)),
        listener: view.scope,
        pool: id.map(|id| table.pool(id.pool).name.clone()),
        instance: id.map(|id| table.instance(id).name.clone()),
        connections: view.connections,
        idle_seconds: view.idle.as_secs_f64(),
        idle_timeout_seconds: view.idle_timeout.as_secs_f64(),
        resources: view.resources,
    }
}
