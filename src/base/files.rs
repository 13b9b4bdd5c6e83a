//! Directories that survive a power failure, and files that root creates for other users.

use rustix::fs::OFlags;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

/// How many bytes of a file system stay free, or one part in `PART_KEPT_FREE` of a small one. In /run the space is memory, which
/// other programs need as well.
const KEPT_FREE: u64 = 64 << 20;
const PART_KEPT_FREE: u64 = 10;

/// Checks that a message of this many bytes can be written below this directory without using the reserve for others.
///
/// # Errors
/// `StorageFull` if it would use the reserve. Another error if the system cannot report the free space.
pub(crate) fn leaves_the_reserve(directory: &Path, bytes: u64) -> io::Result<()> {
    let system = rustix::fs::statvfs(directory)?;
    if is_little(system.f_blocks, system.f_bavail, system.f_frsize, bytes) {
        return Err(io::Error::new(io::ErrorKind::StorageFull, "the file system is nearly full"));
    }
    Ok(())
}

/// Whether writing `bytes` leaves too little space: `left` of `blocks` blocks of `size` bytes are free. A file system that
/// reports no size reports no free space either, so nothing is reserved on it.
fn is_little(blocks: u64, left: u64, size: u64, bytes: u64) -> bool {
    let all = blocks.saturating_mul(size);
    all > 0 && left.saturating_mul(size) < KEPT_FREE.min(all / PART_KEPT_FREE).saturating_add(bytes)
}

/// Creates a directory (mode 0700) and its parents. Each is on the disk before anything is created inside it. Many processes may
/// do so at once. A process that finds the directory syncs its name too, since the creator may not have done so yet.
///
/// # Errors
/// If the system cannot create or sync one of them.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    let make = || match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(false),
        Err(e) => Err(e),
    };
    let made = match make() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => match path.parent().filter(|p| !p.as_os_str().is_empty()) {
            Some(parent) if !parent.is_dir() => {
                create_directory(parent)?;
                return create_directory(path);
            }
            // Another process has just created the parent. There is one retry only: below /proc, every attempt ends in "not
            // found".
            Some(_) => make()?,
            None => return Err(e),
        },
        made => made?,
    };
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Ok(()),
    };
    match sync_directory(parent) {
        // The parent may belong to root. If this process cannot read it, no process of this program created the directory: that
        // process would have failed here.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && !made => Ok(()),
        synced => synced,
    }
}

/// Creates a directory that no other user may enter, or closes an existing one to others, which systemd or an administrator may
/// have created.
///
/// # Errors
/// If the path cannot be created, is no directory, or belongs to another user. A link is refused: its owner could point it
/// elsewhere.
pub(crate) fn own_directory(path: &Path) -> io::Result<()> {
    create_directory(path)?;
    let found = fs::symlink_metadata(path)?;
    let us = rustix::process::geteuid().as_raw();
    if !found.is_dir() || found.uid() != us {
        let problem = format!("it is not a directory of user {us}, as whom this process runs");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Syncs the bytes of a file, or the names of a directory, to the disk. fsync of a file does not include its name (fsync(2)).
///
/// Everything that must survive a power failure goes through this function, so that tests can check the order.
///
/// # Errors
/// If the system call fails.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub(crate) fn sync(open: impl AsFd) -> io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::fsync(&open))?;
    #[cfg(test)]
    synced::note(open.as_fd());
    Ok(())
}

/// Syncs the names of a directory to the disk.
///
/// # Errors
/// If the system cannot open or sync it.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    sync(File::open(path)?)
}

/// Opens a file for appending, or creates it with this mode. A file that root creates gets the owner of its folder, who could not
/// write to a file of root.
///
/// In another user's folder, root opens only regular files of that user. A link planted there could direct text of strangers into
/// any file of the system, and a pipe would block root for ever.
///
/// # Errors
/// If the file cannot be opened or created. Also if root finds anything but that user's regular file in that user's folder.
pub(crate) fn open_to_append(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).mode(mode);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let of_another = match rustix::process::geteuid().is_root() {
        true => Some(fs::metadata(folder)?).filter(|folder| folder.uid() != 0),
        false => None,
    };
    match (options.clone().create_new(true).open(path), of_another) {
        (Err(error), None) if error.kind() == io::ErrorKind::AlreadyExists => options.create(true).open(path),
        (Err(error), Some(folder)) if error.kind() == io::ErrorKind::AlreadyExists => {
            let careful = OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let file = options.custom_flags(careful.bits().cast_signed()).open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_file() && metadata.uid() == folder.uid() {
                return Ok(file);
            }
            let why = format!("as root: it is not a file of user {}, whose folder it is in", folder.uid());
            Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
        }
        (made, None) => made,
        (made, Some(folder)) => {
            let file = made?;
            fchown(&file, Some(folder.uid()), Some(folder.gid()))?;
            Ok(file)
        }
    }
}

#[cfg(test)]
pub(crate) mod synced {
    //! Records what this thread has synced. Without this record, only a power failure would show a missing sync.

    use std::cell::RefCell;
    use std::ffi::OsString;
    use std::fs::{self, File};
    use std::os::fd::{AsRawFd as _, BorrowedFd};
    use std::os::unix::fs::MetadataExt as _;
    use std::path::{Path, PathBuf};

    thread_local! {
        static SYNCED: RefCell<Vec<Synced>> = const { RefCell::new(Vec::new()) };
    }

    /// A file or directory as it was when it was synced.
    pub(crate) struct Synced {
        path: PathBuf,
        inode: u64,
        size: u64,
        /// The names in it, if it is a directory.
        names: Option<Vec<OsString>>,
    }

    pub(super) fn note(open: BorrowedFd<'_>) {
        // The path that the file has now, however it was opened.
        let path = fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd())).unwrap();
        let metadata = File::from(open.try_clone_to_owned().unwrap()).metadata().unwrap();
        let names = || fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let names = metadata.is_dir().then(names);
        let synced = Synced { path, inode: metadata.ino(), size: metadata.len(), names };
        SYNCED.with_borrow_mut(|all| all.push(synced));
    }

    /// The paths synced since the last call, in order.
    pub(crate) fn take() -> Vec<Synced> {
        SYNCED.take()
    }

    /// Like [`take`], reduced to directories.
    pub(crate) fn take_directories() -> Vec<PathBuf> {
        take().into_iter().filter(|synced| synced.names.is_some()).map(|synced| synced.path).collect()
    }

    /// Asserts the only order in which a power failure leaves the whole file or none: it was synced whole under another name,
    /// then got this name, then its directory was synced.
    pub(crate) fn assert_order(synced: &[Synced], file: &Path) {
        let (file, metadata) = (file.canonicalize().unwrap(), fs::metadata(file).unwrap());
        let whole = synced.iter().position(|it| it.inode == metadata.ino()).expect("the file was synced");
        assert_eq!(synced[whole].size, metadata.len(), "it was synced before all of it was written");
        assert_ne!(synced[whole].path, file, "it had its name before it was synced");
        let named = synced.iter().rposition(|it| it.holds(&file) == Some(true));
        assert!(whole < named.expect("its directory was synced after it got its name"));
    }

    /// Asserts the only order in which a power failure leaves at least one of the two names: the new directory is synced with the
    /// file, then the old one without it.
    pub(crate) fn assert_moved(synced: &[Synced], old: &Path, new: &Path) {
        let at = |path: &Path, held| synced.iter().position(|it| it.holds(path) == Some(held));
        let gone = at(old, false).expect("the directory was synced after the file had left it");
        assert!(at(new, true).expect("the directory was synced after the file had come to it") < gone);
    }

    impl Synced {
        /// Whether the directory contained this file; `None` if it is another directory.
        fn holds(&self, file: &Path) -> Option<bool> {
            let names = self.names.as_ref().filter(|_| Some(&*self.path) == file.parent())?;
            Some(names.iter().any(|name| Some(&**name) == file.file_name()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// fsync(2) fails with EINVAL for what cannot be synced. The error shows that the system was called.
    #[test]
    fn a_sync_asks_the_system() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(sync(&reader).map_err(|error| error.kind()), Err(io::ErrorKind::InvalidInput));
        assert!(synced::take().is_empty());
    }

    /// The directories are synced from the top down: each is on the disk before anything in it.
    #[test]
    fn each_new_directory_is_on_the_disk_before_anything_is_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        create_directory(&top.join("a/b/c")).unwrap();
        let above = [top.clone(), top.join("a"), top.join("a/b")];
        assert_eq!(synced::take_directories(), above);
        // The process that created the directory may have been killed before it synced the name.
        create_directory(&top.join("a/b/c")).unwrap();
        assert_eq!(synced::take_directories(), [top.join("a/b")]);
    }

    #[test]
    fn a_directory_is_closed_to_others_and_a_link_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let path = folder.path().join("a");
        own_directory(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        own_directory(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        // One that is closed already stays as it is.
        fs::set_permissions(&path, Permissions::from_mode(0o500)).unwrap();
        own_directory(&path).unwrap();
        assert_eq!(mode(&path), 0o500);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let error = own_directory(&link).unwrap_err().to_string();
        assert!(error.starts_with("it is not a directory of user "), "{error}");
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(own_directory(&file).is_err());
    }

    #[test]
    fn a_small_file_system_keeps_a_tenth_free_and_a_large_one_some_megabytes() {
        // A file system of 100 MB, in blocks of 1 kB.
        assert!(!is_little(100_000, 10_000, 1_000, 0));
        assert!(is_little(100_000, 9_999, 1_000, 0));
        assert!(!is_little(100_000, 10_500, 1_000, 500_000));
        assert!(is_little(100_000, 10_500, 1_000, 500_001));
        // A file system of a terabyte, in blocks of 4 KiB.
        assert!(!is_little(250_000_000, 16_384, 4_096, 0));
        assert!(is_little(250_000_000, 16_383, 4_096, 0));
        assert!(is_little(250_000_000, 16_384, 4_096, u64::MAX));
        assert!(!is_little(0, 0, 4_096, 1));
    }
}
