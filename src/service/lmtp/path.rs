//! The path of MAIL and RCPT: `<@relay:"odd name"@example.com>` (RFC 5321 section 4.1.2).

use thiserror::Error;

/// An address between `<` and `>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Path {
    /// The address as it was written, without a source route.
    pub written: Vec<u8>,
    /// The local part without quotes; then the `@` and the domain, if there is an `@`. pipe(8) without its flag q passes
    /// addresses in this form. So the ledger knows an address by one spelling, whatever the transport.
    pub address: String,
    /// Whether the address has an `@`.
    pub has_domain: bool,
}

impl Path {
    /// Whether this is `<>`, the null sender.
    pub(super) fn is_null(&self) -> bool {
        self.written.is_empty()
    }
}

/// Why the text can never be an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum PathError {
    #[error("the address has to stand between < and >")]
    NoBrackets,
    #[error("the address cannot be read")]
    NoAddress,
}

/// Parses a path. Returns it with the text after its `>`.
///
/// The domain and the dot-string of RFC 5321 are parsed leniently: there are real mailboxes such as `a..b@example.com`, and a
/// refusal would bounce their mail. Ambiguous text is refused.
pub(super) fn read(text: &[u8]) -> Result<(Path, &[u8]), PathError> {
    let text = text.strip_prefix(b"<").ok_or(PathError::NoBrackets)?;
    if let Some(rest) = text.strip_prefix(b">") {
        return Ok((Path::default(), rest));
    }
    let text = without_route(text)?;
    let (local, rest) = local_part(text)?;
    let mut address = local;
    let has_domain = rest.first() == Some(&b'@');
    let rest = if has_domain {
        let end = domain_end(rest)?;
        let (domain, rest) = rest.split_at_checked(end).ok_or(PathError::NoAddress)?;
        address.extend_from_slice(domain);
        rest
    } else {
        rest
    };
    let written = text.get(..text.len() - rest.len()).unwrap_or_default().to_vec();
    let rest = rest.strip_prefix(b">").ok_or(PathError::NoAddress)?;
    // Bytes that are not UTF-8 are replaced, as in a delivery through pipe(8).
    Ok((Path { written, address: String::from_utf8_lossy(&address).into_owned(), has_domain }, rest))
}

/// A source route is parsed and ignored (RFC 5321 section 4.1.1.3 and appendix C).
fn without_route(text: &[u8]) -> Result<&[u8], PathError> {
    if text.first() != Some(&b'@') {
        return Ok(text);
    }
    let colon = text.iter().position(|b| matches!(b, b':' | b'>' | b'"')).ok_or(PathError::NoAddress)?;
    let (route, rest) = text.split_at_checked(colon).ok_or(PathError::NoAddress)?;
    let hop = |hop: &[u8]| hop.first() == Some(&b'@') && domain_end(hop).is_ok_and(|end| end == hop.len());
    match rest.strip_prefix(b":") {
        Some(rest) if route.split(|b| *b == b',').all(hop) => Ok(rest),
        _ => Err(PathError::NoAddress),
    }
}

/// Parses words and quoted strings, up to `@` or `>`. Returns their content, and the text after them.
fn local_part(text: &[u8]) -> Result<(Vec<u8>, &[u8]), PathError> {
    let mut local = Vec::new();
    let mut bytes = text.iter();
    let mut quoted = false;
    loop {
        let rest = bytes.as_slice();
        let byte = *bytes.next().ok_or(PathError::NoAddress)?;
        match byte {
            _ if byte.is_ascii_control() => return Err(PathError::NoAddress),
            b'"' => quoted = !quoted,
            b'\\' if quoted => {
                let escaped = *bytes.next().filter(|b| !b.is_ascii_control()).ok_or(PathError::NoAddress)?;
                local.push(escaped);
            }
            _ if quoted => local.push(byte),
            b'@' | b'>' if local.is_empty() => return Err(PathError::NoAddress),
            b'@' | b'>' => return Ok((local, rest)),
            b' ' | b'<' | b'\\' | b'(' | b')' | b',' | b':' | b';' | b'[' | b']' => return Err(PathError::NoAddress),
            _ => local.push(byte),
        }
    }
}

/// The length of `@domain` or `@[192.0.2.1]` at the beginning of the text.
fn domain_end(text: &[u8]) -> Result<usize, PathError> {
    let literal = text.get(1) == Some(&b'[');
    let inside = |byte: &u8| match byte {
        b'-' | b'.' | b'_' => true,
        b':' if literal => true,
        byte => byte.is_ascii_alphanumeric() || !byte.is_ascii(),
    };
    let start = if literal { 2 } else { 1 };
    let length = text.get(start..).unwrap_or_default().iter().take_while(|byte| inside(byte)).count();
    let end = start + length;
    match (length, literal, text.get(end)) {
        (0, ..) => Err(PathError::NoAddress),
        (_, true, Some(b']')) => Ok(end + 1),
        (_, true, _) => Err(PathError::NoAddress),
        (_, false, _) => Ok(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> (String, String, String) {
        let (path, rest) = read(text.as_bytes()).unwrap();
        assert_eq!(path.has_domain, path.address.contains('@') && !path.address.ends_with('"'));
        let written = String::from_utf8(path.written).unwrap();
        (written, path.address, String::from_utf8(rest.to_vec()).unwrap())
    }

    #[test]
    fn an_address_is_read_as_the_pipe_would_hand_it_over() {
        for (text, written, address) in [
            ("<doug@mail.axial.net>", "doug@mail.axial.net", "doug@mail.axial.net"),
            ("<\"odd \\\"name\"@x>", "\"odd \\\"name\"@x", "odd \"name@x"),
            ("<\"a@b\"@c>", "\"a@b\"@c", "a@b@c"),
            ("<\"a>b\"@c>", "\"a>b\"@c", "a>b@c"),
            ("<\"a\".\"b c\"@x>", "\"a\".\"b c\"@x", "a.b c@x"),
            ("<a..b.@x>", "a..b.@x", "a..b.@x"),
            ("<@relay.test,@[192.0.2.1]:doug@x>", "doug@x", "doug@x"),
            ("<doug@[192.0.2.1]>", "doug@[192.0.2.1]", "doug@[192.0.2.1]"),
            ("<doug@[IPv6:2001:db8::1]>", "doug@[IPv6:2001:db8::1]", "doug@[IPv6:2001:db8::1]"),
            ("<jörg@müller.example>", "jörg@müller.example", "jörg@müller.example"),
            ("<a!b%c/d=e+f@x_y-z.>", "a!b%c/d=e+f@x_y-z.", "a!b%c/d=e+f@x_y-z."),
        ] {
            assert_eq!(of(text), (written.into(), address.into(), String::new()), "{text}");
        }
        assert_eq!(of("<a@b> SIZE=1").2, " SIZE=1");
        assert_eq!(of("<a@b>>").2, ">");
        assert_eq!(of("<postmaster>").1, "postmaster");
        assert!(read(b"<>").unwrap().0.is_null());
        assert_eq!(read(b"<j\xf6rg@x>").unwrap().0.address, "j\u{fffd}rg@x");
        assert_eq!(read(b"<j\xf6rg@x>").unwrap().0.written, b"j\xf6rg@x");
    }

    #[test]
    fn what_can_never_be_an_address_is_refused() {
        for text in ["", "doug@x", "doug@x>", " <a@b>", "[a@b]"] {
            assert_eq!(read(text.as_bytes()), Err(PathError::NoBrackets), "{text}");
        }
        for text in [
            "<",
            "<@>",
            "<@x>",
            "<doug@>",
            "<doug",
            "<doug@x",
            "<a@b@c>",
            "<a b@c>",
            "<a@b c>",
            "<\"a@b>",
            "<\"a\\",
            "<\"\"@x>",
            "<a\0b@c>",
            "<\"a\nb\"@c>",
            "<a@b\r>",
            "<a@b\n>",
            "<<a@b>>",
            "<a<b@c>",
            "<a\\b@c>",
            "<a@[1>",
            "<a@[]>",
            "<a@[1]x>",
            "<@:a@b>",
            "<@x,:a@b>",
            "<@x,y:a@b>",
            "<@x:>",
            "<@\"x:a@b>",
            "<a@b,c@d>",
            "<a,b@c>",
            "<a@b:c>",
            "<(c)a@b>",
        ] {
            assert_eq!(read(text.as_bytes()), Err(PathError::NoAddress), "{text:?}");
        }
    }
}
