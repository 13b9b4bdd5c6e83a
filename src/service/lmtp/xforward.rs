//! XFORWARD: Postfix's information about the client from which it got a message (its XFORWARD_README).

/// The names that LHLO offers.
pub(super) const NAMES: &str = "NAME ADDR PORT PROTO HELO IDENT SOURCE";

/// The attributes that are used, for the next message. The others are parsed and ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Forwarded {
    pub client_address: Option<String>,
    /// Postfix's queue id.
    pub queue_id: Option<String>,
}

impl Forwarded {
    /// Adds the attributes of a further command: Postfix sends two for a message.
    pub(super) fn add(&mut self, more: Self) {
        self.client_address = more.client_address.or(self.client_address.take());
        self.queue_id = more.queue_id.or(self.queue_id.take());
    }
}

/// Parses the attributes. `None` if there is none, if one is not offered, or if a value is not xtext.
pub(super) fn read(argument: &[u8]) -> Option<Forwarded> {
    let mut words = argument.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty()).peekable();
    words.peek()?;
    let mut forwarded = Forwarded::default();
    for word in words {
        let at = word.iter().position(|byte| *byte == b'=')?;
        let name = std::str::from_utf8(word.get(..at)?).ok()?.to_ascii_uppercase();
        let value = known(&xtext(word.get(at + 1..)?)?);
        match name.as_str() {
            "ADDR" => forwarded.client_address = value.and_then(|address| client_address(&address)),
            "IDENT" => forwarded.queue_id = value,
            name if NAMES.split(' ').any(|offered| offered == name) => {}
            _ => return None,
        }
    }
    Some(forwarded)
}

/// The value as text. `None` if Postfix does not know it, or if it is not one word of printable ASCII: it goes to the log and to
/// the database.
fn known(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    let word = (1..=255).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    let unknown = ["[UNAVAILABLE]", "[TEMPUNAVAIL]"].iter().any(|unknown| text.eq_ignore_ascii_case(unknown));
    (word && !unknown).then(|| text.to_owned())
}

/// `192.0.2.7`, or `IPV6:2001:db8::7`.
fn client_address(text: &str) -> Option<String> {
    let prefixed = text.split_at_checked("IPV6:".len()).filter(|(prefix, _)| prefix.eq_ignore_ascii_case("IPV6:"));
    let address = prefixed.map_or(text, |(_, address)| address);
    address.parse::<std::net::IpAddr>().ok().map(|_| address.to_owned())
}

/// Decodes xtext (RFC 3461 section 4), in which `+2B` is `+`.
fn xtext(text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => {
                let mut digit = || char::from(*bytes.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                decoded.push(u8::try_from(high * 16 + low).ok()?);
            }
            b'=' => return None,
            byte if byte.is_ascii_graphic() => decoded.push(*byte),
            _ => return None,
        }
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarded(lines: &[&str]) -> (Option<String>, Option<String>) {
        let mut forwarded = Forwarded::default();
        for line in lines {
            forwarded.add(read(line.as_bytes()).unwrap());
        }
        (forwarded.client_address, forwarded.queue_id)
    }

    #[test]
    fn what_postfix_says_is_taken_word_by_word() {
        let both = |address: &str, id: &str| (Some(address.to_owned()), Some(id.to_owned()));
        assert_eq!(
            forwarded(&["NAME=mail.example ADDR=192.0.2.7 PORT=4711 PROTO=ESMTP", "HELO=x IDENT=4bXyz1 SOURCE=REMOTE"]),
            both("192.0.2.7", "4bXyz1")
        );
        assert_eq!(forwarded(&["addr=IPV6:2001:db8::7 ident=a+2Bb"]), both("2001:db8::7", "a+b"));
        assert_eq!(forwarded(&["ADDR=[UNAVAILABLE] IDENT=+5BUNAVAILABLE+5D"]), (None, None));
        assert_eq!(forwarded(&["ADDR=192.0.2.7 IDENT=4bXyz0", "IDENT=4bXyz1"]), both("192.0.2.7", "4bXyz1"));
        assert_eq!(forwarded(&["ADDR=mail.example IDENT="]), (None, None));
        // No terminal control sequence and no line end.
        assert_eq!(forwarded(&["IDENT=a+0Ab"]), (None, None));
        assert_eq!(forwarded(&["IDENT=a+20b"]), (None, None));
        assert_eq!(forwarded(&["HELO=+FF"]), (None, None));
    }

    #[test]
    fn what_is_not_offered_or_no_xtext_is_refused() {
        for line in [
            "",
            "LOGIN=x",
            "ADDR",
            "=x",
            "IDENT=+",
            "IDENT=+4",
            "IDENT=+4g",
            "IDENT=a=b",
            "IDENT=\u{e9}",
            "ADDR=1.2.3.4 X",
        ] {
            assert_eq!(read(line.as_bytes()), None, "{line:?}");
        }
    }
}
