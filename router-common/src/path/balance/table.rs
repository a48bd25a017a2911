//! Finding and storing flows.
//!
//! A bucket's first line holds the tags of its fifteen flows, so that a flow is found with two cache lines: the tags, and its own. Only
//! where flows have overflown into their second bucket is that one looked at as well.

use super::hash;
use super::tables::Tables;
use crate::abi::balance::{
    BUCKET_FLOWS, Flow, FlowBucket, FlowId, ReplyBucket, Settings, TAG_BUSY, TAG_DEAD, TAG_LIVE, TAG_STATE,
};
use crate::abi::shared::Shared32;
use crate::path::family::Family;
use crate::wire::ipv6::Ipv6;

/// What a client's packets have in common.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub client: [u32; 4],
    /// As [`Flow::origin`].
    pub origin: u32,
}

impl Key {
    #[inline(always)]
    pub const fn new(client: [u32; 4], port: u16, service: u32) -> Self {
        Self { client, origin: port as u32 | service << 16 }
    }

    #[inline(always)]
    pub fn hash(&self, settings: &Settings) -> u64 {
        hash::of(settings.flow_seed.get(), &self.client, self.origin)
    }
}

/// The two buckets of a hash, and the tag without its state.
#[inline(always)]
pub fn places(hash: u64, buckets: u32) -> (u32, u32, u32) {
    let (high, low) = ((hash >> 32) as u32, hash as u32);
    (hash::scale(high, buckets), hash::scale(low, buckets), low & !TAG_STATE)
}

/// Whether a table's address is that of a packet of this family. Which family an entry is of is for others to say.
#[inline(always)]
pub fn same<I: Family>(stored: &[Shared32; 4], address: &[u32; 4]) -> bool {
    stored[0].get() == address[0]
        && (!I::IS_IPV6
            || (stored[1].get() ^ address[1])
                | (stored[2].get() ^ address[2])
                | (stored[3].get() ^ address[3])
                == 0)
}

/// The flow of a key, if it is stored.
#[inline(always)]
pub fn find<'a, I: Family, T: Tables>(
    tables: &'a T,
    buckets: u32,
    key: &Key,
    hash: u64,
) -> Option<(&'a Flow, FlowId)> {
    let (first, second, tag) = places(hash, buckets);
    let bucket = tables.flows(first)?;
    if let Some(place) = search::<I>(bucket, key, tag | TAG_LIVE) {
        return Some((bucket.flows.get(place)?, FlowId { bucket: first, place: place as u32 }));
    }
    if bucket.overflow.get() == 0 {
        return None;
    }
    let bucket = tables.flows(second)?;
    let place = search::<I>(bucket, key, tag | TAG_LIVE)?;
    Some((bucket.flows.get(place)?, FlowId { bucket: second, place: place as u32 }))
}

/// The same by the parts of its key, for those who seldom ask. Addresses are compared whole: all but the first word of those of IPv4 are 0.
#[inline(always)]
pub fn flow_of<T: Tables>(tables: &T, client: &[u32; 4], origin: u32) -> Option<FlowId> {
    let settings = tables.settings()?;
    let key = Key { client: *client, origin };
    Some(find::<Ipv6, T>(tables, settings.buckets.get(), &key, key.hash(settings))?.1)
}

#[inline(always)]
fn search<I: Family>(bucket: &FlowBucket, key: &Key, tag: u32) -> Option<usize> {
    for place in 0..BUCKET_FLOWS {
        if bucket.tags[place].get() == tag {
            let flow = &bucket.flows[place];
            if flow.origin.get() == key.origin && same::<I>(&flow.client, &key.client) {
                return Some(blurred(place, bucket.tags[place].get(), tag));
            }
        }
    }
    None
}

/// A place for a new flow: taken, and not to be found before [`publish`].
#[inline(always)]
pub fn claim<T: Tables>(tables: &T, hash: u64) -> Option<FlowId> {
    let (first, second, tag) = places(hash, tables.settings()?.buckets.get());
    let home = tables.flows(first)?;
    if let Some(place) = claim_in(tables, home, tag) {
        return Some(FlowId { bucket: first, place: place as u32 });
    }
    let bucket = tables.flows(second)?;
    let place = claim_in(tables, bucket, tag)?;
    if first != second {
        tables.add(&home.overflow, 1);
    }
    Some(FlowId { bucket: second, place: place as u32 })
}

#[inline(always)]
fn claim_in<T: Tables>(tables: &T, bucket: &FlowBucket, tag: u32) -> Option<usize> {
    for place in 0..BUCKET_FLOWS {
        if bucket.tags[place].get() == 0 && tables.swap_if(&bucket.tags[place], 0, tag | TAG_BUSY) == 0 {
            return Some(tables.opaque(place as u32) as usize);
        }
    }
    None
}

/// From now on the flow is found.
#[inline(always)]
pub fn publish<T: Tables>(tables: &T, bucket: &FlowBucket, place: u32, hash: u64) {
    let (_, _, tag) = places(hash, 1);
    if let Some(cell) = bucket.tags.get(place as usize) {
        tables.swap_if(cell, tag | TAG_BUSY, tag | TAG_LIVE);
    }
}

/// Gives up a place that [`claim`] took.
#[inline(always)]
pub fn give_up<T: Tables>(tables: &T, buckets: u32, id: FlowId, hash: u64) {
    let (first, _, tag) = places(hash, buckets);
    if let Some(cell) = tables.flows(id.bucket).and_then(|bucket| bucket.tags.get(id.place as usize)) {
        tables.swap_if(cell, tag | TAG_BUSY, 0);
    }
    if id.bucket != first
        && let Some(home) = tables.flows(first)
    {
        tables.add(&home.overflow, u32::MAX);
    }
}

/// The tuple of an instance's answers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReplyKey {
    /// With `transparent` the client, whom answers are sent to. 0 with `snat`: our address is the same for all flows of an instance.
    pub to: [u32; 4],
    /// The port there as it lies in the packet.
    pub port: u32,
    pub instance: u32,
}

impl ReplyKey {
    /// The bucket, and the tag in the high eight bits.
    #[inline(always)]
    pub fn place(&self, settings: &Settings) -> (u32, u32) {
        let seed = settings.flow_seed.get() ^ hash::REPLY_SALT;
        let hash = hash::of(seed, &self.to, self.port | self.instance << 16);
        (hash::scale((hash >> 32) as u32, settings.buckets.get()), (hash as u32) & 0xff00_0000)
    }
}

/// Whether a word of a reply bucket is a reference with this tag.
#[inline(always)]
fn refers(word: u32, tag: u32) -> bool {
    word & 0xff00_0000 == tag && word & 0x00ff_ffff != 0
}

/// How many references of a bucket have this tag.
///
/// Without a branch: the verifier would follow two paths for each of them, and their number would double with every reference.
#[inline(never)]
pub fn count(bucket: &ReplyBucket, tag: u32) -> u32 {
    let mut count = 0;
    for cell in &bucket.refs {
        let word = cell.get();
        count += is_zero((word ^ tag) & 0xff00_0000) & !is_zero(word & 0x00ff_ffff) & 1;
    }
    count
}

/// 1 or 0, by arithmetic alone.
#[inline(always)]
fn is_zero(word: u32) -> u32 {
    (opaque(u64::from(word)).wrapping_sub(1) >> 63) as u32
}

/// A place whose tag is the one that was looked for, as a number that the verifier does not know: what follows is then one path for it, and not one for
/// each place. (It does not conclude from the equality of two numbers that their difference is 0; the compiler would.)
#[inline(always)]
fn blurred(place: usize, found: u32, wanted: u32) -> usize {
    place + (opaque(u64::from(found)) as u32 ^ wanted) as usize
}

/// A number of which the compiler knows nothing, so that it does not turn arithmetic into branches.
#[inline(always)]
fn opaque(number: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let mut number = number;
        // SAFETY: an addition of nothing. (Without an instruction, two of the debug information's lines would begin at one place, which the kernel refuses.)
        unsafe { core::arch::asm!("{0} += 0", inout(reg) number, options(nomem, nostack)) };
        return number;
    }
    #[cfg(not(target_arch = "bpf"))]
    number
}

/// Enters a flow under the tuple of its answers. False: another flow with the same tag is there or was faster, or the bucket is full.
#[inline(always)]
pub fn enter<T: Tables>(tables: &T, answers: &ReplyKey, id: FlowId) -> bool {
    let Some(settings) = tables.settings() else { return false };
    let (bucket, tag) = answers.place(settings);
    let Some(bucket) = tables.replies(bucket) else { return false };
    if count(bucket, tag) != 0 {
        return false;
    }
    let word = tag | id.pack();
    let Some(place) = take_place(tables, bucket, word) else { return false };
    let alone = count(bucket, tag) == 1;
    if !alone && let Some(cell) = bucket.refs.get(place) {
        tables.swap_if(cell, word, 0);
    }
    alone
}

#[inline(always)]
fn take_place<T: Tables>(tables: &T, bucket: &ReplyBucket, word: u32) -> Option<usize> {
    for (place, cell) in bucket.refs.iter().enumerate() {
        if cell.get() == 0 && tables.swap_if(cell, 0, word) == 0 {
            return Some(tables.opaque(place as u32) as usize);
        }
    }
    None
}

/// The live flow whose answers have this tuple. `is` compares what the tag cannot.
#[inline(always)]
pub fn find_reply<T: Tables>(
    tables: &T,
    settings: &Settings,
    key: &ReplyKey,
    is: impl Fn(&Flow) -> bool,
) -> Option<FlowId> {
    let (bucket, tag) = key.place(settings);
    let bucket = tables.replies(bucket)?;
    for cell in &bucket.refs {
        let word = cell.get();
        if refers(word, tag) {
            let id = FlowId::unpack(word);
            let Some(holder) = tables.flows(id.bucket) else { continue };
            let (Some(held), Some(flow)) =
                (holder.tags.get(id.place as usize), holder.flows.get(id.place as usize))
            else {
                continue;
            };
            if held.get() & TAG_STATE == TAG_LIVE && is(flow) {
                return Some(id);
            }
        }
    }
    None
}

/// Nobody finds the flow any more; the daemon frees its place.
#[inline(always)]
pub fn retire<T: Tables>(tables: &T, id: FlowId, hash: u64) {
    let (_, _, tag) = places(hash, 1);
    if let Some(bucket) = tables.flows(id.bucket)
        && let Some(cell) = bucket.tags.get(id.place as usize)
    {
        tables.swap_if(cell, tag | TAG_LIVE, tag | TAG_DEAD);
    }
}
