//! Postfix bounces the message of a command that takes too long. So no server, however it behaves, keeps us longer than
//! the deadline.

use crate::imap_peer::{BARE, Peer, copy, mailbox, peer, settings};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::imap::{Encryption, Settings, connect};
use maildrop_command::mailbox::{Appended, ImapMailbox, Mailbox, MailboxFailure};
use maildrop_command::message::Identity;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long each may take, once it is logged in: enough to send a command, for a machine that hangs for a while.
const TIME: Duration = Duration::from_secs(5);

/// lisa's mailbox there, with so much time from then on: the login has all the time that it needs.
fn mailbox_with_so_much_time(settings: &Settings) -> (ImapMailbox, Instant) {
    let mut mailbox = mailbox(settings);
    let begun = Instant::now();
    mailbox.set_deadline(Deadline::after(TIME));
    (mailbox, begun)
}

/// Far below what a peer would like to take, far above what a busy machine needs.
fn in_time(begun: Instant) {
    let taken = begun.elapsed();
    assert!(taken >= TIME - Duration::from_millis(20) && taken < TIME * 10, "{taken:?}");
}

/// Sends a byte of `text` now and then, over and over, until the test is done.
fn trickle(peer: &mut Peer, text: &str, done: &Receiver<()>) {
    for byte in text.chars().cycle() {
        if done.recv_timeout(Duration::from_millis(20)) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            break;
        }
        peer.say(&byte.to_string());
    }
}

#[test]
fn a_server_that_never_greets() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for encryption in [Encryption::None, Encryption::StartTls, Encryption::Implicit] {
        let mut settings = settings(listener.local_addr().unwrap().port());
        settings.encryption = encryption;
        let begun = Instant::now();
        let error = connect(&settings, Deadline::after(TIME)).err().expect("nobody greets");
        assert_eq!(error.failure, MailboxFailure::TimedOut, "{error}");
        in_time(begun);
    }
}

#[test]
fn a_unix_socket_whose_queue_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("imap");
    let _listener = UnixListener::bind(&path).unwrap();
    let mut settings = settings(0);
    settings.address = Endpoint::Socket(path.clone());
    // Nobody accepts: at some point a connect blocks, and the system has no time limit for it.
    let (tell, hear) = channel();
    std::thread::spawn(move || {
        let mut waiting = Vec::new();
        while let Ok(stream) = std::os::unix::net::UnixStream::connect(&path) {
            waiting.push(stream);
            if tell.send(()).is_err() {
                break;
            }
        }
    });
    while hear.recv_timeout(Duration::from_millis(300)).is_ok() {}
    let begun = Instant::now();
    let error = connect(&settings, Deadline::after(TIME)).err().expect("nobody accepts");
    assert_eq!(error.failure, MailboxFailure::TimedOut, "{error}");
    in_time(begun);
}

#[test]
fn a_server_that_trickles_its_greeting() {
    let (tell, done) = channel();
    let (settings, thread) = peer(move |peer| trickle(peer, "* OK and so on and so on ", &done));
    let begun = Instant::now();
    let error = connect(&settings, Deadline::after(TIME)).err().expect("it never ends");
    assert_eq!(error.failure, MailboxFailure::TimedOut, "{error}");
    in_time(begun);
    drop(tell);
    // The peer may have met the end of the connection first, and complained.
    drop(thread.join());
}

#[test]
fn a_server_that_chats_on_and_on_instead_of_answering() {
    let (tell, done) = channel();
    let (settings, thread) = peer(move |peer| {
        peer.welcome(BARE);
        peer.command();
        trickle(peer, "* 1 EXISTS\n+\n", &done);
    });
    let (mut mailbox, begun) = mailbox_with_so_much_time(&settings);
    let error = mailbox.position().unwrap_err();
    assert_eq!(error.failure, MailboxFailure::TimedOut, "{error}");
    in_time(begun);
    drop(tell);
    // The peer may have met the end of the connection first, and complained.
    drop(thread.join());
}

#[test]
fn a_server_that_takes_no_more_of_the_message() {
    let (tell, done) = channel::<()>();
    let (settings, thread) = peer(move |peer| {
        peer.welcome("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+");
        done.recv_timeout(Duration::from_secs(120)).ok()
    });
    let bytes = vec![b'x'; 30 << 20];
    let (mut mailbox, begun) = mailbox_with_so_much_time(&settings);
    match mailbox.append(&copy(&bytes, &Identity::of(b"")), &mut || true) {
        Appended::NotSent(error) => assert_eq!(error.failure, MailboxFailure::TimedOut, "{error}"),
        other => panic!("{other:?}"),
    }
    in_time(begun);
    drop(tell);
    thread.join().unwrap();
}

#[test]
fn a_server_that_never_says_what_came_of_it() {
    let (tell, done) = channel::<()>();
    let (settings, thread) = peer(move |peer| {
        peer.welcome("IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+");
        done.recv_timeout(Duration::from_secs(120)).ok()
    });
    let (mut mailbox, begun) = mailbox_with_so_much_time(&settings);
    match mailbox.append(&copy(b"x", &Identity::of(b"")), &mut || true) {
        Appended::Unknown(error) => assert_eq!(error.failure, MailboxFailure::TimedOut, "{error}"),
        other => panic!("{other:?}"),
    }
    in_time(begun);
    drop(tell);
    thread.join().unwrap();
}
