//! Preloads in the protocol's words.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use jiff::Zoned;

use super::protocol::{Preload, PreloadRun};
use super::state::State;
use crate::core::preload::{PlaceState, PreloadView, Run};

pub fn list(state: &State) -> Vec<Preload> {
    let (now, wall) = (Instant::now(), Zoned::now());
    let planner = state.preloads.lock().unwrap_or_else(PoisonError::into_inner);
    let rows = planner.view(now, &wall);
    drop(planner);
    rows.into_iter().map(|row| preload(row, now, &wall)).collect()
}

/// How many resources are in each state, and how many are loaded.
pub fn count(state: &State) -> (Vec<(PlaceState, usize)>, usize) {
    let planner = state.preloads.lock().unwrap_or_else(PoisonError::into_inner);
    let rows = planner.view(Instant::now(), &Zoned::now());
    let of = |state| rows.iter().filter(|row| row.state == state).count();
    let states = PlaceState::ALL.iter().map(|&state| (state, of(state))).collect();
    (states, rows.iter().filter(|row| row.loaded).count())
}

fn preload(row: PreloadView, now: Instant, wall: &Zoned) -> Preload {
    let next_in = row.next.as_ref().map(|next| {
        let wait = next.timestamp().duration_since(wall.timestamp());
        Duration::try_from(wait).unwrap_or_default().as_secs_f64()
    });
    Preload {
        rule: row.rule,
        resource: row.resource,
        pool: row.pool,
        instance: row.instance,
        state: row.state.name().to_owned(),
        loaded: row.loaded,
        last: row.last.map(|last| run(last, now, wall)),
        next: row.next.map(|next| next.timestamp().as_second()),
        next_in_seconds: next_in,
        failed_attempts: row.failures,
    }
}

fn run(run: Run, now: Instant, wall: &Zoned) -> PreloadRun {
    let ago = now.saturating_duration_since(run.ended).as_secs_f64();
    PreloadRun {
        at: (wall.timestamp().as_second() as f64 - ago).round() as i64,
        seconds_ago: ago,
        took_seconds: run.took.as_secs_f64(),
        status: run.result.as_ref().ok().copied(),
        failure: run.result.err().map(|failure| failure.to_string()),
    }
}
