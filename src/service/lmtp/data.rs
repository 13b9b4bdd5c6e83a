//! The bytes after DATA, up to the line with a single dot.
//!
//! Only CR LF ends a line, so only CR LF `.` CR LF ends the data. If two servers differ in this, one message can smuggle another
//! past the first server (RFC 5321 section 4.1.1.4; Postfix, "SMTP Smuggling", 2023).
//!
//! This, and the parsing of commands, is why the crate smtp-proto is not used. Its version 0.2.5 takes CR LF `.` CR CR LF for the
//! end, and never finds the end of an empty message. It also drops a CR anywhere in a command.

use memchr::memchr;

/// Removes the dots of RFC 5321 section 4.5.2 (transparency), and finds the end.
#[derive(Debug)]
pub(super) struct DataReader(At);

/// The bytes just before the current position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// CR LF, or nothing yet: the command DATA ended with CR LF.
    LineStart,
    /// A dot at the beginning of a line.
    Dot,
    /// A dot at the beginning of a line, and a CR.
    DotCr,
    /// A CR.
    Cr,
    Inside,
}

impl DataReader {
    pub(super) fn new() -> Self {
        Self(At::LineStart)
    }

    /// Reads up to the end of the data. Returns how many bytes belong to it, and whether the end was found.
    pub(super) fn read(&mut self, input: &[u8], mut take: impl FnMut(&[u8])) -> (usize, bool) {
        let mut rest = input;
        while let Some(&byte) = rest.first() {
            // One byte is consumed, unless the branch changes this.
            let mut used = 1;
            self.0 = match (self.0, byte) {
                (At::LineStart, b'.') => At::Dot,
                (At::Dot, b'\r') => At::DotCr,
                (At::DotCr, b'\n') => return (input.len() - rest.len() + 1, true),
                // The CR belongs to the line, since no LF follows it.
                (At::DotCr, _) => {
                    take(b"\r");
                    used = 0;
                    At::Cr
                }
                (At::Cr, b'\n') => {
                    take(b"\n");
                    At::LineStart
                }
                (_, b'\r') => {
                    take(b"\r");
                    At::Cr
                }
                _ => {
                    used = memchr(b'\r', rest).unwrap_or(rest.len());
                    take(rest.get(..used).unwrap_or_default());
                    At::Inside
                }
            };
            rest = rest.get(used..).unwrap_or_default();
        }
        (input.len(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The received message, the bytes after it, and whether it has ended.
    fn read(pieces: &[&[u8]]) -> (Vec<u8>, Vec<u8>, bool) {
        let mut reader = DataReader::new();
        let (mut message, mut left, mut ended) = (Vec::new(), Vec::new(), false);
        for piece in pieces {
            let mut used = 0;
            if !ended {
                (used, ended) = reader.read(piece, |bytes| message.extend_from_slice(bytes));
            }
            left.extend_from_slice(&piece[used..]);
        }
        (message, left, ended)
    }

    /// Encodes a message as a client does (RFC 5321 section 4.5.2).
    fn sent(message: &[u8]) -> Vec<u8> {
        let mut sent = Vec::new();
        let mut line_start = true;
        for (at, &byte) in message.iter().enumerate() {
            if line_start && byte == b'.' {
                sent.push(b'.');
            }
            sent.push(byte);
            line_start = message[..=at].ends_with(b"\r\n");
        }
        if !line_start {
            sent.extend_from_slice(b"\r\n");
        }
        sent.extend_from_slice(b".\r\n");
        sent
    }

    #[test]
    fn only_a_dot_between_two_ends_of_lines_ends_the_data() {
        for (data, message) in [
            (&b".\r\n"[..], &b""[..]),
            (b"a\r\n.\r\n", b"a\r\n"),
            (b"..\r\n.\r\n", b".\r\n"),
            (b".a\r\n.\r\n", b"a\r\n"),
            (b"a\r\n..b\r\n.\r\n", b"a\r\n.b\r\n"),
            (b"a\n.\nb\r\n.\r\n", b"a\n.\nb\r\n"),
            (b"a\r.\r\nb\r\n.\r\n", b"a\r.\r\nb\r\n"),
            (b"a\n.\r\nb\r\n.\r\n", b"a\n.\r\nb\r\n"),
            (b"a\r\n.\nb\r\n.\r\n", b"a\r\n\nb\r\n"),
            (b"a\r\n.\rb\r\n.\r\n", b"a\r\n\rb\r\n"),
            (b"a\r\n.\r\r\nb\r\n.\r\n", b"a\r\n\r\r\nb\r\n"),
            (b"a\r\r\n.\r\n", b"a\r\r\n"),
            (b"a\0\xff\r\n.\r\n", b"a\0\xff\r\n"),
        ] {
            let behind = [data, b"QUIT\r\n"].concat();
            assert_eq!(read(&[&behind]), (message.to_vec(), b"QUIT\r\n".to_vec(), true), "{data:?}");
            let bytes: Vec<&[u8]> = behind.chunks(1).collect();
            assert_eq!(read(&bytes), (message.to_vec(), b"QUIT\r\n".to_vec(), true), "{data:?}");
            assert!(!read(&[&data[..data.len() - 1]]).2, "{data:?}");
        }
    }

    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'.'), Just(b'a')], 0..40)
    }

    proptest! {
        #[test]
        fn every_message_comes_as_it_was_sent_however_it_is_cut(message in hostile(), cuts in vec(0..80_usize, 0..6)) {
            let data = [sent(&message), b"QUIT\r\n".to_vec()].concat();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(data.len())).collect();
            cuts.sort_unstable();
            cuts.push(data.len());
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&data[from..cut]);
                from = cut;
            }
            let mut expected = message.clone();
            if !(expected.is_empty() || expected.ends_with(b"\r\n")) {
                expected.extend_from_slice(b"\r\n");
            }
            prop_assert_eq!(read(&pieces), (expected, b"QUIT\r\n".to_vec(), true));
        }
    }
}
