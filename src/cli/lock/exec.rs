//! `lock exec`: a command that runs on one machine at a time.

use super::program::{ProgramOutcome, die_with, run_under_lock};
use super::{Ended, complain, exit, fail, list, program_name};
use crate::cli::duration;
use crate::cli::site_options::SiteOptions;
use crate::operations::lock_holder::{LockRequest, lock_of_program};
use clap::Args;
use std::ffi::OsString;
use std::io;
use std::time::Duration;
use sysexits::ExitCode;

#[derive(Debug, Args)]
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

pub(crate) fn run(arguments: &Arguments) -> Ended {
    arguments.site.log_to_stderr();
    let site = arguments.site.resolve()?;
    let name = &arguments.name;
    let lock = lock_of_program(site.namespace(), name);
    let request = LockRequest { name: name.clone(), lock, wait: arguments.wait };
    let open = move |deadline| site.open_primary(deadline);
    match run_under_lock(open, request, &arguments.command, arguments.grace)? {
        ProgramOutcome::Ended(status) => exit(u8::try_from(status).unwrap_or(u8::MAX)),
        ProgramOutcome::Busy(holder) => {
            // A second query: MySQL's own answer has only the session, unless the list has more.
            let listed = list::holder(&arguments.site, &lock).map(|entry| list::who(&entry));
            let who = listed.or_else(|| holder.map(|holder| holder.to_string()));
            let who = who.unwrap_or_else(|| "somebody who has released it since".into());
            Err(fail(arguments.busy_code, format!("{name}: held by {who}")))
        }
        ProgramOutcome::Lost(why) => {
            let text = format!("{name}: the lock was lost while the command ran, so it was ended: {why}");
            Err(fail(ExitCode::Unavailable, text))
        }
    }
}

/// The intermediate program that `lock exec` starts.
pub(super) fn become_program(parent: u32, command: &[OsString]) -> ! {
    let error = die_with(parent, command);
    let program = command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    complain(&format!("{program}: {error}"));
    // The exit statuses of env(1) and the shells.
    exit(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}
