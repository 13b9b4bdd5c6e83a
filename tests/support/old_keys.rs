//! A ledger whose keys are digests alone, as they were before they began with a day; and what has to be true once it is migrated.

use maildrop_command::database::Value;
use maildrop_command::ledger::{
    CopyKey, CopyRecord, CopyState, Database, EndedAttempt, MessageRecord, Outcome, Record,
};
use maildrop_command::lock::LockName;
use maildrop_command::mailbox::Placement;
use maildrop_command::message::{Message, Role};
use maildrop_command::schema::{self, Application, MigrateError};
use uuid::Uuid;

/// More rows than are read at once.
const MANY: usize = 1_001;

/// The header as it comes; whether the ledger has it; the day.
const MESSAGES: [(&str, bool, &str); 6] = [
    ("Date: Mon, 23 Nov 2026 04:51:22 +0000\n", true, "0000512c"),
    ("Date: Sun, 22 Nov 26\n 20:00 EST (New York)\nDate: 1 Jan 2000 00:00 +0000\n", true, "0000512c"),
    ("Date: 23 Nov 2026 01:00 +0200 (Mitteleurop\u{e4}ische Zeit)\n", true, "0000512b"),
    ("Date: yesterday\n", true, "00000000"),
    ("", true, "00000000"),
    // What refused the record has cost it its header, but for the moment.
    ("Date: Mon, 23 Nov 2026 12:00:00 +0000\n", false, "0000512c"),
];

struct Old {
    message: Message,
    lock: LockName,
    known: bool,
    keys: [CopyKey; 2],
}

fn messages() -> Vec<Old> {
    let old = |(number, (header, known, _)): (usize, &(&str, bool, &str))| {
        let message =
            Message::receive(format!("Message-ID: <{number}@x>\n{header}Subject: s\n\nx\n").into_bytes()).unwrap();
        let key = |role, user: &str, mailbox| CopyKey::new(message.identity(), role, user, mailbox);
        let keys = [key(Role::Recipient, "größe'", "INBOX"), key(Role::Sender, "lisa", "Sent")];
        Old { lock: LockName::new("test", &[number as u8]), known: *known, keys, message }
    };
    MESSAGES.iter().enumerate().map(old).collect()
}

/// What a key was: the digest, whole.
fn was(key: &[u8; 32]) -> Vec<u8> {
    [&key[4..], &[0x5a; 4]].concat()
}

/// Another digest.
fn turned(digest: &[u8]) -> Vec<u8> {
    digest.iter().map(|byte| byte ^ 0x0f).collect()
}

fn apply_up_to(database: &mut dyn Database, last: &str) {
    database.lock_schema().unwrap();
    for migration in database.known() {
        if !database.applied().unwrap().iter().any(|applied| applied.number == migration.number) {
            database.apply(migration).unwrap();
        }
        if migration.name == last {
            break;
        }
    }
    database.unlock_schema().unwrap();
}

fn deliver(database: &mut dyn Database, old: &Old) -> Uuid {
    let (attempt, headers) = (Uuid::now_v7(), old.message.headers_json());
    let copies = [(Role::Recipient, "größe'", "INBOX"), (Role::Sender, "lisa", "Sent")];
    // By hand: these are the columns that there were then.
    let sql = format!(
        "INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, recipient, host, pid, \
         started_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'r@x', 'mx1', 1, {})",
        database.dialect().now()
    );
    for (key, (role, user, mailbox)) in old.keys.iter().zip(copies) {
        let values = [
            Value::Uuid(attempt),
            Value::Bytes(key.as_bytes()),
            Value::Text(role.as_str()),
            Value::Text(user),
            Value::Text(mailbox),
            Value::Bytes(old.message.identity().as_bytes()),
            Value::Bytes(old.lock.digest()),
            Value::Text(old.message.message_id_for_people()),
        ];
        database.change("test", &sql, &values).unwrap();
    }
    let recorded = |(place, (role, user, mailbox)): (usize, &(Role, &'static str, &'static str))| CopyRecord {
        key: old.keys[place],
        role: *role,
        user,
        mailbox,
        recipient: "r@x",
        state: match role {
            Role::Recipient => CopyState::Delivered(Some(Placement { uid_validity: 1, uid: 17 })),
            Role::Sender => CopyState::Owed("later"),
        },
    };
    let ended = |key: &CopyKey| EndedAttempt { attempt, key: *key, outcome: Outcome::Appended, stages: None };
    let message = MessageRecord {
        identity: old.message.identity(),
        lock: &old.lock,
        message_id: old.message.message_id_for_people(),
        content_digest: old.message.content_digest().as_bytes(),
        sender: "lisa@x",
        from: None,
        to: None,
        cc: None,
        subject: None,
        date: old.message.date(),
        headers: if old.known { &headers } else { "[]" },
        size: 1,
        raw: Some(old.message.as_received()),
    };
    database
        .record(&Record {
            message: Some(message),
            copies: copies.iter().enumerate().map(recorded).collect(),
            ended: old.keys.iter().map(ended).collect(),
            ..Record::default()
        })
        .unwrap();
    attempt
}

/// Makes of each key what it was before.
fn make_old(database: &mut dyn Database, old: &Old) {
    let change = |database: &mut dyn Database, table: &str, column: &str, key: &[u8; 32]| {
        let sql = format!("UPDATE {table} SET {column} = ? WHERE {column} = ?");
        assert!(database.change("test", &sql, &[Value::Bytes(&was(key)), Value::Bytes(key)]).unwrap() > 0);
    };
    let identity = old.message.identity().as_bytes();
    change(database, "attempts", "identity", identity);
    change(database, "messages", "identity", identity);
    for key in &old.keys {
        change(database, "attempts", "copy_key", key.as_bytes());
        change(database, "copies", "copy_key", key.as_bytes());
    }
}

fn journal_by_hand(database: &mut dyn Database, keys: &[Vec<u8>], ended: bool) -> Result<u64, String> {
    let now = database.dialect().now();
    let ended = if ended { now } else { "NULL" };
    let row = format!("(?, ?, 'recipient', 'u', 'INBOX', ?, ?, 'm', 'r', 'h', 1, {now}, {ended})");
    let identities: Vec<Vec<u8>> = keys.iter().map(|key| turned(key)).collect();
    let values: Vec<[Value<'_>; 4]> = keys
        .iter()
        .zip(&identities)
        .map(|(key, identity)| {
            [Value::Uuid(Uuid::now_v7()), Value::Bytes(key), Value::Bytes(identity), Value::Bytes(key)]
        })
        .collect();
    let sql = format!(
        "INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, recipient, host, \
         pid, started_at, ended_at) VALUES {}",
        vec![row; keys.len()].join(", ")
    );
    database.change("test", &sql, &values.concat()).map_err(|error| error.to_string())
}

/// Messages that nobody has an attempt at any more, and attempts at messages that were never recorded.
fn add_many(database: &mut dyn Database) {
    let now = database.dialect().now();
    let digests: Vec<Vec<u8>> = (0..MANY).map(|n| [&(n as u64).to_be_bytes()[..], &[0xee; 24]].concat()).collect();
    for some in digests.chunks(300) {
        let row = format!(
            "(?, ?, 'm', ?, '', '[[\"Received\",\"x\"],[\"date\",\"23 Nov 2026 12:00 Z\"],[\"Date\",\"1 Jan 2000 12:00 Z\"]]', 1, {now})"
        );
        let copies: Vec<Vec<u8>> = some.iter().map(|digest| turned(digest)).collect();
        let values: Vec<Value<'_>> = some
            .iter()
            .zip(&copies)
            .flat_map(|(digest, copy)| [digest, copy, digest].map(|key| Value::Bytes(key)))
            .collect();
        let sql = format!(
            "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at) VALUES {}",
            vec![row; some.len()].join(", ")
        );
        database.change("test", &sql, &values).unwrap();
        let others: Vec<Vec<u8>> = some.iter().map(|digest| digest.iter().map(|byte| !byte).collect()).collect();
        journal_by_hand(database, &others, true).unwrap();
    }
    let copies = format!(
        "INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, updated_at) \
         SELECT lock_digest, id, 'recipient', 'u', 'INBOX', 'r', 'delivered', {now} FROM messages WHERE message_id = 'm'"
    );
    assert_eq!(database.change("test", &copies, &[]).unwrap(), MANY as u64);
}

fn count(database: &mut dyn Database, of: &str, values: &[Value<'_>]) -> usize {
    let rows = database.select("test", &format!("SELECT count(*) FROM {of}"), values).unwrap();
    rows[0].value(0).unwrap().unwrap()
}

/// What is known of a copy by its key, but for what a clock says.
fn known(database: &mut dyn Database, keys: &[CopyKey]) -> Vec<String> {
    let told = |history: &maildrop_command::ledger::CopyHistory| {
        format!("{:?} {:?} {}", history.delivered, history.recorded.map(|(lock, _)| lock), history.open_attempts.len())
    };
    database.look(keys).unwrap().iter().map(told).collect()
}

/// In a database without tables.
pub fn are_changed_once(database: &mut dyn Database) {
    apply_up_to(database, "keys_to_change");
    let all = messages();
    let mut before = Vec::new();
    for old in &all {
        deliver(database, old);
        before.push(known(database, &old.keys));
        make_old(database, old);
        assert!(database.look(&old.keys).unwrap().iter().all(|history| history.delivered.is_none()));
    }
    add_many(database);
    // An earlier try has left this.
    let wrong = [was(all[0].message.identity().as_bytes()), vec![0; 32]];
    let leftover = "INSERT INTO keys_by_day (was, becomes) VALUES (?, ?)";
    database.change("test", leftover, &[Value::Bytes(&wrong[0]), Value::Bytes(&wrong[1])]).unwrap();

    // Somebody may come back for what is open, and would look for it in vain.
    journal_by_hand(database, &[vec![0xdd; 32]], false).unwrap();
    let refused = match schema::migrate(database, &mut |_, _| {}) {
        Err(MigrateError::Database(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refused.contains("1 attempts at a copy have not ended"), "{refused}");
    assert_eq!(count(database, "messages WHERE identity = ?", &[Value::Bytes(&wrong[0])]), 1);
    database.change("test", "UPDATE attempts SET ended_at = started_at WHERE ended_at IS NULL", &[]).unwrap();

    let migrated = schema::migrate(database, &mut |_, _| {}).unwrap();
    let changed = migrated.steps.iter().find_map(|(_, application)| match application {
        Application::Changed(what) => Some(what.clone()),
        _ => None,
    });
    let (messages, copies) = (MESSAGES.len() + MANY, 2 * MESSAGES.len() + 2 * MANY + 1);
    let told = format!("the keys of {messages} messages and {copies} copies begin with the day of their Date");
    assert_eq!(changed, Some(told));
    for ((old, before), (_, _, day)) in all.iter().zip(before).zip(MESSAGES) {
        assert_eq!(known(database, &old.keys), before);
        for key in &old.keys {
            let journalled = "attempts a JOIN messages m ON m.identity = a.identity WHERE a.copy_key = ?";
            assert_eq!(count(database, journalled, &[Value::Bytes(key.as_bytes())]), 1);
        }
        let begins = |key: &[u8; 32]| key[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            (begins(old.message.identity().as_bytes()), begins(old.keys[1].as_bytes())),
            (day.into(), day.into())
        );
    }
    let day = |table: &str, column: &str, day: &str, database: &mut dyn Database| {
        let hex = database.dialect().hex(&format!("substr({column}, 1, 4)"));
        count(database, &format!("{table} WHERE {hex} = '{day}'"), &[])
    };
    assert_eq!(day("messages", "identity", "0000512c", database), MANY + 3);
    assert_eq!(day("copies", "copy_key", "0000512c", database), MANY + 6);
    // Nobody knows the day of what was never recorded: there is no header.
    assert_eq!(day("attempts", "copy_key", "00000000", database), MANY + 1 + 4);

    // A program from before it would not find what is there, and cannot journal.
    let error = journal_by_hand(database, &[vec![0xcc; 32]], true).unwrap_err();
    assert!(error.contains("attempts_by_day") || error.contains("older than the ledger"), "{error}");
    // The same message to somebody else: the author's copy is known.
    deliver(database, &all[0]);
}
