//! The account on the mailbox store, in that store's own syntax.

use super::{Answers, Passwords};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::ValueEnum;
use sha2::{Digest, Sha512};

/// The mailbox store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MailboxStore {
    /// Dovecot 2.4, as in Debian 13.
    Dovecot,
    /// Dovecot 2.3, as in Debian 12.
    #[value(name = "dovecot-2.3")]
    Dovecot23,
    Cyrus,
}

const DOVECOT: &str = include_str!("templates/dovecot.conf");

const DOVECOT_23: &str = include_str!("templates/dovecot-2.3.conf");

/// The Dovecot 2.4 instance for deliveries.
const INSTANCE: &str = include_str!("../../../postfix/dovecot-delivery.conf");
const INSTANCE_UNIT: &str = include_str!("../../../postfix/dovecot-delivery.service");

/// The `dovecot_config_version` of that file.
const INSTANCE_VERSION: &str = "dovecot_config_version = 2.4.0\n";

/// The port of that file.
pub(super) const PORT_OF_INSTANCE: u16 = 10_143;

const CYRUS: &str = include_str!("templates/cyrus-imapd.conf");

/// The password as Dovecot stores it: a salted hash. It has 256 random bits, so no list of passwords contains it.
pub(super) fn hash(password: &str, salt: &[u8]) -> String {
    let digest = Sha512::new().chain_update(password).chain_update(salt).finalize();
    format!("{{SSHA512}}{}", STANDARD.encode([digest.as_slice(), salt].concat()))
}

/// What lets the account act only for users whom another passdb knows.
const ONLY_EXISTING: &str = "  # Only for users who exist.\n  result_success = continue\n";

/// In its place if the passwords are in PAM.
const EXISTING_BY_USERDB: &str =
    "  # The users' passdb is PAM, which knows no user without a password. So the userdb decides who exists.\n";

/// The files' paths, purposes and texts.
pub(super) fn files(answers: &Answers, passwords: &Passwords) -> Vec<(&'static str, &'static str, String)> {
    let configuration = match answers.store {
        MailboxStore::Dovecot => DOVECOT,
        MailboxStore::Dovecot23 => DOVECOT_23,
        MailboxStore::Cyrus => {
            return vec![("cyrus/imapd.conf.maildrop", "lines for Cyrus's configuration", CYRUS.into())];
        }
    };
    let is_pam = answers.dovecot.as_ref().is_some_and(|dovecot| dovecot.passwords_are_in_pam);
    let configuration =
        if is_pam { configuration.replace(ONLY_EXISTING, EXISTING_BY_USERDB) } else { configuration.to_owned() };
    let addresses: Vec<String> = answers.mail_hosts.iter().map(ToString::to_string).collect();
    let account = format!(
        "maildrop:{}::::::allow_nets={}\n",
        hash(passwords.imap.expose(), &passwords.salt),
        addresses.join(",")
    );
    let mut files = vec![
        ("dovecot/00-maildrop.conf", "Dovecot's configuration of the account", configuration),
        ("dovecot/maildrop-masters", "the account, and from where it may log in", account),
    ];
    if let Some(version) = answers.version_of_an_instance() {
        let instance = INSTANCE.replace(INSTANCE_VERSION, &format!("dovecot_config_version = {version}\n"));
        files.push((
            "dovecot/dovecot-delivery.conf",
            "a Dovecot instance for deliveries, which keeps its processes",
            instance,
        ));
        files.push(("dovecot/dovecot-delivery.service", "the unit of that instance", INSTANCE_UNIT.into()));
    }
    files
}
