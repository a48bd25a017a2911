//! When a relayed connection should be handed to the packet path.
//!
//! A handoff costs about as much CPU as relaying 50 kB, so a connection that carries one small request and ends is
//! cheaper relayed. [`Watch`] looks at what a relay has carried and says when it should pause for one.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use tokio::time::Instant;

use super::http::HttpHead;
use super::http::fields::{Framing, Upgrade};
use super::settings::{AutoHandoff, ListenerSettings, Offload};
use super::sockopt;

/// What made a handoff pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// `offload = "handoff"`.
    Configured,
    /// The request offers to change the protocol.
    Upgrade,
    /// The request announces a long body, or many bytes have been relayed.
    Bytes,
    /// The client has sent more after a response.
    SecondRequest,
    /// The connection has lived on.
    Age,
}

impl Trigger {
    pub fn name(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Upgrade => "upgrade",
            Self::Bytes => "bytes",
            Self::SecondRequest => "second_request",
            Self::Age => "age",
        }
    }
}

/// Whether the request's head alone says that a handoff will pay.
pub fn at_once(settings: &ListenerSettings, head: &HttpHead<'_>) -> Option<Trigger> {
    match settings.offload {
        Offload::Relay => None,
        Offload::Handoff => Some(Trigger::Configured),
        Offload::Auto | Offload::Bind => match (head.fields.upgrade, head.fields.framing) {
            (Upgrade::Other, _) => Some(Trigger::Upgrade),
            (_, Framing::Length(length)) if length >= settings.auto.after_bytes => Some(Trigger::Bytes),
            _ => None,
        },
    }
}

/// Unacknowledged bytes, in each direction, that still allow a handoff: while they are outstanding, our
/// sockets hold back acknowledgements.
const CUSTODY_LIMIT: usize = 64 * 1024;
/// A side that has sent this much, in bytes, may soon be handed off: its window is kept from growing, since
/// whatever waits in our receive queue then has to be moved by hand.
const LIMIT_AFTER: u64 = 16 * 1024;
const LIMITED_WINDOW: u32 = 32 * 1024;
/// The same for an instance. What it has been permitted must fit the window of its client, which may be small; the way to it is short, so that a
/// small window costs little.
const LIMITED_INSTANCE_WINDOW: u32 = 16 * 1024;
/// The window that a connection may have which will be relayed to its end.
const RELAY_WINDOW: u32 = 4 * 1024 * 1024;
/// How long it is worth waiting for everything to be acknowledged: the less is outstanding, the surer it fits the other side's window.
const SETTLING: Duration = Duration::from_millis(5);
/// How long a relay stands still for a handoff at most, and how often it tries again.
const PATIENCE: Duration = Duration::from_secs(2);
const ATTEMPTS: u32 = 6;
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Keeps a new client from being permitted more than an instance's first window takes, since it may be handed off before the
/// instance has given it another.
pub fn expect_handoff(client: BorrowedFd<'_>) {
    // A window that grows only means that the connection is relayed for longer.
    let _ = sockopt::clamp_window(client, LIMITED_WINDOW);
}

/// Watches a relayed connection for the moment when a handoff pays.
#[derive(Clone, Debug)]
pub struct Watch {
    settings: AutoHandoff,
    /// What will make a handoff pay when nothing else does before, and when.
    due: (Trigger, Instant),
    /// Whether the instance has sent something since the client last did.
    answered: bool,
    /// How often the client will answer the instance before its second request.
    handshake: u8,
    /// Whose window has been limited: the client's, the instance's.
    limited: [bool; 2],
    /// The response's head has yet to pass through user space.
    awaits_head: bool,
    /// What makes a handoff pay as soon as it has.
    after_head: Option<Trigger>,
    pausing: Option<(Trigger, Instant)>,
    /// Pauses that led to nothing.
    attempts: u32,
}

impl Watch {
    pub fn new(settings: AutoHandoff, now: Instant) -> Self {
        let due = (Trigger::Age, now + settings.after_age);
        Self {
            settings,
            due,
            answered: false,
            handshake: 0,
            limited: [false; 2],
            awaits_head: false,
            after_head: None,
            pausing: None,
            attempts: 0,
        }
    }

    /// The connection begins with a TLS handshake, in which the client sends twice: its ClientHello, and what answers the instance's part.
    pub fn expect_handshake(&mut self) {
        self.handshake = 1;
    }

    /// Allows no handoff before [`Self::head_passed`], and then, if `trigger` says that one pays, at once.
    pub fn await_head(&mut self, trigger: Option<Trigger>) {
        (self.awaits_head, self.after_head) = (true, trigger);
    }

    /// The response's head has passed.
    pub fn head_passed(&mut self) {
        self.awaits_head = false;
        if let Some(trigger) = self.after_head.take() {
            self.pause(trigger);
        }
    }

    pub fn is_pausing(&self) -> bool {
        self.pausing.is_some()
    }

    /// Whether the client's latest bytes wait for the packet path.
    pub fn holds_request(&self) -> bool {
        matches!(self.pausing, Some((Trigger::SecondRequest, _)))
    }

    /// Asked before receiving, when `relayed` bytes have been in all.
    pub fn stops_receiving(&mut self, relayed: u64) -> bool {
        if self.pausing.is_none() && relayed >= self.settings.after_bytes << self.attempts {
            self.pause(Trigger::Bytes);
        }
        self.pausing.is_some()
    }

    /// The client has sent something; `received` bytes in all.
    pub fn client_sent(&mut self, client: BorrowedFd<'_>, received: u64) {
        if std::mem::take(&mut self.answered) {
            if self.handshake > 0 {
                self.handshake -= 1;
            } else if self.settings.second_request && self.pausing.is_none() {
                self.pause(Trigger::SecondRequest);
            }
        }
        self.limit(0, client, received, LIMITED_WINDOW);
    }

    /// The instance has sent something; `received` bytes in all.
    pub fn instance_sent(&mut self, instance: BorrowedFd<'_>, received: u64) {
        self.answered = true;
        self.limit(1, instance, received, LIMITED_INSTANCE_WINDOW);
    }

    /// Called when the timer has run out.
    pub fn tick(&mut self, now: Instant) {
        let (trigger, when) = self.due;
        if self.pausing.is_none() && now >= when {
            self.pause(trigger);
        }
    }

    /// When [`Self::tick`] has something to do.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        match self.pausing {
            Some(_) => Some(now + Duration::from_millis(1)),
            None => (!self.is_hopeless() && !self.awaits_head).then_some(self.due.1),
        }
    }

    /// Given what each side has not acknowledged: whether the moment has come.
    pub fn may_hand_off(&self, unacknowledged: [usize; 2], now: Instant) -> Option<Trigger> {
        let (trigger, since) = self.pausing?;
        let limit = if now < since + SETTLING { 0 } else { CUSTODY_LIMIT };
        unacknowledged.iter().all(|bytes| *bytes <= limit).then_some(trigger)
    }

    /// Whether the pause has lasted too long; then it is over.
    pub fn give_up(&mut self, now: Instant) -> bool {
        let too_long = self.pausing.is_some_and(|(_, since)| now >= since + PATIENCE);
        if too_long {
            self.refused(now);
        }
        too_long
    }

    /// The handoff did not happen: the relay goes on. It tries again when twice as much has been relayed, at the next request, or when what was
    /// outstanding should have been acknowledged.
    pub fn refused(&mut self, now: Instant) {
        let trigger = self.pausing.take().map_or(self.due.0, |(trigger, _)| trigger);
        self.due = (trigger, now + RETRY_AFTER * (1 << self.attempts));
        self.attempts += 1;
    }

    /// Whether trying again has any point.
    pub fn is_hopeless(&self) -> bool {
        self.attempts >= ATTEMPTS
    }

    fn pause(&mut self, trigger: Trigger) {
        if !self.is_hopeless() && !self.awaits_head {
            self.pausing = Some((trigger, Instant::now()));
        }
    }

    fn limit(&mut self, side: usize, socket: BorrowedFd<'_>, received: u64, window: u32) {
        if received >= LIMIT_AFTER && !self.limited[side] && !self.is_hopeless() {
            self.limited[side] = true;
            // A window that stays large only means that more has to be moved by hand.
            let _ = sockopt::limit_receiving(socket, window);
        }
    }

    /// No handoff will happen: the windows, the client's and the instance's, may grow again.
    pub fn lift_limits(&mut self, sockets: [BorrowedFd<'_>; 2]) {
        for (limited, socket) in self.limited.iter_mut().zip(sockets) {
            if std::mem::take(limited) {
                // Costs throughput at worst.
                let _ = sockopt::allow_receiving(socket, RELAY_WINDOW);
            }
        }
    }
}
