//! The status of the service as text for people: the same on a terminal and in a browser.

use super::control::{LastEnd, Process, Task};
use crate::base::timestamp::{read_exact, span, time_text as moment_text};
use serde_json::Value;
use std::time::Duration;

impl Process {
    /// The process's name for people: `worker 2`.
    pub fn name(&self) -> String {
        let role = self.role.as_str();
        if self.role.is_numbered() { format!("{role} {}", self.number) } else { role.into() }
    }

    /// The state of the process: `ready`, or `starts in 42s, throttled`.
    pub fn state(&self) -> String {
        let state = match (self.pid, self.starts_in_s) {
            (Some(_), _) if self.ending => "ending".into(),
            (Some(_), _) if self.ready => "ready".into(),
            (Some(_), _) => "not ready".into(),
            (None, Some(seconds)) => format!("starts in {}", age(seconds)),
            (None, None) => "gone".into(),
        };
        if self.throttled { format!("{state}, throttled") } else { state }
    }

    /// How the previous process ended, and the last line that it wrote.
    pub fn last_exit(&self) -> Option<String> {
        self.last_end.as_ref().map(LastEnd::to_text)
    }
}

impl LastEnd {
    /// How the process ended, and the last line that it wrote.
    pub fn to_text(&self) -> String {
        self.output.last().map_or_else(|| self.end.to_string(), |line| format!("{}; it said: {line}", self.end))
    }
}

impl Task {
    /// A task, the result of its last run, and the time of its next run, in one line.
    pub fn to_text(&self) -> String {
        let Self { task: name, next_at, failed_runs, last, .. } = self;
        let next =
            next_at.as_deref().map_or_else(|| "it is under way".into(), |at| format!("next at {}", exact_text(at)));
        let last = last.as_ref().map_or_else(
            || "it has not been done yet".into(),
            |last| format!("{}, at {}, in {}", last.result, exact_text(&last.at), age(last.took_s)),
        );
        let failed = match failed_runs {
            0 => String::new(),
            1 => "FAILED: ".into(),
            times => format!("FAILED {times} times in a row: "),
        };
        format!("{}: {failed}{last}; {next}", name.replace('_', " "))
    }
}

/// What people see of the front's figures: the name in the JSON, the name for people, and its meaning.
const FIGURES: [(&str, &str, &str); 12] = [
    ("queued", "waiting messages", "No worker has taken them yet."),
    ("held", "announced messages", "Their clients have not asked for the delivery yet."),
    ("ready", "idle workers", "They wait for a message."),
    ("busy", "busy workers", "They deliver a message."),
    ("silent", "unresponsive workers", "They send no heartbeats."),
    ("suspects", "suspect messages", "They have crashed one worker, and are tried one at a time."),
    ("file_queue_new", "file queue: waiting", "They wait for a runner, or for their next attempt."),
    ("file_queue_work", "file queue: in progress", "A runner delivers them."),
    ("file_queue_held", "file queue: held", "An operator holds them back."),
    ("file_queue_refused", "file queue: refused", "A recipient has refused them for good."),
    ("file_queue_bad", "file queue: unreadable", "They cannot be read."),
    ("file_queue_shunted", "shunted messages", "They have crashed two workers, and are stored and tried alone."),
];

/// The name and the meaning of a figure of the front. An unknown one keeps the name that the front gives it.
pub fn figure_label(name: &str) -> (String, &'static str) {
    let known = FIGURES.iter().find(|(known, ..)| *known == name);
    known.map_or_else(|| (name.replace('_', " "), ""), |(_, label, meaning)| ((*label).to_owned(), meaning))
}

/// The figures of the front, those that belong together next to each other.
pub fn figures_in_order(front: &Value) -> Vec<(&String, &Value)> {
    let mut figures: Vec<(&String, &Value)> = front.as_object().into_iter().flatten().collect();
    figures.sort_by_key(|(name, _)| FIGURES.iter().position(|(known, ..)| known == name).unwrap_or(FIGURES.len()));
    figures
}

/// A timestamp in the format of all commands.
fn exact_text(at: &str) -> String {
    read_exact(at).map_or_else(|| at.to_owned(), moment_text)
}

/// A duration in seconds, as text for people.
pub fn age(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or_else(|_| "-".into(), span)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::control::{End, LastEnd, LastRun, Role};
    use super::*;

    /// A process of this role, number 2, that has ended.
    pub(crate) fn gone(role: Role) -> Process {
        Process {
            role,
            number: 2,
            pid: None,
            since: None,
            up_s: None,
            ready: false,
            ending: false,
            restarts: 0,
            throttled: false,
            starts_in_s: None,
            last_end: None,
        }
    }

    #[test]
    fn a_process_has_the_name_that_people_call_it_by() {
        let names = Role::ALL.map(|role| gone(role).name());
        assert_eq!(names, ["front", "worker 2", "runner 2", "timer", "notifier", "web"]);
    }

    #[test]
    fn it_is_reported_how_a_process_does_and_when_it_starts_again() {
        let gone = gone(Role::Worker);
        let runs = Process { pid: Some(7), ..gone.clone() };
        let ready = Process { ready: true, ..runs.clone() };
        for (process, state) in [
            (Process { ending: true, ..ready.clone() }, "ending"),
            (Process { throttled: true, ..ready.clone() }, "ready, throttled"),
            (ready, "ready"),
            (runs, "not ready"),
            (Process { starts_in_s: Some(42.0), throttled: true, ..gone.clone() }, "starts in 42s, throttled"),
            (gone, "gone"),
        ] {
            assert_eq!(process.state(), state);
        }
        assert_eq!((age(3600.0), age(-1.0), age(f64::NAN)), ("1h".into(), "-".into(), "-".into()));
    }

    #[test]
    fn how_the_last_one_ended_is_reported_with_its_last_word() {
        let last = |lines: &[&str]| {
            let output = lines.iter().map(ToString::to_string).collect();
            let last_end = LastEnd { at: "2026-11-22T10:00:00Z".into(), end: End::Signal(11), output };
            Process { last_end: Some(last_end), ..gone(Role::Worker) }.last_exit()
        };
        assert_eq!(last(&[]).as_deref(), Some("ended by SIGSEGV"));
        assert_eq!(last(&["one", "two"]).as_deref(), Some("ended by SIGSEGV; it said: two"));
        assert_eq!(gone(Role::Worker).last_exit(), None);
    }

    #[test]
    fn a_task_is_reported_in_one_line() {
        let new = Task { task: "finish_owed".into(), every_s: 60.0, next_at: None, failed_runs: 0, last: None };
        assert_eq!(new.to_text(), "finish owed: it has not been done yet; it is under way");
        let last = LastRun { at: "2026-11-22T10:00:00Z".into(), took_s: 0.25, well: false, result: "no answer".into() };
        let done = Task { next_at: Some("2026-11-22T10:01:00.5Z".into()), last: Some(last), ..new };
        let printed = "no answer, at 2026-11-22 10:00:00Z, in 0.2s; next at 2026-11-22 10:01:00Z";
        for (failed_runs, failed) in [(0, ""), (1, "FAILED: "), (3, "FAILED 3 times in a row: ")] {
            assert_eq!(Task { failed_runs, ..done.clone() }.to_text(), format!("finish owed: {failed}{printed}"));
        }
        // A timestamp in another format is shown unchanged.
        let odd = Task { next_at: Some("soon".into()), ..done };
        assert!(odd.to_text().ends_with("; next at soon"));
    }
}
