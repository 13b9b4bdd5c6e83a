//! What makes another epoch on PostgreSQL, on each version.

use crate::failover::choice_of_server::check;
use crate::fixtures::primary_and_standby::{Pair, go_to};
use crate::support::check_report::assert_reported_before;
use crate::support::database::{Connection, Engine};
use crate::support::own_server::OwnServer;
use crate::support::postgres::on_each_postgres;
use crate::support::site_fixture::Scene;

on_each_postgres!(a_promotion_makes_another_epoch, a_server_that_does_not_tell_its_epoch_delivers_all_the_same,);

fn a_promotion_makes_another_epoch(image: &str) {
    let pair = Pair::start(image);
    let mut scene = pair.site(&[], "");
    let shown = "SELECT epoch FROM epochs ORDER BY number";
    let first = scene.database.texts(shown);
    assert_eq!(first.len(), 1);
    pair.catch_up();
    assert_reported_before(&scene, "replication", "to 1, and no commit waits for it", ["warning", "bad"]);
    pair.primary.kill();
    pair.promote();
    go_to(&mut scene, &[&pair.standby], "");
    scene.deliver("doug", scene.message("after")).delivered();
    let mut database = Connection::open_at(Engine::Postgres17, &pair.standby.address(), Some(&scene.database.name));
    let now = database.texts(shown);
    assert_eq!((now.len(), &now[0]), (2, &first[0]));
    assert_ne!(now[1], now[0]);
    let parts = |epoch: &str| epoch.split('/').map(str::to_owned).collect::<Vec<_>>();
    let (was, is) = (parts(&now[0]), parts(&now[1]));
    assert_eq!((&was[0], &was[1][..], &was[2]), (&is[0], "00000001", &is[2]));
    assert_eq!(is[1], "00000002");
    drop(database);
    pair.primary.start();
    scene.database.connect_again();
}

/// Some services have not all of the functions, or keep them from ordinary roles.
fn a_server_that_does_not_tell_its_epoch_delivers_all_the_same(image: &str) {
    let server = OwnServer::postgres(image);
    let mut scene = Scene::with_database_on(Engine::Postgres17, &server);
    scene.member("doug");
    let role = format!("r{}", &scene.run[scene.run.len() - 12..]);
    scene.database.create_role_of_grants_file(&role, "secret");
    scene.configure(|settings| (settings.role, settings.database_password) = (role, "secret".into()));
    // The first is seen beforehand; the second refuses.
    let functions = ["pg_control_system()", "pg_current_wal_insert_lsn()"];
    for (there, kept_from_us) in functions.into_iter().enumerate() {
        scene.database.execute(&format!("REVOKE EXECUTE ON FUNCTION {kept_from_us} FROM PUBLIC"));
        scene.database.execute("UPDATE epochs SET epoch = 'an/other/1', since = now()");
        scene.deliver("doug", scene.message(&format!("by-{there}"))).delivered();
        let seen = (scene.log().contains("looked for a copy"), scene.inbox("doug").len());
        assert_eq!(seen, (false, there + 1), "{kept_from_us}");
        assert_eq!(scene.database.count("SELECT count(*) FROM epochs"), 1);
        assert!(check(&scene).contains("the server does not tell it"), "{}", check(&scene));
        scene.database.execute(&format!("GRANT EXECUTE ON FUNCTION {kept_from_us} TO PUBLIC"));
    }
}
