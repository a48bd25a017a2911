//! Carries bytes both ways between a client and an instance, for as long as the packet path does not.
//!
//! One task, both directions. A direction holds a buffer only while it holds bytes; it receives more only when the
//! other side has taken all of them, so a slow reader slows the writer and memory stays bounded. The end of
//! one direction is passed on as such, and the other goes on. A broken connection is broken for the other side too.
//!
//! When [`Watch`] says that a handoff would pay, the relay stops receiving until no byte is left in user space
//! and little is unacknowledged, and gives both sockets back. If the handoff is refused it goes on as if nothing had been.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::buffer::Buffer;
use super::direction::{Direction, Fault, Phase};
use super::endpoint::Endpoint;
use super::http::response::{HeadInsertion, Insertion};
use super::offload::{Trigger, Watch};
use super::response_timer::ResponseTimer;
use super::sockopt;

/// How long the client of a complete request is not listened to. Most responses are there earlier, and then the client's socket need never
/// join the runtime.
const UNHEARD: Duration = Duration::from_millis(10);
/// How often a pausing relay looks whether the peers have acknowledged enough.
const PAUSE_POLL: Duration = Duration::from_millis(1);

/// Why [`Relay::run`] returned.
#[derive(Debug)]
pub enum Step {
    /// A handoff would pay: no byte is in user space but those of [`Relay::unsent`], and both sides are open.
    HandOff(Trigger),
    End(Ending),
}

/// How a relayed connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both sides closed in order.
    Closed,
    /// The client reset its connection, or can no longer be written to.
    ClientReset,
    /// The instance reset its connection.
    InstanceReset,
    /// The instance closed its connection in order before the first byte; the client has been sent nothing.
    NoResponse,
    /// Nothing moved for too long.
    Idle,
}

impl Ending {
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::ClientReset => "client_reset",
            Self::InstanceReset => "instance_reset",
            Self::NoResponse => "no_response",
            Self::Idle => "idle_timeout",
        }
    }
}

/// How long nothing may move.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub idle: Duration,
    pub half_closed: Duration,
}

/// What a relay is made of, and what is left of it for a handoff.
#[derive(Debug)]
pub struct Parts {
    pub client: Endpoint,
    pub instance: Endpoint,
    /// Bytes from the client that the instance has yet to get.
    pub unsent: Option<Buffer>,
    /// Bytes received so far from the client, those of `unsent` included, and from the instance.
    pub bytes: (u64, u64),
    /// Whether the client has announced that nothing follows its request (`Connection: close`, RFC 9112 §9.6): the end of the response is the
    /// end of the connection.
    pub request_complete: bool,
}

/// A pair of sockets, and what is on its way between them.
#[derive(Debug)]
pub struct Relay {
    client: Endpoint,
    instance: Endpoint,
    /// From the client to the instance.
    request: Direction,
    /// From the instance to the client.
    response: Direction,
    patience: Patience,
    /// `None` if a handoff is out of the question.
    watch: Option<Watch>,
    /// What the first response's head still has to get.
    insertion: Option<HeadInsertion>,
    inserted: Option<Insertion>,
    last_moved: Instant,
    /// Whether the client has announced that nothing follows, and has kept to it so far.
    request_complete: bool,
    /// From when on such a client is listened to: it may give up.
    hears_client: Option<Instant>,
    gave_up: bool,
    /// Stopped by the first byte of the response.
    timer: Option<ResponseTimer>,
}

impl Relay {
    /// Joins two sockets. With a `watch` the relay looks out for the moment when a handoff pays.
    /// `insertion` is put into the head of the first response.
    pub fn new(
        parts: Parts,
        patience: Patience,
        watch: Option<Watch>,
        insertion: Option<HeadInsertion>,
    ) -> io::Result<Self> {
        let Parts { client, instance, unsent, bytes, request_complete } = parts;
        let now = Instant::now();
        let hears_client = request_complete.then(|| now + UNHEARD);
        Ok(Self {
            client: if request_complete { client } else { client.register()? },
            instance: instance.register()?,
            request: Direction { buffer: unsent, bytes: bytes.0, phase: Phase::Open },
            response: Direction { buffer: None, bytes: bytes.1, phase: Phase::Open },
            patience,
            watch,
            insertion,
            inserted: None,
            last_moved: now,
            request_complete,
            hears_client,
            gave_up: false,
            timer: None,
        })
    }

    /// Has the time until the first byte of the response observed.
    pub fn time_response(&mut self, timer: Option<ResponseTimer>) {
        self.timer = timer;
    }

    /// The timer, if no byte of the response has come yet.
    pub fn take_timer(&mut self) -> Option<ResponseTimer> {
        self.timer.take()
    }

    /// Takes the relay apart. Everything is there when [`Step::HandOff`] was returned.
    pub fn into_parts(self) -> (Parts, Option<Watch>) {
        let bytes = self.bytes();
        let Self { client, instance, request, request_complete, watch, .. } = self;
        (Parts { client, instance, unsent: request.buffer, bytes, request_complete }, watch)
    }

    /// Bytes received from the client and from the instance.
    pub fn bytes(&self) -> (u64, u64) {
        (self.request.bytes, self.response.bytes)
    }

    /// What became of the insertion, as soon as that is certain.
    pub fn inserted(&self) -> Option<Insertion> {
        self.inserted
    }

    /// Whether the client sends, or may, what nobody has read: because the instance stopped reading before the client stopped sending, or because
    /// more came than was announced.
    pub fn leaves_unread(&self) -> bool {
        match self.request.phase {
            Phase::Discarding => true,
            Phase::Open => sockopt::unread(self.client.as_fd()).is_ok_and(|bytes| bytes > 0),
            Phase::Ended | Phase::Broken | Phase::Closed => false,
        }
    }

    /// Whether a handoff was wanted, but the peers would not acknowledge what they had been sent.
    pub fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// Carries bytes until the connection ends or a handoff would pay.
    pub async fn run(&mut self) -> Step {
        let mut timer = pin!(sleep_until(self.next_look(Instant::now())));
        poll_fn(|cx| {
            loop {
                if let Some(step) = self.poll(cx) {
                    return Poll::Ready(step);
                }
                let pausing = self.watch.as_ref().is_some_and(Watch::is_pausing);
                if pausing && timer.deadline() > Instant::now() + PAUSE_POLL {
                    timer.as_mut().reset(Instant::now() + PAUSE_POLL);
                }
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                let now = Instant::now();
                if now >= self.last_moved + self.allowed_idle() {
                    return Poll::Ready(Step::End(Ending::Idle));
                }
                // What there is to hear is received right below.
                self.hears_client.take_if(|from| now >= *from);
                if let Some(watch) = &mut self.watch {
                    watch.tick(now);
                }
                timer.as_mut().reset(self.next_look(now));
            }
        })
        .await
    }

    fn allowed_idle(&self) -> Duration {
        match (self.request.phase, self.response.phase) {
            (Phase::Open, Phase::Open) => self.patience.idle,
            _ => self.patience.half_closed,
        }
    }

    /// When the timer has something to do. An earlier end of the connection never waits for it.
    fn next_look(&self, now: Instant) -> Instant {
        let idle = self.last_moved + self.allowed_idle();
        let watch = self.watch.as_ref().and_then(|watch| watch.next_look(now));
        [watch, self.hears_client].into_iter().flatten().fold(idle, Instant::min)
    }

    /// Moves what can be moved; `None` when all that is left is to wait.
    fn poll(&mut self, cx: &mut Context<'_>) -> Option<Step> {
        loop {
            let request = self.pump_request(cx);
            if let Some(Err(Fault::Receiving)) = request {
                return Some(Step::End(Ending::ClientReset));
            }
            let mut again = false;
            if let Some(Err(Fault::Sending)) = request {
                // The instance reads no more, but its response may be on the way.
                self.request.buffer = None;
                self.request.phase = Phase::Discarding;
                self.hears_client = None;
                again = true;
            }
            match self.pump_response(cx) {
                Some(Err(Fault::NoResponse)) => return Some(Step::End(Ending::NoResponse)),
                Some(Err(Fault::Receiving)) => return Some(Step::End(Ending::InstanceReset)),
                Some(Err(Fault::Sending)) => return Some(Step::End(Ending::ClientReset)),
                Some(Ok(())) | None => {}
            }
            match (self.request.phase, self.response.phase) {
                (Phase::Closed | Phase::Discarding, Phase::Closed) => return Some(Step::End(Ending::Closed)),
                (_, Phase::Closed) if self.request_complete => return Some(Step::End(Ending::Closed)),
                (Phase::Open, Phase::Open) => {}
                // Packets of a connection that is closing are not worth it. What was held for a handoff goes on.
                _ => again |= self.stop_watching(),
            }
            match self.pause() {
                Pause::No => {}
                Pause::Wait => return None,
                Pause::Done(trigger) => return Some(Step::HandOff(trigger)),
                Pause::GivenUp => {
                    self.gave_up = true;
                    if self.watch.as_ref().is_some_and(Watch::is_hopeless) {
                        self.stop_watching();
                    }
                    again = true;
                }
            }
            if !again {
                return None;
            }
        }
    }

    fn pump_request(&mut self, cx: &mut Context<'_>) -> Option<Result<(), Fault>> {
        let Self {
            client,
            instance,
            request,
            response,
            request_complete,
            hears_client,
            watch,
            last_moved,
            ..
        } = self;
        loop {
            // Bytes of a second request are for the packet path to send, so that the response takes it too.
            if watch.as_ref().is_some_and(|watch| watch.holds_request()) {
                return None;
            }
            match request.flush(cx, instance, response.phase, last_moved)? {
                Ok(()) if request.phase == Phase::Closed || hears_client.is_some() => return Some(Ok(())),
                Ok(()) => {}
                Err(fault) => return Some(Err(fault)),
            }
            if watch.as_mut().is_some_and(|watch| watch.stops_receiving(request.bytes + response.bytes)) {
                return None;
            }
            match request.receive(cx, client, last_moved)? {
                Ok(0) => {}
                Ok(_) => {
                    *request_complete = false;
                    if let Some(watch) = watch {
                        watch.client_sent(client.as_fd(), request.bytes);
                    }
                }
                Err(fault) => return Some(Err(fault)),
            }
        }
    }

    fn pump_response(&mut self, cx: &mut Context<'_>) -> Option<Result<(), Fault>> {
        let Self {
            client,
            instance,
            request,
            response,
            request_complete,
            watch,
            insertion,
            inserted,
            last_moved,
            timer,
            ..
        } = self;
        loop {
            let request_phase = if *request_complete { Phase::Closed } else { request.phase };
            match response.flush(cx, client, request_phase, last_moved)? {
                Ok(()) if response.phase == Phase::Closed => return Some(Ok(())),
                Ok(()) => {}
                Err(fault) => return Some(Err(fault)),
            }
            if watch.as_mut().is_some_and(|watch| watch.stops_receiving(request.bytes + response.bytes)) {
                return None;
            }
            match response.receive(cx, instance, last_moved)? {
                Ok(0) if response.bytes == 0 => return Some(Err(Fault::NoResponse)),
                Ok(received) => {
                    if received > 0
                        && let Some(timer) = timer.take()
                    {
                        timer.stop();
                    }
                    if let Some(watch) = watch
                        && received > 0
                    {
                        watch.instance_sent(instance.as_fd(), response.bytes);
                    }
                }
                Err(fault) => return Some(Err(fault)),
            }
            if let Some(waiting) = insertion
                && let Some(done) = response.insert(waiting)
            {
                *insertion = None;
                *inserted = Some(done);
                if let Some(watch) = watch {
                    watch.head_passed();
                }
            }
        }
    }

    /// The connection stays a relay. Says whether it had been pausing.
    fn stop_watching(&mut self) -> bool {
        let Some(mut watch) = self.watch.take() else { return false };
        watch.lift_limits([self.client.as_fd(), self.instance.as_fd()]);
        watch.is_pausing()
    }

    fn pause(&mut self) -> Pause {
        let Some(watch) = &mut self.watch else { return Pause::No };
        if !watch.is_pausing() {
            return Pause::No;
        }
        let request_waits = self.request.buffer.is_some() && !watch.holds_request();
        if self.response.buffer.is_some() || request_waits {
            return if watch.give_up(Instant::now()) { Pause::GivenUp } else { Pause::Wait };
        }
        let in_custody = [&self.client, &self.instance]
            .map(|endpoint| sockopt::unacknowledged(endpoint.as_fd()).unwrap_or(usize::MAX));
        match watch.may_hand_off(in_custody, Instant::now()) {
            Some(trigger) => Pause::Done(trigger),
            None if watch.give_up(Instant::now()) => Pause::GivenUp,
            None => Pause::Wait,
        }
    }
}

enum Pause {
    No,
    Wait,
    Done(Trigger),
    GivenUp,
}
