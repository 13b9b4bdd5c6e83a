//! Reading a mailbox long after a delivery, against a server that is odd: in bounded pieces, by UID, and no more is believed than
//! what was asked for.

use crate::imap_peer::{BARE, Peer, mailbox, peer};
use maildrop_command::mailbox::{
    ImapMailbox, Listed, MailboxFailure, MailboxPresence, Placement, Position, Presence, ReadableMailbox, Recorded,
};
use maildrop_command::message::{Identity, Role};

/// What `look` makes of a server that follows this script, and what else it said to the server.
fn seen<T>(script: impl FnOnce(&mut Peer) + Send + 'static, look: impl FnOnce(&mut ImapMailbox) -> T) -> T {
    let (settings, thread) = peer(|peer| {
        peer.welcome(BARE);
        script(peer);
        String::from_utf8(peer.rest()).unwrap()
    });
    let mut mailbox = mailbox(&settings);
    let seen = look(&mut mailbox);
    drop(mailbox);
    assert_eq!(thread.join().unwrap(), "");
    seen
}

/// EXAMINE, of a mailbox that says so of itself.
fn examined(peer: &mut Peer, lines: &str) {
    assert_eq!(peer.command(), "EXAMINE \"INBOX\"");
    peer.say(lines);
    peer.answer("OK [READ-ONLY] examined");
}

/// The answer to a command.
fn asked(peer: &mut Peer, command: &str, lines: &str) {
    assert_eq!(peer.command(), command);
    peer.say(lines);
    peer.answer("OK done");
}

fn listed(script: impl FnOnce(&mut Peer) + Send + 'static, since: u32) -> Vec<Listed> {
    seen(script, |mailbox| {
        let mut listed = Vec::new();
        mailbox.list(Position { uid_validity: 3, uid_next: since }, &mut |one| listed.push(one)).unwrap();
        listed
    })
}

fn uids(listed: &[Listed]) -> Vec<u32> {
    listed.iter().map(|one| one.uid).collect()
}

const ITEMS: &str = "(FLAGS RFC822.SIZE BODY.PEEK[HEADER])";

#[test]
fn a_list_is_of_messages_as_they_are_in_the_order_of_their_uids() {
    let listed = listed(
        |peer| {
            examined(peer, "* 3 EXISTS\n* OK [UIDVALIDITY 3] x\n* OK [UIDNEXT 12] x\n");
            asked(peer, "UID SEARCH UID 5:11", "* SEARCH 9 4 7 12\n* SEARCH 11\n");
            asked(
                peer,
                &format!("UID FETCH 7,9,11 {ITEMS}"),
                "* 3 FETCH (UID 11 BODY[HEADER] {2}\n\n)\n* 2 FETCH (UID 9 FLAGS (\\Deleted))\n\
                 * 2 FETCH (UID 9 FLAGS (\\Seen \\Deleted) RFC822.SIZE 77 BODY[HEADER] {21}\nMessage-ID: <a@b>\n\n)\n\
                 * 1 FETCH (UID 7 FLAGS (\\Seen) RFC822.SIZE 40 BODY[HEADER] {23}\nMessage-ID: <\u{fc}x@b>\n\n)\n\
                 * 1 FETCH (UID 4 FLAGS () RFC822.SIZE 40 BODY[HEADER] {2}\n\n)\n",
            );
        },
        5,
    );
    let one = |uid, deleted, size, id: Option<&str>| Listed { uid, deleted, size, message_id: id.map(|id| id.into()) };
    assert_eq!(listed, [one(7, false, 40, Some("<XXx@b>")), one(9, true, 77, Some("<a@b>")), one(11, false, 0, None)]);
}

/// A command line and an answer have their bounds, however large the mailbox.
#[test]
fn a_long_list_is_asked_for_in_pieces_and_none_is_left_out() {
    let listed = listed(
        |peer| {
            examined(peer, "* 201 EXISTS\n* OK [UIDVALIDITY 3] x\n* OK [UIDNEXT 100002] x\n");
            let all: Vec<String> = (1..=200).chain([50_000]).map(|uid| uid.to_string()).collect();
            asked(peer, "UID SEARCH UID 1:50000", &format!("* SEARCH {}\n", all.join(" ")));
            asked(peer, &format!("UID FETCH 1:200 {ITEMS}"), "* 1 FETCH (UID 200 BODY[HEADER] {2}\n\n)\n");
            asked(peer, &format!("UID FETCH 50000 {ITEMS}"), "* 1 FETCH (UID 50000 BODY[HEADER] {2}\n\n)\n");
            asked(peer, "UID SEARCH UID 50001:100000", "* SEARCH\n");
            asked(peer, "UID SEARCH UID 100001:100001", "* SEARCH 100001\n");
            asked(peer, &format!("UID FETCH 100001 {ITEMS}"), "* 1 FETCH (UID 100001 BODY[HEADER] {2}\n\n)\n");
        },
        1,
    );
    assert_eq!(uids(&listed), [200, 50_000, 100_001]);
}

#[test]
fn nothing_is_listed_where_there_is_nothing_to_list() {
    for lines in [
        "* 3 EXISTS\n* OK [UIDVALIDITY 4] renumbered\n* OK [UIDNEXT 12] x\n",
        "* 0 EXISTS\n* OK [UIDVALIDITY 3] empty\n* OK [UIDNEXT 12] x\n",
        "* 3 EXISTS\n* OK [UIDVALIDITY 3] nothing since\n* OK [UIDNEXT 5] x\n",
        "* 3 EXISTS\n* OK [UIDVALIDITY 3] it does not say\n",
    ] {
        assert_eq!(listed(move |peer| examined(peer, lines), 5), [], "{lines}");
    }
}

fn recorded(identity: &Identity, uid_validity: u32, uid: u32) -> Recorded<'_> {
    Recorded { identity, role: Role::Recipient, placement: Some(Placement { uid_validity, uid }) }
}

fn presence(script: impl FnOnce(&mut Peer) + Send + 'static) -> MailboxPresence {
    let identity = Identity::of(b"x");
    let at = |uid_validity, uid| recorded(&identity, uid_validity, uid);
    let unplaced = Recorded { placement: None, ..at(3, 1) };
    let copies = [at(3, 7), at(3, 4), at(3, 5), at(2, 5), at(3, 7), unplaced];
    seen(script, |mailbox| mailbox.presence(&copies).unwrap())
}

#[test]
fn what_is_there_is_reported_in_the_order_asked_and_each_uid_is_asked_for_once() {
    let seen = presence(|peer| {
        examined(peer, "* 3 EXISTS\n* OK [UIDVALIDITY 3] x\n* OK [UIDNEXT 12] x\n");
        asked(
            peer,
            "UID FETCH 4:5,7 (FLAGS)",
            "* 1 FETCH (UID 4 FLAGS (\\Deleted))\n* 2 FETCH (UID 7 FLAGS (\\Seen))\n",
        );
    });
    use Presence::{Gone, MarkedDeleted, Renumbered, There, Unplaced};
    assert_eq!(seen.copies, [There, MarkedDeleted, Gone, Renumbered, There, Unplaced]);
    assert_eq!(seen.position, Some(Position { uid_validity: 3, uid_next: 12 }));
}

#[test]
fn nothing_is_there_in_an_empty_mailbox_and_it_is_not_asked() {
    let seen = presence(|peer| examined(peer, "* 0 EXISTS\n* OK [UIDVALIDITY 3] x\n"));
    use Presence::{Gone, Renumbered, Unplaced};
    assert_eq!(seen.copies, [Gone, Gone, Gone, Renumbered, Gone, Unplaced]);
    assert_eq!(seen.position, None);
}

#[test]
fn the_bytes_are_those_of_the_uid_that_was_asked_for() {
    let identity = Identity::of(b"x");
    let bytes = |script: fn(&mut Peer)| seen(script, |mailbox| mailbox.read(&recorded(&identity, 3, 7)).unwrap());
    let there = |peer: &mut Peer| {
        examined(peer, "* 3 EXISTS\n* OK [UIDVALIDITY 3] x\n");
        asked(
            peer,
            "UID FETCH 7 (BODY.PEEK[])",
            "* 1 FETCH (UID 7 BODY[] {4}\nhi\n)\n* 2 FETCH (UID 8 BODY[] {4}\nno\n)\n* 1 FETCH (UID 7 FLAGS (\\Seen))\n",
        );
    };
    assert_eq!(bytes(there).as_deref(), Some(&b"hi\r\n"[..]));
    let gone = |peer: &mut Peer| {
        examined(peer, "* 3 EXISTS\n* OK [UIDVALIDITY 3] x\n");
        asked(peer, "UID FETCH 7 (BODY.PEEK[])", "* 2 FETCH (UID 8 BODY[] {4}\nno\n)\n");
    };
    assert_eq!(bytes(gone), None);
    assert_eq!(bytes(|peer| examined(peer, "* 3 EXISTS\n* OK [UIDVALIDITY 4] renumbered\n")), None);
    let unplaced = Recorded { placement: None, ..recorded(&identity, 3, 7) };
    assert_eq!(seen(|_| {}, |mailbox| mailbox.read(&unplaced).unwrap()), None);
}

/// Cyrus says NO, and no more, of a mailbox that is not there.
#[test]
fn a_mailbox_that_is_refused_is_missing_only_where_the_server_does_not_list_it() {
    let failure = |refusal: &'static str, list: Option<&'static str>| {
        let script = move |peer: &mut Peer| {
            assert_eq!(peer.command(), "EXAMINE \"INBOX\"");
            peer.answer(refusal);
            if let Some(list) = list {
                asked(peer, "LIST \"\" \"INBOX\"", list);
            }
        };
        let look = |mailbox: &mut ImapMailbox| mailbox.presence(&[]).map_err(|error| error.failure);
        seen(script, look).unwrap_err()
    };
    assert_eq!(failure("NO no", Some("")), MailboxFailure::NoSuchMailbox);
    assert_eq!(failure("NO no", Some("* LIST () \"/\" INBOX\n")), MailboxFailure::Refused);
    assert_eq!(failure("NO no", Some("* 3 EXISTS\n")), MailboxFailure::NoSuchMailbox);
    assert_eq!(failure("NO [NOPERM] no", None), MailboxFailure::RefusedForGood);
    assert_eq!(failure("NO [NONEXISTENT] no", None), MailboxFailure::NoSuchMailbox);
}
