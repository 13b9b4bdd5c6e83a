//! What must be true, whatever happened. (What must be true of a moment, [`World`] says itself: see `World::breaks`.)
//!
//! Of deliveries:
//!
//! 1. Exit 0: the copies are in the mailboxes, recorded, and where the ledger says.
//! 2. After exit 0 nothing that an earlier run for the same recipient sent takes effect, except a Sent copy that is owed.
//! 3. A delivery whose lock was held elsewhere never exits 0.
//! 4. If nothing has gone wrong, the holder of the lock delivers. Excepted are a second alias of one recipient, and another
//!    `lock.namespace`.
//! 5. The holder of the lock never appends beside another copy, unless a process that had lost the lock made that one.
//! 6. A process that has lost the lock finishes neither its APPEND nor its expunge.
//! 7. No expunge removes the last copy, a copy of the owner's, or another message.
//! 8. At the end there is exactly one copy.
//! 9. Every run ends, and no lock is left.
//! 10. No mailbox has the beginning of a message in its place.
//!
//! Of the service:
//!
//! 11. A recipient who was answered 250 has a copy that is recorded; so has the author, once nobody is to come back.
//! 12. Each message has one reply per accepted recipient, in their order, and no 5XX.
//! 13. A worker has one message at a time, and a message goes to one worker, once.
//! 14. A message is delivered by the service or by its client, never by both.
//! 15. Every client is answered in time, and in the end a front keeps nothing.
//! 16. A message has the same identity on each transport.
//!
//! A second copy is excused in five cases: its owner moved a copy or the mailbox was renumbered; a replay was forgotten; a
//! fail-over forgot an attempt whose APPEND landed later, or found two copies already; Sent could not be searched for as long
//! as that is tried; the store cannot expunge one message. A copy that is missing is excused only if its owner took it.

use crate::run::Messages;
use crate::scenario::{Before, Job, Left, Scenario};
use crate::world::{Attempt, Name, Row, SimulatedBox, UnderWay, World};
use maildrop_command::ledger::CopyKey;
use maildrop_command::mailbox::Placement;
use maildrop_command::message::Identity;
use maildrop_command::message::Role;

/// The copy that a job owes to a recipient, unless it is there for the author's alone.
fn inbox(job: &Job, recipient: &'static str, messages: &Messages) -> Option<(Name, CopyKey)> {
    let identity = messages[job.message].identity();
    let key = CopyKey::new(identity, Role::Recipient, recipient, "INBOX");
    (!job.finishes).then_some(((recipient, "INBOX"), key))
}

/// The copy that it owes to the author.
fn sent(job: &Job, messages: &Messages) -> Option<(Name, CopyKey)> {
    let identity = messages[job.message].identity();
    job.sent.then(|| (("lisa", "Sent"), CopyKey::new(identity, Role::Sender, "lisa", "Sent")))
}

/// A sender's copy that could not be appended for long enough stays owed, and is no loss.
fn may_stay_owed(scenario: &Scenario, name: Name) -> bool {
    name.1 == "Sent" && scenario.may_be_owed()
}

/// A recipient is answered 250, or a process exits 0: no answer said that another one holds the lock, nothing that an
/// earlier run for the same recipient sent can still come of it, the copy is there, and it is recorded. So is the
/// author's, unless somebody of the job is to come back.
pub fn delivered(
    scenario: &Scenario,
    process: usize,
    (job, recipient): (usize, &'static str),
    nobody_comes_back: bool,
    messages: &Messages,
    world: &World,
) -> Result<(), String> {
    if world.saw_busy.contains(&process) {
        return Err("exit 0 of a process that found the lock held elsewhere".into());
    }
    let earlier = |number| number < process && scenario.job_of(number) == Some(job);
    let number = job;
    let job = &scenario.jobs[job];
    let (own, author) = (inbox(job, recipient, messages), sent(job, messages));
    // Of the author's copy, the one who comes back is the recipient that the journal names.
    let bore = |number: usize| {
        let attempt = Scenario::attempt_of(number);
        let row = |it: &&Attempt| it.attempt == attempt && author.is_some_and(|(_, key)| it.key == key);
        world.attempts.iter().find(row).is_none_or(|row| row.recipient == recipient)
    };
    // While the author's copy is owed, its redelivery waits for all that was sent.
    let is_owed = author.is_some_and(|(_, key)| world.copies.get(&key) == Some(&Row::Owed));
    let concerns = |sent: &UnderWay| {
        own.is_some_and(|(name, _)| sent.mailbox == name)
            || (sent.mailbox.1 == "Sent" && bore(sent.process) && !is_owed)
    };
    if world.under_way.iter().any(|sent| earlier(sent.process) && concerns(sent)) && !world.forgot {
        return Err("exit 0, and what an earlier run for the same recipient sent may still be carried out".into());
    }
    answered(scenario, (number, recipient), nobody_comes_back, messages, world)
}

/// Postfix learns that a recipient has its copy: it is there, and it is recorded. So is the author's, unless somebody
/// of the job is to come back.
pub fn answered(
    scenario: &Scenario,
    (job, recipient): (usize, &'static str),
    nobody_comes_back: bool,
    messages: &Messages,
    world: &World,
) -> Result<(), String> {
    let job = &scenario.jobs[job];
    let author = sent(job, messages).filter(|_| nobody_comes_back);
    for (name, key) in inbox(job, recipient, messages).into_iter().chain(author) {
        match world.copies.get(&key) {
            Some(Row::Delivered(_)) => {}
            Some(Row::Owed) if may_stay_owed(scenario, name) && !job.finishes => continue,
            None if world.forgot => {}
            other => return Err(format!("exit 0, or 250, but the ledger has {other:?} for {name:?}")),
        }
        is_there(name, key, job, messages, world)?;
    }
    Ok(())
}

/// A process is deferred. If nothing has gone wrong, the holder of the lock delivers; or two could defer to each
/// other for ever. Only a second alias of one recipient may defer to the first, and a host to one with another
/// namespace.
pub fn deferred(scenario: &Scenario, process: usize, left: Left, world: &World) -> Result<(), String> {
    // A redelivery of owed copies gives way to all others.
    let finishes = scenario.job_of(process).is_some_and(|job| scenario.jobs[job].finishes);
    if finishes || scenario.jobs.iter().any(|job| job.full.is_some()) {
        return Ok(());
    }
    let all = scenario.left;
    let undisturbed = Left { preemptions: all.preemptions, hasty_retries: all.hasty_retries, ..left } == all;
    let mine = |attempt: &&Attempt| attempt.attempt == Scenario::attempt_of(process);
    let Some(mine) = world.attempts.iter().find(mine).filter(|_| world.saw_held.contains(&process)) else {
        return Ok(());
    };
    let is_before = |it: &Attempt| it.attempt != mine.attempt && it.started <= mine.started;
    // Of two who run at once under different locks, each may be deferred by the other.
    let meets_another_lock = world.attempts.iter().any(|it| it.lock != mine.lock);
    let own = scenario.job_of(process).map_or(&[][..], |job| &scenario.jobs[job].recipients[..]);
    let defers_to_another = world.attempts.iter().any(|it| own.contains(&it.recipient.as_str()) && is_before(it));
    if undisturbed && scenario.before == Before::Nothing && !defers_to_another && !meets_another_lock {
        return Err("deferred, although it had the lock, and nothing had gone wrong".into());
    }
    Ok(())
}

/// A copy is there, and where the ledger says, unless its owner had a hand in it.
fn is_there(name: Name, key: CopyKey, job: &Job, messages: &Messages, world: &World) -> Result<(), String> {
    let identity = messages[job.message].identity();
    let Some(mailbox) = world.boxes.get(&name) else { return Err(format!("LOST: no {name:?}")) };
    if mailbox.owner_acted > 0 {
        return Ok(());
    }
    if mailbox.sound(identity) == 0 {
        return Err(format!("LOST: no copy in {name:?}"));
    }
    let is_it = |(uid_validity, uid)| {
        let there = mailbox.at(Placement { uid_validity, uid });
        there.is_some_and(|there| there.identity == Some(*identity) && !there.deleted)
    };
    match world.copies.get(&key) {
        Some(&Row::Delivered(Some(place))) if !is_it(place) && !mailbox.renumbered && !world.forgot => {
            Err(format!("the ledger has a copy at {place:?} in {name:?}, where there is none"))
        }
        _ => Ok(()),
    }
}

/// All processes have finished or died, and every retry has run.
pub fn ended(scenario: &Scenario, done: &[Vec<bool>], messages: &Messages, world: &World) -> Result<(), String> {
    if let Some(promise) = world.broken {
        return Err(promise.into());
    }
    if !world.locks.is_empty() {
        return Err("a lock is still held".into());
    }
    for (job, done) in scenario.jobs.iter().zip(done) {
        let somebody = done.iter().any(|done| *done);
        let of_recipients = job.recipients.iter().zip(done);
        let of_recipients = of_recipients.filter_map(|(name, done)| Some((inbox(job, name, messages)?, *done)));
        for ((name, key), done) in of_recipients.chain(sent(job, messages).map(|sent| (sent, somebody))) {
            if !done && job.full == Some(name.0) {
                continue;
            }
            if !done && job.retried {
                return Err(format!("{name:?} was never delivered"));
            }
            if !done {
                continue;
            }
            if !(world.copies.get(&key) == Some(&Row::Owed) && may_stay_owed(scenario, name) && !job.finishes) {
                is_there(name, key, job, messages, world)?;
            }
            let Some(mailbox) = world.boxes.get(&name) else { continue };
            let copies = mailbox.all(messages[job.message].identity());
            if copies > 1 && !two_are_excused(scenario, mailbox, world) {
                return Err(format!("TWICE: {copies} copies in {name:?}"));
            }
        }
    }
    Ok(())
}

/// No mailbox has the beginning of a message in the place of a message.
pub fn nothing_cut(cut: &Identity, world: &World) -> Result<(), String> {
    match world.boxes.iter().find(|(_, mailbox)| mailbox.all(cut) > 0) {
        Some((name, _)) => Err(format!("HALF: the beginning of a message in {name:?}")),
        None => Ok(()),
    }
}

/// In doubt a second copy, never none: where an owner or a renumbering had a hand in it, where a forgotten replay left
/// one behind, where the database forgot an attempt whose APPEND was on its way, where Sent could not be looked into for as long as that
/// is tried, or where the store cannot expunge.
fn two_are_excused(scenario: &Scenario, mailbox: &SimulatedBox, world: &World) -> bool {
    mailbox.owner_acted > 0
        || mailbox.renumbered
        || mailbox.beyond_knowing
        || !scenario.uid_plus
        || scenario.jobs.iter().any(|job| !job.retried)
        || world.unchecked
}
