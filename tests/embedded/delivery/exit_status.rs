//! What Postfix reads from the pipe and the exit code that it gets are of one verdict, whatever the pipe is like.

use crate::support::clients_and_processes::{HARNESS, child, subject};
use maildrop_command::delivery::{StatusDetail, Verdict};
use maildrop_command::pipe::report;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

/// Reports two verdicts, the second in vain, and exits with the status of its argument.
#[test]
fn reporter() {
    let Some(subject) = subject() else { return };
    let (begin, first) = subject.split_once(' ').unwrap();
    match begin {
        "at-once" => {}
        // Wait for the parent, which closes the pipe first.
        "when-closed" => drop(std::io::stdin().read_to_end(&mut Vec::new()).unwrap()),
        // Fill the pipe, which is not to block.
        "when-full" => {
            while std::io::stdout().write_all(&[b'x'; 1024]).and_then(|()| std::io::stdout().flush()).is_ok() {}
        }
        other => panic!("{other}"),
    }
    let delivered = Verdict::delivered("delivered");
    let deferred = Verdict::deferred(StatusDetail::SYSTEM, "deferred");
    let (first, second) = if first == "delivered" { (delivered, deferred) } else { (deferred, delivered) };
    let exit = report(&first);
    assert_eq!(report(&second), exit);
    std::process::exit(u8::from(exit).into());
}

const REPORTER: &str = "delivery::exit_status::reporter";

#[test]
fn the_line_and_the_exit_code_are_those_of_the_first() {
    for (first, line, exit) in [("delivered", "2.0.0 delivered\n", 0), ("deferred", "4.3.0 deferred\n", 75)] {
        let output = child(REPORTER, &format!("at-once {first}")).output().unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert_eq!(stdout.strip_prefix(HARNESS), Some(line));
        assert_eq!(output.status.code(), Some(exit));
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn a_pipe_that_postfix_has_closed_changes_nothing() {
    let mut reporter = child(REPORTER, "when-closed deferred")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(reporter.stdout.take().unwrap());
    let mut line = String::new();
    while line != "running 1 test\n" {
        line.clear();
        assert_ne!(stdout.read_line(&mut line).unwrap(), 0);
    }
    drop(stdout);
    drop(reporter.stdin.take());
    let output = reporter.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_full_pipe_that_does_not_block_changes_nothing() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let reporter =
        child(REPORTER, "when-full deferred").stdout(OwnedFd::from(theirs)).stderr(Stdio::piped()).spawn().unwrap();
    let output = reporter.wait_with_output().unwrap();
    drop(ours);
    assert_eq!(output.status.code(), Some(75));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
