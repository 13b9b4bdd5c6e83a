//! One message to several recipients, delivered under one lock, on real servers.

use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::{LISA, Scene};
use crate::support::wire::{Fate, Speaker, Wire, says};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::delivery::{Deferral, Delivered, Manner, NoCaller, Refusal};
use maildrop_command::mailbox::MailboxFailure;
use maildrop_command::message::{Address, Message};
use maildrop_command::site::{Envelope, Outcome, Sessions, Site, Terms};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const TEN: [&str; 10] = ["doug", "scuba", "kim", "anna", "bert", "carl", "dora", "emil", "fred", "gina"];

fn envelope(name: &str) -> Envelope {
    Envelope {
        sender: Some(LISA.into()),
        recipient: Address::parse(&format!("{name}@mail.axial.net")).unwrap(),
        original_recipient: None,
        queue_id: Some("4cBxyz1234z9rs".into()),
        client_address: None,
        sasl_username: None,
    }
}

struct Worker {
    site: Site,
    sessions: Sessions,
}

impl Worker {
    fn of(scene: &Scene) -> Self {
        Self { site: scene.site(), sessions: Sessions::default() }
    }

    fn deliver(&mut self, names: &[&str], message: &str) -> Vec<Outcome> {
        self.deliver_within(Duration::from_secs(120), names, message)
    }

    fn deliver_within(&mut self, time: Duration, names: &[&str], message: &str) -> Vec<Outcome> {
        let message = Message::receive(message.to_owned().into_bytes()).unwrap();
        let envelopes: Vec<Envelope> = names.iter().map(|name| envelope(name)).collect();
        let deadline = Deadline::after(time);
        // As serve/worker/deliver.rs has it.
        let mut policy = self.site.policy();
        policy.author_patience = Some(policy.slow_mailbox_timeout);
        let terms = Terms { policy: &policy, caller: &NoCaller, deadline };
        let outcomes = self.site.deliver_to_all(&mut self.sessions, &message, &envelopes, &terms);
        self.sessions.end();
        assert_eq!(outcomes.len(), names.len());
        outcomes
    }

    fn delivers(&mut self, names: &[&str], message: &str) -> Vec<Delivered> {
        let delivered = self.deliver(names, message).into_iter().map(|outcome| outcome.result);
        delivered.map(|result| result.unwrap_or_else(|refusal| panic!("{refusal}"))).collect()
    }
}

/// Those who have to come back.
fn deferred<'a>(names: &[&'a str], outcomes: &[Outcome]) -> Vec<&'a str> {
    names.iter().zip(outcomes).filter(|(_, outcome)| outcome.result.is_err()).map(|(name, _)| *name).collect()
}

/// How many messages of this subject a member's INBOX has.
fn copies(scene: &Scene, name: &str, subject: &str) -> usize {
    scene.inbox(name).iter().filter(|copy| copy.field("Subject") == subject).count()
}

fn scene(engine: Engine, names: &[&str]) -> Scene {
    let mut scene = Scene::with(engine, names);
    scene.member("lisa");
    scene.configure(|settings| {
        settings.more = "[sent]\nauthor_check = \"header\"\n[service]\nslow_mailbox_timeout = \"20s\"\n".into()
    });
    scene
}

on_two_engines![
    ten_recipients_have_a_copy_each_and_the_author_has_one,
    a_batch_and_processes_for_the_same_recipients_at_once_make_one_copy_each,
];

fn ten_recipients_have_a_copy_each_and_the_author_has_one(engine: Engine) {
    let mut scene = scene(engine, &TEN);
    let mut worker = Worker::of(&scene);
    worker.delivers(&["doug"], &scene.message("first"));
    // The first made Sent, and checked the login.
    let one = worker.deliver(&["doug"], &scene.message("to one")).remove(0).stages.database_round_trips;

    let message = scene.message("to ten");
    let outcomes = worker.deliver(&TEN, &message);
    // As many mailboxes as there are sessions; the rest in a batch of its own: its journal, lock and record, and its route is known.
    let attempts = outcomes.iter().map(|outcome| outcome.stages.attempt.unwrap());
    let attempts: std::collections::BTreeSet<_> = attempts.collect();
    assert_eq!(attempts.len(), 2);
    let both = outcomes.iter().map(|outcome| outcome.stages.database_round_trips).max().unwrap();
    assert!(both <= 2 * one, "{both}, and {one} for one recipient");
    for outcome in outcomes {
        let delivered = outcome.result.unwrap_or_else(|refusal| panic!("{refusal}"));
        assert!(matches!(delivered.copies[0].manner, Manner::Appended(Some(_))), "{delivered:?}");
    }
    for name in TEN {
        assert_eq!(scene.inbox(name).iter().filter(|copy| copy.field("Subject") == "to ten").count(), 1, "{name}");
    }
    assert_eq!(scene.sent("lisa").iter().filter(|copy| copy.field("Subject") == "to ten").count(), 1);
    // Once more, as from Postfix's queue after a reply that was lost.
    for delivered in worker.delivers(&TEN, &message) {
        assert!(delivered.copies.iter().all(|copy| copy.manner == Manner::AlreadyThere), "{delivered:?}");
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    assert_eq!(scene.database.count("SELECT count(*) FROM copies"), 1 + 1 + 10 + 3);
}

fn a_batch_and_processes_for_the_same_recipients_at_once_make_one_copy_each(engine: Engine) {
    let names = &TEN[..4];
    let scene = scene(engine, names);
    let message = scene.message("both ways");
    let running: Vec<_> = names.iter().map(|name| scene.start(name, &[], &message)).collect();
    let outcomes = Worker::of(&scene).deliver(names, &message);
    let mut deferred = deferred(names, &outcomes);
    for (name, running) in names.iter().zip(running) {
        if running.end().exit != Some(0) {
            deferred.push(name);
        }
    }
    // A delivery that met the other's attempt waits until that is settled.
    let mut scene = scene;
    scene.ten_minutes_pass();
    if !deferred.is_empty() {
        Worker::of(&scene).delivers(&deferred, &message);
    }
    for name in names {
        assert_eq!(scene.inbox(name).len(), 1, "{name}");
    }
    assert_eq!(scene.sent("lisa").len(), 1);
}

#[test]
fn an_address_that_nobody_bears_is_refused_and_the_others_are_delivered_to() {
    let mut scene = scene(Engine::Postgres17, &["doug", "scuba"]);
    scene.configure(|settings| settings.more += "[routing]\nunknown_recipient = \"reject\"\n");
    let outcomes = Worker::of(&scene).deliver(&["doug", "stranger", "scuba"], &scene.message("to a stranger"));
    let shown: Vec<bool> = outcomes.iter().map(|outcome| outcome.result.is_ok()).collect();
    assert_eq!(shown, [true, false, true]);
    assert!(matches!(outcomes[1].result, Err(Refusal::UnknownRecipient)));
}

#[test]
fn two_addresses_of_one_mailbox_have_one_copy_and_an_answer_each() {
    let mut scene = scene(Engine::Mysql9, &["doug"]);
    let (user, alias) = (scene.user("doug"), "douglas@mail.axial.net");
    scene.database.add_address(alias, &user);
    let delivered = Worker::of(&scene).delivers(&["doug", "douglas"], &scene.message("to one mailbox"));
    assert_eq!(delivered[0].copies[0], delivered[1].copies[0]);
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (1, 1));
}

/// A proxy with one backend that hangs: the login of one of the ten is never answered.
#[test]
fn a_mailbox_that_cannot_be_opened_holds_up_nobody() {
    let mut scene = scene(Engine::Postgres17, &TEN);
    let (wire, _) = where_logins_hang(&scene, "kim");
    let straight = scene.settings.imap.clone();
    scene.configure(|settings| settings.imap = (wire.address.ip().to_string(), wire.address.port()));
    let message = scene.message("one hangs");
    let mut worker = Worker::of(&scene);
    for (name, outcome) in TEN.iter().zip(worker.deliver(&TEN, &message)) {
        match outcome.result {
            Ok(_) => assert_ne!(*name, "kim"),
            Err(Refusal::Deferred(Deferral::Mailbox(error))) => {
                assert_eq!((*name, error.failure), ("kim", MailboxFailure::TimedOut), "{error}");
            }
            Err(refusal) => panic!("{name}: {refusal}"),
        }
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    scene.configure(|settings| settings.imap = straight);
    Worker::of(&scene).delivers(&["kim"], &message);
    for name in TEN {
        assert_eq!(scene.inbox(name).len(), 1, "{name}");
    }
    assert_eq!(scene.sent("lisa").len(), 1);
}

/// With so few sessions a mailbox is a batch of its own: it has no more time than one of many. And where it is in the first batch, another
/// one shows that the server is not slow for all.
#[test]
fn a_mailbox_that_hangs_holds_up_nobody_in_whichever_batch_it_is() {
    for (sessions, names) in [(2, vec!["doug", "scuba", "kim", "anna"]), (3, vec!["kim", "doug", "scuba"])] {
        let mut scene = scene(Engine::Postgres17, &names);
        let (wire, logins) = where_logins_hang(&scene, "kim");
        let straight = scene.settings.imap.clone();
        scene.configure(|settings| {
            settings.imap = (wire.address.ip().to_string(), wire.address.port());
            settings.more += &format!("mailbox_sessions = {sessions}\n");
        });
        let mut worker = Worker::of(&scene);
        // The login is checked, for which it may be compared with doug's.
        worker.delivers(&["doug"], &scene.message("before"));
        logins.store(0, Ordering::SeqCst);
        let message = scene.message("one hangs");
        let begun = Instant::now();
        let outcomes = worker.deliver(&names, &message);
        let took = begun.elapsed();
        assert_eq!(deferred(&names, &outcomes), ["kim"], "{outcomes:?}");
        // Where the server is slow for all of his batch, he is asked once more, for four times as long.
        if took < Duration::from_mins(1) {
            assert_eq!(logins.load(Ordering::SeqCst), 1, "he is waited for once");
        }
        scene.configure(|settings| settings.imap = straight);
        Worker::of(&scene).delivers(&["kim"], &message);
        for name in names {
            assert_eq!(copies(&scene, name, "one hangs"), 1, "{name}");
        }
    }
}

/// The first message that comes proves that logins lead to their users' mailboxes: here by one whose mailbox hangs.
#[test]
fn a_mailbox_that_hangs_does_not_keep_others_from_checking_the_login() {
    let mut scene = scene(Engine::Postgres17, &TEN[..2]);
    let (wire, logins) = where_logins_hang(&scene, "scuba");
    scene.configure(|settings| settings.imap = (wire.address.ip().to_string(), wire.address.port()));
    let (his, hers) = (scene.message("first"), scene.message("second"));
    let site = scene.site();
    let hanging = std::thread::spawn(move || Worker { site, sessions: Sessions::default() }.deliver(&["scuba"], &hers));
    wait_until("the proof is under way", || logins.load(Ordering::SeqCst) > 0);
    Worker::of(&scene).delivers(&["doug"], &his);
    assert!(!hanging.is_finished());
    assert_eq!(scene.inbox("doug").len(), 1);
}

/// The same where both are recipients of one message.
#[test]
fn a_recipient_whose_mailbox_hangs_is_tried_once_for_the_proof() {
    let mut scene = scene(Engine::Postgres17, &TEN[..2]);
    let (wire, logins) = where_logins_hang(&scene, "scuba");
    scene.configure(|settings| settings.imap = (wire.address.ip().to_string(), wire.address.port()));
    let names = ["scuba", "doug"];
    let outcomes = Worker::of(&scene).deliver(&names, &scene.message("to both"));
    assert_eq!(deferred(&names, &outcomes), ["scuba"]);
    assert_eq!(scene.inbox("doug").len(), 1);
    // Once as the other user with whom doug is compared, and once to deliver.
    assert_eq!(logins.load(Ordering::SeqCst), 3);
}

/// A way to the mailbox store on which no login of this member is answered; and how many there were.
fn where_logins_hang(scene: &Scene, name: &str) -> (Wire, Arc<AtomicUsize>) {
    Wire::where_logins_hang(scene.settings.imap.clone(), &scene.user(name), &Arc::new(AtomicBool::new(true)))
}

/// Messages to one recipient each. Who is asked to come again comes later than within this minute.
#[test]
fn an_authors_mailbox_that_hangs_holds_up_a_worker_once() {
    let mut scene = scene(Engine::Postgres17, &TEN[..3]);
    let (wire, logins) = where_logins_hang(&scene, "lisa");
    let straight = scene.settings.imap.clone();
    scene.configure(|settings| settings.imap = (wire.address.ip().to_string(), wire.address.port()));
    let message = |name: &str| scene.message(&format!("to {name}"));
    let (mut worker, begun) = (Worker::of(&scene), Instant::now());
    for name in &TEN[..3] {
        let outcomes = worker.deliver(&[*name], &message(name));
        assert_eq!(deferred(&[*name], &outcomes), [*name], "{outcomes:?}");
    }
    // After a minute, or where the server is slow for all, it is asked once more.
    if begun.elapsed() < Duration::from_mins(1) {
        assert_eq!(logins.load(Ordering::SeqCst), 1);
    }
    assert!(TEN[..3].iter().all(|name| scene.inbox(name).len() == 1));
    let messages = TEN[..3].iter().map(|name| (name, message(name))).collect::<Vec<_>>();
    scene.configure(|settings| settings.imap = straight);
    for (name, message) in messages {
        Worker::of(&scene).delivers(&[*name], &message);
        assert_eq!(scene.inbox(name).len(), 1, "{name}");
    }
    assert_eq!(scene.sent("lisa").len(), 3);
}

/// Ten recipients are two batches.
#[test]
fn an_authors_mailbox_that_hangs_is_waited_for_once_and_somebody_comes_back_for_it() {
    let mut scene = scene(Engine::Postgres17, &TEN);
    let (wire, logins) = where_logins_hang(&scene, "lisa");
    let straight = scene.settings.imap.clone();
    scene.configure(|settings| settings.imap = (wire.address.ip().to_string(), wire.address.port()));
    let message = scene.message("hers hangs");
    let begun = Instant::now();
    let outcomes = Worker::of(&scene).deliver(&TEN, &message);
    let took = begun.elapsed();
    let deferred = deferred(&TEN, &outcomes);
    assert_eq!(deferred.len(), 1, "{outcomes:?}");
    // Where the server is slow for all, it is asked once more, for four times as long.
    if took < Duration::from_mins(1) {
        assert_eq!(logins.load(Ordering::SeqCst), 1);
    }
    scene.configure(|settings| settings.imap = straight);
    Worker::of(&scene).delivers(&deferred, &message);
    for name in TEN {
        assert_eq!(scene.inbox(name).len(), 1, "{name}");
    }
    assert_eq!(scene.sent("lisa").len(), 1);
}

/// Whether the last CRLF of a copy is said: alone, or, on a busy machine, together with the copy.
fn ends_a_message(piece: &[u8]) -> bool {
    piece == b"\r\n" || piece.ends_with(b"\r\n\r\n")
}

/// Its position is answered, and what is appended to it is never answered. Messages to one recipient each.
#[test]
fn an_authors_mailbox_that_opens_and_then_hangs_holds_up_a_worker_once() {
    let mut scene = scene(Engine::Postgres17, &TEN[..3]);
    let appends = Arc::new(AtomicUsize::new(0));
    let (counted, of_sent) = (appends.clone(), AtomicBool::new(false));
    let wire = Wire::to(scene.settings.imap.clone(), move |speaker, piece| {
        if speaker == Speaker::Program && says(piece, "APPEND") && says(piece, "Sent") {
            counted.fetch_add(1, Ordering::SeqCst);
            of_sent.store(true, Ordering::SeqCst);
        }
        let is_completed = speaker == Speaker::Program && ends_a_message(piece);
        if is_completed && of_sent.swap(false, Ordering::SeqCst) { Fate::Hold } else { Fate::Pass }
    });
    let straight = scene.settings.imap.clone();
    let mut worker = Worker::of(&scene);
    worker.delivers(&["doug"], &scene.message("before"));
    scene.configure(|settings| settings.imap = (wire.address.ip().to_string(), wire.address.port()));
    let (mut worker, names) = (Worker::of(&scene), &TEN[..3]);
    let message = |scene: &Scene, name: &str| scene.message(&format!("to {name}"));
    for (turn, name) in names.iter().enumerate() {
        // Half of this is waited for.
        let outcomes = worker.deliver_within(Duration::from_secs(20), &[*name], &message(&scene, name));
        let Err(Refusal::Deferred(deferral)) = &outcomes[0].result else { panic!("{outcomes:?}") };
        assert_eq!(matches!(deferral, Deferral::Unknown(_)), turn == 0, "{deferral:?}");
        assert_eq!(copies(&scene, name, &format!("to {name}")), 1);
    }
    assert_eq!(appends.load(Ordering::SeqCst), 1);
    // Of that one it is not known what came of it; the others were not begun.
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 1);
    scene.configure(|settings| settings.imap = straight);
    scene.ten_minutes_pass();
    for name in names {
        Worker::of(&scene).delivers(&[*name], &message(&scene, name));
        assert_eq!(copies(&scene, name, &format!("to {name}")), 1);
    }
    assert_eq!(scene.sent("lisa").len(), 4);
}

/// Ten recipients are two batches, of five each. The last CRLF of the author's copy, the sixth, is held up.
#[test]
fn an_authors_copy_without_an_answer_is_not_appended_again_by_the_next_batch() {
    let mut scene = scene(Engine::Postgres17, &TEN);
    let completed = Arc::new(AtomicU32::new(0));
    let counted = completed.clone();
    let wire = Wire::to(scene.settings.imap.clone(), move |speaker, piece| {
        let is_completed = speaker == Speaker::Program && ends_a_message(piece);
        if is_completed && counted.fetch_add(1, Ordering::SeqCst) == 5 { Fate::Hold } else { Fate::Pass }
    });
    let straight = scene.settings.imap.clone();
    scene.configure(|settings| settings.imap = (wire.address.ip().to_string(), wire.address.port()));
    let message = scene.message("hers is on its way");
    let outcomes = Worker::of(&scene).deliver(&TEN, &message);
    let deferred = deferred(&TEN, &outcomes);
    assert_eq!(deferred.len(), 1, "{outcomes:?}");
    assert_eq!(completed.load(Ordering::SeqCst), 11);
    scene.configure(|settings| settings.imap = straight);
    scene.ten_minutes_pass();
    Worker::of(&scene).delivers(&deferred, &message);
    for name in TEN {
        assert_eq!(scene.inbox(name).len(), 1, "{name}");
    }
    assert_eq!(scene.sent("lisa").len(), 1);
}

/// The last CRLF of one copy never arrives.
#[test]
fn a_mailbox_that_does_not_answer_about_its_copy_holds_up_nobody_and_gets_it_later() {
    let names = &TEN[..5];
    let mut scene = scene(Engine::Mariadb118, names);
    let completed = Arc::new(AtomicU32::new(0));
    let wire = Wire::to(scene.settings.imap.clone(), move |speaker, piece| {
        let is_third =
            speaker == Speaker::Program && ends_a_message(piece) && completed.fetch_add(1, Ordering::SeqCst) == 2;
        if is_third { Fate::Hold } else { Fate::Pass }
    });
    scene.configure(|settings| settings.imap = (wire.address.ip().to_string(), wire.address.port()));
    let message = scene.message("one is silent");
    let outcomes = Worker::of(&scene).deliver(names, &message);
    let unknown = |outcome: &Outcome| matches!(outcome.result, Err(Refusal::Deferred(Deferral::Unknown(_))));
    let silent: Vec<&str> = names.iter().zip(&outcomes).filter(|(_, it)| unknown(it)).map(|(name, _)| *name).collect();
    assert_eq!(silent.len(), 1, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|outcome| outcome.result.is_ok()).count(), 4, "{outcomes:?}");
    // Its attempt alone stays open.
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 1);
    let early = Worker::of(&scene).deliver(&silent, &message);
    assert!(matches!(early[0].result, Err(Refusal::Deferred(Deferral::Unsettled(_)))), "{:?}", early[0].result);
    scene.ten_minutes_pass();
    Worker::of(&scene).delivers(&silent, &message);
    for name in names {
        assert_eq!(scene.inbox(name).len(), 1, "{name}");
    }
    assert_eq!(scene.sent("lisa").len(), 1);
}
