//! When a flow is over. Pure: time is an argument.

use std::time::Duration;

use router_common::abi::flow::Flow;
use router_common::abi::key::Side;
use router_common::wire::tcp::seq_before_eq;

/// After both sides have finished, late retransmissions still find their flow.
const LINGER: Duration = Duration::from_secs(2);
/// The same where ports towards the instance run out: a retransmission that comes later is answered by a reset of a connection that is over.
const LINGER_SCARCE: Duration = Duration::from_millis(250);
/// After a reset.
const LINGER_RESET: Duration = Duration::from_secs(1);
/// Both sides have sent FIN, and one is not acknowledged: the other end is probably gone.
const CLOSING_IDLE: Duration = Duration::from_secs(60);
/// One side has sent FIN and nothing moves any more.
const HALF_CLOSED_IDLE: Duration = Duration::from_secs(120);

/// What is to become of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Live,
    /// The connection has ended; the flow may linger for this long.
    Ended(Duration),
    /// Nobody has used it for too long.
    Expired,
}

/// Judges a flow at monotonic time `now` (ns).
pub fn fate(flow: &Flow, now: u64, idle_timeout: Duration) -> Fate {
    let [client, instance] = &flow.progress;
    if client.rst_seen.get() | instance.rst_seen.get() != 0 {
        return Fate::Ended(LINGER_RESET);
    }
    let finished = [Side::Client, Side::Instance].map(|side| fin_acknowledged(flow, side));
    if finished == [true, true] {
        return Fate::Ended(LINGER);
    }
    let allowed = match client.fin_seen.get() + instance.fin_seen.get() {
        0 => idle_timeout,
        1 => HALF_CLOSED_IDLE.min(idle_timeout),
        _ => CLOSING_IDLE.min(idle_timeout),
    };
    if idle(flow, now) > allowed { Fate::Expired } else { Fate::Live }
}

/// How long a flow that has ended may linger, given how long it may at best, and whether its source port is wanted.
pub fn linger(at_best: Duration, port_is_wanted: bool) -> Duration {
    if port_is_wanted { at_best.min(LINGER_SCARCE) } else { at_best }
}

/// Time since the last packet of either side.
pub fn idle(flow: &Flow, now: u64) -> Duration {
    let [client, instance] = &flow.progress;
    // A packet may have come after `now` was read.
    Duration::from_nanos(now.saturating_sub(client.last_seen.get().max(instance.last_seen.get())))
}

/// Either side has begun to close.
pub fn closing(flow: &Flow) -> bool {
    flow.progress.iter().any(|progress| progress.fin_seen.get() | progress.rst_seen.get() != 0)
}

fn fin_acknowledged(flow: &Flow, side: Side) -> bool {
    let (sender, receiver) = match side {
        Side::Client => (0, 1),
        Side::Instance => (1, 0),
    };
    let progress = &flow.progress[sender];
    let translated = progress.fin_end.get().wrapping_add(flow.translations[sender].seq_delta.get());
    progress.fin_seen.get() != 0 && seq_before_eq(translated, flow.progress[receiver].max_ack.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const SECOND: u64 = 1_000_000_000;

    fn finish(flow: &Flow, sender: usize, fin_end: u32) {
        flow.progress[sender].fin_end.set(fin_end);
        flow.progress[sender].fin_seen.set(1);
    }

    #[test]
    fn a_connection_ends_when_both_fins_are_acknowledged_in_their_own_spaces() {
        let flow = Flow::default();
        flow.translations[0].seq_delta.set(1_000);
        flow.translations[1].seq_delta.set(u32::MAX - 4);
        finish(&flow, 0, 50);
        finish(&flow, 1, 70);
        assert_eq!(fate(&flow, 0, HOUR), Fate::Live);
        flow.progress[1].max_ack.set(1_050);
        assert_eq!(fate(&flow, 0, HOUR), Fate::Live);
        flow.progress[0].max_ack.set(65);
        assert_eq!(fate(&flow, 0, HOUR), Fate::Ended(LINGER));
    }

    #[test]
    fn a_reset_ends_it_at_once() {
        let flow = Flow::default();
        flow.progress[1].rst_seen.set(1);
        assert_eq!(fate(&flow, 0, HOUR), Fate::Ended(LINGER_RESET));
    }

    #[test]
    fn a_half_closed_connection_lives_while_the_other_side_still_sends() {
        let flow = Flow::default();
        finish(&flow, 0, 50);
        flow.progress[0].last_seen.set(SECOND);
        flow.progress[1].last_seen.set(1_000 * SECOND);
        assert_eq!(fate(&flow, 1_100 * SECOND, HOUR), Fate::Live);
        assert_eq!(fate(&flow, 1_121 * SECOND, HOUR), Fate::Expired);
    }

    #[test]
    fn idleness_is_judged_by_the_setting() {
        let flow = Flow::default();
        flow.progress[0].last_seen.set(10 * SECOND);
        assert_eq!(fate(&flow, 3_610 * SECOND, HOUR), Fate::Live);
        assert_eq!(fate(&flow, 3_611 * SECOND, HOUR), Fate::Expired);
    }

    #[test]
    fn a_flow_that_has_ended_lingers_less_where_its_port_is_wanted() {
        assert_eq!(linger(LINGER, false), LINGER);
        assert_eq!(linger(LINGER, true), LINGER_SCARCE);
        assert!(linger(Duration::ZERO, true).is_zero());
    }
}
