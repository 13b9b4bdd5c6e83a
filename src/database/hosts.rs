//! Chooses among several servers the first that takes writes.

use super::{DatabaseError, DatabaseFailure, Server, Session};
use crate::base::deadline::Deadline;
use crate::base::server_waits::{self, ServerKind};
use std::hash::{BuildHasher as _, RandomState};
use std::thread;
use std::time::Duration;
use tracing::{debug, info};

/// Initial and maximum pause between two tries. Each is multiplied by a random factor from 0.5 to 1.5, so that waiting
/// processes do not retry all at once.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// A session, by whether its server takes writes.
pub(crate) enum Connected<S: ?Sized> {
    /// The server takes writes, as far as is known.
    Writing(Box<S>),
    /// No server takes writes; this one can be read.
    Reading(Box<S>),
}

/// Opens a session with the first server that takes writes. Of several servers, an unresponsive one gets its full time only
/// if no other takes writes.
pub(crate) fn connect_primary<S: Session + ?Sized>(
    servers: &[Server],
    deadline: Deadline,
    open: impl Fn(&Server) -> Result<Box<S>, DatabaseError>,
) -> Result<Connected<S>, DatabaseError> {
    let (mut reading, mut failures) = (Vec::new(), Vec::new());
    let mut to_ask = match servers {
        [only] => vec![only.clone()],
        several => several.iter().map(Server::with_short_timeout).collect(),
    };
    while !to_ask.is_empty() {
        let mut silent = Vec::new();
        for server in to_ask {
            // The first server is tried even after the deadline, because its error then says that no time is left.
            if deadline.passed() && !(reading.is_empty() && failures.is_empty()) {
                break;
            }
            match open(&server) {
                Ok(session) => {
                    if !session.said_read_only() {
                        return Ok(Connected::Writing(session));
                    }
                    debug!(server = %server.address, "this database server takes no writes");
                    reading.push(session);
                }
                Err(error) => {
                    debug!(%error, "this database server cannot be used");
                    if error.failure == DatabaseFailure::TimedOut && !deadline.passed() {
                        silent.push(server);
                    }
                    failures.push(error);
                }
            }
        }
        // A pooler's report of its server may be outdated, and any server may have been promoted meanwhile.
        if let Some(at) = reading.iter_mut().position(|session| matches!(session.is_read_only(), Ok(false))) {
            return Ok(Connected::Writing(reading.swap_remove(at)));
        }
        to_ask = silent.into_iter().filter_map(Server::with_full_timeout).collect();
    }
    if reading.is_empty() { Err(all_of(failures)) } else { Ok(Connected::Reading(reading.swap_remove(0))) }
}

/// One error for all servers. It is temporary if any of them is, so that a retry is not given up.
fn all_of(mut failures: Vec<DatabaseError>) -> DatabaseError {
    let doing = "connecting to the database";
    if failures.len() < 2 {
        return failures.pop().unwrap_or_else(|| DatabaseError::other(doing, "no server is named"));
    }
    let kind = failures.iter().find(|error| error.may_pass()).or(failures.first());
    let failure = kind.map_or(DatabaseFailure::Other, |error| error.failure);
    let shown: Vec<String> = failures.iter().map(ToString::to_string).collect();
    DatabaseError::new(failure, doing, shown.join("; "))
}

/// For how long a delivery that has written nothing yet waits for a server that takes writes.
pub(crate) struct RetryUntil {
    until: Deadline,
    pause: Duration,
}

impl RetryUntil {
    /// Waits for `wait`, and at most for half of the time left until `deadline`.
    pub(crate) fn new(wait: Duration, deadline: Deadline) -> Self {
        Self { until: Deadline::after(wait).or_sooner(deadline.half_way()), pause: PAUSE }
    }

    /// Whether to retry after this failure. If so, pauses first; before the first pause it calls `notify`.
    pub(crate) fn once_more_after(&mut self, error: &DatabaseError, notify: impl FnOnce(&DatabaseError)) -> bool {
        if !error.may_pass() || self.until.passed() {
            return false;
        }
        if self.pause == PAUSE {
            notify(error);
        }
        let _awaited = server_waits::for_answer(ServerKind::Database);
        info!(%error, "waiting for a database server that takes writes");
        thread::sleep(jittered(self.pause).min(self.until.remaining()));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

/// A random time from half to one and a half of `pause`.
fn jittered(pause: Duration) -> Duration {
    // The keys of the standard library's hashes are random (`RandomState::new`).
    let chance = RandomState::new().hash_one(0) % 1024;
    pause / 2 + pause.mul_f64(chance as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::endpoint::Endpoint;
    use crate::database::{Client, Limits, Sealed, Tls};
    use std::cell::RefCell;

    /// A session whose server reported this on connecting, and answers this when asked.
    struct Said {
        name: String,
        read_only: bool,
        asked: Result<bool, ()>,
    }

    impl Session for Said {
        fn round_trips(&self) -> u32 {
            0
        }
        fn said_read_only(&self) -> bool {
            self.read_only
        }
        fn is_read_only(&mut self) -> Result<bool, DatabaseError> {
            self.asked.map_err(|()| DatabaseError::other("asking", "no"))
        }
        fn begin(&mut self, _: &Client, _: Deadline, _: Sealed) -> Result<(), DatabaseError> {
            Ok(())
        }
        fn end(&mut self, _: Sealed) -> Result<(), DatabaseError> {
            Ok(())
        }
    }

    /// The result among servers with these letters, and which servers were tried: (p)rimary, (s)tandby, a promoted
    /// server behind a pooler's (o)utdated report, (u)nreachable, (h)ung, (b)usy, which answers only if given the full
    /// time, or (d)enying us.
    fn found(servers: &str) -> (Result<String, DatabaseFailure>, String) {
        found_by(servers, Deadline::after(Duration::from_secs(60)))
    }

    fn found_by(servers: &str, deadline: Deadline) -> (Result<String, DatabaseFailure>, String) {
        found_among(&servers.chars().map(server).collect::<Vec<_>>(), deadline)
    }

    fn found_among(all: &[Server], deadline: Deadline) -> (Result<String, DatabaseFailure>, String) {
        let tried = RefCell::new(String::new());
        let open = |server: &Server| {
            let name = server.database.clone();
            tried.borrow_mut().push_str(&name);
            let failed = |failure| Err(DatabaseError::new(failure, "connecting", name.clone()));
            let said = |read_only, asked| Ok(Box::new(Said { name: name.clone(), read_only, asked }));
            match &name[..] {
                "p" => said(false, Err(())),
                "s" => said(true, Ok(true)),
                "o" => said(true, Ok(false)),
                "u" => failed(DatabaseFailure::Unreachable),
                "b" if server.limits.login == server.limits.silence => said(false, Err(())),
                "h" | "b" => failed(DatabaseFailure::TimedOut),
                _ => failed(DatabaseFailure::AccessDenied),
            }
        };
        let outcome = match connect_primary(all, deadline, open) {
            Ok(Connected::Writing(session)) => Ok(session.name),
            Ok(Connected::Reading(session)) => Ok(format!("reading {}", session.name)),
            Err(error) => Err(error.failure),
        };
        (outcome, tried.into_inner())
    }

    fn server(name: char) -> Server {
        Server {
            address: Endpoint::Tcp { host: name.into(), port: 5432 },
            database: name.into(),
            user: String::new(),
            password: None,
            tls: Tls::Off,
            limits: Limits::default(),
            timelines: None,
        }
    }

    #[test]
    fn the_first_that_takes_writes_is_used_and_nobody_after_it_is_asked() {
        for (servers, shown, tried) in [
            ("p", "p", "p"),
            ("pp", "p", "p"),
            ("sudpp", "p", "sudp"),
            ("so", "o", "so"),
            ("sop", "p", "sop"),
            ("uss", "reading s", "uss"),
            ("hp", "p", "hp"),
            ("b", "b", "b"),
            ("bsp", "p", "bsp"),
            ("hbs", "b", "hbshb"),
            ("hs", "reading s", "hsh"),
        ] {
            assert_eq!(found(servers), (Ok(shown.to_owned()), tried.to_owned()), "{servers}");
        }
    }

    #[test]
    fn once_no_time_is_left_only_the_first_is_asked() {
        for (servers, shown, tried) in [
            ("p", Ok("p".to_owned()), "p"),
            ("sp", Ok("reading s".to_owned()), "s"),
            ("up", Err(DatabaseFailure::Unreachable), "u"),
        ] {
            assert_eq!(found_by(servers, Deadline::after(Duration::ZERO)), (shown, tried.to_owned()), "{servers}");
        }
    }

    #[test]
    fn an_error_of_several_is_one_that_may_pass() {
        for (servers, failure) in [
            ("u", DatabaseFailure::Unreachable),
            ("d", DatabaseFailure::AccessDenied),
            ("dd", DatabaseFailure::AccessDenied),
            ("du", DatabaseFailure::Unreachable),
            ("ud", DatabaseFailure::Unreachable),
            ("udd", DatabaseFailure::Unreachable),
        ] {
            assert_eq!(found(servers).0, Err(failure), "{servers}");
        }
    }

    #[test]
    fn nobody_waits_for_what_does_not_pass_or_for_longer_than_half_of_the_time() {
        let error = |failure| DatabaseError::new(failure, "connecting", "no");
        let (long, passing) = (Duration::from_hours(1), error(DatabaseFailure::Unreachable));
        assert!(
            !RetryUntil::new(long, Deadline::after(long))
                .once_more_after(&error(DatabaseFailure::AccessDenied), |_| ())
        );
        assert!(!RetryUntil::new(Duration::ZERO, Deadline::after(long)).once_more_after(&passing, |_| ()));
        assert!(!RetryUntil::new(long, Deadline::after(Duration::ZERO)).once_more_after(&passing, |_| ()));
        assert!(RetryUntil::new(long, Deadline::after(long)).once_more_after(&passing, |_| ()));
    }

    #[test]
    fn each_pause_is_twice_the_one_before() {
        let mut patience =
            RetryUntil { until: Deadline::after(Duration::from_hours(1)), pause: Duration::from_millis(1) };
        let error = DatabaseError::new(DatabaseFailure::Unreachable, "connecting", "no");
        assert!(patience.once_more_after(&error, |_| ()));
        assert_eq!(patience.pause, Duration::from_millis(2));
    }

    #[test]
    fn pauses_differ_by_chance() {
        let pauses: Vec<Duration> = (0..50).map(|_| jittered(PAUSE)).collect();
        assert!(pauses.iter().all(|pause| *pause >= PAUSE / 2 && *pause < PAUSE * 3 / 2), "{pauses:?}");
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
    }
}
