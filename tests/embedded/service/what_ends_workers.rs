//! A message that ends one worker after the other is set aside, and whoever is on call has it delivered or dropped.
//!
//! The front is told how a worker has ended by its master, which here is the test: the ends are real.

use super::support::{Process, Service, message, request, until};
use crate::not_run::did_not_run;
use crate::program::program;
use crate::support::{child, subject};
use maildrop_command::database::Tables;
use maildrop_command::handover::Request;
use maildrop_command::lock::LockName;
use maildrop_command::queue::{Digest, NewMail, Queue, Recipient, ShuntedStore, State, Suspect};
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

impl Service {
    fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    fn store(&self) -> ShuntedStore {
        ShuntedStore::existing(&self.state()).unwrap()
    }

    fn suspect(&self, message: &[u8]) -> Option<Suspect> {
        self.store().suspect(&Digest::of(message)).unwrap()
    }

    fn is_set_aside(&self, message: &[u8]) -> bool {
        self.store().header(&Digest::of(message)).is_ok_and(|shunted| shunted.is_some())
    }

    /// How many attempts have begun. (One that died is ended by the next one.)
    fn begun_attempts(&self) -> usize {
        crate::support::open(self.path()).select("counting", "SELECT role FROM attempts", &[]).unwrap().len()
    }

    /// Hands the message over; the worker that gets it dies of this signal (not of the first SIGSEGV from outside: Rust's handler for
    /// stacks that overflow returns from one that is none, and waits for the next) while it waits for the lock, and the message is deferred.
    fn strike(&self, worker: Process, message: &[u8], to: &[&str], signal: Signal) {
        let lock = self.hold_lock_of(message);
        let before = self.begun_attempts();
        let (request, mut client) = (request(to, message), self.client());
        client.hand_over(&request, message);
        until("the delivery waits for the lock", || self.begun_attempts() > before);
        worker.signal(signal);
        assert!(client.verdicts(&request)[0].starts_with("4.3.0 the process that delivered it has ended"));
        self.bury(worker, false);
        drop(lock);
    }

    /// Waits until so many deaths count against the message, and that is written down.
    fn until_counted(&self, message: &[u8], deaths: u32) {
        until("the death counts", || self.suspect(message).is_some_and(|suspect| suspect.counted == deaths));
    }

    /// A worker that was told to end makes way for a new one.
    fn replaced(&self, worker: Process) -> Process {
        assert_eq!(self.bury(worker, false).code(), Some(0), "it ends by itself");
        self.worker()
    }

    /// `maildrop_command shunt …`.
    fn shunt(&self, arguments: &[&str]) -> Output {
        let file = self.path().join("config.toml");
        let text = format!(
            "[database]\nwait = \"0s\"\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\nport = 1\ndatabase = \"x\"\nuser = \"x\"\n\
             [imap]\nhost = \"127.0.0.1\"\nuser = \"x\"\npassword_file = \"/nonexistent\"\n\
             [retention]\nmessages_older_than = \"1000d\"\n\
             [serve]\nstate_directory = {:?}\nruntime_directory = {:?}\n",
            self.state(),
            self.path().join("run")
        );
        std::fs::write(&file, text).unwrap();
        let mut command = program(&["shunt", arguments[0], "--config", file.to_str().unwrap()]);
        command.args(&arguments[1..]).stdin(Stdio::null()).output().unwrap()
    }

    #[track_caller]
    fn says(&self, arguments: &[&str]) -> String {
        let output = self.shunt(arguments);
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn refuses(&self, arguments: &[&str], exit: i32) -> String {
        let output = self.shunt(arguments);
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// The message is set aside, by two workers, the first of which had served others.
    fn set_aside(&self, message: &[u8], to: &[&str]) {
        self.strike(self.worker(), message, to, Signal::ABORT);
        self.until_counted(message, 1);
        self.strike(self.worker(), message, to, Signal::ILL);
        until("it is set aside", || self.is_set_aside(message));
    }
}

#[test]
fn after_two_workers_it_is_set_aside_and_delivered_once_somebody_has_it_tried() {
    let mut service = Service::start();
    let poison = message(1);
    let worker = service.worker();
    let other = message(2);
    assert!(service.client().deliver(&request(&["scuba@x"], &other), &other)[0].starts_with("2.0.0 "));
    service.strike(worker, &poison, &["doug@x", "scuba@x"], Signal::ABORT);
    service.until_counted(&poison, 1);

    // Another front remembers. The worker that there is has served: it makes way for a new one.
    let connected = service.connected();
    let used = service.worker();
    service.front = None;
    service.start_front();
    until("the worker is connected again", || service.connected() > connected + 1);
    let third = message(3);
    assert!(service.client().deliver(&request(&["scuba@x"], &third), &third)[0].starts_with("2.0.0 "));
    let lock = service.hold_lock_of(&poison);
    let (again, mut client) = (request(&["doug@x", "scuba@x"], &poison), service.client());
    let before = service.begun_attempts();
    client.hand_over(&again, &poison);
    let own = service.replaced(used);
    until("the delivery waits for the lock", || service.begun_attempts() > before);
    own.signal(Signal::ILL);
    assert!(client.verdicts(&again)[0].starts_with("4.3.0 "));
    service.bury(own, false);
    drop(lock);
    until("it is set aside", || service.is_set_aside(&poison));
    assert!(service.log().contains("a message is set aside: it ends workers"), "{}", service.log());

    // It gets no worker, though one waits, and others do.
    let idle = service.worker();
    let verdicts = service.client().deliver_at_once(&request(&["doug@x", "scuba@x"], &poison), &poison);
    assert!(
        verdicts.iter().all(|verdict| verdict.starts_with("4.3.0 set aside: it has ended 2 workers")),
        "{verdicts:?}"
    );
    let fourth = message(4);
    assert!(service.client().deliver(&request(&["scuba@x"], &fourth), &fourth)[0].starts_with("2.0.0 "));

    let listed: Value = serde_json::from_str(&service.says(&["list", "--json"])).unwrap();
    let one = &listed[0];
    let id = Digest::of(&poison).id();
    assert_eq!((&one["id"], &one["workers"], &one["behind"]), (&id.as_str().into(), &2.into(), &"mta".into()), "{one}");
    let table = service.says(&["list"]);
    // Its journal is there a moment before it says that it waits for the lock.
    let is_at_the_lock =
        ["journal", "lock"].iter().any(|stage| table.contains(&format!("ended by SIGILL, at: {stage}")));
    assert!(is_at_the_lock && table.contains("doug@x scuba@x"), "{table}");
    let told = service.says(&["show", &id]);
    for part in
        ["queue id    4bXyz", "recipient   scuba@x", "ended by SIGABRT", "a suspect's delivery comes to: journal"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(service.says(&["show", "--message", &id]).into_bytes(), poison);

    // Somebody has mended what it died of, and has it tried: by a new worker.
    let mut retry = program(&["shunt", "retry", "--all", "--config"]);
    let retry = retry.arg(service.path().join("config.toml")).stdout(Stdio::piped()).spawn().unwrap();
    let own = service.replaced(idle);
    let output = retry.wait_with_output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && told.contains(&format!("{id} doug@x: 2.0.0 INBOX ")), "{told}");
    let next = service.replaced(own);
    until("there is no copy any more", || !service.is_set_aside(&poison) && service.suspect(&poison).is_none());
    assert_eq!(service.says(&["list"]), "nothing is set aside\n");
    // Postfix's next try.
    let verdicts = service.client().deliver(&request(&["doug@x", "scuba@x"], &poison), &poison);
    assert_eq!(verdicts, ["2.0.0 INBOX already there"; 2]);
    assert_eq!(service.inbox("doug@x").len(), 1);
    assert_eq!(service.inbox("scuba@x").len(), 4);
    drop(next);
}

#[test]
fn what_kills_a_worker_from_outside_is_held_against_no_message() {
    let service = Service::start();
    for (number, signal, by_us) in [(1, Signal::KILL, false), (2, Signal::ABORT, true)] {
        let message = message(number);
        let lock = service.hold_lock_of(&message);
        let (again, mut client, before) = (request(&["doug@x"], &message), service.client(), service.begun_attempts());
        let worker = service.worker();
        client.hand_over(&again, &message);
        until("the delivery waits for the lock", || service.begun_attempts() > before);
        worker.signal(signal);
        client.verdicts(&again);
        service.bury(worker, by_us);
        drop(lock);
    }
    // What stands beside another death is not decided before that.
    let poison = message(3);
    service.strike(service.worker(), &poison, &["doug@x"], Signal::ABORT);
    until("it is remembered", || service.suspect(&poison).is_some());
    for number in [1, 2] {
        assert!(service.suspect(&message(number)).is_none(), "{number}");
    }
}

#[test]
fn what_comes_from_the_file_queue_stays_there_and_is_dropped_only_to_be_lost() {
    let service = Service::start();
    let queue = Queue::open(&service.state().join("queue")).unwrap();
    let poison = message(1);
    service.set_aside(&poison, &["doug@x"]);
    let mail = NewMail {
        sender: "lisa@gmail.com".into(),
        recipients: vec![Recipient { address: "scuba@x".into(), original: None }],
        injected_by: "a test".into(),
        ..NewMail::default()
    };
    let name = queue.enqueue(&LockName::new("maildrop", b"x"), mail, &poison, SystemTime::now()).unwrap();
    let runner = service.runner();
    until("it is tried and deferred", || queue.list().unwrap()[0].tries == 1);
    let entry = queue.list().unwrap().remove(0);
    assert_eq!((entry.state, entry.id), (State::New, name.id()));
    let of_the_queue = |service: &Service| {
        let shunted = service.store().header(&Digest::of(&poison)).unwrap().unwrap();
        !shunted.has_mta_behind() && shunted.envelopes.len() == 2
    };
    until("the copy is for both", || of_the_queue(&service));
    runner.signal(Signal::TERM);
    runner.end();

    let id = Digest::of(&poison).id();
    let said = service.refuses(&["drop", &id], 65);
    assert!(said.contains("it would be lost") && said.contains("--lose"), "{said}");
    assert!(service.is_set_aside(&poison) && queue.list().unwrap().len() == 1);
    let said = service.says(&["drop", "--lose", &id]);
    assert!(said.contains(&format!("{} is removed from the file queue", name.id())), "{said}");
    assert!(said.contains("postsuper -d 4bXyz"), "{said}");
    assert!(!service.is_set_aside(&poison) && queue.list().unwrap().is_empty());
    assert!(service.refuses(&["drop", &id], 66).contains("shunt list"));
    // Postfix still has it: its next try is kept once more, and ends no worker.
    let again = request(&["doug@x"], &poison);
    assert!(service.client().deliver_at_once(&again, &poison)[0].starts_with("4.3.0 set aside"));
    until("there is a copy again", || service.is_set_aside(&poison));
    assert!(service.says(&["drop", &id]).contains("is removed"));
}

#[test]
fn without_a_service_what_is_set_aside_can_be_seen_and_not_tried() {
    let service = Service::start();
    assert_eq!(service.says(&["list"]), "nothing is set aside\n");
    assert_eq!(service.says(&["list", "--json"]), "[]\n");
    assert_eq!(service.says(&["retry", "--all"]), "nothing is set aside\n");
    for arguments in [&["show", "0123456789abcdef"], &["retry", "0123456789abcdef"], &["drop", "0123456789abcdef"]] {
        assert!(service.refuses(arguments, 66).contains("no message that was set aside is called 0123456789abcdef"));
    }
    service.refuses(&["retry"], 64);
    service.refuses(&["retry", "--all", "0123456789abcdef"], 64);
    let mut service = service;
    let poison = message(1);
    service.set_aside(&poison, &["doug@x"]);
    service.front = None;
    let said = service.refuses(&["retry", &Digest::of(&poison).id()], 69);
    assert!(said.contains("maildrop_command service start"), "{said}");
    assert!(service.is_set_aside(&poison));
    // What may have been delivered by another way, longer ago than the ledger remembers, would be there twice.
    let path = service.store().path(&Digest::of(&poison));
    let bytes = std::fs::read(&path).unwrap();
    let since = bytes.windows(11).position(|part| part == b"\"since\":\"20").unwrap() + 11;
    let long_ago = [&bytes[..since], b"20", &bytes[since + 2..]].concat();
    std::fs::write(&path, long_ago).unwrap();
    let id = Digest::of(&poison).id();
    for which in [id.as_str(), "--all"] {
        let said = service.refuses(&["retry", which], 65);
        assert!(said.contains(&format!("{id} was set aside longer ago")) && said.contains("--again"), "{said}");
        assert!(service.refuses(&["retry", "--again", which], 69).contains("maildrop_command service start"));
    }
    // A copy of which somebody has changed the bytes is no message that came.
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let id = Digest::of(&poison).id();
    assert!(service.refuses(&["retry", &id], 65).contains("not those that were set aside"));
}

#[test]
fn a_full_disk_keeps_no_copy_and_ends_no_worker() {
    let folder = tempfile::tempdir().unwrap();
    let test = child("service::what_ends_workers::on_a_full_disk", folder.path().to_str().unwrap());
    let mut command = Command::new("unshare");
    let script = "mkdir -m 0700 \"$MAILDROP_TEST_CHILD/state\" && \
                  mount -t tmpfs -o size=64k,mode=0700 tmpfs \"$MAILDROP_TEST_CHILD/state\" || exit 99; exec \"$0\" \"$@\"";
    command.args(["--mount", "sh", "-c", script]).arg(test.get_program()).args(test.get_args());
    command.envs(test.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    let output = command.output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() && (told.contains("unshare failed") || output.status.code() == Some(99)) {
        // Root may, where nothing forbids it.
        if let Some(list) = std::env::var_os("MAILDROP_TEST_NOT_RUN") {
            did_not_run("MOUNT", Path::new(&list));
        }
        return;
    }
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}

#[test]
fn on_a_full_disk() {
    let Some(folder) = subject() else { return };
    let directory = tempfile::Builder::new().prefix("").tempdir_in(&folder).unwrap();
    std::os::unix::fs::symlink(Path::new(&folder).join("state"), directory.path().join("state")).unwrap();
    let service = Service::start_in(directory);
    let poison = message(1);
    let fill = service.state().join("fill");
    let mut full = std::fs::File::create(&fill).unwrap();
    while std::io::Write::write_all(&mut full, &[b'x'; 512]).is_ok() {}
    drop(full);
    service.strike(service.worker(), &poison, &["doug@x"], Signal::ABORT);
    until("it is said", || service.log().contains("that a message has ended a worker cannot be written down"));
    // Known all the same: the next death is the second.
    let (again, mut client) = (request(&["doug@x"], &poison), service.client());
    let lock = service.hold_lock_of(&poison);
    let before = service.begun_attempts();
    let own = service.worker();
    client.hand_over(&again, &poison);
    until("the delivery waits for the lock", || service.begun_attempts() > before);
    own.signal(Signal::ABORT);
    assert!(client.verdicts(&again)[0].starts_with("4.3.0 "));
    service.bury(own, false);
    drop(lock);
    until("it is said", || service.log().contains("no copy of a message that is set aside can be kept"));
    let _idle = service.worker();
    let text = service.client().deliver_at_once(&again_of(&again), &poison);
    assert!(text[0].starts_with("4.3.0 set aside"), "{text:?}");
    assert!(!service.is_set_aside(&poison));
    // Once there is room, the next try brings the copy.
    std::fs::remove_file(fill).unwrap();
    assert!(service.client().deliver_at_once(&again_of(&again), &poison)[0].starts_with("4.3.0 set aside"));
    until("there is a copy", || service.is_set_aside(&poison));
}

/// The same, as its next try.
fn again_of(request: &Request) -> Request {
    Request { id: uuid::Uuid::now_v7(), ..request.clone() }
}

/// How much time a delivery has that is to hang, in milliseconds: enough to come to a worker, on a machine that stands still for a while.
#[cfg(feature = "test-faults")]
pub const TIME_TO_HANG: u64 = 6000;

/// Bugs to order are in the program that is built with the feature alone.
#[cfg(feature = "test-faults")]
#[test]
fn an_abort_a_stack_that_overflows_too_little_memory_and_an_endless_wait_count() {
    let struck = |fault: &str, milliseconds: u64| {
        let service = Service::start();
        let worker = service.worker_with(&[("MAILDROP_TEST_FAULT", &format!("{fault}@before"))]);
        let poison = message(1);
        let request = Request { time_left_ms: milliseconds, ..request(&["doug@x"], &poison) };
        assert!(service.client().deliver(&request, &poison)[0].starts_with("4.3.0 "), "{fault}");
        service.bury(worker, false);
        service.until_counted(&poison, 1);
    };
    std::thread::scope(|scope| {
        for (fault, milliseconds) in [
            ("abort", 240_000),
            ("overflow", 240_000),
            ("memory", 240_000),
            ("panic-twice", 240_000),
            ("hang", TIME_TO_HANG),
        ] {
            scope.spawn(move || struck(fault, milliseconds));
        }
    });
}
