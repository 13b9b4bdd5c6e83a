//! What `check` warns of: settings that work, but are not safe.

use super::{Config, PasswordFile};
use crate::base::endpoint::Endpoint;
use crate::database::Tls;
use crate::imap::{Encryption, USER_TIMEOUT};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

impl Config {
    /// Files that others can read or write, connections that others can read, and an `append_grace` that is too short.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut look = |path: &Path, secret: bool| {
            // A file that cannot be examined is reported where it is used.
            let Ok(found) = fs::metadata(path) else { return };
            let mode = found.permissions().mode() & 0o777;
            let (bad, fix) = if secret { (0o027, "chmod 640, or 600") } else { (0o022, "chmod go-w") };
            if mode & bad != 0 {
                let what =
                    if secret { "others may read it, or more than its owner write it" } else { "others may write it" };
                warnings.push(format!("{}: mode {mode:03o}: {what}: {fix}", path.display()));
            }
        };
        look(&self.file, false);
        let of_database = self.database.accounts.values().filter_map(|account| account.password.as_ref());
        let passwords = of_database.chain([&self.imap.password]).map(PasswordFile::path);
        // A reader of these keys could pose as this service, or sign as it.
        let keys = [&self.service.key_file, &self.notifications.secret_key_file];
        passwords.chain(keys.into_iter().filter_map(Option::as_deref)).for_each(|path| look(path, true));
        let plain = |address: &Endpoint, encrypted: bool| !encrypted && !address.is_on_this_machine();
        let to_database = |address| plain(address, self.database.tls != Tls::Off);
        let [grace, least] = [self.imap.append_grace, USER_TIMEOUT].map(humantime::format_duration);
        let grace = format!(
            "{grace} is less than {least} above delivery.deadline: for so long the kernel may still send what a process that died has left"
        );
        let in_the_clear = "passwords and mail cross the network in the clear";
        for (is_so, key, problem) in [
            (self.database.addresses.iter().any(to_database), "database.tls", in_the_clear),
            (plain(&self.imap.address, self.imap.encryption != Encryption::None), "imap.encryption", in_the_clear),
            // Only the kernel's part: the server's part depends on its product, which `check` reads from the greeting.
            (self.imap.append_grace < self.delivery.deadline + USER_TIMEOUT, "imap.append_grace", &grace),
        ] {
            if is_so {
                warnings.push(format!("{}: {key}: {problem}", self.file.display()));
            }
        }
        warnings.extend(self.memory_warning());
        warnings
    }
}
