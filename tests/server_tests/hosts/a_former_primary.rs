//! After a fail-over the former primary still answers, or answers again.

use super::pair::{Pair, go_to};
use super::which_server_is_used::check;
use crate::support::checked::said_beforehand;
use crate::support::database::{Connection, Engine};
use crate::support::own_server::OwnServer;
use crate::support::program::wait_until;
use crate::support::scene::Scene;

/// Nobody fences it, and no commit waits for its standby: only what this host has seen keeps deliveries off it.
#[test]
fn a_former_primary_is_not_used_by_a_host_that_has_seen_the_new_one() {
    let pair = Pair::start("POSTGRES17");
    let (former, new) = (&pair.primary, &pair.standby);
    let mut scene = pair.site(&[former, new], "");
    let seen = scene.path("seen");
    let more = format!("wait = \"0s\"\nseen_file = {seen:?}\n");
    go_to(&mut scene, &[former, new], &more);
    scene.deliver("doug", scene.message("before")).delivered();
    let lines = || std::fs::read_to_string(&seen).unwrap().lines().filter(|line| !line.is_empty()).count();
    assert_eq!(lines(), 1);
    pair.catch_up();
    said_beforehand(&scene, "replication", "to 1, and no commit waits for it", ["warning", "bad"]);
    former.cut_off();
    pair.promote();
    scene.deliver("doug", scene.message("meanwhile")).delivered();
    assert_eq!(lines(), 2);
    // It has noticed nothing, and comes first, also once it is forgotten that nobody answered there.
    former.connect();
    let silent = std::fs::read_to_string(format!("{seen}.silent")).unwrap();
    assert!(silent.ends_with(&format!(" {} port 5432\n", former.address().0)), "{silent}");
    std::fs::remove_file(format!("{seen}.silent")).unwrap();
    let mut database = Connection::open_at(Engine::Postgres17, &new.address(), Some(&scene.database.name));
    for id in ["after", "again"] {
        scene.deliver("doug", scene.message(id)).delivered();
        let recorded = format!("SELECT message_id FROM messages WHERE message_id = '{}'", scene.message_id(id));
        assert_eq!(database.texts(&recorded).len(), 1, "{id}");
        assert!(scene.database.texts(&recorded).is_empty(), "{id}");
    }
    assert_eq!(scene.inbox("doug").len(), 5);
    assert_eq!(lines(), 2);
    let said = format!("it has missed a fail-over, or was restored; if it is the right one, remove {seen}");
    assert!(scene.log().contains(&said), "{}", scene.log());
    let found = check(&scene);
    assert!(found.contains("has missed a fail-over"), "{found}");

    // Where there is no other, the message waits, until somebody says that it is the right one.
    go_to(&mut scene, &[former], &more);
    scene.deliver("doug", scene.message("alone")).deferred("4.3.0 the database has missed a fail-over");
    std::fs::remove_file(&seen).unwrap();
    scene.deliver("doug", scene.message("alone")).delivered();

    // Who has seen nothing sees two that take writes.
    go_to(&mut scene, &[former, new], "");
    let found = check(&scene);
    assert!(found.contains("both take writes"), "{found}");
}

/// The new primary is away for a moment, and the former one answers: the delivery waits for the right one.
#[test]
fn a_delivery_that_meets_the_former_primary_alone_waits_for_the_new_one() {
    let pair = Pair::start("POSTGRES17");
    let (former, new) = (&pair.primary, &pair.standby);
    let mut scene = pair.site(&[], "");
    let seen = scene.path("seen");
    pair.part();
    pair.promote();
    go_to(&mut scene, &[new], &format!("seen_file = {seen:?}\n"));
    scene.deliver("doug", scene.message("seen")).delivered();
    go_to(&mut scene, &[former, new], &format!("wait = \"100s\"\nseen_file = {seen:?}\n"));
    new.cut_off();
    let delivery = scene.start("doug", &[], scene.message("waits"));
    wait_until("it waits, and not for want of an answer alone", || {
        let log = scene.log();
        let waiting = log.lines().find(|line| line.contains("waiting for a database server that takes writes"));
        waiting.is_some_and(|line| line.contains("it has missed a fail-over"))
    });
    new.connect();
    delivery.end().delivered();
    let mut database = Connection::open_at(Engine::Postgres17, &new.address(), Some(&scene.database.name));
    let recorded = format!("SELECT message_id FROM messages WHERE message_id = '{}'", scene.message_id("waits"));
    assert_eq!(database.texts(&recorded).len(), 1);
    assert!(scene.database.texts(&recorded).is_empty());
    assert_eq!(scene.inbox("doug").len(), 3);
}

/// Group Replication, with one member: what this host has seen of later views is written into its file.
#[test]
fn a_member_of_a_group_that_was_left_behind_is_not_used() {
    let server =
        OwnServer::database_with(Engine::Mysql9, &["--server-id=1", "--gtid-mode=ON", "--enforce-gtid-consistency=ON"]);
    let mut scene = Scene::with_database_on(Engine::Mysql9, &server);
    scene.member("doug");
    let mut session = Connection::open_at(Engine::Mysql9, &server.address(), None);
    let (group, ip) = ("7b2f0f52-6a5c-4c27-9d4e-0f1f3b7a9c11", server.address().0);
    for statement in [
        "INSTALL PLUGIN group_replication SONAME 'group_replication.so'".to_owned(),
        format!("SET GLOBAL group_replication_group_name = '{group}'"),
        format!("SET GLOBAL group_replication_local_address = '{ip}:33061'"),
        "SET GLOBAL group_replication_bootstrap_group = ON".to_owned(),
        "START GROUP_REPLICATION".to_owned(),
    ] {
        session.execute(&statement);
    }
    let seen = scene.path("seen");
    scene.configure(|settings| settings.database_more = format!("wait = \"0s\"\nseen_file = {seen:?}\n"));
    scene.deliver("doug", scene.message("one")).delivered();
    let told = std::fs::read_to_string(&seen).unwrap();
    let view = session.texts("SELECT VIEW_ID FROM performance_schema.replication_group_member_stats").remove(0);
    let (made, number) = view.split_once(':').unwrap();
    assert!(told.trim().starts_with(&format!("group/{group}/{made} {number} ")), "{told} {view}");

    std::fs::write(&seen, format!("group/{group}/{made} 99 a later one\n")).unwrap();
    scene.deliver("doug", scene.message("two")).deferred("4.3.0 the database has missed a fail-over");
    // A group that was made anew begins anew.
    std::fs::write(&seen, format!("group/{group}/{made}9 99 another one\n")).unwrap();
    scene.deliver("doug", scene.message("two")).delivered();

    // A role that may not ask delivers as before.
    std::fs::remove_file(&seen).unwrap();
    let role = format!("r{}", &scene.run[scene.run.len() - 12..]);
    scene.database.create_role_of_grants_file(&role, "secret");
    scene.configure(|settings| (settings.role, settings.database_password) = (role, "secret".into()));
    scene.deliver("doug", scene.message("three")).delivered();
    assert!(!std::path::Path::new(&seen).exists());
    assert_eq!(scene.inbox("doug").len(), 3);
}
