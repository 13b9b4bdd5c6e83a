//! `replay`: manual redelivery. Ordinary deliveries, fed from files, mboxes, a queue file, standard input or the ledger.

mod owed_and_lost;
mod results;

use super::confirmation::{self, report_unconfirmed};
use super::progress::Progress;
use super::site_options::{LONGEST_ANSWER, SiteOptions, watch};
use super::{Ended, Failure, complain, fail, help};
use crate::base::timestamp;
use crate::config::{CONFIGURATION, DatabaseRole};
use crate::ledger::deliveries::DeliveryQuery;
use crate::ledger::operations_log::Operation;
use crate::message::Address;
use crate::operations::replay::{
    FailureFile, Form, List, PartialEnvelope, Replay, ReplayError, list_deliveries, list_path,
};
use crate::site::Setup;
use clap::{ArgGroup, Args};
use results::ReplayResults;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use sysexits::ExitCode;

/// Options without a meaning for --owed and --restore, which deliver single copies with the ledger's envelope.
const FOR_MESSAGES: [&str; 7] =
    ["format", "sender", "recipient", "sasl_username", "without_sent", "jobs", "failures_to"];

/// Options without a meaning for a replay from the ledger, which has the envelope. Ignoring one would replay for more
/// recipients than were meant.
const FOR_FILES: [&str; 4] = ["sources", "format", "sender", "sasl_username"];

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

    let looking = Progress::watch("looking for messages");
    let list = List::new()?;
    if from_ledger {
        let query = DeliveryQuery {
            locks: arguments.message_id.iter().map(|id| site.lock_of_message_id(id.as_bytes())).collect(),
            since: arguments.since,
            failed: arguments.failed,
            recipients: arguments.recipient.iter().map(|address| address.folded().to_string()).collect(),
        };
        list_deliveries(&query, site, &list)?;
    }
    // Each once: standard input is empty when it is read again.
    let sources: BTreeSet<_> = arguments.sources.iter().collect();
    sources.into_iter().try_for_each(|path| list_path(path, arguments.format, &list))?;
    let total = list.count()?;
    drop(looking);
    if total == 0 {
        return Err(fail(ExitCode::NoInput, "there is nothing to replay"));
    }

    let is_unconfirmed = !arguments.dry_run && total > 1 && confirmation::is_missing(arguments.yes);
    let dry_run = arguments.dry_run || is_unconfirmed;
    let stop = stop_on_signals()?;
    // A replay that cannot record failures should not begin.
    let failures = if dry_run { None } else { Some(failure_file(arguments)?) };
    let results = ReplayResults::new(arguments, "replaying", total, dry_run, failures);
    let replay = Replay {
        site,
        envelope: PartialEnvelope {
            sender: arguments.sender.clone(),
            recipients: arguments.recipient.iter().map(|address| (address.to_string(), None)).collect(),
            sasl_username: arguments.sasl_username.clone(),
            ..PartialEnvelope::default()
        },
        jobs: usize::from(arguments.jobs),
        dry_run,
        stop,
        listen: &|report| results.add(report),
    };
    if let Err(error) = replay.run(list) {
        Failure::from(error).report();
    }
    let exit = results.finish(site, Operation::DeliveredAgain);
    if is_unconfirmed { report_unconfirmed("delivered", arguments.json) } else { Ok(exit) }
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
fn stop_on_signals() -> Result<&'static AtomicBool, Failure> {
    static STOP: AtomicBool = AtomicBool::new(false);
    let unhandled = |error| fail(ExitCode::OsErr, format!("Ctrl-C could not be handled: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(unhandled)?;
    let await_signals = move || {
        for signal in signals.forever() {
            if STOP.swap(true, Ordering::Relaxed) {
                std::process::exit(128 + signal);
            }
            complain("ending after the messages in progress; once more, and it ends at once");
        }
    };
    thread::Builder::new().name("signals".into()).spawn(await_signals).map_err(unhandled)?;
    Ok(&STOP)
}

fn failure_file(arguments: &Arguments) -> Result<FailureFile, Failure> {
    let path = arguments.failures_to.clone().unwrap_or_else(|| {
        let time: String = timestamp::time_text(timestamp::now()).replace(' ', "T").replace(['-', ':'], "");
        format!("replay-failures-{time}-{}.jsonl", std::process::id()).into()
    });
    FailureFile::create(&path).map_err(|error| {
        let file = path.display();
        let text =
            format!("{file}: {error}\nthat is the file for what fails: give another one with --failures-to FILE");
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
            ReplayError::List(_) => ExitCode::IoErr,
        };
        fail(exit, error.to_string())
    }
}
