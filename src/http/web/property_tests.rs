//! Properties of any displayed message, and of any HTML in it: functions that panic if a property is violated, for tests and
//! for the fuzz targets (tests/fuzz).

use super::html_of_message::{MOST_DEPTH, MOST_HTML, MOST_PICTURES, TAKEN_AWAY, document};
use crate::base::deadline::Deadline;
use crate::message::parts::{Parts, header_fields};
use crate::message::reading_budget::ReadingBudget;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::time::Duration;

/// How much text of a message is read, in bytes.
const MOST_TEXT: usize = 64 << 10;

/// The displayed content of any message is read within its budget, is no more than the message has, and is limited in size.
///
/// # Panics
/// If the property is violated.
pub fn any_message(bytes: &[u8]) {
    let budget = budget_of(bytes);
    let parts = Parts::of(bytes, &budget);
    assert!(!parts.all.is_empty() && parts.all.len() <= 300, "{} parts", parts.all.len());
    let mut read = 0;
    for part in &parts.all {
        // Line ends become CRLF in quoted-printable.
        read += part.content().len();
        let (text, cut) = part.text(MOST_TEXT);
        assert!(text.len() <= MOST_TEXT && (cut || part.text(2 * MOST_TEXT) == (text, false)));
        assert!(part.kind.len() <= 103 && !part.kind.contains(char::is_control));
        assert!(part.name.as_ref().is_none_or(|name| name.len() <= 258 && !name.contains(char::is_control)));
    }
    assert!(read <= 2 * bytes.len(), "{read} bytes of {}", bytes.len());
    assert!(parts.text(MOST_TEXT).is_none_or(|(text, _)| text.len() <= MOST_TEXT));
    assert!(header_fields(bytes, &budget).0.len() <= 300);
    if let Some(part) = parts.html() {
        document(part, &parts);
    }
    assert!(!budget.is_exhausted(), "{} bytes cost more than any message may", bytes.len());
}

/// Any HTML is read within the budget of its message. The result has no element for which a browser connects to a host, and is
/// limited in depth and length.
///
/// # Panics
/// If the property is violated.
pub fn any_html(html: &str) {
    let message = format!(
        "Content-Type: multipart/related; boundary=x\n\n--x\nContent-Type: text/html; charset=utf-8\n\
         Content-Transfer-Encoding: base64\n\n{}\n--x\nContent-Type: image/png\nContent-ID: <a>\n\npng\n--x--\n",
        STANDARD.encode(html)
    );
    let budget = budget_of(message.as_bytes());
    let parts = Parts::of(message.as_bytes(), &budget);
    let shown = document(parts.html().expect("HTML"), &parts);
    assert!(!budget.is_exhausted(), "{} bytes cost more than any message may", html.len());
    // `<a` becomes `<x-a`, and `cid:a` a picture.
    assert!(shown.html.len() <= 6 * html.len() && shown.html.len() <= 6 * MOST_HTML + 2 * MOST_PICTURES);
    assert!(shown.cut || shown.too_deep || shown.html.matches('<').count() == html.matches('<').count());
    let mut open = 0_usize;
    for tag in shown.html.split('<').skip(1) {
        let (name, ends) = tag.strip_prefix('/').map_or((tag, false), |name| (name, true));
        let is = |element: &str| {
            name.get(..element.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(element))
                && name.get(element.len()..).is_none_or(|rest| {
                    rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>'))
                })
        };
        assert!(!TAKEN_AWAY.into_iter().any(is), "{tag:?} is left");
        if ends {
            open = open.saturating_sub(1)
        } else if is("b") {
            open += 1
        }
    }
    assert!(open <= MOST_DEPTH, "{open} elements are open");
}

fn budget_of(message: &[u8]) -> ReadingBudget {
    ReadingBudget::of(message, Deadline::after(Duration::from_hours(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Random sequences of pieces of multipart messages.
    fn message() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            4 => prop::sample::select(vec![
                &b"Content-Type: multipart/mixed; boundary=b\n\n"[..],
                b"Content-Type: multipart/digest; boundary=bb\n\n",
                b"Content-Type: text/html; charset=utf-8\n",
                b"Content-Type: text/plain; charset=utf-7\n",
                b"Content-Type: text/plain; charset=iso-2022-jp\n",
                b"Content-Transfer-Encoding: base64\n",
                b"Content-Transfer-Encoding: quoted-printable\n",
                b"Content-Disposition: attachment; filename*0*=utf-8''a; filename*1=b\n",
                b"Content-ID: <a>\n",
                b"\n",
                b"\r\n",
                b"--b\n",
                b"--bb\r\n",
                b"--b--\n",
                b"=\n",
                b"=3C",
                b"+-",
                b"\x1b$B",
                b" =?utf-8?q?=3C?=",
                b";a*0*=",
                b"<a href=cid:a>",
            ]),
            1 => prop::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| &*bytes.leak()),
        ];
        prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
    }

    /// Random sequences of pieces of HTML.
    fn html() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            4 => prop::sample::select(vec![
                "<", "</", ">", "/", "<a", "<A ", "<base>", "<iframe/", "<link", "<b>", "</b>", "<!--", "-->", "<br>", "=", "\"", "'", " ",
                "cid:", "CID:a", "=cid:a", "%61", "%", "&lt;", "ü", "\u{212a}", "<area", "<optgroup", "\n", "\0",
            ]).prop_map(str::to_owned),
            1 => any::<String>(),
        ];
        prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_message_is_read_within_its_budget(message in message(), times in 1..200_usize) {
            any_message(&message);
            any_message(&message.repeat(times));
        }

        #[test]
        fn any_html_is_read_within_its_budget_and_leads_nowhere(html in html(), times in 1..200_usize) {
            any_html(&html);
            any_html(&html.repeat(times));
        }
    }
}
