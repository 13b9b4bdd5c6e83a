//! The line to the mailbox store is slow: a large message to several recipients takes longer than one try, and arrives all the same.
//!
//! `MAILDROP_TEST_MEGABYTES=20` sends so many to eight recipients, by the default deadline: some seven minutes.

use crate::support::database::Engine;
use crate::support::env_if_there;
use crate::support::lmtp::Lmtp;
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use crate::support::wire::Wire;

/// More to upload than fits into one try, and each copy takes longer than a second for each megabyte.
struct Size {
    recipients: usize,
    megabytes: usize,
    deadline: u32,
}

const BYTES_PER_SECOND: u32 = 400_000;

/// Postfix tries again those who were deferred, and nobody else.
fn all_are_delivered_to(Size { recipients, megabytes, deadline }: Size) {
    let names: Vec<String> = (0..recipients).map(|number| format!("user{number}")).collect();
    let mut scene = Scene::with(Engine::Postgres17, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let slow = Wire::slow(scene.settings.imap.clone(), BYTES_PER_SECOND);
    scene.configure(|settings| {
        settings.imap = (slow.address.ip().to_string(), slow.address.port());
        settings.more = format!("[delivery]\ndeadline = \"{deadline}s\"\n");
    });
    let service = Service::start_with(&mut scene, "workers = 2\nslow_mailbox_timeout = \"2s\"\n", &[]);
    let line = format!("{}\r\n", "x".repeat(98));
    let message = scene.message("large") + &line.repeat(megabytes * 10_000);
    let mut left: Vec<String> = names.iter().map(|name| format!("{name}@mail.axial.net")).collect();
    let mut tries = 0;
    while !left.is_empty() {
        let replies = Lmtp::connect(&service.socket).deliver(LISA, &left, &message);
        let before = left.len();
        left =
            left.into_iter().zip(&replies).filter(|(_, reply)| !reply.starts_with("250 ")).map(|(to, _)| to).collect();
        assert!(left.len() < before, "a try has delivered to nobody: {replies:?}");
        tries += 1;
    }
    service.end();
    assert!(tries > 1, "the line is not slow");
    for name in &names {
        assert_eq!(scene.inbox(name).len(), 1, "{name}");
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}

#[test]
fn a_large_message_to_several_recipients_arrives_over_a_slow_line_within_some_tries() {
    all_are_delivered_to(match env_if_there("MAILDROP_TEST_MEGABYTES") {
        None => Size { recipients: 4, megabytes: 3, deadline: 36 },
        Some(megabytes) => Size { recipients: 8, megabytes: megabytes.parse().expect("a number"), deadline: 240 },
    });
}
