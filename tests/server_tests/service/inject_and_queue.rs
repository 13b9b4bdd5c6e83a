//! `inject`: from a file, by the queue, runners, the front and workers, into mailboxes; and who is turned away at the door.

use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::queue_of_tests::{Counts, QueueOfTests};
use crate::support::site_fixture::{LISA, Scene};
use maildrop_command::queue::Queue;
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Command, Output, Stdio};

on_two_engines!(
    what_is_taken_in_is_delivered_once_and_the_author_gets_a_copy_only_where_that_is_reported,
    an_unknown_recipient_is_turned_away_and_nothing_is_accepted,
    where_unknown_recipients_are_deferred_inject_asks_to_try_later,
);

/// The service's master. Dropped, it is killed, and all that it has started ends.
struct Master(Child);

impl Master {
    fn start(scene: &Scene) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        command.args(["--config", &scene.path("config.toml")]).env_clear().stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Ends the service.
    fn end(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        wait_until("the service ends", || self.0.try_wait().unwrap().is_some());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn scene(engine: Engine, members: &[&str], unknown: &str) -> Scene {
    let mut scene = Scene::with(engine, members);
    let (run, state) = (scene.path("run"), scene.path("state"));
    scene.configure(|settings| {
        settings.more = format!(
            "[routing]\nunknown_recipient = \"{unknown}\"\n[service]\nruntime_directory = \"{run}\"\nstate_directory = \
             \"{state}\"\nworkers = 2\nrunners = 2\n"
        );
    });
    scene
}

fn inject(scene: &Scene, arguments: &[&str], id: &str) -> Output {
    let message = format!("Date: Thu, 26 Nov 2026 03:00:00 +0000\n{}", scene.message(id));
    let file = scene.file(&format!("{id}.eml"), &message, 0o600);
    scene.subcommand(&[&["inject", "--sender", LISA], arguments, &[&file]].concat())
}

fn counts(scene: &Scene) -> Counts {
    Queue::existing(scene.path("state/queue").as_ref()).unwrap().counts().unwrap()
}

fn what_is_taken_in_is_delivered_once_and_the_author_gets_a_copy_only_where_that_is_reported(engine: Engine) {
    let scene = scene(engine, &["doug", "scuba", "lisa"], "reject");
    let to = ["--recipient", "doug@mail.axial.net", "--recipient", "scuba@mail.axial.net"];
    for _ in 0..2 {
        let output = inject(&scene, &to, "nobody vouches");
        assert!(output.status.success(), "{output:?}");
    }
    let output = inject(&scene, &["--recipient", "doug@mail.axial.net", "--as-author"], "by its author");
    assert!(output.status.success(), "{output:?}");
    // Two nights, in which the same was done.
    let report = scene.file("report.eml", "Subject: Backup\n\nBackup done\n", 0o600);
    for _ in 0..2 {
        let output = scene.subcommand(&["inject", "--recipient", "scuba@mail.axial.net", &report]);
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(counts(&scene), Counts { new: 5, ..Counts::default() });
    let service = Master::start(&scene);
    wait_until("all is delivered", || counts(&scene) == Counts::default());
    service.end();
    assert_eq!([scene.inbox("doug").len(), scene.inbox("scuba").len()], [2, 3]);
    assert_eq!(scene.sent("lisa").len(), 1);
    // By its ID in the queue it is found.
    let id =
        String::from_utf8(output.stdout).unwrap().lines().nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    let trace = scene.subcommand(&["trace", &id]);
    let printed = String::from_utf8(trace.stdout).unwrap();
    assert!(trace.status.success() && printed.contains(&scene.message_id("by its author")), "{printed}");
}

fn an_unknown_recipient_is_turned_away_and_nothing_is_accepted(engine: Engine) {
    let mut scene = scene(engine, &["doug"], "reject");
    let to = ["--recipient", "doug@mail.axial.net", "--recipient", "stranger@mail.axial.net"];
    let output = inject(&scene, &to, "to a stranger");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(67), "{errors}");
    assert!(errors.contains("stranger@mail.axial.net: unknown recipient") && !errors.contains("doug@"), "{errors}");
    assert!(errors.contains("nothing was accepted"), "{errors}");
    assert!(!std::path::Path::new(&scene.path("state/queue")).exists());
    // That nobody bears the address is committed, and not only read.
    assert_eq!(scene.database.count("SELECT count(*) FROM unknown_recipients"), 1);
}

fn where_unknown_recipients_are_deferred_inject_asks_to_try_later(engine: Engine) {
    let mut scene = scene(engine, &["doug"], "defer");
    let output = inject(&scene, &["--recipient", "stranger@mail.axial.net"], "to a stranger");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(75), "{errors}");
    assert!(
        errors.contains("stranger@mail.axial.net: unknown recipient: the table addresses has no row for it"),
        "{errors}"
    );
    assert!(!std::path::Path::new(&scene.path("state/queue")).exists());
    assert_eq!(scene.database.count("SELECT count(*) FROM unknown_recipients"), 0);
}
