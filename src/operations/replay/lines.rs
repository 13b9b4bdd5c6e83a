//! A file line by line, however large it is and however long its lines are.

use memchr::memchr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// How much of a line is shown.
const HEAD: usize = 512;
/// How much is read at a time.
const PIECE: usize = 64 * 1024;

/// A part of a file, read from where it begins. Readers of one file do not disturb each other: there is no position that
/// they share.
#[derive(Debug)]
pub(crate) struct Window {
    file: File,
    at: u64,
    end: u64,
}

impl Window {
    pub fn new(file: File, offset: u64, length: u64) -> Self {
        Self { file, at: offset, end: offset.saturating_add(length) }
    }
}

impl Read for Window {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(buffer.get_mut(..room).unwrap_or_default(), self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// A line of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    /// Where it begins.
    pub offset: u64,
    /// Its first 512 bytes at most, the line end included.
    pub head: &'a [u8],
}

impl Line<'_> {
    /// Whether nothing stands in it.
    pub(crate) fn is_blank(&self) -> bool {
        matches!(self.head, b"\n" | b"\r\n")
    }
}

/// Shows each line, and says how many bytes there were.
pub(crate) fn each_line<E: From<io::Error>>(
    mut input: impl Read,
    mut see: impl FnMut(Line<'_>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut buffer = vec![0; PIECE];
    let mut head = Vec::with_capacity(HEAD);
    let (mut line_at, mut at) = (0, 0_u64);
    loop {
        let read = match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        let mut rest = buffer.get(..read).unwrap_or_default();
        while !rest.is_empty() {
            let end = memchr(b'\n', rest).map(|end| end + 1);
            let (piece, after) = rest.split_at_checked(end.unwrap_or(rest.len())).unwrap_or((rest, &[]));
            let room = piece.len().min(HEAD - head.len());
            head.extend_from_slice(piece.get(..room).unwrap_or_default());
            at += piece.len() as u64;
            rest = after;
            if end.is_some() {
                see(Line { offset: line_at, head: &head })?;
                head.clear();
                line_at = at;
            }
        }
    }
    if at > line_at {
        see(Line { offset: line_at, head: &head })?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_any_length_are_told_apart() {
        let long = vec![b'x'; PIECE * 2 + 7];
        let text = [b"a\n\r\n\n".as_slice(), &long, b"\nlast"].concat();
        let mut seen = Vec::new();
        let size = each_line(text.as_slice(), |line| {
            seen.push((line.offset, line.head.len(), line.is_blank()));
            Ok::<(), io::Error>(())
        });
        assert_eq!(size.unwrap(), text.len() as u64);
        let end = 5 + long.len() as u64 + 1;
        assert_eq!(seen, [(0, 2, false), (2, 2, true), (4, 1, true), (5, HEAD, false), (end, 4, false)]);
    }
}
