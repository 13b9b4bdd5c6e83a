//! Messages that end workers: which of them gets a worker of its own, and which is set aside and gets none.
//!
//! | a message that has ended | its next try |
//! |---|---|
//! | no worker | as any other |
//! | one, or several at once with others | a worker of its own: a new process, that is replaced afterwards |
//! | two, each alone | none: it is answered 451 at once, and a copy of it is kept; but once an hour it has a worker of its own |
//!
//! So a site that was repaired delivers it before Postfix gives up, without a hand. What is delivered is forgotten.
//!
//! This module decides, and orders what is to be written down; [`keeper`] writes it. What it knows is by the monotonic clock: a
//! clock that is set back costs an hour at most, and no message.

mod deaths;
pub mod keeper;

pub use deaths::WorkerEnd;

use super::handed::Body;
use crate::base::timestamp;
use crate::delivery::Verdict;
use crate::handover::{Request, Source};
use crate::queue::{Behind, Death, Digest, Shunted, ShuntedEnvelope, ShuntedRecipient, Suspect};
use deaths::{Deaths, With};
use std::collections::BTreeMap;
use std::fs::File;
use std::time::{Duration, Instant};
use tracing::{error, info, warn};

/// What stands before a stage in what a worker writes to standard error about a suspect.
pub const STAGE: &str = "a suspect's delivery comes to: ";
/// After so many deaths that count a message is set aside.
const SET_ASIDE_AFTER: u32 = 2;
/// How often a message that is set aside has a worker of its own.
const OWN_WORKER_EACH: Duration = Duration::from_hours(1);
/// How many deaths are remembered of one message.
const DEATHS_KEPT: usize = 5;
/// After so long a message that has not come back is forgotten: Postfix has given it up. A copy is never forgotten.
const FORGET_AFTER: Duration = Duration::from_hours(24 * 30);
/// How long it takes at most until the master tells how a worker has ended whose connection has: without a master, for ever.
const NOTICE: Duration = Duration::from_secs(10);

/// A message by what tells it apart: its size is known before its digest is.
pub type Key = (u64, Digest);

/// What may be done with a message now.
#[derive(Debug, PartialEq, Eq)]
pub enum Permit {
    /// What may be done with any.
    Any,
    /// It gets a worker of its own.
    OwnWorker,
    /// It gets one, but not yet: another worker has just died, and nobody could tell which of the two had a cause of its own.
    Wait,
    /// It gets none.
    SetAside(String),
}

/// What is to be written down.
#[derive(Debug)]
pub enum Order {
    Remember(Digest, Suspect),
    Forget(Digest),
    /// Keep a copy.
    SetAside(Digest, Box<Shunted>, Body),
    /// It was delivered to these.
    Delivered {
        digest: Digest,
        sender: String,
        to: Vec<String>,
    },
}

/// A message that was lost with a worker.
#[derive(Debug)]
pub struct Loss {
    pub pid: i32,
    pub request: Box<Request>,
    pub body: Body,
}

struct Known {
    suspect: Suspect,
    /// It has ended a worker, whether that counts or not.
    observed: bool,
    /// When it may have a worker of its own again, once it is set aside.
    own_worker_at: Option<Instant>,
    /// Whether there is a copy.
    copy: bool,
}

/// All that is known of messages that end workers.
#[derive(Default)]
pub struct Suspects {
    known: BTreeMap<Key, Known>,
    deaths: Deaths,
    /// Lost with workers of whom the master has not told yet how they ended.
    losses: Vec<(Instant, Loss)>,
    /// The ends of workers whose connection has not ended yet.
    ends: Vec<(Instant, WorkerEnd)>,
    orders: Vec<Order>,
    /// How often a message was set aside.
    set_aside: u64,
}

/// How many there are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Messages that have ended a worker, and were not delivered since.
    pub suspects: usize,
    /// Of these, those whose next try has a worker of its own.
    pub tried_alone: usize,
    /// Copies of messages that were set aside.
    pub shunted: usize,
    /// When the oldest of these first ended a worker, in microseconds since 1970.
    pub oldest: Option<i64>,
}

impl Suspects {
    /// What was written down before: what is remembered, and the copies there are.
    #[must_use]
    pub fn remembered(suspects: Vec<(Digest, Suspect)>, copies: Vec<(Digest, Shunted)>, now: Instant) -> Self {
        let mut all = Self::default();
        for (digest, suspect) in suspects {
            let own_worker_at = last_tried(&suspect).map(|last| now + OWN_WORKER_EACH.saturating_sub(ago(last)));
            // One that was delivered to some has no deaths any more.
            let observed = !suspect.deaths.is_empty();
            let known = Known { suspect, observed, own_worker_at, copy: false };
            all.known.insert((known.suspect.size, digest), known);
        }
        all.copies(copies);
        all
    }

    /// Whether a message of this size may be one of them.
    #[must_use]
    pub fn may_know(&self, size: u64) -> bool {
        self.of_size(size).next().is_some()
    }

    fn of_size(&self, size: u64) -> impl Iterator<Item = &Key> {
        self.known.range((size, Digest::FIRST)..=(size, Digest::LAST)).map(|(key, _)| key)
    }

    /// The message, if it is one of them.
    #[must_use]
    pub fn find(&self, request: &Request, body: &Body) -> Option<Key> {
        if !self.may_know(request.size) {
            return None;
        }
        let key = (request.size, digest(body)?);
        self.known.contains_key(&key).then_some(key)
    }

    /// What may be done with it now.
    #[must_use]
    pub fn permit(&self, key: Key, source: Source, now: Instant) -> Permit {
        let Some(known) = self.known.get(&key) else { return Permit::Any };
        if source != Source::Shunt {
            if known.suspect.counted >= SET_ASIDE_AFTER {
                if known.own_worker_at.is_some_and(|at| now < at) {
                    let (times, id) = (known.suspect.counted, key.1.id());
                    return Permit::SetAside(format!("set aside: it has ended {times} workers ({id})"));
                }
            } else if !known.observed {
                return Permit::Any;
            }
        }
        // One whose end the master has not told of yet is about to be such a death.
        let undecided = self.deaths.any_lately(now) || !self.losses.is_empty();
        if undecided { Permit::Wait } else { Permit::OwnWorker }
    }

    /// It gets a worker of its own now.
    pub fn begins(&mut self, key: Key, now: Instant) {
        let Some(known) = self.known.get_mut(&key) else { return };
        known.own_worker_at = Some(now + OWN_WORKER_EACH);
        known.suspect.tried_at = Some(timestamp::now());
        self.orders.push(Order::Remember(key.1, known.suspect.clone()));
    }

    /// It is answered without a worker: what it came with this time is kept with the copy.
    pub fn refused(&mut self, key: Key, request: &Request, body: Body) {
        let Some(known) = self.known.get(&key) else { return };
        let shunted = shunted(&known.suspect, request);
        self.orders.push(Order::SetAside(key.1, Box::new(shunted), body));
    }

    /// It was answered, by its worker or by us.
    pub fn answered(&mut self, key: Key, request: &Request, verdicts: &[Verdict]) {
        // A refusal to whom tries again is his to tell; one to a person at the keyboard is not the end of the message.
        let ends =
            |verdict: &Verdict| verdict.class() == 2 || (verdict.class() == 5 && request.source != Source::Shunt);
        let to: Vec<String> = request
            .recipients
            .iter()
            .zip(verdicts)
            .filter(|(_, verdict)| ends(verdict))
            .map(|(recipient, _)| recipient.address.clone())
            .collect();
        let Some(known) = self.known.get_mut(&key).filter(|_| !to.is_empty()) else { return };
        if known.suspect.counted > 0 || known.observed {
            let queue_id = request.queue_id.as_deref().unwrap_or_default();
            let id = key.1.id();
            info!(
                id,
                queue_id,
                sender = request.sender,
                "a message that had ended a worker is delivered, and no suspect any more"
            );
        }
        known.suspect.counted = 0;
        known.suspect.deaths.clear();
        known.observed = false;
        known.own_worker_at = None;
        let suspect = known.suspect.clone();
        if known.copy {
            // A copy remains for others to whom it has not been delivered.
            self.orders.push(Order::Remember(key.1, suspect));
        } else {
            self.known.remove(&key);
            self.orders.push(Order::Forget(key.1));
        }
        self.orders.push(Order::Delivered { digest: key.1, sender: request.sender.clone(), to });
    }

    /// A worker's connection has ended, with a message in hand or without one.
    pub fn connection_ended(&mut self, pid: i32, loss: Option<Loss>, now: Instant) {
        let is_its = |end: &(Instant, WorkerEnd)| i32::try_from(end.1.pid) == Ok(pid);
        if let Some(at) = self.ends.iter().position(is_its) {
            let (_, end) = self.ends.swap_remove(at);
            self.died(end, loss, now);
        } else if let Some(loss) = loss {
            self.losses.push((now, loss));
        }
    }

    /// The master tells how a worker has ended. `connected`: its connection has not ended yet, as far as the broker knows.
    pub fn process_ended(&mut self, end: WorkerEnd, connected: bool, now: Instant) {
        let is_its = |loss: &(Instant, Loss)| u32::try_from(loss.1.pid) == Ok(end.pid);
        if let Some(at) = self.losses.iter().position(is_its) {
            let (_, loss) = self.losses.swap_remove(at);
            self.died(end, Some(loss), now);
        } else if connected {
            self.ends.push((now, end));
        } else {
            self.died(end, None, now);
        }
    }

    fn died(&mut self, end: WorkerEnd, loss: Option<Loss>, now: Instant) {
        if !end.is_death() {
            return;
        }
        let signal = end.own_hand();
        let digest = loss.as_ref().filter(|_| signal.is_some()).and_then(|loss| digest(&loss.body));
        let (Some(loss), Some(signal), Some(digest)) = (loss, signal, digest) else {
            self.deaths.happened(None, None, false, now);
            return;
        };
        let Loss { request, body, .. } = loss;
        let (key, queue_id) = ((request.size, digest), request.queue_id.clone());
        let death = Death {
            at: timestamp::now(),
            signal,
            pid: end.pid,
            queue_id,
            stage: stage(&end.said).map(str::to_owned),
            said: end.said,
        };
        warn!(
            id = digest.id(), pid = death.pid, queue_id = death.queue_id, sender = request.sender, end = %end.end, stage = death.stage,
            "a worker has died with a message"
        );
        let known = self.known.entry(key).or_insert_with(|| Known {
            suspect: Suspect { size: key.0, since: death.at, counted: 0, deaths: Vec::new(), tried_at: None },
            observed: true,
            own_worker_at: None,
            copy: false,
        });
        known.observed = true;
        known.suspect.deaths.push(death);
        let superfluous = known.suspect.deaths.len().saturating_sub(DEATHS_KEPT);
        known.suspect.deaths.drain(..superfluous);
        self.orders.push(Order::Remember(digest, known.suspect.clone()));
        let with = With { digest, queue_id: request.queue_id.clone() };
        self.deaths.happened(Some(with), Some(Box::new((*request, body))), true, now);
    }

    /// What can be decided by now.
    pub fn pass(&mut self, now: Instant) {
        self.losses.retain(|(since, _)| now.saturating_duration_since(*since) < NOTICE);
        self.ends.retain(|(since, _)| now.saturating_duration_since(*since) < NOTICE);
        for decided in self.deaths.decide(now) {
            let found = self.known.iter_mut().find(|((_, digest), _)| *digest == decided.digest);
            // It may have been delivered meanwhile.
            let Some(((_, digest), known)) = found.filter(|(_, known)| known.observed) else { continue };
            if !decided.counts {
                continue;
            }
            known.suspect.counted += 1;
            self.orders.push(Order::Remember(*digest, known.suspect.clone()));
            if known.suspect.counted < SET_ASIDE_AFTER {
                continue;
            }
            // The next hour begins with this try.
            known.own_worker_at = known.own_worker_at.or(Some(now + OWN_WORKER_EACH));
            if known.suspect.counted == SET_ASIDE_AFTER {
                self.set_aside += 1;
            }
            let Some((request, body)) = decided.lost.map(|lost| *lost) else { continue };
            let last = known.suspect.deaths.last();
            error!(
                id = digest.id(),
                workers = known.suspect.counted,
                queue_id = request.queue_id,
                sender = request.sender,
                stage = last.and_then(|death| death.stage.as_deref()),
                said = last.and_then(|death| death.said.last()),
                "a message is set aside: it ends workers. It is tried once an hour; `maildrop_command shunt show` tells more"
            );
            // What a person tries is a copy that is kept already.
            if request.source != Source::Shunt {
                self.orders.push(Order::SetAside(*digest, Box::new(shunted(&known.suspect, &request)), body));
            }
        }
    }

    /// What has to be written down since this was last asked.
    pub fn orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// There are these copies, and no others.
    pub fn copies(&mut self, found: Vec<(Digest, Shunted)>) {
        self.known.values_mut().for_each(|known| known.copy = false);
        for (digest, Shunted { size, since, deaths, .. }) in found {
            // One of which nothing is remembered is one that was set aside.
            let suspect = || Suspect { size, since, counted: SET_ASIDE_AFTER, deaths, tried_at: None };
            let known = self.known.entry((size, digest)).or_insert_with(|| Known {
                suspect: suspect(),
                observed: true,
                own_worker_at: None,
                copy: true,
            });
            known.copy = true;
        }
        let is_forgotten = |known: &Known| {
            let long_ago = last_tried(&known.suspect).is_none_or(|last| ago(last) > FORGET_AFTER);
            !known.copy && (!known.observed || long_ago)
        };
        let forgotten: Vec<Key> =
            self.known.iter().filter(|(_, known)| is_forgotten(known)).map(|(key, _)| *key).collect();
        for key in forgotten {
            self.known.remove(&key);
            self.orders.push(Order::Forget(key.1));
        }
    }

    /// Whether anything is known at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    #[must_use]
    pub fn figures(&self) -> Figures {
        let shunted = || self.known.values().filter(|known| known.copy);
        let suspects = || self.known.values().filter(|known| known.observed);
        Figures {
            suspects: suspects().count(),
            tried_alone: suspects().filter(|known| known.suspect.counted < SET_ASIDE_AFTER).count(),
            shunted: shunted().count(),
            oldest: shunted().map(|known| known.suspect.since).min(),
        }
    }

    /// How often a message was set aside.
    #[must_use]
    pub fn times_set_aside(&self) -> u64 {
        self.set_aside
    }
}

/// When it last had a worker to itself, or ended one: in microseconds since 1970.
fn last_tried(suspect: &Suspect) -> Option<i64> {
    suspect.deaths.last().map(|death| death.at).max(suspect.tried_at)
}

/// How long ago a moment was. One that is still to come was written before the clock was set back: no time has passed since then.
pub(super) fn ago(moment: i64) -> Duration {
    Duration::from_micros(u64::try_from(timestamp::now().saturating_sub(moment)).unwrap_or_default())
}

/// The digest of a message. `None` where its file cannot be read: then nothing is known of it, and it is delivered as any other.
fn digest(body: &Body) -> Option<Digest> {
    match body {
        Body::Memory(bytes) => Some(Digest::of(bytes)),
        Body::File(file) => match File::open(file.path()).and_then(Digest::of_file) {
            Ok(digest) => Some(digest),
            Err(error) => {
                warn!(file = %file.path().display(), %error, "a message's file cannot be read");
                None
            }
        },
    }
}

fn shunted(suspect: &Suspect, request: &Request) -> Shunted {
    let recipient = |to: &crate::handover::Recipient| ShuntedRecipient {
        address: to.address.clone(),
        original: to.original.clone(),
    };
    Shunted {
        size: suspect.size,
        since: suspect.since,
        set_aside_at: timestamp::now(),
        deaths: suspect.deaths.clone(),
        envelopes: vec![ShuntedEnvelope {
            sender: request.sender.clone(),
            recipients: request.recipients.iter().map(recipient).collect(),
            queue_id: request.queue_id.clone(),
            client_address: request.client_address.clone(),
            sasl_username: request.sasl_username.clone(),
            no_sent: request.no_sent,
            behind: if request.source == Source::Queue { Behind::Queue } else { Behind::Mta },
        }],
    }
}

/// The last stage that a worker has told of.
fn stage(said: &[String]) -> Option<&str> {
    said.iter().rev().find_map(|line| line.split_once(STAGE).map(|(_, stage)| stage.trim()))
}
