//! The thread that owns the database session: it starts requests, and runs the [rounds](round) with the database.

mod round;

use super::connect::{Connector, by_the_system};
use super::leased_subscription::{ActiveLease, SETTLED_EACH, is_taken, outcome};
use super::request_failure::{Outage, RequestFailure};
use super::send::{SendJob, Sender, Sent};
use super::{NotifierError, NotifierSettings};
use crate::base::back_off::BackOff;
use crate::base::deadline::Deadline;
use crate::base::readiness;
use crate::base::stop::Stop;
use crate::base::{timestamp, tls};
use crate::database::{DatabaseFailure, Idle};
use crate::ledger::Database;
use crate::ledger::notifications::Leased;
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
    /// that took longer than [`WAKE_EACH`](round::WAKE_EACH) to commit is found with the next new one, or when all are searched.
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
            self.receive_answers(stopping.is_some());
            self.start_requests();
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
                self.start_requests();
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
    fn receive_answers(&mut self, stopping: bool) {
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
        self.receive_arrived();
    }

    /// Takes the answers that have arrived by now.
    fn receive_arrived(&mut self) {
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
    fn start_requests(&mut self) {
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
                let answer = Err(RequestFailure::Failed(format!("not called: {refused}")));
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
            Err(RequestFailure::Failed(_)) => true,
            Err(hidden @ RequestFailure::NotCalled(_)) => {
                info!(subscription = %sent.subscription, why = hidden.detail(), "a subscriber was not called");
                true
            }
            Err(unreachable @ RequestFailure::Unreachable(_)) => {
                info!(subscription = %sent.subscription, why = unreachable.detail(), "no way leads to a subscriber");
                let url = Url::parse(&lease.leased.callback_url).ok();
                !self.outage.has(url.as_ref().and_then(Url::host_str).unwrap_or_default(), Instant::now())
            }
            Err(RequestFailure::NotTried(_)) => false,
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
}

#[cfg(test)]
mod step_tests;
#[cfg(test)]
mod tests;
