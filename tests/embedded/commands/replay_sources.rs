//! `replay` takes messages from files, folders, Maildirs, mboxes, what postcat prints and standard input; from wherever they
//! come, each is delivered once, and again at no time: the oldest first.

use crate::support::replay_runs::{Desk, message};
use std::fs::File;
use std::process::Command;
use std::time::{Duration, SystemTime};

const DOUG: &str = "doug@mail.axial.net";
const TO_DOUG: [&str; 4] = ["--sender", "lisa@gmail.com", "--recipient", DOUG];

/// Makes a file as old as this.
fn aged(path: &str, hours: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
}

#[test]
fn a_folder_a_maildir_and_an_mbox_are_delivered_once_the_oldest_first() {
    let desk = Desk::new();
    for (name, hours) in
        [("folder/1.eml", 1), ("folder/below/5.eml", 5), ("maildir/cur/3:2,S", 3), ("maildir/new/4", 4)]
    {
        aged(
            &desk.file(name, message(name.split(['/', '.', ':']).rfind(|part| part.parse::<u8>().is_ok()).unwrap())),
            hours,
        );
    }
    // None of these is a message to be replayed.
    for name in
        ["folder/.hidden", "folder/1.eml.envelope", "maildir/tmp/6", "maildir/.Sent/cur/7", "maildir/dovecot.index"]
    {
        desk.file(name, "");
    }
    let mbox = format!(
        "From lisa Fri Nov 20 08:00:00 2020\n{}\nFrom lisa Thu Nov 19 08:00:00 2020\n{}\n>From here on\n>>From there\n\n",
        message("8"),
        message("9")
    );
    let mbox = desk.file("mail.mbox", mbox);
    let (folder, maildir) = (desk.path("folder"), desk.path("maildir"));
    let arguments = [TO_DOUG.as_slice(), &[&folder, &maildir, &mbox, &mbox]].concat();

    let would = desk.replay_input(&[arguments.as_slice(), &["--dry-run"]].concat(), b"");
    assert_eq!(would.exit, Some(66), "to look at a site must not make it: {would:?}");
    desk.replay(&arguments).ended(0, [6, 0, 0, 0]);
    assert_eq!(desk.delivered_in_order(), ["9", "8", "5", "4", "3", "1"].map(|id| format!("<{id}@mail.google.com>")));
    let inbox = desk.inbox(DOUG);
    assert_eq!(inbox.len(), 6);
    assert!(inbox.contains(&format!("{}\nFrom here on\n>From there\n", message("9"))), "{inbox:?}");
    assert!(inbox.contains(&message("8")), "{inbox:?}");

    for more in [["--jobs", "1"], ["--jobs", "3"]] {
        desk.replay(&[arguments.as_slice(), &more].concat()).ended(0, [0, 6, 0, 0]);
    }
    assert_eq!(desk.inbox(DOUG), inbox);
}

#[test]
fn standard_input_is_a_message_an_mbox_or_a_queue_file() {
    let desk = Desk::new();
    let arguments = [TO_DOUG.as_slice(), &["-"]].concat();
    desk.replay_input(&arguments, message("one").as_bytes()).ended(0, [1, 0, 0, 0]);
    let mbox = format!("From a@b\n{}\nFrom a@b\n{}", message("two"), message("three"));
    desk.replay_input(&arguments, mbox.as_bytes()).ended(0, [2, 0, 0, 0]);
    // The very same, as files.
    desk.replay(&[TO_DOUG.as_slice(), &[&desk.file("x", mbox), &desk.file("y", message("one"))]].concat())
        .ended(0, [0, 3, 0, 0]);
    // One message whose first line is that of an mbox: pipe(8) with flag F.
    let odd = format!("From a@b\n{}\nFrom here on\n", message("four"));
    desk.replay_input(&[arguments.as_slice(), &["--format", "message"]].concat(), odd.as_bytes())
        .ended(0, [1, 0, 0, 0]);
    assert!(desk.inbox(DOUG).contains(&format!("{}\nFrom here on\n", message("four"))));
    // Named twice, it is still one source.
    desk.replay_input(&[arguments.as_slice(), &["-"]].concat(), message("five").as_bytes()).ended(0, [1, 0, 0, 0]);
    assert_eq!(desk.replay_input(&["-"], b"").exit, Some(65), "an empty message");
}

#[test]
fn an_mbox_that_would_be_cut_in_its_messages_is_refused() {
    let desk = Desk::new();
    let mbox =
        format!("From a@b\nContent-Length: 18\n{}\nFrom here on\n\nFrom a@b\n{}", message("one"), message("two"));
    let mbox = desk.file("mbox", mbox);
    let refused = desk.replay(&[TO_DOUG.as_slice(), &[&mbox]].concat());
    assert!(refused.exit == Some(65) && refused.stderr.contains("mboxcl2"), "{refused:?}");
    assert_eq!(desk.inbox(DOUG).len(), 0);
    // Unless people know better.
    let replayed = desk.replay(&[TO_DOUG.as_slice(), &["--format", "mbox", &mbox]].concat());
    // What stands behind the line that is none is no message.
    replayed.ended(65, [2, 0, 0, 1]);
}

#[test]
fn what_postcat_prints_of_several_queue_files() {
    let desk = Desk::new();
    let printed = |id: &str, recipients: &str| {
        format!(
            "*** ENVELOPE RECORDS deferred/{id} ***\nmessage_arrival_time: Sat Nov 21 08:20:09 2026\nsender: lisa@gmail.com\n\
             {recipients}*** MESSAGE CONTENTS deferred/{id} ***\n{}*** HEADER EXTRACTED deferred/{id} ***\n\
             *** MESSAGE FILE END deferred/{id} ***\n",
            message(id)
        )
    };
    let both = [
        printed(
            "A1",
            "done_recipient: lisa@mail.axial.net\nrecipient: doug@mail.axial.net\nrecipient: scuba@mail.axial.net\n",
        ),
        printed("B2", "original_recipient: alias@mail.axial.net\nrecipient: doug@mail.axial.net\n"),
    ];
    let file = desk.file("printed", both.concat());
    for jobs in ["1", "2"] {
        let replayed = desk.replay(&["--jobs", jobs, &file]);
        let numbers = if jobs == "1" { [3, 0, 0, 0] } else { [0, 3, 0, 0] };
        replayed.ended(0, numbers);
    }
    assert_eq!(desk.inbox(DOUG), [message("A1"), message("B2")]);
    assert_eq!(desk.inbox("scuba@mail.axial.net"), [message("A1")]);
    assert_eq!(desk.inbox("lisa@mail.axial.net").len(), 0);
    let log = std::fs::read_to_string(desk.path("site/delivery.log")).unwrap();
    assert!(log.contains("queue_id=B2") && log.contains("original_recipient=alias@mail.axial.net"), "{log}");

    // What was not copied whole is not delivered.
    let cut = both[0].replace("A1", "C3");
    let cut = desk.file("cut", cut.split_once("*** HEADER").unwrap().0);
    desk.replay(&[&cut]).ended(65, [0, 0, 0, 1]);
    let raw = desk.file("raw", "C_           5313             453               3");
    let replayed = desk.replay(&[&raw]);
    assert!(replayed.exit == Some(65) && replayed.stderr.contains("postcat"), "{replayed:?}");
}

#[test]
fn a_dry_run_says_what_would_happen_and_does_nothing() {
    let desk = Desk::new();
    desk.replay_input(&[TO_DOUG.as_slice(), &["-"]].concat(), message("there").as_bytes()).ended(0, [1, 0, 0, 0]);
    let files = [desk.file("1", message("there")), desk.file("2", message("new"))];
    let would = desk.replay(&[TO_DOUG.as_slice(), &["--dry-run", &files[0], &files[1]]].concat());
    would.ended(0, [1, 1, 0, 0]);
    let shown: Vec<(&str, &str)> =
        would.printed.iter().map(|line| (line["result"].as_str().unwrap(), line["detail"].as_str().unwrap())).collect();
    let plan = "INBOX of doug@mail.axial.net (recipient): to be appended";
    assert_eq!(shown, [("already there", "already there"), ("to be delivered", plan)]);
    assert_eq!(desk.inbox(DOUG).len(), 1);
    desk.replay(&[TO_DOUG.as_slice(), &[&files[0], &files[1]]].concat()).ended(0, [1, 1, 0, 0]);
}

/// A replay with an option that would be ignored is refused, before anything is delivered to everybody else.
#[test]
fn what_would_be_ignored_is_no_way_to_narrow_it() {
    let desk = Desk::new();
    desk.replay(&[TO_DOUG.as_slice(), &[&desk.file("1", message("1"))]].concat()).ended(0, [1, 0, 0, 0]);
    for narrow in [["--mailbox", DOUG], ["--sender", "lisa@gmail.com"], ["--format", "mbox"]] {
        for what in [["--since", "1d"].as_slice(), &["--failed"], &["--message-id", "<1@mail.google.com>"]] {
            assert_eq!(desk.replay(&[what, &narrow].concat()).exit, Some(64), "{what:?} {narrow:?}");
        }
    }
    assert_eq!(desk.replay(&["--mailbox", DOUG, &desk.path("1")]).exit, Some(64));
    desk.replay(&["--since", "1d", "--recipient", DOUG]).ended(0, [0, 1, 0, 0]);
    desk.replay(&["--owed", "--mailbox", DOUG]).ended(0, [0; 4]);
    desk.replay(&["--restore", "--since", "1d", "--mailbox", DOUG, "--yes"]).ended(0, [0; 4]);
}

#[test]
fn what_is_compressed_is_not_delivered_as_it_is() {
    let desk = Desk::new();
    std::fs::create_dir_all(desk.path("maildir/new")).unwrap();
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0";
    desk.file("maildir/cur/1:2,S", gzip);
    desk.file("maildir/cur/2:2,S", message("2"));
    let replayed = desk.replay(&[TO_DOUG.as_slice(), &[&desk.path("maildir")]].concat());
    replayed.ended(65, [1, 0, 0, 1]);
    assert!(replayed.stderr.contains("mail_compress"), "{replayed:?}");
    desk.replay_input(&[TO_DOUG.as_slice(), &["-"]].concat(), b"\x28\xb5\x2f\xfd\0").ended(65, [0, 0, 0, 1]);
    assert_eq!(desk.inbox(DOUG), [message("2")]);
}

#[test]
fn a_pipe_is_no_file_and_is_not_waited_for() {
    let desk = Desk::new();
    let pipe = desk.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let replayed = desk.replay(&[TO_DOUG.as_slice(), &[&pipe]].concat());
    assert!(replayed.exit == Some(65) && replayed.stderr.contains("standard input"), "{replayed:?}");
}
