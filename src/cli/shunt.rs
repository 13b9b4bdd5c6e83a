//! `shunt`: messages that crashed workers of the service.

use super::folders::failed;
use super::queue::QueueOptions;
use super::{Slow, complain, json as to_json, said, say, table};
use crate::base::deadline::Deadline;
use crate::base::terminal::{printable, shell_word};
use crate::base::timestamp::{self, span};
use crate::config::Config;
use crate::delivery::{NoCaller, Verdict};
use crate::operations::submission::shunted_request;
use crate::protocol::client::{self, Handed, Handing, Lost, NotTaken};
use crate::protocol::{Request, Source};
use crate::queue::{CrashedMessage, Envelope, MessageHolder, Origin, Queue};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;
use sysexits::ExitCode;

const WHAT_IT_IS: &str = "\
A message that has crashed two workers, the second time in a worker of its own, is shunted: a copy is kept, and each further try of \
Postfix's is deferred at once, except for one an hour, which has a worker of its own. A new build of the service tries all of them. \
Once a message is delivered, its copy is removed.";

const STATUS: &str = "\
Exit status: 0, 64 for a mistake in the arguments, 65 if a message is left where it is or cannot be read, 66 if there is no such \
message, or if the service has never run, 69 if the disk fails us or the service is not there, 75 if a message is deferred, 77 if \
this user may not, 78 if the configuration cannot be read.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// What is shunted: a line for each message, the oldest first
    List(ListArguments),
    /// All that is known of one message, or the message itself
    Show(ShowArguments),
    /// Have the service deliver messages now, each by a worker of its own
    Retry(RetryArguments),
    /// Remove copies
    Drop(DropArguments),
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command shunt list
  maildrop_command shunt list --json | jq -r '.[] | select(.holder == \"queue\") | .id'

{WHAT_IT_IS}

{STATUS}"))]
pub(crate) struct ListArguments {
    #[command(flatten)]
    queue: QueueOptions,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command shunt show 9f86d081884c7d65
  maildrop_command shunt show --message 9f86d081884c7d65 >message.eml

{WHAT_IT_IS}

{STATUS}"))]
pub(crate) struct ShowArguments {
    #[command(flatten)]
    queue: QueueOptions,
    /// Print the message itself, as it came
    #[arg(long, conflicts_with = "json")]
    message: bool,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    /// As `shunt list` prints it
    #[arg(value_name = "ID")]
    id: String,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command shunt retry 9f86d081884c7d65
  maildrop_command shunt retry --all

Once what crashed the workers is repaired. It is the same delivery as by Postfix: what is delivered is recorded in the ledger, \
and Postfix's next try finds it there, and is answered 250. If the message crashes its worker once more, nothing else has changed.

Postfix may have delivered it meanwhile by another way, which only the ledger knows. What first crashed a worker longer ago than the \
ledger remembers (retention.messages_older_than) is tried only with --again: if it was delivered, it will be duplicated.

{STATUS}"))]
pub(crate) struct RetryArguments {
    #[command(flatten)]
    queue: QueueOptions,
    /// All that is shunted, the oldest first
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Try what is older than the ledger remembers, too
    #[arg(long)]
    again: bool,
    /// As `shunt list` prints them
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command shunt drop 9f86d081884c7d65
  maildrop_command shunt drop --lose 9f86d081884c7d65

Only the copy is removed: Postfix, or the file queue, goes on trying what it has. To be rid of the message, remove it there first: \
postsuper -d QUEUE_ID, or maildrop_command queue drop ID.

A message that Postfix may have given up by now is dropped only with --lose. To keep it, save it before: maildrop_command shunt show \
--message ID >message.eml

{STATUS}"))]
pub(crate) struct DropArguments {
    #[command(flatten)]
    queue: QueueOptions,
    /// Drop messages that nobody else may have: they are lost
    #[arg(long)]
    lose: bool,
    /// As `shunt list` prints them
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, ExitCode> {
    match command {
        Command::List(arguments) => list(arguments),
        Command::Show(arguments) => show(arguments),
        Command::Retry(arguments) => retry(arguments),
        Command::Drop(arguments) => drop_copies(arguments),
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

/// One message, for people.
fn row(message: &CrashedMessage) -> [String; 9] {
    let (origin, envelope) = (origin(message), &message.envelope);
    let recipients = envelope.recipients.iter().map(|to| to.address.as_str()).collect::<Vec<_>>();
    [
        message.digest.to_string(),
        timestamp::told(message.since),
        envelope.size.to_string(),
        if envelope.sender.is_empty() { "<>".into() } else { envelope.sender.clone() },
        recipients.join(" "),
        if origin.holder == MessageHolder::Queue { "the file queue".into() } else { "Postfix".into() },
        origin.queue_id.unwrap_or_else(|| "-".into()),
        message.crashes.to_string(),
        envelope.reason.clone().unwrap_or_else(|| "-".into()),
    ]
}

fn origin(message: &CrashedMessage) -> Origin {
    message.envelope.origin.clone().unwrap_or_default()
}

fn list(arguments: &ListArguments) -> Result<ExitCode, ExitCode> {
    let (_, queue) = arguments.queue.open()?;
    let (messages, exit) = shunted(&queue)?;
    if arguments.json {
        say(&to_json(&messages.iter().map(as_json).collect::<Vec<_>>()));
    } else if messages.is_empty() && exit == ExitCode::Ok {
        say("nothing is shunted");
    } else if !messages.is_empty() {
        let header = ["ID", "SINCE", "SIZE", "SENDER", "RECIPIENTS", "HOLDER", "QUEUE ID", "CRASHES", "THE FIRST ONE"];
        say(&table(header, messages.iter().map(row)));
    }
    Ok(exit)
}

/// All that is shunted, the oldest first; and how to exit, where there are files that cannot be read, which are complained of.
fn shunted(queue: &Queue) -> Result<(Vec<CrashedMessage>, ExitCode), ExitCode> {
    let (mut messages, mut exit) = (Vec::new(), ExitCode::Ok);
    for found in queue.crashed().map_err(|error| failed(&error))? {
        match found {
            Ok(message) if message.is_shunted() => messages.push(message),
            Ok(_) => {}
            Err(error) => {
                complain(&error.to_string());
                exit = ExitCode::DataErr;
            }
        }
    }
    Ok((messages, exit))
}

fn show(arguments: &ShowArguments) -> Result<ExitCode, ExitCode> {
    let (_, queue) = arguments.queue.open()?;
    let (found, message) = read(&queue, &arguments.id)?;
    if arguments.message {
        let mut stdout = std::io::stdout();
        said(stdout.write_all(&message).and_then(|()| stdout.flush()));
        return Ok(ExitCode::Ok);
    }
    if arguments.json {
        say(&to_json(&as_json(&found)));
        return Ok(ExitCode::Ok);
    }
    let [id, since, size, sender, _, holder, queue_id, crashes, reason] = row(&found);
    let mut lines = vec![
        format!("id          {id}"),
        format!("file        {}", shell_word(&found.file.to_string_lossy())),
        format!("since       {since}"),
        format!("size        {size}"),
        format!("holder      {holder}"),
        format!("queue id    {queue_id}"),
        format!("sender      {sender}"),
    ];
    lines.extend(found.envelope.recipients.iter().map(|to| format!("recipient   {}", to.address)));
    lines.extend([format!("crashes     {crashes}"), format!("first one   {reason}")]);
    say(&lines.iter().map(|line| printable(line)).collect::<Vec<_>>().join("\n"));
    Ok(ExitCode::Ok)
}

fn read(queue: &Queue, id: &str) -> Result<(CrashedMessage, Vec<u8>), ExitCode> {
    let found = id.parse().map_or(Ok(None), |digest| queue.crashed_message(digest));
    let found = found.map_err(|error| {
        complain(&error.to_string());
        ExitCode::DataErr
    });
    found?.ok_or_else(|| not_found(id))
}

fn not_found(id: &str) -> ExitCode {
    complain(&format!("no shunted message is called {id}\n`maildrop_command shunt list` shows what is there"));
    ExitCode::NoInput
}

fn retry(arguments: &RetryArguments) -> Result<ExitCode, ExitCode> {
    let (config, queue) = arguments.queue.open()?;
    let (ids, mut exit) = if arguments.all {
        let (messages, exit) = shunted(&queue)?;
        (messages.into_iter().map(|message| message.digest.to_string()).collect(), exit)
    } else {
        (arguments.ids.clone(), ExitCode::Ok)
    };
    if ids.is_empty() && exit == ExitCode::Ok {
        say("nothing is shunted");
    }
    let limit = if arguments.again || ids.is_empty() { None } else { config.retention.messages_older_than };
    let _slow = Slow::watch("each has a worker of its own, which is started for it");
    for id in &ids {
        let status = match read(&queue, id) {
            Ok((found, _)) if limit.is_some_and(|limit| found.age() > limit) => {
                complain(&format!(
                    "{id} first crashed a worker longer ago than the ledger remembers: if it was delivered by another way, it would be \
                     duplicated\nto try it all the same, add --again"
                ));
                ExitCode::DataErr
            }
            Ok((found, message)) => retry_one(&config, id, found.envelope, &message)?,
            Err(status) => status,
        };
        if exit == ExitCode::Ok {
            exit = status;
        }
    }
    Ok(exit)
}

/// `Err`: there is no service that could be asked.
fn retry_one(config: &Config, id: &str, envelope: Envelope, message: &[u8]) -> Result<ExitCode, ExitCode> {
    let socket = config.serve.clients_socket();
    let request = shunted_request(envelope, Source::Shunt);
    let deadline = Deadline::after(config.delivery.deadline);
    let handing = Handing { request: &request, message, caller: &NoCaller, deadline };
    let lost = |why: &str| {
        complain(&format!("{id}: {why}: what became of it, its holder's next try finds out"));
        ExitCode::TempFail
    };
    Ok(match client::hand_over(&socket, handing) {
        Handed::Answered(verdicts) => report(id, &request, &verdicts),
        Handed::NotTaken(NotTaken { why, no_service: true }) => {
            complain(&format!("the service does not take it: {why}\nstart it: maildrop_command service start"));
            return Err(ExitCode::Unavailable);
        }
        Handed::NotTaken(NotTaken { why, .. }) => {
            complain(&format!("{id}: the service does not take it: {why}"));
            ExitCode::TempFail
        }
        Handed::CallerGone => lost("it was taken back"),
        Handed::Lost(Lost::Connection) => lost("the connection to the service was lost"),
        Handed::Lost(Lost::Silent) => lost("the service has not answered in time"),
        Handed::Lost(Lost::Nonsense) => lost("the service's answer makes no sense"),
    })
}

fn report(id: &str, request: &Request, verdicts: &[Verdict]) -> ExitCode {
    let mut exit = ExitCode::Ok;
    for (recipient, verdict) in request.recipients.iter().zip(verdicts) {
        say(&printable(&format!("{id} {}: {verdict}", recipient.address)));
        exit = match (verdict.class(), exit) {
            (2, exit) => exit,
            (4, _) => ExitCode::TempFail,
            (_, ExitCode::Ok) => ExitCode::DataErr,
            (_, exit) => exit,
        };
    }
    exit
}

fn drop_copies(arguments: &DropArguments) -> Result<ExitCode, ExitCode> {
    let (config, queue) = arguments.queue.open()?;
    let mut exit = ExitCode::Ok;
    for id in &arguments.ids {
        if let Err(status) = drop_one(&queue, config.delivery.postfix_queue_lifetime, id, arguments.lose)
            && exit == ExitCode::Ok
        {
            exit = status;
        }
    }
    Ok(exit)
}

fn drop_one(queue: &Queue, queue_lifetime: Duration, id: &str, lose: bool) -> Result<(), ExitCode> {
    let digest = id.parse().map_err(|_| not_found(id))?;
    let (origin, why_lost) = match queue.crashed_message(digest) {
        Ok(None) => return Err(not_found(id)),
        Ok(Some((found, _))) => {
            let (origin, age) = (origin(&found), found.age());
            let given_up = origin.holder == MessageHolder::Mta && age >= queue_lifetime;
            (origin, given_up.then(|| format!("Postfix may have given it up: it is {} old", span(age))))
        }
        // It may be anything: nobody else may have it.
        Err(error) => (Origin::default(), Some(format!("it cannot be read ({error})"))),
    };
    if let Some(why) = why_lost.filter(|_| !lose) {
        complain(&format!(
            "{id}: {why}: it would be lost. It is left where it is\nto drop it all the same, add --lose; \
             `maildrop_command shunt show --message {id}` prints it"
        ));
        return Err(ExitCode::DataErr);
    }
    queue.drop_crashed(digest).map_err(|error| failed(&error))?;
    say(&format!("{id} is removed"));
    if let Origin { holder, queue_id: Some(queue_id), .. } = origin {
        let (who, remove) = match holder {
            MessageHolder::Mta => ("Postfix", "postsuper -d"),
            MessageHolder::Queue => ("the file queue", "maildrop_command queue drop --yes"),
        };
        say(&printable(&format!("what {who} has of it is tried further, until: {remove} {queue_id}")));
    }
    Ok(())
}
