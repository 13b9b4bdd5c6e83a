//! Statements that are written once for all engines mean the same on each: what goes in comes out again, and the number of
//! rows that changed is the number that is reported.

use crate::support::database::Engine;
use crate::support::site_fixture::Scene;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::database::{Client, DatabaseFailure, Dialect, Idle, Value};
use maildrop_command::ledger::Database;
use std::time::Duration;
use uuid::Uuid;

on_each_engine!(
    what_goes_in_comes_out_again,
    changes_are_counted_and_hold_together,
    the_server_itself_ends_a_question_that_takes_too_long
);
on_each_other_version!(the_server_itself_ends_a_question_that_takes_too_long);

/// A table of every kind of column that the ledger has.
fn table(database: &mut dyn Database) {
    let (bytes, uuid, moment) = match database.dialect() {
        Dialect::Postgresql => ("bytea", "uuid", "timestamptz"),
        _ => ("varbinary(600)", "binary(16)", "datetime(6)"),
    };
    let sql = format!(
        "CREATE TABLE kinds (number bigint PRIMARY KEY, words text, bytes {bytes}, name {uuid}, moment {moment})"
    );
    database.change("making a table", &sql, &[]).unwrap();
}

fn what_goes_in_comes_out_again(engine: Engine) {
    let scene = Scene::bare(engine);
    let mut database = scene.open_database();
    let database = database.as_mut();
    table(database);
    let all_bytes: Vec<u8> = (0..=255).chain([0, 0xff, b'\'', b'\\']).collect();
    let uuid = Uuid::now_v7();
    // To the microsecond, before 1970 and after 2038, and on both sides of a summer time.
    let moments = [0, 1, 1_700_000_000_123_457, 4_102_444_800_999_999, -1, 1_774_746_000_000_001];
    let texts = [
        "",
        " x ",
        "'); DROP TABLE kinds; --",
        "\\' \" ` % _ $1 :a @b /* ",
        "a\r\n\tb",
        "\u{1F600} e\u{301} \u{FFFD} \u{202E}",
        "?",
        "NULL",
    ];
    for (number, words) in texts.iter().enumerate() {
        let number = number as i64;
        let moment = Value::Moment(moments[number as usize % moments.len()]);
        let values = [Value::Integer(number), Value::Text(words), Value::Bytes(&all_bytes), Value::Uuid(uuid), moment];
        let inserted = database.change("inserting", "INSERT INTO kinds VALUES (?, ?, ?, ?, ?)", &values).unwrap();
        assert_eq!(inserted, 1);
    }
    let null = [Value::Integer(i64::MIN), Value::Null, Value::Null, Value::Null, Value::Null];
    database.change("inserting", "INSERT INTO kinds VALUES (?, ?, ?, ?, ?)", &null).unwrap();

    let dialect = database.dialect();
    let columns = format!(
        "number, words, {}, {}, {}",
        dialect.hex("bytes"),
        dialect.uuid("name"),
        dialect.microseconds("moment")
    );
    for (number, words) in texts.iter().enumerate() {
        let moment = moments[number % moments.len()];
        // Each value finds its row again, too.
        let sql = format!("SELECT {columns} FROM kinds WHERE words = ? AND moment = ? AND bytes = ? AND name = ?");
        let values = [Value::Text(words), Value::Moment(moment), Value::Bytes(&all_bytes), Value::Uuid(uuid)];
        let rows = database.select("looking", &sql, &values).unwrap();
        assert_eq!(rows.len(), 1, "{words:?}");
        assert_eq!(rows[0].value::<i64>(0).unwrap(), Some(number as i64));
        assert_eq!(rows[0].text(1), Some(*words));
        assert_eq!(rows[0].value::<Vec<u8>>(2).unwrap().as_deref(), Some(&all_bytes[..]));
        assert_eq!(rows[0].value::<[u8; 16]>(3).unwrap().unwrap(), *uuid.as_bytes());
        assert_eq!(rows[0].value::<i64>(4).unwrap(), Some(moment));
    }
    let rows = database.select("looking", &format!("SELECT {columns} FROM kinds WHERE words IS NULL"), &[]).unwrap();
    assert_eq!(rows[0].value::<i64>(0).unwrap(), Some(i64::MIN));
    assert!((1..5).all(|column| rows[0].text(column).is_none()), "{rows:?}");
    assert_eq!(rows[0].value::<Vec<u8>>(2).unwrap(), None);
    // The database's clock is near ours.
    let sql = format!("SELECT {}", dialect.microseconds(dialect.now()));
    let now = database.select("asking for the time", &sql, &[]).unwrap()[0].value::<i64>(0).unwrap().unwrap();
    let ours = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as i64;
    assert!((now - ours).abs() < 60_000_000, "{now} {ours}");
}

fn changes_are_counted_and_hold_together(engine: Engine) {
    let scene = Scene::bare(engine);
    let mut database = scene.open_database();
    let database = database.as_mut();
    table(database);
    for number in 0..5 {
        database.change("inserting", "INSERT INTO kinds (number) VALUES (?)", &[Value::Integer(number)]).unwrap();
    }
    let count = |database: &mut dyn Database| {
        let rows = database.select("counting", "SELECT count(*) FROM kinds", &[]).unwrap();
        rows[0].value::<u64>(0).unwrap().unwrap()
    };
    let update = "UPDATE kinds SET words = 'x' WHERE number < ?";
    assert_eq!(database.change("changing", update, &[Value::Integer(3)]).unwrap(), 3);
    assert_eq!(database.change("changing", update, &[Value::Integer(-3)]).unwrap(), 0);
    assert_eq!(database.change("deleting", "DELETE FROM kinds WHERE words = ?", &[Value::Text("x")]).unwrap(), 3);
    assert_eq!(count(database), 2);

    // The second of three fails: none is done, and the connection is of further use.
    let (delete, insert) = ("DELETE FROM kinds WHERE number = ?", "INSERT INTO kinds (number) VALUES (?)");
    let (three, four) = ([Value::Integer(3)], [Value::Integer(4)]);
    let error =
        database.execute_together("together", &[(delete, &three), (insert, &four), (delete, &four)]).unwrap_err();
    assert!(error.to_string().starts_with("together: "), "{error}");
    assert_eq!(count(database), 2);
    database.execute_together("together", &[(delete, &three), (delete, &four), (insert, &three)]).unwrap();
    assert_eq!(count(database), 1);
    // A statement with a place too many is a mistake of ours, and is not sent.
    assert!(database.change("deleting", delete, &[]).is_err());
    assert_eq!(count(database), 1);
}

/// It ends there, and not only here: the same session answers the next question, which it could not while it still works on the one
/// before. PostgreSQL ends what changes something as well.
fn the_server_itself_ends_a_question_that_takes_too_long(engine: Engine) {
    let scene = Scene::bare(engine);
    let mut database = scene.open_database();
    let database = database.as_mut();
    let long = match database.dialect() {
        Dialect::Postgresql => "SELECT count(*) FROM pg_sleep(600)",
        // Where a server of these ends SLEEP() alone, that is no error.
        _ => "SELECT count(*) FROM information_schema.tables t WHERE SLEEP(600) = 0",
    };
    // The others have as much time, also on a busy machine.
    database.limit_statement_time(Duration::from_secs(3));
    for _ in 0..2 {
        let ended = database.select("sleeping", long, &[]).unwrap_err();
        assert_eq!(ended.failure, DatabaseFailure::TimedOut, "{ended}");
        let rows = database.select("asking", "SELECT 1", &[]).unwrap();
        assert_eq!(rows[0].text(0), Some("1"));
    }
    if database.dialect() == Dialect::Postgresql {
        let change = "CREATE TABLE slept AS SELECT 1 FROM pg_sleep(600)";
        let ended = database.change("sleeping", change, &[]).unwrap_err();
        assert_eq!(ended.failure, DatabaseFailure::TimedOut, "{ended}");
    }
    // No setting of it is left in the server's session, which a pooler may give to others.
    let mut session = scene.open_database();
    session.limit_statement_time(Duration::from_secs(3));
    session.select("asking", "SELECT 1", &[]).unwrap();
    session.change("changing", "CREATE TABLE changed (id int)", &[]).unwrap();
    let client = Client { host: "mx1".into(), pid: 1, queue_id: None };
    let mut session = Idle::after(session).unwrap().begin(&client, Deadline::after(Duration::from_secs(20))).unwrap();
    let database = session.as_mut();
    let setting = match database.dialect() {
        Dialect::Postgresql => "current_setting('statement_timeout')",
        Dialect::Mysql => "@@max_execution_time",
        _ => "@@max_statement_time",
    };
    let table = format!("CREATE TABLE settings AS SELECT {setting} AS setting");
    database.change("noting the setting", &table, &[]).unwrap();
    let rows = database.select("reading the setting", "SELECT setting FROM settings", &[]).unwrap();
    assert_eq!(rows[0].text(0).map(|setting| setting.trim_end_matches(['0', '.'])), Some(""));
}
