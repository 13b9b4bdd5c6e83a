//! The role `web` with the API, at a socket of its own, and a client as simple as one can be: a connection for each request.

use crate::support::program::{PATIENCE, program, wait_for, wait_until};
use crate::support::scene::Scene;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// The name that the page has.
const HOST: &str = "mail.example.com";

/// The role `web`, with the rights of grants-web.sql and grants-api.sql. Dropped, it is killed.
pub struct Rest {
    child: Child,
    socket: String,
    /// The configuration that tokens are made by.
    config: String,
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
        let told = self.json();
        assert_eq!(
            (&told["status"], &told["type"]),
            (&status.into(), &format!("urn:maildrop_command:problem:{kind}").into())
        );
        assert_eq!(matches!(status, 408 | 429 | 503 | 507), self.headers.contains_key("retry-after"), "{self:?}");
        told
    }
}

impl Rest {
    /// `more` are other sections of the configuration.
    pub fn start(scene: &mut Scene, more: &str) -> Self {
        let (socket, config) = (scene.path("web.sock"), scene.path("web.toml"));
        let (page, people) = (format!("{}_w", scene.run), format!("{}_o", scene.run));
        scene.database.create_page_with_api(&page, "secret");
        scene.database.create_operator_who_delivers(&people, "secret");
        scene.file("page.password", "secret\n", 0o600);
        let of = |file: &str, role: String| {
            let own = scene.other_configuration(file, |settings| {
                settings.role = role;
                settings.more += more;
            });
            let text = std::fs::read_to_string(&own).unwrap().replace("database.password", "page.password");
            std::fs::write(&own, text).unwrap();
            own
        };
        let (own, people) = (of("page.toml", page), of("people.toml", people));
        let key = scene.path("key");
        std::fs::write(&key, super::telling::KEY).unwrap();
        scene.other_configuration("web.toml", |settings| {
            settings.more += &format!(
                "{more}\n[notifications]\nsecret_key_file = {key:?}\nallow_networks = [\"127.0.0.0/8\"]\n[web]\n\
                 listen = {socket:?}\nconfig = {own:?}\npublic_url = \"https://{HOST}/\"\napi = true\n"
            );
        });
        let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        command.args(["--config", &config, "--role", "web"]).env_clear().stdin(Stdio::null());
        let child = command.spawn().unwrap();
        let rest = Self { child, socket, config: people };
        wait_until("the API is there", || UnixStream::connect(&rest.socket).is_ok());
        rest
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
        let mut head = format!("{method} /api/v1{path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n");
        if !token.is_empty() {
            head += &format!("authorization: Bearer {token}\r\n");
        }
        if !headers.iter().any(|(name, _)| *name == "content-length") {
            head += &format!("content-length: {}\r\n", body.len());
        }
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        // Where it need not read all of it, it answers before it has.
        let _ = stream.write_all(&[head.as_bytes(), b"\r\n", body].concat());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{request}: {answer:?}"));
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        Answer { status, headers, body: body.to_owned() }
    }

    /// Ends as it is told to.
    #[track_caller]
    pub fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        wait_for("the API ends", PATIENCE, || self.child.try_wait().unwrap().is_some());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
