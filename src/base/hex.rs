//! Bytes as hexadecimal digits, and back.

/// Lower-case hexadecimal.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(if value < 10 { b'0' + value } else { b'a' + value - 10 });
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 0xf));
    }
    text
}

/// The bytes that these digits, of either case, encode. `None` for any other text, such as one with a sign or an odd number of
/// digits.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let mut bytes = Vec::with_capacity(pairs.len());
    for [high, low] in pairs {
        bytes.push(digit(*high)? << 4 | digit(*low)?);
    }
    rest.is_empty().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_back() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        assert_eq!(encode(&[0, 255, 127]), "00ff7f");
        assert_eq!(decode(&encode(&all)), Some(all.clone()));
        assert_eq!(decode(&encode(&all).to_uppercase()), Some(all));
        assert_eq!(decode(""), Some(vec![]));
        for wrong in ["0", "0g", "+1", "000", "ä", "0x", " 0"] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
