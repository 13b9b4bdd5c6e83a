//! Shared pieces of SQL.

/// Whether the server takes no writes, as an expression. MariaDB has more than one word for it. If it is a number, as
/// on MySQL, a statement that writes may not compare it with a word (1292).
pub(crate) const READ_ONLY: &str = "CONCAT(@@global.read_only) NOT IN ('0', 'OFF') OR @@global.innodb_read_only";
