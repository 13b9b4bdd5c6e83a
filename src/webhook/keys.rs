//! What a site signs with: the key that secrets are derived from and, where there is one, the key that signing keys are derived from.

use super::secret::{MasterKey, WebhookSecret, read_key, sign};
use super::signing_key::{SigningKey, SigningMaster};
use crate::config::{KeyFile, Notifications};
use std::path::Path;
use uuid::Uuid;

/// Both, as they were read from their files. They never show themselves.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    secrets: MasterKey,
    signing: Option<SigningMaster>,
}

/// All that signs one request.
#[derive(Clone, Debug)]
pub(crate) struct Signers {
    secrets: Vec<WebhookSecret>,
    keys: Vec<SigningKey>,
}

impl Keys {
    /// Those that a configuration names; `None` where nobody is told anything.
    ///
    /// # Errors
    /// What is wrong with which of the files.
    pub(crate) fn of(settings: &Notifications) -> Result<Option<Self>, String> {
        let Some(secret) = settings.secret_key() else { return Ok(None) };
        let secrets = read(secret, MasterKey::read)?;
        let signing = settings.signing_key().map(|key| read(key, read_key)).transpose()?;
        Ok(Some(Self { secrets, signing: signing.map(|bytes| SigningMaster::new(&bytes)) }))
    }

    /// The secret of this generation of a subscription, the first of which is 1.
    pub(crate) fn secret(&self, subscription: Uuid, generation: u32) -> WebhookSecret {
        self.secrets.secret(subscription, generation)
    }

    /// The public key of the same, for those who verify `v1a`; `None` where nothing is signed by it.
    pub(crate) fn public_key(&self, subscription: Uuid, generation: u32) -> Option<String> {
        Some(self.signing.as_ref()?.key(subscription, generation)?.public_key())
    }

    /// What signs for these generations.
    pub(crate) fn signers(&self, subscription: Uuid, generations: &[u32]) -> Signers {
        let secrets = generations.iter().map(|generation| self.secret(subscription, *generation)).collect();
        let keys = self.signing.iter().flat_map(|signing| {
            generations.iter().filter_map(move |generation| signing.key(subscription, *generation))
        });
        Signers { secrets, keys: keys.collect() }
    }
}

/// A key, by what reads its file; or what is wrong with it, with the key of the configuration that names it.
fn read<T>(file: KeyFile, by: impl FnOnce(&Path) -> Result<T, String>) -> Result<T, String> {
    let KeyFile { named_by, path } = file;
    let path = path.map_err(|problem| format!("{named_by}: {problem}"))?;
    by(&path).map_err(|problem| format!("{named_by}: {}: {problem}", path.display()))
}

impl Signers {
    /// The header `webhook-signature`: by each of the secrets, and by each of the keys.
    pub(crate) fn sign(&self, id: &str, timestamp: i64, body: &str) -> String {
        let mut signatures = vec![sign(&self.secrets, id, timestamp, body)];
        signatures.extend(self.keys.iter().map(|key| key.sign(id, timestamp, body)));
        signatures.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// A delivery reads the file that names the keys, too, and has no $CREDENTIALS_DIRECTORY.
    #[test]
    fn a_key_may_be_a_credential_and_who_reads_none_need_not_know_where_it_is() {
        let text = r#"
            [database]
            engine = "postgresql"
            host = "db.example.com"
            database = "maildrop"
            user = "maildrop"
            [imap]
            host = "imap.example.com"
            user = "service"
            password_file = "/etc/imap.password"
            [notifications]
            secret_key_credential = "a"
            signing_key_credential = "b"
        "#;
        let read = |credentials| Config::parse(Path::new("c"), text, credentials).unwrap().notifications;
        let nowhere = read(None);
        assert!(nowhere.has_notifier());
        let problem = Keys::of(&nowhere).unwrap_err();
        assert!(
            problem.starts_with("notifications.secret_key_credential: ") && problem.contains("CREDENTIALS_DIRECTORY")
        );

        let folder = tempfile::tempdir().unwrap();
        let there = read(Some(folder.path()));
        std::fs::write(folder.path().join("a"), [1; 32]).unwrap();
        let problem = Keys::of(&there).unwrap_err();
        assert!(problem.starts_with("notifications.signing_key_credential: ") && problem.contains("/b: "), "{problem}");
        std::fs::write(folder.path().join("b"), [2; 32]).unwrap();
        let keys = Keys::of(&there).unwrap().unwrap();

        // Each generation signs by its secret and by its key, which are told to receivers.
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let signatures =
            |subscription, generations: &[u32]| keys.signers(subscription, generations).sign("evt_1", 1, "{}");
        let (first, both) = (signatures(one, &[1]), signatures(one, &[2, 1]));
        let kinds =
            |text: &str| text.split(' ').map(|one| one.split(',').next().unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(
            (kinds(&first), kinds(&both)),
            (vec!["v1".into(), "v1a".into()], vec!["v1".into(), "v1".into(), "v1a".into(), "v1a".into()])
        );
        assert!(first.split(' ').all(|signature| both.contains(signature)));
        assert_ne!(first, signatures(other, &[1]));
        assert_ne!(keys.public_key(one, 1).unwrap(), keys.public_key(one, 2).unwrap());
        assert!(keys.public_key(one, 1).unwrap().starts_with("whpk_"));
        assert_eq!(keys.secret(one, 1).expose(), MasterKey::new(&[1; 32]).secret(one, 1).expose());
        let without = Keys { signing: None, ..keys.clone() };
        assert_eq!(without.public_key(one, 1), None);
        assert_eq!(kinds(&without.signers(one, &[1]).sign("evt_1", 1, "{}")), ["v1"]);
    }
}
