//! `replay`: the manual way in. The same delivery, fed from files, mboxes, a queue file, standard input or the ledger.

mod owed_and_lost;
mod progress;

use super::site_options::{CONFIGURATION, LONGEST_ANSWER, SiteOptions, failed, shell_word, watch};
use super::{complain, printable, say, table};
use crate::base::timestamp;
use crate::message::Address;
use crate::operations::replay::{
    Event, FailureFile, Form, LedgerQuery, List, MessageReport, PartialEnvelope, Replay, ReplayError, ReplayOutcome,
    Slice, Source, Tally,
};
use crate::site::Setting;
use clap::{ArgGroup, Args};
use progress::ReplayProgress;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use sysexits::ExitCode;

/// How many failures are told one by one. All of them are in the file.
const TOLD_ONE_BY_ONE: u64 = 10;

/// What says nothing to --owed and --restore, which deliver copies, one at a time, with the envelope that the ledger has.
const FOR_MESSAGES: [&str; 9] =
    ["format", "sender", "recipient", "sasl_username", "queue_id", "without_sent", "jobs", "slice", "failures_to"];

/// What says nothing to a replay from the ledger, which has the envelope. To ignore one would be to replay for more people than
/// were meant.
const FOR_FILES: [&str; 5] = ["sources", "format", "sender", "sasl_username", "queue_id"];

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("copies").args(["owed", "restore"]))]
#[command(after_help = "\
Examples:
  What would happen to the messages of a folder, and then let it:
    maildrop_command replay --dry-run --recipient doug@mail.axial.net ./rescued/
    maildrop_command replay --recipient doug@mail.axial.net ./rescued/

  A message that is stuck in Postfix's queue (Postfix may keep it: it is not delivered twice):
    postcat -q 4bXyz | maildrop_command replay -

  A mailbox from a backup, for doug, four messages at a time:
    maildrop_command replay --jobs 4 --recipient doug@mail.axial.net /backup/doug/Maildir

  What the ledger knows of a message, and everything that failed since yesterday:
    maildrop_command replay --message-id '<123-abc@mail.google.com>'
    maildrop_command replay --failed --since 1d

  What failed in an earlier replay:
    maildrop_command replay replay-failures-20261121T083000Z-4711.jsonl

  Sent copies that deliveries left owed; what scuba's mailbox has lost by coming back from last night's backup:
    maildrop_command replay --owed
    maildrop_command replay --restore --since 2026-11-20T22:00:00Z --mailbox scuba

The envelope comes from the options; else from FILE.envelope beside FILE, in TOML:
    sender = \"lisa@gmail.com\"
    recipients = [\"scuba@mail.axial.net\", \"doug@mail.axial.net\"]
  (also queue_id, client_address, sasl_username, original_recipient); else from the records of the queue file; else from the \
lines Return-Path, X-Original-To and Delivered-To that pipe(8) has put at the very top. Such lines are delivered as they \
stand, and not put there again; for any other recipient than theirs they are left out.

What has been delivered stays delivered, and is counted as already there: run it again at will, also after Ctrl-C, which ends \
it after the messages in hand.

Exit status: 0 everything is there; 75 something was deferred, or it was ended early: run it again; 65 something was refused, or \
cannot be read; 66 there is nothing to replay; 69 the database is out of reach, or denies it. All that failed is in the file that \
the end tells of.")]
pub(crate) struct Arguments {
    /// Files (a message, an mbox, what postcat prints, failures of an earlier replay), folders, Maildirs; - is standard input
    #[arg(value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    #[command(flatten)]
    site: SiteOptions,
    /// How files are written: message, mbox, queue-file or failures [default: the beginning of each file tells; those of a
    /// Maildir are messages]
    #[arg(long, value_name = "FORM", value_parser = form)]
    format: Option<Form>,
    /// Deliveries that the ledger knows of messages with this Message-ID; may be given several times
    #[arg(long, value_name = "ID", conflicts_with_all = FOR_FILES)]
    message_id: Vec<String>,
    /// Deliveries that the ledger has seen tried since: 2d or 90m (ago), 2026-11-20 (where that day begins in UTC),
    /// 2026-11-20T03:00:00Z, 2026-11-20T03:00:00+01:00
    #[arg(long, value_name = "WHEN", conflicts_with_all = FOR_FILES, value_parser = timestamp::since,
        allow_hyphen_values = true)]
    since: Option<i64>,
    /// Deliveries that the ledger has seen tried and not succeed
    #[arg(long, conflicts_with_all = FOR_FILES)]
    failed: bool,
    /// Finish the Sent copies that deliveries left owed
    #[arg(long, conflicts_with_all = ["sources", "message_id", "failed"], conflicts_with_all = FOR_MESSAGES)]
    owed: bool,
    /// Show what the ledger has delivered since --since and a mailbox has lost, by coming back from an old backup or being made
    /// anew, and with --yes deliver it again
    #[arg(long, requires = "since", conflicts_with_all = ["sources", "message_id", "failed", "owed", "dry_run"],
        conflicts_with_all = FOR_MESSAGES)]
    restore: bool,
    /// For --owed and --restore: only this user's mailboxes, or one of them: scuba, scuba/Sent
    #[arg(long, value_name = "USER[/MAILBOX]", requires = "copies")]
    mailbox: Option<String>,
    /// For --restore: bring back, too, what is gone from mailboxes that go on, which their owners have most likely deleted or
    /// filed
    #[arg(long, requires = "restore")]
    deleted: bool,
    /// For --restore: do it
    #[arg(long, requires = "restore")]
    yes: bool,
    /// The envelope sender; empty for the null sender
    #[arg(long, value_name = "ADDRESS", allow_hyphen_values = true)]
    sender: Option<String>,
    /// An envelope recipient; may be given several times. From the ledger, only deliveries to these
    #[arg(long, value_name = "ADDRESS", allow_hyphen_values = true, value_parser = address)]
    recipient: Vec<Address>,
    /// The name that the SMTP client had logged in with: whoever vouches that the author may have a Sent copy
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
    /// How many messages at once; messages of one Message-ID never are
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// One part of all messages, for one of several machines: 0/4, 1/4, 2/4 or 3/4. All copies of a Message-ID are in one part
    #[arg(long, value_name = "I/N", default_value = "0/1", hide_default_value = true)]
    slice: Slice,
    /// Where to write what failed [default: replay-failures-TIME-PID.jsonl in this directory]
    #[arg(long, value_name = "FILE")]
    failures_to: Option<PathBuf>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

fn form(text: &str) -> Result<Form, String> {
    let known = Form::ALL.iter().find(|(name, _)| *name == text);
    known.map(|(_, form)| *form).ok_or_else(|| "one of message, mbox, queue-file and failures".into())
}

fn address(text: &str) -> Result<Address, String> {
    Address::parse(text).map_err(|error| error.to_string())
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match replay(arguments) {
        Ok(exit) | Err(exit) => exit,
    }
}

fn replay(arguments: &Arguments) -> Result<ExitCode, ExitCode> {
    let sources = sources(arguments)?;
    let mut setting = setting(arguments, &sources)?;
    if arguments.without_sent {
        setting.site = setting.site.without_sent_copies();
    }
    if let Err(error) = crate::base::log::start(&setting.log) {
        complain(&format!("the deliveries are not logged: {error}"));
    }
    watch(&setting.site, LONGEST_ANSWER)?;
    if arguments.owed {
        return owed_and_lost::owed(arguments, &setting);
    }
    if arguments.restore {
        return owed_and_lost::restore(arguments, &setting);
    }

    let stdin = match sources.iter().any(|source| matches!(source, Source::StandardInput)) {
        true => Some(Replay::standard_input().map_err(|error| told(&error))?),
        false => None,
    };
    let looking = super::Slow::watch("looking for messages");
    let list = List::of(&sources, arguments.format, stdin.as_ref(), &setting.site).map_err(|error| told(&error))?;
    let total = list.count().map_err(|error| told(&error))?;
    drop(looking);
    if total == 0 {
        complain("there is nothing to replay");
        return Err(ExitCode::NoInput);
    }

    let from_ledger = sources.iter().any(|source| matches!(source, Source::Ledger(_)));
    let recipients = arguments.recipient.iter().filter(|_| !from_ledger);
    let stop = stop()?;
    let replay = Replay {
        policy: setting.site.policy(),
        site: &setting.site,
        deadline: setting.site.deadline(),
        size_limit: setting.size_limit,
        given: PartialEnvelope {
            sender: arguments.sender.clone(),
            recipients: recipients.map(|address| (address.to_string(), None)).collect(),
            queue_id: arguments.queue_id.clone(),
            client_address: None,
            sasl_username: arguments.sasl_username.clone(),
        },
        jobs: usize::from(arguments.jobs),
        slice: arguments.slice,
        dry_run: arguments.dry_run,
        stdin,
        stop: &stop,
    };
    let mut failures = if arguments.dry_run { None } else { Some(failure_file(arguments)?) };
    let mut tally = Tally::default();
    let mut progress = ReplayProgress::begin(total);
    let mut unwritable = None;
    let ran = replay.run(list, |event| {
        hear(event, arguments, &mut tally, failures.as_mut(), &mut unwritable, &progress);
        if stop.load(Ordering::Relaxed) {
            progress.ending();
        }
        progress.show(&tally);
    });
    progress.end();
    let kept = failures.and_then(|failures| match failures.close(tally.failed() > 0) {
        Ok(kept) => kept,
        Err((path, error)) => {
            complain(&format!("{}, which is empty, could not be removed: {error}", path.display()));
            None
        }
    });
    if let Err(error) = ran {
        told(&error);
    }
    if let Some(error) = &unwritable {
        complain(&format!("what failed could not all be written down: {error}"));
    }
    summarize(arguments, &tally, total, kept.as_ref().map(|file| (file, unwritable.is_none())));
    Ok(exit_of(&tally, total))
}

/// The status to exit with.
fn exit_of(tally: &Tally, total: u64) -> ExitCode {
    if tally.deferred > 0 || tally.looked_at() < total {
        ExitCode::TempFail
    } else if tally.refused > 0 {
        ExitCode::DataErr
    } else {
        ExitCode::Ok
    }
}

fn sources(arguments: &Arguments) -> Result<Vec<Source>, ExitCode> {
    let query = LedgerQuery {
        message_ids: arguments.message_id.clone(),
        since: arguments.since,
        failed: arguments.failed,
        recipients: arguments.recipient.clone(),
    };
    if arguments.owed || arguments.restore {
        return Ok(Vec::new());
    }
    if arguments.failed || arguments.since.is_some() || !arguments.message_id.is_empty() {
        return Ok(vec![Source::Ledger(query)]);
    }
    if arguments.sources.is_empty() {
        complain(
            "replay what? Give files, folders or Maildirs, - for standard input, or one of --message-id, --since, --failed, \
             --owed and --restore for what the ledger knows (`maildrop_command replay --help` has examples)",
        );
        return Err(ExitCode::Usage);
    }
    let source = |path: &PathBuf| match path.as_os_str() == "-" {
        true => Source::StandardInput,
        false => Source::Path(path.clone()),
    };
    Ok(arguments.sources.iter().map(source).collect())
}

fn setting(arguments: &Arguments, sources: &[Source]) -> Result<Setting, ExitCode> {
    let setting = match &arguments.site.embedded {
        Some(directory) => {
            arguments.site.refuse_root()?;
            let from_files = sources.iter().any(|source| !matches!(source, Source::Ledger(_)));
            if arguments.dry_run || !from_files {
                // To look at what is not there must not make it.
                arguments.site.resolve()?;
            }
            Setting::embedded(directory)
        }
        None => Setting::configured(arguments.site.config.as_deref().unwrap_or(CONFIGURATION.as_ref())),
    };
    setting.map_err(|problem| {
        complain(&problem);
        if arguments.site.config.is_none() && arguments.site.embedded.is_none() {
            complain("give another file with --config FILE, or a directory of --embedded with --embedded DIR");
        }
        ExitCode::Config
    })
}

/// What Ctrl-C, or SIGTERM, sets. The second one ends the process where it stands, which no message minds: what was under way
/// is looked for by the next delivery, as after any crash. To be asked for when deliveries begin: before that there is nothing
/// to wait for, and the first one ends the process.
fn stop() -> Result<Arc<AtomicBool>, ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| {
                complain(&format!("Ctrl-C could not be provided for: {error}"));
                ExitCode::OsErr
            })?;
    }
    Ok(stop)
}

fn hear(
    event: Event,
    arguments: &Arguments,
    tally: &mut Tally,
    failures: Option<&mut FailureFile>,
    unwritable: &mut Option<io::Error>,
    progress: &ReplayProgress,
) {
    match event {
        Event::Done => tally.done += 1,
        Event::Elsewhere => tally.elsewhere += 1,
        Event::Tick => {}
        Event::MessageReport(told) => {
            tally.count(&told.outcome);
            if let (Some(line), Some(failures)) = (&told.failure, failures)
                && let Err(error) = failures.write(line)
            {
                unwritable.get_or_insert(error);
            }
            let (failed, why) = match &told.outcome {
                ReplayOutcome::Deferred(why) | ReplayOutcome::Refused(why) => (true, why.as_str()),
                ReplayOutcome::Delivered(plan) => (false, plan.as_str()),
                ReplayOutcome::AlreadyThere => (false, "already there"),
            };
            if arguments.dry_run {
                progress.above(|| say(&in_a_dry_run(&told, why, arguments.json)));
            } else if failed && tally.failed() <= TOLD_ONE_BY_ONE {
                progress.above(|| complain(&line(&told, why)));
            } else if failed && tally.failed() == TOLD_ONE_BY_ONE + 1 {
                progress.above(|| complain("more of that, which goes to the file of failures"));
            }
        }
    }
}

fn result(outcome: &ReplayOutcome) -> &'static str {
    match outcome {
        ReplayOutcome::Delivered(_) => "delivered",
        ReplayOutcome::AlreadyThere => "already there",
        ReplayOutcome::Deferred(_) => "deferred",
        ReplayOutcome::Refused(_) => "refused",
    }
}

/// One line, whatever the message and the servers say.
fn line(told: &MessageReport, why: &str) -> String {
    let recipient = told.recipient.as_deref().map(|recipient| format!(" to {recipient}")).unwrap_or_default();
    let outcome = match &told.outcome {
        ReplayOutcome::Deferred(_) => "deferred: ",
        ReplayOutcome::Refused(_) => "refused: ",
        ReplayOutcome::Delivered(_) | ReplayOutcome::AlreadyThere => "",
    };
    let line = format!("{}{recipient}: {outcome}{why}", told.source);
    printable(&line).replace('\n', "?")
}

fn in_a_dry_run(told: &MessageReport, why: &str, json: bool) -> String {
    if !json {
        return line(told, why);
    }
    let result = match &told.outcome {
        ReplayOutcome::Delivered(_) => "to be delivered",
        outcome => result(outcome),
    };
    serde_json::json!({ "source": told.source, "recipient": told.recipient, "result": result, "detail": why })
        .to_string()
}

/// `failures` is where what failed was written down, and whether all of it was.
fn summarize(arguments: &Arguments, tally: &Tally, total: u64, failures: Option<(&PathBuf, bool)>) {
    let left = total - tally.looked_at();
    if arguments.json {
        return say(&serde_json::json!({
            "dry_run": arguments.dry_run,
            "delivered": tally.delivered,
            "already_there": tally.already_there,
            "deferred": tally.deferred,
            "refused": tally.refused,
            "in_other_slices": tally.elsewhere,
            "left": left,
            "failures": failures.map(|(file, _)| file),
            "failures_left_out": failures.is_some_and(|(_, all)| !all),
        })
        .to_string());
    }
    let delivered = if arguments.dry_run { "to be delivered" } else { "delivered" };
    let rows = [
        (delivered, tally.delivered),
        ("already there", tally.already_there),
        ("deferred", tally.deferred),
        ("refused or unreadable", tally.refused),
    ];
    say(&table(["deliveries", "number"], rows.into_iter().map(|(what, number)| [what.to_owned(), number.to_string()])));
    if tally.elsewhere > 0 {
        say(&format!("{} of {total} messages are in other slices", tally.elsewhere));
    }
    if left > 0 {
        say(&format!("ended early: {left} of {total} messages are left; the same command goes on with them"));
    }
    if let Some((file, all)) = failures {
        if !all {
            let file = file.display();
            return say(&format!(
                "only some of what failed is in {file}: give the same command again, with room for all"
            ));
        }
        let (place, file) = (arguments.site.options(), shell_word(&file.to_string_lossy()));
        let without = if arguments.without_sent { " --without-sent" } else { "" };
        say(&format!("what failed is in {file}; once mended:\n  maildrop_command replay{place}{without} {file}"));
    }
}

/// Where what fails is written. Made before anything is delivered: a replay that cannot say what failed should not begin.
fn failure_file(arguments: &Arguments) -> Result<FailureFile, ExitCode> {
    let path = arguments.failures_to.clone().unwrap_or_else(|| {
        let time: String = timestamp::told(timestamp::now()).replace(' ', "T").replace(['-', ':'], "");
        format!("replay-failures-{time}-{}.jsonl", std::process::id()).into()
    });
    FailureFile::create(&path).map_err(|error| {
        complain(&format!(
            "{}: {error}\nthat is where what fails would be written: give another place with --failures-to FILE",
            path.display()
        ));
        ExitCode::CantCreat
    })
}

/// Tells why a replay cannot begin or go on, and gives the status to exit with.
fn told(error: &ReplayError) -> ExitCode {
    match error {
        ReplayError::Ledger(error) => return failed(error),
        error => complain(&error.to_string()),
    }
    match error {
        ReplayError::Source { .. } => ExitCode::NoInput,
        ReplayError::NotASource { .. } => ExitCode::DataErr,
        ReplayError::Job(_) => ExitCode::OsErr,
        ReplayError::List(_) | ReplayError::StandardInput(_) | ReplayError::Ledger(_) => ExitCode::IoErr,
    }
}
