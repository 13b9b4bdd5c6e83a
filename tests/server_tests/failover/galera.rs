//! MariaDB with Galera: two nodes that both take writes, and each give their own locks. Nothing is delivered there.

use crate::support::check_report::Checked;
use crate::support::database::{Connection, Engine};
use crate::support::own_server::OwnServer;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;

const ENGINE: Engine = Engine::Mariadb118;

fn session(node: &OwnServer) -> Connection {
    Connection::open_at(ENGINE, &node.address(), None)
}

/// Two nodes, and a site on the first that has delivered one message before there was a cluster.
fn cluster() -> ([OwnServer; 2], Scene) {
    let first = OwnServer::node_of_galera(&[]);
    let mut scene = Scene::bare_with_database_on(ENGINE, &first);
    let migrate = scene.subcommand(&["migrate"]);
    assert_eq!(migrate.status.code(), Some(69), "{migrate:?}");
    scene.database.execute("SET GLOBAL wsrep_on = OFF");
    let migrate = scene.subcommand(&["migrate"]);
    assert!(migrate.status.success(), "{migrate:?}");
    scene.member("doug");
    scene.deliver("doug", scene.message("before")).delivered();
    scene.database.execute("SET GLOBAL wsrep_on = ON");
    let second = OwnServer::node_of_galera(&[&first]);
    for node in [&first, &second] {
        let ready = "SELECT variable_value FROM information_schema.global_status WHERE variable_name IN \
                     ('wsrep_ready', 'wsrep_cluster_size') ORDER BY variable_name";
        wait_until("both nodes are one cluster", || session(node).texts(ready) == ["2", "ON"]);
    }
    ([first, second], scene)
}

#[test]
fn on_two_nodes_of_galera_nothing_is_delivered() {
    let (nodes, mut scene) = cluster();
    // This is why: a client of another node has the same lock at the same time.
    let name = format!("maildrop {}", scene.run);
    let take = format!("SELECT CAST(GET_LOCK('{name}', 0) AS CHAR)");
    let mut sessions = [0, 1].map(|node| session(&nodes[node]));
    let taken: Vec<_> = sessions.iter_mut().flat_map(|session| session.texts(&take)).collect();
    assert_eq!(taken, ["1", "1"]);
    // What one node is sent, the other has.
    let ledger = format!("SELECT message_id FROM {}.messages", scene.database.name);
    let shown = sessions.each_mut().map(|session| session.texts(&ledger));
    assert_eq!((shown[0].len(), &shown[0]), (1, &shown[1]));

    for (node, id) in nodes.iter().zip(["to-one", "to-the-other"]) {
        scene.configure(|settings| settings.database = node.address());
        let checked = Checked::of(&scene);
        assert_eq!((checked.on("wsrep_on"), checked.exit), (vec![("bad", "ON")], Some(69)));
        assert!(checked.fix("ON").contains("GET_LOCK holds on one server only"));
        scene.deliver("doug", scene.message(id)).deferred("4.3.0 the database failed");
        assert_eq!(scene.log().matches("a node of Galera").count(), 1, "{}", scene.log());
        std::fs::remove_file(scene.path("log")).unwrap();
    }
    assert_eq!(scene.inbox("doug").len(), 1);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0, "each ended itself");
}
