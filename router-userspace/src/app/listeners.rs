//! From what the configuration says about a listener to what the proxy needs to know.

use crate::config::{ListenerPlan, Offload, Source};
use crate::proxy::http::scan::HeadLimits;
use crate::proxy::settings::{self, AutoHandoff, ListenerSettings};

/// What the proxy is told about a listener.
pub fn settings(plan: &ListenerPlan) -> ListenerSettings {
    ListenerSettings {
        name: plan.name.clone(),
        address: plan.address,
        protocol: plan.protocol,
        announced_by: plan.accept_proxy_protocol.clone(),
        transparent: plan.source == Source::Transparent,
        offload: match plan.offload {
            Offload::Auto => settings::Offload::Auto,
            Offload::Bind => settings::Offload::Bind,
            Offload::Handoff => settings::Offload::Handoff,
            Offload::Relay => settings::Offload::Relay,
        },
        auto: AutoHandoff {
            after_bytes: plan.offload_after_bytes,
            after_age: plan.offload_after,
            second_request: plan.offload_second_request,
        },
        once_only: plan.once_only,
        head: head_limits(plan),
        header_timeout: plan.header_timeout,
        forwarded_for: plan.forwarded_for,
        pipelining: plan.pipelining,
        connect_timeout: plan.connect_timeout,
        connect_attempts: plan.connect_retries as usize + 1,
        idle_timeout: plan.idle_timeout,
        half_closed_timeout: plan.half_closed_timeout,
        retry_after: plan.retry_after,
        backlog: plan.backlog,
        defer_accept: plan.defer_accept,
        max_segment: plan.max_segment,
        initial_window: plan.initial_window,
    }
}

pub(super) fn head_limits(plan: &ListenerPlan) -> HeadLimits {
    HeadLimits { head: plan.max_header_bytes as usize, http09: plan.allow_http09, ..HeadLimits::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn plan(listener: &str) -> config::Plan {
        let text = format!(
            "[[listener]]\nname = \"web\"\naddress = \"127.0.0.1:8080\"\n{listener}\n[[pool]]\nname = \"p\"\n\
             [[pool.instance]]\nname = \"i\"\naddress = \"127.0.0.1:8081\"\n"
        );
        config::parse("test.toml", &text).unwrap_or_else(|errors| panic!("{}", errors.graphical(false)))
    }

    #[test]
    fn a_listener_that_says_nothing_has_the_proxys_defaults() {
        let plan = plan("");
        let expected = ListenerSettings::new("web", "127.0.0.1:8080".parse().unwrap());
        assert_eq!(settings(&plan.listeners[0]), expected);
    }
}
