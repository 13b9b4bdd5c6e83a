//! Writes down what is known of messages that end workers, keeps copies of those that are set aside, and says loudly that there are
//! some: in a thread of its own, since a disk may be slow, and nobody waits for it.
//!
//! What cannot be written is known all the same, for as long as this process lives, and the message is with whoever tries again: the
//! next try brings the copy anew.

use super::{Order, Suspects, ago};
use crate::base::timestamp::span;
use crate::queue::{Digest, NoSuchCopy, QueueError, Shunted, ShuntedStore, Suspect};
use crate::serve::handed::Body;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{error, info, warn};

/// How often it is looked for copies that people have removed, and for what has to be said or written once more.
const LOOK: Duration = Duration::from_mins(1);
/// How many orders may wait: some of them hold a whole message.
const WAITING: usize = 64;
const DAY: Duration = Duration::from_hours(24);
/// How often a message that is set aside is spoken of in the last day before Postfix gives it up.
const ON_THE_LAST_DAY: Duration = Duration::from_hours(4);

/// What the keeper goes by.
#[derive(Clone, Debug)]
pub struct KeeperSettings {
    /// The folder of what has to outlive a restart.
    pub state_directory: PathBuf,
    /// After so long Postfix gives up (`maximal_queue_lifetime`).
    pub queue_lifetime: Duration,
}

struct Keeper<T> {
    settings: KeeperSettings,
    store: Option<ShuntedStore>,
    /// Tells which copies there are.
    tell: T,
    /// What could not be written.
    unwritten: BTreeMap<Digest, Suspect>,
    /// At what age each copy is to be spoken of again.
    speak_at: BTreeMap<Digest, Duration>,
}

/// What was written down before. What cannot be read is said, and left alone.
#[must_use]
pub fn remembered(settings: &KeeperSettings, now: Instant) -> Suspects {
    let read =
        ShuntedStore::open(&settings.state_directory).and_then(|store| Ok((store.suspects()?, store.shunted()?)));
    match read {
        Ok((suspects, copies)) => {
            for error in suspects.unreadable.iter().chain(&copies.unreadable) {
                warn!(%error, "what is remembered of a message that has ended workers cannot be read");
            }
            Suspects::remembered(suspects.read, copies.read, now)
        }
        Err(error) => {
            error!(%error, "which messages have ended workers is not known, and cannot be kept");
            Suspects::default()
        }
    }
}

/// Starts it. It ends once what is returned is dropped, and all that was ordered before is done.
///
/// # Errors
/// Where the system gives us no thread.
pub fn start(
    settings: KeeperSettings,
    tell: impl Fn(Vec<(Digest, Shunted)>) + Send + 'static,
) -> io::Result<SyncSender<Order>> {
    let (order, orders) = sync_channel(WAITING);
    let keeper = Keeper { settings, store: None, tell, unwritten: BTreeMap::new(), speak_at: BTreeMap::new() };
    thread::Builder::new().name("suspects".into()).spawn(move || keeper.run(&orders))?;
    Ok(order)
}

impl<T: Fn(Vec<(Digest, Shunted)>)> Keeper<T> {
    fn run(mut self, orders: &Receiver<Order>) {
        let mut next_look = Instant::now();
        // Those of before this process began are spoken of at once.
        let mut first_time = true;
        loop {
            let changed = match orders.recv_timeout(next_look.saturating_duration_since(Instant::now())) {
                Ok(order) => self.obey(order),
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if changed {
                self.look(first_time);
                first_time = false;
                next_look = Instant::now() + LOOK;
            }
        }
    }

    fn store(&mut self) -> Result<&ShuntedStore, QueueError> {
        let store = match self.store.take() {
            Some(store) => store,
            None => ShuntedStore::open(&self.settings.state_directory)?,
        };
        Ok(self.store.insert(store))
    }

    /// Does it. Whether there may be other copies than before.
    fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::Remember(digest, suspect) => {
                self.remember(digest, suspect);
                false
            }
            Order::Forget(digest) => {
                self.unwritten.remove(&digest);
                if let Err(error) = self.store().and_then(|store| store.forget(&digest)) {
                    warn!(id = digest.id(), %error, "what is known of a message that was delivered cannot be removed");
                }
                false
            }
            Order::SetAside(digest, shunted, body) => self.set_aside(&digest, *shunted, &body),
            Order::Delivered { digest, sender, to } => {
                let delivered =
                    self.store().map_err(NoSuchCopy::from).and_then(|store| store.delivered(&digest, &sender, &to));
                match delivered {
                    Ok(true) => {
                        info!(id = digest.id(), "a message that is set aside is delivered to some of its recipients")
                    }
                    Ok(false) => {}
                    Err(error) => {
                        warn!(id = digest.id(), %error, "the copy of a message that was delivered stays where it is");
                    }
                }
                true
            }
        }
    }

    fn remember(&mut self, digest: Digest, suspect: Suspect) {
        if let Err(error) = self.store().and_then(|store| store.remember(&digest, &suspect)) {
            error!(id = digest.id(), %error, "that a message has ended a worker cannot be written down: tried again each minute");
            self.unwritten.insert(digest, suspect);
            // The folder may have been made anew: what is open is the one that is gone, and can be listed still.
            self.store = None;
        } else {
            self.unwritten.remove(&digest);
        }
    }

    fn set_aside(&mut self, digest: &Digest, shunted: Shunted, body: &Body) -> bool {
        let read = match body {
            Body::Memory(bytes) => Ok(Cow::Borrowed(bytes)),
            Body::File(file) => fs::read(file.path()).map(Cow::Owned),
        };
        let written = match read {
            Ok(bytes) => {
                self.store().and_then(|store| store.set_aside(digest, shunted, &bytes)).map_err(|e| e.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        written.unwrap_or_else(|problem| {
            self.store = None;
            error!(
                id = digest.id(), problem,
                "no copy of a message that is set aside can be kept: it is with whoever tries again, and its next try brings it anew"
            );
            false
        })
    }

    /// Looks which copies there are, and speaks of those whose time it is.
    fn look(&mut self, first_time: bool) {
        for (digest, suspect) in std::mem::take(&mut self.unwritten) {
            self.remember(digest, suspect);
        }
        let copies = match self.store().and_then(ShuntedStore::shunted) {
            Ok(found) => found,
            Err(error) => {
                error!(%error, "which messages are set aside cannot be read");
                self.store = None;
                return;
            }
        };
        for error in copies.unreadable {
            error!(%error, "a message that is set aside cannot be read");
        }
        let copies = copies.read;
        self.speak_at.retain(|digest, _| copies.iter().any(|(copy, _)| copy == digest));
        for (digest, shunted) in &copies {
            self.speak(digest, shunted, first_time);
        }
        (self.tell)(copies);
    }

    fn speak(&mut self, digest: &Digest, shunted: &Shunted, at_once: bool) {
        let (age, lifetime) = (ago(shunted.since), self.settings.queue_lifetime);
        let spoken =
            self.speak_at.entry(*digest).or_insert_with(|| if at_once { age } else { next_word(age, lifetime) });
        if age < *spoken {
            return;
        }
        *spoken = next_word(age, lifetime);
        let queue_ids: Vec<&str> =
            shunted.envelopes.iter().filter_map(|envelope| envelope.queue_id.as_deref()).collect();
        let (id, age_told, queue_ids) = (digest.id(), span(age), queue_ids.join(" "));
        if !shunted.has_mta_behind() {
            error!(
                id,
                age = age_told,
                queue_ids,
                "a message is set aside; the file queue has it, and tries it for ever"
            );
        } else if age < lifetime {
            let left = span(lifetime.saturating_sub(age));
            error!(
                id,
                age = age_told,
                queue_ids,
                left,
                "a message is set aside; Postfix gives it up in `left` or sooner"
            );
        } else {
            error!(
                id,
                age = age_told,
                queue_ids,
                "a message is set aside; Postfix may have given it up: this copy may be all there is"
            );
        }
    }
}

/// At what age a message is spoken of again: each day, and more often on the last day before Postfix gives it up.
fn next_word(age: Duration, lifetime: Duration) -> Duration {
    let last_day = lifetime.saturating_sub(DAY);
    if age < last_day {
        (age + DAY).min(last_day)
    } else if age < lifetime {
        (age + ON_THE_LAST_DAY).min(lifetime)
    } else {
        age + DAY
    }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
