//! `lock list` and `lock try`: who holds a lock, and who waits for one. The query takes no lock.

use super::{Ended, Failure, fail, program_name};
use crate::base::timestamp::span;
use crate::cli::progress::Progress;
use crate::cli::site_options::{QueryOptions, SiteOptions};
use crate::cli::{Columns, or_dash, print};
use crate::lock::{Holder, LockName};
use crate::operations::lock_holder::lock_of_program;
use crate::operations::locks::{Listing, LockEntry, list};
use crate::site::Site;
use clap::Args;
use std::time::Duration;
use sysexits::ExitCode;

/// The time limit of the query.
const PATIENCE: Duration = Duration::from_secs(30);

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

pub(super) fn list_all(QueryOptions { site, json }: &QueryOptions) -> Ended {
    let listing = look(site, |_| None)?;
    print(*json, &listing, || crate::cli::list(&listing.entries, "no lock is held", COLUMNS));
    Ok(ExitCode::Ok)
}

pub(super) fn try_one(TryArguments { query, message_id, name }: &TryArguments) -> Ended {
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

/// The locks of a site, or one of them.
fn look(options: &SiteOptions, only: impl FnOnce(&Site) -> Option<LockName>) -> Result<Listing, Failure> {
    let _progress = Progress::watch("asking the server");
    let (site, mut database) = options.open(PATIENCE)?;
    Ok(list(database.as_mut(), options.embedded.as_deref(), only(&site).as_ref())?)
}

/// The holder of a lock, if it is known, over a connection of its own.
pub(super) fn holder(site: &SiteOptions, lock: &LockName) -> Option<LockEntry> {
    look(site, |_| Some(*lock)).ok()?.entries.into_iter().find(|entry| !entry.waits)
}

const COLUMNS: Columns<LockEntry, 7> = [
    ("LOCK", |entry| entry.name.clone().unwrap_or_else(|| format!("key {}", entry.lock))),
    ("STATE", |entry| if entry.waits { "waits" } else { "holds" }.into()),
    ("AGE", |entry| or_dash(entry.age.map(span))),
    ("WHO", |entry| or_dash(entry.application.as_ref())),
    ("HOST", |entry| or_dash(entry.host.as_ref())),
    ("PID", |entry| or_dash(entry.pid)),
    ("SESSION", |entry| or_dash(entry.session)),
];

/// The holder of a lock, in one line.
pub(super) fn who(LockEntry { host, pid, session, age, application, .. }: &LockEntry) -> String {
    let holder = Holder { host: host.clone(), pid: *pid, queue_id: None, session: *session, held_for: *age };
    application.as_ref().map_or_else(|| holder.to_string(), |application| format!("{application}: {holder}"))
}
