//! The page, on a ledger of a million messages and three million attempts of five days: how long each screen takes, and what those
//! who look at what is live cost. In this process, by the page's own routes: no browser, no network but to the database.

use crate::figures::{Ratio, Report, Series, milliseconds};
use crate::growth::fixture::{Fixture, has};
use crate::growth::verdict;
use crate::site::Site;
use crate::support::counting_proxy::CountingProxy;
use crate::support::database::Engine;
use crate::support::imap_server::somebody;
use crate::support::ledger_history::long_queue_id;
use crate::support::visitor::{Page, Visitor};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ENGINES: [(Engine, &str); 3] =
    [(Engine::Postgres17, "PostgreSQL"), (Engine::Mariadb118, "MariaDB"), (Engine::Mysql9, "MySQL")];
const VIEWERS: usize = 20;
/// How long they look, and how often a browser asks what is new.
const LOOKED: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_secs(5);
/// A session of the page that has rested for longer is looked at before it is used.
const TRUSTED_FOR: Duration = Duration::from_millis(1200);
/// How many messages one statement fills in, on MySQL and MariaDB.
const CHUNK: usize = 10_000;

pub fn measure(report: &mut Report, _: &Site, runs: usize) {
    // Why a screen could not be shown, and what was asked.
    let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).try_init();
    // With few runs it is only to be seen whether all of it works.
    let messages = if runs >= 20 { 1_000_000 } else { 10_000 };
    let only = crate::option("--engine");
    let wanted = |name: &str| only.as_ref().is_none_or(|only| only.eq_ignore_ascii_case(name));
    assert!(ENGINES.iter().any(|(_, name)| wanted(name)), "the engines are {:?}", ENGINES.map(|(_, name)| name));
    for (engine, name) in ENGINES {
        if !has(engine) || !wanted(name) {
            continue;
        }
        report.progress(format!("page: {messages} messages and three times as many attempts, {name}"));
        let user = somebody("page");
        let fixture = Fixture::new(engine, [&user]);
        let began = Instant::now();
        fill(&fixture, messages);
        report.progress(format!("page: they were filled in in {} s", began.elapsed().as_secs()));
        report.line(format!("### The page, {name}\n\n{messages} messages and {} attempts of five days.", 3 * messages));
        screens(report, &fixture, runs);
        live(report, &fixture, &user, runs);
    }
}

fn fill(fixture: &Fixture, messages: usize) {
    let run = |statements: &str, chunk: Option<usize>| {
        for statement in statements.split(";\n").filter(|statement| !statement.trim().is_empty()) {
            let statement = statement.replace(":rows", &messages.to_string());
            let after = chunk.unwrap_or_default();
            let until = (after + CHUNK).min(messages).to_string();
            fixture.execute(&statement.replace(":after", &after.to_string()).replace(":until", &until));
        }
    };
    if fixture.engine.is_postgres() {
        return run(POSTGRES, None);
    }
    let began = fixture.texts("SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)").remove(0);
    let statements = MYSQL.replace(":began", &began);
    (0..messages).step_by(CHUNK).for_each(|after| run(&statements, Some(after)));
    run("ANALYZE TABLE messages, copies, attempts;\n", None);
}

/// Somebody who is let in.
fn visitor<'a>(fixture: &Fixture, page: &'a Page) -> Visitor<'a> {
    page.log_in(&fixture.link_to_the_page())
}

fn screens(report: &mut Report, fixture: &Fixture, runs: usize) {
    let by = if fixture.engine.is_postgres() { "/" } else { "DIV" };
    let middle = &format!("FROM messages WHERE id = (SELECT max(id) {by} 2 FROM messages)");
    let id = &fixture.texts(&format!("SELECT message_id {middle}"))[0];
    let (digest, seconds) = if fixture.engine.is_postgres() {
        ("encode(identity, 'hex')", "extract(epoch FROM recorded_at)::bigint::text")
    } else {
        ("LOWER(HEX(identity))", "CAST(FLOOR(UNIX_TIMESTAMP(recorded_at)) AS CHAR)")
    };
    let identity = &fixture.texts(&format!("SELECT {digest} {middle}"))[0];
    let recorded: u64 = fixture.texts(&format!("SELECT {seconds} {middle}"))[0].parse().unwrap();
    let short =
        &fixture.texts(&format!("SELECT queue_id FROM attempts WHERE lock_digest = (SELECT lock_digest {middle})"))[0];
    let late = format!("FROM messages WHERE id = (SELECT max(id) - max(id) {by} 60 FROM messages)");
    let late =
        &fixture.texts(&format!("SELECT queue_id FROM attempts WHERE lock_digest = (SELECT lock_digest {late})"))[0];
    // Postfix has taken it in a little earlier.
    let long = long_queue_id(recorded - 2);
    let other = format!("FROM messages WHERE id = (SELECT max(id) {by} 2 + 1 FROM messages)");
    fixture
        .execute(&format!("UPDATE attempts SET queue_id = '{long}' WHERE lock_digest = (SELECT lock_digest {other})"));
    let encoded: String = url::form_urlencoded::byte_serialize(id.as_bytes()).collect();
    let asked = [
        ("Activity", "/".to_owned(), Some(50.0)),
        ("Activity, deferred", "/?state=deferred".into(), None),
        ("Activity, one host", "/?host=mx1.mail.example".into(), None),
        ("a Message-ID, 2½ days old", format!("/?q={encoded}&state=delivered"), Some(100.0)),
        ("a long queue id, 2½ days old", format!("/?q={long}&state=delivered"), Some(100.0)),
        ("a short queue id, 2 hours old", format!("/?q={late}&state=delivered"), Some(100.0)),
        ("a short queue id, 2½ days old", format!("/?q={short}&state=delivered"), Some(100.0)),
        ("a recipient's address", "/?q=user77@mail.example".into(), None),
        ("a sender's address", "/?q=author77@elsewhere.example".into(), None),
        ("nobody's address", "/?q=nobody@elsewhere.example".into(), None),
        ("a message", format!("/messages/{identity}"), Some(30.0)),
    ];
    let mut rows = Vec::new();
    let mut tell = |what: &str, series: &Series, blocks: Option<f64>, goal: Option<f64>| {
        rows.push([
            what.to_owned(),
            series.to_string(),
            blocks.map_or_else(String::new, |blocks| format!("{blocks:.0}")),
            goal.map_or_else(String::new, |goal| format!("≤ {goal}: {}", verdict(series.median() <= goal))),
        ]);
    };
    // What was counted is kept by the page's process: a new one for each.
    report.progress("page: statistics");
    let site = fixture.site_of_the_page(None);
    let [mut hour, mut day, mut day_after, mut week, mut week_after] = <[Series; 5]>::default();
    for _ in 0..runs.div_ceil(20) {
        let page = Page::of(&site);
        let anna = visitor(fixture, &page);
        for (span, until, after) in [("1d", &mut day, &mut day_after), ("7d", &mut week, &mut week_after)] {
            let took = counted(&page, &anna, span);
            until.push(took[0]);
            after.push(took[1]);
        }
        hour.push(timed(|| _ = anna.get("/statistics?span=1h").shown()));
    }
    report.progress("page: its screens");
    let page = Page::of(&site);
    let anna = visitor(fixture, &page);
    counted(&page, &anna, "7d");
    for (what, path, goal) in &asked {
        let once = || timed(|| _ = anna.get(path).shown());
        once();
        // The figures above the list are counted beside it, for all who look: they are to be fresh, so that they are not counted now.
        anna.get("/").shown();
        page.rest(TRUSTED_FOR);
        let before = fixture.blocks_of_ended_sessions();
        page.rest(TRUSTED_FOR);
        let series: Series = (0..runs.div_ceil(4)).map(|_| once()).collect();
        let after = fixture.blocks_of_ended_sessions();
        page.rest(TRUSTED_FOR);
        let blocks = after.zip(before).map(|(after, before)| (after[1] - before[1]) / series.len() as f64);
        tell(what, &series, blocks, *goal);
    }
    tell("statistics of an hour", &hour, None, None);
    tell("until a day is counted", &day, None, None);
    tell("of a day, once it is", &day_after, None, Some(500.0));
    tell("until 7 days are counted", &week, None, None);
    tell("of 7 days, once they are", &week_after, None, Some(500.0));
    report.table(["screen", "ms", "blocks of the ledger", "goal, ms"], &rows);
    report.line(
        "A span is counted in the background when somebody asks for it; until then the page says that it is being counted. The \
         blocks are those of a request: the figures above the list are counted beside it. A short queue id says nothing of when its message \
         came but the microseconds, and has no index, which each delivery would pay for: it is looked for backwards in time, and after \
         2.5 s the page says how far it looked.",
    );
}

fn timed(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    milliseconds(began.elapsed())
}

/// How long it takes until a span is counted, and the first request after that.
fn counted(page: &Page, anna: &Visitor<'_>, span: &str) -> [f64; 2] {
    let began = Instant::now();
    loop {
        let mut is_all = false;
        let took = timed(|| {
            is_all = !anna.get(&format!("/statistics?span={span}")).shown().contains("This is being counted");
        });
        if is_all {
            return [milliseconds(began.elapsed()), took];
        }
        page.rest(Duration::from_millis(500));
    }
}

/// Those who look at what is live.
fn live(report: &mut Report, fixture: &Fixture, user: &str, runs: usize) {
    report.progress(format!("page: {VIEWERS} who look at what is live"));
    let (host, port) = fixture.engine.address();
    let proxy = CountingProxy::before(&host, port);
    let page = Page::of(&fixture.site_of_the_page(Some(proxy.port)));
    let anna = visitor(fixture, &page);
    counted(&page, &anna, "7d");
    let path = anna.get("/").shown().split("data-newer=\"").nth(1).expect("a list that lives").to_owned();
    let path = path.split('"').next().unwrap().replace("&amp;", "&");
    let poll = |viewers: usize| (0..viewers).for_each(|_| _ = anna.get(&path).shown());
    let asked = |viewers: usize| {
        proxy.round_trips();
        for _ in 0..LOOKED.as_secs() / POLL.as_secs() {
            poll(viewers);
            page.rest(POLL);
        }
        proxy.round_trips() as f64 / LOOKED.as_secs_f64()
    };
    let (none, one, many) = (asked(0), asked(1), asked(VIEWERS));
    report.line(format!(
        "- Round trips to the database each second: {none:.1} while nobody looks, {one:.1} for one who looks at what is live, \
         {many:.1} for {VIEWERS}."
    ));
    beside(report, "who look", fixture, user, runs, &|begun, stop| {
        rest_until(&page, begun, stop, || poll(VIEWERS));
    });
    // By a process that has counted nothing yet.
    let site = fixture.site_of_the_page(None);
    beside(report, "a week being counted", fixture, user, runs, &|begun, stop| {
        let page = Page::of(&site);
        let anna = visitor(fixture, &page);
        anna.get("/statistics?span=7d").shown();
        rest_until(&page, begun, stop, || ());
    });
}

/// Rests, but for what is done as often as a browser polls.
fn rest_until(page: &Page, begun: &AtomicBool, stop: &AtomicBool, poll: impl Fn()) {
    let mut due = Instant::now();
    begun.store(true, Ordering::Relaxed);
    while !stop.load(Ordering::Relaxed) {
        if due <= Instant::now() {
            poll();
            due += POLL;
        }
        page.rest(Duration::from_millis(50));
    }
}

/// What somebody does who says when it has begun, and does it until it is to stop.
type Doing<'a> = &'a (dyn Fn(&AtomicBool, &AtomicBool) + Sync);

/// Deliveries beside something, and without it.
fn beside(report: &mut Report, what: &str, fixture: &Fixture, user: &str, runs: usize, doing: Doing<'_>) {
    report.progress(format!("page: deliveries beside {what}"));
    let (mut alone, mut beside) = (Series::default(), Series::default());
    for round in 0..runs.div_ceil(5) + 1 {
        let (stop, begun) = (AtomicBool::new(false), AtomicBool::new(false));
        let deliver = |series: &mut Series| {
            (0..5).for_each(|_| series.push_if(round > 0, milliseconds(fixture.deliver(user).took)));
        };
        deliver(&mut alone);
        std::thread::scope(|scope| {
            scope.spawn(|| doing(&begun, &stop));
            // What it costs to begin is not what it costs.
            while !begun.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
            deliver(&mut beside);
            stop.store(true, Ordering::Relaxed);
        });
    }
    let ratio = Ratio::of(&beside, &alone);
    report.line(format!(
        "- A delivery beside {what} takes {beside} ms, without {alone} ms: × {ratio} (goal ≤ 1.05: {}).",
        verdict(ratio.value <= 1.05)
    ));
}

/// What so many messages would have left: of each an attempt that found the lock held, a copy delivered, and the author's.
const POSTGRES: &str = r#"
INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to, subject, sent_at,
    headers, size, recorded_at)
SELECT int4send((extract(epoch FROM sent_at) / 86400)::int) || substr(sha256(('identity' || n)::bytea), 1, 28),
    sha256(('lock' || n)::bytea), '<' || md5(n::text) || '@elsewhere.example>', sha256(('content' || n)::bytea), author, author,
    'user' || n % 10000 || '@mail.example', 'Some words about ' || n, sent_at,
    jsonb_build_array(jsonb_build_array('From', author), jsonb_build_array('Subject', 'Some words about ' || n)), 8000, sent_at
FROM generate_series(1, :rows) n,
    LATERAL (SELECT 'author' || n % 5000 || '@elsewhere.example', now() - (:rows - n) * interval '5 days' / :rows) a (author, sent_at);
INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, uid_validity, uid, delivered_at, updated_at)
SELECT int4send((extract(epoch FROM recorded_at) / 86400)::int) || substr(sha256(('copy' || id)::bytea), 1, 28), id, 'recipient',
    'user' || id % 10000, 'INBOX', 'user' || id % 10000 || '@mail.example', 'delivered', 1700000000, id / 10000 + 1, recorded_at,
    recorded_at
FROM messages;
INSERT INTO attempts (copy_key, attempt, role, imap_user, mailbox, identity, lock_digest, message_id, sender, recipient, queue_id, host,
    pid, session, uid_validity, uid_next, started_at, ended_at, outcome, stages)
SELECT int4send((extract(epoch FROM recorded_at) / 86400)::int)
        || substr(sha256(('copy' || CASE WHEN k = 1 THEN 's' ELSE '' END || id)::bytea), 1, 28),
    gen_random_uuid(), CASE WHEN k = 1 THEN 'sender' ELSE 'recipient' END,
    CASE WHEN k = 1 THEN 'author' || id % 5000 ELSE 'user' || id % 10000 END, CASE WHEN k = 1 THEN 'Sent' ELSE 'INBOX' END,
    identity, lock_digest, message_id, sender, 'user' || id % 10000 || '@mail.example', '4C' || upper(substr(md5('q' || id), 1, 9)),
    'mx' || 1 + id % 2 || '.mail.example', 1000 + id % 30000, 5000 + id % 3000, 1700000000, id / 10000 + 1,
    recorded_at - (3 - k) * interval '120 ms', recorded_at - (2 - k) * interval '120 ms',
    CASE WHEN k = 0 THEN 'busy' ELSE 'appended' END,
    '{"connect":4.54,"route":1.39,"authenticate":12.1,"position":3.2,"journal":1.08,"lock":0.28,"look":0.94,"append":4.87}'
FROM messages, generate_series(0, 2) k ORDER BY id, k;
VACUUM (ANALYZE);
CHECKPOINT;
"#;

/// The same, for messages that have been filled in up to `:after`, up to and including `:until`.
const MYSQL: &str = r#"
INSERT INTO messages (id, identity, lock_digest, message_id, content_digest, sender, header_from, header_to, subject, sent_at,
    headers, size, recorded_at)
WITH digits (d) AS (SELECT 0 UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
        UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9),
    numbers (n) AS (SELECT :after + 1 + a.d + 10 * b.d + 100 * c.d + 1000 * e.d
        FROM digits a CROSS JOIN digits b CROSS JOIN digits c CROSS JOIN digits e),
    moments (n, t) AS (SELECT n, CAST(':began' AS DATETIME(6)) - INTERVAL FLOOR((:rows - n) * (432000000000 / :rows)) MICROSECOND
        FROM numbers WHERE n <= :until)
SELECT n, UNHEX(CONCAT(LPAD(HEX(TO_DAYS(t) - TO_DAYS('1970-01-01')), 8, '0'), SUBSTR(SHA2(CONCAT('identity', n), 256), 1, 56))),
    UNHEX(SHA2(CONCAT('lock', n), 256)), CONCAT('<', LEFT(SHA2(n, 256), 32), '@elsewhere.example>'),
    UNHEX(SHA2(CONCAT('content', n), 256)), CONCAT('author', n % 5000, '@elsewhere.example'),
    CONCAT('author', n % 5000, '@elsewhere.example'), CONCAT('user', n % 10000, '@mail.example'),
    CONCAT('Some words about ', n), t, JSON_ARRAY(JSON_ARRAY('Subject', CONCAT('Some words about ', n))), 8000, t
FROM moments;
INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, uid_validity, uid, delivered_at, updated_at)
SELECT UNHEX(CONCAT(LPAD(HEX(TO_DAYS(recorded_at) - TO_DAYS('1970-01-01')), 8, '0'), SUBSTR(SHA2(CONCAT('copy', id), 256), 1, 56))),
    id, 'recipient', CONCAT('user', id % 10000), 'INBOX', CONCAT('user', id % 10000, '@mail.example'), 'delivered', 1700000000,
    id DIV 10000 + 1, recorded_at, recorded_at
FROM messages WHERE id > :after AND id <= :until;
INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, sender, recipient, queue_id, host,
    pid, session, uid_validity, uid_next, started_at, ended_at, outcome, stages)
SELECT UNHEX(CONCAT(LPAD(HEX(FLOOR(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', recorded_at) / 1000) - (3 - k.n) * 120), 12, '0'), '7',
        SUBSTR(SHA2(CONCAT(k.n, '-', id), 256), 1, 3), '8', SUBSTR(SHA2(CONCAT(k.n, '+', id), 256), 1, 15))),
    UNHEX(CONCAT(LPAD(HEX(TO_DAYS(recorded_at) - TO_DAYS('1970-01-01')), 8, '0'),
        SUBSTR(SHA2(CONCAT('copy', IF(k.n = 1, 's', ''), id), 256), 1, 56))),
    IF(k.n = 1, 'sender', 'recipient'), IF(k.n = 1, CONCAT('author', id % 5000), CONCAT('user', id % 10000)),
    IF(k.n = 1, 'Sent', 'INBOX'), identity, lock_digest, message_id, sender, CONCAT('user', id % 10000, '@mail.example'),
    CONCAT('4C', UPPER(LEFT(SHA2(CONCAT('q', id), 256), 9))), CONCAT('mx', 1 + id % 2, '.mail.example'), 1000 + id % 30000,
    5000 + id % 3000, 1700000000, id DIV 10000 + 1, recorded_at - INTERVAL (3 - k.n) * 120000 MICROSECOND,
    recorded_at - INTERVAL (2 - k.n) * 120000 MICROSECOND, IF(k.n = 0, 'busy', 'appended'),
    '{"connect":4.54,"route":1.39,"authenticate":12.1,"position":3.2,"journal":1.08,"lock":0.28,"look":0.94,"append":4.87}'
FROM messages CROSS JOIN (SELECT 0 n UNION ALL SELECT 1 UNION ALL SELECT 2) k WHERE id > :after AND id <= :until;
"#;
