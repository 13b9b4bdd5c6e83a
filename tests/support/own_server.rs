//! A server of one test's own, to be killed, to be stopped and to be cut off: a container of a shared server's image, on the
//! same network, at an address that it keeps.

use crate::support::database::{ADMINISTRATOR, Connection, Engine};
use crate::support::program::wait_until;
use crate::support::{container, env, server};
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The server. Dropped, it is removed, with what it stored, unless the test failed; `tests/servers/down` removes what is left.
pub struct OwnServer {
    kind: Kind,
    pub container: String,
    network: String,
    ip: String,
    /// Keeps the address, also while the server is off the network and the engine takes it for free.
    _claim: File,
}

/// That of postfix/dovecot-delivery.conf.
pub const PORT_FOR_DELIVERIES: u16 = 10_143;

#[derive(Clone, Copy)]
enum Kind {
    Database(Engine),
    Dovecot,
    Pooler,
    /// Known to this machine by its sockets only.
    Poolers,
}

impl OwnServer {
    /// A database server.
    pub fn database(engine: Engine) -> Self {
        Self::database_with(engine, &[])
    }

    /// The same; MySQL and MariaDB with these options.
    pub fn database_with(engine: Engine, options: &[&str]) -> Self {
        Self::start_one(Kind::Database(engine), engine.variable(), options)
    }

    /// A PostgreSQL of any version: `POSTGRES15`.
    pub fn postgres(name: &str) -> Self {
        Self::start_one(Kind::Database(Engine::Postgres17), name, &[])
    }

    /// A standby of such a server, of the same version, which begins as its copy.
    pub fn standby_of(primary: &Self, name: &str) -> Self {
        // Beside what the image allows: replication is a permission of its own.
        primary.start_inside("echo 'host replication all all scram-sha-256' >>/srv/data/pg_hba.conf");
        let mut session = Connection::open_at(Engine::Postgres17, &primary.address(), None);
        wait_until("replication is allowed", || {
            let rules = "SELECT type FROM pg_hba_file_rules WHERE database = '{replication}' AND address = 'all'";
            !session.texts(rules).is_empty()
        });
        session.execute("SELECT pg_reload_conf()");
        // The server has the signal, and reads its file in its own time.
        let copy = format!(
            "set -e; if [ ! -e /srv/copied ]; then export PGPASSWORD={password}; rm -rf /srv/data; until \
             /usr/lib/postgresql/*/bin/pg_basebackup --write-recovery-conf --wal-method=stream --checkpoint=fast \
             --dbname='host={host} user={user} application_name=standby' --pgdata=/srv/data; do rm -rf /srv/data; sleep 0.1; done; \
             chown -R postgres: /srv/data; chmod 700 /srv/data; touch /srv/copied; fi; \
             exec /start/postgres /srv 0.0.0.0 5432",
            host = primary.address().0,
            user = ADMINISTRATOR.0,
            password = ADMINISTRATOR.1,
        );
        Self::start_with(Kind::Database(Engine::Postgres17), name, &["--entrypoint", "bash"], &["-c", &copy])
    }

    /// A mailbox store.
    pub fn dovecot() -> Self {
        Self::start_one(Kind::Dovecot, "DOVECOT", &[])
    }

    /// Dovecot with these lines after all others of its configuration.
    pub fn dovecot_with(lines: &str) -> Self {
        let start = format!("cat >/srv/also.conf <<'END'\n{lines}\nEND\nexec /start/dovecot /srv 0.0.0.0 143");
        Self::start_with(Kind::Dovecot, "DOVECOT", &["--entrypoint", "bash"], &["-c", &start])
    }

    /// Dovecot with the second instance that a site makes of postfix/dovecot-delivery.conf, at port 10143.
    pub fn dovecot_with_an_instance_for_deliveries() -> Self {
        let file = include_str!("../../postfix/dovecot-delivery.conf");
        // What differs here: the folders, and the name of the service account's passdb.
        let changes = [
            ("2.4.0", "2.4.1"),
            ("!include dovecot.conf", "!include /srv/dovecot.conf"),
            ("/run/dovecot-delivery", "/srv/delivery"),
            ("/var/lib/dovecot-delivery", "/srv/delivery-state"),
            ("listen = 127.0.0.1", "listen = 0.0.0.0"),
            ("passdb maildrop {", "passdb passwd-file {"),
        ];
        let text = changes.iter().fold(file.to_owned(), |text, (from, to)| {
            assert_eq!(
                text.matches(&format!("\n{from}")).count() + text.matches(&format!(" {from}\n")).count(),
                1,
                "{from}"
            );
            text.replace(from, to)
        });
        // As the file's last lines say of a socket that is the first instance's.
        let text = text
            + "service imap-login {\n  unix_listener /tmp/imap {\n    mode = 0\n  }\n}\nlog_path = /srv/delivery.log\n";
        let start = format!(
            "cat >/srv/delivery.conf <<'END'\n{text}END\n(until [ -e /srv/run/master.pid ]; do sleep 0.1; done; \
             exec dovecot -F -c /srv/delivery.conf) & exec /start/dovecot /srv 0.0.0.0 143"
        );
        let server = Self::start_with(Kind::Dovecot, "DOVECOT", &["--entrypoint", "bash"], &["-c", &start]);
        let second = SocketAddr::new(server.socket_address().ip(), PORT_FOR_DELIVERIES);
        wait_until("the second instance answers", || greets(second));
        server
    }

    /// A PgBouncer before the shared PostgreSQL 17.
    pub fn pooler() -> Self {
        Self::start_one(Kind::Pooler, "PGBOUNCER", &[])
    }

    /// A PgBouncer before this one.
    pub fn pooler_before(server: &Self) -> Self {
        let upstream = format!("UPSTREAM={}", server.ip);
        Self::start_with(Kind::Pooler, "PGBOUNCER", &["--env", &upstream], &[])
    }

    /// A PgBouncer for each of these files, on this machine: whose unix sockets are in this folder, which they know as
    /// /run/pgbouncer, and to whom the user of this test has this name.
    pub fn poolers_on_this_machine(folder: &Path, name: &str, password: &str, files: &[String]) -> Self {
        fs::set_permissions(folder, Permissions::from_mode(0o777)).unwrap();
        let user = folder.metadata().unwrap().uid();
        let mut start = format!(
            "set -e; sed -i '1i {name}:x:{user}:{user}::/:/bin/sh' /etc/passwd; mkdir -p /etc/pgbouncer; \
             echo '\"{name}\" \"{password}\"' >/etc/pgbouncer/userlist.txt; \
             echo local all all peer >/etc/pgbouncer/pg_hba.conf; chown -R postgres /etc/pgbouncer\n"
        );
        for (number, text) in files.iter().enumerate() {
            start += &format!(
                "cat >/etc/pgbouncer/{number}.ini <<'INI'\n{text}\nINI\n\
                 setpriv --reuid postgres --regid postgres --init-groups -- /usr/sbin/pgbouncer /etc/pgbouncer/{number}.ini &\n"
            );
        }
        let volume = format!("{}:/run/pgbouncer", folder.display());
        let options = ["--volume", &volume, "--entrypoint", "bash"];
        Self::start_with(Kind::Poolers, "PGBOUNCER", &options, &["-c", &(start + "wait")])
    }

    /// An HAProxy before these, which leads to the one that takes writes; or, to `spread`, to one after the other.
    pub fn balancer_before(servers: &[&Self], spread: bool) -> Self {
        let addresses: Vec<String> = servers.iter().map(|server| server.socket_address().to_string()).collect();
        let backends = format!("BACKENDS={}", addresses.join(" "));
        let spread = format!("SPREAD={}", if spread { "yes" } else { "" });
        let start = ["--env", &backends, "--env", &spread, "--entrypoint", "/start/haproxy"];
        Self::start_with(Kind::Pooler, "PGBOUNCER", &start, &["/srv", "0.0.0.0", "5432"])
    }

    /// A MySQL that can be a member of a group of this name, and is not until a command makes it one.
    pub fn member_of_a_group(number: usize, group: &str) -> Self {
        // Its own name for itself is not that of all who were made of the image.
        let start = format!(
            "[ -e /srv/own ] || rm -f /srv/data/auto.cnf; touch /srv/own; \
             exec /start/mysql /srv 0.0.0.0 3306 --server-id={} --gtid-mode=ON --enforce-gtid-consistency=ON \
             --plugin-load-add=group_replication.so --group-replication-group-name={group} \
             --group-replication-start-on-boot=OFF --report-host=$(hostname -i | cut -d' ' -f1)",
            number + 1
        );
        Self::start_with(Kind::Database(Engine::Mysql9), "MYSQL9", &["--entrypoint", "bash"], &["-c", &start])
    }

    /// A node of Galera: the first begins a cluster, and the next joins these, as their copy.
    pub fn node_of_galera(nodes: &[&Self]) -> Self {
        let others: Vec<&str> = nodes.iter().map(|node| node.ip.as_str()).collect();
        let start = format!(
            "exec /start/mysql /srv 0.0.0.0 3306 --binlog-format=ROW --innodb-autoinc-lock-mode=2 --wsrep-on=ON \
             --wsrep-provider=/usr/lib/galera/libgalera_smm.so --wsrep-cluster-name=maildrop \
             --wsrep-cluster-address=gcomm://{} --wsrep-node-address=$(hostname -i | cut -d' ' -f1) --wsrep-sst-method=rsync",
            others.join(",")
        );
        Self::start_with(Kind::Database(Engine::Mariadb118), "MARIADB118", &["--entrypoint", "bash"], &["-c", &start])
    }

    fn start_one(kind: Kind, name: &str, more: &[&str]) -> Self {
        Self::start_with(kind, name, &[], more)
    }

    fn start_with(kind: Kind, name: &str, of_docker: &[&str], more: &[&str]) -> Self {
        let original = container(name);
        let asked = docker(&["inspect", "--format", WHAT_IT_IS, &original]).unwrap();
        let words: Vec<&str> = asked.split_whitespace().collect();
        let [image, network, its_ip, tls] = words[..] else { panic!("{original}: {asked}") };
        let (net, _) = its_ip.rsplit_once('.').expect("an address of IPv4");
        // The shared servers' addresses end in less.
        let first = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos() + std::process::id();
        for tries in 0.. {
            let ip = format!("{net}.{}", 100 + (first + tries) % 150);
            let Some(claim) = claim(&ip) else { continue };
            let container = format!("{original}-own-{}-{}", std::process::id(), first + tries);
            let names = format!("CERT_NAMES=DNS:localhost,IP:{ip},IP:127.0.0.1");
            let tls = format!("{tls}:/tls:ro");
            let upstream = format!("UPSTREAM={}", server("POSTGRES17"));
            let options = [
                ["--name", &container],
                ["--network", network],
                ["--ip", &ip],
                ["--shm-size", "256m"],
                ["--env", &names],
                ["--env", "TLS_DIR=/tls"],
                ["--env", "SOCKET_DIR=/tmp"],
                ["--env", &upstream],
                ["--volume", &tls],
            ];
            let run = [&["run", "--detach", "--init"][..], &options.concat(), of_docker, &[image], more].concat();
            match docker(&run) {
                Ok(_) => {
                    let server = Self { kind, container, network: network.to_owned(), ip, _claim: claim };
                    server.wait();
                    return server;
                }
                Err(error) => {
                    let _ = docker(&["rm", "--force", "--volumes", &container]);
                    assert!(error.contains("ddress already in use") && tries < 150, "{error}");
                }
            }
        }
        unreachable!("it runs, or the test has failed");
    }

    /// Starts a command in it, and does not wait for its end.
    pub fn start_inside(&self, command: &str) {
        docker(&["exec", "--detach", &self.container, "sh", "-c", command]).unwrap();
    }

    /// Its host and port.
    pub fn address(&self) -> (String, u16) {
        let port = match self.kind {
            Kind::Database(engine) => engine.port(),
            Kind::Dovecot => 143,
            Kind::Pooler => Engine::Postgres17.port(),
            Kind::Poolers => panic!("they have sockets only"),
        };
        (self.ip.clone(), port)
    }

    /// The same.
    pub fn socket_address(&self) -> SocketAddr {
        let (ip, port) = self.address();
        SocketAddr::new(ip.parse().unwrap(), port)
    }

    /// SIGKILL, to every process of it.
    pub fn kill(&self) {
        docker(&["kill", "--signal", "KILL", &self.container]).unwrap();
    }

    /// Starts it again, and waits until it answers.
    pub fn start(&self) {
        docker(&["start", &self.container]).unwrap();
        self.wait();
    }

    /// Stops every process of it, as SIGSTOP does: the kernel acknowledges what is sent to it, and nothing is answered.
    pub fn pause(&self) {
        // The kernel may say "unable to freeze" at a moment when one of them waits for a disk.
        wait_until("it is paused", || docker(&["pause", &self.container]).is_ok());
    }

    /// Lets it go on. It has noticed nothing.
    pub fn go_on(&self) {
        docker(&["unpause", &self.container]).unwrap();
    }

    /// Takes it off the network: what is sent to it gets no answer, not even a refusal.
    pub fn cut_off(&self) {
        docker(&["network", "disconnect", &self.network, &self.container]).unwrap();
    }

    /// Puts it back, at the same address. Its processes have noticed nothing.
    pub fn connect(&self) {
        docker(&["network", "connect", "--ip", &self.ip, &self.network, &self.container]).unwrap();
        self.wait();
    }

    /// What it has said so far.
    pub fn log_text(&self) -> String {
        let logs = Command::new("docker").args(["logs", &self.container]).output().unwrap();
        format!("{}{}", String::from_utf8_lossy(&logs.stdout), String::from_utf8_lossy(&logs.stderr))
    }

    fn wait(&self) {
        let mut tries = 0;
        wait_until(&format!("{} answers", self.container), || {
            let answers = match self.kind {
                Kind::Database(engine) => Connection::try_open_at(engine, &self.address(), None).is_ok(),
                Kind::Dovecot => greets(self.socket_address()),
                Kind::Pooler => Connection::try_open_at(Engine::Postgres17, &self.address(), None).is_ok(),
                // The test that started them knows where.
                Kind::Poolers => true,
            };
            tries += 1;
            // One that has ended will not answer, and has said why. Docker is not asked each time.
            if !answers && tries % 64 == 0 {
                let runs = docker(&["inspect", "--format", "{{.State.Running}}", &self.container]).unwrap();
                assert!(runs.trim() == "true", "{} has ended:\n{}", self.container, self.log_text());
            }
            answers
        });
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} is left for you to look at", self.container);
            return;
        }
        let _ = docker(&["rm", "--force", "--volumes", &self.container]);
    }
}

/// A second network between some servers, by which only they reach each other. Dropped, it is removed, unless the test
/// failed; `tests/servers/down` removes what is left.
pub struct Network(String);

impl Network {
    /// One more beside the one that this server is on.
    pub fn beside(server: &OwnServer) -> Self {
        Self::named(format!("{}-net", server.container)).0
    }

    /// One of this name; the first three bytes of its addresses.
    pub fn named(name: String) -> (Self, String) {
        // An address can be asked for only where the subnet was.
        for tries in 0.. {
            let subnet = format!("10.214.{}", (std::process::id() + tries) % 256);
            match docker(&["network", "create", "--internal", "--subnet", &format!("{subnet}.0/24"), &name]) {
                Ok(_) => return (Self(name), subnet),
                Err(error) => assert!(error.contains("overlaps") && tries < 256, "{error}"),
            }
        }
        unreachable!("there is one, or the test has failed");
    }

    /// Puts a server on it; the address that it has there.
    pub fn connect(&self, server: &OwnServer) -> String {
        docker(&["network", "connect", &self.0, &server.container]).unwrap();
        self.address_of(server)
    }

    /// Puts it back at an address that it had there before.
    pub fn connect_at(&self, server: &OwnServer, ip: &str) {
        self.connect_container(&server.container, ip);
    }

    /// The same with any container.
    pub fn connect_container(&self, container: &str, ip: &str) {
        docker(&["network", "connect", "--ip", ip, &self.0, container]).unwrap();
    }

    /// Takes it off. Others go on as they were, and so does it, but for what comes and goes by this network.
    pub fn disconnect(&self, server: &OwnServer) {
        self.disconnect_container(&server.container);
    }

    /// The same with any container.
    pub fn disconnect_container(&self, container: &str) {
        docker(&["network", "disconnect", &self.0, container]).unwrap();
    }

    fn address_of(&self, server: &OwnServer) -> String {
        let template = format!("{{{{(index .NetworkSettings.Networks {:?}).IPAddress}}}}", self.0);
        docker(&["inspect", "--format", &template, &server.container]).unwrap().trim().to_owned()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = docker(&["network", "rm", "--force", &self.0]);
        }
    }
}

/// Takes an address for this test, for as long as the file is open, unless another test has it.
pub fn claim(ip: &str) -> Option<File> {
    let file = File::create(PathBuf::from(env("MAILDROP_TEST_OPT")).with_file_name(format!("address-{ip}"))).unwrap();
    file.try_lock().ok().map(|()| file)
}

fn greets(address: SocketAddr) -> bool {
    let limit = Duration::from_secs(1);
    let Ok(stream) = TcpStream::connect_timeout(&address, limit) else { return false };
    stream.set_read_timeout(Some(limit)).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).is_ok() && line.starts_with("* OK")
}

/// Runs docker; what it said.
pub fn docker(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("docker").args(arguments).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// A template for `docker inspect`: image, network, address, and where the certification authority is.
pub const WHAT_IT_IS: &str = r#"{{.Image}} {{range $name, $network := .NetworkSettings.Networks}}{{$name}} {{$network.IPAddress}}{{end}} {{range .Mounts}}{{if eq .Destination "/tls"}}{{.Source}}{{end}}{{end}}"#;
