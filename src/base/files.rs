//! Directories that are still there after a power loss, and files that root makes for others.

use rustix::fs::OFlags;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::Path;

/// Makes a directory (mode 0700) and those above it, each on the disk before anything is made inside it. Many may do so at once: a
/// process that finds the directory there syncs it, too, since its maker may not have done so yet.
///
/// # Errors
/// Where the system cannot make or sync one of them.
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
            // Another process has just made the directory above. Tried once: below /proc everything is "not found".
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
        // Where we may not read the directory above, no process of ours has made this one: it would have failed here.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && !made => Ok(()),
        synced => synced,
    }
}

/// Puts a directory's entries on the disk: fsync of a file does not include its name (fsync(2)).
///
/// # Errors
/// Where the system cannot.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    SYNCED.with_borrow_mut(|synced| synced.push(path.to_owned()));
    File::open(path)?.sync_all()
}

/// Opens a file to append to it, or makes it, with this mode. One that root makes gets the owner of its folder, who could not write to a
/// file of root's.
///
/// In another user's folder, root opens only files of that user: a link planted there could lead strangers' text into any file of
/// the system, and a pipe would block root for ever.
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
thread_local! {
    /// What this thread has synced, for tests: nothing else shows it but a power failure.
    pub(crate) static SYNCED: std::cell::RefCell<Vec<std::path::PathBuf>> = const { std::cell::RefCell::new(Vec::new()) };
}
