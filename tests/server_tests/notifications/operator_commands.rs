//! What people do manually who look after the site, with the rights of `grants-operator.sql` and no others: they try a subscription, disable
//! one, give up pending notifications, and have them sent after all.

use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{KEY, Notifier, PENDING, happen, subscribe};
use crate::support::database::Engine;
use crate::support::program::{program, wait_until};
use crate::support::site_fixture::Scene;
use crate::support::terminal::on_a_terminal;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Output;

on_two_engines![
    one_that_is_disabled_manually_is_notified_nothing_and_says_why,
    what_comes_after_an_event_that_is_given_up_is_notified_at_once,
    what_is_taken_although_it_was_given_up_meanwhile_is_done,
    what_is_done_to_a_subscription_stands_in_the_operations_log,
];

/// Runs commands as an operator.
pub struct Operator {
    config: String,
}

impl Operator {
    pub fn new(scene: &mut Scene) -> Self {
        let role = format!("{}_o", scene.run);
        scene.database.create_operator(&role, "secret");
        scene.file("operator.password", "secret\n", 0o600);
        let config = scene.other_configuration("operator.toml", |settings| settings.role = role);
        let text = std::fs::read_to_string(&config).unwrap().replace("database.password", "operator.password");
        std::fs::write(&config, text).unwrap();
        Self { config }
    }

    pub fn run(&self, words: &[&str]) -> Output {
        program(words).args(["--config", &self.config]).output().unwrap()
    }

    #[track_caller]
    pub fn json(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// How it refuses this, and what it says.
    #[track_caller]
    fn refuses(&self, exit: i32, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(exit), 0), "{words:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

fn one_that_is_disabled_manually_is_notified_nothing_and_says_why(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let operator = Operator::new(&mut scene);
    let one = subscribe(&mut scene, ("all", ""), &receiver.url("/quick/one"), &[]).to_string();
    let notifier = Notifier::start(&mut scene);
    let tested = operator.json(&["subscription", "test", &one]);
    wait_until("the test has come", || receiver.taken("/quick/one").len() == 1);
    let test = receiver.taken("/quick/one").remove(0);
    assert_eq!((test.json()["type"].as_str(), tested["event"].as_str()), (Some("subscription.test"), Some(test.id())));

    // A notifier may still send what it has leased.
    wait_until("that is written down", || {
        let leased = "SELECT count(*) FROM subscription_queues WHERE leased_by IS NOT NULL";
        scene.database.count(PENDING) == 0 && scene.database.count(leased) == 0
    });
    let why = "asked for by its owner, ticket 4711";
    let disabled = operator.json(&["subscription", "disable", &one, "--reason", why]);
    assert_eq!((&disabled["state"], &disabled["state_reason"]), (&"disabled".into(), &why.into()));
    let again = operator.refuses(65, &["subscription", "disable", &one, "--reason", "another"]);
    assert!(again.contains(&format!("neither active nor paused: it is disabled: {why}")), "{again}");
    assert!(operator.refuses(65, &["subscription", "test", &one]).contains("it is disabled"));

    // What happens is kept, or given up.
    let events = happen(&mut scene, 3, "message.delivered");
    wait_until("it is kept", || operator.json(&["subscription", "show", &one])["pending"] == 3);
    let give_up = |more: &[&str]| operator.json(&[&["notify", "give-up", "--subscription", &one], more].concat());
    assert_eq!(give_up(&["--before", "2026-01-01"]), json!({ "given_up": 0 }));
    assert_eq!(give_up(&["--event", &events[1]]), json!({ "given_up": 1 }));
    assert_eq!(give_up(&["--event", &events[1]]), json!({ "given_up": 0 }));
    assert_eq!(give_up(&[]), json!({ "given_up": 2 }));
    let shown = operator.json(&["subscription", "show", &one]);
    assert_eq!((&shown["pending"], &shown["given_up"]), (&0.into(), &3.into()));
    assert_eq!(scene.database.count("SELECT count(*) FROM notifications WHERE last_error = 'dropped manually'"), 3);

    // A person at a terminal reads first how many it would be, of those that are meant.
    let on_a_terminal = |columns: u16, words: &str| {
        on_a_terminal(
            Path::new(&scene.path("")),
            columns,
            &format!("maildrop_command {words} --config {}", operator.config),
        )
        .1
    };
    for (words, shown) in [
        (format!("notify redeliver --subscription {one}"), "3 notifications would be made due again."),
        ("notify redeliver --since 2999-01-01".to_owned(), "0 notifications would be made due again."),
        // The test is one of them.
        (format!("notify redeliver --all --since 1h --subscription {one}"), "4 notifications would be made due again."),
        (format!("notify give-up --subscription {one}"), "0 notifications would be given up."),
    ] {
        let output = on_a_terminal(80, &words);
        assert!(output.starts_with(shown) && output.contains("With --yes it is."), "{words}: {output}");
    }
    assert_eq!(operator.json(&["subscription", "show", &one])["given_up"], 3);
    // No line of a list is wider than the terminal, and no id is cut.
    let token = ["token", "create", "--name", "crm", "--scope", "messages:read", "--domain", "a-long-domain.example"];
    let token = operator.json(&token)["id"].as_str().unwrap().to_owned();
    for columns in [60, 80] {
        for (list, id) in [("subscription list", &one), ("token list", &token), ("notify status", &one)] {
            let output = on_a_terminal(columns, list);
            let plain = output
                .replace("\u{1b}[33m", "")
                .replace("\u{1b}[32m", "")
                .replace("\u{1b}[31m", "")
                .replace("\u{1b}[0m", "");
            assert!(plain.lines().all(|line| line.chars().count() <= columns.into()), "{columns}: {plain}");
            assert!(plain.contains(id.as_str()), "{columns}: {plain}");
        }
    }

    // It is notified after all; and then all once more.
    assert_eq!(operator.json(&["subscription", "resume", &one])["state"], "active");
    let redeliver = ["notify", "redeliver", "--since", "1h", "--subscription", &one];
    assert_eq!(operator.json(&[&redeliver[..], &["--given-up"]].concat()), json!({ "due_again": 3 }));
    wait_until("it is notified after all", || {
        receiver.taken("/quick/one").len() == 4 && scene.database.count(PENDING) == 0
    });
    assert_eq!(operator.json(&[&redeliver[..], &["--all"]].concat()), json!({ "due_again": 4 }));
    wait_until("it is notified once more", || {
        receiver.taken("/quick/one").len() == 8 && scene.database.count(PENDING) == 0
    });
    notifier.end();

    let nobody = "00000000-0000-7000-8000-000000000000";
    for (exit, wrong) in [
        (66, &["subscription", "test", nobody][..]),
        (66, &["subscription", "disable", nobody, "--reason", "x"]),
        (64, &["subscription", "disable", &one]),
        (64, &["subscription", "disable", &one, "--reason", " "]),
        (66, &["notify", "give-up", "--subscription", nobody]),
        (66, &["notify", "give-up", "--subscription", &one, "--event", "evt_00000000000070008000000000000000"]),
        (64, &["notify", "give-up", "--subscription", &one, "--event", "x"]),
        (64, &["notify", "give-up"]),
        (66, &["notify", "redeliver", "--subscription", nobody]),
        (64, &["notify", "redeliver", "--all", "--subscription", &one]),
        (64, &["notify", "redeliver", "--all", "--given-up", "--since", "1h", "--subscription", &one]),
    ] {
        operator.refuses(exit, wrong);
    }
}

/// One event has failed three times, and is to be tried again in an hour; in order, the others wait for it.
fn what_comes_after_an_event_that_is_given_up_is_notified_at_once(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let operator = Operator::new(&mut scene);
    let one = subscribe(&mut scene, ("all", ""), &receiver.url("/broken"), &[("in_order", "TRUE")]).to_string();
    let events = happen(&mut scene, 3, "message.delivered");
    let notifier = Notifier::start(&mut scene);
    wait_until("the first one waits for its last try", || {
        scene.database.count("SELECT count(*) FROM notifications WHERE tries = 3") == 1
    });
    receiver.release();
    let given_up = operator.json(&["notify", "give-up", "--subscription", &one, "--event", &events[0]]);
    assert_eq!(given_up, json!({ "given_up": 1 }));
    wait_until("the others are notified", || {
        receiver.taken("/broken").len() == 2 && scene.database.count(PENDING) == 1
    });
    notifier.end();
    let taken = receiver.taken("/broken");
    assert_eq!([taken[0].id(), taken[1].id()], [events[1].as_str(), &events[2]]);
}

fn what_is_taken_although_it_was_given_up_meanwhile_is_done(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let operator = Operator::new(&mut scene);
    let one = subscribe(&mut scene, ("all", ""), &receiver.url("/slow"), &[]).to_string();
    happen(&mut scene, 2, "message.delivered");
    let notifier = Notifier::start(&mut scene);
    wait_until("both are under way", || receiver.came("/slow").len() == 2);
    assert_eq!(operator.json(&["notify", "give-up", "--subscription", &one]), json!({ "given_up": 2 }));
    receiver.release();
    wait_until("both are done", || scene.database.count(PENDING) == 0);
    notifier.end();
    assert_eq!(scene.database.count("SELECT count(*) FROM notification_attempts WHERE status = 204"), 2);
}

/// With who did it. Where it cannot be written there it is done all the same, and it is said.
fn what_is_done_to_a_subscription_stands_in_the_operations_log(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let key = scene.path("key");
    std::fs::write(&key, KEY).unwrap();
    scene.configure(|settings| settings.more += &format!("[notifications]\nsecret_key_file = {key:?}\n"));
    let operator = Operator::new(&mut scene);
    let create = ["subscription", "create", "--callback", "https://hooks.example.com/in", "--domain", "axial.net"];
    let made = operator.json(&create);
    let id = made["id"].as_str().unwrap();
    operator.json(&create);
    // Its callback has answered.
    scene.database.execute("UPDATE subscriptions SET state = 'active', verified_at = created_at");
    let test = operator.json(&["subscription", "test", id]);
    operator.json(&["subscription", "pause", id]);
    operator.refuses(65, &["subscription", "pause", id]);
    operator.json(&["subscription", "disable", id, "--reason", "ticket 4711"]);
    operator.json(&["subscription", "resume", id]);
    assert!(operator.run(&["subscription", "secret", id]).status.success());
    operator.json(&["subscription", "secret", id, "--new"]);
    operator.json(&["notify", "give-up", "--subscription", id]);
    operator.json(&["notify", "redeliver", "--subscription", id]);
    operator.json(&["notify", "redeliver"]);
    assert!(operator.run(&["subscription", "delete", id]).status.success());
    let log = "SELECT concat(operation, ' ', coalesce(target, 'all'), ': ', outcome) FROM operations ORDER BY id";
    let event = test["event"].as_str().unwrap();
    let on_it = |what: &str, outcome: &str| format!("{what} {id}: {outcome}");
    let all = [
        on_it("made a subscription", "of domain axial.net"),
        on_it("looked at a secret", "shown"),
        on_it("tested a subscription", event),
        on_it("paused a subscription", "paused"),
        on_it("paused a subscription", "it was in another state"),
        on_it("disabled a subscription", "ticket 4711"),
        on_it("resumed a subscription", "resumed"),
        on_it("looked at a secret", "shown"),
        on_it("rotated a secret", "renewed"),
        on_it("looked at a secret", "shown"),
        on_it("gave up notifications", "0 notifications are given up"),
        on_it("notified again", "0 notifications are due again"),
        "notified again all: 0 notifications are due again".into(),
        on_it("removed a subscription", "it was of domain axial.net, and made by operator"),
    ];
    assert_eq!(scene.database.texts(log), all);
    let who = scene.database.texts("SELECT DISTINCT concat(actor, ' ', interface) FROM operations");
    assert_eq!(who, [format!("{} command line", own_name())]);

    scene.database.execute("DROP TABLE operations");
    let output = operator.run(&create);
    assert_eq!(output.status.code(), Some(0));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("what was done is not in the operations log"), "{errors}");
    assert_eq!(scene.database.count("SELECT count(*) FROM subscriptions"), 1);
}

/// The name of the user who runs this.
fn own_name() -> String {
    let name = std::process::Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(name.stdout).unwrap().trim().to_owned()
}
