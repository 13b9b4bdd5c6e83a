//! The file of failures: it contains whole lines only, even if the disk is full.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub(crate) struct FailureFile {
    pub(crate) path: PathBuf,
    file: File,
    length: u64,
    /// The first error: from then on the file is incomplete.
    pub(crate) error: Option<io::Error>,
}

impl FailureFile {
    /// Creates the file, which must not exist yet.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        // The file may contain messages, so only its owner may read it.
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        Ok(Self { path: path.to_owned(), file, length: 0, error: None })
    }

    pub(crate) fn write(&mut self, line: &str) {
        let line = format!("{line}\n");
        match self.file.write_all(line.as_bytes()) {
            Ok(()) => self.length += line.len() as u64,
            Err(error) => {
                // If the disk later has space again, a partial line would corrupt the next one.
                let _ = self.file.set_len(self.length);
                self.error.get_or_insert(error);
            }
        }
    }
}
