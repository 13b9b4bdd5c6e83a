//! The page, on each engine, by a role that has the rights of `grants-web.sql` and no others: what it shows is what `trace` and `stats`
//! tell.

use crate::support::database::{Connection, Engine};
use crate::support::ledger_history::{Made, long_queue_id, now};
use crate::support::program::{program, wait_until};
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use crate::support::visitor::{Page, rows, text};
use crate::support::wire::{Fate, Speaker, Wire, says};
use maildrop_command::config::Config;
use maildrop_command::http::web::WebSettings;
use maildrop_command::lock::LockName;
use maildrop_command::queue::{Envelope, Queue, Recipient};
use maildrop_command::site::Site;
use mysql::prelude::Queryable;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

on_two_engines!(
    each_screen_is_shown_with_the_pages_own_rights,
    an_outage_of_the_mailbox_store_is_seen_and_stays_on_the_page_of_the_message,
    who_had_the_lock_that_another_gave_up_on_is_named_afterwards,
    statistics_count_an_hour_a_day_and_a_week,
    an_attempt_of_a_host_whose_clock_is_wrong_stands_where_it_belongs,
    a_queue_id_is_found_whatever_its_hosts_clock_says,
    a_search_that_the_server_ends_says_how_far_it_looked,
    who_pages_through_what_a_busy_sender_has_sent_sees_each_attempt_once,
    what_is_new_in_a_list_is_read_without_what_is_old,
    who_is_logged_in_is_kept_in_the_database_as_digests_only,
    a_session_that_the_server_has_ended_is_reopened
);

/// The site as the page's own role sees it, and a link that logs somebody in.
fn page_of(scene: &mut Scene) -> (Site, String) {
    let role = format!("{}_w", scene.run);
    scene.database.create_page(&role, "secret");
    (Site::without_mailboxes(configuration(scene, role)).unwrap(), link(scene, "admin"))
}

/// The configuration of the page, whose role is this one.
pub fn configuration(scene: &Scene, role: String) -> Config {
    scene.file("page.password", "secret\n", 0o600);
    let own = scene.other_configuration("page.toml", |settings| settings.role = role);
    let config = std::fs::read_to_string(&own).unwrap().replace("database.password", "page.password");
    std::fs::write(&own, config).unwrap();
    Config::load(own.as_ref()).unwrap()
}

/// A link, as an operator has it printed who has the rights for that.
pub(super) fn link(scene: &mut Scene, role: &str) -> String {
    let operator = format!("{}_o", scene.run);
    let config = scene.path("operator.toml");
    if !std::fs::exists(&config).unwrap() {
        scene.database.create_operator(&operator, "secret");
        scene.file("operator.password", "secret\n", 0o600);
        scene.other_configuration("operator.toml", |settings| {
            settings.role = operator;
            settings.more += "[web]\nlisten = \"127.0.0.1:8025\"\n";
        });
        let text = std::fs::read_to_string(&config).unwrap().replace("database.password", "operator.password");
        std::fs::write(&config, text).unwrap();
    }
    let arguments = ["web", "login", "--name", "anna", "--role", role, "--config", config.as_str()];
    let output = program(&arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn an_outage_of_the_mailbox_store_is_seen_and_stays_on_the_page_of_the_message(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let (site, link) = page_of(&mut scene);
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    let store = scene.settings.imap.clone();
    // Nothing listens there.
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), 9));
    for _ in 0..2 {
        scene.deliver("doug", scene.message("down")).deferred("4.4.1 ");
    }
    let list = anna.figures();
    for has in ["1 recipient waits since", ": the mailbox store is out of reach. Nothing is lost", "1 deferred now"] {
        assert!(list.contains(has), "{has}: {list}");
    }
    let shown = |has: &str| {
        let answer = anna.get("/?q=doug%40mail.axial.net&since=1d");
        let list = anna.get("/?state=deferred");
        let path = [&answer, &list].map(|page| page.body.clone()).concat();
        let path = path.split("href=\"").find(|rest| rest.starts_with("/messages/")).unwrap().to_owned();
        let message = anna.get(&path.split('"').next().unwrap().replace("&amp;", "&"));
        assert!(text(message.shown()).contains(has), "{has}: {}", text(&message.body));
    };
    shown("STILL DEFERRED for doug@mail.axial.net (2 attempts): failed before delivery");
    scene.configure(|settings| settings.imap = store);
    scene.deliver("doug", scene.message("down")).delivered();
    shown("failed 2 times before delivery: the mailbox store is out of reach");
    shown("doug@mail.axial.net delivered or refused since");
    assert_eq!(rows(anna.get("/?state=deferred").shown()), 0);
    let statistics = text(anna.statistics("").shown());
    assert!(statistics.contains("the mailbox store is out of reach 1 1 0"), "{statistics}");
}

fn each_screen_is_shown_with_the_pages_own_rights(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    let (site, link) = page_of(&mut scene);
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    let (one, two) = (scene.message("one"), scene.message("two"));
    scene.deliver_with("doug", &["--queue-id", "4jY5Kl1pjDzBFGl"], &one).delivered();
    scene.deliver("scuba", &one).delivered();
    // Of the other message one copy is deferred, since somebody has the lock.
    scene.deliver("doug", &two).delivered();
    let id = scene.message_id("two");
    let holder = scene.hold(&id);
    scene.deliver_with("scuba", &["--lock-wait", "0s", "--queue-id", "4bTwo"], &two).deferred("4.3.0 ");
    drop(holder);

    let encoded: String = url::form_urlencoded::byte_serialize(id.as_bytes()).collect();
    for (query, count, has) in [
        (String::new(), 4, "deferred: another delivery held the lock"),
        ("state=delivered".into(), 3, "doug@mail.axial.net"),
        ("state=deferred".into(), 1, "deferred: another delivery held the lock"),
        ("state=refused".into(), 0, "No attempt matches"),
        ("state=open".into(), 0, "No attempt matches"),
        ("state=owed".into(), 0, "No Sent copy is owed"),
        ("role=sent".into(), 4, "copy for Sent of lisa"),
        ("role=all".into(), 8, "doug@mail.axial.net"),
        (format!("user={}", scene.user("doug")), 2, "doug@mail.axial.net"),
        ("host=elsewhere".into(), 0, "No attempt matches"),
        ("q=scuba%40mail.axial.net".into(), 2, "Searched as an address"),
        (format!("q={LISA}&since=1h"), 4, "Searched as an address"),
        ("q=4jY5Kl1pjDzBFGl&state=delivered".into(), 1, "Searched as a queue id"),
        (format!("q={encoded}&state=deferred"), 1, "Searched as a Message-ID"),
        ("q=tWo".into(), 2, "Searched as a part of a subject"),
    ] {
        let shown = anna.get(&format!("/?{query}"));
        let text = text(shown.shown());
        assert!(rows(&shown.body) == count && text.contains(has), "{query}: {}: {text}", rows(&shown.body));
    }
    let figures = anna.figures();
    assert!(figures.contains("3 delivered, last hour In the mailbox. 1 deferred now"), "{figures}");
    let message = anna.get(anna.get(&format!("/?q={encoded}")).leads_to());
    let screen = text(message.shown());
    for has in
        ["STILL DEFERRED for scuba@mail.axial.net", "Delivered to 1 of 2.", &id, "queue id 4bTwo", "Sent of lisa"]
    {
        assert!(screen.contains(has), "{has}: {screen}");
    }
    let statistics = text(anna.statistics("?span=1d").shown());
    assert!(statistics.contains("Outcomes of 4 attempts") && statistics.contains("deferred 1 25.0 %"), "{statistics}");
    assert!(text(anna.get("/logins").shown()).contains("anna admin"));

    // Who waits for a lock, and who has it.
    let (three, id) = (scene.message("three"), scene.message_id("three"));
    let holder = scene.hold(&id);
    let waiting = scene.start("doug", &["--lock-wait", "200s"], &three);
    wait_until("the lock is shown, and who waits for it", || {
        let locks = text(anna.get("/locks").shown());
        locks.contains(&id) && locks.contains(" holds ") && locks.contains(" waits ")
    });
    drop(holder);
    waiting.end().delivered();
}

fn who_had_the_lock_that_another_gave_up_on_is_named_afterwards(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    let (site, link) = page_of(&mut scene);
    let (message, id) = (scene.message("one"), scene.message_id("one"));
    let dovecot = scene.settings.imap.clone();
    let goes_on = Arc::new(AtomicBool::new(false));
    let may_go_on = goes_on.clone();
    let wire = Wire::to(dovecot.clone(), move |speaker, piece| {
        if matches!(speaker, Speaker::Server) && says(piece, "APPENDUID") {
            wait_until("it may go on", || may_go_on.load(Ordering::SeqCst));
        }
        Fate::Pass
    });
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), wire.address.port()));
    let first = scene.start("doug", &["--queue-id", "4bFirst"], &message);
    wait_until("it has appended", || scene.inbox("doug").len() == 1);
    scene.configure(|settings| settings.imap = dovecot);
    scene.deliver_with("scuba", &["--lock-wait", "0s"], &message).deferred("4.3.0 ");
    let process = first.id();
    goes_on.store(true, Ordering::SeqCst);
    first.end().delivered();

    let printed = String::from_utf8(scene.subcommand(&["trace", &id, "--json"]).stdout).unwrap();
    let json: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let attempts = json["messages"][0]["attempts"].as_array().unwrap();
    let [delivered, busy] = attempts.as_slice() else { panic!("{printed}") };
    let holder = &busy["lock_was_held_by"];
    assert_eq!((&holder["pid"], &holder["queue_id"]), (&process.into(), &"4bFirst".into()), "{printed}");
    assert_eq!((&holder["host"], delivered.get("lock_was_held_by")), (&delivered["host"], None), "{printed}");
    // It had the lock for longer than the other one waited.
    let waited = busy["stages_ms"]["lock"].as_f64().unwrap() / 1000.0;
    assert!(holder["held_for_s"].as_f64().unwrap() > waited, "{printed}");
    let host = holder["host"].as_str().unwrap();
    let output = String::from_utf8(scene.subcommand(&["trace", &id]).stdout).unwrap();
    let held = format!("held by {host}:{process}, queue id 4bFirst, for ");
    assert!(output.contains(&format!("busy: {held}")), "{output}");
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    let encoded: String = url::form_urlencoded::byte_serialize(id.as_bytes()).collect();
    let message = anna.get(anna.get(&format!("/?q={encoded}")).leads_to());
    let shown = message.shown();
    let screen = text(shown);
    assert!(screen.contains(&format!(" for the lock, in vain: it was {held}")), "{screen}");
    let has = |what: &str| assert!(shown.contains(what), "{what}: {shown}");
    has(&format!("the lock was held by {host}:{process} for "));
    has("1 attempt waited for the lock in vain");
    has(&format!("<title>{host}:{process} had the lock</title>"));
    has(" waited for the lock</title>");
}

/// An attempt at a recipient's copy that began so many minutes ago, and was delivered.
fn made(number: u64, minutes_ago: u64) -> Made<'static> {
    let began = now() - minutes_ago * 60_000_000;
    Made { number, role: "recipient", began, outcome: Some("appended"), stages: r#"{"append": 2.5}"# }
}

fn statistics_count_an_hour_a_day_and_a_week(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let (site, link) = page_of(&mut scene);
    let hours = [2, 5, 23, 27, 24 * 6, 24 * 8];
    let mut attempts = vec![made(1, 0)];
    attempts.extend((2..).zip(hours).map(|(number, hours)| made(number, hours * 60)));
    attempts[2].outcome = Some("busy");
    scene.add_attempts(&attempts);
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    for (span, count, delivered) in [("?span=1h", 1, 1), ("?span=1d", 4, 3), ("?span=7d", 6, 5), ("?span=1d", 4, 3)] {
        let statistics = text(anna.statistics(span).shown());
        let has = |what: &str| assert!(statistics.contains(what), "{span}: {what}: {statistics}");
        has(&format!("Outcomes of {count} attempt"));
        has(&format!("append {count} 2.5 ms"));
        has(&format!("delivered {delivered} "));
    }
}

fn an_attempt_of_a_host_whose_clock_is_wrong_stands_where_it_belongs(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let (site, link) = page_of(&mut scene);
    let attempts: Vec<_> = (1..=600).map(|number| made(number, 1 + number % 50)).collect();
    scene.add_attempts(&attempts);
    // By its own clock it began before all others.
    scene.add_attempts(&[made(9999, 55)]);
    let newest = "SELECT max(started_at) AS newest FROM attempts";
    scene.database.execute(&format!(
        "UPDATE attempts SET started_at = (SELECT newest FROM ({newest}) a) WHERE message_id = '<9999>'"
    ));
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    let shown = anna.get("/");
    assert_eq!(rows(shown.shown()), 50);
    assert!(text(&shown.body).contains("<9999>"), "{}", text(&shown.body));
}

fn a_queue_id_is_found_whatever_its_hosts_clock_says(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let (site, link) = page_of(&mut scene);
    let attempts: Vec<_> = (1..=600).map(|number| made(number, number)).collect();
    scene.add_attempts(&attempts);
    // The database's clock says so many minutes more, or fewer, than the one that has named them; and of two the older one is another
    // message's.
    let (short, again) = ("4C01234567A", "4C0FFEE");
    let long = |minutes: u64| long_queue_id(now() / 1_000_000 - minutes * 60);
    let ids = [(180, 50, short), (240, -50, &long(240)), (300, 50, &long(300)), (360, 0, &long(360))];
    for (number, minutes, queue_id) in ids.into_iter().chain([(100, 0, again), (400, 0, again)]) {
        let later = if engine.is_postgres() {
            format!("started_at + interval '{minutes} minutes'")
        } else {
            format!("started_at + INTERVAL {minutes} MINUTE")
        };
        let its = format!("WHERE message_id = '<{number}>'");
        scene.database.execute(&format!("UPDATE attempts SET queue_id = '{queue_id}', started_at = {later} {its}"));
    }
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    // A slow machine may not get far in the time that a search has.
    let found = |queue_id: &str| {
        let mut shown = String::new();
        wait_until("it is found", || {
            shown = anna.get(&format!("/?q={queue_id}&state=delivered")).body;
            rows(&shown) > 0
        });
        (rows(&shown), text(&shown))
    };
    for (number, _, queue_id) in ids {
        let (rows, hint) = found(queue_id);
        assert!(rows == 1 && hint.contains(&format!("<{number}>")), "{queue_id}: {hint}");
    }
    let (_, hint) = found(again);
    assert!(hint.contains("<100>") && !hint.contains("<400>") && hint.contains("were not searched"), "{hint}");
    // More attempts at a message than a page shows, all in one slice: the others are on the next page, and not where nobody looked.
    let attempts: Vec<_> = (1001..=1060).map(|number| made(number, 90)).collect();
    scene.add_attempts(&attempts);
    let lock = "SELECT lock_digest FROM (SELECT lock_digest FROM attempts WHERE message_id = '<1001>') a";
    scene.database.execute(&format!(
        "UPDATE attempts SET queue_id = '4C0FFEE5', lock_digest = ({lock}) WHERE message_id LIKE '<10__>'"
    ));
    let (rows, hint) = found("4C0FFEE5");
    assert!(rows == 50 && hint.contains("Older") && !hint.contains("were not searched"), "{rows}: {hint}");
    // Where it was looked for all the way, nothing else is said.
    let mut received = String::new();
    wait_until("it was looked for all the way", || {
        received = text(anna.get("/?q=4C0FFEF&state=delivered&since=30m").shown());
        !received.contains("were not searched")
    });
    assert!(received.contains("No attempt matches"), "{received}");
}

/// The table is locked by somebody else, as it is while a migration changes it, so that nothing can be read.
fn a_search_that_the_server_ends_says_how_far_it_looked(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let (site, link) = page_of(&mut scene);
    scene.add_attempts(&[made(1, 1)]);
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    let mut session = scene.session();
    session.execute(if engine.is_postgres() { "BEGIN; LOCK TABLE attempts" } else { "LOCK TABLES attempts WRITE" });
    let screen = text(anna.get("/?q=%3C1%3E").shown());
    assert!(screen.contains("No attempt matches") && screen.contains("were not searched"), "{screen}");
    session.execute(if engine.is_postgres() { "ROLLBACK" } else { "UNLOCK TABLES" });
    let mut list = String::new();
    wait_until("it was looked for all the way", || {
        list = anna.get("/?state=delivered&since=10m").shown().to_owned();
        !text(&list).contains("were not searched")
    });
    assert_eq!(rows(&list), 1, "{list}");
}

/// A thousand messages of one sender within twenty minutes, some in the same moment, of which many were put off an hour and a half before.
fn who_pages_through_what_a_busy_sender_has_sent_sees_each_attempt_once(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let (site, link) = page_of(&mut scene);
    let first = now() - 25 * 60_000_000;
    let began = |number: u64| first + number / 2 * 2_400_000;
    let taken = |number| Made { began: began(number), ..made(number, 0) };
    scene.add_attempts(&(1..=1000).map(taken).collect::<Vec<_>>());
    scene.database.execute(
        "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, subject, headers, size, \
         recorded_at) SELECT identity, lock_digest, message_id, identity, 'lisa@elsewhere.example', 'Lisa', 'About it', '[]', 1, \
         started_at FROM attempts",
    );
    let put_off =
        |number| Made { began: began(number) - 90 * 60_000_000, outcome: Some("deferred: x"), ..made(number, 0) };
    scene.add_attempts(&(1..=300).map(put_off).collect::<Vec<_>>());
    scene.database.execute("UPDATE attempts SET sender = 'Lisa@elsewhere.example'");
    // Of somebody else, between them.
    let other = |number| Made { began: began(number - 2000), ..made(number, 0) };
    scene.add_attempts(&(2001..=2200).map(other).collect::<Vec<_>>());
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    for (query, count) in [
        ("q=lisa%40elsewhere.example", 1300),
        ("q=lisa%40elsewhere.example&state=deferred", 300),
        ("q=About+it", 1300),
        ("q=about&state=deferred", 300),
    ] {
        let (mut seen, mut path) = (Vec::new(), format!("/?{query}&since=4h"));
        loop {
            let mut shown = String::new();
            // On a slow machine it may not get that far in the time that a search has.
            wait_until("it was looked for all the way", || {
                shown = anna.get(&path).shown().to_owned();
                !text(&shown).contains("were not searched")
            });
            seen.extend(shown.split("<tr id=\"").skip(1).map(|row| row.split('"').next().unwrap().to_owned()));
            let Some(older) = shown.split("<nav class=\"pager\"").nth(1) else { break };
            path = older.split("href=\"").nth(1).unwrap().split('"').next().unwrap().replace("&amp;", "&");
        }
        let all: std::collections::BTreeSet<&String> = seen.iter().collect();
        assert_eq!((all.len(), seen.len()), (count, count), "{query}");
    }
}

/// Each answer says from when the next request is to ask: a few seconds before it, for what commits late.
fn what_is_new_in_a_list_is_read_without_what_is_old(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let (site, link) = page_of(&mut scene);
    scene.add_attempts(&[made(1, 10), Made { outcome: Some("deferred: x"), ..made(2, 1) }, made(3, 1)]);
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    let new_rows = |path: &str| {
        let answer: serde_json::Value = serde_json::from_str(anna.get(path).shown()).unwrap();
        (answer["rows"].as_array().unwrap().len(), answer["after"].as_u64().unwrap())
    };
    for (number, list, old, new) in [(4, "/activity/new?", 2, 1), (5, "/activity/new?state=deferred&", 1, 0)] {
        let began = now();
        let (rows, after) = new_rows(&format!("{list}after={}", began - 5 * 60_000_000));
        assert_eq!(rows, old, "{list}");
        assert!((began - 16_000_000..=now()).contains(&after), "{list}: {after}, {began}");
        scene.add_attempts(&[Made { began: now(), ..made(number, 0) }]);
        assert_eq!(new_rows(&format!("{list}after={after}")).0, new, "{list}");
    }
}

/// Of two days, with half a day since the last of them.
const A_LARGE_LEDGER: &str = "\
    INSERT INTO attempts (copy_key, attempt, role, imap_user, mailbox, identity, lock_digest, message_id, recipient, host, pid, \
        started_at, ended_at, outcome, stages) \
    SELECT decode('0000512c', 'hex') || substr(sha256(('copy' || n)::bytea), 1, 28), gen_random_uuid(), 'recipient', 'user', 'INBOX', sha256(('identity' || n)::bytea), \
        sha256(('lock' || n)::bytea), '<' || n || '@elsewhere.example>', 'user@mail.example', 'mx1.mail.example', 1, \
        began, began, 'appended', '{\"connect\": 4.5, \"append\": 2.25}' \
    FROM generate_series(1, 60000) n, LATERAL (SELECT now() - interval '10 hours' - (60000 - n) * interval '0.7 s') a (began)";

const ITS_MESSAGES: &str = "\
    INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, subject, headers, size, recorded_at) \
    SELECT identity, lock_digest, message_id, identity, 'author@elsewhere.example', 'author@elsewhere.example', 'Words about ' || message_id, \
        jsonb_build_array(jsonb_build_array('Subject', 'Words about ' || message_id)), 8000, ended_at \
    FROM attempts ORDER BY started_at";

#[test]
fn the_newest_list_reads_little_of_a_large_ledger_and_finds_what_was_written_into_a_gap() {
    let mut scene = Scene::empty(Engine::Postgres17);
    let (site, link) = page_of(&mut scene);
    let mut session = scene.session();
    session.execute(A_LARGE_LEDGER);
    session.execute(ITS_MESSAGES);
    session.execute("VACUUM (ANALYZE) attempts, messages");
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    anna.statistics("?span=7d");
    let role = format!("{}_w", scene.run);
    let mut blocks = || -> i64 {
        // The server counts what a session has read once that has ended.
        let others = format!("FROM pg_stat_activity WHERE usename = '{role}'");
        session.texts(&format!("SELECT pg_terminate_backend(pid)::text {others}"));
        wait_until("the sessions have ended", || session.texts(&format!("SELECT pid::text {others}")).is_empty());
        let all = "heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0)";
        session.texts(&format!("SELECT sum({all})::bigint::text FROM pg_statio_user_tables"))[0].parse().unwrap()
    };
    let read = (0..5).map(|_| {
        // The figures are counted beside it, and not while it is shown.
        wait_until("the figures are there", || text(&anna.get("/").body).contains("Counted "));
        let before = blocks();
        wait_until("it is shown", || rows(&anna.get("/").body) == 50);
        blocks() - before
    });
    // The rows that are shown, with their index; what is known of their messages; who is logged in.
    let read: Vec<i64> = read.collect();
    assert!(read.iter().any(|blocks| *blocks <= 60), "{read:?}");

    let oldest = "SELECT min(started_at) + interval '2 hours' FROM attempts";
    scene.database.execute(&format!("DELETE FROM attempts WHERE started_at < ({oldest})"));
    // VACUUM leaves what the page's count of the figures still sees, and the free space map may first name the last block.
    let mut number = 6;
    wait_until("one is written into a gap", || {
        number += 1;
        scene.database.execute("VACUUM attempts");
        scene.add_attempts(&[made(number, 0)]);
        let block =
            format!("SELECT (ctid::text::point)[0]::bigint::text FROM attempts WHERE message_id = '<{number}>'");
        scene.database.texts(&block)[0].parse::<i64>().unwrap() < 1000
    });
    let in_the_gap = format!("<{number}>");
    wait_until("it is shown", || text(&anna.get("/").body).contains(&in_the_gap));
}

fn who_is_logged_in_is_kept_in_the_database_as_digests_only(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let (site, link) = page_of(&mut scene);
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    let token = link.trim().split_once('#').unwrap().1;
    let again = page.ask("POST", "/login", &[], &format!("token={token}"));
    assert_eq!(again.status.as_u16(), 403, "it was good once");
    anna.get("/").shown();
    let mut session = scene.session();
    let hex = if engine.is_postgres() { "encode(digest, 'hex')" } else { "lower(hex(digest))" };
    let cookie = anna.cookie.split_once('=').unwrap().1;
    let kept = session.texts(&format!("SELECT {hex} FROM web_sessions"));
    let digest: String = ring::digest::digest(&ring::digest::SHA256, cookie.as_bytes())
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(kept, [digest]);
    // Twelve hours pass.
    session.execute(if engine.is_postgres() {
        "UPDATE web_sessions SET last_seen_at = last_seen_at - interval '12 hours 1 second'"
    } else {
        "UPDATE web_sessions SET last_seen_at = last_seen_at - INTERVAL 43201 SECOND"
    });
    assert_eq!(anna.get("/").leads_to(), "/login");
    assert!(session.texts(&format!("SELECT {hex} FROM web_sessions")).is_empty());
}

fn a_session_that_the_server_has_ended_is_reopened(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let (site, link) = page_of(&mut scene);
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    anna.get("/").shown();
    let role = format!("{}_w", scene.run);
    let mut session = scene.session();
    if engine.is_postgres() {
        session
            .texts(&format!("SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE usename = '{role}'"));
    } else {
        let ids = format!("SELECT CAST(id AS CHAR) FROM information_schema.processlist WHERE user = '{role}'");
        for id in session.texts(&ids) {
            let Connection::Mysql(connection) = &mut session else { unreachable!("it is one of MySQL's") };
            // It may have ended by itself.
            let _ = connection.query_drop(format!("KILL {id}"));
        }
    }
    // One that was trusted as it was used a moment ago may fail once, for each thread; then it is another one.
    wait_until("it is shown again", || (0..8).all(|_| anna.get("/").status.is_success()));
}

#[test]
fn operators_see_how_the_service_is_and_viewers_do_not() {
    let mut scene = Scene::empty(Engine::Postgres17);
    // One is held in the file queue, where it stays.
    let queue = Queue::open(scene.path("state/queue").as_ref()).unwrap();
    let recipients = vec![Recipient { address: "scuba@mail.axial.net".into(), original: None }];
    let mail = Envelope { recipients, injected_by: "a test".into(), ..Envelope::default() };
    let lock = LockName::new("maildrop", b"<held@x>");
    let held = queue.enqueue(&lock, mail, b"Subject: x\r\n\r\n", SystemTime::now()).unwrap();
    queue.hold(&held.id()).unwrap();
    let service = Service::start(&mut scene);
    let (site, _) = page_of(&mut scene);
    let config = scene.other_configuration("web.toml", |settings| {
        settings.more += "[web]\nlisten = \"127.0.0.1:8025\"\n";
    });
    let settings = WebSettings::of(&Config::load(config.as_ref()).unwrap()).unwrap();
    let page = Page::by(&site, &settings);
    let operator = page.log_in(&link(&mut scene, "operator"));
    // It is well as soon as there is one worker. A busy master may not answer in time, and then the page says so.
    let mut shown = operator.get("/service");
    wait_until("both workers are ready, and the file queue is counted", || {
        shown = operator.get("/service");
        let page_text = text(&shown.body);
        page_text.contains("worker 2 ready") && page_text.contains("file queue: held 1")
    });
    let screen = text(shown.shown());
    for has in [
        "Its processes are well: maildropd",
        "worker 2 ready",
        "front ready",
        "runner 1 ready",
        "shunted messages 0 They have crashed two workers",
        "file queue: held 1",
        "file queue: waiting 0",
    ] {
        assert!(screen.contains(has), "{has}: {screen}");
    }
    assert_eq!(rows(&shown.body), service.status()["processes"].as_array().unwrap().len());
    let viewer = page.log_in(&link(&mut scene, "viewer"));
    assert_eq!(viewer.get("/service").status.as_u16(), 403);
    assert!(!viewer.get("/").shown().contains("/service"));
    service.end();
    let gone = operator.get("/service");
    assert_eq!(gone.status.as_u16(), 503);
    assert!(text(&gone.body).contains("maildropd is not running"), "{gone:?}");
}
