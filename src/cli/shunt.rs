//! `shunt`: messages that were set aside because they end workers of the service.

use super::folders::failed;
use super::site_options::CONFIGURATION;
use super::{Slow, complain, json, said, say, table};
use crate::base::deadline::Deadline;
use crate::base::terminal::printable;
use crate::base::terminal::shell_word;
use crate::base::timestamp::{self, span};
use crate::config::Config;
use crate::delivery::{NoCaller, Verdict};
use crate::handover::client::{self, Handed, Handing, Lost, NotTaken};
use crate::handover::control::End;
use crate::handover::{Recipient, Request, Source, portions};
use crate::queue::{
    Behind, ByHandError, Death, Digest, NoSuchCopy, Queue, QueueError, Shunted, ShuntedEnvelope, ShuntedStore, Suspect,
    UnreadableCopy,
};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use sysexits::ExitCode;
use uuid::Uuid;

const WHAT_IT_IS: &str = "\
A message that has ended two workers, each time alone with it, is set aside: a copy is kept, and each further try of Postfix's \
is deferred at once, but for one an hour, which has a worker of its own. Once that one delivers it, it is set aside no more, \
and the copy is removed.";

const STATUS: &str = "\
Exit status: 0, 64 for a mistake in the arguments, 65 if a message is left where it is or cannot be read, 66 if there is no such \
message, or if the service has never run, 69 if the disk fails us or the service is not there, 75 if a message is deferred, 77 if \
this user may not, 78 if the configuration cannot be read.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// What is set aside: a line for each message, the oldest first
    List(ListArguments),
    /// All that is known of one message, and of the workers that it has ended; or the message itself
    Show(ShowArguments),
    /// Have the service deliver messages now, each by a worker of its own
    Retry(RetryArguments),
    /// Remove copies
    Drop(DropArguments),
}

#[derive(Debug, Args)]
#[group(skip)]
struct Place {
    /// The configuration file, whose serve.state_directory has the copies [default: /etc/maildrop_command/config.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command shunt list
  maildrop_command shunt list --json | jq -r '.[] | select(.behind == \"queue\") | .id'

{WHAT_IT_IS}

{STATUS}"))]
pub(crate) struct ListArguments {
    #[command(flatten)]
    place: Place,
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
    place: Place,
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

Once what has ended the workers is mended. It is the same delivery as by Postfix: what is delivered is recorded in the ledger, \
and Postfix's next try finds it there, and is answered 250. If the message ends its worker once more, nothing else has changed.

Postfix may have delivered it meanwhile by another way, which only the ledger knows. What was set aside longer ago than the ledger \
remembers (retention.messages_older_than) is tried only with --again: if it was delivered, it will be there twice.

{STATUS}"))]
pub(crate) struct RetryArguments {
    #[command(flatten)]
    place: Place,
    /// All that is set aside, the oldest first
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Try what was set aside longer ago than the ledger remembers, too
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

Only the copy is removed: what Postfix has, it goes on trying, and its next try is kept again. To be rid of the message, remove it \
there first: postsuper -d QUEUE_ID.

A message of the file queue, which nobody else has, or one that Postfix may have given up by now, is dropped only with --lose; of \
the file queue it is removed as well. To keep it, save it before: maildrop_command shunt show --message ID >message.eml

{STATUS}"))]
pub(crate) struct DropArguments {
    #[command(flatten)]
    place: Place,
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

/// One message, for people and programs.
#[derive(Debug, Serialize)]
struct Entry {
    id: String,
    sha256: String,
    size: u64,
    #[serde(serialize_with = "timestamp::serialize")]
    since: i64,
    #[serde(serialize_with = "timestamp::serialize")]
    set_aside_at: i64,
    /// When it last had a worker of its own.
    #[serde(serialize_with = "timestamp::serialize_optional")]
    tried_at: Option<i64>,
    /// How many workers it has ended, as far as that counts.
    workers: u32,
    behind: Behind,
    envelopes: Vec<ShuntedEnvelope>,
    deaths: Vec<Death>,
}

impl Entry {
    fn new(digest: &Digest, shunted: Shunted, suspect: Option<Suspect>) -> Self {
        let behind = if shunted.has_mta_behind() { Behind::Mta } else { Behind::Queue };
        let Shunted { size, since, set_aside_at, deaths, envelopes } = shunted;
        let counted = suspect.as_ref().map_or_else(|| u32::try_from(deaths.len()).unwrap_or(u32::MAX), |s| s.counted);
        let (tried_at, newer) = suspect.map_or((None, Vec::new()), |suspect| (suspect.tried_at, suspect.deaths));
        Self {
            id: digest.id(),
            sha256: digest.to_string(),
            size,
            since,
            set_aside_at,
            tried_at,
            workers: counted,
            behind,
            envelopes,
            deaths: if newer.is_empty() { deaths } else { newer },
        }
    }

    fn recipients(&self) -> String {
        let all = self.envelopes.iter().flat_map(|envelope| &envelope.recipients);
        all.map(|recipient| recipient.address.as_str()).collect::<Vec<_>>().join(" ")
    }

    fn senders(&self) -> String {
        let mut senders: Vec<&str> = self.envelopes.iter().map(|envelope| envelope.sender.as_str()).collect();
        senders.dedup();
        senders.into_iter().map(|sender| if sender.is_empty() { "<>" } else { sender }).collect::<Vec<_>>().join(" ")
    }

    fn queue_ids(&self) -> String {
        let mut ids: Vec<&str> = self.envelopes.iter().filter_map(|envelope| envelope.queue_id.as_deref()).collect();
        ids.dedup();
        if ids.is_empty() { "-".into() } else { ids.join(" ") }
    }

    fn row(&self) -> [String; 9] {
        let last = self.deaths.last().map_or_else(|| "-".into(), reason);
        [
            self.id.clone(),
            timestamp::told(self.since),
            self.size.to_string(),
            self.senders(),
            self.recipients(),
            self.behind_told().into(),
            self.queue_ids(),
            self.workers.to_string(),
            last,
        ]
    }

    fn behind_told(&self) -> &'static str {
        match self.behind {
            Behind::Mta => "Postfix",
            Behind::Queue => "the file queue",
        }
    }
}

/// What a worker died of, in a few words.
fn reason(death: &Death) -> String {
    let end = End::Signal(death.signal);
    let stage = death.stage.as_ref().map(|stage| format!(", at: {stage}")).unwrap_or_default();
    format!("{end}{stage}")
}

fn list(arguments: &ListArguments) -> Result<ExitCode, ExitCode> {
    let (_, store) = arguments.place.open()?;
    let (entries, exit) = entries(&store)?;
    if arguments.json {
        say(&json(&entries));
    } else if entries.is_empty() && exit == ExitCode::Ok {
        say("nothing is set aside");
    } else if !entries.is_empty() {
        let header = ["ID", "SINCE", "SIZE", "SENDER", "RECIPIENTS", "WITH", "QUEUE ID", "WORKERS", "THE LAST ONE"];
        say(&table(header, entries.iter().map(Entry::row)));
    }
    Ok(exit)
}

/// All that is set aside, the oldest first; and how to exit, where there are files that cannot be read, which are complained of.
fn entries(store: &ShuntedStore) -> Result<(Vec<Entry>, ExitCode), ExitCode> {
    let all = store.shunted().map_err(|error| failed(&error))?;
    all.unreadable.iter().for_each(|error| complain(&error.to_string()));
    let exit = if all.unreadable.is_empty() { ExitCode::Ok } else { ExitCode::DataErr };
    let mut entries = Vec::new();
    for (digest, shunted) in all.read {
        entries.push(Entry::new(&digest, shunted, suspect(store, &digest)));
    }
    entries.sort_by(|one, other| (one.since, &one.id).cmp(&(other.since, &other.id)));
    Ok((entries, exit))
}

/// What is remembered of a message besides its copy, which has the most of it.
fn suspect(store: &ShuntedStore, digest: &Digest) -> Option<Suspect> {
    store.suspect(digest).unwrap_or_else(|error| {
        complain(&error.to_string());
        None
    })
}

fn show(arguments: &ShowArguments) -> Result<ExitCode, ExitCode> {
    let (_, store) = arguments.place.open()?;
    let (digest, shunted, message) = read(&store, &arguments.id).map_err(|error| not_found(&error))?;
    if arguments.message {
        let mut stdout = std::io::stdout();
        said(stdout.write_all(&message).and_then(|()| stdout.flush()));
        return Ok(ExitCode::Ok);
    }
    let entry = Entry::new(&digest, shunted, suspect(&store, &digest));
    if arguments.json {
        say(&json(&entry));
        return Ok(ExitCode::Ok);
    }
    let moment = |moment: Option<i64>| moment.map_or_else(|| "-".into(), timestamp::told);
    let mut lines = vec![
        format!("id          {}", entry.id),
        format!("file        {}", shell_word(&store.path(&digest).to_string_lossy())),
        format!("since       {}", timestamp::told(entry.since)),
        format!("set aside   {}", timestamp::told(entry.set_aside_at)),
        format!("tried       {}", moment(entry.tried_at)),
        format!("size        {}", entry.size),
        format!("with        {}", entry.behind_told()),
    ];
    for envelope in &entry.envelopes {
        let sender = if envelope.sender.is_empty() { "<>" } else { &envelope.sender };
        lines.push(format!("queue id    {}", envelope.queue_id.as_deref().unwrap_or("-")));
        lines.push(format!("sender      {sender}"));
        lines.extend(envelope.recipients.iter().map(|recipient| format!("recipient   {}", recipient.address)));
    }
    lines.push(format!("workers     {}", entry.workers));
    for death in &entry.deaths {
        let (at, pid, reason) = (timestamp::told(death.at), death.pid, reason(death));
        lines.push(format!("ended       {at}, process {pid}: {reason}"));
        lines.extend(death.said.iter().map(|line| format!("            {}", line.replace('\n', " "))));
    }
    say(&lines.iter().map(|line| printable(line)).collect::<Vec<_>>().join("\n"));
    Ok(ExitCode::Ok)
}

fn read(store: &ShuntedStore, id: &str) -> Result<(Digest, Shunted, Vec<u8>), NoSuchCopy> {
    let digest = store.find(id)?;
    let (shunted, message) = store.read(&digest)?.ok_or_else(|| NoSuchCopy::None(id.into()))?;
    Ok((digest, shunted, message))
}

fn retry(arguments: &RetryArguments) -> Result<ExitCode, ExitCode> {
    let (config, store) = arguments.place.open()?;
    let (ids, mut exit) = if arguments.all {
        let (entries, exit) = entries(&store)?;
        (entries.into_iter().map(|entry| entry.sha256).collect(), exit)
    } else {
        (arguments.ids.clone(), ExitCode::Ok)
    };
    if ids.is_empty() && exit == ExitCode::Ok {
        say("nothing is set aside");
    }
    let remembered = if arguments.again || ids.is_empty() { None } else { config.retention.messages_older_than };
    let now = timestamp::now();
    let too_old = |shunted: &Shunted| {
        let age = Duration::from_micros(u64::try_from(now.saturating_sub(shunted.since)).unwrap_or_default());
        remembered.is_some_and(|limit| age > limit)
    };
    let _slow = Slow::watch("each has a worker of its own, which is started for it");
    for id in &ids {
        let tried = read(&store, id).map_err(|error| not_found(&error));
        let status = match tried {
            Ok((digest, shunted, _)) if too_old(&shunted) => {
                let id = digest.id();
                complain(&format!(
                    "{id} was set aside longer ago than the ledger remembers: if it was delivered by another way, it would be there \
                     twice\nto try it all the same, add --again"
                ));
                ExitCode::DataErr
            }
            Ok((digest, shunted, message)) => retry_one(&config, &digest, &shunted, &message)?,
            Err(status) => status,
        };
        if exit == ExitCode::Ok {
            exit = status;
        }
    }
    Ok(exit)
}

/// Tries one with each of its envelopes, which may have come to hold the recipients of many transactions. `Err`: there is no service
/// that could be asked.
fn retry_one(config: &Config, digest: &Digest, shunted: &Shunted, message: &[u8]) -> Result<ExitCode, ExitCode> {
    let socket = config.serve.clients_socket();
    let (id, mut exit) = (digest.id(), ExitCode::Ok);
    let requests = shunted.envelopes.iter().flat_map(|envelope| requests(envelope, message));
    for request in requests {
        let deadline = Deadline::after(config.delivery.deadline);
        let handing = Handing { request: &request, message, caller: &NoCaller, deadline };
        let lost = |why: &str| {
            complain(&format!("{id}: {why}: what became of it, Postfix's next try finds out"));
            ExitCode::TempFail
        };
        let status = match client::hand_over(&socket, handing) {
            Handed::Answered(verdicts) => told(&id, &request, &verdicts),
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
        };
        if exit == ExitCode::Ok {
            exit = status;
        }
    }
    Ok(exit)
}

fn told(id: &str, request: &Request, verdicts: &[Verdict]) -> ExitCode {
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

/// The deliveries that it came for: what is delivered by them has the keys that Postfix's next try looks for.
fn requests(envelope: &ShuntedEnvelope, message: &[u8]) -> Vec<Request> {
    let recipients = envelope.recipients.iter();
    let recipients = recipients.map(|to| Recipient { address: to.address.clone(), original: to.original.clone() });
    portions(&recipients.collect::<Vec<_>>()).into_iter().map(|some| request(envelope, some, message)).collect()
}

fn request(envelope: &ShuntedEnvelope, recipients: &[Recipient], message: &[u8]) -> Request {
    Request {
        id: Uuid::now_v7(),
        time_left_ms: 0,
        sender: envelope.sender.clone(),
        recipients: recipients.to_vec(),
        queue_id: envelope.queue_id.clone(),
        client_address: envelope.client_address.clone(),
        sasl_username: envelope.sasl_username.clone(),
        lock_wait_ms: None,
        no_sent: envelope.no_sent,
        size: message.len() as u64,
        file: None,
        source: Source::Shunt,
        suspect: false,
        slow: false,
    }
}

fn drop_copies(arguments: &DropArguments) -> Result<ExitCode, ExitCode> {
    let (config, store) = arguments.place.open()?;
    let mut exit = ExitCode::Ok;
    for id in &arguments.ids {
        if let Err(status) = drop_one(&config, &store, id, arguments.lose)
            && exit == ExitCode::Ok
        {
            exit = status;
        }
    }
    Ok(exit)
}

fn drop_one(config: &Config, store: &ShuntedStore, id: &str, lose: bool) -> Result<(), ExitCode> {
    let digest = store.find(id).map_err(|error| not_found(&error))?;
    // What cannot be read may be anything: nobody else may have it.
    let shunted = store.header(&digest);
    let held_by_nobody = match &shunted {
        Ok(Some(shunted)) => nobody_else_has(shunted, config.delivery.postfix_queue_lifetime),
        Ok(None) => return Err(not_found(&NoSuchCopy::None(id.into()))),
        Err(UnreadableCopy { problem, .. }) => Some(format!("it cannot be read ({problem})")),
    };
    if let Some(why) = held_by_nobody.filter(|_| !lose) {
        complain(&format!(
            "{id}: {why}: it would be lost. It is left where it is\nto drop it all the same, add --lose; \
             `maildrop_command shunt show --message {id}` prints it"
        ));
        return Err(ExitCode::DataErr);
    }
    let envelopes = shunted.ok().flatten().map(|shunted| shunted.envelopes).unwrap_or_default();
    for queued in envelopes.iter().filter(|envelope| envelope.behind == Behind::Queue) {
        let Some(queue_id) = &queued.queue_id else { continue };
        let dropped = Queue::existing(&config.serve.queue()).map_err(ByHandError::from);
        match dropped.and_then(|queue| queue.drop_message(queue_id)) {
            Ok(_) => say(&format!("{queue_id} is removed from the file queue")),
            Err(ByHandError::NoSuch { .. } | ByHandError::Queue(QueueError::NoQueue { .. })) => {}
            Err(error) => {
                complain(&format!("{id}: {error}\nit is left where it is"));
                let busy = matches!(error, ByHandError::BeingDelivered { .. });
                return Err(if busy { ExitCode::TempFail } else { ExitCode::Unavailable });
            }
        }
    }
    store.drop_copy(&digest).map_err(|error| failed(&error))?;
    say(&format!("{id} is removed"));
    let with_postfix = envelopes.iter().filter(|envelope| envelope.behind == Behind::Mta);
    for queue_id in with_postfix.filter_map(|envelope| envelope.queue_id.as_deref()) {
        say(&printable(&format!("what Postfix has of it is tried further, until: postsuper -d {queue_id}")));
    }
    Ok(())
}

/// Why this copy may be all that there is of a message.
fn nobody_else_has(shunted: &Shunted, queue_lifetime: Duration) -> Option<String> {
    if !shunted.has_mta_behind() {
        return Some("it comes from the file queue, and no mail system has it".into());
    }
    let age = Duration::from_micros(u64::try_from(timestamp::now().saturating_sub(shunted.since)).unwrap_or_default());
    (age >= queue_lifetime).then(|| format!("Postfix may have given it up: it is {} old", span(age)))
}

impl Place {
    fn open(&self) -> Result<(Config, ShuntedStore), ExitCode> {
        let file = self.config.clone().unwrap_or_else(|| CONFIGURATION.into());
        let config = Config::load(&file).map_err(|error| {
            complain(&error.to_string());
            if self.config.is_none() {
                complain("give another file with --config FILE");
            }
            ExitCode::Config
        })?;
        let store = ShuntedStore::existing(&config.serve.state_directory).map_err(|error| failed(&error))?;
        Ok((config, store))
    }
}

fn not_found(error: &NoSuchCopy) -> ExitCode {
    let exit = match error {
        NoSuchCopy::Queue(error) => return failed(error),
        NoSuchCopy::None(_) => ExitCode::NoInput,
        NoSuchCopy::Several(_) | NoSuchCopy::Unreadable(_) => ExitCode::DataErr,
    };
    complain(&format!("{error}\n`maildrop_command shunt list` shows what is there"));
    exit
}
