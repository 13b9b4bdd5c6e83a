//! `inject`: accepts mail that did not come through Postfix into the file queue of the service.

use super::progress::Progress;
use super::site_options::SiteOptions;
use super::{Ended, Failure, complain, fail, for_each, help, json, print_line, table};
use crate::base::deadline::Deadline;
use crate::config::{Config, DatabaseRole, MAX_RECIPIENTS, Service};
use crate::delivery::Deferral;
use crate::message::{Address, EnvelopeSender};
use crate::operations::submission::{self, NotKnown};
use crate::protocol::control_client;
use crate::queue::{Envelope, Queue, Recipient};
use crate::site::Site;
use clap::Args;
use serde::Serialize;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use sysexits::ExitCode;

/// The time limit of the database for the query for known recipients.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug, Args)]
#[command(after_help = help("inject"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    site: SiteOptions,
    /// The envelope sender; left out or empty for the null sender
    #[arg(long, value_name = "ADDRESS")]
    sender: Option<String>,
    /// An envelope recipient; may be given several times
    #[arg(long, value_name = "ADDRESS", required = true)]
    recipient: Vec<String>,
    /// The envelope sender wrote it, and gets a copy in Sent, by the rules of [sent] in the configuration
    #[arg(long, requires = "sender")]
    as_author: bool,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    /// The files; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// The result of one file.
#[derive(Debug, Serialize)]
struct Submitted {
    file: String,
    /// The message's ID in the queue; `None` if it was not accepted.
    id: Option<String>,
    size: Option<usize>,
    /// Why it was not accepted.
    problem: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    if arguments.files.iter().filter(|file| is_standard_input(file)).count() > 1 {
        return Err(fail(ExitCode::Usage, "standard input can be read once: give - once"));
    }
    let recipients = recipients(&arguments.recipient)?;
    let sender = arguments.sender.as_deref().unwrap_or_default();
    let sender = EnvelopeSender::parse(sender)
        .map_err(|error| fail(ExitCode::Usage, format!("the envelope sender {sender:?}: {error}")))?;
    arguments.site.log_to_stderr();
    // The processes of the deliveries' role deliver the message.
    let as_deliveries = |config: Config| Site::without_mailboxes(config.acting_as(DatabaseRole::Deliveries));
    let site = arguments.site.resolve_as(as_deliveries)?;
    let service = match (site.config(), &arguments.site.embedded) {
        (Some(config), _) => config.service.clone(),
        (None, directory) => Service::embedded(directory.as_deref().unwrap_or_else(|| Path::new(""))),
    };
    if recipients.len() > MAX_RECIPIENTS as usize {
        return Err(fail(ExitCode::Usage, format!("one message may have {MAX_RECIPIENTS} recipients")));
    }
    refuse_unknown(&site, &recipients)?;
    let queue = submission::queue(&service.queue())?;
    let mail = Envelope {
        sender: sender.to_string(),
        recipients: recipients.iter().map(|to| Recipient { address: to.to_string(), original: None }).collect(),
        injected_by: format!("inject, by user {}", rustix::process::getuid().as_raw()),
        may_owe_sent: arguments.as_author,
        ..Envelope::default()
    };
    submit(arguments, &site, &service, &queue, &mail)
}

fn is_standard_input(file: &Path) -> bool {
    file == Path::new("-")
}

/// The recipients without duplicates.
fn recipients(given: &[String]) -> Result<Vec<Address>, Failure> {
    let mut recipients: Vec<Address> = Vec::new();
    for text in given {
        let address =
            Address::parse(text).map_err(|error| fail(ExitCode::Usage, format!("the recipient {text:?}: {error}")))?;
        if !recipients.iter().any(|known| known.folded() == address.folded()) {
            recipients.push(address);
        }
    }
    Ok(recipients)
}

/// Refuses mail with an unknown recipient: later, nobody could be notified.
fn refuse_unknown(site: &Site, recipients: &[Address]) -> Result<(), Failure> {
    if site.config().is_none() {
        return Ok(());
    }
    let _progress = Progress::watch("asking the database who is known");
    let database = site.open_database(None, Deadline::after(PATIENCE)).map_err(Deferral::Database);
    let known = database.and_then(|mut database| submission::check_recipients(site, recipients, database.as_mut()));
    let known = known.map_err(|deferral| {
        let text = format!("{deferral}\nnothing was accepted; `maildrop_command check` shows the reason");
        fail(ExitCode::TempFail, text)
    })?;
    let Err(NotKnown { problems, for_good }) = known else { return Ok(()) };
    problems.iter().for_each(|(recipient, refusal)| complain(&format!("{recipient}: {refusal}")));
    Err(fail(if for_good { ExitCode::NoUser } else { ExitCode::TempFail }, "nothing was accepted"))
}

/// Submits one file after the other.
fn submit(arguments: &Arguments, site: &Site, service: &Service, queue: &Queue, mail: &Envelope) -> Ended {
    let limit = submission::largest(site);
    let mut all = Vec::new();
    let ended = for_each(&arguments.files, |path| {
        let file = path.to_string_lossy().into_owned();
        match enqueue(path, limit, site, queue, mail.clone()) {
            Ok((id, size)) => {
                all.push(Submitted { file, id: Some(id), size: Some(size), problem: None });
                Ok(())
            }
            Err(Failure { status, text }) => {
                let failure = fail(status, format!("{file}: {text}\nit was not accepted"));
                all.push(Submitted { file, id: None, size: None, problem: Some(text) });
                Err(failure)
            }
        }
    });
    let row = |one: &Submitted| Some([one.id.clone()?, one.size?.to_string(), one.file.clone()]);
    let accepted: Vec<_> = all.iter().filter_map(row).collect();
    let number = accepted.len();
    if arguments.json {
        print_line(&json(&all));
    } else if number > 0 {
        print_line(&table(["ID", "SIZE", "FILE"], accepted.into_iter()));
    }
    if ended.is_err() {
        complain(&format!("{number} of {} files were accepted", all.len()));
    }
    if number > 0 && !control_client::is_running(&service.control_socket()) {
        complain(&format!("maildropd is not running: {} keeps this mail until it runs", queue.path().display()));
    }
    ended
}

/// Accepts one message, and returns its ID and its size.
fn enqueue(path: &Path, limit: u64, site: &Site, queue: &Queue, mail: Envelope) -> Result<(String, usize), Failure> {
    let raw = read(path, limit)?;
    let size = raw.len();
    let id = submission::take_in(site, queue, mail, raw, limit, |_| Ok(())).map_err(|error| match error {
        submission::NotAccepted::Queue(error) => error.into(),
        submission::NotAccepted::AnotherAuthor => fail(ExitCode::DataErr, format!("--as-author, and {error}")),
        _ => fail(ExitCode::DataErr, error.to_string()),
    })?;
    Ok((id, size))
}

/// The message's bytes, and one byte more if it is too large.
fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
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
    read.map_err(|error| fail(ExitCode::NoInput, error.to_string()))?;
    Ok(raw)
}
