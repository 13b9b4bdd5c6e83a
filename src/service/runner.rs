//! A runner: a process for one shard of the file queue. It passes the messages one at a time to the broker, as any client does. A
//! message with many recipients is sent in batches, one after the other.
//!
//! Since a runner has one message in progress at a time, a mailbox that hangs delays all others. So [the first
//! attempts](time_for) have little time, and [messages without an attempt](DueList) come first.
//!
//! | result of a message | what the runner does |
//! |---|---|
//! | delivered (2.x) | removes it |
//! | deferred (4.x) | defers it by the queue's own pauses |
//! | refused (5.x) | keeps it in `refused/` with the reason: there is no sender to notify |
//! | unknown: the connection was lost after GO, or the answer is invalid | defers it: at the retry, the ledger knows the result |
//! | not taken by a running broker | defers it: the message may be the cause, and others get their turn |
//! | no broker runs | gives it back unchanged, and waits: any other message would have the same result |
//!
//! A runner that dies leaves its claim to the next one: see [`Queue::recover`].

use super::error::ServiceError;
use crate::base::back_off::{BackOff, doubled};
use crate::base::deadline::Deadline;
use crate::base::readiness;
use crate::base::stop::Stop;
use crate::config::Config;
use crate::delivery::{NoCaller, Verdict};
use crate::lock::Shard;
use crate::protocol::client::{self, Handover, HandoverResult, NotTaken};
use crate::protocol::zmtp::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::protocol::{Recipient, Request, Source, chunk_recipients};
use crate::queue::{Claim, DueList, Queue, QueueError, Settlement};
use std::time::{Duration, Instant, SystemTime};
use tracing::{info, warn};

/// The interval at which an empty queue is polled. inotify(7) would report new files, but neither due retries nor messages that
/// another runner gives back because of their lock. Listing an empty folder each second costs next to nothing.
const LOOK_EACH: Duration = Duration::from_secs(1);
/// How long the first attempt may take, for a message of less than a megabyte to one recipient: a few seconds more than such a
/// delivery takes on a busy site. (The message waits at the broker for at most half of this time.)
const FIRST_TRY: Duration = Duration::from_secs(15);
/// The additional time for each further recipient, and for each megabyte.
const FOR_MORE: Duration = Duration::from_secs(1);
/// The interval at which the claims of dead runners are recovered.
const RECOVER_EACH: Duration = Duration::from_mins(1);

/// Passes the messages of this shard to the broker, until SIGTERM or SIGINT. Then the message in progress still gets its answer.
///
/// # Errors
/// If the queue cannot be opened, or if the system provides no signal handlers.
pub fn run(config: &Config, shard: Shard) -> Result<(), ServiceError> {
    let stop = Stop::on_signals().map_err(ServiceError::system("setting up signals"))?;
    let mut runner = Runner::new(config, shard, stop)?;
    info!(queue = %runner.queue.path().display(), ?shard, "the runner has begun");
    readiness::report_readiness(true);
    while !runner.stop.is_requested() {
        let wait = runner.once();
        runner.stop.wait(wait).map_err(ServiceError::system("waiting"))?;
    }
    info!("the runner has ended");
    Ok(())
}

struct Runner<'a> {
    config: &'a Config,
    /// The runner's part of all messages.
    shard: Shard,
    queue: Queue,
    stop: Stop,
    /// The pause after a system error, or if no broker runs.
    pause: BackOff,
    /// When claims of dead runners were last recovered.
    recovered: Option<Instant>,
    /// The last listing of the queue.
    listed: DueList,
}

impl<'a> Runner<'a> {
    fn new(config: &'a Config, shard: Shard, stop: Stop) -> Result<Self, QueueError> {
        let queue = Queue::open(&config.service.queue())?;
        let listed = DueList::remembering(config.retention.messages_older_than);
        Ok(Self {
            config,
            shard,
            queue,
            stop,
            pause: BackOff::new(FIRST_PAUSE, LONGEST_PAUSE),
            recovered: None,
            listed,
        })
    }

    /// Handles one message, if there is one. Returns how long to wait before the next.
    fn once(&mut self) -> Duration {
        self.recover();
        let claim = match self.queue.claim_listed(&mut self.listed, self.shard, SystemTime::now()) {
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
                // The message is still in the queue, and is recovered within a minute.
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
        // The ledger remembers deliveries for at least as long: no `retention` is shorter. But `prune` may use another value,
        // from its options or from a file that this process does not know.
        if let Err(error) = self.queue.recover(SystemTime::now(), self.config.delivery.postfix_queue_lifetime) {
            warn!(%error, "what was left behind in the queue cannot be put right");
        }
    }

    fn run(&self, claim: Claim) -> Result<Next, QueueError> {
        let id = claim.name().id();
        let (mut settlements, mut next) = (Vec::new(), Next::Go);
        for some in chunk_recipients(&claim.envelope().recipients) {
            // Recipients without a settlement are deferred.
            if !settlements.is_empty() && self.stop.is_requested() {
                break;
            }
            let request = request(&claim, some);
            let longest = self.config.delivery.deadline;
            let deadline = Deadline::after(time_for(some.len(), claim.message().len(), claim.tries(), longest));
            let handover = Handover { request: &request, message: claim.message(), caller: &NoCaller, deadline };
            let (why, then) = match client::hand_over(&self.config.service.clients_socket(), handover) {
                HandoverResult::Answered(verdicts) => {
                    for (recipient, verdict) in some.iter().zip(&verdicts) {
                        info!(queue_id = id, recipient = recipient.address, %verdict, "a message of the queue was tried");
                    }
                    settlements.extend(verdicts.iter().map(settlement));
                    continue;
                }
                HandoverResult::NotTaken(NotTaken { why, no_service: true }) if settlements.is_empty() => {
                    warn!(queue_id = id, why, "no service takes what is in the queue; it waits");
                    claim.give_back()?;
                    return Ok(Next::Pause);
                }
                // Without this pause, a broker that takes nothing for a while would cause the whole queue to be deferred.
                HandoverResult::NotTaken(NotTaken { why, .. }) => (why, Next::Pause),
                HandoverResult::CallerGone => ("it was taken back".into(), Next::Pause),
                HandoverResult::Lost(lost) => (lost.to_string(), Next::Go),
            };
            warn!(queue_id = id, why, tries = claim.tries() + 1, "a message of the queue is deferred");
            next = then;
            break;
        }
        claim.settle(&settlements, SystemTime::now())?;
        Ok(next)
    }
}

/// How long an attempt may take after `tries` others: twice as long as the previous one, up to `longest`.
///
/// The delivery has the same time: after it the worker has given up, and the next attempt begins at least a minute later. As
/// after any loss, that attempt determines the result of an APPEND that was given up, so nothing is duplicated. A store that is
/// slow, but does not hang, gets its mail by a later attempt, which has more time.
fn time_for(recipients: usize, size: usize, tries: u32, longest: Duration) -> Duration {
    let more = recipients.saturating_sub(1).saturating_add(size / 1_000_000);
    let first = FIRST_TRY.saturating_add(FOR_MORE.saturating_mul(u32::try_from(more).unwrap_or(u32::MAX)));
    doubled(first, tries, longest)
}

/// How the runner continues.
enum Next {
    /// At once, with the next message.
    Go,
    /// After a pause, which becomes longer each time.
    Pause,
}

/// Each attempt has its own id. If the broker still has a request of an earlier attempt, that is another delivery.
fn request(claim: &Claim, recipients: &[Recipient]) -> Request {
    let envelope = claim.envelope();
    Request {
        // The log and `trace` find the message by this id, like a queue id of Postfix.
        queue_id: Some(claim.name().id()),
        // A user who is logged in at Postfix is authenticated in the same way.
        sasl_username: envelope.may_owe_sent.then(|| envelope.sender.clone()).filter(|sender| !sender.is_empty()),
        no_sent: !envelope.may_owe_sent,
        source: Source::Queue,
        ..Request::new(envelope.sender.clone(), recipients.to_vec(), claim.message().len() as u64)
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
        use crate::queue::{self, Envelope};
        let folder = tempfile::tempdir().unwrap();
        let queue = Queue::open(&folder.path().join("queue")).unwrap();
        for (sender, may_owe_sent) in [("lisa@x", true), ("lisa@x", false), ("", true)] {
            let recipients = vec![queue::Recipient { address: "doug@x".into(), original: Some("d@x".into()) }];
            let mail = Envelope {
                sender: sender.into(),
                recipients,
                injected_by: "a test".into(),
                may_owe_sent,
                ..Envelope::default()
            };
            let name = queue.enqueue(&LockName::new("x", b"x"), mail, b"Subject: x\n\nx\n", SystemTime::now()).unwrap();
            let claim = queue.claim(Shard::new(0, 1).unwrap(), SystemTime::now()).unwrap().unwrap();
            let request = request(&claim, &claim.envelope().recipients);
            assert_eq!(request.sasl_username.as_deref(), (may_owe_sent && !sender.is_empty()).then_some(sender));
            assert_eq!((request.no_sent, request.queue_id), (!may_owe_sent, Some(name.id())));
            assert_eq!(request.recipients[0].original.as_deref(), Some("d@x"));
            claim.finish().unwrap();
        }
        assert!(matches!(settlement(&Verdict::delivered("x")), Settlement::Delivered));
        assert!(matches!(settlement(&Verdict::unknown_recipient("x")), Settlement::Refused(why) if why == "5.1.1 x"));
        assert!(matches!(settlement(&Verdict::deferred(StatusDetail::SYSTEM, "x")), Settlement::Deferred));
    }

    /// Times are in seconds.
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
        let config = crate::service::configured(folder.path());
        let mut runner = Runner::new(&config, Shard::WHOLE, Stop::on_signals().unwrap()).unwrap();
        runner.recover();
        let first = runner.recovered;
        assert!(first.is_some());
        // An hour ahead, so that a slow test makes no difference.
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
