//! Taking out the one copy too many, and nothing else.

use crate::support::imap_server::{ALL, Server, message, position, somebody, stored, wanted};
use maildrop_command::mailbox::ImapMailbox;
use maildrop_command::mailbox::{Mailbox, Placement, Removal};
use maildrop_command::message::Message;

/// A mailbox with our message at UID 1 and 3, and another's at 2, which its owner has marked \Deleted.
struct Twins {
    user: String,
    mailbox: ImapMailbox,
    ours: Message,
    uid_validity: u32,
}

impl Twins {
    fn new(server: Server) -> Self {
        let user = somebody("remove");
        let ours = message("<twins@mail.example>", "ours");
        let mut mailbox = server.open(&user, "INBOX");
        let uid_validity = position(&mut mailbox).uid_validity;
        stored(&mut mailbox, &ours);
        stored(&mut mailbox, &message("<twins@mail.example>", "another's"));
        stored(&mut mailbox, &ours);
        let twins = Self { user, mailbox, ours, uid_validity };
        twins.mark(server, 2);
        twins
    }

    fn mark(&self, server: Server, uid: u32) {
        let mut program = server.mail_program(&self.user);
        program.run("SELECT INBOX").unwrap();
        program.run(&format!("UID STORE {uid} +FLAGS (\\Deleted)")).unwrap();
    }

    fn at(&self, uid: u32) -> Placement {
        Placement { uid_validity: self.uid_validity, uid }
    }

    fn remove(&mut self, extra: u32, keep: u32) -> Removal {
        let (extra, keep) = (self.at(extra), self.at(keep));
        self.mailbox.remove(extra, keep, &wanted(&self.ours, None), &mut || true).unwrap()
    }

    fn left(&self, server: Server) -> Vec<u32> {
        server.mail_program(&self.user).messages("INBOX").iter().map(|message| message.uid).collect()
    }
}

fn with_uidplus() -> impl Iterator<Item = Server> {
    ALL.into_iter().filter(|server| server.has_uidplus())
}

#[test]
fn the_one_too_many_goes_and_what_others_have_marked_stays() {
    for server in with_uidplus() {
        let mut twins = Twins::new(server);
        assert_eq!(twins.remove(3, 1), Removal::Removed, "{server:?}");
        assert_eq!(twins.left(server), [1, 2], "{server:?}");
        // Once more: it is not there any more.
        assert_eq!(twins.remove(3, 1), Removal::NotThere, "{server:?}");
        drop(twins.mailbox);
        let mut program = server.mail_program(&twins.user);
        assert_eq!(program.messages("INBOX").len(), 2, "{server:?}: the end of a session expunges nothing");
    }
}

#[test]
fn a_copy_that_was_marked_when_the_connection_broke_is_taken_out_later() {
    for server in with_uidplus() {
        let mut twins = Twins::new(server);
        twins.mark(server, 3);
        assert_eq!(twins.remove(3, 1), Removal::Removed, "{server:?}");
        assert_eq!(twins.left(server), [1, 2], "{server:?}");
    }
}

#[test]
fn a_keeper_that_is_gone_or_about_to_go_keeps_the_other_alive() {
    for server in with_uidplus() {
        let mut twins = Twins::new(server);
        assert_eq!(twins.remove(3, 2), Removal::KeeperGone, "{server:?}: another message");
        assert_eq!(twins.remove(3, 77), Removal::KeeperGone, "{server:?}: not there");
        twins.mark(server, 1);
        assert_eq!(twins.remove(3, 1), Removal::KeeperGone, "{server:?}: marked \\Deleted");
        assert_eq!(twins.left(server), [1, 2, 3], "{server:?}");
    }
}

#[test]
fn another_message_is_never_taken_out() {
    for server in with_uidplus() {
        let mut twins = Twins::new(server);
        assert_eq!(twins.remove(2, 1), Removal::NotThere, "{server:?}");
        assert_eq!(twins.remove(77, 1), Removal::NotThere, "{server:?}");
        twins.uid_validity += 1;
        assert_eq!(twins.remove(3, 1), Removal::Renumbered, "{server:?}");
        assert_eq!(twins.left(server), [1, 2, 3], "{server:?}");
    }
}

/// What an author's mail program has saved names those to whom he wrote in secret. It stands nowhere else.
#[test]
fn a_copy_that_names_more_recipients_than_the_one_to_keep_is_left() {
    for server in with_uidplus() {
        let mut twins = Twins::new(server);
        let text = String::from_utf8(twins.ours.as_received().to_vec()).unwrap();
        let saved = Message::receive(format!("Bcc: kim@mail.example\n{text}").into_bytes()).unwrap();
        assert_eq!(saved.identity(), twins.ours.identity());
        for _ in 0..2 {
            stored(&mut twins.mailbox, &saved);
        }
        assert_eq!(twins.remove(4, 1), Removal::TellsMore, "{server:?}");
        assert_eq!(twins.left(server), [1, 2, 3, 4, 5], "{server:?}");
        // Of two that name the same, one may go; and so may one that names fewer.
        assert_eq!(twins.remove(5, 4), Removal::Removed, "{server:?}");
        assert_eq!(twins.remove(1, 4), Removal::Removed, "{server:?}");
        assert_eq!(twins.left(server), [2, 3, 4], "{server:?}");
    }
}

#[test]
fn without_the_go_ahead_nothing_is_touched() {
    for server in with_uidplus() {
        let mut twins = Twins::new(server);
        let (extra, keep) = (twins.at(3), twins.at(1));
        let removal = twins.mailbox.remove(extra, keep, &wanted(&twins.ours, None), &mut || false).unwrap();
        assert_eq!(removal, Removal::Withheld);
        let there = server.mail_program(&twins.user).messages("INBOX");
        assert!(!there[2].flags.contains(&"\\Deleted".to_owned()), "{server:?}");
        // The session is as good as before.
        assert_eq!(twins.remove(3, 1), Removal::Removed, "{server:?}");
    }
}

#[test]
fn a_server_without_uidplus_keeps_both() {
    let mut twins = Twins::new(Server::DovecotBare);
    assert_eq!(twins.remove(3, 1), Removal::Unsupported);
    let there = Server::DovecotBare.mail_program(&twins.user).messages("INBOX");
    assert_eq!(there.len(), 3);
    assert!(!there[2].flags.contains(&"\\Deleted".to_owned()));
}

#[test]
fn a_mailbox_that_we_may_not_expunge_keeps_both() {
    let server = Server::Cyrus;
    let mut twins = Twins::new(server);
    // Its owner, who may administer it, gives up the right to expunge (RFC 4314: e).
    let user = twins.user.clone();
    let mut program = server.mail_program(&user);
    program.run(&format!("SETACL INBOX {user} lrswipkxta")).unwrap();
    let removal = twins.remove(3, 1);
    assert_eq!(removal, Removal::Unsupported);
    assert_eq!(twins.left(server), [1, 2, 3]);
}
