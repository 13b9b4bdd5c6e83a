//! A notifier on a database that only records its calls.

use super::super::leased_subscription::samples::{due, leased};
use super::super::send::ReceiverResponse;
use super::*;
use crate::config::Config;
use crate::database::DatabaseError;
use crate::ledger::notifications::{Due, Notifications, Published, Settlement, Wake};
use crate::site::embedded::Embedded;
use std::sync::mpsc;

/// A database whose steps take so long that a receiver answers meanwhile.
struct Slow {
    answers: mpsc::Sender<Sent>,
    /// The subscriptions whose receivers answer during the next steps, in turn.
    next: Vec<u128>,
    /// The calls so far.
    steps: Vec<String>,
    /// The wake argument of each publication.
    woken: Vec<Wake>,
    /// Whether another notifier publishes.
    busy: bool,
}

impl Slow {
    fn new(answers: mpsc::Sender<Sent>) -> Self {
        Self { answers, next: Vec::new(), steps: Vec::new(), woken: Vec::new(), busy: false }
    }

    fn step(&mut self, step: &str) {
        self.steps.push(step.to_owned());
        if !self.next.is_empty() {
            self.answers.send(taken(self.next.remove(0))).unwrap();
        }
    }
}

/// The receiver of this subscription has accepted its first event.
fn taken(subscription: u128) -> Sent {
    let answer = Ok(ReceiverResponse { status: 204, retry_after: None, body: Vec::new(), is_ours: false });
    let subscription = Uuid::from_u128(subscription);
    Sent { subscription, position: Some(1), started_at: 0, took: Duration::ZERO, answer }
}

impl Notifications for Slow {
    fn publish(&mut self, _: &LockName, wake: Wake) -> Result<Published, DatabaseError> {
        self.step("publish");
        self.woken.push(wake);
        Ok(if self.busy { Published::Busy } else { Published::Events { count: 1, last: 1 } })
    }

    fn lease(&mut self, _: Uuid, _: Duration, _: usize, _: &[&str], _: usize) -> Result<Vec<Leased>, DatabaseError> {
        self.step("lease");
        Ok(Vec::new())
    }

    fn has_unpublished(&mut self, _: i64) -> Result<bool, DatabaseError> {
        Ok(false)
    }

    fn lease_longer(&mut self, _: Uuid, _: Duration, _: &[Uuid]) -> Result<Vec<Uuid>, DatabaseError> {
        Ok(Vec::new())
    }

    fn due(&mut self, leased: &Leased, _: &[i64], _: usize) -> Result<Vec<Due>, DatabaseError> {
        self.step(&format!("read {}", leased.subscription.as_u128()));
        Ok(Vec::new())
    }

    fn settle(&mut self, settlements: &[Settlement<'_>]) -> Result<Vec<Uuid>, DatabaseError> {
        let each = settlements.iter().map(|one| (one.subscription.as_u128(), one.attempts.len()));
        let each = each.map(|(id, attempts)| format!(" {id}:{attempts}")).collect::<String>();
        self.step(&format!("settle{each}"));
        Ok(Vec::new())
    }
}

pub(super) fn settings(key: &std::path::Path) -> NotifierSettings {
    std::fs::write(key, [7; 32]).unwrap();
    let text = format!(
        "[database]\nengine = \"postgresql\"\nhost = \"db\"\ndatabase = \"m\"\nuser = \"m\"\npassword_file = \"/x\"\n\
         [imap]\nhost = \"mail\"\nuser = \"s\"\npassword_file = \"/x\"\n[notifications]\nsecret_key_file = {key:?}\n"
    );
    NotifierSettings::of(&Config::parse(key, &text).unwrap()).unwrap()
}

/// `lock exec notify/publisher` takes the same lock, and no mail to this site can take it.
#[test]
fn no_message_has_the_lock_of_publishing() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::embedded(Embedded::new(folder.path().to_owned()));
    let (sender, _answers, _jobs) = Sender::nowhere();
    let notifier = Notifier::new(&site, settings(&folder.path().join("key")), sender);
    assert_eq!(notifier.lock, lock_of_program(site.namespace(), "notify/publisher"));
    for id in ["<notify/publisher>", "notify/publisher", " <notify/publisher> (a comment)", "< exec notify/publisher>"]
    {
        assert_ne!(notifier.lock, site.lock_of_message_id(id.as_bytes()), "{id}");
    }
}

/// However long a step takes, receivers answer meanwhile: while events are published, subscriptions are leased, and notifications
/// of another subscription are read.
#[test]
fn what_was_answered_is_written_down_before_each_step_and_not_after_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::embedded(Embedded::new(folder.path().to_owned()));
    let (sender, answers, _jobs) = Sender::nowhere();
    let mut notifier = Notifier::new(&site, settings(&folder.path().join("key")), sender);
    let long_ago = Instant::now().checked_sub(SETTLED_EACH).unwrap();
    for id in 1..=4 {
        let subscription = Uuid::from_u128(id);
        // Two requests are in flight, and one more may be sent.
        let mut lease = ActiveLease::new(Leased { subscription, ..leased(false, 0) }, 3, Instant::now());
        lease.waiting.extend((1..=2).map(due));
        while lease.next().is_some() {}
        // The last settlement was long ago; only that of the first subscription was a moment ago.
        if id > 1 {
            lease.settled_at = long_ago;
        }
        notifier.active_leases.insert(subscription, lease);
    }
    answers.send(taken(1)).unwrap();
    // No receiver answers during a settlement.
    let mut database = Slow { next: vec![0, 2, 0, 3, 0, 4], ..Slow::new(answers) };
    notifier.poll(&mut database).unwrap();
    let steps: Vec<&str> = database.steps.iter().map(String::as_str).collect();
    let wanted = [
        "settle 1:1",
        "publish",
        "settle 2:1",
        "lease",
        "settle 3:1",
        "read 1",
        "settle 4:1",
        "read 2",
        "read 3",
        "read 4",
    ];
    assert_eq!(steps, wanted);
}

/// A check of all subscriptions does not count as done while another notifier was publishing.
#[test]
fn all_subscriptions_are_looked_at_first_and_after_ten_minutes_and_those_that_were_changed_after_five_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::embedded(Embedded::new(folder.path().to_owned()));
    let (sender, answers, _jobs) = Sender::nowhere();
    let mut notifier = Notifier::new(&site, settings(&folder.path().join("key")), sender);
    let mut database = Slow { busy: true, ..Slow::new(answers) };
    let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
    notifier.poll(&mut database).unwrap();
    database.busy = false;
    notifier.woken_at = Some(ago(5));
    notifier.poll(&mut database).unwrap();
    // Within five seconds nothing is published, unless there are unpublished events.
    notifier.woken_at = Some(Instant::now() + Duration::from_hours(1));
    notifier.poll(&mut database).unwrap();
    notifier.woken_at = Some(ago(5));
    notifier.poll(&mut database).unwrap();
    (notifier.woken_at, notifier.all_woken_at) = (Some(ago(5)), Some(ago(600)));
    notifier.poll(&mut database).unwrap();
    assert_eq!(database.woken, [Wake::All, Wake::All, Wake::Changed, Wake::All]);
}
