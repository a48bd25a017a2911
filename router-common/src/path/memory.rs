//! The packet path's surroundings in plain memory: for host tests, fuzzing, and comparison with the kernel programs.

use core::cell::RefCell;
use std::collections::HashMap;
use std::vec::Vec;

use super::answer_budget::AnswerBudget;
use super::family::Family;
use super::fragment::{Datagram, DatagramKey};
use super::options::Scratch;
use super::ports::{Clock, Flows, Fragments, Keys, Packet, UnwantedOptionsOf};
use crate::abi::flow::Flow;
use crate::abi::key::{FlowKey, FlowKeyV4, FlowKeyV6, FlowRef};
use crate::abi::next_hop::NextHop;
use crate::abi::shared::Shared32;
use crate::wire::checksum::Diff;
use crate::wire::ethernet::Ethernet;
use crate::wire::tcp::Tcp;
use crate::wire::{Wire, bytes_of};

/// A frame whose TCP checksum is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame(pub Vec<u8>);

impl Frame {
    /// Where every frame arrives.
    pub const INTERFACE: u32 = 1;
}

impl Packet for Frame {
    fn len(&self) -> usize {
        self.0.len()
    }

    /// Nothing lies beside the bytes.
    fn has_vlan_tag(&self) -> bool {
        false
    }

    fn interface(&self) -> u32 {
        Self::INTERFACE
    }

    fn part_size(&self) -> u32 {
        0
    }

    fn make_linear(&mut self, _: usize) {}

    fn is_for_this_host(&self) -> bool {
        !self.view(0).is_some_and(Ethernet::is_to_a_group)
    }

    fn view<T: Wire>(&self, offset: usize) -> Option<&T> {
        let bytes = self.0.get(offset..offset.checked_add(size_of::<T>())?)?;
        // SAFETY: `bytes` is exactly as long as `T`, and `Wire` types have alignment 1 and no invalid values.
        Some(unsafe { &*bytes.as_ptr().cast() })
    }

    fn view_mut<T: Wire>(&mut self, offset: usize) -> Option<&mut T> {
        let bytes = self.0.get_mut(offset..offset.checked_add(size_of::<T>())?)?;
        // SAFETY: as in `view`; the borrow is exclusive.
        Some(unsafe { &mut *bytes.as_mut_ptr().cast() })
    }

    fn load_options<'s>(&self, offset: usize, len: usize) -> Option<&'s Scratch>
    where
        Self: 's,
    {
        if len == 0 || len > Tcp::MAX_OPTIONS {
            return None;
        }
        let options = self.0.get(offset..offset + len)?;
        let mut scratch = Scratch::default();
        scratch.bytes[..len].copy_from_slice(options);
        scratch.len.set(len as u32);
        // Scratch memory outlives the packet in the kernel. Leaking 68 bytes a call would add up in a fuzzer, so each thread
        // keeps one, as each CPU does there.
        std::thread_local! {
            static SCRATCH: &'static RefCell<Scratch> = std::boxed::Box::leak(std::boxed::Box::default());
        }
        SCRATCH.with(|kept| {
            *kept.borrow_mut() = scratch;
            // SAFETY: the cell lives as long as the process. The path loads options once a packet and drops the reference before
            // the next packet, so nothing is borrowed when the next call writes.
            Some(unsafe { &*kept.as_ptr() })
        })
    }

    fn load<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
        let bytes = self.0.get(offset..offset.checked_add(4 * N)?)?;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes(bytes.try_into().ok()?);
        }
        Some(words)
    }

    fn store<const N: usize>(&mut self, offset: usize, bytes: &[u8; N]) -> bool {
        match self.0.get_mut(offset..offset + N) {
            Some(place) => {
                place.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    fn become_frame<T: Wire>(&mut self, frame: &T) -> bool {
        self.0 = bytes_of(frame).to_vec();
        true
    }

    /// Nobody has summed up the whole packet.
    fn fix_sum(&mut self, _: Diff) {}

    /// As above.
    fn fix_checksum(&mut self, offset: usize, pseudo: Diff, rest: Diff, _header: Option<Diff>) -> bool {
        let Some(place) = self.0.get_mut(offset..offset + 2) else { return false };
        let both = rest.apply(pseudo.apply(u16::from_ne_bytes([place[0], place[1]])));
        place.copy_from_slice(&both.to_ne_bytes());
        true
    }

    fn fix_udp_checksum(&mut self, offset: usize, pseudo: Diff, rest: Diff, _header: Option<Diff>) -> bool {
        let Some(place) = self.0.get_mut(offset..offset + 2) else { return false };
        let mut sum = u16::from_ne_bytes([place[0], place[1]]);
        for diff in [pseudo, rest] {
            if sum != 0 {
                sum = match diff.apply(sum) {
                    0 => u16::MAX,
                    sum => sum,
                };
            }
        }
        place.copy_from_slice(&sum.to_ne_bytes());
        true
    }

    fn encapsulate<I: Family>(&mut self) -> bool {
        if self.0.len() < Ethernet::LEN {
            return false;
        }
        self.0.splice(Ethernet::LEN..Ethernet::LEN, std::iter::repeat_n(0, I::LEN));
        true
    }
}

/// A frame that was put together from packets (GRO), with the longest TCP payload of one of them, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged(pub Frame, pub u32);

impl Packet for Merged {
    fn part_size(&self) -> u32 {
        self.1
    }

    fn become_frame<T: Wire>(&mut self, frame: &T) -> bool {
        self.1 = 0;
        self.0.become_frame(frame)
    }

    fn fix_udp_checksum(&mut self, offset: usize, pseudo: Diff, rest: Diff, header: Option<Diff>) -> bool {
        self.0.fix_udp_checksum(offset, pseudo, rest, header)
    }

    fn encapsulate<I: Family>(&mut self) -> bool {
        self.0.encapsulate::<I>()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn has_vlan_tag(&self) -> bool {
        self.0.has_vlan_tag()
    }

    fn interface(&self) -> u32 {
        self.0.interface()
    }

    fn make_linear(&mut self, len: usize) {
        self.0.make_linear(len);
    }

    fn is_for_this_host(&self) -> bool {
        self.0.is_for_this_host()
    }

    fn view<T: Wire>(&self, offset: usize) -> Option<&T> {
        self.0.view(offset)
    }

    fn view_mut<T: Wire>(&mut self, offset: usize) -> Option<&mut T> {
        self.0.view_mut(offset)
    }

    fn load_options<'s>(&self, offset: usize, len: usize) -> Option<&'s Scratch>
    where
        Self: 's,
    {
        self.0.load_options(offset, len)
    }

    fn load<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
        self.0.load(offset)
    }

    fn store<const N: usize>(&mut self, offset: usize, bytes: &[u8; N]) -> bool {
        self.0.store(offset, bytes)
    }

    fn fix_sum(&mut self, change: Diff) {
        self.0.fix_sum(change);
    }

    fn fix_checksum(&mut self, offset: usize, pseudo: Diff, rest: Diff, header: Option<Diff>) -> bool {
        self.0.fix_checksum(offset, pseudo, rest, header)
    }
}

/// A flow table of ordinary collections.
#[derive(Clone, Debug, Default)]
pub struct MemoryFlows {
    pub keys: RefCell<HashMap<FlowKey, FlowRef>>,
    pub flows: Vec<Flow>,
    pub next_hops: Vec<NextHop>,
    pub answer_budget: AnswerBudget,
    pub datagrams: RefCell<HashMap<DatagramKey, Datagram>>,
    /// Tuples of packets to sockets that bear a client's address.
    pub transparent: Vec<FlowKey>,
}

impl Flows for MemoryFlows {
    fn flow(&self, slot: u32) -> Option<&Flow> {
        self.flows.get(slot as usize)
    }

    fn next_hop(&self, index: u32) -> Option<&NextHop> {
        self.next_hops.get(index as usize)
    }

    fn answer_budget(&self) -> Option<&AnswerBudget> {
        Some(&self.answer_budget)
    }
}

impl Fragments for MemoryFlows {
    fn remember(&self, key: &DatagramKey, datagram: &Datagram) {
        self.datagrams.borrow_mut().insert(*key, *datagram);
    }

    fn recall(&self, key: &DatagramKey) -> Option<Datagram> {
        self.datagrams.borrow().get(key).copied()
    }

    fn forget_datagram(&self, key: &DatagramKey) {
        self.datagrams.borrow_mut().remove(key);
    }
}

impl<K: Copy + Into<FlowKey>> Keys<K> for MemoryFlows {
    fn find(&self, key: &K) -> Option<FlowRef> {
        self.keys.borrow().get(&(*key).into()).copied()
    }

    fn forget(&self, key: &K) {
        self.keys.borrow_mut().remove(&(*key).into());
    }

    fn is_transparent(&self, key: &K) -> bool {
        self.transparent.contains(&(*key).into())
    }
}

/// The same options are unwanted for every tuple, or for none.
#[derive(Clone, Copy, Debug)]
pub struct UnwantedEverywhere(pub Option<u32>);

impl UnwantedOptionsOf<FlowKeyV4> for UnwantedEverywhere {
    fn unwanted(&self, _: &FlowKeyV4) -> Option<u32> {
        self.0
    }
}

impl UnwantedOptionsOf<FlowKeyV6> for UnwantedEverywhere {
    fn unwanted(&self, _: &FlowKeyV6) -> Option<u32> {
        self.0
    }
}

/// A clock that stands still; nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct StoppedClock(pub u64);

impl Clock for StoppedClock {
    fn now(&self) -> u64 {
        self.0
    }

    fn coarse_now(&self) -> u64 {
        self.0
    }

    fn fix_once(&self, cell: &Shared32, value: u32) -> u32 {
        cell.fix_once(value)
    }
}
