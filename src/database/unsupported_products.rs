//! Products that speak the protocol of PostgreSQL or of MySQL, and have other locks, or none (docs/failover-reference.md,
//! "Unsupported databases"). Most of them name themselves when a session is opened, so detecting them takes no query.

use super::{DatabaseError, DatabaseFailure};

/// Words in the text of `version()`, with the product; YugabyteDB's is also in `server_version`.
const OF_POSTGRESQL: [(&str, &str); 3] =
    [("CockroachDB", "CockroachDB"), ("-YB-", "YugabyteDB"), ("Redshift", "Amazon Redshift")];

/// Words in the text of MySQL's `VERSION()`.
const OF_MYSQL: [&str; 2] = ["Vitess", "TiDB"];

/// The product, by the text of `version()`; `None` if it is PostgreSQL itself.
pub(crate) fn of_postgresql(version: &str) -> Option<&'static str> {
    OF_POSTGRESQL.iter().find(|(word, _)| version.contains(word)).map(|(_, name)| *name)
}

/// The product, by the parameters that a server reports when it greets us.
pub(super) fn detect_from_parameters<'a>(parameter: impl Fn(&str) -> Option<&'a str>) -> Option<&'static str> {
    let version = parameter("server_version").unwrap_or_default();
    match parameter("crdb_version") {
        Some(_) => Some("CockroachDB"),
        // Redshift reports this version. PostgreSQL's own 8.0.2 is from 2005.
        None if version.starts_with("8.0.2") => Some("Amazon Redshift"),
        None => of_postgresql(version),
    }
}

/// The product, by the text of `VERSION()`; `None` if it is MySQL or MariaDB.
pub(super) fn detect_mysql_fork(version: &str) -> Option<&'static str> {
    OF_MYSQL.iter().find(|name| version.contains(**name)).copied()
}

/// The error for a session with such a product: nothing is delivered there.
pub(super) fn refused(doing: &str, product: &str, instead: &str) -> DatabaseError {
    let detail = format!(
        "the server is {product}, and whether its locks exclude as deliveries need it is not known: use {instead} itself \
         (docs/failover-reference.md, \"Unsupported databases\")"
    );
    DatabaseError::new(DatabaseFailure::Unsupported, doing, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_speaks_the_protocol_is_known_by_its_greeting() {
        let greets = |version: &'static str, more: Option<&'static str>| {
            detect_from_parameters(move |name| match name {
                "server_version" => Some(version),
                "crdb_version" => more,
                _ => None,
            })
        };
        assert_eq!(greets("15.12-YB-2025.1.0.0-b0", None), Some("YugabyteDB"));
        assert_eq!(greets("13.0.0", Some("CockroachDB CCL v26.1.0")), Some("CockroachDB"));
        assert_eq!(greets("8.0.2", None), Some("Amazon Redshift"));
        for version in ["17.11 (Debian 17.11-0+deb13u1)", "18beta2", "15.8"] {
            assert_eq!(greets(version, None), None, "{version}");
        }
        assert_eq!(detect_mysql_fork("8.0.11-TiDB-v8.1.0"), Some("TiDB"));
        assert_eq!(detect_mysql_fork("8.0.30-Vitess"), Some("Vitess"));
        for version in ["9.7.4-2", "11.8.6-MariaDB-0+deb13u1 from Debian", "8.0.42-33"] {
            assert_eq!(detect_mysql_fork(version), None, "{version}");
        }
    }
}
