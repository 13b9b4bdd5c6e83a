//! Password files. A password is never in the configuration file itself, which all users may read.

use crate::base::secret::Secret;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The file that a password is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PasswordFile {
    pub(super) path: PathBuf,
    /// The key that named it: `imap.password_file`.
    pub(super) key: String,
}

/// In bytes. A longer file is not a password file.
const PASSWORD_LIMIT: u64 = 4096;

impl PasswordFile {
    /// For the value of `password_file` in this section.
    pub(super) fn named(path: Option<PathBuf>, section: &str) -> Option<Self> {
        path.map(|path| Self { path, key: format!("{section}.password_file") })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the password, which is the only line of the file. An error contains nothing of the file's content.
    pub(super) fn read(&self) -> Result<Secret, String> {
        let problem = |what: &str| format!("{}: {}: {what}", self.key, self.path.display());
        let mut bytes = Vec::new();
        File::open(&self.path).and_then(|file| file.take(PASSWORD_LIMIT + 1).read_to_end(&mut bytes)).map_err(
            |error| match error.kind() {
                ErrorKind::PermissionDenied => {
                    problem(&format!("{error}: do this as root, or as a user who may read that file"))
                }
                _ => problem(&error.to_string()),
            },
        )?;
        if bytes.len() as u64 > PASSWORD_LIMIT {
            return Err(problem("this is no password: it is longer than 4096 bytes"));
        }
        let text = String::from_utf8(bytes).map_err(|_| problem("the password is not UTF-8"))?;
        let password = text.strip_suffix('\n').unwrap_or(&text);
        let password = password.strip_suffix('\r').unwrap_or(password);
        if password.is_empty() {
            return Err(problem("the file is empty: write the password into it, on one line"));
        }
        if password.contains(char::is_control) {
            return Err(problem("there is more than one line in it, or a control character: one line, the password"));
        }
        Ok(Secret::new(password.to_owned()))
    }
}
