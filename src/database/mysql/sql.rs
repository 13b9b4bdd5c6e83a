//! SQL as text: values that cannot leave their quotes, and files cut into statements.
//!
//! The delivery's statements go over the text protocol, several in one batch, because a prepared statement costs a round
//! trip more. The connection allows multiple statements (the crate always does), so a value that got out of its quotes
//! could do anything. None can: every value crosses as a hexadecimal literal, made of the digits 0-9 and a-f alone,
//! whatever the input, the character set or `sql_mode`.

use crate::base::hex;

/// Whether the server takes no writes, as an expression. MariaDB has more than one word for it; where it is a number, as on
/// MySQL, a statement that writes may not compare it with a word (1292).
pub(crate) const READ_ONLY: &str = "CONCAT(@@global.read_only) NOT IN ('0', 'OFF') OR @@global.innodb_read_only";

/// Text, as a literal of character set utf8mb4.
pub fn text(value: &str) -> String {
    format!("_utf8mb4 X'{}'", hex::encode(value.as_bytes()))
}

/// Text, or NULL.
pub(crate) fn optional_text(value: Option<&str>) -> String {
    value.map_or_else(null, text)
}

/// Bytes, as a literal.
pub fn bytes(value: &[u8]) -> String {
    format!("X'{}'", hex::encode(value))
}

/// A number, or NULL.
pub(crate) fn optional_number(value: Option<impl Into<u64>>) -> String {
    value.map_or_else(null, |number| number.into().to_string())
}

/// Literals with commas between them: the inside of an IN list.
pub fn list(literals: impl IntoIterator<Item = String>) -> String {
    literals.into_iter().collect::<Vec<_>>().join(", ")
}

fn null() -> String {
    "NULL".into()
}

/// The statements of a file of ours, one by one, without their semicolons. A statement ends where a line ends with a semicolon.
///
/// This is less than the servers' own command-line clients do (a semicolon inside a quoted text or a comment must not end a line), and
/// all that the files in `sql/mysql` need.
pub(crate) fn statements(file: &str) -> Vec<String> {
    let mut statements = Vec::new();
    let mut statement = String::new();
    for line in file.lines().map(str::trim_end) {
        let start = line.trim_start();
        if statement.is_empty() && (start.is_empty() || start.starts_with("--")) {
            continue;
        }
        match line.strip_suffix(';') {
            Some(last) => {
                statement.push_str(last);
                statements.push(std::mem::take(&mut statement));
            }
            None => {
                statement.push_str(line);
                statement.push('\n');
            }
        }
    }
    // What follows the last semicolon is a statement too: the server, not this function, says what is wrong with it.
    if !statement.trim().is_empty() {
        statements.push(statement);
    }
    statements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_can_leave_its_quotes() {
        let hostile = "'; DROP TABLE copies; -- \\' \" ` \u{0} \u{bf27} 😀";
        let literal = text(hostile);
        let digits = literal.strip_prefix("_utf8mb4 X'").and_then(|rest| rest.strip_suffix('\'')).unwrap();
        assert!(digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)), "{literal}");
        assert_eq!(digits.len(), hostile.len() * 2);
        assert_eq!(text(""), "_utf8mb4 X''");
        assert_eq!(optional_text(None), "NULL");
        assert_eq!(bytes(&[0, 0x27, 0xff]), "X'0027ff'");
    }

    #[test]
    fn a_file_is_cut_at_semicolons_that_end_a_line() {
        let file = "-- first; comment;\n\nCREATE TABLE a (\n  b INT -- of a\n);\nDROP TABLE a;  \n\
                    SELECT ';' AS a\n;\nSELECT 1";
        assert_eq!(
            statements(file),
            ["CREATE TABLE a (\n  b INT -- of a\n)", "DROP TABLE a", "SELECT ';' AS a\n", "SELECT 1\n"]
        );
        assert!(statements("-- nothing;\n\n").is_empty());
    }
}
