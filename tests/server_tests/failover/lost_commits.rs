//! What was delivered last is not in the ledger, after a fail-over that forgot it or a restore from a backup: it is looked for before
//! it is appended once more.

use crate::failover::choice_of_server::check;
use crate::fixtures::primary_and_standby::{Pair, go_to};
use crate::support::check_report::assert_reported_before;
use crate::support::database::{ADMINISTRATOR, Connection, Engine};
use crate::support::own_server::{OwnServer, docker};
use crate::support::site_fixture::Scene;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

const MESSAGES: usize = 6;
const LOOKED: &str = "looked for a copy that the database may have forgotten";

/// How often something was looked for, by the log.
fn searches(scene: &Scene) -> usize {
    scene.log().matches(LOOKED).count()
}

/// A message that came so many hours ago.
fn came(scene: &Scene, id: &str, hours: i64) -> String {
    let at = (OffsetDateTime::now_utc() - time::Duration::hours(hours)).format(&Rfc2822).unwrap();
    format!(
        "Received: from client by mx1 (Postfix) with ESMTP id 4abc\n\tfor <doug@mail.axial.net>; {at}\n{}",
        scene.message(id)
    )
}

/// The primary dies, and its standby lacks what was delivered to doug, and lisa's Sent copies. How many copies there are then in doug's
/// INBOX and in lisa's Sent, once scuba is delivered to, and doug's first message was handed over once more.
fn a_fail_over_that_forgets(with_epochs: bool) -> (usize, usize) {
    let pair = Pair::start("POSTGRES17");
    let mut scene = pair.site(&[], "");
    for name in ["scuba", "lisa"] {
        scene.member(name);
    }
    pair.catch_up();
    go_to(&mut scene, &[&pair.primary, &pair.standby], "");
    assert_reported_before(&scene, "replication", "to 1, and no commit waits for it", ["warning", "bad"]);
    let before = scene.inbox("doug").len();
    pair.standby.cut_off();
    let messages: Vec<String> = (0..MESSAGES).map(|number| came(&scene, &format!("m{number}"), 0)).collect();
    for message in &messages {
        scene.deliver("doug", message).delivered();
    }
    assert_eq!(searches(&scene), 0);
    pair.primary.kill();
    pair.standby.connect();
    pair.promote();
    let name = scene.database.name.clone();
    let mut database = Connection::open_at(Engine::Postgres17, &pair.standby.address(), Some(&name));
    if !with_epochs {
        database.execute("DELETE FROM epochs");
    }
    go_to(&mut scene, &[&pair.standby], "");
    for message in &messages {
        scene.deliver("scuba", message).delivered();
    }
    scene.deliver("doug", &messages[0]).delivered();
    assert_eq!(scene.inbox("scuba").len(), MESSAGES);
    let copies = (scene.inbox("doug").len() - before, scene.sent("lisa").len());

    if with_epochs {
        // Each of scuba's copies, and each of lisa's; and doug's.
        assert_eq!(searches(&scene), 2 * MESSAGES + 1, "{}", scene.log());
        let found = check(&scene);
        assert!(found.contains("what came before is looked for before it is appended"), "{found}");
        // Two hours later, what came since is not looked for any more; what is older, or of unknown age, is.
        database.execute("UPDATE epochs SET since = since - interval '2 hours'");
        for (id, message, looks) in [
            ("young", came(&scene, "young", 0), 0),
            ("old", came(&scene, "old", 3), 2),
            ("unknown", scene.message("unknown"), 2),
        ] {
            let so_far = searches(&scene);
            scene.deliver("doug", message).delivered();
            assert_eq!(searches(&scene) - so_far, looks, "{id}");
        }
        // Once Postfix has nothing any more from before it, nothing is.
        database.execute("UPDATE epochs SET since = since - interval '6 days'");
        let so_far = searches(&scene);
        scene.deliver("doug", came(&scene, "ancient", 24 * 30)).delivered();
        assert_eq!(searches(&scene), so_far);
    }
    drop(database);
    // So that the site can be removed.
    pair.primary.start();
    scene.database.connect_again();
    copies
}

#[test]
fn what_a_fail_over_has_forgotten_is_there_once() {
    assert_eq!(a_fail_over_that_forgets(true), (MESSAGES, MESSAGES));
}

/// The negative control: without it the test above might see nothing.
#[test]
fn without_epochs_what_a_fail_over_has_forgotten_is_duplicated() {
    assert_eq!(a_fail_over_that_forgets(false), (MESSAGES + 1, 2 * MESSAGES));
}

/// A dump brings the tables back as they were, on the same server.
#[test]
fn what_a_restored_dump_lacks_is_there_once() {
    let server = OwnServer::postgres("POSTGRES17");
    let mut scene = Scene::with_database_on(Engine::Postgres17, &server);
    for name in ["doug", "scuba", "lisa"] {
        scene.member(name);
    }
    scene.deliver("doug", scene.message("first")).delivered();
    let inside = |command: &str| {
        let (user, password) = ADMINISTRATOR;
        let name = &scene.database.name;
        let command = format!("/usr/lib/postgresql/*/bin/{command} -h /tmp -U {user} -d {name}");
        let password = format!("PGPASSWORD={password}");
        docker(&["exec", "--env", &password, &server.container, "sh", "-c", &command]).unwrap()
    };
    let file = format!("/tmp/{}.sql", scene.database.name);
    inside(&format!("pg_dump --clean --if-exists --file={file}"));
    scene.deliver("doug", scene.message("second")).delivered();
    inside(&format!("psql --quiet --set=ON_ERROR_STOP=1 --single-transaction --file={file}"));
    scene.database.connect_again();
    assert_eq!(scene.database.count("SELECT count(*) FROM messages"), 1);
    for (recipient, id) in [("scuba", "first"), ("scuba", "second"), ("doug", "second")] {
        scene.deliver(recipient, scene.message(id)).delivered();
    }
    assert_eq!([scene.inbox("doug"), scene.inbox("scuba"), scene.sent("lisa")].map(|all| all.len()), [2, 2, 2]);
}

on_each_engine!(
    what_is_reported_to_be_restored_is_looked_for,
    what_a_users_former_cell_has_delivered_is_looked_for,
    another_server_is_another_epoch,
);

/// As docs/failover.md has it, of a restore that the server itself does not show.
fn what_is_reported_to_be_restored_is_looked_for(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "scuba", "lisa"]);
    let role = format!("r{}", &scene.run[scene.run.len() - 12..]);
    scene.database.create_role_of_grants_file(&role, "secret");
    scene.configure(|settings| (settings.role, settings.database_password) = (role, "secret".into()));
    scene.deliver("doug", scene.message("one")).delivered();
    for table in ["copies", "attempts", "messages"] {
        scene.database.execute(&format!("DELETE FROM {table}"));
    }
    scene.database.execute("INSERT INTO epochs (epoch, since) VALUES ('restored', now())");
    assert!(check(&scene).contains("the next delivery writes that down"), "{}", check(&scene));
    for recipient in ["scuba", "doug"] {
        scene.deliver(recipient, scene.message("one")).delivered();
    }
    assert_eq!(searches(&scene), 3);
    assert_eq!([scene.inbox("doug"), scene.inbox("scuba"), scene.sent("lisa")].map(|all| all.len()), [1, 1, 1]);
    assert_eq!(scene.database.count("SELECT count(*) FROM epochs"), 3);
}

/// As docs/split-domain.md has it of a user who moves to another site, mailboxes and all; without the row in `epochs`, as control, what comes once
/// more is duplicated.
fn what_a_users_former_cell_has_delivered_is_looked_for(engine: Engine) {
    let (mut former, mut new) = (Scene::with(engine, &["doug"]), Scene::with(engine, &["scuba"]));
    let [one, two, three] = ["one", "two", "three"].map(|id| came(&former, id, 1));
    for message in [&one, &three] {
        former.deliver("doug", message.clone()).delivered();
    }
    former.database.execute("DELETE FROM addresses");
    new.database.add_address("doug@mail.axial.net", &former.user("doug"));
    new.database.execute("INSERT INTO epochs (epoch, since) VALUES ('doug has moved', now())");
    for message in [one, two] {
        new.deliver("doug", message).delivered();
    }
    assert_eq!((searches(&new), former.inbox("doug").len()), (2, 3));
    assert_eq!(new.database.count("SELECT count(*) FROM copies WHERE state = 'delivered'"), 2);
    new.database.execute("DELETE FROM epochs");
    new.deliver("doug", three).delivered();
    assert_eq!((searches(&new), former.inbox("doug").len()), (2, 4));
}

/// The last row names another server, as after a fail-over; the first delivery writes the next one, once.
fn another_server_is_another_epoch(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "scuba", "lisa"]);
    assert!(check(&scene).contains("the first; nothing was forgotten"), "{}", check(&scene));
    let epochs = "SELECT count(*) FROM epochs";
    assert_eq!(scene.database.count(epochs), 1);
    scene.deliver("doug", scene.message("before")).delivered();
    assert_eq!((scene.database.count(epochs), searches(&scene)), (1, 0));

    scene.database.execute("UPDATE epochs SET epoch = 'another server'");
    for id in ["one", "two"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    assert_eq!((scene.database.count(epochs), searches(&scene)), (2, 4));
    assert_eq!(
        scene.database.count("SELECT count(*) FROM epochs WHERE since IS NOT NULL AND epoch <> 'another server'"),
        1
    );
    // An empty table is as after the migration.
    scene.database.execute("DELETE FROM epochs");
    scene.deliver("doug", scene.message("three")).delivered();
    assert_eq!((scene.database.count("SELECT count(*) FROM epochs WHERE since IS NULL"), searches(&scene)), (1, 4));
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (4, 4));
}
