//! Replay: the delivery of a pipe, fed from files, mboxes, a queue file, standard input or the ledger itself.
//!
//! ```text
//! sources ── list (oldest first, on disk) ── jobs ── skipped if the ledger has it, else delivered ── a report
//! ```
//!
//! The [`List`] has the *location* of each message. The list is a temporary file, so a replay of a hundred thousand messages
//! takes no more memory than one of a thousand. A job holds one message at a time. The ledger records what was delivered. So a
//! replay keeps no state, and can be repeated however it ended.

mod entry;
mod envelope;
mod failure_file;
mod lines;
mod list;
mod reading;
mod runner;
mod source;

pub(crate) use envelope::PartialEnvelope;
pub(crate) use failure_file::FailureFile;
pub(crate) use list::List;
pub(crate) use reading::{TOO_LARGE, message_of};
pub(crate) use runner::{MessageReport, Replay, ReplayOutcome, Tally, deliver};
pub(crate) use source::{Form, list_deliveries, list_path};

use crate::database::DatabaseError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a replay cannot begin, or cannot continue.
#[derive(Debug, Error)]
pub(crate) enum ReplayError {
    /// A source that does not exist, or cannot be read.
    #[error("{}: {error}", path.display())]
    Source { path: PathBuf, error: io::Error },
    /// A source that cannot be replayed, and what to give instead.
    #[error("{}: {problem}", path.display())]
    NotASource { path: PathBuf, problem: &'static str },
    #[error("the list of messages, a temporary file (in $TMPDIR): {0}")]
    List(#[from] rusqlite::Error),
    #[error("starting a job: {0}")]
    Job(io::Error),
    #[error(transparent)]
    Ledger(#[from] DatabaseError),
}
