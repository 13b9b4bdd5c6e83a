//! Values in the text of a batch. Whatever a message holds, what reaches the text is digits: there is no quoting to get
//! wrong, and no setting of the server (`standard_conforming_strings`, `backslash_quote`) that changes its meaning.

use crate::base::hex;
use std::borrow::Cow;
use uuid::Uuid;

pub fn bytes(bytes: &[u8]) -> String {
    format!("decode('{}','hex')", hex::encode(bytes))
}

pub fn text(text: &str) -> String {
    format!("convert_from({},'UTF8')", bytes(stored(text).as_bytes()))
}

/// Text, or NULL.
pub(crate) fn optional_text(value: Option<&str>) -> String {
    value.map_or_else(null, text)
}

/// A number, or NULL.
pub(crate) fn optional_number<N: Into<i64>>(value: Option<N>) -> String {
    value.map_or_else(null, |number| number.into().to_string())
}

/// A UUID: 32 digits.
pub fn uuid(value: Uuid) -> String {
    format!("'{}'::uuid", value.simple())
}

/// A moment, in seconds since 1970; NULL beyond the years 1 to 9999, which some of those who read the table (and the
/// SQL standard) do not have. A Date field can claim any year.
pub(crate) fn moment(seconds: Option<i64>) -> String {
    const YEAR_1: i64 = -62_135_596_800;
    const YEAR_10000: i64 = 253_402_300_800;
    seconds
        .filter(|seconds| (YEAR_1..YEAR_10000).contains(seconds))
        .map_or_else(null, |seconds| format!("to_timestamp({seconds})"))
}

/// JSON. `jsonb` refuses `\u0000`, for there is no such character in its text; the replacement character stands in.
pub(crate) fn json(json: &str) -> String {
    format!("{}::jsonb", text(&without_nul_escapes(json)))
}

pub(crate) fn null() -> String {
    "NULL".into()
}

/// Text as the server can store it: it has no NUL character (SQLSTATE 22021). None should come; the replacement
/// character stands in, lest a message be deferred for good.
pub(crate) fn stored(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{FFFD}").into() } else { text.into() }
}

/// JSON without the escape for NUL. `\\u0000` is a backslash and five characters, and stays.
fn without_nul_escapes(json: &str) -> Cow<'_, str> {
    const NUL: &str = r"\u0000";
    if !json.contains(NUL) {
        return json.into();
    }
    let mut clean = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(backslash) = rest.find('\\') {
        let (before, escape) = rest.split_at(backslash);
        clean.push_str(before);
        if let Some(after) = escape.strip_prefix(NUL) {
            clean.push_str(r"\ufffd");
            rest = after;
        } else {
            // The backslash and what it escapes, which may be a backslash.
            let end = escape.char_indices().nth(2).map_or(escape.len(), |(end, _)| end);
            let (pair, after) = escape.split_at(end);
            clean.push_str(pair);
            rest = after;
        }
    }
    clean.push_str(rest);
    clean.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_digits_gets_between_the_quotes() {
        let hostile = "'); DROP TABLE copies; --\\' \u{1F600}\0$$";
        let literal = text(hostile);
        let digits = literal.strip_prefix("convert_from(decode('").unwrap().strip_suffix("','hex'),'UTF8')").unwrap();
        assert!(digits.bytes().all(|b| b.is_ascii_hexdigit()), "{literal}");
    }

    #[test]
    fn only_the_escape_for_nul_is_replaced_in_json() {
        for (json, clean) in [
            (r#"["a"]"#, r#"["a"]"#),
            (r#"["\u0000"]"#, r#"["\ufffd"]"#),
            (r#"["\\u0000"]"#, r#"["\\u0000"]"#),
            (r#"["\\\u0000"]"#, r#"["\\\ufffd"]"#),
            (r#"["\u0000é\n\u0000x"]"#, r#"["\ufffdé\n\ufffdx"]"#),
            (r"\u0000\", r"\ufffd\"),
        ] {
            assert_eq!(without_nul_escapes(json), clean);
        }
    }

    #[test]
    fn a_moment_outside_the_calendar_is_not_known() {
        assert_eq!(moment(Some(0)), "to_timestamp(0)");
        assert_eq!(moment(None), "NULL");
        for absurd in [i64::MIN, i64::MAX, -62_135_596_801, 253_402_300_800] {
            assert_eq!(moment(Some(absurd)), "NULL");
        }
    }
}
