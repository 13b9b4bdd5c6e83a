//! A runner: a process that takes its slice of the file queue, and hands one message after the other to the broker, as any client
//! does. A message for many goes in portions, one after the other.
//!
//! It has one message in hand at a time, so that a mailbox that hangs holds up all others: [its first tries](time_for) have little time,
//! and [what was never tried](Listed) goes before what was.
//!
//! | what becomes of a message | what the runner does |
//! |---|---|
//! | delivered (2.x) | removes it |
//! | deferred (4.x) | defers it by the queue's own pauses |
//! | refused (5.x) | keeps it in `refused/` with the reason: nobody is there who could be told |
//! | nobody knows: the connection was lost after Go, or the answer makes no sense | defers it: the ledger tells the next try |
//! | not taken by a broker that is there | defers it: it may be the message, and others have their turn |
//! | no broker is there | gives it back as it was, and waits: each other message would fare the same |
//!
//! A runner that dies leaves its claim to the next one: see [`Queue::recover`].

use crate::base::back_off::{BackOff, doubled};
use crate::base::deadline::Deadline;
use crate::base::readiness;
use crate::base::stop::Stop;
use crate::config::{Config, Delivery};
use crate::delivery::{NoCaller, Verdict};
use crate::lock::Slice;
use crate::protocol::client::{self, Handed, Handing, Lost, NotTaken};
use crate::protocol::zmtp::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::protocol::{Recipient, Request, Source, portions};
use crate::queue::{Claim, Listed, Queue, QueueError, Settlement};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};
use thiserror::Error;
use tracing::{info, warn};
use uuid::Uuid;

/// How long an empty queue is left alone. inotify(7) would tell of new files at once, but not of those whose next try is due, nor of
/// those that another runner gives back for their lock; and to list an empty folder each second costs next to nothing.
const LOOK_EACH: Duration = Duration::from_secs(1);
/// How long the first try of a message of less than a megabyte for one recipient may take: a few seconds more than such a delivery does on
/// a busy site. (The broker has it wait for a worker for half of that at most.)
const FIRST_TRY: Duration = Duration::from_secs(15);
/// How much longer it may take for each further recipient, and for each megabyte.
const FOR_MORE: Duration = Duration::from_secs(1);
/// How often it is looked for what runners have left behind that are gone.
const RECOVER_EACH: Duration = Duration::from_mins(1);

/// What a runner goes by.
#[derive(Clone, Debug)]
pub struct RunnerSettings {
    /// The folder of the queue.
    queue: PathBuf,
    /// Where the broker listens for clients.
    broker: PathBuf,
    /// How long one delivery may take.
    deadline: Duration,
    /// For how long the ledger remembers what was delivered, at least: no `retention` is shorter than Postfix's queue lifetime, and
    /// `prune` may be told another one by options, or by a file that nobody knows here.
    remembered: Duration,
    /// The same as far as this configuration and the timer's say. `None`: for ever.
    retention: Option<Duration>,
    /// Its part of all messages.
    slice: Slice,
}

/// Why there can be no runner.
#[derive(Debug, Error)]
pub enum RunnerError {
    #[error("{doing}: {source}")]
    System { doing: &'static str, source: io::Error },
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl RunnerSettings {
    /// As a configuration says.
    #[must_use]
    pub fn of(config: &Config, slice: Slice) -> Self {
        let Delivery { deadline, postfix_queue_lifetime, .. } = config.delivery;
        let retention = config.retention.messages_older_than;
        let (queue, broker) = (config.serve.queue(), config.serve.clients_socket());
        Self { queue, broker, deadline, remembered: postfix_queue_lifetime, retention, slice }
    }
}

/// Hands out what is in the queue, until SIGTERM or SIGINT, and then until the message in hand has its answer.
///
/// # Errors
/// Where the queue cannot be opened, or the system gives us no signals.
pub fn run(settings: &RunnerSettings) -> Result<(), RunnerError> {
    let stop = Stop::on_signals().map_err(|source| RunnerError::System { doing: "setting up signals", source })?;
    let queue = match Queue::open(&settings.queue) {
        // What is delivered makes room.
        Err(error) if error.is_no_space() => Queue::existing(&settings.queue),
        opened => opened,
    }?;
    let listed = Listed::remembering(settings.retention);
    let mut runner =
        Runner { settings, queue, stop, pause: BackOff::new(FIRST_PAUSE, LONGEST_PAUSE), recovered: None, listed };
    info!(queue = %settings.queue.display(), slice = ?settings.slice, "the runner has begun");
    readiness::tell_master(true);
    while !runner.stop.is_told() {
        let wait = runner.once();
        runner.stop.wait(wait).map_err(|source| RunnerError::System { doing: "waiting", source })?;
    }
    info!("the runner has ended");
    Ok(())
}

struct Runner<'a> {
    settings: &'a RunnerSettings,
    queue: Queue,
    stop: Stop,
    /// Before the next look, where the system fails us or no broker is there.
    pause: BackOff,
    /// When it was last looked for what runners have left behind.
    recovered: Option<Instant>,
    /// What it found in the queue when it looked last.
    listed: Listed,
}

impl Runner<'_> {
    /// One message, if there is one; says how long to wait before the next.
    fn once(&mut self) -> Duration {
        self.recover();
        let claim = match self.queue.claim_listed(&mut self.listed, self.settings.slice, SystemTime::now()) {
            Ok(Some(claim)) => claim,
            Ok(None) => return LOOK_EACH,
            Err(error) => {
                warn!(%error, "no message can be claimed");
                return self.pause.pause();
            }
        };
        let (tries, began) = (claim.tries(), Instant::now());
        let next = self.run(claim);
        self.listed.took(tries, began.elapsed());
        match next {
            Ok(Next::Go) => {
                self.pause.reset();
                Duration::ZERO
            }
            Ok(Next::Pause) => self.pause.pause(),
            Err(error) => {
                // It is in the queue still: at the latest, it is brought back within a minute.
                warn!(%error, "what became of a message cannot be written down");
                self.pause.pause()
            }
        }
    }

    fn recover(&mut self) {
        if self.recovered.is_some_and(|at| at.elapsed() < RECOVER_EACH) {
            return;
        }
        self.recovered = Some(Instant::now());
        if let Err(error) = self.queue.recover(SystemTime::now(), self.settings.remembered) {
            warn!(%error, "what was left behind in the queue cannot be put right");
        }
    }

    fn run(&self, claim: Claim) -> Result<Next, QueueError> {
        let id = claim.name().id();
        let recipients = recipients(&claim);
        let (mut settlements, mut next) = (Vec::new(), Next::Go);
        for some in portions(&recipients) {
            // Of whom nothing is said is deferred.
            if !settlements.is_empty() && self.stop.is_told() {
                break;
            }
            let request = request(&claim, some);
            let deadline =
                Deadline::after(time_for(some.len(), claim.message().len(), claim.tries(), self.settings.deadline));
            let handing = Handing { request: &request, message: claim.message(), caller: &NoCaller, deadline };
            let (why, then) = match client::hand_over(&self.settings.broker, handing) {
                Handed::Answered(verdicts) => {
                    for (recipient, verdict) in some.iter().zip(&verdicts) {
                        info!(queue_id = id, recipient = recipient.address, %verdict, "a message of the queue was tried");
                    }
                    settlements.extend(verdicts.iter().map(settlement));
                    continue;
                }
                Handed::NotTaken(NotTaken { why, no_service: true }) if settlements.is_empty() => {
                    warn!(queue_id = id, why, "no service takes what is in the queue; it waits");
                    claim.give_back()?;
                    return Ok(Next::Pause);
                }
                // A broker that takes nothing at this moment must not have the whole queue deferred at once.
                Handed::NotTaken(NotTaken { why, .. }) => (why, Next::Pause),
                Handed::CallerGone => ("it was taken back".into(), Next::Pause),
                Handed::Lost(Lost::Connection) => ("the connection to the service was lost".into(), Next::Go),
                Handed::Lost(Lost::Silent) => ("the service has not answered in time".into(), Next::Go),
                Handed::Lost(Lost::Nonsense) => ("the service's answer makes no sense".into(), Next::Go),
            };
            warn!(queue_id = id, why, tries = claim.tries() + 1, "a message of the queue is deferred");
            next = then;
            break;
        }
        claim.settle(&settlements, SystemTime::now())?;
        Ok(next)
    }
}

/// How long a try may take, after so many others: twice as long as the one before, up to `longest`.
///
/// It is the time of the delivery, too: its worker gives it up by then, and the next try begins a minute later at the earliest. What
/// came of an APPEND that was given up meanwhile is found out by that one, as after any other loss: nothing is there twice. Mail for a
/// store that is slow, and not hung, is delivered by a later try, which has longer.
fn time_for(recipients: usize, size: usize, tries: u32, longest: Duration) -> Duration {
    let more = recipients.saturating_sub(1).saturating_add(size / 1_000_000);
    let first = FIRST_TRY.saturating_add(FOR_MORE.saturating_mul(u32::try_from(more).unwrap_or(u32::MAX)));
    doubled(first, tries, longest)
}

/// How it goes on.
enum Next {
    /// With the next message.
    Go,
    /// After a pause, which is longer each time.
    Pause,
}

fn recipients(claim: &Claim) -> Vec<Recipient> {
    let recipient = |recipient: &crate::queue::Recipient| Recipient {
        address: recipient.address.clone(),
        original: recipient.original.clone(),
    };
    claim.envelope().recipients.iter().map(recipient).collect()
}

/// Each try has an id of its own: what the broker still has of an earlier one is another delivery.
fn request(claim: &Claim, recipients: &[Recipient]) -> Request {
    let (envelope, id) = (claim.envelope(), claim.name().id());
    Request {
        id: Uuid::now_v7(),
        time_left_ms: 0,
        sender: envelope.sender.clone(),
        recipients: recipients.to_vec(),
        // By it the log and `trace` find the message, as they find one of Postfix's.
        queue_id: Some(id),
        client_address: None,
        // Who logs in at Postfix is vouched for in the same way.
        sasl_username: envelope.vouches.then(|| envelope.sender.clone()).filter(|sender| !sender.is_empty()),
        lock_wait_ms: None,
        no_sent: !envelope.may_owe_sent,
        size: claim.message().len() as u64,
        file: None,
        source: Source::Queue,
        suspect: false,
        slow: false,
    }
}

fn settlement(verdict: &Verdict) -> Settlement {
    match verdict.class() {
        2 => Settlement::Delivered,
        5 => Settlement::Refused(verdict.to_string()),
        _ => Settlement::Deferred,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_over_says_who_vouches_and_what_is_owed_and_each_answer_settles_it() {
        use crate::delivery::StatusDetail;
        use crate::lock::LockName;
        use crate::queue::{self, NewMail};
        let folder = tempfile::tempdir().unwrap();
        let queue = Queue::open(&folder.path().join("queue")).unwrap();
        for (sender, vouches, may_owe_sent) in [("lisa@x", true, true), ("lisa@x", false, false), ("", true, false)] {
            let recipients = vec![queue::Recipient { address: "doug@x".into(), original: Some("d@x".into()) }];
            let mail =
                NewMail { sender: sender.into(), recipients, injected_by: "a test".into(), may_owe_sent, vouches };
            let name = queue.enqueue(&LockName::new("x", b"x"), mail, b"Subject: x\n\nx\n", SystemTime::now()).unwrap();
            let claim = queue.claim(Slice::new(0, 1).unwrap(), SystemTime::now()).unwrap().unwrap();
            let request = request(&claim, &super::recipients(&claim));
            assert_eq!(request.sasl_username.as_deref(), (vouches && !sender.is_empty()).then_some(sender));
            assert_eq!((request.no_sent, request.queue_id), (!may_owe_sent, Some(name.id())));
            assert_eq!(request.recipients[0].original.as_deref(), Some("d@x"));
            claim.finish().unwrap();
        }
        assert!(matches!(settlement(&Verdict::delivered("x")), Settlement::Delivered));
        assert!(matches!(settlement(&Verdict::unknown_recipient("x")), Settlement::Refused(why) if why == "5.1.1 x"));
        assert!(matches!(settlement(&Verdict::deferred(StatusDetail::SYSTEM, "x")), Settlement::Deferred));
    }

    /// In seconds.
    #[test]
    fn each_try_may_take_twice_as_long_as_the_one_before_up_to_the_deadline() {
        let time =
            |recipients, size, tries| time_for(recipients, size, tries, crate::base::deadline::OF_A_DELIVERY).as_secs();
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 31, 32, u32::MAX].map(|tries| time(1, 0, tries)),
            [15, 30, 60, 120, 240, 240, 240, 240, 240]
        );
        assert_eq!(
            [(1, 999_999), (1, 25_000_000), (30, 0), (500, 0)].map(|(to, size)| time(to, size, 0)),
            [15, 40, 44, 240]
        );
        assert_eq!((time(30, 25_000_000, 1), time(usize::MAX, usize::MAX, 0)), (138, 240));
        assert_eq!(time_for(1, 0, 0, Duration::from_secs(10)), Duration::from_secs(10));
    }

    #[test]
    fn what_was_left_behind_is_looked_for_each_minute() {
        let folder = tempfile::tempdir().unwrap();
        let settings = RunnerSettings::of(&crate::service::configured(folder.path()), Slice::WHOLE);
        let queue = Queue::open(&settings.queue).unwrap();
        let (stop, pause) = (Stop::on_signals().unwrap(), BackOff::new(FIRST_PAUSE, LONGEST_PAUSE));
        let mut runner = Runner { settings: &settings, queue, stop, pause, recovered: None, listed: Listed::default() };
        runner.recover();
        let first = runner.recovered;
        assert!(first.is_some());
        // However long it takes to get there.
        let later = Instant::now() + Duration::from_hours(1);
        runner.recovered = Some(later);
        runner.recover();
        assert_eq!(runner.recovered, Some(later));
        let long_ago = Instant::now().checked_sub(RECOVER_EACH + Duration::from_secs(1));
        runner.recovered = long_ago;
        runner.recover();
        assert!(runner.recovered > long_ago);
    }
}
