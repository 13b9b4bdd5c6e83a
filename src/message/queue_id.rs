//! When a message came, by Postfix's name for it.

/// The alphabet of long queue ids: a digit's value is its place.
const DIGITS: &[u8; 52] = b"0123456789BCDFGHJKLMNPQRSTVWXYZbcdfghjklmnpqrstvwxyz";
/// How many digits the seconds have at least, and the microseconds exactly.
const SECONDS: usize = 6;
const MICROSECONDS: usize = 4;

/// When Postfix took the message in that has this queue id, in microseconds since 1970, by that host's clock; `None` for a short id,
/// which does not say (postconf(5), `enable_long_queue_ids`: seconds and microseconds to the base of 52, `z`, and the inode to the
/// base of 51, in which there is no `z`; Postfix's src/global/mail_queue.h).
pub(crate) fn arrived(queue_id: &str) -> Option<i64> {
    let (time, _inode) = queue_id.rsplit_once('z')?;
    let (seconds, microseconds) = time.as_bytes().split_at_checked(time.len().checked_sub(MICROSECONDS)?)?;
    if seconds.len() < SECONDS {
        return None;
    }
    let microseconds = number(microseconds).filter(|number| *number < 1_000_000)?;
    number(seconds)?.checked_mul(1_000_000)?.checked_add(microseconds)
}

/// Whether a text could be a short queue id: the microseconds and the inode, in hexadecimal digits (Postfix's src/global/mail_queue.h).
pub(crate) fn is_like_a_short_one(text: &str) -> bool {
    text.len() >= 6 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'))
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0_i64, |number, digit| {
        let value = DIGITS.iter().position(|known| known == digit)?;
        number.checked_mul(52)?.checked_add(value.try_into().ok()?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_queue_id_says_when_its_message_came_and_a_short_one_does_not() {
        // From Postfix 3.10, where `postqueue -j` says 1795437995 of both.
        for id in ["4jY5Kl1pjDzBFGl", "4jY5Kl1wXzzBFGk"] {
            assert_eq!(arrived(id).unwrap() / 1_000_000, 1_795_437_995, "{id}");
        }
        assert!(arrived("4jY5Kl1pjDzBFGl") < arrived("4jY5Kl1wXzzBFGk"));
        // 999,999 microseconds, and a million.
        assert_eq!(arrived("00000075plzB"), Some(999_999));
        assert_eq!(arrived("00000075pmzB"), None);
        for other in [
            "",
            "z",
            "4F2A81234",
            "A1B2C3D4E5",
            "4jY5K1pjDzBFGl",
            "4jY5Kl1ajDzBFGl",
            "zzzzzzzzzzzzzzzzzzzzzzzzzz",
            "4jY5Klzzzzz1",
            "é4jY5Kl1pjDzB",
        ] {
            assert_eq!(arrived(other), None, "{other}");
        }
        assert!(is_like_a_short_one("4F2A81234"));
        for other in ["", "4F2A8", "scuba", "4jY5Kl1pjDzBFGl", "4f2a81234", "doug@x"] {
            assert!(!is_like_a_short_one(other), "{other}");
        }
    }
}
