//! Appending to real servers: what is stored is what was sent, where it is said to be, and nothing is stored without the
//! last CRLF.

use crate::support::imap_server::{ALL, ARRIVED, Server, append, message, new_copy, position, somebody, stored};
use maildrop_command::imap::{Encryption, Settings};
use maildrop_command::mailbox::{Appended, Mailbox, NewCopy, Placement};
use maildrop_command::message::Message;
use std::time::Duration;

#[test]
fn a_copy_is_stored_as_it_was_sent_where_the_server_says() {
    for server in ALL {
        let user = somebody("append");
        let message = message("<123-abc@mail.google.com>", "hello");
        let mut mailbox = server.open(&user, "INBOX");
        let before = position(&mut mailbox);
        let placement = stored(&mut mailbox, &message);
        let expected = Placement { uid_validity: before.uid_validity, uid: before.uid_next };
        // Dovecot answers it even if it is configured to announce no UIDPLUS.
        assert_eq!(placement, Some(expected), "{server:?}");
        assert_eq!(position(&mut mailbox).uid_next, before.uid_next + 1);
        let there = server.mail_program(&user).messages("INBOX");
        assert_eq!(there.len(), 1, "{server:?}");
        assert_eq!(there[0].uid, before.uid_next);
        assert_eq!(there[0].content, message.as_received(), "{server:?}");
        assert!(!there[0].flags.contains(&"\\Seen".to_owned()));
    }
}

#[test]
fn the_senders_copy_is_seen_and_dated_as_reported() {
    for server in ALL {
        let user = somebody("append");
        let message = message("<seen@mail.example>", "seen");
        let mut mailbox = server.open(&user, "INBOX");
        let appended = mailbox.append(&NewCopy { seen: true, ..new_copy(&message) }, &mut || true);
        assert!(matches!(appended, Appended::Stored(_)), "{appended:?}");
        let mut program = server.mail_program(&user);
        program.run("EXAMINE INBOX").unwrap();
        let response = format!("{:?}", program.run("FETCH 1 (FLAGS INTERNALDATE)").unwrap());
        assert!(response.contains("\\\\Seen"), "{server:?}: {response}");
        // In whatever time zone the server likes.
        let same = ["3-Feb-2026 04:05:06 +0100", "3-Feb-2026 03:05:06 +0000"];
        assert!(same.iter().any(|date| response.contains(date)), "{server:?}: {response} for {ARRIVED}");
    }
}

#[test]
fn a_missing_mailbox_is_created_whatever_its_name() {
    for server in ALL {
        let user = somebody("append");
        for name in ["Sent", "Entwürfe", "Tom & Jerry's (mail)", "日本語"] {
            let mut mailbox = server.open(&user, name);
            let position = position(&mut mailbox);
            assert_eq!(position.uid_next, 1, "{server:?} {name}");
            stored(&mut mailbox, &message("<a@b>", "x"));
        }
        let mut program = server.mail_program(&user);
        let subscribed = format!("{:?}", program.run("LSUB \"\" *").unwrap());
        assert!(subscribed.contains("Sent") && subscribed.contains("Entw&APw-rfe"), "{server:?}: {subscribed}");
        assert_eq!(program.messages("Entw&APw-rfe").len(), 1);
        assert_eq!(program.messages("&ZeVnLIqe-").len(), 1);
    }
}

#[test]
fn a_mailbox_that_was_removed_since_is_created_again() {
    for server in ALL {
        let user = somebody("append");
        let mut mailbox = server.open(&user, "Sent");
        position(&mut mailbox);
        server.mail_program(&user).run("DELETE Sent").unwrap();
        // A session that has created it once does not do so for ever.
        let refused = append(&mut mailbox, &message("<a@b>", "x"));
        assert!(matches!(refused, Appended::Refused(_)), "{server:?}: {refused:?}");
        let mut mailbox = server.open(&user, "Sent");
        stored(&mut mailbox, &message("<a@b>", "x"));
        assert_eq!(server.mail_program(&user).messages("Sent").len(), 1, "{server:?}");
    }
}

#[test]
fn ten_megabytes_arrive_whole() {
    let line = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd\r\n";
    let message =
        Message::receive(format!("Message-ID: <big@b>\r\n\r\n{}", line.repeat(160_000)).into_bytes()).unwrap();
    for server in ALL {
        let user = somebody("append");
        stored(&mut server.open(&user, "INBOX"), &message);
        let there = server.mail_program(&user).messages("INBOX");
        assert!(there.len() == 1 && there[0].content == message.as_received(), "{server:?}");
        // And under TLS, whose buffers are not those of TCP.
        let settings = Settings { encryption: Encryption::StartTls, ..server.settings() };
        let session = crate::support::imap_server::log_in(&settings, &user).unwrap();
        stored(&mut session.open("INBOX"), &message);
        let there = server.mail_program(&user).messages("INBOX");
        assert!(there.len() == 2 && there[1].content == message.as_received(), "{server:?}");
    }
}

#[test]
fn without_the_last_crlf_nothing_is_stored() {
    for server in ALL {
        for encryption in [Encryption::None, Encryption::StartTls] {
            let user = somebody("append");
            let settings = Settings { encryption, ..server.settings() };
            let mut mailbox = crate::support::imap_server::log_in(&settings, &user).unwrap().open("INBOX");
            let before = position(&mut mailbox);
            let withheld = mailbox.append(&new_copy(&message("<a@b>", "x")), &mut || {
                // Time enough for the server to make of it what it will.
                std::thread::sleep(Duration::from_millis(300));
                false
            });
            assert!(matches!(withheld, Appended::Withheld), "{server:?}: {withheld:?}");
            std::thread::sleep(Duration::from_millis(300));
            let mut again = server.open(&user, "INBOX");
            assert_eq!(server.mail_program(&user).messages("INBOX").len(), 0, "{server:?}");
            assert_eq!(position(&mut again).uid_validity, before.uid_validity);
        }
    }
}

#[test]
fn a_session_appends_as_often_as_it_is_asked() {
    for server in [Server::Dovecot, Server::Cyrus] {
        let user = somebody("append");
        let mut mailbox = server.open(&user, "INBOX");
        for number in 1..=5 {
            let placement = stored(&mut mailbox, &message(&format!("<{number}@b>"), "x"));
            assert_eq!(placement.map(|placement| placement.uid), Some(number));
        }
    }
}
