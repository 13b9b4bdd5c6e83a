//! Embedded, mail for any address is welcome, and a sender's copy is kept where the sender lives here.

use maildrop_command::mailbox::{Appended, Mailbox, NewCopy};
use maildrop_command::message::Identity;
use maildrop_command::message::Role;
use maildrop_command::site::embedded::Embedded;
use std::collections::HashSet;
use std::fs;
use time::OffsetDateTime;

fn deliver(embedded: &Embedded, address: &str) {
    let destination = embedded.recipient(address);
    let bytes = format!("To: {}\r\n\r\n", address.escape_default());
    let copy = NewCopy {
        bytes: bytes.as_bytes(),
        identity: &Identity::of(bytes.as_bytes()),
        role: Role::Recipient,
        seen: false,
        arrived: OffsetDateTime::now_utc(),
    };
    let appended = embedded.mailbox(&destination.user, &destination.inbox).append(&copy, &mut || true);
    assert!(matches!(appended, Appended::Stored(_)), "{address:?}: {appended:?}");
}

#[test]
fn hostile_addresses_get_maildirs_of_their_own_inside_the_directory() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("a/mail");
    let embedded = Embedded::new(directory.clone());
    let long = format!("{}@x", "l".repeat(5000));
    let longer = format!("{}@x", "l".repeat(5001));
    let addresses = [
        "doug@mail.axial.net",
        "../../evil@x",
        "/etc/cron.d/evil",
        "..",
        ".",
        "",
        ".ssh@x",
        "a/b@x",
        "a%2Fb@x",
        "a\0b@x",
        "a\nb@x",
        "locks",
        "ledger.sqlite",
        "ledger.sqlite-wal",
        "ünï@x",
        "\"quoted local\"@x",
        "a:2,S@x",
        "*@x",
        &long,
        &longer,
    ];
    for address in addresses {
        deliver(&embedded, address);
    }
    let made: HashSet<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(made.len(), addresses.len(), "{made:?}");
    for name in &made {
        assert_eq!(fs::read_dir(directory.join(name).join("new")).unwrap().count(), 1, "{name:?}");
    }
    // And nothing beside it.
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    assert_eq!(fs::read_dir(parent.path().join("a")).unwrap().count(), 1);
}

#[test]
fn a_sender_lives_here_once_it_has_a_maildir() {
    let directory = tempfile::tempdir().unwrap();
    let embedded = Embedded::new(directory.path().to_owned());
    assert_eq!(embedded.sender("lisa@gmail.com"), None);
    assert_eq!(embedded.sender(""), None);
    deliver(&embedded, "Doug@mail.axial.net");
    let doug = embedded.sender("doug@Mail.axial.net").unwrap();
    assert_eq!((doug.user.as_str(), doug.inbox.as_str(), doug.sent.as_str()), ("doug@mail.axial.net", "INBOX", "Sent"));
    // Asking makes nothing.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_first_message_to_one_address_by_many_at_once() {
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let embedded = Embedded::new(directory.path().join("mail"));
        std::thread::scope(|scope| {
            for n in 0..8 {
                let embedded = embedded.clone();
                scope.spawn(move || {
                    let user = embedded.recipient("doug@x").user;
                    let bytes = format!("Subject: {n}\r\n\r\n");
                    let copy = NewCopy {
                        bytes: bytes.as_bytes(),
                        identity: &Identity::of(bytes.as_bytes()),
                        role: Role::Sender,
                        seen: true,
                        arrived: OffsetDateTime::now_utc(),
                    };
                    let appended = embedded.mailbox(&user, "Sent").append(&copy, &mut || true);
                    assert!(matches!(appended, Appended::Stored(_)), "{appended:?}");
                });
            }
        });
        assert_eq!(fs::read_dir(directory.path().join("mail/doug@x/.Sent/cur")).unwrap().count(), 8);
    }
}
