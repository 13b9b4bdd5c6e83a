//! `replay`: manual redelivery. Ordinary deliveries, fed from files, mboxes, a queue file, standard input or the ledger.

mod owed_and_lost;

use super::confirmation::{self, report_unconfirmed};
use super::progress::Progress;
use super::site_options::{LONGEST_ANSWER, SiteOptions, watch};
use super::{Ended, Failure, complain, fail, help, json, printable, say, table};
use crate::base::terminal::shell_word;
use crate::base::timestamp;
use crate::config::{CONFIGURATION, DatabaseRole};
use crate::ledger::deliveries::DeliveryQuery;
use crate::ledger::operations_log::Operation;
use crate::message::Address;
use crate::operations::operations_log;
use crate::operations::replay::{
    FailureFile, Form, List, MessageReport, PartialEnvelope, Replay, ReplayError, ReplayOutcome, Tally,
    list_deliveries, list_path, standard_input,
};
use crate::site::Setup;
use clap::{ArgGroup, Args};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use sysexits::ExitCode;

/// The number of failures that are printed one by one. The file has all of them.
const SHOWN_ONE_BY_ONE: u64 = 10;

/// Options without a meaning for --owed and --restore, which deliver single copies with the ledger's envelope.
const FOR_MESSAGES: [&str; 8] =
    ["format", "sender", "recipient", "sasl_username", "queue_id", "without_sent", "jobs", "failures_to"];

/// Options without a meaning for a replay from the ledger, which has the envelope. Ignoring one would replay for more
/// recipients than were meant.
const FOR_FILES: [&str; 5] = ["sources", "format", "sender", "sasl_username", "queue_id"];

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("copies").args(["owed", "restore"]))]
#[command(after_help = help("replay"))]
pub(crate) struct Arguments {
    /// Files (a message, an mbox, what postcat prints, failures of an earlier replay), folders, Maildirs; - is standard input
    #[arg(value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    #[command(flatten)]
    site: SiteOptions,
    /// The format of the files [default: recognized from the beginning of each file; those of a Maildir are messages]
    #[arg(long, value_name = "FORM", value_enum)]
    format: Option<Form>,
    /// Deliveries in the ledger of messages with this Message-ID; may be given several times. With --restore, only their
    /// copies
    #[arg(long, value_name = "ID", conflicts_with_all = FOR_FILES)]
    message_id: Vec<String>,
    /// Deliveries in the ledger with an attempt since: 2d or 90m (ago), 2026-11-20 (where that day begins in UTC),
    /// 2026-11-20T03:00:00Z, 2026-11-20T03:00:00+01:00
    #[arg(long, value_name = "WHEN", conflicts_with_all = FOR_FILES, value_parser = timestamp::since,
        allow_hyphen_values = true)]
    since: Option<i64>,
    /// Deliveries in the ledger that were tried and have not succeeded
    #[arg(long, conflicts_with_all = FOR_FILES)]
    failed: bool,
    /// Finish the Sent copies that deliveries left owed
    #[arg(long, conflicts_with_all = ["sources", "message_id", "failed"], conflicts_with_all = FOR_MESSAGES)]
    owed: bool,
    /// Show what the ledger has delivered since --since and a mailbox has lost, since it came back from an old backup or was
    /// recreated, and with --yes deliver it again
    #[arg(long, requires = "since", conflicts_with_all = ["sources", "failed", "owed", "dry_run"],
        conflicts_with_all = FOR_MESSAGES)]
    restore: bool,
    /// For --owed and --restore: only this user's mailboxes, or one of them: scuba, scuba/Sent
    #[arg(long, value_name = "USER[/MAILBOX]", requires = "copies")]
    mailbox: Option<String>,
    /// For --restore: bring back also copies missing from intact mailboxes, whose owners have most likely deleted or
    /// filed them
    #[arg(long, requires = "restore")]
    deleted: bool,
    /// Deliver: required by --restore, and at a terminal by any replay of more than one message
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
    /// The envelope sender; empty for the null sender
    #[arg(long, value_name = "ADDRESS", allow_hyphen_values = true)]
    sender: Option<String>,
    /// An envelope recipient; may be given several times. From the ledger, only deliveries to these
    #[arg(long, value_name = "ADDRESS", allow_hyphen_values = true, value_parser = Address::parse)]
    recipient: Vec<Address>,
    /// The login name of the SMTP client, as Postfix passes it: it proves who the author is
    #[arg(long, value_name = "USER", allow_hyphen_values = true)]
    sasl_username: Option<String>,
    /// Postfix's queue id, for the ledger and the log
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    queue_id: Option<String>,
    /// Make no Sent copies: for mail from before there were any, which the authors' own mail programs have kept
    #[arg(long)]
    without_sent: bool,
    /// Say what would happen to each, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// How many messages at once; those of one Message-ID wait for each other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Where to write what failed [default: replay-failures-TIME-PID.jsonl in this directory]
    #[arg(long, value_name = "FILE")]
    failures_to: Option<PathBuf>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let from_ledger = arguments.failed || arguments.since.is_some() || !arguments.message_id.is_empty();
    if arguments.sources.is_empty() && !(from_ledger || arguments.owed || arguments.restore) {
        let text = "replay what? Give files, folders or Maildirs, - for standard input, or one of --message-id, --since, --failed, \
                    --owed and --restore for what the ledger knows (`maildrop_command replay --help` has examples)";
        return Err(fail(ExitCode::Usage, text));
    }
    let setting = setting(arguments)?;
    if let Some(directory) = &setting.created {
        complain(&format!("{} is a new directory: no delivery was made there before", directory.display()));
    }
    let mut site = setting.place.site().map_err(|problem| arguments.site.unusable(&problem))?;
    if arguments.without_sent {
        site = site.without_sent_copies();
    }
    let site = &site;
    if let Err(error) = crate::base::log::start(&setting.log) {
        complain(&format!("the deliveries are not logged: {error}"));
    }
    watch(site, LONGEST_ANSWER)?;
    if arguments.owed {
        return owed_and_lost::owed(arguments, site);
    }
    if arguments.restore {
        return owed_and_lost::restore(arguments, site);
    }

    if arguments.sources.iter().any(|path| path.as_os_str() == "-") {
        standard_input()?;
    }
    let looking = Progress::watch("looking for messages");
    let listed = List::new().and_then(|list| {
        if from_ledger {
            let query = DeliveryQuery {
                locks: arguments.message_id.iter().map(|id| site.lock_of_message_id(id.as_bytes())).collect(),
                since: arguments.since,
                failed: arguments.failed,
                recipients: arguments.recipient.iter().map(|address| address.folded().to_string()).collect(),
            };
            list_deliveries(&query, site, &list)?;
        }
        arguments.sources.iter().try_for_each(|path| list_path(path, arguments.format, &list))?;
        Ok((list.count()?, list))
    });
    let (total, list) = listed?;
    drop(looking);
    if total == 0 {
        return Err(fail(ExitCode::NoInput, "there is nothing to replay"));
    }

    let is_unconfirmed = !arguments.dry_run && total > 1 && confirmation::is_missing(arguments.yes);
    let dry_run = arguments.dry_run || is_unconfirmed;
    let stop = stop()?;
    let replay = Replay {
        site,
        size_limit: setting.size_limit,
        envelope: PartialEnvelope {
            sender: arguments.sender.clone(),
            recipients: arguments.recipient.iter().map(|address| (address.to_string(), None)).collect(),
            queue_id: arguments.queue_id.clone(),
            client_address: None,
            sasl_username: arguments.sasl_username.clone(),
        },
        jobs: usize::from(arguments.jobs),
        dry_run,
        stop: &stop,
    };
    let mut failures = if dry_run { None } else { Some(failure_file(arguments)?) };
    let mut tally = Tally::default();
    let (progress, began) = (Progress::watch_long("replaying"), Instant::now());
    let mut is_ending = false;
    let ran = replay.run(list, &mut tally, |tally, report| {
        if let Some(report) = report {
            if let (Some(line), Some(failures)) = (&report.failure, &mut failures) {
                failures.write(line);
            }
            show(&report, arguments.json, dry_run, tally);
        }
        if stop.load(Ordering::Relaxed) && !std::mem::replace(&mut is_ending, true) {
            complain("ending after the messages in progress; once more, and it ends at once");
        }
        progress.set(progress_line(tally, total, began.elapsed()));
    });
    drop(progress);
    if !dry_run {
        operations_log::redelivered(site, Operation::DeliveredAgain, tally.delivered);
    }
    if tally.failed() == 0
        && let Some(FailureFile { path, .. }) = failures.take()
        && let Err(error) = std::fs::remove_file(&path)
    {
        complain(&format!("{}, which is empty, could not be removed: {error}", path.display()));
    }
    if let Err(error) = ran {
        Failure::from(error).report();
    }
    if let Some(error) = failures.as_ref().and_then(|failures| failures.error.as_ref()) {
        complain(&format!("what failed could not all be written down: {error}"));
    }
    summarize(arguments, dry_run, &tally, total, failures.as_ref());
    if is_unconfirmed {
        return report_unconfirmed("delivered", arguments.json);
    }
    Ok(exit_of(&tally, total))
}

/// The exit status for these results.
fn exit_of(tally: &Tally, total: u64) -> ExitCode {
    if tally.deferred > 0 || tally.done < total {
        ExitCode::TempFail
    } else if tally.refused > 0 {
        ExitCode::DataErr
    } else {
        ExitCode::Ok
    }
}

fn setting(arguments: &Arguments) -> Result<Setup, Failure> {
    let setting = match &arguments.site.embedded {
        Some(directory) => {
            arguments.site.refuse_root()?;
            if arguments.dry_run || arguments.sources.is_empty() {
                // A missing site must not be created just to be read.
                arguments.site.resolve()?;
            }
            Setup::embedded(directory)
        }
        None => Setup::configured(
            arguments.site.config.as_deref().unwrap_or(CONFIGURATION.as_ref()),
            DatabaseRole::Operator,
        ),
    };
    setting.map_err(|problem| arguments.site.unusable(&problem))
}

/// The flag that Ctrl-C or SIGTERM sets. A second signal ends the process immediately. The next delivery then searches
/// for the copies in progress, as after any crash. It is called when deliveries begin; before that, the first signal ends the
/// process.
fn stop() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| fail(ExitCode::OsErr, format!("Ctrl-C could not be handled: {error}")))?;
    }
    Ok(stop)
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

fn show(report: &MessageReport, as_json: bool, dry_run: bool, tally: &Tally) {
    let failed = report.outcome.failed();
    if dry_run {
        say(&if as_json { in_json(report) } else { line(report) });
    } else if failed && tally.failed() <= SHOWN_ONE_BY_ONE {
        complain(&line(report));
    } else if failed && tally.failed() == SHOWN_ONE_BY_ONE + 1 {
        complain("more of that, which goes to the file of failures");
    }
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
    let result = match &report.outcome {
        ReplayOutcome::Delivered(_) => "to be delivered",
        outcome => outcome.as_str(),
    };
    let detail = report.outcome.detail();
    json(
        &serde_json::json!({ "source": report.source, "recipient": report.recipient, "result": result, "detail": detail }),
    )
}

/// Prints the totals, and the path of the file of failures.
fn summarize(arguments: &Arguments, dry_run: bool, tally: &Tally, total: u64, failures: Option<&FailureFile>) {
    let left = total - tally.done;
    let left_out = failures.is_some_and(|failures| failures.error.is_some());
    if arguments.json {
        return say(&json(&serde_json::json!({
            "dry_run": dry_run,
            "delivered": tally.delivered,
            "already_there": tally.already_there,
            "deferred": tally.deferred,
            "refused": tally.refused,
            "left": left,
            "failures": failures.map(|failures| &failures.path),
            "failures_left_out": left_out,
        })));
    }
    let delivered = if dry_run { "to be delivered" } else { "delivered" };
    let rows = [
        (delivered, tally.delivered),
        ("already there", tally.already_there),
        ("deferred", tally.deferred),
        ("refused or unreadable", tally.refused),
    ];
    say(&table(["deliveries", "number"], rows.into_iter().map(|(what, number)| [what.to_owned(), number.to_string()])));
    if left > 0 {
        say(&format!("ended early: {left} of {total} messages are left; the same command goes on with them"));
    }
    let Some(FailureFile { path, .. }) = failures else { return };
    if left_out {
        let file = path.display();
        return say(&format!("only some of what failed is in {file}: give the same command again, with room for all"));
    }
    let (site, file) = (arguments.site.options(), shell_word(&path.to_string_lossy()));
    let without = if arguments.without_sent { " --without-sent" } else { "" };
    say(&format!("what failed is in {file}; once repaired:\n  maildrop_command replay{site}{without} {file}"));
}

/// Creates the file of failures before anything is delivered: a replay that cannot record failures should not begin.
fn failure_file(arguments: &Arguments) -> Result<FailureFile, Failure> {
    let path = arguments.failures_to.clone().unwrap_or_else(|| {
        let time: String = timestamp::time_text(timestamp::now()).replace(' ', "T").replace(['-', ':'], "");
        format!("replay-failures-{time}-{}.jsonl", std::process::id()).into()
    });
    FailureFile::create(&path).map_err(|error| {
        let text = format!(
            "{}: {error}\nthat is the file for what fails: give another one with --failures-to FILE",
            path.display()
        );
        fail(ExitCode::CantCreat, text)
    })
}

/// A replay cannot begin or continue.
impl From<ReplayError> for Failure {
    fn from(error: ReplayError) -> Self {
        let exit = match error {
            ReplayError::Ledger(error) => return error.into(),
            ReplayError::Source { .. } => ExitCode::NoInput,
            ReplayError::NotASource { .. } => ExitCode::DataErr,
            ReplayError::Job(_) => ExitCode::OsErr,
            ReplayError::List(_) | ReplayError::StandardInput(_) => ExitCode::IoErr,
        };
        fail(exit, error.to_string())
    }
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
