//! Sources: where messages are found. A file per kind.

mod folder;
mod ledger;
pub(crate) mod mbox;
pub(crate) mod postcat_output;

pub use ledger::LedgerQuery;

use crate::base::deadline::Deadline;
use crate::operations::replay::ReplayError;
use crate::operations::replay::failure;
use crate::operations::replay::lines::{Line, each_line};
use crate::operations::replay::list::{Entry, List, Location, Piece};
use crate::site::Site;
use serde::{Deserialize, Serialize};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use time::PrimitiveDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

/// How long the ledger may take to say what is to be replayed.
const PATIENCE: Duration = Duration::from_hours(1);

/// How a message is written in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// The file is the message.
    Message,
    /// An mbox: a `From ` line, the message with `>From ` quoted (mboxrd), an empty line.
    Mbox,
    /// What `postcat` prints of a queue file.
    QueueFile,
    /// A line of the file in which a replay wrote down what failed.
    Failures,
}

impl Form {
    /// The forms with their names.
    pub(crate) const ALL: [(&'static str, Self); 4] = [
        ("message", Self::Message),
        ("mbox", Self::Mbox),
        ("queue-file", Self::QueueFile),
        ("failures", Self::Failures),
    ];

    pub(crate) fn number(self) -> i64 {
        match self {
            Self::Message => 0,
            Self::Mbox => 1,
            Self::QueueFile => 2,
            Self::Failures => 3,
        }
    }

    pub(crate) fn of_number(number: i64) -> Option<Self> {
        Self::ALL.iter().map(|(_, form)| *form).find(|form| form.number() == number)
    }

    /// By how a file begins.
    fn of(beginning: &[u8]) -> Result<Self, &'static str> {
        if beginning.starts_with(postcat_output::BEGINNING) {
            Ok(Self::QueueFile)
        } else if failure::is_line(beginning) {
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

/// Where to look for messages.
#[derive(Clone, Debug)]
pub enum Source {
    Path(PathBuf),
    StandardInput,
    Ledger(LedgerQuery),
}

impl Source {
    /// Writes down where its messages are. `form` says how files are written; where it does not, their beginning does.
    /// `stdin` is what [`standard_input`] has opened.
    pub fn list(&self, form: Option<Form>, stdin: Option<&File>, site: &Site, list: &List) -> Result<(), ReplayError> {
        match self {
            Self::Path(path) => {
                // A replay of what failed may be started from another directory.
                let path = std::path::absolute(path).map_err(|error| unreadable(path, error))?;
                let metadata = std::fs::metadata(&path).map_err(|error| unreadable(&path, error))?;
                if metadata.is_dir() {
                    folder::list(&path, form, list)
                } else if metadata.is_file() {
                    list_file(&path, form, list)
                } else {
                    // It could be read once only, and opening it may wait for a writer for ever.
                    Err(ReplayError::NotASource {
                        path,
                        problem: "that is no file: let standard input read it, and give -",
                    })
                }
            }
            Self::StandardInput => {
                let stdin = stdin.ok_or_else(|| ReplayError::StandardInput(io::Error::other("it is not open")))?;
                let metadata = stdin.metadata().map_err(ReplayError::StandardInput)?;
                let place = Path::new("standard input");
                list_opened(stdin, None, place, &metadata, form, list)
            }
            Self::Ledger(query) => {
                let mut database = site.open_database(None, Deadline::after(PATIENCE))?;
                query.list(site, database.as_mut(), list)
            }
        }
    }
}

/// Standard input as a file in which any part can be read, by any job: itself, or a copy that nobody else can open.
///
/// # Errors
/// [`ReplayError::StandardInput`]
pub(crate) fn standard_input() -> Result<File, ReplayError> {
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
    open().map_err(ReplayError::StandardInput)
}

fn unreadable(path: &Path, error: io::Error) -> ReplayError {
    ReplayError::Source { path: path.to_owned(), error }
}

/// Writes down the messages of one file.
fn list_file(path: &Path, form: Option<Form>, list: &List) -> Result<(), ReplayError> {
    let file = File::open(path).map_err(|error| unreadable(path, error))?;
    let metadata = file.metadata().map_err(|error| unreadable(path, error))?;
    list_opened(&file, Some(path), path, &metadata, form, list)
}

fn list_opened(
    file: &File,
    path: Option<&Path>,
    name: &Path,
    metadata: &Metadata,
    form: Option<Form>,
    list: &List,
) -> Result<(), ReplayError> {
    let whole = |form| Piece { form, path: path.map(Path::to_owned), offset: 0, length: Piece::TO_THE_END };
    let guessed = form.is_none();
    let opened = || whole(Form::Message).open(Some(file)).map_err(|error| unreadable(name, error));
    let form = match form {
        Some(form) => form,
        None => {
            let mut beginning = Vec::new();
            opened()?.take(256).read_to_end(&mut beginning).map_err(|error| unreadable(name, error))?;
            Form::of(&beginning).map_err(|problem| ReplayError::NotASource { path: name.to_owned(), problem })?
        }
    };
    let changed_at = metadata.mtime().saturating_mul(1_000_000).saturating_add(metadata.mtime_nsec() / 1000);
    let mut pieces = Pieces { list, whole: whole(form), current: None, last_at: changed_at };
    if form == Form::Message {
        return list.add(&Entry { at: changed_at, place: Location::Piece(pieces.whole), lock: None });
    }
    let mut mbox = mbox::Divider::default();
    let mut queue_file = postcat_output::Divider::default();
    let size = each_line(opened()?, |line: Line<'_>| {
        let begins = match form {
            Form::Mbox if guessed => mbox.begins_by_length(line).ok_or_else(|| {
                Trouble::Other(ReplayError::NotASource { path: name.to_owned(), problem: mbox::UNQUOTED })
            })?,
            Form::Mbox => mbox.begins(line),
            Form::QueueFile => queue_file.begins(line),
            Form::Message | Form::Failures => true,
        };
        let at = match form {
            Form::Mbox if begins => mbox::date_of(line.head),
            Form::QueueFile => postcat_output::date_of(line.head),
            Form::Failures => failure::at_of(line.head),
            Form::Mbox | Form::Message => None,
        };
        pieces.line(line, begins, at).map_err(Trouble::Other)
    });
    match size {
        Ok(size) => pieces.end(size),
        Err(Trouble::Reading(error)) => Err(unreadable(name, error)),
        Err(Trouble::Other(error)) => Err(error),
    }
}

/// Pieces of one file, as they are found.
struct Pieces<'a> {
    list: &'a List,
    whole: Piece,
    /// Where the one begins that is being read, and how old it is.
    current: Option<(u64, Option<i64>)>,
    /// How old the one before it is: what tells no date is as old as that.
    last_at: i64,
}

/// What can happen while lines are read.
enum Trouble {
    Reading(io::Error),
    Other(ReplayError),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Reading(error)
    }
}

impl Pieces<'_> {
    fn line(&mut self, line: Line<'_>, begins: bool, at: Option<i64>) -> Result<(), ReplayError> {
        if begins {
            self.end(line.offset)?;
            self.current = Some((line.offset, None));
        }
        if let Some((_, known @ None)) = &mut self.current {
            *known = at;
        }
        Ok(())
    }

    /// What was being read ends here.
    fn end(&mut self, end: u64) -> Result<(), ReplayError> {
        let Some((offset, at)) = self.current.take() else { return Ok(()) };
        self.last_at = at.unwrap_or(self.last_at);
        let piece = Piece { offset, length: end - offset, ..self.whole.clone() };
        self.list.add(&Entry { at: self.last_at, place: Location::Piece(piece), lock: None })
    }
}

/// Whether a file begins as gzip, bzip2, xz, Zstandard, or Dovecot's LZ4 and mail_crypt begin theirs: no message does, and in a
/// backup, or in a Maildir that Dovecot compresses, the message is within.
pub(crate) fn is_packed(bytes: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 5] =
        [b"\x1f\x8b\x08", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"Dovecot-LZ4\x0d\x2a\x9b\xc5", b"CRYPTED\x03\x07"];
    let is_bzip2 = matches!(bytes, [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..] if rest.starts_with(b"1AY&SY"));
    is_bzip2 || BEGINNINGS.iter().any(|beginning| bytes.starts_with(beginning))
}

/// asctime(3), as mboxes and postcat(1) write it.
const ASCTIME: &[BorrowedFormatItem<'_>] =
    format_description!("[month repr:short] [day padding:none] [hour]:[minute]:[second] [year]");

/// Reads `Sat Nov 21 08:20:09 2026` from the end of a line, as microseconds since 1970. Its time zone is not told; only the
/// order counts.
fn asctime(text: &str) -> Option<i64> {
    let mut words: Vec<&str> = text.split_ascii_whitespace().collect();
    // Some write a time zone behind it.
    if words.last().is_some_and(|word| word.starts_with(['+', '-'])) {
        words.pop();
    }
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
        assert_eq!(asctime("From lisa@gmail.com Sat Nov 21 08:20:09 2026"), moment);
        assert_eq!(asctime("From lisa  Sat Nov 21 08:20:09 2026 +0000\r\n"), moment);
        assert_eq!(asctime("x Sun Nov  1 08:20:09 2026"), Some(1_793_521_209_000_000));
        assert_eq!(asctime("From lisa, one day"), None);
    }

    #[test]
    fn a_file_says_by_its_beginning_what_it_is() {
        assert_eq!(Form::of(b"From lisa Sat Nov 21 08:20:09 2026\n"), Ok(Form::Mbox));
        assert_eq!(Form::of(b"From: lisa\n"), Ok(Form::Message));
        assert_eq!(Form::of(b"*** ENVELOPE RECORDS deferred/E/E07 ***\n"), Ok(Form::QueueFile));
        assert_eq!(Form::of(b"{\"maildrop_command_replay\":1,"), Ok(Form::Failures));
        assert_eq!(Form::of(b""), Ok(Form::Message));
        assert!(Form::of(b"C_           5313             453").unwrap_err().contains("postcat"));
        for (_, form) in Form::ALL {
            assert_eq!(Form::of_number(form.number()), Some(form));
        }
    }
}
