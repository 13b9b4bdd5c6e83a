//! `lock`: the named lock, for people and other programs.

mod exec;

use super::progress::Progress;
use super::site_options::{QueryOptions, SiteOptions};
use super::{Columns, Ended, Failure, fail, help, or_dash, print};
use crate::base::timestamp::span;
use crate::delivery::lock_of_message_id;
use crate::lock::{DEFAULT_NAMESPACE, Holder, LockName, OF_PROGRAMS};
use crate::operations::lock_holder::lock_of_program;
use crate::operations::locks::{Listing, LockEntry, list};
use crate::site::Site;
use clap::{Args, Subcommand};
use std::time::Duration;
use sysexits::ExitCode;

pub(crate) use exec::become_program;

/// The time limit of a query.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock: on one machine at a time, of all that use this database
    #[command(after_help = help("lock exec"))]
    Exec(exec::Arguments),
    /// List who holds a lock, and who waits for one
    #[command(after_help = help("lock list"))]
    List(QueryOptions),
    /// Test whether a lock is free right now, without taking it
    #[command(after_help = help("lock try"))]
    Try(TryArguments),
    /// Print the PostgreSQL key and the MySQL name of a Message-ID's lock
    #[command(after_help = help("lock key"))]
    Key(KeyArguments),
}

#[derive(Debug, Args)]
pub(crate) struct TryArguments {
    #[command(flatten)]
    query: QueryOptions,
    /// NAME is a Message-ID: look at the lock of its deliveries
    #[arg(long)]
    message_id: bool,
    /// The lock's name, as `lock exec` takes it
    name: String,
}

#[derive(Debug, Args)]
pub(crate) struct KeyArguments {
    /// The Message-ID, with or without its angle brackets
    message_id: String,
    /// The namespace: lock.namespace in the configuration
    #[arg(long, default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Command) -> Ended {
    match command {
        Command::Exec(arguments) => exec::run(arguments),
        Command::List(QueryOptions { site, json }) => {
            let listing = look(site, |_| None)?;
            print(*json, &listing, || super::list(&listing.entries, "no lock is held", COLUMNS));
            Ok(ExitCode::Ok)
        }
        Command::Try(arguments) => try_lock(arguments),
        Command::Key(KeyArguments { message_id, namespace, json }) => {
            // In a program's name, no byte is replaced by X.
            let name = match namespace.strip_suffix(OF_PROGRAMS) {
                Some(site) => lock_of_program(site, message_id),
                None => lock_of_message_id(namespace, message_id.as_bytes()),
            };
            let (key, mysql_name) = (name.postgres_key(), name.mysql_name());
            // A bigint as text: many programs lose the last digits of JSON numbers above 2^53.
            let value = serde_json::json!({ "postgresql": key.to_string(), "mysql": mysql_name });
            print(*json, &value, || format!("postgresql  {key}\nmysql       {mysql_name}"));
            Ok(ExitCode::Ok)
        }
    }
}

/// `lock list` and `lock try`: the query takes no lock.
fn look(options: &SiteOptions, only: impl FnOnce(&Site) -> Option<LockName>) -> Result<Listing, Failure> {
    let _progress = Progress::watch("asking the server");
    let (site, mut database) = options.open(PATIENCE)?;
    Ok(list(database.as_mut(), options.embedded.as_deref(), only(&site).as_ref())?)
}

fn try_lock(TryArguments { query, message_id, name }: &TryArguments) -> Ended {
    if !message_id {
        program_name(name).map_err(|problem| fail(ExitCode::Usage, problem))?;
    }
    let listing = look(&query.site, |site| {
        Some(match message_id {
            true => site.lock_of_message_id(name.as_bytes()),
            false => lock_of_program(site.namespace(), name),
        })
    })?;
    let holder = listing.entries.iter().find(|entry| !entry.waits);
    print(query.json, &listing, || {
        let waiting = listing.entries.iter().filter(|entry| entry.waits).count();
        match holder.map(who) {
            None => format!("{name}: free"),
            Some(who) if waiting == 0 => format!("{name}: held by {who}"),
            Some(who) => format!("{name}: held by {who}; waiting for it: {waiting}"),
        }
    });
    // The exit status with which `lock exec` reports a busy lock.
    Ok(if holder.is_some() { ExitCode::TempFail } else { ExitCode::Ok })
}

const COLUMNS: Columns<LockEntry, 7> = [
    ("LOCK", |entry| entry.name.clone().unwrap_or_else(|| format!("key {}", entry.lock))),
    ("STATE", |entry| if entry.waits { "waits" } else { "holds" }.into()),
    ("AGE", |entry| or_dash(entry.process.held_for.map(span))),
    ("WHO", |entry| or_dash(entry.application.as_ref())),
    ("HOST", |entry| or_dash(entry.process.host.as_ref())),
    ("PID", |entry| or_dash(entry.process.pid)),
    ("SESSION", |entry| or_dash(entry.process.session)),
];

/// The holder of a lock, in one line.
fn who(LockEntry { application, process, .. }: &LockEntry) -> String {
    // The application names the queue id.
    let holder = Holder { queue_id: None, ..process.clone() };
    application.as_ref().map_or_else(|| holder.to_string(), |application| format!("{application}: {holder}"))
}

/// Parses the name of a program's lock. White space around it and angle brackets are refused, because a Message-ID's
/// lock ignores them: two different names must be two locks.
fn program_name(text: &str) -> Result<String, String> {
    let plain = !text.is_empty() && text.trim() == text && !text.starts_with('<') && !text.contains(char::is_control);
    if plain && text.len() <= 200 {
        Ok(text.to_owned())
    } else {
        Err("a name is 1 to 200 bytes, with no `<` or white space before it, none after it and no control characters"
            .into())
    }
}
