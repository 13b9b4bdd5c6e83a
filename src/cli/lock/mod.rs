//! `lock`: the named lock, for people and other programs.

mod exec;
mod key;
mod list;
mod program;

use super::help;
use super::site_options::QueryOptions;
use super::{Ended, Failure, complain, exit, fail};
use clap::Subcommand;
use std::ffi::OsString;

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
    Try(list::TryArguments),
    /// Print the PostgreSQL key and the MySQL name of a Message-ID's lock
    #[command(after_help = help("lock key"))]
    Key(key::Arguments),
}

pub(crate) fn run(command: &Command) -> Ended {
    match command {
        Command::Exec(arguments) => exec::run(arguments),
        Command::List(arguments) => list::list_all(arguments),
        Command::Try(arguments) => list::try_one(arguments),
        Command::Key(arguments) => Ok(key::run(arguments)),
    }
}

/// Becomes the command, if this is the command line that `lock exec` starts. It is no subcommand: completions would offer it.
pub(crate) fn become_program(arguments: &[OsString]) {
    if let [_, lock, program, parent, _, command @ ..] = arguments
        && lock == "lock"
        && program == "program"
        && let Some(parent) = parent.to_str().and_then(|parent| parent.parse().ok())
    {
        exec::become_program(parent, command);
    }
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
