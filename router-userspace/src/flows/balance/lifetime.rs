//! When a Layer-4 flow is over. Pure: time is an argument.

use std::time::Duration;

use router_common::abi::balance::{CLIENT_FIN, ESTABLISHED, INSTANCE_FIN, Mode, REPLIED, RESET, closed};
use router_common::wire::PROTOCOL_TCP;

/// A connection of which only the first packet has come.
const EMBRYONIC: Duration = Duration::from_secs(30);
/// One side has sent FIN and nothing moves any more.
const HALF_CLOSED: Duration = Duration::from_secs(120);
/// After its end: the instance is in TIME_WAIT for so long, and our port shall not meet it there.
const TIME_WAIT: Duration = Duration::from_secs(60);
/// After its end, when places or ports run short.
const TIME_WAIT_SHORT: Duration = Duration::from_secs(2);
/// With direct server return the instance's side cannot be seen: it is taken to have ended when the client has, and it has been quiet for so long.
const QUIET: Duration = Duration::from_secs(3);
/// A question and its answer, or a question alone.
const EXCHANGE: Duration = Duration::from_secs(10);
const EXCHANGE_SHORT: Duration = Duration::from_secs(2);

/// The settings that lifetimes depend on.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub tcp_idle: Duration,
    pub udp_idle: Duration,
    /// Places or ports run short.
    pub pressure: bool,
}

/// What is to become of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Live,
    /// Its session has ended; late packets still find it.
    Ended,
    Over,
}

/// Judges a flow that has been idle for so long.
pub fn fate(state: u32, mode: Mode, protocol: u8, idle: Duration, limits: &Limits) -> Fate {
    let over_after = |limit: Duration, otherwise: Fate| if idle > limit { Fate::Over } else { otherwise };
    if protocol != PROTOCOL_TCP {
        let short = if limits.pressure { EXCHANGE_SHORT } else { EXCHANGE };
        let limit = if state & ESTABLISHED == 0 { short.min(limits.udp_idle) } else { limits.udp_idle };
        // A question that has been answered needs its place only for answers that come twice.
        let answered = state & (ESTABLISHED | REPLIED) == REPLIED && idle >= EXCHANGE_SHORT.min(limit);
        return over_after(limit, if answered { Fate::Ended } else { Fate::Live });
    }
    let ended = if mode.sees_answers() {
        closed(state)
    } else {
        state & RESET != 0 || state & CLIENT_FIN != 0 && idle >= QUIET
    };
    if ended {
        let linger = if limits.pressure { TIME_WAIT_SHORT.max(QUIET) } else { TIME_WAIT };
        return over_after(linger, Fate::Ended);
    }
    let limit = if state & (CLIENT_FIN | INSTANCE_FIN) != 0 {
        HALF_CLOSED
    } else if state & ESTABLISHED == 0 {
        EMBRYONIC
    } else {
        limits.tcp_idle
    };
    over_after(limit.min(limits.tcp_idle), Fate::Live)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { tcp_idle: Duration::from_secs(3_600), udp_idle: Duration::from_secs(60), pressure: false };
    const TCP: u8 = PROTOCOL_TCP;
    const UDP: u8 = 17;

    fn at(state: u32, mode: Mode, protocol: u8, seconds: u64) -> Fate {
        fate(state, mode, protocol, Duration::from_secs(seconds), &LIMITS)
    }

    #[test]
    fn a_connection_whose_both_sides_finished_ends_at_once_and_its_port_rests() {
        let closed = ESTABLISHED | CLIENT_FIN | INSTANCE_FIN;
        assert_eq!(at(closed, Mode::Snat, TCP, 0), Fate::Ended);
        assert_eq!(at(closed, Mode::Snat, TCP, 60), Fate::Ended);
        assert_eq!(at(closed, Mode::Snat, TCP, 61), Fate::Over);
        assert_eq!(at(ESTABLISHED | CLIENT_FIN, Mode::Snat, TCP, 100), Fate::Live);
        assert_eq!(at(ESTABLISHED | CLIENT_FIN, Mode::Snat, TCP, 121), Fate::Over);
    }

    #[test]
    fn with_direct_return_a_connection_ends_when_its_client_has_finished_and_is_quiet() {
        assert_eq!(at(ESTABLISHED | CLIENT_FIN, Mode::DsrIpip, TCP, 1), Fate::Live);
        assert_eq!(at(ESTABLISHED | CLIENT_FIN, Mode::DsrIpip, TCP, 4), Fate::Ended);
    }

    #[test]
    fn half_open_connections_go_soon_and_established_ones_by_the_setting() {
        assert_eq!(at(0, Mode::Snat, TCP, 31), Fate::Over);
        assert_eq!(at(ESTABLISHED, Mode::Snat, TCP, 3_600), Fate::Live);
        assert_eq!(at(ESTABLISHED, Mode::Snat, TCP, 3_601), Fate::Over);
    }

    #[test]
    fn a_datagram_and_its_answer_need_little_time_and_a_conversation_more() {
        assert_eq!(at(REPLIED, Mode::Snat, UDP, 1), Fate::Live);
        assert_eq!(at(REPLIED, Mode::Snat, UDP, 5), Fate::Ended);
        assert_eq!(at(REPLIED, Mode::Snat, UDP, 11), Fate::Over);
        assert_eq!(at(ESTABLISHED | REPLIED, Mode::Snat, UDP, 59), Fate::Live);
        assert_eq!(at(ESTABLISHED, Mode::DsrL2, UDP, 61), Fate::Over);
    }
}
