//! Collections of real, and really broken, messages: each is delivered as it came, and is recognised again whatever
//! happened to it on the way. They lie beside the source tree, in `shared/corpus`; without them there is nothing to see.

use maildrop_command::message::{Identity, Message};
use std::fs;
use std::path::{Path, PathBuf};

fn corpus() -> Vec<(PathBuf, Vec<u8>)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus")];
    let mut messages = Vec::new();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "eml" || e == "msg") {
                messages.push((path.clone(), fs::read(path).unwrap()));
            }
        }
    }
    messages
}

/// What is left to compare when line ends and NUL are not: no CR, no line ends at the end, 0x80 for NUL.
fn gist(bytes: &[u8]) -> Vec<u8> {
    let mut gist: Vec<u8> = bytes.iter().filter(|&&b| b != b'\r').map(|&b| if b == 0 { 0x80 } else { b }).collect();
    while gist.last() == Some(&b'\n') {
        gist.pop();
    }
    gist
}

fn with_lf(bytes: &[u8]) -> Vec<u8> {
    let mut lf = Vec::new();
    for (at, &byte) in bytes.iter().enumerate() {
        if byte != b'\r' || bytes.get(at + 1) != Some(&b'\n') {
            lf.push(byte);
        }
    }
    lf
}

#[test]
fn the_bytes_are_the_same_but_for_line_ends_and_nul() {
    for (path, raw) in corpus() {
        let message = Message::receive(raw.clone()).unwrap();
        // `From  : John Doe`, the example of the obsolete syntax, is no mbox line.
        let first_line = raw.split_inclusive(|&b| b == b'\n').next().unwrap();
        let mbox_line = first_line.starts_with(b"From ") && !first_line.starts_with(b"From  : ");
        let kept = if mbox_line { &raw[first_line.len()..] } else { &raw[..] };
        assert_eq!(gist(message.as_received()), gist(kept), "{}", path.display());
        assert!(message.as_received().ends_with(b"\r\n"), "{}", path.display());
        let bare = message.as_received().windows(2).any(|pair| pair[1] == b'\n' && pair[0] != b'\r');
        assert!(!bare && !message.as_received().contains(&0), "{}", path.display());
    }
}

#[test]
fn every_copy_has_the_identity_of_the_original() {
    for (path, raw) in corpus() {
        let identity = Identity::of(&raw);
        let message = Message::receive(raw.clone()).unwrap();
        let bytes = message.as_received();
        let prepended = b"Return-Path: <lisa@gmail.com>\nX-Original-To: doug@x\nDelivered-To: doug@mail.axial.net\n";
        let received = b"Received: from a by b\n\tfor <doug@mail.axial.net>; Fri, 20 Nov 2026 13:00:00 +0100\n";
        for (what, copy) in [
            ("as appended", bytes.to_vec()),
            ("without prepended lines", message.without_prepended_lines().to_vec()),
            ("with LF", with_lf(bytes)),
            ("with a blank line at the end", [bytes, b"\r\n"].concat()),
            ("with prepended lines", [&prepended[..], bytes].concat()),
            ("with prepended lines and LF", [&prepended[..], &with_lf(bytes)].concat()),
            ("with another Received", [&received[..], bytes].concat()),
            ("with an mbox line", [b"From lisa@gmail.com Fri Nov 20 13:00:00 2026\n", bytes].concat()),
        ] {
            // Without an id or a date, only the Received fields tell one night's message of a device from the next one's.
            let received_is_identity = message.message_id().is_none() || message.topmost("Date").is_none();
            if what == "with another Received" && received_is_identity {
                assert_ne!(Identity::of(&copy), identity, "{} {what}", path.display());
                continue;
            }
            assert_eq!(Identity::of(&copy), identity, "{} {what}", path.display());
            let again = Message::receive(copy).unwrap();
            assert_eq!(*again.identity(), identity, "{} {what}, received", path.display());
            assert_eq!(again.lock_subject(), message.lock_subject(), "{} {what}", path.display());
        }
    }
}

/// With what a recipient's copy has besides: lines of pipe(8), and a Received line that says for whom it is.
#[test]
fn the_filtered_form_of_each_copy_has_the_identity_of_the_original() {
    let secret = "whistleblower@y.example";
    let received = format!("Received: from a by b\r\n\tfor <{secret}>; Fri, 20 Nov 2026 13:00:00 +0100\r\n");
    let lines = format!("Return-Path: <lisa@gmail.com>\r\nDelivered-To: {secret}\r\n{received}Bcc: {secret}\r\n");
    for (path, raw) in corpus() {
        let original = Message::receive([lines.as_bytes(), &raw].concat()).unwrap();
        let identity = *original.identity();
        let appended = original.clone().for_any_recipient();
        assert_eq!(Identity::of(appended.as_received()), identity, "{}", path.display());
        let received_is_identity = original.message_id().is_none() || original.topmost("Date").is_none();
        let names = |bytes: &[u8]| memmem(bytes, secret.as_bytes());
        assert_eq!(names(appended.as_received()), received_is_identity, "{}", path.display());
        let shown = original.clone().for_display();
        assert!(!names(shown.as_received()) && !original.headers_json().contains(secret), "{}", path.display());
    }
}

fn memmem(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn no_two_of_them_are_taken_for_the_same_message() {
    let mut seen: std::collections::HashMap<Identity, (PathBuf, Vec<u8>)> = std::collections::HashMap::new();
    for (path, raw) in corpus() {
        if let Some((other, bytes)) = seen.insert(Identity::of(&raw), (path.clone(), raw.clone())) {
            let what_was_written = |raw: &[u8]| {
                let gist = String::from_utf8_lossy(&gist(raw)).into_owned();
                // One example of RFC 5322 is another one on its way: A.4 is A.1.1 with Received fields at the top.
                gist.find("From: ")
                    .filter(|_| gist.starts_with("Received: "))
                    .map_or(gist.clone(), |at| gist[at..].into())
            };
            assert_eq!(what_was_written(&bytes), what_was_written(&raw), "{} {}", path.display(), other.display());
        }
    }
}

#[test]
fn what_is_read_for_the_ledger_is_fit_for_it() {
    for (path, raw) in corpus() {
        let message = Message::receive(raw).unwrap();
        let texts = [message.from(), message.to(), message.cc(), message.subject(), message.message_id()];
        for text in texts.into_iter().flatten() {
            assert!(!text.contains(char::is_control) && text.len() <= 8192, "{}: {text:?}", path.display());
        }
        let fields: Vec<[String; 2]> = serde_json::from_str(&message.headers_json()).unwrap();
        assert!(fields.iter().flatten().all(|text| !text.contains('\0')), "{}", path.display());
    }
}
