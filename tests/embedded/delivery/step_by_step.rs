//! One delivery on a scripted lock, ledger and mailbox: what it asks of them, and what it writes down, in each case that it
//! tells apart. That all of it together keeps the promises is for `tests/simulation`.

use maildrop_command::base::deadline::Deadline;
use maildrop_command::config::HeaderFields;
use maildrop_command::database::{DatabaseError, DatabaseFailure};
use maildrop_command::delivery::{
    self, Caller, CopyReport, Deferral, Delivered, Delivery, Manner, NotOpened, OwedCopy, Policy, Refusal, Stages,
    UploadTime, Verdict, Whose, milliseconds,
};
use maildrop_command::ledger::{
    CopyHistory, CopyKey, CopyState, Epoch, EventRecord, FailureRecord, Journal, Ledger, OpenAttempt, Record,
};
use maildrop_command::lock::{Acquired, Holder, LockName, NamedLock};
use maildrop_command::mailbox::{
    Appended, FoundCopies, FoundCopy, Mailbox, MailboxError, MailboxFailure, Matching, NewCopy, Pace, Placement,
    Position, Removal, Wanted,
};
use maildrop_command::message::Message;
use maildrop_command::message::Role;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use time::macros::datetime;
use uuid::Uuid;

pub const ARRIVED: OffsetDateTime = datetime!(2026-11-22 12:00:00 UTC);
pub const OURS: Uuid = Uuid::from_u128(500);
pub const SETTLE: f64 = 300.0;
/// A search begins so far below, since a server that crashes may give UIDs out again.
const IN_FLIGHT: u32 = 256;

pub const LISA: &str = "Delivered-To: doug@mail.axial.net\nFrom: Lisa <lisa@gmail.com>\nSubject: Hello\n\
    Date: Sat, 21 Nov 2026 12:00:00 +0000\nMessage-ID: <123-abc@mail.google.com>\n\nHello\n";

/// Why a copy is owed that is.
pub const WHY_OWED: &str = "over quota";

/// What the ledger says, and what was written into it.
#[derive(Default)]
pub struct Database {
    /// For each copy: whether it is delivered, and the attempts beside ours.
    pub before: Vec<(Option<Option<Placement>>, Vec<OpenAttempt>)>,
    /// Which copy is owed, by its place, if one is.
    pub owed: Option<usize>,
    /// How old our own attempt is.
    pub own_age: f64,
    /// The copies whose history lacks our attempt although it was journalled.
    pub forgets: Vec<usize>,
    pub busy: bool,
    pub fails_at: &'static str,
    pub loses_the_lock: bool,
    pub first_attempt_age: Option<Duration>,
    /// How many seconds ago the present epoch began; `None`: it is the first.
    pub epoch: Option<f64>,
    /// The one that is written down; the present one is `one`.
    pub last_epoch: Option<String>,
    pub epochs_begun: usize,
    pub journalled: Vec<CopyKey>,
    /// For each row of the journal, its recipient.
    pub bearers: Vec<String>,
    /// How often the lock was asked for.
    pub asked: usize,
    pub keys: Vec<CopyKey>,
    /// For each copy that was recorded, its role and state.
    pub copies: Vec<(Role, String)>,
    /// For each copy that was recorded, whom its row names.
    pub named: Vec<String>,
    /// For each event that was recorded, whom it names.
    pub reported: Vec<String>,
    /// For each attempt that was ended: its name, the number of its copy, how, and whether with the time that it took.
    pub ended: Vec<(Uuid, usize, String, bool)>,
    /// The message's size and whether its source is kept.
    pub message: Option<(u64, Option<usize>)>,
    /// For each event that was recorded: its type, the copy's manner, and what changed.
    pub events: Vec<(&'static str, Option<&'static str>, String)>,
    /// The names of its header fields that are kept.
    pub headers: Vec<String>,
    pub records: usize,
    pub released: usize,
}

impl Database {
    fn fail<T>(&self, at: &str, fine: T) -> Result<T, DatabaseError> {
        let gone = || DatabaseError::new(DatabaseFailure::ConnectionLost, "asking", "the script says so");
        if self.fails_at == at { Err(gone()) } else { Ok(fine) }
    }
}

impl NamedLock for Database {
    fn acquire(&mut self, _: &LockName, _: Duration) -> Result<Acquired, DatabaseError> {
        self.fail("acquire", if self.busy { Acquired::Busy(None) } else { Acquired::Held })
    }

    fn still_held(&mut self, _: &LockName) -> Result<bool, DatabaseError> {
        self.asked += 1;
        self.fail("still_held", !self.loses_the_lock)
    }

    fn holder(&mut self, _: &LockName) -> Result<Option<Holder>, DatabaseError> {
        Ok(None)
    }

    fn release(&mut self, _: &LockName) -> Result<(), DatabaseError> {
        self.released += 1;
        Ok(())
    }
}

impl Ledger for Database {
    fn try_journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        self.journalled = journal.copies.iter().map(|copy| copy.key).collect();
        self.bearers = journal.copies.iter().map(|copy| copy.recipient.to_owned()).collect();
        self.fail("journal", ())
    }

    fn record_failures(&mut self, _: &[FailureRecord<'_>]) -> Result<(), DatabaseError> {
        self.fail("record_failures", ())
    }

    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError> {
        self.keys = copies.to_vec();
        self.before.resize(copies.len(), (None, Vec::new()));
        let histories = copies.iter().enumerate().map(|(place, key)| {
            let (delivered, others) = self.before[place].clone();
            let mut open_attempts = others;
            if self.journalled.contains(key) && !self.forgets.contains(&place) {
                open_attempts.push(attempt(OURS, "doug@mail.axial.net", self.own_age));
            }
            let delivered = delivered.map(|placement| maildrop_command::ledger::DeliveredAt { placement });
            let owed = (self.owed == Some(place)).then(|| WHY_OWED.into());
            CopyHistory { key: *key, delivered, owed, open_attempts, recorded: None }
        });
        let histories = histories.collect();
        self.fail("look", histories)
    }

    fn epoch(&mut self) -> Result<Epoch, DatabaseError> {
        let present = Some("one".to_owned());
        self.fail("epoch", Epoch { present, last: self.last_epoch.clone(), age: self.epoch })
    }

    fn begin_epoch(&mut self) -> Result<(), DatabaseError> {
        self.epochs_begun += 1;
        self.fail("begin_epoch", ())
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError> {
        self.records += 1;
        let state = |state: CopyState<'_>| match state {
            CopyState::Delivered(placement) => format!("delivered {:?}", placement.map(|placement| placement.uid)),
            CopyState::Owed(why) => format!("owed: {why}"),
        };
        self.copies.extend(record.copies.iter().map(|copy| (copy.role, state(copy.state))));
        let keys = if self.keys.is_empty() { &self.journalled } else { &self.keys };
        for ended in &record.ended {
            let copy = keys.iter().position(|key| *key == ended.key).expect("one of the copies");
            self.ended.push((ended.attempt, copy, ended.outcome.to_string(), ended.stages.is_some()));
        }
        let event = |it: &EventRecord<'_>| (it.kind.as_str(), it.manner, it.diff.as_json());
        self.events.extend(record.events.iter().map(event));
        self.named.extend(record.copies.iter().map(|copy| copy.recipient.to_owned()));
        self.reported.extend(record.events.iter().map(|it| it.recipient.to_owned()));
        let headers = record.message.as_ref().map_or("[]", |message| message.headers);
        let headers: Vec<[String; 2]> = serde_json::from_str(headers).unwrap();
        self.headers = headers.into_iter().map(|[name, _]| name).collect();
        self.message = record.message.as_ref().map(|message| (message.size, message.raw.map(<[u8]>::len)));
        self.fail("record", ())
    }

    fn first_attempt_age(&mut self, _: &[CopyKey]) -> Result<Duration, DatabaseError> {
        let fails = || DatabaseError::new(DatabaseFailure::Other, "asking", "the script says so");
        self.first_attempt_age.ok_or_else(fails)
    }
}

/// What a mailbox says, and what was asked of it.
pub struct Script {
    position: Option<Position>,
    pub found: VecDeque<Result<FoundCopies, MailboxFailure>>,
    pub appended: VecDeque<Appended>,
    /// So often it has not answered yet, after all the time that it is given; `usize::MAX`: never.
    pub silent: usize,
    /// How long it takes to be heard once it has answered.
    pub takes: Duration,
    /// When it answered first.
    pub answered_at: Option<Instant>,
    /// How long an upload takes.
    pub upload_takes: Duration,
    /// The patience that was shown to it.
    pub patience: Vec<Duration>,
    removed: VecDeque<Result<Removal, MailboxFailure>>,
    /// What was looked for: how, from which UID, from which moment on.
    pub searches: Vec<(Matching, Option<Position>, OffsetDateTime)>,
    /// What was uploaded, and is not completed yet.
    pub uploaded: Option<(String, bool, OffsetDateTime)>,
    /// What was appended: its bytes, `\Seen`, its time.
    pub appends: Vec<(String, bool, OffsetDateTime)>,
    /// What was to be taken out, and the one to keep.
    removals: Vec<(u32, u32)>,
}

pub fn script() -> Script {
    Script {
        position: Some(at(7, 100)),
        found: VecDeque::new(),
        appended: VecDeque::new(),
        silent: 0,
        takes: Duration::ZERO,
        answered_at: None,
        upload_takes: Duration::ZERO,
        patience: Vec::new(),
        removed: VecDeque::new(),
        searches: Vec::new(),
        uploaded: None,
        appends: Vec::new(),
        removals: Vec::new(),
    }
}

pub struct Scripted(pub Rc<RefCell<Script>>);

impl Mailbox for Scripted {
    fn position(&mut self) -> Result<Option<Position>, MailboxError> {
        Ok(self.0.borrow().position)
    }

    fn upload(&mut self, copy: &NewCopy<'_>, pace: Option<Pace>) -> Result<(), Appended> {
        let takes = self.0.borrow().upload_takes;
        std::thread::sleep(takes);
        self.0.borrow_mut().patience.extend(pace.map(|pace| pace.stall));
        let uploaded = (String::from_utf8_lossy(copy.bytes).into_owned(), copy.seen, copy.arrived);
        self.0.borrow_mut().uploaded = Some(uploaded);
        Ok(())
    }

    fn complete(&mut self) {
        let mut script = self.0.borrow_mut();
        let uploaded = script.uploaded.take();
        script.appends.extend(uploaded);
    }

    fn is_answered_within(&mut self, patience: Duration) -> bool {
        let mut script = self.0.borrow_mut();
        if script.silent == 0 {
            script.answered_at.get_or_insert_with(Instant::now);
            return true;
        }
        script.silent = if script.silent == usize::MAX { usize::MAX } else { script.silent - 1 };
        std::thread::sleep(patience);
        false
    }

    fn answer(&mut self) -> Appended {
        std::thread::sleep(self.0.borrow().takes);
        self.0.borrow_mut().appended.pop_front().unwrap_or(Appended::Stored(Some(uid(100))))
    }

    fn withhold(&mut self) {
        self.0.borrow_mut().uploaded = None;
    }

    fn patient_until(&mut self, until: Option<Deadline>) {
        self.0.borrow_mut().patience.extend(until.map(|until| until.remaining()));
    }

    fn find(&mut self, wanted: &Wanted<'_>) -> Result<FoundCopies, MailboxError> {
        let mut script = self.0.borrow_mut();
        script.searches.push((wanted.matching, wanted.since, wanted.not_before));
        script.found.pop_front().unwrap_or_else(|| Ok(FoundCopies::default())).map_err(trouble)
    }

    fn remove(
        &mut self,
        extra: Placement,
        keep: Placement,
        _: &Wanted<'_>,
        go_ahead: &mut dyn FnMut() -> bool,
    ) -> Result<Removal, MailboxError> {
        let mut script = self.0.borrow_mut();
        if !go_ahead() {
            return Ok(Removal::Withheld);
        }
        script.removals.push((extra.uid, keep.uid));
        script.removed.pop_front().unwrap_or(Ok(Removal::Removed)).map_err(trouble)
    }
}

pub fn trouble(failure: MailboxFailure) -> MailboxError {
    MailboxError::new(failure, "asking", "the script says so")
}

pub fn at(uid_validity: u32, uid_next: u32) -> Position {
    Position { uid_validity, uid_next }
}

/// The lock of all attempts here, whatever the message.
pub fn lock() -> LockName {
    LockName::new("test", b"123-abc@mail.google.com")
}

pub fn uid(uid: u32) -> Placement {
    Placement { uid_validity: 7, uid }
}

pub fn attempt(attempt: Uuid, recipient: &str, age: f64) -> OpenAttempt {
    OpenAttempt {
        attempt,
        host: "mx2".into(),
        lock: lock(),
        recipient: recipient.into(),
        age,
        position: Some(at(7, 100)),
    }
}

/// Of an earlier run for our recipient that died long ago.
pub fn died(number: u128) -> OpenAttempt {
    attempt(Uuid::from_u128(number), "doug@mail.axial.net", SETTLE)
}

/// The same, where UIDNEXT was this.
fn died_at(uid_next: u32) -> OpenAttempt {
    OpenAttempt { position: Some(at(7, uid_next)), ..died(1) }
}

pub fn copies(uids: &[(u32, bool)]) -> Vec<FoundCopy> {
    uids.iter().map(|&(number, deleted)| FoundCopy { placement: Some(uid(number)), deleted }).collect()
}

pub fn found(uids: &[(u32, bool)]) -> Result<FoundCopies, MailboxFailure> {
    Ok(FoundCopies { in_range: true, copies: copies(uids) })
}

/// A delivery, with everything that a test may want otherwise.
struct Case {
    message: &'static str,
    policy: Policy,
    restore: bool,
    database: Database,
    inbox: Rc<RefCell<Script>>,
    sent: Rc<RefCell<Script>>,
    /// Whether a Sent copy is owed, and what keeps its mailbox from being opened.
    owes_sent: bool,
    /// Whether it is the only copy, as where what is owed is finished.
    alone: bool,
    closed: [Option<MailboxFailure>; 2],
    /// Whether the Sent copy is left to its author's own mail program.
    left: bool,
    /// Whether the client that passed the message has died.
    caller_gone: bool,
    caller_dies_at_upload: bool,
    /// How long ago the message came.
    came: Option<Duration>,
}

#[derive(Debug)]
pub struct CallerThat {
    pub is_gone: bool,
}

impl Caller for CallerThat {
    fn is_gone(&self) -> bool {
        self.is_gone
    }
}

/// Dies while its message is uploaded to this mailbox.
struct CallerThatDiesAtUpload(Rc<RefCell<Script>>);

impl fmt::Debug for CallerThatDiesAtUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a caller that dies at the upload")
    }
}

impl Caller for CallerThatDiesAtUpload {
    fn is_gone(&self) -> bool {
        self.0.borrow().uploaded.is_some()
    }
}

fn case() -> Case {
    Case {
        message: LISA,
        policy: Policy { append_grace: Duration::from_secs_f64(SETTLE), ..Policy::embedded() },
        restore: false,
        database: Database {
            last_epoch: Some("one".into()),
            own_age: 1.0,
            first_attempt_age: Some(Duration::ZERO),
            ..Database::default()
        },
        inbox: Rc::new(RefCell::new(script())),
        sent: Rc::new(RefCell::new(script())),
        owes_sent: false,
        alone: false,
        closed: [None, None],
        left: false,
        caller_gone: false,
        caller_dies_at_upload: false,
        came: Some(Duration::ZERO),
    }
}

impl Case {
    fn before(mut self, copies: &[(Option<Option<Placement>>, &[OpenAttempt])]) -> Self {
        self.database.before = copies.iter().map(|(delivered, others)| (*delivered, others.to_vec())).collect();
        self
    }

    fn inbox(self, change: impl FnOnce(&mut Script)) -> Self {
        change(&mut self.inbox.borrow_mut());
        self
    }

    fn sent(mut self, change: impl FnOnce(&mut Script)) -> Self {
        self.owes_sent = true;
        change(&mut self.sent.borrow_mut());
        self
    }

    fn run(&mut self) -> Result<Delivered, Refusal> {
        let dies: &dyn Caller = &CallerThatDiesAtUpload(Rc::clone(&self.inbox));
        let caller: &dyn Caller = &CallerThat { is_gone: self.caller_gone };
        let message = Message::receive(self.message.into()).unwrap();
        let delivery = Delivery {
            message: &message,
            sender: Some("lisa@gmail.com"),
            recipients: &["doug@mail.axial.net".to_owned()],
            is_one_of_several: false,
            queue_id: Some("4cXyz"),
            lock: &lock(),
            attempt: OURS,
            host: "mx1",
            pid: 1,
            arrived: ARRIVED,
            came: self.came,
            policy: &self.policy,
            upload_time: &UploadTime::until_deadline(Deadline::after(Duration::from_secs(3600))),
            caller: if self.caller_dies_at_upload { dies } else { caller },
            restore: self.restore,
        };
        fn open(mailbox: &mut Scripted, closed: Option<MailboxFailure>) -> Result<&mut dyn Mailbox, NotOpened> {
            closed.map_or(Ok(mailbox), |failure| Err(trouble(failure).into()))
        }
        fn owe<'a>(
            role: Role,
            user: &str,
            name: &str,
            mailbox: Result<&'a mut dyn Mailbox, NotOpened>,
        ) -> OwedCopy<'a> {
            let whose = if role == Role::Sender { Whose::Authors } else { Whose::Recipients(vec![0]) };
            OwedCopy { role, whose, user: user.into(), mailbox_name: name.into(), mailbox }
        }
        let (mut inbox, mut sent) = (Scripted(Rc::clone(&self.inbox)), Scripted(Rc::clone(&self.sent)));
        let mut owed = vec![owe(Role::Recipient, "doug", "INBOX", open(&mut inbox, self.closed[0]))];
        if self.owes_sent {
            let sent = if self.left { Err(NotOpened::LeftToTheAuthor) } else { open(&mut sent, self.closed[1]) };
            owed.push(owe(Role::Sender, "lisa", "Sent", sent));
        }
        if self.alone {
            owed.remove(0);
        }
        let mut results = delivery::deliver(&delivery, &mut self.database, owed, &mut Stages::default()).recipients;
        assert_eq!(results.len(), 1);
        results.remove(0)
    }

    fn manners(&mut self) -> Vec<Manner> {
        self.run().unwrap().copies.into_iter().map(|copy| copy.manner).collect()
    }

    fn outcomes(&self) -> Vec<(usize, &str)> {
        let ours = self.database.ended.iter().filter(|(attempt, ..)| *attempt == OURS);
        ours.map(|(_, copy, outcome, _)| (*copy, outcome.as_str())).collect()
    }

    /// What became of the Sent copy, and which earlier attempts at it have ended.
    fn finished(mut self) -> (Manner, Vec<u128>) {
        let manner = self.manners().remove(1);
        let ended = self.database.ended.iter().filter(|(_, copy, how, _)| *copy == 1 && how.starts_with("died"));
        (manner, ended.map(|(name, ..)| name.as_u128()).collect())
    }

    fn searches(&self) -> usize {
        self.inbox.borrow().searches.len()
    }
}

// --- what is journalled, and what happens before anything is appended

#[test]
fn a_recipients_mailbox_that_is_out_of_reach_defers_before_anything_is_written() {
    let mut case = Case { closed: [Some(MailboxFailure::Unreachable), None], ..case() };
    let Err(Refusal::Deferred(Deferral::Mailbox(error))) = case.run() else { panic!("it is not deferred") };
    assert_eq!(error.failure, MailboxFailure::Unreachable);
    assert_eq!((case.database.journalled.len(), case.database.records, case.database.released), (0, 0, 0));
}

#[test]
fn a_senders_mailbox_that_is_out_of_reach_is_not_journalled_and_holds_up_nobody() {
    let mut case = Case { closed: [None, Some(MailboxFailure::AccessDenied)], ..case() }.sent(|_| {});
    let manners = case.manners();
    assert_eq!(manners[0], Manner::Appended(Some(uid(100))));
    assert!(matches!(&manners[1], Manner::Owed(_)));
    assert_eq!(case.database.journalled.len(), 1);
    assert_eq!(case.outcomes(), [(0, "appended")]);
    assert_eq!(case.database.copies[1].0, Role::Sender);
}

#[test]
fn whatever_comes_before_the_append_ends_the_attempt_and_says_why() {
    for (fails_at, busy, outcome) in [
        ("", true, "busy"),
        ("acquire", false, "deferred: the lock could not be asked for"),
        ("look", false, "deferred: the ledger could not be read"),
    ] {
        let mut case = case().sent(|_| {});
        (case.database.fails_at, case.database.busy) = (fails_at, busy);
        let refused = case.run().unwrap_err();
        assert_eq!(busy, matches!(refused, Refusal::Deferred(Deferral::Busy(None))), "{refused}");
        assert_eq!(case.outcomes(), [(0, outcome), (1, outcome)]);
        assert!(case.database.ended.iter().all(|(.., timed)| *timed) && case.database.copies.is_empty());
        assert_eq!(case.inbox.borrow().appends.len(), 0, "{outcome}");
        assert_eq!(case.database.released, usize::from(fails_at == "look"), "{outcome}");
    }
}

#[test]
fn a_journal_that_forgot_one_of_our_attempts_defers() {
    for forgets in [vec![0], vec![1], vec![0, 1]] {
        let mut case = case().sent(|_| {});
        case.database.forgets.clone_from(&forgets);
        let refused = case.run().unwrap_err();
        assert!(matches!(refused, Refusal::Deferred(Deferral::JournalForgotten)), "{forgets:?}: {refused}");
        let outcome = "deferred: the journal was forgotten";
        assert_eq!(case.outcomes(), [(0, outcome), (1, outcome)]);
        assert_eq!(case.inbox.borrow().appends.len(), 0);
    }
}

/// Who began before us and has not ended may have died, and what it sent may still arrive. Who began after us waits for us.
#[test]
fn an_earlier_attempt_for_the_same_recipient_is_waited_for_and_a_later_one_is_not() {
    let (lower, higher) = (Uuid::from_u128(1), Uuid::from_u128(900));
    for (number, age, waits) in [
        (lower, 0.5, None),
        (higher, 0.5, None),
        (lower, 0.0, None),
        (lower, 1.5, Some(1.5)),
        (higher, 1.5, Some(1.5)),
        (higher, 1.0, None),
        (lower, 1.0, Some(1.0)),
        (lower, -0.5, Some(0.0)),
        (higher, -0.5, Some(0.0)),
        (lower, 299.5, Some(299.5)),
        (lower, SETTLE, None),
        (lower, 400.0, None),
    ] {
        let mut case = case().before(&[(None, &[attempt(number, "doug@mail.axial.net", age)])]);
        match (case.run(), waits) {
            (Ok(_), None) => assert_eq!(case.outcomes(), [(0, "appended")]),
            (Err(Refusal::Deferred(Deferral::Unsettled(span))), Some(waits)) => {
                assert_eq!(span, Duration::from_secs_f64(waits), "{number} {age}");
                assert_eq!(case.outcomes(), [(0, "deferred: an earlier attempt may still land")]);
                assert_eq!(case.inbox.borrow().appends.len(), 0);
            }
            (other, _) => panic!("{number} {age}: {other:?}"),
        }
        let another = attempt(number, "scuba@mail.axial.net", age);
        assert!(self::case().before(&[(None, &[another])]).run().is_ok(), "{number} {age}");
    }
}

/// Nobody is bound to come back for an attempt at a copy that is owed: it was given up, or made by a redelivery of such
/// copies. One that was journalled after ours may have had the lock before us.
#[test]
fn a_copy_that_is_owed_stays_owed_for_as_long_as_anybodys_attempt_at_it_may_still_land() {
    let names = ["doug@mail.axial.net", "scuba@mail.axial.net"];
    let ages = [-0.5, 0.5, 1.5, 299.5];
    for (name, age) in names.iter().flat_map(|name| ages.map(|age| (*name, age))) {
        let others = [attempt(Uuid::from_u128(1), name, age)];
        let mut case = case().sent(|_| {}).before(&[(None, &[]), (None, &others)]);
        case.database.owed = Some(1);
        // The recipient, who has the message, waits for nothing.
        let stays = Manner::Owed(WHY_OWED.into());
        assert_eq!(case.manners(), [Manner::Appended(Some(uid(100))), stays], "{name} {age}");
        assert_eq!(case.outcomes(), [(0, "appended"), (1, "owed")]);
        assert!(case.sent.borrow().appends.is_empty() && case.database.events.len() == 1, "{name} {age}");

        // The redelivery gets this answer, and tries again.
        let mut alone = Case { alone: true, ..self::case() }.sent(|_| {}).before(&[(None, &others)]);
        alone.database.owed = Some(0);
        let refused = alone.run().unwrap_err();
        assert!(matches!(refused, Refusal::Deferred(Deferral::Unsettled(_))), "{name} {age}: {refused}");
        assert!(alone.sent.borrow().appends.is_empty() && alone.database.copies.is_empty(), "{name} {age}");

        // Where an author keeps what is sent in INBOX, and is a recipient, too, that copy is a recipient's now, who waits for it.
        let mut own = self::case().before(&[(None, &others)]);
        own.database.owed = Some(0);
        let refused = own.run().unwrap_err();
        assert!(matches!(refused, Refusal::Deferred(Deferral::Unsettled(_))), "{name} {age}: {refused}");
        assert!(own.inbox.borrow().appends.is_empty(), "{name} {age}");
    }
}

/// Of a copy that is owed, all attempts are looked for before it is finished, and end with it: nobody else would end them.
#[test]
fn finishing_an_owed_copy_looks_for_all_attempts_at_it_and_ends_them() {
    for left in [false, true] {
        let others = [attempt(Uuid::from_u128(1), "scuba@mail.axial.net", SETTLE), died(2)];
        let mut case = case().sent(|sent| sent.found.extend(left.then(|| found(&[(100, false)]))));
        case.database.owed = Some(1);
        let manner = if left { Manner::Adopted(Some(uid(100))) } else { Manner::Appended(Some(uid(100))) };
        assert_eq!(case.before(&[(None, &[]), (None, &others)]).finished(), (manner, vec![1, 2]));
    }
}

/// Past that time the holder of the other lock is dead, and its attempt is searched for like any other.
#[test]
fn an_attempt_under_another_lock_counts_for_as_long_as_it_may_land() {
    let elsewhere = |age| OpenAttempt {
        lock: LockName::new("another", b"123-abc@mail.google.com"),
        ..attempt(Uuid::from_u128(1), "scuba@mail.axial.net", age)
    };
    for age in [-1.0, 0.0, 299.5] {
        let mut case = case().before(&[(None, &[elsewhere(age)])]);
        let refused = case.run().unwrap_err();
        assert!(matches!(&refused, Refusal::Deferred(Deferral::OtherLock(Some(host))) if host == "mx2"), "{refused}");
        assert!(case.inbox.borrow().appends.is_empty() && case.database.copies.is_empty());
    }
    for age in [SETTLE, 400.0] {
        let mut case = case().before(&[(None, &[elsewhere(age)])]);
        assert_eq!(case.manners(), [Manner::Appended(Some(uid(100)))]);
        assert_eq!(case.searches(), 1);
    }
}

// --- looking

#[test]
fn a_message_with_one_recipient_is_appended_without_a_search() {
    let mut case = case().sent(|_| {});
    assert_eq!(case.manners(), [Manner::Appended(Some(uid(100))), Manner::Appended(Some(uid(100)))]);
    assert_eq!((case.searches(), case.sent.borrow().searches.len()), (0, 0));
    let appended = Message::receive(LISA.into()).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(case.inbox.borrow().appends, [(text(appended.as_received()), false, ARRIVED)]);
    assert_eq!(case.sent.borrow().appends, [(text(appended.without_prepended_lines()), true, ARRIVED)]);
    let delivered = String::from("delivered Some(100)");
    assert_eq!(case.database.copies, [(Role::Recipient, delivered.clone()), (Role::Sender, delivered)]);
    assert_eq!(case.outcomes(), [(0, "appended"), (1, "appended")]);
    assert!(case.database.ended.iter().all(|(.., timed)| *timed));
    assert_eq!(case.database.released, 1);
}

#[test]
fn a_search_begins_at_the_lowest_position_of_all_whose_attempts_are_open() {
    let began_at = |number, age, position| OpenAttempt {
        position,
        ..attempt(Uuid::from_u128(number), "scuba@mail.axial.net", age)
    };
    for (positions, since) in [
        (vec![Some(at(7, 1020))], Some(at(7, 1000 - IN_FLIGHT))),
        (vec![Some(at(7, 990))], Some(at(7, 990 - IN_FLIGHT))),
        (vec![Some(at(7, 990)), Some(at(7, 980)), Some(at(7, 995))], Some(at(7, 980 - IN_FLIGHT))),
        (vec![Some(at(7, 90))], Some(at(7, 1))),
        (vec![Some(at(6, 990))], None),
        (vec![Some(at(7, 990)), Some(at(8, 1))], None),
        (vec![Some(at(7, 990)), None], None),
    ] {
        let others: Vec<OpenAttempt> = (1..)
            .zip([10.0, 70.0, 30.0])
            .zip(&positions)
            .map(|((n, age), position)| began_at(n, age, *position))
            .collect();
        let oldest = if others.len() > 1 { 70 } else { 10 };
        let mut case = case().before(&[(None, &others)]).inbox(|inbox| inbox.position = Some(at(7, 1000)));
        assert_eq!(case.manners(), [Manner::Appended(Some(uid(100)))]);
        let from = ARRIVED - Duration::from_secs(oldest);
        assert_eq!(case.inbox.borrow().searches, [(Matching::Identity, since, from)], "{positions:?}");
    }
    let mut none = case().inbox(|inbox| inbox.position = None).before(&[(None, &[began_at(1, 10.0, None)])]);
    none.run().unwrap();
    assert_eq!(none.inbox.borrow().searches[0].1, None);
}

#[test]
fn what_an_open_attempt_left_is_adopted_and_the_lowest_is_kept() {
    let another = || attempt(Uuid::from_u128(1), "scuba@mail.axial.net", 10.0);
    for deleted in [false, true] {
        let left = [(101, deleted), (102, false), (103, true)];
        let mut case = case().inbox(|inbox| inbox.found.push_back(found(&left))).before(&[(None, &[another()])]);
        assert_eq!(case.manners(), [Manner::Adopted(Some(uid(101)))]);
        assert_eq!(case.inbox.borrow().removals, [(102, 101), (103, 101)]);
        assert_eq!(case.inbox.borrow().appends.len(), 0);
        assert_eq!(case.outcomes(), [(0, "adopted")]);
        assert_eq!(case.database.copies, [(Role::Recipient, "delivered Some(101)".into())]);
        let events = &case.database.events;
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].0, events[0].1), ("message.delivered", Some("adopted")));
        // It is another recipient's, and may still be under way.
        assert_eq!(case.database.ended.len(), 1);
    }
}

#[test]
fn nothing_is_taken_out_where_the_search_could_not_begin_at_the_attempts() {
    let another = attempt(Uuid::from_u128(1), "scuba@mail.axial.net", 10.0);
    let everywhere = FoundCopies { in_range: false, copies: copies(&[(101, false), (102, false)]) };
    let mut case = case().inbox(|inbox| inbox.found.push_back(Ok(everywhere))).before(&[(None, &[another])]);
    assert_eq!(case.manners(), [Manner::Adopted(Some(uid(101)))]);
    assert!(case.inbox.borrow().removals.is_empty());
}

#[test]
fn what_cannot_be_taken_out_is_left_and_the_others_are_still_taken_out() {
    let another = || attempt(Uuid::from_u128(1), "scuba@mail.axial.net", 10.0);
    let twice = || {
        let three = found(&[(101, false), (102, false), (103, false)]);
        case().inbox(|inbox| inbox.found.push_back(three)).before(&[(None, &[another()])])
    };
    for left in [Removal::KeeperGone, Removal::NotThere, Removal::Renumbered, Removal::Unsupported] {
        let mut case = twice().inbox(|inbox| inbox.removed.push_back(Ok(left)));
        assert_eq!(case.manners(), [Manner::Adopted(Some(uid(101)))]);
        assert_eq!(case.inbox.borrow().removals, [(102, 101), (103, 101)], "{left:?}");
    }
    // An expunge whose answer is missing may still be carried out: the attempt stays open.
    let mut unknown = twice().inbox(|inbox| inbox.removed.push_back(Err(MailboxFailure::ConnectionLost)));
    assert!(matches!(unknown.run(), Err(Refusal::Deferred(Deferral::Unknown(_)))));
    assert_eq!((unknown.outcomes(), unknown.database.copies.len()), (vec![], 0));
}

#[test]
fn a_lock_that_is_lost_stops_an_append_and_an_expunge_and_nothing_is_recorded() {
    let another = || attempt(Uuid::from_u128(1), "scuba@mail.axial.net", 10.0);
    for (loses_the_lock, fails_at) in [(true, ""), (false, "still_held")] {
        for twice in [false, true] {
            let copies = found(if twice { &[(101, false), (102, false)] } else { &[] });
            let mut case = case().inbox(|inbox| inbox.found.push_back(copies)).before(&[(None, &[another()])]);
            (case.database.loses_the_lock, case.database.fails_at) = (loses_the_lock, fails_at);
            assert!(matches!(case.run(), Err(Refusal::Deferred(Deferral::LockLost))));
            assert_eq!(case.database.records, 0, "the attempt stays open");
            assert!(case.inbox.borrow().appends.is_empty() && case.inbox.borrow().removals.is_empty());
        }
    }
}

/// Nothing was stored, and that is known: the attempt ends. A lock that is lost as well is lost above all.
#[test]
fn a_caller_who_has_died_stops_an_append_and_the_attempt_is_ended() {
    let mut case = Case { caller_gone: true, ..case() };
    assert!(matches!(case.run(), Err(Refusal::Deferred(Deferral::CallerGone))));
    assert_eq!(case.outcomes(), [(0, "deferred: the client that passed the message has died")]);
    assert!(case.inbox.borrow().appends.is_empty() && case.database.copies.is_empty());
    // The last CRLF is what counts, and not the first byte.
    let mut late = Case { caller_dies_at_upload: true, ..self::case() };
    assert!(matches!(late.run(), Err(Refusal::Deferred(Deferral::CallerGone))));
    assert!(late.inbox.borrow().appends.is_empty() && late.database.copies.is_empty());
    let mut both = Case { caller_gone: true, ..self::case() };
    both.database.loses_the_lock = true;
    assert!(matches!(both.run(), Err(Refusal::Deferred(Deferral::LockLost))));
}

// --- what is recorded already

#[test]
fn what_is_recorded_is_looked_for_only_where_an_earlier_run_for_the_recipient_died() {
    let recorded = Some(Some(uid(50)));
    let later = attempt(Uuid::from_u128(900), "doug@mail.axial.net", 0.5);
    let anothers = attempt(Uuid::from_u128(1), "scuba@mail.axial.net", 400.0);
    for others in [vec![], vec![later], vec![anothers]] {
        let mut case = case().before(&[(recorded, &others)]);
        assert_eq!(case.manners(), [Manner::AlreadyThere]);
        assert_eq!(case.searches(), 0, "{others:?}");
        assert_eq!((case.outcomes(), case.database.copies.len()), (vec![(0, "already there")], 0));
        assert_eq!((case.database.ended.len(), case.database.message), (1, None));
    }
    let mut case = case().before(&[(recorded, &[died(1), died(2)])]).inbox(|inbox| {
        inbox.found.push_back(found(&[(50, false)]));
    });
    assert_eq!(case.manners(), [Manner::AlreadyThere]);
    assert_eq!(case.searches(), 1);
    // Those that died are ended with it, and how long they took is not known.
    let looked = String::from("died; its copy was looked for");
    let earlier = |n| (Uuid::from_u128(n), 0, looked.clone(), false);
    assert_eq!(case.database.ended[1..], [earlier(1), earlier(2)]);
}

#[test]
fn beside_the_recorded_copy_only_what_the_dead_may_have_left_is_taken_out() {
    // 50 is recorded; the attempt that died began when the next UID was 1000. What lies between is somebody's doing.
    let there = [(50, false), (999, false), (1000, false), (1001, true)];
    let mut case = case().before(&[(Some(Some(uid(50))), &[died_at(1000)])]).inbox(|inbox| {
        inbox.position = Some(at(7, 1030));
        inbox.found.push_back(found(&there));
    });
    assert_eq!(case.manners(), [Manner::AlreadyThere]);
    assert_eq!(case.inbox.borrow().searches[0].1, Some(at(7, 50)));
    assert_eq!(case.inbox.borrow().removals, [(1000, 50), (1001, 50)]);
}

#[test]
fn a_copy_recorded_above_where_the_dead_began_does_not_raise_where_the_search_begins() {
    let there = [(1000, false), (1020, false)];
    let mut case = case().before(&[(Some(Some(uid(1020))), &[died_at(1000)])]).inbox(|inbox| {
        inbox.position = Some(at(7, 1030));
        inbox.found.push_back(found(&there));
    });
    assert_eq!(case.manners(), [Manner::AlreadyThere]);
    assert_eq!(case.inbox.borrow().searches[0].1, Some(at(7, 1000 - IN_FLIGHT)));
    assert_eq!(case.inbox.borrow().removals, [(1000, 1020)]);
}

#[test]
fn a_copy_recorded_under_another_uidvalidity_does_not_say_where_to_begin() {
    let elsewhere = Placement { uid_validity: 6, uid: 50 };
    let mut case = case().before(&[(Some(Some(elsewhere)), &[died_at(1000)])]).inbox(|inbox| {
        inbox.position = Some(at(7, 1000));
        inbox.found.push_back(found(&[(1000, true), (1001, false), (1002, false)]));
    });
    assert_eq!(case.manners(), [Manner::Adopted(Some(uid(1001)))]);
    assert_eq!(case.inbox.borrow().searches[0].1, Some(at(7, 1000 - IN_FLIGHT)));
    assert!(case.inbox.borrow().removals.is_empty());
    assert_eq!(case.database.copies, [(Role::Recipient, "delivered Some(1001)".into())]);
}

#[test]
fn a_recorded_copy_without_a_place_is_the_lowest_that_is_not_marked() {
    let there = [(100, true), (101, false), (102, false)];
    let mut case = case().before(&[(Some(None), &[died(1)])]).inbox(|inbox| inbox.found.push_back(found(&there)));
    assert_eq!(case.manners(), [Manner::AlreadyThere]);
    assert_eq!(case.inbox.borrow().removals, [(100, 101), (102, 101)]);
}

#[test]
fn a_recorded_copy_that_its_owner_took_away_is_not_brought_again() {
    for there in [&[][..], &[(101, true)]] {
        let mut case =
            case().before(&[(Some(Some(uid(50))), &[died(1)])]).inbox(|inbox| inbox.found.push_back(found(there)));
        assert_eq!(case.manners(), [Manner::AlreadyThere]);
        assert!(case.inbox.borrow().removals.is_empty() && case.inbox.borrow().appends.is_empty());
    }
}

#[test]
fn a_recorded_sent_copy_that_cannot_be_looked_for_is_left_to_the_next_one() {
    for (failure, restore) in [(MailboxFailure::RefusedForGood, false), (MailboxFailure::RefusedForGood, true)] {
        let mut case = case()
            .before(&[(Some(Some(uid(50))), &[]), (Some(Some(uid(50))), &[died(1)])])
            .sent(|sent| sent.found.push_back(Err(failure)));
        case.restore = restore;
        if restore {
            // The restore reports it.
            case.inbox.borrow_mut().found.push_back(found(&[(50, false)]));
            assert!(matches!(case.run(), Err(Refusal::Deferred(Deferral::Mailbox(_)))));
            continue;
        }
        assert_eq!(case.manners(), [Manner::AlreadyThere, Manner::AlreadyThere]);
        assert_eq!(case.outcomes(), [(0, "already there"), (1, "already there; not looked for")]);
        assert_eq!((case.database.ended.len(), case.database.copies.len()), (2, 0), "who died is looked for again");
    }
}

#[test]
fn a_sent_copy_that_is_left_to_its_author_stays_owed_and_nobody_is_looked_after() {
    let left = || Case { left: true, ..case().sent(|_| {}) };
    let mut new = left();
    assert!(matches!(&new.manners()[1], Manner::Owed(_)));
    assert_eq!((new.database.journalled.len(), new.outcomes()), (1, vec![(0, "appended")]));
    for others in [&[][..], &[died(1)]] {
        let recorded = Some(Some(uid(50)));
        let mut recorded = left().before(&[(recorded, &[]), (recorded, others)]);
        assert_eq!(recorded.manners(), [Manner::AlreadyThere, Manner::AlreadyThere]);
        // What a dead attempt may have left there has not been searched for.
        assert_eq!((recorded.database.ended.len(), recorded.database.copies.len()), (1, 0));
    }
}

// --- restoring

#[test]
fn what_is_restored_is_looked_for_from_its_arrival_on_and_appended_where_it_is_gone() {
    let mut case = Case { restore: true, ..case() }.before(&[(Some(Some(uid(50))), &[])]);
    assert_eq!(case.manners(), [Manner::Appended(Some(uid(100)))]);
    assert_eq!(case.inbox.borrow().searches[0].2, ARRIVED);
    assert_eq!(case.database.copies, [(Role::Recipient, "delivered Some(100)".into())]);
}

const DAY: Duration = Duration::from_hours(24);

/// Delivered before the database failed over, and forgotten.
#[test]
fn what_came_before_the_databases_epoch_is_looked_for_and_adopted() {
    let mut case = case().sent(|script| script.found = [found(&[]), found(&[(40, true)]), found(&[(40, true)])].into());
    case.came = Some(DAY);
    case.database.epoch = Some(60.0);
    // The newest are compared first, and here it is one of them: the lowest that is not marked.
    case.inbox.borrow_mut().found = [found(&[(88, true), (90, false), (91, false)])].into();
    let delivered = case.run().unwrap();
    let manners: Vec<Manner> = delivered.copies.iter().map(|copy| copy.manner.clone()).collect();
    assert_eq!(manners, [Manner::Adopted(Some(uid(90))), Manner::Adopted(Some(uid(40)))]);
    let came = ARRIVED - time::Duration::DAY;
    // Twenty: each copy has that searched for days.
    let newest = Some(at(7, 80));
    assert_eq!(case.inbox.borrow().searches, [(Matching::Identity, newest, came)]);
    // The author's is further down: the server is asked for its Message-ID.
    let by_id = (Matching::MessageId, None, OffsetDateTime::UNIX_EPOCH);
    let lowest = (Matching::Identity, Some(at(7, 40)), came);
    assert_eq!(case.sent.borrow().searches, [(Matching::Identity, newest, came), by_id, lowest]);
    assert!(case.inbox.borrow().appends.is_empty() && case.sent.borrow().appends.is_empty());
    let recorded = ["delivered Some(90)", "delivered Some(40)"].map(str::to_owned);
    assert_eq!(case.database.copies.iter().map(|(_, state)| state.clone()).collect::<Vec<_>>(), recorded);
}

#[test]
fn what_came_before_the_databases_epoch_and_is_not_there_is_appended() {
    let mut case = case();
    case.came = None;
    case.database.epoch = Some(60.0);
    let delivered = case.run().unwrap();
    assert_eq!(delivered.copies[0].manner, Manner::Appended(Some(uid(100))));
    assert_eq!(case.inbox.borrow().searches.len(), 2);
    // Nobody knows when it came: for as long as Postfix may have had it.
    assert_eq!(case.inbox.borrow().searches[0].2, ARRIVED - 5 * time::Duration::DAY);
    assert_eq!(case.inbox.borrow().appends.len(), 1);
}

#[test]
fn a_search_for_what_may_be_forgotten_that_fails_defers() {
    let mut case = case();
    case.came = Some(DAY);
    case.database.epoch = Some(60.0);
    case.inbox.borrow_mut().found = [Err(MailboxFailure::TimedOut)].into();
    assert!(matches!(case.run(), Err(Refusal::Deferred(Deferral::Mailbox(_)))));
    assert!(case.inbox.borrow().appends.is_empty());
}

/// In normal life nothing is looked for, nor what the ledger has as delivered.
#[test]
fn nothing_is_looked_for_without_an_epoch_or_where_the_ledger_knows_it_or_of_what_came_later() {
    for (came, epoch, delivered) in [
        (None, None, None),
        (Some(DAY), None, None),
        (Some(DAY), Some(2.0 * DAY.as_secs_f64()), None),
        (None, Some(6.0 * DAY.as_secs_f64()), None),
        (Some(DAY), Some(60.0), Some(Some(uid(50)))),
    ] {
        let mut case = case().before(&[(delivered, &[])]);
        (case.came, case.database.epoch) = (came, epoch);
        case.run().unwrap();
        assert!(case.inbox.borrow().searches.is_empty(), "{came:?} {epoch:?}");
        assert_eq!(case.inbox.borrow().appends.len(), usize::from(delivered.is_none()));
    }
}

#[test]
fn an_epoch_that_cannot_be_read_defers() {
    let mut case = case();
    case.database.fails_at = "epoch";
    assert!(matches!(case.run(), Err(Refusal::Deferred(Deferral::Database(_)))));
    assert!(case.inbox.borrow().appends.is_empty());
}

#[test]
fn another_epoch_is_written_down_before_anything_is_delivered() {
    for (last, began) in [(Some("another"), 1), (Some("one"), 0), (None, 1)] {
        let mut case = case();
        case.came = Some(DAY);
        case.database.last_epoch = last.map(str::to_owned);
        case.run().unwrap();
        assert_eq!(case.database.epochs_begun, began, "{last:?}");
        // Before the first one there was nothing to forget.
        assert_eq!(case.inbox.borrow().searches.is_empty(), last != Some("another"), "{last:?}");
    }
    let mut case = case();
    (case.database.last_epoch, case.database.fails_at) = (Some("another".into()), "begin_epoch");
    assert!(matches!(case.run(), Err(Refusal::Deferred(Deferral::Database(_)))));
    assert!(case.inbox.borrow().appends.is_empty());
}

#[test]
fn what_is_restored_and_still_there_is_left_as_it_is_or_adopted() {
    let restore = |there: &[(u32, bool)]| {
        let all = copies(there);
        Case { restore: true, ..case() }.before(&[(Some(Some(uid(50))), &[])]).inbox(|inbox| {
            inbox.found.extend([
                Ok(FoundCopies { in_range: true, copies: all.clone() }),
                Ok(FoundCopies { in_range: true, copies: all }),
            ]);
        })
    };
    assert_eq!(restore(&[(40, false), (50, false)]).manners(), [Manner::AlreadyThere]);
    assert_eq!(restore(&[(40, true), (60, false)]).manners(), [Manner::Adopted(Some(uid(60)))]);
    assert_eq!(restore(&[(40, true), (60, true)]).manners(), [Manner::Adopted(Some(uid(40)))]);
}

#[test]
fn a_restore_that_adopts_what_a_dead_run_left_does_not_look_further() {
    let mut case = Case { restore: true, ..case() }
        .before(&[(Some(Some(uid(50))), &[died(1)])])
        .inbox(|inbox| inbox.found.push_back(found(&[(101, false)])));
    assert_eq!(case.manners(), [Manner::Adopted(Some(uid(101)))]);
    assert_eq!(case.searches(), 1);
}

#[test]
fn a_restore_goes_on_looking_where_a_dead_run_left_nothing() {
    let mut case = Case { restore: true, ..case() }.before(&[(Some(Some(uid(50))), &[died(1)])]);
    assert_eq!(case.manners(), [Manner::Appended(Some(uid(100)))]);
    // By what the dead run may have left, and then, as there is no such thing, by when the message arrived.
    let from: Vec<OffsetDateTime> = case.inbox.borrow().searches.iter().map(|(.., from)| *from).collect();
    assert_eq!(from[..2], [ARRIVED - Duration::from_secs_f64(SETTLE), ARRIVED]);
}

#[test]
fn a_sent_copy_that_cannot_be_restored_never_becomes_owed() {
    for failure in [MailboxFailure::OverQuota, MailboxFailure::RefusedForGood, MailboxFailure::AccessDenied] {
        let mut case = Case { restore: true, ..case() }.sent(|sent| {
            sent.appended.push_back(Appended::Refused(trouble(failure)));
        });
        case.policy.over_quota_refuses = true;
        assert!(matches!(case.run(), Err(Refusal::Deferred(Deferral::Mailbox(_)))), "{failure:?}");
        let outcome = format!("deferred: {}: asking: the script says so", failure.as_str());
        assert_eq!(case.outcomes(), [(0, "appended"), (1, outcome.as_str())]);
        assert_eq!(case.database.copies.len(), 1);
    }
}

// --- the member's own copy in Sent

#[test]
fn a_members_own_copy_is_looked_for_by_message_id_from_its_date_on() {
    let on = |date: &str| LISA.replace("Sat, 21 Nov 2026 12:00:00 +0000", date);
    for (date, from) in [
        ("Sat, 21 Nov 2026 12:00:00 +0000", datetime!(2026-11-21 12:00:00 UTC)),
        ("Sun, 15 Nov 2026 12:00:00 +0000", datetime!(2026-11-15 12:00:00 UTC)),
        ("Sun, 15 Nov 2026 11:59:59 +0000", ARRIVED),
        ("Sun, 22 Nov 2026 12:00:01 +0000", ARRIVED),
        ("Sun, 22 Nov 2026 12:00:00 +0000", ARRIVED),
        ("yesterday", ARRIVED),
    ] {
        let mut case = case().sent(|sent| sent.found.push_back(found(&[(3, false), (4, false)])));
        (case.message, case.policy.look_in_sent) = (on(date).leak(), true);
        assert_eq!(case.manners()[1], Manner::Adopted(Some(uid(3))));
        assert_eq!(case.sent.borrow().searches, [(Matching::MessageId, None, from)], "{date}");
        assert_eq!(case.searches(), 0, "the recipient's is not looked for");
        assert!(case.sent.borrow().appends.is_empty());
    }
}

#[test]
fn a_members_own_copy_is_not_looked_for_unless_asked_for_and_named() {
    for (look_in_sent, message) in [(false, LISA), (true, "From: lisa@gmail.com\n\nHello\n")] {
        let mut case = case().sent(|_| {});
        (case.policy.look_in_sent, case.message) = (look_in_sent, message);
        assert_eq!(case.manners()[1], Manner::Appended(Some(uid(100))));
        assert!(case.sent.borrow().searches.is_empty());
    }
}

// --- what fails

#[test]
fn only_a_recipients_full_mailbox_refuses_for_good_and_only_by_a_rule() {
    let full = || {
        case().sent(|_| {}).inbox(|inbox| {
            inbox.appended.push_back(Appended::Refused(trouble(MailboxFailure::OverQuota)));
        })
    };
    for rule in [false, true] {
        let mut case = full();
        case.policy.over_quota_refuses = rule;
        let refusal = case.run().unwrap_err();
        assert_eq!(rule, matches!(refusal, Refusal::OverQuota(_)), "{refusal}");
        let word = if rule { "refused" } else { "deferred" };
        let outcome = format!("{word}: over quota: asking: the script says so");
        // Where the recipient's copy fails, the sender's is not tried.
        assert_eq!(case.outcomes(), [(0, outcome.as_str()), (1, "deferred: the recipient's copy failed")]);
        assert!(case.database.copies.is_empty() && case.sent.borrow().appends.is_empty());
        // Only a final refusal is reported: a deferred message comes back.
        let collected = case.database.events.iter().map(|(kind, ..)| *kind).collect::<Vec<_>>();
        assert_eq!(collected, if rule { &["message.refused"][..] } else { &[] });
    }
    let mut other = case().inbox(|inbox| inbox.appended.push_back(Appended::NotSent(trouble(MailboxFailure::Refused))));
    other.policy.over_quota_refuses = true;
    assert!(matches!(other.run(), Err(Refusal::Deferred(Deferral::Mailbox(_)))));
    assert_eq!(other.outcomes(), [(0, "deferred: the mailbox store refused: asking: the script says so")]);
}

#[test]
fn an_append_of_unknown_outcome_stays_open_and_is_never_given_up_for_a_recipient() {
    let mut case = case().sent(|_| {}).inbox(|inbox| {
        inbox.appended.push_back(Appended::Unknown(trouble(MailboxFailure::ConnectionLost)));
    });
    case.database.first_attempt_age = Some(Duration::from_hours(1000));
    assert!(matches!(case.run(), Err(Refusal::Deferred(Deferral::Unknown(_)))));
    assert_eq!(case.outcomes(), [(1, "deferred: the recipient's copy failed")]);
    assert!(case.database.copies.is_empty());
}

#[test]
fn a_sent_copy_of_unknown_outcome_is_given_up_in_the_end_and_its_attempt_stays_open() {
    let day = Policy::embedded().sent_retry_for;
    for (age, given_up) in [(Some(day - Duration::from_secs(1)), false), (Some(day), true), (None, false)] {
        let mut case = case().sent(|sent| {
            sent.appended.push_back(Appended::Unknown(trouble(MailboxFailure::ConnectionLost)));
        });
        case.database.first_attempt_age = age;
        let result = case.run();
        assert_eq!(case.outcomes(), [(0, "appended")], "the Sent copy's attempt stays open");
        assert_eq!(case.database.copies[0], (Role::Recipient, "delivered Some(100)".into()));
        if given_up {
            assert!(matches!(&result.unwrap().copies[1].manner, Manner::Owed(why) if why.contains("unknown")));
            assert!(case.database.copies[1].1.starts_with("owed: the outcome of an append is unknown"));
        } else {
            assert!(matches!(result, Err(Refusal::Deferred(Deferral::Unknown(_)))), "{age:?}");
            assert_eq!(case.database.copies.len(), 1);
        }
    }
}

/// What the dead have left is looked for from where they began. Our own attempt, which stays open, began above it: by that alone the
/// second copy would be left where its expunge is never carried out.
#[test]
fn a_sent_copy_that_stays_owed_ends_no_attempt_whose_copy_was_not_seen_to() {
    for (looked, removed) in [
        (found(&[(100, false), (101, false)]), Err(MailboxFailure::ConnectionLost)),
        (Err(MailboxFailure::RefusedForGood), Ok(Removal::Removed)),
    ] {
        let mut case = case().before(&[(None, &[]), (None, &[died(1)])]).sent(|sent| {
            sent.found.push_back(looked);
            sent.removed.push_back(removed);
        });
        case.database.first_attempt_age = Some(Policy::embedded().sent_retry_for);
        assert!(matches!(case.manners()[1], Manner::Owed(_)));
        assert!(case.database.ended.iter().all(|(name, ..)| *name == OURS), "{:?}", case.database.ended);
    }
}

#[test]
fn a_sent_copy_is_tried_for_as_long_as_the_operator_wants_and_then_stays_owed() {
    let day = Policy::embedded().sent_retry_for;
    let young = Some(day - Duration::from_secs(1));
    for (failure, rule, age, owed) in [
        (MailboxFailure::Refused, false, young, false),
        (MailboxFailure::Refused, true, young, false),
        (MailboxFailure::Refused, false, Some(day), true),
        (MailboxFailure::Refused, false, None, false),
        (MailboxFailure::OverQuota, false, young, false),
        (MailboxFailure::OverQuota, true, young, true),
        (MailboxFailure::AccessDenied, false, young, true),
        (MailboxFailure::RefusedForGood, false, young, true),
    ] {
        let mut case = case().sent(|sent| sent.appended.push_back(Appended::Refused(trouble(failure))));
        (case.policy.over_quota_refuses, case.database.first_attempt_age) = (rule, age);
        let result = case.run();
        if owed {
            let reason = format!("{}: asking: the script says so", failure.as_str());
            assert_eq!(result.unwrap().copies[1].manner, Manner::Owed(reason.clone()));
            assert_eq!(case.database.copies[1], (Role::Sender, format!("owed: {reason}")));
            assert_eq!(case.outcomes(), [(0, "appended"), (1, "owed")]);
        } else {
            assert!(matches!(result, Err(Refusal::Deferred(Deferral::Mailbox(_)))), "{failure:?} {age:?}");
            assert_eq!(case.database.copies.len(), 1, "{failure:?}: the recipient's is recorded");
        }
    }
}

#[test]
fn a_search_that_fails_appends_nothing() {
    let another = attempt(Uuid::from_u128(1), "scuba@mail.axial.net", 10.0);
    let mut case =
        case().before(&[(None, &[another])]).inbox(|inbox| inbox.found.push_back(Err(MailboxFailure::TimedOut)));
    assert!(matches!(case.run(), Err(Refusal::Deferred(Deferral::Mailbox(_)))));
    assert!(case.inbox.borrow().appends.is_empty() && case.database.copies.is_empty());
}

#[test]
fn a_record_that_fails_is_no_delivery() {
    let mut case = case();
    case.database.fails_at = "record";
    assert!(matches!(case.run(), Err(Refusal::Deferred(Deferral::Database(_)))));
    let mut case = self::case();
    case.database.fails_at = "journal";
    assert!(matches!(case.run(), Err(Refusal::Deferred(Deferral::Database(_)))));
    assert!(case.inbox.borrow().appends.is_empty());
}

// --- what is kept, and said

#[test]
fn the_source_is_kept_up_to_the_size_that_is_configured() {
    let size = Message::receive(LISA.into()).unwrap().size();
    for (limit, kept) in [(0, false), (size - 1, false), (size, true), (size + 1, true)] {
        let mut case = case();
        case.policy.keep_source_up_to = limit;
        case.run().unwrap();
        let (recorded, raw) = case.database.message.unwrap();
        assert_eq!((recorded, raw), (size, kept.then_some(usize::try_from(size).unwrap())), "{limit}");
    }
}

#[test]
fn of_the_header_is_kept_what_is_configured() {
    let all = [
        "X-Spam-Flag",
        "from",
        "TO",
        "Cc",
        "Subject",
        "Date",
        "Message-ID",
        "References",
        "In-Reply-To",
        "List-ID",
        "Sender",
    ];
    let message: String = all.iter().map(|name| format!("{name}: x\n")).collect();
    for (headers, kept) in [(HeaderFields::All, &all[..]), (HeaderFields::Few, &all[1..10]), (HeaderFields::None, &[])]
    {
        let mut case = case();
        case.message = format!("Delivered-To: doug\n{message}\nx\n").leak();
        case.policy.headers = headers;
        case.run().unwrap();
        assert_eq!(case.database.headers, kept, "{headers:?}");
    }
}

#[test]
fn one_machine_waits_half_a_minute_for_a_lock_for_nobody_who_died_and_a_day_for_sent() {
    let policy = Policy {
        lock_wait: Duration::from_secs(30),
        append_grace: Duration::ZERO,
        sent_retry_for: Duration::from_hours(24),
        queue_lifetime: Duration::from_hours(120),
        slow_mailbox_timeout: Duration::from_secs(5),
        author_patience: None,
        opening_patience: None,
        over_quota_refuses: false,
        look_in_sent: false,
        keep_source_up_to: 0,
        headers: HeaderFields::All,
    };
    assert_eq!(Policy::embedded(), policy);
}

#[test]
fn the_verdict_names_each_copy_how_it_came_there_and_its_uid() {
    let copy = |mailbox: &str, manner| CopyReport {
        role: Role::Recipient,
        user: "doug".into(),
        mailbox: mailbox.into(),
        manner,
    };
    let copies = vec![
        copy("INBOX", Manner::Appended(Some(uid(17)))),
        copy("Sent", Manner::Adopted(Some(uid(18)))),
        copy("A", Manner::Appended(None)),
        copy("B", Manner::AlreadyThere),
        copy("C", Manner::Owed("over quota".into())),
    ];
    let text = "INBOX appended (uid 17), Sent adopted (uid 18), A appended, B already there, C owed";
    assert_eq!(Verdict::from(&Delivered { copies, brought: None }).text(), text);
}

#[test]
fn the_ledger_has_the_stages_that_took_any_time_in_milliseconds_to_the_hundredth() {
    let micros = Duration::from_micros;
    assert_eq!(
        [micros(1274), micros(1275), micros(0), micros(12_340_000)].map(milliseconds),
        [1.27, 1.28, 0.0, 12340.0]
    );
    assert_eq!(Stages::default().as_json(), "{}");
    let all = Stages {
        connect: micros(1270),
        route: micros(20),
        authenticate: micros(30),
        position: micros(40),
        journal: micros(50),
        lock: micros(310),
        look: micros(60),
        append: micros(70),
        record: micros(80),
        ..Stages::default()
    };
    let json = "{\"connect\":1.27,\"route\":0.02,\"authenticate\":0.03,\"position\":0.04,\"journal\":0.05,\"lock\":0.31,\
        \"look\":0.06,\"append\":0.07,\"record\":0.08}";
    assert_eq!(all.as_json(), json);
    assert_eq!(Stages { lock: micros(310), ..Stages::default() }.as_json(), "{\"lock\":0.31}");
}
