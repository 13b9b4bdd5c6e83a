//! Notifications to systemd: sd_notify(3). Without systemd, nothing is sent.

use sd_notify::NotifyState;
use std::time::{Duration, Instant};
use tracing::warn;

#[derive(Debug)]
pub(super) struct Systemd {
    ready: bool,
    status: String,
    /// The interval of pings to systemd's watchdog: half of its limit.
    watchdog: Option<Duration>,
    pinged_at: Instant,
}

impl Systemd {
    pub(super) fn new() -> Self {
        Self::with(sd_notify::watchdog_enabled())
    }

    /// `acts` is the time without a ping after which systemd acts.
    fn with(acts: Option<Duration>) -> Self {
        let watchdog = acts.map(|period| period / 2);
        Self { ready: false, status: String::new(), watchdog, pinged_at: Instant::now() }
    }

    /// Reports that the service is ready: once, and once after each [reload](Self::reloading).
    pub(super) fn ready(&mut self) {
        if !std::mem::replace(&mut self.ready, true) {
            notify(&[NotifyState::Ready]);
        }
    }

    /// Reports that a reload has begun. [`ready`](Self::ready) ends it.
    pub(super) fn reloading(&mut self) {
        // Before the first READY=1 the service is starting, so it cannot be reloading.
        if !std::mem::take(&mut self.ready) {
            return;
        }
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(error) => warn!(%error, "systemd was not notified of a reload"),
        }
    }

    /// Reports that the service ends.
    pub(super) fn stopping(&mut self) {
        notify(&[NotifyState::Stopping]);
    }

    /// Reports the status, in one line.
    pub(super) fn status(&mut self, status: String) {
        if status != self.status {
            notify(&[NotifyState::Status(&status)]);
            self.status = status;
        }
    }

    /// Pings systemd's watchdog if a ping is due. Without `fine`, no ping is sent, and systemd acts.
    pub(super) fn watchdog(&mut self, fine: bool, now: Instant) {
        if self.watchdog.is_some_and(|every| now.saturating_duration_since(self.pinged_at) >= every) {
            self.pinged_at = now;
            if fine {
                notify(&[NotifyState::Watchdog]);
            }
        }
    }

    /// When the next ping is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.watchdog.map(|every| self.pinged_at + every)
    }
}

fn notify(what: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(what) {
        warn!(%error, "systemd was not notified of the state of the service");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_hears_of_us_as_often_as_it_wants_to_and_of_each_thing_once() {
        let begin = Instant::now();
        let every = Duration::from_secs(5);
        let mut systemd = Systemd { ready: false, status: String::new(), watchdog: Some(every), pinged_at: begin };
        assert_eq!(systemd.next(), Some(begin + every));
        systemd.watchdog(true, begin + every - Duration::from_millis(1));
        assert_eq!(systemd.next(), Some(begin + every));
        for fine in [true, false] {
            let now = systemd.pinged_at + every;
            systemd.watchdog(fine, now);
            assert_eq!(systemd.next(), Some(now + every), "where it is not fine, it is looked again later");
        }
        assert_eq!(Systemd::with(Some(2 * every)).watchdog, Some(every));
        systemd.watchdog = None;
        assert_eq!(systemd.next(), None);
        // A reload before the first READY=1 is not reported.
        systemd.reloading();
        assert!(!systemd.ready);
        systemd.ready();
        assert!(systemd.ready);
        systemd.reloading();
        assert!(!systemd.ready);
        systemd.status("fine".into());
        assert_eq!(systemd.status, "fine");
    }
}
