//! A copy that is not where the ledger has it is looked for where it can have got to, and by what it is.

use maildrop_command::base::deadline::Deadline;
use maildrop_command::ledger::audit_queries::RecordedCopy;
use maildrop_command::lock::LockName;
use maildrop_command::mailbox::{
    Appended, FoundCopies, FoundCopy, Listed, Mailbox, MailboxError, MailboxPresence, Matching, NewCopy, Pace,
    Placement, Position, ReadableMailbox, Recorded, Removal, Wanted, look_everywhere,
};
use maildrop_command::message::{Identity, Role};
use time::OffsetDateTime;
use time::macros::datetime;

const DAY: OffsetDateTime = datetime!(2026-11-22 8:00 UTC);

/// What a mailbox is asked for: from where on, by what, since when.
type Asked = (Option<Position>, Matching, OffsetDateTime);

/// A mailbox that finds these, in this order of asking.
struct Finding {
    answers: Vec<FoundCopies>,
    asked: Vec<Asked>,
}

impl Mailbox for Finding {
    fn position(&mut self) -> Result<Option<Position>, MailboxError> {
        unreachable!()
    }

    fn upload(&mut self, _: &NewCopy<'_>, _: Option<Pace>) -> Result<(), Appended> {
        unreachable!()
    }

    fn complete(&mut self) {
        unreachable!()
    }

    fn answer(&mut self) -> Appended {
        unreachable!()
    }

    fn withhold(&mut self) {
        unreachable!()
    }

    fn patient_until(&mut self, _: Option<Deadline>) {
        unreachable!()
    }

    fn find(&mut self, wanted: &Wanted<'_>) -> Result<FoundCopies, MailboxError> {
        self.asked.push((wanted.since, wanted.matching, wanted.not_before));
        Ok(self.answers.remove(0))
    }

    fn remove(
        &mut self,
        _: Placement,
        _: Placement,
        _: &Wanted<'_>,
        _: &mut dyn FnMut() -> bool,
    ) -> Result<Removal, MailboxError> {
        unreachable!()
    }
}

impl ReadableMailbox for Finding {
    fn presence(&mut self, _: &[Recorded<'_>]) -> Result<MailboxPresence, MailboxError> {
        unreachable!()
    }

    fn read(&mut self, _: &Recorded<'_>) -> Result<Option<Vec<u8>>, MailboxError> {
        unreachable!()
    }

    fn list(&mut self, _: Position, _: &mut dyn FnMut(Listed)) -> Result<(), MailboxError> {
        unreachable!()
    }
}

fn at(uid: u32) -> Placement {
    Placement { uid_validity: 3, uid }
}

fn found(in_range: bool, uids: &[u32]) -> FoundCopies {
    let copies = uids.iter().map(|uid| FoundCopy { placement: Some(at(*uid)), deleted: false }).collect();
    FoundCopies { in_range, copies }
}

fn from(uid: u32) -> Option<Position> {
    Some(Position { uid_validity: 3, uid_next: uid })
}

/// What is found, by UID, and what was asked for. The caller itself had been looking for less.
fn looked(
    id: Option<&str>,
    recorded: Option<u32>,
    has_uids: bool,
    answers: Vec<FoundCopies>,
) -> (Vec<u32>, Vec<Asked>) {
    let identity = Identity::of(b"x");
    let wanted = Wanted {
        message_id: id,
        identity: &identity,
        role: Role::Recipient,
        matching: Matching::MessageId,
        since: from(100),
        not_before: DAY,
    };
    let mut mailbox = Finding { answers, asked: Vec::new() };
    let copies = look_everywhere(&mut mailbox, &wanted, recorded.map(at), has_uids).unwrap();
    assert!(mailbox.answers.is_empty());
    (copies.iter().map(|copy| copy.placement.unwrap().uid).collect(), mailbox.asked)
}

const WHOLE: Asked = (None, Matching::Identity, DAY);
const BY_ID: Asked = (None, Matching::MessageId, OffsetDateTime::UNIX_EPOCH);

fn since(uid: u32) -> Asked {
    (from(uid), Matching::Identity, DAY)
}

#[test]
fn where_nothing_can_be_searched_by_all_that_arrived_since_is_compared() {
    assert_eq!(looked(None, Some(7), true, vec![found(false, &[9])]), (vec![9], vec![WHOLE]));
    assert_eq!(looked(Some("a@b"), Some(7), false, vec![found(false, &[9])]), (vec![9], vec![WHOLE]));
    // No server is asked for these: it may read them otherwise.
    for odd in ["<20261126 0800.17@printer>", "<=?x?=@y>", &format!("<{}@b>", "x".repeat(500))] {
        assert_eq!(looked(Some(odd), Some(7), true, vec![found(false, &[9])]), (vec![9], vec![WHOLE]), "{odd}");
    }
}

#[test]
fn what_arrived_since_the_recorded_place_is_looked_at_first() {
    assert_eq!(looked(Some("a@b"), Some(7), true, vec![found(true, &[9])]), (vec![9], vec![since(7)]));
}

#[test]
fn a_copy_that_is_not_there_is_searched_for_by_its_id_and_compared() {
    let answers = vec![found(true, &[]), found(false, &[5, 4, 6]), found(true, &[4, 6])];
    assert_eq!(looked(Some("a@b"), Some(7), true, answers), (vec![4, 6], vec![since(7), BY_ID, since(4)]));
    let answers = vec![found(false, &[5]), found(true, &[5])];
    assert_eq!(looked(Some("a@b"), None, true, answers), (vec![5], vec![BY_ID, since(5)]));
    let answers = vec![found(true, &[]), found(false, &[])];
    assert_eq!(looked(Some("a@b"), Some(7), true, answers), (vec![], vec![since(7), BY_ID]));
}

/// Its UIDs name other messages then: what is in the mailbox by chance since then is not all there is.
#[test]
fn in_a_renumbered_mailbox_the_recorded_place_says_nothing() {
    let answers = vec![found(false, &[9]), found(false, &[2]), found(true, &[2, 9])];
    assert_eq!(looked(Some("a@b"), Some(7), true, answers), (vec![2, 9], vec![since(7), BY_ID, since(2)]));
}

/// A copy that its owner means to remove is where it is only if there is no other.
#[test]
fn of_several_the_lowest_that_is_not_marked_is_the_one() {
    let identity = Identity::of(b"x");
    let copy = RecordedCopy {
        message: 1,
        identity,
        lock: LockName::new("maildrop", b"a@b"),
        message_id: "<a@b>".into(),
        sender: String::new(),
        subject: None,
        from: None,
        recorded_at: 1_790_000_000_000_000,
        role: Role::Recipient,
        user: "lisa".into(),
        mailbox: "INBOX".into(),
        recipient: "lisa@x".into(),
        placement: Some(at(3)),
        reason: None,
        updated_at: 0,
    };
    assert_eq!(copy.arrived(), datetime!(2026-09-21 14:13:20 UTC));
    let whereabouts = |copies: &[(u32, bool)]| {
        let copies = copies.iter().map(|(uid, deleted)| FoundCopy { placement: Some(at(*uid)), deleted: *deleted });
        let found = FoundCopies { in_range: true, copies: copies.collect() };
        let answers = if found.copies.is_empty() { vec![found, FoundCopies::default()] } else { vec![found] };
        let mut mailbox = Finding { answers, asked: Vec::new() };
        copy.locate(&mut mailbox, true).unwrap().map(|placement| placement.unwrap().uid)
    };
    assert_eq!(whereabouts(&[(4, true), (6, false), (7, false)]), Some(6));
    assert_eq!(whereabouts(&[(4, true), (6, true)]), Some(4));
    assert_eq!(whereabouts(&[]), None);
}
