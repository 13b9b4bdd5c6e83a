//! A thread that acts when a task exceeds its time limit, whatever that task waits for: a name server, a disk, a server that
//! hangs, an endless loop.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Watchdog(Arc<Watch>);

#[derive(Debug, Default)]
struct Watch {
    /// The watched task, and the moment by which it must end.
    now: Mutex<Option<(&'static str, Instant)>>,
    changed: Condvar,
}

/// A task that is watched until this is dropped.
#[must_use]
pub(crate) struct Watched(Arc<Watch>);

impl Watchdog {
    /// Starts the thread, which calls `end` with the name of a task that takes too long.
    pub(crate) fn start(end: impl Fn(&'static str) + Send + 'static) -> io::Result<Self> {
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

    /// Watches a task from now on, until the result is dropped. A watchdog watches one task at a time.
    pub(crate) fn watch(&self, what: &'static str, at_most: Duration) -> Watched {
        self.watch_always(what, at_most);
        Watched(Arc::clone(&self.0))
    }

    /// Like [`watch`](Self::watch), but until another task is watched.
    pub(crate) fn watch_always(&self, what: &'static str, at_most: Duration) {
        self.0.set(Instant::now().checked_add(at_most).map(|until| (what, until)));
    }
}

impl Watch {
    fn set(&self, now: Option<(&'static str, Instant)>) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = now;
        if now.is_some() {
            self.changed.notify_all();
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn what_takes_too_long_is_ended_and_nothing_else() {
        let (end, ended) = mpsc::channel();
        let watchdog = Watchdog::start(move |what| end.send(what).unwrap()).unwrap();
        drop(watchdog.watch("in time", Duration::from_secs(3600)));
        let slow = watchdog.watch("slow", Duration::from_millis(1));
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok("slow"));
        drop(slow);
        drop(watchdog.watch("in time", Duration::from_secs(3600)));
        let _again = watchdog.watch("again", Duration::ZERO);
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok("again"));
    }

    #[test]
    fn what_is_over_is_watched_no_more_and_a_long_wait_hides_no_short_one() {
        let (end, ended) = mpsc::channel();
        let watchdog = Watchdog::start(move |what| end.send(what).unwrap()).unwrap();
        let is_watched = || watchdog.0.now.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let long = watchdog.watch("long", Duration::from_secs(3600));
        assert!(is_watched() && ended.try_recv().is_err());
        drop(long);
        assert!(!is_watched());
        let _short = watchdog.watch("short", Duration::from_millis(1));
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok("short"));
        // The thread may still wait for the end of a task that is over.
        watchdog.watch_always("long", Duration::from_secs(3600));
        watchdog.watch_always("moved", Duration::from_millis(1));
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok("moved"));
    }
}
