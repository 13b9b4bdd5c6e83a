//! What `quickstart` writes, run as its page says: the roles, the tables, the rights, a delivery, and the way back.

use crate::support::database::{Connection, Engine};
use crate::support::env;
use crate::support::program::{feed, program};
use crate::support::site_fixture::Scene;
use std::fs;
use std::path::Path;
use std::process::Output;

on_each_engine!(what_it_writes_makes_a_site_and_takes_it_back);

/// The statements of one of its files.
fn statements(folder: &Path, file: &str) -> Vec<String> {
    let text = fs::read_to_string(folder.join(file)).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    let text = lines.collect::<Vec<_>>().join("\n");
    text.split(';').map(str::trim).filter(|statement| !statement.is_empty()).map(str::to_owned).collect()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn what_it_writes_makes_a_site_and_takes_it_back(engine: Engine) {
    let mut scene = Scene::bare(engine);
    let (folder, name) = (scene.path("live"), scene.database.name.replace("maildrop_s", "q"));
    let folder = Path::new(&folder);
    let scheme = match engine {
        Engine::Mysql9 => "mysql",
        Engine::Mariadb118 | Engine::Mariadb1011 => "mariadb",
        Engine::Postgres15 | Engine::Postgres17 | Engine::Postgres18 => "postgresql",
    };
    let ((host, port), (imap, imap_port)) = (engine.address(), scene.settings.imap.clone());
    let database = format!("{scheme}://{name}@{host}:{port}/{name}");
    let answers = ["--domain", "example.org", "--database", &database, "--imap", &format!("{imap}:{imap_port}")];
    let written = program(&["quickstart"]).args(answers).arg(folder).output().unwrap();
    assert_eq!(written.status.code(), Some(0), "{}", text(&written));

    let ca_file = env("MAILDROP_TEST_CA");
    let config = fs::read_to_string(folder.join("config.toml")).unwrap();
    // The tests' servers are known by a certificate of the tests', and their mailboxes have an account already.
    let config = config
        .replace("user = \"maildrop\"\n", "user = \"service\"\nencryption = \"starttls\"\n")
        .replace(".password\"\n", &format!(".password\"\nca_file = \"{ca_file}\"\n"))
        .replace("/etc/maildrop_command", folder.to_str().unwrap());
    let log = format!("\n[log]\nto = \"file\"\nfile = \"{}\"\n", scene.path("quickstart.log"));
    let parts = ["web.toml", "notifications.toml"].map(|part| fs::read_to_string(folder.join(part)).unwrap());
    let parts = parts.concat().replace("/etc/maildrop_command", folder.to_str().unwrap());
    fs::write(folder.join("config.toml"), config + &log + &parts).unwrap();
    fs::write(folder.join("imap.password"), format!("{}\n", scene.settings.imap_password)).unwrap();

    let run = |file: &str, database: Option<&str>| {
        let mut administrator = Connection::open(engine, database);
        statements(folder, file).iter().for_each(|statement| administrator.execute(statement));
    };
    let subcommand = |words: &[&str]| {
        let output = program(words).arg("--config").arg(folder.join("config.toml")).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", text(&output));
        text(&output)
    };
    run("database.sql", None);
    subcommand(&["migrate"]);
    for file in ["rights.sql", "web.sql", "notifications.sql"] {
        run(file, Some(&name));
    }
    let (user, address) = (scene.user("doug"), "doug@example.org");
    let addresses = format!("INSERT INTO addresses (address, imap_user) VALUES ('{address}', '{user}');");
    fs::write(folder.join("addresses.sql"), addresses).unwrap();
    run("addresses.sql", Some(&name));

    let checked = subcommand(&["check", "--all", "--self-test"]);
    assert!(!checked.contains(" BAD "), "{checked}");
    let mut delivery = program(&["--sender", "", "--recipient", address]);
    delivery.arg("--config").arg(folder.join("config.toml"));
    feed(delivery, scene.message("quickstart").as_bytes()).delivered();
    for words in [&["stats"][..], &["prune", "--dry-run"], &["lock", "list"], &["trace", address], &["audit"]] {
        subcommand(words);
    }
    let link = subcommand(&["web", "login", "--name", "anna", "--role", "admin"]);
    assert!(link.contains("http://127.0.0.1:8025/"), "{link}");
    let token = ["token", "create", "--name", "example", "--scope", "events:read", "--domain", "example.org"];
    assert!(subcommand(&token).contains("mdt_"));

    // The other role of the two is removed with the database.
    run("web-take-back.sql", Some(&name));
    run("take-back.sql", None);
    let (roles, databases) = match engine.is_postgres() {
        true => (
            "SELECT rolname::text FROM pg_roles WHERE rolname LIKE",
            "SELECT datname::text FROM pg_database WHERE datname LIKE",
        ),
        false => (
            "SELECT user FROM mysql.user WHERE user LIKE",
            "SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE",
        ),
    };
    for asked in [roles, databases] {
        assert_eq!(scene.database.texts(&format!("{asked} '{name}%'")), [""; 0], "{asked}");
    }
}
