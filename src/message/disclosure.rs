//! Which part of a header everyone with a copy of the message may see.
//!
//! The ledger keeps one header and one source for all copies of a message: those of the copy that was delivered first. If
//! that was a blind copy, its header names a recipient whom nobody else may know of.
//!
//! So content that another person gets is in the *filtered form*. It has no fields that name a recipient of the envelope or
//! its sender, and no `for` clause in the Received fields (RFC 5321 section 4.4). Only the header of the message itself is
//! changed, not that of a MIME part.

use super::fields::{Field, Fields, length_of_comment};
use memchr::memrchr;
use std::borrow::Cow;

/// The fields that are left out. They name blind recipients (RFC 5322 sections 3.6.3 and 3.6.6), or belong to the
/// envelope of one copy (RFC 5321 section 4.4, RFC 9228, RFC 8098 section 2.3). The others are what mail systems write
/// instead of Delivered-To.
const PRIVATE_FIELDS: [&str; 21] = [
    "Bcc",
    "Resent-Bcc",
    "Delivered-To",
    "X-Original-To",
    "Envelope-To",
    "X-Envelope-To",
    "Return-Path",
    "Apparently-To",
    "Errors-To",
    "Original-Recipient",
    "X-Apparently-To",
    "X-Delivered-To",
    "X-Forwarded-For",
    "X-Forwarded-To",
    "X-Gm-Original-To",
    "X-MDaemon-Deliver-To",
    "X-MDRcpt-To",
    "X-Original-Recipient",
    "X-Rcpt-To",
    "X-Real-To",
    "X-Receiver",
];

/// How the Received fields are filtered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceivedFields {
    WithoutRecipients,
    /// For a message whose identity covers them.
    Unchanged,
}

/// The field as everyone may see it. `None` for a private field, and for a line that is no field: an mbox line at the top
/// would be read as the envelope's.
pub(super) fn shown<'a>(field: &Field<'a>) -> Option<(&'a [u8], Cow<'a, [u8]>)> {
    if field.name.is_empty() || PRIVATE_FIELDS.iter().any(|name| field.is(name)) {
        return None;
    }
    let is_trace = field.is("Received") || field.is("X-Received");
    let value = if is_trace { without_recipients(field.value) } else { Cow::Borrowed(field.value) };
    Some((field.name, value))
}

/// The envelope sender as everyone may see it. A mailing list may encode the recipient in it, for bounces
/// (`list-bounce+doug=example.com@lists.example`, postconf(5) verp_delimiter_filter). The ledger stores only the sender of
/// one copy.
pub(crate) fn shown_sender(sender: &str) -> Cow<'_, str> {
    let Some((local, domain)) = sender.rsplit_once('@') else { return Cow::Borrowed(sender) };
    let before_the_domain = local.rfind('=').and_then(|at| local.get(..at)).unwrap_or_default();
    // A `-` may be part of the list's own name. If there is another delimiter too, that one starts the recipient's part.
    let Some(tag) = before_the_domain.find(['+', '#', '/']).or_else(|| before_the_domain.find('-')) else {
        return Cow::Borrowed(sender);
    };
    let kept = local.get(..tag).unwrap_or_default();
    Cow::Owned(format!("{kept}@{domain}"))
}

/// Converts a message to its filtered form, in place. The time is proportional to the length of the header, apart from
/// moving the body.
pub(super) fn filter(bytes: &mut Vec<u8>, received: ReceivedFields) {
    let mut fields = Fields::of(bytes);
    let mut header = Vec::new();
    let mut kept_from = 0;
    let mut at = 0;
    while let Some(field) = fields.next() {
        let end = bytes.len() - fields.rest().len();
        let unchanged = received == ReceivedFields::Unchanged && field.is("Received");
        let cut = match shown(&field) {
            _ if unchanged => None,
            Some((_, Cow::Borrowed(_))) => None,
            Some((_, Cow::Owned(value))) => Some((end - field.value.len(), value)),
            None => Some((at, Vec::new())),
        };
        if let Some((value_at, value)) = cut {
            header.extend_from_slice(bytes.get(kept_from..value_at).unwrap_or_default());
            header.extend_from_slice(&value);
            kept_from = end;
        }
        at = end;
    }
    bytes.splice(..kept_from, header);
    if bytes.is_empty() {
        // The message had nothing else, and an IMAP server refuses an empty literal.
        bytes.extend_from_slice(b"\r\n");
    }
}

/// The value of a Received field without its `for` clause, and without comments that contain such a clause or an address. Each
/// cut includes the white space before it. Otherwise a line of only white space could remain, which some programs take for the
/// end of the header.
///
/// `for` is the last clause before the date (RFC 5321 section 4.4), and what may follow it differs between mail systems (`for d@y
/// (ORCPT rfc822;d@y)`, `for "D" <d@y>`). So everything up to the date is removed: in doubt too much, never too little.
fn without_recipients(value: &[u8]) -> Cow<'_, [u8]> {
    let end = value.trim_ascii_end().len();
    let mut cuts = Vec::new();
    let mut at = 0;
    while let Some(&byte) = value.get(at).filter(|_| at < end) {
        let length = match byte {
            b'(' => {
                let rest = value.get(at..end).unwrap_or_default();
                let length = length_of_comment(rest).unwrap_or(rest.len());
                let comment = value.get(at..at + length).unwrap_or_default();
                if comment.contains(&b'@') || words(comment).any(is_for) {
                    cuts.push(at..at + length);
                }
                length
            }
            _ if is_delimiter(&byte) => 1,
            _ => {
                let word = words(value.get(at..end).unwrap_or_default()).next().unwrap_or_default();
                if is_for(word) {
                    let date = date_after(value, at, end);
                    cuts.push(at..date);
                    date - at
                } else {
                    word.len().max(1)
                }
            }
        };
        at += length;
    }
    if cuts.is_empty() {
        return Cow::Borrowed(value);
    }
    let (mut kept, mut kept_from) = (Vec::new(), 0);
    for cut in cuts {
        kept.extend_from_slice(value.get(kept_from..cut.start).unwrap_or_default().trim_ascii_end());
        kept_from = cut.end;
        // Without the space, `fo(d@y)r` would be read as another word.
        if value.get(kept_from).is_some_and(|next| !is_delimiter(next)) {
            kept.push(b' ');
        }
    }
    kept.extend_from_slice(value.get(kept_from..).unwrap_or_default());
    Cow::Owned(kept)
}

/// The offset of the `;` before the date, in the value up to `end`; `end` if no date follows. A date contains no address.
fn date_after(value: &[u8], at: usize, end: usize) -> usize {
    let rest = value.get(at..end).unwrap_or_default();
    let date = memrchr(b';', rest).filter(|date| !rest.get(*date..).is_some_and(|date| date.contains(&b'@')));
    date.map_or(end, |date| at + date)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(is_delimiter).filter(|word| !word.is_empty())
}

fn is_for(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"for")
}

/// Whether a byte ends a word: white space, a control character, or a character with its own meaning.
fn is_delimiter(byte: &u8) -> bool {
    byte.is_ascii_whitespace() || byte.is_ascii_control() || b"();<>,\"".contains(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(message: &str) -> String {
        let mut bytes = message.as_bytes().to_vec();
        filter(&mut bytes, ReceivedFields::WithoutRecipients);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn each_field_that_names_a_recipient_or_the_sender_of_the_envelope_is_left_out_wherever_it_stands() {
        let names = "Bcc Resent-Bcc Delivered-To X-Original-To Envelope-To X-Envelope-To Return-Path Apparently-To Errors-To Original-Recipient \
                     X-Apparently-To X-Delivered-To X-Forwarded-For X-Forwarded-To X-Gm-Original-To X-MDaemon-Deliver-To X-MDRcpt-To \
                     X-Original-Recipient X-Rcpt-To X-Real-To X-Receiver";
        for name in names.split_whitespace() {
            for name in [name.to_owned(), name.to_ascii_uppercase(), format!("{name} ")] {
                let private = format!("{name}: <whistleblower@y>,\r\n\tother@y\r\n");
                for (before, after) in [("", "To: a@x\r\n"), ("To: a@x\r\n", ""), ("A: b\r\n", "C: d\r\n")] {
                    let message = format!("{before}{private}{after}{private}\r\n{private}\r\n");
                    assert_eq!(filtered(&message), format!("{before}{after}\r\n{private}\r\n"));
                }
            }
        }
    }

    #[test]
    fn what_names_nobody_of_the_envelope_stays() {
        let message = "From: lisa@x\r\nTo: a@x\r\nCc: b@x\r\nX-Bcc-Count: 1\r\nResent-To: c@x\r\n\r\nBcc: d@x\r\n";
        assert_eq!(filtered(message), message);
    }

    #[test]
    fn a_part_of_the_message_keeps_its_header() {
        let part = "--b\r\nContent-Type: message/rfc822\r\n\r\nBcc: d@x\r\nReceived: by y for <d@x>; now\r\n\r\nx\r\n--b--\r\n";
        let message = format!("Bcc: e@x\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n{part}");
        assert_eq!(filtered(&message), format!("Content-Type: multipart/mixed; boundary=b\r\n\r\n{part}"));
    }

    #[test]
    fn received_says_for_whom_no_more() {
        let cut = |value: &str| {
            let message = format!("Received: {value}\r\n\r\n");
            let shown = filtered(&message);
            shown.strip_prefix("Received: ").and_then(|rest| rest.strip_suffix("\r\n\r\n")).unwrap().to_owned()
        };
        let postfix = "from a (b [192.0.2.1])\r\n\tby mx (Postfix) with ESMTPS id 4b\r\n\tfor <d@y>; Mon, 1 Jan 2026 00:00:00 +0000";
        let left = "from a (b [192.0.2.1])\r\n\tby mx (Postfix) with ESMTPS id 4b; Mon, 1 Jan 2026 00:00:00 +0000";
        assert_eq!(cut(postfix), left);
        for (value, left) in [
            ("by x for d@y; now", "by x; now"),
            ("by x FOR\r\n <d@y>\r\n (comment); now", "by x; now"),
            ("by x\r\n (a\r\n b)\r\n\tfor <d@y>;\r\n now", "by x\r\n (a\r\n b);\r\n now"),
            ("by x (envelope-from <a@x>) for <d@y>, <e@y> ,f@y; now", "by x; now"),
            ("by x (envelope-to d@y) id 4b; now", "by x id 4b; now"),
            ("by x (for <d@y>); now", "by x; now"),
            ("by x (as (for d)) id 4b; now (a clock; it is right)", "by x id 4b; now (a clock; it is right)"),
            ("by x(d@y)id 4b; now", "by x id 4b; now"),
            ("by x for d; now (for d)", "by x; now"),
            ("by x for d; for e; now", "by x; now"),
            ("by x for d; now for e", "by x; now"),
            ("by x (\\) for d@y) id 4b; now", "by x id 4b; now"),
            ("by x (not closed for <d@y>; now", "by x"),
            ("by x for <\"d>; e\\\"\"@y>; now", "by x; now"),
            ("by x for <\"d>; e\\\"\"@y>", "by x"),
            ("by x for \"d e\"@y; now", "by x; now"),
            ("by x for <@relay,@other:d@y>; now", "by x; now"),
            ("by x for d@y (ORCPT rfc822;d@y); now", "by x; now"),
            ("by x for<d@y>; now", "by x; now"),
            ("by x for\u{b}<d@y>; now", "by x; now"),
            ("by x for (c) <d@y>; now", "by x; now"),
            ("by x for \"D\" <d@y>; now", "by x; now"),
            ("by x for <e> <d@y>; now", "by x; now"),
            ("by x for d; now", "by x; now"),
            ("from \" (a [192.0.2.1]) by x for <\"d\"@y>; now", "from \" (a [192.0.2.1]) by x; now"),
            ("by x for <d@y", "by x"),
            ("by x for <d@y>", "by x"),
            ("by x for", "by x"),
            // These name nobody.
            (
                "by for.example id fore (b [192.0.2.1]) with SMTP; now",
                "by for.example id fore (b [192.0.2.1]) with SMTP; now",
            ),
            ("(qmail 7 invoked by uid 0); now", "(qmail 7 invoked by uid 0); now"),
            ("by ) x; now", "by ) x; now"),
            ("", ""),
        ] {
            assert_eq!(cut(value), left, "{value}");
        }
    }

    #[test]
    fn a_sender_that_has_a_recipient_in_it_is_shown_without() {
        for (sender, shown) in [
            ("list-bounce+doug=y.example@l.example", "list-bounce@l.example"),
            ("list-bounce+d-o+u=y.example@l.example", "list-bounce@l.example"),
            ("list-bounce-doug=y.example@l.example", "list@l.example"),
            ("list#doug=y.example@l.example", "list@l.example"),
            ("lisa+tag@l.example", "lisa+tag@l.example"),
            ("lisa-a@l.example", "lisa-a@l.example"),
            ("prvs=0123456789=lisa@l.example", "prvs=0123456789=lisa@l.example"),
            ("lisa@l.example", "lisa@l.example"),
            ("MAILER-DAEMON", "MAILER-DAEMON"),
            ("", ""),
        ] {
            assert_eq!(shown_sender(sender), shown);
        }
    }

    #[test]
    fn what_google_has_beside_received_says_for_whom_no_more_either() {
        assert_eq!(filtered("X-Received: by x for <d@y>; now\r\n\r\n"), "X-Received: by x; now\r\n\r\n");
    }

    #[test]
    fn received_stays_where_it_is_what_tells_the_message_from_the_next() {
        let message = b"Delivered-To: d@y\r\nReceived: by x for <d@y>; now\r\nSubject: x\r\n\r\nx\r\n";
        let mut bytes = message.to_vec();
        filter(&mut bytes, ReceivedFields::Unchanged);
        assert_eq!(bytes, b"Received: by x for <d@y>; now\r\nSubject: x\r\n\r\nx\r\n");
    }

    #[test]
    fn a_message_of_private_fields_alone_is_not_empty_afterwards() {
        assert_eq!(filtered("Bcc: d@y\r\n"), "\r\n");
        assert_eq!(filtered("Bcc: d@y\r\nFrom d@y\r\n"), "\r\n");
        assert_eq!(filtered("Bcc: d@y\r\n\r\n"), "\r\n");
        assert_eq!(filtered("Delivered-To: d@y\r\nno field\r\n"), "no field\r\n");
    }
}
