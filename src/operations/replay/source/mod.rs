//! The sources of messages, one file for each kind.

mod folder;
pub(crate) mod mbox;
pub(crate) mod postcat_output;

use super::entry::{self, Piece};
use super::lines::Lines;
use super::{List, ReplayError};
use crate::base::deadline::Deadline;
use crate::ledger::deliveries::{DeliveryQuery, each_delivery};
use crate::site::Site;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;
use time::PrimitiveDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

/// The time limit of the ledger's query for deliveries to replay.
const PATIENCE: Duration = Duration::from_hours(1);

/// The form of a file with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Form {
    /// The file is the message.
    Message,
    /// An mbox: a `From ` line, the message with `>From ` quoted (mboxrd), an empty line.
    Mbox,
    /// The output of `postcat` for a queue file.
    QueueFile,
    /// A line of a replay's file of failures.
    Failures,
}

impl Form {
    /// The form, by the beginning of a file.
    fn of(beginning: &[u8]) -> Result<Self, &'static str> {
        if beginning.starts_with(postcat_output::BEGINNING) {
            Ok(Self::QueueFile)
        } else if entry::is_line(beginning) {
            Ok(Self::Failures)
        } else if mbox::is_from_line(beginning) {
            Ok(Self::Mbox)
        } else if postcat_output::is_raw(beginning) {
            Err(
                "that is a Postfix queue file in its own form: give what `postcat FILE`, or `postcat -q ID`, prints of it",
            )
        } else {
            Ok(Self::Message)
        }
    }
}

/// Lists the messages of a file or a folder; `-` is standard input. `form` is the form of the files; without it, the beginning of
/// each file decides.
pub(crate) fn list_path(path: &Path, form: Option<Form>, list: &List) -> Result<(), ReplayError> {
    if path.as_os_str() == "-" {
        return list_file(None, form, list);
    }
    // A later replay of the failures may start in another directory.
    let path = std::path::absolute(path).map_err(|error| unreadable(path, error))?;
    let metadata = std::fs::metadata(&path).map_err(|error| unreadable(&path, error))?;
    if metadata.is_dir() {
        folder::list(&path, form, list)
    } else if metadata.is_file() {
        list_file(Some(&path), form, list)
    } else {
        // A pipe can be read only once, and opening it may wait for a writer for ever.
        Err(ReplayError::NotASource { path, problem: "that is no file: let standard input read it, and give -" })
    }
}

/// Lists deliveries of the ledger.
pub(crate) fn list_deliveries(query: &DeliveryQuery, site: &Site, list: &List) -> Result<(), ReplayError> {
    let mut database = site.open_database(None, Deadline::after(PATIENCE))?;
    each_delivery(database.as_mut(), query, |began_at, copy| list.add_delivery(began_at, copy))
}

/// Standard input as a file of which any job can read any part. This is standard input itself, or a copy that no other process
/// can open. The first call creates the copy.
pub(crate) fn standard_input() -> Result<&'static File, ReplayError> {
    static OPENED: OnceLock<File> = OnceLock::new();
    let open = || {
        let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        if stdin.metadata()?.is_file() && stdin.stream_position()? == 0 {
            return Ok(stdin);
        }
        let path = std::env::temp_dir().join(format!("maildrop_command-{}", uuid::Uuid::now_v7()));
        let mut copy = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        io::copy(&mut stdin, &mut copy)?;
        Ok(copy)
    };
    match OPENED.get() {
        Some(file) => Ok(file),
        None => open().map(|file| OPENED.get_or_init(|| file)).map_err(ReplayError::StandardInput),
    }
}

fn unreadable(path: &Path, error: io::Error) -> ReplayError {
    ReplayError::Source { path: path.to_owned(), error }
}

/// When a message arrived in its file, in microseconds since 1970.
fn arrived(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000).saturating_add(metadata.mtime_nsec() / 1000)
}

/// Lists the messages of one file; without a path, of standard input.
fn list_file(path: Option<&Path>, form: Option<Form>, list: &List) -> Result<(), ReplayError> {
    let name = path.unwrap_or(Path::new("standard input"));
    let unreadable = |error| unreadable(name, error);
    let no_source = |problem| ReplayError::NotASource { path: name.to_owned(), problem };
    let guessed = form.is_none();
    let mut whole = Piece::whole(form.unwrap_or(Form::Message), path);
    let file = whole.open().map_err(unreadable)?;
    // A message without a date is as old as the previous one, and the first is as old as the file.
    let mut last_at = arrived(&file.metadata().map_err(unreadable)?);
    if guessed {
        let mut beginning = Vec::new();
        whole.open().and_then(|file| file.take(256).read_to_end(&mut beginning)).map_err(unreadable)?;
        whole.form = Form::of(&beginning).map_err(no_source)?;
    }
    if whole.form == Form::Message {
        return list.add_piece(last_at, &whole);
    }
    let mut mbox = mbox::Divider::default();
    let mut queue_file = postcat_output::Divider::default();
    // The beginning of the current message, and its arrival time.
    let mut current: Option<(u64, Option<i64>)> = None;
    let mut add = |begun: Option<(u64, Option<i64>)>, end: u64| {
        let Some((offset, at)) = begun else { return Ok(()) };
        last_at = at.unwrap_or(last_at);
        list.add_piece(last_at, &Piece { offset, length: Some(end - offset), ..whole.clone() })
    };
    let mut lines = Lines::new(file);
    while let Some(line) = lines.next().map_err(unreadable)? {
        let (begins, at) = match whole.form {
            Form::Mbox => {
                let begins = if guessed { mbox.begins_by_length(line) } else { Some(mbox.begins(line)) };
                let begins = begins.ok_or_else(|| no_source(mbox::UNQUOTED))?;
                (begins, if begins { asctime(line.head) } else { None })
            }
            Form::QueueFile => (queue_file.begins(line), postcat_output::date_of(line.head)),
            Form::Message | Form::Failures => (true, None),
        };
        if begins {
            add(current.replace((line.offset, None)), line.offset)?;
        }
        if let Some((_, known @ None)) = &mut current {
            *known = at;
        }
    }
    add(current, lines.at)
}

/// The format of asctime(3), which mboxes and postcat(1) use.
const ASCTIME: &[BorrowedFormatItem<'_>] =
    format_description!("[month repr:short] [day padding:none] [hour]:[minute]:[second] [year]");

/// Parses `Sat Nov 21 08:20:09 2026` at the end of a line, as microseconds since 1970. The text has no time zone, but only the
/// order matters.
fn asctime(line: &[u8]) -> Option<i64> {
    let text = String::from_utf8_lossy(line);
    // Some programs append a time zone.
    let words = text.split_ascii_whitespace().filter(|word| !word.starts_with(['+', '-']));
    let words: Vec<&str> = words.collect();
    let [.., month, day, time, year] = words.as_slice() else { return None };
    let moment = PrimitiveDateTime::parse(&format!("{month} {day} {time} {year}"), ASCTIME).ok()?;
    i64::try_from(moment.assume_utc().unix_timestamp_nanos() / 1000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_mboxes_are_read() {
        let moment = Some(1_795_249_209_000_000);
        assert_eq!(asctime(b"From lisa@gmail.com Sat Nov 21 08:20:09 2026"), moment);
        assert_eq!(asctime(b"From lisa  Sat Nov 21 08:20:09 2026 +0000\r\n"), moment);
        assert_eq!(asctime(b"x Sun Nov  1 08:20:09 2026"), Some(1_793_521_209_000_000));
        assert_eq!(asctime(b"From lisa, one day"), None);
    }
}
