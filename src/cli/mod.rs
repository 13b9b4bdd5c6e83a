//! The subcommands, with a file each. They print the data of `operations`, and end with an exit status of sysexits(3).

pub mod audit;
pub(crate) mod check;
mod confirmation;
pub(crate) mod inject;
pub(crate) mod lock;
pub(crate) mod manual;
pub(crate) mod migrate;
pub(crate) mod notify;
mod progress;
pub(crate) mod prune;
pub(crate) mod queue;
pub(crate) mod quickstart;
pub(crate) mod replay;
pub(crate) mod service;
pub(crate) mod shunt;
mod site_options;
pub(crate) mod stats;
pub(crate) mod subscription;
mod tables;
pub(crate) mod token;
pub(crate) mod trace;
pub(crate) mod web;

use crate::base::terminal::{complain, printable};
use crate::base::timestamp::duration;
use crate::database::{DatabaseError, DatabaseFailure};
use serde::Serialize;
use std::io::{ErrorKind as ErrorKindOfIo, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use sysexits::ExitCode;
use tables::{paint, sentences, table};

/// Whether part of the output could not be written, for example on a full disk.
pub(crate) static REPORTED: AtomicBool = AtomicBool::new(false);

/// The end of a subcommand: its exit status, or the reason of its failure.
pub(crate) type Ended = Result<ExitCode, Failure>;

/// Why a subcommand failed, and its exit status. If the text is empty, the reason has already been printed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    text: String,
}

fn fail(status: impl Into<u8>, text: impl Into<String>) -> Failure {
    Failure { status: status.into(), text: text.into() }
}

impl Failure {
    /// Prints the reason, and returns the exit status.
    pub(crate) fn report(&self) -> u8 {
        if !self.text.is_empty() {
            complain(&self.text);
        }
        self.status
    }
}

impl From<DatabaseError> for Failure {
    fn from(error: DatabaseError) -> Self {
        let fix = match error.failure {
            DatabaseFailure::AccessDenied => {
                "the role of database.roles.operator lacks a right, which sql/*/grants-operator.sql has, or the password in its \
                 password_file is not the one that the server knows"
            }
            DatabaseFailure::Schema => "run `maildrop_command migrate` as the role that owns the tables",
            _ => "`maildrop_command check` shows the reason",
        };
        fail(ExitCode::Unavailable, format!("{error}\n{fix}"))
    }
}

/// Runs `action` for each item. A failure is printed, and the other items still follow; the exit status is the first failure's.
fn for_each<T>(items: impl IntoIterator<Item = T>, mut action: impl FnMut(T) -> Result<(), Failure>) -> Ended {
    let mut first = None;
    for item in items {
        if let Err(failure) = action(item) {
            let status = failure.report();
            first.get_or_insert(status);
        }
    }
    first.map_or(Ok(ExitCode::Ok), |status| Err(fail(status, "")))
}

/// The sections of `help.txt` for a subcommand and its group.
fn help(subcommand: &str) -> String {
    let section = |name: &str| {
        let mut sections = include_str!("help.txt").split("\n## ").filter_map(|section| section.split_once('\n'));
        sections.find(|(heading, _)| *heading == name).map(|(_, text)| text.trim_end())
    };
    let group = subcommand.split_once(' ').and_then(|(group, _)| section(group));
    section(subcommand).into_iter().chain(group).collect::<Vec<_>>().join("\n\n")
}

fn print_line(text: &str) {
    check_printed(writeln!(std::io::stdout(), "{text}"));
}

/// Prints a value: JSON for programs, or the text for people.
fn print(as_json: bool, value: &impl Serialize, text: impl FnOnce() -> String) {
    print_line(&if as_json { json(value) } else { paint(&text()) });
}

/// JSON, in one line.
fn json(what: &impl Serialize) -> String {
    // This fails only for map keys that are not text.
    serde_json::to_value(what).unwrap_or_default().to_string()
}

/// Prints bytes unchanged.
fn print_bytes(bytes: &[u8]) {
    let mut stdout = std::io::stdout();
    check_printed(stdout.write_all(bytes).and_then(|()| stdout.flush()));
}

/// Exits with a status that [`ExitCode`](sysexits::ExitCode) does not have: another program's, or an init script's.
fn exit(status: u8) -> ! {
    // A failure means that the reader has ended.
    let _ = std::io::stdout().flush();
    std::process::exit(status.into())
}

/// Reports, once, that the output could not be printed.
pub(crate) fn check_printed(printed: std::io::Result<()>) {
    match printed {
        // The reader has ended early, as in `… | head`.
        Err(error) if error.kind() == ErrorKindOfIo::BrokenPipe => {}
        Err(error) if !REPORTED.swap(true, Ordering::Relaxed) => complain(&format!("standard output: {error}")),
        _ => {}
    }
}

/// The columns of a list, for people: the name of each, and the cell of an entry.
type Columns<T, const N: usize> = [(&'static str, fn(&T) -> String); N];

/// A list for people: a row for each entry; or `nothing`, if there is none.
fn list<T, const N: usize>(all: &[T], nothing: &str, columns: Columns<T, N>) -> String {
    if all.is_empty() {
        return nothing.to_owned();
    }
    table(columns.map(|(name, _)| name), all.iter().map(|entry| columns.map(|(_, cell)| cell(entry))))
}

/// Names and values, one pair per line; the names are padded to this width.
fn facts<'a>(width: usize, facts: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let line = |(name, value): (&str, String)| format!("{name:<width$}{}", printable(&value)).trim_end().to_owned();
    facts.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A value, or `-`.
fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
