//! What a replay leaves behind, another one takes up: what failed, what Ctrl-C cut off.

use crate::program::{Running, wait_until};
use crate::support::replay_runs::{Desk, message};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

const DOUG: &str = "doug@mail.axial.net";
const TO_DOUG: [&str; 2] = ["--recipient", DOUG];

/// Messages of which each is in a folder of its own form.
fn mbox(count: usize) -> String {
    (0..count).map(|n| format!("From lisa@gmail.com\n{}\n", message(&n.to_string()))).collect()
}

#[test]
fn what_failed_is_taken_back_in_from_wherever_it_came() {
    let desk = Desk::new();
    let mbox = desk.file("all.mbox", mbox(2));
    let file = desk.file("a file", message("file"));
    let failed = desk.path("failed");
    let sources = ["--failures-to", &failed, "-", &mbox, &file];
    // Nobody knows for whom.
    desk.replay_input(&sources, message("input").as_bytes()).ended(65, [0, 0, 0, 4]);
    assert_eq!(std::fs::read_to_string(&failed).unwrap().lines().count(), 4);
    // A file of failures is never written over.
    assert_eq!(desk.replay(&sources).exit, Some(73));

    // A mailbox that cannot be made: a file is in its place.
    desk.file("site/doug@mail.axial.net", "");
    let again = desk.path("failed-again");
    let replayed = desk.replay(&[TO_DOUG.as_slice(), &["--failures-to", &again, &failed]].concat());
    replayed.ended(75, [0, 0, 4, 0]);
    assert_eq!(replayed.summary["failures"], again.as_str());
    std::fs::remove_file(desk.path("site/doug@mail.axial.net")).unwrap();

    // The envelope is in it by now. What is delivered is not tried again.
    let other = desk.path("none");
    let replayed = desk.replay(&["--failures-to", &other, "--jobs", "2", &again]);
    replayed.ended(0, [4, 0, 0, 0]);
    assert!(replayed.summary["failures"].is_null() && !std::path::Path::new(&other).exists(), "{replayed:?}");
    desk.replay(&[&again]).ended(0, [0, 4, 0, 0]);
    assert_eq!(desk.inbox(DOUG).len(), 4);
    assert!(desk.inbox(DOUG).contains(&message("input")));

    // Another message is there now: it is not delivered to whom it was not addressed.
    std::fs::write(&file, message("another")).unwrap();
    desk.replay(&[&again]).ended(65, [0, 3, 0, 1]);
}

/// Standard input cannot be had again: what no message could be read from is kept as it came, however often it is tried.
#[test]
fn what_could_not_be_read_from_standard_input_is_kept_whole() {
    let desk = Desk::new();
    let cut = "*** ENVELOPE RECORDS deferred/C3 ***\nsender: lisa@gmail.com\nrecipient: doug@mail.axial.net\n\
               *** MESSAGE CONTENTS deferred/C3 ***\nFrom: lisa@gmail.com\n";
    let [first, second, last] = ["first", "second", "last"].map(|name| desk.path(name));
    desk.replay_input(&["--failures-to", &first, "-"], cut.as_bytes()).ended(65, [0, 0, 0, 1]);
    desk.replay(&["--failures-to", &second, &first]).ended(65, [0, 0, 0, 1]);
    let lines = std::fs::read(&second).unwrap();
    desk.replay_input(&["--failures-to", &last, "-"], &lines).ended(65, [0, 0, 0, 1]);
    for file in [first, second, last] {
        let line = std::fs::read_to_string(file).unwrap();
        let failure: serde_json::Value = serde_json::from_str(&line).unwrap();
        let content = STANDARD.decode(failure["source"]["content"].as_str().unwrap()).unwrap();
        assert_eq!((content.as_slice(), &failure["source"]["form"]), (cut.as_bytes(), &"queue-file".into()), "{line}");
        assert!(failure["reason"].as_str().unwrap().contains("is not whole"), "{line}");
    }
}

#[test]
fn the_same_message_many_times_at_once_is_delivered_once_and_waits_for_nobody() {
    let desk = Desk::new();
    for n in 0..40 {
        desk.file(&format!("folder/{n}"), message(&(n % 4).to_string()));
    }
    // A lock held elsewhere would be a deferral.
    desk.replay(&[TO_DOUG.as_slice(), &["--jobs", "8", &desk.path("folder")]].concat()).ended(0, [4, 36, 0, 0]);
    assert_eq!(desk.inbox(DOUG).len(), 4);
}

#[test]
fn ctrl_c_ends_after_the_messages_in_progress_and_a_second_run_goes_on() {
    // Enough that a busy machine does not deliver them all before it is asked to end.
    const ALL: usize = 600;
    let desk = Desk::new();
    let mbox = desk.file("all.mbox", mbox(ALL));
    let arguments = [TO_DOUG.as_slice(), &["--jobs", "2", &mbox]].concat();
    let mut command = desk.command(&arguments);
    command.arg("--json");
    let mut running = Running::start(command, b"");
    wait_until("something is delivered", || !desk.inbox(DOUG).is_empty());
    running.interrupt();
    wait_until("it ends", || running.has_ended());
    assert_eq!(running.status().code(), Some(75));
    let (line, complaints) = running.outputs();
    let summary: serde_json::Value = serde_json::from_str(&line).unwrap();
    let there = desk.inbox(DOUG).len();
    assert!(0 < there && there < ALL, "{there}");
    assert_eq!(
        (summary["delivered"].as_u64(), summary["left"].as_u64()),
        (Some(there as u64), Some((ALL - there) as u64))
    );
    assert!(
        summary["failures"].is_null() && complaints.contains("ending after the messages in progress"),
        "{complaints}"
    );
    // Nothing was cut short: no attempt is left open.
    let rest = ALL - there;
    desk.replay(&arguments).ended(0, [rest as u64, there as u64, 0, 0]);
    let mut ids = desk.inbox(DOUG);
    ids.dedup();
    assert_eq!(ids.len(), ALL);
}

/// While messages are looked for, none is in progress: nothing to wait for.
#[test]
fn what_has_not_begun_is_ended_at_once() {
    let desk = Desk::new();
    // Somebody has forgotten the pipe.
    let mut command = desk.command(&[TO_DOUG.as_slice(), &["-"]].concat());
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let descriptors = format!("/proc/{}/fd", running.id());
    let reads_its_input = || {
        let links = std::fs::read_dir(&descriptors).unwrap().flatten().filter_map(|fd| fd.path().read_link().ok());
        links.map(|link| link.to_string_lossy().into_owned()).any(|link| link.contains("/maildrop_command-"))
    };
    wait_until("it reads its standard input", reads_its_input);
    // SIGINT may be ignored by whatever runs this, and then is by what it starts.
    let sent = Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap();
    assert!(sent.success());
    wait_until("it ends", || running.try_wait().unwrap().is_some());
    assert_eq!(running.wait().unwrap().signal(), Some(15));
}

/// On a full disk not all that failed is written down: nobody says that it was, and what was written can be read.
#[test]
fn a_file_of_failures_that_lacks_some_says_so() {
    let desk = Desk::new();
    let mbox = desk.file("all.mbox", mbox(60));
    let (failures, inner) = (desk.path("failures"), desk.command(&["--failures-to", "failures", &mbox]));
    // A file that cannot grow beyond some kilobytes.
    let mut limited = Command::new("/bin/sh");
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""])
        .arg(inner.get_program())
        .args(inner.get_args());
    let output = limited.current_dir(inner.get_current_dir().unwrap()).output().unwrap();
    let [printed, complained] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(output.status.code(), Some(65), "{complained}");
    assert!(
        complained.contains("could not all be written down") && !complained.contains("has them all"),
        "{complained}"
    );
    assert!(
        printed.contains("only some of what failed is in failures") && !printed.contains("once repaired"),
        "{printed}"
    );
    let lines = std::fs::read_to_string(failures).unwrap();
    assert!(lines.ends_with('\n') && (1..60).contains(&lines.lines().count()), "{lines}");
    assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{lines}");
}
