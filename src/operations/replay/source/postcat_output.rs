//! The output of postcat(1) for one or several queue files: the envelope's records, the message, and a few more records (Postfix,
//! `src/postcat/postcat.c`).
//!
//! ```text
//! *** ENVELOPE RECORDS deferred/E/E07D210813A ***
//! sender: lisa@gmail.com
//! original_recipient: alias@mail.axial.net
//! recipient: doug@mail.axial.net
//! done_recipient: scuba@mail.axial.net
//! *** MESSAGE CONTENTS deferred/E/E07D210813A ***
//! Received: …
//! *** HEADER EXTRACTED deferred/E/E07D210813A ***
//! *** MESSAGE FILE END deferred/E/E07D210813A ***
//! ```

use super::asctime;
use crate::operations::replay::PartialEnvelope;
use crate::operations::replay::lines::Line;
use memchr::memmem;

/// The beginning of the first line.
pub(crate) const BEGINNING: &[u8] = b"*** ENVELOPE RECORDS ";

/// Whether a file is in Postfix's own binary form: a record of type `C`, its length, and sizes as numbers
/// (`src/global/rec_type.h`).
pub(crate) fn is_raw(beginning: &[u8]) -> bool {
    let is_of_size = |byte: &u8| matches!(byte, b' ' | b'0'..=b'9');
    beginning.first() == Some(&b'C') && beginning.get(2..17).is_some_and(|size| size.iter().all(is_of_size))
}

/// The arrival time of the message, if this line has it.
pub(crate) fn date_of(line: &[u8]) -> Option<i64> {
    asctime(line.strip_prefix(b"message_arrival_time: ")?)
}

/// Finds the beginnings of queue files: at the top, and after the end of another one.
#[derive(Debug, Default)]
pub(crate) struct Divider {
    /// The last line of the queue file that is being read.
    end: Option<Vec<u8>>,
}

impl Divider {
    pub(crate) fn begins(&mut self, line: Line<'_>) -> bool {
        if let Some(end) = &self.end {
            if line.head.trim_ascii_end() == end.as_slice() {
                self.end = None;
            }
            return false;
        }
        self.end = name_of(BEGINNING, line.head).map(|name| marker("MESSAGE FILE END", name));
        self.end.is_some()
    }
}

/// The message, and the envelope in the records; or the problem.
pub(crate) fn message(mut piece: Vec<u8>) -> Result<(Vec<u8>, PartialEnvelope), &'static str> {
    const CUT: &str = "what postcat printed is not whole: no `*** HEADER EXTRACTED` and `*** MESSAGE FILE END` lines follow \
        the message";
    let name = piece.split(|&byte| byte == b'\n').next().and_then(|line| name_of(BEGINNING, line));
    let name = name.ok_or("what postcat printed does not begin with `*** ENVELOPE RECORDS`")?.to_vec();
    let contents = [b"\n".as_slice(), &marker("MESSAGE CONTENTS", &name), b"\n"].concat();
    let extracted = [b"\n".as_slice(), &marker("HEADER EXTRACTED", &name), b"\n"].concat();
    let contents_at = memmem::find(&piece, &contents)
        .ok_or("what postcat printed holds no message: neither -e nor -h nor -b with -q, or without it")?;
    let begin = contents_at + contents.len();
    // The last marker counts, since the message may contain such a line. For an empty message, one line end separates the two
    // markers.
    let end = memmem::rfind(piece.get(begin - 1..).unwrap_or_default(), &extracted).ok_or(CUT)? + begin - 1;
    let mut envelope = PartialEnvelope {
        queue_id: name.rsplit(|&byte| byte == b'/').next().map(|id| String::from_utf8_lossy(id).into_owned()),
        ..PartialEnvelope::default()
    };
    // More recipients may follow the message: from `sendmail -t`, or added by a filter.
    let behind = piece.get(end + extracted.len()..).unwrap_or_default();
    let file_end = marker("MESSAGE FILE END", &name);
    if !behind.split(|&byte| byte == b'\n').any(|line| line.trim_ascii_end() == file_end) {
        return Err(CUT);
    }
    if piece.get(begin..).is_some_and(|text| text.starts_with(b"regular_text: ")) {
        return Err("that is what `postcat -v` prints, with words before each line of the message: without -v");
    }
    let records = [piece.get(..contents_at), Some(behind)];
    records.into_iter().flatten().for_each(|records| read_records(records, &mut envelope));
    piece.truncate((end + 1).max(begin));
    piece.drain(..begin);
    Ok((piece, envelope))
}

fn read_records(records: &[u8], envelope: &mut PartialEnvelope) {
    let mut original = None;
    for line in String::from_utf8_lossy(records).lines() {
        let Some((name, value)) = line.split_once(": ").or_else(|| Some((line.strip_suffix(':')?, ""))) else {
            continue;
        };
        match name {
            "sender" => envelope.sender = Some(value.to_owned()),
            "original_recipient" => original = Some(value.to_owned()),
            "recipient" => envelope.recipients.push((value.to_owned(), original.take())),
            // This recipient already has the message, or the sender has a bounce.
            "done_recipient" => original = None,
            "named_attribute" => match value.split_once('=') {
                Some(("sasl_username", user)) => envelope.sasl_username = Some(user.to_owned()),
                Some(("log_client_address", address)) => envelope.client_address = Some(address.to_owned()),
                _ => {}
            },
            _ => {}
        }
    }
}

/// The name in `*** ENVELOPE RECORDS name ***`.
fn name_of<'a>(beginning: &[u8], line: &'a [u8]) -> Option<&'a [u8]> {
    line.trim_ascii_end().strip_prefix(beginning)?.strip_suffix(b" ***")
}

fn marker(what: &str, name: &[u8]) -> Vec<u8> {
    [b"*** ", what.as_bytes(), b" ", name, b" ***"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
*** ENVELOPE RECORDS deferred/E/E07D210813A ***
message_size:            5313             453               3               0            5313               0
message_arrival_time: Sat Nov 21 08:20:09 2026
named_attribute: sasl_username=lisa
sender: lisa@gmail.com
original_recipient: gone@mail.axial.net
done_recipient: gone@mail.axial.net
recipient: scuba@mail.axial.net
original_recipient: alias@mail.axial.net
recipient: doug@mail.axial.net
*** MESSAGE CONTENTS deferred/E/E07D210813A ***
From: lisa@gmail.com

*** HEADER EXTRACTED deferred/E/E07D210813A ***
recipient: mallory@example.com
*** MESSAGE FILE END other ***
*** HEADER EXTRACTED deferred/E/E07D210813A ***
named_attribute: message_id=<pc1@x>
*** MESSAGE FILE END deferred/E/E07D210813A ***
";

    #[test]
    fn the_envelope_and_the_message_are_read() {
        let (message, read) = message(PRINTED.as_bytes().to_vec()).unwrap();
        let text = String::from_utf8(message).unwrap();
        assert!(text.starts_with("From: lisa@gmail.com\n\n*** HEADER"), "{text}");
        assert!(text.ends_with("\n*** MESSAGE FILE END other ***\n"), "{text}");
        assert_eq!((read.sender.as_deref(), read.queue_id.as_deref()), (Some("lisa@gmail.com"), Some("E07D210813A")));
        assert_eq!(read.sasl_username.as_deref(), Some("lisa"));
        let alias = Some("alias@mail.axial.net".to_owned());
        assert_eq!(
            read.recipients,
            [("scuba@mail.axial.net".into(), None), ("doug@mail.axial.net".into(), alias)],
            "what the message says, and who is done, does not count"
        );
    }

    #[test]
    fn what_is_not_whole_is_not_delivered() {
        for end in ["*** MESSAGE CONTENTS", "\nFrom: ", "*** MESSAGE FILE END other"] {
            let cut = PRINTED.split_at(PRINTED.find(end).unwrap()).0;
            let cut = cut.replace("*** HEADER EXTRACTED", "***");
            assert!(message(cut.into_bytes()).is_err(), "{end}");
        }
        // A part with recipients may follow the message, so the end must be there.
        let cut = PRINTED.rsplit_once("*** MESSAGE FILE END").unwrap().0;
        assert!(message(cut.into()).unwrap_err().contains("not whole"));
        let in_words = PRINTED.replace("From: lisa", "regular_text: From: lisa");
        assert!(message(in_words.into_bytes()).unwrap_err().contains("postcat -v"));
        let empty = "*** ENVELOPE RECORDS x ***\nsender: \nrecipient: a@b\n*** MESSAGE CONTENTS x ***\n\
                     *** HEADER EXTRACTED x ***\n*** MESSAGE FILE END x ***\n";
        let (bytes, read) = message(empty.into()).unwrap();
        assert_eq!((bytes.len(), read.sender.as_deref(), read.recipients.len()), (0, Some(""), 1));
    }
}
