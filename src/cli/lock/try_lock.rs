//! `lock try`: whether a lock is free, without taking it.

use super::{exit, free_name, list, lock_name};
use crate::cli::site_options::{self, SiteOptions};
use crate::cli::{Slow, complain, json, say};
use crate::lock::{Holder, LockName};
use crate::operations::locks;
use crate::operations::locks::Entry;
use clap::Args;
use sysexits::ExitCode;

/// Busy, as `lock exec` says it.
const BUSY: u8 = 75;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command lock try nightly-report
  maildrop_command lock try --message-id '123-abc@mail.google.com'

It is only a glimpse: the lock is not taken, and another may take it in the next moment. To do something under the \
lock, use `lock exec`.

Exit status: 0 free, 75 held, 69 if the database cannot be asked.")]
pub(crate) struct Arguments {
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

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    if !arguments.message_id
        && let Err(problem) = free_name(&arguments.name)
    {
        complain(&problem);
        return ExitCode::Usage;
    }
    let _slow = Slow::watch("asking the server");
    let (site, mut database) = match arguments.site.open(list::PATIENCE) {
        Ok(opened) => opened,
        Err(exit) => return exit,
    };
    let lock = lock_name(&site, &arguments.name, arguments.message_id);
    let listing = match locks::list(database.as_mut(), arguments.site.embedded.as_deref(), Some(&lock)) {
        Ok(listing) => listing,
        Err(error) => return site_options::failed(&error),
    };
    let holder = listing.entries.iter().find(|entry| !entry.waits);
    if arguments.json {
        say(&json(&listing));
    } else {
        let waiting = listing.entries.iter().filter(|entry| entry.waits).count();
        say(&match holder {
            None => format!("{}: free", arguments.name),
            Some(entry) if waiting == 0 => format!("{}: held by {}", arguments.name, who(entry)),
            Some(entry) => format!("{}: held by {}; waiting for it: {waiting}", arguments.name, who(entry)),
        });
    }
    list::tell_hidden(&listing);
    if holder.is_some() { exit(BUSY) } else { ExitCode::Ok }
}

/// Who holds a lock, if that can be told, over a connection of its own.
pub(super) fn holder(site: &SiteOptions, lock: &LockName) -> Option<Entry> {
    let (_, mut database) = site.open(list::PATIENCE).ok()?;
    let listing = locks::list(database.as_mut(), site.embedded.as_deref(), Some(lock)).ok()?;
    listing.entries.into_iter().find(|entry| !entry.waits)
}

pub(super) fn who(entry: &Entry) -> String {
    let holder = Holder {
        host: entry.host.clone(),
        pid: entry.pid,
        session: entry.session,
        held_for: entry.age,
        ..Holder::default()
    };
    let holder = list::holder(Some(&holder));
    entry.application.as_ref().map_or_else(|| holder.clone(), |application| format!("{application}: {holder}"))
}
