//! Shows that something long is going on: a moving line on a terminal, first and last lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

#[derive(Debug)]
pub struct Step {
    title: String,
    began: Instant,
    bar: Option<ProgressBar>,
}

impl Step {
    pub fn begin(title: impl Into<String>) -> Self {
        let title = title.into();
        let bar = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(100);
            let style = ProgressStyle::with_template("{spinner} {prefix} [{bar:24}] {elapsed} {wide_msg}");
            bar.set_style(style.expect("the template is well-formed").progress_chars("=> "));
            bar.set_prefix(title.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            Some(bar)
        } else {
            eprintln!("{title} ...");
            None
        };
        Self { title, began: Instant::now(), bar }
    }

    /// Per cent done, and what is being done now.
    pub fn at(&self, percent: u64, doing: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(percent.min(100));
            bar.set_message(doing.to_owned());
        }
    }

    pub fn done(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!("{}: done in {:.0?}", self.title, self.began.elapsed());
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
