//! The listeners for LMTP, and for metrics and health: sockets from systemd, and sockets that the master binds. The master
//! keeps them open, so that no connection is refused while the front is replaced. The front inherits their descriptors.
//!
//! lmtp(8) treats a refused connection as a failure of the whole site, and defers all mail that waits for it.

use crate::base::deadline::Deadline;
use crate::base::listener::{Listener, bind_unix};
use crate::service::error::ServiceError;
use command_fds::{CommandFdExt, FdMapping, FdMappingCollision};
use listenfd::ListenFd;
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;
use tracing::warn;

/// The descriptor of the first listener in the front. While the standard library starts a process, it opens lower descriptors:
/// its pipe for errors must not be overwritten.
const FIRST: i32 = 500;

/// The pause before the master retries to bind a socket on which another process still listens.
const PAUSE: Duration = Duration::from_millis(100);

/// The name of a listener for HTTP (`FileDescriptorName=` in a socket unit). All others are for LMTP.
const HTTP: &str = "http";

/// The listeners with which a process was started.
#[derive(Debug, Default)]
pub struct Inherited {
    pub lmtp: Vec<Listener>,
    pub http: Vec<Listener>,
}

/// The listeners that this process has inherited from systemd, or from the master. This removes the variables that describe them
/// from the environment. So it must be called once, before any thread is started.
///
/// # Errors
/// If an inherited descriptor is neither a unix listener nor a TCP listener.
pub fn inherited() -> io::Result<Inherited> {
    // sd_listen_fds_with_names(3)
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut handed = ListenFd::from_env();
    let mut all = Inherited::default();
    for index in 0..handed.len() {
        // Only a try shows the kind of a socket.
        let listener = match handed.take_unix_listener(index) {
            Ok(unix) => unix.map(Listener::Unix),
            Err(_) => handed.take_tcp_listener(index)?.map(Listener::Tcp),
        };
        let kind = if names.next() == Some(HTTP) { &mut all.http } else { &mut all.lmtp };
        kind.extend(listener);
    }
    Ok(all)
}

/// All listeners of the master for one purpose: LMTP or HTTP.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    from_systemd: Vec<Listener>,
    bound: Vec<Bound>,
}

/// A listener that the master has bound itself. The file of its socket is removed with it.
#[derive(Debug)]
pub(super) struct Bound {
    /// The address as configured.
    place: String,
    sockets: Vec<Listener>,
}

impl Listeners {
    /// The listeners from systemd: for LMTP, and for HTTP.
    pub(super) fn from_systemd() -> Result<(Self, Self), ServiceError> {
        let Inherited { lmtp, http } = inherited().map_err(ServiceError::listen("a socket of systemd's"))?;
        let of = |from_systemd| Self { from_systemd, bound: Vec::new() };
        Ok((of(lmtp), of(http)))
    }

    /// Like [`missing`](Self::missing), with retries for the time `patience`: the front of a killed master may still be
    /// listening.
    ///
    /// # Errors
    /// If one of the listeners cannot be bound.
    pub(super) fn missing_within(&self, patience: Duration, places: &[String]) -> Result<Vec<Bound>, ServiceError> {
        let until = Deadline::after(patience);
        loop {
            match self.missing(places) {
                Err(ServiceError::Listen { source, .. })
                    if source.kind() == io::ErrorKind::AddrInUse && !until.passed() =>
                {
                    thread::sleep(PAUSE);
                }
                done => return done,
            }
        }
    }

    /// Binds the configured listeners that are missing, and returns them. The new listeners are not in use until
    /// [`take_over`](Self::take_over).
    ///
    /// # Errors
    /// If one of them cannot be bound.
    pub(super) fn missing(&self, places: &[String]) -> Result<Vec<Bound>, ServiceError> {
        bind_missing(self.places(), places)
    }

    /// The addresses of these listeners, as configured.
    pub(super) fn places(&self) -> Vec<String> {
        let bound = self.bound.iter().map(|bound| bound.place.clone());
        self.from_systemd.iter().map(Listener::name).chain(bound).collect()
    }

    /// Uses these listeners from now on, together with those of systemd.
    pub(super) fn take_over(&mut self, new: Vec<Bound>, places: &[String]) {
        self.bound.extend(new);
        self.bound.retain(|bound| places.contains(&bound.place));
    }

    fn all(&self) -> impl Iterator<Item = &Listener> {
        self.from_systemd.iter().chain(self.bound.iter().flat_map(|bound| &bound.sockets))
    }

    /// The addresses of the listeners, for people.
    pub(super) fn names(&self) -> Vec<String> {
        self.all().map(Listener::name).collect()
    }

    /// Whether systemd keeps listening once the service has ended.
    pub(super) fn are_kept_by_systemd(&self) -> bool {
        !self.from_systemd.is_empty()
    }
}

/// Binds these addresses, except for those in `there`.
pub(super) fn bind_missing(mut there: Vec<String>, places: &[String]) -> Result<Vec<Bound>, ServiceError> {
    let mut new = Vec::new();
    for place in places {
        if !there.contains(place) {
            let sockets = bind(place).map_err(ServiceError::listen(place))?;
            new.push(Bound { place: place.clone(), sockets });
            there.push(place.clone());
        }
    }
    Ok(new)
}

/// Passes all listeners to a process that is about to start; there, [`inherited`] reads them.
pub(super) fn hand_over(lmtp: &Listeners, http: &Listeners, command: &mut Command) -> io::Result<()> {
    let all = lmtp.all().map(|one| ("lmtp", one)).chain(http.all().map(|one| (HTTP, one)));
    let (mut mappings, mut names) = (Vec::new(), Vec::new());
    for (child_fd, (name, listener)) in (FIRST..).zip(all) {
        mappings.push(FdMapping { parent_fd: listener.duplicate()?, child_fd });
        names.push(name);
    }
    command.env("LISTEN_FDS", mappings.len().to_string()).env("LISTEN_FDS_FIRST_FD", FIRST.to_string());
    command.env("LISTEN_FDNAMES", names.join(":"));
    command.fd_mappings(mappings).map_err(|error: FdMappingCollision| io::Error::other(error))?;
    Ok(())
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.place.starts_with('/')
            && let Err(error) = std::fs::remove_file(&self.place)
        {
            warn!(socket = self.place, %error, "a socket that is used no more cannot be removed");
        }
    }
}

/// Binds one address: a unix socket, or each address of a host name. Any user who may enter its folder may connect to a unix
/// socket, as with those of Dovecot and Postfix.
fn bind(place: &str) -> io::Result<Vec<Listener>> {
    if place.starts_with('/') {
        return Ok(vec![Listener::Unix(bind_unix(Path::new(place), 0o666)?)]);
    }
    Listener::bind_tcp(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::time::Instant;

    fn places(names: &[&Path]) -> Vec<String> {
        names.iter().map(|name| name.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn what_a_dead_service_has_left_is_taken_away_and_what_is_no_socket_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, file) = (folder.path().join("lmtp"), folder.path().join("file"));
        drop(UnixListener::bind(&socket).unwrap());
        let mut listeners = Listeners::default();
        let wanted = places(&[&socket]);
        let new = listeners.missing(&wanted).unwrap();
        listeners.take_over(new, &wanted);
        UnixStream::connect(&socket).unwrap();
        assert_eq!(listeners.names(), wanted);

        std::fs::write(&file, "a letter").unwrap();
        let error = listeners.missing(&places(&[&socket, &file])).unwrap_err().to_string();
        assert!(error.contains("no socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a letter");
        drop(listeners);
        assert!(!socket.exists());
    }

    #[test]
    fn a_place_that_another_has_is_tried_for_a_while_and_what_is_kept_by_systemd_is_known() {
        let another = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = [another.local_addr().unwrap().to_string()];
        let (begun, patience) = (Instant::now(), 3 * PAUSE);
        let error = Listeners::default().missing_within(patience, &place).unwrap_err();
        assert!(matches!(&error, ServiceError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse));
        assert!(begun.elapsed() >= patience, "it may be gone in a moment");
        let of_systemd = Listeners { from_systemd: vec![Listener::Tcp(another)], bound: Vec::new() };
        assert!(of_systemd.are_kept_by_systemd() && !Listeners::default().are_kept_by_systemd());
        assert!(of_systemd.missing(&place).unwrap().is_empty());
    }

    #[test]
    fn where_another_program_answers_that_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("lmtp");
        let _anothers = UnixListener::bind(&socket).unwrap();
        let error = Listeners::default().missing(&places(&[&socket])).unwrap_err();
        assert_eq!(error.to_string(), format!("listening at {}: another program answers there", socket.display()));
    }

    #[test]
    fn a_change_that_cannot_be_made_changes_nothing_and_one_that_can_keeps_what_stays() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second, nowhere] = ["1", "2", "nowhere/3"].map(|name| folder.path().join(name));
        let mut listeners = Listeners::default();
        let wanted = places(&[&first]);
        let new = listeners.missing(&wanted).unwrap();
        listeners.take_over(new, &wanted);
        let waiting = UnixStream::connect(&first).unwrap();

        assert!(listeners.missing(&places(&[&first, &second, &nowhere])).is_err());
        assert!(first.exists() && !second.exists());
        let wanted = places(&[&first, &second, Path::new("127.0.0.1:0")]);
        let new = listeners.missing(&wanted).unwrap();
        listeners.take_over(new, &wanted);
        assert_eq!(listeners.names().len(), 3);
        // A client that connected before the change still waits in the same backlog.
        let Some(Listener::Unix(socket)) = listeners.all().next() else { panic!("{listeners:?}") };
        drop(waiting);
        socket.accept().unwrap();
        let wanted = places(&[&second]);
        let new = listeners.missing(&wanted).unwrap();
        listeners.take_over(new, &wanted);
        assert_eq!(listeners.names(), wanted);
        assert!(!first.exists());
    }
}
