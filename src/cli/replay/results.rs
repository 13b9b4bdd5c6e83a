//! The results of a replay: counted, printed as they come, and summed up at its end.

use super::Arguments;
use crate::base::terminal::shell_word;
use crate::cli::progress::Progress;
use crate::cli::{complain, json, print_line, printable, table};
use crate::ledger::operations_log::Operation;
use crate::operations::operations_log;
use crate::operations::replay::{FailureFile, MessageReport, ReplayOutcome, Tally};
use crate::site::Site;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use sysexits::ExitCode;

/// The number of failures that are printed one by one if a file has all of them.
const SHOWN_ONE_BY_ONE: u64 = 10;

/// The results so far. Several jobs may add to them.
pub(super) struct ReplayResults<'a> {
    arguments: &'a Arguments,
    dry_run: bool,
    /// The number of messages, or of copies.
    total: u64,
    began: Instant,
    progress: Progress,
    counted: Mutex<(Tally, Option<FailureFile>)>,
}

impl<'a> ReplayResults<'a> {
    pub(super) fn new(
        arguments: &'a Arguments,
        what: &str,
        total: u64,
        dry_run: bool,
        failures: Option<FailureFile>,
    ) -> Self {
        let (progress, counted) = (Progress::watch_long(what), Mutex::new((Tally::default(), failures)));
        Self { arguments, dry_run, total, began: Instant::now(), progress, counted }
    }

    /// Adds a result, or that one of the messages is finished.
    pub(super) fn add(&self, report: Option<MessageReport>) {
        let (tally, failures) = &mut *self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(report) = report else {
            tally.done += 1;
            return self.progress.set(progress_line(tally, self.total, self.began.elapsed()));
        };
        tally.count(&report.outcome);
        if self.dry_run {
            return print_line(&if self.arguments.json { in_json(&report) } else { line(&report) });
        }
        if let (Some(failure), Some(file)) = (&report.failure, failures.as_mut()) {
            file.write(failure);
        }
        if report.outcome.failed() && (failures.is_none() || tally.failed() <= SHOWN_ONE_BY_ONE) {
            complain(&line(&report));
        } else if report.outcome.failed() && tally.failed() == SHOWN_ONE_BY_ONE + 1 {
            complain("more of that, which goes to the file of failures");
        }
    }

    /// Records the run in the operations log, prints the totals, and returns the exit status.
    pub(super) fn finish(self, site: &Site, operation: Operation) -> ExitCode {
        drop(self.progress);
        let (tally, mut failures) = self.counted.into_inner().unwrap_or_else(PoisonError::into_inner);
        if !self.dry_run {
            operations_log::redelivered(site, operation, tally.delivered);
        }
        if tally.failed() == 0
            && let Some(FailureFile { path, .. }) = failures.take()
            && let Err(error) = std::fs::remove_file(&path)
        {
            complain(&format!("{}, which is empty, could not be removed: {error}", path.display()));
        }
        let (failures, error) = failures.map(|FailureFile { path, error, .. }| (path, error)).unzip();
        let error = error.flatten();
        if let Some(error) = &error {
            complain(&format!("what failed could not all be written down: {error}"));
        }
        let Tally { delivered, already_there, deferred, refused, done } = tally;
        let left = self.total - done;
        if self.arguments.json {
            print_line(&json(&serde_json::json!({
                "dry_run": self.dry_run, "delivered": delivered, "already_there": already_there, "deferred": deferred,
                "refused": refused, "left": left, "failures": failures, "failures_left_out": error.is_some(),
            })));
        } else {
            let rows = [
                (if self.dry_run { "to be delivered" } else { "delivered" }, delivered),
                ("already there", already_there),
                ("deferred", deferred),
                ("refused or unreadable", refused),
            ];
            let rows = rows.into_iter().map(|(what, number)| [what.to_owned(), number.to_string()]);
            print_line(&table(["deliveries", "number"], rows));
            if left > 0 {
                let total = self.total;
                print_line(&format!(
                    "ended early: {left} of {total} messages are left; the same command goes on with them"
                ));
            }
            if let Some(path) = failures {
                let (site, file) = (self.arguments.site.options(), shell_word(&path.to_string_lossy()));
                let without = if self.arguments.without_sent { " --without-sent" } else { "" };
                print_line(&match error {
                    Some(_) => {
                        format!("only some of what failed is in {file}: give the same command again, with room for all")
                    }
                    None => format!(
                        "what failed is in {file}; once repaired:\n  maildrop_command replay{site}{without} {file}"
                    ),
                });
            }
        }
        match () {
            () if deferred > 0 || left > 0 => ExitCode::TempFail,
            () if refused > 0 => ExitCode::DataErr,
            () => ExitCode::Ok,
        }
    }
}

/// The progress, and the estimated end.
fn progress_line(tally: &Tally, total: u64, took: Duration) -> String {
    let Tally { delivered, already_there, done, .. } = tally;
    let left = took.mul_f64(total.saturating_sub(*done) as f64 / (*done).max(1) as f64);
    let left = humantime::format_duration(Duration::from_secs(left.as_secs()));
    let rate = *done as f64 / took.as_secs_f64().max(0.001);
    let numbers = format!("{delivered} delivered, {already_there} already there, {} failed", tally.failed());
    format!("{done} of {total}, {rate:.1}/s, about {left} left: {numbers}")
}

/// One line, even if the message's or the servers' text contains line ends.
fn line(report: &MessageReport) -> String {
    let recipient = report.recipient.as_deref().map(|recipient| format!(" to {recipient}")).unwrap_or_default();
    let (outcome, detail) = (&report.outcome, report.outcome.detail());
    let failed = if outcome.failed() { format!("{}: ", outcome.as_str()) } else { String::new() };
    printable(&format!("{}{recipient}: {failed}{detail}", report.source)).replace('\n', "?")
}

/// The JSON line of a dry run.
fn in_json(report: &MessageReport) -> String {
    let MessageReport { source, recipient, outcome, .. } = report;
    let result = if matches!(outcome, ReplayOutcome::Delivered(_)) { "to be delivered" } else { outcome.as_str() };
    let detail = outcome.detail();
    json(&serde_json::json!({ "source": source, "recipient": recipient, "result": result, "detail": detail }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_rate_and_time_left() {
        let tally = Tally { delivered: 90, already_there: 5, deferred: 3, refused: 2, done: 200 };
        assert_eq!(
            progress_line(&tally, 1000, Duration::from_secs(100)),
            "200 of 1000, 2.0/s, about 6m 40s left: 90 delivered, 5 already there, 5 failed"
        );
        let begun = progress_line(&Tally::default(), 10, Duration::ZERO);
        assert!(begun.starts_with("0 of 10, 0.0/s, about 0s left"), "{begun}");
    }
}
