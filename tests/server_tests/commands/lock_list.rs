//! `lock list` and `lock try` tell who holds a lock and who waits, on each engine; and what to grant where they may not see it.

use crate::support::database::{Connection, Engine};
use crate::support::program::{program, wait_until};
use crate::support::site_fixture::Scene;
use crate::support::{host_and_port, server};
use serde_json::Value;
use std::process::{Child, Stdio};

on_each_engine!(
    a_commands_lock_is_reported_by_its_name,
    a_delivery_is_listed_by_its_message_id,
    with_the_rights_of_people_all_is_listed,
    with_the_rights_of_a_delivery_messages_are_listed,
);

/// A site whose locks are its own: MySQL's lie in the server, not in a database.
fn site(engine: Engine) -> Scene {
    let mut scene = Scene::empty(engine);
    let namespace = format!("[lock]\nnamespace = \"{}\"\n", scene.run);
    scene.configure(|settings| settings.more = namespace);
    scene
}

/// Somebody who holds or awaits the lock `name`. Dropped, it is killed.
struct Exec(Child);

impl Exec {
    fn start(scene: &Scene, name: &str) -> Self {
        let config = scene.path("config.toml");
        let arguments = ["lock", "exec", "--config", &config, "--wait", "10m", name, "--", "sleep", "600"];
        let mut command = program(&arguments);
        command.env("PATH", "/usr/bin:/bin").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn listed(scene: &Scene) -> Value {
    let output = scene.subcommand(&["lock", "list", "--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn locks(scene: &Scene) -> Vec<Value> {
    listed(scene)["locks"].as_array().unwrap().clone()
}

/// The lock of a message, taken manually.
fn hold(scene: &Scene, message_id: &str) -> Connection {
    let namespace = format!("--namespace={}", scene.run);
    let json = program(&["lock", "key", "--json", &namespace, message_id]).output().unwrap().stdout;
    let json: Value = serde_json::from_slice(&json).unwrap();
    let mut session = scene.session();
    if scene.database.engine.is_postgres() {
        session.execute("SET application_name = 'manual session'; BEGIN");
        session.execute(&format!("SELECT pg_advisory_xact_lock({})", json["postgresql"].as_str().unwrap()));
    } else {
        session.execute(&format!("DO GET_LOCK('{}', 0)", json["mysql"].as_str().unwrap()));
    }
    session
}

/// Who has the lock of a command, or waits for it.
fn tried(scene: &Scene, name: &str) -> Vec<Value> {
    let output = scene.subcommand(&["lock", "try", "--json", name]);
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    listed["locks"].as_array().unwrap().clone()
}

fn commands(scene: &Scene) {
    let nobody = scene.subcommand(&["lock", "list"]);
    assert_eq!(String::from_utf8_lossy(&nobody.stdout), "no lock is held\n");
    let free = scene.subcommand(&["lock", "try", "nightly report"]);
    assert_eq!(
        (free.status.code(), String::from_utf8(free.stdout).unwrap().as_str()),
        (Some(0), "nightly report: free\n")
    );

    let holder = Exec::start(scene, "nightly report");
    wait_until("it holds the lock", || tried(scene, "nightly report").len() == 1);
    let first = tried(scene, "nightly report").remove(0);
    assert!(first["waits"] == false && first["session"].is_number() && first["host"].is_string(), "{first}");
    let other = Exec::start(scene, "import");
    wait_until("another has its own", || tried(scene, "import").len() == 1);
    let waiter = Exec::start(scene, "nightly report");
    // MySQL and MariaDB tell of one lock by its name alone, and not who waits for it.
    if scene.database.engine.is_postgres() {
        wait_until("another waits, and a third has its own", || locks(scene).len() == 3);
        let found = locks(scene);
        for (exec, waits) in [(&holder, false), (&waiter, true), (&other, false)] {
            let lock = found.iter().find(|lock| lock["pid"] == exec.0.id()).unwrap_or_else(|| panic!("{found:?}"));
            assert_eq!((&lock["name"], &lock["waits"]), (&Value::Null, &waits.into()), "{lock}");
            let age = lock["age_s"].as_f64().unwrap_or_else(|| panic!("no age: {lock}"));
            assert!((0.0..60.0).contains(&age), "{lock}");
        }
        // For people: the holder above those who wait for it.
        let table = String::from_utf8(scene.subcommand(&["lock", "list"]).stdout).unwrap();
        let key = format!("key {}", first["lock"].as_str().unwrap());
        let line = |words: [&str; 2]| table.lines().position(|line| words.iter().all(|word| line.contains(word)));
        assert!(line([&key, "holds"]).unwrap() < line([&key, "waits"]).unwrap(), "{table}");
        let output = String::from_utf8(scene.subcommand(&["lock", "try", "nightly report"]).stdout).unwrap();
        assert!(
            output.contains(&format!(":{}, session ", holder.0.id())) && output.contains("waiting for it: 1"),
            "{output}"
        );
    }
    assert_eq!(scene.subcommand(&["lock", "try", "nightly report"]).status.code(), Some(75));
    // It was only looked at.
    drop(holder);
    wait_until("the waiter has it", || {
        let found = tried(scene, "nightly report");
        found.iter().any(|lock| lock["waits"] == false && lock["session"] != first["session"])
    });
    drop(waiter);
}

fn a_commands_lock_is_reported_by_its_name(engine: Engine) {
    commands(&site(engine));
}

#[test]
fn behind_a_pooler_it_is_reported_too() {
    let mut scene = site(Engine::Postgres17);
    scene.configure(|settings| settings.database = host_and_port(server("PGBOUNCER"), 5432));
    commands(&scene);
}

fn a_delivery_is_listed_by_its_message_id(engine: Engine) {
    let mut scene = site(engine);
    scene.member("doug");
    // The first delivery of all also takes a lock to find out whom the mailbox store lets in.
    scene.deliver("doug", scene.message("first")).delivered();
    let manual_holder = hold(&scene, &scene.message_id("listed"));
    let delivery = scene.start("doug", &["--queue-id", "4bXyz", "--lock-wait", "200s"], scene.message("listed"));
    let mut found = Vec::new();
    wait_until("it waits", || {
        found = locks(&scene);
        found.len() == 2
    });
    let (holder, waiter) = (&found[0], &found[1]);
    for lock in [holder, waiter] {
        let name = lock["name"].as_str().unwrap();
        assert_eq!(name.trim_matches(['<', '>']), scene.message_id("listed").trim_matches(['<', '>']), "{lock}");
    }
    assert_eq!((&holder["waits"], &waiter["waits"]), (&false.into(), &true.into()));
    assert_eq!(holder["application"], if engine.is_postgres() { "manual session" } else { "tester" }, "{holder}");
    assert_eq!((&waiter["application"], &waiter["pid"]), (&"delivery 4bXyz".into(), &delivery.id().into()), "{waiter}");
    let held = scene.subcommand(&["lock", "try", "--message-id", &scene.message_id("listed")]);
    assert_eq!(held.status.code(), Some(75), "{held:?}");
    drop(manual_holder);
    delivery.end().delivered();
    wait_until("nobody is listed", || locks(&scene).is_empty());

    // A program whose name is a Message-ID holds up no delivery of it.
    let id = scene.message_id("another");
    let name = id.trim_matches(['<', '>']);
    let _exec = Exec::start(&scene, name);
    wait_until("it holds its lock", || tried(&scene, name).len() == 1);
    scene.deliver("doug", scene.message("another")).delivered();
}

fn with_the_rights_of_people_all_is_listed(engine: Engine) {
    let mut scene = site(engine);
    scene.member("doug");
    // The first delivery of all also takes a lock to find out whom the mailbox store lets in.
    scene.deliver("doug", scene.message("first")).delivered();
    let id = scene.message_id("listed");
    let manual_holder = hold(&scene, &id);
    let delivery = scene.start("doug", &["--lock-wait", "200s"], scene.message("listed"));
    wait_until("a delivery waits for its holder", || locks(&scene).len() == 2);

    // Both sessions are another role's.
    let role = format!("o{}", scene.run);
    scene.database.create_operator(&role, "only-for-this-test");
    scene.configure(|settings| {
        settings.role = role;
        settings.database_password = "only-for-this-test".into();
    });
    let all = locks(&scene);
    let aged = all.iter().filter(|lock| lock["age_s"].is_number()).count();
    // MySQL and MariaDB know no age of what is no delivery.
    assert_eq!((all.len(), aged), if engine.is_postgres() { (2, 2) } else { (2, 1) }, "{all:?}");
    drop(manual_holder);
    delivery.end().delivered();
}

fn with_the_rights_of_a_delivery_messages_are_listed(engine: Engine) {
    let mut scene = site(engine);
    let message = scene.message_id("listed");
    scene.member("doug");
    let role = format!("o{}", scene.run);
    scene.database.create_role_of_grants_file(&role, "only-for-this-test");
    scene.configure(|settings| {
        settings.role = role;
        settings.database_password = "only-for-this-test".into();
    });
    let manual_holder = hold(&scene, &message);
    let delivery = scene.start("doug", &["--queue-id", "4bXyz", "--lock-wait", "200s"], scene.message("listed"));
    let named = || locks(&scene).iter().any(|lock| lock["name"] == message.as_str());
    wait_until("it waits", named);
    drop(manual_holder);
    delivery.end().delivered();
}
