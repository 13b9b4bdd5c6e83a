//! Authentication-Results (RFC 8601): whether this site's own filter vouches for the From address.
//!
//! In doubt the answer is no. A wrong no costs one Sent copy. A wrong yes would let a stranger put mail into another user's
//! Sent mailbox.

use super::fields::{Field, Fields, length_of_comment, relaxed};
use std::borrow::Cow;

/// Whether this site's filter vouches for the From address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vouched {
    /// DMARC passed for exactly the domain of the From address.
    Yes,
    /// DMARC failed or was not checked. The text is the reason, for the log.
    No(Cow<'static, str>),
}

/// The verdict of the topmost field that has this site's `authserv_id` and a DMARC result. Fields of other sites are
/// skipped, and fields below that one are never read.
///
/// An item is `None` if the field has a bare CR: readers differ about its name and results. Such a field may be ours, so
/// nothing below it counts.
pub(super) fn dmarc(fields: impl Iterator<Item = Option<Vec<u8>>>, authserv_id: &str, from_domain: &str) -> Vouched {
    let no = |why: &'static str| Vouched::No(Cow::Borrowed(why));
    for field in fields {
        let Some(field) = field else { return no("an Authentication-Results holds a bare CR") };
        let mut reader = Reader { rest: &field };
        let id = reader.comments_and_space().and_then(|()| reader.written(b";"));
        if !id.is_some_and(|id| id.eq_ignore_ascii_case(authserv_id.as_bytes())) {
            continue;
        }
        let Some(results) = dmarc_results(&mut reader) else {
            return no("the topmost Authentication-Results of ours cannot be read");
        };
        let Some(first) = results.first() else { continue };
        // More than one result in a single field is odd, so all of them must agree.
        if let Some(bad) = results.iter().find(|r| !r.result.eq_ignore_ascii_case(b"pass")) {
            return Vouched::No(Cow::Owned(format!("dmarc={}", word_for_log(&bad.result))));
        }
        let of_author = |r: &DmarcResult| {
            r.header_from.as_ref().is_some_and(|domain| domain.eq_ignore_ascii_case(from_domain.as_bytes()))
        };
        if results.iter().all(of_author) {
            return Vouched::Yes;
        }
        return match &first.header_from {
            None => no("dmarc=pass, but it names no header.from"),
            Some(other) => Vouched::No(Cow::Owned(format!("dmarc=pass, but for {}", word_for_log(other)))),
        };
    }
    no("no Authentication-Results of ours bears a dmarc result")
}

/// How many bytes of a field are read to find its authserv-id. A host name and a comment need far fewer.
const ID_LIMIT: usize = 8192;

/// Removes each Authentication-Results field that claims, or may claim, this site's name, as a border must (RFC 8601 section 5).
/// The rest stays as it is. Nothing is copied, and each byte is moved once.
pub(crate) fn remove_ours(message: &mut Vec<u8>, authserv_id: &str) {
    let (mut from, mut to) = (0, 0);
    while let Some(rest) = message.get(from..) {
        let mut fields = Fields::of(rest);
        let Some(field) = fields.next() else { break };
        let length = rest.len() - fields.rest().len();
        if field.is("Authentication-Results") && may_be_ours(&field, authserv_id) {
            from += length;
            continue;
        }
        if to < from {
            message.copy_within(from..from + length, to);
        }
        (from, to) = (from + length, to + length);
    }
    message.drain(to..from);
}

/// Whether some reader could take the field for one of this site.
fn may_be_ours(field: &Field<'_>, authserv_id: &str) -> bool {
    let value: Vec<u8> = relaxed(field.value).take(ID_LIMIT).collect();
    let mut reader = Reader { rest: &value };
    // RFC 8601 section 2.2: a quoted string is the same name as the word in it.
    let id = reader.comments_and_space().and_then(|()| reader.value(b";"));
    field.has_bare_cr() || id.is_none_or(|id| id.eq_ignore_ascii_case(authserv_id.as_bytes()))
}

struct DmarcResult {
    result: Vec<u8>,
    header_from: Option<Vec<u8>>,
}

/// The results after the authserv-id. `None` if they do not match RFC 8601 section 2.2, or are of another version.
fn dmarc_results(reader: &mut Reader<'_>) -> Option<Vec<DmarcResult>> {
    let mut results = Vec::new();
    reader.comments_and_space()?;
    if !matches!(reader.rest.first(), None | Some(b';')) {
        // RFC 8601 section 2.2: an unknown version is not to be interpreted.
        if reader.value(b";")? != b"1" {
            return None;
        }
        reader.comments_and_space()?;
    }
    while reader.take(b';') {
        reader.comments_and_space()?;
        if reader.rest.is_empty() {
            break;
        }
        let method = reader.value(b";=")?;
        reader.comments_and_space()?;
        if method.eq_ignore_ascii_case(b"none") && reader.rest.is_empty() {
            break;
        }
        let method = method.split(|&b| b == b'/').next().unwrap_or_default().to_ascii_lowercase();
        let result = reader.equals_value()?;
        let mut header_from = None;
        while !matches!(reader.rest.first(), None | Some(b';')) {
            let property = reader.value(b";=")?;
            reader.comments_and_space()?;
            let value = reader.equals_value()?;
            if property.eq_ignore_ascii_case(b"header.from") {
                if header_from.is_some() {
                    return None;
                }
                header_from = Some(value);
            }
        }
        if method == b"dmarc" {
            results.push(DmarcResult { result, header_from });
        }
    }
    reader.rest.is_empty().then_some(results)
}

/// Reads a field from left to right, each byte once, without recursion.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.rest.first() == Some(&byte);
        if there {
            self.next();
        }
        there
    }

    /// Skips white space and comments, which nest (RFC 5322 section 3.2.2). `None`: a comment does not end.
    fn comments_and_space(&mut self) -> Option<()> {
        loop {
            match self.rest.first() {
                Some(b' ' | b'\t') => {
                    self.next();
                }
                Some(b'(') => self.rest = self.rest.get(length_of_comment(self.rest)?..)?,
                _ => return Some(()),
            }
        }
    }

    /// `=`, a value, and any white space and comments around them. The value may be empty, because filters write that for
    /// the null sender.
    fn equals_value(&mut self) -> Option<Vec<u8>> {
        if !self.take(b'=') {
            return None;
        }
        self.comments_and_space()?;
        let empty = matches!(self.rest.first(), None | Some(b';'));
        let value = if empty { Vec::new() } else { self.value(b";")? };
        self.comments_and_space()?;
        Some(value)
    }

    /// A value exactly as written, except for quotes around all of it. A border filter that removes forged fields matches only
    /// the plain spelling of this site's name. So `"mx".axial.net` is not this site's name here (RFC 8601 section 2.2: a word or
    /// a quoted string).
    fn written(&mut self, ends: &[u8]) -> Option<&[u8]> {
        let before = self.rest;
        self.value(ends)?;
        let written = before.get(..before.len() - self.rest.len())?;
        let unquoted = written.strip_prefix(b"\"").and_then(|written| written.strip_suffix(b"\""));
        Some(unquoted.unwrap_or(written))
    }

    /// A word, a quoted string, or both in one (`"odd one"@x`), up to white space, a comment or one of `ends`. `None` if it is
    /// empty, or a quoted string does not end.
    fn value(&mut self, ends: &[u8]) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        let mut quoted = false;
        while let Some(&byte) = self.rest.first() {
            if matches!(byte, b' ' | b'\t' | b'(' | b')') || ends.contains(&byte) {
                break;
            }
            self.next();
            if byte != b'"' {
                value.push(byte);
                continue;
            }
            quoted = true;
            loop {
                match self.next()? {
                    b'"' => break,
                    b'\\' => value.push(self.next()?),
                    byte => value.push(byte),
                }
            }
        }
        (quoted || !value.is_empty()).then_some(value)
    }
}

/// A word of a stranger's message, made safe for a log line.
fn word_for_log(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..80).unwrap_or(bytes)).chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Identity;

    fn verdict(fields: &[&str]) -> Vouched {
        dmarc(fields.iter().map(|f| Some(f.as_bytes().to_vec())), "mx.axial.net", "gmail.com")
    }

    #[track_caller]
    fn yes(fields: &[&str]) {
        assert_eq!(verdict(fields), Vouched::Yes);
    }

    #[track_caller]
    fn no(fields: &[&str], why: &str) {
        assert_eq!(verdict(fields), Vouched::No(why.to_owned().into()));
    }

    const UNREADABLE: &str = "the topmost Authentication-Results of ours cannot be read";
    const NOTHING: &str = "no Authentication-Results of ours bears a dmarc result";

    #[track_caller]
    fn without_ours(message: &str) -> String {
        let mut bytes = message.as_bytes().to_vec();
        remove_ours(&mut bytes, "mx.axial.net");
        assert_eq!(Identity::of(&bytes), Identity::of(message.as_bytes()), "{message}");
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_field_that_claims_to_be_ours_is_removed_and_nothing_else() {
        let rest = "From: lisa@gmail.com\r\nAuthentication-Results: mx.axial.net.evil.example; none\nX-Authentication-Results: \
                    mx.axial.net; none\r\nSubject: x\n y\r\n\r\nAuthentication-Results: mx.axial.net; dmarc=pass\r\n";
        assert_eq!(without_ours(rest), rest);
        for claim in [
            "Authentication-Results: mx.axial.net; dmarc=pass header.from=gmail.com\r\n",
            "AUTHENTICATION-results \t:\n (a (nested) comment)\n MX.axial.NET 1;\n dmarc=pass\n",
            "Authentication-Results: \"mx\".axial.net; none\n",
            "Authentication-Results: mx.axial.net\r\n",
            // It depends on the reader whose fields these are.
            "Authentication-Results: other.example\rmx.axial.net; dmarc=pass\n",
            "Authentication-Results: (mx.axial.net; dmarc=pass\n",
            "Authentication-Results:\n",
        ] {
            for at in [0, rest.find("Auth").unwrap(), rest.find("Subject").unwrap()] {
                let (above, below) = rest.split_at(at);
                assert_eq!(
                    without_ours(&[above, claim, claim, below, claim].concat()),
                    [rest, claim].concat(),
                    "{claim}"
                );
            }
            assert_eq!(without_ours(claim), "");
        }
    }

    /// A million such fields, between others: a quadratic removal would take minutes.
    #[test]
    fn many_are_removed_in_one_walk() {
        let claims = "A: b\nAuthentication-Results: mx.axial.net; none\n".repeat(1_000_000);
        assert_eq!(without_ours(&claims), "A: b\n".repeat(1_000_000));
    }

    #[test]
    fn what_filters_write() {
        yes(&["mx.axial.net; dmarc=pass (p=none dis=none) header.from=gmail.com"]);
        yes(&["MX.Axial.net; dkim=pass header.i=@gmail.com header.s=20161025 header.b=AbC+/d=; \
              spf=pass (google.com: domain of a=b@gmail.com designates 192.0.2.1) smtp.mailfrom=a=b@gmail.com; \
              dmarc=pass (p=NONE sp=QUARANTINE dis=NONE) header.from=Gmail.COM"]);
        yes(&["mx.axial.net 1; dmarc = pass reason=\"all; is (well\" header.from = \"gmail.com\";"]);
        yes(&["mx.axial.net; spf=pass smtp.mailfrom=; dmarc=pass header.from=gmail.com"]);
        yes(&["(us) mx.axial.net (version) 1 ; dmarc/1=pass header.from=gmail.com policy.x=y"]);
    }

    #[test]
    fn the_result_has_to_be_pass_for_the_authors_domain() {
        no(&["mx.axial.net; dmarc=fail header.from=gmail.com"], "dmarc=fail");
        no(&["mx.axial.net; dmarc=none header.from=gmail.com"], "dmarc=none");
        no(&["mx.axial.net; dmarc=pass header.from=evil.example"], "dmarc=pass, but for evil.example");
        no(&["mx.axial.net; dmarc=pass header.from=mail.gmail.com"], "dmarc=pass, but for mail.gmail.com");
        no(&["mx.axial.net; dmarc=pass"], "dmarc=pass, but it names no header.from");
        no(&["mx.axial.net; dmarc=pass header.from=gmail.com; dmarc=fail"], "dmarc=fail");
    }

    #[test]
    fn only_the_topmost_of_ours_with_a_result_counts() {
        let good = "mx.axial.net; dmarc=pass header.from=gmail.com";
        yes(&["other.example; dmarc=fail header.from=gmail.com", good]);
        yes(&["mx.axial.net; spf=pass smtp.mailfrom=x", "mx.axial.net; none", good]);
        no(&["mx.axial.net; dmarc=fail header.from=gmail.com", good], "dmarc=fail");
        no(&["evil.example; dmarc=pass header.from=gmail.com"], NOTHING);
        no(&["mx.axial.net.evil.example; dmarc=pass header.from=gmail.com"], NOTHING);
        no(&["mx.axial.net; none"], NOTHING);
        no(&["mx.axial.net"], NOTHING);
        no(&[], NOTHING);
    }

    /// `postfix/header-checks.maildrop` removes fields with the plain spelling of this site's name, so no other spelling may
    /// count as it.
    #[test]
    fn our_name_has_one_spelling() {
        yes(&["\"mx.axial.net\"; dmarc=pass header.from=gmail.com"]);
        for id in
            ["\"mx\".axial.net", "mx.\"axial.net\"", "\"mx\".\"axial.net\"", "\"mx\\.axial.net\"", "mx.axial.net\"\""]
        {
            no(&[&format!("{id}; dmarc=pass header.from=gmail.com")], NOTHING);
        }
    }

    #[test]
    fn a_result_in_a_comment_or_a_string_is_none() {
        no(&["mx.axial.net; spf=pass (; dmarc=pass header.from=gmail.com)"], NOTHING);
        no(&["mx.axial.net; spf=pass smtp.mailfrom=\"x; dmarc=pass header.from=gmail.com\""], NOTHING);
        no(&["mx.axial.net; spf=pass ((\\)); dmarc=pass header.from=gmail.com)"], NOTHING);
        no(&["(mx.axial.net; dmarc=pass header.from=gmail.com)"], NOTHING);
    }

    #[test]
    fn what_cannot_be_read_is_no() {
        no(&["mx.axial.net; dmarc=pass (header.from=gmail.com"], UNREADABLE);
        no(&["mx.axial.net; dmarc=pass header.from=\"gmail.com"], UNREADABLE);
        no(&["mx.axial.net 2; dmarc=pass header.from=gmail.com"], UNREADABLE);
        no(&["mx.axial.net; dmarc pass"], UNREADABLE);
        no(&["mx.axial.net; dmarc=pass header.from=gmail.com; spf"], UNREADABLE);
        no(&["mx.axial.net; dmarc=pass header.from=gmail.com header.from=evil.example"], UNREADABLE);
        no(&["mx.axial.net; dmarc=pass) header.from=gmail.com"], UNREADABLE);
        let deep = format!("mx.axial.net; {}", "(".repeat(8000));
        no(&[&deep], UNREADABLE);
        no(&["", ";", "=", "\"", "(", ")"], NOTHING);
    }
}
