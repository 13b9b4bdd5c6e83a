//! What the story comes to: delivered, deferred, under way, and why.

use super::story::{Attempt, Copy, Story};
use crate::cli::ending::Ending;
use crate::cli::moment::{span, told};
use crate::lock::Holder;
use crate::mailbox::Role;
use std::time::Duration;

/// Postfix rests at most 4000 s between two tries of one message (maximal_backoff_time). When that has passed twice, nobody
/// has it in a queue that moves.
const NOBODY_TRIES: Duration = Duration::from_secs(8000);

/// How long an attempt that has not ended may matter, from its beginning.
pub(super) struct Limits {
    /// `delivery.deadline`: then its process is gone.
    pub(super) deadline: Duration,
    /// `imap.settle`: then its APPEND has landed, if it ever does.
    pub(super) settle: Duration,
}

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// Being delivered in this moment.
    UnderWay,
    /// Not delivered yet.
    Deferred,
    /// Refused for good.
    Refused,
    /// Delivered to everybody who was tried, but a Sent copy is owed.
    Owed,
    /// Delivered to everybody who was tried.
    Delivered,
}

impl State {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::UnderWay => "under way",
            Self::Deferred => "deferred",
            Self::Refused => "refused",
            Self::Owed => "owed",
            Self::Delivered => "delivered",
        }
    }
}

/// How it stands for one envelope recipient.
pub(super) struct Standing {
    pub(super) recipient: String,
    pub(super) state: State,
    /// In plain words.
    pub(super) told: String,
    /// How many attempts.
    pub(super) attempts: usize,
    /// When the last one began, in microseconds since 1970.
    pub(super) last_at: Option<i64>,
}

/// How it stands for each recipient that was tried, in alphabetical order.
pub(super) fn standings(story: &Story, now: i64, limits: &Limits) -> Vec<Standing> {
    let tried = tries(story).map(|attempt| attempt.recipient.as_str());
    // Attempts may have been pruned; the copies still tell.
    let brought = story.copies.iter().filter(|copy| copy.role == Role::Recipient).map(|copy| copy.recipient.as_str());
    let mut recipients: Vec<&str> = tried.chain(brought).collect();
    recipients.sort_unstable();
    recipients.dedup();
    recipients.into_iter().map(|recipient| standing(story, recipient, now, limits)).collect()
}

/// The attempts at delivering it. A copy too many that was taken out later says nothing of how it stands.
fn tries(story: &Story) -> impl Iterator<Item = &Attempt> {
    story.attempts.iter().filter(|attempt| attempt.ending() != Ending::Repair)
}

fn standing(story: &Story, recipient: &str, now: i64, limits: &Limits) -> Standing {
    let attempts: Vec<&Attempt> = tries(story).filter(|attempt| attempt.recipient == recipient).collect();
    let (state, told) = judge(story, recipient, &attempts, now, limits);
    Standing {
        recipient: recipient.to_owned(),
        state,
        told,
        attempts: attempts.len(),
        last_at: attempts.last().map(|attempt| attempt.began_at),
    }
}

fn judge(story: &Story, recipient: &str, attempts: &[&Attempt], now: i64, limits: &Limits) -> (State, String) {
    if let Some(attempt) = attempts.iter().find(|attempt| story.holds_the_lock(attempt)) {
        let Attempt { host, pid, .. } = attempt;
        let since = span(between(attempt.began_at, now));
        return (State::UnderWay, format!("being delivered now by {host}:{pid}, begun {since} ago"));
    }
    let is_its = |copy: &&Copy| {
        let of_its_attempts = attempts.iter().flat_map(|attempt| &attempt.copies).any(|tried| tried.key == copy.key);
        copy.role == Role::Recipient && (copy.recipient == recipient || of_its_attempts)
    };
    let copy = story.copies.iter().find(is_its).filter(|copy| copy.delivered);
    let done = attempts.iter().find(|attempt| is_done(story, attempt));
    match (copy, done, attempts.last()) {
        (Some(copy), done, last) if done.is_some() || last.is_none() => {
            let at = copy.delivered_at.unwrap_or(copy.updated_at);
            (State::Delivered, format!("delivered {}", told(at)))
        }
        // The copy was pruned, or never recorded: what the attempt says is all there is.
        (None, Some(done), _) => (State::Delivered, format!("delivered {}", told(done.began_at))),
        (copy, _, Some(last)) => {
            let (state, mut why) = why_not(last, now, limits);
            if copy.is_some() {
                why = format!("its copy is in the mailbox, but Postfix was not told so: {why}");
            }
            let silent = between(last.began_at, now);
            if state == State::Deferred && silent > NOBODY_TRIES {
                let queue_id = last.queue_id.as_deref().unwrap_or("its queue id");
                why.push_str(&format!(
                    "; nobody has tried for {}: ask `mailq` and Postfix's log for {queue_id} on {}",
                    span(silent),
                    last.host
                ));
            }
            (state, why)
        }
        (_, _, None) => (State::Deferred, "never tried".into()),
    }
}

/// Whether Postfix was told 0. A Sent copy that was tried for long enough leaves its attempt open where nobody knows what
/// came of the last append.
fn is_done(story: &Story, attempt: &Attempt) -> bool {
    let given_up =
        |key| story.copies.iter().any(|copy| copy.key == key && copy.role == Role::Sender && !copy.delivered);
    let copies = attempt.copies.iter().filter(|tried| tried.ended_at.is_some() || !given_up(tried.key));
    let endings = copies.map(|tried| (tried.role, Ending::of_copy(tried.ended_at.is_some(), tried.outcome.as_deref())));
    Ending::of_attempt(endings) == Ending::Delivered && attempt.copies.iter().any(|tried| tried.ended_at.is_some())
}

fn why_not(last: &Attempt, now: i64, limits: &Limits) -> (State, String) {
    let Attempt { host, pid, began_at, .. } = last;
    let failed = last
        .copies
        .iter()
        .find(|tried| Ending::of_copy(tried.ended_at.is_some(), tried.outcome.as_deref()) != Ending::Delivered);
    let outcome = failed.and_then(|tried| tried.outcome.as_deref()).unwrap_or_default();
    match last.ending() {
        Ending::Busy => (State::Deferred, "another delivery of this message held its lock".into()),
        Ending::Refused => (State::Refused, outcome.strip_prefix("refused: ").unwrap_or(outcome).to_owned()),
        Ending::Deferred(_) => {
            let whose = failed.filter(|tried| tried.role == Role::Sender);
            let whose = whose.map(|tried| format!("the copy for {} of {}: ", tried.mailbox, tried.user));
            let why = outcome.strip_prefix("deferred: ").unwrap_or(outcome);
            (State::Deferred, format!("{}{why}", whose.unwrap_or_default()))
        }
        Ending::Open if between(*began_at, now) < limits.deadline => {
            let ago = span(between(*began_at, now));
            let until = span(limits.settle);
            let why = format!(
                "{host}:{pid} began {ago} ago and has not ended: it is under way, waits for the lock, or was cut short (the \
                 next try is put off until {until} after that beginning, in case its copy still arrives)"
            );
            (State::UnderWay, why)
        }
        ending @ (Ending::Open | Ending::Died) => {
            let unsettled = ending == Ending::Open && between(*began_at, now) < limits.settle;
            let until = if unsettled {
                format!(
                    "is put off until {} after that beginning, in case its copy still arrives, and ",
                    span(limits.settle)
                )
            } else {
                String::new()
            };
            let why = format!(
                "the attempt of {host}:{pid} at {} never ended: it was cut short, or never heard what came of its append; \
                 the next try {until}looks for its copy first",
                told(*began_at)
            );
            (State::Deferred, why)
        }
        Ending::Delivered | Ending::Repair => (State::Delivered, format!("delivered {}", told(*began_at))),
    }
}

/// The line that comes first: what there is to know at three in the morning.
pub(super) fn line(story: &Story, standings: &[Standing]) -> (State, String) {
    let worst = standings.iter().min_by_key(|standing| standing.state);
    let owed: Vec<&Copy> = story.copies.iter().filter(|copy| !copy.delivered).collect();
    let Some(worst) = worst else {
        return (State::Deferred, "Recorded, and nothing is known of an attempt: they were pruned.".into());
    };
    let delivered = standings.iter().filter(|standing| standing.state == State::Delivered).count();
    let of = match (standings.len(), delivered) {
        (1, _) | (_, 0) => String::new(),
        (all, delivered) => format!(" Delivered to {delivered} of {all}."),
    };
    let Standing { recipient, told, attempts, .. } = worst;
    let times = if *attempts == 1 { "1 attempt".to_owned() } else { format!("{attempts} attempts") };
    match worst.state {
        State::UnderWay => (worst.state, format!("UNDER WAY to {recipient}: {told}.{of}")),
        State::Deferred => (worst.state, format!("STILL DEFERRED for {recipient} ({times}): {told}.{of}")),
        State::Refused => (worst.state, format!("REFUSED for {recipient}: {told}.{of}")),
        State::Owed | State::Delivered => {
            let to = match standings {
                [one] => one.recipient.clone(),
                all => format!("all {} recipients that were tried", all.len()),
            };
            let when = if standings.len() == 1 { format!(": {told}") } else { String::new() };
            match owed.first() {
                None => (State::Delivered, format!("DELIVERED to {to}{when}.")),
                Some(copy) => {
                    let Copy { mailbox, user, reason, .. } = copy;
                    let reason = reason.as_deref().unwrap_or("no reason is known");
                    let line = format!("DELIVERED to {to}{when}; the copy for {mailbox} of {user} is OWED: {reason}.");
                    (State::Owed, line)
                }
            }
        }
    }
}

/// Who has the lock, in words.
pub(super) fn held_by(holder: &Holder) -> String {
    let mut told = match (&holder.host, holder.pid) {
        (Some(host), Some(pid)) => format!("held by {host}:{pid}"),
        _ => "held by a program that does not say who it is".to_owned(),
    };
    if let Some(queue_id) = &holder.queue_id {
        told.push_str(&format!(", queue id {queue_id}"));
    }
    if let Some(session) = holder.session {
        told.push_str(&format!(", session {session} of the database server"));
    }
    if let Some(held_for) = holder.held_for {
        told.push_str(&format!(", for {}", span(held_for)));
    }
    told
}

fn between(earlier: i64, later: i64) -> Duration {
    Duration::from_micros(u64::try_from(later.saturating_sub(earlier)).unwrap_or(0))
}
