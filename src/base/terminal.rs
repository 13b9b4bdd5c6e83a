//! Output for people: one line on standard error, text from outside without control characters, and words to paste into a shell.

use crate::base::log::is_unsafe;
use std::io::Write;

/// Prints an error of a subcommand other than `deliver`; the text says how to fix it.
pub(crate) fn complain(text: &str) {
    complain_as("maildrop_command", text);
}

/// Prints an error under the name of this program.
pub(crate) fn complain_as(program: &str, text: &str) {
    let _ = writeln!(std::io::stderr(), "{program}: {}", printable(text));
}

/// Replaces unsafe characters with `?`. Text of servers and messages must not move the cursor of the terminal, or reverse the
/// text beside it.
pub(crate) fn printable(text: &str) -> String {
    text.replace(|c: char| is_unsafe(c) && c != '\n', "?")
}

/// A word, quoted for a shell if it has to be.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_turns_a_line_round() {
        assert_eq!(printable("a\x1b[2J\u{202e}cod.exe\u{2066}\nb ü עב"), "a?[2J?cod.exe?\nb ü עב");
        assert_eq!(printable("1\u{200e}2\u{200f}3\u{61c}4\u{2028}5\u{2029}6\u{9b}7\u{7f}"), "1?2?3?4?5?6?7?");
    }

    #[test]
    fn a_word_that_a_shell_would_read_otherwise_is_quoted() {
        for plain in ["doug@axial.net", "--recipient=a_b+c%d:e,f.g/h-1"] {
            assert_eq!(shell_word(plain), plain);
        }
        for (word, quoted) in [("", "''"), ("a b", "'a b'"), ("$HOME", "'$HOME'"), ("it's", r"'it'\''s'"), ("ü", "'ü'")]
        {
            assert_eq!(shell_word(word), quoted);
        }
    }
}
