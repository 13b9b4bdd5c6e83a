//! In place of the crate `regex`, which mysql_common takes whole for a few expressions on server versions, a key in PEM and
//! dates: with its tables of Unicode it is a megabyte of each program. This is `regex-lite`, by the same authors, with the few names that
//! mysql_common calls; Cargo.toml puts it there (`[patch]`).
//!
//! What differs: `\d` is a digit of ASCII, as servers write them; and what is not UTF-8 matches nothing.
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
        /// Where it is none.
        pub fn new(expression: &str) -> Result<Self, Error> {
            regex_lite::Regex::new(expression).map(Self)
        }

        /// Whether it is somewhere in there.
        #[must_use]
        pub fn is_match(&self, bytes: &[u8]) -> bool {
            str::from_utf8(bytes).is_ok_and(|text| self.0.is_match(text))
        }

        /// Where it is first, with its groups.
        #[must_use]
        pub fn captures<'b>(&self, bytes: &'b [u8]) -> Option<Captures<'b>> {
            self.0.captures(str::from_utf8(bytes).ok()?).map(Captures)
        }
    }

    /// What was found.
    #[derive(Debug)]
    pub struct Captures<'b>(regex_lite::Captures<'b>);

    impl<'b> Captures<'b> {
        /// A group of it; 0 is all.
        #[must_use]
        pub fn get(&self, group: usize) -> Option<Match<'b>> {
            self.0.get(group).map(Match)
        }
    }

    /// A group.
    #[derive(Clone, Copy, Debug)]
    pub struct Match<'b>(regex_lite::Match<'b>);

    impl<'b> Match<'b> {
        /// What stands there.
        #[must_use]
        pub fn as_bytes(&self) -> &'b [u8] {
            self.0.as_str().as_bytes()
        }
    }
}
