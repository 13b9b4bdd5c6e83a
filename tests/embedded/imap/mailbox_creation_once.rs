//! Where a mailbox stands, what may be done in it, and what is done where it is missing.

use crate::imap_peer::{BARE, Peer, mailbox, peer};
use maildrop_command::imap::Rights;
use maildrop_command::mailbox::{ImapMailbox, Mailbox, MailboxError, MailboxFailure, Position};
use std::time::{Duration, Instant};

const STATUS: &str = "STATUS \"INBOX\" (UIDVALIDITY UIDNEXT)";
const CREATE: &str = "CREATE \"INBOX\"";
const SUBSCRIBE: &str = "SUBSCRIBE \"INBOX\"";
const THERE: &str = "* STATUS INBOX (UIDVALIDITY 3 UIDNEXT 5)\n";
const FIVE: Position = Position { uid_validity: 3, uid_next: 5 };

/// What comes of it on a server that is asked these, says this first, and answers so; and is asked nothing else.
fn asked<T>(
    capabilities: &'static str,
    script: &'static [(&str, &str, &str)],
    ask: impl FnOnce(&mut ImapMailbox) -> T,
) -> T {
    let (settings, thread) = peer(move |peer: &mut Peer| {
        peer.welcome(capabilities);
        for (command, says, answer) in script {
            assert_eq!(peer.command(), *command);
            peer.say(says);
            match *answer {
                "" => peer.hang_up(),
                answer => peer.answer(answer),
            }
        }
        String::from_utf8(peer.rest()).unwrap()
    });
    let mut mailbox = mailbox(&settings);
    let came_of_it = ask(&mut mailbox);
    drop(mailbox);
    assert_eq!(thread.join().unwrap(), "");
    came_of_it
}

fn position(script: &'static [(&str, &str, &str)]) -> Result<Position, MailboxFailure> {
    let ask = |mailbox: &mut ImapMailbox| mailbox.position();
    asked(BARE, script, ask).map(|position| position.unwrap()).map_err(|error| error.failure)
}

#[test]
fn a_mailbox_that_is_missing_is_made_and_its_user_subscribed_to_it() {
    for missing in [
        &[
            (STATUS, "", "NO [NONEXISTENT] no such mailbox"),
            (CREATE, "", "OK made"),
            (SUBSCRIBE, "", "OK"),
            (STATUS, THERE, "OK"),
        ] as &[_],
        // Older than RFC 5530.
        &[(STATUS, "", "NO no"), (CREATE, "", "OK made"), (SUBSCRIBE, "", "OK"), (STATUS, THERE, "OK")],
        // Somebody else has made it meanwhile.
        &[(STATUS, "", "NO [TRYCREATE] no"), (CREATE, "", "NO [ALREADYEXISTS] it is there"), (STATUS, THERE, "OK")],
    ] {
        assert_eq!(position(missing), Ok(FIVE));
    }
}

#[test]
fn what_is_refused_for_another_reason_is_not_made() {
    assert_eq!(position(&[(STATUS, "", "NO [NOPERM] not yours")]), Err(MailboxFailure::RefusedForGood));
    assert_eq!(position(&[(STATUS, "", "NO [INUSE] later")]), Err(MailboxFailure::Refused));
}

#[test]
fn a_mailbox_that_cannot_be_made_is_missing() {
    let refused = &[(STATUS, "", "NO no"), (CREATE, "", "NO [NOPERM] no"), (STATUS, "", "NO [NONEXISTENT] no")];
    assert_eq!(position(refused), Err(MailboxFailure::NoSuchMailbox));
    let refused = &[(STATUS, "", "NO no"), (CREATE, "", "NO no"), (STATUS, "", "NO no")];
    assert_eq!(position(refused), Err(MailboxFailure::NoSuchMailbox));
    // Nobody knows whether it is.
    assert_eq!(position(&[(STATUS, "", "NO no"), (CREATE, "", "")]), Err(MailboxFailure::ConnectionLost));
    let subscribing = &[(STATUS, "", "NO no"), (CREATE, "", "OK"), (SUBSCRIBE, "", "")];
    assert_eq!(position(subscribing), Err(MailboxFailure::ConnectionLost));
}

#[test]
fn it_is_made_once_and_no_more() {
    let script = &[
        (STATUS, "", "NO [NONEXISTENT] no"),
        (CREATE, "", "OK made"),
        (SUBSCRIBE, "", "NO not now"),
        (STATUS, "", "NO [NONEXISTENT] no"),
        (STATUS, "", "NO [NONEXISTENT] no"),
    ];
    let twice = |mailbox: &mut ImapMailbox| [(); 2].map(|()| mailbox.position().unwrap_err().failure);
    assert_eq!(asked(BARE, script, twice), [MailboxFailure::NoSuchMailbox; 2]);
}

/// Dovecot says so while another session makes the mailbox.
#[test]
fn a_mailbox_in_the_making_is_asked_for_again() {
    const MAKING: (&str, &str, &str) = (STATUS, "* STATUS INBOX (UIDVALIDITY 0 UIDNEXT 1)\n", "OK");
    assert_eq!(position(&[MAKING, MAKING, (STATUS, THERE, "OK")]), Ok(FIVE));
    assert_eq!(position(&[MAKING; 7]), Err(MailboxFailure::Protocol));
    // On a busy disk it takes a second.
    let (settings, thread) = peer(|peer: &mut Peer| {
        peer.welcome(BARE);
        let begun = Instant::now();
        loop {
            assert_eq!(peer.command(), STATUS);
            let made = begun.elapsed() >= Duration::from_secs(1);
            peer.say(if made { THERE } else { MAKING.1 });
            peer.answer("OK");
            if made {
                break;
            }
        }
    });
    assert_eq!(mailbox(&settings).position().unwrap(), Some(FIVE));
    thread.join().unwrap();
}

#[test]
fn what_was_asked_ahead_is_not_asked_twice() {
    let script = &[(STATUS, THERE, "OK"), (STATUS, "* STATUS INBOX (UIDVALIDITY 3 UIDNEXT 6)\n", "OK")];
    let (settings, thread) = peer(move |peer: &mut Peer| {
        peer.welcome(BARE);
        for (command, says, answer) in script {
            assert_eq!(peer.command(), *command);
            peer.say(says);
            peer.answer(answer);
        }
    });
    let mut mailbox = mailbox(&settings).ask_position().unwrap();
    assert_eq!(mailbox.round_trips(), 2, "the login, and STATUS");
    assert_eq!(mailbox.position().unwrap(), Some(FIVE));
    assert_eq!(mailbox.round_trips(), 2);
    assert_eq!(mailbox.position().unwrap(), Some(Position { uid_next: 6, ..FIVE }));
    assert_eq!(mailbox.round_trips(), 3);
    thread.join().unwrap();
}

#[test]
fn what_may_be_done_in_it_is_reported_where_the_server_tells() {
    const ACL: &str = "IMAP4rev1 SASL-IR AUTH=PLAIN ACL";
    const MYRIGHTS: &str = "MYRIGHTS \"INBOX\"";
    let rights = |capabilities, script| {
        let ask = |mailbox: &mut ImapMailbox| mailbox.my_rights();
        asked(capabilities, script, ask).map_err(|MailboxError { failure, .. }| failure)
    };
    assert_eq!(rights(BARE, &[]), Ok(Rights::Unknown));
    assert_eq!(rights(ACL, &[(MYRIGHTS, "* MYRIGHTS INBOX lrsi\n* 1 EXISTS\n", "OK")]), Ok(Rights::Of("lrsi".into())));
    assert_eq!(rights(ACL, &[(MYRIGHTS, "", "OK")]), Err(MailboxFailure::Protocol));
    assert_eq!(rights(ACL, &[(MYRIGHTS, "", "NO [NONEXISTENT] no")]), Ok(Rights::NoMailbox));
    assert_eq!(rights(ACL, &[(MYRIGHTS, "", "NO no")]), Ok(Rights::NoMailbox));
    assert_eq!(rights(ACL, &[(MYRIGHTS, "", "NO [UNAVAILABLE] later")]), Err(MailboxFailure::Refused));
}

#[test]
fn a_server_is_described_by_its_greeting_and_what_a_delivery_makes_use_of() {
    for (capabilities, described) in [
        ("IMAP4rev1 AUTH=PLAIN SASL-IR UIDPLUS ACL LITERAL+", "Peer ready. (UIDPLUS LITERAL+ SASL-IR)"),
        (BARE, "Peer ready. (SASL-IR)"),
    ] {
        assert_eq!(asked(capabilities, &[], |mailbox| mailbox.describe()), described);
    }
}

#[test]
fn asking_for_a_mailbox_makes_none() {
    let missing = |script| asked(BARE, script, |mailbox| mailbox.is_missing()).map_err(|error| error.failure);
    assert_eq!(missing(&[(STATUS, THERE, "OK")]), Ok(false));
    assert_eq!(missing(&[(STATUS, "", "NO [NONEXISTENT] no such mailbox")]), Ok(true));
    assert_eq!(missing(&[(STATUS, "", "NO no")]), Ok(true));
    assert_eq!(missing(&[(STATUS, "", "NO [UNAVAILABLE] later")]), Err(MailboxFailure::Refused));
}
