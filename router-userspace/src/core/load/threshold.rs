//! Where an instance begins to be strained or exhausted, and where it ceases to be.

/// What is compared with thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Busy processors, in percent.
    Cpu,
    /// Memory in use, in percent.
    Memory,
    /// Sessions: as reported, else those that the router itself has there.
    Sessions,
    /// Used part of the disk for temporary files, in percent.
    TempDisk,
    /// Pages swapped per second.
    Paging,
    /// Requests in progress for each processor.
    CallsPerCore,
}

impl Metric {
    pub const ALL: [Metric; 6] =
        [Self::Cpu, Self::Memory, Self::Sessions, Self::TempDisk, Self::Paging, Self::CallsPerCore];

    /// The name used in reports, metrics and (after `strained_` or `exhausted_`) in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Sessions => "sessions",
            Self::TempDisk => "temp_disk",
            Self::Paging => "paging",
            Self::CallsPerCore => "calls_per_core",
        }
    }

    /// Whether the value is a percentage.
    pub fn is_percent(self) -> bool {
        matches!(self, Self::Cpu | Self::Memory | Self::TempDisk)
    }
}

/// A threshold with hysteresis: passed at `enter` and above, and from then on until the value is below `leave`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    pub enter: f64,
    /// At most `enter`.
    pub leave: f64,
}

impl Threshold {
    /// Whether the threshold is passed, if `passed` says whether it was.
    pub fn judge(&self, passed: bool, value: f64) -> bool {
        value >= if passed { self.leave } else { self.enter }
    }
}

/// The thresholds of one metric; `None` switches one off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Levels {
    pub strained: Option<Threshold>,
    pub exhausted: Option<Threshold>,
}

impl Levels {
    pub fn any(&self) -> bool {
        self.strained.is_some() || self.exhausted.is_some()
    }
}

/// The thresholds of every metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds([Levels; Metric::ALL.len()]);

impl Thresholds {
    /// None at all: the instance is always available.
    pub const OFF: Thresholds = Thresholds([Levels { strained: None, exhausted: None }; Metric::ALL.len()]);

    pub fn of(&self, metric: Metric) -> &Levels {
        &self.0[metric as usize]
    }

    pub fn of_mut(&mut self, metric: Metric) -> &mut Levels {
        &mut self.0[metric as usize]
    }
}

impl Default for Thresholds {
    /// Strained from 50 % CPU or 75 % memory on, exhausted from 90 % or 98 % on; each is left 5 below.
    fn default() -> Self {
        let levels = |strained: f64, exhausted: f64| {
            let threshold = |enter| Some(Threshold { enter, leave: enter - 5.0 });
            Levels { strained: threshold(strained), exhausted: threshold(exhausted) }
        };
        let mut thresholds = Self::OFF;
        *thresholds.of_mut(Metric::Cpu) = levels(50.0, 90.0);
        *thresholds.of_mut(Metric::Memory) = levels(75.0, 98.0);
        thresholds
    }
}
