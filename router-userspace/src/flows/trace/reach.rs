//! What of the live tables one packet can reach: found by taking the packet along the packet path here, where every look-up is noted.
//!
//! What the path writes goes to copies, so nothing is changed. Whether it ends here as it does in the kernel does not matter; what it looks up does.

use std::cell::{OnceCell, RefCell};

use router_common::abi::balance::{
    Affinity, AffinityKey, Course, EndpointBucket, FlowBucket, Group, Instance, Link, NewFlows, ReplyBucket,
    RingChunk, RuleKey, Service, Settings, TICK_SHIFT, Tunnel,
};
use router_common::abi::flow::Flow;
use router_common::abi::key::{FlowKey, FlowRef};
use router_common::abi::next_hop::NextHop;
use router_common::abi::shared::Shared32;
use router_common::path;
use router_common::path::answer_budget::AnswerBudget;
use router_common::path::balance::tables::Tables;
use router_common::path::fragment::{Datagram, DatagramKey};
use router_common::path::memory::{Frame, StoppedClock};
use router_common::path::ports::{Flows, Fragments, Keys};

use crate::flows::kernel::{Copies, LiveMaps};
use crate::flows::sockets::monotonic_ns;

/// Finds what a frame that arrives by this interface can reach, and copies it.
pub fn reach(live: &LiveMaps, frame: &[u8], interface: u32) -> Copies {
    let reached = Reached::new(live);
    let clock = StoppedClock(monotonic_ns());
    path::carry(&mut Frame(frame.to_vec()), &reached, &clock);
    path::balance::carry(&mut Frame(frame.to_vec()), &reached);
    reached.link(interface);
    reached.copies()
}

/// The live tables, with everything that was looked up in those that programs write.
struct Reached<'a> {
    live: &'a LiveMaps,
    keys: RefCell<Vec<(FlowKey, FlowRef)>>,
    datagrams: RefCell<Vec<(DatagramKey, [u32; 2])>>,
    courses: RefCell<Vec<(DatagramKey, Course)>>,
    clients: RefCell<Vec<(AffinityKey, Affinity)>>,
    flows: Copied<Flow>,
    buckets: Copied<FlowBucket>,
    replies: Copied<ReplyBucket>,
    links: Copied<Link>,
    tunnels: Copied<Tunnel>,
    /// Those of a processor that has answered nobody and has seen no new flow: the path then goes as far as it can.
    answer_budget: AnswerBudget,
    new_flows: NewFlows,
}

impl<'a> Reached<'a> {
    fn new(live: &'a LiveMaps) -> Self {
        Self {
            live,
            keys: RefCell::default(),
            datagrams: RefCell::default(),
            courses: RefCell::default(),
            clients: RefCell::default(),
            flows: Copied::default(),
            buckets: Copied::default(),
            replies: Copied::default(),
            links: Copied::default(),
            tunnels: Copied::default(),
            answer_budget: AnswerBudget::default(),
            new_flows: NewFlows::default(),
        }
    }

    /// Fresh copies of all that was reached.
    fn copies(&self) -> Copies {
        let Self { live, .. } = self;
        Copies {
            keys: self.keys.borrow().clone(),
            datagrams: self.datagrams.borrow().clone(),
            courses: self.courses.borrow().clone(),
            clients: self.clients.borrow().clone(),
            flows: self.flows.again(|slot| live.flows.get(slot as usize).cloned()),
            buckets: self.buckets.again(|index| live.l4_flows.get(index as usize).cloned()),
            replies: self.replies.again(|index| live.replies.get(index as usize).cloned()),
            links: self.links.again(|interface| live.links.get(interface as usize).cloned()),
            tunnels: self.tunnels.again(|index| live.tunnels.get(index as usize).cloned()),
        }
    }
}

/// Copies of entries, each made when it is first asked for. They stay where they are, so they can be lent.
struct Copied<T>(OnceCell<Box<Copy<T>>>);

struct Copy<T> {
    index: u32,
    entry: T,
    next: Copied<T>,
}

impl<T> Default for Copied<T> {
    fn default() -> Self {
        Self(OnceCell::new())
    }
}

impl<T> Copied<T> {
    fn get(&self, index: u32, fetch: impl FnOnce(u32) -> Option<T>) -> Option<&T> {
        let mut place = self;
        while let Some(copy) = place.0.get() {
            if copy.index == index {
                return Some(&copy.entry);
            }
            place = &copy.next;
        }
        let entry = fetch(index)?;
        Some(&place.0.get_or_init(|| Box::new(Copy { index, entry, next: Self::default() })).entry)
    }

    /// The same entries, as they are now.
    fn again<U>(&self, fetch: impl Fn(u32) -> Option<U>) -> Vec<(u32, U)> {
        let mut entries = Vec::new();
        let mut place = self;
        while let Some(copy) = place.0.get() {
            entries.extend(fetch(copy.index).map(|entry| (copy.index, entry)));
            place = &copy.next;
        }
        entries
    }
}

impl Flows for Reached<'_> {
    fn flow(&self, slot: u32) -> Option<&Flow> {
        self.flows.get(slot, |slot| self.live.flows.get(slot as usize).cloned())
    }

    fn next_hop(&self, index: u32) -> Option<&NextHop> {
        self.live.next_hops.get(index as usize)
    }

    fn answer_budget(&self) -> Option<&AnswerBudget> {
        Some(&self.answer_budget)
    }
}

impl<K: std::marker::Copy + Into<FlowKey>> Keys<K> for Reached<'_> {
    fn find(&self, key: &K) -> Option<FlowRef> {
        let key = (*key).into();
        let found = self.live.find(key)?;
        let mut keys = self.keys.borrow_mut();
        if !keys.iter().any(|(known, _)| *known == key) {
            keys.push((key, found));
        }
        Some(found)
    }

    fn forget(&self, _: &K) {}
}

impl Fragments for Reached<'_> {
    fn remember(&self, _: &DatagramKey, _: &Datagram) {}

    fn recall(&self, key: &DatagramKey) -> Option<Datagram> {
        let [flow, seen] = self.live.datagram(key)?;
        let mut datagrams = self.datagrams.borrow_mut();
        if !datagrams.iter().any(|(known, _)| known == key) {
            datagrams.push((*key, [flow, seen]));
        }
        Some(Datagram { flow, seen })
    }

    fn forget_datagram(&self, _: &DatagramKey) {}
}

impl Tables for Reached<'_> {
    fn settings(&self) -> Option<&Settings> {
        self.live.settings.first()
    }

    fn endpoints(&self, bucket: u32) -> Option<&EndpointBucket> {
        self.live.endpoints.get(bucket as usize)
    }

    fn service(&self, index: u32) -> Option<&Service> {
        self.live.services.get(index as usize)
    }

    fn instance(&self, index: u32) -> Option<&Instance> {
        self.live.instances.get(index as usize)
    }

    fn group(&self, index: u32) -> Option<&Group> {
        self.live.groups.get(index as usize)
    }

    fn ring(&self, chunk: u32) -> Option<&RingChunk> {
        self.live.rings.get(chunk as usize)
    }

    fn flows(&self, bucket: u32) -> Option<&FlowBucket> {
        self.buckets.get(bucket, |bucket| self.live.l4_flows.get(bucket as usize).cloned())
    }

    fn replies(&self, bucket: u32) -> Option<&ReplyBucket> {
        self.replies.get(bucket, |bucket| self.live.replies.get(bucket as usize).cloned())
    }

    fn next_hop(&self, index: u32) -> Option<&NextHop> {
        self.live.next_hops.get(index as usize)
    }

    fn rule(&self, key: &RuleKey) -> Option<u32> {
        self.live.rule(key)
    }

    fn affinity(&self, key: &AffinityKey) -> Option<Affinity> {
        let found = self.live.client(key)?;
        self.clients.borrow_mut().push((*key, found));
        Some(found)
    }

    fn remember(&self, _: &AffinityKey, _: Affinity) {}

    fn recall(&self, key: &DatagramKey) -> Option<Course> {
        let found = self.live.course(key)?;
        let mut courses = self.courses.borrow_mut();
        if !courses.iter().any(|(known, _)| known == key) {
            courses.push((*key, found));
        }
        Some(found)
    }

    fn note(&self, _: &DatagramKey, _: Course) {}

    fn new_flows(&self) -> Option<&NewFlows> {
        Some(&self.new_flows)
    }

    fn tunnel(&self, index: u32) -> Option<&Tunnel> {
        self.tunnels.get(index, |index| self.live.tunnels.get(index as usize).cloned())
    }

    fn link(&self, interface: u32) -> Option<&Link> {
        self.links.get(interface, |interface| self.live.links.get(interface as usize).cloned())
    }

    fn swap_if(&self, word: &Shared32, old: u32, new: u32) -> u32 {
        word.swap_if(old, new)
    }

    fn add(&self, word: &Shared32, count: u32) {
        word.add(count);
    }

    fn opaque(&self, number: u32) -> u32 {
        number
    }

    fn ticks(&self) -> u32 {
        (monotonic_ns() >> TICK_SHIFT) as u32
    }
}
