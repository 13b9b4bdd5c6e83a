//! Reads a file line by line, however large the file is and however long its lines are.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;

/// The number of bytes of a line that are returned.
const HEAD: u64 = 512;

/// A part of a file. Several parts can read one open file at once: none moves its position.
#[derive(Debug)]
pub(crate) struct FilePart {
    file: File,
    at: u64,
    end: u64,
}

impl FilePart {
    /// Without a length, the part extends to the end of the file.
    pub(crate) fn new(file: File, offset: u64, length: Option<u64>) -> Self {
        Self { file, at: offset, end: length.map_or(u64::MAX, |length| offset.saturating_add(length)) }
    }

    pub(crate) fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }
}

impl Read for FilePart {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(buffer.get_mut(..room).unwrap_or_default(), self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// The offset of the line's beginning.
    pub(crate) offset: u64,
    /// The first [`HEAD`] bytes at most. A line that is shorter has its line end.
    pub(crate) head: &'a [u8],
}

impl Line<'_> {
    pub(crate) fn is_blank(&self) -> bool {
        matches!(self.head, b"\n" | b"\r\n")
    }
}

/// The lines of a file.
pub(crate) struct Lines<R> {
    input: BufReader<R>,
    head: Vec<u8>,
    /// The offset of the next line; after the last line, the number of bytes.
    pub(crate) at: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input: BufReader::with_capacity(64 * 1024, input), head: Vec::new(), at: 0 }
    }

    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let offset = self.at;
        self.head.clear();
        self.at += self.input.by_ref().take(HEAD).read_until(b'\n', &mut self.head)? as u64;
        if self.at == offset + HEAD && !self.head.ends_with(b"\n") {
            self.at += self.input.skip_until(b'\n')? as u64;
        }
        Ok((self.at > offset).then_some(Line { offset, head: &self.head }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_any_length_are_distinguished() {
        let long = vec![b'x'; 128 * 1024 + 7];
        let head = [b'x'; 511];
        let text = [b"a\n\r\n\n".as_slice(), &long, b"\n", &head, b"\nlast"].concat();
        let (mut lines, mut seen) = (Lines::new(text.as_slice()), Vec::new());
        while let Some(line) = lines.next().unwrap() {
            seen.push((line.offset, line.head.len(), line.is_blank()));
        }
        let end = 5 + long.len() as u64 + 1;
        let rest = [(5, 512, false), (end, 512, false), (end + 512, 4, false)];
        assert_eq!(seen, [[(0, 2, false), (2, 2, true), (4, 1, true)], rest].concat());
        assert_eq!(lines.at, text.len() as u64);
    }
}
