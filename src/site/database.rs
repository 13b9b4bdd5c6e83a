//! The session with the database, on the first of its servers that accepts writes.

use super::{Configured, Kind, Site, Terms};
use crate::base::deadline::Deadline;
use crate::config::Engine;
use crate::database::{
    Client, Connected, DatabaseError, DatabaseFailure, MysqlDatabase, PostgresDatabase, RetryUntil, Server,
    connect_primary,
};
use crate::ledger::Database;
use crate::ledger::schema;
use std::time::Duration;
use tracing::debug;

/// A session, or the error.
type Opened = Result<Box<dyn Database>, DatabaseError>;

impl Site {
    /// Opens a session with the database: with the first server that accepts writes, or else with one that can be read.
    ///
    /// # Errors
    /// If the database cannot be reached in time, refuses the login, or (embedded) cannot be created.
    pub fn open_database(
        &self,
        queue_id: Option<&str>,
        deadline: Deadline,
    ) -> Result<Box<dyn Database>, DatabaseError> {
        self.find_database(queue_id, deadline)
            .map(|(Connected::Writing(database) | Connected::Reading(database))| database)
    }

    /// Opens a session for a client that waits for answers until this deadline. The server ends statements that take longer, and
    /// a server that hangs does not block the thread for ever.
    ///
    /// # Errors
    /// As for [`Self::open_database`].
    pub(crate) fn open_to_ask(&self, deadline: Deadline) -> Result<Box<dyn Database>, DatabaseError> {
        let mut database = self.open_database(None, deadline)?;
        database.limit_statement_time(deadline.remaining());
        Ok(database)
    }

    /// Opens a session for work that must not begin on a former primary: a lock there excludes no client of the new primary. With
    /// several servers, this takes one more round trip.
    ///
    /// # Errors
    /// If the database cannot be reached in time, refuses the login, or has missed a fail-over.
    pub(crate) fn open_primary(&self, deadline: Deadline) -> Result<Box<dyn Database>, DatabaseError> {
        let mut database = self.open_database(None, deadline)?;
        if !self.has_several_databases() {
            return Ok(database);
        }
        let asked = database.is_read_only();
        match asked.and_then(|_| self.make_sure_of_the_primary(database.as_mut(), deadline)) {
            // By now, this host knows the new primary.
            Err(error) if error.a_new_session_can_help() => self.open_database(None, deadline),
            asked => asked.map(|()| database),
        }
    }

    /// Opens a session for a delivery. A delivery needs a server that accepts writes, and this waits for one.
    ///
    /// # Errors
    /// If no such server is available in time.
    pub(super) fn await_database(
        &self,
        queue_id: Option<&str>,
        terms: &Terms<'_>,
        patience: &mut RetryUntil,
    ) -> Result<Box<dyn Database>, DatabaseError> {
        loop {
            let error = match self.find_database(queue_id, terms.deadline) {
                Ok(Connected::Writing(database)) => return Ok(database),
                Ok(Connected::Reading(_)) => {
                    let detail = "no server takes writes: a standby, or read-only";
                    DatabaseError::new(DatabaseFailure::ReadOnly, "connecting to the database", detail)
                }
                Err(error) => error,
            };
            if !patience.once_more_after(&error, |error| terms.caller.is_kept_waiting(error)) {
                return Err(error);
            }
        }
    }

    /// How long a delivery with this deadline waits for a server that accepts writes.
    pub(super) fn patience(&self, deadline: Deadline) -> RetryUntil {
        RetryUntil::new(self.config().map_or(Duration::ZERO, |config| config.database.failover_timeout), deadline)
    }

    /// If no commit completes, asks each server how far its history reaches, and whether it accepts writes. That reveals a former
    /// primary whose history is behind.
    ///
    /// # Errors
    /// If another server has taken over.
    pub(super) fn make_sure_of_the_primary(
        &self,
        database: &mut dyn Database,
        deadline: Deadline,
    ) -> Result<(), DatabaseError> {
        let Some(site) = self.as_configured() else { return Ok(()) };
        if !database.lacks_sync_standby() || site.database.len() < 2 {
            return Ok(());
        }
        debug!("commits wait for a standby, and none follows: are the other servers further?");
        let client = self.client(None);
        for server in &site.database {
            let asked = site.open(&server.with_short_timeout(), &client, deadline).and_then(|mut other| {
                self.logins.database();
                // Any statement also returns how far the server's history reaches. The wait for the answer is no longer than that
                // for a login.
                other.expect_fast_reply();
                if other.said_read_only() { Ok(true) } else { other.is_read_only() }
            });
            if let Err(error) = asked {
                debug!(%error, "this database server cannot be asked");
            }
            // If a server is now known to have taken over, the remaining ones need no connection.
            database.check_still_primary()?;
        }
        Ok(())
    }

    /// Whether there is more than one server that may be the primary.
    pub(super) fn has_several_databases(&self) -> bool {
        self.as_configured().is_some_and(|site| site.database.len() > 1)
    }

    /// A session with each of the database's servers, by name; none for an embedded database.
    pub(crate) fn open_each_database(&self, deadline: Deadline) -> Vec<(String, Opened)> {
        let (client, site) = (self.client(None), self.as_configured());
        let servers = site.iter().flat_map(|site| site.database.iter().map(move |server| (*site, server)));
        servers.map(|(site, server)| (server.address.to_string(), site.open(server, &client, deadline))).collect()
    }

    fn find_database(
        &self,
        queue_id: Option<&str>,
        deadline: Deadline,
    ) -> Result<Connected<dyn Database>, DatabaseError> {
        let client = self.client(queue_id);
        match &self.kind {
            Kind::Configured(site) => {
                let open = |server: &Server| {
                    let opened = site.open(server, &client, deadline)?;
                    self.logins.database();
                    Ok(opened)
                };
                connect_primary(&site.database, deadline, open)
            }
            Kind::Embedded(embedded) => {
                let opened = schema::open_embedded(embedded.directory(), &client, deadline)?;
                self.logins.database();
                Ok(Connected::Writing(Box::new(opened)))
            }
        }
    }

    /// How this process is described in a database's list of sessions.
    pub(super) fn client(&self, queue_id: Option<&str>) -> Client {
        Client { host: self.host.clone(), pid: std::process::id(), queue_id: queue_id.map(ToOwned::to_owned) }
    }
}

impl Configured {
    fn open(&self, server: &Server, client: &Client, deadline: Deadline) -> Result<Box<dyn Database>, DatabaseError> {
        Ok(match self.config.database.engine {
            Engine::Postgresql => Box::new(PostgresDatabase::connect(server, client, deadline)?),
            Engine::Mysql => Box::new(MysqlDatabase::connect(server, client, deadline)?),
        })
    }

    /// The name of the database, for people.
    pub(super) fn database_name(&self) -> String {
        let servers: Vec<String> = self.database.iter().map(|server| server.address.to_string()).collect();
        format!("the database at {}", servers.join(", "))
    }
}
