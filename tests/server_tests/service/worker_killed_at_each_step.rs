//! A worker that is killed at any piece of what goes between it and the database, or the mailbox store. Whatever its
//! client is answered then, each recipient has one copy in the end, the author has one, and a subscriber is notified of
//! each once.

use crate::support::database::Engine;
use crate::support::event_rows::each_change_was_reported_once;
use crate::support::lmtp::Lmtp;
use crate::support::program::wait_until;
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use crate::support::wire::{Fate, Wire};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::{Arc, Mutex};

on_each_engine![while_it_speaks_to_the_database];

/// After how many more pieces which process is killed.
type Countdown = Arc<Mutex<Option<(usize, Pid)>>>;

fn scene(engine: Engine) -> Scene {
    let mut scene = Scene::with(engine, &["doug", "scuba"]);
    scene.member("lisa");
    scene.database.subscribe();
    scene
}

/// A piece of the program's has been sent when it is killed; one of the server's it does not hear.
fn wire(server: (String, u16), countdown: &Countdown) -> Wire {
    let countdown = countdown.clone();
    Wire::to(server, move |_, _| {
        let mut left = countdown.lock().unwrap();
        match &mut *left {
            None => {}
            Some((0, worker)) => {
                kill_process(*worker, Signal::KILL).unwrap();
                *left = None;
            }
            Some((pieces, _)) => *pieces -= 1,
        }
        Fate::Pass
    })
}

/// At each point in turn, until a delivery needs no more pieces than that.
fn killed_everywhere(mut scene: Scene, countdown: &Countdown) {
    let recipients = ["doug", "scuba"].map(|name| format!("{name}@mail.axial.net"));
    let mut service = Service::start_with(&mut scene, "workers = 1\n", &[]);
    for point in 0.. {
        let message = scene.message(&format!("point{point}"));
        let mut lmtp = Lmtp::connect(&service.socket);
        *countdown.lock().unwrap() = Some((point, service.processes("worker")[0]));
        let replies = lmtp.deliver(LISA, &recipients, &message);
        let was_killed = countdown.lock().unwrap().take().is_none();
        if !replies.iter().all(|reply| reply.starts_with("250 ")) {
            assert!(was_killed, "{point}: {replies:?}");
            assert!(replies.iter().all(|reply| reply.starts_with("451 4.3.0 ")), "{point}: {replies:?}");
            // Its client comes again, later.
            wait_until("it is delivered", || {
                scene.ten_minutes_pass();
                lmtp.deliver(LISA, &recipients, &message).iter().all(|reply| reply.starts_with("250 "))
            });
        }
        let copies = [scene.inbox("doug").len(), scene.inbox("scuba").len(), scene.sent("lisa").len()];
        assert_eq!(copies, [point + 1; 3], "{point}: {replies:?}");
        if !was_killed {
            assert!(point > 10, "only {point} pieces went over the wire");
            break;
        }
        // A master that has not seen so many deaths yet, and makes no pauses for them.
        service.end();
        service = Service::start_again(&scene);
    }
    service.end();
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    each_change_was_reported_once(&mut scene.database);
}

fn while_it_speaks_to_the_database(engine: Engine) {
    let (mut scene, countdown) = (scene(engine), Countdown::default());
    let wire = wire(scene.settings.database.clone(), &countdown);
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), wire.address.port()));
    killed_everywhere(scene, &countdown);
}

/// A session for each of the three.
#[test]
fn while_it_speaks_to_the_mailbox_store() {
    let (mut scene, countdown) = (scene(Engine::Postgres17), Countdown::default());
    let wire = wire(scene.settings.imap.clone(), &countdown);
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), wire.address.port()));
    killed_everywhere(scene, &countdown);
}
