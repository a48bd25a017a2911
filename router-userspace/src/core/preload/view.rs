//! What operators see of preloads.

use std::time::{Duration, Instant};

use jiff::Zoned;

use super::item::Item;
use super::place::{Place, State};
use super::planner::Planner;
use super::schedule::later;
use super::{LoadFailure, Wanted};

/// How the latest request went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub ended: Instant,
    pub took: Duration,
    /// The status of the answer.
    pub result: Result<u16, LoadFailure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceState {
    /// Waits for its turn, or for its window.
    Waiting,
    /// The first request is under way.
    Loading,
    Loaded,
    /// Loaded, and a request to keep it so is under way.
    Refreshing,
    /// The latest request failed, and is to be tried again.
    Retrying,
    /// Every try failed.
    Stopped,
    /// No instance can be picked.
    NoInstance,
}

impl PlaceState {
    pub const ALL: &'static [Self] = &[
        Self::Waiting,
        Self::Loading,
        Self::Loaded,
        Self::Refreshing,
        Self::Retrying,
        Self::Stopped,
        Self::NoInstance,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
            Self::Refreshing => "refreshing",
            Self::Retrying => "retrying",
            Self::Stopped => "stopped",
            Self::NoInstance => "no-instance",
        }
    }
}

/// A resource on one instance, or its lack of one.
#[derive(Clone, Debug)]
pub struct PreloadView {
    pub rule: String,
    pub resource: String,
    pub pool: String,
    pub instance: Option<String>,
    pub state: PlaceState,
    /// Whether requests for the resource are sent there because of it.
    pub loaded: bool,
    pub last: Option<Run>,
    /// When the next request is due: its window must be open. `None` while one is under way.
    pub next: Option<Zoned>,
    /// Failed tries in a row.
    pub failures: u32,
}

impl Planner {
    /// Every resource on every instance, in the order of the rules. `wall` is what clocks show at `now`.
    pub fn view(&self, now: Instant, wall: &Zoned) -> Vec<PreloadView> {
        self.items().iter().flat_map(|item| item.view(now, wall)).collect()
    }
}

impl Item {
    fn view(&self, now: Instant, wall: &Zoned) -> Vec<PreloadView> {
        let opening = |due: Instant| {
            let at = later(wall, due.saturating_duration_since(now))?;
            self.preload.schedule.opening(&at)
        };
        let row = |instance: Option<&Place>, state| PreloadView {
            rule: self.rule.clone(),
            resource: self.resource.clone(),
            pool: self.pool.clone(),
            instance: instance.map(|place| place.name.clone()),
            state,
            loaded: instance.is_some_and(|place| place.loaded),
            last: instance.and_then(|place| place.last.clone()),
            next: match instance {
                Some(place) if place.is_running() => None,
                Some(place) => opening(place.due),
                None => opening(self.begins),
            },
            failures: instance.map_or(0, |place| place.failures),
        };
        let mut rows: Vec<_> = self.places.iter().map(|place| row(Some(place), place.shown())).collect();
        let lacks = match self.preload.instances {
            Wanted::Number(number) => rows.len() < number,
            Wanted::All => rows.is_empty(),
        };
        if lacks {
            let waits = self.begins > now || !self.preload.schedule.is_open(wall) || !self.lacks_instances;
            rows.push(row(None, if waits { PlaceState::Waiting } else { PlaceState::NoInstance }));
        }
        rows
    }
}

impl Place {
    fn shown(&self) -> PlaceState {
        match self.state {
            State::Running { .. } if self.loaded => PlaceState::Refreshing,
            State::Running { .. } => PlaceState::Loading,
            State::Stopped => PlaceState::Stopped,
            State::Waiting if self.failures > 0 => PlaceState::Retrying,
            State::Waiting if self.loaded => PlaceState::Loaded,
            State::Waiting => PlaceState::Waiting,
        }
    }
}
