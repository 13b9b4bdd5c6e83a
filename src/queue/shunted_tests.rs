//! What is written down of messages that end workers.

use super::*;
use crate::base::files::synced;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

const BYTES: &[u8] = b"Subject: x\r\n\r\n\0\xff{}\n---\n";

fn recipient(address: &str) -> ShuntedRecipient {
    ShuntedRecipient { address: address.into(), original: None }
}

fn envelope(to: &[&str]) -> ShuntedEnvelope {
    ShuntedEnvelope {
        sender: "lisa@gmail.com".into(),
        recipients: to.iter().map(|to| recipient(to)).collect(),
        queue_id: Some("4bXyz".into()),
        client_address: None,
        sasl_username: Some("lisa\n---\n".into()),
        no_sent: false,
        behind: Behind::Mta,
    }
}

fn shunted(envelopes: Vec<ShuntedEnvelope>) -> Shunted {
    let death =
        Death { at: 1, signal: 6, pid: 7, queue_id: None, stage: Some("lock".into()), said: vec!["a\nb".into()] };
    Shunted { size: BYTES.len() as u64, since: 1, set_aside_at: 2, deaths: vec![death], envelopes }
}

fn suspect() -> Suspect {
    Suspect { size: 3, since: 1_500_000, counted: 1, deaths: shunted(Vec::new()).deaths, tried_at: Some(2) }
}

#[test]
fn a_shunted_message_is_whole_on_the_disk_before_it_has_its_name_and_a_removal_is_there_before_anybody_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = ShuntedStore::open(folder.path()).unwrap();
    let digest = Digest::of(BYTES);
    synced::take();
    store.set_aside(&digest, shunted(vec![envelope(&["a@x", "b@x"])]), BYTES).unwrap();
    synced::assert_order(&synced::take(), &store.path(&digest));
    assert!(store.delivered(&digest, "lisa@gmail.com", &["a@x".into()]).unwrap());
    synced::assert_order(&synced::take(), &store.path(&digest));
    store.remember(&digest, &suspect()).unwrap();
    synced::assert_order(&synced::take(), &store.suspects.path.join(digest.to_string()));
    let synced = || synced::take_directories().iter().map(|path| path.ends_with("shunted")).collect::<Vec<_>>();
    store.forget(&digest).unwrap();
    assert_eq!(synced(), [false]);
    assert!(store.drop_copy(&digest).unwrap());
    assert_eq!(synced(), [true]);
}

#[test]
fn what_is_written_is_read_again_by_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let store = ShuntedStore::open(folder.path()).unwrap();
    let (digest, other) = (Digest::of(BYTES), Digest::of(b"x"));
    assert_eq!(digest, Digest::of_file(BYTES).unwrap());
    assert!(store.set_aside(&digest, shunted(vec![envelope(&["a@x", "b@x"])]), BYTES).unwrap());
    store.remember(&digest, &suspect()).unwrap();
    store.remember(&other, &Suspect { tried_at: None, ..suspect() }).unwrap();
    store.remember(&other, &Suspect { counted: 2, tried_at: None, ..suspect() }).unwrap();

    let again = ShuntedStore::existing(folder.path()).unwrap();
    let ShuntedFiles { read: mut suspects, unreadable } = again.suspects().unwrap();
    suspects.sort_by_key(|(_, suspect)| suspect.counted);
    assert!(unreadable.is_empty());
    assert_eq!(suspects, [(digest, suspect()), (other, Suspect { counted: 2, tried_at: None, ..suspect() })]);
    let (copy, bytes) = again.read(&digest).unwrap().unwrap();
    assert_eq!((copy, bytes.as_slice()), (shunted(vec![envelope(&["a@x", "b@x"])]), BYTES));
    assert!(again.read(&other).unwrap().is_none());
    assert_eq!(again.find(&digest.id()).unwrap(), digest);
    assert_eq!(again.find(&digest.to_string().to_uppercase()).unwrap(), digest);
    for none in ["", "abc", &digest.id()[..3], "../shunted"] {
        assert!(matches!(again.find(none), Err(NoSuchCopy::None(_))), "{none}");
    }
    for (folder, mode) in [("suspects", 0o700), ("shunted", 0o700)] {
        let path = folder_of(&store, folder);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        let file = fs::read_dir(&path).unwrap().next().unwrap().unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    store.forget(&other).unwrap();
    store.forget(&other).unwrap();
    assert_eq!(store.suspects().unwrap().read.len(), 1);
    assert!(store.drop_copy(&digest).unwrap() && !store.drop_copy(&digest).unwrap());
}

fn folder_of(store: &ShuntedStore, name: &str) -> PathBuf {
    store.suspects.path.parent().unwrap().join(name)
}

#[test]
fn each_recipient_is_kept_until_it_is_delivered_to() {
    let folder = tempfile::tempdir().unwrap();
    let store = ShuntedStore::open(folder.path()).unwrap();
    let digest = Digest::of(BYTES);
    let by_another = ShuntedEnvelope { sender: "doug@x".into(), ..envelope(&["a@x"]) };
    let set_aside = |envelope| store.set_aside(&digest, shunted(vec![envelope]), BYTES).unwrap();
    assert!(set_aside(envelope(&["a@x"])));
    assert!(set_aside(envelope(&["a@x", "b@x"])));
    assert!(set_aside(by_another.clone()));
    // Nothing new: nothing is written.
    assert!(!set_aside(envelope(&["b@x", "a@x"])));
    let envelopes = || store.header(&digest).unwrap().unwrap().envelopes;
    assert_eq!(envelopes(), [envelope(&["a@x", "b@x"]), by_another.clone()]);

    assert!(store.delivered(&digest, "lisa@gmail.com", &["a@x".into(), "c@x".into()]).unwrap());
    assert_eq!(envelopes(), [envelope(&["b@x"]), by_another]);
    assert_eq!(store.read(&digest).unwrap().unwrap().1, BYTES);
    assert!(store.delivered(&digest, "doug@x", &["a@x".into()]).unwrap());
    assert!(!store.delivered(&digest, "lisa@gmail.com", &["b@x".into()]).unwrap());
    assert!(store.header(&digest).unwrap().is_none());
    assert!(!store.delivered(&digest, "lisa@gmail.com", &["b@x".into()]).unwrap());
}

#[test]
fn what_is_cut_short_or_changed_or_no_file_is_told_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let store = ShuntedStore::open(folder.path()).unwrap();
    let digest = Digest::of(BYTES);
    let path = folder_of(&store, "shunted").join(digest.to_string());
    store.set_aside(&digest, shunted(vec![envelope(&["a@x"])]), BYTES).unwrap();
    let whole = fs::read(&path).unwrap();
    for length in [0, 5, whole.len() - BYTES.len() - 1, whole.len() - BYTES.len(), whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        assert!(store.header(&digest).is_err() && store.read(&digest).is_err(), "{length}");
        let copies = store.shunted().unwrap();
        assert_eq!((copies.read.len(), copies.unreadable.len()), (0, 1), "{length}");
    }
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(&path, &changed).unwrap();
    let problem = store.read(&digest).unwrap_err().to_string();
    assert!(problem.ends_with("its bytes are not those that were set aside"), "{problem}");
    assert!(store.delivered(&digest, "lisa@gmail.com", &["a@x".into()]).is_err());

    fs::remove_file(&path).unwrap();
    symlink("/etc/hostname", &path).unwrap();
    assert!(store.header(&digest).unwrap_err().to_string().ends_with("it is a symbolic link"));
    // The next try brings all of it anew.
    assert!(store.set_aside(&digest, shunted(vec![envelope(&["a@x"])]), BYTES).unwrap());
    assert_eq!(fs::read(&path).unwrap(), whole);
}

/// It may know recipients whom no further try brings.
#[test]
fn a_copy_that_cannot_be_read_at_this_moment_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let store = ShuntedStore::open(folder.path()).unwrap();
    let digest = Digest::of(BYTES);
    store.set_aside(&digest, shunted(vec![envelope(&["a@x", "b@x"])]), BYTES).unwrap();
    for errno in [rustix::io::Errno::MFILE, rustix::io::Errno::IO] {
        folder::FAULT.set(Some(errno));
        let error = store.set_aside(&digest, shunted(vec![envelope(&["a@x"])]), BYTES).unwrap_err();
        assert!(matches!(error, QueueError::Io { .. }), "{error}");
    }
    assert!(store.set_aside(&digest, shunted(vec![envelope(&["c@x"])]), BYTES).unwrap());
    assert_eq!(store.header(&digest).unwrap().unwrap().envelopes, [envelope(&["a@x", "b@x", "c@x"])]);
}

#[test]
fn what_could_not_be_read_again_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = ShuntedStore::open(folder.path()).unwrap();
    let digest = Digest::of(BYTES);
    store.set_aside(&digest, shunted(vec![envelope(&["a@x"])]), BYTES).unwrap();
    let of_length = |length: usize| {
        let mut more = shunted(vec![envelope(&["a@x", ""])]);
        let shorter = serde_json::to_vec(&more).unwrap().len() + 1;
        more.envelopes[0].recipients[1].address = "b".repeat(length - shorter);
        more
    };
    let longest = 4 << 20;
    let error = store.set_aside(&digest, of_length(longest + 1), BYTES).unwrap_err();
    assert!(matches!(error, QueueError::Envelope { .. }), "{error}");
    assert_eq!(store.header(&digest).unwrap().unwrap().envelopes, [envelope(&["a@x"])]);
    assert!(store.set_aside(&digest, of_length(longest), BYTES).unwrap());
    assert_eq!(store.header(&digest).unwrap().unwrap().envelopes, of_length(longest).envelopes);
    let said = vec!["x".repeat(longest)];
    let long = Suspect { deaths: vec![Death { said, ..suspect().deaths[0].clone() }], ..suspect() };
    assert!(matches!(store.remember(&digest, &long), Err(QueueError::Envelope { .. })));
    assert!(store.suspect(&digest).unwrap().is_none());
}

#[test]
fn what_a_writer_that_was_killed_has_left_is_removed_and_strange_names_are_let_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = ShuntedStore::open(folder.path()).unwrap();
    let shunted = folder_of(&store, "shunted");
    let (left, strange) = (shunted.join(uuid::Uuid::now_v7().to_string()), shunted.join("notes"));
    fs::write(&left, "x").unwrap();
    fs::write(&strange, "x").unwrap();
    assert!(store.shunted().unwrap().read.is_empty() && store.digests().unwrap().is_empty());
    ShuntedStore::open(folder.path()).unwrap();
    assert!(!left.exists() && strange.exists());
}

/// Whoever reads a file in pieces, and is interrupted.
struct Interrupted<'a> {
    pieces: Vec<Result<&'a [u8], io::ErrorKind>>,
}

impl Read for Interrupted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.pieces.is_empty() {
            return Ok(0);
        }
        let mut piece = self.pieces.remove(0)?;
        piece.read(buffer)
    }
}

#[test]
fn a_file_is_known_by_all_of_its_bytes_or_not_at_all() {
    let (first, second) = BYTES.split_at(5);
    let pieces = vec![Ok(first), Err(io::ErrorKind::Interrupted), Ok(second)];
    assert_eq!(Digest::of_file(Interrupted { pieces }).unwrap(), Digest::of(BYTES));
    let pieces = vec![Ok(first), Err(io::ErrorKind::StaleNetworkFileHandle)];
    assert!(Digest::of_file(Interrupted { pieces }).is_err());
}

#[test]
fn a_copy_has_a_mail_system_behind_it_where_all_that_it_came_with_has_and_lies_where_people_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = ShuntedStore::open(folder.path()).unwrap();
    let digest = Digest::of(BYTES);
    let of_the_queue = ShuntedEnvelope { behind: Behind::Queue, ..envelope(&["b@x"]) };
    for (envelopes, behind) in [
        (vec![envelope(&["a@x"])], true),
        (vec![envelope(&["a@x"]), of_the_queue.clone()], false),
        (vec![of_the_queue], false),
    ] {
        assert_eq!(shunted(envelopes).has_mta_behind(), behind);
    }
    assert_eq!(store.path(&digest), folder_of(&store, "shunted").join(digest.to_string()));
}
