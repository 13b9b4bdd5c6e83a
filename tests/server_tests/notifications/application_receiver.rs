//! The receiver of docs/application.md, run as it stands there against a real service. Killed after its commit and before its answer, it
//! stores each message exactly once.

use crate::fixtures::rest_client::{Rest, role};
use crate::notifications::event_delivery::{Notifier, PENDING};
use crate::support::database::Engine;
use crate::support::pages;
use crate::support::program::{PATIENCE, wait_for, wait_until};
use crate::support::site_fixture::Scene;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

on_two_engines![an_application_that_is_killed_before_it_answers_stores_each_message_once];

/// The same application behind a server that never sends its answers.
const WITHOUT_ANSWERS: &str = "
import signal, sys, receiver, wsgiref.simple_server
def application(environ, start_response):
    receiver.receive(environ, start_response)
    print('committed', flush=True)
    while True: signal.pause()
wsgiref.simple_server.make_server('127.0.0.1', int(sys.argv[1]), application).serve_forever()
";

/// Stores events that were read instead of received, and prints which of them were new.
const READ: &str =
    "import json, sys, receiver; print(json.dumps([receiver.take(event) for event in json.load(sys.stdin)]))";

/// A process of the application. Dropped, it is killed.
struct Application(Child);

impl Application {
    /// Runs it at this port, unless another process has taken the port.
    fn spawn(scene: &Scene, arguments: &[&str], port: u16) -> Option<Self> {
        let mut command = python(scene);
        command.args(arguments).arg(port.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut application = Self(command.spawn().unwrap());
        let (mut has_ended, listens) = (false, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        wait_for("the application listens, or has ended", PATIENCE, || {
            has_ended = application.0.try_wait().unwrap().is_some();
            has_ended || listens()
        });
        (!has_ended).then_some(application)
    }

    /// The same at a port of its own.
    fn start(scene: &Scene, arguments: &[&str]) -> (Self, u16) {
        loop {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if let Some(application) = Self::spawn(scene, arguments, port) {
                return (application, port);
            }
        }
    }

    /// The same at the port of one that was killed.
    fn restart(scene: &Scene, arguments: &[&str], port: u16) -> Self {
        let mut application = None;
        wait_until("its port is free", || {
            application = Self::spawn(scene, arguments, port);
            application.is_some()
        });
        application.unwrap()
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Python in the application's folder, which can import docs/receiver.py.
fn python(scene: &Scene) -> Command {
    let mut command = Command::new("python3");
    command.current_dir(scene.path("")).env("PYTHONPATH", pages::root().join("docs"));
    // No file of it beside the page.
    command.env("PYTHONDONTWRITEBYTECODE", "1").stderr(Stdio::null());
    command
}

/// What it has stored: event and message.
fn stored(scene: &Scene) -> Vec<(String, String)> {
    let store = rusqlite::Connection::open(scene.path("mail.sqlite")).unwrap();
    let mut rows = store.prepare("SELECT event, message FROM mail ORDER BY event").unwrap();
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

/// The first command line of the page that has this in it.
fn command_of_the_page(part: &str) -> String {
    let lines = pages::command_lines();
    let found = lines.iter().find(|line| line.place.starts_with("docs/application.md") && line.text.contains(part));
    found.expect("the page has it").text.clone()
}

/// The status of a notification that somebody else has signed.
fn status_of_a_forged_one(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let body = json!({ "id": "evt_1", "type": "message.delivered" }).to_string();
    let head = "POST / HTTP/1.1\r\nhost: localhost\r\nwebhook-id: evt_1\r\nwebhook-timestamp: 1\r\nwebhook-signature: v1,bm8=\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().to_owned()
}

fn an_application_that_is_killed_before_it_answers_stores_each_message_once(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    scene.configure(|settings| settings.more += "[record]\nkeep_source = true\n");
    let retry = format!("[{}]", vec!["\"1s\""; PATIENCE.as_secs() as usize].join(", "));
    let notifier = Notifier::start_by(&mut scene, &retry, "");
    let rest = Rest::start(&mut scene, "");
    scene.database.let_hand_out_sources(&role(&scene));

    let page = pages::read(&pages::root().join("docs/application.md")).1;
    let excerpts: Vec<&String> =
        page.iter().filter(|block| block.language == "python").flat_map(|it| &it.lines).collect();
    let program = std::fs::read_to_string(pages::root().join("docs/receiver.py")).unwrap();
    assert!(!excerpts.is_empty() && excerpts.iter().all(|line| program.contains(*line)), "{excerpts:?}");
    // By the page's own commands, except for the address.
    let receiver = pages::root().join("docs/receiver.py").display().to_string();
    let (application, port) = Application::start(&scene, &[&receiver]);
    let create = command_of_the_page("token create");
    let token = rest.token(&create.split(' ').skip(3).chain(["--rate", "10000"]).collect::<Vec<_>>());
    let start = rest.ask(&token, "GET /events?after=now", None).good(200)["next"].clone();
    let mut wanted: Value =
        serde_json::from_str(command_of_the_page("callback_url").split('\'').nth(1).unwrap()).unwrap();
    wanted["callback_url"] = format!("http://127.0.0.1:{port}/").into();
    let made = rest.ask(&token, "POST /subscriptions", Some(&wanted)).good(201);
    scene.file("subscription.json", &made.to_string(), 0o600);
    let subscription = format!("/subscriptions/{}", made["id"].as_str().unwrap());
    wait_until("the callback has answered its question", || {
        rest.ask(&token, &format!("GET {subscription}"), None).good(200)["state"] == "active"
    });
    assert_eq!(status_of_a_forged_one(port), "401");
    drop(application);

    let mut killed = Application::restart(&scene, &["-c", WITHOUT_ANSWERS], port);
    scene.deliver("doug", scene.message("a")).delivered();
    let mut committed = String::new();
    BufReader::new(killed.0.stdout.take().unwrap()).read_line(&mut committed).unwrap();
    drop(killed);
    let first = stored(&scene);
    assert_eq!((committed.as_str(), first.len()), ("committed\n", 1));

    let _application = Application::restart(&scene, &[&receiver], port);
    for id in ["b", "c", "d"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    wait_until("all are accepted", || {
        scene.database.count("SELECT count(*) FROM events") == 4 && scene.database.count(PENDING) == 0
    });
    notifier.end();
    let attempts = rest.ask(&token, &format!("GET {subscription}/attempts?event={}", first[0].0), None).good(200);
    let attempts = attempts["items"].as_array().unwrap();
    assert!(attempts.len() > 1 && attempts[0]["status"].is_null(), "it was sent again: {attempts:?}");
    let stored_once = stored(&scene);
    assert!(stored_once.len() == 4 && stored_once.contains(&first[0]), "{stored_once:?}");
    let mut subjects: Vec<String> = stored_once
        .iter()
        .map(|(_, message)| {
            let source = rest.ask(&token, &format!("GET /messages/{message}/source"), None);
            assert_eq!(source.status, 200, "{source:?}");
            let subject = source.body.lines().find_map(|line| line.strip_prefix("Subject: "));
            subject.unwrap().to_owned()
        })
        .collect();
    subjects.sort();
    assert_eq!(subjects, ["a", "b", "c", "d"]);

    // What it has missed it would read: by the same ids.
    let read = rest.ask(&token, &format!("GET /events?after={start}"), None).good(200)["items"].clone();
    assert_eq!(read.as_array().unwrap().len(), 4);
    let mut reader = python(&scene).args(["-c", READ]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    reader.stdin.take().unwrap().write_all(read.to_string().as_bytes()).unwrap();
    let printed = reader.wait_with_output().unwrap().stdout;
    assert_eq!(String::from_utf8(printed).unwrap(), "[false, false, false, false]\n");
    assert_eq!(stored(&scene), stored_once);
    rest.end();
}
