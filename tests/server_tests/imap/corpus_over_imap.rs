//! Real, and really broken, messages that others have collected: each is delivered to two recipients, read back over IMAP
//! and compared byte for byte; and is one message in everybody's copy. They lie beside the source tree, in
//! `shared/corpus`; without them there is nothing to see.

use crate::faults::bad_input::same;
use crate::support::database::Engine;
use crate::support::imap_server::{Server, new_copy, somebody};
use crate::support::program::{as_delivered, feed};
use crate::support::site_fixture::Scene;
use maildrop_command::mailbox::{Appended, Mailbox};
use maildrop_command::message::{Identity, Message};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many deliveries run at once.
const AT_ONCE: usize = 4;

/// Where from, and the bytes; none that is the same message as another.
fn collected() -> Vec<(String, Vec<u8>)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus")];
    let (mut messages, mut seen) = (Vec::new(), HashSet::new());
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "eml" || extension == "msg") {
                let bytes = std::fs::read(&path).unwrap();
                if seen.insert(Identity::of(&bytes)) {
                    messages.push((path.display().to_string(), bytes));
                }
            }
        }
    }
    messages
}

/// As pipe(8) hands it over for this recipient, with its flags D, O and R.
fn handed_over(recipient: &str, raw: &[u8]) -> Vec<u8> {
    let lines = format!(
        "Return-Path: <lisa@gmail.com>\nX-Original-To: {recipient}@x\nDelivered-To: {recipient}@mail.axial.net\n"
    );
    [lines.as_bytes(), raw].concat()
}

#[test]
fn each_is_in_both_mailboxes_as_it_came() {
    const RECIPIENTS: [&str; 2] = ["doug", "scuba"];
    let mut scene = Scene::with(Engine::Postgres17, &RECIPIENTS);
    let messages = collected();
    let deliveries: Vec<_> = messages
        .iter()
        .flat_map(|(path, raw)| {
            RECIPIENTS.map(|recipient| {
                // Some of them share their Message-ID, and so their lock.
                let command = scene.command(recipient, &["--lock-wait", "60s"]);
                (path, std::sync::Mutex::new(Some(command)), handed_over(recipient, raw))
            })
        })
        .collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((path, command, bytes)) = deliveries.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let outcome = feed(command.lock().unwrap().take().unwrap(), bytes);
                    assert_eq!(outcome.exit, Some(0), "{path}: {outcome:?}");
                    assert!(outcome.delivered().starts_with("INBOX appended"), "{path}: {outcome:?}");
                }
            });
        }
    });

    for recipient in RECIPIENTS {
        let mut inbox: HashMap<Identity, Vec<u8>> =
            scene.inbox(recipient).into_iter().map(|copy| (Identity::of(&copy.content), copy.content)).collect();
        for (path, raw) in &messages {
            let copy = inbox.remove(&Identity::of(raw)).unwrap_or_else(|| panic!("{recipient} has no copy of {path}"));
            same(path, &copy, &as_delivered(&handed_over(recipient, raw)));
        }
        assert!(inbox.is_empty(), "{recipient} has {} copies of what nobody sent", inbox.len());
    }
    // One row for each message, not for each copy.
    assert_eq!(scene.database.count("SELECT count(*) FROM messages"), i64::try_from(messages.len()).unwrap());
    assert_eq!(scene.database.count("SELECT count(*) FROM copies"), i64::try_from(2 * messages.len()).unwrap());
}

/// Cyrus writes an X for each byte beyond ASCII in a header (imapd.conf(5), `munge8bit`) and refuses what it takes for
/// malformed; all else is there as it came, and what it has changed is the same message still.
#[test]
fn cyrus_gives_back_what_it_took() {
    let [doug, scuba] = ["doug", "scuba"].map(somebody);
    let mut refused = 0;
    let messages = collected();
    let [mut first, mut second] = [&doug, &scuba].map(|user| Server::Cyrus.open(user, "INBOX"));
    let mut taken = Vec::new();
    for (path, raw) in &messages {
        let copies = [("doug", &mut first), ("scuba", &mut second)].map(|(recipient, mailbox)| {
            let message = Message::receive(handed_over(recipient, raw)).unwrap();
            match mailbox.append(&new_copy(&message), &mut || true) {
                Appended::Stored(_) => Some(message),
                Appended::Refused(_) => None,
                other => panic!("{path}: {other:?}"),
            }
        });
        match copies {
            [Some(first), Some(second)] => {
                assert_eq!(first.identity(), second.identity(), "{path}");
                taken.push((path, first, second));
            }
            [None, None] => refused += 1,
            _ => panic!("{path}: taken for one and refused for the other"),
        }
    }
    println!("Cyrus took {} of {} messages", taken.len(), messages.len());
    assert!(refused <= messages.len() / 4, "{refused} of {} were refused", messages.len());
    let [doug, scuba] = [&doug, &scuba].map(|user| Server::Cyrus.mail_program(user).messages("INBOX"));
    assert_eq!((doug.len(), scuba.len()), (taken.len(), taken.len()));
    for (((path, first, second), doug), scuba) in taken.iter().zip(doug).zip(scuba) {
        for (message, copy) in [(first, doug), (second, scuba)] {
            assert_eq!(Identity::of(&copy.content), *message.identity(), "{path}");
            if message.as_received().is_ascii() {
                same(path, &copy.content, message.as_received());
            }
        }
    }
}
