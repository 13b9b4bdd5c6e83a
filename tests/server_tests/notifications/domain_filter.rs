//! The domain of an address is what stands behind its last `@`, since a local part may hold one (RFC 5321, section 4.1.2): who has
//! subscribed to another domain is notified nothing of it, on each engine.

use crate::notifications::event_delivery::{Notifier, happen, subscribe};
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;

on_two_engines![a_domain_is_what_stands_behind_the_last_at_sign];
on_each_other_version![a_domain_is_what_stands_behind_the_last_at_sign];

fn a_domain_is_what_stands_behind_the_last_at_sign(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    // They rest, so that what is pending for each stays where it can be seen.
    for (number, domain) in ["mail.axial.net", "evil.net", "evil.net@mail.axial.net"].into_iter().enumerate() {
        let url = format!("https://example.org/{number}");
        subscribe(&mut scene, ("domain", domain), &url, &[("state", "'paused'")]);
    }
    let recipients = ["doug@Mail.axial.net", "doug+x@evil.net@mail.axial.net", "\"doug@evil.net\"@Mail.Axial.net"];
    for recipient in recipients {
        happen(&mut scene, 1, "message.delivered");
        scene.database.execute(&format!(
            "UPDATE outbox SET recipient = '{recipient}', queue_id = 'known' WHERE queue_id IS NULL"
        ));
    }
    let notifier = Notifier::start(&mut scene);
    wait_until("all is published", || {
        scene.database.count("SELECT count(*) FROM outbox") == 0
            && scene.database.count("SELECT count(*) FROM events") == 3
    });
    notifier.end();
    let shown = "SELECT s.resource_id FROM notifications n JOIN subscriptions s ON s.id = n.subscription ORDER BY s.id";
    assert_eq!(scene.database.texts(shown), ["mail.axial.net"; 3]);
}
