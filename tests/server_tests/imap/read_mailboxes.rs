//! Reading real mailboxes long after a delivery: by UID, in bounded pieces, and without leaving a trace.

use crate::support::imap_server::{ALL, Server, message, position, somebody, stored};
use maildrop_command::mailbox::{Listed, MailboxFailure, Placement, Position, Presence, ReadableMailbox, Recorded};
use maildrop_command::message::Role;
use maildrop_command::message::{Identity, Message};

fn recorded(message: &Message, placement: Option<Placement>) -> Recorded<'_> {
    Recorded { identity: message.identity(), role: Role::Recipient, placement }
}

fn listed(mailbox: &mut impl ReadableMailbox, since: Position) -> Vec<Listed> {
    let mut listed = Vec::new();
    mailbox.list(since, &mut |one| listed.push(one)).unwrap();
    listed
}

#[test]
fn a_message_is_read_by_its_uid_and_stays_unseen() {
    for server in ALL {
        let user = somebody("read");
        let mut mailbox = server.open(&user, "INBOX");
        let Position { uid_validity, .. } = position(&mut mailbox);
        let messages = ["one", "two"].map(|id| message(&format!("<{id}@mail.example>"), id));
        for message in &messages {
            stored(&mut mailbox, message);
        }
        for (uid, message) in (1..).zip(&messages) {
            let bytes = mailbox.read(&recorded(message, Some(Placement { uid_validity, uid }))).unwrap().unwrap();
            assert_eq!(bytes, message.as_received(), "{server:?}");
        }
        let [one, _] = &messages;
        for elsewhere in
            [None, Some(Placement { uid_validity, uid: 3 }), Some(Placement { uid_validity: uid_validity - 1, uid: 1 })]
        {
            assert_eq!(mailbox.read(&recorded(one, elsewhere)).unwrap(), None, "{server:?} {elsewhere:?}");
        }
        let flags: Vec<_> = server.mail_program(&user).messages("INBOX").into_iter().flat_map(|m| m.flags).collect();
        assert!(!flags.contains(&"\\Seen".to_owned()), "{server:?}: {flags:?}");
    }
}

#[test]
fn what_is_there_and_what_is_gone_is_reported_by_uid() {
    for server in ALL {
        let user = somebody("read");
        let mut mailbox = server.open(&user, "INBOX");
        let ours = message("<there@mail.example>", "ours");
        for _ in 0..4 {
            stored(&mut mailbox, &ours);
        }
        let mut program = server.mail_program(&user);
        program.run("SELECT INBOX").unwrap();
        program.run("STORE 2 +FLAGS (\\Deleted)").unwrap();
        program.run("EXPUNGE").unwrap();
        program.run("STORE 3 +FLAGS (\\Deleted)").unwrap();
        let now = position(&mut mailbox);
        let at = |uid| Some(Placement { uid_validity: now.uid_validity, uid });
        let renumbered = Some(Placement { uid_validity: now.uid_validity - 1, uid: 1 });
        let asked = [at(1), at(2), at(3), at(4), at(9), renumbered, None].map(|place| recorded(&ours, place));
        let seen = mailbox.presence(&asked).unwrap();
        let expected = [
            Presence::There,
            Presence::Gone,
            Presence::There,
            Presence::MarkedDeleted,
            Presence::Gone,
            Presence::Renumbered,
            Presence::Unplaced,
        ];
        assert_eq!((seen.copies.as_slice(), seen.position), (&expected[..], Some(now)), "{server:?}");
    }
}

#[test]
fn a_list_begins_at_a_uid() {
    for server in ALL {
        let user = somebody("read");
        let mut mailbox = server.open(&user, "INBOX");
        let nothing = position(&mut mailbox);
        assert_eq!(listed(&mut mailbox, nothing), []);
        let nameless = Message::receive(b"Subject: none\n\nbody\n".to_vec()).unwrap();
        let munged = Message::receive("Message-ID: <für@x>\n\nbody\n".as_bytes().to_vec()).unwrap();
        let all = [&message("<one@mail.example>", "1"), &message("<two@mail.example>", "2"), &nameless, &munged];
        for message in all {
            stored(&mut mailbox, message);
        }
        let list = listed(&mut mailbox, Position { uid_next: 2, ..nothing });
        let names: Vec<_> = list.iter().map(|one| (one.uid, one.message_id.as_deref(), one.deleted)).collect();
        let expected: [(u32, Option<&[u8]>, bool); 3] =
            [(2, Some(b"<two@mail.example>"), false), (3, None, false), (4, Some(b"<fXXr@x>"), false)];
        assert_eq!(names, expected, "{server:?}");
        assert_eq!(list[0].size, all[1].size(), "{server:?}");
        assert_eq!(
            listed(&mut mailbox, Position { uid_next: 5, ..nothing }),
            [],
            "{server:?}: n:* is the last one, too"
        );
        let renumbered = Position { uid_validity: nothing.uid_validity - 1, uid_next: 1 };
        assert_eq!(listed(&mut mailbox, renumbered), [], "{server:?}");
    }
}

/// More than one command names, with gaps.
#[test]
fn hundreds_of_messages_are_read_in_pieces() {
    let (server, user) = (Server::Dovecot, somebody("read"));
    let ours = message("<many@mail.example>", "ours");
    let mut mailbox = server.open(&user, "INBOX");
    stored(&mut mailbox, &ours);
    let mut program = server.mail_program(&user);
    program.run("SELECT INBOX").unwrap();
    for _ in 0..9 {
        program.run("COPY 1:* INBOX").unwrap();
        program.run("NOOP").unwrap();
    }
    for uid in (3..=512).step_by(3) {
        program.run(&format!("UID STORE {uid} +FLAGS.SILENT (\\Deleted)")).unwrap();
    }
    program.run("EXPUNGE").unwrap();
    let Position { uid_validity, uid_next } = position(&mut mailbox);
    assert_eq!(uid_next, 513);
    let left: Vec<u32> = (1..=512).filter(|uid| uid % 3 != 0).collect();
    let asked: Vec<_> = (1..=512).rev().map(|uid| recorded(&ours, Some(Placement { uid_validity, uid }))).collect();
    let seen = mailbox.presence(&asked).unwrap().copies;
    let mut there: Vec<u32> = asked
        .iter()
        .zip(&seen)
        .filter(|(_, seen)| **seen == Presence::There)
        .filter_map(|(asked, _)| asked.placement.map(|at| at.uid))
        .collect();
    there.sort_unstable();
    assert_eq!(there, left);
    let all = listed(&mut mailbox, Position { uid_validity, uid_next: 1 });
    assert_eq!(all.iter().map(|one| one.uid).collect::<Vec<_>>(), left);
}

#[test]
fn a_mailbox_that_is_not_there_is_not_made_by_reading() {
    for server in ALL {
        let user = somebody("read");
        let mut mailbox = server.open(&user, "Sent");
        let identity = Identity::of(b"x");
        let copy = Recorded { identity: &identity, role: Role::Sender, placement: None };
        let error = mailbox.presence(&[copy]).unwrap_err();
        assert_eq!(error.failure, MailboxFailure::NoSuchMailbox, "{server:?}: {error}");
        let copy = Recorded { placement: Some(Placement { uid_validity: 1, uid: 1 }), ..copy };
        mailbox.read(&copy).unwrap_err();
        let there = server.mail_program(&user).run("LIST \"\" Sent").unwrap();
        assert!(there.iter().all(|response| !response.text.contains("Sent")), "{server:?}: {there:?}");
    }
}
