//! The last lines that a process has written to standard error, in bounded memory.

use std::collections::VecDeque;

/// How many lines are kept.
const LINES: usize = 20;
/// How many bytes of one line are kept.
const LONGEST: usize = 500;

/// Splits bytes into lines, and keeps the last ones.
#[derive(Debug, Default)]
pub(super) struct StderrTail {
    lines: VecDeque<String>,
    /// The beginning of the incomplete line, up to `LONGEST` bytes.
    open: Vec<u8>,
}

impl StderrTail {
    /// Takes bytes. Returns the lines that they complete.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut ended = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            self.append(line);
            ended.extend(self.end_line());
            rest = after.get(1..).unwrap_or_default();
        }
        self.append(rest);
        ended
    }

    /// Ends the last line. Returns the kept lines, oldest first.
    pub(super) fn into_lines(mut self) -> Vec<String> {
        self.end_line();
        self.lines.into()
    }

    fn append(&mut self, bytes: &[u8]) {
        let room = LONGEST.saturating_sub(self.open.len()).min(bytes.len());
        self.open.extend_from_slice(bytes.get(..room).unwrap_or_default());
    }

    fn end_line(&mut self) -> Option<String> {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.open)).trim_end().to_owned();
        if line.is_empty() {
            return None;
        }
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line.clone());
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_pieces_and_the_last_need_not_end() {
        let mut tail = StderrTail::default();
        assert!(tail.take(b"thread main pan").is_empty());
        assert_eq!(tail.take(b"icked\r\n\nand\nag"), ["thread main panicked", "and"]);
        assert_eq!(tail.into_lines(), ["thread main panicked", "and", "ag"]);
    }

    #[test]
    fn however_much_is_written_little_is_kept() {
        let mut tail = StderrTail::default();
        for number in 0..10_000 {
            tail.take(format!("{number}\n").as_bytes());
        }
        tail.take(&vec![b'x'; 10_000_000]);
        assert_eq!(tail.open.len(), LONGEST);
        let lines = tail.into_lines();
        assert_eq!((lines.len(), lines[0].as_str(), lines[19].len()), (LINES, "9981", LONGEST));
    }
}
