//! Into ledgers of more and more rows.

use super::curve::{Beyond, FLAT, in_turns, verdict};
use super::fixture::{Fixture, clear, has};
use crate::figures::{Report, Series, WARM_UP, milliseconds};
use crate::floor::Calls;
use crate::site::{SIZE, STRANGER, Site, message, with_crlf};
use crate::support::database::Engine;
use crate::support::imap_server::somebody;
use crate::{plot, process};

/// A ledger with so many messages in it, and as many copies and attempts.
pub struct Full {
    rows: usize,
    fixture: Fixture,
    user: String,
}

/// What a delivery asks of the database, as its log calls it.
const IN_THE_DATABASE: [&str; 5] = ["route_ms", "journal_ms", "lock_ms", "look_ms", "record_ms"];

/// Ledgers of 1000 rows to 10 to the power of `last`; on MariaDB, if there is one, one power less: it takes longer to fill.
pub fn fill(report: &Report, last: u32) -> Vec<Full> {
    let user = somebody("ledger");
    let mut all = Vec::new();
    for (engine, last) in [(Engine::Postgres17, last), (Engine::Mariadb118, last - 1)] {
        for rows in (3..=last).map(|power| 10_usize.pow(power)).filter(|_| has(engine)) {
            report.progress(format!("growth: {rows} rows into each table of the ledger, {engine:?}"));
            let fixture = Fixture::new(engine, [&user]);
            let statements = if engine.is_postgres() { POSTGRES } else { MARIADB };
            for statement in statements.split(";\n").filter(|statement| !statement.trim().is_empty()) {
                fixture.execute(&statement.replace(":rows", &rows.to_string()));
            }
            all.push(Full { rows, fixture, user: user.clone() });
        }
    }
    all
}

pub fn measure(report: &mut Report, site: &Site, runs: usize, all: &[Full]) {
    report.progress(format!("growth: {runs} times into each of {} ledgers", all.len()));
    let before: Vec<_> = all.iter().map(|full| full.fixture.blocks()).collect();
    let measured = in_turns(WARM_UP, runs, all, |full| {
        let delivery = milliseconds(full.fixture.deliver(&full.user).took);
        let record = full.fixture.log().pop().expect("a record");
        let database = IN_THE_DATABASE.iter().map(|stage| record[stage].as_f64().expect("a time")).sum();
        let message = with_crlf(&message(STRANGER, SIZE));
        let append = milliseconds(process::run(&mut site.floor(Calls::Append, &full.user), &message).took);
        [delivery, append, database]
    });
    // Of one delivery.
    let blocks = all.iter().zip(before).map(|(full, before)| {
        let (after, before) = full.fixture.blocks().zip(before)?;
        Some([0, 1].map(|which| (after[which] - before[which]) / (WARM_UP + runs) as f64))
    });
    let blocks: Vec<Option<[f64; 2]>> = blocks.collect();
    report.line(
        "### The ledger\n\nSo many rows in each of the tables messages, copies and attempts, with all their indexes. \
        All of them deliver into one mailbox; what a bare APPEND into it grows by is the machine's mood. The blocks, 8 kB each, \
        are what PostgreSQL looked at for one delivery, in its memory or on disk: those of the ledger's tables and indexes, and \
        all of them, which are the system tables nearly to the last, since each new connection reads them.",
    );
    let mut curves = Vec::new();
    for (engine, name, names) in [
        (Engine::Postgres17, "PostgreSQL", ["delivery, PostgreSQL", "in the database, PostgreSQL"]),
        (Engine::Mariadb118, "MariaDB", ["delivery, MariaDB", "in the database, MariaDB"]),
    ] {
        let curve: Vec<_> = all
            .iter()
            .zip(measured.iter().zip(&blocks))
            .filter(|(full, _)| full.fixture.engine == engine)
            .map(|(full, (series, blocks))| (full, series, blocks))
            .collect();
        let [Some(first), Some(last)] = [curve.first(), curve.last()] else { continue };
        let beyond = |here: &[Series; 3]| Beyond::of((&first.1[0], &first.1[1]), (&here[0], &here[1]));
        let rows: Vec<[String; 6]> = curve
            .iter()
            .map(|(full, series, blocks)| {
                let blocks = blocks.map_or(String::new(), |[all, ours]| format!("{ours:.1} of {all:.0}"));
                let [delivery, append, database] = series.each_ref().map(Series::to_string);
                [full.rows.to_string(), delivery, database, blocks, append, beyond(series).to_string()]
            })
            .collect();
        let header = [
            &format!("rows of each table ({name})"),
            "delivery, ms",
            "of it: the database's calls",
            "blocks of the ledger, of all",
            "bare APPEND, ms",
            "delivery ÷ the first, beyond what APPEND grows",
        ];
        report.table(header, &rows);
        let factor = beyond(last.1);
        report.line(format!(
            "- {name}, from {} to {} rows: a delivery × {:.2}, its calls to the database × {:.2}. Beyond the APPEND a \
             delivery grows × {factor} (target ≤ {FLAT}): {}.",
            first.0.rows,
            last.0.rows,
            last.1[0].median() / first.1[0].median(),
            last.1[2].median() / first.1[2].median(),
            verdict(factor.is_flat()),
        ));
        if let (Some(few), Some(many)) = (first.2, last.2) {
            let [all, ours] = [0, 1].map(|which| many[which] / few[which]);
            report.line(format!("- {name} looks at × {ours:.2} as many blocks of the ledger, × {all:.2} of all."));
        }
        for (name, column) in names.into_iter().zip([0, 2]) {
            let points = curve.iter().map(|(full, series, _)| (full.rows as f64, series[column].median()));
            curves.push((name, points.collect()));
        }
    }
    report.plot("ledger", "The ledger", plot::curves("One delivery", "rows of each table", "ms", &curves));
    clear([&all[0].user]);
}

/// What so many deliveries would have left. Keys begin with the day, and are digests behind it, as real ones are.
const POSTGRES: &str = r#"
INSERT INTO addresses SELECT 'user' || n || '@mail.example', 'user' || n FROM generate_series(1, 10000) n;
INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to, subject, sent_at,
    headers, size, recorded_at)
SELECT int4send((extract(epoch FROM sent_at) / 86400)::int) || substr(sha256(('identity' || n)::bytea), 1, 28), sha256(('lock' || n)::bytea), '<' || md5(n::text) || '@elsewhere.example>',
    sha256(('content' || n)::bytea), author, author, 'user' || n % 10000 || '@mail.example', 'Some words about ' || n, sent_at,
    jsonb_build_array(
        jsonb_build_array('Return-Path', '<' || author || '>'),
        jsonb_build_array('Received', 'from relay.elsewhere.example (relay.elsewhere.example [192.0.2.7]) by '
            || 'mx1.mail.example (Postfix) with ESMTPS id 4cBxyz1234z9rs; Thu, 20 Nov 2025 16:00:00 +0000 (UTC)'),
        jsonb_build_array('From', author),
        jsonb_build_array('Subject', 'Some words about ' || n),
        jsonb_build_array('Message-ID', '<' || md5(n::text) || '@elsewhere.example>')),
    8000, sent_at
FROM generate_series(1, :rows) n,
    LATERAL (SELECT 'author' || n % 5000 || '@elsewhere.example', now() - (:rows - n) * interval '10 s') a (author, sent_at);
INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, uid_validity, uid, delivered_at, updated_at)
SELECT int4send((extract(epoch FROM recorded_at) / 86400)::int) || substr(sha256(('copy' || id)::bytea), 1, 28), id, 'recipient', 'user' || id % 10000, 'INBOX', 'user' || id % 10000 || '@mail.example',
    'delivered', 1700000000, id / 10000 + 1, recorded_at, recorded_at
FROM messages;
INSERT INTO attempts (copy_key, attempt, role, imap_user, mailbox, identity, lock_digest, message_id, recipient, queue_id, host,
    pid, session, uid_validity, uid_next, started_at, ended_at, outcome, stages)
SELECT int4send((extract(epoch FROM recorded_at) / 86400)::int) || substr(sha256(('copy' || id)::bytea), 1, 28), gen_random_uuid(), 'recipient', 'user' || id % 10000, 'INBOX', identity, lock_digest,
    message_id, 'user' || id % 10000 || '@mail.example', '4cBxyz1234z9rs', 'mx1.mail.example', 1000 + id % 30000,
    5000 + id % 3000, 1700000000, id / 10000 + 1, recorded_at - interval '20 ms', recorded_at, 'delivered',
    '{"connect":4.54,"route":1.39,"authenticate":12.1,"position":3.2,"journal":1.08,"lock":0.28,"look":0.94,"append":4.87}'
FROM messages;
VACUUM (ANALYZE);
CHECKPOINT;
"#;

const MARIADB: &str = r#"
INSERT INTO addresses (address, imap_user) SELECT CONCAT('user', seq, '@mail.example'), CONCAT('user', seq) FROM seq_1_to_10000;
INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to, subject, sent_at,
    headers, size, recorded_at)
SELECT UNHEX(INSERT(SHA2(CONCAT('identity', seq), 256), 1, 8,
        LPAD(HEX(TO_DAYS(UTC_TIMESTAMP() - INTERVAL (:rows - seq) * 10 SECOND) - TO_DAYS('1970-01-01')), 8, '0'))), UNHEX(SHA2(CONCAT('lock', seq), 256)),
    CONCAT('<', MD5(seq), '@elsewhere.example>'), UNHEX(SHA2(CONCAT('content', seq), 256)),
    CONCAT('author', seq % 5000, '@elsewhere.example'), CONCAT('author', seq % 5000, '@elsewhere.example'),
    CONCAT('user', seq % 10000, '@mail.example'), CONCAT('Some words about ', seq),
    UTC_TIMESTAMP() - INTERVAL (:rows - seq) * 10 SECOND,
    JSON_ARRAY(
        JSON_ARRAY('Return-Path', CONCAT('<author', seq % 5000, '@elsewhere.example>')),
        JSON_ARRAY('Received', CONCAT('from relay.elsewhere.example (relay.elsewhere.example [192.0.2.7]) by ',
            'mx1.mail.example (Postfix) with ESMTPS id 4cBxyz1234z9rs; Thu, 20 Nov 2025 16:00:00 +0000 (UTC)')),
        JSON_ARRAY('Subject', CONCAT('Some words about ', seq)),
        JSON_ARRAY('Message-ID', CONCAT('<', MD5(seq), '@elsewhere.example>'))),
    8000, UTC_TIMESTAMP(6) - INTERVAL (:rows - seq) * 10 SECOND
FROM seq_1_to_:rows;
INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, uid_validity, uid, delivered_at, updated_at)
SELECT UNHEX(INSERT(SHA2(CONCAT('copy', id), 256), 1, 8, LPAD(HEX(TO_DAYS(recorded_at) - TO_DAYS('1970-01-01')), 8, '0'))), id, 'recipient', CONCAT('user', id % 10000), 'INBOX',
    CONCAT('user', id % 10000, '@mail.example'), 'delivered', 1700000000, id DIV 10000 + 1, recorded_at, recorded_at
FROM messages;
INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, recipient, queue_id, host,
    pid, session, uid_validity, uid_next, started_at, ended_at, outcome, stages)
SELECT UNHEX(CONCAT(LPAD(HEX(1600000000000 + id * 10000), 12, '0'), '7', SUBSTR(MD5(id), 1, 19))),
    UNHEX(INSERT(SHA2(CONCAT('copy', id), 256), 1, 8, LPAD(HEX(TO_DAYS(recorded_at) - TO_DAYS('1970-01-01')), 8, '0'))), 'recipient', CONCAT('user', id % 10000), 'INBOX', identity, lock_digest, message_id,
    CONCAT('user', id % 10000, '@mail.example'), '4cBxyz1234z9rs', 'mx1.mail.example', 1000 + id % 30000, 5000 + id % 3000,
    1700000000, id DIV 10000 + 1, recorded_at - INTERVAL 20000 MICROSECOND, recorded_at, 'delivered',
    '{"connect":4.54,"route":1.39,"authenticate":12.1,"position":3.2,"journal":1.08,"lock":0.28,"look":0.94,"append":4.87}'
FROM messages;
ANALYZE TABLE messages, copies, attempts;
"#;
