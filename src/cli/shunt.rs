//! `shunt`: messages that crashed workers of the service.

use super::confirmation::{Confirmation, report_unconfirmed};
use super::progress::Progress;
use super::queue::{QueueOptions, ShowArguments, or_null_sender, would_be};
use super::{Columns, Ended, Failure, facts, fail, for_each, help, list, or_dash, print, print_bytes, print_line};
use crate::base::deadline::Deadline;
use crate::base::terminal::{printable, shell_word};
use crate::base::timestamp::{self, span};
use crate::config::Config;
use crate::delivery::{NoCaller, Verdict};
use crate::operations::submission::shunted_request;
use crate::protocol::Request;
use crate::protocol::client::{self, Handover, HandoverResult, NotTaken};
use crate::queue::{CrashedMessage, Envelope, MessageHolder, Origin, Queue};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::time::Duration;
use sysexits::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the shunted messages, the oldest first
    #[command(after_help = help("shunt list"))]
    List {
        #[command(flatten)]
        queue: QueueOptions,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Show one shunted message's history, or the message itself
    #[command(after_help = help("shunt show"))]
    Show(ShowArguments),
    /// Retry messages now, one at a time
    #[command(after_help = help("shunt retry"))]
    Retry(RetryArguments),
    /// Remove shunted messages
    #[command(after_help = help("shunt drop"))]
    Drop {
        #[command(flatten)]
        queue: QueueOptions,
        #[command(flatten)]
        confirmation: Confirmation,
        /// Drop messages that nobody else may have: they are lost
        #[arg(long)]
        lose: bool,
        /// As `shunt list` prints them
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RetryArguments {
    #[command(flatten)]
    queue: QueueOptions,
    #[command(flatten)]
    confirmation: Confirmation,
    /// All shunted messages, the oldest first
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Try also messages that are older than the ledger's memory
    #[arg(long)]
    again: bool,
    /// As `shunt list` prints them
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<String>,
}

pub(crate) fn run(command: &Command) -> Ended {
    match command {
        Command::List { queue, json } => {
            let (messages, all_are_read) = shunted(&queue.open()?.1)?;
            if *json || all_are_read.is_ok() || !messages.is_empty() {
                let values: Vec<Value> = messages.iter().map(as_json).collect();
                print(*json, &values, || list(&messages, NOTHING, COLUMNS));
            }
            all_are_read
        }
        Command::Show(arguments) => show(arguments),
        Command::Retry(arguments) => retry(arguments),
        Command::Drop { queue, confirmation, lose, ids } => {
            let (config, queue) = queue.open()?;
            if ids.len() > 1 && confirmation.is_missing() {
                return preview(&queue, ids, "removed");
            }
            for_each(ids, |id| drop_one(&queue, config.delivery.postfix_queue_lifetime, id, *lose))
        }
    }
}

/// One message, for programs.
fn as_json(message: &CrashedMessage) -> Value {
    let CrashedMessage { digest, crashes, since, file, envelope, .. } = message;
    let (origin, recipients) = (origin(message), &envelope.recipients);
    json!({
        "id": digest.to_string(), "file": file, "size": envelope.size, "since": timestamp::exact(*since), "crashes": crashes,
        "holder": origin.holder, "queue_id": origin.queue_id, "sender": envelope.sender,
        "recipients": recipients.iter().map(|to| &to.address).collect::<Vec<_>>(), "reason": envelope.reason,
    })
}

const NOTHING: &str = "nothing is shunted";

const COLUMNS: Columns<CrashedMessage, 9> = [
    ("ID", |message| message.digest.to_string()),
    ("SINCE", |message| timestamp::time_text(message.since)),
    ("SIZE", |message| message.envelope.size.to_string()),
    ("SENDER", |message| or_null_sender(&message.envelope.sender)),
    ("RECIPIENTS", |message| {
        message.envelope.recipients.iter().map(|to| to.address.as_str()).collect::<Vec<_>>().join(" ")
    }),
    ("HOLDER", |message| match origin(message).holder {
        MessageHolder::Queue => "the file queue".into(),
        MessageHolder::Mta => "Postfix".into(),
    }),
    ("QUEUE ID", |message| or_dash(origin(message).queue_id)),
    ("CRASHES", |message| message.crashes.to_string()),
    ("THE FIRST ONE", |message| or_dash(message.envelope.reason.as_ref())),
];

fn origin(message: &CrashedMessage) -> Origin {
    message.envelope.origin.clone().unwrap_or_default()
}

/// All shunted messages, the oldest first. Files that cannot be read are reported, and determine the exit status.
fn shunted(queue: &Queue) -> Result<(Vec<CrashedMessage>, Ended), Failure> {
    let mut messages = Vec::new();
    let all_are_read = for_each(queue.crashed()?, |found| {
        let message = found.map_err(|error| fail(ExitCode::DataErr, error.to_string()))?;
        messages.extend(message.is_shunted().then_some(message));
        Ok(())
    });
    Ok((messages, all_are_read))
}

fn show(ShowArguments { queue, message, json, id }: &ShowArguments) -> Ended {
    let (found, bytes) = read(&queue.open()?.1, id)?;
    if *message {
        print_bytes(&bytes);
        return Ok(ExitCode::Ok);
    }
    print(*json, &as_json(&found), || {
        let [id, since, size, sender, _, holder, queue_id, crashes, reason] = COLUMNS.map(|(_, cell)| cell(&found));
        let file = shell_word(&found.file.to_string_lossy());
        let mut lines = vec![("id", id), ("file", file), ("since", since), ("size", size), ("holder", holder)];
        lines.extend([("queue id", queue_id), ("sender", sender)]);
        lines.extend(found.envelope.recipients.iter().map(|to| ("recipient", to.address.clone())));
        lines.extend([("crashes", crashes), ("first one", reason)]);
        facts(12, lines)
    });
    Ok(ExitCode::Ok)
}

fn read(queue: &Queue, id: &str) -> Result<(CrashedMessage, Vec<u8>), Failure> {
    let found = id.parse().map_or(Ok(None), |digest| queue.crashed_message(digest));
    found.map_err(|error| fail(ExitCode::DataErr, error.to_string()))?.ok_or_else(|| not_found(id))
}

fn not_found(id: &str) -> Failure {
    let text = format!("no shunted message is called {id}\n`maildrop_command shunt list` shows what is there");
    fail(ExitCode::NoInput, text)
}

/// Prints which messages would be changed.
fn preview(queue: &Queue, ids: &[String], done: &str) -> Ended {
    for id in ids {
        let (CrashedMessage { envelope, .. }, _) = read(queue, id)?;
        let recipients: Vec<String> = envelope.recipients.into_iter().map(|to| to.address).collect();
        print_line(&would_be(id, Some(envelope.size), &or_null_sender(&envelope.sender), &recipients, done));
    }
    report_unconfirmed(done, false)
}

fn retry(arguments: &RetryArguments) -> Ended {
    let (config, queue) = arguments.queue.open()?;
    let (ids, all_are_read) = match arguments.all {
        true => {
            let (messages, all_are_read) = shunted(&queue)?;
            (messages.iter().map(|message| message.digest.to_string()).collect(), all_are_read)
        }
        false => (arguments.ids.clone(), Ok(ExitCode::Ok)),
    };
    if ids.is_empty() && all_are_read.is_ok() {
        print_line(NOTHING);
    }
    if ids.len() > 1 && arguments.confirmation.is_missing() {
        return preview(&queue, &ids, "tried");
    }
    let limit = if arguments.again || ids.is_empty() { None } else { config.retention.messages_older_than };
    let _progress = Progress::watch("they are tried one at a time");
    let tried = for_each(&ids, |id| {
        let (found, message) = read(&queue, id)?;
        if limit.is_some_and(|limit| found.age() > limit) {
            let text = format!(
                "{id} first crashed a worker longer ago than the ledger remembers: if it was delivered another way, it would be \
                 duplicated\nto try it all the same, add --again"
            );
            return Err(fail(ExitCode::DataErr, text));
        }
        retry_one(&config, id, found.envelope, &message)
    });
    all_are_read.and(tried)
}

fn retry_one(config: &Config, id: &str, envelope: Envelope, message: &[u8]) -> Result<(), Failure> {
    let socket = config.service.clients_socket();
    let request = shunted_request(envelope);
    let deadline = Deadline::after(config.delivery.deadline);
    let why = match client::hand_over(&socket, Handover { request: &request, message, caller: &NoCaller, deadline }) {
        HandoverResult::Answered(verdicts) => return report(id, &request, &verdicts),
        HandoverResult::NotTaken(NotTaken { why, no_service }) => {
            let (exit, advice) = match no_service {
                true => (ExitCode::Unavailable, "\nstart it: maildrop_command service start"),
                false => (ExitCode::TempFail, ""),
            };
            return Err(fail(exit, format!("{id}: the service does not accept it: {why}{advice}")));
        }
        HandoverResult::CallerGone => "it was withdrawn".to_owned(),
        HandoverResult::Lost(lost) => lost.to_string(),
    };
    Err(fail(ExitCode::TempFail, format!("{id}: {why}: its holder's next try finds out what became of it")))
}

fn report(id: &str, request: &Request, verdicts: &[Verdict]) -> Result<(), Failure> {
    for (recipient, verdict) in request.recipients.iter().zip(verdicts) {
        print_line(&printable(&format!("{id} {}: {verdict}", recipient.address)));
    }
    let has = |class| verdicts.iter().any(|verdict| verdict.class() == class);
    match (has(4), verdicts.iter().all(|verdict| verdict.class() == 2)) {
        (true, _) => Err(fail(ExitCode::TempFail, "")),
        (false, true) => Ok(()),
        (false, false) => Err(fail(ExitCode::DataErr, "")),
    }
}

fn drop_one(queue: &Queue, queue_lifetime: Duration, id: &str, lose: bool) -> Result<(), Failure> {
    let digest = id.parse().map_err(|_| not_found(id))?;
    let (origin, why_lost) = match queue.crashed_message(digest) {
        Ok(None) => return Err(not_found(id)),
        Ok(Some((found, _))) => {
            let (origin, age) = (origin(&found), found.age());
            let given_up = origin.holder == MessageHolder::Mta && age >= queue_lifetime;
            (origin, given_up.then(|| format!("Postfix may have given it up: it is {} old", span(age))))
        }
        // The file may contain any message, and may be its only copy.
        Err(error) => (Origin::default(), Some(format!("it cannot be read ({error})"))),
    };
    if let Some(why) = why_lost.filter(|_| !lose) {
        let text = format!(
            "{id}: {why}: it would be lost. It is left as it is\nto drop it all the same, add --lose; \
             `maildrop_command shunt show --message {id}` prints it"
        );
        return Err(fail(ExitCode::DataErr, text));
    }
    queue.drop_crashed(digest)?;
    print_line(&format!("{id} is removed"));
    if let Origin { holder, queue_id: Some(queue_id), .. } = origin {
        let (who, remove) = match holder {
            MessageHolder::Mta => ("Postfix", "postsuper -d"),
            MessageHolder::Queue => ("the file queue", "maildrop_command queue drop --yes"),
        };
        print_line(&printable(&format!("{who} continues to try what it has of it, until: {remove} {queue_id}")));
    }
    Ok(())
}
