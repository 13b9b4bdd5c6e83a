//! `lock list` and `lock try`: who holds a lock, and who waits for one. No lock is taken to find out.

use super::{exit, program_name};
use crate::cli::site_options::{SiteOptions, failed};
use crate::cli::{Slow, complain, json, say, table};
use crate::lock::LockName;
use crate::operations::lock_holder::lock_of_program;
use crate::operations::locks::{Entry, Listing, list};
use crate::site::Site;
use clap::Args;
use std::time::Duration;
use sysexits::ExitCode;

/// For how long the server is asked.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command lock list
  maildrop_command lock list --json | jq -r '.locks[] | select(.waits) | .name'

A lock is named after the Message-ID of the message that is delivered under it. On PostgreSQL, and on an embedded site, \
others are listed too, by their key: those of `lock exec`, and other programs' advisory locks in this database. MySQL and \
MariaDB answer for one name at a time: `lock try` says who has a lock of `lock exec`. The age is the server's, and counts \
from when the process asked for its lock.")]
pub(crate) struct ListArguments {
    #[command(flatten)]
    site: SiteOptions,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command lock try nightly-report
  maildrop_command lock try --message-id '123-abc@mail.google.com'

It is only a glimpse: the lock is not taken, and another may take it in the next moment. To do something under the \
lock, use `lock exec`.

Exit status: 0 free, 75 held, 69 if the database cannot be asked.")]
pub(crate) struct TryArguments {
    #[command(flatten)]
    site: SiteOptions,
    /// NAME is a Message-ID: look at the lock of its deliveries
    #[arg(long)]
    message_id: bool,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    /// The lock's name, as `lock exec` takes it
    name: String,
}

pub(super) fn list_all(arguments: &ListArguments) -> Result<ExitCode, ExitCode> {
    let listing = look(&arguments.site, |_| None)?;
    if arguments.json {
        say(&json(&listing));
    } else if listing.entries.is_empty() {
        say("no lock is held");
    } else {
        say(&table(["LOCK", "STATE", "AGE", "WHO", "HOST", "PID", "SESSION"], listing.entries.iter().map(row)));
    }
    tell_hidden(&listing);
    Ok(ExitCode::Ok)
}

pub(super) fn try_one(
    TryArguments { site, message_id, json: as_json, name }: &TryArguments,
) -> Result<ExitCode, ExitCode> {
    if !message_id && let Err(problem) = program_name(name) {
        complain(&problem);
        return Err(ExitCode::Usage);
    }
    let listing = look(site, |site| {
        Some(match message_id {
            true => site.lock_of_message_id(name.as_bytes()),
            false => lock_of_program(site.namespace(), name),
        })
    })?;
    let holder = listing.entries.iter().find(|entry| !entry.waits);
    if *as_json {
        say(&json(&listing));
    } else {
        let waiting = listing.entries.iter().filter(|entry| entry.waits).count();
        say(&match holder.map(who) {
            None => format!("{name}: free"),
            Some(who) if waiting == 0 => format!("{name}: held by {who}"),
            Some(who) => format!("{name}: held by {who}; waiting for it: {waiting}"),
        });
    }
    tell_hidden(&listing);
    // As `lock exec` says that it is busy.
    if holder.is_some() { exit(75) } else { Ok(ExitCode::Ok) }
}

/// The locks of a site, or one of them.
fn look(options: &SiteOptions, only: impl FnOnce(&Site) -> Option<LockName>) -> Result<Listing, ExitCode> {
    let _slow = Slow::watch("asking the server");
    let (site, mut database) = options.open(PATIENCE)?;
    list(database.as_mut(), options.embedded.as_deref(), only(&site).as_ref()).map_err(|error| failed(&error))
}

/// Who holds a lock, if that can be told, over a connection of its own.
pub(super) fn holder(site: &SiteOptions, lock: &LockName) -> Option<Entry> {
    let (_, mut database) = site.open(PATIENCE).ok()?;
    let listing = list(database.as_mut(), site.embedded.as_deref(), Some(lock)).ok()?;
    listing.entries.into_iter().find(|entry| !entry.waits)
}

/// What our rights hide, and what shows it.
fn tell_hidden(listing: &Listing) {
    for hidden in &listing.hidden {
        complain(&format!("not shown: {}. An administrator can have it shown:\n  {}", hidden.what, hidden.grant));
    }
}

fn row(entry: &Entry) -> [String; 7] {
    let name = entry.name.clone().unwrap_or_else(|| format!("key {}", entry.lock));
    let known = [
        entry.age.map(age),
        entry.application.clone(),
        entry.host.clone(),
        entry.pid.map(|pid| pid.to_string()),
        entry.session.map(|session| session.to_string()),
    ];
    let [age, application, host, pid, session] = known.map(|known| known.unwrap_or_else(|| "-".into()));
    [name, if entry.waits { "waits" } else { "holds" }.into(), age, application, host, pid, session]
}

/// Whole seconds, or tenths below ten of them.
fn age(age: Duration) -> String {
    let step = if age < Duration::from_secs(10) { 100 } else { 1000 };
    let shown = u64::try_from(age.as_millis()).unwrap_or(u64::MAX) / step * step;
    humantime::format_duration(Duration::from_millis(shown)).to_string()
}

/// Who holds a lock, in a line.
pub(super) fn who(entry: &Entry) -> String {
    let mut known = vec![match (&entry.host, entry.pid) {
        (Some(host), Some(pid)) => format!("process {pid} on {host}"),
        (Some(host), None) => format!("a session of {host}"),
        _ => "another session".into(),
    }];
    known.extend(entry.session.map(|session| format!("database session {session}")));
    known.extend(entry.age.map(|held_for| format!("for {}", age(held_for))));
    let known = known.join(", ");
    entry.application.as_ref().map_or_else(|| known.clone(), |application| format!("{application}: {known}"))
}
