//! The fragments of `postfix/`, loaded by a real Postfix, do what postfix/README.md says of them.

use crate::support::database::Engine;
use crate::support::mail_hosts::{MailHosts, Options};
use crate::support::pages::{Line, Treatment, command_lines, root, treatment};
use crate::support::postfix::{OPT, Postfix, on, wait_until_delivered};
use crate::support::site_fixture::LISA;
use serde_json::Value;
use std::cell::RefCell;
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
    let mut site = MailHosts::set_up(&Options::new(engine, 1));
    site.scene.database.add_address("odd name@mail.axial.net", "odd");
    site.scene.database.add_address("o'brien@mail.axial.net", "obrien");
    let mx1 = &site.hosts[0];
    let map = format!("{map_type}:{}", mx1.etc("maildrop-recipients.cf"));

    for known in
        ["user0@mail.axial.net", "USER0@mail.axial.net", "odd name@mail.axial.net", "o'brien@mail.axial.net", LISA]
    {
        assert_eq!(mx1.run("postmap", &["-q", known, &map]).trim(), "1", "{known}");
    }
    assert!(mx1.try_run("postmap", &["-q", "nobody@mail.axial.net", &map]).is_err());

    // The answer to a sending MTA, at RCPT TO. The table holds the unquoted form, as the command is given it.
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
    let name = &site.scene.database.name;
    let revoke = if engine.is_postgres() {
        format!("REVOKE SELECT ON addresses FROM reader_{}", site.scene.run)
    } else {
        format!("REVOKE SELECT ON {name}.addresses FROM 'reader_{}'@'%'", site.scene.run)
    };
    site.scene.database.execute(&revoke);
    let mut smtp = site.hosts[0].smtp();
    assert_eq!(smtp.say(&format!("MAIL FROM:<{LISA}>")).0, 250);
    let reply = smtp.say("RCPT TO:<nobody-yet@mail.axial.net>");
    assert_eq!(reply.0, 451, "{reply:?}");
}

#[test]
fn an_address_that_postfix_folds_is_found_by_its_map_in_postgresql_and_by_the_program() {
    an_address_that_postfix_folds_is_found(Engine::Postgres17, "pgsql");
}

#[test]
fn an_address_that_postfix_folds_is_found_by_its_map_in_mysql_and_by_the_program() {
    an_address_that_postfix_folds_is_found(Engine::Mysql9, "mysql");
}

#[test]
fn an_address_that_postfix_folds_is_found_by_its_map_in_mariadb_and_by_the_program() {
    an_address_that_postfix_folds_is_found(Engine::Mariadb118, "mysql");
}

/// Each spelling that leads to a row at RCPT TO leads to that row's mailbox, and to no other.
fn an_address_that_postfix_folds_is_found(engine: Engine, map_type: &str) {
    let mut site = MailHosts::set_up(&Options::new(engine, 0));
    let rows = [
        ("νίκοσ", "nikos", &["νίκος", "ΝΊΚΟΣ", "νίκοσ"][..]),
        ("gross", "gross", &["groß", "GROẞ", "Gross"]),
        ("\u{2bc}na", "na", &["ŉa"]),
        ("i\u{307}", "dotted", &["İ"]),
        ("i", "i", &["I"]),
        ("jörg", "joerg", &["JÖRG"]),
    ];
    for (local, name, _) in rows {
        let user = site.scene.user(name);
        site.scene.database.add_address(&format!("{local}@mail.axial.net"), &user);
    }
    let mx1 = &site.hosts[0];
    let map = format!("{map_type}:{}", mx1.etc("maildrop-recipients.cf"));
    // As shipped, pipe(8) folds; without `h` and `u` the program alone does.
    for (round, flags) in ["flags=ORXhu", "flags=ORX"].into_iter().enumerate() {
        let entry = mx1.run("postconf", &["-M", "maildrop/unix"]);
        mx1.run("postconf", &["-M", &format!("maildrop/unix={}", entry.trim().replace("flags=ORXhu", flags))]);
        reload(mx1);
        let mut ids = Vec::new();
        for (spelling, name) in rows.iter().flat_map(|(_, name, spellings)| spellings.iter().map(move |s| (s, name))) {
            let address = format!("{spelling}@mail.axial.net");
            assert_eq!(mx1.run("postmap", &["-q", &address, &map]).trim(), "1", "{address}");
            let mut smtp = mx1.smtp();
            for command in [&format!("MAIL FROM:<{LISA}> BODY=8BITMIME SMTPUTF8"), &format!("RCPT TO:<{address}>")] {
                let reply = smtp.say(command);
                assert_eq!(reply.0, 250, "{command}: {reply:?}");
            }
            assert_eq!(smtp.say("DATA").0, 354);
            smtp.say_more(&format!("From: {LISA}\r\nSubject: to {name}\r\n\r\nAs {spelling}.\r\n"));
            ids.push(smtp.end());
        }
        wait_until_delivered(&[(mx1, ids)], LIMIT);
        for (_, name, spellings) in rows {
            let inbox = site.scene.mailbox(&format!("{name}@"), "INBOX");
            let own = format!("Subject: to {name}\r\n");
            let all_own = inbox.iter().all(|copy| String::from_utf8_lossy(&copy.content).contains(&own));
            assert!(inbox.len() == spellings.len() * (round + 1) && all_own, "{flags}: {name}: {inbox:?}");
        }
    }
    // What looks alike is somebody else, here nobody.
    let mut smtp = mx1.smtp();
    assert_eq!(smtp.say(&format!("MAIL FROM:<{LISA}> SMTPUTF8")).0, 250);
    assert_eq!(smtp.say("RCPT TO:<ı@mail.axial.net>").0, 550);
}

#[test]
fn results_of_authentication_that_a_stranger_wrote_in_our_name_are_taken_out() {
    let site = MailHosts::set_up(&Options::new(Engine::Postgres17, 1));
    let forged = [
        "Authentication-Results: mail.axial.net; dmarc=pass header.from=gmail.com",
        "AUTHENTICATION-RESULTS : Mail.Axial.Net;\r\n\tdmarc=pass header.from=gmail.com",
        "Authentication-Results: (a; comment)\r\n\t\"mail.axial.net\" 1; dmarc=pass header.from=gmail.com",
        "Authentication-Results: \"mail.axial\\.net\"; dmarc=pass header.from=gmail.com",
    ];
    let theirs = "Authentication-Results: mx.example.org; dmarc=pass header.from=gmail.com";
    // What is attached is somebody's message as he got it, and signed by the one who forwards it.
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

    let inbox = site.scene.mailbox(&site.recipients[0], "INBOX");
    let copy = String::from_utf8(inbox[0].content.clone()).unwrap();
    let (header, body) = copy.split_once("\r\n\r\n").unwrap();
    let results: Vec<&str> =
        header.lines().filter(|line| line.to_lowercase().contains("authentication-results")).collect();
    assert_eq!(results, [theirs], "{copy}");
    assert_eq!(body, format!("--x\r\n{attached}--x--\r\n"));
}

/// What this host's Postfix says of its limits, by its own postconf.
#[test]
fn check_finds_a_postfix_that_gives_up_sooner_than_is_reckoned_with() {
    let site = MailHosts::set_up(&Options::new(Engine::Postgres17, 1));
    let mx1 = &site.hosts[0];
    let states = || {
        let script = "MAIL_CONFIG=$1 \"$2\" check --json --config \"$3\" --recipient \"$4\" || [ $? = 69 ]";
        let program = format!("{OPT}/bin/maildrop_command");
        let config = site.scene.seen("config.toml");
        let shown = on("mx1", &["sh", "-c", script, "sh", &mx1.etc(""), &program, &config, &site.recipients[0]]);
        let findings: Vec<Value> = serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{error}: {shown}"));
        ["queue lifetime", "deadline"].map(|what| {
            let found = findings.iter().find(|found| found["what"] == what).unwrap();
            (found["state"].as_str().unwrap().to_owned(), found["fix"].as_str().unwrap_or_default().to_owned())
        })
    };
    // The fragments, and what Postfix does by default.
    assert_eq!(states(), [(); 2].map(|()| ("ok".into(), String::new())));
    mx1.run("postconf", &["-e", "maximal_queue_lifetime=$bounce_queue_lifetime", "bounce_queue_lifetime=3"]);
    mx1.run("postconf", &["-e", "maildrop_time_limit=200"]);
    let [(lifetime, say), (limit, set)] = states();
    assert_eq!((lifetime.as_str(), limit.as_str()), ("bad", "bad"));
    assert!(say.starts_with("say delivery.postfix_queue_lifetime = \"3days\""), "{say}");
    assert!(set.starts_with("set maildrop_time_limit = 1000s in main.cf"), "{set}");
}

#[test]
fn while_commissioning_nothing_bounces_and_then_what_must_does() {
    let site = MailHosts::set_up(&Options::new(Engine::Postgres17, 3));
    let mx1 = &site.hosts[0];
    // In place of the command: it refuses, it dies as a program that panics does, or it never ends.
    let command = site.script(
        "refuses",
        "#!/bin/sh\ncat >/dev/null\ncase \"$*\" in\n*user0@*) echo '5.1.1 nobody here'; exit 67 ;;\n\
         *user1@*) exit 101 ;;\n*) exec sleep 60 ;;\nesac\n",
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
    let site = MailHosts::set_up(&Options::new(Engine::Postgres17, 2));
    let mx1 = &site.hosts[0];
    mx1.run("postconf", &["-X", "maildrop_destination_recipient_limit"]);
    reload(mx1);
    let id = send(mx1, &site.recipients);
    let log = wait_for_log(mx1, "dsn=4.3.5, status=deferred (mail system configuration error)", 2);
    assert!(log.contains("maildrop_destination_recipient_limit = 1"), "the log says what to fix: {log}");
    assert!(site.scene.mailbox(&site.recipients[0], "INBOX").is_empty());

    // Once fixed, the deferred message is delivered.
    mx1.run("postconf", &["-e", "maildrop_destination_recipient_limit=1"]);
    reload(mx1);
    wait_until_delivered(&[(mx1, vec![id])], LIMIT);
    for recipient in &site.recipients {
        assert_eq!(site.scene.mailbox(recipient, "INBOX").len(), 1);
    }
    assert_eq!(site.scene.mailbox(LISA, "Sent").len(), 1);
}

/// It goes through pickup(8) then, which puts a Received line of its own on top; and this one has neither Message-ID nor
/// Date, so that its Received lines are part of its identity.
#[test]
fn a_message_that_is_requeued_after_some_have_got_it_is_the_same_message() {
    let site = MailHosts::set_up(&Options::new(Engine::Postgres17, 2));
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
    // postfix/pickup[4711]: 9E38F1163F8: uid=100 from=<lisa@mail.axial.net> orig_id=C60FB116002
    let line = log.lines().find(|line| line.ends_with(&orig_id)).unwrap();
    let requeued = line.split(": ").nth(1).unwrap();
    wait_until_delivered(&[(mx1, vec![requeued.to_owned()])], LIMIT);

    let inbox = site.scene.mailbox(&site.recipients[1], "INBOX");
    assert_eq!(String::from_utf8_lossy(&inbox[0].content).matches("Received: ").count(), 2);
    assert_eq!(site.scene.mailbox(LISA, "Sent").len(), 1);
}

#[test]
fn one_person_on_one_machine_by_way_of_local() {
    let site = MailHosts::set_up(&Options::new(Engine::Postgres17, 0));
    let mx1 = &site.hosts[0];
    let person = format!("p{}", site.scene.run);
    on("mx1", &["flock", "/srv/maildrop-test-user", "useradd", "--create-home", &person]);
    let fragment = include_str!("../../../postfix/main.cf.local");
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
    assert!(copy.starts_with(&format!("Return-Path: <{LISA}>")), "no mbox line on top: {copy}");
    assert!(copy.contains("Subject: Dive!"), "{copy}");
    on("mx1", &["flock", "/srv/maildrop-test-user", "userdel", "--remove", &person]);
}

/// The command lines of postfix/README.md from step 4 on, as they stand there, on a host that knows nothing of us yet; what
/// the page says of each step; and the way back.
#[test]
fn the_steps_to_go_live_lead_there_and_back() {
    let site = MailHosts::set_up(&Options::new(Engine::Postgres17, 1));
    let mx1 = &site.hosts[0];
    let steps = Steps::on_a_host_without_us(&site, mx1);
    let virtual_transport = || mx1.run("postconf", &["-h", "virtual_transport"]).trim().to_owned();
    let asked_for = |address: &str| {
        let mut smtp = mx1.smtp();
        assert_eq!(smtp.say(&format!("MAIL FROM:<{LISA}>")).0, 250);
        smtp.say(&format!("RCPT TO:<{address}>")).0
    };
    let settled =
        |before: usize| drop(wait_for(mx1, "reloads", |log| log.matches("reload -- version").count() > before));
    let reloads = || mx1.log().matches("reload -- version").count();

    // Step 4: nothing goes another way yet, and nobody is refused for good.
    let before = reloads();
    let outputs = steps.run(9);
    assert_eq!(outputs[3].trim(), "1", "postmap: {outputs:?}");
    settled(before);
    assert_eq!(virtual_transport(), "lmtp:unix:private/dovecot-lmtp");
    assert_eq!((asked_for(&site.recipients[0]), asked_for("nobody@mail.axial.net")), (250, 450));
    let old_way = send(mx1, &site.recipients);
    wait_for(mx1, "the old way is tried", |log| tries(log, &old_way).any(|line| line.contains("relay=none")));

    // Step 5: one address.
    let before = reloads();
    steps.run(1);
    settled(before);
    let first = send(mx1, &site.recipients);
    let delivered = "status=sent (delivered via maildrop service (2.0.0 INBOX appended (uid ";
    wait_for(mx1, "it is delivered", |log| tries(log, &first).any(|line| line.contains(delivered)));

    // Step 6: everybody. What waited for the old way is delivered, too.
    let before = reloads();
    steps.run(1);
    settled(before);
    assert_eq!(virtual_transport(), "maildrop");
    wait_until_delivered(&[(mx1, vec![old_way])], LIMIT);
    assert_eq!(mx1.run("postconf", &["-P", "maildrop/unix/soft_bounce"]).trim(), "maildrop/unix/soft_bounce = yes");

    // Step 7: the end of commissioning.
    let before = reloads();
    steps.run(1);
    settled(before);
    assert_eq!(mx1.run("postconf", &["-P", "maildrop/unix/soft_bounce"]), "");
    assert_eq!((asked_for(&site.recipients[0]), asked_for("nobody@mail.axial.net")), (250, 550));

    // Watching, while a message waits.
    mx1.run("postconf", &["-e", "defer_transports=maildrop"]);
    reload(mx1);
    let waits = send(mx1, &site.recipients);
    wait_for(mx1, "it waits", |log| tries(log, &waits).any(|line| line.contains("status=deferred")));
    let output = steps.run_for(3, &waits);
    assert!(output[0].contains(&waits) && output[1].contains(delivered), "{output:?}");

    // The way back.
    let before = reloads();
    steps.run(1);
    settled(before);
    assert_eq!(virtual_transport(), "lmtp:unix:private/dovecot-lmtp");
    assert_eq!(steps.left.take().len(), 0);
    mx1.run("postsuper", &["-d", "ALL"]);
}

/// The command lines that are still to be run, in the page's order.
struct Steps<'s> {
    postfix: &'s Postfix,
    folder: String,
    address: String,
    left: RefCell<Vec<Line>>,
}

impl<'s> Steps<'s> {
    /// Takes out of the host's settings what the fragments put there, and lays these out to be edited and installed.
    fn on_a_host_without_us(site: &'s MailHosts, postfix: &'s Postfix) -> Self {
        let shipped = |name: &str| std::fs::read_to_string(root().join("postfix").join(name)).unwrap();
        postfix.run("postconf", &["-MX", "maildrop/unix"]);
        let fragment = shipped("main.cf.maildrop");
        for line in fragment.lines().filter(|line| !line.starts_with('#')) {
            if let Some((name, _)) = line.split_once(" =") {
                postfix.run("postconf", &["-X", name]);
            }
        }
        let installed = |name: &str| on("mx1", &["cat", &postfix.etc(name)]);
        let recipients = installed("maildrop-recipients.cf");
        let password = installed("maildrop-recipients.pgpass");
        for name in ["maildrop-recipients.cf", "maildrop-recipients.pgpass", "maildrop-header-checks"] {
            on("mx1", &["rm", &postfix.etc(name)]);
        }
        let command = shipped("master.cf.maildrop").replace("/usr/bin/", &format!("{OPT}/bin/"));
        let command = command.replace("/etc/maildrop_command/config.toml", &site.scene.seen("config.toml"));
        site.directory("postfix");
        for (name, text) in [
            ("main.cf.maildrop", fragment.replace("/etc/postfix/", &postfix.etc(""))),
            ("master.cf.maildrop", command),
            ("header-checks.maildrop", shipped("header-checks.maildrop")),
            ("pgsql-recipients.cf", recipients),
            ("pgsql-recipients.pgpass", password),
        ] {
            site.scene.file(&format!("postfix/{name}"), &text, 0o644);
        }
        let mut lines = command_lines();
        lines.retain(|line| treatment(&line.text) == Some(Treatment::RunUnderPostfix));
        let (folder, address) = (site.scene.seen(""), site.recipients[0].clone());
        Self { postfix, folder, address, left: RefCell::new(lines) }
    }

    /// Runs the next so many; the output of each.
    fn run(&self, count: usize) -> Vec<String> {
        self.run_for(count, "")
    }

    /// The same, for a message in the queue.
    fn run_for(&self, count: usize, queue_id: &str) -> Vec<String> {
        let lines: Vec<Line> = self.left.borrow_mut().drain(..count).collect();
        let here = |text: &str| {
            text.replace("/etc/postfix/", &self.postfix.etc(""))
                .replace("scuba@mail.axial.net", &self.address)
                .replace("/var/log/mail.log", &self.postfix.etc("../log"))
                .replace("QUEUE-ID", queue_id)
        };
        let run = |line: &Line| {
            let script =
                format!("cd {} && export MAIL_CONFIG={} && {}", self.folder, self.postfix.etc(""), here(&line.text));
            on("mx1", &["sh", "-ec", &script])
        };
        lines.iter().map(run).collect()
    }
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
    smtp.give(LISA, recipients, format!("From: {LISA}\r\nSubject: Dive!\r\n\r\nAt nine.\r\n").as_bytes());
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
