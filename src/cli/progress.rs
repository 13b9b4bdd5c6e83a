//! The progress of a subcommand.

use crate::base::server_waits;
use crate::base::terminal::complain;
use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The interval between two lines: on a terminal, and elsewhere.
const EVERY: Duration = Duration::from_secs(2);
const EVERY_IN_A_LOG: Duration = Duration::from_secs(10);

/// Until it is dropped, prints the current work and its duration on standard error.
pub(super) struct Progress {
    text: Arc<Mutex<String>>,
    _until_dropped: Option<Sender<()>>,
}

impl Progress {
    /// Prints on a terminal only.
    pub(super) fn watch(what: impl Into<String>) -> Self {
        Self::print_every(what.into(), std::io::stderr().is_terminal().then_some(EVERY))
    }

    /// Prints into a log as well: for work that may take hours.
    pub(super) fn watch_long(what: impl Into<String>) -> Self {
        Self::print_every(what.into(), Some(if std::io::stderr().is_terminal() { EVERY } else { EVERY_IN_A_LOG }))
    }

    fn print_every(what: String, period: Option<Duration>) -> Self {
        let text = Arc::new(Mutex::new(what));
        let Some(period) = period else { return Self { text, _until_dropped: None } };
        let (done, wait) = channel::<()>();
        let (shown, began) = (Arc::clone(&text), Instant::now());
        let print = move || {
            while wait.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                // The line of `server_waits` is more precise: it names the server that does not answer.
                if !server_waits::is_shown() {
                    let text = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    complain(&format!("{text} … {} s", began.elapsed().as_secs()));
                }
            }
        };
        // Without a thread nothing is printed.
        Self { text, _until_dropped: std::thread::Builder::new().spawn(print).ok().map(|_| done) }
    }

    pub(super) fn set(&self, text: String) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}
