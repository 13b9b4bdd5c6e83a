//! pipe(8) is killed while it writes a message to the program: by each `postfix stop`, or by the machine's lack of memory.
//! What the program has read then ends like a message, and is the beginning of one. It is delivered to nobody.

use crate::program::{feed, program, wait_until};
use crate::support::clients_and_processes::{HARNESS, child, open, subject};
use maildrop_command::delivery::lock_of_message_id;
use maildrop_command::lock::{Acquired, DEFAULT_NAMESPACE, NamedLock};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const MESSAGE_ID: &str = "<123-abc@mail.google.com>";

/// Some 300 kB: five times what a pipe holds.
fn message() -> Vec<u8> {
    let mut message = format!("From: lisa@gmail.com\nMessage-ID: {MESSAGE_ID}\nSubject: Hello\n\n").into_bytes();
    for line in 0..4000 {
        writeln!(message, "{line:06} a line of the body that is as long as most lines of a body are").unwrap();
    }
    message
}

fn delivery(directory: &Path) -> Command {
    let directory = directory.to_str().unwrap();
    program(&["--embedded", directory, "--sender", "lisa@gmail.com", "--recipient", "doug@mail.axial.net"])
}

/// How many messages are in his INBOX.
fn inbox(directory: &Path) -> usize {
    let new = directory.join("doug@mail.axial.net/new");
    std::fs::read_dir(new).map_or(0, |entries| entries.count())
}

/// What a query says of the ledger; nothing where there is no ledger yet.
fn ledger(directory: &Path, query: &str) -> Vec<String> {
    let file = directory.join("ledger.sqlite");
    if !file.exists() {
        return Vec::new();
    }
    let ledger = rusqlite::Connection::open(file).unwrap();
    let mut statement = ledger.prepare(query).unwrap();
    statement.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// Nothing has come of it; and the next try, with all of the message, delivers it.
fn nothing_is_there_and_the_next_try_delivers(directory: &Path) {
    assert_eq!(inbox(directory), 0);
    assert_eq!(ledger(directory, "SELECT id FROM messages"), [] as [&str; 0]);
    assert_eq!(ledger(directory, "SELECT recipient FROM attempts WHERE ended_at IS NULL"), [] as [&str; 0]);
    feed(delivery(directory), &message()).delivered();
    assert_eq!(inbox(directory), 1);
}

const WRITTEN: [usize; 4] = [200, 4_000, 40_000, 60_000];

#[test]
fn the_beginning_of_a_message_is_deferred() {
    for written in WRITTEN {
        let directory = tempfile::tempdir().unwrap();
        let mut child = delivery(directory.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&message()[..written]).unwrap();
        drop(child.stdout.take());
        drop(stdin);
        assert_eq!(child.wait().unwrap().code(), Some(75), "{written}");
        let log = std::fs::read_to_string(directory.path().join("delivery.log")).unwrap();
        assert!(log.contains("4.3.0 the program that handed the message over has died"), "{log}");
        nothing_is_there_and_the_next_try_delivers(directory.path());
    }
}

/// Does as pipe(8) does, as far as it comes: two pipes, the program, so many bytes of the message. Then it waits to be
/// killed.
#[test]
fn writer() {
    let Some(subject) = subject() else { return };
    let (written, directory) = subject.split_once(' ').unwrap();
    let mut child = delivery(Path::new(directory)).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&message()[..written.parse().unwrap()]).unwrap();
    println!("written");
    child.wait().unwrap();
}

#[test]
fn a_writer_that_is_killed_has_nothing_delivered() {
    for written in WRITTEN {
        let directory = tempfile::tempdir().unwrap();
        let subject = format!("{written} {}", directory.path().display());
        let mut writer = child("delivery::client_died::writer", &subject)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut received = vec![0; HARNESS.len() + "written\n".len()];
        writer.stdout.as_mut().unwrap().read_exact(&mut received).unwrap();
        writer.kill().unwrap();
        writer.wait().unwrap();
        // The program has its stderr from the writer: this one ends when the program does.
        let mut stderr = String::new();
        writer.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(stderr, "");
        let log = std::fs::read_to_string(directory.path().join("delivery.log")).unwrap();
        assert!(log.contains("4.3.0 the program that handed the message over has died"), "{written}: {log}");
        nothing_is_there_and_the_next_try_delivers(directory.path());
    }
}

/// Once more before the copy is stored: a death that was not seen at the end of the message is seen there.
#[test]
fn a_caller_that_dies_while_the_lock_is_waited_for_has_nothing_delivered() {
    let directory = tempfile::tempdir().unwrap();
    let mut holder = open(directory.path());
    let lock = lock_of_message_id(DEFAULT_NAMESPACE, MESSAGE_ID.as_bytes());
    assert!(matches!(holder.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
    let mut waiting = delivery(directory.path());
    let mut waiting = waiting.arg("--lock-wait=200s").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    waiting.stdin.take().unwrap().write_all(&message()).unwrap();
    wait_until("it is in the journal", || {
        assert_eq!(waiting.try_wait().unwrap(), None);
        ledger(directory.path(), "SELECT recipient FROM attempts").len() == 1
    });
    drop(waiting.stdout.take());
    holder.release(&lock).unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(75));
    let outcome = ledger(directory.path(), "SELECT outcome FROM attempts");
    assert_eq!(outcome, ["deferred: the client that passed the message has died"]);
    nothing_is_there_and_the_next_try_delivers(directory.path());
}

#[test]
fn two_hundred_callers_that_live_are_never_taken_for_dead() {
    let message = message();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let directory = tempfile::tempdir().unwrap();
                for number in 0..50 {
                    let id = format!("<{number}@mail.google.com>");
                    let message = String::from_utf8_lossy(&message).replace(MESSAGE_ID, &id);
                    feed(delivery(directory.path()), message.as_bytes()).delivered();
                }
                assert_eq!(inbox(directory.path()), 50);
            });
        }
    });
}

/// Nobody is behind a file, a terminal or /dev/null who could die.
#[test]
fn where_stdout_is_no_pipe_the_end_of_file_is_the_end_of_the_message() {
    let directory = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(directory.path().join("stdout")).unwrap();
    for (number, stdout) in [Stdio::null(), Stdio::from(file)].into_iter().enumerate() {
        let mut child = delivery(directory.path()).stdin(Stdio::piped()).stdout(stdout).spawn().unwrap();
        let message = format!("From: lisa@gmail.com\nMessage-ID: <{number}@mail.google.com>\n\nHello\n");
        child.stdin.take().unwrap().write_all(message.as_bytes()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!(inbox(directory.path()), number + 1);
    }
}

/// What some programs give a command in place of two pipes.
#[test]
fn a_socket_whose_other_end_is_closed_tells_it_too() {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    for dies in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let (mut here, there) = UnixStream::pair().unwrap();
        let there: OwnedFd = there.into();
        let stdin = Stdio::from(there.try_clone().unwrap());
        let mut command = delivery(directory.path());
        let mut child = command.stdin(stdin).stdout(Stdio::from(there)).spawn().unwrap();
        // It has copies of what it gave the child.
        drop(command);
        if dies {
            here.write_all(&message()[..4_000]).unwrap();
            drop(here);
            assert_eq!(child.wait().unwrap().code(), Some(75));
            nothing_is_there_and_the_next_try_delivers(directory.path());
        } else {
            here.write_all(&message()).unwrap();
            here.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(0));
            assert_eq!(inbox(directory.path()), 1);
        }
    }
}
