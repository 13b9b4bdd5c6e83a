//! The name of a lock: the same on every machine, in every release and in every language.

use crate::base::hex;
use sha2::{Digest, Sha256};
use std::fmt;

/// The namespace if none is configured.
pub const DEFAULT_NAMESPACE: &str = "maildrop";

/// The suffix that `lock exec` adds to the site's namespace, so that its names never meet those of deliveries.
pub(crate) const OF_PROGRAMS: &str = " exec";

/// SHA-256 over a length-prefixed namespace and name:
/// `u32 big-endian length · namespace · u32 big-endian length · name`.
///
/// The length prefixes keep `a`+`bc` and `ab`+`c` apart. `tests/lock_names.json` pins the encoding; the SQL functions
/// `maildrop_lock_key()` and `maildrop_lock_name()` return the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName([u8; 32]);

impl LockName {
    /// The lock called `name` in `namespace`. Names are compared byte by byte.
    #[must_use]
    pub fn new(namespace: &str, name: &[u8]) -> Self {
        let mut hash = Sha256::new();
        for part in [namespace.as_bytes(), name] {
            // No name is longer than 4 GiB.
            hash.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// The name with this digest.
    #[must_use]
    pub fn from_digest(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// The key of the PostgreSQL advisory lock: the first 8 bytes, big-endian, as a signed bigint.
    #[must_use]
    pub fn postgres_key(&self) -> i64 {
        self.number_at(0).cast_signed()
    }

    /// Eight bytes of the digest, beginning with byte `from`, as a big-endian number.
    pub(crate) fn number_at(&self, from: usize) -> u64 {
        let bytes = self.0.get(from..).and_then(<[u8]>::first_chunk);
        bytes.copied().map_or(0, u64::from_be_bytes)
    }

    /// The name of the MySQL lock: `maildrop:` and 48 lower-case hexadecimal digits, 57 ASCII characters. MySQL accepts 64
    /// characters and ignores case; MariaDB accepts more and respects case. This form is the same to both.
    #[must_use]
    pub fn mysql_name(&self) -> String {
        format!("maildrop:{}", hex::encode(&self.0[..24]))
    }

    /// All 32 bytes.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockName({})", hex::encode(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_of_a_name_and_of_its_namespace_counts() {
        assert_ne!(LockName::new("maildrop", b"<a>"), LockName::new("maildrop", b"a"));
        assert_ne!(LockName::new("a", b"bc"), LockName::new("ab", b"c"));
    }

    #[test]
    fn each_engine_knows_it_by_the_beginning_of_its_digest() {
        let digest: [u8; 32] = std::array::from_fn(|at| 0xf0 + u8::try_from(at % 16).unwrap());
        let name = LockName::from_digest(digest);
        assert_eq!(name.postgres_key(), 0xf0f1_f2f3_f4f5_f6f7_u64.cast_signed());
        let digits = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff";
        assert_eq!(name.mysql_name(), format!("maildrop:{digits}{}", &digits[..16]));
        assert_eq!(name.digest(), &digest);
    }

    #[test]
    fn in_the_log_it_is_its_whole_digest() {
        let name = LockName::from_digest([0x0a; 32]);
        assert_eq!(name.digest(), &[0x0a; 32]);
        assert_eq!(format!("{name:?}"), format!("LockName({})", "0a".repeat(32)));
    }
}
