//! Looking for a copy, and taking one out, against a server that is odd, old or refuses: what is removed is never in doubt.

use crate::imap_peer::{BARE, Peer, mailbox, peer};
use maildrop_command::mailbox::{
    FoundCopies, FoundCopy, Mailbox, MailboxError, MailboxFailure, Matching, Placement, Position, Removal, Wanted,
};
use maildrop_command::message::Identity;
use maildrop_command::message::Role;
use time::macros::datetime;

const MESSAGE: &str = "Message-ID: <a@b>\nSubject: hello\n\nhello\n";
const UIDPLUS: &str = "IMAP4rev1 SASL-IR AUTH=PLAIN UIDPLUS";

fn message() -> String {
    MESSAGE.replace('\n', "\r\n")
}

fn wanted(identity: &Identity, matching: Matching, since: Option<Position>) -> Wanted<'_> {
    let not_before = datetime!(2026-02-01 12:00 UTC);
    Wanted { message_id: Some("<a@b>"), identity, role: Role::Recipient, matching, since, not_before }
}

fn at(uid: u32) -> Placement {
    Placement { uid_validity: 3, uid }
}

fn find(script: impl FnOnce(&mut Peer) + Send + 'static, matching: Matching, since: Option<Position>) -> FoundCopies {
    let (settings, thread) = peer(|peer| {
        peer.welcome(BARE);
        script(peer);
    });
    let identity = Identity::of(message().as_bytes());
    let found = mailbox(&settings).find(&wanted(&identity, matching, since)).unwrap();
    thread.join().unwrap();
    found
}

/// Opens the mailbox for the client.
fn select(peer: &mut Peer, command: &str) {
    assert_eq!(peer.command(), format!("{command} \"INBOX\""));
    peer.say("* 5 EXISTS\n* OK [UIDVALIDITY 3] ok\n* OK [UIDNEXT 12] ok\n");
    peer.answer("OK [READ-ONLY] selected");
}

fn header(peer: &mut Peer, uid: u32, id: &str) {
    let header = format!("Message-ID: {id}\r\n\r\n");
    peer.say(&format!("* 1 FETCH (UID {uid} FLAGS (\\Seen) RFC822.SIZE 40 BODY[HEADER] {{{}}}\n", header.len()));
    peer.say(&format!("Message-ID: {id}\n\n)\n"));
}

fn whole(peer: &mut Peer, uid: u32, flags: &str, text: &str) {
    assert_eq!(peer.command(), format!("UID FETCH {uid} (FLAGS BODY.PEEK[])"));
    // Somebody marks another message meanwhile.
    peer.say("* 4 FETCH (UID 99 FLAGS (\\Deleted))\n* 4 FETCH (FLAGS (\\Deleted))\n");
    let length = text.replace('\n', "\r\n").len();
    peer.say(&format!("* 2 FETCH (BODY[] {{{length}}}\n{text} UID {uid} FLAGS ({flags}))\n"));
    peer.answer("OK");
}

#[test]
fn only_what_arrived_since_and_is_the_same_message_is_found() {
    let script = |peer: &mut Peer| {
        select(peer, "EXAMINE");
        assert_eq!(peer.command(), "UID FETCH 8:* (FLAGS RFC822.SIZE BODY.PEEK[HEADER])");
        header(peer, 7, "<a@b>");
        header(peer, 11, "<a@b>");
        header(peer, 10, "<somebody@else>");
        header(peer, 9, "<a@b>");
        header(peer, 8, "<a@b>");
        peer.answer("OK");
        whole(peer, 8, "", MESSAGE);
        whole(peer, 9, "", "Message-ID: <a@b>\nSubject: forged\n\nhello\n");
        whole(peer, 11, "\\Seen \\Deleted", MESSAGE);
    };
    let since = Some(Position { uid_validity: 3, uid_next: 8 });
    let found = find(script, Matching::Identity, since);
    let copies = vec![
        FoundCopy { placement: Some(at(8)), deleted: false },
        FoundCopy { placement: Some(at(11)), deleted: true },
    ];
    assert_eq!(found, FoundCopies { in_range: true, copies });
}

/// What was asked for may come in several answers (RFC 3501 section 7.4.2 does not say that it is one). A copy that is not
/// seen for that would be appended again.
#[test]
fn a_message_that_comes_in_pieces_is_found() {
    let script = |peer: &mut Peer| {
        select(peer, "EXAMINE");
        peer.command();
        peer.say("* 1 FETCH (UID 8 FLAGS (\\Deleted))\n* 1 FETCH (UID 8 RFC822.SIZE 40)\n");
        peer.say("* 1 FETCH (UID 8 BODY[HEADER] {21}\nMessage-ID: <a@b>\n\n)\n");
        peer.answer("OK");
        assert_eq!(peer.command(), "UID FETCH 8 (FLAGS BODY.PEEK[])");
        let length = message().len();
        peer.say("* 1 FETCH (UID 8 FLAGS (\\Deleted))\n");
        peer.say(&format!("* 1 FETCH (UID 8 BODY[] {{{length}}}\n{MESSAGE})\n"));
        peer.answer("OK");
    };
    let found = find(script, Matching::Identity, Some(Position { uid_validity: 3, uid_next: 8 }));
    let copies = vec![FoundCopy { placement: Some(at(8)), deleted: true }];
    assert_eq!(found, FoundCopies { in_range: true, copies });
}

#[test]
fn the_last_message_is_not_new_for_being_last() {
    let script = |peer: &mut Peer| {
        select(peer, "EXAMINE");
        peer.command();
        header(peer, 11, "<a@b>");
        peer.answer("OK");
    };
    let found = find(script, Matching::Identity, Some(Position { uid_validity: 3, uid_next: 12 }));
    assert_eq!(found, FoundCopies { in_range: true, copies: Vec::new() });
}

/// The largest message that is ever read is one byte short of what nobody delivers.
#[test]
fn what_is_too_large_to_be_read_is_passed_over() {
    let script = |peer: &mut Peer| {
        select(peer, "EXAMINE");
        peer.command();
        for (uid, size) in [(8, (256 << 20) + 1), (9, 256 << 20)] {
            let items = format!("UID {uid} FLAGS () RFC822.SIZE {size} BODY[HEADER] {{21}}");
            peer.say(&format!("* 1 FETCH ({items}\nMessage-ID: <a@b>\n\n)\n"));
        }
        peer.answer("OK");
        whole(peer, 9, "", MESSAGE);
    };
    let found = find(script, Matching::Identity, Some(Position { uid_validity: 3, uid_next: 8 }));
    assert_eq!(found.copies, [FoundCopy { placement: Some(at(9)), deleted: false }]);
}

#[test]
fn a_renumbered_mailbox_is_searched_whole_by_date_and_id() {
    let script = |peer: &mut Peer| {
        select(peer, "EXAMINE");
        assert_eq!(peer.command(), "UID SEARCH SINCE 31-Jan-2026 HEADER Message-ID \"a@b\"");
        peer.say("* SEARCH 2\n* SEARCH 5\n");
        peer.answer("OK");
        assert_eq!(peer.command(), "UID FETCH 2,5 (FLAGS RFC822.SIZE BODY.PEEK[HEADER])");
        header(peer, 2, "<xa@b>");
        header(peer, 5, "<a@b>");
        peer.answer("OK");
    };
    let found = find(script, Matching::MessageId, Some(Position { uid_validity: 2, uid_next: 8 }));
    let copies = vec![FoundCopy { placement: Some(at(5)), deleted: false }];
    assert_eq!(found, FoundCopies { in_range: false, copies });
}

#[test]
fn an_empty_mailbox_is_not_searched() {
    let script = |peer: &mut Peer| {
        peer.command();
        peer.say("* 0 EXISTS\n* OK [UIDVALIDITY 3] ok\n");
        peer.answer("OK");
    };
    assert_eq!(find(script, Matching::Identity, None), FoundCopies::default());
}

#[test]
fn without_uidvalidity_nothing_is_believed() {
    let (settings, thread) = peer(|peer| {
        peer.welcome(BARE);
        peer.command();
        peer.answer("OK");
    });
    let identity = Identity::of(b"");
    let error = mailbox(&settings).find(&wanted(&identity, Matching::Identity, None)).unwrap_err();
    assert_eq!(error.failure, MailboxFailure::Protocol);
    thread.join().unwrap();
}

fn remove(
    capabilities: &'static str,
    script: impl FnOnce(&mut Peer) + Send + 'static,
    go_ahead: bool,
) -> (Result<Removal, MailboxError>, Vec<u8>) {
    let (settings, thread) = peer(move |peer| {
        peer.welcome(capabilities);
        script(peer);
        peer.rest()
    });
    let identity = Identity::of(message().as_bytes());
    let wanted = wanted(&identity, Matching::Identity, None);
    let mut mailbox = mailbox(&settings);
    let removal = mailbox.remove(at(9), at(8), &wanted, &mut || go_ahead);
    drop(mailbox);
    (removal, thread.join().unwrap())
}

/// Both copies are there and the same.
fn twins(peer: &mut Peer) {
    select(peer, "SELECT");
    whole(peer, 9, "\\Seen", MESSAGE);
    whole(peer, 8, "", MESSAGE);
}

fn mark_and_expunge(peer: &mut Peer) -> [String; 2] {
    assert_eq!(peer.command(), "UID STORE 9 +FLAGS.SILENT (\\Deleted)");
    let mark = peer.tag.clone();
    // Not answered yet, and the second is there.
    assert_eq!(peer.command(), "UID EXPUNGE 9");
    [mark, peer.tag.clone()]
}

#[test]
fn the_one_too_many_is_taken_out_by_its_uid() {
    let script = |peer: &mut Peer| {
        twins(peer);
        let [mark, expunge] = mark_and_expunge(peer);
        peer.say(&format!("{mark} OK\n* 2 EXPUNGE\n{expunge} OK\n"));
    };
    let (removal, rest) = remove(UIDPLUS, script, true);
    assert_eq!(removal.unwrap(), Removal::Removed);
    assert_eq!(rest, b"");
}

#[test]
fn a_connection_lost_on_the_way_is_reported_and_not_called_removed() {
    let script = |peer: &mut Peer| {
        twins(peer);
        let [mark, _] = mark_and_expunge(peer);
        peer.say(&format!("{mark} OK\n"));
        peer.hang_up();
    };
    let (removal, _) = remove(UIDPLUS, script, true);
    assert_eq!(removal.unwrap_err().failure, MailboxFailure::ConnectionLost);
}

#[test]
fn a_server_that_refuses_to_expunge_leaves_it() {
    for (mark_answer, expunge_answer) in [("OK", "NO [NOPERM] no"), ("NO [NOPERM] no", "OK"), ("OK", "BAD what?")] {
        let script = move |peer: &mut Peer| {
            twins(peer);
            let [mark, expunge] = mark_and_expunge(peer);
            peer.say(&format!("{mark} {mark_answer}\n{expunge} {expunge_answer}\n"));
        };
        assert_eq!(remove(UIDPLUS, script, true).0.unwrap(), Removal::Unsupported);
    }
}

#[test]
fn in_any_doubt_it_is_left() {
    type Doubt = fn(&mut Peer);
    let doubts: [(Doubt, Removal); 8] = [
        (
            |peer| {
                peer.command();
                peer.say("* OK [UIDVALIDITY 4] renumbered\n");
                peer.answer("OK");
            },
            Removal::Renumbered,
        ),
        (
            |peer| {
                select(peer, "SELECT");
                peer.command();
                peer.answer("OK");
            },
            Removal::NotThere,
        ),
        (
            |peer| {
                select(peer, "SELECT");
                whole(peer, 9, "", "Message-ID: <a@b>\nSubject: another\n\nhello\n");
            },
            Removal::NotThere,
        ),
        (
            |peer| {
                select(peer, "SELECT");
                peer.command();
                peer.say("* 2 FETCH (UID 9 FLAGS () BODY[] NIL)\n");
                peer.answer("OK");
            },
            Removal::NotThere,
        ),
        (
            |peer| {
                select(peer, "SELECT");
                whole(peer, 9, "", MESSAGE);
                peer.command();
                peer.answer("OK");
            },
            Removal::KeeperGone,
        ),
        (
            |peer| {
                select(peer, "SELECT");
                whole(peer, 9, "", MESSAGE);
                whole(peer, 8, "\\Seen \\deleted", MESSAGE);
            },
            Removal::KeeperGone,
        ),
        (
            |peer| {
                select(peer, "SELECT");
                whole(peer, 9, "", MESSAGE);
                whole(peer, 8, "", "Message-ID: <a@b>\nSubject: another\n\nhello\n");
            },
            Removal::KeeperGone,
        ),
        (
            |peer| {
                // Whether it is marked \Deleted, the server does not say.
                select(peer, "SELECT");
                whole(peer, 9, "", MESSAGE);
                peer.command();
                let length = message().len();
                peer.say(&format!("* 2 FETCH (BODY[] {{{length}}}\n{MESSAGE} UID 8)\n"));
                peer.answer("OK");
            },
            Removal::KeeperGone,
        ),
    ];
    for (number, (doubt, expected)) in doubts.into_iter().enumerate() {
        let (removal, rest) = remove(UIDPLUS, doubt, true);
        assert_eq!(removal.unwrap(), expected, "{number}");
        assert_eq!(String::from_utf8_lossy(&rest), "", "{number}: nothing was touched");
    }
    let (removal, rest) = remove(UIDPLUS, twins, false);
    assert_eq!((removal.unwrap(), rest), (Removal::Withheld, Vec::new()));
    let (removal, rest) = remove(BARE, |_| {}, true);
    assert_eq!((removal.unwrap(), rest), (Removal::Unsupported, Vec::new()));
}

/// A program that saves a message for its author keeps the line of the blind recipients. That is no part of the
/// identity, and stands nowhere else.
#[test]
fn a_copy_that_alone_tells_who_was_written_to_blindly_is_left() {
    const DORA: &str = "Bcc: dora@x\nMessage-ID: <a@b>\nSubject: hello\n\nhello\n";
    const EMIL: &str = "Bcc: emil@x\nMessage-ID: <a@b>\nSubject: hello\n\nhello\n";
    for (extra, keep) in [(DORA, MESSAGE), (DORA, EMIL)] {
        let script = move |peer: &mut Peer| {
            select(peer, "SELECT");
            whole(peer, 9, "", extra);
            whole(peer, 8, "", keep);
        };
        let (removal, rest) = remove(UIDPLUS, script, true);
        assert_eq!((removal.unwrap(), rest), (Removal::TellsMore, Vec::new()), "{extra} {keep}");
    }
    for (extra, keep) in [(MESSAGE, DORA), (DORA, DORA)] {
        let script = move |peer: &mut Peer| {
            select(peer, "SELECT");
            whole(peer, 9, "", extra);
            whole(peer, 8, "", keep);
            let [mark, expunge] = mark_and_expunge(peer);
            peer.say(&format!("{mark} OK\n* 2 EXPUNGE\n{expunge} OK\n"));
        };
        assert_eq!(remove(UIDPLUS, script, true).0.unwrap(), Removal::Removed, "{extra} {keep}");
    }
}

#[test]
fn the_copy_to_keep_is_never_the_one_to_take_out() {
    let (settings, thread) = peer(|peer| {
        peer.welcome(UIDPLUS);
        peer.rest()
    });
    let identity = Identity::of(message().as_bytes());
    let wanted = wanted(&identity, Matching::Identity, None);
    let error = mailbox(&settings).remove(at(8), at(8), &wanted, &mut || true).unwrap_err();
    assert_eq!(error.failure, MailboxFailure::Local);
    assert_eq!(thread.join().unwrap(), b"");
}
