//! `lock list`: who holds a lock, and who waits for one.

use crate::cli::site_options::{self, SiteOptions};
use crate::cli::{Slow, complain, json, say, table};
use crate::ledger::LockPurpose;
use crate::lock::Holder;
use crate::operations::locks::{Entry, Listing, list};
use clap::Args;
use std::time::Duration;
use sysexits::ExitCode;

/// For how long the server is asked.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command lock list
  maildrop_command lock list --json | jq -r '.locks[] | select(.waits) | .name'

A lock is named after the Message-ID of the message that is delivered under it, or as `lock exec` was told. On \
PostgreSQL other programs' advisory locks in this database are listed too, by their key. The age is the server's, and \
counts from when the process asked for its lock.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    site: SiteOptions,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let _slow = Slow::watch("asking the server");
    let (_, mut database) = match arguments.site.open(PATIENCE) {
        Ok(opened) => opened,
        Err(exit) => return exit,
    };
    let listing = match list(database.as_mut(), arguments.site.embedded.as_deref(), None) {
        Ok(listing) => listing,
        Err(error) => return site_options::failed(&error),
    };
    if arguments.json {
        say(&json(&listing));
    } else if listing.entries.is_empty() {
        say("no lock is held");
    } else {
        say(&table(["LOCK", "STATE", "AGE", "WHO", "HOST", "PID", "SESSION"], listing.entries.iter().map(row)));
    }
    tell_hidden(&listing);
    ExitCode::Ok
}

/// What our rights hide, and what shows it.
pub(super) fn tell_hidden(listing: &Listing) {
    for hidden in &listing.hidden {
        complain(&format!("not shown: {}. An administrator can have it shown:\n  {}", hidden.what, hidden.grant));
    }
}

fn row(entry: &Entry) -> [String; 7] {
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    [
        name(entry),
        if entry.waits { "waits" } else { "holds" }.into(),
        entry.age.map_or_else(|| "-".into(), age),
        text(&entry.application),
        text(&entry.host),
        number(entry.pid.map(u64::from)),
        number(entry.session),
    ]
}

/// What the lock is called: the server's name for it where nobody knows better.
fn name(entry: &Entry) -> String {
    match &entry.name {
        Some(LockPurpose::Message(name) | LockPurpose::Program(name)) => name.clone(),
        None => format!("key {}", entry.lock),
    }
}

/// Whole seconds, or finer below ten of them.
fn age(age: Duration) -> String {
    let shown = if age < Duration::from_secs(10) {
        Duration::from_millis(u64::try_from(age.as_millis()).unwrap_or(0) / 100 * 100)
    } else {
        Duration::from_secs(age.as_secs())
    };
    humantime::format_duration(shown).to_string()
}

/// Who holds it, in a line: what is known of it.
pub(super) fn holder(holder: Option<&Holder>) -> String {
    let Some(holder) = holder else { return "somebody who has let go of it since".into() };
    let mut known: Vec<String> = Vec::new();
    match (&holder.host, holder.pid) {
        (Some(host), Some(pid)) => known.push(format!("process {pid} on {host}")),
        _ => known.push("another session".into()),
    }
    known.extend(holder.session.map(|session| format!("database session {session}")));
    known.extend(holder.held_for.map(|held_for| format!("for {}", age(held_for))));
    known.join(", ")
}
