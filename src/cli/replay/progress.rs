//! How far a replay has come: a bar on a terminal, a line now and then elsewhere.

use super::super::complain;
use super::Tally;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::fmt;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often a line is written where there is no terminal.
const EVERY: Duration = Duration::from_secs(10);

pub(super) struct ReplayProgress {
    /// Hidden where there is no terminal.
    bar: ProgressBar,
    total: u64,
    began: Instant,
    last_line: Instant,
    ending: bool,
}

impl ReplayProgress {
    pub fn begin(total: u64) -> Self {
        let bar = if std::io::stderr().is_terminal() { ProgressBar::new(total) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len}, {rate}, {eta} left: {msg}");
        let rate = |state: &ProgressState, out: &mut dyn fmt::Write| {
            // Drawn to a String, which takes everything.
            let _ = write!(out, "{:.1}/s", state.per_sec());
        };
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key("rate", rate));
        let now = Instant::now();
        Self { bar, total, began: now, last_line: now, ending: false }
    }

    /// Shows the numbers.
    pub(crate) fn show(&mut self, tally: &Tally) {
        self.bar.set_position(tally.done);
        self.bar.set_message(numbers(tally));
        if self.bar.is_hidden() && self.last_line.elapsed() >= EVERY {
            self.last_line = Instant::now();
            complain(&line(tally, self.total, self.began.elapsed()));
        }
    }

    /// Says once that the end is near.
    pub(crate) fn ending(&mut self) {
        if !std::mem::replace(&mut self.ending, true) {
            self.above(|| complain("ending after the messages in hand; once more, and it ends at once"));
        }
    }

    /// Writes above the bar.
    pub(crate) fn above(&self, write: impl FnOnce()) {
        self.bar.suspend(write);
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn numbers(tally: &Tally) -> String {
    let Tally { delivered, already_there, .. } = tally;
    format!("{delivered} delivered, {already_there} already there, {} failed", tally.failed())
}

fn line(tally: &Tally, total: u64, took: Duration) -> String {
    let done = tally.done;
    let left = took.mul_f64(total.saturating_sub(done) as f64 / done.max(1) as f64);
    let left = humantime::format_duration(Duration::from_secs(left.as_secs()));
    let rate = done as f64 / took.as_secs_f64().max(0.001);
    format!("{done} of {total}, {rate:.1}/s, about {left} left: {}", numbers(tally))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_rate_and_time_left() {
        let tally = Tally { delivered: 90, already_there: 5, deferred: 3, refused: 2, done: 200 };
        assert_eq!(
            line(&tally, 1000, Duration::from_secs(100)),
            "200 of 1000, 2.0/s, about 6m 40s left: 90 delivered, 5 already there, 5 failed"
        );
        assert!(line(&Tally::default(), 10, Duration::ZERO).starts_with("0 of 10, 0.0/s, about 0s left"));
    }
}
