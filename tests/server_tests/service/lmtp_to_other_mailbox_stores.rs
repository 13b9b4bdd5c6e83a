//! The whole service, by LMTP, where mailboxes are on Cyrus, and in Dovecot's sdbox: several recipients of one message, one of them over
//! quota, one whom nobody knows, and their author's copy. The other tests of this folder have Dovecot's Maildirs.

use crate::support::database::Engine;
use crate::support::imap::Imap;
use crate::support::imap_server::Server;
use crate::support::lmtp::Lmtp;
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};

const FIVE: [&str; 5] = ["doug", "full", "scuba", "stranger", "kim"];

/// Whose mailbox is on which store, and as whom he logs in there.
struct Store<'a> {
    server: Server,
    user: &'a dyn Fn(&str) -> String,
}

impl Store<'_> {
    fn look(&self, name: &str) -> Imap {
        self.server.mail_program(&(self.user)(name))
    }

    /// How often a mailbox has each of these messages.
    fn copies<const N: usize>(&self, scene: &Scene, name: &str, mailbox: &str, ids: [&str; N]) -> [usize; N] {
        let there = self.look(name).messages(mailbox);
        ids.map(|id| there.iter().filter(|copy| copy.field("Message-ID") == scene.message_id(id)).count())
    }
}

/// `gives_room` makes room for him who has none, and says whether he has it.
fn each_has_his_copy_and_an_answer_of_his_own(scene: &mut Scene, store: &Store<'_>, gives_room: impl FnOnce() -> bool) {
    for name in ["doug", "full", "scuba", "kim", "lisa"] {
        scene.database.add_address(&format!("{name}@mail.axial.net"), &(store.user)(name));
    }
    let service = Service::start(scene);
    let to = FIVE.map(|name| format!("{name}@mail.axial.net"));
    let mut lmtp = Lmtp::connect(&service.socket);
    // Beyond ASCII, as many headers are: Cyrus writes something else in its place, and has to know the message again all the same.
    let messages = ["first", "second"]
        .map(|id| scene.message(id).replace("Subject: ", "Subject: grün ") + &"0123456789\n".repeat(10_000));
    for message in &messages {
        let replies = lmtp.deliver(LISA, &to, message);
        let codes: Vec<&str> = replies.iter().map(|reply| &reply[..9]).collect();
        assert_eq!(codes, ["250 2.0.0", "452 4.2.2", "250 2.0.0", "451 4.1.1", "250 2.0.0"], "{replies:?}");
        assert!(
            replies[0].contains("INBOX appended (uid ") && replies[0].contains(", Sent appended (uid "),
            "{replies:?}"
        );
    }
    let both = ["first", "second"];
    for name in ["doug", "scuba", "kim"] {
        assert_eq!(store.copies(scene, name, "INBOX", both), [1, 1], "{name}");
    }
    assert_eq!(store.copies(scene, "lisa", "Sent", both), [1, 1]);
    assert_eq!(store.copies(scene, "full", "INBOX", both), [0, 0]);

    // Once more, as from Postfix's queue, for all of them: what is there already is known again.
    let (full, has_room) = if gives_room() { ("250 2.0.0 INBOX appended", 1) } else { ("452 4.2.2", 0) };
    let stranger = (store.user)("stranger");
    scene.database.add_address("stranger@mail.axial.net", &stranger);
    for message in &messages {
        let replies = lmtp.deliver(LISA, &to, message);
        let already = "250 2.0.0 INBOX already there";
        for (reply, expected) in replies.iter().zip([already, full, already, "250 2.0.0 INBOX appended", already]) {
            assert!(reply.starts_with(expected), "{replies:?}");
        }
    }
    for (name, count) in FIVE.into_iter().zip([1, has_room, 1, 1, 1]) {
        assert_eq!(store.copies(scene, name, "INBOX", both), [count; 2], "{name}");
    }
    assert_eq!(store.copies(scene, "lisa", "Sent", both), [1, 1]);
    assert_eq!(lmtp.say("QUIT"), "221 2.0.0 Bye");
    service.end();
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    assert_eq!(
        scene.database.count("SELECT count(*) FROM copies WHERE state = 'delivered'"),
        2 * (5 + has_room as i64)
    );
}

#[test]
fn on_cyrus() {
    let mut scene = Scene::empty(Engine::Postgres17);
    scene.configure(|settings| settings.imap = Server::Cyrus.address());
    let run = scene.run.clone();
    let user = |name: &str| format!("{name}-{run}");
    let store = Store { server: Server::Cyrus, user: &user };
    // A login brings a user into being.
    drop(store.look("full"));
    let quota = |limit: &str| {
        let (host, port) = Server::Cyrus.address();
        let mut administrator = Imap::login(&format!("{host}:{port}"), "service", "service-secret");
        administrator.run(&format!("SETQUOTA user/{} {limit}", user("full"))).unwrap();
    };
    quota("(STORAGE 1)");
    each_has_his_copy_and_an_answer_of_his_own(&mut scene, &store, || {
        quota("()");
        true
    });
}

/// Dovecot has mailboxes of that format for users whose name begins with `sdbox`, and no room for those whose name begins with `full`.
#[test]
fn in_sdbox_of_dovecot() {
    let mut scene = Scene::empty(Engine::Postgres17);
    let run = scene.run.clone();
    let user = |name: &str| format!("{}{name}-{run}", if name == "full" { "" } else { "sdbox" });
    let store = Store { server: Server::Dovecot, user: &user };
    each_has_his_copy_and_an_answer_of_his_own(&mut scene, &store, || false);
}
