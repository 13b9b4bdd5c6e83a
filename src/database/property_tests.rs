//! Properties of any text in a statement: a function that panics if one is violated, for tests and for the fuzz targets
//! (tests/fuzz).

use super::{Dialect, Value};

/// No text can leave its quotes: between them are hexadecimal digits, and they spell the text; or, on PostgreSQL, the text itself,
/// if nothing in it has a meaning there.
///
/// # Panics
/// If a property is violated.
pub fn any_text(text: &str) {
    let (postgresql, mysql) = (|value| Dialect::Postgresql.literal(value), |value| Dialect::Mysql.literal(value));
    // PostgreSQL's text has no NUL.
    let storable = text.replace('\0', "\u{fffd}");
    assert_eq!(of_postgresql(&postgresql(Value::Text(text)), "::text"), storable);
    let json = serde_json::to_string(&[text]).expect("strings serialize");
    let stored = of_postgresql(&postgresql(Value::Json(&json)), "::jsonb");
    assert_eq!(serde_json::from_str::<[String; 1]>(&stored).expect("JSON"), [storable]);
    // A text that is no JSON is refused by the server, and does no other harm.
    of_postgresql(&postgresql(Value::Json(text)), "::jsonb");

    for value in [Value::Text(text), Value::Json(text)] {
        assert_eq!(spelt(&mysql(value), "_utf8mb4 X'", "'"), text);
        assert_eq!(spelt(&Dialect::Sqlite.literal(value), "CAST(X'", "' AS TEXT)"), text);
    }
    assert_eq!(spelt(&mysql(Value::Bytes(text.as_bytes())), "X'", "'"), text);
    assert_eq!(spelt(&postgresql(Value::Bytes(text.as_bytes())), r"E'\\x", "'::bytea"), text);
}

/// The text that a literal of PostgreSQL spells. `cast` is what follows the text between quotes.
fn of_postgresql(literal: &str, cast: &str) -> String {
    let plain =
        literal.strip_prefix('\'').and_then(|rest| rest.strip_suffix(cast)).and_then(|rest| rest.strip_suffix('\''));
    let Some(plain) = plain else {
        let after = format!("','hex'),'UTF8'){}", cast.trim_start_matches("::text"));
        return spelt(literal, "convert_from(decode('", &after);
    };
    assert!(plain.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && !plain.contains(['\'', '\\', '?']), "{literal}");
    plain.to_owned()
}

/// The text that the digits between `before` and `after` spell.
fn spelt(literal: &str, before: &str, after: &str) -> String {
    let digits = literal.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).expect(literal);
    assert!(digits.len().is_multiple_of(2) && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{literal}");
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
    String::from_utf8((0..digits.len()).step_by(2).map(byte).collect()).expect("UTF-8")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

        #[test]
        fn no_text_gets_out_of_its_quotes(text in "(?s)(.|['\"\\\\u0;$() \r\n\u{0}]){0,40}") {
            super::any_text(&text);
        }
    }
}
