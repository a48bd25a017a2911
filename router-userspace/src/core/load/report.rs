//! What an instance says about itself, whichever way it comes in.

/// One report. What it does not mention is left as it was, until that is too old to count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Processing power compared with other instances, above 0; 100 is usual.
    pub cpu_capacity: Option<f64>,
    /// How much of the processors is idle, from 0 to 100.
    pub cpu_idle_percent: Option<f64>,
    /// Bytes of memory; above 0.
    pub memory_total: Option<u64>,
    /// Bytes that could be used without swapping; at most `memory_total`.
    pub memory_free: Option<u64>,
    /// Bytes of memory and swap space together that could be used.
    pub virtual_memory_free: Option<u64>,
    /// Users' sessions on the instance, from all routers together.
    pub sessions: Option<u32>,
    /// How much of the disk for temporary files is used, from 0 to 100.
    pub temp_disk_percent: Option<f64>,
    /// Pages swapped in or out per second.
    pub paging: Option<f64>,
    /// Requests in progress for each processor.
    pub calls_per_core: Option<f64>,
    /// What an agent says of the load, from 0 (idle) to 100 (full).
    pub agent_value: Option<u8>,
    /// All resources that are loaded there now.
    pub resources: Option<Vec<String>>,
}

impl Report {
    /// Spare processing power: capacity × idle %. A capacity that is not reported is 100.
    pub fn cpu_spare(&self) -> Option<f64> {
        Some(self.cpu_capacity.unwrap_or(100.0) * self.cpu_idle_percent?)
    }

    /// Percent of the processors that are busy.
    pub fn cpu_percent(&self) -> Option<f64> {
        Some(100.0 - self.cpu_idle_percent?)
    }

    /// Percent of the memory that is in use.
    pub fn memory_percent(&self) -> Option<f64> {
        let (total, free) = (self.memory_total?, self.memory_free?);
        (total > 0).then(|| 100.0 * (1.0 - free.min(total) as f64 / total as f64))
    }

    /// Free virtual memory, or free memory where the instance does not tell them apart.
    pub fn free_memory(&self) -> Option<u64> {
        self.virtual_memory_free.or(self.memory_free)
    }
}
