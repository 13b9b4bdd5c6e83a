//! The file of what failed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file of what failed, which holds whole lines only.
pub(crate) struct FailureFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl FailureFile {
    /// Makes it; it must not be there yet.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        // It may hold messages.
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        Ok(Self { path: path.to_owned(), file, length: 0 })
    }

    pub(crate) fn write(&mut self, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        match self.file.write_all(line.as_bytes()) {
            Ok(()) => self.length += line.len() as u64,
            Err(error) => {
                // Half a line would spoil the next one, too, should there be room again.
                let _ = self.file.set_len(self.length);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Where it is; or nothing, where nothing failed: then it is removed, or the error says why it could not be.
    pub(crate) fn close(self, failed: bool) -> Result<Option<PathBuf>, (PathBuf, io::Error)> {
        if failed {
            return Ok(Some(self.path));
        }
        std::fs::remove_file(&self.path).map(|()| None).map_err(|error| (self.path, error))
    }
}
