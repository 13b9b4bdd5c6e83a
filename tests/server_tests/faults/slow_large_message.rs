//! A large message that comes slowly is delivered once it is whole; one that does not come, or not whole, is not.

use crate::support::database::Engine;
use crate::support::site_fixture::Scene;
use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// More than a pipe holds.
const BEGINNING: usize = 1_500_000;

fn large(scene: &Scene, id: &str) -> Vec<u8> {
    let mut message = scene.message(id).into_bytes();
    message.resize(2_000_000, b'x');
    message.push(b'\n');
    message
}

fn start(mut command: Command) -> (Child, ChildStdin) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let pipe = child.stdin.take().unwrap();
    (child, pipe)
}

#[test]
fn one_that_comes_slowly_is_delivered() {
    let scene = Scene::with(Engine::Postgres17, &["doug"]);
    let message = large(&scene, "slow");
    let (child, mut pipe) = start(scene.command("doug", &[]));
    for piece in message.chunks(BEGINNING) {
        pipe.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(scene.inbox("doug").len(), 1);
}

#[test]
fn where_its_writer_dies_meanwhile_nothing_is_delivered() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    let message = large(&scene, "half");
    let (mut child, mut pipe) = start(scene.command("doug", &[]));
    pipe.write_all(&message[..BEGINNING]).unwrap();
    drop(child.stdout.take());
    drop(pipe);
    assert_eq!(child.wait().unwrap().code(), Some(75));
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts"), 0);
    assert_eq!(scene.inbox("doug").len(), 0);
}

#[test]
fn one_that_is_too_large_is_refused_and_one_without_a_database_deferred() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    scene.configure(|settings| settings.more = "[delivery]\nmessage_size_limit = \"1800kB\"\n".into());
    let message = large(&scene, "large");
    scene.deliver("doug", &message).ended(65, "5.3.4");
    scene.configure(|settings| {
        settings.more = String::new();
        settings.database.1 = 1;
    });
    scene.deliver("doug", &message).deferred("4.4.1 the database cannot be reached");
    assert_eq!((scene.database.count("SELECT count(*) FROM attempts"), scene.inbox("doug").len()), (0, 0));
}
