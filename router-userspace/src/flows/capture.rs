//! Samples of packets that are dropped or passed up. One capture at a time; without one the kernel programs copy nothing.
//!
//! Whoever captures comes back for more within a few seconds. The kernel programs may copy only so many packets between two visits, which bounds
//! what a flood of wanted packets costs; what is beyond is counted. A capture that nobody comes back to ends by itself.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nix::net::if_::if_indextoname;
use router_common::abi::capture::{DROPPED, PASSED, Sample};
use router_common::abi::reason::PacketReason;

use super::kernel::Samples;
use super::sockets::monotonic_ns;

/// Packets between two visits, at most.
const BUDGET: u32 = 200;
/// A capture to which nobody comes back for so long has ended.
const PATIENCE: Duration = Duration::from_secs(3);

/// Which packets are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// All that are dropped.
    Dropped,
    /// Those of these reasons, whether they are dropped or passed up.
    Reasons(Vec<PacketReason>),
}

/// A packet that was not carried on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    pub time: SystemTime,
    pub reason: PacketReason,
    /// Else the stack got it.
    pub dropped: bool,
    pub interface: String,
    /// From its Ethernet header on; perhaps only its beginning.
    pub frame: Vec<u8>,
    /// Of the whole frame, in bytes.
    pub length: u32,
}

/// What a visit brings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catch {
    pub packets: Vec<Captured>,
    /// Wanted packets since the visit before that were not kept.
    pub missed: u64,
}

/// Why there is nothing to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    #[error("another capture is running")]
    Busy,
    #[error("the capture has ended: it was told to, or nobody came for its packets within {} seconds", PATIENCE.as_secs())]
    Ended,
}

/// Captures packets that are not carried on.
pub trait Captures: Send + Sync {
    /// Begins a capture, and returns its number.
    fn begin(&self, wish: &Wish) -> Result<u64, CaptureError>;

    /// What has come since the visit before.
    fn visit(&self, number: u64) -> Result<Catch, CaptureError>;

    /// Ends it, and returns what has come since the visit before.
    fn end(&self, number: u64) -> Result<Catch, CaptureError>;
}

/// Captures by the kernel programs.
#[derive(Debug)]
pub struct KernelCaptures(Mutex<State>);

#[derive(Debug)]
struct State {
    samples: Samples,
    /// The number of the latest one.
    number: u64,
    /// When somebody came to the running one.
    visited: Option<Instant>,
}

impl KernelCaptures {
    /// Whatever an earlier daemon wanted is not wanted any more: the maps are new.
    pub fn new(samples: Samples) -> Self {
        Self(Mutex::new(State { samples, number: 0, visited: None }))
    }

    /// Ends a capture that nobody has come back to.
    pub fn end_if_forgotten(&self) {
        let mut state = self.state();
        if state.visited.is_some_and(|visited| visited.elapsed() > PATIENCE) {
            tracing::info!("a capture that nobody came back to has ended");
            state.end();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Captures for KernelCaptures {
    fn begin(&self, wish: &Wish) -> Result<u64, CaptureError> {
        let mut state = self.state();
        if state.visited.is_some_and(|visited| visited.elapsed() <= PATIENCE) {
            return Err(CaptureError::Busy);
        }
        state.end();
        state.begin(wish);
        Ok(state.number)
    }

    fn visit(&self, number: u64) -> Result<Catch, CaptureError> {
        let mut state = self.state();
        state.check(number)?;
        state.visited = Some(Instant::now());
        let catch = state.catch();
        state.samples.budget().left.set(BUDGET);
        Ok(catch)
    }

    fn end(&self, number: u64) -> Result<Catch, CaptureError> {
        let mut state = self.state();
        state.check(number)?;
        let catch = state.catch();
        state.end();
        Ok(catch)
    }
}

impl State {
    fn check(&self, number: u64) -> Result<(), CaptureError> {
        match self.visited {
            Some(_) if number == self.number => Ok(()),
            _ => Err(CaptureError::Ended),
        }
    }

    fn begin(&mut self, wish: &Wish) {
        self.number += 1;
        self.visited = Some(Instant::now());
        self.samples.budget().missed.set(0);
        self.samples.budget().left.set(BUDGET);
        let want = |reason: PacketReason, when| self.samples.wanted[reason.index()].when.set(when);
        match wish {
            Wish::Dropped => PacketReason::ALL.iter().for_each(|reason| want(*reason, DROPPED)),
            Wish::Reasons(reasons) => reasons.iter().for_each(|reason| want(*reason, DROPPED | PASSED)),
        }
    }

    /// Nothing is wanted any more, and what came last is forgotten.
    fn end(&mut self) {
        self.visited = None;
        for wanted in self.samples.wanted.iter() {
            wanted.when.set(0);
        }
        while self.samples.oldest().is_some() {}
    }

    fn catch(&mut self) -> Catch {
        let mut catch = Catch::default();
        let (now, monotonic) = (SystemTime::now(), monotonic_ns());
        while let Some(sample) = self.samples.oldest() {
            let age = Duration::from_nanos(monotonic.saturating_sub(sample.time));
            catch.packets.extend(captured(&sample, now - age));
        }
        // What is missed in between is told at the next visit.
        let missed = self.samples.budget().missed.get();
        self.samples.budget().missed.add(missed.wrapping_neg());
        catch.missed = u64::from(missed);
        catch
    }
}

fn captured(sample: &Sample, time: SystemTime) -> Option<Captured> {
    let mut frame = sample.bytes[..sample.captured as usize].to_vec();
    let mut length = sample.length;
    if sample.vlan != 0 && frame.len() >= 12 {
        // As it came over the wire.
        frame.splice(12..12, sample.vlan.to_be_bytes());
        length += 4;
    }
    let name = if_indextoname(sample.interface);
    Some(Captured {
        time,
        reason: *PacketReason::ALL.get(sample.reason as usize)?,
        dropped: sample.dropped != 0,
        // One that has gone in between.
        interface: name.map_or_else(
            |_| format!("interface {}", sample.interface),
            |name| name.to_string_lossy().into_owned(),
        ),
        frame,
        length,
    })
}
