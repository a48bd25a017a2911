//! Reading a head for `explain` with the parser that the listeners use.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use router_common::abi::reason::RefuseReason;

use super::listeners::head_limits;
use crate::config::ListenerPlan;
use crate::control::state::HeadReader;
use crate::core::request::HttpRequest;
use crate::proxy::http;
use crate::proxy::http::scan::HeadLimits;
use crate::proxy::tls::client_hello;

/// The listeners' limits by name; a listener that is not among them has the default ones.
#[derive(Debug, Default)]
pub struct Heads(ArcSwap<HashMap<String, HeadLimits>>);

impl Heads {
    pub fn of(listeners: &[ListenerPlan]) -> Self {
        let heads = Self::default();
        heads.replace(listeners);
        heads
    }

    /// The listeners' limits from now on.
    pub fn replace(&self, listeners: &[ListenerPlan]) {
        let limits = listeners.iter().map(|listener| (listener.name.clone(), head_limits(listener)));
        self.0.store(Arc::new(limits.collect()));
    }
}

impl HeadReader for Heads {
    fn read(
        &self,
        listener: &str,
        head: &[u8],
        then: &mut dyn FnMut(HttpRequest<'_>),
    ) -> Result<(), RefuseReason> {
        let default = HeadLimits::default();
        let limits = self.0.load();
        let limits = limits.get(listener).unwrap_or(&default);
        let (head, _) = http::read(head, limits)?.ok_or(RefuseReason::BadRequest)?;
        let path = head.path()?;
        then(head.request(&path));
        Ok(())
    }

    fn server_name<'n>(&self, name: &'n str) -> Result<&'n str, RefuseReason> {
        client_hello::host_name(name.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn a_head_is_judged_by_its_own_listener_s_limits() {
        let file = r#"
            [[listener]]
            name = "small"
            address = "10.0.1.1:80"
            protocol = "http"
            max_header_bytes = 1024

            [[pool]]
            name = "web"
            [[pool.instance]]
            name = "web1"
            address = "10.0.2.11:80"
        "#;
        let plan = config::parse("test.toml", file).unwrap_or_else(|errors| panic!("{errors}"));
        let heads = Heads::of(&plan.listeners);
        let head = format!("GET /a/./b HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(2000));
        assert_eq!(
            heads.read("small", head.as_bytes(), &mut |_| panic!("too long")),
            Err(RefuseReason::HeadTooLarge)
        );
        let mut path = String::new();
        heads.read("other", head.as_bytes(), &mut |http| path = http.path.to_owned()).unwrap();
        assert_eq!(path, "/a/b");
    }
}
