//! What a client sends first, put together from its segments: in any order, some of them twice, some overlapping.

use std::net::SocketAddr;

use router_common::abi::binding::Embryo;
use router_common::abi::key::FlowKey;

use super::Segment;

/// Less room than this at the end of a window is not used by clients that have more to say than fits (RFC 9293 §3.8.6.2).
const LEAST_ROOM: usize = 256;

/// What a client has sent first, up to the first gap. Nobody has acknowledged it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct First {
    pub client: SocketAddr,
    pub vip: SocketAddr,
    pub embryo: Embryo,
    /// As in the header of the latest segment, not scaled.
    pub window: u16,
    /// The client's clock in it.
    pub timestamp: Option<u32>,
    /// Whether the client has closed its direction behind these bytes.
    pub finished: bool,
    pub payload: Vec<u8>,
    /// What came ahead of its turn: how far behind the first byte, what, and whether the client has closed behind it.
    ahead: Vec<(usize, Vec<u8>, bool)>,
}

impl First {
    /// Whatever segment came first. (None of its bytes need be the client's first.)
    pub fn begin(segment: Segment) -> Self {
        let mut first = Self {
            client: segment.client,
            vip: segment.vip,
            embryo: segment.embryo,
            window: segment.window,
            timestamp: segment.timestamp,
            finished: false,
            payload: Vec::new(),
            ahead: Vec::new(),
        };
        first.add(segment);
        first
    }

    /// Adds another segment of the same connection. Whether there are more bytes now before the first gap.
    pub fn add(&mut self, segment: Segment) -> bool {
        let before = self.payload.len();
        let is_later = |known: u32| segment.timestamp.is_none_or(|new| new.wrapping_sub(known) as i32 >= 0);
        if self.timestamp.is_none_or(is_later) {
            (self.window, self.timestamp) = (segment.window, segment.timestamp);
        }
        let offset = segment.seq.wrapping_sub(self.embryo.seq) as usize;
        if offset + segment.payload.len() > usize::from(self.embryo.window) {
            return false;
        }
        if offset > before {
            self.keep(offset, segment.payload, segment.finished);
            return false;
        }
        self.append(offset, segment.payload, segment.finished);
        // Each that fits may make another one fit.
        while let Some(next) = self.ahead.iter().position(|(offset, ..)| *offset <= self.payload.len()) {
            let (offset, bytes, finished) = self.ahead.swap_remove(next);
            self.append(offset, bytes, finished);
        }
        self.payload.len() > before
    }

    /// Whether more may come before the client waits for an acknowledgement.
    pub fn may_grow(&self) -> bool {
        !self.finished && self.payload.len() + LEAST_ROOM <= usize::from(self.embryo.window)
    }

    /// The tuple of the client's packets.
    pub fn client_key(&self) -> FlowKey {
        FlowKey::tcp(self.client, self.vip).expect("both come from one packet")
    }

    /// Bytes that the client lets us send.
    pub(super) fn window_bytes(&self) -> u32 {
        u32::from(self.window) << (self.embryo.scale & 15)
    }

    /// For what comes ahead there is as much room as for the rest. What does not fit is sent again.
    fn keep(&mut self, offset: usize, bytes: Vec<u8>, finished: bool) {
        let kept: usize = self.ahead.iter().map(|(_, bytes, _)| bytes.len()).sum();
        let is_known =
            self.ahead.iter().any(|(known, have, _)| *known == offset && have.len() >= bytes.len());
        if !is_known && kept + bytes.len() <= usize::from(self.embryo.window) {
            self.ahead.push((offset, bytes, finished));
        }
    }

    /// Takes what is new of bytes that begin at or before the end.
    fn append(&mut self, offset: usize, mut bytes: Vec<u8>, finished: bool) {
        let have = self.payload.len();
        self.finished |= finished && offset + bytes.len() >= have;
        if have == 0 {
            self.payload = bytes;
        } else if offset + bytes.len() > have {
            self.payload.extend(bytes.drain(have - offset..));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEQ: u32 = u32::MAX - 100;

    fn segment(offset: usize, payload: &[u8]) -> Segment {
        Segment {
            client: "10.77.1.2:40000".parse().unwrap(),
            vip: "10.77.1.10:80".parse().unwrap(),
            embryo: Embryo { seq: SEQ, window: 4_000, ..Embryo::default() },
            seq: SEQ.wrapping_add(offset as u32),
            window: 500,
            timestamp: Some(offset as u32),
            finished: false,
            payload: payload.to_vec(),
        }
    }

    #[test]
    fn a_gap_keeps_what_is_behind_it_back() {
        let mut first = First::begin(segment(4, b"efgh"));
        assert!(first.payload.is_empty() && first.may_grow());
        assert!(!first.add(segment(10, b"kl")));
        assert!(first.add(segment(0, b"abcdef")));
        assert_eq!(first.payload, b"abcdefgh");
        assert!(first.add(segment(7, b"hij")));
        assert_eq!(first.payload, b"abcdefghijkl");
        assert!(!first.add(segment(2, b"cde")), "known");
        assert_eq!(first.timestamp, Some(10), "the latest");
    }

    #[test]
    fn what_lies_behind_the_window_is_not_taken_and_a_full_one_does_not_grow() {
        let mut first = First::begin(segment(0, &[b'a'; 3_000]));
        assert!(!first.add(segment(3_000, &[b'b'; 1_001])));
        assert!(first.add(segment(3_000, &[b'b'; 700])));
        assert!(first.may_grow());
        assert!(first.add(segment(3_700, &[b'b'; 100])));
        assert!(!first.may_grow(), "a client waits for more room");
        assert!(first.add(segment(3_800, &[b'b'; 200])), "it may use it all the same");
    }

    #[test]
    fn what_comes_ahead_of_its_turn_again_and_again_takes_no_more_memory() {
        let mut first = First::begin(segment(1, &[b'a'; 1_000]));
        for length in 1..=1_500 {
            first.add(segment(2_000, &vec![b'b'; length]));
        }
        let kept: usize = first.ahead.iter().map(|(_, bytes, _)| bytes.len()).sum();
        assert!(kept <= 4_000, "{kept}");
    }

    #[test]
    fn the_clients_end_counts_where_all_before_it_is_there() {
        let mut end = segment(3, b"d");
        end.finished = true;
        let mut first = First::begin(end);
        assert!(!first.finished);
        first.add(segment(0, b"abc"));
        assert!(first.finished && !first.may_grow());
    }

    proptest! {
        #[test]
        fn any_order_overlap_and_repetition_gives_the_same_bytes(
            bytes in prop::collection::vec(any::<u8>(), 1..600),
            cuts in prop::collection::vec((0usize..600, 1usize..300), 0..40),
            order in any::<u64>(),
        ) {
            let length = bytes.len();
            let mut parts: Vec<(usize, usize)> = (0..length).step_by(50).map(|at| (at, 70)).collect();
            parts.extend(cuts.iter().map(|(at, length_of)| (at % length, *length_of)));
            // Any order, from one number.
            let mut state = order | 1;
            for last in (1..parts.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                parts.swap(last, (state >> 33) as usize % (last + 1));
            }
            let cut = |(at, part): (usize, usize)| segment(at, &bytes[at..(at + part).min(length)]);
            let mut first = First::begin(cut(parts[0]));
            for part in &parts[1..] {
                let before = first.payload.clone();
                first.add(cut(*part));
                prop_assert!(first.payload.starts_with(&before));
                prop_assert!(bytes.starts_with(&first.payload));
            }
            // What had no room comes again.
            for at in (0..length).step_by(50) {
                first.add(cut((at, 70)));
            }
            prop_assert_eq!(&first.payload, &bytes);
        }
    }
}
