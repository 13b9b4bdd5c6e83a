//! Ends the process where something takes longer than it may, whatever it waits for: a name server, a disk, a server that stands
//! still, an endless loop.
//!
//! It aborts: the broker sees a worker's connection end and defers its message, and SIGABRT counts as a crash. There is no other way
//! out of a thread that hangs.
//!
//! Where a server owes this process an answer, the message is not to blame: then it is SIGKILL, which is no crash of the message
//! ([`shunt`](super::shunt)).

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
    now: Option<(&'static str, Instant)>,
    /// When the thread looks again by itself. It need not be woken for what may take longer.
    looks_at: Option<Instant>,
}

/// Something that is watched, until this is dropped.
#[must_use]
pub(super) struct Watched(Arc<Watch>);

impl Watchdog {
    pub(super) fn start() -> io::Result<Self> {
        Self::start_with(end_the_process)
    }

    /// The same, with another end than an abort.
    fn start_with(end: impl Fn(&'static str) + Send + 'static) -> io::Result<Self> {
        let watch = Arc::new(Watch::default());
        let watching = Arc::clone(&watch);
        thread::Builder::new().name("watchdog".into()).spawn(move || {
            let mut state = watching.state.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                state.looks_at = state.now.map(|(_, until)| until);
                state = match state.now {
                    None => watching.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some((what, until)) => {
                        let left = until.saturating_duration_since(Instant::now());
                        if left.is_zero() {
                            end(what);
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
        self.0.set(Some((what, Instant::now() + at_most)));
        Watched(Arc::clone(&self.0))
    }
}

impl Watch {
    fn set(&self, now: Option<(&'static str, Instant)>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now = now;
        let Some((_, until)) = now else { return };
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

fn end_the_process(what: &'static str) {
    let waits_for_a_server = server_waits::is_awaited();
    let (done, wait) = mpsc::channel();
    // Where there is no thread to be had, there is no record.
    let _ = thread::Builder::new().name("last record".into()).spawn(move || {
        error!(what, waits_for_a_server, "it took too long: this process ends, and what it had in hand is deferred");
        let _ = done.send(());
    });
    let _ = wait.recv_timeout(LAST_RECORD);
    if waits_for_a_server {
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
        let watchdog = Watchdog::start_with(move |what| end.send(what).unwrap()).unwrap();
        drop(watchdog.watch("in time", Duration::from_secs(3600)));
        let slow = watchdog.watch("slow", Duration::from_millis(1));
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok("slow"));
        drop(slow);
        drop(watchdog.watch("in time", Duration::from_secs(3600)));
        let _again = watchdog.watch("again", Duration::ZERO);
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok("again"));
    }

    /// The front decides by the signal whether the message in progress is to blame.
    #[test]
    fn an_end_while_a_server_owes_an_answer_is_a_kill_and_any_other_an_abort() {
        use std::os::unix::process::ExitStatusExt;
        use std::process::{Command, Stdio};
        const OWES: &str = "MAILDROP_TEST_THIS_PROCESS_ENDS_WHILE_A_SERVER_OWES_AN_ANSWER";
        if let Ok(owes) = std::env::var(OWES) {
            // The process below.
            let _awaited = (owes == "true").then(|| server_waits::for_answer(server_waits::Whom::Database));
            return end_the_process("this");
        }
        let name = "service::watchdog::tests::an_end_while_a_server_owes_an_answer_is_a_kill_and_any_other_an_abort";
        for (owes, signal) in [("false", Signal::ABORT), ("true", Signal::KILL)] {
            let mut ends = Command::new(std::env::current_exe().unwrap());
            ends.args(["--exact", name]).env(OWES, owes).stdout(Stdio::null()).stderr(Stdio::null());
            let ended = ends.status().unwrap();
            assert_eq!(ended.signal(), Some(signal.as_raw()), "{owes}: {ended}");
        }
    }

    #[test]
    fn what_is_over_is_watched_no_more_and_a_long_wait_hides_no_short_one() {
        let (end, ended) = mpsc::channel();
        let watchdog = Watchdog::start_with(move |what| end.send(what).unwrap()).unwrap();
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
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok("short"));
    }
}
