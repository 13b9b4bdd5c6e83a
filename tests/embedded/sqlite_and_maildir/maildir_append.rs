//! A copy in a Maildir: stored once, however often it is appended, and found again whatever its reader did with it.

use maildrop_command::mailbox::{Appended, FoundCopies, Mailbox, MaildirMailbox, Matching, NewCopy, Wanted};
use maildrop_command::message::Identity;
use maildrop_command::message::Role;
use maildrop_command::site::embedded::Embedded;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use time::OffsetDateTime;

const MESSAGE: &[u8] = b"From: lisa@gmail.com\r\nMessage-ID: <1@x>\r\n\r\nHello\rthere\r\n\r\nbye\r\n";
/// 2026-11-20 15:00:00 UTC
const ARRIVED: i64 = 1_795_186_800;

fn files(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).map_or_else(|_| Vec::new(), |entries| entries.map(|entry| entry.unwrap().path()).collect())
}

fn append_if(mailbox: &mut MaildirMailbox, bytes: &[u8], role: Role, go_ahead: bool) -> Appended {
    let copy = NewCopy {
        bytes,
        identity: &Identity::of(bytes),
        role,
        seen: role == Role::Sender,
        arrived: OffsetDateTime::from_unix_timestamp(ARRIVED).unwrap(),
    };
    mailbox.append(&copy, &mut || go_ahead)
}

fn append(mailbox: &mut MaildirMailbox, bytes: &[u8], role: Role) {
    let appended = append_if(mailbox, bytes, role, true);
    assert!(matches!(appended, Appended::Stored(None)), "{appended:?}");
}

fn find(mailbox: &mut MaildirMailbox, bytes: &[u8], role: Role) -> FoundCopies {
    mailbox
        .find(&Wanted {
            message_id: Some("1@x"),
            identity: &Identity::of(bytes),
            role,
            matching: Matching::Identity,
            since: None,
            not_before: OffsetDateTime::UNIX_EPOCH,
        })
        .unwrap()
}

struct Scene {
    directory: tempfile::TempDir,
    inbox: MaildirMailbox,
    sent: MaildirMailbox,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let embedded = Embedded::new(directory.path().to_owned());
        let user = embedded.recipient("Lisa@x").user;
        Self { inbox: embedded.mailbox(&user, "INBOX"), sent: embedded.mailbox(&user, "Sent"), directory }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join("lisa@x").join(path)
    }
}

#[test]
fn a_copy_is_a_new_file_with_lf_line_ends_and_the_time_of_its_arrival() {
    let mut scene = Scene::new();
    append(&mut scene.inbox, MESSAGE, Role::Recipient);
    let new = files(&scene.path("new"));
    assert_eq!(new.len(), 1);
    assert_eq!(fs::read(&new[0]).unwrap(), b"From: lisa@gmail.com\nMessage-ID: <1@x>\n\nHello\rthere\n\nbye\n");
    let modified = OffsetDateTime::from(fs::metadata(&new[0]).unwrap().modified().unwrap());
    assert_eq!(modified.unix_timestamp(), ARRIVED);
    assert!(files(&scene.path("tmp")).is_empty() && files(&scene.path("cur")).is_empty());
}

#[test]
fn the_sent_copy_is_seen_and_lies_in_a_folder_of_its_own() {
    let mut scene = Scene::new();
    append(&mut scene.sent, MESSAGE, Role::Sender);
    append(&mut scene.sent, MESSAGE, Role::Sender);
    let cur = files(&scene.path(".Sent/cur"));
    assert_eq!(cur.len(), 1);
    assert!(cur[0].to_str().unwrap().ends_with(":2,S"), "{cur:?}");
    assert!(scene.path(".Sent/maildirfolder").exists());
    assert_eq!(find(&mut scene.sent, MESSAGE, Role::Sender).copies.len(), 1);
    // The INBOX around it is a whole Maildir, and empty.
    assert!(scene.path("new").is_dir() && files(&scene.path("new")).is_empty());
    assert!(find(&mut scene.inbox, MESSAGE, Role::Sender).copies.is_empty());
}

/// A process that died between link and fsync has left just this behind: the file under its name.
#[test]
fn an_append_that_is_repeated_after_a_crash_leaves_one_file() {
    let mut scene = Scene::new();
    for _ in 0..3 {
        append(&mut scene.inbox, MESSAGE, Role::Recipient);
    }
    assert_eq!(files(&scene.path("new")).len(), 1);
    assert!(files(&scene.path("tmp")).is_empty());
    append(&mut scene.inbox, b"another\r\n", Role::Recipient);
    assert_eq!(files(&scene.path("new")).len(), 2);
}

#[test]
fn a_copy_in_both_roles_is_two_copies() {
    let mut scene = Scene::new();
    append(&mut scene.inbox, MESSAGE, Role::Recipient);
    assert!(find(&mut scene.inbox, MESSAGE, Role::Sender).copies.is_empty());
}

#[test]
fn a_copy_that_was_read_is_still_found() {
    let mut scene = Scene::new();
    assert!(find(&mut scene.inbox, MESSAGE, Role::Recipient).copies.is_empty());
    append(&mut scene.inbox, MESSAGE, Role::Recipient);
    let new = files(&scene.path("new")).remove(0);
    let base = new.file_name().unwrap().to_str().unwrap().to_owned();
    let mut at = new;
    for flags in [":2,S", ":2,FRS", ",S=60,W=66:2,S", ":2,ST"] {
        let next = scene.path("cur").join(format!("{base}{flags}"));
        fs::rename(&at, &next).unwrap();
        at = next;
        let found = find(&mut scene.inbox, MESSAGE, Role::Recipient);
        assert_eq!(found.copies.len(), 1, "{flags}");
        assert_eq!(found.copies[0].deleted, flags.contains('T'), "{flags}");
        assert!(!found.in_range && found.copies[0].placement.is_none());
    }
    fs::remove_file(at).unwrap();
    assert!(find(&mut scene.inbox, MESSAGE, Role::Recipient).copies.is_empty());
}

#[test]
fn nothing_is_stored_without_a_go_ahead() {
    let mut scene = Scene::new();
    assert!(matches!(append_if(&mut scene.inbox, MESSAGE, Role::Recipient, false), Appended::Withheld));
    for place in ["new", "cur", "tmp"] {
        assert!(files(&scene.path(place)).is_empty(), "{place}");
    }
}

/// A file system that lied about fsync leaves an empty file under the right name after a power loss.
#[test]
fn a_damaged_file_under_the_copys_name_does_not_count_as_the_copy() {
    let mut scene = Scene::new();
    append(&mut scene.inbox, MESSAGE, Role::Recipient);
    fs::write(&files(&scene.path("new"))[0], b"").unwrap();
    assert!(find(&mut scene.inbox, MESSAGE, Role::Recipient).copies.is_empty());
    append(&mut scene.inbox, MESSAGE, Role::Recipient);
    append(&mut scene.inbox, MESSAGE, Role::Recipient);
    assert_eq!(files(&scene.path("new")).len(), 2);
    assert_eq!(find(&mut scene.inbox, MESSAGE, Role::Recipient).copies.len(), 1);
}

/// A reader moves the copy to and fro while it is looked for: directory listings show it under neither name at times.
#[test]
fn a_copy_is_found_while_its_reader_renames_it() {
    let mut scene = Scene::new();
    append(&mut scene.inbox, MESSAGE, Role::Recipient);
    let new = files(&scene.path("new")).remove(0);
    let base = new.file_name().unwrap().to_str().unwrap().to_owned();
    let names: Vec<_> =
        ["S", "RS", "FS", "FRS"].iter().map(|flags| scene.path("cur").join(format!("{base}:2,{flags}"))).collect();
    // Enough neighbours that a listing takes more than one read.
    for n in 0..2000 {
        fs::write(scene.path("cur").join(format!("neighbour{n}:2,S")), b"x").unwrap();
    }
    fs::rename(new, &names[0]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also where an assertion fails, or the scope would wait for the reader for ever.
        let _stop = StopWhenDropped(&stop);
        scope.spawn(|| {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                fs::rename(&names[n % 4], &names[(n + 1) % 4]).unwrap();
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        });
        for _ in 0..100 {
            let wanted = Identity::of(MESSAGE);
            let found = scene.inbox.find(&Wanted {
                message_id: None,
                identity: &wanted,
                role: Role::Recipient,
                matching: Matching::Identity,
                since: None,
                not_before: OffsetDateTime::UNIX_EPOCH,
            });
            // An error defers, and that is well; "not there" would be a second copy.
            if let Ok(found) = found {
                assert_eq!(found.copies.len(), 1);
            }
        }
    });
}

struct StopWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_search_by_message_id_alone_is_an_error_and_not_an_empty_answer() {
    let mut scene = Scene::new();
    let wanted = Wanted {
        message_id: Some("1@x"),
        identity: &Identity::of(MESSAGE),
        role: Role::Sender,
        matching: Matching::MessageId,
        since: None,
        not_before: OffsetDateTime::UNIX_EPOCH,
    };
    scene.sent.find(&wanted).unwrap_err();
}

#[test]
fn a_maildir_that_cannot_be_written_stores_nothing_and_says_where() {
    let mut scene = Scene::new();
    fs::create_dir_all(scene.path("")).unwrap();
    // A file in the way, since root may write anywhere.
    fs::write(scene.path("tmp"), b"").unwrap();
    match append_if(&mut scene.inbox, MESSAGE, Role::Recipient, true) {
        Appended::NotSent(error) => assert!(error.to_string().contains("lisa@x/tmp"), "{error}"),
        other => panic!("{other:?}"),
    }
}
