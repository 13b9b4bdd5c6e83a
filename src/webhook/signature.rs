//! The secret of a subscription, and its signatures.
//!
//! Secrets are derived (HKDF, RFC 5869, with SHA-256) from a key that all hosts share, and are not stored. So a person with
//! a copy of the database cannot sign. A new secret is the next generation of a subscription. For [`ROTATION`] the previous
//! secret signs as well, so that the receiver can switch at any time.

use crate::config::Notifications;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::{hkdf, hmac};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;
use uuid::Uuid;

/// The length of the key and of each secret, in bytes. Standard Webhooks requires 24 to 64.
const LENGTH: usize = 32;
/// Separates these secrets from others that may be derived from the same key later.
const PURPOSE: &[u8] = b"maildrop_command webhook secret v1";

/// How long the old secret signs beside the new one.
pub const ROTATION: Duration = Duration::from_hours(24);

/// The key that all secrets are derived from. No output contains it.
#[derive(Clone)]
pub struct MasterKey(hkdf::Prk);

/// The secret of one generation of a subscription. Only [`expose`](Self::expose) shows it.
#[derive(Clone)]
pub struct WebhookSecret([u8; LENGTH]);

impl MasterKey {
    /// The key that the configuration names; `None` if it names none.
    ///
    /// # Errors
    /// The problem of the file, with the configuration key that names it.
    pub(crate) fn configured(settings: &Notifications) -> Result<Option<Self>, String> {
        let Some(path) = &settings.secret_key_file else { return Ok(None) };
        let named = |problem| format!("notifications.secret_key_file: {}: {problem}", path.display());
        Self::read(path).map(Some).map_err(named)
    }

    /// Reads a file of 32 random bytes.
    ///
    /// # Errors
    /// The problem of the file, and the fix, without any of its content.
    pub fn read(path: &Path) -> Result<Self, String> {
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(LENGTH as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| error.to_string())?;
        let wrong = "it has to hold 32 random bytes: head -c 32 /dev/urandom > FILE";
        let bytes = <[u8; LENGTH]>::try_from(bytes).map_err(|_| wrong.to_owned())?;
        Ok(Self::new(&bytes))
    }

    pub fn new(bytes: &[u8; LENGTH]) -> Self {
        Self(hkdf::Salt::new(hkdf::HKDF_SHA256, PURPOSE).extract(bytes))
    }

    /// The secret of this generation of a subscription; the first generation is 1.
    pub fn secret(&self, subscription: Uuid, generation: u32) -> WebhookSecret {
        let mut derived = [0; LENGTH];
        let info = [subscription.as_bytes().as_slice(), &generation.to_be_bytes()];
        let filled = self.0.expand(&info, hkdf::HKDF_SHA256).and_then(|key| key.fill(&mut derived));
        // This cannot fail: ring refuses only an output of another length than the algorithm's.
        debug_assert!(filled.is_ok());
        WebhookSecret(derived)
    }
}

impl WebhookSecret {
    /// The form that receivers get: `whsec_` and base64.
    pub fn expose(&self) -> String {
        format!("whsec_{}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(…)")
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(…)")
    }
}

/// The header `webhook-signature`: each secret signs `id.timestamp.body`. The id contains no dot, so the parts are
/// unambiguous; `timestamp` is that of this try, in seconds since 1970.
pub fn sign(secrets: &[WebhookSecret], id: &str, timestamp: i64, body: &str) -> String {
    let signed = |WebhookSecret(secret): &WebhookSecret| {
        let mut signing = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
        for part in [id, ".", &timestamp.to_string(), ".", body] {
            signing.update(part.as_bytes());
        }
        format!("v1,{}", STANDARD.encode(signing.sign()))
    };
    secrets.iter().map(signed).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::timestamp;
    use hyper::HeaderMap;
    use standardwebhooks::Webhook;

    const SUBSCRIPTION: Uuid = Uuid::from_u128(0x0193_a1b2_c3d4_7e5f_8a9b_0c1d_2e3f_4a5b);
    const BODY: &str = r#"{"type":"message.delivered","data":{"subject":"Grüße"}}"#;

    fn headers(signature: &str, timestamp: i64) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", "evt_1".parse().unwrap());
        headers.insert("webhook-timestamp", timestamp.to_string().parse().unwrap());
        headers.insert("webhook-signature", signature.parse().unwrap());
        headers
    }

    #[test]
    fn each_generation_of_each_subscription_has_a_secret_of_its_own_which_is_the_same_on_every_host() {
        let key = MasterKey::new(&[7; 32]);
        let secret = |subscription, generation| key.secret(subscription, generation).expose();
        let first = secret(SUBSCRIPTION, 1);
        assert_eq!(first, MasterKey::new(&[7; 32]).secret(SUBSCRIPTION, 1).expose());
        // Computed with Python's hmac and hashlib, step by step after RFC 5869. Receivers store the secret, so no release may
        // change it.
        assert_eq!(first, "whsec_X9LuMevsk0VTBXGrEd7m1lVWIM+pjLPSl8gW0xV4Chk=");
        for other in [secret(SUBSCRIPTION, 2), secret(Uuid::from_u128(1), 1)] {
            assert_ne!(first, other);
        }
        assert_ne!(first, MasterKey::new(&[8; 32]).secret(SUBSCRIPTION, 1).expose());
    }

    #[test]
    fn what_is_signed_is_verified_by_standard_webhooks_with_either_secret_of_a_rotation_and_not_once_it_is_changed() {
        let key = MasterKey::new(&[7; 32]);
        let now = timestamp::now() / 1_000_000;
        let secrets = [key.secret(SUBSCRIPTION, 2), key.secret(SUBSCRIPTION, 1)];
        let signature = sign(&secrets, "evt_1", now, BODY);
        for secret in &secrets {
            let receiver = Webhook::new(&secret.expose()).unwrap();
            receiver.verify(BODY.as_bytes(), &headers(&signature, now)).unwrap();
            receiver.verify(BODY.replace("Gr", "gr").as_bytes(), &headers(&signature, now)).unwrap_err();
            receiver.verify(BODY.as_bytes(), &headers(&signature, now - 1)).unwrap_err();
            let mut of_another = headers(&signature, now);
            of_another.insert("webhook-id", "evt_2".parse().unwrap());
            receiver.verify(BODY.as_bytes(), &of_another).unwrap_err();
        }
        let stranger = Webhook::new(&key.secret(SUBSCRIPTION, 3).expose()).unwrap();
        stranger.verify(BODY.as_bytes(), &headers(&signature, now)).unwrap_err();
    }

    #[test]
    fn a_key_is_a_file_of_32_bytes_and_shows_itself_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert!(MasterKey::read(&path).unwrap_err().contains("No such file"));
        for length in [0, 31, 33] {
            std::fs::write(&path, vec![7; length]).unwrap();
            assert!(MasterKey::read(&path).unwrap_err().contains("32 random bytes"), "{length}");
        }
        std::fs::write(&path, [7; 32]).unwrap();
        let key = MasterKey::read(&path).unwrap();
        assert_eq!(format!("{key:?} {:?}", key.secret(SUBSCRIPTION, 1)), "MasterKey(…) WebhookSecret(…)");
    }
}
