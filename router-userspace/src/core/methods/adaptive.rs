//! `adaptive`: response time, live sessions and agent value in one figure.
//!
//! The three have no common unit, so they are multiplied: doubling any of them counts the same, whatever it is
//! measured in.

/// What an instance without an agent counts as: half busy.
const UNKNOWN_AGENT: u8 = 50;

/// `response` in milliseconds, `agent` from 0 (idle) to 100. The connection that is to be placed is counted already, or an
/// idle instance would win however slow it is.
pub(super) fn figure(response: f64, live: u32, weight: u32, agent: Option<u8>) -> f64 {
    let load = (f64::from(live) + 1.0) * 100.0 / f64::from(weight);
    let busy = (f64::from(agent.unwrap_or(UNKNOWN_AGENT)) + 50.0) / 100.0;
    load * response.max(0.001) * busy
}

#[cfg(test)]
mod tests {
    use super::figure;

    #[test]
    fn twice_as_slow_and_half_as_loaded_is_as_good() {
        assert_eq!(figure(20.0, 0, 100, None), figure(10.0, 1, 100, None));
        assert_eq!(figure(10.0, 1, 200, None), figure(10.0, 0, 100, None));
    }

    #[test]
    fn a_busy_agent_costs_up_to_three_times_an_idle_one() {
        assert_eq!(figure(10.0, 0, 100, Some(100)), 3.0 * figure(10.0, 0, 100, Some(0)));
        assert_eq!(figure(10.0, 0, 100, Some(50)), figure(10.0, 0, 100, None));
    }
}
