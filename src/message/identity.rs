//! What makes two byte strings the same message.

/// The digest of what the author wrote: SHA-256 over the author's fields and the body.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ContentDigest([u8; 32]);

/// The identity of a message: (Message-ID, digest of what the author wrote), as one SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identity([u8; 32]);

impl Identity {
    /// The identity as read back from the ledger.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}
