//! A folder of files, or a Maildir.

use crate::operations::replay::list::{Entry, List, Location, Piece};
use crate::operations::replay::source::{list_file, unreadable};
use crate::operations::replay::{Form, ReplayError};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Writes down the messages of a folder and of those in it, hidden ones and sidecars apart. In a Maildir the messages lie in
/// `cur` and `new`: its folders (`.Sent`) are other mailboxes.
pub fn list(folder: &Path, form: Option<Form>, list: &List) -> Result<(), ReplayError> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let parts = [folder.join("cur"), folder.join("new")];
        if parts.iter().all(|part| part.is_dir()) {
            for part in &parts {
                each_file(part, |path, _| if is_sidecar(&path) { Ok(()) } else { message(path, list) })?;
            }
            continue;
        }
        each_file(&folder, |path, kind| {
            if kind.is_dir() {
                folders.push(path);
                return Ok(());
            }
            // A link to a folder may lead round in a circle; a pipe or a socket holds no message.
            let is_file = path.metadata().map_err(|error| unreadable(&path, error))?.is_file();
            if is_file && !is_sidecar(&path) {
                list_file(&path, form, list)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn is_sidecar(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "envelope")
}

fn each_file(
    folder: &Path,
    mut see: impl FnMut(PathBuf, std::fs::FileType) -> Result<(), ReplayError>,
) -> Result<(), ReplayError> {
    for entry in std::fs::read_dir(folder).map_err(|error| unreadable(folder, error))? {
        let entry = entry.map_err(|error| unreadable(folder, error))?;
        if !entry.file_name().as_bytes().starts_with(b".") {
            let kind = entry.file_type().map_err(|error| unreadable(&entry.path(), error))?;
            see(entry.path(), kind)?;
        }
    }
    Ok(())
}

/// A file of a Maildir is one message, whatever it begins with.
fn message(path: PathBuf, list: &List) -> Result<(), ReplayError> {
    let metadata = match path.metadata() {
        Ok(metadata) if metadata.is_file() => metadata,
        // Its owner's mail program has given it another name meanwhile: it is found under that one, or by the next run.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(unreadable(&path, error)),
        _ => return Ok(()),
    };
    let at = metadata.mtime().saturating_mul(1_000_000).saturating_add(metadata.mtime_nsec() / 1000);
    let piece = Piece { form: Form::Message, path: Some(path), offset: 0, length: Piece::TO_THE_END };
    list.add(&Entry { at, place: Location::Piece(piece), lock: None })
}
