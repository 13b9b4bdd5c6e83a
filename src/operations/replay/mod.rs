//! Replay: the delivery of a pipe, fed from files, mboxes, a queue file, standard input or the ledger itself.
//!
//! ```text
//! sources ── list (oldest first, on disk) ── slice ── jobs ── the ledger's word, else a delivery ── what came of it
//! ```
//!
//! [`Source`] finds the messages, and writes down for each *where it is*, never what it says: the [`List`] is a temporary
//! file, so a replay of a hundred thousand messages takes no more memory than one of a thousand. A job holds one message
//! at a time. What has been delivered stays delivered: that is the ledger's to know, so a replay keeps no state of its own,
//! and is run again after an end of any kind.

mod envelope;
mod failure;
mod failure_file;
mod lines;
mod list;
mod runner;
mod slice;
mod source;

pub(crate) use envelope::PartialEnvelope;
pub(crate) use failure_file::FailureFile;
pub use list::List;
pub(crate) use runner::{Event, MessageReport, Replay, ReplayOutcome, Tally};
pub(crate) use slice::Slice;
pub use source::{Form, LedgerQuery, Source};

use crate::database::DatabaseError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a replay cannot begin, or cannot go on.
#[derive(Debug, Error)]
pub(crate) enum ReplayError {
    /// A source that is not there, or cannot be read.
    #[error("{}: {error}", path.display())]
    Source {
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A source that is nothing to replay, and what would be.
    #[error("{}: {problem}", path.display())]
    NotASource {
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
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
