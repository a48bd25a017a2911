//! What a client did not offer must not be agreed with its instance: both legs of a handed-off connection need the same options.
//!
//! A socket cannot be told to leave timestamps or selective acknowledgements out of its SYN, so the daemon names the
//! connection in a map before it connects, and the SYN's options become NOPs on their way out.

use crate::maps::SYN_OPTIONS;
use crate::packet::Skb;

#[inline(always)]
pub fn erase(packet: &mut Skb<'_>) {
    router_common::path::syn_options::erase(packet, |key| {
        // SAFETY: the value is a word that is copied at once.
        unsafe { SYN_OPTIONS.get(key).copied() }
    });
}
