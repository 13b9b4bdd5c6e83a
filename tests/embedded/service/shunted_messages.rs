//! A message that crashes one worker after the other is shunted; a new build, or a person, has it delivered, or a person drops it.
//!
//! The master reports to the front how a worker has ended. Here the test does; the ends are real.

use crate::not_run::did_not_run;
use crate::program::program;
use crate::support::clients_and_processes::{child, subject};
use crate::support::test_front::{Process, Service, message, request, until};
use maildrop_command::database::Tables;
use maildrop_command::lock::LockName;
use maildrop_command::protocol::Request;
use maildrop_command::queue::{CrashedMessage, Digest, Envelope, MessageHolder, Queue, Recipient, State};
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

impl Service {
    fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    /// What is written down of a message that crashed workers.
    fn crashed(&self, message: &[u8]) -> Option<CrashedMessage> {
        let queue = Queue::existing(&self.state().join("queue")).unwrap();
        queue.crashed_message(Digest::of(message)).unwrap().map(|(found, _)| found)
    }

    fn is_shunted(&self, message: &[u8]) -> bool {
        self.crashed(message).is_some_and(|found| found.is_shunted())
    }

    /// How many attempts have begun. (One that died is ended by the next one.)
    fn begun_attempts(&self) -> usize {
        crate::support::clients_and_processes::open(self.path())
            .select("counting", "SELECT role FROM attempts", &[])
            .unwrap()
            .len()
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

    /// Waits until so many crashes of the message are written down.
    fn until_counted(&self, message: &[u8], crashes: u32) {
        until("the crash counts", || self.crashed(message).is_some_and(|found| found.crashes == crashes));
    }

    /// A worker that was asked to end makes way for a new one.
    fn replaced(&self, worker: Process) -> Process {
        assert_eq!(self.bury(worker, false).code(), Some(0), "it ends by itself");
        self.worker()
    }

    /// `maildrop_command shunt …`.
    fn shunt(&self, arguments: &[&str]) -> Output {
        let file = self.path().join("config.toml");
        let text = format!(
            "[database]\nfailover_timeout = \"0s\"\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\nport = 1\ndatabase = \"x\"\nuser = \"x\"\n\
             [imap]\nhost = \"127.0.0.1\"\nuser = \"x\"\npassword_file = \"/nonexistent\"\n\
             [retention]\nmessages_older_than = \"1000d\"\n\
             [service]\nstate_directory = {:?}\nruntime_directory = {:?}\n",
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

    /// The message crashes two workers.
    fn shunt_message(&self, message: &[u8], to: &[&str]) {
        self.strike(self.worker(), message, to, Signal::ABORT);
        self.until_counted(message, 1);
        self.strike(self.worker(), message, to, Signal::ILL);
        until("it is shunted", || self.is_shunted(message));
    }

    /// Another front takes the place of this one, by the same build or as another one would.
    fn next_front(&mut self, is_new_build: bool) {
        self.front = None;
        if is_new_build {
            // A build is known by when its file came there. (The second of the crash is over by then.)
            let program = Path::new(env!("CARGO_BIN_EXE_maildropd"));
            let crashed = std::fs::read_dir(self.state().join("queue/shunted")).unwrap();
            let crashed = crashed.map(|file| file.unwrap().metadata().unwrap().ctime()).max().unwrap();
            until("the program is newer", || {
                let metadata = program.metadata().unwrap();
                std::fs::set_permissions(program, metadata.permissions()).unwrap();
                program.metadata().unwrap().ctime() > crashed
            });
        }
        self.start_front();
    }
}

#[test]
fn after_two_crashes_it_is_shunted_and_delivered_once_a_person_has_it_tried() {
    let mut service = Service::start();
    let poison = message(1);
    let worker = service.worker();
    let other = message(2);
    assert!(service.client().deliver(&request(&["scuba@x"], &other), &other)[0].starts_with("2.0.0 "));
    service.strike(worker, &poison, &["doug@x", "scuba@x"], Signal::ABORT);
    service.until_counted(&poison, 1);

    // Another front remembers. Its next try is by a worker that has served.
    let connected = service.connected();
    let used = service.worker();
    service.next_front(false);
    until("the worker is connected again", || service.connected() > connected + 1);
    let third = message(3);
    assert!(service.client().deliver(&request(&["scuba@x"], &third), &third)[0].starts_with("2.0.0 "));
    let lock = service.hold_lock_of(&poison);
    let (again, mut client) = (request(&["doug@x", "scuba@x"], &poison), service.client());
    let before = service.begun_attempts();
    client.hand_over(&again, &poison);
    until("the delivery waits for the lock", || service.begun_attempts() > before);
    used.signal(Signal::ILL);
    assert!(client.verdicts(&again)[0].starts_with("4.3.0 "));
    service.bury(used, false);
    drop(lock);
    until("it is shunted", || service.is_shunted(&poison));
    assert!(service.log().contains("a message is shunted: it crashes workers"), "{}", service.log());

    // It gets no worker, though one waits, and others do.
    let idle = service.worker();
    let verdicts = service.client().deliver_at_once(&request(&["doug@x", "scuba@x"], &poison), &poison);
    assert!(
        verdicts.iter().all(|verdict| verdict.starts_with("4.3.0 shunted: it has crashed 2 workers")),
        "{verdicts:?}"
    );
    let fourth = message(4);
    assert!(service.client().deliver(&request(&["scuba@x"], &fourth), &fourth)[0].starts_with("2.0.0 "));

    let listed: Value = serde_json::from_str(&service.says(&["list", "--json"])).unwrap();
    let one = &listed[0];
    let id = Digest::of(&poison).to_string();
    assert_eq!((&one["id"], &one["crashes"], &one["holder"]), (&id.as_str().into(), &2.into(), &"mta".into()), "{one}");
    let table = service.says(&["list"]);
    assert!(table.contains("ended by SIGABRT") && table.contains("doug@x scuba@x"), "{table}");
    let output_text = service.says(&["show", &id]);
    for part in ["queue id    4bXyz", "recipient   scuba@x", "crashes     2", "ended by SIGABRT"] {
        assert!(output_text.contains(part), "{part}: {output_text}");
    }
    assert_eq!(service.says(&["show", "--message", &id]).into_bytes(), poison);

    // What it crashed at is repaired, and a person has it tried: by a worker that ends afterwards.
    let mut retry = program(&["shunt", "retry", "--all", "--config"]);
    let retry = retry.arg(service.path().join("config.toml")).stdout(Stdio::piped()).spawn().unwrap();
    let output = retry.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && printed.contains(&format!("{id} doug@x: 2.0.0 INBOX ")), "{printed}");
    let next = service.replaced(idle);
    until("there is no copy any more", || service.crashed(&poison).is_none());
    assert_eq!(service.says(&["list"]), "nothing is shunted\n");
    // Postfix's next try.
    let verdicts = service.client().deliver(&request(&["doug@x", "scuba@x"], &poison), &poison);
    assert_eq!(verdicts, ["2.0.0 INBOX already there"; 2]);
    assert_eq!(service.inbox("doug@x").len(), 1);
    assert_eq!(service.inbox("scuba@x").len(), 4);
    drop(next);
}

#[test]
fn a_repaired_build_delivers_what_is_shunted_though_nobody_brings_it_and_the_same_build_does_not_try_it() {
    let mut service = Service::start();
    let poison = message(1);
    service.shunt_message(&poison, &["doug@x"]);
    service.next_front(false);
    let other = message(2);
    let worker = service.worker();
    assert!(service.client().deliver(&request(&["scuba@x"], &other), &other)[0].starts_with("2.0.0 "));
    assert!(service.is_shunted(&poison) && service.inbox("doug@x").is_empty());

    let connected = service.connected();
    service.next_front(true);
    until("the worker is connected again", || service.connected() > connected);
    until("it is delivered", || service.inbox("doug@x").len() == 1);
    until("there is no copy any more", || service.crashed(&poison).is_none());
    assert_eq!(service.bury(worker, false).code(), Some(0), "it ends after such a message");
    // Postfix's next try.
    let _worker = service.worker();
    let verdicts = service.client().deliver(&request(&["doug@x"], &poison), &poison);
    assert_eq!(verdicts, ["2.0.0 INBOX already there"]);
}

#[test]
fn what_kills_a_worker_from_outside_is_no_crash_of_a_message() {
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
    // One that is written down comes after what would have been.
    let poison = message(3);
    service.strike(service.worker(), &poison, &["doug@x"], Signal::ABORT);
    service.until_counted(&poison, 1);
    for number in [1, 2] {
        assert!(service.crashed(&message(number)).is_none(), "{number}");
    }
}

#[test]
fn what_comes_from_the_file_queue_stays_there_until_it_is_dropped_there() {
    let service = Service::start();
    let queue = Queue::open(&service.state().join("queue")).unwrap();
    let poison = message(1);
    let mail = Envelope {
        sender: "lisa@gmail.com".into(),
        recipients: vec![Recipient { address: "scuba@x".into(), original: None }],
        injected_by: "a test".into(),
        ..Envelope::default()
    };
    let name = queue.enqueue(&LockName::new("maildrop", b"x"), mail, &poison, SystemTime::now()).unwrap();
    let lock = service.hold_lock_of(&poison);
    let before = service.begun_attempts();
    let worker = service.worker();
    let runner = service.runner();
    until("the delivery waits for the lock", || service.begun_attempts() > before);
    worker.signal(Signal::ABORT);
    service.bury(worker, false);
    drop(lock);
    service.until_counted(&poison, 1);
    until("it is deferred", || queue.list().unwrap()[0].tries == 1);
    runner.signal(Signal::TERM);
    runner.end();
    service.strike(service.worker(), &poison, &["scuba@x"], Signal::ABORT);
    until("it is shunted", || service.is_shunted(&poison));
    // The queue tries it, as Postfix does.
    queue.hold(&name.id()).unwrap();
    queue.release(&name.id(), None, true, SystemTime::now()).unwrap();
    let runner = service.runner();
    let _idle = service.worker();
    until("it is answered at once", || queue.list().unwrap()[0].tries == 2);
    runner.signal(Signal::TERM);
    runner.end();

    let found = service.crashed(&poison).unwrap();
    let origin = found.envelope.origin.clone().unwrap();
    assert_eq!((origin.holder, origin.queue_id), (MessageHolder::Queue, Some(name.id())));
    let id = Digest::of(&poison).to_string();
    let output = service.says(&["drop", &id]);
    assert!(output.contains(&format!("until: maildrop_command queue drop --yes {}", name.id())), "{output}");
    assert!(service.crashed(&poison).is_none());
    let entry = queue.list().unwrap().remove(0);
    assert_eq!((entry.state, entry.id), (State::New, name.id()));
    assert!(service.refuses(&["drop", &id], 66).contains("shunt list"));
}

#[test]
fn without_a_service_what_is_shunted_can_be_seen_and_not_tried() {
    let mut service = Service::start();
    assert_eq!(service.says(&["list"]), "nothing is shunted\n");
    assert_eq!(service.says(&["list", "--json"]), "[]\n");
    assert_eq!(service.says(&["retry", "--all"]), "nothing is shunted\n");
    for arguments in [&["show", "0123456789abcdef"], &["retry", "0123456789abcdef"], &["drop", "0123456789abcdef"]] {
        assert!(service.refuses(arguments, 66).contains("no shunted message is called 0123456789abcdef"));
    }
    service.refuses(&["retry"], 64);
    service.refuses(&["retry", "0123"], 66);
    service.refuses(&["retry", "--all", "0123456789abcdef"], 64);
    let poison = message(1);
    service.shunt_message(&poison, &["doug@x"]);
    service.front = None;
    let id = Digest::of(&poison).to_string();
    let printed_text = service.refuses(&["retry", &id], 69);
    assert!(printed_text.contains("maildrop_command service start"), "{printed_text}");
    assert!(service.is_shunted(&poison));
    // What may have been delivered by another way, longer ago than the ledger remembers, would be duplicated. Its name has its time.
    let file = service.crashed(&poison).unwrap().file;
    let name = file.file_name().unwrap().to_str().unwrap();
    let old = file.with_file_name(format!("01000000000000000000{}", &name[20..]));
    std::fs::rename(&file, &old).unwrap();
    for which in [id.as_str(), "--all"] {
        let output_text = service.refuses(&["retry", which], 65);
        assert!(
            output_text.contains(&format!("{id} first crashed a worker longer ago")) && output_text.contains("--again"),
            "{output_text}"
        );
        assert!(service.refuses(&["retry", "--again", which], 69).contains("maildrop_command service start"));
    }
    // Postfix may have given it up: this copy may be all there is.
    let printed = service.refuses(&["drop", &id], 65);
    assert!(printed.contains("it would be lost") && printed.contains("--lose"), "{printed}");
    // A copy of which somebody has changed the bytes is no message that came.
    let mut bytes = std::fs::read(&old).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&old, bytes).unwrap();
    assert!(service.refuses(&["retry", &id], 65).contains("its bytes were changed"));
    assert!(service.refuses(&["drop", &id], 65).contains("it cannot be read"));
    let output = service.says(&["drop", "--lose", &id]);
    assert!(output.contains(&format!("{id} is removed")), "{output}");
    assert_eq!(service.says(&["list"]), "nothing is shunted\n");
}

#[test]
fn on_a_full_disk_a_message_is_shunted_all_the_same_and_no_worker_ends_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let test = child("service::shunted_messages::on_a_full_disk", folder.path().to_str().unwrap());
    let mut command = Command::new("unshare");
    let script = "mkdir -m 0700 \"$MAILDROP_TEST_CHILD/state\" && \
                  mount -t tmpfs -o size=64k,mode=0700 tmpfs \"$MAILDROP_TEST_CHILD/state\" || exit 99; exec \"$0\" \"$@\"";
    command.args(["--mount", "sh", "-c", script]).arg(test.get_program()).args(test.get_args());
    command.envs(test.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    let output = command.output().unwrap();
    let errors = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() && (errors.contains("unshare failed") || output.status.code() == Some(99)) {
        // Root may, where nothing forbids it.
        if let Some(list) = std::env::var_os("MAILDROP_TEST_NOT_RUN") {
            did_not_run("MOUNT", Path::new(&list));
        }
        return;
    }
    assert!(output.status.success() && errors.contains("1 passed"), "{errors}");
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
    let shown = "what is known of a message that crashed a worker cannot be written down";
    until("it is said", || service.log().contains(shown));
    // Known all the same: the next crash is the second.
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
    until("it is said again", || service.log().matches(shown).count() == 2);
    let _idle = service.worker();
    let text = service.client().deliver_at_once(&again_of(&again), &poison);
    assert!(text[0].starts_with("4.3.0 shunted"), "{text:?}");
    assert!(service.crashed(&poison).is_none());
}

/// The same, as its next try.
fn again_of(request: &Request) -> Request {
    Request { id: uuid::Uuid::now_v7(), ..request.clone() }
}

/// How much time a delivery has that is to hang, in milliseconds: enough to come to a worker, on a machine that hangs for a while.
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
