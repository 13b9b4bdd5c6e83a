//! A database server that hangs and keeps its connections (SIGSTOP, a disk that hangs) answers nothing for ever, in the midst of a
//! notifier's round or of what the API asks. The session is given up, and another one goes on.

use crate::fixtures::rest_client::Rest;
use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{Notifier, PENDING, happen, subscribe};
use crate::notifications::message_source::deliver;
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use crate::support::wire::{Fate, Speaker, Wire, says};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

on_two_engines![
    a_notifier_goes_on_by_another_session_and_tells_each_event_once,
    the_api_answers_again_after_all_its_threads_have_waited,
    the_api_opens_mailboxes_again_after_as_many_looks_as_there_may_be_have_waited,
];

fn a_notifier_goes_on_by_another_session_and_tells_each_event_once(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    // The next statement that has these words is not answered, nor anything after it in that session.
    let hangs = Arc::new(Mutex::new(None));
    let next = Arc::clone(&hangs);
    let wire = Wire::to(scene.settings.database.clone(), move |speaker, piece| {
        let mut next = next.lock().unwrap();
        match *next {
            Some(words) if speaker == Speaker::Program && says(piece, words) => {
                *next = None;
                Fate::Hold
            }
            _ => Fate::Pass,
        }
    });
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), wire.address.port()));
    subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[]);
    let notifier = Notifier::start(&mut scene);
    let mut wait_for_received = |count: usize| {
        happen(&mut scene, 1, "message.delivered");
        wait_until("it is notified, and that is written down", || {
            receiver.taken("/quick").len() == count && scene.database.count(PENDING) == 0
        });
        assert_eq!(receiver.came("/quick").len(), count, "it comes once");
    };
    wait_for_received(1);
    // It reads what is due; it writes down what was answered.
    for (count, words) in [(2, "FROM notifications n JOIN events e"), (3, "INTO notification_attempts")] {
        *hangs.lock().unwrap() = Some(words);
        wait_for_received(count);
        assert!(hangs.lock().unwrap().is_none(), "a session hung: {words}");
    }
    notifier.end();
}

fn the_api_answers_again_after_all_its_threads_have_waited(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let hangs = Arc::new(AtomicBool::new(false));
    let is_hanging = Arc::clone(&hangs);
    let wire = Wire::to(scene.settings.database.clone(), move |speaker, _| {
        if speaker == Speaker::Program && is_hanging.load(Ordering::SeqCst) { Fate::Hold } else { Fate::Pass }
    });
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), wire.address.port()));
    let rest = Rest::start(&mut scene, "");
    let token = rest.token(&["--name", "crm", "--scope", "subscriptions:read"]);
    let asked = || rest.ask(&token, "GET /subscriptions", None);
    let at_once = || {
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(asked)).collect();
            all.into_iter().map(|one| one.join().unwrap().status).collect::<Vec<_>>()
        })
    };
    assert_eq!(at_once(), [200; 8]);
    hangs.store(true, Ordering::SeqCst);
    assert_eq!(at_once(), [503; 8]);
    hangs.store(false, Ordering::SeqCst);
    wait_until("it answers again", || asked().status == 200);
    rest.end();
}

fn the_api_opens_mailboxes_again_after_as_many_looks_as_there_may_be_have_waited(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let (message, path) = deliver(&mut scene, "doug", "", "a");
    let hangs = Arc::new(AtomicBool::new(false));
    let is_hanging = Arc::clone(&hangs);
    // Such a session is opened, and what it writes down before it shows anything is not answered.
    let wire = Wire::to(scene.settings.database.clone(), move |speaker, piece| {
        let is_asked = speaker == Speaker::Program && says(piece, "INTO operations");
        if is_asked && is_hanging.load(Ordering::SeqCst) { Fate::Hold } else { Fate::Pass }
    });
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), wire.address.port()));
    let rest = Rest::start_with_mailboxes(&mut scene);
    let tokens = ["one", "other"].map(|name| rest.token(&["--name", name, "--scope", "messages:content"]));
    let asked = |token: &str| rest.ask(token, &format!("GET {path}"), None);
    let answer = asked(&tokens[0]);
    assert_eq!((answer.status, answer.body.as_str()), (200, message.as_str()), "{answer:?}");
    hangs.store(true, Ordering::SeqCst);
    let asked = &asked;
    std::thread::scope(|scope| {
        // A token has half of the places.
        let all: Vec<_> = tokens.iter().cycle().take(8).map(|token| scope.spawn(move || asked(token))).collect();
        for one in all {
            assert_eq!(one.join().unwrap().status, 503);
        }
    });
    hangs.store(false, Ordering::SeqCst);
    wait_until("it reads mailboxes again", || asked(&tokens[0]).status == 200);
    rest.end();
}
