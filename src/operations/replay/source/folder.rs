//! A folder of files, or a Maildir.

use super::{arrived, list_file, unreadable};
use crate::operations::replay::entry::Piece;
use crate::operations::replay::{Form, List, ReplayError};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Lists the messages of a folder and its subfolders, without hidden entries and sidecars. In a Maildir the messages
/// are in `cur` and `new`; its folders (`.Sent`) are other mailboxes.
pub(super) fn list(folder: &Path, form: Option<Form>, list: &List) -> Result<(), ReplayError> {
    let mut folders = vec![(folder.to_owned(), false)];
    while let Some((folder, of_maildir)) = folders.pop() {
        let parts = [folder.join("cur"), folder.join("new")];
        if !of_maildir && parts.iter().all(|part| part.is_dir()) {
            folders.extend(parts.map(|part| (part, true)));
            continue;
        }
        for entry in std::fs::read_dir(&folder).map_err(|error| unreadable(&folder, error))? {
            let entry = entry.map_err(|error| unreadable(&folder, error))?;
            let (path, kind) = (entry.path(), entry.file_type());
            let is_sidecar = path.extension().is_some_and(|extension| extension == "envelope");
            if entry.file_name().as_bytes().starts_with(b".") {
                continue;
            }
            if !of_maildir && kind.map_err(|error| unreadable(&path, error))?.is_dir() {
                folders.push((path, false));
                continue;
            }
            // A link to a folder may form a cycle. A pipe or a socket has no message.
            let metadata = match path.metadata() {
                Ok(metadata) if metadata.is_file() && !is_sidecar => metadata,
                Ok(_) => continue,
                // The owner's mail program has renamed the file meanwhile. This run or the next finds the new name.
                Err(error) if of_maildir && error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(unreadable(&path, error)),
            };
            if of_maildir {
                // A file of a Maildir is one message, whatever its beginning looks like.
                list.add_piece(arrived(&metadata), &Piece::whole(Form::Message, Some(&path)))?;
            } else {
                list_file(Some(&path), form, list)?;
            }
        }
    }
    Ok(())
}
