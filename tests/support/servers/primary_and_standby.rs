//! A PostgreSQL and its standby.

use crate::support::database::{Connection, Engine};
use crate::support::own_server::OwnServer;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;

pub struct Pair {
    pub primary: OwnServer,
    pub standby: OwnServer,
}

impl Pair {
    /// Of this image: `POSTGRES17`. No commit waits for the standby.
    pub fn start(image: &str) -> Self {
        let primary = OwnServer::postgres(image);
        let standby = OwnServer::standby_of(&primary, image);
        Self { primary, standby }
    }

    /// An administrator's session with one of them.
    pub fn session(server: &OwnServer) -> Connection {
        Connection::open_at(Engine::Postgres17, &server.address(), None)
    }

    /// Has each commit wait for the standby, from now on.
    pub fn be_synchronous(&self) {
        let mut session = Self::session(&self.primary);
        session.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'");
        session.execute("SELECT pg_reload_conf()");
        wait_until("the standby is synchronous", || {
            session.texts("SELECT sync_state FROM pg_stat_replication") == ["sync"]
        });
    }

    /// Has no commit of the first one wait any more.
    pub fn be_alone(&self) {
        let mut session = Self::session(&self.primary);
        session.execute("ALTER SYSTEM RESET synchronous_standby_names");
        session.execute("SELECT pg_reload_conf()");
    }

    /// Waits until the standby has all that was committed.
    pub fn catch_up(&self) {
        let mut session = Self::session(&self.primary);
        wait_until("the standby has it all", || {
            session.texts("SELECT (replay_lsn = pg_current_wal_lsn())::text FROM pg_stat_replication") == ["true"]
        });
    }

    /// Cuts the standby off the primary, and nobody else: it hears nothing of it any more.
    pub fn part(&self) {
        let mut session = Self::session(&self.standby);
        session.execute("ALTER SYSTEM SET primary_conninfo = ''");
        session.execute("SELECT pg_reload_conf()");
        let mut session = Self::session(&self.primary);
        wait_until("it hears nothing any more", || session.texts("SELECT state FROM pg_stat_replication").is_empty());
    }

    /// The standby takes over.
    pub fn promote(&self) {
        Self::session(&self.standby).texts("SELECT pg_promote(true, 60)::text");
    }

    /// A site whose database is on the primary, and whose deliveries go to one of these, in this order.
    pub fn site(&self, servers: &[&OwnServer], more: &str) -> Scene {
        let mut scene = Scene::with_database_on(Engine::Postgres17, &self.primary);
        scene.member("doug");
        // The first delivery of all writes down whom the mailbox store lets in.
        scene.deliver("doug", scene.message("first")).delivered();
        if !servers.is_empty() {
            go_to(&mut scene, servers, more);
        }
        self.catch_up();
        scene
    }
}

/// Has deliveries go to one of these.
pub fn go_to(scene: &mut Scene, servers: &[&OwnServer], more: &str) {
    scene.configure(|settings| settings.database_more = hosts(servers, more));
}

/// The lines of `[database]` for that.
pub fn hosts(servers: &[&OwnServer], more: &str) -> String {
    let hosts: Vec<String> =
        servers.iter().map(|server| format!("{:?}", server.socket_address().to_string())).collect();
    format!("hosts = [{}]\n{more}", hosts.join(", "))
}
