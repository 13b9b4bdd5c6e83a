//! The file of what failed: whole lines only, whatever becomes of the disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub(crate) struct FailureFile {
    pub(crate) path: PathBuf,
    file: File,
    length: u64,
    /// Why not all that failed is in it.
    pub(crate) error: Option<io::Error>,
}

impl FailureFile {
    /// Makes it; it must not be there yet.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        // It may hold messages.
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        Ok(Self { path: path.to_owned(), file, length: 0, error: None })
    }

    pub(crate) fn write(&mut self, line: &str) {
        let line = format!("{line}\n");
        match self.file.write_all(line.as_bytes()) {
            Ok(()) => self.length += line.len() as u64,
            Err(error) => {
                // Half a line would spoil the next one, should there be room again.
                let _ = self.file.set_len(self.length);
                self.error.get_or_insert(error);
            }
        }
    }
}
