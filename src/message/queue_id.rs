//! The arrival time of a message, from its queue id: Postfix's, or that of our file queue.

/// The alphabet of long queue ids: the value of a digit is its index.
const DIGITS: &[u8; 52] = b"0123456789BCDFGHJKLMNPQRSTVWXYZbcdfghjklmnpqrstvwxyz";
/// The minimum number of digits of the seconds, and the exact number for the microseconds.
const SECONDS: usize = 6;
const MICROSECONDS: usize = 4;

/// When the message with this queue id was accepted, in microseconds since 1970, by the clock of its host. `None` for a short id
/// of Postfix, which does not contain it.
///
/// An id of our file queue, such as that of a submission, has the nanoseconds in twenty digits, `-`, and sixteen hexadecimal
/// digits.
///
/// A long id (postconf(5), `enable_long_queue_ids`; src/global/mail_queue.h) has the seconds and microseconds in base 52, then
/// `z`. The inode follows in base 51, which has no `z`.
pub(crate) fn arrived(queue_id: &str) -> Option<i64> {
    if let Some((nanoseconds, lock)) = queue_id.split_once('-') {
        let is_ours = nanoseconds.len() == 20 && lock.len() == 16;
        return nanoseconds.parse::<u64>().ok().filter(|_| is_ours).and_then(|time| i64::try_from(time / 1000).ok());
    }
    let (time, _inode) = queue_id.rsplit_once('z')?;
    let (seconds, microseconds) = time.as_bytes().split_at_checked(time.len().checked_sub(MICROSECONDS)?)?;
    if seconds.len() < SECONDS {
        return None;
    }
    let microseconds = number(microseconds).filter(|number| *number < 1_000_000)?;
    number(seconds)?.checked_mul(1_000_000)?.checked_add(microseconds)
}

/// Whether a text could be a short queue id: the microseconds and the inode in hexadecimal digits (Postfix's
/// src/global/mail_queue.h).
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
        // Ids of Postfix 3.10: `postqueue -j` reports 1795437995 for both.
        for id in ["4jY5Kl1pjDzBFGl", "4jY5Kl1wXzzBFGk"] {
            assert_eq!(arrived(id).unwrap() / 1_000_000, 1_795_437_995, "{id}");
        }
        assert!(arrived("4jY5Kl1pjDzBFGl") < arrived("4jY5Kl1wXzzBFGk"));
        assert_eq!(arrived("01700000000000001000-3eb0a00376717080"), Some(1_700_000_000_000_001));
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
