//! `--embedded DIR`: no configuration, no servers. A Maildir for each address, the ledger and the locks are in one directory of
//! one machine. Any address is accepted.
//!
//! ```text
//! DIR/ledger.sqlite            the ledger
//! DIR/locks/                   a file per lock that is held right now
//! DIR/delivery.log             the log
//! DIR/doug@mail.axial.net/     a Maildir: tmp/ new/ cur/ is Doug's INBOX, .Sent/ Doug's sent mail (Maildir++)
//! ```
//!
//! Under local(8), which runs a command as the recipient, DIR may be `$HOME/mail`.

use crate::base::hex;
use crate::ledger::Destination;
use crate::mailbox::MaildirMailbox;
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The mailbox for arriving mail.
const INBOX: &str = "INBOX";
/// The mailbox for sent mail.
const SENT: &str = "Sent";
/// The longest directory name that this module creates, in bytes. File systems allow 255.
const LONGEST_NAME: usize = 200;

/// The directory of `--embedded`, and the mailboxes in it.
#[derive(Clone, Debug)]
pub struct Embedded {
    directory: PathBuf,
}

impl Embedded {
    /// A site with everything in `directory`. This does not access the file system.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The directory of the ledger, the locks and the Maildirs.
    #[must_use]
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Why this process must not work here: it is root, in another user's directory. That user could not open root's files, so
    /// each delivery would be deferred until it bounces. The user could also plant links, through which root would write.
    #[must_use]
    pub(crate) fn refuses_root(&self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        // A directory that cannot be examined cannot be used either: its first use reports the error.
        let there = self
            .directory
            .ancestors()
            .find_map(|path| fs::metadata(if path.as_os_str().is_empty() { Path::new(".") } else { path }).ok())?;
        let directory = self.directory.display();
        (there.uid() != 0)
            .then(|| format!("{directory} belongs to user {}: run this as that user, not as root", there.uid()))
    }

    /// The mailbox for mail to `address`. Each address has one here, which its first message creates.
    #[must_use]
    pub fn recipient(&self, address: &str) -> Destination {
        Destination { user: folded(address), inbox: INBOX.into(), sent: SENT.into() }
    }

    /// The mailbox for mail that `address` has sent, if `address` already has a Maildir here. `None` for the null sender.
    #[must_use]
    pub fn sender(&self, address: &str) -> Option<Destination> {
        if address.is_empty() {
            return None;
        }
        let destination = self.recipient(address);
        let arriving = self.maildir(&destination.user).join("new");
        match fs::metadata(&arriving) {
            Ok(found) => found.is_dir().then_some(destination),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => None,
            Err(e) => {
                // A Maildir that counts as present makes the append fail, and the delivery is deferred. If it counted as missing,
                // a Sent copy would be lost.
                tracing::warn!(directory = %arriving.display(), error = %e, "cannot see whether the sender lives here");
                Some(destination)
            }
        }
    }

    /// The mailbox `mailbox` (`INBOX`, `Sent`) of `user`, with names from [`Destination`].
    #[must_use]
    pub fn mailbox(&self, user: &str, mailbox: &str) -> MaildirMailbox {
        let maildir = self.maildir(user);
        if mailbox.eq_ignore_ascii_case(INBOX) {
            MaildirMailbox::inbox(maildir)
        } else {
            // Maildir++: a folder is a Maildir inside. Its name begins with a dot, and each further dot separates levels.
            let folder = maildir.join(format!(".{}", safe_name(mailbox).replace('.', "%2E")));
            MaildirMailbox::folder(maildir, folder)
        }
    }

    fn maildir(&self, user: &str) -> PathBuf {
        self.directory.join(safe_name(&folded(user)))
    }
}

/// The address in lower case. Only ASCII is folded: Unicode folds some different characters into one (the Kelvin sign and k), so
/// one person's mail would go to another.
fn folded(address: &str) -> String {
    address.to_ascii_lowercase()
}

/// The name of a directory for `text`: readable if possible, and never the same for two texts.
///
/// Any byte except an ASCII letter, a digit or one of `@._-+=` becomes `%XX`, and so does a dot at the beginning. So there is no
/// `/`, no NUL, no `..` and no hidden name. If the text is a name that this program uses itself, its first letter becomes `%XX`
/// too.
///
/// A name longer than 200 bytes is cut and ends in `%-` and the SHA-256 of the whole text. In all other names, `%` is followed by
/// two hexadecimal digits.
fn safe_name(text: &str) -> String {
    use std::fmt::Write;
    let reserved = matches!(text, "locks" | "delivery.log") || text.starts_with("ledger.sqlite");
    let mut name = String::with_capacity(text.len());
    for (position, byte) in text.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'@' | b'.' | b'_' | b'-' | b'+' | b'=');
        if plain && !(position == 0 && (byte == b'.' || reserved)) {
            name.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(name, "%{byte:02X}");
        }
    }
    if name.is_empty() {
        return "%".into();
    }
    if name.len() <= LONGEST_NAME {
        return name;
    }
    let digest = hex::encode(&Sha256::digest(text.as_bytes()));
    // The name is ASCII, so each byte is a character boundary.
    name.truncate(LONGEST_NAME - digest.len() - 2);
    format!("{name}%-{digest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn an_ordinary_address_is_its_own_directory() {
        assert_eq!(safe_name("doug@mail.axial.net"), "doug@mail.axial.net");
        assert_eq!(safe_name("d-o_u.g+lists=x@mail.axial.net"), "d-o_u.g+lists=x@mail.axial.net");
    }

    #[test]
    fn hostile_addresses_stay_inside_and_apart() {
        let long = "x".repeat(500);
        let nearly = format!("{}y", "x".repeat(499));
        let just = "x".repeat(200);
        // A short text that equals the hashed name, and one that equals an escaped name.
        let hashed = safe_name(&long);
        let texts = [
            "",
            ".",
            "..",
            "../../etc/passwd",
            "/etc",
            "a/b@x",
            "a%2Fb@x",
            "%",
            "%2E",
            "..%2f",
            ".ssh",
            "%2Essh",
            "locks",
            "delivery.log",
            "%6Cocks",
            "ledger.sqlite",
            "ledger.sqlite-wal",
            "new",
            "a\0b",
            "a\nb",
            "a b",
            "a:2,S",
            "ä@x",
            "a\\b",
            long.as_str(),
            nearly.as_str(),
            just.as_str(),
            hashed.as_str(),
            "\u{202e}x",
        ];
        let mut seen = HashSet::new();
        for text in texts {
            let name = safe_name(text);
            assert!(!name.is_empty() && name.len() <= LONGEST_NAME, "{text:?} {name}");
            assert!(!name.starts_with('.') && !name.contains('/'), "{text:?} {name}");
            assert!(name.bytes().all(|b| b.is_ascii_graphic()), "{text:?} {name}");
            assert!(name != "locks" && name != "delivery.log" && !name.starts_with("ledger.sqlite"), "{text:?} {name}");
            assert!(seen.insert(name), "{text:?} shares its directory");
        }
    }

    #[test]
    fn the_case_of_an_address_does_not_matter_but_kelvin_is_not_k() {
        let embedded = Embedded::new("/nowhere".into());
        assert_eq!(embedded.recipient("Doug@Mail.Axial.Net"), embedded.recipient("doug@mail.axial.net"));
        assert_ne!(embedded.recipient("\u{212a}im@x"), embedded.recipient("kim@x"));
    }
}
