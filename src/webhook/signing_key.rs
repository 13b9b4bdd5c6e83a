//! Signatures that a receiver verifies by a public key, Ed25519 (RFC 8032): `v1a` of Standard Webhooks. Who has the public key can sign
//! nothing, so that a receiver has no secret to keep.
//!
//! As secrets are, the keys are derived from a file that all hosts share, for each generation of each subscription: nothing is stored, and
//! one generation takes over from another as with secrets.

use super::secret::derive;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hkdf;
use ring::signature::{Ed25519KeyPair, KeyPair};
use std::fmt;
use std::sync::Arc;
use uuid::Uuid;

/// How long the key is, and each seed (RFC 8032, section 5.1.5), in bytes.
const LENGTH: usize = 32;
/// Keeps what is derived here apart from the secrets, also where both files hold the same.
const PURPOSE: &[u8] = b"maildrop_command webhook signing key v1";

/// The key that all signing keys are derived from. It never shows itself.
#[derive(Clone)]
pub(super) struct SigningMaster(hkdf::Prk);

/// The signing key of one generation of a subscription. It never shows itself.
#[derive(Clone)]
pub(super) struct SigningKey(Arc<Ed25519KeyPair>);

impl SigningMaster {
    pub(super) fn new(bytes: &[u8; LENGTH]) -> Self {
        Self(hkdf::Salt::new(hkdf::HKDF_SHA256, PURPOSE).extract(bytes))
    }

    /// The key of this generation of a subscription.
    pub(super) fn key(&self, subscription: Uuid, generation: u32) -> Option<SigningKey> {
        let seed = derive(&self.0, subscription, generation);
        // Any 32 bytes are a seed: only another length could be refused.
        Ed25519KeyPair::from_seed_unchecked(&seed).ok().map(|pair| SigningKey(Arc::new(pair)))
    }
}

impl SigningKey {
    /// As receivers are given it: `whpk_` and base64.
    pub(super) fn public_key(&self) -> String {
        format!("whpk_{}", STANDARD.encode(self.0.public_key()))
    }

    /// What is signed is `id.timestamp.body`, as with a secret.
    pub(super) fn sign(&self, id: &str, timestamp: i64, body: &str) -> String {
        let signed = format!("{id}.{timestamp}.{body}");
        format!("v1a,{}", STANDARD.encode(self.0.sign(signed.as_bytes())))
    }
}

impl fmt::Debug for SigningMaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningMaster(…)")
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{ED25519, UnparsedPublicKey};

    const SUBSCRIPTION: Uuid = Uuid::from_u128(0x0193_a1b2_c3d4_7e5f_8a9b_0c1d_2e3f_4a5b);

    fn key(bytes: u8, subscription: Uuid, generation: u32) -> SigningKey {
        SigningMaster::new(&[bytes; 32]).key(subscription, generation).unwrap()
    }

    #[test]
    fn each_generation_of_each_subscription_has_a_key_of_its_own_which_is_the_same_on_every_host() {
        let first = key(7, SUBSCRIPTION, 1).public_key();
        // Worked out by Python's cryptography (HKDF, Ed25519PrivateKey): receivers keep it, so that no release may change it.
        assert_eq!(first, "whpk_EVBd6ZISQqXtexeEp7prbtG+BYwIL+8XCu6soio7TDk=");
        for other in [key(7, SUBSCRIPTION, 2), key(7, Uuid::from_u128(1), 1), key(8, SUBSCRIPTION, 1)] {
            assert_ne!(first, other.public_key());
        }
        assert_eq!(format!("{:?}", key(7, SUBSCRIPTION, 1)), "SigningKey(…)");
        assert_eq!(format!("{:?}", SigningMaster::new(&[7; 32])), "SigningMaster(…)");
    }

    #[test]
    fn what_is_signed_is_verified_by_the_public_key_and_not_once_it_is_changed() {
        let key = key(7, SUBSCRIPTION, 1);
        let signature = key.sign("evt_1", 1_763_780_645, "{\"a\":\"Grüße\"}");
        let signature = STANDARD.decode(signature.strip_prefix("v1a,").unwrap()).unwrap();
        let public = STANDARD.decode(key.public_key().strip_prefix("whpk_").unwrap()).unwrap();
        let public = UnparsedPublicKey::new(&ED25519, public);
        let verify = |signed: &str| public.verify(signed.as_bytes(), &signature);
        verify("evt_1.1763780645.{\"a\":\"Grüße\"}").unwrap();
        for changed in
            ["evt_2.1763780645.{\"a\":\"Grüße\"}", "evt_1.1763780646.{\"a\":\"Grüße\"}", "evt_1.1763780645.{}"]
        {
            verify(changed).unwrap_err();
        }
    }
}
