//! The sources of messages: files, folders, Maildirs, standard input and the ledger.

pub(crate) mod mbox;
pub(crate) mod postcat_output;

use super::entry::{self, Location, OPEN_FILES};
use super::lines::Lines;
use super::{List, ReplayError};
use crate::base::deadline::Deadline;
use crate::base::text_enum::text_enum;
use crate::ledger::deliveries::{DeliveryQuery, each_delivery};
use crate::site::Site;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Cursor, ErrorKind, Read};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use time::PrimitiveDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

/// The time limit of the ledger's query for deliveries to replay.
const PATIENCE: Duration = Duration::from_hours(1);

text_enum! {
    /// The form of a file with messages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
    #[serde(rename_all = "kebab-case")]
    pub(crate) enum Form {
        /// The file is the message.
        Message = "message",
        /// An mbox: a `From ` line, the message with `>From ` quoted (mboxrd), an empty line.
        Mbox = "mbox",
        /// The output of `postcat` for a queue file.
        QueueFile = "queue-file",
        /// A line of a replay's file of failures.
        Failures = "failures",
        /// No file, but a copy that the ledger knows.
        #[value(skip)]
        Ledger = "ledger",
    }
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
    // A later replay of the failures may start in another directory.
    let path =
        if path.as_os_str() == "-" { copy_of_stdin()? } else { std::path::absolute(path).map_err(unreadable(path))? };
    let metadata = std::fs::metadata(&path).map_err(unreadable(&path))?;
    if metadata.is_dir() {
        list_folder(path, form, list)
    } else if metadata.is_file() {
        list_file(&path, &metadata, form, list)
    } else {
        // A pipe can be read only once, and opening it may wait for a writer for ever.
        Err(ReplayError::NotASource { path, problem: "that is no file: let standard input read it, and give -" })
    }
}

/// Lists deliveries of the ledger.
pub(crate) fn list_deliveries(query: &DeliveryQuery, site: &Site, list: &List) -> Result<(), ReplayError> {
    let mut database = site.open_database(None, Deadline::after(PATIENCE))?;
    each_delivery(database.as_mut(), query, |began_at, copy| list.add(began_at, &Location::in_ledger(copy)))
}

/// Copies standard input to a file that no other process can open, and of which any job can read any part.
fn copy_of_stdin() -> Result<PathBuf, ReplayError> {
    let path = std::env::temp_dir().join(format!("maildrop_command-{}", uuid::Uuid::now_v7()));
    let copied = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).and_then(|mut copy| {
        std::fs::remove_file(&path)?;
        io::copy(&mut io::stdin().lock(), &mut copy)?;
        // It stays open to the end of this process.
        Ok(Path::new(OPEN_FILES).join(copy.into_raw_fd().to_string()))
    });
    copied.map_err(unreadable(&path))
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> ReplayError {
    move |error| ReplayError::Source { path: path.to_owned(), error }
}

/// Lists the messages of a folder and its subfolders, without hidden entries and sidecars. In a Maildir the messages
/// are in `cur` and `new`; its folders (`.Sent`) are other mailboxes.
fn list_folder(folder: PathBuf, form: Option<Form>, list: &List) -> Result<(), ReplayError> {
    let mut folders = vec![(folder, form)];
    while let Some((folder, form)) = folders.pop() {
        let parts = [folder.join("cur"), folder.join("new")];
        if parts.iter().all(|part| part.is_dir()) {
            // A file of a Maildir is one message, whatever its beginning looks like.
            folders.extend(parts.map(|part| (part, Some(Form::Message))));
            continue;
        }
        for entry in std::fs::read_dir(&folder).map_err(unreadable(&folder))? {
            let entry = entry.map_err(unreadable(&folder))?;
            let path = entry.path();
            let is_sidecar = path.extension().is_some_and(|extension| extension == "envelope");
            if is_sidecar || entry.file_name().as_bytes().starts_with(b".") {
                continue;
            }
            // A link to a folder may form a cycle. A pipe or a socket has no message.
            match path.metadata() {
                _ if entry.file_type().is_ok_and(|kind| kind.is_dir()) => folders.push((path, form)),
                Ok(metadata) if metadata.is_file() => list_file(&path, &metadata, form, list)?,
                Ok(_) => {}
                // The owner's mail program has renamed the file meanwhile. This run or the next finds the new name.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(unreadable(&path)(error)),
            }
        }
    }
    Ok(())
}

/// Lists the messages of one file.
fn list_file(path: &Path, metadata: &Metadata, form: Option<Form>, list: &List) -> Result<(), ReplayError> {
    // Microseconds since 1970. A message without a date is as old as the previous one, and the first is as old as the file.
    let mut last_at = metadata.mtime().saturating_mul(1_000_000).saturating_add(metadata.mtime_nsec() / 1000);
    if form == Some(Form::Message) {
        return list.add(last_at, &Location::whole(Form::Message, path));
    }
    let no_source = |problem| ReplayError::NotASource { path: path.to_owned(), problem };
    let mut file = File::open(path).map_err(unreadable(path))?;
    let mut beginning = Vec::new();
    file.by_ref().take(256).read_to_end(&mut beginning).map_err(unreadable(path))?;
    let whole = Location::whole(form.map_or_else(|| Form::of(&beginning), Ok).map_err(no_source)?, path);
    if whole.form == Form::Message {
        return list.add(last_at, &whole);
    }
    let mut mbox = mbox::Divider::new(form.is_none());
    let mut queue_file = postcat_output::Divider::default();
    // The beginning of the current message, and its arrival time.
    let mut current: Option<(u64, Option<i64>)> = None;
    let mut add = |begun: Option<(u64, Option<i64>)>, end: u64| {
        let Some((offset, at)) = begun else { return Ok(()) };
        last_at = at.unwrap_or(last_at);
        list.add(last_at, &Location { offset, length: Some(end - offset), ..whole.clone() })
    };
    let mut lines = Lines::new(Cursor::new(beginning).chain(file));
    while let Some(line) = lines.next().map_err(unreadable(path))? {
        let (begins, at) = match whole.form {
            Form::Mbox => {
                let begins = mbox.begins(line).map_err(no_source)?;
                (begins, if begins { asctime(line.head) } else { None })
            }
            Form::QueueFile => (queue_file.begins(line), postcat_output::date_of(line.head)),
            Form::Message | Form::Failures | Form::Ledger => (true, None),
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
