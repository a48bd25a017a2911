//! What instances and routers have to agree on: a report as it is sent, and how durations are written.
//!
//! Small on purpose, so that what runs beside an instance needs nothing of the router.

mod duration;
mod report;

pub use duration::{format_duration, parse_duration};
pub use report::{MAX_BODY_BYTES, MAX_RESOURCE_BYTES, MAX_RESOURCES, Report};
