//! `queue`: manual work on the file queue.

use super::confirmation::{Confirmation, report_unconfirmed};
use super::{Columns, Ended, Failure, facts, fail, for_each, help, list, or_dash, print, print_bytes, print_line};
use crate::base::terminal::{printable, shell_word};
use crate::base::timestamp;
use crate::config::{CONFIGURATION, Config};
use crate::queue::{Entry, Queue, QueueAdminError, QueueError, State};
use clap::{Args, Subcommand};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::SystemTime;
use sysexits::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the messages in the queue, the oldest first
    #[command(after_help = help("queue list"))]
    List(ListArguments),
    /// Show one message's state and history, or the message itself
    #[command(after_help = help("queue show"))]
    Show(ShowArguments),
    /// Hold messages until they are released
    #[command(after_help = help("queue hold"))]
    Hold {
        #[command(flatten)]
        queue: QueueOptions,
        #[command(flatten)]
        confirmation: Confirmation,
        /// As `queue list` prints them
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Release messages that were held, refused or shunted: they are tried as soon as possible
    #[command(after_help = help("queue release"))]
    Release {
        #[command(flatten)]
        queue: QueueOptions,
        #[command(flatten)]
        confirmation: Confirmation,
        /// Release also messages that are older than the ledger's memory
        #[arg(long)]
        again: bool,
        /// As `queue list` prints them
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Remove messages permanently: nobody else has them
    #[command(after_help = help("queue drop"))]
    Drop {
        #[command(flatten)]
        queue: QueueOptions,
        /// Remove them
        #[arg(long)]
        yes: bool,
        /// As `queue list` prints them
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
}

#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct QueueOptions {
    /// The configuration file, whose service.state_directory has the queue
    #[arg(long, value_name = "FILE", default_value = CONFIGURATION)]
    config: PathBuf,
}

#[derive(Debug, Args)]
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

/// Which message to show, and how: of `queue` and of `shunt`.
#[derive(Debug, Args)]
pub(crate) struct ShowArguments {
    #[command(flatten)]
    pub(super) queue: QueueOptions,
    /// Print the message itself, as it came
    #[arg(long, conflicts_with = "json")]
    pub(super) message: bool,
    /// Print JSON, for programs
    #[arg(long)]
    pub(super) json: bool,
    /// As `list` prints it
    #[arg(value_name = "ID")]
    pub(super) id: String,
}

pub(crate) fn run(command: &Command) -> Ended {
    match command {
        Command::List(arguments) => list_entries(arguments),
        Command::Show(arguments) => show(arguments),
        Command::Hold { queue, confirmation, ids } => {
            let (_, queue) = queue.open()?;
            if ids.len() > 1 && confirmation.is_missing() {
                return preview(&queue, ids, "held");
            }
            change_each(ids, |id| queue.hold(id).map(|_| format!("{id} is held")))
        }
        Command::Release { queue, confirmation, again, ids } => {
            let (config, queue) = queue.open()?;
            if ids.len() > 1 && confirmation.is_missing() {
                return preview(&queue, ids, "released");
            }
            let remembered = if *again { None } else { config.retention.messages_older_than };
            change_each(ids, |id| {
                let released = queue.release(id, remembered, *again, SystemTime::now())?;
                // Another message has taken its name.
                let new_name = if released.id() == *id { String::new() } else { format!(" as {}", released.id()) };
                Ok(format!("{id} is released{new_name}"))
            })
        }
        Command::Drop { queue, yes, ids } => {
            let (_, queue) = queue.open()?;
            match yes {
                true => change_each(ids, |id| queue.drop_message(id).map(|_| format!("{id} is removed"))),
                // Nobody else has it.
                false => preview(&queue, ids, "removed"),
            }
        }
    }
}

/// Prints which messages would be changed.
fn preview(queue: &Queue, ids: &[String], done: &str) -> Ended {
    for id in ids {
        let entry = entry(queue, id)?;
        print_line(&would_be(id, entry.size, &sender(&entry), &entry.recipients, done));
    }
    report_unconfirmed(done, false)
}

/// What would be done to a message, in one line.
pub(super) fn would_be(id: &str, size: Option<u64>, sender: &str, recipients: &[String], done: &str) -> String {
    let size = size.map_or_else(|| "of unknown size".into(), |size| format!("of {size} bytes"));
    let recipients = recipients.join(" ");
    printable(&format!("{id}, a message {size} from {sender} to {recipients}, would be {done}"))
}

fn list_entries(arguments: &ListArguments) -> Ended {
    let (_, queue) = arguments.queue.open()?;
    let mut entries = queue.list()?;
    if !arguments.state.is_empty() {
        entries.retain(|entry| arguments.state.contains(&entry.state));
    }
    let nothing = if arguments.state.is_empty() { "the queue is empty" } else { "there is none" };
    print(arguments.json, &entries, || list(&entries, nothing, COLUMNS));
    Ok(ExitCode::Ok)
}

const COLUMNS: Columns<Entry, 9> = [
    ("ID", |entry| entry.id.clone()),
    ("STATE", |entry| entry.state.to_string()),
    ("QUEUED", |entry| or_dash(entry.queued_at.map(timestamp::time_text))),
    ("SIZE", |entry| or_dash(entry.size)),
    ("SENDER", sender),
    ("RECIPIENTS", |entry| if entry.recipients.is_empty() { "-".into() } else { entry.recipients.join(" ") }),
    ("TRIES", |entry| entry.tries.to_string()),
    ("NEXT TRY", |entry| or_dash(entry.next_try.map(timestamp::time_text))),
    ("REASON", |entry| or_dash(entry.reason.as_ref())),
];

fn sender(entry: &Entry) -> String {
    or_dash(entry.sender.as_deref().map(or_null_sender))
}

pub(super) fn or_null_sender(sender: &str) -> String {
    if sender.is_empty() { "<>".into() } else { sender.to_owned() }
}

fn show(ShowArguments { queue, message, json, id }: &ShowArguments) -> Ended {
    let (_, queue) = queue.open()?;
    if *message {
        print_bytes(&queue.read(id)?.1);
        return Ok(ExitCode::Ok);
    }
    let entry = entry(&queue, id)?;
    print(*json, &entry, || {
        let [id, state, queued, size, sender, _, tries, next, reason] = COLUMNS.map(|(_, cell)| cell(&entry));
        let file = shell_word(&queue.path().join(state).join(&entry.file).to_string_lossy());
        let mut lines = vec![("id", id), ("file", file), ("queued", queued)];
        lines.push(("brought by", or_dash(entry.injected_by.as_ref())));
        lines.extend([("size", size), ("sender", sender)]);
        lines.extend(entry.recipients.iter().map(|recipient| ("recipient", recipient.clone())));
        lines.extend([("tries", tries), ("next try", next), ("reason", reason)]);
        facts(12, lines)
    });
    Ok(ExitCode::Ok)
}

/// The list entry of one message.
fn entry(queue: &Queue, id: &str) -> Result<Entry, Failure> {
    let mut found = queue.list()?;
    found.retain(|entry| entry.id == id || entry.file == id);
    match (found.pop(), found.is_empty()) {
        (Some(entry), true) => Ok(entry),
        (Some(last), false) => {
            let files = found.iter().chain([&last]).map(|entry| format!("{}/{}", entry.state, entry.file)).collect();
            Err(QueueAdminError::Several { id: id.into(), files }.into())
        }
        (None, _) => Err(QueueAdminError::NoSuch { id: id.into() }.into()),
    }
}

fn change_each(ids: &[String], change: impl Fn(&str) -> Result<String, QueueAdminError>) -> Ended {
    for_each(ids, |id| {
        print_line(&change(id)?);
        Ok(())
    })
}

impl QueueOptions {
    pub(super) fn open(&self) -> Result<(Config, Queue), Failure> {
        let config = Config::load(&self.config).map_err(|error| fail(ExitCode::Config, error.to_string()))?;
        let queue = Queue::existing(&config.service.queue())?;
        Ok((config, queue))
    }
}

/// The folders of the service cannot be used.
impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        let (fix, exit) = match &error {
            QueueError::NoQueue { .. } => (
                "the service makes it when it first starts; see service.state_directory in the configuration",
                ExitCode::NoInput,
            ),
            QueueError::AnotherOwner { .. } => ("run this as the user whom the service runs as", ExitCode::NoPerm),
            QueueError::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
                ("run this as the user whom the service runs as, or as root", ExitCode::NoPerm)
            }
            QueueError::WritableByOthers { .. } => ("see first who has put what there", ExitCode::NoPerm),
            QueueError::NoSpace { .. } => ("free space on that disk", ExitCode::TempFail),
            _ => ("nothing was changed", ExitCode::IoErr),
        };
        fail(exit, format!("{error}\n{fix}"))
    }
}

/// A message was left unchanged.
impl From<QueueAdminError> for Failure {
    fn from(error: QueueAdminError) -> Self {
        let (fix, exit) = match error {
            QueueAdminError::Queue(error) => return error.into(),
            QueueAdminError::NoSuch { .. } => ("`maildrop_command queue list` shows what is there", ExitCode::NoInput),
            QueueAdminError::Several { .. } => {
                ("`maildrop_command queue list --json` shows which is which", ExitCode::DataErr)
            }
            QueueAdminError::BeingDelivered { .. } => {
                ("`maildrop_command queue list` shows its state", ExitCode::TempFail)
            }
            QueueAdminError::NotFrom { .. } => ("`maildrop_command queue list` shows its state", ExitCode::DataErr),
            QueueAdminError::TooOld { .. } => ("to release it all the same, add --again", ExitCode::DataErr),
            QueueAdminError::Unreadable { .. } => {
                ("`maildrop_command queue show` says in which file it is", ExitCode::DataErr)
            }
        };
        fail(exit, format!("{error}\n{fix}"))
    }
}
