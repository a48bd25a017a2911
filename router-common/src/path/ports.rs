//! What the packet path needs from its surroundings. The kernel programs implement these traits over BPF maps and
//! helpers, the host tests over plain memory.

use super::answer_budget::AnswerBudget;
use super::family::Family;
use super::fragment::{Datagram, DatagramKey};
use super::options::Scratch;
use super::sum;
use crate::abi::flow::Flow;
use crate::abi::key::{FlowKeyV4, FlowKeyV6, FlowRef};
use crate::abi::next_hop::NextHop;
use crate::abi::shared::Shared32;
use crate::wire::Wire;
use crate::wire::checksum::Diff;

/// A received frame, from the Ethernet header on.
pub trait Packet {
    /// Length in bytes; a GRO super-packet counts whole.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a VLAN tag belongs to the frame that no longer lies among its bytes: the network card or the kernel took it off (IEEE 802.1Q).
    fn has_vlan_tag(&self) -> bool;

    /// Index of the interface where it arrived.
    fn interface(&self) -> u32;

    /// Where the frame was put together from packets (GRO), or is to be taken apart (TSO): the longest TCP payload, in bytes, of one of them. Else 0.
    fn part_size(&self) -> u32;

    /// Brings the first `len` bytes, if there are as many, into the directly accessible part.
    fn make_linear(&mut self, len: usize);

    /// Whether its destination is this host's link-layer address. A promiscuous interface overhears other frames too.
    fn is_for_this_host(&self) -> bool;

    /// The bytes at `offset` as a `T`; `None` where the packet (or its directly accessible part) is too short.
    fn view<T: Wire>(&self, offset: usize) -> Option<&T>;

    /// Like [`Packet::view`], to be written.
    fn view_mut<T: Wire>(&mut self, offset: usize) -> Option<&mut T>;

    /// Copies `len` bytes (1–40) of TCP options from `offset` into scratch memory, which stays valid when the packet changes.
    fn load_options<'s>(&self, offset: usize, len: usize) -> Option<&'s Scratch>
    where
        Self: 's;

    /// Copies words, as they lie in memory, from any offset. `None` where the packet is too short.
    fn load<const N: usize>(&self, offset: usize) -> Option<[u32; N]>;

    /// See [`sum::of`]. A step with many paths inside.
    #[inline(always)]
    fn sum(&self, offset: usize, len: usize) -> Option<u64>
    where
        Self: Sized,
    {
        sum::of(self, offset, len, |number| number)
    }

    /// Overwrites bytes at any offset. Returns false, with the packet unchanged, where that is impossible.
    fn store<const N: usize>(&mut self, offset: usize, bytes: &[u8; N]) -> bool;

    /// Turns the frame, which is longer than 4 headers, into another one, whose checksums are all complete. Returns false, with the packet in an
    /// undefined state, where that is impossible.
    fn become_frame<T: Wire>(&mut self, frame: &T) -> bool;

    /// Notes a change of an IP header's sum that no checksum balances: a network card may have summed up the whole packet.
    fn fix_sum(&mut self, change: Diff);

    /// Corrects the checksum of TCP or ICMP at `offset`: `pseudo` is the change of the pseudo-header's sum, `rest` that of all other bytes that it
    /// covers. They are apart because a packet whose checksum is left to the network card holds only the pseudo-header's sum. `header` is the change of an IP
    /// header's sum that no header checksum balances: a network card may have summed up the whole packet.
    fn fix_checksum(&mut self, offset: usize, pseudo: Diff, rest: Diff, header: Option<Diff>) -> bool;

    /// The same for UDP, where 0 means that there is none (RFC 768).
    fn fix_udp_checksum(&mut self, offset: usize, pseudo: Diff, rest: Diff, header: Option<Diff>) -> bool;

    /// Makes room for an outer IP header of this family between the Ethernet header and what follows it. Both are to be written then: the
    /// Ethernet header's addresses and type, and the room. Returns false, with the packet unchanged, where that is impossible.
    fn encapsulate<I: Family>(&mut self) -> bool;
}

/// The flow table.
pub trait Flows: Keys<FlowKeyV4> + Keys<FlowKeyV6> + Fragments {
    fn flow(&self, slot: u32) -> Option<&Flow>;
    fn next_hop(&self, index: u32) -> Option<&NextHop>;
    /// This CPU's.
    fn answer_budget(&self) -> Option<&AnswerBudget>;
}

/// Datagrams whose first fragment was translated, the latest few thousand.
pub trait Fragments {
    fn remember(&self, key: &DatagramKey, datagram: &Datagram);
    fn recall(&self, key: &DatagramKey) -> Option<Datagram>;
    fn forget_datagram(&self, key: &DatagramKey);
}

/// The keys of one family.
pub trait Keys<K> {
    fn find(&self, key: &K) -> Option<FlowRef>;

    /// Removes a key, so that the next packet of this tuple meets no flow.
    fn forget(&self, key: &K);

    /// Whether packets of this tuple are for a socket that bears a client's address.
    fn is_transparent(&self, _key: &K) -> bool {
        false
    }
}

/// What the daemon wants to be left out of SYNs.
pub trait UnwantedOptions: UnwantedOptionsOf<FlowKeyV4> + UnwantedOptionsOf<FlowKeyV6> {}

impl<T: UnwantedOptionsOf<FlowKeyV4> + UnwantedOptionsOf<FlowKeyV6>> UnwantedOptions for T {}

/// The same for the keys of one family.
pub trait UnwantedOptionsOf<K> {
    /// `ERASE_*` of [`syn_options`](super::syn_options), if the tuple has been named.
    fn unwanted(&self, key: &K) -> Option<u32>;
}

/// Monotonic time.
pub trait Clock {
    /// Nanoseconds, exact.
    fn now(&self) -> u64;

    /// Nanoseconds, may lag by a scheduler tick; cheaper.
    fn coarse_now(&self) -> u64;

    /// Sets a cell that is 0 to `value` unless another CPU was first; returns what the cell holds.
    fn fix_once(&self, cell: &Shared32, value: u32) -> u32;
}
