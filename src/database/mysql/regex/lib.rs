//! Replaces the crate `regex`. mysql_common takes all of it for a few expressions on server versions, a key in PEM and
//! dates. Its tables of Unicode add a megabyte to each program. This is `regex-lite`, by the same authors, with the few
//! names that mysql_common calls; Cargo.toml substitutes it (`[patch]`).
//!
//! Differences: `\d` is a digit of ASCII, as servers write them; and bytes that are not UTF-8 match nothing.
#![forbid(unsafe_code)]

pub use regex_lite::Error;

/// Expressions on bytes.
pub mod bytes {
    use super::Error;

    /// An expression.
    #[derive(Clone, Debug)]
    pub struct Regex(regex_lite::Regex);

    impl Regex {
        /// # Errors
        /// If the expression is invalid.
        pub fn new(expression: &str) -> Result<Self, Error> {
            regex_lite::Regex::new(expression).map(Self)
        }

        /// Whether the expression matches anywhere in the bytes.
        #[must_use]
        pub fn is_match(&self, bytes: &[u8]) -> bool {
            str::from_utf8(bytes).is_ok_and(|text| self.0.is_match(text))
        }

        /// The first match, with its groups.
        #[must_use]
        pub fn captures<'b>(&self, bytes: &'b [u8]) -> Option<Captures<'b>> {
            self.0.captures(str::from_utf8(bytes).ok()?).map(Captures)
        }
    }

    /// A match, with its groups.
    #[derive(Debug)]
    pub struct Captures<'b>(regex_lite::Captures<'b>);

    impl<'b> Captures<'b> {
        /// A group of the match; 0 is the whole match.
        #[must_use]
        pub fn get(&self, group: usize) -> Option<Match<'b>> {
            self.0.get(group).map(Match)
        }
    }

    /// The match of a group.
    #[derive(Clone, Copy, Debug)]
    pub struct Match<'b>(regex_lite::Match<'b>);

    impl<'b> Match<'b> {
        /// The matched bytes.
        #[must_use]
        pub fn as_bytes(&self) -> &'b [u8] {
            self.0.as_str().as_bytes()
        }
    }
}
