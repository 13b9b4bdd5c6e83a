//! Mailboxes that hang, of which there are as many as workers, or more: everybody else has his mail all the same.

use crate::support::database::Engine;
use crate::support::lmtp::Lmtp;
use crate::support::program::wait_until;
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use crate::support::wire::Wire;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn addresses(name: &str) -> Vec<String> {
    vec![format!("{name}@mail.axial.net")]
}

/// The ways to the mailboxes of some of them, one through the other, on which no login of theirs is answered while `hang` holds; and
/// how many each of them has had.
fn where_some_hang(scene: &mut Scene, names: &[&str], hang: &Arc<AtomicBool>) -> (Vec<Wire>, Vec<Arc<AtomicUsize>>) {
    let (mut wires, mut logins) = (Vec::new(), Vec::new());
    for name in names {
        let (wire, held) = Wire::where_logins_hang(scene.settings.imap.clone(), &scene.user(name), hang);
        scene.configure(|settings| settings.imap = (wire.address.ip().to_string(), wire.address.port()));
        wires.push(wire);
        logins.push(held);
    }
    (wires, logins)
}

/// There are two workers, and `service.max_per_recipient` is as it comes: 2.
#[test]
fn others_have_their_mail_while_as_many_mailboxes_hang_as_there_are_workers() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug", "kim", "anna"]);
    let hang = Arc::new(AtomicBool::new(false));
    let (_wires, logins) = where_some_hang(&mut scene, &["kim", "anna"], &hang);
    let service = Service::start_with(&mut scene, "workers = 2\nslow_mailbox_timeout = \"2s\"\n", &[]);
    let mut doug = Lmtp::connect(&service.socket);
    let mut delivers_to_doug = |scene: &Scene, subject: &str| {
        let replies = doug.deliver(LISA, &addresses("doug"), &scene.message(subject));
        assert!(replies[0].starts_with("250 2.0.0 "), "{subject}: {replies:?}");
    };
    // The login is checked.
    delivers_to_doug(&scene, "before");
    hang.store(true, Ordering::SeqCst);
    let give = |scene: &Scene, name: &str, subject: &str| {
        let mut lmtp = Lmtp::connect(&service.socket);
        lmtp.give(LISA, &addresses(name), &scene.message(subject));
        lmtp
    };
    // Two for one of them: the second waits for the first, and not at the other worker.
    let mut given = vec![give(&scene, "kim", "first"), give(&scene, "kim", "second")];
    wait_until("kim's mailbox hangs", || logins[0].load(Ordering::SeqCst) > 0);
    delivers_to_doug(&scene, "one hangs");
    // Both workers wait, but not for as long as a message waits for a worker.
    given.push(give(&scene, "anna", "third"));
    wait_until("anna's mailbox hangs", || logins[1].load(Ordering::SeqCst) > 0);
    delivers_to_doug(&scene, "both hang");
    for lmtp in &mut given {
        let reply = lmtp.replies(1).remove(0);
        assert!(reply.starts_with("451 4."), "{reply}");
    }
    // Nothing of them was begun.
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    hang.store(false, Ordering::SeqCst);
    let mut lmtp = Lmtp::connect(&service.socket);
    for (name, subject) in [("kim", "first"), ("kim", "second"), ("anna", "third")] {
        let replies = lmtp.deliver(LISA, &addresses(name), &scene.message(subject));
        assert!(replies[0].starts_with("250 2.0.0 "), "{subject}: {replies:?}");
    }
    service.end();
    assert_eq!(["doug", "kim", "anna"].map(|name| scene.inbox(name).len()), [3, 2, 1]);
}
