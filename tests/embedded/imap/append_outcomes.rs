//! Whether a message may have been stored decides what happens next. So each end that an APPEND can have is distinguished
//! from the others.

use crate::imap_peer::{BARE, Peer, copy, mailbox, peer, tls_peer};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::imap::Settings;
use maildrop_command::mailbox::ImapMailbox;
use maildrop_command::mailbox::{Appended, Mailbox, MailboxError, MailboxFailure, Placement};
use maildrop_command::message::Identity;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MESSAGE: &[u8] = b"Subject: hello\r\n\r\nA1 LOGOUT\r\n";

fn append(mailbox: &mut ImapMailbox, bytes: &[u8]) -> Appended {
    // Whose copy it is does not matter to an append.
    mailbox.append(&copy(bytes, &Identity::of(b"")), &mut || true)
}

fn append_to(capabilities: &'static str, script: impl FnOnce(&mut Peer) + Send + 'static, bytes: &[u8]) -> Appended {
    let (settings, thread) = peer(move |peer| {
        peer.welcome(capabilities);
        script(peer);
    });
    let appended = append(&mut mailbox(&settings), bytes);
    thread.join().unwrap();
    appended
}

fn refused(appended: Appended) -> MailboxError {
    match appended {
        Appended::Refused(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_literal_waits_for_the_servers_plus() {
    let script = |peer: &mut Peer| {
        assert_eq!(peer.append(), MESSAGE.len());
        peer.say("* 4 EXISTS\n* OK [ALERT] Wartung um fünf\n* STATUS x (\n+");
        assert!(peer.silence(), "half a line is no invitation");
        peer.say(" OK\n");
        assert_eq!(peer.take(MESSAGE.len()), MESSAGE);
        assert_eq!(peer.line(), "");
        peer.answer("OK [APPENDUID 38505 3955] done");
    };
    let appended = append_to(BARE, script, MESSAGE);
    assert!(matches!(appended, Appended::Stored(Some(Placement { uid_validity: 38505, uid: 3955 }))), "{appended:?}");
}

#[test]
fn a_refusal_instead_of_the_plus_is_a_refusal_and_the_message_is_never_taken_for_commands() {
    let (settings, thread) = peer(|peer| {
        peer.welcome(BARE);
        peer.append();
        peer.answer("NO [OVERQUOTA] Postfach übervoll");
        assert_eq!(peer.command(), "STATUS \"INBOX\" (UIDVALIDITY UIDNEXT)");
        peer.say("* STATUS INBOX (UIDNEXT 2 UIDVALIDITY 1)\n");
        peer.answer("OK");
    });
    let mut mailbox = mailbox(&settings);
    let error = refused(append(&mut mailbox, MESSAGE));
    assert_eq!(error.failure, MailboxFailure::OverQuota);
    assert!(error.detail.contains("Postfach übervoll"), "{error}");
    // The session is as good as before.
    assert_eq!(mailbox.position().unwrap().unwrap().uid_next, 2);
    thread.join().unwrap();
}

#[test]
fn a_plus_from_before_the_command_is_no_invitation() {
    let (settings, thread) = peer(|peer| {
        peer.welcome(BARE);
        peer.command();
        let tag = peer.tag.clone();
        peer.say(&format!("* STATUS INBOX (UIDNEXT 2 UIDVALIDITY 1)\n{tag} OK\n+ too early\n"));
        peer.append();
        assert!(peer.silence());
        peer.say("+\n");
        peer.take(MESSAGE.len());
        assert_eq!(peer.line(), "");
        peer.answer("OK");
    });
    let mut mailbox = mailbox(&settings);
    mailbox.position().unwrap();
    assert!(matches!(append(&mut mailbox, MESSAGE), Appended::Stored(None)));
    thread.join().unwrap();
}

#[test]
fn with_literal_plus_nobody_waits_and_a_stray_plus_means_nothing() {
    let script = |peer: &mut Peer| {
        peer.append();
        assert_eq!(peer.take(MESSAGE.len()), MESSAGE);
        peer.say("+ go on\n");
        assert_eq!(peer.line(), "");
        peer.say("+ and on\n* 1 EXISTS\n");
        peer.answer("OK [APPENDUID 1 7:7] done");
    };
    let appended = append_to("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+", script, MESSAGE);
    assert!(matches!(appended, Appended::Stored(Some(Placement { uid_validity: 1, uid: 7 }))), "{appended:?}");
}

#[test]
fn literal_minus_is_for_four_kilobytes_and_no_more() {
    for (length, waits) in [(4096, false), (4097, true)] {
        let script = move |peer: &mut Peer| {
            let command = peer.command();
            assert_eq!(command.ends_with("+}"), !waits, "{command}");
            if waits {
                assert!(peer.silence());
                peer.say("+\n");
            }
            peer.take(length);
            assert_eq!(peer.line(), "");
            peer.answer("OK");
        };
        let bytes = vec![b'x'; length];
        assert!(matches!(append_to("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL-", script, &bytes), Appended::Stored(None)));
    }
}

#[test]
fn what_goes_out_is_the_command_that_was_meant() {
    for (seen, flags) in [(true, "(\\Seen) "), (false, "")] {
        let (settings, thread) = peer(|peer| {
            peer.welcome(BARE);
            let command = peer.command();
            peer.answer("NO");
            command
        });
        let identity = Identity::of(MESSAGE);
        let new = maildrop_command::mailbox::NewCopy { seen, ..copy(MESSAGE, &identity) };
        let error = refused(mailbox(&settings).append(&new, &mut || true));
        assert_eq!(error.doing, "appending to \"INBOX\" of lisa");
        let command = thread.join().unwrap();
        assert_eq!(command, format!("APPEND \"INBOX\" {flags}\" 3-Feb-2026 04:05:06 +0100\" {{{}}}", MESSAGE.len()));
    }
}

#[test]
fn withheld_means_that_the_last_crlf_never_leaves() {
    let (settings, thread) = peer(|peer| {
        peer.welcome("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+");
        let length = peer.append();
        (peer.take(length), peer.rest())
    });
    let mut mailbox = mailbox(&settings);
    let identity = Identity::of(MESSAGE);
    let appended = mailbox.append(&copy(MESSAGE, &identity), &mut || false);
    assert!(matches!(appended, Appended::Withheld), "{appended:?}");
    // Whatever is tried afterwards sends nothing.
    assert_eq!(mailbox.position().unwrap_err().failure, MailboxFailure::ConnectionLost);
    assert!(matches!(append(&mut mailbox, MESSAGE), Appended::NotSent(_)));
    let (literal, rest) = thread.join().unwrap();
    assert_eq!(literal, MESSAGE);
    assert_eq!(rest, b"", "no CRLF");
}

#[test]
fn the_go_ahead_is_asked_when_the_server_has_everything_else() {
    let (arrived, whole) = std::sync::mpsc::channel();
    let (settings, thread) = peer(move |peer| {
        peer.welcome("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+");
        let length = peer.append();
        peer.take(length);
        assert!(peer.silence(), "the CRLF waits for the go-ahead");
        arrived.send(()).unwrap();
        assert_eq!(peer.line(), "");
        peer.answer("OK");
    });
    let identity = Identity::of(MESSAGE);
    let appended = mailbox(&settings)
        .append(&copy(MESSAGE, &identity), &mut || whole.recv_timeout(Duration::from_secs(60)).is_ok());
    assert!(matches!(appended, Appended::Stored(_)), "{appended:?}");
    thread.join().unwrap();
}

#[test]
fn a_reply_that_never_comes_is_an_unknown_outcome() {
    type Ending = fn(&mut Peer);
    let endings: [(Ending, MailboxFailure); 5] = [
        (|peer| peer.hang_up(), MailboxFailure::ConnectionLost),
        (|peer| peer.say("* BYE shutting down\n"), MailboxFailure::ConnectionLost),
        (|peer| peer.say("what?\n"), MailboxFailure::Protocol),
        (|peer| peer.say("A77 OK done\n"), MailboxFailure::Protocol),
        (|peer| peer.say("* 1 FETCH (BODY[] {99999999999}\n"), MailboxFailure::Protocol),
    ];
    for (number, (ending, failure)) in endings.into_iter().enumerate() {
        let script = move |peer: &mut Peer| {
            let length = peer.append();
            peer.take(length);
            assert_eq!(peer.line(), "");
            ending(peer);
            assert_eq!(peer.rest(), b"");
        };
        match append_to("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+", script, MESSAGE) {
            Appended::Unknown(error) => assert_eq!(error.failure, failure, "{number}: {error}"),
            other => panic!("{number}: {other:?}"),
        }
    }
}

#[test]
fn what_breaks_before_the_last_crlf_stores_nothing() {
    let bye = |peer: &mut Peer| {
        peer.append();
        peer.say("* BYE Entwürfe sind aus\n");
    };
    match append_to(BARE, bye, MESSAGE) {
        Appended::NotSent(error) => {
            assert_eq!(error.failure, MailboxFailure::ConnectionLost);
            assert!(error.detail.contains("Entwürfe sind aus"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let gone = |peer: &mut Peer| {
        peer.append();
        peer.take(1000);
    };
    match append_to("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+", gone, &vec![b'x'; 30 << 20]) {
        Appended::NotSent(error) => assert_eq!(error.failure, MailboxFailure::ConnectionLost, "{error}"),
        other => panic!("{other:?}"),
    }
    let early_ok = |peer: &mut Peer| {
        peer.append();
        peer.answer("OK [APPENDUID 1 1] stored what?");
    };
    match append_to(BARE, early_ok, MESSAGE) {
        Appended::NotSent(error) => assert_eq!(error.failure, MailboxFailure::Protocol, "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_that_refuses_a_big_literal_and_goes_away_is_heard() {
    for (answer, failure) in [
        ("NO [LIMIT] Message too big", MailboxFailure::RefusedForGood),
        // There is no connection left to make the mailbox on.
        ("NO [TRYCREATE] there is no such mailbox", MailboxFailure::NoSuchMailbox),
    ] {
        let script = move |peer: &mut Peer| {
            peer.append();
            peer.answer(answer);
        };
        let error = refused(append_to("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+", script, &vec![b'x'; 30 << 20]));
        assert_eq!((error.failure, error.detail.as_str()), (failure, answer));
        assert_eq!(error.trying_again_can_help(), failure != MailboxFailure::RefusedForGood);
    }
}

/// A broken pipe tells less than what the server said at its end, if that makes sense.
#[test]
fn the_last_words_of_a_server_that_goes_away_in_midst_of_a_message_are_reported() {
    for (words, is_reported) in [("* BYE zu viel\n", true), ("zu viel?\n", false)] {
        let script = move |peer: &mut Peer| {
            peer.append();
            peer.say(words);
        };
        match append_to("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+", script, &vec![b'x'; 30 << 20]) {
            Appended::NotSent(error) => {
                assert_eq!(error.failure, MailboxFailure::ConnectionLost, "{error}");
                assert_eq!(error.detail.contains("zu viel"), is_reported, "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// RFC 3501 section 2.2.1: a different tag for each command.
#[test]
fn no_two_commands_have_one_tag() {
    let (settings, thread) = peer(|peer| {
        peer.welcome(BARE);
        let mut tags = vec![peer.tag.clone()];
        peer.command();
        tags.push(peer.tag.clone());
        peer.say("* STATUS INBOX (UIDNEXT 2 UIDVALIDITY 1)\n");
        peer.answer("OK");
        peer.command();
        tags.push(peer.tag.clone());
        tags
    });
    let mut mailbox = mailbox(&settings);
    mailbox.position().unwrap();
    mailbox.position().unwrap_err();
    let mut tags = thread.join().unwrap();
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), 3, "{tags:?}");
}

#[test]
fn a_server_that_refuses_a_big_literal_and_stops_reading_is_heard() {
    let begun = Instant::now();
    let (heard, wait) = std::sync::mpsc::channel::<()>();
    let (settings, thread) = peer(move |peer| {
        peer.welcome("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+");
        peer.append();
        peer.answer("NO [OVERQUOTA] full");
        // Reads nothing, and stays.
        wait.recv_timeout(Duration::from_secs(60)).ok()
    });
    let mut mailbox = mailbox(&settings);
    let error = refused(append(&mut mailbox, &vec![b'x'; 30 << 20]));
    assert_eq!(error.failure, MailboxFailure::OverQuota);
    // Before the deadline of 20 s, that is, and not for its sake.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    // The command was cut off in its midst.
    assert_eq!(mailbox.position().unwrap_err().failure, MailboxFailure::ConnectionLost);
    heard.send(()).unwrap();
    thread.join().unwrap();
}

#[test]
fn what_a_refusal_is_about_is_in_its_code() {
    for (answer, failure) in [
        ("NO [OVERQUOTA] x", MailboxFailure::OverQuota),
        ("NO [CANNOT] x", MailboxFailure::RefusedForGood),
        ("NO [LIMIT] x", MailboxFailure::RefusedForGood),
        ("NO [noperm] x", MailboxFailure::RefusedForGood),
        ("NO [UNAVAILABLE] x", MailboxFailure::Refused),
        ("NO Over quota", MailboxFailure::Refused),
        ("BAD what?", MailboxFailure::Refused),
        ("NO [SOMETHING new]üx", MailboxFailure::Refused),
    ] {
        let script = move |peer: &mut Peer| {
            peer.append();
            peer.answer(answer);
        };
        assert_eq!(refused(append_to(BARE, script, MESSAGE)).failure, failure, "{answer}");
    }
    for answer in ["NO [LIMIT] x", "NO [BADCHARSET (UTF-8)] x", "BAD what?"] {
        let script = move |peer: &mut Peer| {
            peer.append();
            peer.answer(answer);
        };
        assert_eq!(refused(append_to(BARE, script, MESSAGE)).detail, answer);
    }
}

/// What is over quota, or too large, may show when all of it is there.
#[test]
fn a_refusal_of_the_whole_message_is_a_refusal() {
    for (answer, failure) in [("NO [OVERQUOTA] full", MailboxFailure::OverQuota), ("NO no", MailboxFailure::Refused)] {
        let script = move |peer: &mut Peer| {
            let length = peer.append();
            peer.take(length);
            assert_eq!(peer.line(), "");
            peer.answer(answer);
        };
        let appended = append_to("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+", script, MESSAGE);
        assert_eq!(refused(appended).failure, failure);
    }
}

/// What a proxy says of a backend that is gone, with all of the message: the backend may have stored it.
#[test]
fn a_failure_of_the_server_once_it_has_the_whole_message_is_no_refusal() {
    for answer in [
        "NO Server(s) unavailable to complete operation",
        "NO [UNAVAILABLE] the backend is gone",
        "NO [SERVERBUG] Internal error occurred. Refer to server log for more information.",
        "NO System Error (Failure)",
        "NO Lost connection to backend",
    ] {
        let script = move |peer: &mut Peer| {
            let length = peer.append();
            peer.take(length);
            assert_eq!(peer.line(), "");
            peer.answer(answer);
        };
        match append_to("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+", script, MESSAGE) {
            Appended::Unknown(error) => assert!(error.to_string().contains(&answer[3..]), "{error}"),
            other => panic!("{answer}: {other:?}"),
        }
        // Nothing is stored of what it does not have.
        let script = move |peer: &mut Peer| {
            peer.append();
            peer.answer(answer);
        };
        assert_eq!(refused(append_to(BARE, script, MESSAGE)).failure, MailboxFailure::Refused);
    }
    // Other words refuse it.
    for answer in
        ["NO [OVERQUOTA] connection to the quota is full", "NO Message contains invalid header", "BAD internal error"]
    {
        let script = move |peer: &mut Peer| {
            let length = peer.append();
            peer.take(length);
            assert_eq!(peer.line(), "");
            peer.answer(answer);
        };
        refused(append_to("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+", script, MESSAGE));
    }
}

#[test]
fn a_mailbox_that_vanished_is_created_once() {
    let script = |peer: &mut Peer| {
        peer.append();
        peer.answer("NO [TRYCREATE] Mailbox doesn't exist: Entwürfe");
        assert_eq!(peer.command(), "CREATE \"INBOX\"");
        peer.answer("OK");
        assert_eq!(peer.command(), "SUBSCRIBE \"INBOX\"");
        peer.answer("NO not now");
        peer.append();
        peer.answer("NO [TRYCREATE] still not there");
    };
    assert_eq!(refused(append_to(BARE, script, MESSAGE)).failure, MailboxFailure::NoSuchMailbox);
}

#[test]
fn a_nul_is_never_sent() {
    let (settings, thread) = peer(|peer| {
        peer.welcome("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+");
        peer.rest()
    });
    match append(&mut mailbox(&settings), b"Subject: \0\r\n") {
        Appended::NotSent(error) => assert_eq!(error.failure, MailboxFailure::Local),
        other => panic!("{other:?}"),
    }
    assert_eq!(thread.join().unwrap(), b"");
}

#[test]
fn nothing_is_held_back_until_what_went_before_is_acknowledged() {
    const COUNT: usize = 80;
    let (settings, thread) = peer(|peer| {
        peer.welcome("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+");
        let waits: Vec<Duration> = (0..COUNT)
            .map(|_| {
                let length = peer.append();
                let begun = Instant::now();
                peer.take(length);
                assert_eq!(peer.line(), "");
                let wait = begun.elapsed();
                peer.answer("OK");
                wait
            })
            .collect();
        waits
    });
    let mut mailbox = mailbox(&settings);
    for _ in 0..COUNT {
        assert!(matches!(append(&mut mailbox, MESSAGE), Appended::Stored(None)));
    }
    // Nagle's algorithm and delayed acknowledgements make it 40 ms each time, but for the first on a connection, which are
    // acknowledged at once. A busy machine makes it longer, perhaps nearly each time.
    let waits = thread.join().unwrap().split_off(COUNT / 2);
    assert!(waits.iter().any(|wait| *wait < Duration::from_millis(20)), "{waits:?}");
}

/// How long the answer is waited for, and how soon something else comes.
const PATIENCE: Duration = Duration::from_millis(100);
const SOONER: Duration = Duration::from_millis(10);

/// Takes a message, and says `more`, over and over, until it hears that this is enough; only then it says what came of the message.
fn chat(peer: &mut Peer, is_enough: &Receiver<()>, mut more: impl FnMut(&mut Peer), at_last: &str) {
    peer.welcome("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+");
    let length = peer.append();
    peer.take(length);
    assert_eq!(peer.line(), "");
    while is_enough.recv_timeout(SOONER) == Err(RecvTimeoutError::Timeout) {
        more(peer);
    }
    peer.say(at_last);
    peer.answer("OK [APPENDUID 38505 3955] done");
}

/// What comes instead of an answer gives it no more time, and is not lost: the answer behind it is heard.
fn waits_no_longer_for_a_server_that_chats((settings, thread): (Settings, JoinHandle<()>), enough: &Sender<()>) {
    let mut mailbox = mailbox(&settings);
    // Far more than it takes. Who waits until then has waited for too long.
    mailbox.set_deadline(Deadline::after(Duration::from_secs(30)));
    let identity = Identity::of(MESSAGE);
    mailbox.upload(&copy(MESSAGE, &identity), None).expect("the peer takes it");
    mailbox.complete();
    for _ in 0..3 {
        assert!(!mailbox.is_answered_within(PATIENCE));
    }
    enough.send(()).unwrap();
    let appended = mailbox.answer();
    assert!(matches!(appended, Appended::Stored(Some(Placement { uid_validity: 38505, uid: 3955 }))), "{appended:?}");
    thread.join().unwrap();
}

#[test]
fn an_answer_is_waited_for_no_longer_where_other_lines_come() {
    let (enough, is_enough) = channel();
    let peer = peer(move |peer| chat(peer, &is_enough, |peer| peer.say("* 1 EXISTS\n"), ""));
    waits_no_longer_for_a_server_that_chats(peer, &enough);
}

#[test]
fn an_answer_is_waited_for_no_longer_where_a_line_comes_byte_by_byte() {
    let (enough, is_enough) = channel();
    let peer = peer(move |peer| {
        let mut line = "* OK still at i".chars().chain(std::iter::repeat('t'));
        chat(peer, &is_enough, |peer| peer.say(&line.next().unwrap().to_string()), "t\n");
    });
    waits_no_longer_for_a_server_that_chats(peer, &enough);
}

/// What is TLS's own is nothing that a reader gets to see.
#[test]
fn an_answer_is_waited_for_no_longer_where_new_keys_come() {
    let (enough, is_enough) = channel();
    let peer = tls_peer(move |peer| {
        let mut rounds = 0..;
        let more = |peer: &mut Peer| match rounds.next().unwrap() % 8 {
            // rustls takes no more than 32 new keys without a byte between them.
            0 => peer.say("* 1 EXISTS\n"),
            _ => peer.renew_keys(),
        };
        chat(peer, &is_enough, more, "");
    });
    waits_no_longer_for_a_server_that_chats(peer, &enough);
}

/// What comes first ends no wait: the answer comes a moment later, and is heard by who still has patience.
fn is_heard_behind((settings, thread): (Settings, JoinHandle<()>)) {
    let mut mailbox = mailbox(&settings);
    let identity = Identity::of(MESSAGE);
    mailbox.upload(&copy(MESSAGE, &identity), None).expect("the peer takes it");
    mailbox.complete();
    assert!(mailbox.is_answered_within(Duration::from_mins(1)));
    assert!(matches!(mailbox.answer(), Appended::Stored(Some(Placement { uid_validity: 38505, uid: 3955 }))));
    thread.join().unwrap();
}

/// Says something, three times, and then what came of the message.
fn chat_thrice(peer: &mut Peer, say: impl Fn(&mut Peer)) {
    let (enough, is_enough) = channel();
    let mut times = 0;
    let more = |peer: &mut Peer| {
        say(peer);
        times += 1;
        if times == 3 {
            enough.send(()).unwrap();
        }
    };
    chat(peer, &is_enough, more, "");
}

#[test]
fn an_answer_is_heard_behind_another_line() {
    is_heard_behind(peer(|peer| chat_thrice(peer, |peer| peer.say("* 1 EXISTS\n"))));
}

#[test]
fn an_answer_is_heard_behind_new_keys() {
    is_heard_behind(tls_peer(|peer| chat_thrice(peer, Peer::renew_keys)));
}
