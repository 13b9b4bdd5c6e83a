//! Who follows docs/push.md has a receiver of his own that verifies what it is told: by the Python that stands there.

use super::telling::{Notifier, happen};
use crate::support::database::Engine;
use crate::support::pages;
use crate::support::program::{PATIENCE, program, wait_until};
use crate::support::scene::Scene;
use std::fs::File;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

on_each_engine![a_newcomer_has_a_verified_notification];

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn a_newcomer_has_a_verified_notification(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let page = pages::read(&pages::root().join("docs/push.md")).1;
    let python = |word: &str| {
        let found =
            page.iter().find(|block| block.language == "python" && block.lines.iter().any(|line| line.contains(word)));
        found.expect("it is there").lines.join("\n")
    };
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
    wait_until("it is told", || lines().contains(&format!("verified message.delivered {id}\n")));
    notifier.end();
    let lines = lines();
    assert!(lines.starts_with("verified subscription.verify evt_") && !lines.contains("not ours"), "{lines}");
}
