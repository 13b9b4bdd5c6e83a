//! A site whose mailbox store is down, deliveries that are tried there in vain, and what the database counts of them.

use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::{LISA, Scene};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::delivery::NoCaller;
use maildrop_command::message::{Address, Message};
use maildrop_command::site::{Envelope, Sessions, Site, Terms};
use std::time::Duration;

pub struct Outage {
    scene: Scene,
    site: Site,
    sessions: Sessions,
}

const OTHER_TABLES: &str = "('attempts', 'messages', 'message_sources', 'copies', 'events', 'outbox', 'message_addresses', 'unknown_recipients')";

/// Rows that the database has written, by its own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenRows {
    pub inserted: i64,
    pub updated: i64,
    /// Updates that wrote into an index; `None` if the engine does not count them.
    pub updated_in_indexes: Option<i64>,
    /// Rows of the other tables that a delivery may write. The making of the site writes none of them.
    pub elsewhere: i64,
}

impl Outage {
    pub fn begin(engine: Engine) -> Self {
        let mut scene = Scene::with(engine, &["doug"]);
        // Nothing listens there.
        scene.configure(|settings| settings.imap = ("127.0.0.1".into(), 9));
        if !engine.is_postgres() {
            scene.database.execute("SET GLOBAL userstat = ON");
        }
        let site = scene.site();
        Self { scene, site, sessions: Sessions::default() }
    }

    pub fn count(&mut self, sql: &str) -> i64 {
        self.scene.database.count(sql)
    }

    /// Tries so many messages to doug, each once.
    pub fn try_each(&mut self, messages: usize) {
        for number in 0..messages {
            let message = self.scene.message(&number.to_string());
            let delivered = deliver(&self.site, &mut self.sessions, &message, &["doug@mail.axial.net"]);
            assert_eq!(delivered, [false]);
        }
    }

    /// What the database has written since these rows were written. PostgreSQL counts a session's rows once it has ended.
    pub fn written(mut self, tries: usize) -> WrittenRows {
        self.sessions = Sessions::default();
        let mut written = WrittenRows::default();
        wait_until("the database has counted each try", || {
            written = self.counters();
            written.inserted + written.updated >= tries as i64
        });
        written
    }

    fn counters(&mut self) -> WrittenRows {
        let database = &mut self.scene.database;
        if database.engine.is_postgres() {
            let mut sum = |what: &str, of: &str| {
                database.count(&format!(
                    "SELECT coalesce(sum({what}), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = 'public' AND relname {of}"
                ))
            };
            return WrittenRows {
                inserted: sum("n_tup_ins", "= 'failures'"),
                updated: sum("n_tup_upd", "= 'failures'"),
                updated_in_indexes: Some(sum("n_tup_upd - n_tup_hot_upd", "= 'failures'")),
                elsewhere: sum("n_tup_ins + n_tup_upd + n_tup_del", &format!("IN {OTHER_TABLES}")),
            };
        }
        let mut sum = |what: &str, of: &str| {
            database.count(&format!(
                "SELECT CAST(coalesce(sum({what}), 0) AS SIGNED) FROM information_schema.table_statistics \
                 WHERE table_schema = database() AND table_name {of}"
            ))
        };
        WrittenRows {
            inserted: sum("rows_inserted", "= 'failures'"),
            updated: sum("rows_updated", "= 'failures'"),
            updated_in_indexes: None,
            elsewhere: sum("rows_changed", &format!("IN {OTHER_TABLES}")),
        }
    }
}

/// Delivers a message in this process, to all recipients at once; to whom it was delivered.
pub fn deliver(site: &Site, sessions: &mut Sessions, message: &str, recipients: &[&str]) -> Vec<bool> {
    let message = Message::receive(message.as_bytes().to_vec()).unwrap();
    let envelope = |recipient: &&str| Envelope {
        sender: Some(LISA.into()),
        recipient: Address::parse(recipient).unwrap(),
        original_recipient: None,
        queue_id: Some("4cBxyz1234z9rs".into()),
        client_address: None,
        sasl_username: None,
    };
    let envelopes: Vec<Envelope> = recipients.iter().map(envelope).collect();
    let deadline = Deadline::after(Duration::from_secs(240));
    let terms = Terms { policy: &site.policy(), caller: &NoCaller, deadline };
    let outcomes = site.deliver_to_all(sessions, &message, &envelopes, &terms);
    sessions.end();
    outcomes.into_iter().map(|outcome| outcome.result.is_ok()).collect()
}
