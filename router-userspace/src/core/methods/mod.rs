//! How one of several equal candidates is picked. Each method gives every candidate a figure, and the smallest wins;
//! `consistent-hash` alone asks a ring instead.
//!
//! A method that rests on reports or observations is used only if every candidate has a fresh figure. Otherwise that
//! decision falls back to `fewest-sessions`.

mod adaptive;
pub mod consistent_hash;
pub mod maglev;
pub mod response;
pub(super) mod round_robin;

use std::cmp::Ordering;

use super::candidates::Candidate;
use super::choose::{Terms, load};
use super::pool::{Instance, Method};

/// What the methods compare of one candidate; the smallest wins.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    sessions: u32,
    weight: u32,
    /// The asked method's own figure, if it is known.
    own: Option<f64>,
    /// Round-robin: where the turn after this one would begin.
    next_turn: u64,
}

impl Figures {
    /// For round-robin, `turn` is where the instance's next turn begins, and `round` is where the round stands.
    #[inline(always)]
    pub(super) fn of_candidate(
        terms: &Terms<'_>,
        instance: &Instance,
        candidate: &Candidate,
        turn: u64,
        round: u64,
    ) -> Self {
        let mut figures =
            Self { sessions: candidate.tally.live(), weight: candidate.weight, own: Some(0.0), next_turn: 0 };
        match terms.method {
            // Sessions and weight decide, or the ring.
            Method::FewestSessions | Method::ConsistentHash => {}
            Method::RoundRobin => {
                let turn = round_robin::turn(turn, round, candidate.weight);
                figures.next_turn = turn.next;
                // Only the distance is compared, which is small, so nothing is rounded.
                figures.own = Some((turn.due - round) as f64);
            }
            method => figures.own = reported(method, terms, instance, candidate),
        }
        figures
    }

    /// Round-robin: where the turn after this one begins; 0 for other methods.
    pub(super) fn next_turn(&self) -> u64 {
        self.next_turn
    }

    /// Whether the figure is known. Only that of the method that was asked for, and of `fewest-sessions`, can be.
    pub(super) fn know(&self, method: Method) -> bool {
        method == Method::FewestSessions || self.own.is_some()
    }

    /// The figure, if it is known.
    pub(super) fn of(&self, method: Method) -> Option<f64> {
        if method == Method::FewestSessions { load(self.sessions, self.weight) } else { self.own }
    }

    /// Less if this figure wins. Both are known, because a method is used only where every candidate has its figure.
    pub(super) fn compare(&self, other: &Self, method: Method) -> Ordering {
        if method == Method::FewestSessions {
            // s₁ / w₁ against s₂ / w₂, exactly and without dividing.
            let load = |one: &Self, of: &Self| u64::from(one.sessions) * u64::from(of.weight);
            return load(self, other).cmp(&load(other, self));
        }
        self.own.partial_cmp(&other.own).unwrap_or(Ordering::Greater)
    }
}

/// The figure of a method that rests on reports or observations.
fn reported(method: Method, terms: &Terms<'_>, instance: &Instance, candidate: &Candidate) -> Option<f64> {
    let (now, ttl, weight) = (terms.now, candidate.report_ttl, f64::from(candidate.weight));
    let (response, gauges) = (instance.status.sessions().response(), instance.status.gauges());
    match method {
        Method::FewestSessions | Method::ConsistentHash | Method::RoundRobin => None,
        Method::FastestResponse => response.milliseconds(now).map(|time| time * 100.0 / weight),
        // What is spare: the largest wins.
        Method::LeastCpu => gauges.cpu_spare(ttl, now).map(|spare| -(spare * weight / 100.0)),
        Method::MostFreeMemory => gauges.memory_free(ttl, now).map(|free| -(free as f64 * weight / 100.0)),
        Method::ServerAgent => gauges.agent_value(ttl, now).map(f64::from),
        Method::Adaptive => response.milliseconds(now).map(|response| {
            let agent = gauges.agent_value(ttl, now);
            adaptive::figure(response, candidate.tally.live(), candidate.weight, agent)
        }),
    }
}
