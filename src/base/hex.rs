//! Bytes as hexadecimal digits, and back.

/// Lower-case hexadecimal.
#[must_use]
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
#[must_use]
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? * 16 + digit(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(byte).collect()
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
