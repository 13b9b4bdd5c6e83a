//! Two recipients of one message are two processes: one goes on, the other learns who is at it. A process that is killed
//! holds nothing up.

use crate::support::clients_and_processes::{child, client, open, soon, subject};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::database::{DatabaseFailure, Idle, Tables};
use maildrop_command::ledger::schema::open_embedded;
use maildrop_command::lock::{Acquired, Holder, LockName, NamedLock};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

fn name() -> LockName {
    LockName::new("maildrop", b"123-abc@mail.google.com")
}

/// Takes the lock, says so, and waits to be killed.
#[test]
fn holder() {
    let Some(directory) = subject() else { return };
    let mut database = open(Path::new(&directory));
    assert!(matches!(database.acquire(&name(), Duration::ZERO).unwrap(), Acquired::Held));
    writeln!(std::io::stdout(), "held").unwrap();
    std::thread::sleep(Duration::from_secs(300));
}

fn start_holder(directory: &Path) -> Child {
    let function = "sqlite_and_maildir::file_lock::holder";
    let mut holder = child(function, directory.to_str().unwrap()).stdout(Stdio::piped()).spawn().unwrap();
    let held = BufReader::new(holder.stdout.take().unwrap()).lines().any(|line| line.unwrap() == "held");
    assert!(held, "the holder died");
    holder
}

fn busy(acquired: Acquired) -> Holder {
    match acquired {
        Acquired::Busy(holder) => holder.expect("the holder is named"),
        Acquired::Held => panic!("two hold it"),
    }
}

#[test]
fn the_second_process_learns_who_holds_it_and_gets_it_when_the_first_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = start_holder(directory.path());
    let mut second = open(directory.path());

    let holder = busy(second.acquire(&name(), Duration::ZERO).unwrap());
    assert_eq!(holder.host.as_deref(), Some("mx1.example"));
    assert_eq!(holder.pid, Some(first.id()));
    assert_eq!(holder.queue_id.as_deref(), Some("4bXyz"));
    assert!(holder.held_for.unwrap() < Duration::from_secs(60));

    // A wait ends when it should, empty-handed.
    let begun = Instant::now();
    busy(second.acquire(&name(), Duration::from_millis(300)).unwrap());
    assert!((Duration::from_millis(300)..Duration::from_secs(30)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert!(!second.still_held(&name()).unwrap());
    // Another message's lock is free.
    let other = LockName::new("maildrop", b"another@mail.google.com");
    assert!(matches!(second.acquire(&other, Duration::ZERO).unwrap(), Acquired::Held));

    // SIGKILL, while the second waits.
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        first.kill().unwrap();
        first.wait().unwrap();
    });
    assert!(matches!(second.acquire(&name(), Duration::from_secs(60)).unwrap(), Acquired::Held));
    assert!(second.still_held(&name()).unwrap());
    killer.join().unwrap();
}

#[test]
fn a_wait_never_passes_the_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, second) = (open(directory.path()), open(directory.path()));
    // Opened with time enough: only the wait ends with this deadline.
    let idle = Idle::after(Box::new(second)).unwrap();
    let mut second = idle.begin(&client("x"), Deadline::after(Duration::from_millis(200))).unwrap();
    first.acquire(&name(), Duration::ZERO).unwrap();
    let begun = Instant::now();
    busy(second.acquire(&name(), Duration::from_secs(60)).unwrap());
    assert!(begun.elapsed() < Duration::from_secs(30));
}

/// `lock exec` connects and gets its lock within a deadline, and then runs a program for as long as that takes.
#[test]
fn a_lock_that_is_kept_outlives_the_deadline_and_so_does_what_is_written_down_of_it() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    let kept = |keep: bool| {
        // The lock itself is had at once, however late it is.
        let deadline = Deadline::after(Duration::from_millis(200));
        let idle = Idle::after(Box::new(open(directory.path()))).unwrap();
        let mut database = idle.begin(&client("x"), deadline).unwrap();
        assert!(matches!(database.acquire(&name(), Duration::ZERO).unwrap(), Acquired::Held));
        if keep {
            database.keep(Duration::from_secs(20)).unwrap();
        }
        while !deadline.passed() {
            std::thread::sleep(deadline.remaining());
        }
        assert!(database.still_held(&name()).unwrap());
        database.release(&name()).unwrap();
        database.change("taking out", "DELETE FROM unknown_recipients", &[]).map_err(|error| error.failure)
    };
    assert_eq!(kept(true), Ok(0));
    // A delivery's statements end with its deadline.
    assert_eq!(kept(false), Err(DatabaseFailure::TimedOut));
}

#[test]
fn a_lock_that_was_let_go_leaves_no_file_and_is_free() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = open(directory.path());
    let mut second = open(directory.path());
    first.acquire(&name(), Duration::ZERO).unwrap();
    busy(second.acquire(&name(), Duration::ZERO).unwrap());
    first.release(&name()).unwrap();
    first.release(&name()).unwrap();
    assert_eq!(std::fs::read_dir(directory.path().join("locks")).unwrap().count(), 0);
    assert!(matches!(second.acquire(&name(), Duration::ZERO).unwrap(), Acquired::Held));
}

#[test]
fn a_lock_whose_file_was_taken_away_is_not_ours_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let locks = || open_embedded(directory.path(), &client("x"), soon()).unwrap();
    let (mut first, mut second) = (locks(), locks());
    first.acquire(&name(), Duration::ZERO).unwrap();
    assert!(first.still_held(&name()).unwrap());
    for file in std::fs::read_dir(directory.path().join("locks")).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    assert!(!first.still_held(&name()).unwrap());
    // And letting go of it does not take away the file of the one who holds it now.
    assert!(matches!(second.acquire(&name(), Duration::ZERO).unwrap(), Acquired::Held));
    first.release(&name()).unwrap();
    assert!(second.still_held(&name()).unwrap());
}

/// What cannot be looked at is no free lock, and none of ours either.
#[test]
fn a_directory_that_cannot_be_looked_into_says_nothing_of_its_locks() {
    let above = tempfile::tempdir().unwrap();
    let directory = above.path().join("locks");
    let mut locks = open_embedded(above.path(), &client("x"), soon()).unwrap();
    locks.acquire(&name(), Duration::ZERO).unwrap();
    std::fs::rename(&directory, above.path().join("moved")).unwrap();
    assert!(!locks.still_held(&name()).unwrap());
    assert_eq!(locks.holder(&name()).unwrap(), None);
    std::fs::write(&directory, "a file where its directory was").unwrap();
    assert_eq!(locks.still_held(&name()).unwrap_err().failure, DatabaseFailure::Local);
    assert_eq!(locks.holder(&name()).unwrap_err().failure, DatabaseFailure::Local);
}

/// Unlinking a file and locking it race in every order here; without the second look at the path, two would be inside.
#[test]
fn many_that_take_and_let_go_are_never_two_inside() {
    let directory = tempfile::tempdir().unwrap();
    let inside = AtomicU32::new(0);
    let turns = AtomicU32::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut locks = open_embedded(directory.path(), &client("x"), soon()).unwrap();
                // On a busy machine hardly anybody gets it within 5 ms: until enough have.
                let mut tries = 0;
                while tries < 300 || turns.load(Ordering::SeqCst) <= 100 && begun.elapsed() < Duration::from_secs(60) {
                    tries += 1;
                    if let Acquired::Held = locks.acquire(&name(), Duration::from_millis(5)).unwrap() {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        turns.fetch_add(1, Ordering::SeqCst);
                        locks.release(&name()).unwrap();
                    }
                }
            });
        }
    });
    assert!(turns.load(Ordering::SeqCst) > 100);
}
