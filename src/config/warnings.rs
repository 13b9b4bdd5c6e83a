//! What `check` warns of: it works, but is not safe.

use super::Config;
use crate::base::endpoint::Endpoint;
use crate::database::Tls;
use crate::imap::{Encryption, USER_TIMEOUT};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

impl Config {
    /// Files that others can read or write, connections that others can listen to, a time to settle that is too short.
    #[must_use]
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut look = |path: &Path, secret: bool| {
            // A file that cannot be looked at is an error where it is used.
            let Ok(found) = fs::metadata(path) else { return };
            let mode = found.permissions().mode() & 0o777;
            let (bad, mend) = if secret { (0o027, "chmod 640, or 600") } else { (0o022, "chmod go-w") };
            if mode & bad != 0 {
                let what =
                    if secret { "others may read it, or more than its owner write it" } else { "others may write it" };
                warnings.push(format!("{}: mode {mode:03o}: {what}: {mend}", path.display()));
            }
        };
        look(&self.file, false);
        let of_database = self.database.accounts.values().filter_map(|account| account.password.as_ref());
        for file in of_database.chain([&self.imap.password]) {
            look(file.path(), true);
        }
        if let Some(key) = &self.serve.key_file {
            look(key, true);
        }
        // Whoever has this one signs for us.
        if let Some(key) = &self.notifications.secret_key_file {
            look(key, true);
        }
        let plain = |address: &Endpoint, encrypted: bool| !encrypted && !address.is_on_this_machine();
        if self.database.addresses.iter().any(|address| plain(address, self.database.tls != Tls::Off)) {
            warnings.push(format!(
                "{}: database.tls: passwords and mail cross the network in the clear",
                self.file.display()
            ));
        }
        if plain(&self.imap.address, self.imap.encryption != Encryption::None) {
            warnings.push(format!(
                "{}: imap.encryption: passwords and mail cross the network in the clear",
                self.file.display()
            ));
        }
        // Which server it is shows when it greets: `check` goes on from there.
        if self.imap.settle < self.delivery.deadline + USER_TIMEOUT {
            warnings.push(format!(
                "{}: imap.settle: {} is less than {} above delivery.deadline: for so long the kernel may still send what a process \
                 that died has left",
                self.file.display(),
                humantime::format_duration(self.imap.settle),
                humantime::format_duration(USER_TIMEOUT),
            ));
        }
        warnings.extend(self.memory_warning());
        warnings
    }
}
