//! A property of any text in a record, as a function that panics if the property does not hold. Unit tests and the fuzz targets
//! (tests/fuzz) call it.

use crate::base::log::{Format, is_unsafe, written};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use tracing_subscriber::Registry;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

/// A record is one line, and a reader gets the same fields with the same values.
///
/// # Panics
/// If that does not hold.
pub fn any_text(text: &str) {
    for format in [Format::Text, Format::Json] {
        let lines = Lines::default();
        let subscriber = Registry::default().with(written(lines.clone(), format, false));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(message_id = %text, sender = text, result = "deferred", "one");
        });
        let record = String::from_utf8(lines.0.lock().expect("nobody panicked").clone()).expect("UTF-8");
        let line = record.strip_suffix('\n').expect("a line");
        assert!(!line.contains(is_unsafe), "{line:?}");
        let fields = match format {
            Format::Text if line.ends_with(" [cut]") => {
                assert!(line.len() <= crate::base::log::LONGEST_LINE + " [cut]".len());
                continue;
            }
            Format::Text => fields(line.trim_start().strip_prefix("INFO one ").expect("level and message")),
            Format::Json => {
                let record: serde_json::Value = serde_json::from_str(line).expect("JSON");
                assert_eq!(record.as_object().map(serde_json::Map::len), Some(5), "{line}");
                let field = |name: &str| (name.to_owned(), record[name].as_str().expect("text").to_owned());
                ["message_id", "sender", "result"].map(field).to_vec()
            }
        };
        let written = [("message_id", text), ("sender", text), ("result", "deferred")];
        assert_eq!(fields, written.map(|(name, value)| (name.to_owned(), value.to_owned())), "{line}");
    }
}

/// The fields of a line, parsed back: a quoted value is a Rust string literal.
fn fields(mut line: &str) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    while !line.is_empty() {
        let (name, rest) = line.split_once('=').expect("a name");
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => unquoted(quoted),
            None => rest.split_once(' ').map_or((rest.to_owned(), ""), |(value, rest)| (value.to_owned(), rest)),
        };
        fields.push((name.to_owned(), value));
        line = rest.trim_start_matches(' ');
    }
    fields
}

/// The string up to the closing quote, and the rest after it.
fn unquoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        value.push(match character {
            '"' => return (value, rest.as_str()),
            '\\' => match rest.next().expect("something is escaped") {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                '0' => '\0',
                'u' => {
                    let (digits, after) =
                        rest.as_str().strip_prefix('{').and_then(|rest| rest.split_once('}')).expect("a number");
                    rest = after.chars();
                    u32::from_str_radix(digits, 16).ok().and_then(char::from_u32).expect("a character")
                }
                escaped => escaped,
            },
            other => other,
        });
    }
    panic!("never closed: {text:?}");
}

/// The bytes that were written.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panicked").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        #[test]
        fn a_record_is_one_line_with_the_fields_that_were_written(
            text in "(?s)(.|[\"\\\\={}\\[\\] \r\n\t\u{0}\u{1b}\u{7f}\u{85}\u{9b}\u{202e}\u{2028}]){0,40}",
        ) {
            super::any_text(&text);
        }
    }
}
