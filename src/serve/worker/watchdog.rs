//! Ends the process where something takes longer than it may, whatever it waits for: a name server, a disk, a server that stands
//! still, an endless loop.
//!
//! It aborts: the broker sees the connection end and puts the message off, and the signal (SIGABRT) tells that the process has ended
//! by its own hand. There is no other way out of a thread that hangs.

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
    /// What is watched, and until when it may take.
    now: Mutex<Option<(&'static str, Instant)>>,
    changed: Condvar,
}

/// Something that is watched, until this is dropped.
#[must_use]
pub(super) struct Watched(Arc<Watch>);

impl Watchdog {
    pub(super) fn start() -> io::Result<Self> {
        Self::start_with(abort)
    }

    /// The same, with another end than an abort.
    fn start_with(end: impl Fn(&'static str) + Send + 'static) -> io::Result<Self> {
        let watch = Arc::new(Watch::default());
        let watching = Arc::clone(&watch);
        thread::Builder::new().name("watchdog".into()).spawn(move || {
            let mut now = watching.now.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                now = match *now {
                    None => watching.changed.wait(now).unwrap_or_else(PoisonError::into_inner),
                    Some((what, until)) => {
                        let left = until.saturating_duration_since(Instant::now());
                        if left.is_zero() {
                            end(what);
                            *now = None;
                            continue;
                        }
                        watching.changed.wait_timeout(now, left).unwrap_or_else(PoisonError::into_inner).0
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
    fn set(&self, what: Option<(&'static str, Instant)>) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = what;
        self.changed.notify_all();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

fn abort(what: &'static str) {
    let (done, wait) = mpsc::channel();
    // Where there is no thread to be had, there is no record.
    let _ = thread::Builder::new().name("last record".into()).spawn(move || {
        error!(what, "it took too long: this worker ends, and its message is put off");
        let _ = done.send(());
    });
    let _ = wait.recv_timeout(LAST_RECORD);
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
        let _again = watchdog.watch("again", Duration::ZERO);
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok("again"));
    }
}
