//! `migrate`, `check` and `lock key`, as an administrator runs them.

use crate::support::database::{Connection, Engine};
use crate::support::program::program;
use crate::support::site_fixture::Scene;
use crate::support::{host_and_port, server};
use serde_json::Value;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Output, Stdio};

const PG: Engine = Engine::Postgres17;

on_two_engines!(
    migrate_brings_an_empty_database_up_to_date,
    ten_machines_migrate_at_once,
    an_edited_migration_is_refused,
    a_newer_release_has_been_here,
    check_tells_how_it_stands,
    check_tells_of_rows_that_nobody_is_found_by,
    the_lock_has_the_same_name_in_sql,
);

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn json(output: &Output) -> Vec<Value> {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn ended(output: &Output, exit: i32) {
    assert_eq!(output.status.code(), Some(exit), "{}", text(output));
}

fn states(output: &Output) -> Vec<String> {
    ended(output, 0);
    json(output).iter().map(|migration| migration["state"].as_str().unwrap().to_owned()).collect()
}

fn migrate_brings_an_empty_database_up_to_date(engine: Engine) {
    let scene = Scene::bare(engine);
    let before = states(&scene.subcommand(&["migrate", "--status", "--json"]));
    assert!(before.len() >= 2 && before[0] == "pending", "{before:?}");
    // Looking changes nothing.
    assert_eq!(states(&scene.subcommand(&["migrate", "--status", "--json"])), before);
    let check = scene.subcommand(&["check", "--all"]);
    ended(&check, 69);
    assert!(text(&check).contains("maildrop_command migrate"), "{}", text(&check));
    // One cause, one finding.
    let bad: Vec<Value> =
        json(&scene.subcommand(&["check", "--json"])).into_iter().filter(|finding| finding["state"] == "bad").collect();
    assert_eq!(bad.len(), 1, "{bad:?}");

    let migrated = scene.subcommand(&["migrate"]);
    ended(&migrated, 0);
    assert!(text(&migrated).starts_with("applied 0001_schema\n"), "{}", text(&migrated));
    for _ in 0..2 {
        let after = states(&scene.subcommand(&["migrate", "--json"]));
        assert!(after.iter().all(|state| state == "applied"), "{after:?}");
    }
    let status = scene.subcommand(&["migrate", "--status"]);
    assert!(text(&status).contains("0001") && !text(&status).contains("pending"), "{}", text(&status));
}

fn ten_machines_migrate_at_once(engine: Engine) {
    let mut scene = Scene::bare(engine);
    let config = scene.path("config.toml");
    let start = || {
        let mut command = program(&["migrate", "--config", &config]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let all: Vec<Child> = (0..10).map(|_| start()).collect();
    let all: Vec<Output> = all.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    all.iter().for_each(|output| ended(output, 0));
    let applied = all.iter().filter(|output| text(output).contains("applied 0001_schema\n")).count();
    assert_eq!(applied, 1, "one of them did it");
    scene.member("doug");
    scene.deliver("doug", scene.message("x")).delivered();
}

fn an_edited_migration_is_refused(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    scene.database.execute("UPDATE maildrop_migrations SET checksum = REPLACE(checksum, 'a', 'b') WHERE number = 1");
    let refused = scene.subcommand(&["migrate"]);
    ended(&refused, 69);
    assert!(text(&refused).contains("0001_schema"), "{}", text(&refused));
    let status = scene.subcommand(&["migrate", "--status"]);
    assert!(text(&status).contains("EDITED"), "{}", text(&status));
    ended(&scene.subcommand(&["check", "--all"]), 69);
}

/// Release N runs on the schema of N + 1, while machines are upgraded one by one.
fn a_newer_release_has_been_here(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    scene.database.execute(
        "INSERT INTO maildrop_migrations (number, name, checksum, applied_at) \
         VALUES (9999, 'more', 'c0ffee', CURRENT_TIMESTAMP)",
    );
    let migrated = scene.subcommand(&["migrate"]);
    ended(&migrated, 0);
    assert!(text(&migrated).contains("newer release"), "{}", text(&migrated));
    ended(&scene.subcommand(&["check", "--all"]), 0);
    scene.deliver("doug", scene.message("x")).delivered();
}

fn check_tells_of_rows_that_nobody_is_found_by(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "gross"]);
    for (address, name) in [("groß", "doug"), ("o'νίκος", "nikos"), ("jörg", "joerg"), ("νίκοσ", "nikos")] {
        scene.database.add_address(&format!("{address}@mail.axial.net"), &scene.user(name));
    }
    let check = scene.subcommand(&["check", "--all", "--recipient", "doug@mail.axial.net", "--json"]);
    ended(&check, 69);
    let mut bad: Vec<Value> = json(&check).into_iter().filter(|finding| finding["state"] == "bad").collect();
    bad.sort_by_key(|finding| finding["found"].as_str().map(ToOwned::to_owned));
    let [gross, nikos] = bad.as_slice() else { panic!("{bad:?}") };
    assert!(gross["found"].as_str().unwrap().contains("ask for gross@mail.axial.net"), "{gross}");
    assert!(nikos["found"].as_str().unwrap().contains("ask for o'νίκοσ@mail.axial.net"), "{nikos}");
    // The fix begins with SQL. The other row's address has an owner already.
    scene.database.execute(nikos["fix"].as_str().unwrap().split_once("; if that row exists already").unwrap().0);
    scene.database.execute("DELETE FROM addresses WHERE address = 'groß@mail.axial.net'");
    ended(&scene.subcommand(&["check", "--all", "--recipient", "o'νίκος@mail.axial.net"]), 0);
}

fn check_tells_how_it_stands(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let empty = scene.subcommand(&["check", "--all", "--self-test"]);
    ended(&empty, 0);
    assert!(text(&empty).contains("the table is empty"), "{}", text(&empty));

    scene.member("doug");
    let role = format!("r{}", scene.run);
    scene.database.create_role_of_grants_file(&role, "only-for-this-test");
    scene.configure(|settings| {
        settings.role = role.clone();
        settings.database_password = "only-for-this-test".into();
    });
    let findings = scene.subcommand(&["check", "--all", "--self-test", "--json"]);
    ended(&findings, 0);
    let findings = json(&findings);
    let state = |what: &str| {
        let finding = findings.iter().find(|finding| finding["what"] == what);
        finding.unwrap_or_else(|| panic!("{what}: {findings:?}"))["state"].as_str().unwrap().to_owned()
    };
    for what in ["configuration", "database", "mutual exclusion", "mailbox login", "addresses"] {
        assert_eq!(state(what), "ok", "{what}");
    }
    assert!(findings.iter().all(|finding| finding["state"] != "bad"), "{findings:?}");
    let login = findings.iter().find(|finding| finding["what"] == "login").unwrap_or_else(|| panic!("{findings:?}"));
    assert!(login["found"].as_str().unwrap().ends_with(" ms, the median of 5"), "{login}");
    // It is Dovecot, on another host: whether it keeps its processes cannot be known from here.
    assert!(login["fix"].as_str().unwrap().contains("\"A Dovecot instance for deliveries\""), "{login}");

    let known = scene.subcommand(&["check", "--all", "--recipient", "doug@mail.axial.net"]);
    ended(&known, 0);
    let unknown = scene.subcommand(&["check", "--all", "--recipient", "nobody@mail.axial.net"]);
    ended(&unknown, 69);
    assert!(text(&unknown).contains("nobody@mail.axial.net has no mailbox here"), "{}", text(&unknown));
    ended(&scene.subcommand(&["check", "--all", "--recipient", "nobody"]), 64);

    // A right too few.
    let whom = if engine.is_postgres() { role } else { format!("'{role}'@'%'") };
    scene.database.execute(&format!("REVOKE INSERT ON copies FROM {whom}"));
    let lacking = scene.subcommand(&["check", "--all"]);
    ended(&lacking, 69);
    assert!(text(&lacking).contains("copies"), "{}", text(&lacking));

    scene.configure(|settings| settings.database = ("127.0.0.1".into(), 1));
    let unreachable = scene.subcommand(&["check", "--all", "--self-test"]);
    ended(&unreachable, 69);
    assert!(text(&unreachable).contains("BAD"), "{}", text(&unreachable));
    ended(&scene.subcommand(&["migrate"]), 69);
    // A mailbox was not created by looking.
    scene.configure(|settings| settings.more = "[nonsense]\n".into());
    ended(&scene.subcommand(&["check", "--all"]), 78);
    ended(&scene.subcommand(&["migrate"]), 78);
}

fn the_lock_has_the_same_name_in_sql(engine: Engine) {
    let mut scene = Scene::empty(engine);
    for id in ["<123-abc@mail.google.com>", "123-abc@mail.google.com", "<Grüße@x>", "<>", "<a> (comment)", "o'hara"] {
        let output_text = program(&["lock", "key", "--json", id]).output().unwrap();
        let printed: Value = serde_json::from_slice(&output_text.stdout).unwrap();
        // ü and ß are two bytes each.
        let quoted = id.replace(['ü', 'ß'], "XX").replace('\'', "''");
        if engine.is_postgres() {
            let key = scene.database.texts(&format!("SELECT maildrop_lock_key('{quoted}')::text"));
            assert_eq!(key, [printed["postgresql"].as_str().unwrap()], "{id}");
        }
        let namespace = if engine.is_postgres() { "" } else { ", 'maildrop'" };
        let name = scene.database.texts(&format!("SELECT maildrop_lock_name('{quoted}'{namespace})"));
        assert_eq!(name, [printed["mysql"].as_str().unwrap()], "{id}");
    }
}

/// A server that may forget what it has confirmed breaks the promises.
#[test]
fn a_database_that_does_not_wait_for_its_disk_is_bad() {
    let mut scene = Scene::with(PG, &["doug"]);
    ended(&scene.subcommand(&["check", "--all"]), 0);
    let name = scene.database.name.clone();
    scene.database.execute(&format!("ALTER DATABASE {name} SET synchronous_commit = off"));
    let check = scene.subcommand(&["check", "--all"]);
    ended(&check, 69);
    assert!(text(&check).contains("synchronous_commit"), "{}", text(&check));
    scene.database.execute(&format!("ALTER DATABASE {name} RESET synchronous_commit"));
    scene.database.execute(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on"));
    ended(&scene.subcommand(&["check", "--all"]), 69);
    scene.deliver("doug", scene.message("x")).deferred("4.3.0 the database takes no writes");
}

/// A standby that lags behind may not have the newest addresses, though it has those of the authors who write to them.
#[test]
fn a_recipient_whom_a_standby_lacks_is_deferred_also_where_the_author_is_known() {
    let mut scene = Scene::with(PG, &["lisa"]);
    scene.configure(|settings| settings.more = "[routing]\nunknown_recipient = \"reject\"\n".into());
    scene.database.add_address("lisa@gmail.com", &scene.user("lisa"));
    scene.deliver("newcomer", scene.message("x")).ended(67, "5.1.1");
    let name = scene.database.name.clone();
    scene.database.execute(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on"));
    scene.deliver("newcomer", scene.message("x")).deferred("4.3.0 the database takes no writes");
}

/// In transaction mode a pooler keeps a transaction on one server process, and with it the lock.
#[test]
fn through_a_pooler_in_transaction_mode_the_lock_excludes() {
    let mut scene = Scene::with(PG, &["doug", "lisa"]);
    scene.configure(|settings| settings.database = host_and_port(server("PGBOUNCER"), 5432));
    let check = scene.subcommand(&["check", "--all", "--self-test"]);
    ended(&check, 0);
    assert!(text(&check).contains("one connection held the lock, the other was refused"), "{}", text(&check));
    for _ in 0..2 {
        scene.deliver("doug", scene.message("x")).delivered();
    }
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (1, 1));
}

#[test]
fn check_finds_a_balancer_before_two_postgresql() {
    check_finds_a_balancer(Engine::Postgres17, "POSTGRES18");
}

#[test]
fn check_finds_a_balancer_before_two_mariadb() {
    check_finds_a_balancer(Engine::Mariadb118, "MARIADB1011");
}

/// Each connection goes to the other server: two that meet on one of them would find that the lock excludes.
fn check_finds_a_balancer(engine: Engine, another: &str) {
    let mut scene = Scene::with(engine, &["doug"]);
    let another = (server(another), engine.port());
    let name = scene.database.name.clone();
    let mut administrator = Connection::open_at(engine, &another, None);
    administrator.execute(&format!("CREATE DATABASE {name}"));
    let servers = [engine.address(), another];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (client, server) in listener.incoming().zip(servers.iter().cycle()) {
            let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
            for (mut from, mut to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), port));
    let check = scene.subcommand(&["check", "--all", "--self-test"]);
    ended(&check, 69);
    assert!(text(&check).contains("four connections lead to more than one server"), "{}", text(&check));
    administrator.execute(&format!("DROP DATABASE {name}"));
}
