//! The thread that owns the database session: it publishes events, leases subscriptions, starts requests and records their
//! results.

use super::connect::{Connector, by_the_system};
use super::leased_subscription::{ActiveLease, SETTLED_EACH, is_taken, outcome};
use super::send::{SendJob, Sender, Sent};
use super::unanswered::{Outage, Unanswered};
use super::{NotifierError, NotifierSettings};
use crate::base::back_off::BackOff;
use crate::base::deadline::Deadline;
use crate::base::readiness;
use crate::base::stop::Stop;
use crate::base::{hex, timestamp, tls};
use crate::database::{Client, DatabaseError, DatabaseFailure, Idle};
use crate::ledger::notifications::{
    Due, LARGEST_DUE, Leased, Notifications, PUBLISHED_AT_ONCE, Published, Settlement, StateChange, SubscriptionState,
    Wake, at_most_after,
};
use crate::ledger::subscriptions::NEVER_ANSWERED;
use crate::ledger::{Database, api_tokens};
use crate::lock::LockName;
use crate::operations::lock_holder::lock_of_program;
use crate::site::Site;
use crate::webhook::{Callback, ROTATION, payload};
use std::collections::BTreeMap;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};
use tracing::{debug, error, info, warn};
use url::Url;
use uuid::Uuid;

/// The longest time that one round with the database takes. At its end the server cancels the running statement, and no other one
/// begins. A server that does not answer is given up a little later. The next round does the rest, and keeps the receivers'
/// answers until then.
const ROUND: Duration = Duration::from_secs(30);
/// How often the database is polled for due notifications.
const POLL_EACH: Duration = Duration::from_millis(250);
/// The pauses after a round has failed twice in a row. There is no pause after the first failure: a session may have ended by
/// itself, and answers wait to be recorded.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// By how much a lease outlasts the longest request.
const LEASE_MARGIN: Duration = Duration::from_secs(15);
/// After this time, a subscription whose notifications do not end is given back, so that other subscriptions are served.
const TURN: Duration = Duration::from_secs(10);
const READ_AT_ONCE: usize = 100;
/// How many subscriptions are settled in one transaction. One COMMIT serves all of them, and a transaction that wakes one of
/// them does not wait long.
const SETTLED_TOGETHER: usize = 16;
/// How often the notifier searches for changed subscriptions that need service, and for events from the first position on.
const WAKE_EACH: Duration = Duration::from_secs(5);
/// How often all subscriptions are checked, in case a wake-up was lost.
const WAKE_ALL_EACH: Duration = Duration::from_mins(10);
/// How long a new callback may take to answer the verification request.
const VERIFIED_WITHIN: Duration = Duration::from_hours(24);

/// The name of the publisher's lock, as `lock exec` and `lock try` take it. No message can hold it: a sender chooses the
/// Message-ID, but locks of messages are in another namespace.
const PUBLISHER: &str = "notify/publisher";

/// Publishes events and sends notifications until SIGTERM or SIGINT, and then until the requests in flight have ended.
///
/// # Errors
/// If the system provides no signals or threads, or if there is no CA to trust.
pub fn run(site: &Site, settings: NotifierSettings) -> Result<(), NotifierError> {
    let system = |doing| move |source| NotifierError::System { doing, source };
    let stop = Stop::on_signals().map_err(system("setting up signals"))?;
    let tls = tls::client_config(settings.notifications.ca_file.as_deref());
    let tls = tls.map_err(|error| NotifierError::Tls(error.to_string()))?;
    let connector = Connector::new(settings.notifications.clone(), &tls, by_the_system());
    let sender = Sender::start(connector, settings.notifications.timeout).map_err(system("starting a thread"))?;
    let mut notifier = Notifier::new(site, settings, sender);
    // The column `subscription_queues.leased_by` holds this id.
    info!(leased_by = %notifier.by, "the notifier has begun");
    readiness::report_readiness(true);
    notifier.work(&stop);
    info!("the notifier has ended");
    Ok(())
}

struct Notifier<'a> {
    site: &'a Site,
    settings: NotifierSettings,
    lock: LockName,
    /// The id of this process in leases.
    by: Uuid,
    lease: Duration,
    sender: Sender,
    idle: Option<Idle<dyn Database>>,
    /// When the current round with the database ends.
    round_ends: Deadline,
    active_leases: BTreeMap<Uuid, ActiveLease>,
    /// When the database was last polled; `None`: poll immediately.
    polled_at: Option<Instant>,
    woken_at: Option<Instant>,
    /// When all subscriptions were last checked.
    all_woken_at: Option<Instant>,
    /// The last position that this process has published, now, at the last wake, and at the wake before that.
    ///
    /// Positions are assigned before deliveries commit, so the search for new ones begins before the last position. A delivery
    /// that took longer than [`WAKE_EACH`] to commit is found with the next new one, or when all are searched.
    published: i64,
    published_at_wake: i64,
    published_before: i64,
    /// The pauses between failing rounds, and until when no round begins after the last failure.
    pauses: BackOff,
    failing_until: Option<Instant>,
    outage: Outage,
}

impl<'a> Notifier<'a> {
    fn new(site: &'a Site, settings: NotifierSettings, sender: Sender) -> Self {
        Self {
            site,
            lock: lock_of_program(site.namespace(), PUBLISHER),
            by: Uuid::now_v7(),
            lease: settings.notifications.timeout + LEASE_MARGIN,
            settings,
            sender,
            idle: None,
            round_ends: Deadline::after(ROUND),
            active_leases: BTreeMap::new(),
            polled_at: None,
            woken_at: None,
            all_woken_at: None,
            published: 0,
            published_at_wake: 0,
            published_before: 0,
            pauses: BackOff::new(FIRST_PAUSE, LONGEST_PAUSE),
            failing_until: None,
            outage: Outage::default(),
        }
    }

    fn work(&mut self, stop: &Stop) {
        let mut stopping: Option<Instant> = None;
        loop {
            if stop.is_requested() && stopping.is_none() {
                info!(subscriptions = self.active_leases.len(), "the notifier ends after the requests under way");
                stopping = Some(Instant::now());
                self.active_leases.values_mut().for_each(ActiveLease::close);
            }
            self.hear(stopping.is_some());
            self.hand_out();
            let now = Instant::now();
            if self.has_to_do(now, stopping.is_some()) {
                match self.round(stopping.is_some()) {
                    Ok(()) => {
                        if self.round_succeeded() {
                            info!("the notifier's rounds with the database succeed again");
                        }
                        if now.elapsed() > SETTLED_EACH {
                            debug!(took = ?now.elapsed(), "a round with the database was a long one");
                        }
                    }
                    Err(problem) => {
                        if problem.failure == DatabaseFailure::InDoubt {
                            self.extend_all_leases();
                        }
                        let again_in = self.round_failed(Instant::now());
                        warn!(%problem, ?again_in, "the notifier's round with the database has failed");
                    }
                }
                self.hand_out();
            }
            if let Some(since) = stopping
                && (self.active_leases.is_empty()
                    || since.elapsed() > self.settings.notifications.timeout + LEASE_MARGIN)
            {
                // The leases of the remaining subscriptions expire, and their notifications are sent again.
                return;
            }
        }
    }

    /// Records that a round has failed. Returns how long to wait before the next round.
    fn round_failed(&mut self, now: Instant) -> Duration {
        let pause = if self.failing_until.is_some() { self.pauses.pause() } else { Duration::ZERO };
        self.failing_until = Some(now + pause);
        pause
    }

    /// Records that a round has succeeded. Returns whether the previous round had failed.
    fn round_succeeded(&mut self) -> bool {
        self.pauses.reset();
        self.failing_until.take().is_some()
    }

    fn pause_left(&self, now: Instant) -> Duration {
        self.failing_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Takes the answers that have arrived. If there is none, waits for one, or until something else is due.
    fn hear(&mut self, stopping: bool) {
        let now = Instant::now();
        // While it stops, the notifier no longer polls.
        let poll = if stopping { SETTLED_EACH } else { self.until_poll() };
        let settled = self.active_leases.values().filter_map(|lease| lease.flush_in(now)).min().unwrap_or(SETTLED_EACH);
        let wait = if self.active_leases.is_empty() { poll } else { poll.min(settled) };
        let blocked = self.pause_left(now).min(SETTLED_EACH);
        let wait = wait.max(blocked).min(POLL_EACH.max(SETTLED_EACH));
        match self.sender.sent.recv_timeout(wait) {
            Ok(sent) => self.answered(sent),
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => {
                // The sending thread ends only with this process, or with a panic.
                error!("the thread that sends has ended: so does this process");
                std::process::abort();
            }
        }
        self.hear_all();
    }

    /// Takes the answers that have arrived by now.
    fn hear_all(&mut self) {
        while let Ok(sent) = self.sender.sent.try_recv() {
            self.answered(sent);
        }
    }

    fn until_poll(&self) -> Duration {
        self.polled_at.map_or(Duration::ZERO, |at| POLL_EACH.saturating_sub(at.elapsed()))
    }

    /// Whether a round with the database is due, and no pause is running.
    fn has_to_do(&self, now: Instant, stopping: bool) -> bool {
        let is_to_be_settled = |lease| self.is_to_be_settled(lease, now);
        self.pause_left(now).is_zero()
            && ((!stopping && self.until_poll().is_zero()) || self.active_leases.values().any(is_to_be_settled))
    }

    /// After a commit whose result is unknown: a fail-over may have lost it. So each lease is extended by a new commit before
    /// anything else is sent, and that commit confirms the earlier ones.
    fn extend_all_leases(&mut self) {
        let now = Instant::now();
        self.active_leases
            .values_mut()
            .for_each(|lease| lease.leased_at = now.checked_sub(LEASE_MARGIN).unwrap_or(lease.leased_at));
    }

    fn is_to_be_settled(&self, lease: &ActiveLease, now: Instant) -> bool {
        lease.is_finished() || lease.wants_more() || lease.is_due(now) || self.is_to_be_leased_longer(lease, now)
    }

    fn is_to_be_leased_longer(&self, lease: &ActiveLease, now: Instant) -> bool {
        !lease.lost && now.saturating_duration_since(lease.leased_at) >= LEASE_MARGIN / 2
    }

    /// Starts the requests that may start. None starts while the database fails: results could not be recorded, and all requests
    /// would be sent again if this process were killed.
    fn hand_out(&mut self) {
        if self.failing_until.is_some() {
            return;
        }
        let now = Instant::now();
        let mut jobs = Vec::new();
        for lease in self.active_leases.values_mut() {
            // The lease must outlast the request.
            if now.saturating_duration_since(lease.leased_at) >= LEASE_MARGIN {
                continue;
            }
            while let Some(due) = lease.next() {
                jobs.push((lease.leased.clone(), due));
            }
        }
        for (leased, due) in jobs {
            let (id, body) = (payload::id(due.event), payload::render(&due, self.settings.api.as_deref()));
            self.send(&leased, Some(due.position), id, body, due.tries.saturating_add(1));
        }
    }

    fn send(&mut self, leased: &Leased, position: Option<i64>, id: String, body: String, number: u32) {
        let subscription = leased.subscription;
        let callback = match Callback::parse(&leased.callback_url, &self.settings.notifications) {
            Ok(callback) => callback,
            Err(refused) => {
                let answer = Err(Unanswered::Failed(format!("not called: {refused}")));
                let started_at = timestamp::now();
                return self.answered(Sent { subscription, position, started_at, took: Duration::ZERO, answer });
            }
        };
        let mut generations = vec![leased.secret_generation];
        if leased.secret_generation > 1 && leased.secret_age.is_some_and(|age| age < ROTATION) {
            generations.push(leased.secret_generation - 1);
        }
        let secrets =
            generations.iter().map(|generation| self.settings.key.secret(subscription, *generation)).collect();
        // If the sending thread has ended, the next receive notices that.
        let _ = self.sender.send(SendJob { subscription, position, callback, id, body, secrets, number });
    }

    /// Processes one answer.
    fn answered(&mut self, sent: Sent) {
        let (schedule, disable_after) = (&self.settings.schedule, self.settings.notifications.disable_after);
        let Some(lease) = self.active_leases.get_mut(&sent.subscription) else { return };
        let (taken, outcome) = (is_taken(&sent), outcome(&sent));
        debug!(subscription = %sent.subscription, position = ?sent.position, outcome, took = ?sent.took, "a notification was sent");
        let is_tried = match &sent.answer {
            Ok(_) => {
                self.outage.is_over(Instant::now());
                true
            }
            Err(Unanswered::Failed(_)) => true,
            Err(hidden @ Unanswered::NotCalled(_)) => {
                info!(subscription = %sent.subscription, why = hidden.detail(), "a subscriber was not called");
                true
            }
            Err(unreachable @ Unanswered::Unreachable(_)) => {
                info!(subscription = %sent.subscription, why = unreachable.detail(), "no way leads to a subscriber");
                let url = Url::parse(&lease.leased.callback_url).ok();
                !self.outage.has(url.as_ref().and_then(Url::host_str).unwrap_or_default(), Instant::now())
            }
            Err(Unanswered::NotTried(_)) => false,
        };
        if !is_tried {
            if !lease.closing {
                let (subscription, owner) = (sent.subscription, &lease.leased.owner);
                warn!(
                    %subscription, owner, outcome,
                    "a notification is delayed: too many host names fail to resolve, or this machine or its network has failed"
                );
            }
            // The verification request is sent again later, with a new challenge.
            lease.challenge = lease.challenge.take().filter(|_| sent.position.is_some());
            return lease.not_tried(sent.position, schedule);
        }
        match (sent.position, lease.challenge.take()) {
            (Some(position), challenge) => {
                lease.challenge = challenge;
                lease.answered(sent, position, schedule, disable_after);
            }
            (None, Some(challenge)) => {
                let answer = sent.answer.as_ref().map(|answer| answer.body.as_slice()).unwrap_or_default();
                if taken && payload::has_challenge(answer, &challenge) {
                    info!(subscription = %sent.subscription, "the callback has answered the verification request: the subscription is active");
                    lease.verified();
                } else {
                    let problem = if taken { "the answer lacks the challenge".to_owned() } else { outcome };
                    warn!(subscription = %sent.subscription, problem, "a new callback has not answered its question");
                    lease.not_verified(sent, problem, schedule, VERIFIED_WITHIN);
                }
            }
            (None, None) => {}
        }
    }

    /// Does one round with the database: records the results, and reads more due notifications.
    fn round(&mut self, stopping: bool) -> Result<(), DatabaseError> {
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
        self.hear_all();
        let now = Instant::now();
        if self.active_leases.values().any(|lease| lease.is_due(now)) { self.settle(database) } else { Ok(()) }
    }

    /// Like [`keep_up`](Self::keep_up), before a step that may take long: all answers are settled, due or not.
    fn settle_all(&mut self, database: &mut (impl Notifications + ?Sized)) -> Result<(), DatabaseError> {
        self.hear_all();
        let answered =
            self.active_leases.iter().filter(|(_, lease)| !lease.tries.is_empty()).map(|(id, _)| *id).collect();
        self.settle_these(database, answered)
    }

    fn settle(&mut self, database: &mut (impl Notifications + ?Sized)) -> Result<(), DatabaseError> {
        let now = Instant::now();
        let longer: Vec<Uuid> = self
            .active_leases
            .values()
            .filter(|lease| lease.tries.is_empty() && !lease.is_finished() && self.is_to_be_leased_longer(lease, now))
            .map(|lease| lease.leased.subscription)
            .collect();
        let lost = database.lease_longer(self.by, self.lease, &longer)?;
        for id in longer {
            let Some(lease) = self.active_leases.get_mut(&id) else { continue };
            lease.leased_at = now;
            lease.mark_lost(lost.contains(&id));
        }
        let has_to_be = |lease: &ActiveLease| {
            (lease.is_finished() || !lease.tries.is_empty()) && self.is_to_be_settled(lease, Instant::now())
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
                lease.tries.clear();
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
    fn settlement<'b>(&'b self, lease: &'b ActiveLease) -> Settlement<'b> {
        let disabled = matches!(lease.state, Some(StateChange::Disabled(_)));
        Settlement {
            subscription: lease.leased.subscription,
            in_order: lease.leased.in_order,
            by: self.by,
            lease: (!lease.is_finished()).then_some(self.lease),
            host: self.site.host(),
            tries: &lease.tries,
            failures: lease.failures,
            open_for: lease.rests_for,
            state: lease.state.as_ref(),
            callback: &lease.leased.callback_url,
            idle: !lease.leased.is_served() || disabled,
            alone: lease.leased.lease_limit == Some(0),
        }
    }

    /// Reads the due notifications of the subscriptions that can send more.
    fn read(&mut self, database: &mut (impl Notifications + ?Sized)) -> Result<(), DatabaseError> {
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
            except.extend(lease.tries.iter().filter_map(|one| one.position));
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
    fn held(&self) -> usize {
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
    fn poll(&mut self, database: &mut (impl Notifications + ?Sized)) -> Result<(), DatabaseError> {
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
    fn free(&self) -> usize {
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
    fn begin(&mut self, leased: Leased, asked_at: Instant) {
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
fn at_once(memory: usize, held: usize) -> usize {
    let fit = memory.saturating_sub(held) / LARGEST_DUE;
    fit.clamp(usize::from(held == 0), READ_AT_ONCE)
}

/// Sixteen unpredictable bytes.
fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    // If the system has no random numbers, TLS has none either.
    let filled = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
    debug_assert!(filled.is_ok());
    bytes
}

#[cfg(test)]
mod step_tests;
#[cfg(test)]
mod tests;
