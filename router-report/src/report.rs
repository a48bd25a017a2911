//! A report, as an instance sends it.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Longest report, in bytes.
pub const MAX_BODY_BYTES: usize = 256 * 1024;
/// Most resources that an instance may name.
pub const MAX_RESOURCES: usize = 4_096;
/// Longest name of a resource, in bytes.
pub const MAX_RESOURCE_BYTES: usize = 512;

/// The body of `POST /v1/report`. Every field but `instance` may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Report {
    /// The instance's name, as in the configuration.
    pub instance: String,
    /// Where an instance listens that wants to join: `10.0.2.14:80`. Not needed for one of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// The pool, where one token fits several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// When the values were taken, in seconds since 1970 (UTC), with fractions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<f64>,
    /// Processing power compared with other instances; 100 is usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_capacity: Option<f64>,
    /// 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_idle_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_free_bytes: Option<u64>,
    /// Free memory and free swap space together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_memory_free_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u32>,
    /// 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temp_disk_used_percent: Option<f64>,
    /// Swapped in and out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_core: Option<f64>,
    /// 0 (idle) to 100 (full), or -1 for down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_value: Option<i16>,
    /// Every resource that is loaded; an empty list says that none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loaded_resources: Option<Vec<String>>,
}
