//! How the service is, in words for people: the same on a terminal and in a browser.

use super::control::{Process, Role, Task};
use crate::base::timestamp::{read_exact, span, told as told_moment};
use std::time::Duration;

impl Process {
    /// What people call it: `worker 2`.
    #[must_use]
    pub fn name(&self) -> String {
        match self.role {
            Role::Front => "front".into(),
            Role::Worker => format!("worker {}", self.number),
            Role::Runner => format!("runner {}", self.number),
            Role::Timer => "timer".into(),
            Role::Notify => "notifier".into(),
            Role::Web => "page".into(),
        }
    }

    /// How it does: `ready`, or `starts in 42s, throttled`.
    #[must_use]
    pub fn standing(&self) -> String {
        let state = match (self.pid, self.starts_in_s) {
            (Some(_), _) if self.ending => "ending".into(),
            (Some(_), _) if self.ready => "ready".into(),
            (Some(_), _) => "not ready".into(),
            (None, Some(seconds)) => format!("starts in {}", age(seconds)),
            (None, None) => "gone".into(),
        };
        if self.throttled { format!("{state}, throttled") } else { state }
    }

    /// How the one before it ended, and the last line that it wrote.
    #[must_use]
    pub fn how_the_last_ended(&self) -> Option<String> {
        let last = self.last_end.as_ref()?;
        let said = last.said.last().map(|line| format!("; it said: {line}")).unwrap_or_default();
        Some(format!("{}{said}", last.end))
    }
}

impl Task {
    /// What is done at intervals, what came of it, and when it is done next, in one line.
    #[must_use]
    pub fn told(&self) -> String {
        let Self { task: name, next_at, failed_runs, last, .. } = self;
        let next =
            next_at.as_deref().map_or_else(|| "it is under way".into(), |at| format!("next at {}", told_exact(at)));
        let last = last.as_ref().map_or_else(
            || "it has not been done yet".into(),
            |last| format!("{}, at {}, in {}", last.said, told_exact(&last.at), age(last.took_s)),
        );
        let failed = match failed_runs {
            0 => String::new(),
            1 => "FAILED: ".into(),
            times => format!("FAILED {times} times in a row: "),
        };
        format!("{}: {failed}{last}; {next}", name.replace('_', " "))
    }
}

/// A moment as all commands tell it.
fn told_exact(at: &str) -> String {
    read_exact(at).map_or_else(|| at.to_owned(), told_moment)
}

/// A time span in seconds, for people.
#[must_use]
pub fn age(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or_else(|_| "-".into(), span)
}
