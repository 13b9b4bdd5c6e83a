//! Why a process of the service cannot begin, or cannot go on.

use crate::base::log::LogError;
use crate::base::tls::TlsError;
use crate::config::ConfigError;
use crate::queue::QueueError;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum ServiceError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// Another process holds the lock of the runtime directory.
    #[error("another maildropd is running{}", .pid.map(|pid| format!(", pid {pid}")).unwrap_or_default())]
    Another { pid: Option<u32> },
    #[error("the master that started this process has ended")]
    NoMaster,
    /// A file or directory of the service cannot be created, read or written.
    #[error("{doing} {}: {source}", path.display())]
    File { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("listening at {place}: {source}")]
    Listen { place: String, source: io::Error },
    #[error("TLS: {0}")]
    Tls(String),
    /// The system refuses an operation that any process may do.
    #[error("{doing}: {source}")]
    System { doing: &'static str, source: io::Error },
}

impl From<TlsError> for ServiceError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error.to_string())
    }
}

impl ServiceError {
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + Copy {
        move |source| Self::File { doing, path: path.to_owned(), source }
    }

    pub(crate) fn listen(place: &str) -> impl Fn(io::Error) -> Self + Copy {
        move |source| Self::Listen { place: place.to_owned(), source }
    }

    pub(crate) fn system(doing: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { doing, source }
    }
}
