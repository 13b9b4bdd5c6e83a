//! A connection that is cut before any piece of what goes over it; and the lock's connection, ended by the database's
//! administrator before any piece of what the program says to the database, and to the mailbox store. Whatever the
//! delivery says then, in the end there is one copy in each mailbox, a subscriber is notified of it once, and exit 0 is
//! never said too early.

use crate::support::database::Engine;
use crate::support::event_rows::each_change_was_reported_once;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use crate::support::wire::{Fate, Wire};
use std::sync::Arc;
use std::sync::Mutex;

on_each_engine!(
    between_the_program_and_the_database,
    ended_by_the_administrator_while_the_database_is_asked,
    ended_by_the_administrator_while_the_mailbox_store_is_asked,
);

const PG: Engine = Engine::Postgres17;

/// How many pieces are still to pass. Cutting before a piece of the server's is cutting after the program's before it.
type Countdown = Arc<Mutex<Option<usize>>>;

/// A wire that is cut once.
fn wire(server: (String, u16), countdown: &Countdown) -> Wire {
    wire_where(server, countdown, || Fate::Cut)
}

/// A wire on which something happens once.
fn wire_where(
    server: (String, u16),
    countdown: &Countdown,
    happens: impl Fn() -> Fate + Send + Sync + 'static,
) -> Wire {
    let countdown = countdown.clone();
    Wire::to(server, move |_, _| {
        let mut left = countdown.lock().unwrap();
        match &mut *left {
            None => Fate::Pass,
            Some(0) => {
                *left = None;
                happens()
            }
            Some(pieces) => {
                *pieces -= 1;
                Fate::Pass
            }
        }
    })
}

/// Cuts at each point in turn, until a delivery needs no more pieces than that.
fn cut_everywhere(mut scene: Scene, countdown: &Countdown) {
    scene.database.subscribe();
    for point in 0.. {
        let message = scene.message(&format!("point{point}"));
        *countdown.lock().unwrap() = Some(point);
        let outcome = scene.deliver("doug", &message);
        outcome.one_line();
        let was_cut = countdown.lock().unwrap().take().is_none();
        match outcome.exit {
            Some(0) => {}
            Some(75) => {
                assert!(was_cut, "{point}: {outcome:?}");
                // Postfix comes again, later. (A server may take its time to notice that the lock's connection is gone.)
                wait_until("it is delivered", || {
                    scene.ten_minutes_pass();
                    scene.deliver("doug", &message).exit == Some(0)
                });
            }
            _ => panic!("{point}: {outcome:?}"),
        }
        let copies = (scene.inbox("doug").len(), scene.sent("lisa").len());
        assert_eq!(copies, (point + 1, point + 1), "{point}: {outcome:?}");
        if !was_cut {
            assert!(point > 10, "only {point} pieces went over the wire");
            break;
        }
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    each_change_was_reported_once(&mut scene.database);
}

fn between_the_program_and_the_database(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    let countdown = Countdown::default();
    let wire = wire(scene.settings.database.clone(), &countdown);
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), wire.address.port()));
    cut_everywhere(scene, &countdown);
}

fn ended_by_the_administrator_while_the_database_is_asked(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    let (countdown, end_it) = (Countdown::default(), scene.breaker());
    let wire = wire_where(scene.settings.database.clone(), &countdown, move || {
        end_it();
        Fate::Pass
    });
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), wire.address.port()));
    cut_everywhere(scene, &countdown);
}

fn ended_by_the_administrator_while_the_mailbox_store_is_asked(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    let (countdown, end_it) = (Countdown::default(), scene.breaker());
    let wire = wire_where(scene.settings.imap.clone(), &countdown, move || {
        end_it();
        Fate::Pass
    });
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), wire.address.port()));
    cut_everywhere(scene, &countdown);
}

/// Two sessions at once; which of their pieces come first differs from time to time.
#[test]
fn between_the_program_and_the_mailbox_store() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    let countdown = Countdown::default();
    let wire = wire(scene.settings.imap.clone(), &countdown);
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), wire.address.port()));
    cut_everywhere(scene, &countdown);
}
