//! `queue`: the file queue, by hand.

use super::folders::failed;
use super::site_options::CONFIGURATION;
use super::{complain, json, said, say, table};
use crate::base::terminal::shell_word;
use crate::base::timestamp;
use crate::config::Config;
use crate::queue::{ByHandError, Entry, Queue, State};
use clap::{Args, Subcommand};
use std::io::Write;
use std::path::PathBuf;
use std::time::SystemTime;
use sysexits::ExitCode;

const STATES: &str = "\
The states: new (waits for its turn, or for its next try), work (a runner is at it), held (by hand, or \
since it may have been delivered longer ago than the ledger remembers), refused (a recipient \
refused it for good), bad (it cannot be read). Nobody else has these messages: none of them goes by itself before it is \
delivered.

Exit status: 0, 64 for a mistake in the arguments, 65 if a message is not where that can be done to it, 66 if there is no \
such message or no queue, 69 if the disk fails us, 75 if it is being delivered at this moment, 77 if this user may not, 78 \
if the configuration cannot be read.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// What is in the queue: a line for each message, the oldest first
    List(ListArguments),
    /// All that is known of one message, or the message itself
    Show(ShowArguments),
    /// Keep messages back until they are released
    Hold(HoldArguments),
    /// Let messages go that were held, refused or set aside: they are tried as soon as may be
    Release(ReleaseArguments),
    /// Remove messages for good: nobody else has them
    Drop(DropArguments),
}

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct QueueOptions {
    /// The configuration file, whose serve.state_directory has the queue [default: /etc/maildrop_command/config.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command queue list
  maildrop_command queue list --state refused --state bad
  maildrop_command queue list --json | jq -r '.[] | select(.tries > 10) | .id'

It only reads, and runners go on meanwhile.

{STATES}"))]
pub(crate) struct ListArguments {
    #[command(flatten)]
    queue: QueueOptions,
    /// Only those in this state: new, work, held, refused, bad
    #[arg(long, value_name = "STATE")]
    state: Vec<State>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command queue show 01795000000000000000-3eb0a00376717080
  maildrop_command queue show --message 01795000000000000000-3eb0a00376717080 >message.eml

{STATES}"))]
pub(crate) struct ShowArguments {
    #[command(flatten)]
    queue: QueueOptions,
    /// Print the message itself, as it came
    #[arg(long, conflicts_with = "json")]
    message: bool,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    /// As `queue list` prints it
    #[arg(value_name = "ID")]
    id: String,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command queue hold 01795000000000000000-3eb0a00376717080

{STATES}"))]
pub(crate) struct HoldArguments {
    #[command(flatten)]
    queue: QueueOptions,
    /// As `queue list` prints them
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command queue release 01795000000000000000-3eb0a00376717080
  maildrop_command queue list --state refused --json | jq -r '.[].id' | xargs maildrop_command queue release

The ledger knows what was delivered, for as long as retention.messages_older_than says. A message that has been in the queue for \
longer is released only with --again: if it was delivered then, it will be there twice.

{STATES}"))]
pub(crate) struct ReleaseArguments {
    #[command(flatten)]
    queue: QueueOptions,
    /// Release what is older than the ledger remembers, too
    #[arg(long)]
    again: bool,
    /// As `queue list` prints them
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command queue drop 01795000000000000000-3eb0a00376717080          say what would be removed
  maildrop_command queue drop --yes 01795000000000000000-3eb0a00376717080    remove it

To keep a copy, save it before: maildrop_command queue show --message ID >message.eml

{STATES}"))]
pub(crate) struct DropArguments {
    #[command(flatten)]
    queue: QueueOptions,
    /// Remove them
    #[arg(long)]
    yes: bool,
    /// As `queue list` prints them
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, ExitCode> {
    match command {
        Command::List(arguments) => list(arguments),
        Command::Show(arguments) => show(arguments),
        Command::Hold(HoldArguments { queue, ids }) => {
            let (_, queue) = queue.open()?;
            each(ids, |id| queue.hold(id).map(|_| format!("{id} is held")))
        }
        Command::Release(ReleaseArguments { queue, again, ids }) => {
            let (config, queue) = queue.open()?;
            let remembered = if *again { None } else { config.retention.messages_older_than };
            each(ids, |id| {
                let released = queue.release(id, remembered, *again, SystemTime::now())?;
                // Where its name was taken by another.
                let now_called = if released.id() == *id { String::new() } else { format!(" as {}", released.id()) };
                Ok(format!("{id} is released{now_called}"))
            })
        }
        Command::Drop(arguments) => drop_messages(arguments),
    }
}

fn list(arguments: &ListArguments) -> Result<ExitCode, ExitCode> {
    let (_, queue) = arguments.queue.open()?;
    let mut entries = queue.list().map_err(|error| failed(&error))?;
    if !arguments.state.is_empty() {
        entries.retain(|entry| arguments.state.contains(&entry.state));
    }
    if arguments.json {
        say(&json(&entries));
    } else if entries.is_empty() {
        say(if arguments.state.is_empty() { "the queue is empty" } else { "there is none" });
    } else {
        let header = ["ID", "STATE", "QUEUED", "SIZE", "SENDER", "RECIPIENTS", "TRIES", "NEXT TRY", "REASON"];
        say(&table(header, entries.iter().map(row)));
    }
    Ok(ExitCode::Ok)
}

fn row(entry: &Entry) -> [String; 9] {
    let moment = |moment: Option<i64>| moment.map_or_else(|| "-".into(), timestamp::told);
    [
        entry.id.clone(),
        entry.state.to_string(),
        moment(entry.queued_at),
        entry.size.map_or_else(|| "-".into(), |size| size.to_string()),
        sender(entry),
        if entry.recipients.is_empty() { "-".into() } else { entry.recipients.join(" ") },
        entry.tries.to_string(),
        moment(entry.next_try),
        entry.reason.clone().unwrap_or_else(|| "-".into()),
    ]
}

fn sender(entry: &Entry) -> String {
    match entry.sender.as_deref() {
        None => "-".into(),
        Some("") => "<>".into(),
        Some(sender) => sender.to_owned(),
    }
}

fn show(arguments: &ShowArguments) -> Result<ExitCode, ExitCode> {
    let (_, queue) = arguments.queue.open()?;
    let id = &arguments.id;
    if arguments.message {
        let (_, message) = queue.read(id).map_err(|error| left(&error))?;
        let mut stdout = std::io::stdout();
        said(stdout.write_all(&message).and_then(|()| stdout.flush()));
        return Ok(ExitCode::Ok);
    }
    let entry = entry(&queue, id)?;
    if arguments.json {
        say(&json(&entry));
        return Ok(ExitCode::Ok);
    }
    let [_, state, queued, size, sender, _, tries, next, reason] = row(&entry);
    let mut lines = vec![
        format!("id          {}", entry.id),
        format!("file        {}", shell_word(&queue.path().join(&state).join(&entry.file).to_string_lossy())),
        format!("queued      {queued}"),
        format!("brought by  {}", entry.injected_by.as_deref().unwrap_or("-")),
        format!("size        {size}"),
        format!("sender      {sender}"),
    ];
    lines.extend(entry.recipients.iter().map(|recipient| format!("recipient   {recipient}")));
    lines.extend([format!("tries       {tries}"), format!("next try    {next}"), format!("reason      {reason}")]);
    say(&lines.iter().map(|line| crate::base::terminal::printable(line)).collect::<Vec<_>>().join("\n"));
    Ok(ExitCode::Ok)
}

/// What is listed of one message.
fn entry(queue: &Queue, id: &str) -> Result<Entry, ExitCode> {
    let entries = queue.list().map_err(|error| failed(&error))?;
    let mut found: Vec<Entry> = entries.into_iter().filter(|entry| entry.id == id || entry.file == id).collect();
    match (found.pop(), found.is_empty()) {
        (Some(entry), true) => Ok(entry),
        (Some(last), false) => {
            let files = found.iter().chain([&last]).map(|entry| format!("{}/{}", entry.state, entry.file)).collect();
            Err(left(&ByHandError::Several { id: id.into(), files }))
        }
        (None, _) => Err(left(&ByHandError::NoSuch { id: id.into() })),
    }
}

fn drop_messages(arguments: &DropArguments) -> Result<ExitCode, ExitCode> {
    let (_, queue) = arguments.queue.open()?;
    if arguments.yes {
        return each(&arguments.ids, |id| queue.drop_message(id).map(|_| format!("{id} is removed")));
    }
    for id in &arguments.ids {
        let entry = entry(&queue, id)?;
        let size = entry.size.map_or_else(|| "of unknown size".into(), |size| format!("of {size} bytes"));
        say(&crate::base::terminal::printable(&format!(
            "{id}, a message {size} from {} to {}, would be removed",
            sender(&entry),
            entry.recipients.join(" ")
        )));
    }
    say("Nothing was removed. With --yes it is, and nobody else has it.");
    Ok(ExitCode::Ok)
}

/// Does something with each of these messages. One that cannot be had does not keep the others from it.
fn each(ids: &[String], does: impl Fn(&str) -> Result<String, ByHandError>) -> Result<ExitCode, ExitCode> {
    let mut exit = ExitCode::Ok;
    for id in ids {
        match does(id) {
            Ok(done) => say(&done),
            Err(error) => {
                let status = left(&error);
                if exit == ExitCode::Ok {
                    exit = status;
                }
            }
        }
    }
    Ok(exit)
}

impl QueueOptions {
    pub(super) fn open(&self) -> Result<(Config, Queue), ExitCode> {
        let file = self.config.clone().unwrap_or_else(|| CONFIGURATION.into());
        let config = Config::load(&file).map_err(|error| {
            complain(&error.to_string());
            if self.config.is_none() {
                complain("give another file with --config FILE");
            }
            ExitCode::Config
        })?;
        let queue = Queue::existing(&config.serve.queue()).map_err(|error| failed(&error))?;
        Ok((config, queue))
    }
}

/// Says why a message was left as it is, and what to do about it.
fn left(error: &ByHandError) -> ExitCode {
    let (mend, exit) = match error {
        ByHandError::Queue(error) => return failed(error),
        ByHandError::NoSuch { .. } => ("`maildrop_command queue list` shows what is there", ExitCode::NoInput),
        ByHandError::Several { .. } => ("`maildrop_command queue list --json` shows which is which", ExitCode::DataErr),
        ByHandError::BeingDelivered { .. } => ("`maildrop_command queue list` shows how it stands", ExitCode::TempFail),
        ByHandError::NotFrom { .. } => ("`maildrop_command queue list` shows how it stands", ExitCode::DataErr),
        ByHandError::TooOld { .. } => ("to release it all the same, add --again", ExitCode::DataErr),
        ByHandError::Unreadable { .. } => ("`maildrop_command queue show` says in which file it is", ExitCode::DataErr),
    };
    complain(&format!("{error}\n{mend}"));
    exit
}
