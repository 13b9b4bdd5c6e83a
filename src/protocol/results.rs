//! One recipient's verdict, in the form in which processes send it to each other.

use crate::delivery::Verdict;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A [`Verdict`] as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireVerdict {
    /// The enhanced status code: `2.0.0` (RFC 3463).
    code: String,
    /// The text after the code.
    text: String,
}

/// No verdict of this program has the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("its status code is none of ours")]
pub struct UnknownCode;

impl From<&Verdict> for WireVerdict {
    fn from(verdict: &Verdict) -> Self {
        Self { code: verdict.code(), text: verdict.text().to_owned() }
    }
}

impl TryFrom<WireVerdict> for Verdict {
    type Error = UnknownCode;

    /// # Errors
    /// If no verdict of this program has the code: a corrupted code of class 5 would bounce mail.
    fn try_from(shown: WireVerdict) -> Result<Self, UnknownCode> {
        Verdict::by_code(&shown.code, shown.text).ok_or(UnknownCode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_arrives_as_it_was_and_no_other_does() {
        for verdict in Verdict::one_of_each("some text") {
            assert_eq!(Verdict::try_from(WireVerdict::from(&verdict)), Ok(verdict));
        }
        for code in
            ["", "2", "5.0.0", "5.3.0", "3.0.0", "2.1.0", "250", "4.3", "4.3.0 ", "4.3.0.0", "4.+3.0", "4.99999.0"]
        {
            let shown = WireVerdict { code: code.into(), text: "x".into() };
            assert_eq!(Verdict::try_from(shown), Err(UnknownCode), "{code}");
        }
    }
}
