//! Two Postfixes bring mail all the time, by pipe(8) and by LMTP, while the leader of a Patroni cluster ends again and
//! again, in each of four ways. Afterwards every mailbox has every message once, the ledger of the last leader says so,
//! and the queues are empty. For each fail-over there is a line that says how long it took.
//!
//! It takes a quarter of an hour, and an image that nothing else needs, so it runs only when it is asked for:
//! `MAILDROP_TEST_FAIL_OVERS=10 tests/run -- a_long_run_of_fail_overs`.

use crate::failover::choice_of_server::check;
use crate::fixtures::patroni_cluster::{Cluster, End};
use crate::support::database::{Connection, Engine};
use crate::support::mail_hosts::{MailHosts, Options};
use crate::support::postfix::{Postfix, wait_for_retries};
use crate::support::program::wait_for;
use crate::support::run::{Report, note};
use crate::support::service::Service;
use crate::support::site_fixture::LISA;
use crate::support::{cannot_run, env_if_there};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ENGINE: Engine = Engine::Postgres17;

/// Each mail host has two of them: one is delivered to by pipe(8), the other by LMTP.
const RECIPIENTS: usize = 4;

/// How often a message comes in, which is for all of them.
const PACE: Duration = Duration::from_secs(1);

/// How many copies the ledger gets between two fail-overs, beside what was deferred.
const BETWEEN: i64 = 10;

/// How long a former leader that still answers stays so, beside the new one.
const BESIDE: Duration = Duration::from_secs(30);

/// What was deferred is tried again until an attempt in doubt is settled, which takes a minute here.
const LIMIT: Duration = Duration::from_secs(600);

/// As docs/failover.md has it for sites whose mail may not wait: an attempt in doubt is settled after 51 seconds, and not after seven
/// minutes.
const LIMITS: (&str, &str) = ("append_grace = \"51s\"\n", "[delivery]\ndeadline = \"50s\"\n");

#[test]
fn leaders_of_patroni_end_in_four_ways_while_two_postfixes_bring_mail() {
    let Some(times) = env_if_there("MAILDROP_TEST_FAIL_OVERS") else { cannot_run("MAILDROP_TEST_FAIL_OVERS") };
    let times: usize = times.parse().expect("a number");
    let cluster = Cluster::start();
    let mut leader = cluster.wait_until_whole();
    let (mut site, service) = site(&cluster, leader);
    let found = check(&site.scene);
    assert!(found.contains("a commit waits for node"), "{found}");

    let (over, brought) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let mut events = Vec::new();
    let (hosts, recipients, run) = (&site.hosts, &site.recipients, &site.scene.run);
    std::thread::scope(|scope| {
        let storm = scope.spawn(|| bring(hosts, recipients, run, &brought, &over));
        let at_the_end = SetAtTheEnd(&over);
        for how in End::ALL.into_iter().cycle().take(times) {
            wait_for_copies(&cluster, leader, &site);
            leader = cluster.wait_until_whole();
            assert!(!storm.is_finished(), "no mail comes any more");
            let event = fail_over(&cluster, leader, how, &site);
            println!("{} {how:?}: {:?}\n{}", events.len() + 1, event.took(), cluster.list(&[]));
            events.push(event);
            leader = cluster.wait_until_whole();
            let before = Instant::now() - PACE * 3;
            let all = brought.lock().unwrap().clone();
            let old: Vec<Brought> = all.into_iter().filter(|one| one.at < before).collect();
            let queue_ids = old_by_host(&site, &old);
            wait_for("what was deferred is delivered", LIMIT, || {
                std::thread::sleep(Duration::from_secs(1));
                queue_ids.iter().all(|(postfix, ids)| postfix.unfinished(ids).is_empty())
            });
        }
        drop(at_the_end);
        storm.join().unwrap();
    });
    let brought = brought.into_inner().unwrap();
    wait_for_retries(&old_by_host(&site, &brought), LIMIT);
    leader = cluster.wait_until_whole();
    service.end();
    site.scene.wait_for_dovecot();
    site.scene.database.is_now_at(cluster.address(leader));

    let logs = site.hosts.each_ref().map(Postfix::log);
    note(&table(&events, &brought, &logs));
    let logs = logs.join("\n");
    let message_ids: Vec<String> = brought.iter().step_by(site.hosts.len()).map(|one| one.message_id.clone()).collect();
    let mut report = Report {
        deliveries: message_ids.len() * RECIPIENTS,
        tries: logs.matches(", status=").count(),
        faults: events.len(),
        deferred: logs.matches("status=deferred").count(),
        adopted: logs.matches(" adopted").count(),
        taken_out: site.scene.log().matches("removed a duplicate copy").count(),
        ..Report::default()
    };
    site.compare(&mut report, &message_ids);
    report.tell(ENGINE, "fail-overs of Patroni under Postfix");
    for bad in ["status=bounced", "SOFTBOUNCE", "panic", "fatal:"] {
        assert!(!logs.contains(bad), "{bad} in the log:\n{logs}");
    }
    let (messages, copies) = (message_ids.len() as i64, (message_ids.len() * (RECIPIENTS + 1)) as i64);
    let database = &mut site.scene.database;
    assert_eq!(database.count("SELECT count(*) FROM messages"), messages);
    assert_eq!(database.count("SELECT count(*) FROM copies"), copies);
    assert_eq!(database.count(DELIVERED), copies);
    assert_eq!(database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}

const DELIVERED: &str = "SELECT count(*) FROM copies WHERE state = 'delivered'";

/// A site whose database is the cluster's, and the service that both mail hosts hand half of the mail to.
fn site(cluster: &Cluster, leader: usize) -> (MailHosts, Service) {
    let options = Options::new(ENGINE, RECIPIENTS);
    let mut site = MailHosts::set_up_with_database_at(&options, cluster.address(leader));
    site.scene.configure(|settings| {
        let hosts = cluster.addresses();
        settings.database_more =
            format!("hosts = {hosts:?}\nfailover_timeout = \"25s\"\ndurability = \"replicated\"\n");
        settings.imap_more = LIMITS.0.into();
        settings.more = LIMITS.1.into();
    });
    let service = Service::start_with(&mut site.scene, "workers = 4\n", &[]);
    let lmtp = format!("maildrop-lmtp:unix:{}", site.scene.seen("lmtp"));
    // ServerKind Postfix takes mail for is not what is tried here.
    let known: Vec<String> = site.recipients.iter().map(|address| format!("{{{address}=1}}")).collect();
    let by_lmtp: Vec<String> =
        site.recipients.iter().skip(1).step_by(2).map(|address| format!("{{{address}={lmtp}}}")).collect();
    for host in &site.hosts {
        for setting in [
            format!("virtual_mailbox_maps=inline:{{{}}}", known.join(", ")),
            format!("transport_maps=inline:{{{}}}", by_lmtp.join(", ")),
            "minimal_backoff_time=3s".into(),
            "maximal_backoff_time=3s".into(),
        ] {
            host.run("postconf", &["-e", &setting]);
        }
        host.append_to_master_cf(include_str!("../../../postfix/master.cf.maildropd"));
        host.append_to_main_cf(include_str!("../../../postfix/main.cf.maildropd"));
    }
    (site, service)
}

/// A message that one Postfix has taken.
#[derive(Clone)]
struct Brought {
    host: usize,
    queue_id: String,
    message_id: String,
    at: Instant,
}

/// Brings a message for everybody to both mail hosts, half of them to each, again and again.
fn bring(hosts: &[Postfix], recipients: &[String], run: &str, brought: &Mutex<Vec<Brought>>, over: &AtomicBool) {
    for number in 0.. {
        if over.load(Ordering::SeqCst) {
            break;
        }
        let message_id = format!("<{number}.{run}@mail.google.com>");
        let content = format!(
            "From: Lisa <{LISA}>\r\nDate: Fri, 20 Nov 2026 10:00:00 +0000\r\nMessage-ID: {message_id}\r\n\
             Subject: {number}\r\n\r\nthe last line\r\n"
        );
        for (host, recipients) in recipients.chunks(RECIPIENTS / 2).enumerate() {
            let mut smtp = hosts[host].smtp();
            smtp.give(LISA, recipients, content.as_bytes());
            let (queue_id, at) = (smtp.end(), Instant::now());
            brought.lock().unwrap().push(Brought { host, queue_id, message_id: message_id.clone(), at });
        }
        std::thread::sleep(PACE);
    }
}

struct SetAtTheEnd<'a>(&'a AtomicBool);

impl Drop for SetAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn old_by_host<'a>(site: &'a MailHosts, brought: &[Brought]) -> Vec<(&'a Postfix, Vec<String>)> {
    let of = |host: usize| brought.iter().filter(move |one| one.host == host).map(|one| one.queue_id.clone()).collect();
    site.hosts.iter().enumerate().map(|(host, postfix)| (postfix, of(host))).collect()
}

/// One fail-over.
struct Event {
    how: End,
    /// The leader was ended.
    began: Instant,
    /// Another one takes writes.
    answers: Instant,
    /// The first copy that the new one has recorded.
    delivers: Instant,
}

impl Event {
    fn took(&self) -> [Duration; 2] {
        [self.answers - self.began, self.delivers - self.began]
    }
}

fn fail_over(cluster: &Cluster, leader: usize, how: End, site: &MailHosts) -> Event {
    let began = Instant::now();
    cluster.end(leader, how);
    let next = cluster.next_leader(leader);
    let answers = Instant::now();
    let before = delivered(cluster, next, site);
    let mut is_repaired = false;
    // By the way: the former one joins when the new one has delivered something, or after a while.
    wait_for("something is delivered", LIMIT, || {
        let now = delivered(cluster, next, site);
        if !is_repaired && (now > before && how != End::Hung || answers.elapsed() > BESIDE) {
            cluster.repair(leader, how);
            is_repaired = true;
        }
        now > before
    });
    let delivers = Instant::now();
    if !is_repaired {
        std::thread::sleep(BESIDE.saturating_sub(answers.elapsed()));
        cluster.repair(leader, how);
    }
    Event { how, began, answers, delivers }
}

fn wait_for_copies(cluster: &Cluster, leader: usize, site: &MailHosts) {
    let before = delivered(cluster, leader, site);
    wait_for("more is delivered", LIMIT, || delivered(cluster, leader, site) >= before + BETWEEN);
}

/// How many copies the ledger of this node has; none, where it does not answer just now.
fn delivered(cluster: &Cluster, node: usize, site: &MailHosts) -> i64 {
    // Who asks all the time takes the processors from the others.
    std::thread::sleep(Duration::from_millis(200));
    let session = Connection::try_open_at(ENGINE, &cluster.address(node), Some(&site.scene.database.name));
    let Ok(Connection::Postgres(mut client)) = session else { return 0 };
    client.query_one(DELIVERED, &[]).map_or(0, |row| row.get(0))
}

/// A recipient of a message, and what Postfix has logged of him: how old the message was when he was first deferred, and
/// why; and when it was delivered.
#[derive(Default)]
struct Totals {
    deferred: Option<(Duration, String)>,
    /// He had to wait for `imap.append_grace`.
    in_doubt: bool,
    sent: Option<Duration>,
}

/// A line for each fail-over.
fn table(events: &[Event], brought: &[Brought], logs: &[String; 2]) -> String {
    let mut collected: BTreeMap<(usize, &str, &str), Totals> = BTreeMap::new();
    for (host, log) in logs.iter().enumerate() {
        for line in log.lines() {
            let Some((queue_id, to, age, status)) = parsed(line) else { continue };
            let shown = collected.entry((host, queue_id, to)).or_default();
            if status.starts_with("sent") {
                shown.sent = Some(age);
            } else {
                shown.in_doubt |= status.contains(CUT_SHORT);
                shown.deferred.get_or_insert_with(|| (age, reason(status)));
            }
        }
    }
    let arrived: BTreeMap<(usize, &str), Instant> =
        brought.iter().map(|one| ((one.host, one.queue_id.as_str()), one.at)).collect();
    let mut text = String::from(
        "| the leader was | another takes writes, s | first delivery, s | deferred | the last of them, s \
         | in doubt | the last of them, s |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, event) in events.iter().enumerate() {
        let next = events.get(number + 1).map(|next| next.began);
        // Of those who had nothing to wait for, and of those in doubt: how many, and how long after the new leader took
        // writes.
        let (mut counts, mut longest) = ([0, 0], [Duration::ZERO; 2]);
        for ((host, queue_id, _), collected) in &collected {
            let (Some(at), Some((age, why)), Some(sent)) =
                (arrived.get(&(*host, *queue_id)), &collected.deferred, collected.sent)
            else {
                continue;
            };
            let deferred = *at + *age;
            if deferred < event.began || next.is_some_and(|next| deferred >= next) {
                continue;
            }
            let kind = usize::from(collected.in_doubt);
            counts[kind] += 1;
            *reasons.entry(why).or_default() += 1;
            longest[kind] = longest[kind].max((*at + sent).saturating_duration_since(event.answers));
        }
        let [answers, delivers] = event.took().map(|took| took.as_secs_f64());
        let [prompt, settled] = longest.map(|longest| longest.as_secs_f64());
        writeln!(
            text,
            "| {:?} | {answers:.1} | {delivers:.1} | {} | {prompt:.1} | {} | {settled:.1} |",
            event.how, counts[0], counts[1]
        )
        .unwrap();
    }
    for (why, times) in reasons {
        writeln!(text, "{times} times deferred: {why}").unwrap();
    }
    text
}

/// Of what an attempt that never ended has left.
const CUT_SHORT: &str = "an earlier delivery of this message was cut short";

/// What the program has said, of what Postfix has logged.
fn reason(status: &str) -> String {
    let (_, reason) = status.split_once('(').unwrap_or(("", status));
    let (_, reason) = reason.split_once("said: 451 ").unwrap_or(("", reason));
    let (reason, _) = reason.split_once(" (in reply").unwrap_or((reason, ""));
    reason
        .trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ' ')
        .trim_end_matches([' ', ')'])
        .to_owned()
}

/// Queue id, recipient, the age of the message in seconds, and what became of it.
fn parsed(line: &str) -> Option<(&str, &str, Duration, &str)> {
    let (_, rest) = line.split_once("]: ")?;
    let (queue_id, rest) = rest.split_once(": to=<")?;
    let (to, rest) = rest.split_once('>')?;
    let (_, rest) = rest.split_once(" delay=")?;
    let (age, rest) = rest.split_once(',')?;
    let (_, status) = rest.split_once(" status=")?;
    Some((queue_id, to, Duration::from_secs_f64(age.parse().ok()?), status))
}
