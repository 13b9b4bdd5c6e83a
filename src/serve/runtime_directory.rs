//! The folder of the service's sockets, which nobody else may enter, and sockets in it.
//!
//! Who can connect to them hands out mail under any name, or gets everybody's: the folder keeps others out, and each connection is
//! asked for its user besides (unix(7), SO_PEERCRED).

use crate::base::files;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why there can be no sockets.
#[derive(Debug, Error)]
pub enum NoSockets {
    #[error("{doing} {}: {source}", path.display())]
    System { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is no folder", .0.display())]
    NoFolder(PathBuf),
    #[error("{} belongs to user {owner}, not to us", path.display())]
    AnothersFolder { path: PathBuf, owner: u32 },
    #[error("{} is open to others: its mode is {mode:03o}, and has to be 700", path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("somebody listens at {} already: is the service running?", .0.display())]
    InUse(PathBuf),
    #[error("{} is in the way, and no socket", .0.display())]
    NoSocket(PathBuf),
}

/// Whether user `peer` may connect to a socket in it, where we run as user `ours`: only we, and root.
pub(super) fn may_connect(peer: u32, ours: u32) -> bool {
    [0, ours].contains(&peer)
}

/// Makes the folder where it is missing, and refuses one that others can enter.
pub(super) fn prepare(path: &Path) -> Result<(), NoSockets> {
    let system = |doing, source| NoSockets::System { doing, path: path.to_owned(), source };
    files::create_directory(path).map_err(|source| system("making the folder", source))?;
    // No link: whoever owns that could turn it elsewhere.
    let found = fs::symlink_metadata(path).map_err(|source| system("examining", source))?;
    if !found.is_dir() {
        return Err(NoSockets::NoFolder(path.to_owned()));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(NoSockets::AnothersFolder { path: path.to_owned(), owner: found.uid() });
    }
    let mode = found.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(NoSockets::Open { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Listens at `path`. What a process that has died has left there is removed.
pub(super) fn listen(path: &Path) -> Result<UnixListener, NoSockets> {
    let system = |doing, source| NoSockets::System { doing, path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(system("examining", source)),
        Ok(found) if !found.file_type().is_socket() => return Err(NoSockets::NoSocket(path.to_owned())),
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => return Err(NoSockets::InUse(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(|source| system("removing", source))?;
            }
            Err(source) => return Err(system("asking whether somebody listens at", source)),
        },
    }
    let listener = UnixListener::bind(path).map_err(|source| system("listening at", source))?;
    listener.set_nonblocking(true).map_err(|source| system("listening at", source))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_services_own_user_and_root_may_connect() {
        assert!(may_connect(0, 7) && may_connect(7, 7));
        assert!(!may_connect(8, 7) && !may_connect(7, 0));
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("run");
        prepare(&folder).unwrap();
        prepare(&folder).unwrap();
        for mode in [0o750, 0o701, 0o777] {
            fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            assert!(matches!(prepare(&folder), Err(NoSockets::Open { mode: found, .. }) if found == mode));
        }
        let file = above.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(prepare(&file).is_err());
        let link = above.path().join("link");
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(matches!(prepare(&link), Err(NoSockets::NoFolder(_))));
    }

    #[test]
    fn a_socket_is_taken_over_only_where_nobody_answers() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("x.sock");
        let first = listen(&path).unwrap();
        assert!(matches!(listen(&path), Err(NoSockets::InUse(_))));
        drop(first);
        listen(&path).unwrap();
        let file = above.path().join("file");
        fs::write(&file, b"precious").unwrap();
        assert!(matches!(listen(&file), Err(NoSockets::NoSocket(_))));
        assert_eq!(fs::read(&file).unwrap(), b"precious");
        assert!(matches!(listen(&file.join("x")), Err(NoSockets::System { doing: "examining", .. })));
        // One of datagrams does not refuse: it is another kind.
        let datagrams = above.path().join("datagrams");
        let _anothers = std::os::unix::net::UnixDatagram::bind(&datagrams).unwrap();
        assert!(matches!(listen(&datagrams), Err(NoSockets::System { .. })));
        assert!(datagrams.exists());
    }
}
