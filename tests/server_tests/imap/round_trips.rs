//! A delivery's time goes into waiting for the server. So the number of waits is part of what is promised.

use crate::support::imap_server::{Server, message, position, stored};
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::imap::Settings;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Passes everything on to the server, and counts how often the server speaks after the client has.
fn counting(server: Server) -> (Settings, Arc<AtomicUsize>) {
    let (host, port) = server.address();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap().port();
    let trips = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&trips);
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut upstream = TcpStream::connect((host, port)).unwrap();
        client.set_nodelay(true).unwrap();
        upstream.set_nodelay(true).unwrap();
        let (mut to_client, mut from_server) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
        let clients_turn = Arc::new(AtomicBool::new(false));
        let servers_turn = Arc::clone(&clients_turn);
        std::thread::spawn(move || {
            let mut chunk = [0; 65536];
            while let Ok(read @ 1..) = from_server.read(&mut chunk) {
                if servers_turn.swap(false, Ordering::SeqCst) {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
                to_client.write_all(&chunk[..read]).unwrap();
            }
        });
        let mut chunk = [0; 65536];
        while let Ok(read @ 1..) = client.read(&mut chunk) {
            clients_turn.store(true, Ordering::SeqCst);
            upstream.write_all(&chunk[..read]).unwrap();
        }
    });
    let address = Endpoint::Tcp { host: "127.0.0.1".into(), port: here };
    (Settings { address, ..server.settings() }, trips)
}

#[test]
fn login_position_and_append_cost_one_each() {
    let (settings, trips) = counting(Server::Dovecot);
    let session =
        crate::support::imap_server::log_in(&settings, &crate::support::imap_server::somebody("trips")).unwrap();
    assert_eq!(trips.swap(0, Ordering::SeqCst), 1, "AUTHENTICATE");
    let mut mailbox = session.open("INBOX");
    position(&mut mailbox);
    assert_eq!(trips.swap(0, Ordering::SeqCst), 1, "STATUS");
    stored(&mut mailbox, &message("<a@b>", "x"));
    assert_eq!(trips.swap(0, Ordering::SeqCst), 1, "APPEND");
}

/// Mailboxes are asked side by side; what one has said holds for one question.
#[test]
fn a_mailbox_that_was_asked_ahead_is_not_asked_again_at_once() {
    let (settings, trips) = counting(Server::Dovecot);
    let user = crate::support::imap_server::somebody("ahead");
    let session = crate::support::imap_server::log_in(&settings, &user).unwrap();
    trips.store(0, Ordering::SeqCst);
    let mut mailbox = session.open("INBOX").ask_position().unwrap();
    assert_eq!(trips.swap(0, Ordering::SeqCst), 1, "STATUS");
    let first = position(&mut mailbox);
    assert_eq!(trips.swap(0, Ordering::SeqCst), 0, "it was asked ahead");
    stored(&mut mailbox, &message("<a@b>", "x"));
    trips.store(0, Ordering::SeqCst);
    assert_eq!(position(&mut mailbox).uid_next, first.uid_next + 1);
    assert_eq!(trips.swap(0, Ordering::SeqCst), 1, "STATUS");
}
