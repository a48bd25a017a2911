//! Where a packet would go: `copy what it can reach → run the kernel programs on it → read what they say`.
//!
//! The programs that answer are the same as those that carry packets, loaded once more ([`Shadow`]). No counter, flow or budget of the
//! live ones is touched.

mod reach;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use nix::net::if_::if_nametoindex;
use router_common::abi::key::address_of;
use router_common::abi::key::{FlowKey, Side};
use router_common::abi::next_hop::{AF_INET6, NextHop};
use router_common::abi::trace::SaidVerdict;

use super::kernel::{Kernel, KernelError, LONGEST_FRAME, LiveMaps, Shadow, shortest_frame};
use super::kernel_table::KernelFlowTable;
use super::netlink::{Mac, interface_towards};
use super::table::FlowTable;
use super::xdp::Hook;

pub use super::kernel::{Step, Word};

/// What the programs would do with a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What each program has said, in their order, up to the one that decides.
    pub steps: Vec<Step>,
    /// As it leaves, or as the stack gets it.
    pub frame: Vec<u8>,
    /// Where it is decided what becomes of the packet.
    pub hook: Hook,
    /// The neighbour that it leaves to, as far as it is one that routes lead to.
    pub next_hop: Option<IpAddr>,
}

impl Trace {
    /// The last word: why the packet goes where it goes.
    pub fn word(&self) -> Option<Word> {
        self.steps.iter().rev().find_map(|step| step.word)
    }
}

/// An interface that the programs are attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entrance {
    pub name: String,
    pub index: u32,
    /// `None` where it is not known.
    pub mac: Option<Mac>,
}

/// What is next in a flow: the numbers that an honest packet of it would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub sequence: u32,
    pub acknowledgement: u32,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("a frame of {0} bytes cannot be asked about: the kernel takes {1} to {LONGEST_FRAME}")]
    Length(usize, usize),
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Answers where packets would go.
pub trait Traces: Send + Sync {
    /// What becomes of a frame, from its Ethernet header on, that arrives by the interface of this index. The first question takes a second or two.
    fn trace(&self, frame: &[u8], interface: u32) -> Result<Trace, TraceError>;

    /// The interfaces by which packets come to the programs.
    fn entrances(&self) -> Vec<Entrance>;

    /// The interface by which packets from an address come, if routes lead back by the same.
    fn entrance_from(&self, source: IpAddr) -> Option<Entrance>;

    /// What is next in the handed-off flow that packets from `source` to `destination` belong to.
    fn expected(&self, source: SocketAddr, destination: SocketAddr) -> Result<Option<Expected>, TraceError>;
}

/// Traces through the loaded kernel programs.
#[derive(Debug)]
pub struct Tracer {
    table: Arc<KernelFlowTable>,
    loaded: Mutex<Option<Loaded>>,
}

#[derive(Debug)]
struct Loaded {
    live: LiveMaps,
    shadow: Shadow,
}

impl Loaded {
    fn new(kernel: &Kernel) -> Result<Self, KernelError> {
        Ok(Self { live: LiveMaps::of(kernel)?, shadow: Shadow::load(kernel)? })
    }
}

impl Tracer {
    /// Nothing is loaded before the first question.
    pub fn new(table: Arc<KernelFlowTable>) -> Self {
        Self { table, loaded: Mutex::default() }
    }

    /// Where packets are met that arrive by the interface of this index.
    fn hook(&self, interface: u32) -> Hook {
        let attachments = self.table.attachments();
        let found =
            attachments.iter().find(|found| if_nametoindex(found.interface.as_str()) == Ok(interface));
        found.map_or(Hook::Tc, |found| found.hook)
    }

    fn with<R>(&self, ask: impl FnOnce(&mut Loaded) -> Result<R, TraceError>) -> Result<R, TraceError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *loaded {
            Some(loaded) => ask(loaded),
            empty => ask(empty.insert(Loaded::new(self.table.kernel())?)),
        }
    }
}

impl Traces for Tracer {
    fn trace(&self, frame: &[u8], interface: u32) -> Result<Trace, TraceError> {
        let shortest = shortest_frame(frame);
        if !(shortest..=LONGEST_FRAME).contains(&frame.len()) {
            return Err(TraceError::Length(frame.len(), shortest));
        }
        self.with(|Loaded { live, shadow }| {
            let copies = reach::reach(live, frame, interface);
            shadow.hold(live, &copies)?;
            let hook = self.hook(interface);
            let (steps, frame) = shadow.run(frame, interface, hook != Hook::Tc)?;
            let is_left = steps.iter().any(|step| step.left.is_some());
            let hook = if is_left { Hook::Tc } else { hook };
            let mut trace = Trace { steps, frame, hook, next_hop: None };
            trace.next_hop = trace.word().and_then(|word| neighbour(live, word, &trace.frame));
            Ok(trace)
        })
    }

    fn entrances(&self) -> Vec<Entrance> {
        let entrance = |name: &String| {
            // One that is gone lets nothing in.
            let index = if_nametoindex(name.as_str()).ok()?;
            Some(Entrance { name: name.clone(), index, mac: self.table.next_hops().own_address(index) })
        };
        self.table.interfaces().iter().filter_map(entrance).collect()
    }

    fn entrance_from(&self, source: IpAddr) -> Option<Entrance> {
        let index = interface_towards(source).ok()?;
        self.entrances().into_iter().find(|entrance| entrance.index == index)
    }

    fn expected(&self, source: SocketAddr, destination: SocketAddr) -> Result<Option<Expected>, TraceError> {
        let Some(key) = FlowKey::tcp(source, destination) else { return Ok(None) };
        self.with(|Loaded { live, .. }| {
            let Some(found) = live.find(key) else { return Ok(None) };
            let flow = live.flows.get(found.slot() as usize);
            let side: Side = found.side();
            Ok(flow.map(|flow| {
                let progress = flow.progress(side);
                Expected { sequence: progress.max_seq.get(), acknowledgement: progress.max_ack.get() }
            }))
        })
    }
}

/// The next hop that a packet leaves to.
fn neighbour(live: &LiveMaps, word: Word, frame: &[u8]) -> Option<IpAddr> {
    let found = match word.verdict {
        SaidVerdict::Resolve => live.next_hops.get(word.next_hop as usize),
        SaidVerdict::Redirect => {
            let ethernet: Vec<u32> = frame
                .get(..12)?
                .chunks_exact(4)
                .map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
                .collect();
            live.next_hops.iter().find(|entry| {
                entry.interface.get() == word.interface
                    && entry.ethernet.iter().zip(&ethernet).all(|(known, word)| known.get() == *word)
            })
        }
        SaidVerdict::Pass | SaidVerdict::Drop | SaidVerdict::Report => None,
    };
    found.map(address)
}

fn address(next_hop: &NextHop) -> IpAddr {
    address_of(next_hop.address.each_ref().map(|word| word.get()), next_hop.family.get() == AF_INET6)
}
