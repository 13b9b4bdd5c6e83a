//! MySQL and MariaDB, set up in another way than the shared servers: a server of the test's own, since what is set there is
//! set for everybody.

use crate::support::database::Engine;
use crate::support::own_server::OwnServer;
use crate::support::scene::Scene;
use maildrop_command::database::DatabaseFailure;
use maildrop_command::lock::{Acquired, LockName};
use std::time::Duration;

#[test]
fn mysql9() {
    it_is_set_up_otherwise(Engine::Mysql9);
}

#[test]
fn mariadb118() {
    it_is_set_up_otherwise(Engine::Mariadb118);
}

fn it_is_set_up_otherwise(engine: Engine) {
    let server = OwnServer::database(engine);
    let mut scene = Scene::with_database_on(engine, &server);
    // What init_connect says is for those who are not administrators, and so is read_only.
    scene.database.create_role_of_grants_file("deliverer", "deliverer-secret");
    scene.configure(|settings| {
        settings.role = "deliverer".into();
        settings.database_password = "deliverer-secret".into();
    });
    let doug = scene.member("doug");
    another_character_set(&mut scene, &doug);
    a_limit_to_every_answer(&mut scene);
    no_writes(&mut scene);
}

/// What the server says then is in another character set than the one that was asked for on connecting: a mailbox's name
/// came with a question mark for each character that is not in it, and the message went to a mailbox of that name.
fn another_character_set(scene: &mut Scene, doug: &str) {
    scene.database.execute(&format!("UPDATE addresses SET inbox = '📥' WHERE address = '{doug}'"));
    scene.database.execute("SET GLOBAL init_connect = 'SET NAMES latin1'");
    scene.deliver("doug", scene.message("x")).delivered();
    assert_eq!((scene.mailbox("doug", "&2D3c5Q-").len(), scene.mailbox("doug", "?").len()), (1, 0));
}

/// Of two addresses the author's was not seen, and no Sent copy made; of two copies that are delivered, one.
fn a_limit_to_every_answer(scene: &mut Scene) {
    scene.member("lisa");
    scene.database.execute("SET GLOBAL sql_select_limit = 1");
    for _ in 0..2 {
        scene.deliver("doug", scene.message("y")).delivered();
    }
    assert_eq!((scene.mailbox("doug", "&2D3c5Q-").len(), scene.sent("lisa").len()), (2, 1));
}

/// A primary that was just demoted, and keeps its connections; or a replica, by way of a proxy that sends it what begins with
/// SELECT. Another delivery would have the same lock on the primary.
fn no_writes(scene: &mut Scene) {
    let (one, other) = (LockName::new("maildrop test", b"one"), LockName::new("maildrop test", b"other"));
    let mut database = scene.open_database();
    assert!(matches!(database.acquire(&one, Duration::ZERO).unwrap(), Acquired::Held));
    scene.database.execute("SET GLOBAL read_only = ON");
    let error = database.acquire(&other, Duration::ZERO).unwrap_err();
    assert!(!database.still_held(&other).unwrap());
    assert_eq!(error.failure, DatabaseFailure::ReadOnly, "{error}");
    scene.database.execute("SET GLOBAL read_only = OFF");
}
