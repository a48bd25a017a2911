//! Stable places for things that flows refer to by number.

use std::collections::{BTreeSet, HashMap};

use super::{ApplyError, EndpointKey};

/// Which place each endpoint has. A place is given away again only when nothing refers to it any more.
#[derive(Debug)]
pub struct Slots {
    what: &'static str,
    places: HashMap<EndpointKey, u32>,
    free: BTreeSet<u32>,
    size: usize,
}

impl Slots {
    /// `taken` are the places that are in use already. Place 0 is never used.
    pub fn new(what: &'static str, size: usize, taken: impl IntoIterator<Item = (EndpointKey, u32)>) -> Self {
        let places: HashMap<_, _> = taken.into_iter().collect();
        let mut free: BTreeSet<u32> = (1..size as u32).collect();
        for place in places.values() {
            free.remove(place);
        }
        Self { what, places, free, size }
    }

    /// The place of an endpoint, and whether it is new.
    pub fn take(&mut self, key: EndpointKey) -> Result<(u32, bool), ApplyError> {
        if let Some(place) = self.places.get(&key) {
            return Ok((*place, false));
        }
        let place =
            self.free.pop_first().ok_or(ApplyError::TooMany { what: self.what, most: self.size - 1 })?;
        self.places.insert(key, place);
        Ok((place, true))
    }

    pub fn release(&mut self, key: &EndpointKey) {
        if let Some(place) = self.places.remove(key) {
            self.free.insert(place);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (EndpointKey, u32)> {
        self.places.iter().map(|(key, place)| (*key, *place))
    }
}
