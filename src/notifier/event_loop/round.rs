//! One round with the database: it records results, publishes events, leases subscriptions and reads due notifications.

use super::{Notifier, ROUND, VERIFIED_WITHIN};
use crate::base::deadline::Deadline;
use crate::base::{hex, timestamp};
use crate::database::{Client, DatabaseError, Idle};
use crate::ledger::api_tokens;
use crate::ledger::notifications::{
    Due, LARGEST_DUE, Leased, Notifications, PUBLISHED_AT_ONCE, Published, Settlement, StateChange, SubscriptionState,
    Wake, at_most_after,
};
use crate::ledger::subscriptions::NEVER_ANSWERED;
use crate::notifier::leased_subscription::ActiveLease;
use crate::webhook::payload;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tracing::{debug, error};
use url::Url;
use uuid::Uuid;

/// After this time, a subscription whose notifications do not end is given back, so that other subscriptions are served.
const TURN: Duration = Duration::from_secs(10);
pub(super) const READ_AT_ONCE: usize = 100;
/// How many subscriptions are settled in one transaction. One COMMIT serves all of them, and a transaction that wakes one of
/// them does not wait long.
const SETTLED_TOGETHER: usize = 16;
/// How often the notifier searches for changed subscriptions that need service, and for events from the first position on.
pub(super) const WAKE_EACH: Duration = Duration::from_secs(5);
/// How often all subscriptions are checked, in case a wake-up was lost.
const WAKE_ALL_EACH: Duration = Duration::from_mins(10);

impl Notifier<'_> {
    /// Does one round with the database: records the results, and reads more due notifications.
    pub(super) fn round(&mut self, stopping: bool) -> Result<(), DatabaseError> {
        let deadline = Deadline::after(ROUND);
        self.round_ends = deadline;
        let client = Client { host: self.site.host().to_owned(), pid: std::process::id(), queue_id: None };
        let begun = self.idle.take().map(|idle| idle.begin(&client, deadline));
        let mut database = match begun {
            Some(Ok(database)) => database,
            Some(Err(_)) | None => self.site.open_primary(deadline)?,
        };
        database.limit_statement_time(ROUND);
        self.settle(database.as_mut())?;
        if !stopping {
            self.read(database.as_mut())?;
            if self.until_poll().is_zero() && !self.round_ends.passed() {
                self.poll(database.as_mut())?;
            }
        }
        self.idle = Idle::after(database);
        Ok(())
    }

    /// Runs between the steps of a round, so that answers do not wait for the whole round. Takes the answers that have arrived
    /// meanwhile, and settles what is due by now.
    fn keep_up(&mut self, database: &mut (impl Notifications + ?Sized)) -> Result<(), DatabaseError> {
        self.receive_arrived();
        let now = Instant::now();
        if self.active_leases.values().any(|lease| lease.is_due(now)) { self.settle(database) } else { Ok(()) }
    }

    /// Like [`keep_up`](Self::keep_up), before a step that may take long: all answers are settled, due or not.
    fn settle_all(&mut self, database: &mut (impl Notifications + ?Sized)) -> Result<(), DatabaseError> {
        self.receive_arrived();
        let answered =
            self.active_leases.iter().filter(|(_, lease)| !lease.attempts.is_empty()).map(|(id, _)| *id).collect();
        self.settle_these(database, answered)
    }

    pub(super) fn settle(&mut self, database: &mut (impl Notifications + ?Sized)) -> Result<(), DatabaseError> {
        let now = Instant::now();
        let longer: Vec<Uuid> = self
            .active_leases
            .values()
            .filter(|lease| {
                lease.attempts.is_empty() && !lease.is_finished() && self.is_to_be_leased_longer(lease, now)
            })
            .map(|lease| lease.leased.subscription)
            .collect();
        let lost = database.lease_longer(self.by, self.lease, &longer)?;
        for id in longer {
            let Some(lease) = self.active_leases.get_mut(&id) else { continue };
            lease.leased_at = now;
            lease.mark_lost(lost.contains(&id));
        }
        let has_to_be = |lease: &ActiveLease| {
            (lease.is_finished() || !lease.attempts.is_empty()) && self.is_to_be_settled(lease, Instant::now())
        };
        let these = self.active_leases.iter().filter(|(_, lease)| has_to_be(lease)).map(|(id, _)| *id).collect();
        self.settle_these(database, these)
    }

    fn settle_these(
        &mut self,
        database: &mut (impl Notifications + ?Sized),
        ids: Vec<Uuid>,
    ) -> Result<(), DatabaseError> {
        for ids in ids.chunks(SETTLED_TOGETHER) {
            let asked_at = Instant::now();
            let settlements: Vec<Settlement<'_>> =
                ids.iter().filter_map(|id| self.active_leases.get(id)).map(|lease| self.settlement(lease)).collect();
            let lost = database.settle(&settlements)?;
            for id in ids {
                let Some(lease) = self.active_leases.get_mut(id) else { continue };
                if let Some(StateChange::Disabled(why)) = &lease.state {
                    // Only the host is logged: the rest of the URL may grant access, and more people read the log than the
                    // subscription.
                    let host =
                        Url::parse(&lease.leased.callback_url).ok().and_then(|url| url.host_str().map(str::to_owned));
                    error!(subscription = %id, host, why, "a subscription is disabled: it gets no notifications any more");
                }
                lease.attempts.clear();
                lease.state = None;
                (lease.settled_at, lease.leased_at) = (asked_at, asked_at);
                if lease.is_finished() {
                    self.active_leases.remove(id);
                    // Notifications that wait in the database may be due by now.
                    self.polled_at = if lost.contains(id) { None } else { self.polled_at };
                } else {
                    lease.mark_lost(lost.contains(id));
                }
            }
        }
        Ok(())
    }

    /// What a settlement records for this subscription.
    pub(super) fn settlement<'b>(&'b self, lease: &'b ActiveLease) -> Settlement<'b> {
        let disabled = matches!(lease.state, Some(StateChange::Disabled(_)));
        Settlement {
            subscription: lease.leased.subscription,
            in_order: lease.leased.in_order,
            by: self.by,
            lease: (!lease.is_finished()).then_some(self.lease),
            host: self.site.host(),
            attempts: &lease.attempts,
            failures: lease.failures,
            open_for: lease.rests_for,
            state: lease.state.as_ref(),
            callback: &lease.leased.callback_url,
            idle: !lease.leased.is_served() || disabled,
            alone: lease.leased.lease_limit == Some(0),
        }
    }

    /// Reads the due notifications of the subscriptions that can send more.
    pub(super) fn read(&mut self, database: &mut (impl Notifications + ?Sized)) -> Result<(), DatabaseError> {
        let ids: Vec<Uuid> = self.active_leases.keys().copied().collect();
        let mut held = self.held();
        for id in ids {
            if self.round_ends.passed() {
                break;
            }
            self.keep_up(database)?;
            let Some(lease) = self.active_leases.get_mut(&id).filter(|lease| lease.wants_more()) else { continue };
            if lease.since.elapsed() > TURN {
                lease.read_to_the_end = true;
                continue;
            }
            // In the database, a notification that is answered but not settled is still due.
            let mut except: Vec<i64> = lease.in_flight.keys().copied().collect();
            except.extend(lease.waiting.iter().map(|due| due.position));
            except.extend(lease.attempts.iter().filter_map(|one| one.position));
            if lease.leased.lease_limit == Some(0) {
                // The details of its message may have ended the notifiers, so they are not read.
                let first = database.due(&Leased { full: false, ..lease.leased.clone() }, &except, 1)?;
                lease.ended_notifiers(first.first(), timestamp::now(), &self.settings.schedule);
                continue;
            }
            let fits = at_once(self.settings.memory, held);
            let most = if lease.is_probed() { fits.min(1) } else { fits };
            if most == 0 {
                // The subscription is given back, and leased again once others use less memory.
                lease.read_to_the_end = true;
                continue;
            }
            let due: Vec<Due> = database.due(&lease.leased, &except, most)?;
            held += due.iter().map(Due::bytes).sum::<usize>();
            lease.read_to_the_end = due.len() < most;
            lease.waiting.extend(due);
        }
        Ok(())
    }

    /// How much memory the waiting and the in-flight notifications take, in bytes.
    pub(super) fn held(&self) -> usize {
        self.active_leases.values().map(ActiveLease::bytes).sum()
    }

    /// How many more subscriptions may be leased. If another notifier ended with one of them, at most half as many as that
    /// notifier had.
    fn left_to_lease(&self) -> usize {
        let ended = self.active_leases.values().filter_map(|lease| lease.leased.lease_limit).min();
        ended.map_or(usize::MAX, at_most_after).saturating_sub(self.active_leases.len())
    }

    /// Which subscriptions are checked in this round.
    fn wake(&self) -> Wake {
        let is_due = |at: Option<Instant>, each| at.is_none_or(|at| at.elapsed() >= each);
        if !is_due(self.woken_at, WAKE_EACH) {
            Wake::Nobody
        } else if is_due(self.all_woken_at, WAKE_ALL_EACH) {
            Wake::All
        } else {
            Wake::Changed
        }
    }

    /// Publishes events, and leases subscriptions with due notifications.
    pub(super) fn poll(&mut self, database: &mut (impl Notifications + ?Sized)) -> Result<(), DatabaseError> {
        let at = Instant::now();
        let wake = self.wake();
        let mut more = false;
        if wake != Wake::Nobody || database.has_unpublished(self.published_before)? {
            self.settle_all(database)?;
            match database.publish(&self.lock, wake)? {
                Published::Events { count: events, last } => {
                    more = events == PUBLISHED_AT_ONCE;
                    self.published = self.published.max(last);
                    if wake == Wake::All {
                        self.all_woken_at = Some(at);
                    }
                    if events > 0 {
                        debug!(events, "events were published");
                    }
                }
                Published::Busy => debug!("another notifier publishes"),
            }
            if wake != Wake::Nobody {
                self.woken_at = Some(at);
                (self.published_before, self.published_at_wake) = (self.published_at_wake, self.published);
            }
        }
        self.keep_up(database)?;
        // One slow answer must not delay new notifications of the same subscription.
        self.active_leases
            .values_mut()
            .filter(|lease| lease.has_room())
            .for_each(|lease| lease.read_to_the_end = false);
        // All subscriptions of one lease statement may belong to one owner. So one statement leases a quarter of the concurrency
        // at most.
        let most = self
            .free()
            .min(READ_AT_ONCE)
            .min(self.settings.notifications.concurrency.div_ceil(4))
            .min(self.left_to_lease());
        if most > 0 && at_once(self.settings.memory, self.held()) > 0 {
            let asked_at = Instant::now();
            let shares = self.shares();
            let served: Vec<&str> =
                shares.iter().filter(|(_, has)| **has >= self.share()).map(|(owner, _)| owner.as_str()).collect();
            let leased = database.lease(self.by, self.lease, most, &served, self.active_leases.len())?;
            more |= leased.len() == most;
            for leased in leased {
                self.begin(leased, asked_at);
            }
            self.allot();
        }
        self.read(database)?;
        self.polled_at = (!more).then_some(at);
        Ok(())
    }

    /// How many requests are allotted to no subscription.
    pub(super) fn free(&self) -> usize {
        self.settings
            .notifications
            .concurrency
            .saturating_sub(self.active_leases.values().map(|lease| lease.allotment).sum())
    }

    /// How many requests the subscriptions of one token may have at once. The other half remains for other owners, however slow
    /// these receivers are.
    fn share(&self) -> usize {
        self.settings.notifications.concurrency.div_ceil(2)
    }

    /// How many requests the subscriptions of each token have. A subscription that an operator made belongs to the site, and does
    /// not count.
    fn shares(&self) -> BTreeMap<String, usize> {
        let mut shares = BTreeMap::new();
        for lease in self.active_leases.values().filter(|lease| api_tokens::is_owner(&lease.leased.owner)) {
            *shares.entry(lease.leased.owner.clone()).or_default() += lease.allotment;
        }
        shares
    }

    /// Allots free requests to the leased subscriptions that can use more. Each has one request from the beginning. A receiver
    /// that answers for the first time, or after failures, may get as many as any other.
    fn allot(&mut self) {
        let (mut free, mut shares, share) = (self.free(), self.shares(), self.share());
        for lease in self.active_leases.values_mut() {
            let of_owner = shares.get_mut(&lease.leased.owner);
            let left = of_owner.as_ref().map_or(free, |has| share.saturating_sub(**has));
            let more = lease.wanted_slots().saturating_sub(lease.allotment).min(left).min(free);
            lease.allotment += more;
            free -= more;
            if let Some(has) = of_owner {
                *has += more;
            }
        }
    }

    /// Starts to serve a leased subscription.
    pub(super) fn begin(&mut self, leased: Leased, asked_at: Instant) {
        let (id, state, age) = (leased.subscription, leased.state, leased.age);
        let mut lease = ActiveLease::new(leased.clone(), 1, asked_at);
        if state == SubscriptionState::Unverified && !self.settings.notifications.verify_callbacks {
            lease.verified();
        } else if state == SubscriptionState::Unverified && age > VERIFIED_WITHIN {
            lease.disable(NEVER_ANSWERED.into());
        }
        if let Some(earlier) = self.active_leases.remove(&id) {
            lease.take_over(earlier);
        }
        let asks = lease.leased.state == SubscriptionState::Unverified && !lease.closing && lease.challenge.is_none();
        let challenge = hex::encode(Uuid::now_v7().as_bytes()) + &hex::encode(&random());
        if asks {
            lease.challenge = Some(challenge.clone());
        }
        self.active_leases.insert(id, lease);
        if asks {
            let event = payload::id(Uuid::now_v7());
            let body = payload::question(&event, timestamp::now(), id, &challenge);
            self.send(&leased, None, event, body, leased.failures.saturating_add(1));
        }
    }
}

/// How many notifications may be read at once so that the memory suffices, however large they are. At least one if none is held,
/// whatever the memory limit.
pub(super) fn at_once(memory: usize, held: usize) -> usize {
    let fit = memory.saturating_sub(held) / LARGEST_DUE;
    fit.clamp(usize::from(held == 0), READ_AT_ONCE)
}

/// Sixteen unpredictable bytes.
pub(super) fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    // If the system has no random numbers, TLS has none either.
    let filled = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
    debug_assert!(filled.is_ok());
    bytes
}
