//! A message that is stuck in Postfix's queue, replayed from what postcat prints of it: it is delivered as Postfix would have
//! done, and when Postfix comes back to it there is nothing left to do.

use crate::support::database::Engine;
use crate::support::mail_hosts::{MailHosts, Options};
use crate::support::postfix::wait_until_delivered;
use crate::support::program::{program, wait_until};
use crate::support::replay::replay;
use crate::support::site_fixture::LISA;
use std::time::Duration;

#[test]
fn what_postfix_has_deferred_is_delivered_manually_and_not_again_by_postfix() {
    let site = MailHosts::set_up(&Options::new(Engine::Postgres17, 3));
    let [mx1, _] = &site.hosts;
    mx1.append_to_main_cf("defer_transports = maildrop\n");
    wait_until("it is read", || mx1.log().contains("reload -- version"));
    let recipients = &site.recipients[..2];
    let message = format!(
        "From: Lisa <{LISA}>\r\nMessage-ID: <queue.{}@mail.google.com>\r\nSubject: stuck\r\n\r\nFrom here\r\n>From there\r\n\
         *** MESSAGE FILE END x ***\r\n{}\r\n.dot\r\n",
        site.scene.run,
        "long".repeat(240)
    );
    let mut smtp = mx1.smtp();
    smtp.give(LISA, recipients, message.as_bytes());
    let id = smtp.end();
    wait_until("it is deferred", || mx1.run("postqueue", &["-j"]).contains("\"deferred\""));

    let printed = mx1.run("postcat", &["-q", &id]);
    let config = site.scene.configuration_here();
    let replay_from_stdin = |arguments: &[&str]| {
        let mut command = program(&["replay", "--config", &config]);
        command.args(arguments).current_dir(std::path::Path::new(&config).parent().unwrap());
        replay(command, printed.as_bytes())
    };
    replay_from_stdin(&["-"]).ended(0, [2, 0, 0, 0]);
    replay_from_stdin(&["-"]).ended(0, [0, 2, 0, 0]);

    // Postfix's own delivery of the very same, with the lines that it prepends.
    mx1.append_to_main_cf("defer_transports =\n");
    wait_until_delivered(&[(mx1, vec![id.clone()])], Duration::from_secs(120));
    let log = mx1.log();
    let nothing_left_to_do =
        "status=sent (delivered via maildrop service (2.0.0 INBOX already there, Sent already there))";
    assert_eq!(log.matches(nothing_left_to_do).count(), 2, "{log}");
    for address in recipients {
        let inbox = site.scene.mailbox(address, "INBOX");
        assert_eq!(inbox.len(), 1, "{address}");
        let there = String::from_utf8(inbox[0].content.clone()).unwrap();
        assert!(there.starts_with("Received: ") && there.ends_with("\r\n.dot\r\n"), "{there}");
        assert_eq!(there.split_once("\r\n\r\n").unwrap().1, message.split_once("\r\n\r\n").unwrap().1);
    }
    assert_eq!(site.scene.mailbox(LISA, "Sent").len(), 1);
    let log = site.scene.log();
    assert!(log.contains(&format!("queue_id={id}")), "{log}");
}
