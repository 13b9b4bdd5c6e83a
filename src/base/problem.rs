//! Errors for programs, in the format of RFC 9457.

use serde::Serialize;

pub(crate) const MEDIA_TYPE: &str = "application/problem+json";

/// An error as a client gets it. `kind` identifies the case for programs; the other texts may change.
#[derive(Debug)]
pub(crate) struct Problem<'a, E> {
    pub(crate) kind: &'a str,
    pub(crate) title: &'a str,
    pub(crate) status: u16,
    pub(crate) detail: Option<&'a str>,
    /// Each part of the request that is wrong.
    pub(crate) errors: &'a [E],
}

impl<E: Serialize> Problem<'_, E> {
    /// The JSON document that is sent.
    pub(crate) fn document(&self) -> String {
        #[derive(Serialize)]
        struct Document<'a, E> {
            r#type: String,
            title: &'a str,
            status: u16,
            #[serde(skip_serializing_if = "Option::is_none")]
            detail: Option<&'a str>,
            #[serde(skip_serializing_if = "<[E]>::is_empty")]
            errors: &'a [E],
        }
        let Self { kind, title, status, detail, errors } = *self;
        let document =
            Document { r#type: format!("urn:maildrop_command:problem:{kind}"), title, status, detail, errors };
        // Serialization fails only for map keys that are not text.
        serde_json::to_string(&document).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_says_what_is_known_of_it_and_no_more() {
        let problem = |detail, errors| {
            Problem::<&str> { kind: "gone", title: "It is gone", status: 410, detail, errors }.document()
        };
        let shown = |more: &str| {
            format!("{{\"type\":\"urn:maildrop_command:problem:gone\",\"title\":\"It is gone\",\"status\":410{more}}}")
        };
        assert_eq!(problem(None, &[]), shown(""));
        assert_eq!(problem(Some("x"), &["a", "b"]), shown(r#","detail":"x","errors":["a","b"]"#));
    }
}
