//! Reading a Maildir long after a delivery: what is there by its name, as it was delivered, and nothing made by looking.

use maildrop_command::mailbox::{
    Mailbox, MailboxFailure, MaildirMailbox, Matching, NewCopy, Presence, ReadableMailbox, Recorded, Wanted,
};
use maildrop_command::message::Identity;
use maildrop_command::message::Role;
use maildrop_command::site::embedded::Embedded;
use std::fs;
use std::path::PathBuf;
use time::OffsetDateTime;

const MESSAGE: &[u8] = b"From: lisa@gmail.com\r\nMessage-ID: <1@x>\r\n\r\nHello\rthere\r\r\n\r\nbye\r\n";

fn files(directory: PathBuf) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn recorded(identity: &Identity, role: Role) -> Recorded<'_> {
    Recorded { identity, role, placement: None }
}

fn scene() -> (tempfile::TempDir, MaildirMailbox) {
    let directory = tempfile::tempdir().unwrap();
    let embedded = Embedded::new(directory.path().to_owned());
    let mailbox = embedded.mailbox("lisa@x", "INBOX");
    (directory, mailbox)
}

#[test]
fn a_copy_is_read_as_it_was_delivered_whatever_its_reader_did_with_it() {
    let (directory, mut mailbox) = scene();
    let identity = Identity::of(MESSAGE);
    let arrived = OffsetDateTime::now_utc();
    let new = NewCopy { bytes: MESSAGE, identity: &identity, role: Role::Recipient, seen: false, arrived };
    mailbox.append(&new, &mut || true);
    let another = Identity::of(b"another");
    let [ours, role, other] =
        [recorded(&identity, Role::Recipient), recorded(&identity, Role::Sender), recorded(&another, Role::Recipient)];
    let maildir = directory.path().join("lisa@x");
    let mut at = files(maildir.join("new")).remove(0);
    let base = at.file_name().unwrap().to_str().unwrap().to_owned();
    for (flags, presence) in [(":2,", Presence::There), (":2,S", Presence::There), (":2,ST", Presence::MarkedDeleted)] {
        let next = maildir.join("cur").join(format!("{base}{flags}"));
        fs::rename(&at, &next).unwrap();
        at = next;
        let seen = mailbox.presence(&[other, ours, role]).unwrap();
        assert_eq!(seen.copies, [Presence::Gone, presence, Presence::Gone], "{flags}");
        assert_eq!(mailbox.read(&ours).unwrap().as_deref(), Some(MESSAGE), "{flags}");
        assert_eq!(mailbox.read(&role).unwrap(), None);
    }
    fs::remove_file(at).unwrap();
    assert_eq!(mailbox.presence(&[ours]).unwrap().copies, [Presence::Gone]);
    assert_eq!(mailbox.read(&ours).unwrap(), None);
}

#[test]
fn looking_makes_no_maildir() {
    let (directory, mut mailbox) = scene();
    let identity = Identity::of(MESSAGE);
    let copy = recorded(&identity, Role::Recipient);
    assert_eq!(mailbox.presence(&[copy]).unwrap_err().failure, MailboxFailure::NoSuchMailbox);
    assert_eq!(mailbox.read(&copy).unwrap(), None);
    let wanted = Wanted {
        message_id: None,
        identity: &identity,
        role: Role::Recipient,
        matching: Matching::Identity,
        since: None,
        not_before: OffsetDateTime::UNIX_EPOCH,
    };
    assert!(mailbox.find(&wanted).unwrap().copies.is_empty());
    assert_eq!(files(directory.path().to_owned()), Vec::<PathBuf>::new());
}
