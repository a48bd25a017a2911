//! Heads that are put together from several packets: of whom, how many, and for how long.
//!
//! The rest of a head follows at once, or not at all for a while: clients that are slow, or lose packets, belong to sockets.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use router_common::abi::key::FlowKey;

use super::super::settings::Listener;
use crate::flows::binding::First;

/// For how long a head is waited for.
const PATIENCE: Duration = Duration::from_millis(10);
/// Heads at a time, each of at most two windows: 29 KB.
const MOST: usize = 1_024;
/// The same of one client address.
const MOST_OF_ONE: usize = 64;

/// A head that is not complete.
pub(super) struct Unfinished {
    pub listener: Arc<Listener>,
    pub first: First,
    /// When it is waited for no more.
    pub due: Instant,
}

impl Unfinished {
    pub fn new(listener: Arc<Listener>, first: First, now: Instant) -> Self {
        Self { listener, first, due: now + PATIENCE }
    }
}

/// Those of all clients.
#[derive(Default)]
pub(super) struct Assemblies {
    heads: HashMap<FlowKey, Unfinished>,
    /// How many are whose.
    of: HashMap<IpAddr, usize>,
}

impl Assemblies {
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Gives a client's back if there are too many.
    pub fn keep(&mut self, head: Unfinished) -> Option<Unfinished> {
        let client = head.first.client.ip();
        if self.heads.len() >= MOST || self.of.get(&client).is_some_and(|heads| *heads >= MOST_OF_ONE) {
            return Some(head);
        }
        *self.of.entry(client).or_default() += 1;
        self.heads.insert(head.first.client_key(), head);
        None
    }

    pub fn take(&mut self, client: &FlowKey) -> Option<Unfinished> {
        let head = self.heads.remove(client)?;
        let address = head.first.client.ip();
        if let Some(of_client) = self.of.get_mut(&address) {
            *of_client -= 1;
            if *of_client == 0 {
                self.of.remove(&address);
            }
        }
        Some(head)
    }

    /// Those that are waited for no more.
    pub fn take_overdue(&mut self, now: Instant) -> Vec<Unfinished> {
        let overdue = self.heads.iter().filter(|(_, head)| head.due <= now);
        let clients: Vec<FlowKey> = overdue.map(|(client, _)| *client).collect();
        clients.iter().filter_map(|client| self.take(client)).collect()
    }
}
