//! Nobody is refused for good before the database has committed that: 67 comes of a primary that finds the address missing
//! now, and of nothing else. Whatever a server cannot write down, or does not answer for, is 75.

use crate::support::database::{Connection, Engine};
use crate::support::lmtp::Lmtp;
use crate::support::own_server::OwnServer;
use crate::support::program::{Outcome, wait_until};
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use crate::support::wire::{Fate, Speaker, Wire, says};
use maildrop_command::database::DatabaseFailure;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

on_two_engines!(
    a_refusal_is_one_row_of_its_host_updated_in_place,
    by_default_nobody_is_refused,
    a_commit_that_is_not_answered_refuses_nobody,
    an_address_added_meanwhile_is_not_refused,
    a_table_that_is_emptied_meanwhile_refuses_nobody,
    who_may_not_write_it_down_refuses_nobody,
    a_dry_run_refuses_nobody,
);

/// What the look-up function and each dialect answer for a row.
mod rows_for_later_versions {
    use super::mail_for_a_row_without_an_imap_user_is_deferred_and_goes_nowhere_else;

    on_each_engine!(mail_for_a_row_without_an_imap_user_is_deferred_and_goes_nowhere_else);
}

/// Some addresses exist there, and every other is refused.
fn strict(scene: Scene) -> Scene {
    let mut scene = scene;
    scene.configure(|settings| settings.more = "[routing]\nunknown_recipient = \"reject\"\n".into());
    scene
}

fn to_a_stranger(scene: &Scene) -> Outcome {
    scene.deliver_with("stranger", &[], scene.message("stranger"))
}

/// The same, where nobody answers until the deadline.
fn to_a_stranger_in_vain(scene: &Scene) -> Outcome {
    scene.deliver_with("stranger", &["--deadline", "8s"], scene.message("stranger"))
}

fn refused(scene: &mut Scene) -> i64 {
    scene.database.texts("SELECT concat('', coalesce(sum(count), 0)) FROM unknown_recipients")[0].parse().unwrap()
}

fn a_refusal_is_one_row_of_its_host_updated_in_place(engine: Engine) {
    let mut scene = strict(Scene::with(engine, &["doug"]));
    for _ in 0..3 {
        to_a_stranger(&scene).ended(67, "5.1.1 no such recipient here");
    }
    let host = gethostname::gethostname().into_string().unwrap();
    let row = "SELECT concat(host, ' ', count) FROM unknown_recipients";
    assert_eq!(scene.database.texts(row), [format!("{host} 3")]);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts"), 0);

    // As many as fill ten pages: what is no longer seen makes room for the next.
    let mut database = scene.open_database();
    let mut refuse_a_thousand =
        || (0..1000).for_each(|_| assert!(database.refuse("mx1", &["stranger@mail.axial.net"]).unwrap()));
    let mut so_far = 3;
    if engine.is_postgres() {
        // A reader in this database meanwhile, such as autovacuum's ANALYZE, keeps what was there: then the next
        // thousand show it.
        let size = "SELECT pg_relation_size('unknown_recipients')";
        wait_until("a thousand take no more room than one", || {
            let before = scene.database.count(size);
            refuse_a_thousand();
            so_far += 1000;
            scene.database.count(size) <= before + 2 * 8192
        });
        assert_eq!(scene.database.count("SELECT pg_relation_size('unknown_recipients_pkey')"), 2 * 8192);
    } else {
        refuse_a_thousand();
        so_far += 1000;
    }
    assert_eq!(refused(&mut scene), so_far);
    assert!(!database.refuse("mx1", &["stranger@mail.axial.net", "doug@mail.axial.net"]).unwrap());
    assert_eq!(refused(&mut scene), so_far);
}

fn by_default_nobody_is_refused(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    to_a_stranger(&scene).deferred("4.1.1 no such recipient here; deferred by routing.unknown_recipient");
    assert_eq!(refused(&mut scene), 0);
}

/// What the program is answered, or is not answered, once it has sent this.
fn after_the_refusal(scene: &Scene, then: impl Fn(Speaker) -> Fate + Send + Sync + 'static) -> Wire {
    let shown = AtomicBool::new(false);
    Wire::to(scene.settings.database.clone(), move |speaker, piece| {
        if speaker == Speaker::Program && says(piece, "INTO unknown_recipients") {
            shown.store(true, Ordering::SeqCst);
        }
        if shown.load(Ordering::SeqCst) { then(speaker) } else { Fate::Pass }
    })
}

fn a_commit_that_is_not_answered_refuses_nobody(engine: Engine) {
    let mut scene = strict(Scene::with(engine, &["doug"]));
    let there = scene.settings.database.clone();
    let unanswered = |speaker| match speaker {
        Speaker::Program => Fate::Pass,
        Speaker::Server => Fate::Hold,
    };
    let lost = |speaker| match speaker {
        Speaker::Program => Fate::Pass,
        Speaker::Server => Fate::Cut,
    };
    let silent = after_the_refusal(&scene, unanswered);
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), silent.address.port()));
    // It is committed; but nobody says so. A busy machine may not come as far as that by the deadline.
    wait_until("it is committed", || {
        to_a_stranger_in_vain(&scene).deferred("4.4.");
        refused(&mut scene) == 1
    });

    scene.configure(|settings| settings.database = there);
    let cut = after_the_refusal(&scene, lost);
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), cut.address.port()));
    to_a_stranger(&scene).deferred("4.4.2 the connection to the database was lost");
}

/// Changes the table of addresses in the moment before the refusal is written down.
fn changed_meanwhile(scene: &mut Scene, change: &'static str) -> Outcome {
    let (engine, name) = (scene.database.engine, scene.database.name.clone());
    let changes = Wire::to(scene.settings.database.clone(), move |speaker, piece| {
        if speaker == Speaker::Program && says(piece, "INTO unknown_recipients") {
            Connection::open(engine, Some(&name)).execute(change);
        }
        Fate::Pass
    });
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), changes.address.port()));
    to_a_stranger(scene)
}

fn an_address_added_meanwhile_is_not_refused(engine: Engine) {
    let mut scene = strict(Scene::with(engine, &["doug"]));
    let added = "INSERT INTO addresses (address, imap_user) VALUES ('stranger@mail.axial.net', 'x')";
    changed_meanwhile(&mut scene, added).deferred("4.3.0 the table of addresses has just been changed");
    assert_eq!(refused(&mut scene), 0);
}

fn a_table_that_is_emptied_meanwhile_refuses_nobody(engine: Engine) {
    let mut scene = strict(Scene::with(engine, &["doug"]));
    let emptied = "DELETE FROM addresses";
    changed_meanwhile(&mut scene, emptied).deferred("4.3.0 the table of addresses has just been changed");
    assert_eq!(refused(&mut scene), 0);
}

fn who_may_not_write_it_down_refuses_nobody(engine: Engine) {
    let mut scene = strict(Scene::with(engine, &["doug"]));
    let role = format!("r{}", scene.run);
    scene.database.create_role_of_grants_file(&role, "only-for-this-test");
    let password = "only-for-this-test";
    scene.configure(|settings| (settings.role, settings.database_password) = (role.clone(), password.into()));
    to_a_stranger(&scene).ended(67, "5.1.1 ");
    let check_output = |scene: &Scene| String::from_utf8(scene.subcommand(&["check", "--all"]).stdout).unwrap();
    assert!(!check_output(&scene).contains("says which sites need it"), "{}", check_output(&scene));

    // The grants of an older release.
    let whom = if engine.is_postgres() { role } else { format!("'{role}'@'%'") };
    scene.database.execute(&format!("REVOKE INSERT ON unknown_recipients FROM {whom}"));
    to_a_stranger(&scene).deferred("4.3.5 the database is not set up for deliveries");
    assert!(check_output(&scene).contains("INSERT on unknown_recipients"), "{}", check_output(&scene));
    assert!(scene.log().contains("unknown_recipients"), "the log says on what");
    scene.deliver("doug", scene.message("doug")).delivered();

    // Its schema.
    scene.database.execute("DROP TABLE unknown_recipients");
    scene.database.execute("DELETE FROM maildrop_migrations WHERE number = 1");
    to_a_stranger(&scene).deferred("4.3.5 the database is not set up for deliveries");
    let check = scene.subcommand(&["check", "--all"]);
    assert_eq!(check.status.code(), Some(69), "{check:?}");
    assert!(check_output(&scene).contains("not applied"), "{}", check_output(&scene));
    scene.deliver("doug", scene.message("again")).delivered();
}

/// A later version may have written these rows. A row for all other addresses of the domain is no way out.
fn mail_for_a_row_without_an_imap_user_is_deferred_and_goes_nowhere_else(engine: Engine) {
    let mut scene = strict(Scene::with(engine, &["doug", "scuba"]));
    let (doug, scuba) = (scene.user("doug"), scene.user("scuba"));
    scene.database.add_address("@mail.axial.net", &scuba);
    let of_doug = "WHERE address = 'doug@mail.axial.net'";
    for row in ["imap_user = ''", "destination = 'https://mail.axial.net/in'", "imap_user = '', destination = ''"] {
        scene.database.execute(&format!("UPDATE addresses SET imap_user = '{doug}', destination = NULL {of_doug}"));
        scene.database.execute(&format!("UPDATE addresses SET {row} {of_doug}"));
        let line =
            "4.3.5 the recipient's row of addresses names no IMAP user; this version delivers only to IMAP users";
        scene.deliver("doug", scene.message("doug")).deferred(line);
        assert!(scene.log().contains("the row doug@mail.axial.net of the table addresses"), "{}", scene.log());
    }
    assert!(scene.inbox("doug").is_empty() && scene.inbox("scuba").is_empty());
    assert_eq!(refused(&mut scene), 0);
    if engine == Engine::Postgres17 {
        let service = Service::start(&mut scene);
        let to = ["doug", "scuba"].map(|name| format!("{name}@mail.axial.net"));
        let replies = Lmtp::connect(&service.socket).deliver(LISA, &to, &scene.message("lmtp"));
        assert!(replies[0].starts_with("451 4.3.5 the recipient's row of addresses"), "{replies:?}");
        assert!(replies[1].starts_with("250 2.0.0 INBOX appended"), "{replies:?}");
        service.end();
    }
    scene.database.execute(&format!("UPDATE addresses SET imap_user = '{doug}', destination = NULL {of_doug}"));
    scene.deliver("doug", scene.message("doug")).delivered();
}

fn a_dry_run_refuses_nobody(engine: Engine) {
    let mut scene = strict(Scene::with(engine, &["doug"]));
    let outcome = scene.deliver_with("stranger", &["--dry-run"], scene.message("stranger"));
    outcome.deferred("4.0.0 dry run, nothing done: 5.1.1 no such recipient here");
    assert_eq!(refused(&mut scene), 0);
}

/// A primary that waits for its synchronous standby, which is gone: it is cut off, or was replaced and does not know it.
/// And a standby, until it is promoted.
#[test]
fn a_primary_that_is_cut_off_and_a_standby_refuse_nobody() {
    let server = OwnServer::database(Engine::Postgres17);
    let mut scene = strict(Scene::with_database_on(Engine::Postgres17, &server));
    scene.member("doug");
    to_a_stranger(&scene).ended(67, "5.1.1 ");

    scene.database.execute("CREATE TABLE waits (n int)");
    scene.database.execute("ALTER SYSTEM SET synchronous_standby_names = 'somebody'");
    scene.database.execute("SELECT pg_reload_conf()");
    let over = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (over, mut session) = (over.clone(), scene.session());
        move || {
            while !over.load(Ordering::SeqCst) {
                session.execute("INSERT INTO waits VALUES (1)");
            }
        }
    });
    let hangs =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'";
    wait_until("a commit hangs", || scene.database.count(hangs) > 0);
    to_a_stranger_in_vain(&scene).deferred("4.4.5 the delivery took too long");
    over.store(true, Ordering::SeqCst);
    scene.database.execute("ALTER SYSTEM RESET synchronous_standby_names");
    scene.database.execute("SELECT pg_reload_conf()");
    writer.join().unwrap();
    wait_until("no commit hangs", || scene.database.count(hangs) == 0);
    to_a_stranger(&scene).ended(67, "5.1.1 ");

    let directory = scene.database.texts("SHOW data_directory").remove(0);
    server.kill();
    server.start();
    let signal = format!("{directory}/standby.signal");
    let touched = Command::new("docker").args(["exec", &server.container, "touch", &signal]).status().unwrap();
    assert!(touched.success());
    server.kill();
    server.start();
    scene.database.connect_again();
    assert_eq!(scene.database.texts("SELECT pg_is_in_recovery()::text"), ["true"]);
    to_a_stranger(&scene).deferred("4.3.0 the database takes no writes");
    // Also where somebody is known.
    let mut database = scene.open_database();
    let error = database.refuse("mx1", &["stranger@mail.axial.net"]).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::ReadOnly, "{error}");
    scene.database.execute("SELECT pg_promote()");
    assert!(database.refuse("mx1", &["stranger@mail.axial.net"]).unwrap());
    to_a_stranger(&scene).ended(67, "5.1.1 ");
}
