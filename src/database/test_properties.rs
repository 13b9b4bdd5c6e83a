//! What holds for any text in a statement: a function that panics where it does not, for tests and for the fuzz targets
//! (tests/fuzz).

use super::postgres::literal;
use crate::database::mysql::sql;

/// Nothing gets out of its quotes: between them are hexadecimal digits, and they spell the text.
///
/// # Panics
/// Where it does not hold.
pub fn any_text(text: &str) {
    // PostgreSQL's text has no NUL.
    let storable = text.replace('\0', "\u{fffd}");
    assert_eq!(spelt(&literal::text(text), "convert_from(decode('", "','hex'),'UTF8')"), storable);
    assert_eq!(spelt(&literal::optional_text(Some(text)), "convert_from(decode('", "','hex'),'UTF8')"), storable);
    let json = serde_json::to_string(&[text]).expect("strings serialize");
    let stored = spelt(&literal::json(&json), "convert_from(decode('", "','hex'),'UTF8')::jsonb");
    assert_eq!(serde_json::from_str::<[String; 1]>(&stored).expect("JSON"), [storable]);
    // What is no JSON gets no further than to the server's refusal.
    spelt(&literal::json(text), "convert_from(decode('", "','hex'),'UTF8')::jsonb");

    assert_eq!(spelt(&sql::text(text), "_utf8mb4 X'", "'"), text);
    assert_eq!(spelt(&sql::optional_text(Some(text)), "_utf8mb4 X'", "'"), text);
    assert_eq!(spelt(&sql::bytes(text.as_bytes()), "X'", "'"), text);
    assert_eq!(spelt(&literal::bytes(text.as_bytes()), "decode('", "','hex')"), text);
}

/// What the digits between `before` and `after` spell.
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
