//! The file queue on a disk that is full, and on folders that are not on one file system: on file systems of the test's own.

use crate::not_run::did_not_run;
use crate::queue_of_tests::{Counts, QueueOfTests, finish};
use crate::support::clients_and_processes::{child, subject};
use maildrop_command::lock::{LockName, Shard};
use maildrop_command::queue::{Envelope, Queue, QueueAdminError, QueueError, Recipient, Settlement, State};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

/// What the shell exits with where it may not mount.
const MAY_NOT: i32 = 99;

fn mail(recipients: &[&str]) -> Envelope {
    let recipient = |address: &&str| Recipient { address: (*address).into(), original: None };
    Envelope {
        sender: "lisa@gmail.com".into(),
        recipients: recipients.iter().map(recipient).collect(),
        injected_by: "a test".into(),
        ..Envelope::default()
    }
}

fn lock(name: &str) -> LockName {
    LockName::new("maildrop", name.as_bytes())
}

/// Starts `function` of this file in a process that alone sees what `mount` mounts below its subject.
fn beside_mounts(mount: &str, function: &str) {
    let folder = tempfile::tempdir().unwrap();
    Queue::open(&folder.path().join("queue")).unwrap();
    let alone = child(&format!("service::queue_on_full_disks::{function}"), folder.path().to_str().unwrap());
    let mut command = Command::new("unshare");
    let script = format!("cd \"$MAILDROP_TEST_CHILD\" && {{ {mount}; }} || exit {MAY_NOT}; exec \"$0\" \"$@\"");
    command.args(["--mount", "sh", "-c", &script]).arg(alone.get_program()).args(alone.get_args());
    command.envs(alone.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    let may_unshare = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    let output = may_unshare.is_ok_and(|status| status.success()).then(|| command.output().unwrap());
    match output {
        Some(output) if output.status.code() != Some(MAY_NOT) => {
            let errors =
                format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{errors}");
            assert!(errors.contains("1 passed"), "{errors}");
        }
        // Root may, where nothing forbids it.
        _ => {
            if let Some(list) = std::env::var_os("MAILDROP_TEST_NOT_RUN") {
                did_not_run("MOUNT", Path::new(&list));
            }
        }
    }
}

#[test]
fn a_full_disk_takes_nothing_in_and_loses_nothing() {
    beside_mounts("mount -t tmpfs -o size=512k,mode=0700 tmpfs queue", "on_a_small_disk");
}

#[test]
fn on_a_small_disk() {
    let Some(folder) = subject() else { return };
    let now = SystemTime::now();
    let queue = Queue::open(&Path::new(&folder).join("queue")).unwrap();
    let mut accepted = 0;
    // The large ones first, and then whatever still has room.
    for size in [60_000, 3000, 10] {
        let full = loop {
            match queue.enqueue(&lock(&accepted.to_string()), mail(&["a@x", "b@x"]), &vec![b'x'; size], now) {
                Ok(_) => accepted += 1,
                Err(error) => break error,
            }
        };
        assert!(full.is_no_space() && full.to_string().contains("no room is left"), "{full}");
    }
    let nothing_is_left_behind = || assert_eq!(std::fs::read_dir(queue.path().join("tmp")).unwrap().count(), 0);
    nothing_is_left_behind();
    assert!(accepted > 10);
    assert_eq!(queue.counts().unwrap(), Counts { new: accepted, ..Counts::default() });
    assert!(queue.list().unwrap().iter().all(|entry| entry.reason.is_none() && entry.recipients.len() == 2));

    // Mail leaves a reserve; something else uses that up. What remains of a message cannot be written then: all of it is tried again.
    let other = queue.path().join("something else");
    let mut file = std::fs::File::create(&other).unwrap();
    while file.write_all(&[b'x'; 512]).is_ok() {}
    let claim = queue.claim(Shard::WHOLE, now).unwrap().unwrap();
    let id = claim.name().id();
    let full = claim.settle(&[Settlement::Delivered, Settlement::Deferred], now).unwrap_err();
    assert!(full.is_no_space(), "{full}");
    nothing_is_left_behind();
    let entry = queue.list().unwrap().into_iter().find(|entry| entry.id == id).unwrap();
    assert_eq!((entry.state, entry.recipients.len(), entry.tries), (State::New, 2, 1));
    // So is a refusal.
    let claim = queue.claim(Shard::WHOLE, now).unwrap().unwrap();
    assert!(claim.settle(&vec![Settlement::Refused("no".into()); 2], now).unwrap_err().is_no_space());
    assert_eq!(queue.counts().unwrap(), Counts { new: accepted, ..Counts::default() });

    // Renames need no room: a file that cannot be read is moved away, and a message is held.
    let broken = queue.list().unwrap().into_iter().find(|entry| entry.tries == 0).unwrap();
    let path = queue.path().join("new").join(&broken.file);
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(5).unwrap();
    let claim = queue.claim(Shard::WHOLE, now).unwrap().unwrap();
    assert_eq!(queue.counts().unwrap().bad, 1);
    let entry = queue.list().unwrap().into_iter().find(|entry| entry.state == State::Bad).unwrap();
    assert!(entry.reason.unwrap().contains("cut short"));
    queue.hold(&id).unwrap();

    // Once there is room, all goes on.
    finish(claim);
    std::fs::remove_file(other).unwrap();
    let later = now + Duration::from_hours(1);
    let finish_all = || {
        while let Some(claim) = queue.claim(Shard::WHOLE, later).unwrap() {
            finish(claim);
        }
    };
    finish_all();
    queue.enqueue(&lock("late"), mail(&["a@x"]), &[b'x'; 10], now).unwrap();
    finish_all();
    assert_eq!(queue.counts().unwrap(), Counts { held: 1, bad: 1, ..Counts::default() });
}

#[test]
fn no_message_is_moved_to_a_folder_on_another_file_system() {
    beside_mounts("mount -t tmpfs -o mode=0700 tmpfs queue/held", "with_held_elsewhere");
}

#[test]
fn nor_to_a_bind_mount_though_it_has_the_same_device_number() {
    beside_mounts("mkdir -m 0700 other && mount --bind other queue/held", "with_held_elsewhere");
}

#[test]
fn with_held_elsewhere() {
    let Some(folder) = subject() else { return };
    let path = Path::new(&folder).join("queue");
    let queue = Queue::open(&path).unwrap();
    let id = queue.enqueue(&lock("x"), mail(&["a@x"]), b"x", SystemTime::now()).unwrap().id();
    let QueueAdminError::Queue(error) = queue.hold(&id).unwrap_err() else { panic!() };
    assert!(matches!(&error, QueueError::AnotherFileSystem { path: there } if *there == path.join("held")), "{error}");
    assert!(error.to_string().contains("EXDEV"), "{error}");
    assert_eq!(queue.counts().unwrap(), Counts { new: 1, ..Counts::default() });
}
