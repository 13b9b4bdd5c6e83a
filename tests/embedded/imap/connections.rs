//! What becomes of a connection to a server, and who is let in.

use crate::imap_peer::{BARE, mailbox, peer, settings};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::imap::{Settings, connect};
use maildrop_command::mailbox::{Mailbox, MailboxFailure};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

#[test]
fn a_connection_that_breaks_later_is_lost_and_not_out_of_reach() {
    let (settings, thread) = peer(|peer| {
        peer.welcome(BARE);
        // Goes away with something unread, which resets the connection.
        assert_eq!(peer.take(1).len(), 1);
    });
    let mut mailbox = connect(&settings, soon()).unwrap().authenticate("lisa").unwrap().open("INBOX");
    assert_eq!(mailbox.position().unwrap_err().failure, MailboxFailure::ConnectionLost);
    thread.join().unwrap();
}

#[test]
fn a_server_is_described_before_and_after_the_login() {
    let (settings, thread) = peer(|peer| {
        peer.say("* OK [CAPABILITY IMAP4rev1 AUTH=PLAIN SASL-IR LITERAL-] Here I am\n");
        peer.command();
        peer.answer("OK [CAPABILITY IMAP4rev1 UIDPLUS] in");
        peer.rest();
    });
    let connection = connect(&settings, soon()).unwrap();
    assert_eq!(connection.describe(), "Here I am (LITERAL- SASL-IR)");
    let mailbox = connection.authenticate("lisa").unwrap().open("INBOX");
    assert_eq!(mailbox.describe(), "Here I am (UIDPLUS)");
    assert!(mailbox.has_uid_plus());
    drop(mailbox);
    thread.join().unwrap();
}

/// The mail of several users would be in one mailbox.
#[test]
fn nobody_is_let_in_without_a_name_or_to_a_mailbox_that_may_be_anybodys() {
    type Change = fn(&mut Settings);
    let changes: [(Change, &str); 4] = [
        (|_| {}, ""),
        (|settings| settings.user.clear(), "lisa"),
        (|settings| settings.act_for_user = false, "lisa"),
        (|settings| (settings.act_for_user, settings.login_user) = (false, Some("service".into())), "lisa"),
    ];
    for (number, (change, user)) in changes.into_iter().enumerate() {
        let (mut settings, thread) = peer(|peer| {
            peer.say(&format!("* OK [CAPABILITY {BARE}] Peer ready.\n"));
            peer.rest()
        });
        change(&mut settings);
        let failure = connect(&settings, soon()).unwrap().open(user, "INBOX").err().unwrap().failure;
        assert_eq!(failure, MailboxFailure::Local, "{number}");
        assert_eq!(thread.join().unwrap(), b"", "{number}");
    }
}

/// signal(7): a socket with a time limit is interrupted (EINTR) where its process is stopped and goes on, whatever the handlers.
#[test]
fn a_process_that_is_stopped_for_a_while_still_gets_its_answer() {
    const PORT: &str = "TEST_OF_A_STOPPED_PROCESS";
    if let Ok(port) = std::env::var(PORT) {
        assert_eq!(mailbox(&settings(port.parse().unwrap())).position().unwrap().unwrap().uid_next, 5);
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = "imap::connections::a_process_that_is_stopped_for_a_while_still_gets_its_answer";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(PORT, listener.local_addr().unwrap().port().to_string())
        .spawn()
        .unwrap();
    let mut peer = crate::imap_peer::Peer::on(listener.accept().unwrap().0);
    peer.welcome(BARE);
    peer.command();
    assert!(peer.silence(), "it waits");
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::STOP).unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    while !state().contains(") T ") {
        std::thread::yield_now();
    }
    kill_process(pid, Signal::CONT).unwrap();
    assert!(peer.silence(), "it goes on waiting");
    peer.say("* STATUS INBOX (UIDVALIDITY 3 UIDNEXT 5)\n");
    peer.answer("OK");
    assert!(child.wait().unwrap().success());
}
