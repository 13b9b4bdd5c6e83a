//! Maildir: a message is a file, and it exists as soon as the file has its name (<https://cr.yp.to/proto/maildir.html>).
//!
//! A copy is written to `tmp/`, synced, linked into `new/` (a seen copy into `cur/`), and the directory is synced. The
//! file's name is made from the copy's identity and role, instead of the usual time and random number. An append that is
//! repeated after an unknown outcome finds the name in use, and stores no second copy.
//!
//! Each CRLF becomes LF, which programs that read Maildirs expect. The file's mtime is the time of arrival, which Dovecot
//! shows as INTERNALDATE.
//!
//! Limits:
//!
//! * One machine and a local disk: over NFS, link(2) and rename(2) can report a failure although they succeeded.
//! * A copy survives a power loss as far as file system and disk honour fsync(2).
//! * A copy is searched for in its own mailbox only. If its owner moves or deletes it between a crash and the next attempt,
//!   it is delivered once more. (Postfix retries after 5 minutes.)
//! * A mail program that changes the base names of files hides copies from the search. None is known.
//! * There are no UIDs: a copy has no placement, and there is never a duplicate to remove.
//! * No folder is subscribed: whether a reader shows `.Sent` is its own setting.
//! * The file of an append that was killed stays in `tmp/`; readers remove files older than 36 hours there.

use super::{
    Appended, FoundCopies, FoundCopy, Listed, Mailbox, MailboxError, MailboxFailure, MailboxPresence, Matching,
    NewCopy, Pace, Placement, Position, Presence, ReadableMailbox, Recorded, Removal, Role, Wanted,
};
use crate::base::deadline::Deadline;
use crate::base::files::{create_directory, sync, sync_directory};
use crate::base::hex;
use crate::message::Identity;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use uuid::Uuid;

/// How many times a search runs if the directory changes each time.
const LOOKS: usize = 5;

/// Before Linux 6.13 file times advance in steps of up to 10 ms (<https://docs.kernel.org/filesystems/multigrain-ts.html>).
/// A second change within one step does not show.
const TICK: Duration = Duration::from_millis(20);

/// How many other files may occupy a copy's name, with suffixes, before the append fails.
const NAMES: usize = 8;

/// One mailbox: a Maildir, or a Maildir++ folder inside one.
#[derive(Debug)]
pub struct MaildirMailbox {
    maildir: PathBuf,
    /// The mailbox's own directory; for INBOX, the user's Maildir.
    directory: PathBuf,
    /// A copy that is written and has no name in the mailbox yet.
    written: Option<Written>,
}

/// A copy in `tmp/`, with its destination.
#[derive(Debug)]
struct Written {
    file: Temporary,
    place: PathBuf,
    identity: Identity,
    base: String,
    flags: &'static str,
}

struct CopyFile {
    place: PathBuf,
    deleted: bool,
    /// The bytes as on the disk, with LF line ends.
    bytes: Vec<u8>,
}

impl MaildirMailbox {
    pub(crate) fn inbox(maildir: PathBuf) -> Self {
        Self { directory: maildir.clone(), maildir, written: None }
    }

    /// The folder in `directory`, which lies in `maildir`.
    pub(crate) fn folder(maildir: PathBuf, directory: PathBuf) -> Self {
        Self { maildir, directory, written: None }
    }

    /// Creates the mailbox if it is missing. `tmp` is created last, after the rest is on the disk. Where `tmp` exists, no
    /// delivery has to sync a directory above `new` and `cur`.
    fn create(&self) -> Result<(), MailboxError> {
        make_maildir(&self.maildir, false)?;
        if self.directory != self.maildir {
            make_maildir(&self.directory, true)?;
        }
        Ok(())
    }

    /// Whether the mailbox exists and is complete: see [`create`](Self::create).
    fn is_there(&self) -> Result<bool, MailboxError> {
        let tmp = self.directory.join("tmp");
        tmp.try_exists().map_err(at("looking for", &tmp))
    }

    fn write(&self, copy: &NewCopy<'_>) -> Result<Temporary, MailboxError> {
        let path = self.directory.join("tmp").join(format!("{}.maildrop", Uuid::now_v7()));
        let mut file = match create_new(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.create()?;
                create_new(&path)
            }
            opened => opened,
        }
        .map_err(at("creating", &path))?;
        let temporary = Temporary { path };
        file.write_all(&with_line_ends(copy.bytes, b"\r\n", b"\n")).map_err(at("writing", &temporary.path))?;
        file.set_times(FileTimes::new().set_modified(SystemTime::from(copy.arrived)))
            .map_err(at("setting the time of", &temporary.path))?;
        sync(&file).map_err(at("syncing", &temporary.path))?;
        Ok(temporary)
    }

    /// Links the copy to its name, and returns its directory. If the copy is in the mailbox already, that one's directory is
    /// returned.
    fn link(&self, written: &Written) -> Result<PathBuf, MailboxError> {
        let Written { file, place, identity, base, flags } = written;
        for number in 0..NAMES {
            let suffix = if number == 0 { String::new() } else { format!(".{number}") };
            let path = place.join(format!("{base}{suffix}{flags}"));
            match fs::hard_link(&file.path, &path) {
                Ok(()) => return Ok(place.clone()),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    // The written bytes are compared as well, since they may differ from the identity's by a replaced NUL.
                    let bytes = fs::read(&file.path).map_err(at("reading", &file.path))?;
                    let ours = Identity::of(&with_line_ends(&bytes, b"\n", b"\r\n"));
                    // A mail program may be moving the file to `cur`, so both directories are searched.
                    if let Some(found) = self.search(base, &|found| *found == ours || found == identity)? {
                        return Ok(found.place);
                    }
                    tracing::warn!(file = %path.display(), "the name of a copy is taken by something else");
                }
                Err(error) => return Err(at("linking to", &path)(error)),
            }
        }
        let error = io::Error::new(io::ErrorKind::AlreadyExists, "all its names are taken by something else");
        Err(at("linking a copy into", place)(error))
    }

    /// Searches for a copy by its base name in `new` and `cur`.
    ///
    /// A directory that is read while a file in it is renamed may show that file under neither name. A search without a
    /// result is therefore repeated if a directory changed during the search. The same holds if one changed within the
    /// [`TICK`] before, because a second change may not show.
    fn search(&self, base: &str, is_copy: &dyn Fn(&Identity) -> bool) -> Result<Option<CopyFile>, MailboxError> {
        let places = ["new", "cur"].map(|place| self.directory.join(place));
        for _ in 0..LOOKS {
            let began = SystemTime::now();
            let before = places.each_ref().map(|place| changed(place));
            for place in &places {
                if let Some(found) = search_directory(place, base, is_copy)? {
                    return Ok(Some(found));
                }
            }
            let after = places.each_ref().map(|place| changed(place));
            let (mut same, mut shows) = (true, true);
            for (before, after) in before.into_iter().zip(after) {
                let before = before?;
                same &= before == after?;
                // The absolute difference, for a clock that was set back: even then, the next change gets another time.
                shows &= began.duration_since(before).unwrap_or_else(|error| error.duration()) >= TICK;
            }
            if same && shows {
                return Ok(None);
            }
            if same {
                std::thread::sleep(TICK);
            }
        }
        Err(at("searching", &self.directory)(io::Error::new(io::ErrorKind::ResourceBusy, "it changed at every look")))
    }
}

impl Mailbox for MaildirMailbox {
    fn position(&mut self) -> Result<Option<Position>, MailboxError> {
        if !self.is_there()? {
            self.create()?;
        }
        Ok(None)
    }

    fn upload(&mut self, copy: &NewCopy<'_>, _pace: Option<Pace>) -> Result<(), Appended> {
        self.written = Some(Written {
            file: self.write(copy).map_err(not_stored)?,
            place: self.directory.join(if copy.seen { "cur" } else { "new" }),
            identity: *copy.identity,
            base: base_name(copy.identity, copy.role),
            flags: if copy.seen { ":2,S" } else { "" },
        });
        Ok(())
    }

    fn complete(&mut self) {}

    fn answer(&mut self) -> Appended {
        let Some(written) = self.written.take() else {
            let doing = format!("linking a copy into {}", self.directory.display());
            return Appended::NotSent(MailboxError::new(MailboxFailure::Internal, doing, "none was written"));
        };
        let place = match self.link(&written) {
            Ok(place) => place,
            Err(error) => return not_stored(error),
        };
        drop(written);
        // An existing copy's directory is synced as well: the process that created that copy may have died before its sync.
        match sync_directory(&place) {
            Ok(()) => Appended::Stored(None),
            Err(error) => Appended::Unknown(at("syncing", &place)(error)),
        }
    }

    fn withhold(&mut self) {
        self.written = None;
    }

    /// A disk offers no time limit.
    fn patient_until(&mut self, _until: Option<Deadline>) {}

    fn find(&mut self, wanted: &Wanted<'_>) -> Result<FoundCopies, MailboxError> {
        if wanted.matching == Matching::MessageId {
            // This would have to read every file. Only `sent.dedup_by = "mailbox"` needs it, and a site with Maildirs has no
            // configuration.
            return Err(MailboxError::new(
                MailboxFailure::Local,
                format!("searching {}", self.directory.display()),
                "a Maildir cannot be searched by Message-ID alone",
            ));
        }
        if !self.is_there()? {
            return Ok(FoundCopies::default());
        }
        let base = base_name(wanted.identity, wanted.role);
        let found = self.search(&base, &|identity| identity == wanted.identity)?;
        if let Some(found) = &found {
            // A delivery that adopts the copy reports it as delivered, but the process that created it may have died before
            // this sync. The content was on the disk before the file had this name, and the parent directories before `tmp`
            // existed.
            sync_directory(&found.place).map_err(at("syncing", &found.place))?;
        }
        // The search is by name, so its start does not matter; and without UIDs no copy is in range.
        let found = found.map(|found| FoundCopy { placement: None, deleted: found.deleted });
        Ok(FoundCopies { in_range: false, copies: found.into_iter().collect() })
    }

    /// There is never a duplicate: two copies would have the same name.
    fn remove(
        &mut self,
        _extra: Placement,
        _keep: Placement,
        _wanted: &Wanted<'_>,
        _go_ahead: &mut dyn FnMut() -> bool,
    ) -> Result<Removal, MailboxError> {
        Ok(Removal::NotThere)
    }
}

impl ReadableMailbox for MaildirMailbox {
    /// Compares names only: one pass over the directories for all requested copies.
    fn presence(&mut self, copies: &[Recorded<'_>]) -> Result<MailboxPresence, MailboxError> {
        if !self.is_there()? {
            let doing = format!("reading {}", self.directory.display());
            return Err(MailboxError::new(MailboxFailure::NoSuchMailbox, doing, "it is not there"));
        }
        let mut names = Vec::new();
        for place in ["new", "cur"].map(|place| self.directory.join(place)) {
            for entry in fs::read_dir(&place).map_err(at("reading", &place))? {
                let name = entry.map_err(at("reading", &place))?.file_name();
                names.extend(name.into_string().ok().filter(|name| name.contains(".maildrop-")));
            }
        }
        names.sort_unstable();
        let presence = |copy: &Recorded<'_>| {
            let base = base_name(copy.identity, copy.role);
            let from = names.partition_point(|name| *name < base);
            let mut named = names.iter().skip(from).map_while(|name| name.strip_prefix(&base)).peekable();
            match (named.peek().is_some(), named.all(is_marked_deleted)) {
                (false, _) => Presence::Gone,
                (true, false) => Presence::There,
                (true, true) => Presence::MarkedDeleted,
            }
        };
        Ok(MailboxPresence { position: None, copies: copies.iter().map(presence).collect() })
    }

    fn read(&mut self, copy: &Recorded<'_>) -> Result<Option<Vec<u8>>, MailboxError> {
        if !self.is_there()? {
            return Ok(None);
        }
        let found = self.search(&base_name(copy.identity, copy.role), &|identity| identity == copy.identity)?;
        Ok(found.map(|found| with_line_ends(&found.bytes, b"\n", b"\r\n")))
    }

    fn list(&mut self, _since: Position, _take: &mut dyn FnMut(Listed)) -> Result<(), MailboxError> {
        Ok(())
    }
}

/// The name of a copy's file, the same for each attempt. A usual name begins with the time, so a second attempt would not
/// find the file of the first.
fn base_name(identity: &Identity, role: Role) -> String {
    format!("{}.maildrop-{}", hex::encode(identity.as_bytes()), role.as_str())
}

/// Creates one Maildir; [`MaildirMailbox::create`] explains the order.
fn make_maildir(directory: &Path, is_folder: bool) -> Result<(), MailboxError> {
    let make = |path: &Path| create_directory(path).map_err(at("creating", path));
    make(directory)?;
    make(&directory.join("new"))?;
    make(&directory.join("cur"))?;
    if is_folder {
        // In Maildir++ this empty file distinguishes a folder from a Maildir.
        let marker = directory.join("maildirfolder");
        match create_new(&marker) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(at("creating", &marker)(e)),
        }
    }
    make(&directory.join("tmp"))
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn with_line_ends(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len() + bytes.len() / 32);
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let (line, end) = line.strip_suffix(from).map_or((line, &[][..]), |line| (line, to));
        text.extend_from_slice(line);
        text.extend_from_slice(end);
    }
    text
}

/// Whether the flags in the file's name include T (trashed): `:2,ST`.
fn is_marked_deleted(name: &str) -> bool {
    name.rsplit_once(":2,").is_some_and(|(_, flags)| flags.contains('T'))
}

/// When an entry of the directory was last added, removed or renamed.
fn changed(directory: &Path) -> Result<SystemTime, MailboxError> {
    fs::metadata(directory).and_then(|metadata| metadata.modified()).map_err(at("looking at", directory))
}

/// Searches one directory for a file with this base name and the copy's content.
fn search_directory(
    place: &Path,
    base: &str,
    is_copy: &dyn Fn(&Identity) -> bool,
) -> Result<Option<CopyFile>, MailboxError> {
    for entry in fs::read_dir(place).map_err(at("reading", place))? {
        let entry = entry.map_err(at("reading", place))?;
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(base)) else { continue };
        let path = entry.path();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            // Renamed or removed since the listing: the directory has changed, so the search is repeated.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(at("reading", &path)(e)),
        };
        if is_copy(&Identity::of(&bytes)) {
            return Ok(Some(CopyFile { place: place.to_owned(), deleted: is_marked_deleted(rest), bytes }));
        }
    }
    Ok(None)
}

/// A file in `tmp/`, whose name there is removed on drop.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_file(&self.path) {
            tracing::warn!(file = %self.path.display(), error = %e, "cannot remove a temporary file of a Maildir");
        }
    }
}

/// Adds the operation and the path to an error.
fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MailboxError {
    let doing = format!("{doing} {}", path.display());
    move |error| {
        let failure = match error.kind() {
            // EDQUOT concerns one user, who can delete mail. ENOSPC concerns all users, so it never counts as over quota.
            io::ErrorKind::QuotaExceeded => MailboxFailure::OverQuota,
            _ => MailboxFailure::Local,
        };
        MailboxError::new(failure, doing, error.to_string())
    }
}

/// For a failure before the copy had its name in the mailbox.
fn not_stored(error: MailboxError) -> Appended {
    match error.failure {
        MailboxFailure::OverQuota => Appended::Refused(error),
        _ => Appended::NotSent(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::files::synced;
    use time::macros::datetime;

    const ARRIVED: time::OffsetDateTime = datetime!(2026-11-22 8:00 UTC);

    /// A delivery that finds a copy reports it as delivered, and only a synced directory survives a power failure.
    #[test]
    fn a_copy_is_whole_on_the_disk_before_it_has_its_name_and_its_directory_before_anybody_relies_on_it() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().canonicalize().unwrap();
        let bytes = b"Message-ID: <1@x>\r\nDate: x\r\n\r\nx\r\n";
        let identity = Identity::of(bytes);
        for seen in [false, true] {
            let maildir = directory.join(seen.to_string());
            let mut mailbox = MaildirMailbox::inbox(maildir.clone());
            let [new, cur] = ["new", "cur"].map(|place| maildir.join(place));
            let copy = NewCopy { bytes, identity: &identity, role: Role::Recipient, seen, arrived: ARRIVED };
            let wanted = Wanted {
                message_id: None,
                identity: &identity,
                role: Role::Recipient,
                matching: Matching::Identity,
                since: None,
                not_before: ARRIVED,
            };
            assert!(mailbox.find(&wanted).unwrap().copies.is_empty());
            assert!(matches!(mailbox.append(&copy, &mut || true), Appended::Stored(None)));
            let place = if seen { &cur } else { &new };
            let file = fs::read_dir(place).unwrap().next().unwrap().unwrap().path();
            synced::assert_order(&synced::take(), &file);
            assert_eq!(mailbox.find(&wanted).unwrap().copies.len(), 1);
            assert_eq!(synced::take_directories(), std::slice::from_ref(place));
            // A reader moves an unseen copy to `cur`.
            let base = base_name(&identity, Role::Recipient);
            if !seen {
                fs::rename(new.join(&base), cur.join(format!("{base}:2,S"))).unwrap();
                assert_eq!(mailbox.find(&wanted).unwrap().copies.len(), 1);
                assert_eq!(synced::take_directories(), std::slice::from_ref(&cur));
                // The name is free again in `new`. If another file takes it, the copy is still found in `cur`.
                fs::write(new.join(&base), "something else").unwrap();
                assert!(matches!(mailbox.append(&copy, &mut || true), Appended::Stored(None)));
                assert_eq!(synced::take_directories(), [cur]);
            }
        }
    }

    fn in_a_new_maildir() -> (tempfile::TempDir, MaildirMailbox) {
        let directory = tempfile::tempdir().unwrap();
        let mut mailbox = MaildirMailbox::inbox(directory.path().join("lisa"));
        mailbox.position().unwrap();
        (directory, mailbox)
    }

    fn touch(directory: &Path, modified: SystemTime) {
        File::open(directory).unwrap().set_times(FileTimes::new().set_modified(modified)).unwrap();
    }

    /// A missed copy would be delivered a second time.
    #[test]
    fn a_copy_that_comes_in_while_a_search_is_under_way_is_found() {
        let (_directory, mailbox) = in_a_new_maildir();
        let [new, cur] = ["new", "cur"].map(|place| mailbox.directory.join(place));
        fs::write(cur.join("base.1:2,S"), "something else").unwrap();
        for place in [&new, &cur] {
            touch(place, SystemTime::now() - Duration::from_hours(1));
        }
        let copy = Identity::of(b"the copy");
        let is_copy = |identity: &Identity| {
            // The search has already read `new`.
            fs::write(new.join("base"), "the copy").unwrap();
            *identity == copy
        };
        assert_eq!(mailbox.search("base", &is_copy).ok().flatten().unwrap().place, new);
    }

    #[test]
    fn a_mailbox_that_has_changed_a_moment_ago_is_looked_at_once_more() {
        let (_directory, mailbox) = in_a_new_maildir();
        let [new, cur] = ["new", "cur"].map(|place| mailbox.directory.join(place));
        fs::write(cur.join("base"), "something else").unwrap();
        let long_ago = SystemTime::now() - Duration::from_hours(1);
        let looks = || {
            let looks = std::cell::Cell::new(0);
            let is_copy = |_: &Identity| {
                looks.set(looks.get() + 1);
                false
            };
            assert!(mailbox.search("base", &is_copy).is_ok_and(|found| found.is_none()));
            looks.get()
        };
        for place in [&new, &cur] {
            touch(place, long_ago);
        }
        assert_eq!(looks(), 1);
        // This process may be delayed between the two calls.
        let looked_twice = (0..1000).any(|_| {
            touch(&new, SystemTime::now());
            looks() > 1
        });
        assert!(looked_twice);
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_not_there() {
        let (_directory, mailbox) = in_a_new_maildir();
        let nowhere = mailbox.directory.join("new/base");
        std::os::unix::fs::symlink("/nowhere/at/all", &nowhere).unwrap();
        assert!(mailbox.search("base", &|_| true).is_ok_and(|found| found.is_none()), "removed since it was listed");
        fs::create_dir(mailbox.directory.join("cur/base:2,S")).unwrap();
        assert!(mailbox.search("base", &|_| true).is_err());
    }

    #[test]
    fn a_failure_says_what_was_being_done() {
        let (_directory, mut mailbox) = in_a_new_maildir();
        let identity = Identity::of(b"x");
        let copy = NewCopy { bytes: b"x", identity: &identity, role: Role::Recipient, seen: false, arrived: ARRIVED };
        let doing = |appended| match appended {
            Appended::NotSent(MailboxError { failure: MailboxFailure::Local, doing, .. }) => doing,
            other => panic!("{other:?}"),
        };
        let new = mailbox.directory.join("new");
        let removed = mailbox.append(&copy, &mut || fs::remove_dir(&new).is_ok());
        assert!(doing(removed).starts_with("linking to "));
        let tmp = mailbox.directory.join("tmp");
        fs::remove_dir(&tmp).unwrap();
        fs::write(&tmp, "").unwrap();
        let no_directory = doing(mailbox.append(&copy, &mut || true));
        assert!(no_directory.starts_with("creating ") && no_directory.ends_with(".maildrop"), "{no_directory}");
        assert!(!new.exists(), "nothing is made where making it is not what is missing");
    }

    #[test]
    fn a_quota_is_the_users_and_a_full_disk_is_everybodys() {
        let failed = |kind: io::ErrorKind| not_stored(at("writing", Path::new("x"))(kind.into()));
        match failed(io::ErrorKind::QuotaExceeded) {
            Appended::Refused(error) => assert_eq!(error.failure, MailboxFailure::OverQuota),
            other => panic!("{other:?}"),
        }
        match failed(io::ErrorKind::StorageFull) {
            Appended::NotSent(error) => assert_eq!(error.failure, MailboxFailure::Local),
            other => panic!("{other:?}"),
        }
    }

    /// The identity is computed before a NUL is replaced: the copy is also recognised by the written bytes.
    #[test]
    fn a_copy_with_a_replaced_byte_is_stored_once() {
        let (_directory, mut mailbox) = in_a_new_maildir();
        let identity = Identity::of(b"Message-ID: <1@x>\r\nDate: x\r\n\r\na\0b\r\n");
        let bytes = b"Message-ID: <1@x>\r\nDate: x\r\n\r\na?b\r\n";
        assert_ne!(identity, Identity::of(bytes));
        let copy = NewCopy { bytes, identity: &identity, role: Role::Recipient, seen: false, arrived: ARRIVED };
        for _ in 0..2 {
            assert!(matches!(mailbox.append(&copy, &mut || true), Appended::Stored(None)));
        }
        assert_eq!(fs::read_dir(mailbox.directory.join("new")).unwrap().count(), 1);
    }
}
