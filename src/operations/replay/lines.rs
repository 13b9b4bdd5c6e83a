//! Reads a file line by line, however large the file is and however long its lines are.

use std::io::{self, BufRead, BufReader, Read};

/// The number of bytes of a line that are returned.
const HEAD: u64 = 512;

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
