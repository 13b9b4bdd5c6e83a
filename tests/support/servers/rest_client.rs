//! The role `web` with the API, at a socket of its own, and a client as simple as one can be: a connection for each request.

use crate::notifications::event_delivery::Notifier;
use crate::support::program::{PATIENCE, program, wait_for, wait_until};
use crate::support::site_fixture::Scene;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// The name that the page has.
pub const HOST: &str = "mail.example.com";
/// That of the API, where it has one of its own.
pub const HOOKS: &str = "hooks.example.com";

/// The role `web`, with the rights of grants-web.sql and grants-api.sql. Dropped, it is killed.
pub struct Rest {
    child: Child,
    /// A socket, or an address and a port.
    pub socket: String,
    /// The name that is asked for.
    host: &'static str,
    /// The configuration that tokens are made by.
    pub config: String,
}

/// A notifier, the API, and a token of a developer, `crm`, who has subscribed by it to all that happens; the subscription.
pub fn crm_subscribes(scene: &mut Scene, callback_url: &str) -> (Notifier, Rest, String, Value) {
    let (notifier, rest) = (Notifier::start(scene), Rest::start(scene, ""));
    let token = rest.token(&["--name", "crm", "--scope", "subscriptions:write"]);
    let wanted = json!({ "callback_url": callback_url, "resource": "all" });
    let made = rest.ask(&token, "POST /subscriptions", Some(&wanted)).good(201);
    (notifier, rest, token, made)
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// What it is about, where all went well.
    #[track_caller]
    pub fn good(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// Where it did not, it says so as a problem of this type.
    #[track_caller]
    pub fn problem(&self, status: u16, kind: &str) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let report = self.json();
        assert_eq!(
            (&report["status"], &report["type"]),
            (&status.into(), &format!("urn:maildrop_command:problem:{kind}").into())
        );
        assert_eq!(matches!(status, 408 | 429 | 503 | 507), self.headers.contains_key("retry-after"), "{self:?}");
        report
    }
}

impl Rest {
    /// `more` are other sections of the configuration.
    pub fn start(scene: &mut Scene, more: &str) -> Self {
        let (socket, people) = (scene.path("web.sock"), people(scene, more));
        let mut rest = Self::spawn(scene, more, &socket, &people);
        wait_until("the API is there", || rest.is_there());
        rest
    }

    /// The same, where it may open mailboxes.
    pub fn start_with_mailboxes(scene: &mut Scene) -> Self {
        let (socket, people) = (scene.path("web.sock"), people(scene, ""));
        scene.database.let_open_mailboxes(&role(scene));
        let config = configuration(scene, "", &socket);
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text.replace("api = true\n", "api = true\nallow_mailbox_access = true\n")).unwrap();
        let mut rest = Self::spawn_by(&config, &socket, &people);
        wait_until("the API is there", || rest.is_there());
        rest
    }

    /// The same, where the API has a place and a name of its own. The page is at `page.sock`.
    pub fn start_apart(scene: &mut Scene, more: &str) -> Self {
        let (socket, people) = (scene.path("api.sock"), people(scene, more));
        let config = configuration(scene, more, &scene.path("page.sock"));
        let apart = format!("api = true\napi_listen = {socket:?}\napi_public_url = \"https://{HOOKS}/\"\n");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text.replace("api = true\n", &apart)).unwrap();
        let mut rest = Self::spawn_by(&config, &socket, &people);
        rest.host = HOOKS;
        wait_until("the API is there", || rest.is_there());
        rest
    }

    /// The same at a port of this machine, of those that `ports` gives: another process may have taken one meanwhile.
    pub fn start_at(scene: &mut Scene, more: &str, mut ports: impl FnMut() -> u16) -> Self {
        let people = people(scene, more);
        loop {
            let mut rest = Self::spawn(scene, more, &format!("127.0.0.1:{}", ports()), &people);
            let mut ended = false;
            wait_for("the API is there, or has ended", PATIENCE, || {
                ended = rest.child.try_wait().unwrap().is_some();
                ended || rest.is_there()
            });
            if !ended {
                return rest;
            }
        }
    }

    fn spawn(scene: &Scene, more: &str, listen: &str, people: &str) -> Self {
        Self::spawn_by(&configuration(scene, more, listen), listen, people)
    }

    fn spawn_by(config: &str, listen: &str, people: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        command.args(["--config", config, "--role", "web"]).env_clear().stdin(Stdio::null());
        // As its master does.
        command.env("MALLOC_ARENA_MAX", "2");
        Self { child: command.spawn().unwrap(), socket: listen.to_owned(), host: HOST, config: people.to_owned() }
    }

    fn is_there(&mut self) -> bool {
        if self.socket.starts_with('/') {
            UnixStream::connect(&self.socket).is_ok()
        } else {
            TcpStream::connect(&self.socket).is_ok()
        }
    }

    /// From now on it may have no more addresses than the master lets it have as shipped (`service.worker_memory`).
    pub fn limit_memory(&self) {
        let limit = Rlimit { current: Some(1_000_000_000), maximum: None };
        prlimit(Some(Pid::from_child(&self.child)), Resource::As, limit).unwrap();
    }

    /// A new token.
    pub fn token(&self, arguments: &[&str]) -> String {
        self.cli(&[&["token", "create"], arguments].concat())["token"].as_str().unwrap().to_owned()
    }

    /// What the command line says.
    #[track_caller]
    pub fn cli(&self, arguments: &[&str]) -> Value {
        let output = program(arguments).args(["--config", &self.config, "--json"]).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Asks with this token.
    pub fn ask(&self, token: &str, request: &str, body: Option<&Value>) -> Answer {
        let kind = if request.starts_with("PATCH") { "application/merge-patch+json" } else { "application/json" };
        let body = body.map(Value::to_string).unwrap_or_default();
        self.send(token, request, &[("content-type", kind)], body.as_bytes())
    }

    /// The same with other header fields. `request` is a method and what follows `/api/v1`.
    pub fn send(&self, token: &str, request: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let (method, path) = request.split_once(' ').unwrap();
        let mut head = format!("{method} /api/v1{path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.host);
        if !token.is_empty() {
            head += &format!("authorization: Bearer {token}\r\n");
        }
        if !headers.iter().any(|(name, _)| *name == "content-length") {
            head += &format!("content-length: {}\r\n", body.len());
        }
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        exchange(&self.socket, &head, body)
    }

    /// Ends on the usual signal.
    #[track_caller]
    pub fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        wait_for("the API ends", PATIENCE, || self.child.try_wait().unwrap().is_some());
        assert!(self.child.wait().unwrap().success());
    }
}

/// What is answered at a socket to a request with this head, without the empty line at its end, and this body.
pub fn exchange(socket: &str, head: &str, body: &[u8]) -> Answer {
    let mut stream = UnixStream::connect(socket).unwrap();
    // Where it need not read all of it, it answers before it has.
    let _ = stream.write_all(&[head.as_bytes(), b"\r\n", body].concat());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{head}: {answer:?}"));
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    Answer { status, headers, body: body.to_owned() }
}

/// The configuration of the role `web`, with the API. Its account is as [`people`] makes it.
pub fn configuration(scene: &Scene, more: &str, listen: &str) -> String {
    let (key, own, role) = (scene.path("key"), scene.path("page.password"), role(scene));
    std::fs::write(&key, crate::notifications::event_delivery::KEY).unwrap();
    scene.other_configuration("web.toml", |settings| {
        settings.database_more += &format!("roles.web = {{ user = {role:?}, password_file = {own:?} }}\n");
        settings.more += &format!(
            "{more}\n[notifications]\nsecret_key_file = {key:?}\nallow_networks = [\"127.0.0.0/8\"]\n[web]\n\
             listen = {listen:?}\npublic_url = \"https://{HOST}/\"\napi = true\n"
        );
    })
}

/// The name of the page's own role.
pub fn role(scene: &Scene) -> String {
    format!("{}_w", scene.run)
}

/// A link that logs somebody in to the page, as the command line prints it.
pub fn link(people: &str, role: &str) -> String {
    let output = program(&["web", "login", "--name", "anna", "--role", role, "--config", people]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The configuration of people, with the rights of grants-operator.sql; and that of the page's own role, with the rights of
/// grants-web.sql and grants-api.sql, in `page.toml`.
pub fn people(scene: &mut Scene, more: &str) -> String {
    let (page, people) = (role(scene), format!("{}_o", scene.run));
    scene.database.create_page_with_api(&page, "secret");
    scene.database.create_operator_who_delivers(&people, "secret");
    scene.file("page.password", "secret\n", 0o600);
    let of = |file: &str, role: String, more: &str| {
        let own = scene.other_configuration(file, |settings| {
            settings.role = role;
            settings.more += more;
        });
        let text = std::fs::read_to_string(&own).unwrap().replace("database.password", "page.password");
        std::fs::write(&own, text).unwrap();
        own
    };
    of("page.toml", page, more);
    of("people.toml", people, &format!("{more}\n[web]\nlisten = \"127.0.0.1:8025\"\n"))
}

impl Drop for Rest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
