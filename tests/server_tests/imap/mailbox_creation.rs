//! The first message that Lisa ever sends from here: the deliveries to all of its recipients find that she has no Sent
//! mailbox, and make it, in the same instant.

use crate::support::imap_server::{Server, somebody};
use maildrop_command::mailbox::Mailbox;
use std::collections::BTreeSet;
use std::sync::Barrier;

const DELIVERIES: usize = 8;

fn all_of_them_learn_where_it_stands(server: Server, users: usize) {
    for _ in 0..users {
        let user = somebody("first");
        // Cyrus's users are brought into being by their first mailbox: that is not what is tried here.
        server.open(&user, "INBOX").position().unwrap();
        let together = Barrier::new(DELIVERIES);
        let stands = std::thread::scope(|scope| {
            let deliveries: Vec<_> = (0..DELIVERIES)
                .map(|_| {
                    scope.spawn(|| {
                        let mut sent = server.open(&user, "Sent");
                        together.wait();
                        sent.position()
                    })
                })
                .collect();
            deliveries.into_iter().map(|delivery| delivery.join().unwrap()).collect::<Vec<_>>()
        });
        let uid_validities: BTreeSet<u32> = stands
            .into_iter()
            .map(|position| position.unwrap_or_else(|error| panic!("{server:?}: {error}")).unwrap().uid_validity)
            .collect();
        assert_eq!(uid_validities.len(), 1, "{server:?}: one mailbox, by one process");
    }
}

#[test]
fn on_dovecot() {
    all_of_them_learn_where_it_stands(Server::Dovecot, 25);
}

#[test]
fn on_cyrus() {
    all_of_them_learn_where_it_stands(Server::Cyrus, 5);
}
