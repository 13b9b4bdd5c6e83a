//! `lock exec`: a command that runs on one machine at a time.

use super::program::{ProgramOutcome, die_with, run_under_lock};
use super::{exit, list, program_name};
use crate::cli::site_options::SiteOptions;
use crate::cli::{complain, duration};
use crate::operations::lock_holder::{LockRequest, lock_of_program};
use crate::operations::locks::Entry;
use clap::Args;
use std::ffi::OsString;
use std::io;
use std::time::Duration;
use sysexits::ExitCode;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  From cron on every machine; one of them does it:
    maildrop_command lock exec nightly-report -- /usr/local/bin/report

  One after another, each waiting for up to ten minutes:
    maildrop_command lock exec --wait 10m import -- ./import --all

The lock is the database's, so it excludes every machine that uses it, and it is free as soon as the command ends. \
What the command has put in the background does not keep it. A delivery never waits for such a lock.

If the lock is lost (the connection ends, or the server leaves a question unanswered, or a commit, for 11 seconds), the command and \
all that it started get SIGTERM, and SIGKILL after the grace. The server frees the lock of a machine that vanished later \
than that: 16 seconds and the grace after it last heard of it. If `lock exec` itself is killed, so is the command. \
Signals (HUP, INT, QUIT, TERM, USR1, USR2) are passed on.

With a terminal on standard input the command stays in the foreground, and a signal reaches it alone; otherwise it has \
a process group of its own, and a signal reaches all of that; Ctrl-Z then stops nothing, since a holder that stands still \
loses its lock.

Exit status: the command's, 128 + n if signal n ended it; 75 (or --busy-code) if the lock is held elsewhere; 69 if the \
lock was lost or the database cannot be asked; 126 if the command cannot be run, 127 if there is none of that name.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    site: SiteOptions,
    /// How long to wait for the lock if it is held elsewhere: 30s, 10m, 2h
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration)]
    wait: Duration,
    /// How long the command may take to end after SIGTERM, if the lock is lost
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    grace: Duration,
    /// The exit status if the lock is held elsewhere
    #[arg(long, value_name = "STATUS", default_value_t = 75)]
    busy_code: u8,
    /// The lock's name: any text
    #[arg(value_parser = program_name)]
    name: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, ExitCode> {
    arguments.site.log_to_stderr();
    let site = arguments.site.resolve()?;
    let name = &arguments.name;
    let lock = lock_of_program(site.namespace(), name);
    let request = LockRequest { name: name.clone(), lock, wait: arguments.wait };
    let open = move |deadline| site.open_primary(deadline);
    match run_under_lock(open, request, &arguments.command, arguments.grace)? {
        ProgramOutcome::Ended(status) => exit(u8::try_from(status).unwrap_or(u8::MAX)),
        ProgramOutcome::Busy(holder) => {
            // Asked once more: MySQL itself tells no more than the session, unless it is listed.
            let entry = list::holder(&arguments.site, &lock).or(holder.map(Entry::from));
            let who = entry.map_or_else(|| "somebody who has let go of it since".into(), |entry| list::who(&entry));
            complain(&format!("{name}: held by {who}"));
            exit(arguments.busy_code)
        }
        ProgramOutcome::Lost(why) => {
            complain(&format!("{name}: the lock was lost while the command ran, so it was ended: {why}"));
            Err(ExitCode::Unavailable)
        }
    }
}

/// What `lock exec` starts.
pub(super) fn become_program(parent: u32, command: &[OsString]) -> ! {
    let error = die_with(parent, command);
    let program = command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    complain(&format!("{program}: {error}"));
    // As env(1) and the shells have it.
    exit(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}
