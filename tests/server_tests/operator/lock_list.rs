//! `lock list` and `lock try` tell who holds a lock and who waits, by name, on each engine; and what to grant where they
//! may not see it.

use crate::support::database::{Connection, Engine};
use crate::support::program::{program, wait_until};
use crate::support::scene::Scene;
use crate::support::{host_and_port, server};
use serde_json::Value;
use std::process::{Child, Stdio};

on_each_engine!(
    holder_and_waiter_are_listed_by_name,
    a_delivery_is_listed_by_its_message_id,
    what_is_hidden_is_shown_once_the_printed_grant_is_run,
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

/// The lock of a message, taken by hand.
fn hold(scene: &Scene, message_id: &str) -> Connection {
    let namespace = format!("--namespace={}", scene.run);
    let json = program(&["lock", "key", "--json", &namespace, message_id]).output().unwrap().stdout;
    let json: Value = serde_json::from_slice(&json).unwrap();
    let mut session = scene.session();
    if scene.database.engine.is_postgres() {
        session.execute("SET application_name = 'by hand'; BEGIN");
        session.execute(&format!("SELECT pg_advisory_xact_lock({})", json["postgresql"].as_str().unwrap()));
    } else {
        session.execute(&format!("DO GET_LOCK('{}', 0)", json["mysql"].as_str().unwrap()));
    }
    session
}

fn by_name(scene: &Scene) {
    let nobody = scene.subcommand(&["lock", "list"]);
    assert_eq!(String::from_utf8_lossy(&nobody.stdout), "no lock is held\n");
    let free = scene.subcommand(&["lock", "try", "nightly report"]);
    assert_eq!(
        (free.status.code(), String::from_utf8(free.stdout).unwrap().as_str()),
        (Some(0), "nightly report: free\n")
    );

    let holder = Exec::start(scene, "nightly report");
    wait_until("it holds the lock", || locks(scene).len() == 1);
    let waiter = Exec::start(scene, "nightly report");
    let other = Exec::start(scene, "import");
    let mut found = Vec::new();
    wait_until("another waits, and a third has its own", || {
        found = locks(scene);
        found.len() == 3 && found.iter().any(|lock| lock["waits"] == true)
    });
    let of = |child: &Exec| {
        let found = found.iter().find(|lock| lock["pid"] == child.0.id());
        found.unwrap_or_else(|| panic!("{} is not in {found:?}", child.0.id())).clone()
    };
    for (exec, name, waits) in
        [(&holder, "nightly report", false), (&waiter, "nightly report", true), (&other, "import", false)]
    {
        let lock = of(exec);
        assert_eq!((&lock["name"], &lock["waits"]), (&name.into(), &waits.into()), "{lock}");
        assert_eq!((&lock["kind"], &lock["application"]), (&"program".into(), &"lock exec".into()), "{lock}");
        assert!(lock["host"].as_str().is_some_and(|host| !host.is_empty()), "{lock}");
        let age = lock["age_s"].as_f64().unwrap_or_else(|| panic!("no age: {lock}"));
        assert!((0.0..60.0).contains(&age), "{lock}");
    }
    // For people: the holder above those who wait for it.
    let table = String::from_utf8(scene.subcommand(&["lock", "list"]).stdout).unwrap();
    let line = |words: [&str; 2]| table.lines().position(|line| words.iter().all(|word| line.contains(word)));
    assert!(line(["nightly report", "holds"]).unwrap() < line(["nightly report", "waits"]).unwrap(), "{table}");
    let held = scene.subcommand(&["lock", "try", "nightly report"]);
    assert_eq!(held.status.code(), Some(75));
    let said = String::from_utf8(held.stdout).unwrap();
    assert!(said.contains(&format!("process {}", holder.0.id())) && said.contains("waiting for it: 1"), "{said}");
    // It was only looked at.
    drop(holder);
    wait_until("the waiter has it", || {
        locks(scene).iter().any(|lock| lock["pid"] == waiter.0.id() && lock["waits"] == false)
    });
}

fn holder_and_waiter_are_listed_by_name(engine: Engine) {
    by_name(&site(engine));
}

#[test]
fn behind_a_pooler_they_are_listed_by_name_too() {
    let mut scene = site(Engine::Postgres17);
    scene.configure(|settings| settings.database = host_and_port(server("PGBOUNCER"), 5432));
    by_name(&scene);
}

fn a_delivery_is_listed_by_its_message_id(engine: Engine) {
    let mut scene = site(engine);
    scene.member("doug");
    // The first delivery of all also takes a lock to find out whom the mailbox store lets in.
    scene.deliver("doug", scene.message("first")).delivered();
    let by_hand = hold(&scene, &scene.message_id("listed"));
    let delivery = scene.start("doug", &["--queue-id", "4bXyz", "--lock-wait", "200s"], scene.message("listed"));
    let mut found = Vec::new();
    wait_until("it waits", || {
        found = locks(&scene);
        found.len() == 2
    });
    let (holder, waiter) = (&found[0], &found[1]);
    for lock in [holder, waiter] {
        assert_eq!(lock["kind"], "message", "{lock}");
        let name = lock["name"].as_str().unwrap();
        assert_eq!(name.trim_matches(['<', '>']), scene.message_id("listed").trim_matches(['<', '>']), "{lock}");
    }
    assert_eq!((&holder["waits"], &waiter["waits"]), (&false.into(), &true.into()));
    assert_eq!(holder["application"], if engine.is_postgres() { "by hand" } else { "tester" }, "{holder}");
    assert_eq!((&waiter["application"], &waiter["pid"]), (&"delivery 4bXyz".into(), &delivery.id().into()), "{waiter}");
    let held = scene.subcommand(&["lock", "try", "--message-id", &scene.message_id("listed")]);
    assert_eq!(held.status.code(), Some(75), "{held:?}");
    drop(by_hand);
    delivery.end().delivered();
    wait_until("nobody is listed", || locks(&scene).is_empty());

    // A program whose name is a Message-ID holds up no delivery of it.
    let id = scene.message_id("another");
    let _exec = Exec::start(&scene, id.trim_matches(['<', '>']));
    wait_until("it holds its lock", || locks(&scene).len() == 1);
    scene.deliver("doug", scene.message("another")).delivered();
}

fn what_is_hidden_is_shown_once_the_printed_grant_is_run(engine: Engine) {
    let mut scene = site(engine);
    let _holder = Exec::start(&scene, "nightly");
    wait_until("it holds the lock", || locks(&scene).len() == 1);
    let _waiter = Exec::start(&scene, "nightly");
    wait_until("another waits", || locks(&scene).len() == 2);
    assert_eq!(listed(&scene)["hidden"], serde_json::json!([]));

    // Somebody with the rights of people, as the file has them, but for the one in question.
    let role = format!("o{}", scene.run);
    scene.database.create_operator(&role, "only-for-this-test");
    let revoke = if engine.is_postgres() {
        format!("REVOKE pg_read_all_stats FROM {role}")
    } else {
        format!("REVOKE PROCESS ON *.* FROM '{role}'@'%'")
    };
    scene.database.execute(&revoke);
    scene.configure(|settings| {
        settings.role = role.clone();
        settings.database_password = "only-for-this-test".into();
    });
    let hidden = listed(&scene);
    let shown = |listed: &Value| {
        let locks = listed["locks"].as_array().unwrap().clone();
        let aged = locks.iter().filter(|lock| lock["age_s"].is_number()).count();
        (locks.len(), aged)
    };
    // PostgreSQL hides since when the holder has it, the others who else waits.
    assert_eq!(shown(&hidden), if engine.is_postgres() { (2, 1) } else { (1, 1) }, "{hidden}");
    assert!(hidden["locks"].as_array().unwrap().iter().all(|lock| lock["name"] == "nightly"), "{hidden}");
    let people = scene.subcommand(&["lock", "list"]);
    let told = String::from_utf8(people.stderr).unwrap();
    let grant = told.lines().map(str::trim).find(|line| line.starts_with("GRANT ")).unwrap_or_else(|| panic!("{told}"));
    assert_eq!(grant, hidden["hidden"][0]["grant"].as_str().unwrap());

    scene.database.execute(grant.trim_end_matches(';'));
    let all = listed(&scene);
    assert_eq!((shown(&all), &all["hidden"]), ((2, 2), &serde_json::json!([])), "{all}");
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
    let by_hand = hold(&scene, &message);
    let delivery = scene.start("doug", &["--queue-id", "4bXyz", "--lock-wait", "200s"], scene.message("listed"));
    let named = || locks(&scene).iter().any(|lock| lock["name"] == message.as_str());
    wait_until("it waits", named);
    let grant = |scene: &Scene| {
        let hidden = listed(scene)["hidden"].as_array().unwrap().clone();
        let programs = hidden.iter().find(|hidden| hidden["what"] == "which programs `lock exec` runs");
        programs.map(|hidden| hidden["grant"].as_str().unwrap().to_owned())
    };
    let wanted = grant(&scene).expect("programs are hidden");
    scene.database.execute(wanted.trim_end_matches(';'));
    assert_eq!(grant(&scene), None);
    drop(by_hand);
    delivery.end().delivered();
}
