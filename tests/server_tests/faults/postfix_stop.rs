//! `postfix stop` in the midst of deliveries. It ends pipe(8) by SIGTERM, and the program, which pipe(8) has put into a
//! session of its own, lives on with what it has of its message: 64 kB lie in the pipe, and then comes the end of file.
//! Afterwards Postfix delivers everything that it does not know to be delivered: nothing of it is cut, lost, or duplicated.

use crate::support::database::Engine;
use crate::support::mail_hosts::{MailHosts, Options, long_message};
use crate::support::postfix::{Postfix, wait_for_retries};
use crate::support::program::wait_until;
use crate::support::run::{Random, Report, faults};
use crate::support::site_fixture::LISA;
use std::time::Duration;

const RECIPIENTS: usize = 4;

/// Once, where it is worst: each pipe(8) has filled the pipe, and no program has read anything of it yet.
#[test]
fn stopped_while_pipe_writes_nothing_is_cut() {
    let mut site = MailHosts::set_up(&Options::new(Engine::Postgres17, RECIPIENTS));
    let gate = site.directory("gate");
    let held = gate.join("held");
    std::fs::write(&held, "").unwrap();
    site.hosts.iter().for_each(|host| host.run_instead(&site.script("held", &held_at_the_gate(&site.scene.run))));

    let message_id = format!("<held.{}@mail.google.com>", site.scene.run);
    let queued = give(&site, std::slice::from_ref(&message_id));
    let started = || std::fs::read_dir(&gate).unwrap().count() - 1;
    wait_until("each delivery has begun", || started() == RECIPIENTS);
    site.hosts.iter().for_each(stop);
    std::fs::remove_file(held).unwrap();
    wait_until("each delivery has ended", || {
        let log = site.scene.log();
        ["INFO delivered", HAS_DIED].map(|end| log.matches(end).count()).iter().sum::<usize>() == RECIPIENTS
    });
    assert_eq!(site.scene.log().matches(HAS_DIED).count(), RECIPIENTS);
    site.hosts.iter().for_each(start);
    let [here, there] = queued;
    wait_for_retries(&[(&site.hosts[0], here), (&site.hosts[1], there)], LIMIT);
    count(&mut site, &[message_id], 2, "Postfix stopped while pipe(8) writes");
}

/// Again and again, at any moment.
#[test]
fn stopped_at_any_moment_nothing_is_cut() {
    let mut site = MailHosts::set_up(&Options::new(Engine::Postgres17, RECIPIENTS));
    let mut random = Random::seeded();
    let (mut message_ids, mut queued) = (Vec::new(), [Vec::new(), Vec::new()]);
    for round in 0..faults(5) {
        let round: Vec<String> =
            (0..MESSAGES).map(|number| format!("<{round}.{number}.{}@mail.google.com>", site.scene.run)).collect();
        for (queued, ids) in queued.iter_mut().zip(give(&site, &round)) {
            queued.extend(ids);
        }
        message_ids.extend(round);
        std::thread::sleep(random.below(A_WHILE));
        site.hosts.iter().for_each(stop);
        site.hosts.iter().for_each(start);
    }
    let [here, there] = queued;
    wait_for_retries(&[(&site.hosts[0], here), (&site.hosts[1], there)], LIMIT);
    count(&mut site, &message_ids, 2 * faults(5), "Postfix stopped");
}

/// What the program says of it.
const HAS_DIED: &str = "the program that handed the message over has died";

/// How many messages each stop meets: as many deliveries on each host as run at once there.
const MESSAGES: usize = 10;

/// In that time some of them are delivered, and some are not.
const A_WHILE: Duration = Duration::from_millis(500);

/// What the retries take at most, which are a matter of seconds here.
const LIMIT: Duration = Duration::from_secs(300);

/// Messages that come in all at once, half of the recipients on each host; their queue ids.
fn give(site: &MailHosts, message_ids: &[String]) -> [Vec<String>; 2] {
    let (here, there) = site.recipients.split_at(RECIPIENTS / 2);
    let given = [(&site.hosts[0], here), (&site.hosts[1], there)].map(|(host, recipients)| {
        let all = message_ids.iter().map(|message_id| {
            let mut smtp = host.smtp();
            smtp.give(LISA, recipients, long_message(LISA, message_id).as_bytes());
            smtp
        });
        all.collect::<Vec<_>>()
    });
    given.map(|sessions| sessions.into_iter().map(|mut smtp| smtp.end()).collect())
}

fn stop(host: &Postfix) {
    host.run("postfix", &["stop"]);
}

fn start(host: &Postfix) {
    host.run("postfix", &["start"]);
}

/// Every mailbox has every message once and whole, and the ledger says the same.
fn count(site: &mut MailHosts, message_ids: &[String], stops: usize, kind: &str) {
    let logs = site.hosts.each_ref().map(Postfix::log).join("\n");
    let mut report = Report {
        deliveries: message_ids.len() * RECIPIENTS,
        tries: logs.matches("relay=maildrop").count(),
        faults: stops,
        deferred: site.scene.log().matches(" deferred").count(),
        adopted: logs.matches(" adopted").count(),
        ..Report::default()
    };
    site.compare(&mut report, message_ids);
    report.tell(Engine::Postgres17, kind);
    assert!(!logs.contains("status=bounced"), "{logs}");
    let (messages, copies) = (message_ids.len() as i64, (message_ids.len() * (RECIPIENTS + 1)) as i64);
    assert_eq!(site.scene.database.count("SELECT count(*) FROM messages"), messages);
    assert_eq!(site.scene.database.count("SELECT count(*) FROM copies WHERE state = 'delivered'"), copies);
    assert_eq!(site.scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}

/// The program, which waits while there is a file `held`.
fn held_at_the_gate(run: &str) -> String {
    format!(
        "#!/bin/sh\ngate=/opt/maildrop/{run}/gate\n: >\"$gate/$(hostname).$$\"\n\
         while [ -e \"$gate/held\" ]; do sleep 0.05; done\nexec /opt/maildrop/bin/maildrop_command \"$@\"\n"
    )
}
