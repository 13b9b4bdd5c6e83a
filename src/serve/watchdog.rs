//! Ends the process where something takes longer than it may, whatever it waits for: a name server, a disk, a server that stands
//! still, an endless loop.
//!
//! It aborts: the broker sees a worker's connection end and defers its message, and the signal (SIGABRT) tells that the process has
//! ended by its own hand. There is no other way out of a thread that hangs.
//!
//! Where what hangs is a server, which owes this process an answer, the message in hand is not to blame: then it is SIGKILL, which
//! does not count against a message ([`suspects`](super::suspects)). Nor is it where it was given little time (`watch_blameless`).

use crate::base::server_waits;
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tracing::error;

/// How long the last record of the log may take: the log may be what hangs.
const LAST_RECORD: Duration = Duration::from_secs(1);

pub(super) struct Watchdog(Arc<Watch>);

#[derive(Default)]
struct Watch {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    now: Option<Now>,
    /// When the thread looks again by itself. It need not be woken for what may take longer.
    looks_at: Option<Instant>,
}

/// What is watched, until when it may take, and whether its end may count against the message in hand.
#[derive(Clone, Copy)]
struct Now {
    what: &'static str,
    until: Instant,
    counts: bool,
}

/// Something that is watched, until this is dropped.
#[must_use]
pub(super) struct Watched(Arc<Watch>);

impl Watchdog {
    pub(super) fn start() -> io::Result<Self> {
        Self::start_with(end_the_process)
    }

    /// The same, with another end than an abort.
    fn start_with(end: impl Fn(&'static str, bool) + Send + 'static) -> io::Result<Self> {
        let watch = Arc::new(Watch::default());
        let watching = Arc::clone(&watch);
        thread::Builder::new().name("watchdog".into()).spawn(move || {
            let mut state = watching.state.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                state.looks_at = state.now.map(|now| now.until);
                state = match state.now {
                    None => watching.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(Now { what, until, counts }) => {
                        let left = until.saturating_duration_since(Instant::now());
                        if left.is_zero() {
                            end(what, counts);
                            state.now = None;
                            continue;
                        }
                        watching.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                };
            }
        })?;
        Ok(Self(watch))
    }

    /// Watches from now on, one thing at a time.
    pub(super) fn watch(&self, what: &'static str, at_most: Duration) -> Watched {
        self.begin(what, at_most, true)
    }

    /// The same, for what was given so little time that its end says nothing of the message in hand.
    pub(super) fn watch_blameless(&self, what: &'static str, at_most: Duration) -> Watched {
        self.begin(what, at_most, false)
    }

    fn begin(&self, what: &'static str, at_most: Duration, counts: bool) -> Watched {
        self.0.set(Some(Now { what, until: Instant::now() + at_most, counts }));
        Watched(Arc::clone(&self.0))
    }
}

impl Watch {
    fn set(&self, now: Option<Now>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now = now;
        let Some(Now { until, .. }) = now else { return };
        if state.looks_at.is_none_or(|looks_at| until < looks_at) {
            self.changed.notify_all();
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

fn end_the_process(what: &'static str, counts: bool) {
    let waits_for_a_server = server_waits::is_awaited();
    let (done, wait) = mpsc::channel();
    // Where there is no thread to be had, there is no record.
    let _ = thread::Builder::new().name("last record".into()).spawn(move || {
        error!(what, waits_for_a_server, "it took too long: this process ends, and what it had in hand is deferred");
        let _ = done.send(());
    });
    let _ = wait.recv_timeout(LAST_RECORD);
    if waits_for_a_server || !counts {
        // Where that fails, there is the abort.
        let _ = kill_process(getpid(), Signal::KILL);
    }
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_ended_and_nothing_else() {
        let (end, ended) = mpsc::channel();
        let watchdog = Watchdog::start_with(move |what, counts| end.send((what, counts)).unwrap()).unwrap();
        drop(watchdog.watch("in time", Duration::from_secs(3600)));
        let slow = watchdog.watch("slow", Duration::from_millis(1));
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(("slow", true)));
        drop(slow);
        drop(watchdog.watch("in time", Duration::from_secs(3600)));
        let _again = watchdog.watch_blameless("again", Duration::ZERO);
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(("again", false)));
    }

    /// By the signal: who ends others tells by it whether the message in hand is to blame.
    #[test]
    fn an_end_that_says_nothing_of_the_message_is_a_kill_and_any_other_an_abort() {
        use std::os::unix::process::ExitStatusExt;
        use std::process::{Command, Stdio};
        const COUNTS: &str = "MAILDROP_TEST_THIS_PROCESS_ENDS_AND_COUNTS";
        if let Ok(counts) = std::env::var(COUNTS) {
            // The process below.
            return end_the_process("this", counts == "true");
        }
        let name = "serve::watchdog::tests::an_end_that_says_nothing_of_the_message_is_a_kill_and_any_other_an_abort";
        for (counts, signal) in [("true", Signal::ABORT), ("false", Signal::KILL)] {
            let mut ends = Command::new(std::env::current_exe().unwrap());
            ends.args(["--exact", name]).env(COUNTS, counts).stdout(Stdio::null()).stderr(Stdio::null());
            let ended = ends.status().unwrap();
            assert_eq!(ended.signal(), Some(signal.as_raw()), "{counts}: {ended}");
        }
    }

    #[test]
    fn what_is_over_is_watched_no_more_and_a_long_wait_hides_no_short_one() {
        let (end, ended) = mpsc::channel();
        let watchdog = Watchdog::start_with(move |what, counts| end.send((what, counts)).unwrap()).unwrap();
        let state = || watchdog.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let long = watchdog.watch("long", Duration::from_secs(3600));
        while state().looks_at.is_none() {
            thread::yield_now();
        }
        assert!(state().now.is_some() && ended.try_recv().is_err());
        drop(long);
        assert!(state().now.is_none());
        // The thread would look again in an hour.
        let _short = watchdog.watch("short", Duration::from_millis(1));
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(("short", true)));
    }
}
