//! `maildropd --role runner`: what is in the file queue reaches the broker, and is settled by what that says; the broker is played.

use crate::broker::{Broker, Client};
use crate::program::wait_until;
use crate::queue_of_tests::{Counts, QueueOfTests};
use maildrop_command::delivery::{StatusDetail, Verdict};
use maildrop_command::lock::LockName;
use maildrop_command::protocol::Request;
use maildrop_command::queue::{Entry, Envelope, Queue, Recipient, State};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

const MESSAGE: &[u8] = b"From: lisa@gmail.com\nMessage-ID: <1@x>\n\nHello\0\xff\r\n\n";

struct Scene {
    folder: tempfile::TempDir,
    queue: Queue,
}

/// A runner. Dropped, it is killed.
struct Runner(Child);

impl Scene {
    fn new() -> Self {
        Self::with("")
    }

    /// `more` is what else the configuration says, from `[service]` on.
    fn with(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        // A runner needs neither password nor server.
        let text = format!(
            "[database]\nfailover_timeout = \"0s\"\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\nport = 1\ndatabase = \"x\"\nuser = \"x\"\n\
             [imap]\nhost = \"127.0.0.1\"\nuser = \"x\"\npassword_file = \"/nonexistent\"\n\
             [log]\nto = \"file\"\nfile = {:?}\n[service]\nstate_directory = {:?}\nruntime_directory = {:?}\n{more}",
            path("log"),
            path("state"),
            path("run"),
        );
        std::fs::write(path("config.toml"), text).unwrap();
        std::fs::create_dir(path("run")).unwrap();
        let queue = Queue::open(&path("state/queue")).unwrap();
        Self { folder, queue }
    }

    fn broker(&self) -> Broker {
        Broker::at(&self.folder.path().join("run"))
    }

    fn runner(&self) -> Runner {
        self.runner_of(1)
    }

    fn runner_of(&self, number: u32) -> Runner {
        let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        command.arg("--config").arg(self.folder.path().join("config.toml")).arg("--role=runner");
        command.args(["--number", &number.to_string()]);
        Runner(command.env_clear().stdin(Stdio::null()).spawn().unwrap())
    }

    /// Puts a message into the queue, which came so long ago.
    fn enqueue(&self, lock: &str, recipients: &[&str], ago: u64) -> String {
        let recipient = |address: &&str| Recipient { address: (*address).into(), original: None };
        let mail = Envelope { recipients: recipients.iter().map(recipient).collect(), ..mail() };
        self.put(lock, mail, ago)
    }

    fn put(&self, lock: &str, mail: Envelope, ago: u64) -> String {
        let (lock, at) = (LockName::new("maildrop", lock.as_bytes()), SystemTime::now() - Duration::from_secs(ago));
        self.queue.enqueue(&lock, mail, MESSAGE, at).unwrap().id()
    }

    /// Waits until the queue is so.
    #[track_caller]
    fn until(&self, counts: Counts) {
        wait_until(&format!("{counts:?}"), || self.queue.counts().unwrap() == counts);
    }

    fn entries(&self, state: State) -> Vec<Entry> {
        self.queue.list().unwrap().into_iter().filter(|entry| entry.state == state).collect()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Runner {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// It ends of itself, and well.
    #[track_caller]
    fn ends(mut self) {
        wait_until("the runner ends", || self.0.try_wait().unwrap().is_some());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn mail() -> Envelope {
    Envelope {
        sender: "lisa@gmail.com".into(),
        recipients: vec![Recipient { address: "doug@x".into(), original: None }],
        injected_by: "a test".into(),
        ..Envelope::default()
    }
}

fn queue_id(request: &Request) -> &str {
    request.queue_id.as_deref().unwrap()
}

fn deferred() -> Verdict {
    Verdict::deferred(StatusDetail::SYSTEM, "the database cannot be reached")
}

fn delivered() -> Verdict {
    Verdict::delivered("INBOX appended (uid 17)")
}

#[test]
fn what_is_delivered_is_removed_the_oldest_first_and_the_broker_learns_all_of_it() {
    let scene = Scene::new();
    let original = Some("Scuba@axial.net".to_owned());
    let recipients =
        vec![Recipient { address: "doug@x".into(), original: None }, Recipient { address: "scuba@x".into(), original }];
    let second = scene.put("b", Envelope { may_owe_sent: true, ..mail() }, 100);
    let first = scene.put("a", Envelope { recipients, ..mail() }, 200);
    let broker = scene.broker();
    let _runner = scene.runner();

    let mut client = broker.accept();
    let (request, message) = client.deliver();
    assert_eq!((queue_id(&request), &message[..]), (&*first, MESSAGE));
    let named: Vec<_> = request.recipients.iter().map(|to| (&*to.address, to.original.as_deref())).collect();
    assert_eq!(named, [("doug@x", None), ("scuba@x", Some("Scuba@axial.net"))]);
    assert_eq!(request.sender, "lisa@gmail.com");
    // It owes no Sent copy, and vouches for nobody.
    assert_eq!((request.no_sent, request.sasl_username.as_deref()), (true, None));
    assert!(request.time_left_ms > 0 && request.time_left_ms <= 15_000);
    // Nothing is settled before its answer.
    assert_eq!(scene.queue.counts().unwrap(), Counts { new: 1, work: 1, ..Counts::default() });
    client.receive_and_go(&request);
    client.reply(request.id, &[delivered(), delivered()]);

    let (mut client, request) = broker.until_go();
    assert_eq!(queue_id(&request), second);
    assert_eq!((request.no_sent, request.sasl_username.as_deref()), (false, Some("lisa@gmail.com")));
    client.reply(request.id, &[delivered()]);
    scene.until(Counts::default());
}

#[test]
fn each_recipient_is_settled_by_its_own_answer_and_a_refusal_is_kept_with_its_reason() {
    let scene = Scene::new();
    scene.enqueue("a", &["doug@x", "scuba@x", "lisa@x"], 100);
    let broker = scene.broker();
    let _runner = scene.runner();
    let (mut client, request) = broker.until_go();
    client.reply(request.id, &[delivered(), deferred(), Verdict::unknown_recipient("no such user")]);
    scene.until(Counts { new: 1, refused: 1, ..Counts::default() });
    let (new, refused) = (scene.entries(State::New), scene.entries(State::Refused));
    assert_eq!((&new[0].recipients[..], new[0].tries), (&["scuba@x".to_owned()][..], 1));
    assert!(new[0].next_try.is_some());
    assert_eq!(refused[0].recipients, ["lisa@x"]);
    assert!(refused[0].reason.as_ref().unwrap().contains("5.1.1 no such user"), "{refused:?}");
    assert!(scene.log().contains("the database cannot be reached"), "{}", scene.log());
}

fn many(number: usize) -> Vec<String> {
    (0..number).map(|number| format!("{number}-{}@x", "a".repeat(300))).collect()
}

#[test]
fn a_message_for_many_recipients_is_handed_over_in_portions() {
    let scene = Scene::new();
    // One header would not hold them.
    let everybody = many(4000);
    scene.enqueue("a", &everybody.iter().map(String::as_str).collect::<Vec<_>>(), 100);
    let broker = scene.broker();
    let _runner = scene.runner();
    let mut collected = Vec::new();
    while collected.len() < everybody.len() {
        let (mut client, request) = broker.until_go();
        assert!(request.recipients.len() <= 500);
        let verdicts: Vec<Verdict> = request.recipients.iter().map(|_| delivered()).collect();
        collected.extend(request.recipients.into_iter().map(|to| to.address));
        client.reply(request.id, &verdicts);
    }
    assert_eq!(collected, everybody);
    scene.until(Counts::default());
}

/// A message for so many that it goes in portions, of which the broker has the first.
struct FirstPortion {
    broker: Broker,
    runner: Runner,
    client: Client,
    request: Request,
    everybody: Vec<String>,
}

impl FirstPortion {
    fn of(scene: &Scene) -> Self {
        let everybody = many(1200);
        scene.enqueue("a", &everybody.iter().map(String::as_str).collect::<Vec<_>>(), 100);
        let (broker, runner) = (scene.broker(), scene.runner());
        let (client, request) = broker.until_go();
        Self { broker, runner, client, request, everybody }
    }
}

#[test]
fn what_became_of_the_portions_before_is_kept_where_one_is_lost() {
    let scene = Scene::new();
    let FirstPortion { broker, runner: _runner, mut client, request, everybody } = FirstPortion::of(&scene);
    let first = request.recipients.len();
    assert!(first < everybody.len());
    let mut verdicts = vec![delivered(); first];
    verdicts[7] = deferred();
    verdicts[8] = Verdict::unknown_recipient("no such user");
    client.reply(request.id, &verdicts);
    // The broker dies with the next one.
    drop(broker.until_go());
    scene.until(Counts { new: 1, refused: 1, ..Counts::default() });
    let left: Vec<String> = [&everybody[7..8], &everybody[first..]].concat();
    assert_eq!(scene.entries(State::New)[0].recipients, left);
    assert_eq!(scene.entries(State::Refused)[0].recipients, [everybody[8].clone()]);
}

#[test]
fn what_became_of_the_portions_before_is_kept_where_there_is_no_broker_any_more() {
    let scene = Scene::new();
    let FirstPortion { broker, runner: _runner, mut client, request, everybody } = FirstPortion::of(&scene);
    let first = request.recipients.len();
    let mut verdicts = vec![delivered(); first];
    verdicts[8] = Verdict::unknown_recipient("no such user");
    // Nobody takes the next one.
    drop(broker);
    client.reply(request.id, &verdicts);
    scene.until(Counts { new: 1, refused: 1, ..Counts::default() });
    assert_eq!(scene.entries(State::New)[0].recipients, everybody[first..]);
}

#[test]
fn asked_to_end_it_ends_after_the_portion_in_progress() {
    let scene = Scene::new();
    let FirstPortion { broker, runner, mut client, request, everybody } = FirstPortion::of(&scene);
    let first = request.recipients.len();
    runner.signal(Signal::TERM);
    client.reply(request.id, &vec![delivered(); first]);
    runner.ends();
    assert!(broker.nobody_else_came());
    assert_eq!(scene.entries(State::New)[0].recipients, everybody[first..]);
}

/// What nobody has tried cannot have been delivered.
#[test]
fn what_was_tried_and_is_older_than_the_ledger_remembers_is_held() {
    const DAY: u64 = 24 * 60 * 60;
    for days in [10, 20] {
        let scene = Scene::with(&format!("[retention]\nmessages_older_than = \"{days}d\"\n"));
        let tried = |lock: &str, ago: u64| {
            let id = scene.enqueue(lock, &["doug@x"], ago);
            let new = scene.queue.path().join("new");
            std::fs::rename(new.join(format!("{id}.msg")), new.join(format!("{id},9,1000.msg"))).unwrap();
            id
        };
        let forgotten = tried("a", (days + 1) * DAY);
        let young = tried("b", (days - 1) * DAY);
        let untried = scene.enqueue("c", &["doug@x"], (days + 1) * DAY);
        let broker = scene.broker();
        let _runner = scene.runner();
        let delivers = || {
            let (mut client, request) = broker.until_go();
            client.reply(request.id, &[delivered()]);
            queue_id(&request).to_owned()
        };
        let mut ids = [delivers(), delivers()];
        ids.sort();
        assert_eq!(ids, [untried, young]);
        scene.until(Counts { held: 1, ..Counts::default() });
        assert!(scene.log().contains("longer ago than the ledger remembers"), "{}", scene.log());
        // An administrator may retry it.
        scene.queue.release(&forgotten, None, false, SystemTime::now()).unwrap();
        assert_eq!(delivers(), forgotten);
        scene.until(Counts::default());
    }
}

#[test]
fn what_was_deferred_is_tried_again_once_it_is_due() {
    let scene = Scene::new();
    let id = scene.enqueue("a", &["doug@x"], 100);
    {
        let broker = scene.broker();
        let runner = scene.runner();
        let (mut client, request) = broker.until_go();
        client.reply(request.id, &[deferred()]);
        scene.until(Counts { new: 1, ..Counts::default() });
        runner.signal(Signal::TERM);
        runner.ends();
    }
    // Its time has come: what says when is its name.
    let new = scene.queue.path().join("new");
    let file = &scene.entries(State::New)[0].file;
    std::fs::rename(new.join(file), new.join(format!("{id},1,1000.msg"))).unwrap();
    std::fs::remove_file(scene.folder.path().join("run/clients.sock")).unwrap();
    let broker = scene.broker();
    let _runner = scene.runner();
    let (mut client, request) = broker.until_go();
    assert_eq!(queue_id(&request), id);
    client.reply(request.id, &[delivered()]);
    scene.until(Counts::default());
}

/// The mailbox of one recipient hangs: his messages get no answer.
#[test]
fn a_mailbox_that_hangs_holds_up_the_mail_for_others_for_a_first_try_and_no_longer() {
    let scene = Scene::new();
    let hung = scene.enqueue("a", &["doug@x"], 100);
    let broker = scene.broker();
    let _runner = scene.runner();
    let (mut client, request) = broker.until_go();
    assert_eq!(queue_id(&request), hung);
    assert!(request.time_left_ms <= 15_000, "of the four minutes of a delivery: {}", request.time_left_ms);
    let other = scene.enqueue("b", &["scuba@x"], 50);
    // The runner gives up.
    assert_eq!(client.hear(), None);
    let (mut client, request) = broker.until_go();
    assert_eq!(queue_id(&request), other);
    client.reply(request.id, &[delivered()]);
    scene.until(Counts { new: 1, ..Counts::default() });
    assert_eq!((&*scene.entries(State::New)[0].id, scene.entries(State::New)[0].tries), (&*hung, 1));
}

/// All of it was tried so often, and is due by now.
fn tried(scene: &Scene, ids: &[String], tries: u32) {
    let new = scene.queue.path().join("new");
    for id in ids {
        std::fs::rename(new.join(format!("{id}.msg")), new.join(format!("{id},{tries},1000.msg"))).unwrap();
    }
}

#[test]
fn each_further_try_may_take_twice_as_long_up_to_the_deadline() {
    let scene = Scene::new();
    for (tries, at_least, at_most) in [(1, 15_000, 30_000), (2, 30_000, 60_000), (4, 120_000, 239_000)] {
        let ids = [scene.enqueue(&tries.to_string(), &["doug@x"], 100)];
        tried(&scene, &ids, tries);
        let broker = scene.broker();
        let runner = scene.runner();
        let (mut client, request) = broker.until_go();
        assert!((at_least..=at_most).contains(&request.time_left_ms), "{tries}: {}", request.time_left_ms);
        client.reply(request.id, &[delivered()]);
        scene.until(Counts::default());
        runner.signal(Signal::TERM);
        runner.ends();
        std::fs::remove_file(scene.folder.path().join("run/clients.sock")).unwrap();
    }
}

/// A queue full of messages for mailboxes that hang, all of which are due again.
#[test]
fn what_comes_goes_before_what_was_tried_and_that_has_its_turn_afterwards() {
    let scene = Scene::new();
    let locks: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    let hung: Vec<String> = locks.iter().map(|lock| scene.enqueue(lock, &["doug@x"], 10_000)).collect();
    tried(&scene, &hung, 5);
    let new = scene.enqueue("new", &["scuba@x"], 1);
    let broker = scene.broker();
    let _runner = scene.runner();
    let mut ids = Vec::new();
    for _ in 0..=hung.len() {
        let (mut client, request) = broker.until_go();
        ids.push(queue_id(&request).to_owned());
        client.reply(request.id, &[delivered()]);
    }
    assert_eq!(ids[0], new);
    assert_eq!(ids[1..].iter().collect::<std::collections::BTreeSet<_>>(), hung.iter().collect());
    scene.until(Counts::default());
}

#[test]
fn without_a_broker_nothing_is_lost_or_counted_as_a_try_and_it_is_taken_up_once_there_is_one() {
    let scene = Scene::new();
    let id = scene.enqueue("a", &["doug@x"], 100);
    let _runner = scene.runner();
    wait_until("it looks for the broker", || scene.log().contains("no service takes what is in the queue"));
    wait_until("it is given back", || scene.entries(State::New).len() == 1);
    assert_eq!(scene.entries(State::New)[0].tries, 0);
    let (mut client, request) = scene.broker().until_go();
    assert_eq!(queue_id(&request), id);
    client.reply(request.id, &[delivered()]);
    scene.until(Counts::default());
}

type Answer = fn(&mut Client, &Request);

#[test]
fn an_answer_that_is_lost_or_makes_no_sense_puts_the_message_off() {
    let answers: [Answer; 3] = [
        // The broker hangs up.
        |_, _| (),
        // Another number of recipients.
        |client, request| client.reply(request.id, &[delivered()]),
        |client, _| client.say_bytes(b"2.0.0 delivered"),
    ];
    let scene = Scene::new();
    let broker = scene.broker();
    let _runner = scene.runner();
    for (number, answer) in answers.iter().enumerate() {
        scene.enqueue(&number.to_string(), &["doug@x", "scuba@x"], 100);
        let (mut client, request) = broker.until_go();
        answer(&mut client, &request);
        drop(client);
        scene.until(Counts { new: number + 1, ..Counts::default() });
        let deferred = || scene.entries(State::New).iter().all(|entry| entry.tries == 1 && entry.recipients.len() == 2);
        wait_until("it is deferred", deferred);
    }
}

#[test]
fn a_message_that_a_broker_does_not_take_is_deferred_and_does_not_keep_others_from_it() {
    let scene = Scene::new();
    let old = scene.enqueue("a", &["doug@x"], 200);
    let young = scene.enqueue("b", &["doug@x"], 100);
    let broker = scene.broker();
    let _runner = scene.runner();
    for _ in 0..3 {
        assert_eq!(queue_id(&broker.accept().deliver().0), old);
    }
    let (mut client, request) = broker.until_go();
    assert_eq!(queue_id(&request), young);
    client.reply(request.id, &[delivered()]);
    scene.until(Counts { new: 1, ..Counts::default() });
    assert_eq!((&*scene.entries(State::New)[0].id, scene.entries(State::New)[0].tries), (&*old, 1));
}

#[test]
fn the_message_of_a_runner_that_was_killed_is_taken_up_by_the_next() {
    let scene = Scene::new();
    let id = scene.enqueue("a", &["doug@x"], 100);
    let broker = scene.broker();
    let runner = scene.runner();
    let (mut client, request) = broker.until_go();
    assert_eq!(queue_id(&request), id);
    drop(runner);
    assert_eq!(client.hear(), None);
    assert_eq!(scene.queue.counts().unwrap(), Counts { work: 1, ..Counts::default() });
    let _runner = scene.runner();
    let (mut client, request) = broker.until_go();
    assert_eq!(queue_id(&request), id);
    client.reply(request.id, &[delivered()]);
    scene.until(Counts::default());
}

#[test]
fn two_messages_of_one_message_id_are_never_on_their_way_at_once() {
    let scene = Scene::new();
    let broker = scene.broker();
    for ago in [100, 90, 80] {
        scene.enqueue("the same", &["doug@x"], ago);
    }
    // Both have all of it: no slice keeps them apart.
    let _runners = (scene.runner(), scene.runner());
    for left in (0..3).rev() {
        let (mut client, request) = broker.until_go();
        // A claim that was begun beside this one has seen it, or will.
        wait_until("one is at work", || {
            let Counts { new, work, .. } = scene.queue.counts().unwrap();
            (new, work) == (left, 1)
        });
        client.reply(request.id, &[delivered()]);
        wait_until("it is done", || {
            let Counts { new, work, .. } = scene.queue.counts().unwrap();
            new + work == left
        });
    }
    scene.until(Counts::default());
}

#[test]
fn a_runner_takes_its_own_shard_alone() {
    let scene = Scene::with("runners = 2\n");
    let broker = scene.broker();
    let locks: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    let low = |lock: &&String| LockName::new("maildrop", lock.as_bytes()).digest()[0] < 128;
    let mine: Vec<_> = locks.iter().filter(low).collect();
    assert!(!mine.is_empty() && mine.len() < locks.len());
    for lock in &locks {
        scene.enqueue(lock, &["doug@x"], 100);
    }
    let runner = scene.runner_of(1);
    for _ in &mine {
        let (mut client, request) = broker.until_go();
        client.reply(request.id, &[delivered()]);
    }
    let others = locks.len() - mine.len();
    scene.until(Counts { new: others, ..Counts::default() });
    runner.signal(Signal::TERM);
    runner.ends();
    let _runner = scene.runner_of(2);
    for _ in 0..others {
        let (mut client, request) = broker.until_go();
        client.reply(request.id, &[delivered()]);
    }
    scene.until(Counts::default());
}

#[test]
fn asked_to_end_it_ends_after_the_message_in_progress_and_takes_no_other() {
    for signal in [Signal::TERM, Signal::INT] {
        let scene = Scene::new();
        let broker = scene.broker();
        scene.enqueue("a", &["doug@x"], 200);
        scene.enqueue("b", &["doug@x"], 100);
        let runner = scene.runner();
        let (mut client, request) = broker.until_go();
        runner.signal(signal);
        client.reply(request.id, &[delivered()]);
        runner.ends();
        assert_eq!(scene.queue.counts().unwrap(), Counts { new: 1, ..Counts::default() });
    }
}

#[test]
fn asked_to_end_it_ends_while_it_waits() {
    let scene = Scene::new();
    let runner = scene.runner();
    wait_until("it has begun", || scene.log().contains("the runner has begun"));
    runner.signal(Signal::TERM);
    runner.ends();
    // Nor is a broker waited for that is not there.
    scene.enqueue("a", &["doug@x"], 100);
    let runner = scene.runner();
    wait_until("it waits", || scene.log().contains("no service takes what is in the queue"));
    runner.signal(Signal::TERM);
    runner.ends();
    assert_eq!(scene.queue.counts().unwrap(), Counts { new: 1, ..Counts::default() });
}

#[test]
fn without_a_queue_of_its_own_it_says_why_and_ends() {
    let scene = Scene::new();
    let queue = scene.folder.path().join("state/queue");
    std::fs::set_permissions(&queue, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
    command.arg("--config").arg(scene.folder.path().join("config.toml")).arg("--role=runner");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(73));
    assert!(String::from_utf8_lossy(&output.stderr).contains("chmod 0700"), "{output:?}");
}
