//! PostgreSQL: a COMMIT that waits for a synchronous standby, and whose wait somebody ends. It is committed on the primary, and
//! a fail-over may forget it: nothing was reported as delivered, and the next delivery finds one copy, whichever it was.

use crate::support::database::Engine;
use crate::support::postgres::{Mail, TestDatabase, on_each_postgres};
use crate::support::program::{Running, wait_until};
use crate::support::site_fixture::Scene;
use crate::support::standby::Primary;
use maildrop_command::database::{DatabaseFailure, Idle, Tables, Value};
use maildrop_command::ledger::{CopyState, Ledger, LoginCheck};
use uuid::Uuid;

on_each_postgres!(
    a_record_in_doubt_is_no_success_and_leaves_one_copy,
    a_journal_in_doubt_ends_before_the_lock,
    a_refusal_in_doubt_is_no_refusal,
    what_people_change_is_not_reported_to_be_done_either,
    a_login_whose_check_is_in_doubt_is_not_proven,
    what_a_statement_warns_about_defers_nothing,
    what_was_reported_on_connecting_is_not_about_a_commit,
);

/// What the line says where the server answered so.
const IN_DOUBT: &str = "4.3.0 the database did not confirm a commit";

/// A delivery on a server of its own, at a place that the test chooses.
struct Site {
    /// Dropped before its server is.
    scene: Scene,
    primary: Primary,
}

impl Site {
    /// On a server of this image.
    fn new(image: &str) -> Self {
        let primary = Primary::start(image);
        let engine = match image {
            "POSTGRES15" => Engine::Postgres15,
            "POSTGRES18" => Engine::Postgres18,
            _ => Engine::Postgres17,
        };
        let mut scene = Scene::with_database_on(engine, &primary.server);
        scene.member("doug");
        Self { scene, primary }
    }

    /// A delivery whose journal is committed, and whose record waits for the standby.
    fn at_its_record(&mut self, id: &str) -> Running {
        let holder = self.scene.hold(&self.scene.message_id(id));
        let delivery = self.scene.start("doug", &["--lock-wait", "200s"], self.scene.message(id));
        let journalled = format!("SELECT count(*) FROM attempts WHERE message_id = '{}'", self.scene.message_id(id));
        wait_until("the journal is committed", || self.scene.database.count(&journalled) == 1);
        self.primary.commits_wait();
        drop(holder);
        wait_until("the record waits", || self.primary.waiting() == 1);
        delivery
    }

    fn open_attempts(&mut self) -> i64 {
        self.scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL")
    }

    /// The ledger as a standby has it that never got the record of this message, and takes over.
    fn fails_over(&mut self, id: &str) {
        let of_it = format!("message_id = '{}'", self.scene.message_id(id));
        self.scene.database.execute(&format!(
            "DELETE FROM copies WHERE message IN (SELECT id FROM messages WHERE {of_it}); \
             DELETE FROM messages WHERE {of_it}; \
             UPDATE attempts SET ended_at = NULL, outcome = NULL, stages = NULL WHERE {of_it}"
        ));
    }
}

fn a_record_in_doubt_is_no_success_and_leaves_one_copy(server: &str) {
    let mut site = Site::new(server);
    for (id, function, line) in [
        ("cancelled", "pg_cancel_backend", IN_DOUBT),
        // Its session ends without an answer.
        ("terminated", "pg_terminate_backend", "4.4.2 the connection to the database was lost"),
    ] {
        for forgotten in [false, true] {
            let id = format!("{id}-{forgotten}");
            let before = site.scene.inbox("doug").len();
            let delivery = site.at_its_record(&id);
            assert_eq!(site.primary.end_waits(function), 1);
            delivery.end().deferred(line);
            assert_eq!(site.scene.inbox("doug").len(), before + 1, "{id}");
            site.primary.commits_wait_no_more();
            if forgotten {
                site.fails_over(&id);
                site.scene.deliver("doug", site.scene.message(&id)).deferred("4.3.0 an earlier delivery");
                site.scene.ten_minutes_pass();
            }
            let line = site.scene.deliver("doug", site.scene.message(&id));
            let manner = if forgotten { "adopted" } else { "already there" };
            assert!(line.delivered().contains(manner), "{id}: {line:?}");
            assert_eq!(site.scene.inbox("doug").len(), before + 1, "{id}");
            assert_eq!(site.open_attempts(), 0, "{id}");
        }
    }
    let log = site.scene.log();
    assert!(log.contains("SQLSTATE 01000"), "{log}");
}

fn a_journal_in_doubt_ends_before_the_lock(server: &str) {
    let mut site = Site::new(server);
    // The first delivery of all writes down, before its journal, whom the mailbox store lets in.
    site.scene.deliver("doug", site.scene.message("first")).delivered();
    // However little of what the server says the role wants to hear.
    let set = format!("ALTER DATABASE {} SET client_min_messages = error", site.scene.database.name);
    site.scene.database.execute(&set);
    site.primary.commits_wait();
    let delivery = site.scene.start("doug", &[], site.scene.message("x"));
    wait_until("the journal waits", || site.primary.waiting() == 1);
    assert_eq!(site.primary.end_waits("pg_cancel_backend"), 1);
    delivery.end().deferred(IN_DOUBT);
    assert_eq!(site.scene.inbox("doug").len(), 1);
    assert_eq!(site.open_attempts(), 1);
    site.primary.commits_wait_no_more();
    site.scene.ten_minutes_pass();
    site.scene.deliver("doug", site.scene.message("x")).delivered();
    assert_eq!(site.scene.inbox("doug").len(), 2);
    assert_eq!(site.open_attempts(), 0);
}

fn a_refusal_in_doubt_is_no_refusal(server: &str) {
    let mut site = Site::new(server);
    site.scene.configure(|settings| settings.more = "[routing]\nunknown_recipient = \"reject\"\n".into());
    let set = format!("ALTER DATABASE {} SET client_min_messages = error", site.scene.database.name);
    site.scene.database.execute(&set);
    site.primary.commits_wait();
    let delivery = site.scene.start("stranger", &[], site.scene.message("x"));
    wait_until("the refusal waits", || site.primary.waiting() == 1);
    assert_eq!(site.primary.end_waits("pg_cancel_backend"), 1);
    delivery.end().deferred(IN_DOUBT);
    site.primary.commits_wait_no_more();
    site.scene.deliver("stranger", site.scene.message("x")).ended(67, "5.1.1 ");
}

fn what_people_change_is_not_reported_to_be_done_either(server: &str) {
    let mut site = Site::new(server);
    let maria = site.scene.member("maria");
    let (delete, maria) = ("DELETE FROM addresses WHERE address = ?", [Value::Text(&maria)]);
    site.primary.commits_wait();
    let mut database = site.scene.open_database();
    std::thread::scope(|scope| {
        scope.spawn(|| wait_until("the change waits", || site.primary.end_waits("pg_cancel_backend") == 1));
        let error = database.change("taking an address out", delete, &maria).unwrap_err();
        assert_eq!(error.failure, DatabaseFailure::InDoubt, "{error}");
    });
    site.primary.commits_wait_no_more();
    assert_eq!(database.change("taking an address out", delete, &maria).unwrap(), 0);
    site.scene.member("maria");
    assert_eq!(database.change("taking an address out", delete, &maria).unwrap(), 1);
}

/// A fail-over may forget the check of a login, and the session that recorded it is not used again.
fn a_login_whose_check_is_in_doubt_is_not_proven(server: &str) {
    let mut site = Site::new(server);
    let login_check = LoginCheck::new("a login".into());
    let mut database = site.scene.open_database();
    site.primary.commits_wait();
    std::thread::scope(|scope| {
        scope.spawn(|| wait_until("the record waits", || site.primary.end_waits("pg_cancel_backend") == 1));
        let error = database.record_login_check(&login_check, "mx1", true).unwrap_err();
        assert_eq!(error.failure, DatabaseFailure::InDoubt, "{error}");
    });
    site.primary.commits_wait_no_more();
    assert!(Idle::after(database).is_none());
    site.scene.open_database().record_login_check(&login_check, "mx1", true).unwrap();
}

/// A warning of a site's own trigger, and one of the server itself that comes with a row, as it warns of each transaction
/// where the numbers of transactions are running out: neither is about the COMMIT.
fn what_a_statement_warns_about_defers_nothing(server: &str) {
    let test = TestDatabase::migrated(server);
    test.admin()
        .batch_execute(
            "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'hot'; RETURN NEW; END $$; \
             CREATE TRIGGER before BEFORE INSERT ON attempts FOR EACH ROW EXECUTE FUNCTION warn(); \
             CREATE TRIGGER after AFTER INSERT ON attempts FOR EACH STATEMENT EXECUTE FUNCTION warn(); \
             CREATE TRIGGER before BEFORE INSERT ON copies FOR EACH ROW EXECUTE FUNCTION warn(); \
             CREATE CONSTRAINT TRIGGER late AFTER INSERT ON copies DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION warn(); \
             ALTER TABLE attempts ADD COLUMN odd bool DEFAULT pg_cancel_backend(2147483647); \
             ALTER TABLE copies ADD COLUMN odd bool DEFAULT pg_cancel_backend(2147483647); \
             ALTER TABLE addresses ADD COLUMN odd bool DEFAULT pg_cancel_backend(2147483647)",
        )
        .unwrap();
    let mail = Mail::new("<x@example.com>");
    let attempt = Uuid::now_v7();
    let mut database = test.connect("4Xyz");
    database.journal(&mail.journal(attempt, None)).unwrap();
    let delivered = CopyState::Delivered(None);
    database.record(&mail.record(attempt, delivered, delivered)).unwrap();
    assert_eq!(test.value("SELECT count(*) FROM copies").as_deref(), Some("2"));
    let insert = "INSERT INTO addresses (address, imap_user) VALUES ('maria@mail.example', 'maria')";
    assert_eq!(test.connect_as_owner().change("adding an address", insert, &[]).unwrap(), 1);
}

/// As after an upgrade of the system under the server.
fn what_was_reported_on_connecting_is_not_about_a_commit(server: &str) {
    let test = TestDatabase::made_with(server, "LOCALE_PROVIDER icu ICU_LOCALE 'en' TEMPLATE template0");
    let mut admin = test.admin();
    admin.batch_execute("CREATE TABLE seen (id int)").unwrap();
    let changed = format!("UPDATE pg_database SET datcollversion = 'another' WHERE datname = '{}'", test.name);
    admin.batch_execute(&changed).unwrap();
    assert_eq!(test.connect_as_owner().change("changing", "INSERT INTO seen VALUES (1)", &[]).unwrap(), 1);
}
