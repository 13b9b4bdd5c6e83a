//! A site as it is: Postfix delivers on two hosts, and three have subscribed: one is quick, one is slow, one dies and comes back. Each is
//! notified of all that the ledger says, once by its id.

use crate::fixtures::webhook_receiver::{Receiver, Request};
use crate::notifications::event_delivery::{Notifier, PENDING, subscribe};
use crate::support::database::Engine;
use crate::support::mail_hosts::{MailHosts, Options};
use crate::support::postfix::wait_until_delivered;
use crate::support::program::wait_for;
use crate::support::run::Report;
use crate::support::site_fixture::LISA;
use std::collections::BTreeSet;
use std::time::Duration;

on_two_engines![each_of_three_subscribers_is_notified_what_the_ledger_says];

fn each_of_three_subscribers_is_notified_what_the_ledger_says(engine: Engine) {
    let mut site = MailHosts::set_up(&Options::new(engine, 6));
    let receiver = Receiver::start();
    for (path, at_once) in [("/quick", "8"), ("/late", "2"), ("/dying", "8")] {
        subscribe(&mut site.scene, ("all", ""), &receiver.url(path), &[("max_in_flight", at_once)]);
    }
    // Longer than all of the test's time limits together.
    let retry = format!("[{}]", vec!["\"1s\""; 2 * LIMIT.as_secs() as usize].join(", "));
    let notifier = Notifier::start_by(&mut site.scene, &retry, "");
    let message_ids: Vec<String> =
        (0..6).map(|number| format!("<{number}-{}@mail.google.com>", site.scene.run)).collect();

    deliver(&site, &message_ids[..2]);
    wait_for("the one that will die was notified", LIMIT, || !receiver.taken("/dying").is_empty());
    receiver.die();
    deliver(&site, &message_ids[2..4]);
    wait_for("the dead one was called", LIMIT, || receiver.came("/dying").len() > receiver.taken("/dying").len());
    receiver.release();
    deliver(&site, &message_ids[4..]);

    let copies = message_ids.len() as i64 * (site.recipients.len() as i64 + 1);
    wait_for("all is notified", LIMIT, || {
        let events = "SELECT count(*) FROM events";
        site.scene.database.count(events) == copies && site.scene.database.count(PENDING) == 0
    });
    notifier.end();

    let mut report = Report::default();
    site.compare(&mut report, &message_ids);
    assert_eq!((report.lost, report.duplicates), (vec![], vec![]));
    let key = if engine.is_postgres() { "encode(copy_key, 'hex')" } else { "lower(hex(copy_key))" };
    let recorded: BTreeSet<String> =
        site.scene.database.texts(&format!("SELECT {key} FROM copies WHERE state = 'delivered'")).into_iter().collect();
    assert_eq!(recorded.len() as i64, copies);
    let received_at = |path: &str| -> (BTreeSet<String>, BTreeSet<String>) {
        let of = |request: &Request| {
            let copy = request.json()["data"]["copy"]["copy"].as_str().unwrap().to_owned();
            (request.id().to_owned(), copy)
        };
        receiver.taken(path).iter().map(of).unzip()
    };
    let (ids, _) = received_at("/quick");
    assert_eq!(ids.len() as i64, copies);
    for path in ["/quick", "/late", "/dying"] {
        assert_eq!(received_at(path), (ids.clone(), recorded.clone()), "{path}");
        assert_eq!(receiver.taken(path).len(), ids.len(), "{path}: none is taken twice");
    }
    for path in ["/quick", "/late"] {
        assert_eq!(receiver.came(path).len(), ids.len(), "{path}: none is tried twice");
    }
}

/// Each message to some recipients by one host, to the others by the other, at the same time.
fn deliver(site: &MailHosts, message_ids: &[String]) {
    let halves = site.recipients.split_at(site.recipients.len() / 2);
    let sent: Vec<_> = site
        .hosts
        .iter()
        .zip([halves.0, halves.1])
        .map(|(host, recipients)| {
            let give = |id: &String| {
                let mut smtp = host.smtp();
                // Without a Date each host would write one of its own, and the two were different messages.
                let content = format!(
                    "From: Lisa <{LISA}>\r\nDate: Fri, 20 Nov 2026 10:00:00 +0000\r\nMessage-ID: {id}\r\nSubject: {id}\r\n\r\n\
                     the last line\r\n"
                );
                smtp.give(LISA, recipients, content.as_bytes());
                smtp.end()
            };
            (host, message_ids.iter().map(give).collect())
        })
        .collect();
    wait_until_delivered(&sent, LIMIT);
}

const LIMIT: Duration = Duration::from_secs(300);
