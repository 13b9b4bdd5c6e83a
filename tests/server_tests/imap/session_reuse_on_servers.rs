//! Sessions that serve one delivery after another, on real servers.

use crate::support::database::Engine;
use crate::support::imap_server::{ALL, Server, log_in, message, position, somebody, stored};
use crate::support::own_server::OwnServer;
use crate::support::site_fixture::{LISA, Scene};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::delivery::{Delivered, Manner, NoCaller, Refusal, Stages};
use maildrop_command::imap::{Encryption, Settings};
use maildrop_command::message::{Address, Message};
use maildrop_command::site::{Envelope, Sessions, Site, Terms};
use std::time::Duration;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(240))
}

/// STATUS needs no SELECT, and what others have appended meanwhile is seen by it.
#[test]
fn a_session_that_is_used_again_sees_what_others_have_appended_since() {
    for server in ALL {
        let user = somebody("again");
        let mut lisas = server.open(&user, "INBOX");
        let first = position(&mut lisas);
        stored(&mut lisas, &message("<first@x>", "first"));
        let session = lisas.end().unwrap_or_else(|| panic!("{server:?} has said something unasked"));
        stored(&mut server.open(&user, "INBOX"), &message("<others@x>", "others"));
        let mut lisas = session.begin(soon()).unwrap_or_else(|| panic!("{server:?} has ended it")).open("INBOX");
        let again = position(&mut lisas);
        assert_eq!((again.uid_validity, again.uid_next), (first.uid_validity, first.uid_next + 2), "{server:?}");
        stored(&mut lisas, &message("<second@x>", "second"));
        assert_eq!(lisas.round_trips(), if server == Server::DovecotBare { 3 } else { 2 }, "{server:?}");
        assert_eq!(position(&mut server.open(&user, "INBOX")).uid_next, first.uid_next + 3, "{server:?}");
    }
}

/// Session tickets come behind the handshake, unasked: they are TLS's.
#[test]
fn what_tls_itself_says_does_not_end_a_session() {
    for server in [Server::Dovecot, Server::Cyrus] {
        let settings = Settings { encryption: Encryption::StartTls, ..server.settings() };
        let mut lisas = log_in(&settings, &somebody("tickets")).unwrap().open("INBOX");
        for _ in 0..3 {
            position(&mut lisas);
            stored(&mut lisas, &message("<a@x>", "a"));
            let session = lisas.end().unwrap_or_else(|| panic!("{server:?} has said something unasked"));
            lisas = session.begin(soon()).unwrap_or_else(|| panic!("{server:?} has ended it")).open("INBOX");
        }
    }
}

#[test]
fn a_session_that_has_looked_for_a_copy_serves_nobody_else() {
    for server in ALL {
        use maildrop_command::mailbox::Mailbox;
        let mut lisas = server.open(&somebody("looked"), "INBOX");
        let ours = message("<a@x>", "a");
        let at = position(&mut lisas);
        lisas.find(&crate::support::imap_server::wanted(&ours, Some(at))).unwrap();
        assert!(lisas.end().is_none(), "{server:?}");
    }
}

struct Worker {
    site: Site,
    sessions: Sessions,
}

impl Worker {
    fn of(scene: &Scene) -> Self {
        Self { site: scene.site(), sessions: Sessions::default() }
    }

    fn deliver(&mut self, name: &str, message: &str) -> Result<(Delivered, Stages), Refusal> {
        let message = Message::receive(message.to_owned().into_bytes()).unwrap();
        let envelope = Envelope {
            sender: Some(LISA.into()),
            recipient: Address::parse(&format!("{name}@mail.axial.net")).unwrap(),
            original_recipient: None,
            queue_id: Some("4cBxyz1234z9rs".into()),
            client_address: None,
            sasl_username: None,
        };
        let mut stages = Stages::default();
        let terms = Terms { policy: &self.site.policy(), caller: &NoCaller, deadline: soon() };
        let delivered = self.site.deliver(&mut self.sessions, &message, &envelope, &terms, &mut stages);
        self.sessions.end();
        delivered.map(|delivered| (delivered, stages))
    }

    /// Delivers one that is appended, and says how often each server was waited for.
    fn delivers(&mut self, name: &str, message: &str) -> (u32, u32) {
        let (delivered, stages) = self.deliver(name, message).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert!(delivered.copies.iter().all(|copy| matches!(copy.manner, Manner::Appended(_))), "{delivered:?}");
        (stages.database_round_trips, stages.imap_round_trips)
    }
}

on_each_engine![one_delivery_after_another_and_each_message_is_there_once];

fn one_delivery_after_another_and_each_message_is_there_once(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "scuba", "lisa"]);
    scene.configure(|settings| settings.more = "[sent]\nauthor_check = \"header\"\n".into());
    let mut worker = Worker::of(&scene);
    let (cold, cold_imap) = worker.delivers("doug", &scene.message("first"));
    // The first one made lisa's Sent, without which STATUS was refused: her session serves no other delivery.
    let (_, imap) = worker.delivers("doug", &scene.message("second"));
    assert_eq!(imap, 5);
    let (warm, warm_imap) = worker.delivers("doug", &scene.message("as warm as can be"));
    assert!(warm <= cold && warm_imap < cold_imap, "{warm} of {cold}, {warm_imap} of {cold_imap}");
    // Two mailboxes, STATUS and APPEND each.
    assert_eq!(warm_imap, 4);
    worker.delivers("scuba", &scene.message("third"));
    // What is there already, is.
    let (delivered, _) = worker.deliver("scuba", &scene.message("third")).unwrap();
    assert!(delivered.copies.iter().all(|copy| copy.manner == Manner::AlreadyThere), "{delivered:?}");
    worker.delivers("doug", &scene.message("fourth"));
    assert_eq!((scene.inbox("doug").len(), scene.inbox("scuba").len(), scene.sent("lisa").len()), (4, 1, 5));
    // Nothing of the earlier ones is left to the next: no lock, no open attempt.
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}

/// All servers restart between two deliveries, and once more within one.
#[test]
fn servers_that_restart_between_two_deliveries_cost_a_login_and_no_message() {
    let (dovecot, database) = (OwnServer::dovecot(), OwnServer::database(Engine::Postgres17));
    let mut scene = Scene::on(Engine::Postgres17, &database, &dovecot);
    scene.member("doug");
    let mut worker = Worker::of(&scene);
    worker.delivers("doug", &scene.message("first"));
    dovecot.kill();
    dovecot.start();
    worker.delivers("doug", &scene.message("second"));
    database.kill();
    database.start();
    worker.delivers("doug", &scene.message("third"));
    for server in [&database, &dovecot] {
        server.kill();
        server.start();
    }
    worker.delivers("doug", &scene.message("fourth"));
    assert_eq!(scene.inbox("doug").len(), 4);
    dovecot.kill();
    assert!(worker.deliver("doug", &scene.message("fifth")).is_err());
    dovecot.start();
    worker.delivers("doug", &scene.message("fifth"));
    assert_eq!(scene.inbox("doug").len(), 5);
}
