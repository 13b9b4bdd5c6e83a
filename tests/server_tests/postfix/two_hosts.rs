//! The test that this program exists for: one message from Lisa to many recipients arrives on two mail hosts at the same
//! instant, half of the recipients on each, as when the sender's MTA splits them over two MX hosts. A Postfix on each
//! host starts a process per recipient; all of them owe Lisa's Sent mailbox the same copy.
//!
//! Whatever the races, afterwards: every INBOX holds the message once, Lisa's Sent holds it once, the ledger says the
//! same, and both queues are empty.
//!
//! `MAILDROP_TEST_ROUNDS=20` repeats everything that many times more often.

use crate::support::database::Engine;
use crate::support::env_if_there;
use crate::support::imap::InMailbox;
use crate::support::mail_hosts::{MailHosts, Options};
use crate::support::postfix::{Postfix, wait_until_delivered};
use crate::support::site_fixture::LISA;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);

/// The shipped `--lock-wait`.
const SHIPPED_WAIT: Duration = Duration::from_secs(30);

#[test]
fn postgresql_with_the_shipped_wait() {
    everybody_has_one_copy(Engine::Postgres17, None);
}

#[test]
fn postgresql_without_waiting() {
    everybody_has_one_copy(Engine::Postgres17, Some("0s"));
}

#[test]
fn mysql_with_the_shipped_wait() {
    everybody_has_one_copy(Engine::Mysql9, None);
}

#[test]
fn mysql_without_waiting() {
    everybody_has_one_copy(Engine::Mysql9, Some("0s"));
}

#[test]
fn mariadb_with_the_shipped_wait() {
    everybody_has_one_copy(Engine::Mariadb118, None);
}

#[test]
fn mariadb_without_waiting() {
    everybody_has_one_copy(Engine::Mariadb118, Some("0s"));
}

/// The sender's MTA gave everything to one host, missed the reply, and gives it all to the other.
#[test]
fn a_message_given_to_both_hosts_for_everybody() {
    let mut site = MailHosts::set_up(&Options::new(Engine::Postgres17, 7));
    let mut messages = Vec::new();
    for round in 0..3 * times() {
        let message = message(&site, round, 7);
        let everybody = &site.recipients[..7];
        let ids = inject_at_once(&site.hosts, [everybody, everybody], &message.content);
        wait(&site, ids);
        messages.push(message);
    }
    check(&mut site, &messages);
}

/// The negative control: the same program, built to take no lock. If this scenario cannot tell the two apart, it proves
/// nothing.
///
/// To one recipient at each host: of more, a late delivery sees that the attempts before have not ended, and takes out
/// the duplicate. The message is large, so that the uploads overlap although the two hosts do not begin in the
/// very same moment.
#[test]
fn without_the_lock_lisa_has_it_twice() {
    let options = Options { command: "maildrop_command-without-lock", ..Options::new(Engine::Postgres17, 2) };
    let site = MailHosts::set_up(&options);
    let (here, there) = site.recipients.split_at(1);
    for round in 0..60 {
        let mut message = message(&site, round, 2);
        message.content.extend(b"Many lines like this one are a large message.\r\n".repeat(10_000));
        let ids = inject_at_once(&site.hosts, [here, there], &message.content);
        wait(&site, ids);
        if of(&site.scene.mailbox(LISA, "Sent"), &message).len() > 1 {
            println!("in round {round}");
            return;
        }
    }
    panic!("in 60 rounds without the lock, Lisa never had a message twice: this test cannot see the lock at work");
}

fn everybody_has_one_copy(engine: Engine, lock_wait: Option<&'static str>) {
    let mut site = MailHosts::set_up(&Options { lock_wait, ..Options::new(engine, 50) });
    let (mut messages, mut longest) = (Vec::new(), Duration::ZERO);
    let mut send = |recipients: usize, round: usize| {
        let message = message(&site, round, recipients);
        let (here, there) = site.recipients[..recipients].split_at(recipients / 2);
        let began = Instant::now();
        let ids = inject_at_once(&site.hosts, [here, there], &message.content);
        wait(&site, ids);
        longest = longest.max(began.elapsed());
        messages.push(message);
    };
    for (recipients, rounds) in [(2, 4), (7, 3), (50, 1)] {
        for round in 0..rounds * times() {
            send(recipients, round);
        }
    }
    let deferred =
        || site.hosts.each_ref().map(|host| host.log().matches("status=deferred").count()).iter().sum::<usize>();
    if lock_wait.is_some() {
        // Who meets whom is a matter of luck.
        for round in (2 * times()..).take_while(|round| deferred() == 0 && *round < 2 * times() + 20) {
            send(50, round);
        }
    }
    let deferred = deferred();
    println!("{deferred} tries were deferred; the longest round took {longest:?}");
    check(&mut site, &messages);
    if lock_wait.is_some() {
        assert!(deferred > 0, "nobody ever met a lock that was held: these rounds prove nothing");
    } else {
        // (On a machine where a round takes longer than that wait, somebody may have waited in vain.)
        let in_vain = longest >= SHIPPED_WAIT;
        assert!(deferred == 0 || in_vain, "the shipped wait is there so that nobody waits for the queue's next run");
    }
}

/// What was sent, and to how many of the site's recipients.
struct Sent {
    message_id: String,
    content: Vec<u8>,
    recipients: usize,
}

fn message(site: &MailHosts, round: usize, recipients: usize) -> Sent {
    let message_id = format!("<{round}-{recipients}-{}@mail.google.com>", site.scene.run);
    let to = site.recipients[..recipients].join(",\r\n\t");
    let content = format!(
        "From: Lisa <{LISA}>\r\nTo: {to}\r\nSubject: The {recipients} of us, and again {round}\r\n\
         Date: Fri, 20 Nov 2026 10:00:00 +0000\r\nMessage-ID: {message_id}\r\nMIME-Version: 1.0\r\n\
         Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n\
         From here on it is the body.\r\n.\r\nA line that is a dot stands above; Größe, naïveté, 信.\r\n\r\n-- \r\nLisa\r\n"
    );
    Sent { message_id, content: content.into_bytes(), recipients }
}

/// Gives the message to both hosts, the closing dots in the same instant; each host's queue id.
fn inject_at_once(hosts: &[Postfix; 2], recipients: [&[String]; 2], content: &[u8]) -> [String; 2] {
    let together = Barrier::new(2);
    let inject = |host: &Postfix, recipients: &[String]| {
        let mut smtp = host.smtp();
        smtp.give(LISA, recipients, content);
        together.wait();
        smtp.end()
    };
    std::thread::scope(|scope| {
        let there = scope.spawn(|| inject(&hosts[1], recipients[1]));
        [inject(&hosts[0], recipients[0]), there.join().unwrap()]
    })
}

fn wait(site: &MailHosts, [here, there]: [String; 2]) {
    wait_until_delivered(&[(&site.hosts[0], vec![here]), (&site.hosts[1], vec![there])], LIMIT);
}

fn check(site: &mut MailHosts, messages: &[Sent]) {
    for (index, recipient) in site.recipients.iter().enumerate() {
        let inbox = site.scene.mailbox(recipient, "INBOX");
        let expected: Vec<&Sent> = messages.iter().filter(|message| index < message.recipients).collect();
        for message in &expected {
            let copies = of(&inbox, message);
            assert_eq!(copies.len(), 1, "{recipient} has {} times", message.message_id);
            assert!(copies[0].content.ends_with(&message.content), "{recipient}: not as it came");
            assert_eq!(copies[0].field("X-Original-To"), *recipient, "the lines of its own recipient");
            assert!(!copies[0].flags.contains(&"\\Seen".to_owned()), "nobody has read it yet");
        }
        assert_eq!(inbox.len(), expected.len(), "{recipient} has something else as well");
    }

    let sent = site.scene.mailbox(LISA, "Sent");
    for message in messages {
        let copies = of(&sent, message);
        assert_eq!(copies.len(), 1, "Lisa has {} times", message.message_id);
        assert!(copies[0].content.ends_with(&message.content), "Lisa's copy is not as it came");
        for line in ["Return-Path", "X-Original-To", "Delivered-To"] {
            assert_eq!(copies[0].field(line), "", "Lisa's copy shows what Postfix wrote for one recipient");
        }
        assert!(copies[0].flags.contains(&"\\Seen".to_owned()), "Lisa knows what she wrote");
    }
    assert_eq!(sent.len(), messages.len(), "Lisa has something else as well");

    let copies: usize = messages.iter().map(|message| message.recipients + 1).sum();
    let database = &mut site.scene.database;
    assert_eq!(database.count("SELECT count(*) FROM messages"), messages.len() as i64);
    assert_eq!(database.count("SELECT count(*) FROM copies"), copies as i64);
    assert_eq!(database.count("SELECT count(*) FROM copies WHERE state = 'delivered'"), copies as i64);
    assert_eq!(
        database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"),
        0,
        "an attempt that never ended"
    );

    for host in &site.hosts {
        let log = host.log();
        for bad in ["status=bounced", "status=SOFTBOUNCE", "panic", "fatal:"] {
            assert!(!log.contains(bad), "{bad} in the log:\n{log}");
        }
    }
}

/// The copies of a message in a mailbox.
fn of<'a>(mailbox: &'a [InMailbox], message: &Sent) -> Vec<&'a InMailbox> {
    mailbox.iter().filter(|copy| copy.field("Message-ID") == message.message_id).collect()
}

fn times() -> usize {
    env_if_there("MAILDROP_TEST_ROUNDS").map_or(1, |times| times.parse().expect("MAILDROP_TEST_ROUNDS is a number"))
}
