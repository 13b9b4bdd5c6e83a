//! PostgreSQL whose commits wait for a standby that there is not: a server of the test's own, since that is set for all of
//! the server.

use crate::support::database::Connection;
use crate::support::own_server::OwnServer;
use crate::support::program::wait_until;
use postgres::error::DbError;
use std::sync::mpsc;
use std::thread;

/// Which sessions wait for a standby. The server's own (autovacuum) may, too, at any time.
const IN_A_COMMIT: &str = "WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'";

/// A server whose commits can be made to wait.
pub struct Primary {
    pub server: OwnServer,
    admin: postgres::Client,
}

impl Primary {
    /// A server of this image: `POSTGRES17`.
    pub fn start(image: &str) -> Self {
        let server = OwnServer::postgres(image);
        let admin = session(&server, |_| {});
        Self { server, admin }
    }

    /// Another administrator's session, which tells the notices that it hears.
    pub fn session(&self, sender: mpsc::Sender<DbError>) -> postgres::Client {
        session(&self.server, |options| {
            options.notice_callback(move |notice| drop(sender.send(notice)));
        })
    }

    /// Has each COMMIT wait, from now on; returns once they do, which is some time after the setting was made. How the wait
    /// of the first was ended is printed: the notices that came with its success.
    pub fn commits_wait(&mut self) -> Vec<DbError> {
        self.set("'nobody'");
        let (sender, received) = mpsc::channel();
        let mut session = self.session(sender);
        let probe = thread::spawn(move || {
            let mut notices = Vec::new();
            while notices.is_empty() {
                session.batch_execute("SELECT pg_logical_emit_message(true, 'test', 'a commit')").unwrap();
                notices = received.try_iter().collect();
            }
            notices
        });
        wait_until("a commit waits", || {
            self.end_waits("pg_cancel_backend");
            probe.is_finished()
        });
        probe.join().unwrap()
    }

    /// Names the standbys that a COMMIT is to wait for: `'nobody'`.
    pub fn name_standbys(&mut self, standbys: &str) {
        self.set(standbys);
        wait_until("it is set", || {
            let mut session = session(&self.server, |_| {});
            let set: String = session.query_one("SHOW synchronous_standby_names", &[]).unwrap().get(0);
            format!("'{set}'") == standbys
        });
    }

    /// Has somebody receive what the server writes, as a standby does, and confirm it.
    pub fn start_receiver(&mut self) {
        self.server.start_inside(
            "mkdir -p /tmp/wal; PGPASSWORD=tester-secret \
             exec /usr/lib/postgresql/*/bin/pg_receivewal -h /tmp -U tester -D /tmp/wal --synchronous --no-loop",
        );
        wait_until("it receives", || self.receivers("state = 'streaming'") == 1);
    }

    /// Ends it.
    pub fn end_receiver(&mut self) {
        self.admin.query("SELECT pg_terminate_backend(pid) FROM pg_stat_replication", &[]).unwrap();
        wait_until("it is gone", || self.receivers("true") == 0);
    }

    fn receivers(&mut self, which: &str) -> i64 {
        let count = format!("SELECT count(*) FROM pg_stat_replication WHERE {which}");
        self.admin.query_one(&count, &[]).unwrap().get(0)
    }

    /// Lets all of them go, and waits for none any more.
    pub fn commits_wait_no_more(&mut self) {
        self.set("''");
        wait_until("nobody waits", || self.waiting() == 0);
    }

    /// How many sessions wait in a COMMIT.
    pub fn waiting(&mut self) -> i64 {
        let waiting = format!("SELECT count(*) FROM pg_stat_activity {IN_A_COMMIT}");
        self.admin.query_one(&waiting, &[]).unwrap().get(0)
    }

    /// Ends every such wait, by this function of the server; how many.
    pub fn end_waits(&mut self, function: &str) -> usize {
        let end = format!("SELECT {function}(pid) FROM pg_stat_activity {IN_A_COMMIT}");
        self.admin.query(&end, &[]).unwrap().len()
    }

    fn set(&mut self, standbys: &str) {
        self.admin.batch_execute(&format!("ALTER SYSTEM SET synchronous_standby_names = {standbys}")).unwrap();
        self.admin.batch_execute("SELECT pg_reload_conf()").unwrap();
    }
}

fn session(server: &OwnServer, more: impl FnOnce(&mut postgres::Config)) -> postgres::Client {
    let mut options = Connection::postgres_options(&server.address(), None);
    more(&mut options);
    options.connect(postgres::NoTls).unwrap()
}
