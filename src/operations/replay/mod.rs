//! Replay: the delivery of a pipe, fed from files, mboxes, a queue file, standard input or the ledger itself.
//!
//! ```text
//! sources ── list (oldest first, on disk) ── slice ── jobs ── skipped if the ledger has it, else delivered ── a report
//! ```
//!
//! A [`Source`] is searched for messages, and the [`List`] takes down *where* each is: it is a temporary file, so a replay of a
//! hundred thousand messages takes no more memory than one of a thousand. A job holds one message at a time. The ledger
//! remembers what has been delivered, so a replay keeps no state, and can be run again however it ended.

mod entry;
mod envelope;
mod failure_file;
mod lines;
mod list;
mod reading;
mod runner;
mod slice;
mod source;

pub(crate) use envelope::PartialEnvelope;
pub(crate) use failure_file::FailureFile;
pub(crate) use list::List;
pub(crate) use runner::{MessageReport, Replay, ReplayOutcome, Tally};
pub(crate) use slice::Slice;
pub(crate) use source::{Form, Source, standard_input};

use crate::database::DatabaseError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a replay cannot begin, or cannot go on.
#[derive(Debug, Error)]
pub(crate) enum ReplayError {
    /// A source that is not there, or cannot be read.
    #[error("{}: {error}", path.display())]
    Source { path: PathBuf, error: io::Error },
    /// A source that cannot be replayed, and what could be.
    #[error("{}: {problem}", path.display())]
    NotASource { path: PathBuf, problem: &'static str },
    /// The temporary file of the list.
    #[error("the list of messages, a temporary file (in $TMPDIR): {0}")]
    List(#[from] rusqlite::Error),
    /// Standard input, or a copy of it in a temporary file.
    #[error("copying standard input to a temporary file (in $TMPDIR): {0}")]
    StandardInput(io::Error),
    /// No thread could be started.
    #[error("starting a job: {0}")]
    Job(io::Error),
    /// The ledger, as a source.
    #[error(transparent)]
    Ledger(#[from] DatabaseError),
}
