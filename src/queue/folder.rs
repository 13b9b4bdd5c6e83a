//! One folder of the queue. All system calls on it are in this module; they use the open descriptor, and follow no link.

use super::{Name, QueueError};
use crate::base::files::sync;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// How many taken names in a row are skipped: each next name is a nanosecond later.
const NAMES: usize = 100_000;

#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    descriptor: OwnedFd,
}

/// The kind of directory entry that has a name.
pub(super) enum NameKind {
    File(File),
    /// A link, a folder, a pipe, a socket or a device. The queue creates none of these, and reads none.
    NoFile(&'static str),
    /// There is no such file (any more).
    Gone,
}

#[derive(PartialEq, Eq)]
pub(super) enum Moved {
    Done,
    /// There is no such file (any more).
    Gone,
    Taken,
}

impl Folder {
    /// Opens a folder that belongs to this user (or to anyone, as root) and that no other user can write to.
    ///
    /// # Errors
    /// If it is missing or cannot be opened, if another user owns it, or if its mode lets the group or others write.
    pub(super) fn open(path: PathBuf) -> Result<Self, QueueError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(CWD, &path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => QueueError::NoQueue { path: path.clone() },
            errno => QueueError::of("opening", &path, errno),
        })?;
        let folder = Self { path, descriptor };
        let stat = rustix::fs::fstat(&folder.descriptor).map_err(|errno| folder.error("examining", errno))?;
        let user = rustix::process::geteuid().as_raw();
        if !may_look_after(user, stat.st_uid) {
            return Err(QueueError::AnotherOwner { path: folder.path, owner: stat.st_uid, user });
        }
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.intersects(Mode::WGRP | Mode::WOTH) {
            return Err(QueueError::WritableByOthers { path: folder.path, mode: mode.as_raw_mode() });
        }
        Ok(folder)
    }

    fn error(&self, doing: &'static str, errno: Errno) -> QueueError {
        QueueError::of(doing, &self.path, errno)
    }

    fn error_at(&self, doing: &'static str, name: &str, errno: Errno) -> QueueError {
        QueueError::of(doing, &self.path.join(name), errno)
    }

    /// The names in it, except those that begin with a dot.
    pub(super) fn names(&self) -> Result<Vec<OsString>, QueueError> {
        let entries = Dir::read_from(&self.descriptor).map_err(|errno| self.error("reading", errno))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|errno| self.error("reading", errno))?;
            let name = entry.file_name().to_bytes();
            if !name.starts_with(b".") {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        Ok(names)
    }

    /// The names of messages in it, the oldest first.
    pub(super) fn messages(&self) -> Result<Vec<Name>, QueueError> {
        let names = self.names()?;
        let mut names: Vec<Name> = names.iter().filter_map(|name| name.to_str().and_then(Name::read)).collect();
        names.sort_unstable();
        Ok(names)
    }

    pub(super) fn find(&self, name: impl rustix::path::Arg + Copy) -> Result<NameKind, QueueError> {
        let shown = || name.to_string_lossy().into_owned();
        #[cfg(test)]
        if let Some(errno) = FAULT.take() {
            return Err(self.error_at("examining", &shown(), errno));
        }
        // A planted link could lead anywhere, and opening a pipe could block for ever.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let descriptor = match rustix::fs::openat(&self.descriptor, name, flags, Mode::empty()) {
            Ok(descriptor) => descriptor,
            Err(Errno::NOENT) => return Ok(NameKind::Gone),
            Err(Errno::LOOP) => return Ok(NameKind::NoFile("a symbolic link")),
            Err(Errno::NXIO) => return Ok(NameKind::NoFile("a socket")),
            Err(errno) => return Err(self.error_at("opening", &shown(), errno)),
        };
        let stat = rustix::fs::fstat(&descriptor).map_err(|errno| self.error_at("examining", &shown(), errno))?;
        Ok(no_file(&stat).map_or_else(|| NameKind::File(File::from(descriptor)), NameKind::NoFile))
    }

    /// Whether `name` still stands for this file.
    fn is(&self, name: impl rustix::path::Arg + Copy, file: &File) -> Result<bool, QueueError> {
        let shown = || name.to_string_lossy().into_owned();
        let open = rustix::fs::fstat(file).map_err(|errno| self.error_at("examining", &shown(), errno))?;
        match rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok((there.st_dev, there.st_ino) == (open.st_dev, open.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.error_at("examining", &shown(), errno)),
        }
    }

    /// Opens a file and locks it (flock(2)). `None` if it is no regular file, if another process holds the lock, or if the
    /// name stands for another file once the lock is held.
    pub(super) fn lock(&self, name: impl rustix::path::Arg + Copy) -> Result<Option<File>, QueueError> {
        let NameKind::File(file) = self.find(name)? else { return Ok(None) };
        step();
        let locked = self.locked(name, &file)?;
        Ok(locked.then_some(file))
    }

    fn locked(&self, name: impl rustix::path::Arg + Copy, file: &File) -> Result<bool, QueueError> {
        match file.try_lock() {
            Ok(()) => self.is(name, file),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => {
                Err(QueueError::of_io("locking", &self.path.join(name.to_string_lossy().as_ref()), error))
            }
        }
    }

    /// Waits until no other process changes this folder. The lock (flock(2)) is held until the returned descriptor is
    /// dropped.
    pub(super) fn lock_whole(&self) -> Result<File, QueueError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = rustix::fs::openat(&self.descriptor, ".", flags, Mode::empty());
        let own = File::from(own.map_err(|errno| self.error("opening", errno))?);
        own.lock().map_err(|error| QueueError::of_io("locking", &self.path, error))?;
        Ok(own)
    }

    pub(super) fn rename(
        &self,
        name: impl rustix::path::Arg + Copy,
        to: &Self,
        new_name: &str,
    ) -> Result<Moved, QueueError> {
        step();
        let moved = rustix::fs::renameat_with(&self.descriptor, name, &to.descriptor, new_name, RenameFlags::NOREPLACE);
        step();
        match moved {
            Ok(()) => Ok(Moved::Done),
            Err(Errno::NOENT) => Ok(Moved::Gone),
            Err(Errno::EXIST) => Ok(Moved::Taken),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                Err(QueueError::RenamesOverwrite { path: to.path.clone() })
            }
            Err(Errno::XDEV) => Err(QueueError::AnotherFileSystem { path: to.path.clone() }),
            Err(errno) => Err(to.error_at("renaming a file to", new_name, errno)),
        }
    }

    /// Renames a file to this name, or to the next free one. `None` if the file is gone.
    pub(super) fn rename_to_a_free(
        &self,
        from: impl rustix::path::Arg + Copy,
        to: &Self,
        name: Name,
    ) -> Result<Option<Name>, QueueError> {
        let mut name = name;
        for _ in 0..NAMES {
            match self.rename(from, to, &name.to_string())? {
                Moved::Done => return Ok(Some(name)),
                Moved::Gone => return Ok(None),
                Moved::Taken => name = name.later(),
            }
        }
        Err(to.error_at("renaming a file to", &name.to_string(), Errno::EXIST))
    }

    /// Removes a file. `false` if there was none.
    pub(super) fn remove(&self, name: impl rustix::path::Arg + Copy) -> Result<bool, QueueError> {
        step();
        let removed = rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty());
        step();
        match removed {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.error_at("removing", &name.to_string_lossy(), errno)),
        }
    }

    /// Syncs the folder's entries to the disk: without this, a rename or a new name may not survive a power failure.
    pub(super) fn sync(&self) -> Result<(), QueueError> {
        step();
        sync(&self.descriptor).map_err(|error| QueueError::of_io("syncing", &self.path, error))
    }

    /// Writes a new file of mode 0600 into this folder, syncs it, and keeps it locked.
    pub(super) fn write(&self, parts: &[&[u8]]) -> Result<Written<'_>, QueueError> {
        let written = self.create()?;
        let path = || self.path.join(&written.name);
        for part in parts {
            step();
            (&written.file).write_all(part).map_err(|error| QueueError::of_io("writing", &path(), error))?;
        }
        step();
        sync(&written.file).map_err(|error| QueueError::of_io("syncing", &path(), error))?;
        Ok(written)
    }

    fn create(&self) -> Result<Written<'_>, QueueError> {
        loop {
            let name = Uuid::now_v7().to_string();
            step();
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let descriptor = match rustix::fs::openat(&self.descriptor, &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(descriptor) => descriptor,
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(self.error_at("creating", &name, errno)),
            };
            let written = Written { folder: self, file: File::from(descriptor), name, placed: false };
            if rustix::process::geteuid().is_root() {
                // The queue's user could not read a file that belongs to root.
                let owner =
                    rustix::fs::fstat(self.descriptor.as_fd()).map_err(|errno| self.error("examining", errno))?;
                let to = |id| std::os::unix::fs::fchown(&written.file, Some(id), Some(owner.st_gid));
                to(owner.st_uid).map_err(|error| QueueError::of_io("giving away a file in", &self.path, error))?;
            }
            // Before the lock, a clean-up may have removed the file as one of a dead writer.
            if self.locked(written.name.as_str(), &written.file)? {
                return Ok(written);
            }
        }
    }
}

/// A file that has been written into `tmp/`. Dropping it removes the file, unless it was moved to its place.
#[derive(Debug)]
pub(super) struct Written<'a> {
    folder: &'a Folder,
    /// Locked for as long as it is open.
    file: File,
    name: String,
    placed: bool,
}

impl Written<'_> {
    /// Moves the file to its final place. Once this returns, the file survives a power failure.
    ///
    /// The file stays locked until then, so that no runner claims it before its name is on the disk. If the sync fails, the
    /// file is removed, because the client receives an error and submits the message once more.
    pub(super) fn place(mut self, to: &Folder, name: Name) -> Result<Name, QueueError> {
        let placed = self.folder.rename_to_a_free(self.name.as_str(), to, name)?;
        let name = placed.ok_or_else(|| self.folder.error_at("renaming", &self.name, Errno::NOENT))?;
        self.placed = true;
        if let Err(error) = to.sync() {
            to.remove(name.to_string().as_str())?;
            return Err(error);
        }
        Ok(name)
    }
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        if !self.placed
            && let Err(error) = self.folder.remove(self.name.as_str())
        {
            tracing::warn!(%error, "a file that was not accepted is left behind; the next clean-up removes it");
        }
    }
}

/// Whether this user may work on the owner's queue. Root may: it follows no link there, and gives the files that it writes
/// to the owner.
pub(super) fn may_look_after(user: u32, owner: u32) -> bool {
    user == owner || user == 0
}

/// What the file is, if it is no regular file.
fn no_file(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a folder"),
        FileType::Fifo => Some("a named pipe"),
        _ => Some("a device"),
    }
}

/// A point at which a test may kill the process. There is one between any two system calls that change the disk.
#[cfg(test)]
fn step() {
    super::crash_tests::step();
}
#[cfg(not(test))]
const fn step() {}

#[cfg(test)]
thread_local! {
    /// The error that this thread gets from its next search for a file, as from a failing disk.
    pub(super) static FAULT: std::cell::Cell<Option<Errno>> = const { std::cell::Cell::new(None) };
}

/// Keeps root from creating a queue in another user's folder: that user could not open files that belong to root.
pub(super) fn refuse_root(path: &Path) -> Result<(), QueueError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // If nothing can be examined, the first use of the queue reports why.
    let there = path.ancestors().find_map(|path| Some((path, std::fs::symlink_metadata(path).ok()?.uid())));
    match there {
        Some((path, owner)) if owner != 0 => Err(QueueError::AnotherOwner { path: path.to_owned(), owner, user: 0 }),
        _ => Ok(()),
    }
}

/// Whether there is anything of this name.
pub(super) fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}
