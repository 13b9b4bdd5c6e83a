//! Logging in: the password goes to the server and nowhere else, and only where it belongs.

use crate::imap_peer::{BARE, PASSWORD, Peer, copy, mailbox, peer, tls_peer};
use base64::Engine;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::imap::{Encryption, Mechanism, Session, Settings, connect};
use maildrop_command::mailbox::{Appended, Mailbox, MailboxError, MailboxFailure, Placement};
use maildrop_command::message::Identity;
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn log_in(settings: &Settings) -> Result<Session, MailboxError> {
    connect(settings, Deadline::after(Duration::from_secs(60)))?.authenticate("lisa@mail.example")
}

fn refused(settings: &Settings, failure: MailboxFailure) -> String {
    let error = log_in(settings).err().expect("it is refused");
    assert_eq!(error.failure, failure, "{error}");
    let error_text = format!("{error} {error:?}");
    assert!(!error_text.contains(PASSWORD), "{error_text}");
    error_text
}

#[test]
fn the_service_account_acts_for_the_user() {
    let (settings, thread) = peer(|peer| {
        peer.say(&format!("* OK [CAPABILITY {BARE}] Peer ready.\n"));
        let command = peer.command();
        peer.answer(&format!("OK [CAPABILITY {BARE}] Logged in"));
        command
    });
    log_in(&settings).unwrap();
    let command = thread.join().unwrap();
    let response = command.strip_prefix("AUTHENTICATE PLAIN ").unwrap();
    let response = base64::engine::general_purpose::STANDARD.decode(response).unwrap();
    assert_eq!(String::from_utf8(response).unwrap(), format!("lisa@mail.example\0service\0{PASSWORD}"));
}

#[test]
fn without_sasl_ir_the_password_waits_for_the_servers_plus() {
    let (settings, thread) = peer(|peer| {
        // A server that tells what it can do only if asked.
        peer.say("* OK hello\n");
        assert_eq!(peer.command(), "CAPABILITY");
        peer.say("* CAPABILITY IMAP4rev1 AUTH=PLAIN\n");
        peer.answer("OK");
        assert_eq!(peer.command(), "AUTHENTICATE PLAIN");
        assert!(peer.silence());
        peer.say("* OK wait\n+ \n");
        let response = base64::engine::general_purpose::STANDARD.decode(peer.line()).unwrap();
        peer.answer("OK welcome");
        assert_eq!(peer.command(), "CAPABILITY");
        peer.say("* CAPABILITY IMAP4rev1 UIDPLUS\n");
        peer.answer("OK");
        response
    });
    assert!(log_in(&settings).unwrap().open("INBOX").has_uid_plus());
    assert!(String::from_utf8(thread.join().unwrap()).unwrap().ends_with(PASSWORD));
}

#[test]
fn what_the_server_could_do_before_the_login_says_nothing_about_after() {
    let (settings, thread) = peer(|peer| {
        peer.say(&format!("* OK [CAPABILITY {BARE} UIDPLUS LITERAL+] hello\n"));
        peer.command();
        peer.answer("OK");
        assert_eq!(peer.command(), "CAPABILITY");
        peer.say("* CAPABILITY IMAP4rev1\n");
        peer.answer("OK");
    });
    assert!(!log_in(&settings).unwrap().open("INBOX").has_uid_plus());
    thread.join().unwrap();
}

#[test]
fn a_master_user_by_separator_logs_in_by_login() {
    let (mut settings, thread) = peer(|peer| {
        peer.say("* OK [CAPABILITY IMAP4rev1] hello\n");
        let command = peer.command();
        peer.answer("OK [CAPABILITY IMAP4rev1] in");
        command
    });
    settings.act_for_user = false;
    settings.login = Mechanism::Login;
    settings.login_user = Some("{user}*service".into());
    log_in(&settings).unwrap();
    assert_eq!(thread.join().unwrap(), format!("LOGIN \"lisa@mail.example*service\" \"{PASSWORD}\""));
}

#[test]
fn a_password_beyond_ascii_is_a_literal() {
    let (mut settings, thread) = peer(|peer| {
        peer.say("* OK [CAPABILITY IMAP4rev1] hello\n");
        assert_eq!(peer.command(), "LOGIN \"service\" {8}");
        assert!(peer.silence());
        peer.say("+\n");
        let password = peer.take(8);
        assert_eq!(peer.line(), "");
        peer.answer("OK [CAPABILITY IMAP4rev1] in");
        password
    });
    settings.act_for_user = false;
    settings.login = Mechanism::Login;
    settings.password = maildrop_command::base::secret::Secret::new("müßig!".into());
    log_in(&settings).unwrap();
    assert_eq!(thread.join().unwrap(), "müßig!".as_bytes());
}

#[test]
fn a_password_that_is_refused_is_not_in_the_error_even_if_the_server_says_it_back() {
    let (settings, thread) = peer(|peer| {
        peer.say(&format!("* OK [CAPABILITY {BARE}] Peer ready.\n"));
        peer.command();
        peer.answer(&format!("NO [AUTHENTICATIONFAILED] {PASSWORD} is not the password"));
    });
    let error_text = refused(&settings, MailboxFailure::AccessDenied);
    assert!(error_text.contains("AUTHENTICATIONFAILED") && error_text.contains("lisa@mail.example"), "{error_text}");
    thread.join().unwrap();
}

/// Only what RFC 5530 says of the account is taken for that: some servers have no codes, and others have codes of their own.
#[test]
fn a_refusal_that_does_not_say_that_it_is_about_the_account_is_not_taken_for_that() {
    for (answer, failure) in [
        ("NO [AUTHORIZATIONFAILED] not for you", MailboxFailure::AccessDenied),
        ("NO [ALERT] too many connections", MailboxFailure::LoginRefused),
        ("NO [EXPIRED] the password is too old", MailboxFailure::LoginRefused),
        ("NO Login failed.", MailboxFailure::LoginRefused),
    ] {
        let (settings, thread) = peer(move |peer| {
            peer.say(&format!("* OK [CAPABILITY {BARE}] Peer ready.\n"));
            peer.command();
            peer.answer(answer);
        });
        refused(&settings, failure);
        thread.join().unwrap();
    }
}

#[test]
fn a_servers_own_trouble_is_not_taken_for_a_wrong_password() {
    let (settings, thread) = peer(|peer| {
        peer.say(&format!("* OK [CAPABILITY {BARE}] Peer ready.\n"));
        peer.command();
        peer.answer("NO [UNAVAILABLE] Temporary authentication failure.");
    });
    refused(&settings, MailboxFailure::Refused);
    thread.join().unwrap();
}

/// The peer greets so; everything that the client says then.
fn never_sends_the_password(greeting: &'static str, change: impl FnOnce(&mut Settings), failure: MailboxFailure) {
    let (mut settings, thread) = peer(move |peer: &mut Peer| {
        peer.say(greeting);
        peer.rest()
    });
    change(&mut settings);
    refused(&settings, failure);
    assert_eq!(String::from_utf8_lossy(&thread.join().unwrap()), "");
}

#[test]
fn where_the_server_offers_no_login_the_password_stays_here() {
    let plain = |_: &mut Settings| {};
    let login = |settings: &mut Settings| {
        settings.act_for_user = false;
        settings.login = Mechanism::Login;
    };
    let denied = MailboxFailure::LoginRefused;
    never_sends_the_password("* OK [CAPABILITY IMAP4rev1 STARTTLS LOGINDISABLED] hello\n", plain, denied);
    never_sends_the_password("* OK [CAPABILITY IMAP4rev1 STARTTLS LOGINDISABLED] hello\n", login, denied);
    never_sends_the_password("* PREAUTH [CAPABILITY IMAP4rev1] hello, root\n", plain, denied);
    never_sends_the_password("* BYE too many connections\n", plain, MailboxFailure::Unreachable);
    never_sends_the_password("220 mx.example ESMTP\n", plain, MailboxFailure::Protocol);
    let login_for_another = |settings: &mut Settings| settings.login = Mechanism::Login;
    never_sends_the_password("* OK [CAPABILITY IMAP4rev1] hello\n", login_for_another, MailboxFailure::Local);
    let nul = |settings: &mut Settings| settings.user = "service\0lisa".into();
    never_sends_the_password("* OK [CAPABILITY IMAP4rev1 AUTH=PLAIN] hello\n", nul, MailboxFailure::Local);
}

#[test]
fn no_encryption_no_password() {
    for answer in ["BAD unknown command", "OK begin TLS\n* OK [CAPABILITY IMAP4rev1 AUTH=PLAIN] slipped in"] {
        let (mut settings, thread) = peer(move |peer| {
            peer.say("* OK [CAPABILITY IMAP4rev1 AUTH=PLAIN] no STARTTLS here\n");
            assert_eq!(peer.command(), "STARTTLS");
            peer.answer(answer);
            peer.rest()
        });
        settings.encryption = Encryption::StartTls;
        let expected = if answer.starts_with("OK") { MailboxFailure::Protocol } else { MailboxFailure::Unreachable };
        refused(&settings, expected);
        assert_eq!(thread.join().unwrap(), b"");
    }
}

#[test]
fn a_certificate_for_another_host_is_refused_before_the_server_has_sent_anything() {
    let (mut settings, thread) = tls_peer(|peer| peer.read(&mut [0]).unwrap_err().to_string());
    let Endpoint::Tcp { host, .. } = &mut settings.address else { panic!("a peer listens by TCP") };
    // Its certificate is for 127.0.0.1.
    "localhost".clone_into(host);
    let error_text = refused(&settings, MailboxFailure::Unreachable);
    assert!(error_text.contains("TLS: invalid peer certificate"), "{error_text}");
    let heard = thread.join().unwrap();
    assert!(heard.contains("fatal alert"), "{heard}");
}

/// What is logged meanwhile, of every level.
fn logged<T>(act: impl FnOnce() -> T) -> (T, String) {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone()).finish();
    let value = tracing::subscriber::with_default(subscriber, act);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    (value, text)
}

#[test]
fn no_log_shows_the_password_or_the_message() {
    let (settings, thread) = peer(|peer| {
        peer.say(&format!("* OK [CAPABILITY {BARE}] Peer ready.\n"));
        let response = peer.command();
        peer.answer(&format!("OK [CAPABILITY {BARE} LITERAL+] Logged in"));
        let length = peer.append();
        peer.take(length + 2);
        peer.answer("OK");
        response.strip_prefix("AUTHENTICATE PLAIN ").unwrap().to_owned()
    });
    let (appended, log) = logged(|| {
        let identity = Identity::of(b"");
        mailbox(&settings).append(&copy(b"Subject: confidential\r\n", &identity), &mut || true)
    });
    assert!(matches!(appended, Appended::Stored(None)), "{appended:?}");
    let response = thread.join().unwrap();
    assert!(log.contains("AUTHENTICATE PLAIN …") && log.contains("APPEND"), "{log}");
    for hidden in [PASSWORD, &response, "confidential"] {
        assert!(!log.contains(hidden), "{log}");
    }
}

#[test]
fn no_log_and_no_error_shows_a_password_that_the_server_says_back() {
    // As an answer, as a remark, and as what is no IMAP.
    for (before, after) in [("", "NO [AUTHENTICATIONFAILED] "), ("* BAD what is ", "NO "), ("what is ", "NO ")] {
        for with_login in [false, true] {
            let (mut settings, thread) = peer(move |peer| {
                peer.say(&format!("* OK [CAPABILITY {BARE}] Peer ready.\n"));
                let command = peer.command();
                let remark = if before.is_empty() { String::new() } else { format!("{before}{command}\n") };
                let tag = &peer.tag;
                peer.say(&format!("{remark}{tag} {after}{command}\n"));
                command.rsplit(' ').next().unwrap().to_owned()
            });
            if with_login {
                settings.act_for_user = false;
                settings.login = Mechanism::Login;
            }
            let (result, log) = logged(|| log_in(&settings));
            let error = result.err().expect("it is refused");
            let response = thread.join().unwrap();
            let error_text = format!("{error:?} {log}");
            assert!(!error_text.contains(PASSWORD) && !error_text.contains(&response), "{error_text}");
            assert!(error_text.contains("…"), "{error_text}");
        }
    }
}

/// What is hidden from people is not hidden from us.
#[test]
fn a_password_that_is_part_of_an_answer_changes_nothing() {
    let (mut settings, thread) = peer(|peer| {
        peer.welcome(&format!("{BARE} UIDPLUS"));
        let length = peer.append();
        peer.say("+ go ahead, 12\n");
        peer.take(length + 2);
        peer.answer("OK [APPENDUID 3812 127] done");
    });
    settings.password = maildrop_command::base::secret::Secret::new("12".into());
    let identity = Identity::of(b"");
    let appended = mailbox(&settings).append(&copy(b"Subject: x\r\n", &identity), &mut || true);
    thread.join().unwrap();
    let at = Placement { uid_validity: 3812, uid: 127 };
    assert!(matches!(appended, Appended::Stored(Some(placement)) if placement == at), "{appended:?}");
}
