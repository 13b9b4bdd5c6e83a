//! What of a header may be shown to everybody who has a copy of the message, and appended for any of them.
//!
//! The ledger keeps one header and one source for all copies of a message: those of whichever copy was delivered first. Where that was a
//! blind copy, its header names a recipient of whom nobody else may learn. So whatever leaves a copy for somebody else leaves in the
//! *filtered form*: without the fields that name a recipient of the envelope (or its sender), and without the `for` clause of the Received
//! fields (RFC 5321 section 4.4). Only the header of the message itself is touched, no header of a MIME part.

use super::fields::{Field, Fields};
use std::borrow::Cow;

/// The fields that are left out: of blind recipients (RFC 5322 sections 3.6.3 and 3.6.6), and of the envelope of one copy (RFC 5321
/// section 4.4, RFC 9228; the others are what mail systems have in place of Delivered-To).
const PRIVATE_FIELDS: [&str; 7] =
    ["Bcc", "Resent-Bcc", "Delivered-To", "X-Original-To", "Envelope-To", "X-Envelope-To", "Return-Path"];

/// What becomes of the Received fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceivedFields {
    WithoutRecipients,
    /// The identity of the message covers them.
    Unchanged,
}

/// The field as everybody may see it; `None` for one that nobody else may, and for what is no field: on top of the message, a line of an mbox
/// would be taken for one that was put there.
pub(super) fn shown<'a>(field: &Field<'a>) -> Option<(&'a [u8], Cow<'a, [u8]>)> {
    if field.name.is_empty() || PRIVATE_FIELDS.iter().any(|name| field.is(name)) {
        return None;
    }
    let value = if field.is("Received") { without_recipients(field.value) } else { Cow::Borrowed(field.value) };
    Some((field.name, value))
}

/// Brings a message into its filtered form, in place. Takes time in proportion to its header, but for moving the body.
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
        // Of a message that had nothing else: an IMAP server refuses an empty literal.
        bytes.extend_from_slice(b"\r\n");
    }
}

/// The value of a Received field without each `for <address>`, in a comment too, and the white space before it: what is left has no line of
/// white space alone, which some programs take for the end of the header.
fn without_recipients(value: &[u8]) -> Cow<'_, [u8]> {
    let mut kept: Vec<u8> = Vec::new();
    let mut kept_from = 0;
    let mut at = 0;
    while let Some(found) = next_word(value, at) {
        at = found.end;
        if !value.get(found.clone()).is_some_and(|word| word.eq_ignore_ascii_case(b"for")) {
            continue;
        }
        let Some(end) = end_of_paths(value, found.end) else { continue };
        let before = value.get(kept_from..found.start).unwrap_or_default();
        kept.extend_from_slice(before.trim_ascii_end());
        (kept_from, at) = (end, end);
    }
    if kept_from == 0 {
        return Cow::Borrowed(value);
    }
    kept.extend_from_slice(value.get(kept_from..).unwrap_or_default());
    Cow::Owned(kept)
}

/// The next run of letters and what else an atom may have, from `at` on.
fn next_word(value: &[u8], at: usize) -> Option<std::ops::Range<usize>> {
    let is_delimiter = |byte: &u8| byte.is_ascii_whitespace() || b"();<>,\"".contains(byte) || *byte == 0;
    let rest = value.get(at..)?;
    let start = at + rest.iter().position(|byte| !is_delimiter(byte))?;
    let end = value.get(start..)?.iter().position(is_delimiter).map_or(value.len(), |length| start + length);
    Some(start..end)
}

/// Where the addresses end that follow a `for`: in angle brackets or without, and any further ones after commas. `None` where none follows.
fn end_of_paths(value: &[u8], at: usize) -> Option<usize> {
    let mut end = None;
    let mut from = at;
    loop {
        let start = from + leading_white_space(value.get(from..)?);
        if start == at {
            return None;
        }
        let rest = value.get(start..)?;
        let length = match rest.first() {
            Some(b'<') => length_of_path(rest),
            Some(_) => {
                length_of_mailbox(rest).filter(|length| rest.get(..*length).is_some_and(|it| it.contains(&b'@')))
            }
            None => None,
        };
        let Some(length) = length else { return end };
        end = Some(start + length);
        let after = start + length + leading_white_space(value.get(start + length..)?);
        if value.get(after) != Some(&b',') {
            return end;
        }
        from = after + 1;
    }
}

fn leading_white_space(bytes: &[u8]) -> usize {
    bytes.len() - bytes.trim_ascii_start().len()
}

/// `<…>`, a quoted local part in it. Where it has no end, all of the field is taken for it, but for its line end.
fn length_of_path(bytes: &[u8]) -> Option<usize> {
    let closed = end_outside_quotes(bytes, |byte| byte == b'>').map(|at| at + 1);
    Some(closed.unwrap_or_else(|| bytes.trim_ascii_end().len()))
}

/// The longest address, in bytes (RFC 5321 section 4.5.3.1): no more is looked at for each `for`.
const LONGEST_MAILBOX: usize = 64 + 1 + 255;

/// An address without angle brackets.
fn length_of_mailbox(bytes: &[u8]) -> Option<usize> {
    let bytes = bytes.get(..LONGEST_MAILBOX).unwrap_or(bytes);
    let ends = |byte: u8| byte.is_ascii_whitespace() || matches!(byte, b';' | b',' | b'(' | b')');
    Some(end_outside_quotes(bytes, ends).unwrap_or_else(|| bytes.trim_ascii_end().len())).filter(|length| *length > 0)
}

fn end_outside_quotes(bytes: &[u8], ends: impl Fn(u8) -> bool) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    bytes.iter().position(|&byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ => return !quoted && ends(byte),
        }
        false
    })
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
        for name in
            ["Bcc", "Resent-Bcc", "Delivered-To", "X-Original-To", "Envelope-To", "X-Envelope-To", "Return-Path"]
        {
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
            ("by x FOR\r\n <d@y>\r\n (comment); now", "by x\r\n (comment); now"),
            ("by x (envelope-from <a@x>) for <d@y>, <e@y> ,f@y; now", "by x (envelope-from <a@x>); now"),
            ("by x (for <d@y>); now", "by x (); now"),
            ("by x for <\"d>; e\\\"\"@y>; now", "by x; now"),
            ("by x for \"d e\"@y; now", "by x; now"),
            ("by x for <@relay,@other:d@y>; now", "by x; now"),
            ("by x for <d@y", "by x"),
            ("by x for <d@y>", "by x"),
            ("by x for <d@y> for <e@y>; now", "by x; now"),
            ("by x for d@y", "by x"),
            // Nobody is named.
            ("by x for local delivery; now", "by x for local delivery; now"),
            ("by x for; now", "by x for; now"),
            ("by for.example id fore <d@y>; now", "by for.example id fore <d@y>; now"),
            ("by x for", "by x for"),
        ] {
            assert_eq!(cut(value), left, "{value}");
        }
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
