//! How far the simulation is: a moving bar if standard error is a terminal, else a line from time to time.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::simulate::Progress;

/// How often a line is written where no bar can move.
const LINE_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Bar {
    began: Instant,
    line_at: Cell<Duration>,
    bar: ProgressBar,
    /// Whether the length is in bytes of a log.
    bytes: bool,
}

impl Bar {
    pub(super) fn of_requests(count: u64) -> Self {
        Self::new(Some(count), "{bar:32} {percent:>3} %  {human_pos} requests, {eta} left", false)
    }

    pub(super) fn of_bytes(size: u64) -> Self {
        Self::new(Some(size), "{bar:32} {percent:>3} %  {msg} requests, {eta} left", true)
    }

    /// Of a stream whose length is not known.
    pub(super) fn endless() -> Self {
        Self::new(None, "{spinner} {human_pos} requests", false)
    }

    fn new(length: Option<u64>, template: &str, bytes: bool) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
            // A template that cannot be read would only look plainer.
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        } else {
            ProgressBar::hidden()
        };
        Self { began: Instant::now(), line_at: Cell::new(LINE_EVERY), bar, bytes }
    }

    pub(super) fn at(&self, progress: Progress) {
        if self.bar.is_hidden() {
            let passed = self.began.elapsed();
            if passed >= self.line_at.get() {
                self.line_at.set(passed + LINE_EVERY);
                eprintln!("{} requests after {passed:.0?}", progress.requests);
            }
            return;
        }
        self.bar.set_position(if self.bytes { progress.bytes } else { progress.requests });
        if self.bytes {
            self.bar.set_message(progress.requests.to_string());
        }
    }

    /// Takes the bar away; says how long it took.
    pub(super) fn done(self) -> Duration {
        self.bar.finish_and_clear();
        self.began.elapsed()
    }
}
