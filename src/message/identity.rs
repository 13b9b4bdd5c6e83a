//! What makes two byte strings the same message.

/// The digest of what the author wrote: SHA-256 over the author's fields and the body.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ContentDigest([u8; 32]);

/// The identity of a message: (Message-ID, digest of what the author wrote), as one SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identity([u8; 32]);

impl Identity {
    /// Temporary, until the real one is merged: SHA-256 over the bytes without CR.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::{Digest, Sha256};
        let kept: Vec<u8> = bytes.iter().copied().filter(|&b| b != b'\r').collect();
        Self(Sha256::digest(kept).into())
    }

    /// Its 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}
