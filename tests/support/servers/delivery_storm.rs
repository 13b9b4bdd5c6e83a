//! Many deliveries at once, each tried again until it is done, as Postfix does; meanwhile something happens to the
//! database. Then all copies are counted.

use crate::fixtures::last_crlf_gate::Gate;
use crate::support::database::Connection;
use crate::support::program::{feed, program, wait_until};
use crate::support::run::Report;
use crate::support::site_fixture::{LISA, Scene};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Everybody whom each message is for. Lisa writes it.
const RECIPIENTS: [&str; 2] = ["doug", "scuba"];
/// How many are delivered at a time.
const AT_ONCE: usize = 6;
/// How soon one that was deferred is tried again, as Postfix would, if later.
const BACK_OFF: Duration = Duration::from_secs(3);
/// On a machine that has much else to do; a fail-over takes some seconds, and what is in doubt settles after twenty
/// more.
const IN_ALL: Duration = Duration::from_secs(480);

/// The deliveries.
pub struct Storm<'a> {
    scene: &'a Scene,
    work: Work,
}

/// What those who deliver share.
struct Work {
    /// The configuration of each mail host.
    hosts: Vec<String>,
    messages: Vec<String>,
    done: AtomicUsize,
    deferred: AtomicUsize,
    failed: AtomicBool,
    began: Instant,
}

/// One recipient of one message, and when it is tried.
type Owed = (usize, &'static str, Instant);

impl<'a> Storm<'a> {
    /// So many messages, brought by one mail host with the scene's configuration.
    pub fn of(scene: &'a Scene, messages: usize) -> Self {
        Self::by(scene, messages, vec![scene.path("config.toml")])
    }

    /// The same, each message's recipients divided among these mail hosts.
    pub fn by(scene: &'a Scene, messages: usize, hosts: Vec<String>) -> Self {
        let messages = (0..messages).map(|number| scene.message(&id(number))).collect();
        let (done, deferred, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        Self { scene, work: Work { hosts, messages, done, deferred, failed, began: Instant::now() } }
    }

    /// Delivers all to everybody; `happens` runs beside it.
    pub fn deliver(&self, happens: impl FnOnce()) {
        self.deliver_some(0..self.work.messages.len(), &RECIPIENTS, happens);
    }

    /// Delivers some messages to these.
    pub fn deliver_some(&self, messages: Range<usize>, recipients: &[&'static str], happens: impl FnOnce()) {
        let (work, now, hosts) = (&self.work, Instant::now(), self.work.hosts.len());
        let all = work.done() + messages.len() * recipients.len();
        // Each in the order of these moments.
        let mut queues = vec![VecDeque::new(); hosts];
        for number in messages {
            for (place, &to) in recipients.iter().enumerate() {
                queues[(number + place) % hosts].push_back((number, to, now));
            }
        }
        let queues: Vec<Mutex<VecDeque<Owed>>> = queues.into_iter().map(Mutex::new).collect();
        thread::scope(|scope| {
            for worker in 0..AT_ONCE {
                let (host, queue) = (&work.hosts[worker % hosts], &queues[worker % hosts]);
                scope.spawn(move || {
                    while work.done() < all && !work.failed.load(Ordering::SeqCst) {
                        let next = queue.lock().unwrap().pop_front();
                        let Some(owed) = next else {
                            thread::sleep(Duration::from_millis(20));
                            continue;
                        };
                        let still_owed = work.try_one(host, owed);
                        queue.lock().unwrap().extend(still_owed);
                    }
                });
            }
            happens();
        });
        let (deferred, took) = (work.deferred.load(Ordering::SeqCst), work.began.elapsed());
        eprintln!("{} deliveries, {deferred} times deferred, {took:?} in all", work.done());
    }

    /// Waits until so many more are delivered.
    pub fn wait_for(&self, more: usize) {
        let until = self.work.done() + more;
        let failed = || self.work.failed.load(Ordering::SeqCst);
        wait_until("some are delivered", || self.work.done() >= until || failed());
    }

    /// Closes the gate once so many more are delivered, and waits until some have sent all of their message but its
    /// last CRLF: they are past the last look at their lock, and nothing of it is recorded.
    pub fn stop_some(&self, gate: &Gate, more: usize) {
        self.wait_for(more);
        gate.close();
        // Of those at work each has another message, or waits for the lock of one that has.
        let failed = || self.work.failed.load(Ordering::SeqCst);
        wait_until("some are stopped", || gate.waiting() >= AT_ONCE / RECIPIENTS.len() || failed());
    }

    /// What is missing from the mailboxes, and what is there more than once.
    pub fn counted(&self) -> Report {
        self.scene.wait_for_dovecot();
        let (mut report, ids) = (Report { deliveries: self.work.done(), ..Report::default() }, self.message_ids());
        for (name, mailbox) in places() {
            let there = self.scene.mailbox(name, mailbox);
            let there = there.iter().map(|copy| copy.field("Message-ID")).filter(|id| ids.contains(id));
            report.compare(&format!("{name}/{mailbox}"), ids.iter().cloned(), there);
        }
        report
    }

    /// Each copy is there once, and is in the ledger of the server that this session is with; nothing there is still
    /// under way.
    pub fn each_is_there_once(&self, ledger: &mut Connection) {
        let report = self.counted();
        assert!(report.lost.is_empty() && report.duplicates.is_empty(), "{report:?}");
        for (name, mailbox) in places() {
            assert_eq!(self.recorded(ledger, name, mailbox), self.message_ids(), "{name}/{mailbox}");
        }
        let open = ledger.texts("SELECT message_id FROM attempts WHERE ended_at IS NULL");
        let ids = self.message_ids();
        assert!(!open.iter().any(|id| ids.contains(id)), "{open:?}");
    }

    /// Which copies in this mailbox the ledger has.
    pub fn recorded(&self, ledger: &mut Connection, name: &str, mailbox: &str) -> BTreeSet<String> {
        let recorded = format!(
            "SELECT m.message_id FROM copies c JOIN messages m ON m.id = c.message \
             WHERE c.state = 'delivered' AND c.imap_user = '{}' AND c.mailbox = '{mailbox}'",
            self.scene.user(name)
        );
        let all = self.message_ids();
        ledger.texts(&recorded).into_iter().filter(|id| all.contains(id)).collect()
    }

    fn message_ids(&self) -> BTreeSet<String> {
        (0..self.work.messages.len()).map(|number| self.scene.message_id(&id(number))).collect()
    }
}

impl Work {
    fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }

    /// Tries one; what is still owed then.
    fn try_one(&self, host: &str, (number, to, since): Owed) -> Option<Owed> {
        thread::sleep(since.saturating_duration_since(Instant::now()));
        let to_address = format!("{to}@mail.axial.net");
        let arguments = ["--config", host, "--sender", LISA, "--recipient", &to_address];
        let outcome = feed(program(&arguments), self.messages[number].as_bytes());
        let in_time = self.began.elapsed() < IN_ALL;
        match outcome.exit {
            Some(0) => {
                self.done.fetch_add(1, Ordering::SeqCst);
                None
            }
            Some(75) if in_time => {
                self.deferred.fetch_add(1, Ordering::SeqCst);
                Some((number, to, Instant::now() + BACK_OFF))
            }
            _ => {
                self.failed.store(true, Ordering::SeqCst);
                panic!("{outcome:?}, after {:?}", self.began.elapsed());
            }
        }
    }
}

/// A message's name in the scene.
fn id(number: usize) -> String {
    format!("m{number}")
}

fn places() -> [(&'static str, &'static str); 3] {
    [(RECIPIENTS[0], "INBOX"), (RECIPIENTS[1], "INBOX"), ("lisa", "Sent")]
}

/// Has deliveries end, and what is in doubt settle, soon enough for a storm; they reach the mailbox store through this
/// gate.
pub fn hurry(scene: &mut Scene) -> Gate {
    let gate = Gate::before(scene.settings.imap.clone(), "APPEND");
    scene.configure(|settings| {
        settings.imap = ("127.0.0.1".into(), gate.address.port());
        settings.imap_more = "append_grace = \"21s\"".into();
        settings.more = "[delivery]\ndeadline = \"20s\"\n".into();
    });
    gate
}
