//! What holds for any text that is to be a configuration file.

use maildrop_command::config::Config;
use std::path::Path;
use std::time::Duration;

const FILE: &str = "/etc/maildrop/config.toml";
/// Of letters that nothing else in the text has in this order.
const PASSWORD: &str = "gEh3im-xYzZy-gEh3im";

/// It is read and makes sense, or what is wrong with it is said in one line that names the place; and a password that
/// somebody wrote into it is never repeated.
pub fn holds(text: &str) {
    match read(text) {
        Ok(config) => makes_sense(&config),
        Err(error) => assert!(error.starts_with(FILE), "{error:?}"),
    }
    for line in ["password = \"PASSWORD\"", "[imap]\npassword = \"PASSWORD\"", "password = PASSWORD"] {
        let line = line.replace("PASSWORD", PASSWORD);
        for with_password in [format!("{text}\n{line}\n"), format!("{line}\n{text}")] {
            // A password that is the value of another key is that key's value, and may be printed.
            if let Ok(table) = with_password.parse::<toml::Table>()
                && is_reported_elsewhere(&toml::Value::Table(table))
            {
                continue;
            }
            let error_text = read(&with_password).expect_err("there is no key for a password");
            assert!(!error_text.contains(PASSWORD), "{error_text:?}");
        }
    }
}

/// Reads it; what is wrong with it is one line of text that names a line of the file, or a key.
fn read(text: &str) -> Result<Config, String> {
    Config::parse(Path::new(FILE), text).map_err(|error| {
        let error_text = error.to_string();
        assert!(!error_text.contains(char::is_control), "{error_text:?}");
        let is_key = |word: &str| word.split('.').all(|part| !part.is_empty());
        let key = error.problem.split_once(": ").is_some_and(|(key, _)| is_key(key));
        assert!(error.line.is_some_and(|line| line >= 1 && line <= text.lines().count() + 1) || key, "{error_text:?}");
        error_text
    })
}

fn makes_sense(config: &Config) {
    let (deadline, settle) = (config.delivery.deadline, config.imap.append_grace);
    assert!(deadline > Duration::ZERO && deadline < config.delivery.postfix_time_limit && deadline < settle);
    let patience = config.delivery.postfix_queue_lifetime;
    assert!(settle <= patience / 4 && config.policy().sent_retry_for <= patience);
    assert!(!config.lock.namespace.is_empty());
    assert!(!config.account().unwrap().user.trim().is_empty() && !config.database.database.trim().is_empty());
    assert!(!config.imap.user.trim().is_empty());
    assert!(config.imap.password.path().is_absolute());
    let passwords = config.database.accounts.values().filter_map(|account| account.password.as_ref());
    assert!(passwords.into_iter().all(|password| password.path().is_absolute()));
    assert!(!(config.imap.act_for_user && config.imap.login_user.is_some()));
    let policy = config.policy();
    assert!(policy.lock_wait < deadline && config.lock.wait.is_none_or(|wait| wait == policy.lock_wait));
    assert_eq!(policy.append_grace, settle);
    let _ = config.log_settings();
}

/// Whether the password stands anywhere but under a key `password`.
fn is_reported_elsewhere(value: &toml::Value) -> bool {
    match value {
        toml::Value::Table(table) => table.iter().any(|(key, value)| {
            key.contains(PASSWORD)
                || !(key == "password" && value.as_str() == Some(PASSWORD)) && is_reported_elsewhere(value)
        }),
        toml::Value::Array(values) => values.iter().any(is_reported_elsewhere),
        toml::Value::String(text) => text.contains(PASSWORD),
        _ => false,
    }
}
