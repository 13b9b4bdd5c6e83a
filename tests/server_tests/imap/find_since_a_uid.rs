//! Looking for a copy in real mailboxes: only from where it can be, and only what really is the same message.

use crate::support::container;
use crate::support::imap_server::{ALL, Server, message, new_copy, position, somebody, stored, wanted};
use maildrop_command::mailbox::{FoundCopies, FoundCopy, Mailbox, Matching, NewCopy, Placement, Position, Wanted};
use maildrop_command::message::{Identity, Message};
use std::process::Command;
use time::Duration;

fn uids(found: &FoundCopies) -> Vec<u32> {
    found.copies.iter().filter_map(|copy| copy.placement).map(|placement| placement.uid).collect()
}

#[test]
fn what_another_session_appended_since_is_found() {
    for server in ALL {
        let user = somebody("find");
        let ours = message("<same@mail.example>", "ours");
        let mut mailbox = server.open(&user, "INBOX");
        stored(&mut mailbox, &ours);
        let since = position(&mut mailbox);
        let nothing = mailbox.find(&wanted(&ours, Some(since))).unwrap();
        assert_eq!(
            nothing,
            FoundCopies { in_range: true, copies: Vec::new() },
            "{server:?}: n:* gives the last one, too"
        );
        let mut another = server.open(&user, "INBOX");
        stored(&mut another, &message("<same@mail.example>", "a stranger's, with our Message-ID"));
        stored(&mut another, &ours);
        stored(&mut another, &message("<other@mail.example>", "ours"));
        // Another recipient's copy: its trace differs, its author's words do not.
        let other = String::from_utf8(ours.as_received().to_vec()).unwrap().replace("Return-Path", "Delivered-To");
        stored(&mut another, &Message::receive(other.into_bytes()).unwrap());
        let found = mailbox.find(&wanted(&ours, Some(since))).unwrap();
        let at =
            |uid| FoundCopy { placement: Some(Placement { uid_validity: since.uid_validity, uid }), deleted: false };
        assert_eq!(found, FoundCopies { in_range: true, copies: vec![at(3), at(5)] }, "{server:?}");
    }
}

/// A Dovecot that was killed in the midst of an APPEND gave its UID to the next message too: the first kept the file, and
/// the second its fields in the cache (seen on 2.4.1).
#[test]
fn a_copy_is_found_whatever_the_server_has_cached_of_its_fields() {
    let dovecot = container("DOVECOT");
    let user = somebody("cached");
    let (ours, next) = (message("<ours@mail.example>", "one"), message("<next@mail.example>", "one"));
    let mut mailbox = Server::Dovecot.open(&user, "INBOX");
    let since = position(&mut mailbox);
    stored(&mut mailbox, &next);
    let mut program = Server::Dovecot.mail_program(&user);
    program.run("EXAMINE INBOX").unwrap();
    let mut field = || {
        let fetched = program.run("UID FETCH 1 (BODY.PEEK[HEADER.FIELDS (MESSAGE-ID)])").unwrap();
        String::from_utf8(fetched[0].literals[0].clone()).unwrap()
    };
    assert!(field().contains("<next@"), "this is cached now");
    let other_bytes = format!("sed -i 's/<next@/<ours@/' /srv/home/{user}/Maildir/new/*");
    let sed = Command::new("docker").args(["exec", &dovecot, "sh", "-ec", &other_bytes]).status().unwrap();
    assert!(sed.success());
    assert!(field().contains("<next@"), "the cache has noticed: this test proves nothing");
    assert_eq!(uids(&mailbox.find(&wanted(&ours, Some(since))).unwrap()), [1]);
    assert_eq!(uids(&mailbox.find(&wanted(&next, Some(since))).unwrap()), [] as [u32; 0]);
}

#[test]
fn a_copy_marked_deleted_is_found_as_such() {
    for server in ALL {
        let user = somebody("find");
        let ours = message("<deleted@mail.example>", "ours");
        let mut mailbox = server.open(&user, "INBOX");
        let since = position(&mut mailbox);
        stored(&mut mailbox, &ours);
        let mut program = server.mail_program(&user);
        program.run("SELECT INBOX").unwrap();
        program.run("STORE 1 +FLAGS (\\Deleted)").unwrap();
        let found = mailbox.find(&wanted(&ours, Some(since))).unwrap();
        assert!(matches!(found.copies.as_slice(), [FoundCopy { deleted: true, .. }]), "{server:?}: {found:?}");
    }
}

#[test]
fn odd_message_ids_and_none_at_all_are_found() {
    let odd: [&[u8]; 7] = [
        b"Message-ID: <gr\xfc\xdfe@mail.example>\nSubject: x\n\nbody\n",
        "Message-ID: <grüße@mail.example>\nSubject: x\n\nbody\n".as_bytes(),
        b"Message-ID: <a\"b\\c(d) e@mail.example>\nSubject: x\n\nbody\n",
        b"Message-ID:\n <folded@mail.example>\nSubject: x\n\nbody\n",
        b"Message-ID: <=?utf-8?q?a?=@mail.example>\nSubject: x\n\nbody\n",
        b"Subject: none\n\nbody\n",
        b"Message-ID: <one@mail.example>\nMessage-ID: <two@mail.example>\nSubject: x\n\nbody\n",
    ];
    for server in ALL {
        let user = somebody("find");
        let mut mailbox = server.open(&user, "INBOX");
        let since = position(&mut mailbox);
        let mut messages: Vec<Message> = odd.iter().map(|bytes| Message::receive(bytes.to_vec()).unwrap()).collect();
        let long = format!("Message-ID: <{}@mail.example>\nSubject: x\n\nbody\n", "x".repeat(900));
        messages.push(Message::receive(long.into_bytes()).unwrap());
        for message in &messages {
            stored(&mut mailbox, message);
        }
        // See below: what Cyrus has made of them has another Message-ID; it is recognised by its identity.
        let munged = |message: &Message| server == Server::Cyrus && !message.as_received().is_ascii();
        for (uid, message) in (1..).zip(&messages) {
            for (since, in_range) in [(Some(since), true), (None, false)] {
                let found = mailbox.find(&wanted(message, since)).unwrap();
                assert_eq!((uids(&found), found.in_range), (vec![uid], in_range), "{server:?}: {message:?}");
            }
            if message.message_id().is_some() && !munged(message) {
                let by_id = Wanted { matching: Matching::MessageId, ..wanted(message, Some(since)) };
                assert_eq!(uids(&mailbox.find(&by_id).unwrap()), [uid], "{server:?}: {message:?}");
            }
        }
    }
}

#[test]
fn a_renumbered_mailbox_is_searched_whole() {
    for server in ALL {
        let user = somebody("find");
        let ours = message("<renumbered@mail.example>", "ours");
        let mut mailbox = server.open(&user, "INBOX");
        stored(&mut mailbox, &ours);
        let now = position(&mut mailbox);
        let then = Position { uid_validity: now.uid_validity - 1, uid_next: 1000 };
        let found = mailbox.find(&wanted(&ours, Some(then))).unwrap();
        assert_eq!((uids(&found), found.in_range), (vec![1], false), "{server:?}");
    }
}

#[test]
fn a_mail_programs_own_copy_is_found_by_its_id_whatever_else_is_in_it() {
    for server in ALL {
        let user = somebody("find");
        let ours = message("<by-id@mail.example>", "as sent");
        let mut mailbox = server.open(&user, "Sent");
        let saved = message("<by-id@mail.example>", "as saved");
        stored(&mut mailbox, &saved);
        let old = NewCopy { arrived: crate::support::imap_server::ARRIVED - Duration::days(9), ..new_copy(&saved) };
        mailbox.append(&old, &mut || true);
        let by_id = Wanted { matching: Matching::MessageId, ..wanted(&ours, None) };
        assert_eq!(uids(&mailbox.find(&by_id).unwrap()), [1], "{server:?}: the second is too old");
        assert_eq!(uids(&mailbox.find(&wanted(&ours, None)).unwrap()), Vec::<u32>::new());
    }
}

#[test]
fn hundreds_of_candidates_are_no_obstacle() {
    // More than one FETCH command names; one server's word on it is enough.
    let (server, user) = (Server::Dovecot, somebody("find"));
    let without_id = Message::receive(b"Subject: none\n\nbody\n".to_vec()).unwrap();
    let mut mailbox = server.open(&user, "INBOX");
    stored(&mut mailbox, &without_id);
    let mut program = server.mail_program(&user);
    program.run("SELECT INBOX").unwrap();
    for _ in 0..8 {
        program.run("COPY 1:* INBOX").unwrap();
        program.run("NOOP").unwrap();
    }
    assert_eq!(uids(&mailbox.find(&wanted(&without_id, None)).unwrap()), (1..=256).collect::<Vec<_>>());
}

#[test]
fn cyrus_writes_x_for_each_byte_beyond_ascii_in_a_header() {
    // munge8bit, on by default: the copy is no longer what was sent. Its identity is the same all the same.
    let (server, user) = (Server::Cyrus, somebody("find"));
    let ours = Message::receive("Message-ID: <a@b>\nSubject: für\n\nfür\n".as_bytes().to_vec()).unwrap();
    stored(&mut server.open(&user, "INBOX"), &ours);
    let there = server.mail_program(&user).messages("INBOX");
    assert_eq!(Identity::of(&there[0].content), *ours.identity());
    assert_eq!(there[0].content, "Message-ID: <a@b>\r\nSubject: fXXr\r\n\r\nfür\r\n".as_bytes());
}
