//! The settings of the Dovecot on this machine, as doveconf(1) prints them.

use crate::base::deadline::Deadline;
use crate::base::program_output::output_of;

/// The second one for users without /usr/bin in PATH.
const DOVECONF: [&str; 2] = ["doveconf", "/usr/bin/doveconf"];

/// Where postfix/dovecot-delivery.conf is installed.
const FOR_DELIVERIES: &str = "/etc/dovecot/dovecot-delivery.conf";

/// Dovecot 2.4 has the third of these settings, and 2.3 the fourth. For a missing one, doveconf prints an empty line or none.
const OF_SESSIONS: [&str; 4] = [
    "service/imap-login/inet_listener/imap/port",
    "service/imap-login/inet_listener/imaps/port",
    "service/imap/restart_request_count",
    "service/imap/service_count",
];

/// How many sessions one IMAP process serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionsOfProcess {
    One,
    Many,
}

/// How many sessions a process of the instance at this port serves. `None` if neither instance listens there, or if both seem to.
pub(crate) fn sessions_of_a_process(port: u16, deadline: Deadline) -> Option<SessionsOfProcess> {
    let ask = |configuration: &[&str]| {
        let arguments = [configuration, &["-h"], &OF_SESSIONS].concat();
        output_of(&DOVECONF, &arguments, deadline).and_then(|output| sessions_at(port, &output))
    };
    match (ask(&[]), ask(&["-c", FOR_DELIVERIES])) {
        (Some(sessions), None) | (None, Some(sessions)) => Some(sessions),
        (Some(_), Some(_)) | (None, None) => None,
    }
}

fn sessions_at(port: u16, output: &str) -> Option<SessionsOfProcess> {
    let values: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let [imap, imaps, sessions] = values[..] else { return None };
    let port = port.to_string();
    if imap != port && imaps != port {
        return None;
    }
    match sessions {
        "1" => Some(SessionsOfProcess::One),
        // Dovecot 2.3 prints 0, and 2.4 "unlimited".
        "unlimited" => Some(SessionsOfProcess::Many),
        count => count.parse::<u32>().ok().map(|_| SessionsOfProcess::Many),
    }
}

/// The owner of the mailboxes' files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MailUid {
    /// One uid, or user of the system, owns all mailboxes.
    One(String),
    /// Each mailbox belongs to a user of the system.
    OfEachUser,
    /// The settings do not say, or there is no Dovecot on this machine.
    Unknown,
}

/// The Dovecot settings that quickstart needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DovecotHere {
    pub mail_uid: MailUid,
    /// `dovecot_config_version`, which all files of one configuration must agree on. Dovecot 2.3 has none.
    pub config_version: Option<String>,
    /// Whether a passdb is PAM. It cannot look up a user without a password, as a master user's login does with
    /// `result_success = continue` (Dovecot manual, "Master Users").
    pub passwords_are_in_pam: bool,
}

/// The settings that doveconf prints; `None` if there is no doveconf.
pub(crate) fn dovecot_here(deadline: Deadline) -> Option<DovecotHere> {
    let ask = |arguments: &[&str]| output_of(&DOVECONF, arguments, deadline);
    let userdbs = ask(&["-n", "userdb"]).filter(|output| !output.trim().is_empty())?;
    let mail_uid = ask(&["-h", "mail_uid"]).unwrap_or_default();
    // doveconf prints this setting only among all others.
    let config_version = ask(&["-n"]).and_then(|settings| config_version_of(&settings));
    let mail_uid = mail_uid_of(&userdbs, mail_uid.trim());
    let passdbs = ask(&["-n", "passdb"]).unwrap_or_default();
    let passwords_are_in_pam = sections(&passdbs, "passdb ").any(|(driver, _)| driver == "pam");
    Some(DovecotHere { mail_uid, config_version, passwords_are_in_pam })
}

/// The sections that begin with this word and a space in doveconf's output: the driver of each, and its lines. In Dovecot 2.4 a
/// section's own name is the driver if no driver is set.
fn sections<'a>(output: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    output.split(name).skip(1).map(|section| {
        let own_name = section.split('{').next().unwrap_or_default().trim();
        (value_in(section, "driver").unwrap_or(own_name), section)
    })
}

/// The value of `key = value` on a line of its own.
fn value_in<'a>(section: &'a str, key: &str) -> Option<&'a str> {
    section.lines().find_map(|line| Some(line.trim().strip_prefix(key)?.trim_start().strip_prefix('=')?.trim()))
}

fn config_version_of(settings: &str) -> Option<String> {
    settings.lines().find_map(|line| Some(line.strip_prefix("dovecot_config_version = ")?.trim().to_owned()))
}

fn mail_uid_of(userdbs: &str, mail_uid: &str) -> MailUid {
    let mut uids = Vec::new();
    for (driver, userdb) in sections(userdbs, "userdb ") {
        match driver {
            "static" => {
                let arguments = value_in(userdb, "args").unwrap_or_default();
                let of_arguments = || arguments.split_whitespace().find_map(|word| word.strip_prefix("uid="));
                uids.push(value_in(userdb, "uid").or_else(of_arguments).unwrap_or(mail_uid).to_owned());
            }
            "passwd" => return MailUid::OfEachUser,
            _ => return MailUid::Unknown,
        }
    }
    match uids.split_first() {
        Some((uid, rest)) if !uid.is_empty() && !uid.contains('%') && rest.iter().all(|other| other == uid) => {
            MailUid::One(uid.clone())
        }
        _ => MailUid::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_serves_as_many_sessions_as_the_instance_at_this_port_says() {
        use SessionsOfProcess::{Many, One};
        for (output, at_143, at_10143) in [
            ("143\n993\n1\n\n", Some(One), None),
            ("143\n993\n1\n", Some(One), None),
            ("143\n993\n0\n", Some(Many), None),
            ("143\n993\nunlimited\n\n", Some(Many), None),
            ("10143\n0\n1000\n\n", None, Some(Many)),
            ("0\n143\n1000\n", Some(Many), None),
            ("143\n993\nsome\n", None, None),
            ("143\n1\n", None, None),
            ("", None, None),
        ] {
            assert_eq!([sessions_at(143, output), sessions_at(10_143, output)], [at_143, at_10143], "{output:?}");
        }
    }

    #[test]
    fn the_version_of_the_configuration_is_that_of_2_4_and_2_3_has_none() {
        let of_24 = "# 2.4.1-4 (7d8c0e5759)\ndovecot_config_version = 2.4.0\ndovecot_storage_version = 2.4.1\n";
        assert_eq!(config_version_of(of_24).as_deref(), Some("2.4.0"));
        assert_eq!(
            config_version_of("# 2.3.19.1 (9b53102964): /etc/dovecot/dovecot.conf\nmail_plugins = quota\n"),
            None
        );
    }

    #[test]
    fn a_passdb_is_known_by_its_driver_or_in_2_4_by_its_name() {
        let of_23 = "passdb {\n  args = /etc/dovecot/users\n  driver = passwd-file\n}\npassdb {\n  driver = pam\n}\n";
        let of_24 = "passdb pam {\n}\npassdb others {\n  driver = passwd-file\n}\n";
        for (output, drivers) in [(of_23, ["passwd-file", "pam"]), (of_24, ["pam", "passwd-file"])] {
            assert_eq!(sections(output, "passdb ").map(|(driver, _)| driver).collect::<Vec<_>>(), drivers);
        }
    }

    #[test]
    fn one_uid_is_known_only_where_every_userdb_is_static_and_says_the_same() {
        let one = MailUid::One("vmail".into());
        let of_23 = "userdb {\n  args = uid=vmail gid=vmail home=/srv/%u\n  driver = static\n}\n";
        let of_24 = "userdb static {\n  fields {\n    gid = vmail\n    home = /srv/%{user}\n    uid = vmail\n  }\n}\n";
        let without = "userdb static {\n  fields {\n    home = /srv/%{user}\n  }\n}\n";
        for (userdbs, mail_uid, expected) in [
            (of_23, "", &one),
            (of_24, "", &one),
            (of_24, "other", &one),
            (without, "vmail", &one),
            (&format!("{of_24}{without}"), "vmail", &one),
            (&format!("{of_24}{without}"), "other", &MailUid::Unknown),
            (without, "", &MailUid::Unknown),
            (&of_24.replace("uid = vmail", "uid = %{user}"), "", &MailUid::Unknown),
            ("userdb passwd {\n}\n", "vmail", &MailUid::OfEachUser),
            ("userdb people {\n  driver = passwd\n}\n", "", &MailUid::OfEachUser),
            ("userdb sql {\n  query = SELECT home FROM users\n}\n", "vmail", &MailUid::Unknown),
            ("userdb {\n  args = /etc/dovecot/users\n  driver = passwd-file\n}\n", "vmail", &MailUid::Unknown),
        ] {
            assert_eq!(&mail_uid_of(userdbs, mail_uid), expected, "{userdbs}");
        }
    }
}
