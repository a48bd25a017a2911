//! Reading a head for `explain` with the parser that the listeners use.

use std::collections::HashMap;

use router_common::abi::reason::RefuseReason;

use crate::control::state::HeadReader;
use crate::core::path;
use crate::core::request::HttpRequest;
use crate::proxy::http;
use crate::proxy::http::scan::HeadLimits;

/// The listeners' limits by name; a listener that is not among them has the default ones.
#[derive(Debug, Default)]
pub struct Heads(pub HashMap<String, HeadLimits>);

impl HeadReader for Heads {
    fn read(
        &self,
        listener: &str,
        head: &[u8],
        then: &mut dyn FnMut(HttpRequest<'_>),
    ) -> Result<(), RefuseReason> {
        let default = HeadLimits::default();
        let limits = self.0.get(listener).unwrap_or(&default);
        let (head, _) = http::read(head, limits)?.ok_or(RefuseReason::BadRequest)?;
        let path = path::normalise(head.raw_path).map_err(|_| RefuseReason::BadRequest)?;
        then(head.request(&path));
        Ok(())
    }
}
