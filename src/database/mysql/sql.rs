//! Pieces of SQL as text.

/// Whether the server takes no writes, as an expression. MariaDB has more than one word for it; where it is a number, as on
/// MySQL, a statement that writes may not compare it with a word (1292).
pub(crate) const READ_ONLY: &str = "CONCAT(@@global.read_only) NOT IN ('0', 'OFF') OR @@global.innodb_read_only";

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
