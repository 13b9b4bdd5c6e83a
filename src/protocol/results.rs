//! Verdicts, in the form in which processes send them to each other.

use crate::delivery::Verdict;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A [`Verdict`] as text.
#[derive(Serialize, Deserialize)]
struct WireVerdict {
    /// The enhanced status code: `2.0.0` (RFC 3463).
    code: String,
    /// The text after the code.
    text: String,
}

pub(super) fn serialize<S: Serializer>(verdicts: &[Verdict], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(verdicts.iter().map(|it| WireVerdict { code: it.code(), text: it.text().to_owned() }))
}

/// # Errors
/// If no verdict of this program has one of the codes: a corrupted code of class 5 would bounce mail.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Verdict>, D::Error> {
    let verdicts = Vec::<WireVerdict>::deserialize(deserializer)?.into_iter();
    let verdicts: Option<Vec<Verdict>> = verdicts.map(|it| Verdict::by_code(&it.code, it.text)).collect();
    verdicts.ok_or_else(|| D::Error::custom("a status code is none of ours"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Reply;

    #[test]
    fn a_verdict_arrives_as_it_was_and_no_other_does() {
        for verdict in Verdict::one_of_each("some text") {
            let reply = Reply { results: vec![verdict], ..Reply::default() };
            assert_eq!(serde_json::from_slice::<Reply>(&serde_json::to_vec(&reply).unwrap()).unwrap(), reply);
        }
        for code in
            ["", "2", "5.0.0", "5.3.0", "3.0.0", "2.1.0", "250", "4.3", "4.3.0 ", "4.3.0.0", "4.+3.0", "4.99999.0"]
        {
            let id = uuid::Uuid::nil();
            let reply = serde_json::json!({"id": id, "results": [{"code": code, "text": "x"}]});
            let error = serde_json::from_value::<Reply>(reply).unwrap_err();
            assert!(error.to_string().contains("a status code is none of ours"), "{code}: {error}");
        }
    }
}
