//! A session with the IMAP server may serve one delivery of its user after another. It carries nothing over; where that is in
//! doubt, it is closed.

use crate::imap_peer::{BARE, Peer, copy, mailbox, peer, tls_peer};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::imap::{Session, Settings};
use maildrop_command::mailbox::{Appended, ImapMailbox, Mailbox, MailboxFailure, Matching, Placement, Wanted};
use maildrop_command::message::{Identity, Role};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;
use time::OffsetDateTime;

const MESSAGE: &[u8] = b"Subject: hello\r\n\r\nhello\r\n";

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(120))
}

fn append(mailbox: &mut ImapMailbox) -> Appended {
    mailbox.append(&copy(MESSAGE, &Identity::of(b"")), &mut || true)
}

/// Answers STATUS: so many messages have been stored.
fn stands(peer: &mut Peer, uid_next: u32) {
    assert_eq!(peer.command(), "STATUS \"INBOX\" (UIDVALIDITY UIDNEXT)");
    peer.say(&format!("* STATUS INBOX (UIDNEXT {uid_next} UIDVALIDITY 1)\n"));
    peer.answer("OK");
}

/// Takes a message in.
fn stores(peer: &mut Peer, uid: u32) {
    let length = peer.append();
    peer.say("+\n");
    assert_eq!(peer.take(length), MESSAGE);
    assert_eq!(peer.line(), "");
    peer.answer(&format!("OK [APPENDUID 1 {uid}] done"));
}

#[test]
fn a_second_delivery_logs_in_no_more_and_has_its_own_deadline_and_counters() {
    let (settings, thread) = peer(|peer| {
        peer.welcome(BARE);
        for uid in [7, 8] {
            stands(peer, uid);
            stores(peer, uid);
        }
        assert_eq!(peer.rest(), b"");
    });
    let mut lisas = mailbox(&settings);
    assert_eq!(lisas.position().unwrap().unwrap().uid_next, 7);
    assert!(matches!(append(&mut lisas), Appended::Stored(Some(Placement { uid_validity: 1, uid: 7 }))));
    // Logging in, STATUS, the literal's `+`, APPEND.
    assert_eq!(lisas.round_trips(), 4);
    // What the first delivery had has passed.
    lisas.set_deadline(Deadline::after(Duration::ZERO));
    let session = lisas.end().expect("nothing speaks against it");
    assert_eq!(session.user(), "lisa");
    let mut lisas = session.begin(soon()).expect("the server is there").open("INBOX");
    assert_eq!(lisas.round_trips(), 0);
    assert_eq!(lisas.position().unwrap().unwrap().uid_next, 8);
    assert!(matches!(append(&mut lisas), Appended::Stored(Some(Placement { uid_validity: 1, uid: 8 }))));
    assert_eq!(lisas.round_trips(), 3);
    drop(lisas);
    thread.join().unwrap();
}

#[test]
fn a_deadline_of_a_later_delivery_holds_as_that_of_the_first_one_would() {
    let (settings, thread) = peer(move |peer| {
        peer.welcome(BARE);
        stands(peer, 7);
        // It is asked, unless all of the time is over by then, and does not answer.
        peer.rest()
    });
    let mut lisas = mailbox(&settings);
    lisas.position().unwrap();
    let session = lisas.end().unwrap().begin(Deadline::after(Duration::from_millis(300))).unwrap();
    assert_eq!(session.open("INBOX").position().unwrap_err().failure, MailboxFailure::TimedOut);
    thread.join().unwrap();
}

/// A session that was kept gets half of the time to prove itself, and then the rest.
#[test]
fn a_session_that_has_answered_may_use_all_of_its_deliverys_time() {
    let (settings, thread) = peer(|peer| {
        peer.welcome(BARE);
        for uid_next in [7, 7, 8] {
            stands(peer, uid_next);
        }
        assert_eq!(peer.rest(), b"");
    });
    let mut lisas = mailbox(&settings);
    lisas.position().unwrap();
    // Enough to ask once, for a machine that hangs for a while.
    let at_first = Deadline::after(Duration::from_secs(10));
    let mut lisas = lisas.end().unwrap().begin(at_first).unwrap().open("INBOX");
    lisas.position().unwrap();
    lisas.set_deadline(soon());
    while !at_first.passed() {
        std::thread::sleep(at_first.remaining());
    }
    assert_eq!(lisas.position().unwrap().unwrap().uid_next, 8);
    drop(lisas);
    thread.join().unwrap();
}

/// Begins another delivery once the peer has done `meanwhile`.
fn begun_after(meanwhile: impl FnOnce(&mut Peer) + Send + 'static) -> Option<Session> {
    begun_by(peer, meanwhile)
}

/// The same under TLS.
fn begun_under_tls_after(meanwhile: impl FnOnce(&mut Peer) + Send + 'static) -> Option<Session> {
    begun_by(tls_peer, meanwhile)
}

fn begun_by<S>(
    peer: impl FnOnce(Box<dyn FnOnce(&mut Peer) + Send>) -> (Settings, JoinHandle<S>),
    meanwhile: impl FnOnce(&mut Peer) + Send + 'static,
) -> Option<Session> {
    let (go, wait) = channel();
    let (done, hear) = channel();
    let (settings, thread) = peer(Box::new(move |peer: &mut Peer| {
        peer.welcome(BARE);
        stands(peer, 7);
        wait.recv().unwrap();
        meanwhile(peer);
        done.send(()).unwrap();
        // The connection stays open but for what `meanwhile` has done to it.
        peer.rest();
    }));
    let mut lisas = mailbox(&settings);
    lisas.position().unwrap();
    let session = lisas.end().expect("nothing speaks against it");
    go.send(()).unwrap();
    hear.recv().unwrap();
    // On one machine, what was sent before is there.
    let begun = session.begin(soon());
    let gone = begun.is_none();
    if gone {
        thread.join().unwrap();
    }
    begun
}

#[test]
fn whatever_the_server_has_sent_between_two_deliveries_ends_the_session() {
    assert!(begun_after(|_| {}).is_some());
    assert!(begun_after(|peer| peer.say("* BYE Idle for too long\n")).is_none());
    assert!(begun_after(|peer| peer.say("* BYE in")).is_none());
    assert!(begun_after(|peer| peer.say("* OK Still here\n")).is_none());
    assert!(begun_after(|peer| peer.say("* 3 EXISTS\n")).is_none());
    assert!(begun_after(Peer::hang_up).is_none());
}

#[test]
fn under_tls_only_what_is_tls_own_may_come_between_two_deliveries() {
    assert!(begun_under_tls_after(|_| {}).is_some());
    assert!(begun_under_tls_after(Peer::renew_keys).is_some());
    assert!(begun_under_tls_after(|peer| peer.say("* BYE Idle for too long\n")).is_none());
    assert!(begun_under_tls_after(|peer| peer.say("* 3 EXISTS\n")).is_none());
    assert!(begun_under_tls_after(Peer::hang_up).is_none());
}

#[test]
fn a_server_that_goes_away_without_a_farewell_of_tls_has_gone_away() {
    let (settings, thread) = tls_peer(|peer| {
        peer.welcome(BARE);
        assert!(peer.command().starts_with("STATUS"));
        peer.hang_up();
        peer.rest();
    });
    let mut lisas = mailbox(&settings);
    let error = lisas.position().unwrap_err();
    assert!(error.to_string().ends_with("the server closed the connection"), "{error}");
    drop(lisas);
    thread.join().unwrap();
}

/// Whether lisa's session may serve another delivery after this one.
fn is_fit_after(
    capabilities: &'static str,
    script: impl FnOnce(&mut Peer) + Send + 'static,
    delivery: impl FnOnce(&mut ImapMailbox),
) -> bool {
    let (settings, thread) = peer(move |peer| {
        peer.welcome(capabilities);
        script(peer);
        peer.rest();
    });
    let mut lisas = mailbox(&settings);
    delivery(&mut lisas);
    let session = lisas.end();
    let fit = session.is_some();
    drop(session);
    thread.join().unwrap();
    fit
}

#[test]
fn a_session_that_has_selected_a_mailbox_serves_no_other_delivery() {
    let examined = |peer: &mut Peer| {
        assert_eq!(peer.command(), "EXAMINE \"INBOX\"");
        peer.say("* 0 EXISTS\n* OK [UIDVALIDITY 1]\n* OK [UIDNEXT 7]\n");
        peer.answer("OK [READ-ONLY] done");
    };
    let identity = Identity::of(b"");
    let wanted = Wanted {
        message_id: None,
        identity: &identity,
        role: Role::Recipient,
        matching: Matching::Identity,
        since: None,
        not_before: OffsetDateTime::UNIX_EPOCH,
    };
    assert!(!is_fit_after(BARE, examined, |lisas| assert_eq!(lisas.find(&wanted).unwrap().copies, [])));
    // Nor if the server has not said what is in it.
    let tersely = |peer: &mut Peer| {
        assert_eq!(peer.command(), "EXAMINE \"INBOX\"");
        peer.say("* OK [UIDVALIDITY 1]\n* OK [UIDNEXT 7]\n");
        peer.answer("OK [READ-ONLY] done");
        assert!(peer.command().starts_with("UID SEARCH "));
        peer.answer("OK nothing");
    };
    assert!(!is_fit_after(BARE, tersely, |lisas| assert_eq!(lisas.find(&wanted).unwrap().copies, [])));
}

#[test]
fn a_server_that_others_wait_for_is_waited_for_no_longer_than_that() {
    let (settings, thread) = peer(|peer| {
        peer.welcome(BARE);
        String::from_utf8(peer.rest()).unwrap()
    });
    let mut lisas = mailbox(&settings);
    lisas.patient_until(Some(Deadline::after(Duration::from_millis(100))));
    assert_eq!(lisas.position().unwrap_err().failure, MailboxFailure::TimedOut);
    drop(lisas);
    assert!(thread.join().unwrap().contains(" STATUS "));
}

#[test]
fn a_refusal_or_an_unknown_outcome_ends_the_session() {
    let refused = |peer: &mut Peer| {
        peer.append();
        peer.answer("NO [OVERQUOTA] Full");
    };
    assert!(!is_fit_after(BARE, refused, |lisas| assert!(matches!(append(lisas), Appended::Refused(_)))));
    let withheld = |peer: &mut Peer| {
        let length = peer.append();
        peer.say("+\n");
        peer.take(length);
    };
    let say_no = |lisas: &mut ImapMailbox| {
        let identity = Identity::of(b"");
        assert!(matches!(lisas.append(&copy(MESSAGE, &identity), &mut || false), Appended::Withheld));
    };
    assert!(!is_fit_after(BARE, withheld, say_no));
    // Whatever came next would be part of the command.
    let left_uploaded = |lisas: &mut ImapMailbox| {
        assert!(lisas.upload(&copy(MESSAGE, &Identity::of(b"")), None).is_ok());
    };
    assert!(!is_fit_after(BARE, withheld, left_uploaded));
    let cut_short = |peer: &mut Peer| {
        let length = peer.append();
        peer.say("+\n");
        peer.take(length);
        peer.line();
        peer.hang_up();
    };
    assert!(!is_fit_after(BARE, cut_short, |lisas| assert!(matches!(append(lisas), Appended::Unknown(_)))));
}

/// Stores a message, having said something that nobody had asked for.
fn is_fit_where_it_says(unasked: &'static str) -> bool {
    let script = move |peer: &mut Peer| {
        let length = peer.append();
        peer.take(length);
        assert_eq!(peer.line(), "");
        let tag = peer.tag.clone();
        peer.say(&unasked.replace("TAG", &format!("{tag} OK [APPENDUID 1 7] done")));
    };
    is_fit_after("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+", script, |lisas| {
        assert!(matches!(append(lisas), Appended::Stored(_)));
    })
}

#[test]
fn what_nobody_had_asked_for_ends_the_session_too() {
    assert!(is_fit_where_it_says("TAG\n"));
    assert!(is_fit_where_it_says("* CAPABILITY IMAP4rev1 UIDPLUS\n* OK Done so far\nTAG\n"));
    for unasked in ["+ and on\nTAG\n", "* 1 EXISTS\nTAG\n", "* NO Disk nearly full\nTAG\n", "TAG\n* BYE\n", "TAG\n* O"]
    {
        assert!(!is_fit_where_it_says(unasked), "{unasked}");
    }
}
