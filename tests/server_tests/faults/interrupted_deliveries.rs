//! Deliveries that are cut short: killed, or left by a server, at the worst moments. Afterwards the message is there once, and who is
//! subscribed was notified of each copy once.

use crate::support::database::{Connection, Engine};
use crate::support::event_rows::each_change_was_reported_once;
use crate::support::imap::Imap;
use crate::support::program::{Outcome, wait_until};
use crate::support::site_fixture::Scene;
use crate::support::wire::{Fate, Speaker, Wire, says};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const PG: Engine = Engine::Postgres17;
const CUT_SHORT: &str = "4.3.0 an earlier delivery of this message was cut short";

on_each_engine!(
    killed_right_after_the_append_the_copy_is_adopted,
    an_append_whose_answer_is_lost_is_looked_for,
    a_lock_lost_during_the_append_stores_nothing,
    a_database_that_goes_away_before_the_record_does_not_double_the_copy,
    a_commit_whose_answer_is_lost_is_a_commit,
);

/// A site where these live, and somebody is subscribed to all that happens.
fn subscribed(engine: Engine, members: &[&str]) -> Scene {
    let mut scene = Scene::with(engine, members);
    scene.database.subscribe();
    scene
}

/// Once: from the first time that the ear hears it.
#[derive(Clone, Default)]
struct Once(Arc<AtomicBool>);

impl Once {
    fn now(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    fn has_been(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Puts a wire before Dovecot.
fn on_the_way_to_dovecot(
    scene: &mut Scene,
    ear: impl Fn(Speaker, &mut Vec<u8>) -> Fate + Send + Sync + 'static,
) -> (String, u16) {
    let wire = Wire::to(scene.settings.imap.clone(), ear);
    let before = scene.settings.imap.clone();
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), wire.address.port()));
    before
}

/// Puts a wire before the database.
fn on_the_way_to_the_database(scene: &mut Scene, ear: impl Fn(Speaker, &mut Vec<u8>) -> Fate + Send + Sync + 'static) {
    let wire = Wire::to(scene.settings.database.clone(), ear);
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), wire.address.port()));
}

fn counts(scene: &Scene) -> (usize, usize) {
    (scene.inbox("doug").len(), scene.sent("lisa").len())
}

/// The next attempt that gets the lock: the database lets go of it when it has heard that its connection is gone.
fn when_the_lock_is_free(scene: &Scene, recipient: &str, message: &str) -> Outcome {
    let mut outcome = None;
    wait_until("the lock is free", || {
        let tried = scene.deliver(recipient, message);
        let busy = tried.line.contains("holds its lock");
        outcome = Some(tried);
        !busy
    });
    outcome.unwrap()
}

/// After an attempt that never ended: first nothing happens, as its APPEND may still land; then it is settled.
fn settled_at_the_next_attempt(scene: &mut Scene, message: &str, line: &str) {
    when_the_lock_is_free(scene, "doug", message).deferred(CUT_SHORT);
    scene.ten_minutes_pass();
    assert_eq!(scene.deliver("doug", message).delivered(), line);
    assert_eq!(counts(scene), (1, 1));
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    assert_eq!(scene.deliver("doug", message).delivered(), "INBOX already there, Sent already there");
    assert_eq!(counts(scene), (1, 1));
    each_change_was_reported_once(&mut scene.database);
}

fn killed_right_after_the_append_the_copy_is_adopted(engine: Engine) {
    let mut scene = subscribed(engine, &["lisa", "doug"]);
    let message = scene.message("killed");
    let dovecot = on_the_way_to_dovecot(&mut scene, |speaker, piece| match speaker {
        Speaker::Server if says(piece, "APPENDUID") => Fate::Hold,
        _ => Fate::Pass,
    });
    let delivery = scene.start("doug", &[], &message);
    wait_until("it has appended", || scene.inbox("doug").len() == 1);
    delivery.kill();
    assert_eq!(counts(&scene), (1, 0));
    scene.configure(|settings| settings.imap = dovecot);
    settled_at_the_next_attempt(&mut scene, &message, "INBOX adopted (uid 1), Sent appended (uid 1)");
}

fn an_append_whose_answer_is_lost_is_looked_for(engine: Engine) {
    let mut scene = subscribed(engine, &["lisa", "doug"]);
    let message = scene.message("lost-answer");
    let once = Once::default();
    on_the_way_to_dovecot(&mut scene, move |speaker, piece| match speaker {
        Speaker::Server if says(piece, "APPENDUID") && once.now() => Fate::Cut,
        _ => Fate::Pass,
    });
    scene.deliver("doug", &message).deferred("4.4.2 the mailbox store did not say whether it has the message");
    assert_eq!(counts(&scene), (1, 0));
    settled_at_the_next_attempt(&mut scene, &message, "INBOX adopted (uid 1), Sent appended (uid 1)");
}

/// The connection that holds the lock dies while the message is on its way: the last CRLF, without which the server
/// stores nothing, is never sent.
fn a_lock_lost_during_the_append_stores_nothing(engine: Engine) {
    let mut scene = subscribed(engine, &["lisa", "doug"]);
    let message = scene.message("lost-lock");
    let (once, appending) = (Once::default(), AtomicBool::new(false));
    let break_connections = scene.breaker();
    // Without LITERAL+ the program waits to be asked for the message. That is when it happens.
    on_the_way_to_dovecot(&mut scene, move |speaker, piece| {
        match speaker {
            Speaker::Program if says(piece, " APPEND ") => appending.store(true, Ordering::SeqCst),
            Speaker::Server if appending.load(Ordering::SeqCst) && piece.starts_with(b"+ ") && once.now() => {
                break_connections();
            }
            _ => {}
        }
        if let Some(at) = piece.windows(8).position(|window| window == b"LITERAL+") {
            piece[at + 7] = b'x';
        }
        Fate::Pass
    });
    scene.deliver("doug", &message).deferred("4.4.2 the lock on this message was lost");
    assert_eq!(counts(&scene), (0, 0));
    settled_at_the_next_attempt(&mut scene, &message, "INBOX appended (uid 1), Sent appended (uid 1)");
}

fn a_database_that_goes_away_before_the_record_does_not_double_the_copy(engine: Engine) {
    let mut scene = subscribed(engine, &["lisa", "doug"]);
    let message = scene.message("no-record");
    let once = Once::default();
    on_the_way_to_the_database(&mut scene, move |speaker, piece| match speaker {
        Speaker::Program if says(piece, "INTO messages") && once.now() => Fate::Cut,
        _ => Fate::Pass,
    });
    scene.deliver("doug", &message).deferred("4.4.2 the connection to the database was lost");
    assert_eq!(counts(&scene), (1, 1));
    assert_eq!(scene.database.count("SELECT count(*) FROM copies"), 0);
    settled_at_the_next_attempt(&mut scene, &message, "INBOX adopted (uid 1), Sent adopted (uid 1)");
}

/// It was recorded, and the answer was lost.
fn a_commit_whose_answer_is_lost_is_a_commit(engine: Engine) {
    let mut scene = subscribed(engine, &["lisa", "doug"]);
    let message = scene.message("no-answer");
    let (committing, cut) = (Once::default(), Once::default());
    let name = scene.database.name.clone();
    on_the_way_to_the_database(&mut scene, {
        let committing = committing.clone();
        move |speaker, piece| match speaker {
            // All of the record is one batch, its COMMIT included.
            Speaker::Program if says(piece, "INTO messages") => {
                committing.now();
                Fate::Pass
            }
            Speaker::Server if committing.has_been() && cut.now() => {
                let mut session = Connection::open(engine, Some(&name));
                let copies = "SELECT state FROM copies WHERE state = 'delivered'";
                wait_until("it is committed", || session.texts(copies).len() == 2);
                Fate::Cut
            }
            _ => Fate::Pass,
        }
    });
    scene.deliver("doug", &message).deferred("4.4.2 the connection to the database was lost");
    assert!(committing.has_been());
    assert_eq!(scene.database.count("SELECT count(*) FROM copies WHERE state = 'delivered'"), 2);
    let next = when_the_lock_is_free(&scene, "doug", &message);
    assert_eq!(next.delivered(), "INBOX already there, Sent already there");
    assert_eq!(counts(&scene), (1, 1));
    each_change_was_reported_once(&mut scene.database);
}

/// A server that crashes may give UIDs out again that it had given to APPENDs in flight: the copy is below the UIDNEXT that
/// its attempt had noted. What its owner had put there before, too, is neither taken out nor taken for ours where ours is
/// there.
#[test]
fn a_copy_that_ended_up_below_the_uidnext_that_was_noted_is_adopted() {
    for (ours_is_above, line) in [(false, "INBOX adopted (uid 2)"), (true, "INBOX adopted (uid 3)")] {
        let mut scene = subscribed(PG, &["doug"]);
        let message = scene.message("lowered");
        let mut doug = scene.look("doug");
        let put = |doug: &mut Imap, flags: &str, message: &str| {
            let literal = message.replace('\n', "\r\n");
            doug.run(&format!("APPEND INBOX ({flags}) {{{}+}}\r\n{literal}", literal.len())).unwrap();
        };
        // Done away with before the message came; below, it is never taken for the copy.
        put(&mut doug, "\\Deleted", &message);
        if ours_is_above {
            put(&mut doug, "", &message);
        }
        let once = Once::default();
        let dovecot = on_the_way_to_dovecot(&mut scene, move |speaker, piece| match speaker {
            Speaker::Server if says(piece, "APPENDUID") && once.now() => Fate::Cut,
            _ => Fate::Pass,
        });
        scene.deliver("doug", &message).deferred("4.4.2 the mailbox store did not say whether it has the message");
        scene.configure(|settings| settings.imap = dovecot);
        if !ours_is_above {
            scene.database.execute("UPDATE attempts SET uid_next = uid_next + 256");
            // Since then the mailbox has grown beyond that again.
            for number in 0..260 {
                put(&mut doug, "", &format!("Message-ID: <{number}@x>\n\nx\n"));
            }
        }
        let copies = scene.inbox("doug").len();
        scene.ten_minutes_pass();
        assert_eq!(when_the_lock_is_free(&scene, "doug", &message).delivered(), line);
        assert_eq!(scene.inbox("doug").len(), copies);
        each_change_was_reported_once(&mut scene.database);
    }
}

/// Time alone settles it, too: nothing else has to happen.
#[test]
fn after_the_time_to_settle_the_next_attempt_goes_on() {
    let mut scene = subscribed(PG, &["lisa", "doug"]);
    scene.configure(|settings| {
        settings.imap_more = "append_grace = \"9s\"\n".into();
        settings.more = "[delivery]\ndeadline = \"8s\"\n".into();
    });
    let message = scene.message("settle");
    let heard = Arc::new(AtomicU32::new(0));
    let dovecot = on_the_way_to_dovecot(&mut scene, {
        let heard = heard.clone();
        move |speaker, piece| match speaker {
            Speaker::Server if says(piece, "APPENDUID") => {
                heard.fetch_add(1, Ordering::SeqCst);
                Fate::Hold
            }
            _ => Fate::Pass,
        }
    });
    // Its answer does not come: at the deadline it ends by itself. (On a busy machine it may not have come so far.)
    wait_until("it has appended", || {
        let outcome = scene.deliver("doug", &message);
        outcome.deferred("4.");
        assert!(outcome.took < Duration::from_secs(60), "{outcome:?}");
        heard.load(Ordering::SeqCst) == 1
    });
    scene.configure(|settings| settings.imap = dovecot);
    wait_until("it is settled", || {
        let outcome = scene.deliver("doug", &message);
        if outcome.exit == Some(0) {
            assert!(outcome.delivered().starts_with("INBOX adopted (uid 1)"), "{outcome:?}");
            return true;
        }
        outcome.deferred("4.");
        std::thread::sleep(Duration::from_millis(200));
        false
    });
    assert_eq!(counts(&scene), (1, 1));
    each_change_was_reported_once(&mut scene.database);
}

/// The lock is lost in the only moment when that can double a copy: after the last CRLF. Another delivery of the message
/// appends Sent as well; this recipient's next attempt takes one out.
#[test]
fn a_copy_too_many_is_taken_out_again() {
    let mut scene = subscribed(PG, &["lisa", "doug", "scuba"]);
    let message = scene.message("twice");
    // A died after it had appended both, and its APPEND to Sent landed late, when B had looked already: as if so.
    let once = Once::default();
    let database = scene.settings.database.clone();
    on_the_way_to_the_database(&mut scene, move |speaker, piece| match speaker {
        Speaker::Program if says(piece, "INTO messages") && once.now() => Fate::Cut,
        _ => Fate::Pass,
    });
    let mut lisa = scene.look("lisa");
    scene.deliver("doug", &message).deferred("4.4.2 ");
    scene.configure(|settings| settings.database = database);
    lisa.run("SELECT Sent").unwrap();
    let late = scene.sent("lisa").remove(0).content;
    lisa.run("UID STORE 1 +FLAGS (\\Deleted)").unwrap();
    lisa.run("UID EXPUNGE 1").unwrap();
    when_the_lock_is_free(&scene, "scuba", &message).delivered();
    let literal = String::from_utf8(late).unwrap();
    lisa.run(&format!("APPEND Sent (\\Seen) {{{}+}}\r\n{literal}", literal.len())).unwrap();
    assert_eq!(scene.sent("lisa").len(), 2);

    scene.ten_minutes_pass();
    assert_eq!(scene.deliver("doug", &message).delivered(), "INBOX adopted (uid 1), Sent already there");
    let sent = scene.sent("lisa");
    assert_eq!(sent.len(), 1);
    assert_eq!(scene.database.count("SELECT uid FROM copies WHERE role = 'sender'"), i64::from(sent[0].uid));
    assert_eq!((scene.inbox("doug").len(), scene.inbox("scuba").len()), (1, 1));
    each_change_was_reported_once(&mut scene.database);
}
