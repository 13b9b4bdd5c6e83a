//! Where `replay` takes the envelope from, and whose eyes the lines are for that pipe(8) has prepended.

use crate::support::replay_runs::{Desk, message};

const DOUG: &str = "doug@mail.axial.net";
const SCUBA: &str = "scuba@mail.axial.net";

fn handed_over_for_doug(id: &str) -> String {
    format!("Return-Path: <lisa@gmail.com>\nX-Original-To: alias@mail.axial.net\nDelivered-To: {DOUG}\n{}", message(id))
}

#[test]
fn the_lines_of_pipe_are_the_envelope_and_are_not_repeated() {
    let desk = Desk::new();
    let file = desk.file("maildir/new/1", handed_over_for_doug("1"));
    std::fs::create_dir(desk.path("maildir/cur")).unwrap();
    desk.replay(&[&desk.path("maildir")]).ended(0, [1, 0, 0, 0]);
    assert_eq!(desk.inbox(DOUG), [handed_over_for_doug("1")]);
    let log = std::fs::read_to_string(desk.path("site/delivery.log")).unwrap();
    assert!(log.contains("sender=lisa@gmail.com") && log.contains("original_recipient=alias@mail.axial.net"), "{log}");

    // The same message as it was before, or from doug's own mailbox: it is the same message.
    desk.replay(&["--recipient", DOUG, &desk.file("bare", message("1"))]).ended(0, [0, 1, 0, 0]);
    desk.replay(&[&desk.path("site/doug@mail.axial.net"), &file]).ended(0, [0, 2, 0, 0]);
    assert_eq!(desk.inbox(DOUG).len(), 1);

    // For anybody else they are left out.
    desk.replay(&["--recipient", SCUBA, &file]).ended(0, [1, 0, 0, 0]);
    assert_eq!(desk.inbox(SCUBA), [message("1")]);
}

#[test]
fn without_flag_d_the_recipient_before_rewriting_is_taken() {
    let desk = Desk::new();
    let text = format!("Return-Path: <>\nX-Original-To: {DOUG}\n{}", message("1"));
    desk.replay(&[&desk.file("1", &text)]).ended(0, [1, 0, 0, 0]);
    assert_eq!(desk.inbox(DOUG), [text]);
}

#[test]
fn a_line_further_down_is_the_senders_and_no_envelope() {
    let desk = Desk::new();
    let file = desk.file("1", format!("Received: from x\nDelivered-To: {DOUG}\n{}", message("1")));
    let refused = desk.replay(&[&file]);
    refused.ended(65, [0, 0, 0, 1]);
    assert!(refused.stderr.contains("--recipient") && refused.stderr.contains("FILE.envelope"), "{refused:?}");
    assert_eq!(desk.inbox(DOUG).len(), 0);
}

#[test]
fn a_sidecar_has_the_envelope_and_options_go_before_it() {
    let desk = Desk::new();
    let file = desk.file("folder/1.eml", message("1"));
    let sidecar = format!("sender = \"bounces@lists.example\"\nrecipients = [\"{DOUG}\", \"{SCUBA}\", \"nobody\"]\n");
    desk.file("folder/1.eml.envelope", sidecar);
    let replayed = desk.replay(&[&desk.path("folder")]);
    replayed.ended(65, [2, 0, 0, 1]);
    assert!(replayed.stderr.contains("the recipient \"nobody\": it has no @domain"), "{replayed:?}");
    assert_eq!((desk.inbox(DOUG).len(), desk.inbox(SCUBA).len()), (1, 1));
    let log = std::fs::read_to_string(desk.path("site/delivery.log")).unwrap();
    assert_eq!(log.matches("sender=bounces@lists.example").count(), 2, "{log}");

    desk.replay(&["--recipient", "lisa@mail.axial.net", "--sender", "", &file]).ended(0, [1, 0, 0, 0]);
    desk.file("folder/1.eml.envelope", "recipient = 1");
    let replayed = desk.replay(&[&file]);
    replayed.ended(65, [0, 0, 0, 1]);
    assert!(replayed.stderr.contains("1.eml.envelope: unknown field `recipient`"), "{replayed:?}");
}

#[test]
fn a_sidecar_in_a_maildir_is_no_message() {
    let desk = Desk::new();
    desk.file("maildir/cur/1:2,S", message("1"));
    desk.file("maildir/cur/1:2,S.envelope", format!("recipients = [\"{SCUBA}\"]\n"));
    std::fs::create_dir(desk.path("maildir/new")).unwrap();
    desk.replay(&[&desk.path("maildir")]).ended(0, [1, 0, 0, 0]);
    desk.replay(&["--recipient", DOUG, &desk.path("maildir")]).ended(0, [1, 0, 0, 0]);
    assert_eq!((desk.inbox(SCUBA).len(), desk.inbox(DOUG)), (1, vec![message("1")]));
}

/// lisa@mail.axial.net lives here and has a Maildir: her Sent copy is owed by a replay as by a delivery, once.
#[test]
fn the_authors_sent_copy_is_made_once_for_all_recipients() {
    let desk = Desk::new();
    let text = message("1").replace("lisa@gmail.com", "lisa@mail.axial.net");
    let to = ["lisa@mail.axial.net", DOUG, SCUBA].map(|address| ["--recipient", address]).concat();
    let file = desk.file("1", format!("Delivered-To: {DOUG}\n{text}"));
    // Of an old backup, say, from before Sent copies were ours to make.
    desk.replay(&["--without-sent", "--recipient", "lisa@mail.axial.net", &file]).ended(0, [1, 0, 0, 0]);
    desk.replay(&["--without-sent", "--recipient", SCUBA, &file]).ended(0, [1, 0, 0, 0]);
    assert!(!std::path::Path::new(&desk.path("site/lisa@mail.axial.net/.Sent")).exists());
    desk.replay(&[to.as_slice(), &[&file]].concat()).ended(0, [2, 1, 0, 0]);
    let sent = std::fs::read_dir(desk.path("site/lisa@mail.axial.net/.Sent/cur")).unwrap();
    let sent: Vec<_> = sent.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
    assert_eq!(sent, [text]);
}
