//! Work that opens mailboxes or reads messages, on behalf of code that must not block. IMAP blocks, PostgreSQL's client must not be
//! called inside a runtime, and a large message takes long to read: each piece of work has a thread of its own, and few run at once.
//! Uses `base` and `site`.

use crate::base::deadline::Deadline;
use crate::site::Site;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;
use tracing::error;

/// How many looks into mailboxes are taken at once.
const LOOKS: usize = 4;
/// How many messages are read at once for people. Whoever wrote these messages holds up other readers at most.
const READERS: usize = 4;
/// How many deliveries, and lists of them, run at once.
const RUNS: u32 = 2;

/// Where such work is done. There is none where the page [may not open mailboxes](crate::config::Web::mailboxes).
#[derive(Clone)]
pub(crate) struct MailboxWork {
    site: Arc<Site>,
    looks: Arc<Semaphore>,
    runs: Arc<Semaphore>,
    stop: Arc<AtomicBool>,
}

/// Why a piece of work was not done, or nobody knows what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotDone {
    #[error("too much else is done at once")]
    Busy,
    #[error("it has not ended in time")]
    TooLate,
    /// Its thread could not begin, or has panicked, which the log tells.
    #[error("an internal error, which the log has")]
    Failed,
}

impl MailboxWork {
    /// `None` where mailboxes cannot be opened.
    pub(crate) fn of(site: &Arc<Site>) -> Option<Self> {
        site.opens_mailboxes().then(|| Self {
            site: Arc::clone(site),
            looks: Arc::new(Semaphore::new(LOOKS)),
            runs: Arc::new(Semaphore::new(RUNS as usize)),
            stop: Arc::default(),
        })
    }

    /// What `look` finds, within `patience`, the wait for a place included, and within the deadline of a delivery. It is told how much
    /// of that is left: where nobody awaits it any more, it goes on until then, and keeps its place.
    ///
    /// # Errors
    /// Where there is nothing to tell.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        patience: Duration,
        look: impl FnOnce(&Site, Deadline) -> T + Send + 'static,
    ) -> Result<T, NotDone> {
        within(patience, &self.site, &self.looks, look).await
    }

    /// Begins what goes on after the request that asked for it, and says itself what comes of it. It ends soon after its flag is set.
    ///
    /// # Errors
    /// Where it has not begun.
    pub(crate) fn begin(&self, run: impl FnOnce(&Site, &AtomicBool) + Send + 'static) -> Result<(), NotDone> {
        let place = Arc::clone(&self.runs).try_acquire_owned().map_err(|_| NotDone::Busy)?;
        let (site, stop) = (Arc::clone(&self.site), Arc::clone(&self.stop));
        in_a_thread(place, move || run(&site, &stop))
    }

    /// Tells what runs to end after the delivery in hand, and waits for that: a delivery that is cut short is safe, but the next one of
    /// that copy then waits until its append has settled.
    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else { return };
        let patience = self.site.deadline();
        runtime.block_on(async {
            if timeout(patience, self.runs.acquire_many(RUNS)).await.is_err() {
                error!(within = ?patience, "a delivery from the page is cut short");
            }
        });
    }
}

/// Where the content of messages is read, whether mailboxes may be opened or not. Nothing else waits for these threads.
#[derive(Clone)]
pub(crate) struct MessageReaders {
    site: Arc<Site>,
    readers: Arc<Semaphore>,
}

impl MessageReaders {
    pub(crate) fn of(site: &Arc<Site>) -> Self {
        Self { site: Arc::clone(site), readers: Arc::new(Semaphore::new(READERS)) }
    }

    /// What `read` makes of a message: as [`MailboxWork::look`]. It has to end soon after its deadline, since a thread cannot be ended.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        patience: Duration,
        read: impl FnOnce(&Site, Deadline) -> T + Send + 'static,
    ) -> Result<T, NotDone> {
        within(patience, &self.site, &self.readers, read).await
    }
}

async fn within<T: Send + 'static>(
    patience: Duration,
    site: &Arc<Site>,
    places: &Arc<Semaphore>,
    work: impl FnOnce(&Site, Deadline) -> T + Send + 'static,
) -> Result<T, NotDone> {
    let deadline = Deadline::after(patience.min(site.deadline()));
    let place = timeout(deadline.remaining(), Arc::clone(places).acquire_owned()).await;
    let place = place.map_err(|_| NotDone::Busy)?.map_err(|_| NotDone::Failed)?;
    let (tell, told) = oneshot::channel();
    let site = Arc::clone(site);
    in_a_thread(place, move || {
        // Whoever asked may have gone.
        let _ = tell.send(work(&site, deadline));
    })?;
    timeout(deadline.remaining(), told).await.map_err(|_| NotDone::TooLate)?.map_err(|_| NotDone::Failed)
}

fn in_a_thread(place: OwnedSemaphorePermit, work: impl FnOnce() + Send + 'static) -> Result<(), NotDone> {
    let work = move || {
        // What it was to tell goes with it, so that nobody waits for that.
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            error!("work with mailboxes or messages has panicked");
        }
        drop(place);
    };
    let started = std::thread::Builder::new().name("mailboxes".into()).spawn(work);
    started.map(drop).map_err(|problem| {
        error!(%problem, "there is no thread for work with mailboxes or messages");
        NotDone::Failed
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::embedded::Embedded;
    use std::sync::mpsc::channel;

    fn work() -> MailboxWork {
        // Nothing is opened.
        let site = Site::embedded(Embedded::new("/nowhere".into()));
        MailboxWork::of(&Arc::new(site)).unwrap()
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    const LONG: Duration = Duration::from_mins(2);

    #[test]
    fn a_look_that_panics_leaves_its_place_to_others() {
        let work = work();
        run(async {
            for _ in 0..=LOOKS {
                let panicked: Result<(), _> = work.look(LONG, |_, _| panic!("as a bug would")).await;
                assert_eq!(panicked, Err(NotDone::Failed));
            }
            assert_eq!(work.look(LONG, |_, deadline| deadline.passed()).await, Ok(false));
        });
    }

    #[test]
    fn so_many_look_at_once_and_no_more_whoever_waits() {
        let work = work();
        let mut gates = Vec::new();
        run(async {
            for _ in 0..LOOKS {
                let (open, gate) = channel::<()>();
                gates.push(open);
                let late = work.look(Duration::from_millis(20), move |_, _| gate.recv()).await;
                assert_eq!(late.map(drop), Err(NotDone::TooLate));
            }
            // Nobody awaits them, and they have their places still.
            assert_eq!(work.look(Duration::from_millis(20), |_, _| ()).await, Err(NotDone::Busy));
            gates.clear();
            assert_eq!(work.look(LONG, |_, _| ()).await, Ok(()));
        });
    }

    #[test]
    fn readers_of_messages_hold_up_no_other_work_however_long_they_read() {
        let work = work();
        let readers = MessageReaders::of(&work.site);
        let mut gates = Vec::new();
        run(async {
            for _ in 0..READERS {
                let (open, gate) = channel::<()>();
                gates.push(open);
                let late = readers.read(Duration::from_millis(20), move |_, _| gate.recv()).await;
                assert_eq!(late.map(drop), Err(NotDone::TooLate));
            }
            assert_eq!(readers.read(Duration::from_millis(20), |_, _| ()).await, Err(NotDone::Busy));
            assert_eq!(work.look(LONG, |_, _| ()).await, Ok(()));
            gates.clear();
            assert_eq!(readers.read(LONG, |_, _| ()).await, Ok(()));
        });
    }

    #[test]
    fn what_has_begun_is_told_to_end_and_is_waited_for() {
        let work = work();
        let (tell, told) = channel();
        for _ in 0..RUNS {
            let tell = tell.clone();
            let begun = work.begin(move |_, stop| {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                tell.send(()).unwrap();
            });
            assert_eq!(begun, Ok(()));
        }
        assert_eq!(work.begin(|_, _| ()), Err(NotDone::Busy));
        work.end();
        assert_eq!(told.try_iter().count(), RUNS as usize);
    }
}
