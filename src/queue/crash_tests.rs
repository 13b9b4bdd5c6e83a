//! Processes that are killed at each step, and processes that race: every accepted message is there once, and whole.

use super::tests::{Counts, at, lock, mail};
use super::*;
use crate::lock::Shard;
use rustix::process::{Signal, getpid, kill_process};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Set in a process that a test started: the folder that it works in.
const FOLDER: &str = "MAILDROP_TEST_QUEUE";
/// Set in such a process: the number of the step before which it is killed.
const KILLED_AT: &str = "MAILDROP_TEST_QUEUE_KILLED_AT";

static STEPS: AtomicU64 = AtomicU64::new(0);

type Interruption = Box<dyn FnOnce()>;

thread_local! {
    /// The interruption, and the number of steps of this thread before it.
    static BETWEEN: RefCell<Option<(u64, Interruption)>> = const { RefCell::new(None) };
}

/// Runs `does` on this thread, and `between` before its step of this number, as another process could do. Returns whether there
/// was such a step.
pub(super) fn interrupted(step: u64, between: Interruption, does: impl FnOnce()) -> bool {
    BETWEEN.set(Some((step, between)));
    does();
    BETWEEN.take().is_none()
}

/// Kills this process, or runs the interruption, if one is set for this step.
pub(super) fn step() {
    match BETWEEN.take() {
        Some((0, between)) => between(),
        Some((steps, between)) => BETWEEN.set(Some((steps - 1, between))),
        None => {}
    }
    let step = STEPS.fetch_add(1, Ordering::SeqCst);
    if std::env::var(KILLED_AT).is_ok_and(|at| at == step.to_string()) {
        kill_process(getpid(), Signal::KILL).unwrap();
        loop {
            std::thread::park();
        }
    }
}

fn child(function: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let function = format!("queue::crash_tests::{function}");
    command.args(["--exact", &function, "--test-threads=1"]).env(FOLDER, folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn folder_of_a_child() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// The notes of a process, one line per event: they survive a kill.
struct Notes(PathBuf);

impl Notes {
    fn add(&self, line: &str) {
        let mut file = OpenOptions::new().append(true).create(true).open(&self.0).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(&self.0).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

/// The life of six messages. A note is written before a message may disappear, or is in two files for a moment.
#[test]
fn everything_that_a_queue_does() {
    let Some(folder) = folder_of_a_child() else { return };
    let notes = Notes(folder.join("notes"));
    let queue = Queue::open(&folder.join("queue")).unwrap();
    let mut ids = BTreeMap::new();
    for (n, message) in (1_u64..).zip(["a", "b", "c", "d", "e", "f"]) {
        let name = queue.enqueue(&lock(message), mail(&["1", "2", "3"]), message.as_bytes(), at(n)).unwrap();
        notes.add(&format!("accepted {message} 123"));
        ids.insert(message, name.id());
    }
    let claim = || queue.claim(Shard::WHOLE, at(100)).unwrap().unwrap();
    let a = claim();
    notes.add("open a -");
    a.finish().unwrap();
    notes.add("closed a -");
    let b = claim();
    notes.add("open b 23");
    let settlements = [Settlement::Delivered, Settlement::Deferred, Settlement::Refused("5.1.1".into())];
    b.settle(&settlements, at(100)).unwrap();
    notes.add("closed b 23");
    claim().defer(at(100)).unwrap();
    claim().give_back().unwrap();
    queue.hold(&ids["d"]).unwrap();
    queue.release(&ids["d"], None, false, at(100)).unwrap();
    queue.hold(&ids["e"]).unwrap();
    notes.add("open e -");
    queue.drop_message(&ids["e"]).unwrap();
    notes.add("closed e -");
    let (d, f) = (claim(), claim());
    // Their runner is dead.
    drop((d, f));
    queue.recover(at(100), Duration::MAX).unwrap();
    // A file with a foreign name: moved to `bad/`, and released.
    let f = queue.hold(&ids["f"]).unwrap().to_string();
    fs::rename(queue.path().join("held").join(&f), queue.path().join("new/strange")).unwrap();
    queue.recover(at(100), Duration::MAX).unwrap();
    let bad = queue.list().unwrap().into_iter().find(|entry| entry.state == State::Bad).unwrap();
    queue.release(&bad.id, None, false, at(100)).unwrap();
    // An unreadable file that another program has put there.
    fs::write(queue.path().join("new/00000000000000000001-0000000000000001.msg"), "cut sho").unwrap();
    notes.add("unreadable");
    let d = claim();
    assert_eq!(d.message(), b"d");
    notes.add("end");
}

/// Each message, with its recipients from all files.
fn contents(queue: &Queue) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in queue.list().unwrap() {
        let path = queue.path().join(entry.state.to_string()).join(&entry.file);
        match Envelope::read_with_message(fs::read(path).unwrap()) {
            Ok((envelope, message)) => {
                let recipients = all.entry(String::from_utf8(message).unwrap()).or_default();
                recipients.extend(envelope.recipients.into_iter().map(|recipient| recipient.address));
            }
            Err(error) => all.entry(format!("unreadable: {error}")).or_default().push(entry.file),
        }
    }
    let sorted = |mut recipients: Vec<String>| {
        recipients.sort_unstable();
        recipients.concat()
    };
    all.into_iter().map(|(message, recipients)| (message, sorted(recipients))).collect()
}

/// Checks the queue against the notes.
fn check(queue: &Queue, notes: &[String], step: u64) {
    let mut there = contents(queue);
    let mut expected: BTreeMap<&str, (&str, bool)> = BTreeMap::new();
    let mut unreadable = false;
    for line in notes {
        match *line.split(' ').collect::<Vec<_>>() {
            ["accepted" | "closed", message, left] => drop(expected.insert(message, (left, true))),
            ["open", message, left] => drop(expected.insert(message, (left, false))),
            ["unreadable"] => unreadable = true,
            _ => {}
        }
    }
    for (message, (left, settled)) in expected {
        let found = there.remove(message).unwrap_or_default();
        let left = left.trim_start_matches('-');
        if settled {
            assert_eq!(found, left, "{message}, step {step}: not once");
        } else {
            assert!(
                left.chars().all(|one| found.contains(one)),
                "{message}, step {step}: {found:?} lacks one of {left:?}"
            );
        }
    }
    for (message, recipients) in there {
        let by_us = unreadable && message.starts_with("unreadable");
        // It was being accepted: it is whole, or not there.
        assert!(by_us || (message.len() == 1 && recipients == "123"), "{message}, step {step}: {recipients}");
    }
}

#[test]
fn a_process_that_is_killed_at_any_step_loses_nothing_and_leaves_nothing_half() {
    let mut steps = 0;
    for step in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let mut child = child("everything_that_a_queue_does", folder.path());
        let status = child.env(KILLED_AT, step.to_string()).status().unwrap();
        let killed = status.signal() == Some(9);
        assert!(killed || status.success(), "step {step}: {status}");
        let notes = Notes(folder.path().join("notes")).lines();
        assert_eq!(notes.last().is_some_and(|line| line == "end"), !killed, "step {step}");
        let queue = Queue::open(&folder.path().join("queue")).unwrap();
        check(&queue, &notes, step);
        queue.recover(at(200), Duration::MAX).unwrap();
        check(&queue, &notes, step);
        assert_eq!(fs::read_dir(queue.path().join("tmp")).unwrap().count(), 0, "step {step}");
        let counts = queue.counts().unwrap();
        assert_eq!(counts.work, 0, "step {step}");
        // None of them is stuck.
        while let Some(claim) = queue.claim(Shard::WHOLE, at(100_000)).unwrap() {
            claim.finish().unwrap();
        }
        let counts = queue.counts().unwrap();
        assert_eq!((counts.new, counts.work), (0, 0), "step {step}");
        if !killed {
            steps = step;
            break;
        }
    }
    assert!(steps > 100, "only {steps} steps were killed");
}

/// Claims all messages that it can, and notes them.
#[test]
fn a_runner() {
    let Some(folder) = folder_of_a_child() else { return };
    let queue = Queue::open(&folder.join("queue")).unwrap();
    let notes = Notes(folder.join(format!("notes-{}", std::process::id())));
    while queue.counts().unwrap().new > 0 {
        let Some(claim) = queue.claim(Shard::WHOLE, at(100)).unwrap() else { continue };
        // No other runner works on a message of this lock.
        let busy = folder.join(format!("busy-{:016x}", claim.name().lock));
        fs::create_dir(&busy).unwrap();
        notes.add(&format!("{}", claim.name()));
        fs::remove_dir(&busy).unwrap();
        claim.finish().unwrap();
        queue.recover(at(100), Duration::MAX).unwrap();
    }
}

#[test]
fn each_of_two_hundred_messages_is_claimed_by_one_of_several_runners() {
    let folder = tempfile::tempdir().unwrap();
    let queue = Queue::open(&folder.path().join("queue")).unwrap();
    let mut names: Vec<String> = (0..200_u64)
        .map(|n| queue.enqueue(&lock(&(n % 40).to_string()), mail(&["a"]), b"x", at(n)).unwrap().to_string())
        .collect();
    let runners: Vec<Child> = (0..3).map(|_| child("a_runner", folder.path()).spawn().unwrap()).collect();
    for mut runner in runners {
        assert!(runner.wait().unwrap().success(), "two were at one lock at once");
    }
    let notes = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let notes = notes.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("notes-"));
    let mut claimed: Vec<String> = notes.flat_map(|path| Notes(path).lines()).collect();
    claimed.sort_unstable();
    names.sort_unstable();
    assert_eq!(claimed, names);
    assert_eq!(queue.counts().unwrap(), Counts::default());
}
