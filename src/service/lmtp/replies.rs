//! The replies to the end of the data: one for each accepted recipient, in their order (RFC 2033 section 4.2).
//!
//! One reply too many or too few shifts all later ones. A client then takes the reply to another command for the reply to its
//! message, and bounces mail. So only this file writes these replies, all at once, and their number is fixed before any verdict
//! exists.

use crate::delivery::Verdict;
use tracing::error;

/// The number of replies that are due, one for each recipient. Each method consumes this value, so nothing replies twice.
#[derive(Debug)]
#[must_use]
pub(super) struct Replies(usize);

impl Replies {
    /// One reply for each recipient.
    pub(super) fn to<T>(recipients: &[T]) -> Self {
        Self(recipients.len())
    }

    /// The same reply for all recipients. `reply` is a whole reply without its line end: `452 4.3.1 text`.
    pub(super) fn all(self, reply: &str, out: &mut Vec<u8>) {
        for _ in 0..self.0 {
            out.extend_from_slice(reply.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Replies with the verdict of each recipient. `None`: no verdicts came.
    ///
    /// If the numbers of verdicts and recipients differ, no verdict can be assigned to a recipient. A wrong 250 would lose a
    /// copy, and a wrong 550 would bounce one, so every recipient gets 451. At the redelivery, the ledger knows which recipients
    /// already have a copy.
    pub(super) fn write(self, verdicts: Option<&[Verdict]>, out: &mut Vec<u8>) {
        match verdicts {
            Some(verdicts) if verdicts.len() == self.0 => {
                for verdict in verdicts {
                    out.extend_from_slice(line(verdict).as_bytes());
                }
            }
            Some(verdicts) => {
                error!(
                    recipients = self.0,
                    verdicts = verdicts.len(),
                    "not one verdict for each recipient: all are deferred"
                );
                self.all(NO_VERDICT, out);
            }
            None => self.all(NO_VERDICT, out),
        }
    }
}

const NO_VERDICT: &str = "451 4.3.0 The delivery did not end";

/// A verdict as a reply, with its line end.
fn line(verdict: &Verdict) -> String {
    let line = verdict.line();
    let code = match (verdict.class(), verdict.code().as_str()) {
        (2, _) => "250",
        (5, "5.1.1") => "550",
        (5, "5.2.2" | "5.3.4") => "552",
        // RFC 5321 section 4.2.3: insufficient storage.
        (4, "4.2.2" | "4.3.1") => "452",
        (4, _) => "451",
        // No verdict has another class. With a 451, the message stays with Postfix in any case.
        _ => return format!("{NO_VERDICT}\r\n"),
    };
    format!("{code} {}\r\n", line.trim_ascii_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::StatusDetail;

    fn shown(recipients: usize, verdicts: Option<&[Verdict]>) -> Vec<String> {
        let mut out = Vec::new();
        Replies::to(&vec![(); recipients]).write(verdicts, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.is_empty() || text.ends_with("\r\n"));
        text.split_terminator("\r\n").map(str::to_owned).collect()
    }

    #[test]
    fn a_verdict_is_a_reply_of_its_class() {
        let deferred = |code: &str| Verdict::by_code(code, "x").unwrap();
        for (verdict, reply) in [
            (Verdict::delivered("INBOX appended (uid 17)"), "250 2.0.0 INBOX appended (uid 17)"),
            (Verdict::deferred(StatusDetail::SYSTEM, "a\r\nb"), "451 4.3.0 a??b"),
            (deferred("4.2.1"), "451 4.2.1 x"),
            (deferred("4.2.2"), "452 4.2.2 x"),
            (deferred("4.3.1"), "452 4.3.1 x"),
            (Verdict::unknown_recipient("no such recipient here"), "550 5.1.1 no such recipient here"),
            (Verdict::over_quota(""), "552 5.2.2"),
            (Verdict::too_big("x"), "552 5.3.4 x"),
        ] {
            assert_eq!(shown(1, Some(&[verdict])), [reply]);
        }
        let long = shown(1, Some(&[Verdict::delivered("é".repeat(1000))]));
        assert!(long[0].len() < 400 && long[0].bytes().all(|b| (b' '..=b'~').contains(&b)), "{long:?}");
    }

    #[test]
    fn the_number_of_replies_is_that_of_the_recipients_whatever_is_reported() {
        for recipients in [0, 1, 2, 50] {
            for verdicts in [0, 1, 2, 49, 50, 51, 1000] {
                let verdicts = vec![Verdict::delivered("x"); verdicts];
                let expected = if verdicts.len() == recipients { "250 2.0.0 x" } else { NO_VERDICT };
                assert_eq!(shown(recipients, Some(&verdicts)), vec![expected; recipients]);
            }
            assert_eq!(shown(recipients, None), vec![NO_VERDICT; recipients]);
            let mut out = Vec::new();
            Replies::to(&vec![(); recipients]).all("452 4.3.1 Full", &mut out);
            assert_eq!(out, "452 4.3.1 Full\r\n".repeat(recipients).as_bytes());
        }
    }

    #[test]
    fn the_order_is_that_of_the_recipients() {
        let verdicts = [Verdict::delivered("a"), Verdict::unknown_recipient("b"), Verdict::delivered("c")];
        assert_eq!(shown(3, Some(&verdicts)), ["250 2.0.0 a", "550 5.1.1 b", "250 2.0.0 c"]);
    }
}
