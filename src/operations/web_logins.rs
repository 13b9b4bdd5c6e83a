//! Logins of the web UI: a link that is valid once, and the session that it starts.

use super::operations_log::{OperationResult, logged, write_down};
use super::tokens;
use crate::database::{DatabaseError, DatabaseFailure};
use crate::ledger::Database;
use crate::ledger::operations_log::{Actor, Operation};
use crate::ledger::web_sessions::{self, WebRole};
use crate::site::Site;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// How long a link is valid.
pub(crate) const LINK_LASTS: Duration = Duration::from_mins(10);
/// Where the web UI of a directory is, unless another port is chosen.
pub(crate) const EMBEDDED_ORIGIN: &str = "http://127.0.0.1:8025";
/// The longest name, in characters.
const LONGEST_NAME: usize = 64;

/// A random text that nobody can guess.
fn token() -> Result<String, DatabaseError> {
    tokens::random_text()
        .map_err(|error| DatabaseError::new(DatabaseFailure::Local, "making a login", error.to_string()))
}

/// The digest that the ledger stores of a token.
pub(crate) fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Checks the name of a login. Returns the name, or the problem with it.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let fits = (1..=LONGEST_NAME).contains(&text.chars().count());
    if fits && text.chars().all(|c| c.is_alphanumeric() || "-._@+".contains(c)) {
        Ok(text.to_owned())
    } else {
        Err(format!("write up to {LONGEST_NAME} letters, digits and -._@+"))
    }
}

/// Creates a link that logs `name` in, once. `origin` is the web UI's address for browsers. The token is in the fragment, which
/// browsers do not send, so no proxy logs it.
pub(crate) fn link(
    database: &mut dyn Database,
    by: Actor<'_>,
    origin: &str,
    name: &str,
    role: WebRole,
) -> Result<String, DatabaseError> {
    let token = token()?;
    let make =
        |database: &mut dyn Database| web_sessions::make_login(database, &digest(&token), name, role, LINK_LASTS);
    logged(database, by, Operation::MadeLogin, Some(name), make, |()| OperationResult::to(role.as_str()))?;
    Ok(format!("{origin}/login#{token}"))
}

/// The command that creates a link for the web UI at `origin`.
pub(crate) fn command_for_link(site: &Site, origin: &str, name: &str, role: &str) -> String {
    let is_elsewhere = site.config().is_none() && origin != EMBEDDED_ORIGIN;
    let url = if is_elsewhere { format!(" --url {origin}") } else { String::new() };
    format!("maildrop_command web login{}{url} --name {name} --role {role}", site.options())
}

/// Ends the session with this id, as people see it; `false` if there is none. If the operations log cannot be written, the
/// session still ends.
///
/// # Errors
/// If the database fails.
pub(crate) fn end(database: &mut dyn Database, by: Actor<'_>, id: &str) -> Result<bool, DatabaseError> {
    let ended = web_sessions::end_named(database, id)?;
    if ended {
        write_down(database, by, Operation::EndedLogin, id, "ended");
    }
    Ok(ended)
}

/// A person who has just logged in.
pub(crate) struct LoggedIn {
    pub(crate) name: String,
    pub(crate) role: WebRole,
    /// The token that the browser sends from now on.
    pub(crate) token: String,
}

/// The name and role that a link's token would log in; `None` if the token is invalid or expired.
pub(crate) fn look(database: &mut dyn Database, link: &str) -> Result<Option<(String, WebRole)>, DatabaseError> {
    web_sessions::login(database, &digest(link.trim()))
}

/// Logs in with a link's token, and ends the browser's earlier session. `None` if the token is invalid or expired.
pub(crate) fn log_in(
    database: &mut dyn Database,
    link: &str,
    old: Option<&[u8; 32]>,
) -> Result<Option<LoggedIn>, DatabaseError> {
    let token = token()?;
    let found = web_sessions::redeem(database, &digest(link.trim()), &digest(&token))?;
    if let Some(old) = old.filter(|_| found.is_some()) {
        web_sessions::end(database, old)?;
    }
    Ok(found.map(|(name, role)| LoggedIn { name, role, token }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::database::{Client, Tables, Value};
    use crate::ledger::web_sessions::Lifetimes;

    const BY: Actor<'_> = Actor { name: "root", interface: "command line", role: None, host: "mx1" };

    #[test]
    fn a_link_is_good_once_and_a_login_ends_by_itself() {
        let directory = tempfile::tempdir().unwrap();
        let client = Client { host: "mx1".into(), pid: 1, queue_id: None };
        let deadline = Deadline::after(Duration::from_mins(2));
        let mut database = crate::ledger::schema::open_embedded(directory.path(), &client, deadline).unwrap();
        let database = &mut database;
        let lifetimes = Lifetimes::of(Duration::from_hours(12));
        let link = link(database, BY, "http://127.0.0.1:8025", "anna", WebRole::Reader).unwrap();
        let (page, token) = link.split_once('#').unwrap();
        assert_eq!((page, token.len()), ("http://127.0.0.1:8025/login", 43));
        assert!(log_in(database, "nonsense", None).unwrap().is_none());
        let anna = log_in(database, &format!(" {token}\n"), None).unwrap().unwrap();
        assert_eq!((anna.name.as_str(), anna.role), ("anna", WebRole::Reader));
        assert!(log_in(database, token, None).unwrap().is_none(), "it was good once");
        // Neither token is in the ledger.
        for table in ["web_logins", "web_sessions"] {
            let rows = database.select("looking", &format!("SELECT * FROM {table}"), &[]);
            assert!(rows.is_err() || !format!("{rows:?}").contains(token));
        }
        let is_in = |database: &mut dyn Database| {
            web_sessions::session(database, &digest(&anna.token), lifetimes).unwrap().is_some()
        };
        assert!(is_in(database));
        let mut back = |column: &str, by: Duration| {
            let by = Value::Integer(i64::try_from(by.as_micros()).unwrap());
            let sql = format!("UPDATE web_sessions SET {column} = {column} - ?");
            assert_eq!(database.change("turning the clock", &sql, &[by]).unwrap(), 1);
        };
        back("last_seen_at", lifetimes.idle - Duration::from_mins(5));
        assert!(is_in(database), "it is younger than twelve hours, and begins again");
        assert!(is_in(database));
        let mut back = |column: &str, by: Duration| {
            let by = Value::Integer(i64::try_from(by.as_micros()).unwrap());
            let sql = format!("UPDATE web_sessions SET {column} = {column} - ?");
            assert_eq!(database.change("turning the clock", &sql, &[by]).unwrap(), 1);
        };
        back("created_at", lifetimes.longest + Duration::from_secs(1));
        // Since then no request has used that cookie. Creating the next link removes the session.
        super::link(database, BY, "", "boris", WebRole::Viewer).unwrap();
        let left = database.select("looking", "SELECT count(*) FROM web_sessions", &[]).unwrap();
        assert_eq!(left[0].text(0), Some("0"));
        assert!(!is_in(database), "seven days are over");
    }

    #[test]
    fn a_link_is_good_for_ten_minutes() {
        let directory = tempfile::tempdir().unwrap();
        let client = Client { host: "mx1".into(), pid: 1, queue_id: None };
        let deadline = Deadline::after(Duration::from_mins(2));
        let mut database = crate::ledger::schema::open_embedded(directory.path(), &client, deadline).unwrap();
        let link = link(&mut database, BY, "", "anna", WebRole::Viewer).unwrap();
        let ten_minutes = [Value::Integer(600_000_000)];
        database
            .change("turning the clock", "UPDATE web_logins SET expires_at = expires_at - ?", &ten_minutes)
            .unwrap();
        assert!(log_in(&mut database, link.split_once('#').unwrap().1, None).unwrap().is_none());
    }

    #[test]
    fn a_name_is_one_that_a_person_can_read() {
        for good in ["anna", "anna.b@example.com", "Ünal", "x".repeat(64).as_str()] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        for wrong in ["", "anna b", "<b>", "\u{202e}anna", "x".repeat(65).as_str()] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }
}
