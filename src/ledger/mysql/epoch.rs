//! The epoch of MySQL and MariaDB is the identity of the server. A server that takes over has another identity, and so has one to
//! which a backup is restored.

use crate::database::Dialect;

/// The present epoch, as an SQL expression. MySQL's servers have UUIDs. MariaDB's servers differ in their host names and in
/// `server_id`, which must be unique in a replication.
fn present(product: Dialect) -> &'static str {
    match product {
        Dialect::Mariadb => "CONVERT(CONCAT(@@hostname, '/', @@server_id) USING utf8mb4) COLLATE utf8mb4_bin",
        _ => "CONVERT(@@server_uuid USING utf8mb4) COLLATE utf8mb4_bin",
    }
}

/// Reads the present epoch, the last recorded one, and the age of the latter.
pub(super) fn asked(product: Dialect) -> String {
    let last = |what: &str| format!("(SELECT {what} FROM epochs ORDER BY number DESC LIMIT 1)");
    let age = last(&product.seconds_between("since", product.now()));
    format!("SELECT {}, {}, {age}", present(product), last("epoch"))
}

/// Records the present epoch, unless it is the last recorded one.
pub(super) fn begin(product: Dialect) -> String {
    format!(
        "INSERT INTO epochs (epoch, since) SELECT t.this_one, CASE WHEN t.last_one IS NOT NULL THEN UTC_TIMESTAMP(6) END \
         FROM (SELECT {} AS this_one, (SELECT epoch FROM epochs ORDER BY number DESC LIMIT 1) AS last_one) t \
         WHERE t.last_one IS NULL OR t.last_one <> t.this_one",
        present(product)
    )
}
