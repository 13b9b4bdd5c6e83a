//! Shared pieces of SQL.

/// Whether the server takes no writes, as an expression. MariaDB's `read_only` has more values than 0 and 1. MySQL's is a
/// number, which a statement that writes must not compare with a word (error 1292); hence CONCAT.
pub(crate) const READ_ONLY: &str = "CONCAT(@@global.read_only) NOT IN ('0', 'OFF') OR @@global.innodb_read_only";
