//! Who follows docs/notifications.md has a receiver of his own that verifies what it is notified, and catches up: by the Python that stands there.

use crate::fixtures::rest_client::Rest;
use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{Notifier, happen, subscribe};
use crate::support::database::Engine;
use crate::support::pages;
use crate::support::program::{PATIENCE, program, wait_until};
use crate::support::site_fixture::Scene;
use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

on_two_engines![a_newcomer_has_a_verified_notification];

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The Python of the page that has this in it.
fn python(word: &str) -> String {
    let page = pages::read(&pages::root().join("docs/notifications.md")).1;
    let with = |line: &String| line.contains(word);
    let found = page.iter().find(|block| block.language == "python" && block.lines.iter().any(with));
    found.expect("it is there").lines.join("\n")
}

fn a_newcomer_has_a_verified_notification(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    // Of the port in the page there is but one.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    scene.file("verify.py", &python("def verify("), 0o600);
    scene.file("receiver.py", &python("class Receiver").replace("8077", &port), 0o600);
    let printed = scene.path("printed");
    let mut receiver = Command::new("python3");
    receiver
        .arg("receiver.py")
        .current_dir(scene.path(""))
        .stdin(Stdio::null())
        .stdout(File::create(&printed).unwrap());
    let _receiver = Ended(receiver.stderr(File::create(scene.path("requests")).unwrap()).spawn().unwrap());

    // It may be asked before its secret is there.
    let retry = format!("[{}]", vec!["\"1s\""; PATIENCE.as_secs() as usize].join(", "));
    let notifier = Notifier::start_by(&mut scene, &retry, "");
    let mut create = program(&["subscription", "create", "--json", "--callback", &format!("http://127.0.0.1:{port}/")]);
    create.args(["--config", &scene.path("notifier.toml")]);
    assert!(create.stdout(File::create(scene.path("subscription.json")).unwrap()).status().unwrap().success());
    let lines = || std::fs::read_to_string(&printed).unwrap();
    let active = "SELECT count(*) FROM subscriptions WHERE state = 'active'";
    wait_until("it has answered its question", || scene.database.count(active) == 1);
    let id = happen(&mut scene, 1, "message.delivered").remove(0);
    wait_until("it is notified", || lines().contains(&format!("verified message.delivered {id}\n")));
    notifier.end();
    let lines = lines();
    assert!(lines.starts_with("verified subscription.verify evt_") && !lines.contains("not ours"), "{lines}");
}

/// Whatever a stranger sends to the receiver.
#[test]
fn what_is_not_signed_is_not_verified_and_raises_nothing() {
    const RUN: &str = "
from http.client import HTTPMessage
def headers(*fields):
    message = HTTPMessage()
    for name, value in fields:
        message[name] = value
    return message
secret, now = 'whsec_' + base64.b64encode(bytes(32)).decode(), str(int(time.time()))
mine = hmac.new(bytes(32), f'evt_1.{now}.'.encode() + b'{}', hashlib.sha256).digest()
good = [('webhook-id', 'evt_1'), ('webhook-timestamp', now), ('webhook-signature', 'v1,' + base64.b64encode(mine).decode())]
assert verify(secret, headers(*good), b'{}') is True
for at, (name, value) in enumerate(good):
    for wrong in ([], [(name, '')], [(name, 'x')], [(name, 'v1,\\u00fc')], [(name, value + '\\u00b2')]):
        assert verify(secret, headers(*good[:at], *wrong, *good[at + 1:]), b'{}') is False, (name, wrong)
assert verify(secret, headers(*good), b'{ }') is False
";
    let mut command = Command::new("python3");
    let ended = command.args(["-c", &format!("{}\n{RUN}", python("def verify("))]).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// By the page's Python: it reads once what it was not notified of, and what it was notified of is not new.
#[test]
fn who_was_away_reads_what_it_missed() {
    const RUN: &str = "
import sys
store, handled = open_store('store'), []
def handle(store, event):
    handled.append(event['id'])
for body in json.load(sys.stdin):
    take(store, json.loads(body), handle)
print(json.dumps(handled))
handled.clear()
catch_up(store, *sys.argv[1:], handle)
print(json.dumps(handled))
";
    let (mut scene, receiver) = (Scene::with(Engine::Postgres17, &[]), Receiver::start());
    let port = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rest = Rest::start_at(&mut scene, "", port);
    let token = rest.token(&["--name", "crm", "--scope", "events:read", "--rate", "10000"]);
    subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[]);
    let notifier = Notifier::start(&mut scene);
    scene.file("catch_up.py", &format!("{}\n{RUN}", python("def catch_up(")), 0o600);
    let api = format!("http://{}/api/v1", rest.socket);
    let folder = scene.path("");
    // It takes what it is notified, and catches up: what it did something for, each time.
    let run = |requests: &[String]| -> (Vec<String>, Vec<String>) {
        let mut command = Command::new("python3");
        command.args(["catch_up.py", &api, &token]).current_dir(&folder);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(serde_json::json!(requests).to_string().as_bytes()).unwrap();
        let printed = child.wait_with_output().unwrap();
        assert!(printed.status.success(), "{printed:?}");
        let output = String::from_utf8(printed.stdout).unwrap();
        let (taken, missed) = output.split_once('\n').unwrap();
        (serde_json::from_str(taken).unwrap(), serde_json::from_str(missed).unwrap())
    };
    let mut published = 0;
    let mut happen_and_come = |scene: &mut Scene, count: usize| -> Vec<String> {
        let ids = happen(scene, count, "message.delivered");
        published += count;
        wait_until("they are notified", || receiver.taken("/quick").len() == published);
        ids
    };
    let body = |id: &String| receiver.taken("/quick").into_iter().find(|one| one.id() == id).unwrap().body;
    happen_and_come(&mut scene, 2);
    assert_eq!(run(&[]), (vec![], vec![]), "it begins with what happens from now on");
    let taken = happen_and_come(&mut scene, 3);
    let shown: Vec<String> = taken.iter().map(body).collect();
    assert_eq!(run(&[&shown[..], &shown[..1]].concat()), (taken, vec![]));
    // It is away while these are notified: more than there are in an answer.
    let missed = happen_and_come(&mut scene, 230);
    let (before, last) = missed.split_at(229);
    assert_eq!(run(&[body(&last[0])]), (last.to_vec(), before.to_vec()));
    assert_eq!(run(&[body(&missed[0]), body(&last[0])]), (vec![], vec![]), "all of it was seen");
    notifier.end();
    rest.end();
}
