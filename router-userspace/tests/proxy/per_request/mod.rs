//! Listeners with `once_only = false`: each request of a connection goes its own way.

mod choices;
mod heads;
mod messages;
mod stalls;
mod upgrades;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use router::core::rules::compile;
use router::core::table::{Action, Overrides, Rule};

use crate::actors::*;

fn each(instances: impl IntoIterator<Item = SocketAddr>) -> Setup {
    proxy(instances).with(|settings| {
        settings.once_only = false;
        settings.forwarded_for = false;
    })
}

fn rule(name: &str, condition: &str, action: Action) -> Rule {
    Rule {
        name: name.to_owned(),
        enabled: true,
        condition: compile(condition).unwrap(),
        action,
        overrides: Overrides::default(),
        persistence: None,
        preload: None,
        hits: Arc::default(),
    }
}

/// An instance that answers each request with its name and says what it was asked.
fn named(name: &'static str, seen: &Arc<Mutex<Vec<String>>>) -> SocketAddr {
    let seen = Arc::clone(seen);
    instance(move |mut connection| {
        loop {
            let head = read_head(&mut connection);
            if head.is_empty() {
                return;
            }
            seen.lock().unwrap().push(head);
            respond(&mut connection, name);
        }
    })
}

fn status_of(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or(head)
}
