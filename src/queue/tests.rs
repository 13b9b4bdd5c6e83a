use super::*;
use crate::base::files::synced;
use crate::lock::Shard;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, UNIX_EPOCH};
use tempfile::TempDir;

const MESSAGE: &[u8] = b"Subject: x\r\n\r\n---\n\0\xff";

/// How many messages there are in each folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) new: usize,
    pub(super) work: usize,
    pub(super) held: usize,
    pub(super) refused: usize,
    pub(super) bad: usize,
}

impl Queue {
    pub(super) fn counts(&self) -> Result<Counts, QueueError> {
        let [new, work, held, refused, bad] =
            self.0.all().map(|(_, folder)| folder.messages().map(|names| names.len()));
        Ok(Counts { new: new?, work: work?, held: held?, refused: refused?, bad: bad? })
    }

    /// Claims the next message by a listing of its own.
    pub(crate) fn claim(&self, shard: Shard, now: SystemTime) -> Result<Option<Claim>, QueueError> {
        self.claim_listed(&mut DueList::remembering(None), shard, now)
    }
}

impl Claim {
    /// Each recipient has received the message.
    pub(crate) fn finish(self) -> Result<(), QueueError> {
        let delivered = vec![Settlement::Delivered; self.envelope().recipients.len()];
        self.settle(&delivered, SystemTime::now()).map(drop)
    }
}

pub(super) fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

pub(super) fn lock(name: &str) -> LockName {
    LockName::new("maildrop", name.as_bytes())
}

pub(super) fn mail(recipients: &[&str]) -> Envelope {
    let recipient = |address: &&str| Recipient { address: (*address).into(), original: None };
    Envelope {
        sender: "lisa@gmail.com".into(),
        recipients: recipients.iter().map(recipient).collect(),
        injected_by: "a test".into(),
        ..Envelope::default()
    }
}

pub(super) fn queue() -> (TempDir, Queue) {
    let directory = tempfile::tempdir().unwrap();
    let queue = Queue::open(&directory.path().join("state/queue")).unwrap();
    (directory, queue)
}

pub(super) fn accepted(queue: &Queue, lock_name: &str, seconds: u64) -> Name {
    queue
        .enqueue(&lock(lock_name), mail(&["scuba@mail.axial.net", "doug@mail.axial.net"]), MESSAGE, at(seconds))
        .unwrap()
}

pub(super) fn claimed(queue: &Queue, seconds: u64) -> Claim {
    queue.claim(Shard::WHOLE, at(seconds)).unwrap().expect("there is one")
}

pub(super) fn claim_nothing(queue: &Queue, seconds: u64) {
    assert!(queue.claim(Shard::WHOLE, at(seconds)).unwrap().is_none());
}

/// The folder and the name of each message.
fn files(queue: &Queue) -> Vec<String> {
    queue.list().unwrap().into_iter().map(|entry| format!("{}/{}", entry.state, entry.file)).collect()
}

#[test]
fn what_is_accepted_is_claimed_as_it_came_and_removed_once_it_is_delivered() {
    let (_directory, queue) = queue();
    let name = accepted(&queue, "a", 1000);
    let path = queue.path().join("new").join(name.to_string());
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::read_dir(queue.path().join("tmp")).unwrap().count(), 0);

    let claim = claimed(&queue, 1000);
    assert_eq!((claim.name(), claim.tries(), claim.message()), (name, 0, MESSAGE));
    let recipients: Vec<&str> = claim.envelope().recipients.iter().map(|r| r.address.as_str()).collect();
    assert_eq!(recipients, ["scuba@mail.axial.net", "doug@mail.axial.net"]);
    assert_eq!((claim.envelope().sender.as_str(), claim.envelope().queued_at), ("lisa@gmail.com", 1_000_000_000));
    assert_eq!(files(&queue), [format!("work/{name}")]);
    claim_nothing(&queue, 1000);
    claim.finish().unwrap();
    assert!(files(&queue).is_empty());
}

#[test]
fn a_message_is_whole_on_the_disk_before_it_has_its_name() {
    let (_directory, queue) = queue();
    synced::take();
    let name = accepted(&queue, "a", 1000);
    synced::assert_order(&synced::take(), &queue.path().join("new").join(name.to_string()));
    let claim = claimed(&queue, 1000);
    let settled = claim.settle(&[Settlement::Refused("no".into()), Settlement::Deferred], at(1000)).unwrap();
    let synced = synced::take();
    for (folder, name) in [("new", settled.remaining.unwrap()), ("refused", settled.refused[0])] {
        synced::assert_order(&synced, &queue.path().join(folder).join(name.to_string()));
    }
}

#[test]
fn a_message_that_is_moved_has_its_new_name_on_the_disk_before_the_old_one_is_gone_from_it() {
    let (_directory, queue) = queue();
    let path = |folder: &str, name: Name| queue.path().canonicalize().unwrap().join(folder).join(name.to_string());
    let name = accepted(&queue, "a", 1000);
    synced::take();
    let held = queue.hold(&name.id()).unwrap();
    synced::assert_moved(&synced::take(), &path("new", name), &path("held", held));
    let released = queue.release(&name.id(), None, false, at(1000)).unwrap();
    synced::assert_moved(&synced::take(), &path("held", held), &path("new", released));
    fs::write(path("new", released), "cut sho").unwrap();
    claim_nothing(&queue, 1000);
    let bad = queue.list().unwrap().remove(0);
    synced::assert_moved(&synced::take(), &path("work", released), &path("bad", Name::read(&bad.file).unwrap()));
}

#[test]
fn names_are_on_the_disk_before_success_is_reported() {
    let (_directory, queue) = queue();
    let synced = |expected: &[&str]| {
        let folders = synced::take_directories();
        let names: Vec<&str> = folders.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, expected);
    };
    synced::take();
    let id = accepted(&queue, "a", 1000).id();
    synced(&["new"]);
    queue.hold(&id).unwrap();
    synced(&["held", "new"]);
    queue.release(&id, None, false, at(1000)).unwrap();
    synced(&["new", "held"]);
    let claim = claimed(&queue, 1000);
    let settled = claim.settle(&[Settlement::Refused("no".into()), Settlement::Deferred], at(1000)).unwrap();
    synced(&["refused", "new", "work"]);
    queue.drop_message(&settled.refused[0].id()).unwrap();
    synced(&["refused"]);
}

#[test]
fn two_messages_of_one_lock_are_never_claimed_at_once() {
    let (_directory, queue) = queue();
    let names = [1, 2].map(|second| accepted(&queue, "one", second));
    let other = accepted(&queue, "other", 3);
    let first = claimed(&queue, 10);
    assert_eq!(first.name(), names[0]);
    let second = claimed(&queue, 10);
    assert_eq!(second.name(), other);
    claim_nothing(&queue, 10);
    // A deferred message does not hold up the next.
    first.defer(at(10)).unwrap();
    assert_eq!(claimed(&queue, 10).name(), names[1]);
}

#[test]
fn a_runner_claims_what_is_in_its_shard() {
    let (_directory, queue) = queue();
    for n in 0..32 {
        accepted(&queue, &n.to_string(), 1);
    }
    let mut claims = Vec::new();
    for index in 0..4 {
        let shard = Shard::new(index, 4).unwrap();
        while let Some(claim) = queue.claim(shard, at(1)).unwrap() {
            assert_eq!(claim.name().lock >> 62, u64::from(index));
            claims.push(claim);
        }
    }
    assert_eq!(claims.len(), 32);
}

#[test]
fn what_remains_of_a_message_is_kept_and_what_was_refused_too() {
    let (_directory, queue) = queue();
    let recipients = ["a@x", "b@x", "c@x", "d@x"];
    let name = queue.enqueue(&lock("a"), mail(&recipients), MESSAGE, at(1000)).unwrap();
    let outcome = [Settlement::Delivered, Settlement::Deferred, Settlement::Refused("5.1.1 unknown".into())];
    let settled = claimed(&queue, 1000).settle(&outcome, at(1000)).unwrap();
    let remaining = settled.remaining.unwrap();
    assert_eq!(settled.refused, [name.of_part(2)]);
    assert_eq!(remaining.to_string(), format!("{},1,1060.msg", name.of_part(0).id()));
    let listed: Vec<_> =
        queue.list().unwrap().into_iter().map(|e| (e.state, e.recipients.join(" "), e.reason)).collect();
    // The last recipient has no settlement: in doubt, it is tried again.
    let refused = (State::Refused, "c@x".to_owned(), Some("5.1.1 unknown".to_owned()));
    assert_eq!(listed, [(State::New, "b@x d@x".to_owned(), None), refused]);
    let claim = claimed(&queue, 1060);
    assert_eq!((claim.message(), claim.envelope().queued_at), (MESSAGE, 1_000_000_000));
    let settled =
        claim.settle(&[Settlement::Delivered, Settlement::Delivered, Settlement::Deferred], at(1060)).unwrap();
    assert_eq!(settled, Settled { remaining: None, refused: Vec::new() });
    assert_eq!(queue.counts().unwrap(), Counts { refused: 1, ..Counts::default() });
    let (envelope, message) = queue.read(&name.of_part(2).id()).unwrap();
    assert_eq!((envelope.reason.as_deref(), &message[..]), (Some("5.1.1 unknown"), MESSAGE));
}

/// A part that is refused, released and refused again does not get the id of another part that waits.
#[test]
fn each_part_of_a_message_can_be_named_whatever_becomes_of_the_others() {
    let (_directory, queue) = queue();
    queue.enqueue(&lock("a"), mail(&["a@x", "b@x", "c@x"]), MESSAGE, at(1000)).unwrap();
    let refused = || Settlement::Refused("5.1.1 unknown".into());
    let mut settled = claimed(&queue, 1000).settle(&[refused(), refused()], at(1000)).unwrap();
    for _ in 0..20 {
        queue.release(&settled.refused[0].id(), None, false, at(1000)).unwrap();
        settled = claimed(&queue, 1000).settle(&[refused()], at(1000)).unwrap();
        let names = queue.list().unwrap().into_iter().map(|entry| Name::read(&entry.file).unwrap().id());
        let names: std::collections::BTreeSet<String> = names.collect();
        assert_eq!(names.len(), 3);
    }
}

#[test]
fn the_claim_of_a_runner_that_is_gone_comes_back_and_that_of_another_does_not() {
    let (_directory, queue) = queue();
    let names = ["a", "b"].map(|lock| accepted(&queue, lock, 1));
    let alive = claimed(&queue, 1);
    // The lock ends with the process, or with its descriptor.
    drop(claimed(&queue, 1));
    assert_eq!(queue.counts().unwrap().work, 2);
    let another = Queue::open(queue.path()).unwrap();
    for _ in 0..2 {
        another.recover(at(1), Duration::MAX).unwrap();
        assert_eq!(queue.counts().unwrap(), Counts { new: 1, work: 1, ..Counts::default() });
    }
    let again = claimed(&another, 1);
    assert!(again.name() != alive.name() && names.contains(&again.name()));
}

#[test]
fn a_claim_that_comes_back_after_the_ledger_has_forgotten_it_is_held_until_somebody_looks() {
    let remembered = Duration::from_secs(1000);
    for (tries, due) in [(0, 1), (1, 61)] {
        let (_directory, queue) = queue();
        accepted(&queue, "a", 1);
        for _ in 0..tries {
            claimed(&queue, 1).defer(at(1)).unwrap();
        }
        let id = claimed(&queue, due).name().id();
        queue.recover(at(due + 1000), remembered).unwrap();
        assert_eq!(queue.counts().unwrap(), Counts { new: 1, ..Counts::default() });
        drop(claimed(&queue, due + 1000));
        // It may have been delivered when it was due.
        queue.recover(at(due + 1001), remembered).unwrap();
        assert_eq!(queue.counts().unwrap(), Counts { held: 1, ..Counts::default() });
        queue.release(&id, None, false, at(due + 1001)).unwrap();
        assert_eq!(claimed(&queue, due + 1001).name().id(), id);
    }
}

#[test]
fn a_name_that_is_taken_goes_to_no_second_message_of_the_folder() {
    let (_directory, queue) = queue();
    let first = accepted(&queue, "a", 1000);
    let second = accepted(&queue, "a", 1000);
    assert_eq!(second, first.later());
    queue.hold(&first.id()).unwrap();
    queue.hold(&second.id()).unwrap();
    assert_eq!(accepted(&queue, "a", 999).time, 999_000_000_000);
    // On release, each gets a free name.
    for name in [first, second] {
        queue.release(&name.id(), None, false, at(1)).unwrap();
    }
    assert_eq!(queue.counts().unwrap().new, 3);
}

#[test]
fn no_rename_overwrites_a_message() {
    let (_directory, queue) = queue();
    let name = accepted(&queue, "a", 1000);
    let file = name.to_string();
    let copy = |to: &str, text: &str| {
        let whole = fs::read(queue.path().join("new").join(&file)).unwrap();
        let whole = String::from_utf8_lossy(&whole).replace("a test", text);
        fs::write(queue.path().join(to).join(&file), whole).unwrap();
    };
    // As if a person had copied them.
    copy("held", "one");
    copy("refused", "two");
    copy("bad", "three");
    for state in ["held", "refused", "bad"] {
        let several = queue.hold(&file).unwrap_err();
        assert!(
            matches!(&several, QueueAdminError::Several { files, .. } if files.contains(&format!("{state}/{file}")))
        );
    }
    drop(claimed(&queue, 1000));
    copy_back(&queue, &file);
    queue.recover(at(1000), Duration::MAX).unwrap();
    assert_eq!(queue.counts().unwrap(), Counts { new: 2, held: 1, refused: 1, bad: 1, work: 0 });
    let all: Vec<_> = queue.list().unwrap().into_iter().map(|entry| entry.injected_by).collect();
    assert_eq!(all.len(), 5);
}

fn copy_back(queue: &Queue, file: &str) {
    fs::copy(queue.path().join("work").join(file), queue.path().join("new").join(file)).unwrap();
}

#[test]
fn an_unreadable_file_is_moved_to_bad_with_the_reason() {
    let (_directory, queue) = queue();
    let good = accepted(&queue, "good", 5);
    let whole = fs::read(queue.path().join("new").join(good.to_string())).unwrap();
    let new = queue.path().join("new");
    let name = |n: u8| format!("0000000000000000000{n}-000000000000000{n}.msg");
    fs::write(new.join(name(1)), &whole[..whole.len() - 1]).unwrap();
    fs::write(new.join(name(2)), "{\"x\": 1}\n---\n").unwrap();
    fs::write(new.join(name(3)), "").unwrap();
    fs::write(new.join("a name of its own"), &whole).unwrap();
    assert_eq!(claimed(&queue, 10).name(), good);
    assert_eq!(queue.counts().unwrap(), Counts { new: 0, work: 1, bad: 3, ..Counts::default() });
    queue.recover(at(10), Duration::MAX).unwrap();
    assert_eq!(queue.counts().unwrap(), Counts { new: 1, bad: 4, ..Counts::default() });
    let bad: Vec<Entry> = queue.list().unwrap().into_iter().filter(|entry| entry.state == State::Bad).collect();
    let reasons: Vec<&str> = bad.iter().map(|entry| entry.reason.as_deref().unwrap()).collect();
    for (reason, part) in reasons.iter().zip(["cut short", "unknown field", "no line", "only its name was none"]) {
        assert!(reason.contains(part), "{reasons:?}");
    }
    // The last one was readable, and only its name was wrong: once released, it is delivered. The others return to `bad/`.
    for entry in &bad {
        queue.release(&entry.id, None, false, at(10)).unwrap();
    }
    let mut read = Vec::new();
    while let Some(claim) = queue.claim(Shard::WHOLE, at(20)).unwrap() {
        assert_eq!(claim.message(), MESSAGE);
        read.push(claim);
    }
    assert_eq!((read.len(), queue.counts().unwrap().bad), (2, 3));
    queue.drop_message(&bad[0].id).unwrap();
    assert_eq!(fs::read_dir(queue.path().join("bad")).unwrap().count(), 2);
}

#[test]
fn links_folders_and_pipes_are_left_alone_and_listed() {
    let (directory, queue) = queue();
    let outside = directory.path().join("outside");
    let name = accepted(&queue, "a", 5);
    fs::copy(queue.path().join("new").join(name.to_string()), &outside).unwrap();
    queue.drop_message(&name.id()).unwrap();
    let new = queue.path().join("new");
    let name = |n: u8| format!("0000000000000000000{n}-000000000000000{n}.msg");
    symlink(&outside, new.join(name(1))).unwrap();
    fs::create_dir(new.join(name(2))).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, new.join(name(3)), rustix::fs::Mode::RWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(new.join(name(4))).unwrap();
    symlink("nowhere", new.join("a link")).unwrap();
    claim_nothing(&queue, 10);
    queue.recover(at(10), Duration::MAX).unwrap();
    let listed: Vec<String> = queue.list().unwrap().into_iter().map(|entry| entry.reason.unwrap()).collect();
    let kinds = ["a symbolic link", "a folder", "a named pipe", "a socket", "a symbolic link"];
    for (reason, kind) in listed.iter().zip(kinds) {
        assert!(reason.starts_with(kind), "{listed:?}");
    }
    assert_eq!(listed.len(), kinds.len());
    assert!(outside.exists());
}

#[test]
fn a_person_holds_releases_and_drops_and_not_what_is_being_delivered() {
    let (_directory, queue) = queue();
    let name = accepted(&queue, "a", 1000);
    let id = name.id();
    assert!(matches!(queue.release(&id, None, false, at(1000)), Err(QueueAdminError::NotFrom { .. })));
    queue.hold(&id).unwrap();
    claim_nothing(&queue, 1000);
    assert!(matches!(queue.hold(&id), Err(QueueAdminError::NotFrom { state: State::Held, .. })));
    let limit = Some(Duration::from_secs(100));
    let refused = queue.release(&id, limit, false, at(1101));
    assert!(matches!(refused, Err(QueueAdminError::TooOld { .. })), "{refused:?}");
    queue.release(&id, limit, true, at(1101)).unwrap();
    let claim = claimed(&queue, 1101);
    assert!(matches!(queue.hold(&id), Err(QueueAdminError::BeingDelivered { .. })));
    assert!(matches!(queue.release(&id, None, true, at(1)), Err(QueueAdminError::BeingDelivered { .. })));
    assert!(matches!(queue.drop_message(&id), Err(QueueAdminError::BeingDelivered { .. })));
    let deferred = claim.defer(at(1101)).unwrap().unwrap();
    // A deferred message is held and released with its tries, and is due at once.
    queue.hold(&id).unwrap();
    let released = queue.release(&deferred.to_string(), limit, false, at(1100)).unwrap();
    assert_eq!(released.to_string(), format!("{id},1.msg"));
    queue.drop_message(&id).unwrap();
    assert!(matches!(queue.drop_message(&id), Err(QueueAdminError::NoSuch { .. })));
    assert!(matches!(queue.read("../../etc/passwd"), Err(QueueAdminError::NoSuch { .. })));
}

#[test]
fn a_queue_that_others_can_write_to_is_refused() {
    let (directory, queue) = queue();
    for folder in ["", "held"] {
        let path = queue.path().join(folder);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
        for opened in [Queue::open(queue.path()), Queue::existing(queue.path())] {
            let error = opened.unwrap_err();
            assert!(matches!(error, QueueError::WritableByOthers { mode: 0o770, .. }), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let link = directory.path().join("link");
    symlink(queue.path(), &link).unwrap();
    assert!(matches!(Queue::open(&link), Err(QueueError::Io { .. })));
    assert!(matches!(Queue::existing(&directory.path().join("none")), Err(QueueError::NoQueue { .. })));
    assert!(!directory.path().join("none").exists());
}

#[test]
fn a_queue_is_its_owners_and_roots_to_look_after() {
    let who = [(7, 7), (0, 7), (7, 0), (7, 8)];
    assert_eq!(who.map(|(user, owner)| folder::may_look_after(user, owner)), [true, true, false, false]);
}

/// Opening a named pipe must not wait for a writer.
#[test]
fn what_is_there_in_place_of_a_folder_is_refused_at_once() {
    let (_directory, queue) = queue();
    let held = queue.path().join("held");
    for kind in ["a file", "a pipe", "a link"] {
        let there = fs::remove_dir(&held).or_else(|_| fs::remove_file(&held));
        there.unwrap();
        match kind {
            "a file" => fs::write(&held, "").unwrap(),
            "a pipe" => rustix::fs::mkfifoat(rustix::fs::CWD, &held, rustix::fs::Mode::RUSR).unwrap(),
            _ => symlink(queue.path().join("bad"), &held).unwrap(),
        }
        for opened in [Queue::open(queue.path()), Queue::existing(queue.path())] {
            assert!(matches!(opened, Err(QueueError::Io { doing: "opening", .. })), "{kind}: {opened:?}");
        }
    }
}

#[test]
fn a_message_for_nobody_is_not_accepted() {
    let (_directory, queue) = queue();
    assert!(matches!(queue.enqueue(&lock("a"), mail(&[]), MESSAGE, at(1)), Err(QueueError::NoRecipient)));
    assert!(files(&queue).is_empty());
}

#[test]
fn root_makes_no_queue_for_another_user_and_what_it_queues_there_belongs_to_that_user() {
    const NOBODY: u32 = 65_534;
    let (directory, queue) = queue();
    let chown = |path: &Path| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY));
    if chown(directory.path()).is_err() {
        // Only root can give a folder away.
        return;
    }
    let refused = |path: &Path| {
        let error = Queue::open(path).unwrap_err();
        assert!(matches!(error, QueueError::AnotherOwner { owner: NOBODY, user: 0, .. }), "{error}");
    };
    refused(&directory.path().join("another/queue"));
    assert!(!directory.path().join("another").exists());
    for folder in ["", "tmp", "new", "work", "held", "refused", "bad"] {
        chown(&queue.path().join(folder)).unwrap();
    }
    refused(queue.path());
    // An administrator may work on it.
    let queue = Queue::existing(queue.path()).unwrap();
    let name = accepted(&queue, "a", 1000);
    let metadata = fs::metadata(queue.path().join("new").join(name.to_string())).unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (NOBODY, NOBODY, 0o600));
}

#[test]
fn want_of_room_is_reported_from_whatever_else_the_disk_says() {
    use rustix::io::Errno;
    let of = |errno: Errno| QueueError::of("writing", Path::new("/q"), errno);
    let of_io = |errno: Errno| QueueError::of_io("writing", Path::new("/q"), errno.into());
    for errno in [Errno::NOSPC, Errno::DQUOT] {
        assert!(of(errno).is_no_space() && of_io(errno).is_no_space(), "{errno}");
        assert_eq!(of(errno).to_string(), "writing /q: no room is left on the disk");
    }
    for errno in [Errno::IO, Errno::ROFS] {
        assert!(!of(errno).is_no_space() && !of_io(errno).is_no_space(), "{errno}");
    }
    // An error of the standard library itself.
    let error = QueueError::of_io("reading", Path::new("/q"), std::io::ErrorKind::InvalidData.into());
    assert!(matches!(error, QueueError::Io { doing: "reading", .. }), "{error}");
}

/// The two errors are distinct because their fixes differ.
#[test]
fn a_folder_on_another_file_system_and_one_whose_renames_may_overwrite_are_refused() {
    let (_directory, queue) = queue();
    let file = "00000000000000000001-0000000000000001.msg";
    fs::write(queue.path().join("new").join(file), "x").unwrap();
    // proc(5) is a file system of its own.
    let elsewhere = Folder::open(format!("/proc/{}", std::process::id()).into()).unwrap();
    let error = queue.0.new.rename(file, &elsewhere, file).err().unwrap();
    assert!(matches!(error, QueueError::AnotherFileSystem { .. }), "{error}");
    // A file system without such renames answers EINVAL. So does any file system if a folder is to be moved into itself.
    fs::create_dir(queue.path().join("new/folder")).unwrap();
    let within = Folder::open(queue.path().join("new/folder")).unwrap();
    let error = queue.0.new.rename("folder", &within, file).err().unwrap();
    assert!(matches!(error, QueueError::RenamesOverwrite { .. }), "{error}");
    assert!(queue.path().join("new").join(file).exists());
}

#[test]
fn it_is_reported_how_many_wait_in_each_folder_and_since_when() {
    let (_directory, queue) = queue();
    let names = [3, 1, 2].map(|second| accepted(&queue, &second.to_string(), second));
    queue.hold(&names[0].id()).unwrap();
    let waiting = |messages, oldest| Waiting { messages, oldest };
    let none = Waiting::default();
    let expected = [
        (State::New, waiting(2, Some(1_000_000))),
        (State::Work, none),
        (State::Held, waiting(1, Some(3_000_000))),
        (State::Refused, none),
        (State::Bad, none),
        (State::Shunted, none),
    ];
    assert_eq!(queue.waiting().unwrap(), expected);
    for (state, _) in expected {
        // Shunted messages are in no list of the queue.
        let is_listed = state != State::Shunted;
        assert_eq!(
            state.to_string().parse(),
            is_listed.then_some(state).ok_or("it is new, work, held, refused or bad")
        );
    }
    assert!("lost".parse::<State>().is_err());
}
