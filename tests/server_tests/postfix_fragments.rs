//! The fragments of `postfix/`, loaded by a real Postfix, do what postfix/README.md says of them.

use crate::support::database::Engine;
use crate::support::postfix::{Postfix, on, wait_until_delivered};
use crate::support::site::{LISA, Options, Site};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(180);

#[test]
fn recipients_are_looked_up_in_postgresql() {
    recipients_are_looked_up(Engine::Postgres17, "pgsql");
}

#[test]
fn recipients_are_looked_up_in_mysql() {
    recipients_are_looked_up(Engine::Mysql9, "mysql");
}

#[test]
fn recipients_are_looked_up_in_mariadb() {
    recipients_are_looked_up(Engine::Mariadb118, "mysql");
}

fn recipients_are_looked_up(engine: Engine, map_type: &str) {
    let mut site = Site::set_up(&Options::new("maps", engine, 1));
    site.database.add_address("odd name@mail.axial.net", "odd");
    site.database.add_address("o'brien@mail.axial.net", "obrien");
    let mx1 = &site.hosts[0];
    let map = format!("{map_type}:{}", mx1.etc("maildrop-recipients.cf"));

    for known in
        ["user0@mail.axial.net", "USER0@mail.axial.net", "odd name@mail.axial.net", "o'brien@mail.axial.net", LISA]
    {
        assert_eq!(mx1.run("postmap", &["-q", known, &map]).trim(), "1", "{known}");
    }
    assert!(mx1.try_run("postmap", &["-q", "nobody@mail.axial.net", &map]).is_err());

    // What a sending MTA is told, at RCPT TO. The table holds the unquoted form, as the command is given it.
    mx1.run("postconf", &["-e", "recipient_delimiter=+"]);
    reload(mx1);
    let mut smtp = mx1.smtp();
    assert_eq!(smtp.say(&format!("MAIL FROM:<{LISA}>")).0, 250);
    for known in
        ["User0@Mail.Axial.net", "user0+lists@mail.axial.net", "\"odd name\"@mail.axial.net", "o'brien@mail.axial.net"]
    {
        let reply = smtp.say(&format!("RCPT TO:<{known}>"));
        assert_eq!(reply.0, 250, "{known}: {reply:?}");
    }
    let reply = smtp.say("RCPT TO:<nobody@mail.axial.net>");
    assert!(reply.0 == 550 && reply.1.starts_with("5.1.1 "), "{reply:?}");

    // A table that cannot be asked is no reason to refuse anybody for good.
    let name = &site.database.name;
    let revoke = if engine.is_postgres() {
        format!("REVOKE SELECT ON addresses FROM reader_{}", site.run)
    } else {
        format!("REVOKE SELECT ON {name}.addresses FROM 'reader_{}'@'%'", site.run)
    };
    site.database.execute(&revoke);
    let mut smtp = site.hosts[0].smtp();
    assert_eq!(smtp.say(&format!("MAIL FROM:<{LISA}>")).0, 250);
    let reply = smtp.say("RCPT TO:<nobody-yet@mail.axial.net>");
    assert_eq!(reply.0, 451, "{reply:?}");
}

#[test]
fn results_of_authentication_that_a_stranger_wrote_in_our_name_are_taken_out() {
    let site = Site::set_up(&Options::new("forged", Engine::Postgres17, 1));
    let forged = [
        "Authentication-Results: mail.axial.net; dmarc=pass header.from=gmail.com",
        "AUTHENTICATION-RESULTS : Mail.Axial.Net;\r\n\tdmarc=pass header.from=gmail.com",
        "Authentication-Results: (a; comment)\r\n\t\"mail.axial.net\" 1; dmarc=pass header.from=gmail.com",
        "Authentication-Results: \"mail.axial\\.net\"; dmarc=pass header.from=gmail.com",
    ];
    let theirs = "Authentication-Results: mx.example.org; dmarc=pass header.from=gmail.com";
    // What is attached is somebody's message as he got it, and signed by whoever forwards it.
    let attached =
        "Content-Type: message/rfc822\r\n\r\nAuthentication-Results: mail.axial.net; spf=pass\r\n\r\nHello\r\n";
    let message = format!(
        "{}\r\n{theirs}\r\nFrom: {LISA}\r\nSubject: It is really me\r\nMIME-Version: 1.0\r\n\
         Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n{attached}--x--\r\n",
        forged.join("\r\n")
    );
    let mx1 = &site.hosts[0];
    let mut smtp = mx1.smtp();
    smtp.give(LISA, &site.recipients, message.as_bytes());
    let id = smtp.end();
    wait_until_delivered(&[(mx1, vec![id])], LIMIT);

    let inbox = site.mailbox(&site.recipients[0], "INBOX");
    let copy = String::from_utf8(inbox[0].content.clone()).unwrap();
    let (header, body) = copy.split_once("\r\n\r\n").unwrap();
    let results: Vec<&str> =
        header.lines().filter(|line| line.to_lowercase().contains("authentication-results")).collect();
    assert_eq!(results, [theirs], "{copy}");
    assert_eq!(body, format!("--x\r\n{attached}--x--\r\n"));
}

#[test]
fn while_commissioning_nothing_bounces_and_then_what_must_does() {
    let site = Site::set_up(&Options::new("soft", Engine::Postgres17, 3));
    let mx1 = &site.hosts[0];
    // In place of the command: it refuses, it dies as a program that panics does, or it never ends.
    let command = site.script(
        "refuses",
        "#!/bin/sh\ncat >/dev/null\ncase \"$*\" in\n*user0@*) echo '5.1.1 nobody here'; exit 67 ;;\n*user1@*) exit 101 ;;\n*) exec sleep 60 ;;\nesac\n",
    );
    use_command(mx1, &command);
    mx1.run("postconf", &["-e", "maildrop_time_limit=10s"]);
    reload(mx1);
    send(mx1, &site.recipients);
    let cut_short = "dsn=4.3.0, status=deferred (Command time limit exceeded";
    let refusals = [
        "dsn=4.1.1, status=SOFTBOUNCE (nobody here",
        "dsn=4.3.0, status=deferred (Command died with status 101",
        cut_short,
    ];
    let log = wait_for(mx1, &format!("{refusals:?}"), |log| refusals.iter().all(|refusal| log.contains(refusal)));
    assert_eq!(log.matches("status=bounced").count(), 0, "{log}");
    assert_eq!(log.matches("SOFTBOUNCE").count(), log.matches("SOFTBOUNCE (nobody here").count(), "{log}");

    // The end of commissioning, as postfix/README.md has it.
    mx1.run("postconf", &["-PX", "maildrop/unix/soft_bounce"]);
    reload(mx1);
    let id = send(mx1, &site.recipients);
    let log = wait_for(mx1, "what came of each recipient", |log| {
        ["user0", "user1", "user2"].iter().all(|user| tries(log, &id).any(|line| line.contains(user)))
    });
    // What only the program's end has made a refusal stays in the queue.
    for (user, what) in [
        ("user0", "dsn=5.1.1, status=bounced (nobody here"),
        ("user1", "dsn=4.3.0, status=deferred (Command died with status 101"),
        ("user2", cut_short),
    ] {
        let mut of_user = tries(&log, &id).filter(|line| line.contains(&format!("to=<{user}@"))).peekable();
        assert!(of_user.peek().is_some() && of_user.all(|line| line.contains(what)), "{user}: {log}");
    }
}

/// The lines of the log on the tries of one message.
fn tries<'l>(log: &'l str, id: &str) -> impl Iterator<Item = &'l str> {
    let id = format!(" {id}: to=<");
    log.lines().filter(move |line| line.contains(&id))
}

#[test]
fn a_forgotten_recipient_limit_is_found_out_before_anything_is_delivered() {
    let site = Site::set_up(&Options::new("limit", Engine::Postgres17, 2));
    let mx1 = &site.hosts[0];
    mx1.run("postconf", &["-X", "maildrop_destination_recipient_limit"]);
    reload(mx1);
    let id = send(mx1, &site.recipients);
    let log = wait_for_log(mx1, "dsn=4.3.5, status=deferred (mail system configuration error)", 2);
    assert!(log.contains("maildrop_destination_recipient_limit = 1"), "the log says what to mend: {log}");
    assert!(site.mailbox(&site.recipients[0], "INBOX").is_empty());

    // Mended, what was deferred is delivered.
    mx1.run("postconf", &["-e", "maildrop_destination_recipient_limit=1"]);
    reload(mx1);
    wait_until_delivered(&[(mx1, vec![id])], LIMIT);
    for recipient in &site.recipients {
        assert_eq!(site.mailbox(recipient, "INBOX").len(), 1);
    }
    assert_eq!(site.mailbox(LISA, "Sent").len(), 1);
}

/// It goes through pickup(8) then, which puts a Received line of its own on top; and this one has neither Message-ID nor
/// Date, so that its Received lines are part of its identity.
#[test]
fn a_message_that_is_requeued_after_some_have_got_it_is_the_same_message() {
    let site = Site::set_up(&Options::new("requeue", Engine::Postgres17, 2));
    let mx1 = &site.hosts[0];
    let later = format!("transport_maps=inline:{{{}=later:}}", site.recipients[1]);
    mx1.run("postconf", &["-e", &later, "defer_transports=later"]);
    reload(mx1);
    let id = send(mx1, &site.recipients);
    wait_for(mx1, "one delivered and one deferred", |log| {
        let tried = |status: &str| tries(log, &id).any(|line| line.contains(status));
        tried("status=sent") && tried("status=deferred")
    });
    mx1.run("postsuper", &["-r", &id]);
    mx1.run("postconf", &["-X", "transport_maps"]);
    reload(mx1);
    let orig_id = format!(" orig_id={id}");
    let log = wait_for_log(mx1, &orig_id, 1);
    // postfix/pickup[4711]: 9E38F1163F8: uid=100 from=<lisa@gmail.com> orig_id=C60FB116002
    let line = log.lines().find(|line| line.ends_with(&orig_id)).unwrap();
    let requeued = line.split(": ").nth(1).unwrap();
    wait_until_delivered(&[(mx1, vec![requeued.to_owned()])], LIMIT);

    let inbox = site.mailbox(&site.recipients[1], "INBOX");
    assert_eq!(String::from_utf8_lossy(&inbox[0].content).matches("Received: ").count(), 2);
    assert_eq!(site.mailbox(LISA, "Sent").len(), 1);
}

#[test]
fn one_person_on_one_machine_by_way_of_local() {
    let site = Site::set_up(&Options::new("local", Engine::Postgres17, 0));
    let mx1 = &site.hosts[0];
    let person = format!("p{}", site.run);
    on("mx1", &["flock", "/srv/maildrop-test-user", "useradd", "--create-home", &person]);
    let fragment = include_str!("../../postfix/main.cf.local");
    mx1.append_to_main_cf(&fragment.replace("/usr/bin/maildrop_command", "/opt/maildrop/bin/maildrop_command"));
    let recipients = [format!("{person}+lists@localhost")];
    mx1.run("postconf", &["-e", "recipient_delimiter=+"]);
    reload(mx1);
    let id = send(mx1, &recipients);
    wait_until_delivered(&[(mx1, vec![id])], LIMIT);

    let home = format!("/home/{person}/maildrop");
    let arrived = on("mx1", &["find", &home, "-path", "*/new/*", "-type", "f", "-user", &person]);
    let arrived: Vec<&str> = arrived.lines().collect();
    assert_eq!(arrived.len(), 1, "{arrived:?}");
    let copy = on("mx1", &["cat", arrived[0]]);
    assert!(copy.starts_with("Return-Path: <lisa@gmail.com>"), "no mbox line on top: {copy}");
    assert!(copy.contains("Subject: Dive!"), "{copy}");
    on("mx1", &["flock", "/srv/maildrop-test-user", "userdel", "--remove", &person]);
}

/// Puts another command into the transport's entry.
fn use_command(postfix: &Postfix, command: &str) {
    let argv = postfix.run("postconf", &["-M", "maildrop/unix"]);
    let entry = argv.split_whitespace().map(|word| match word.split_once('=') {
        Some(("argv", _)) => format!("argv={command}"),
        _ => word.to_owned(),
    });
    let entry: Vec<String> = entry.collect();
    postfix.run("postconf", &["-M", &format!("maildrop/unix={}", entry.join(" "))]);
}

/// Has the configuration read again. The command only asks for it; it is done when the log says so.
fn reload(postfix: &Postfix) {
    let reloads = |log: &str| log.matches("reload -- version").count();
    let before = reloads(&postfix.log());
    postfix.run("postfix", &["reload"]);
    wait_for(postfix, "that it is reloaded", |log| reloads(log) > before);
}

fn send(postfix: &Postfix, recipients: &[String]) -> String {
    let mut smtp = postfix.smtp();
    smtp.give(LISA, recipients, b"From: lisa@gmail.com\r\nSubject: Dive!\r\n\r\nAt nine.\r\n");
    smtp.end()
}

/// The log, once it holds the text this many times.
fn wait_for_log(postfix: &Postfix, text: &str, times: usize) -> String {
    wait_for(postfix, &format!("{text:?} {times} times"), |log| log.matches(text).count() >= times)
}

/// The log, once it is as wanted.
fn wait_for(postfix: &Postfix, what: &str, wanted: impl Fn(&str) -> bool) -> String {
    let began = Instant::now();
    loop {
        let log = postfix.log();
        if wanted(&log) {
            return log;
        }
        assert!(began.elapsed() < LIMIT, "after {LIMIT:?} the log does not say {what}:\n{log}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
