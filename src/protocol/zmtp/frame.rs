//! Frames on the wire: flags, length, bytes (RFC 23, "Framing").

use super::error::ZmtpError;

/// More frames of the same message follow.
const MORE: u8 = 1;
/// The length has eight bytes instead of one.
const LONG: u8 = 2;
/// The frame is a command, not a part of a message.
const COMMAND: u8 = 4;
const KNOWN: u8 = MORE | LONG | COMMAND;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub more: bool,
    pub command: bool,
    pub length: u64,
}

impl Header {
    /// Parses a header, and returns it with its length in bytes; `None` if it is incomplete.
    ///
    /// # Errors
    /// If a flag is set that ZMTP does not have.
    pub fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, ZmtpError> {
        let Some((&flags, rest)) = bytes.split_first() else { return Ok(None) };
        let command = flags & COMMAND != 0;
        let more = flags & MORE != 0;
        // A command has only one frame.
        if flags & !KNOWN != 0 || (command && more) {
            return Err(ZmtpError::Flags(flags));
        }
        let read = if flags & LONG == 0 {
            rest.first().map(|length| (u64::from(*length), 2))
        } else {
            rest.first_chunk::<8>().map(|length| (u64::from_be_bytes(*length), 9))
        };
        Ok(read.map(|(length, size)| (Self { more, command, length }, size)))
    }
}

/// Writes a message. Without frames, nothing is written.
pub(super) fn write_message(frames: &[&[u8]], into: &mut Vec<u8>) {
    for (at, frame) in frames.iter().enumerate() {
        write_header(if at + 1 < frames.len() { MORE } else { 0 }, frame.len(), into);
        into.extend_from_slice(frame);
    }
}

/// Writes a command. Its name has at most 255 bytes.
pub(super) fn write_command(name: &[u8], body: &[u8], into: &mut Vec<u8>) {
    write_header(COMMAND, 1 + name.len() + body.len(), into);
    write_short(name, into);
    into.extend_from_slice(body);
}

/// Writes one byte of length and the text, which is truncated after 255 bytes.
pub(super) fn write_short(text: &[u8], into: &mut Vec<u8>) {
    let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
    into.push(length);
    into.extend(text.iter().take(usize::from(length)));
}

/// Parses a text with one byte of length. Returns it with the remaining bytes.
pub(super) fn read_short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(length))
}

fn write_header(flags: u8, length: usize, into: &mut Vec<u8>) {
    if let Ok(length) = u8::try_from(length) {
        into.extend_from_slice(&[flags, length]);
    } else {
        into.push(flags | LONG);
        into.extend_from_slice(&(length as u64).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(more: bool, command: bool, length: u64) -> Header {
        Header { more, command, length }
    }

    #[test]
    fn frames_look_as_the_rfc_says() {
        let mut bytes = Vec::new();
        write_message(&[b"", b"abc", &[7; 256]], &mut bytes);
        assert_eq!(bytes[..16], *b"\x01\0\x01\x03abc\x02\0\0\0\0\0\0\x01\0");
        assert_eq!(bytes.len(), 2 + 5 + 9 + 256);
        bytes.clear();
        write_message(&[&[7; 255]], &mut bytes);
        assert_eq!(bytes[..2], *b"\0\xff");
        bytes.clear();
        write_command(b"PONG", b"x", &mut bytes);
        assert_eq!(bytes, b"\x04\x06\x04PONGx");
        bytes.clear();
        write_message(&[], &mut bytes);
        assert!(bytes.is_empty());
    }

    #[test]
    fn a_header_is_read_when_all_of_it_is_there_and_not_before() {
        assert_eq!(Header::read(b"\x01\x05abc"), Ok(Some((header(true, false, 5), 2))));
        assert_eq!(Header::read(b"\x04\x05"), Ok(Some((header(false, true, 5), 2))));
        let long = b"\x02\0\0\0\0\0\x01\0\0x";
        assert_eq!(Header::read(long), Ok(Some((header(false, false, 65536), 9))));
        for end in 0..9 {
            assert_eq!(Header::read(&long[..end]), Ok(None));
        }
        assert_eq!(Header::read(b"\x06\xff\xff\xff\xff\xff\xff\xff\xff"), Ok(Some((header(false, true, u64::MAX), 9))));
        for flags in [8, 0x80, 5, 7, 0xff] {
            assert_eq!(Header::read(&[flags]), Err(ZmtpError::Flags(flags)), "{flags}");
        }
    }
}
