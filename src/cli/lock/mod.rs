//! `lock`: the named lock, for people and other programs. A file for each thing that can be done with it.

mod exec;
mod key;
mod list;
mod program;
mod try_lock;

use crate::lock::LockName;
use crate::operations::hold_lock::lock_of_program;
use crate::site::Site;
use clap::Subcommand;
use std::ffi::OsString;
use std::io::Write;
use sysexits::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock: on one machine at a time, of all that use this database
    Exec(exec::Arguments),
    /// Who holds a lock, and who waits for one
    List(list::Arguments),
    /// Whether a lock is free right now, without taking it
    Try(try_lock::Arguments),
    /// Print the PostgreSQL key and the MySQL name of a Message-ID's lock
    Key(key::Arguments),
    /// What `lock exec` starts: has itself killed when its parent ends (PDEATHSIG), and becomes the command
    #[command(hide = true)]
    Program {
        parent: u32,
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

pub(crate) fn run(command: &Command) -> ExitCode {
    match command {
        Command::Exec(arguments) => exec::run(arguments),
        Command::List(arguments) => list::run(arguments),
        Command::Try(arguments) => try_lock::run(arguments),
        Command::Key(arguments) => key::run(arguments),
        Command::Program { parent, command } => exec::become_program(*parent, command),
    }
}

/// Reads a lock's free name. What a Message-ID's lock overlooks (white space around it, angle brackets) has no place in
/// one: two names that differ are two locks.
fn free_name(text: &str) -> Result<String, String> {
    let plain = !text.is_empty() && text.trim() == text && !text.starts_with('<') && !text.contains(char::is_control);
    if plain && text.len() <= 200 {
        Ok(text.to_owned())
    } else {
        Err("a name is 1 to 200 bytes, with no `<` or white space before it, none after it and no control characters"
            .into())
    }
}

/// The lock of that name: of `lock exec`, or of a message.
fn lock_name(site: &Site, name: &str, message_id: bool) -> LockName {
    if message_id { site.lock_of_message_id(name.as_bytes()) } else { lock_of_program(site.namespace(), name) }
}

/// Ends with the exit status of another program, which [`ExitCode`] has no room for.
fn exit(status: u8) -> ! {
    // What could not be written was not asked for by anybody who is still there.
    let _ = std::io::stdout().flush();
    std::process::exit(status.into())
}
