//! The overall state of the service, and the reasons if it is not well.

use super::children::{Phase, Slot};
use super::lifecycle::Mode;
use super::supervisor::Supervisor;
use crate::base::timestamp::exact;
use crate::protocol::control::{Role, State, Status};
use serde_json::Value;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long the front, or all workers, may be missing before the status reports that: a replacement takes a moment.
const MOMENT: Duration = Duration::from_secs(5);
/// The same limit for one worker, and for all processes just after the start.
const LONG_MOMENT: Duration = Duration::from_secs(30);

impl Supervisor {
    /// The answer to `service status`.
    pub(super) fn status(&self, now: Instant) -> Status {
        let (state, reasons) = self.state(now);
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            since: exact(self.began_wall),
            up_s: now.saturating_duration_since(self.began).as_secs_f64(),
            configuration: self.file.clone(),
            state,
            reasons,
            listeners: self.listeners.names(),
            processes: self.slots.iter().map(|slot| slot.status(now)).collect(),
            front: if self.front.known.is_empty() { Value::Null } else { self.front.known.clone().into() },
            timer: self.front.timer.clone(),
            http: self.http.names(),
            counted: self.counted.clone(),
        }
    }

    /// The overall state, and its reasons.
    fn state(&self, now: Instant) -> (State, Vec<String>) {
        let moment = if self.was_ready { MOMENT } else { LONG_MOMENT };
        let mut reasons: Vec<String> = self.slots.iter().filter_map(|slot| problem_with(slot, moment, now)).collect();
        let mut workers = self.slots.iter().filter(|slot| slot.role == Role::Worker);
        if workers.all(|slot| slot.unready_for(now).is_some_and(|missing| missing >= moment)) {
            reasons.push("no worker takes work".into());
        }
        let away = self.front.database_away.iter();
        reasons.extend(away.map(|why| format!("the database is away, and mail is deferred: {why}")));
        reasons.extend(self.no_http.iter().map(|problem| format!("metrics and health cannot be asked for: {problem}")));
        reasons.extend(
            self.not_taken_over
                .iter()
                .map(|problem| format!("the configuration has changed, and was not taken over: {problem}")),
        );
        let state = match &self.mode {
            Mode::Stopping(_) => State::Stopping,
            Mode::Running if !reasons.is_empty() => State::Degraded,
            Mode::Running if !self.was_ready => State::Starting,
            Mode::Running => State::Well,
        };
        reasons.extend(self.without_account());
        if self.is_restarting() {
            let old =
                self.slots.iter().filter_map(Slot::running).filter(|one| one.generation < self.generation).count();
            reasons.push(format!("a restart is under way: {old} of {} are still to be replaced", self.slots.len()));
        }
        (state, reasons)
    }

    /// Reports changes of the state to systemd, the log and the front.
    pub(super) fn publish_status(&mut self, now: Instant) {
        let (state, reasons) = self.state(now);
        let workers = || self.slots.iter().filter(|slot| slot.role == Role::Worker);
        let (ready, all) = (workers().filter(|slot| slot.is_ready()).count(), workers().count());
        let mut status = format!("{}: {ready} of {all} workers are ready", state.as_str());
        for reason in &reasons {
            status.push_str("; ");
            // A newline would end the value (sd_notify(3)).
            status.push_str(&reason.replace(['\n', '\r'], " "));
        }
        self.systemd.status(status);
        if (state, &reasons) != (self.shown.0, &self.shown.1) {
            match state {
                State::Degraded => warn!(reasons = reasons.join("; "), "the service is degraded"),
                _ => info!(state = state.as_str(), reasons = reasons.join("; "), "how the service is"),
            }
            self.shown = (state, reasons);
            self.send_status_to_front(now);
        }
    }
}

/// Why one process is not well; `None` if it is.
fn problem_with(slot: &Slot, moment: Duration, now: Instant) -> Option<String> {
    let name = slot.name();
    if slot.is_throttled() {
        let how = slot.how_it_ended();
        return Some(format!("{name} dies again and again, and is started once a minute: {how}"));
    }
    let moment = if slot.role == Role::Front { moment } else { LONG_MOMENT };
    slot.unready_for(now).filter(|missing| *missing >= moment)?;
    Some(match slot.phase {
        Phase::Waiting(_) => format!("{name} does not come up: {}", slot.how_it_ended()),
        Phase::Running(_) => format!("{name} runs, and takes no work"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::master::restarts::Restarts;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_is_missing_for_longer_than_a_moment_is_a_problem() {
        let begin = Instant::now();
        let restarts = || Restarts::new(1);
        for (role, name, patience) in [(Role::Front, "the front", MOMENT), (Role::Worker, "worker 2", LONG_MOMENT)] {
            let mut slot = Slot::new(role, 2, restarts(), begin);
            let problem_with = |slot: &Slot, after: Duration| problem_with(slot, MOMENT, begin + after);
            assert_eq!(problem_with(&slot, patience - Duration::from_millis(1)), None);
            assert_eq!(problem_with(&slot, patience), Some(format!("{name} does not come up: it has not ended yet")));
            let mut command = Command::new("sleep");
            command.arg("1000").stdin(Stdio::null());
            slot.start(Ok((command, None)), 0, begin);
            assert_eq!(problem_with(&slot, patience - Duration::from_millis(1)), None);
            assert_eq!(problem_with(&slot, patience), Some(format!("{name} runs, and takes no work")));
            slot.set_ready(true, begin);
            assert_eq!(problem_with(&slot, 9 * patience), None);
            if let Some(running) = slot.running_mut() {
                running.kill();
            }
            let _ = std::iter::repeat_with(|| slot.ended(begin)).flatten().next();
            assert!(!slot.is_throttled());
            // One death is allowed; this is the second.
            slot.start(Ok((Command::new("/nonexistent"), None)), 0, begin);
            let shown = problem_with(&slot, Duration::ZERO).unwrap();
            let dies = format!("{name} dies again and again, and is started once a minute: could not be started: ");
            assert!(shown.starts_with(&dies), "{shown}");
        }
    }
}
