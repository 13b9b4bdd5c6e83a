//! MySQL and MariaDB, set up in another way than the shared servers: a server of the test's own, since what is set there is
//! set for everybody.

use crate::support::check_report::Checked;
use crate::support::database::{ADMINISTRATOR, Engine};
use crate::support::own_server::OwnServer;
use crate::support::site_fixture::Scene;
use maildrop_command::database::{DatabaseFailure, Idle};
use maildrop_command::ledger::{Finding, FindingState, Requirements, inspect};
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
    if engine == Engine::Mysql9 {
        scene.database.execute("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'");
        a_commit_that_waits_for_a_while(&mut scene, "source");
        scene.database.execute("UNINSTALL PLUGIN rpl_semi_sync_source");
        a_group_that_gives_up_a_promise(&mut scene);
    } else {
        a_commit_that_waits_for_a_while(&mut scene, "master");
    }
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
    assert!(!database.still_held(&one).unwrap(), "a lock on the old primary");
    assert_eq!(error.failure, DatabaseFailure::ReadOnly, "{error}");
    assert!(Idle::after(scene.open_database()).is_none(), "no other delivery begins there");
    // Nor does it refuse a recipient, whatever rights our role has there.
    scene.configure(|settings| settings.more = "[routing]\nunknown_recipient = \"reject\"\n".into());
    for administrator in [false, true] {
        if administrator {
            scene.configure(|settings| {
                (settings.role, settings.database_password) = (ADMINISTRATOR.0.into(), ADMINISTRATOR.1.into());
            });
        }
        scene.deliver("stranger", scene.message("z")).deferred("4.3.0 the database takes no writes");
        let refused = scene.open_database().refuse("mx1", &["stranger@mail.axial.net"]);
        assert_eq!(refused.unwrap_err().failure, DatabaseFailure::ReadOnly);
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM unknown_recipients"), 0);
    scene.database.execute("SET GLOBAL read_only = OFF");
    scene.deliver("stranger", scene.message("z")).ended(67, "5.1.1 ");
    assert!(database.still_held(&one).unwrap());
}

/// With several primaries, or a new one that may be read before it has applied everything.
fn a_group_that_gives_up_a_promise(scene: &mut Scene) {
    // A role that may not read whether it is online in its group.
    scene.configure(|settings| {
        (settings.role, settings.database_password) = ("deliverer".into(), "deliverer-secret".into());
    });
    scene.database.execute("INSTALL PLUGIN group_replication SONAME 'group_replication.so'");
    scene.database.execute("SET GLOBAL group_replication_group_name = '7b2fa1c2-0000-4000-8000-000000000000'");
    let state = |scene: &Scene, what| find(scene, what).state;
    assert_eq!(state(scene, "replication"), FindingState::Good);
    for (what, value) in
        [("group_replication_consistency", "EVENTUAL"), ("group_replication_single_primary_mode", "OFF")]
    {
        assert_eq!(state(scene, what), FindingState::Good, "{what}");
        scene.database.execute(&format!("SET GLOBAL {what} = {value}"));
        assert_eq!(state(scene, what), FindingState::Bad, "{what}");
    }
    scene.database.execute("UNINSTALL PLUGIN group_replication");
}

/// Longer than `check` itself has time, and shorter than a delivery has. No replica is there.
fn a_commit_that_waits_for_a_while(scene: &mut Scene, of: &str) {
    scene.database.execute(&format!("SET GLOBAL rpl_semi_sync_{of}_enabled = ON"));
    scene.database.execute(&format!("SET GLOBAL rpl_semi_sync_{of}_timeout = 100000"));
    let (none, nobody) = ("none", "no commit waits for another server, if any follows");
    let in_vain = "a commit waits for a replica, 100 s at most, and there is none";
    for (durability, deadline, finding, exit) in [
        ("local", "240s", ("ok", none), 0),
        ("replicated", "240s", ("bad", nobody), 69),
        ("replicated", "90s", ("bad", in_vain), 69),
    ] {
        let config = scene.other_configuration("semi-synchronous.toml", |settings| {
            settings.database_more = format!("failover_timeout = \"0s\"\ndurability = {durability:?}\n");
            settings.more = format!("[delivery]\ndeadline = {deadline:?}\n");
        });
        let checked = Checked::by(&config);
        assert_eq!((checked.on("replication"), checked.exit), (vec![finding], Some(exit)), "{durability} {deadline}");
    }
    scene.database.execute(&format!("SET GLOBAL rpl_semi_sync_{of}_enabled = OFF"));
}

fn find(scene: &Scene, what: &str) -> Finding {
    let findings = inspect(scene.open_database().as_mut(), Requirements::default()).unwrap();
    findings.into_iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("no {what}"))
}

/// `check` is run by people, and not by everybody: a delivery does not rely on it. (Without a provider the server says that it
/// is a node, and is none.)
#[test]
fn on_a_node_of_galera_nothing_is_delivered() {
    let server = OwnServer::database_with(Engine::Mariadb118, &["--wsrep-on=ON"]);
    let mut scene = Scene::bare_with_database_on(Engine::Mariadb118, &server);
    let migrate = scene.subcommand(&["migrate"]);
    assert_eq!(migrate.status.code(), Some(69), "{migrate:?}");
    // For as long as it runs.
    scene.database.execute("SET GLOBAL wsrep_on = OFF");
    assert!(scene.subcommand(&["migrate"]).status.success());
    scene.member("doug");
    scene.deliver("doug", scene.message("x")).delivered();
    server.kill();
    server.start();
    scene.database.connect_again();
    let checked = Checked::of(&scene);
    assert_eq!((checked.on("wsrep_on"), checked.exit), (vec![("bad", "ON")], Some(69)));
    scene.deliver("doug", scene.message("y")).deferred("4.3.0 the database failed");
    assert!(scene.log().contains("a node of Galera"), "{}", scene.log());
    assert_eq!(scene.inbox("doug").len(), 1);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0, "it ended itself");
    let mut database = scene.open_database();
    let name = LockName::new("maildrop test", b"galera");
    database.acquire(&name, Duration::ZERO).unwrap_err();
    assert!(!database.still_held(&name).unwrap());
}
