//! A delivery that fails before its journal leaves one row in the table `failures`, however often it is tried.

use crate::notifications::event_delivery::subscribe;
use crate::support::database::Engine;
use crate::support::outage::{Outage, WrittenRows, deliver};
use crate::support::program::wait_for;
use crate::support::site_fixture::Scene;
use maildrop_command::database::DatabaseFailure;
use maildrop_command::ledger::failures::{FailedDelivery, FailuresOf, failed_deliveries};
use maildrop_command::ledger::{Cause, Database, FailureRecord, Outcome};
use maildrop_command::lock::LockName;
use maildrop_command::mailbox::MailboxFailure;
use maildrop_command::message::Identity;
use maildrop_command::site::Sessions;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

on_each_engine!(
    an_address_of_a_shared_mailbox_is_left_out_once_the_message_came_for_another_address,
    while_the_mailbox_store_is_down_each_try_counts_in_one_row_that_is_left_out_once_the_message_is_delivered,
    a_row_that_another_session_holds_is_not_waited_for,
    of_a_flood_of_unknown_recipients_a_thousand_rows_an_hour_are_written,
    the_first_failure_of_a_message_and_recipient_has_an_event_if_a_subscription_names_it,
);

fn all(database: &mut dyn Database) -> Vec<FailedDelivery> {
    failed_deliveries(database, FailuresOf::Since(0), None, 100).unwrap()
}

fn while_the_mailbox_store_is_down_each_try_counts_in_one_row_that_is_left_out_once_the_message_is_delivered(
    engine: Engine,
) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    let store = scene.settings.imap.clone();
    // Nothing listens there.
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), 9));
    // The first delivery finds it down as it proves its login, the others as they open a mailbox.
    for _ in 0..2 {
        scene.deliver_with("doug", &["--queue-id", "4cXyz"], scene.message("down")).deferred("4.4.1 ");
    }
    scene.configure(|settings| settings.imap = store.clone());
    scene.deliver("lisa", scene.message("up")).delivered();
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), 9));
    scene.deliver_with("doug", &["--queue-id", "4cXyz"], scene.message("down")).deferred("4.4.1 ");

    let mut database = scene.open_database();
    let failed = all(database.as_mut());
    let [failure] = failed.as_slice() else { panic!("{failed:#?}") };
    assert_eq!((failure.count, failure.recipient.as_str()), (3, "doug@mail.axial.net"));
    assert_eq!(failure.message_id, scene.message_id("down"));
    assert_eq!(failure.queue_id.as_deref(), Some("4cXyz"));
    assert!(failure.author.as_deref().unwrap().contains("lisa"), "{failure:?}");
    assert!(failure.subject.is_some() && failure.sender.is_some(), "{failure:?}");
    assert!(
        matches!(&failure.cause, Outcome::Deferred(Cause::Mailbox(MailboxFailure::Unreachable), Some(_))),
        "{failure:?}"
    );
    assert!(failure.first_at < failure.last_at, "{failure:?}");
    let of_it = "SELECT count(*) FROM attempts WHERE message_id LIKE '%down%'";
    assert_eq!(scene.database.count(of_it), 0, "the journal has only deliveries that began");

    scene.configure(|settings| settings.imap = store);
    scene.deliver("doug", scene.message("down")).delivered();
    assert_eq!(scene.database.count("SELECT count(*) FROM failures"), 1, "no delivery touches the table");
    assert!(all(database.as_mut()).is_empty());
}

fn an_address_of_a_shared_mailbox_is_left_out_once_the_message_came_for_another_address(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let (store, user) = (scene.settings.imap.clone(), scene.user("doug"));
    scene.database.add_address("sales@mail.axial.net", &user);
    let to_both = |scene: &Scene| {
        let (to, message) = (["doug@mail.axial.net", "sales@mail.axial.net"], scene.message("both"));
        deliver(&scene.site(), &mut Sessions::default(), &message, &to)
    };
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), 9));
    assert_eq!(to_both(&scene), [false, false]);
    let mut database = scene.open_database();
    assert_eq!(all(database.as_mut()).len(), 2);
    scene.configure(|settings| settings.imap = store);
    assert_eq!(to_both(&scene), [true, true]);
    assert_eq!((scene.inbox("doug").len(), all(database.as_mut()).len()), (1, 0));
}

pub fn failure<'a>(
    identity: &'a Identity,
    lock: &'a LockName,
    recipient: &'a str,
    outcome: Outcome,
) -> FailureRecord<'a> {
    FailureRecord {
        identity,
        recipient,
        mailbox: None,
        lock,
        sender: Some(""),
        author: None,
        subject: None,
        message_id: "1@x",
        queue_id: None,
        host: "mx1",
        outcome,
    }
}

pub fn down() -> Outcome {
    Outcome::Deferred(Cause::Mailbox(MailboxFailure::Unreachable), Some("connecting to 10.0.0.7:143: refused".into()))
}

fn a_row_that_another_session_holds_is_not_waited_for(engine: Engine) {
    let scene = Scene::empty(engine);
    let (identity, lock) = (Identity::of(b"1"), LockName::new(&scene.database.name, b"1@x"));
    let record = |database: &mut dyn Database| database.record_failures(&[failure(&identity, &lock, "doug@x", down())]);
    let mut database = scene.open_database();
    record(database.as_mut()).unwrap();
    let mut other = scene.session();
    other.execute("BEGIN");
    other.execute("UPDATE failures SET count = 7");
    let error = record(database.as_mut()).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Contention, "{error}");
    other.execute("ROLLBACK");
    record(scene.open_database().as_mut()).unwrap();
    assert_eq!(all(database.as_mut())[0].count, 2);
}

fn of_a_flood_of_unknown_recipients_a_thousand_rows_an_hour_are_written(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let mut database = scene.open_database();
    let (identity, lock) = (Identity::of(b"1"), LockName::new(&scene.database.name, b"1@x"));
    // An outage has many rows of its own, and takes none from unknown recipients.
    let names: Vec<String> = (0..1100).map(|number| format!("user{number}@x")).collect();
    let failures: Vec<_> = names.iter().map(|name| failure(&identity, &lock, name, down())).collect();
    failures.chunks(50).for_each(|some| database.record_failures(some).unwrap());
    // The bound is one of each hour by the clock.
    let seconds = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    wait_for("an hour of which two minutes are left", Duration::from_mins(3), || seconds() % 3600 < 3480);
    let rows = "SELECT count(*) FROM failures WHERE cause = 'refused: unknown recipient'";
    let mut refuse = |host: &str, names: std::ops::Range<u32>| {
        for name in names.map(|number| format!("nobody{number}@x")) {
            assert!(database.refuse(host, &[&name]).unwrap());
            let refused = Outcome::Refused("unknown recipient".into());
            database.record_failures(&[failure(&identity, &lock, &name, refused)]).unwrap();
        }
    };
    refuse("mx1", 0..3);
    refuse("mx2", 3..5);
    assert_eq!(scene.database.count(rows), 5);
    scene.database.execute("UPDATE unknown_recipients SET in_hour = 990 WHERE host = 'mx1'");
    // 992 have been refused; of 20 more, 8 have a row.
    refuse("mx1", 5..15);
    refuse("mx2", 15..25);
    assert_eq!(scene.database.count(rows), 13);
    assert_eq!(scene.database.count("SELECT count(*) FROM failures"), 1113);
    assert_eq!(scene.database.count("SELECT count(*) FROM unknown_recipients WHERE in_hour IN (1000, 12)"), 2);
    let hour = if engine.is_postgres() { "interval '1 hour'" } else { "INTERVAL 1 HOUR" };
    scene.database.execute(&format!("UPDATE unknown_recipients SET last_at = last_at - {hour}"));
    refuse("mx1", 25..30);
    assert_eq!(scene.database.count(rows), 18);
    assert_eq!(scene.database.count("SELECT in_hour FROM unknown_recipients WHERE host = 'mx1'"), 5);
}

fn the_first_failure_of_a_message_and_recipient_has_an_event_if_a_subscription_names_it(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let (first, second, third) = (Identity::of(b"1"), Identity::of(b"2"), Identity::of(b"3"));
    let role = format!("r{}", scene.run);
    scene.database.create_role_of_grants_file(&role, "only-for-this-test");
    let grantee = if engine.is_postgres() { role.clone() } else { format!("'{role}'@'%'") };
    scene.configure(|settings| (settings.role, settings.database_password) = (role, "only-for-this-test".into()));
    let lock = LockName::new(&scene.database.name, b"1@x");
    let events = "SELECT count(*) FROM outbox WHERE type = 'message.deferred'";
    subscribe(&mut scene, ("all", ""), "https://example.org/all", &[]);
    let try_both = |scene: &Scene, identity: &Identity| {
        let failures = ["doug@x", "scuba@x"].map(|recipient| failure(identity, &lock, recipient, down()));
        scene.open_database().record_failures(&failures).unwrap();
    };
    try_both(&scene, &first);
    assert_eq!(scene.database.count(events), 0, "nobody has named it");

    let named = if engine.is_postgres() { "'{message.deferred}'" } else { "'[\"message.deferred\"]'" };
    subscribe(&mut scene, ("all", ""), "https://example.org/named", &[("types", named)]);
    for _ in 0..3 {
        try_both(&scene, &second);
    }
    try_both(&scene, &first);
    let refused = failure(&second, &lock, "nobody@x", Outcome::Refused("unknown recipient".into()));
    scene.open_database().record_failures(&[refused]).unwrap();
    assert_eq!(scene.database.count(events), 2, "once for each recipient, and only of the first try");
    let [doug, scuba] =
        ["doug@x", "scuba@x"].map(|name| scene.database.count(&format!("{events} AND recipient = '{name}'")));
    assert_eq!((doug, scuba), (1, 1));
    let named_hosts = "SELECT count(*) FROM outbox WHERE CAST(diff AS char(500)) LIKE '%connecting%'";
    assert_eq!(scene.database.count(named_hosts), 0, "a subscriber learns no host");

    // Without the right to write events the failures are recorded all the same.
    scene.database.execute(&format!("REVOKE INSERT ON outbox FROM {grantee}"));
    try_both(&scene, &third);
    let recorded = scene.database.count("SELECT count(*) FROM failures WHERE message_id = '1@x' AND count = 1");
    assert_eq!((scene.database.count(events), recorded), (2, 3), "two new rows, and the refused one");
}

/// A person measures more by `tests/bench/run --only failures`.
#[test]
fn during_an_outage_each_try_writes_one_row_and_a_further_one_changes_no_indexed_column() {
    let mut outage = Outage::begin(Engine::Postgres17);
    (0..5).for_each(|_| outage.try_each(20));
    // Whether an update then needs an entry in an index depends on other transactions: while one reads old rows, a page may be
    // full (PostgreSQL manual, "Heap-Only Tuples").
    let indexed = "SELECT count(*) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) \
         WHERE i.indrelid = 'failures'::regclass \
         AND a.attname IN ('queue_id', 'host', 'cause', 'imap_user', 'mailbox', 'count', 'last_at')";
    assert_eq!(outage.count(indexed), 0);
    let written = outage.written(100);
    let once_each = WrittenRows { inserted: 20, updated: 80, elsewhere: 0, ..written };
    assert_eq!(written, once_each);
}
