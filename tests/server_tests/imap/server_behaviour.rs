//! What Dovecot and Cyrus themselves do, by a plain client, where deliveries rely on it: an upgrade that changes one of
//! these breaks a promise, and this file says which.
//!
//! Pinned elsewhere, through the code that relies on it: APPENDUID says the UIDNEXT from before
//! (`imap_append_stores_one_copy`), as does that nothing is stored where the connection is closed before the last CRLF, UID
//! EXPUNGE removes one and leaves what others have marked (`imap_takes_out_one_by_its_uid`), OVERQUOTA (`imap_over_quota`),
//! Dovecot's UIDVALIDITY 0 of a mailbox in the making (`imap_mailbox_in_the_making`), Cyrus's X for each byte beyond ASCII
//! in a header (`imap_finds_what_arrived_since`).

use crate::support::imap::{Imap, Response};
use crate::support::imap_server::{Server, somebody};
use crate::support::postfix::on;
use crate::support::program::wait_until;
use std::time::Duration;

/// Makes of each scenario a test on each server.
macro_rules! on_each_imap_server {
    ($($scenario:ident),+ $(,)?) => {
        mod dovecot { $( #[test] fn $scenario() { super::$scenario(super::Server::Dovecot); } )+ }
        mod cyrus { $( #[test] fn $scenario() { super::$scenario(super::Server::Cyrus); } )+ }
    };
}

on_each_imap_server!(
    a_mailbox_that_is_missing_is_reported_by_trycreate_before_the_message_is_sent,
    literal_plus_waits_for_nothing,
    a_uid_is_never_used_again,
    a_mailbox_made_again_has_another_uidvalidity,
    a_mailbox_has_an_id_that_no_other_has_and_that_stays,
    an_append_has_its_uid_when_it_ends,
    a_message_without_its_last_crlf_is_not_stored,
    an_append_of_a_client_that_is_gone_is_stored_whole_or_not_at_all,
    an_expunge_of_a_client_that_is_gone_happens_all_the_same,
    an_examine_sees_what_others_have_appended_since_the_last,
    the_last_message_is_among_those_from_any_uid_on,
    a_nul_is_stored_as_another_byte_or_refused,
);

const MESSAGE: &[u8] = b"Subject: hello\r\n\r\nHello.\r\n";

/// Appends, whole and at once: what the server answers.
fn append(session: &mut Imap, mailbox: &str, message: &[u8]) -> String {
    let tag = begin_append(session, mailbox, message);
    session.send(b"\r\n");
    session.answer(&tag, &mut Vec::new())
}

/// Sends an APPEND without the CRLF at its end.
fn begin_append(session: &mut Imap, mailbox: &str, message: &[u8]) -> String {
    let tag = session.begin(&format!("APPEND {mailbox} {{{}+}}\r\n", message.len()));
    session.send(message);
    tag
}

/// Appends to INBOX: its UID.
fn appended(session: &mut Imap) -> u32 {
    let answer = append(session, "INBOX", MESSAGE);
    let code = answer.strip_prefix("OK [APPENDUID ").and_then(|rest| rest.split_once(']')).map(|(code, _)| code);
    let uid = code.and_then(|code| code.split_once(' ')).and_then(|(_, uid)| uid.parse().ok());
    uid.unwrap_or_else(|| panic!("no UID: {answer}"))
}

/// An item of STATUS.
fn status(session: &mut Imap, mailbox: &str, item: &str) -> u32 {
    let answer = session.run(&format!("STATUS {mailbox} ({item})")).unwrap();
    let number = answer.iter().find_map(|response| {
        let (_, after) = response.text.split_once(&format!("({item} "))?;
        after.trim_end_matches(')').parse().ok()
    });
    number.unwrap_or_else(|| panic!("{answer:?}"))
}

/// The UIDs in the answers to a UID FETCH.
fn uids(responses: &[Response]) -> Vec<u32> {
    let uid = |response: &Response| {
        let (_, after) = response.text.split_once("FETCH (UID ")?;
        after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    responses.iter().filter_map(uid).collect()
}

/// The server's processes that serve this user. (An IMAP process is its user's alone, on both servers.)
pub(super) fn processes(server: Server, user: &str) -> Vec<String> {
    let host = match server {
        Server::Dovecot => "dovecot",
        Server::DovecotBare => "dovecot-bare",
        Server::Cyrus => "cyrus",
    };
    // `doveadm who`; Cyrus keeps a file for each process that says whom it serves, and leaves it after a crash.
    const FIND: &str = r#"
        my $user = shift;
        for (glob "/proc/[0-9]*/cmdline") {
            open(my $file, "<", $_) or next;
            my $command = join " ", split /\0/, do { local $/; <$file> } // next;
            if ($command =~ m{^\S*dovecot .*-c (\S+)}) {
                my $who = `doveadm -c $1 who $user 2>/dev/null`;
                print "$1\n" while $who =~ /imap +\((\d+)\)/g;
            } elsif ($command =~ m{master .*-C (\S+)/imapd.conf}) {
                for my $process (glob "$1/config/proc/*") {
                    open(my $file, "<", $process) or next;
                    my ($id) = $process =~ m{(\d+)$} or next;
                    print "$id\n" if kill(0, $id) && (<$file> // "") =~ /\t\Q$user\E\t/;
                }
            }
        }"#;
    on(host, &["perl", "-e", FIND, user]).lines().map(str::to_owned).collect()
}

/// SIGKILL for whatever serves this user, as when memory runs out.
fn crash(server: Server, user: &str) {
    let host = if server == Server::Cyrus { "cyrus" } else { "dovecot" };
    let mut processes = Vec::new();
    // Dovecot's anvil hears of a session a moment after its client.
    wait_until("one process serves the user", || {
        processes = self::processes(server, user);
        processes.len() == 1
    });
    on(host, &["perl", "-e", "kill(9, shift) == 1 or die $!", &processes[0]]);
}

/// The code decides by this code alone whether to make the mailbox. Nothing is sent for nothing, where it can wait.
fn a_mailbox_that_is_missing_is_reported_by_trycreate_before_the_message_is_sent(server: Server) {
    let mut session = server.mail_program(&somebody("what"));
    let tag = session.begin(&format!("APPEND Missing {{{}}}", MESSAGE.len()));
    session.send(b"\r\n");
    let mut before = Vec::new();
    let answer = session.answer(&tag, &mut before);
    assert!(answer.starts_with("NO [TRYCREATE]"), "{answer}");
    assert!(before.is_empty(), "it asks for the message: {before:?}");
    // With LITERAL+ it has the message before it can say so, and the session goes on all the same.
    let answer = append(&mut session, "Missing", MESSAGE);
    assert!(answer.starts_with("NO [TRYCREATE]"), "{answer}");
    session.run("NOOP").unwrap();
    // STATUS has a code for it on Dovecot (RFC 5530), and only its words on Cyrus.
    let refused = session.run("STATUS Missing (UIDNEXT)").unwrap_err();
    let expected = if server == Server::Cyrus { "NO Mailbox does not exist" } else { "NO [NONEXISTENT]" };
    assert!(refused.starts_with(expected), "{refused}");
}

fn literal_plus_waits_for_nothing(server: Server) {
    let mut session = server.mail_program(&somebody("what"));
    let response_text = session.run("CAPABILITY").unwrap();
    assert!(
        response_text.iter().any(|response| response.text.split(' ').any(|word| word == "LITERAL+")),
        "{response_text:?}"
    );
    let large = [MESSAGE, "Hello again.\r\n".repeat(10_000).as_bytes()].concat();
    let tag = begin_append(&mut session, "INBOX", &large);
    session.send(b"\r\n");
    let mut before = Vec::new();
    let answer = session.answer(&tag, &mut before);
    assert!(answer.starts_with("OK"), "{answer}");
    assert!(!before.iter().any(|response| response.text.starts_with('+')), "{before:?}");
}

/// A search for what arrived since an attempt begins at the UIDNEXT of then.
fn a_uid_is_never_used_again(server: Server) {
    let user = somebody("what");
    let mut session = server.mail_program(&user);
    assert_eq!((appended(&mut session), appended(&mut session)), (1, 2));
    let uid_validity = status(&mut session, "INBOX", "UIDVALIDITY");
    session.run("SELECT INBOX").unwrap();
    session.run("UID STORE 1:2 +FLAGS (\\Deleted)").unwrap();
    session.run("UID EXPUNGE 1:2").unwrap();
    session.run("CLOSE").unwrap();
    assert_eq!(status(&mut session, "INBOX", "UIDNEXT"), 3);
    // Half of another, and it crashes.
    begin_append(&mut session, "INBOX", MESSAGE);
    crash(server, &user);
    session.hang_up();
    let mut session = server.mail_program(&user);
    assert_eq!(status(&mut session, "INBOX", "UIDVALIDITY"), uid_validity);
    assert_eq!(status(&mut session, "INBOX", "MESSAGES"), 0);
    assert_eq!(status(&mut session, "INBOX", "UIDNEXT"), 3);
    assert_eq!(appended(&mut session), 3);
}

/// Or positions of the old one would be taken for positions of the new one. Cyrus's is the second in which it is made: one
/// that is made, removed and made again within a second has the same twice.
fn a_mailbox_made_again_has_another_uidvalidity(server: Server) {
    let mut session = server.mail_program(&somebody("what"));
    session.run("CREATE Sent").unwrap();
    let before = status(&mut session, "Sent", "UIDVALIDITY");
    session.run("DELETE Sent").unwrap();
    if server == Server::Cyrus {
        std::thread::sleep(Duration::from_millis(1100));
    }
    session.run("CREATE Sent").unwrap();
    assert!(status(&mut session, "Sent", "UIDVALIDITY") > before);
}

/// The server's own id of INBOX.
pub(super) fn id_of_inbox(server: Server, session: &mut Imap) -> String {
    let (command, before) = match server {
        Server::Cyrus => ("EXAMINE INBOX", "[MAILBOXID ("),
        Server::Dovecot | Server::DovecotBare => ("STATUS INBOX (UIDVALIDITY UIDNEXT X-GUID)", "X-GUID "),
    };
    let answer = session.run(command).unwrap();
    let id = answer.iter().find_map(|response| response.text.split_once(before)?.1.split_once(')'));
    id.unwrap_or_else(|| panic!("{answer:?}")).0.to_owned()
}

/// By it two users' mailboxes are distinguished that were made in one second.
fn a_mailbox_has_an_id_that_no_other_has_and_that_stays(server: Server) {
    let (user, other) = (somebody("what"), somebody("what"));
    let mut session = server.mail_program(&user);
    let id = id_of_inbox(server, &mut session);
    assert_ne!(id_of_inbox(server, &mut server.mail_program(&other)), id);
    appended(&mut session);
    assert_eq!(id_of_inbox(server, &mut server.mail_program(&user)), id);
    // How it is asked for is seen by the capability; who has none refuses the other question, and the session goes on.
    let response_text = session.run("CAPABILITY").unwrap();
    let has_object_id = response_text.iter().any(|response| response.text.split(' ').any(|word| word == "OBJECTID"));
    assert_eq!(has_object_id, server == Server::Cyrus, "{response_text:?}");
    if server == Server::Cyrus {
        let refused = session.run("STATUS INBOX (X-GUID)").unwrap_err();
        assert!(refused.starts_with("BAD "), "{refused}");
        let answer = session.run("GETMETADATA INBOX /shared/vendor/cmu/cyrus-imapd/uniqueid").unwrap();
        assert!(answer[0].text.contains(&id), "{answer:?}");
    }
}

/// Whatever is stored after STATUS has answered UIDNEXT is at or above it, even if its APPEND had begun by then.
fn an_append_has_its_uid_when_it_ends(server: Server) {
    let user = somebody("what");
    let (mut slow, mut quick) = (server.mail_program(&user), server.mail_program(&user));
    let tag = begin_append(&mut slow, "INBOX", MESSAGE);
    let uid_next = status(&mut quick, "INBOX", "UIDNEXT");
    assert_eq!(appended(&mut quick), uid_next);
    slow.send(b"\r\n");
    let answer = slow.answer(&tag, &mut Vec::new());
    assert!(answer.starts_with("OK [APPENDUID ") && answer.contains(&format!(" {}]", uid_next + 1)), "{answer}");
}

/// The held-back CRLF: what is not to be after all, never was, whether the client says nothing more, or the server dies.
fn a_message_without_its_last_crlf_is_not_stored(server: Server) {
    let user = somebody("what");
    for crashes in [false, true] {
        for plus in ["+", ""] {
            let mut session = server.mail_program(&user);
            session.begin(&format!("APPEND INBOX {{{}{plus}}}\r\n", MESSAGE.len()));
            if plus.is_empty() {
                session.answer("+", &mut Vec::new());
            }
            session.send(MESSAGE);
            if crashes {
                crash(server, &user);
            }
            session.hang_up();
            let mut other = server.mail_program(&user);
            assert_eq!(status(&mut other, "INBOX", "MESSAGES"), 0, "crashes: {crashes}, {plus:?}");
            assert_eq!(status(&mut other, "INBOX", "UIDNEXT"), 1);
            other.hang_up();
            wait_until("nobody serves the user", || processes(server, &user).is_empty());
        }
    }
}

/// So often, and until it was seen, which on a slow machine takes more.
const ROUNDS: usize = 4;
const MOST_ROUNDS: usize = 60;

/// Why `imap.append_grace` is waited for: the client is dead, its lock is free, and the message is stored a little later.
fn an_append_of_a_client_that_is_gone_is_stored_whole_or_not_at_all(server: Server) {
    let large = [MESSAGE, "Hello again.\r\n".repeat(50_000).as_bytes()].concat();
    let mut stored = 0;
    for round in 0..MOST_ROUNDS {
        if round >= ROUNDS && stored > 0 {
            break;
        }
        let user = somebody("what");
        let mut session = server.mail_program(&user);
        begin_append(&mut session, "INBOX", &large);
        session.send(b"\r\n");
        drop(session);
        wait_until("the server has done with it", || processes(server, &user).is_empty());
        let there = server.mail_program(&user).messages("INBOX");
        assert!(there.len() <= 1, "{} of it", there.len());
        assert!(there.iter().all(|message| message.content == large), "a part of it");
        stored += there.len();
    }
    assert!(stored > 0, "never seen: then nothing needs to settle");
}

/// A removal is as late as that: its client may be dead, and the lock free, when it happens.
fn an_expunge_of_a_client_that_is_gone_happens_all_the_same(server: Server) {
    let mut removed = 0;
    for round in 0..MOST_ROUNDS {
        if round >= ROUNDS && removed > 0 {
            break;
        }
        let user = somebody("what");
        let mut session = server.mail_program(&user);
        assert_eq!((appended(&mut session), appended(&mut session)), (1, 2));
        session.run("SELECT INBOX").unwrap();
        session.begin("UID STORE 2 +FLAGS.SILENT (\\Deleted)\r\n");
        session.begin("UID EXPUNGE 2\r\n");
        drop(session);
        wait_until("the server has done with it", || processes(server, &user).is_empty());
        let there = server.mail_program(&user).messages("INBOX");
        assert_eq!(there[0].uid, 1);
        removed += 2 - there.len();
    }
    assert!(removed > 0, "never seen");
}

fn an_examine_sees_what_others_have_appended_since_the_last(server: Server) {
    let user = somebody("what");
    let (mut looking, mut other) = (server.mail_program(&user), server.mail_program(&user));
    appended(&mut other);
    looking.run("EXAMINE INBOX").unwrap();
    assert_eq!(appended(&mut other), 2);
    // Dovecot's view is as old as the last answer; Cyrus's is of now.
    let seen = uids(&looking.run("UID FETCH 1:* (UID)").unwrap());
    assert_eq!(seen, if server == Server::Cyrus { vec![1, 2] } else { vec![1] });
    looking.run("NOOP").unwrap();
    assert_eq!(uids(&looking.run("UID FETCH 1:* (UID)").unwrap()), [1, 2]);
    assert_eq!(appended(&mut other), 3);
    looking.run("EXAMINE INBOX").unwrap();
    assert_eq!(uids(&looking.run("UID FETCH 1:* (UID)").unwrap()), [1, 2, 3]);
}

/// RFC 3501 section 6.4.8: `n:*` is `*:n`.
fn the_last_message_is_among_those_from_any_uid_on(server: Server) {
    let mut session = server.mail_program(&somebody("what"));
    assert_eq!((appended(&mut session), appended(&mut session)), (1, 2));
    session.run("EXAMINE INBOX").unwrap();
    assert_eq!(uids(&session.run("UID FETCH 1000:* (UID)").unwrap()), [2]);
}

/// So it is replaced before: by the byte that Dovecot takes for it.
fn a_nul_is_stored_as_another_byte_or_refused(server: Server) {
    let mut session = server.mail_program(&somebody("what"));
    let answer = append(&mut session, "INBOX", b"Subject: hello\r\n\r\nHello.\0\r\n");
    let there = session.messages("INBOX");
    if server == Server::Cyrus {
        assert_eq!(answer, "NO Message contains NUL characters");
        assert!(there.is_empty(), "{there:?}");
    } else {
        assert!(answer.starts_with("OK"), "{answer}");
        assert_eq!(there[0].content, b"Subject: hello\r\n\r\nHello.\x80\r\n");
    }
}
