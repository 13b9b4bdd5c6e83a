//! Counts the opened sessions: a delivery that must open one spends most of its time on that.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts for all threads that open sessions for one [`Site`](super::Site), and for its clones.
#[derive(Debug, Default)]
pub(super) struct Counter {
    database: AtomicU64,
    imap: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Logins {
    /// Sessions with the database.
    pub database: u64,
    /// Sessions with the IMAP server, as a user.
    pub imap: u64,
}

impl Counter {
    pub(super) fn database(&self) {
        self.database.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn imap(&self) {
        self.imap.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn so_far(&self) -> Logins {
        Logins { database: self.database.load(Ordering::Relaxed), imap: self.imap.load(Ordering::Relaxed) }
    }
}
