//! `inject`: takes mail that has no Postfix behind it into the file queue of the service.

use super::site_options::SiteOptions;
use super::{Slow, complain, json, say, table};
use crate::base::deadline::Deadline;
use crate::config::{Config, DatabaseRole, MAX_RECIPIENTS, Serve};
use crate::delivery::Deferral;
use crate::message::{Address, EnvelopeSender};
use crate::operations::submission::{self, NotKnown};
use crate::queue::{NewMail, Queue, QueueError, Recipient};
use crate::site::Site;
use clap::Args;
use serde::Serialize;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use sysexits::ExitCode;

/// How long the database may take to say who is known.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command inject --sender lisa@gmail.com --recipient doug@mail.axial.net message.eml
  maildrop_command inject --recipient doug@mail.axial.net --recipient scuba@mail.axial.net *.eml
  report | maildrop_command inject --recipient doug@mail.axial.net -

Each file is one message, for all of the recipients. What is accepted is on the disk, and has an ID by which \
`maildrop_command queue show` and `maildrop_command trace` find it. The service delivers it, as soon as may be. A message that \
is taken in twice is delivered once, if it has a Message-ID and a Date, or a Received field. One that has not is a new one each \
time: it is told from the next by a Received field that is put on top.

Where a recipient is unknown, nothing is accepted. Where one file cannot be accepted, the others are, and it says which.

Exit status: 0 if every file is accepted, 64 for a mistake in the arguments, 65 if a file is no message or too large, 66 if it \
cannot be read, 67 if a recipient is unknown and routing.unknown is `reject`, 74 if the disk fails us, 75 if a recipient is unknown \
otherwise, if the database cannot say who is known, or if the disk is full: try again later, 77 if this user may not, 78 if the configuration cannot be read.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    site: SiteOptions,
    /// The envelope sender; left out or empty for the null sender
    #[arg(long, value_name = "ADDRESS")]
    sender: Option<String>,
    /// An envelope recipient; as often as there are recipients
    #[arg(long, value_name = "ADDRESS", required = true)]
    recipient: Vec<String>,
    /// The envelope sender has written it, and is to have a copy in Sent, by the rules of [sent] in the configuration
    #[arg(long, requires = "sender")]
    as_author: bool,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    /// The files; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// What became of one file.
#[derive(Debug, Serialize)]
struct Taken {
    file: String,
    /// The message's ID in the queue; `None` where it was not accepted.
    id: Option<String>,
    size: Option<usize>,
    /// Why it was not accepted.
    problem: Option<String>,
}

/// Why a file was not accepted.
struct NotTaken {
    problem: String,
    exit: ExitCode,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, ExitCode> {
    if arguments.files.iter().filter(|file| is_standard_input(file)).count() > 1 {
        complain("standard input can be read once: give - once");
        return Err(ExitCode::Usage);
    }
    let recipients = recipients(&arguments.recipient)?;
    let sender = arguments.sender.as_deref().unwrap_or_default();
    let sender = EnvelopeSender::parse(sender).map_err(|error| {
        complain(&format!("the envelope sender {sender:?}: {error}"));
        ExitCode::Usage
    })?;
    arguments.site.log_to_stderr();
    // What it hands in is delivered by those.
    let as_deliveries = |config: Config| Site::without_mailboxes(config.acting_as(DatabaseRole::Deliveries));
    let site = arguments.site.resolve_as(as_deliveries)?;
    let serve = match (site.config(), &arguments.site.embedded) {
        (Some(config), _) => config.serve.clone(),
        (None, directory) => Serve::embedded(directory.as_deref().unwrap_or_else(|| Path::new(""))),
    };
    if recipients.len() > MAX_RECIPIENTS as usize {
        complain(&format!("one message may have {MAX_RECIPIENTS} recipients"));
        return Err(ExitCode::Usage);
    }
    at_the_door(&site, &recipients)?;
    let queue = submission::queue(&serve.queue()).map_err(|error| {
        let NotTaken { problem, exit } = not_queued(&error);
        complain(&format!("{problem}\nnothing was accepted"));
        exit
    })?;
    let mail = NewMail {
        sender: sender.to_string(),
        recipients: recipients.iter().map(|to| Recipient { address: to.to_string(), original: None }).collect(),
        injected_by: format!("inject, by user {}", rustix::process::getuid().as_raw()),
        may_owe_sent: arguments.as_author,
        vouches: arguments.as_author,
    };
    Ok(take_in(arguments, &site, &queue, &mail))
}

fn is_standard_input(file: &Path) -> bool {
    file == Path::new("-")
}

/// The recipients, each once.
fn recipients(given: &[String]) -> Result<Vec<Address>, ExitCode> {
    let mut recipients: Vec<Address> = Vec::new();
    for text in given {
        let address = Address::parse(text).map_err(|error| {
            complain(&format!("the recipient {text:?}: {error}"));
            ExitCode::Usage
        })?;
        if !recipients.iter().any(|known| known.folded() == address.folded()) {
            recipients.push(address);
        }
    }
    Ok(recipients)
}

/// Refuses what has an unknown recipient: later, nobody could be told.
fn at_the_door(site: &Site, recipients: &[Address]) -> Result<(), ExitCode> {
    if site.config().is_none() {
        return Ok(());
    }
    let _slow = Slow::watch("asking the database who is known");
    let database = site.open_database(None, Deadline::after(PATIENCE)).map_err(Deferral::Database);
    let known = database.and_then(|mut database| submission::at_the_door(site, recipients, database.as_mut()));
    let known = known.map_err(|deferral| {
        complain(&format!("{deferral}\nnothing was accepted; `maildrop_command check` shows what is in the way"));
        ExitCode::TempFail
    })?;
    let Err(NotKnown { problems, for_good }) = known else { return Ok(()) };
    problems.iter().for_each(|(recipient, refusal)| complain(&format!("{recipient}: {refusal}")));
    complain("nothing was accepted");
    Err(if for_good { ExitCode::NoUser } else { ExitCode::TempFail })
}

/// One file after the other. One that cannot be accepted does not keep the others from it.
fn take_in(arguments: &Arguments, site: &Site, queue: &Queue, mail: &NewMail) -> ExitCode {
    let limit = submission::largest(site);
    let (mut exit, mut all) = (ExitCode::Ok, Vec::new());
    for path in &arguments.files {
        let file = path.to_string_lossy().into_owned();
        all.push(match enqueue(path, limit, site, queue, mail.clone()) {
            Ok((id, size)) => Taken { file, id: Some(id), size: Some(size), problem: None },
            Err(NotTaken { problem, exit: why }) => {
                complain(&format!("{file}: {problem}: it was not accepted"));
                if exit == ExitCode::Ok {
                    exit = why;
                }
                Taken { file, id: None, size: None, problem: Some(problem) }
            }
        });
    }
    let accepted = all.iter().filter(|taken| taken.id.is_some()).count();
    if arguments.json {
        say(&json(&all));
    } else if accepted > 0 {
        let row = |taken: &Taken| {
            let size = taken.size.map(|size| size.to_string());
            Some([taken.id.clone()?, size.unwrap_or_default(), taken.file.clone()])
        };
        say(&table(["ID", "SIZE", "FILE"], all.iter().filter_map(row)));
    }
    if exit != ExitCode::Ok {
        complain(&format!("{accepted} of {} files were accepted", all.len()));
    }
    exit
}

/// Accepts one message: its ID and its size.
fn enqueue(path: &Path, limit: u64, site: &Site, queue: &Queue, mail: NewMail) -> Result<(String, usize), NotTaken> {
    let raw = read(path, limit)?;
    let size = raw.len();
    let id = submission::take_in(site, queue, mail, raw, limit).map_err(|error| match &error {
        submission::NotTaken::Queue(error) => not_queued(error),
        submission::NotTaken::AnotherAuthor => {
            NotTaken { problem: format!("--as-author, and {error}"), exit: ExitCode::DataErr }
        }
        _ => NotTaken { problem: error.to_string(), exit: ExitCode::DataErr },
    })?;
    Ok((id, size))
}

/// The message's bytes, and one more where it is too large.
fn read(path: &Path, limit: u64) -> Result<Vec<u8>, NotTaken> {
    let mut raw = Vec::new();
    let limit = limit.saturating_add(1);
    let read = if is_standard_input(path) {
        if io::stdin().is_terminal() {
            complain("reading the message from the terminal; end it with Ctrl-D");
        }
        io::stdin().lock().take(limit).read_to_end(&mut raw)
    } else {
        File::open(path).and_then(|file| file.take(limit).read_to_end(&mut raw))
    };
    read.map_err(|error| NotTaken { problem: error.to_string(), exit: ExitCode::NoInput })?;
    Ok(raw)
}

fn not_queued(error: &QueueError) -> NotTaken {
    let exit = match error {
        QueueError::NoSpace { .. } => ExitCode::TempFail,
        QueueError::AnotherOwner { .. } | QueueError::WritableByOthers { .. } => ExitCode::NoPerm,
        QueueError::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => ExitCode::NoPerm,
        _ => ExitCode::IoErr,
    };
    let mend = match (error, exit) {
        (QueueError::WritableByOthers { .. }, _) => "",
        (_, ExitCode::NoPerm) => " (run this as the user whom the service runs as)",
        _ => "",
    };
    NotTaken { problem: format!("{error}{mend}"), exit }
}
