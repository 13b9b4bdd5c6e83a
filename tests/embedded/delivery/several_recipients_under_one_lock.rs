//! One message to several recipients under one lock, on a scripted ledger and scripted mailboxes: each recipient has an outcome of his
//! own, and somebody always comes back to look for the author's copy.

use crate::delivery::step_by_step::{
    ARRIVED, CallerThat, Database, LISA, OURS, SETTLE, Script, Scripted, attempt, found, lock, script, trouble, uid,
};
use crate::imap_peer::{Peer, mailbox, peer};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::delivery::{
    self, Deferral, Delivered, Delivery, Manner, NotOpened, OwedCopy, Policy, Refusal, Stages, UploadTime, Verdict,
    Whose,
};
use maildrop_command::mailbox::{Appended, Mailbox, MailboxFailure};
use maildrop_command::message::{Message, Role};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use uuid::Uuid;

const NAMES: [&str; 3] = ["doug@mail.axial.net", "scuba@mail.axial.net", "kim@mail.axial.net"];

/// A message to doug, scuba and kim, with everything that a test may want otherwise.
struct Batch {
    message: String,
    policy: Policy,
    database: Database,
    /// Those of the recipients, and lisa's Sent.
    mailboxes: [Rc<RefCell<Script>>; 4],
    /// What keeps them from being opened.
    closed: [Option<MailboxFailure>; 4],
    /// Whose the first three are, by the recipients' places. An empty one is nobody's.
    whose: [&'static [usize]; 3],
    is_one_of_several: bool,
    caller_gone: bool,
    /// For all uploads.
    time: Duration,
}

fn batch() -> Batch {
    Batch {
        message: LISA.into(),
        policy: Policy { append_grace: Duration::from_secs_f64(SETTLE), ..Policy::embedded() },
        database: Database { own_age: 1.0, first_attempt_age: Some(Duration::ZERO), ..Database::default() },
        mailboxes: [(); 4].map(|()| Rc::new(RefCell::new(script()))),
        closed: [None; 4],
        whose: [&[0], &[1], &[2]],
        is_one_of_several: false,
        caller_gone: false,
        time: Duration::from_mins(4),
    }
}

impl Batch {
    fn answers(self, which: usize, appended: Appended) -> Self {
        self.mailboxes[which].borrow_mut().appended.push_back(appended);
        self
    }

    fn run(&mut self) -> Vec<Result<Delivered, Refusal>> {
        self.ended().recipients
    }

    fn ended(&mut self) -> delivery::Ended {
        let mut mailboxes = self.mailboxes.each_ref().map(|script| Scripted(Rc::clone(script)));
        self.ended_in(mailboxes.each_mut().map(|mailbox| mailbox as &mut dyn Mailbox))
    }

    /// With these in place of the scripted ones.
    fn ended_in(&mut self, mailboxes: [&mut dyn Mailbox; 4]) -> delivery::Ended {
        let message = Message::receive(self.message.clone().into_bytes()).unwrap();
        let delivery = Delivery {
            message: &message,
            sender: Some("lisa@gmail.com"),
            recipients: &NAMES.map(String::from),
            is_one_of_several: self.is_one_of_several,
            queue_id: Some("4cXyz"),
            lock: &lock(),
            attempt: OURS,
            host: "mx1",
            pid: 1,
            arrived: ARRIVED,
            came: None,
            policy: &self.policy,
            upload_time: &UploadTime::until_deadline(Deadline::after(self.time)),
            caller: &CallerThat { is_gone: self.caller_gone },
            restore: false,
        };
        let owed = mailboxes.into_iter().zip(self.closed).enumerate().filter_map(|(place, (mailbox, closed))| {
            let whose = self.whose.get(place).map_or(Whose::Authors, |whose| Whose::Recipients(whose.to_vec()));
            let authors = whose == Whose::Authors;
            Some(OwedCopy {
                role: if authors { Role::Sender } else { Role::Recipient },
                user: if authors { "lisa".into() } else { NAMES[place].into() },
                mailbox_name: if authors { "Sent".into() } else { "INBOX".into() },
                mailbox: match closed {
                    None => Ok(mailbox),
                    Some(failure) => Err(NotOpened::from(trouble(failure))),
                },
                whose,
            })
            .filter(|copy| copy.whose != Whose::Recipients(Vec::new()))
        });
        let owed = owed.collect();
        delivery::deliver(&delivery, &mut self.database, owed, &mut Stages::default())
    }

    /// In a word each.
    fn summaries(&mut self) -> [String; 3] {
        summarize(self.run())
    }

    fn outcomes(&self) -> Vec<(usize, &str)> {
        let ours = self.database.ended.iter().filter(|(attempt, ..)| *attempt == OURS);
        ours.map(|(_, copy, outcome, _)| (*copy, outcome.as_str())).collect()
    }
}

fn summarize(results: Vec<Result<Delivered, Refusal>>) -> [String; 3] {
    let summary = |result: Result<Delivered, Refusal>| match result {
        Ok(delivered) => {
            let copies = delivered.copies.iter().map(|copy| format!("{} {}", copy.mailbox, copy.manner.as_str()));
            copies.collect::<Vec<_>>().join(", ")
        }
        Err(Refusal::Deferred(Deferral::Mailbox(error))) => format!("deferred: {:?}", error.failure),
        Err(Refusal::Deferred(Deferral::Unknown(_))) => "deferred: unknown".into(),
        Err(Refusal::Deferred(Deferral::Unsettled(_))) => "deferred: unsettled".into(),
        Err(Refusal::Deferred(deferral)) => format!("deferred: {deferral}"),
        Err(refusal) => format!("refused: {refusal}"),
    };
    results.into_iter().map(summary).collect::<Vec<_>>().try_into().unwrap()
}

fn refused(failure: MailboxFailure) -> Appended {
    Appended::Refused(trouble(failure))
}

#[test]
fn all_are_journalled_locked_and_recorded_together_and_the_lock_is_asked_for_once() {
    let mut batch = batch();
    batch.closed[3] = Some(MailboxFailure::AccessDenied);
    assert_eq!(batch.summaries(), ["INBOX appended, Sent owed", "INBOX appended", "INBOX appended"]);
    let Batch { database, mailboxes, .. } = &batch;
    assert_eq!((database.asked, database.records, database.released), (1, 1, 1));
    assert_eq!(database.bearers, NAMES);
    assert!(mailboxes[..3].iter().all(|script| script.borrow().appends.len() == 1));
    assert_eq!(batch.outcomes(), [(0, "appended"), (1, "appended"), (2, "appended")]);
}

#[test]
fn it_is_reported_whether_somebody_comes_back_for_the_authors_copy() {
    let unknown = || Appended::Unknown(trouble(MailboxFailure::ConnectionLost));
    assert!(!batch().ended().author_retry_is_certain, "it is there");
    assert!(!batch().answers(1, unknown()).ended().author_retry_is_certain, "it is there, and a recipient's is not");
    assert!(batch().answers(3, unknown()).ended().author_retry_is_certain);
    let mut late = batch();
    late.closed[3] = Some(MailboxFailure::TimedOut);
    assert!(late.ended().author_retry_is_certain);
    late.closed = [Some(MailboxFailure::TimedOut); 4];
    assert!(!late.ended().author_retry_is_certain, "nobody has the message, and nobody may ever have it");
}

/// A worker leaves that author alone for a while.
#[test]
fn it_is_reported_whether_the_authors_mailbox_hangs_and_nobody_elses() {
    let fails = |failure| Appended::Unknown(trouble(failure));
    let (hangs, lost) = (|| fails(MailboxFailure::TimedOut), || fails(MailboxFailure::ConnectionLost));
    assert!(!batch().ended().author_hangs, "it is there");
    assert!(batch().answers(3, hangs()).ended().author_hangs);
    assert!(!batch().answers(3, lost()).ended().author_hangs, "it has failed, and at once");
    assert!(!batch().answers(1, hangs()).ended().author_hangs, "a recipient's hangs");
    assert!(!batch().answers(1, hangs()).answers(3, hangs()).ended().author_hangs, "the server hangs for all");
    // What stands between may give up before we do.
    let mut impatient = batch().answers(3, lost());
    impatient.policy.slow_mailbox_timeout = Duration::ZERO;
    assert!(impatient.ended().author_hangs);
    let mut closed = batch();
    closed.closed[3] = Some(MailboxFailure::TimedOut);
    assert!(!closed.ended().author_hangs, "it was not open");
}

#[test]
fn what_goes_wrong_with_one_mailbox_is_that_recipients_alone() {
    let unknown = Appended::Unknown(trouble(MailboxFailure::ConnectionLost));
    let mut batch = batch().answers(1, refused(MailboxFailure::OverQuota)).answers(2, unknown);
    assert_eq!(batch.summaries(), ["INBOX appended, Sent appended", "deferred: OverQuota", "deferred: unknown"]);
    let copies: Vec<_> = batch.database.copies.iter().map(|(role, _)| *role).collect();
    assert_eq!(copies, [Role::Recipient, Role::Sender]);
    // The next delivery looks for what is unknown.
    let outcomes = batch.outcomes();
    let ended: Vec<usize> = outcomes.iter().map(|(copy, _)| *copy).collect();
    assert_eq!(ended, [0, 1, 3]);
    assert!(outcomes[1].1.starts_with("deferred"), "{outcomes:?}");
}

#[test]
fn a_mailbox_that_is_not_open_is_left_out_before_the_journal() {
    let mut batch = batch();
    batch.closed[0] = Some(MailboxFailure::TimedOut);
    assert_eq!(batch.summaries(), ["deferred: TimedOut", "INBOX appended, Sent appended", "INBOX appended"]);
    // Scuba bears the author's copy.
    assert_eq!(batch.database.bearers, [NAMES[1], NAMES[2], NAMES[1]]);
    assert_eq!(batch.outcomes(), [(1, "appended"), (2, "appended"), (3, "appended")]);

    let mut nobody = self::batch();
    nobody.closed = [Some(MailboxFailure::Unreachable); 4];
    nobody.closed[3] = None;
    assert_eq!(nobody.summaries(), ["deferred: Unreachable"; 3].map(String::from));
    assert_eq!((nobody.database.bearers.len(), nobody.database.records, nobody.database.released), (0, 0, 0));
}

#[test]
fn the_bearer_of_the_authors_copy_comes_back_while_that_failed_or_is_unknown() {
    for (appended, summary) in [
        (refused(MailboxFailure::Refused), "deferred: Refused"),
        (Appended::Unknown(trouble(MailboxFailure::ConnectionLost)), "deferred: unknown"),
    ] {
        let mut batch = batch().answers(3, appended);
        assert_eq!(batch.summaries(), [summary, "INBOX appended", "INBOX appended"]);
        assert_eq!(batch.database.copies.len(), 3, "all that is there is recorded");
    }
}

/// By the row, a redelivery of an owed copy finds the attempts that it must wait for; by the event, whose it is.
#[test]
fn the_row_of_an_authors_copy_names_the_bearer_as_its_attempt_does_and_its_event_the_author() {
    let mut batch = batch();
    batch.run();
    assert_eq!(batch.database.bearers, [NAMES[0], NAMES[1], NAMES[2], NAMES[0]]);
    assert_eq!(batch.database.named, batch.database.bearers);
    assert_eq!(batch.database.reported, [NAMES[0], NAMES[1], NAMES[2], "lisa@gmail.com"]);
}

#[test]
fn a_bearer_who_would_be_refused_for_good_comes_back_all_the_same() {
    let full = || refused(MailboxFailure::OverQuota);
    let mut batch = batch().answers(0, full()).answers(1, full()).answers(3, refused(MailboxFailure::Refused));
    batch.policy.over_quota_refuses = true;
    let shown = batch.summaries();
    assert_eq!(shown[0], "deferred: Refused");
    assert!(shown[1].starts_with("refused: over quota"), "{shown:?}");
    // Kim, who has the message, comes back as well: without any recipient's copy the author's would not be tried.
    assert_eq!(shown[2], "deferred: Refused");
}

/// The bearer's own mailbox may never take the message: then somebody whose mailbox has it comes back for the author's copy, and the
/// bearer looks for what the attempt in his name has left.
#[test]
fn the_authors_copy_is_not_given_up_with_a_bearer_whose_own_mailbox_is_full() {
    let full = || refused(MailboxFailure::OverQuota);
    let unknown = Appended::Unknown(trouble(MailboxFailure::ConnectionLost));
    let mut first = batch().answers(0, full()).answers(3, unknown);
    assert_eq!(first.summaries(), ["deferred: OverQuota", "deferred: unknown", "INBOX appended"]);

    let doug = attempt(Uuid::from_u128(1), NAMES[0], SETTLE);
    let alone = |full_mailbox: &Batch| {
        let mut again = batch();
        again.whose = [&[0], &[], &[]];
        again.database.before = vec![(None, vec![]), (None, vec![doug.clone()])];
        again.mailboxes = full_mailbox.mailboxes.clone();
        again
    };
    let mut again = alone(&batch().answers(0, full()));
    assert_eq!(again.summaries()[0], "deferred: OverQuota");
    assert_eq!(again.mailboxes[3].borrow().searches.len(), 1);
    assert!(again.mailboxes[3].borrow().appends.is_empty());
    // What it finds is recorded, and its attempt ends.
    let there = batch().answers(0, full());
    there.mailboxes[3].borrow_mut().found.push_back(found(&[(100, false)]));
    let mut again = alone(&there);
    assert_eq!(again.summaries()[0], "deferred: OverQuota");
    assert_eq!(again.database.copies.len(), 1);
    assert!(again.database.ended.iter().any(|(name, copy, ..)| (name.as_u128(), *copy) == (1, 1)));
}

#[test]
fn nobody_is_reported_delivered_who_has_no_copy() {
    let mut batch = batch();
    batch.whose = [&[0], &[1], &[]];
    assert_eq!(batch.summaries()[2], "deferred: an internal error: no copy for a recipient");
    let mut nothing = self::batch();
    nothing.whose = [&[], &[], &[]];
    nothing.closed[3] = Some(MailboxFailure::Unreachable);
    assert!(nothing.summaries().iter().all(|summary| summary.starts_with("deferred: ")));
}

#[test]
fn an_authors_copy_that_stays_owed_holds_up_nobody() {
    let mut batch = batch().answers(3, refused(MailboxFailure::Refused));
    batch.database.first_attempt_age = Some(Duration::from_hours(48));
    assert_eq!(batch.summaries(), ["INBOX appended, Sent owed", "INBOX appended", "INBOX appended"]);
}

#[test]
fn without_any_recipients_copy_there_is_none_for_the_author() {
    let mut batch = batch();
    for place in 0..3 {
        batch = batch.answers(place, refused(MailboxFailure::Refused));
    }
    assert_eq!(batch.summaries(), ["deferred: Refused"; 3].map(String::from));
    assert_eq!(batch.mailboxes[3].borrow().appends.len(), 0);
    assert_eq!(batch.outcomes()[3], (3, "deferred: the recipient's copy failed"));
}

#[test]
fn what_an_earlier_attempt_may_still_store_is_waited_for_by_its_recipient_alone() {
    let earlier = |age| attempt(Uuid::from_u128(1), NAMES[1], age);
    let mut own = batch();
    own.database.before = vec![(None, vec![]), (None, vec![earlier(SETTLE - 1.0)])];
    assert_eq!(own.summaries(), ["INBOX appended, Sent appended", "deferred: unsettled", "INBOX appended"]);

    // Of the author's copy: by its bearer then, and by its bearer now.
    let mut authors = batch();
    let delivered = (Some(Some(uid(9))), vec![]);
    authors.database.before = vec![(None, vec![]), delivered, (None, vec![]), (None, vec![earlier(SETTLE - 1.0)])];
    assert_eq!(authors.summaries(), ["deferred: unsettled", "deferred: unsettled", "INBOX appended"]);

    // Settled, and not found: it ends with what is appended now.
    let mut died = batch();
    died.database.before = vec![(None, vec![]), (None, vec![earlier(SETTLE)])];
    assert_eq!(died.summaries(), ["INBOX appended, Sent appended", "INBOX appended", "INBOX appended"]);
    assert!(
        died.database.ended.iter().any(
            |(name, copy, how, _)| (name.as_u128(), *copy, how.as_str()) == (1, 1, "died; its copy was looked for")
        )
    );
}

#[test]
fn no_recipient_waits_for_what_somebody_may_still_store_of_an_authors_copy_that_is_owed() {
    for name in [NAMES[0], NAMES[2], "anna@mail.axial.net"] {
        let mut owed = batch();
        (owed.database.before, owed.database.owed) = (vec![(None, vec![]); 4], Some(3));
        owed.database.before[3].1.push(attempt(Uuid::from_u128(1), name, SETTLE - 1.0));
        assert_eq!(owed.summaries(), ["INBOX appended, Sent owed", "INBOX appended", "INBOX appended"], "{name}");
        assert!(owed.mailboxes[3].borrow().appends.is_empty());
    }
}

#[test]
fn a_lock_that_was_lost_or_a_caller_who_is_gone_stores_nothing_for_anybody() {
    let mut lost = batch();
    lost.database.loses_the_lock = true;
    assert_eq!(lost.summaries(), ["deferred: the lock was lost on the way"; 3].map(String::from));
    assert_eq!((lost.database.records, lost.database.released), (0, 1));

    let mut gone = batch();
    gone.caller_gone = true;
    for summary in gone.summaries() {
        assert!(summary.starts_with("deferred: the program that handed"), "{summary}");
    }
    for batch in [&lost, &gone] {
        let untouched =
            |script: &Rc<RefCell<Script>>| script.borrow().appends.is_empty() && script.borrow().uploaded.is_none();
        assert!(batch.mailboxes.iter().all(untouched));
    }
}

#[test]
fn two_addresses_of_one_mailbox_have_one_copy_and_the_same_outcome() {
    let mut batch = batch();
    batch.whose = [&[0, 2], &[1], &[]];
    assert_eq!(batch.summaries(), ["INBOX appended, Sent appended", "INBOX appended", "INBOX appended"]);
    assert_eq!(batch.mailboxes[0].borrow().appends.len(), 1);
    let mut batch = self::batch().answers(0, refused(MailboxFailure::Refused));
    batch.whose = [&[0, 2], &[1], &[]];
    assert_eq!(batch.summaries()[0], "deferred: Refused");
    assert_eq!(batch.summaries()[2], "INBOX appended");
}

#[test]
fn a_mailbox_that_does_not_answer_holds_up_the_others_for_as_long_as_the_operator_allows() {
    let mut batch = batch().answers(1, Appended::Unknown(trouble(MailboxFailure::TimedOut)));
    batch.policy.slow_mailbox_timeout = Duration::from_millis(20);
    batch.mailboxes[1].borrow_mut().silent = usize::MAX;
    assert_eq!(batch.summaries(), ["INBOX appended, Sent appended", "deferred: unknown", "INBOX appended"]);

    // The only one is waited for until the end of the delivery.
    let mut alone = self::batch();
    alone.policy.slow_mailbox_timeout = Duration::from_millis(20);
    alone.mailboxes[0].borrow_mut().silent = usize::MAX;
    alone.whose = [&[0, 1, 2], &[], &[]];
    assert_eq!(alone.summaries(), ["INBOX appended, Sent appended", "INBOX appended", "INBOX appended"]);
}

/// More than the sockets of one connection hold whose reader takes nothing (tcp(7)): then a writer has to wait.
fn more_than_sockets_hold() -> usize {
    let sizes = |name: &str| {
        let sizes = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap();
        sizes.split_whitespace().map(|size| size.parse().unwrap()).collect::<Vec<usize>>()
    };
    // The least, the usual and the largest. What nobody reads does not make a receiver's grow; nor, beyond some megabytes, a
    // sender's. And with the patience for more, the kernel would give the connection up first (`TCP_USER_TIMEOUT`).
    sizes("tcp_wmem")[2].min(16 << 20) + sizes("tcp_rmem")[1] + (1 << 20)
}

/// The real client and real sockets. One server has read that a message comes, and then reads no more.
#[test]
fn a_mailbox_that_takes_no_more_in_the_midst_of_its_copy_is_left_and_the_others_are_delivered_to() {
    let mut batch = batch();
    batch.message = format!("{LISA}{}", format!("{}\r\n", "x".repeat(76)).repeat(more_than_sockets_hold() / 78));
    let welcome = |peer: &mut Peer| {
        peer.welcome("IMAP4rev1 SASL-IR AUTH=PLAIN UIDPLUS LITERAL+");
        assert!(peer.command().starts_with("STATUS "));
        peer.say("* STATUS INBOX (UIDNEXT 100 UIDVALIDITY 7)\n");
        peer.answer("OK");
        peer.append()
    };
    let stores = move |peer: &mut Peer| {
        let length = welcome(peer);
        assert_eq!((peer.take(length).len(), peer.line().as_str()), (length, ""));
        peer.answer("OK [APPENDUID 7 100] stored");
        peer.rest()
    };
    let (delivered, is_delivered) = std::sync::mpsc::channel::<()>();
    let stops = move |peer: &mut Peer| {
        let length = welcome(peer);
        is_delivered.recv().unwrap();
        (length, peer.rest())
    };
    let (first, second) = (peer(stores), peer(stores));
    let (third, stops) = peer(stops);
    let [mut doug, mut scuba, mut kim] = [&first.0, &second.0, &third].map(mailbox);
    let mut sent = Scripted(Rc::clone(&batch.mailboxes[3]));
    let ended = batch.ended_in([&mut doug, &mut scuba, &mut kim, &mut sent]);
    let words = ended.recipients.iter().map(|result| match result {
        Ok(_) => String::new(),
        Err(refusal) => Verdict::from(refusal).to_string(),
    });
    assert_eq!(words.collect::<Vec<_>>(), ["", "", "4.4.1 the mailbox store cannot be reached"]);
    assert_eq!(summarize(ended.recipients), ["INBOX appended, Sent appended", "INBOX appended", "deferred: TimedOut"]);
    // Nothing of the third is under way: its attempt has ended, too, and its next delivery need not wait.
    let outcomes = batch.outcomes();
    let [(0, "appended"), (1, "appended"), (2, deferred), (3, "appended")] = outcomes[..] else {
        panic!("{outcomes:?}")
    };
    assert!(deferred.starts_with("deferred: the mailbox store did not answer in time: appending to"), "{deferred}");
    // The connection has ended, and not all of the copy was sent, let alone its last CRLF.
    delivered.send(()).unwrap();
    let (length, rest) = stops.join().unwrap();
    assert!(rest.len() < length, "{} of {length}", rest.len());
    assert!(kim.end().is_none(), "nobody is delivered to by that session");
    assert!([doug, scuba].map(|mailbox| mailbox.end().is_some()).iter().all(|fit| *fit));
    for stored in [first.1, second.1] {
        stored.join().unwrap();
    }
}

/// A second more for each megabyte of the message; nobody is held up by the only mailbox.
/// Two of these uploads take more than half of the time, so that a third one does not fit into half of what is then left.
#[test]
fn over_a_slow_line_each_try_delivers_some_and_defers_the_others_whose_mailboxes_do_not_hang() {
    let mut batch = batch();
    batch.time = Duration::from_secs(1);
    batch.mailboxes.iter().for_each(|script| script.borrow_mut().upload_takes = Duration::from_millis(300));
    let ended = batch.ended();
    assert!(!ended.author_hangs && ended.author_retry_is_certain);
    let words = summarize(ended.recipients);
    // The first is responsible for the author's copy.
    assert_eq!([&words[0], &words[2]], ["deferred: TimedOut", "deferred: TimedOut"]);
    let appends = batch.mailboxes.each_ref().map(|script| script.borrow().appends.len());
    assert_eq!([appends[0], appends[2], appends[3]], [1, 0, 0]);
    assert_eq!(batch.outcomes()[0], (0, "appended"));
}

#[test]
fn a_mailbox_is_shown_patience_where_others_wait_for_it_and_more_for_a_larger_message() {
    let mut several = batch();
    several.message = format!("{LISA}{}", "x\r\n".repeat(1_000_000));
    several.policy.slow_mailbox_timeout = Duration::from_secs(10);
    let begun = Instant::now();
    several.summaries();
    let took = begun.elapsed();
    for mailbox in &several.mailboxes {
        // What is searched, what is uploaded, and its last CRLF.
        let patience = mailbox.borrow().patience.clone();
        assert_eq!(patience.len(), 3, "{patience:?}");
        assert!(patience.iter().all(|span| *span <= Duration::from_millis(13_001)), "{patience:?}");
        // It was just begun, or so long ago at most.
        assert!(patience.iter().all(|span| *span + took > Duration::from_millis(12_999)), "{patience:?} of {took:?}");
    }
    let mut alone = batch();
    alone.whose = [&[0, 1, 2], &[], &[]];
    alone.summaries();
    assert!(alone.mailboxes.iter().all(|mailbox| mailbox.borrow().patience.is_empty()));
}

/// After a fail-over: each search of a whole mailbox would take as long at the next try.
#[test]
fn a_mailbox_that_is_looked_through_is_shown_twelve_times_the_patience() {
    let mut several = batch();
    several.policy.slow_mailbox_timeout = Duration::from_secs(10);
    (several.database.epoch, several.database.last_epoch) = (Some(60.0), Some("one".into()));
    several.run();
    for mailbox in &several.mailboxes[..3] {
        let patience = mailbox.borrow().patience.clone();
        assert!(!patience.is_empty());
        let all = Duration::from_secs(80)..=Duration::from_secs(121);
        assert!(patience.iter().all(|span| all.contains(span)), "{patience:?}");
    }
}

/// A server that is slow for all of them holds up nobody.
#[test]
fn patience_with_the_others_begins_once_one_has_answered() {
    let patience = Duration::from_millis(200);
    loop {
        let mut slow = batch();
        slow.policy.slow_mailbox_timeout = patience;
        slow.mailboxes[..3].iter().for_each(|mailbox| mailbox.borrow_mut().silent = 20);
        assert_eq!(slow.summaries(), ["INBOX appended, Sent appended", "INBOX appended", "INBOX appended"]);
        let first_answer = slow.mailboxes[..3].iter().filter_map(|mailbox| mailbox.borrow().answered_at).min();
        // Where this process hung for as long as that after the first answer, it has run out: then once more.
        if first_answer.unwrap().elapsed() < patience {
            assert!(slow.mailboxes[..3].iter().all(|mailbox| mailbox.borrow().patience.len() == 3));
            break;
        }
    }
}

/// The delivery of the message waits for the others, though none of these has answered: else a delivery would use up
/// its time for them, and what it found would not even be recorded.
#[test]
fn patience_with_those_who_do_not_answer_begins_at_once_where_another_copy_is_there() {
    let unknown = || Appended::Unknown(trouble(MailboxFailure::TimedOut));
    for adopted in [false, true] {
        let mut batch = batch().answers(1, unknown()).answers(2, unknown());
        batch.policy.slow_mailbox_timeout = Duration::from_millis(20);
        if adopted {
            batch.database.before = vec![(None, vec![attempt(Uuid::from_u128(1), NAMES[0], SETTLE)])];
            batch.mailboxes[0].borrow_mut().found.push_back(found(&[(100, false)]));
        } else {
            batch.database.before = vec![(Some(Some(uid(9))), vec![])];
        }
        for place in [1, 2] {
            // Some time at last it would answer, so that this ends.
            batch.mailboxes[place].borrow_mut().silent = 400;
        }
        let manner = if adopted { "adopted" } else { "already there" };
        let reported = batch.summaries();
        assert!(reported[0].starts_with(&format!("INBOX {manner}")), "{reported:?}");
        assert_eq!(reported[1..], ["deferred: unknown"; 2].map(String::from));
        // They were given up: patience was shown to their answers, too.
        for place in [1, 2] {
            let mailbox = batch.mailboxes[place].borrow();
            assert_eq!(mailbox.patience.len(), 4, "{:?}", mailbox.patience);
            assert!(mailbox.silent > 0);
        }
    }
}

/// Nobody of this batch answers, and another batch has its turn after it.
#[test]
fn patience_with_a_batch_that_does_not_answer_begins_at_once_where_others_wait_for_their_turn() {
    let unknown = || Appended::Unknown(trouble(MailboxFailure::TimedOut));
    let mut batch = batch().answers(0, unknown()).answers(1, unknown()).answers(2, unknown());
    batch.policy.slow_mailbox_timeout = Duration::from_millis(20);
    batch.is_one_of_several = true;
    for place in [0, 1, 2] {
        // Some time at last it would answer, so that this ends.
        batch.mailboxes[place].borrow_mut().silent = 400;
    }
    assert_eq!(batch.summaries(), ["deferred: unknown"; 3]);
    for place in [0, 1, 2] {
        assert!(batch.mailboxes[place].borrow().silent > 0, "{place}");
    }
}

/// What came while another one was heard has come in time: it is not taken for an answer that is unknown.
#[test]
fn an_answer_that_is_there_is_heard_though_the_patience_is_over() {
    let mut batch = batch();
    batch.policy.slow_mailbox_timeout = Duration::from_millis(1);
    batch.mailboxes[1].borrow_mut().takes = Duration::from_millis(2);
    assert_eq!(batch.summaries(), ["INBOX appended, Sent appended", "INBOX appended", "INBOX appended"]);
    // What is searched, what is uploaded, its last CRLF, and nothing for the answer.
    assert_eq!(batch.mailboxes[2].borrow().patience.len(), 3);
}

#[test]
fn an_authors_mailbox_that_does_not_answer_holds_up_the_recipients_no_longer_than_another() {
    let mut batch = batch().answers(3, Appended::Unknown(trouble(MailboxFailure::TimedOut)));
    batch.policy.slow_mailbox_timeout = Duration::from_millis(20);
    batch.mailboxes[3].borrow_mut().silent = usize::MAX;
    assert_eq!(batch.summaries(), ["deferred: unknown", "INBOX appended", "INBOX appended"]);
}

#[test]
fn an_authors_copy_is_not_even_looked_for_where_no_recipients_is_there_and_none_of_theirs_has_died() {
    let mut batch = batch();
    for place in 0..3 {
        batch = batch.answers(place, refused(MailboxFailure::Refused));
    }
    let somebody_elses = attempt(Uuid::from_u128(1), "anna@mail.axial.net", SETTLE);
    batch.database.before = vec![(None, vec![]), (None, vec![]), (None, vec![]), (None, vec![somebody_elses])];
    assert_eq!(batch.summaries(), ["deferred: Refused"; 3].map(String::from));
    assert!(batch.mailboxes[3].borrow().searches.is_empty());
}

#[test]
fn a_mailbox_that_was_removed_meanwhile_is_appended_to_once_more() {
    let mut batch = batch().answers(1, Appended::Recreated);
    assert_eq!(batch.summaries(), ["INBOX appended, Sent appended", "INBOX appended", "INBOX appended"]);
    assert_eq!(batch.mailboxes[1].borrow().appends.len(), 2);
    let mut batch = self::batch().answers(1, Appended::Recreated).answers(1, Appended::Recreated);
    assert_eq!(batch.summaries()[1], "deferred: NoSuchMailbox");
    let mut manners = self::batch();
    let first = manners.run().remove(0).unwrap().copies.remove(0).manner;
    assert_eq!(first, Manner::Appended(Some(uid(100))));
}
