//! At the deadline the process ends with 75, whatever it hangs in.

use crate::support::clients_and_processes::{HARNESS, child, subject};
use maildrop_command::delivery::{StatusDetail, Verdict};
use maildrop_command::pipe::deadline_watchdog::Watchdog;
use maildrop_command::pipe::report;
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Time enough to fill a pipe, or to report, on a busy machine.
const TIME: Duration = Duration::from_secs(2);

/// Starts a watchdog and hangs.
#[test]
fn hanger() {
    let Some(subject) = subject() else { return };
    let _watchdog = Watchdog::start(TIME, Verdict::deferred(StatusDetail::SYSTEM, "out of time")).unwrap();
    match subject.as_str() {
        "asleep" => {}
        // Holds stdout's lock and hangs in a write to it: nobody reads.
        "in-a-write" => loop {
            std::io::stdout().lock().write_all(&[b'x'; 1024]).unwrap();
            std::io::stdout().lock().flush().unwrap();
        },
        // Delivered, said so, and hangs on the way out.
        "after-its-report" => drop(report(&Verdict::delivered("delivered"))),
        other => panic!("{other}"),
    }
    std::thread::sleep(Duration::from_secs(300));
}

const HANGER: &str = "delivery::watchdog::hanger";

#[test]
fn a_delivery_that_hangs_is_deferred_with_its_line() {
    let begun = Instant::now();
    let output = child(HANGER, "asleep").output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    assert_eq!(String::from_utf8(output.stdout).unwrap().strip_prefix(HARNESS), Some("4.3.0 out of time\n"));
    assert!((TIME..Duration::from_secs(60)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

#[test]
fn a_stdout_that_blocks_does_not_hold_it_up() {
    // A process that hung for all of its time has not filled the pipe: then once more.
    let mut is_full = false;
    while !is_full {
        let begun = Instant::now();
        let mut hanger = child(HANGER, "in-a-write").stdout(Stdio::piped()).spawn().unwrap();
        let status = hanger.wait().unwrap();
        let elapsed = begun.elapsed();
        assert_eq!(status.code(), Some(75), "{status}");
        assert!(elapsed < Duration::from_secs(60), "{elapsed:?}");
        let mut text = String::new();
        hanger.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        is_full = text.len() > 60_000;
        // No line came through.
        assert!(!is_full || text.ends_with('x'), "{} bytes", text.len());
    }
}

/// `2.0.0` with exit 75 would bounce a message that was delivered.
#[test]
fn a_delivery_that_reported_ends_with_its_own_exit_code() {
    loop {
        let output = child(HANGER, "after-its-report").output().unwrap();
        let (code, line) = (output.status.code(), String::from_utf8(output.stdout).unwrap());
        match line.strip_prefix(HARNESS) {
            // It hung until its time was over, and had not reported yet: then once more.
            Some("4.3.0 out of time\n") => assert_eq!(code, Some(75)),
            line => return assert_eq!((line, code), (Some("2.0.0 delivered\n"), Some(0))),
        }
    }
}
