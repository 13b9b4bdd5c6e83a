//! The order in which messages are claimed, and which are not claimed.

use super::tests::{Counts, accepted, at, claim_nothing, claimed, queue};
use super::*;
use crate::base::files::synced;
use crate::lock::Shard;
use std::time::{Duration, Instant};

#[test]
fn the_oldest_comes_first_and_one_that_was_deferred_waits_for_its_time() {
    let (_directory, queue) = queue();
    let younger = accepted(&queue, "b", 2000);
    let older = accepted(&queue, "a", 1000);
    let deferred = claimed(&queue, 3000).defer(at(3000)).unwrap().unwrap();
    assert_eq!(deferred.to_string(), format!("{},1,3060.msg", older.id()));
    let claim = claimed(&queue, 3000);
    assert_eq!(claim.name(), younger);
    claim_nothing(&queue, 3059);
    let again = claimed(&queue, 3060);
    assert_eq!((again.name(), again.tries()), (deferred, 1));
    // It was not tried, so nothing is counted.
    assert_eq!(again.give_back().unwrap(), Some(deferred));
    let again = claimed(&queue, 3060).defer(at(3060)).unwrap().unwrap();
    assert_eq!(again.to_string(), format!("{},2,3180.msg", older.id()));
}

/// Each message for a mailbox that hangs may take the whole deadline. When these are due again, new ones go first.
#[test]
fn what_was_never_tried_goes_before_what_was_and_each_in_the_order_in_which_it_became_due() {
    let (_directory, queue) = queue();
    let hung = ["h", "i"].map(|lock| accepted(&queue, lock, 1000));
    for _ in hung {
        claimed(&queue, 3000).defer(at(3000)).unwrap();
    }
    let once_more = accepted(&queue, "a", 900);
    claimed(&queue, 3010).defer(at(3010)).unwrap();
    let before = accepted(&queue, "b", 3059);
    let at_once = accepted(&queue, "c", 3060);
    let after = accepted(&queue, "d", 3061);
    let claims: Vec<Claim> = (0..6).map(|_| claimed(&queue, 4000)).collect();
    let ids: Vec<String> = claims.iter().map(|claim| claim.name().id()).collect();
    assert_eq!(ids, [before, at_once, after, hung[0], hung[1], once_more].map(|name| name.id()));
}

/// This holds however many new messages arrive.
#[test]
fn what_was_tried_has_its_turn_once_the_others_have_had_as_much_time() {
    let (_directory, queue) = queue();
    let hung = ["h", "i", "j"].map(|lock| accepted(&queue, lock, 1000).id());
    for _ in &hung {
        claimed(&queue, 3000).defer(at(3000)).unwrap();
    }
    let new: Vec<String> = (1..=8).map(|n| accepted(&queue, &n.to_string(), 4000 + n).id()).collect();
    let (mut listed, mut claims) = (DueList::remembering(None), Vec::new());
    let mut next = |took: u64| {
        let claim = queue.claim_listed(&mut listed, Shard::WHOLE, at(5000)).unwrap().unwrap();
        listed.took(claim.tries(), Duration::from_secs(took));
        claims.push(claim);
        claims.last().unwrap().name().id()
    };
    // New messages come first, for a minute.
    let ids: Vec<String> = [30, 29, 1, 200].map(&mut next).into();
    assert_eq!(ids, [&new[..3], &hung[..1]].concat());
    // The tried message took longer than a minute, so the new ones get that much time. A short one does not shorten the minute.
    let ids: Vec<String> = [199, 1, 2].map(&mut next).into();
    assert_eq!(ids, [&new[3..5], &hung[1..2]].concat());
    let ids: Vec<String> = [59, 0, 1, 0].map(&mut next).into();
    assert_eq!(ids, [&new[5..], &hung[2..]].concat());
}

#[test]
fn a_runner_that_goes_by_its_list_takes_nothing_twice_and_overlooks_nothing() {
    let (_directory, queue) = queue();
    let names: Vec<Name> = (1..=4).map(|n| accepted(&queue, &n.to_string(), n)).collect();
    let mut listed = DueList::remembering(None);
    let mut next = || queue.claim_listed(&mut listed, Shard::WHOLE, at(100)).unwrap();
    let first = next().unwrap();
    assert_eq!(first.name(), names[0]);
    // Another runner claims a message. A new one arrives, of a lock that is already claimed.
    let others = claimed(&queue, 100);
    assert_eq!(others.name(), names[1]);
    let of_the_same_lock = accepted(&queue, "1", 50);
    let (third, fourth) = (next().unwrap(), next().unwrap());
    assert_eq!([third.name(), fourth.name()], [names[2], names[3]]);
    assert!(next().is_none(), "its lock is in work");
    first.settle(&[Settlement::Delivered, Settlement::Delivered], at(100)).unwrap();
    assert_eq!(next().unwrap().name(), of_the_same_lock);
    assert!(next().is_none());
}

#[test]
fn what_comes_meanwhile_and_is_older_is_claimed_first_as_soon_as_a_list_is_a_second_old() {
    let (_directory, queue) = queue();
    let names: Vec<Name> = (2..=4).map(|n| accepted(&queue, &n.to_string(), n)).collect();
    let mut listed = DueList::remembering(None);
    let first = queue.claim_listed(&mut listed, Shard::WHOLE, at(100)).unwrap().unwrap();
    let older = accepted(&queue, "1", 1);
    // This is within the second, however busy the machine is.
    listed.at = Some(Instant::now() + Duration::from_hours(1));
    let second = queue.claim_listed(&mut listed, Shard::WHOLE, at(100)).unwrap().unwrap();
    listed.at = Instant::now().checked_sub(Duration::from_secs(1));
    let third = queue.claim_listed(&mut listed, Shard::WHOLE, at(100)).unwrap().unwrap();
    assert_eq!([first.name(), second.name(), third.name()], [names[0], names[1], older]);
}

/// Its mailbox may have been unreachable since the attempt that delivered it: the ledger has no record of such attempts.
#[test]
fn what_was_tried_for_longer_than_the_ledger_remembers_is_held_and_what_somebody_releases_has_a_try() {
    let (_directory, queue) = queue();
    let old = accepted(&queue, "a", 1000).id();
    claimed(&queue, 1000).defer(at(1000)).unwrap();
    let untried = accepted(&queue, "b", 1000);
    let next = |seconds| {
        let mut listed = DueList::remembering(Some(Duration::from_secs(5000)));
        queue.claim_listed(&mut listed, Shard::WHOLE, at(seconds)).unwrap()
    };
    let [first, second] = [(); 2].map(|()| next(6000).unwrap());
    assert_eq!([first.name(), second.name()].map(|name| name.id()), [untried.id(), old.clone()]);
    first.give_back().unwrap();
    second.give_back().unwrap();
    synced::take();
    assert_eq!(next(6001).unwrap().name(), untried);
    assert!(next(6001).is_none());
    assert_eq!(queue.counts().unwrap(), Counts { held: 1, work: 1, ..Counts::default() });
    assert_eq!(synced::take_directories().iter().filter(|path| path.ends_with("held")).count(), 1);
    queue.release(&old, None, false, at(6001)).unwrap();
    let released = next(6001).unwrap();
    assert_eq!((released.name().id(), released.tries()), (old, 1));
    released.defer(at(6001)).unwrap();
    assert!(next(9000).is_none());
    assert_eq!(queue.counts().unwrap().held, 1);
    // A ledger that forgets nothing.
    let mut listed = DueList::remembering(None);
    queue.release(&queue.list().unwrap().pop().unwrap().id, None, false, at(9000)).unwrap();
    assert!(queue.claim_listed(&mut listed, Shard::WHOLE, at(1_000_000)).unwrap().is_some());
}
