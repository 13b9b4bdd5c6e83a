//! Looking up hosts, by as many threads as there may be: getaddrinfo(3) cannot be told to give up, and a name server that stays silent,
//! which whoever names a host chooses, holds up a thread for as long as the resolver likes.
//!
//! - Each owner has a part of the threads: what hangs for one of them is no matter of the others.
//! - A name is looked up once at a time for its owner: all that connect to it meanwhile have the same answer.
//! - A look-up that nobody waits for any more is not begun.

use super::unanswered::Unanswered;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::spawn_blocking;

/// Asks for the addresses of a host. May take its time: it has a thread of its own.
pub(super) type Resolve = Arc<dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync>;

/// How many hosts are looked up at once; and of one owner's.
pub(super) const AT_ONCE: usize = 64;
pub(super) const OF_AN_OWNER: usize = 16;

type Found = Result<Vec<IpAddr>, Unanswered>;

/// How far a look-up is.
#[derive(Clone, Debug)]
enum Stage {
    Waits,
    Begun,
    Ended(Found),
}

/// An owner, and a name.
type Key = (String, String);

pub(super) struct LookUps {
    resolve: Resolve,
    places: Arc<Semaphore>,
    /// Of the owners whose hosts are looked up now, or are to be.
    of_owners: Mutex<HashMap<String, Weak<Semaphore>>>,
    under_way: Mutex<HashMap<Key, Arc<watch::Sender<Stage>>>>,
}

impl LookUps {
    pub(super) fn new(resolve: Resolve) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        Arc::new(Self { resolve, places, of_owners: Mutex::default(), under_way: Mutex::default() })
    }

    /// The addresses of a name. As long as nobody has begun to look it up, `waits` says so: whoever gives up then has not tried.
    ///
    /// # Errors
    /// Where the resolver has no address.
    pub(super) async fn ask(self: &Arc<Self>, owner: &str, name: &str, waits: &AtomicBool) -> Found {
        let mut stage = self.join((owner.to_owned(), name.to_owned()));
        loop {
            let now = stage.borrow_and_update().clone();
            waits.store(matches!(now, Stage::Waits), Ordering::Relaxed);
            if let Stage::Ended(found) = now {
                return found;
            }
            if stage.changed().await.is_err() {
                return Err(Unanswered::NotTried("nobody looks it up".into()));
            }
        }
    }

    /// The look-up of this name that is under way, or a new one.
    fn join(self: &Arc<Self>, key: Key) -> watch::Receiver<Stage> {
        let mut under_way = lock(&self.under_way);
        if let Some(sender) = under_way.get(&key) {
            return sender.subscribe();
        }
        let (sender, stage) = watch::channel(Stage::Waits);
        let sender = Arc::new(sender);
        under_way.insert(key.clone(), Arc::clone(&sender));
        tokio::spawn(Arc::clone(self).look_up(key, sender));
        stage
    }

    async fn look_up(self: Arc<Self>, key: Key, sender: Arc<watch::Sender<Stage>>) {
        let places = loop {
            tokio::select! {
                biased;
                () = sender.closed() => if self.is_left(&key, &sender) { return },
                places = self.places(&key.0) => break places,
            }
        };
        sender.send_replace(Stage::Begun);
        let (resolve, name) = (Arc::clone(&self.resolve), key.1.clone());
        let found = spawn_blocking(move || {
            let found = resolve(&name);
            // They are taken for as long as the thread is, whoever waits for it.
            drop(places);
            found
        });
        let found = found.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        lock(&self.under_way).remove(&key);
        sender.send_replace(Stage::Ended(found.map_err(|error| Unanswered::looking_up(&error))));
    }

    /// Whether nobody waits for it, and nobody will.
    fn is_left(&self, key: &Key, sender: &watch::Sender<Stage>) -> bool {
        let mut under_way = lock(&self.under_way);
        let is_left = sender.is_closed();
        if is_left {
            under_way.remove(key);
        }
        is_left
    }

    /// A place of the owner's, and one of all. His own first, so that who waits for one of his keeps none from others.
    async fn places(&self, owner: &str) -> [Option<OwnedSemaphorePermit>; 2] {
        let own = self.of_owner(owner).acquire_owned().await.ok();
        [own, Arc::clone(&self.places).acquire_owned().await.ok()]
    }

    fn of_owner(&self, owner: &str) -> Arc<Semaphore> {
        let mut all = lock(&self.of_owners);
        if let Some(own) = all.get(owner).and_then(Weak::upgrade) {
            return own;
        }
        // Those that nobody holds, or waits for, are as if they had never been.
        all.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(OF_AN_OWNER));
        all.insert(owner.to_owned(), Arc::downgrade(&own));
        own
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;
    use std::sync::Condvar;
    use std::time::Duration;
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    /// Longer than anything here takes.
    const LONG: Duration = Duration::from_secs(60);

    /// A resolver that is silent about names that begin with `silent`, until it is released; and what it was asked for.
    #[derive(Default)]
    struct Names {
        asked: Mutex<Vec<String>>,
        released: Mutex<bool>,
        changed: Condvar,
    }

    impl Names {
        fn resolve(self: &Arc<Self>) -> Resolve {
            let names = Arc::clone(self);
            Arc::new(move |name| {
                names.asked.lock().unwrap().push(name.to_owned());
                if name.starts_with("silent") {
                    let released = names.released.lock().unwrap();
                    drop(names.changed.wait_while(released, |released| !*released).unwrap());
                }
                if name == "unknown" {
                    Err(io::Error::other("no such name"))
                } else {
                    Ok(vec![Ipv4Addr::LOCALHOST.into()])
                }
            })
        }

        fn release(&self) {
            *self.released.lock().unwrap() = true;
            self.changed.notify_all();
        }
    }

    struct Asking {
        look_ups: Arc<LookUps>,
        names: Arc<Names>,
    }

    impl Asking {
        /// Somebody who waits for an answer, and whether it has not begun yet.
        fn asks(&self, owner: &'static str, name: impl Into<String>) -> (JoinHandle<Found>, Arc<AtomicBool>) {
            let (look_ups, name, waits) = (Arc::clone(&self.look_ups), name.into(), Arc::new(AtomicBool::new(false)));
            let told = Arc::clone(&waits);
            (tokio::spawn(async move { look_ups.ask(owner, &name, &waits).await }), told)
        }

        async fn answer(&self, owner: &'static str, name: &str) -> Found {
            timeout(LONG, self.asks(owner, name).0).await.expect("it is looked up").unwrap()
        }

        fn asked(&self) -> usize {
            self.names.asked.lock().unwrap().len()
        }
    }

    /// With as many threads as a notifier has.
    fn with(does: impl AsyncFnOnce(Asking)) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(AT_ONCE).build().unwrap();
        // Where a test fails, too: the runtime waits for its threads.
        let released = Released(Arc::default());
        let (names, look_ups) = (Arc::clone(&released.0), LookUps::new(released.0.resolve()));
        runtime.block_on(does(Asking { look_ups, names }));
    }

    struct Released(Arc<Names>);

    impl Drop for Released {
        fn drop(&mut self) {
            self.0.release();
        }
    }

    async fn until(is_so: impl Fn() -> bool) {
        timeout(LONG, async {
            while !is_so() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("it becomes so");
    }

    #[test]
    fn names_of_one_owner_that_hang_hold_up_nobody_elses() {
        with(async |asking| {
            let all: Vec<_> = (0..2 * AT_ONCE).map(|number| asking.asks("a", format!("silent{number}"))).collect();
            until(|| asking.asked() == OF_AN_OWNER).await;
            assert_eq!(asking.answer("b", "quick").await, Ok(vec![Ipv4Addr::LOCALHOST.into()]));
            assert_eq!(asking.asked(), OF_AN_OWNER + 1);
            // Who came meanwhile gives the first one no more places: his are still taken.
            assert_eq!(asking.look_ups.of_owner("a").available_permits(), 0);
            let waiting = all.iter().filter(|(_, waits)| waits.load(Ordering::Relaxed)).count();
            assert_eq!(waiting, 2 * AT_ONCE - OF_AN_OWNER, "these have not begun");
            asking.names.release();
            for (answer, _) in all {
                timeout(LONG, answer).await.unwrap().unwrap().unwrap();
            }
            let names: BTreeSet<String> = asking.names.asked.lock().unwrap().iter().cloned().collect();
            assert_eq!((names.len(), asking.asked()), (2 * AT_ONCE + 1, 2 * AT_ONCE + 1));
            assert_eq!(asking.look_ups.places.available_permits(), AT_ONCE);
            assert!(lock(&asking.look_ups.under_way).is_empty());
        });
    }

    #[test]
    fn who_connects_to_the_same_host_at_once_shares_a_look_up_and_the_next_one_is_another() {
        with(async |asking| {
            let all: Vec<_> = (0..5).map(|_| asking.asks("a", "silent")).collect();
            until(|| asking.asked() == 1).await;
            let late = asking.asks("a", "silent");
            let of_another = asking.asks("b", "silent");
            until(|| asking.asked() == 2).await;
            asking.names.release();
            for (answer, waits) in all.into_iter().chain([late, of_another]) {
                timeout(LONG, answer).await.unwrap().unwrap().unwrap();
                assert!(!waits.load(Ordering::Relaxed));
            }
            assert_eq!(asking.asked(), 2);
            asking.answer("a", "silent").await.unwrap();
            assert_eq!(asking.asked(), 3);
            assert_eq!(
                asking.answer("a", "unknown").await,
                Err(Unanswered::NotCalled("looking up its host: no such name".into()))
            );
        });
    }

    #[test]
    fn a_look_up_that_nobody_waits_for_any_more_is_not_begun() {
        with(async |asking| {
            let hung: Vec<_> = (0..OF_AN_OWNER).map(|number| asking.asks("a", format!("silent{number}"))).collect();
            until(|| asking.asked() == OF_AN_OWNER).await;
            let (given_up, waits) = asking.asks("a", "given up");
            let [(first, _), (second, _)] = [asking.asks("a", "wanted"), asking.asks("a", "wanted")];
            until(|| lock(&asking.look_ups.under_way).len() == OF_AN_OWNER + 2).await;
            // Of two that wait for it one gives up.
            given_up.abort();
            first.abort();
            until(|| lock(&asking.look_ups.under_way).len() == OF_AN_OWNER + 1).await;
            assert!(waits.load(Ordering::Relaxed));
            asking.names.release();
            timeout(LONG, second).await.unwrap().unwrap().unwrap();
            for (answer, _) in hung {
                timeout(LONG, answer).await.unwrap().unwrap().unwrap();
            }
            assert!(!asking.names.asked.lock().unwrap().iter().any(|name| name == "given up"));
            // An owner of whom nothing is looked up is forgotten.
            asking.answer("b", "quick").await.unwrap();
            asking.answer("c", "quick").await.unwrap();
            assert!(!lock(&asking.look_ups.of_owners).contains_key("a"));
        });
    }
}
