//! Subscribers are notified of what happens to messages: of all of it, nobody else, signed, whatever ends in between.

use crate::fixtures::signature_verifier;
use crate::fixtures::webhook_receiver::{Receiver, Request};
use crate::support::database::Engine;
use crate::support::pages;
use crate::support::program::{PATIENCE, program, wait_for, wait_until};
use crate::support::python::python_with;
use crate::support::site_fixture::Scene;
use maildrop_command::ledger::notifications::{Settlement, WebhookAttempt};
use maildrop_command::webhook::MasterKey;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use uuid::Uuid;

on_two_engines![
    a_delivery_is_notified_once,
    each_event_reaches_who_wants_it_once_and_signed,
    a_killed_notifier_loses_nothing_and_repeats_only_what_was_under_way,
    what_is_answered_is_written_down_while_others_are_under_way_and_comes_no_second_time,
    a_dead_and_a_slow_receiver_hold_up_nobody_and_order_is_kept,
    a_new_callback_is_asked_first_and_one_that_is_gone_is_disabled,
    a_callback_that_is_set_while_the_old_one_is_asked_is_asked_itself,
    what_was_given_up_is_notified_once_more_when_somebody_says_so,
    who_subscribes_manually_is_notified_until_it_is_over,
];

on_each_other_version![
    a_delivery_is_notified_once,
    a_killed_notifier_loses_nothing_and_repeats_only_what_was_under_way,
];

/// A notifier with the rights of `grants-notifier.sql`. Dropped, it is killed.
pub struct Notifier(Child);

impl Notifier {
    pub fn start(scene: &mut Scene) -> Self {
        Self::start_with(scene, "")
    }

    /// The same, with more lines of `[notifications]`.
    pub fn start_with(scene: &mut Scene, more: &str) -> Self {
        Self::start_by(scene, RETRY, more)
    }

    /// The same, with these waits between tries.
    pub fn start_by(scene: &mut Scene, retry: &str, more: &str) -> Self {
        Self::start_at(&Self::configuration(scene, retry, more))
    }

    /// By this configuration.
    pub fn start_at(config: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        command.args(["--config", config, "--role", "notifier"]).env_clear().stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// With no more memory than this, and the settings of its allocator that the service gives it.
    pub fn start_within(config: &str, memory: u64) -> Self {
        let mut command = Command::new("prlimit");
        command.arg(format!("--as={memory}")).arg(env!("CARGO_BIN_EXE_maildropd"));
        command.args(["--config", config, "--role", "notifier"]).env_clear().stdin(Stdio::null());
        Self(command.env("MALLOC_ARENA_MAX", "2").spawn().unwrap())
    }

    /// A configuration of a notifier, with these waits between tries, and more lines of `[notifications]`; its path.
    pub fn configuration(scene: &mut Scene, retry: &str, more: &str) -> String {
        let (own, role) = (scene.path("notifier.password"), format!("{}_n", scene.run));
        if !Path::new(&own).exists() {
            scene.database.create_notifier(&role, "secret");
            scene.file("notifier.password", "secret\n", 0o600);
            std::fs::write(scene.path("key"), KEY).unwrap();
        }
        let (key, config) = (scene.path("key"), scene.path("notifier.toml"));
        // Another one may be about to read it. An answer that a test holds back is waited for on a slow machine, too.
        if !Path::new(&config).exists() {
            scene.other_configuration("notifier.toml", |settings| {
                settings.database_more += &format!("roles.notifier = {{ user = {role:?}, password_file = {own:?} }}\n");
                settings.more += &format!(
                    "[notifications]\nsecret_key_file = {key:?}\n\
                     allow_networks = [\"127.0.0.0/8\"]\ntimeout = \"200s\"\nretry_schedule = {retry}\n{more}"
                );
            });
            here(scene, &config, |text| text);
        }
        config
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Ends on the usual signal.
    #[track_caller]
    pub fn end(mut self) {
        self.signal(Signal::TERM);
        wait_for("the notifier ends", PATIENCE, || self.0.try_wait().unwrap().is_some());
        assert!(self.0.wait().unwrap().success());
    }
}

/// Where a site's deliveries run on mail hosts, the notifier runs here all the same.
fn here(scene: &Scene, file: &str, change: impl Fn(String) -> String) {
    let text = std::fs::read_to_string(file).unwrap().replace(&scene.seen(""), &scene.path(""));
    std::fs::write(file, change(text)).unwrap();
}

impl Drop for Notifier {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub const KEY: [u8; 32] = [7; 32];

/// The waits between tries where a test says nothing else.
pub const RETRY: &str = r#"["100ms", "100ms", "1h"]"#;

pub const PENDING: &str = "SELECT count(*) FROM notifications";

/// Somebody subscribes. `more` are columns and their values.
pub fn subscribe(scene: &mut Scene, resource: (&str, &str), url: &str, more: &[(&str, &str)]) -> Uuid {
    let (id, postgres) = (Uuid::now_v7(), scene.database.engine.is_postgres());
    let bytes = |bytes: &[u8]| {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        if postgres { format!("decode('{digits}', 'hex')") } else { format!("X'{digits}'") }
    };
    let (resource, resource_id) = resource;
    let digest = bytes(&[id.into_bytes(), id.into_bytes()].concat());
    let now = if postgres { "now()" } else { "UTC_TIMESTAMP(6)" };
    let mut columns = vec![
        ("id", if postgres { format!("'{id}'") } else { bytes(id.as_bytes()) }),
        ("owner", "'anna'".into()),
        ("callback_url", format!("'{url}'")),
        ("callback_digest", digest.clone()),
        ("resource", format!("'{resource}'")),
        ("resource_id", format!("'{resource_id}'")),
        ("description", "''".into()),
        ("created_at", now.into()),
        ("updated_at", now.into()),
    ];
    if !postgres {
        columns.extend([("target_digest", digest), ("types", "'[]'".into())]);
    }
    if !more.contains(&("state", "'unverified'")) {
        columns.push(("verified_at", now.into()));
    }
    columns.retain(|(column, _)| !more.iter().any(|(other, _)| other == column));
    columns.extend(more.iter().map(|(column, value)| (*column, (*value).to_owned())));
    if !more.iter().any(|(column, _)| *column == "state") {
        columns.push(("state", "'active'".into()));
    }
    let (names, values): (Vec<&str>, Vec<String>) = columns.into_iter().unzip();
    scene.database.execute(&format!("INSERT INTO subscriptions ({}) VALUES ({})", names.join(", "), values.join(", ")));
    id
}

/// A delivery has written down these events of a copy in doug's INBOX; their ids as they are sent.
pub fn happen(scene: &mut Scene, count: usize, event_type: &str) -> Vec<String> {
    let (ids, written) = happening(scene.database.engine, count, event_type);
    scene.database.execute(&written);
    ids
}

/// The same, by the session that runs this statement.
pub fn happening(engine: Engine, count: usize, event_type: &str) -> (Vec<String>, String) {
    let postgres = engine.is_postgres();
    let events: Vec<Uuid> = (0..count).map(|_| Uuid::now_v7()).collect();
    let (appended, now_at) =
        ("'appended'", r#""uid_validity": {"---": null, "+++": 7}, "uid": {"---": null, "+++": 3}"#);
    let state = |state: &str, more: &str| format!(r#"{{"state": {{"---": null, "+++": "{state}"}}, {more}}}"#);
    let (nobody, why) = ("NULL", r#""reason": {"---": null, "+++": "over quota"}"#);
    let (role, manner, diff) = match event_type {
        "message.refused" => ("recipient", nobody, state("refused", why)),
        "message.deferred" => ("recipient", nobody, state("deferred", why)),
        "sent.owed" => ("sender", nobody, state("owed", why)),
        "sent.delivered" => ("sender", appended, state("delivered", now_at)),
        "copy.restored" => ("recipient", appended, r#"{"uid": {"---": 3, "+++": 4}}"#.into()),
        "copy.removed" => {
            ("recipient", nobody, r#"{"uid_validity": {"---": 7, "+++": null}, "uid": {"---": 4, "+++": null}}"#.into())
        }
        _ => ("recipient", appended, state("delivered", now_at)),
    };
    let (user, mailbox) = if event_type == "message.deferred" { ("", "") } else { ("doug", "INBOX") };
    let rows = events.iter().map(|event| {
        let (digits, digest) = (event.simple().to_string(), "ab".repeat(32));
        let (event, key, now) = if postgres {
            (format!("'{event}'"), format!("decode('{digest}', 'hex')"), "now()")
        } else {
            (format!("X'{digits}'"), format!("X'{digest}'"), "UTC_TIMESTAMP(6)")
        };
        let attempt = if user.is_empty() { nobody } else { &event };
        format!(
            "({event}, '{event_type}', {key}, {key}, '<1@example.org>', '{role}', 'Doug@mail.axial.net', '{user}', '{mailbox}', {manner}, \
             {attempt}, 'mx1', '{diff}', {now})"
        )
    });
    let written = format!(
        "INSERT INTO outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, attempt, host, \
         diff, created_at) VALUES {}",
        rows.collect::<Vec<_>>().join(", ")
    );
    (events.iter().map(|event| format!("evt_{}", event.simple())).collect(), written)
}

/// What a notifier writes down of a receiver that takes what it is notified, and goes on serving it for a minute.
pub fn settlement(subscription: Uuid, by: Uuid, attempts: &[WebhookAttempt]) -> Settlement<'_> {
    Settlement {
        subscription,
        in_order: false,
        by,
        lease: Some(Duration::from_mins(1)),
        host: "mx1",
        attempts,
        failures: 0,
        open_for: None,
        state: None,
        callback: "",
        idle: false,
        alone: false,
    }
}

fn ids(requests: &[Request]) -> BTreeSet<&str> {
    requests.iter().map(Request::id).collect()
}

fn sorted(ids: &[String]) -> BTreeSet<&str> {
    ids.iter().map(String::as_str).collect()
}

/// As a receiver does it, with the secret that it was given.
pub fn verify_with(request: &Request, secret: &str) -> Result<(), String> {
    let mut headers = hyper::HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        headers.insert(name, request.headers[name].parse().unwrap());
    }
    signature_verifier::verify(secret, &headers, request.body.as_bytes()).map_err(|error| error.to_string())
}

pub fn verify(request: &Request, subscription: Uuid, generation: u32) -> Result<(), String> {
    verify_with(request, &MasterKey::new(&KEY).secret(subscription, generation).expose())
}

/// Through the program, from its beginning to its end; the second try finds the message there already, which changes nothing.
fn a_delivery_is_notified_once(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &["doug"]), Receiver::start());
    let id =
        subscribe(&mut scene, ("address", "doug@mail.axial.net"), &receiver.url("/quick"), &[("detail", "'full'")]);
    let notifier = Notifier::start(&mut scene);
    for _ in 0..2 {
        scene.deliver("doug", scene.message("a")).delivered();
    }
    wait_until("it is notified", || {
        scene.database.count("SELECT count(*) FROM events") == 1 && scene.database.count(PENDING) == 0
    });
    notifier.end();
    let came = receiver.came("/quick");
    assert_eq!((came.len(), scene.database.count("SELECT count(*) FROM outbox")), (1, 0));
    verify(&came[0], id, 1).unwrap();
    let (body, message_id) = (came[0].json(), scene.message_id("a"));
    let (copy, message) = (&body["data"]["copy"], &body["data"]["message"]);
    assert_eq!((&body["type"], &copy["state"]), (&"message.delivered".into(), &"delivered".into()));
    assert_eq!((&copy["mailbox"], &copy["user"]), (&"INBOX".into(), &scene.user("doug").into()));
    assert_eq!((&message["message_id"], &message["subject"]), (&message_id.into(), &"a".into()));
}

fn each_event_reaches_who_wants_it_once_and_signed(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let rotated = if engine.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" };
    let identity = "ab".repeat(32);
    let only = |kind: &str| if engine.is_postgres() { format!("'{{{kind}}}'") } else { format!("'[\"{kind}\"]'") };
    let (only_refused, only_deferred) = (only("message.refused"), only("message.deferred"));
    let (only_refused, only_deferred) = (only_refused.as_str(), only_deferred.as_str());
    let all = subscribe(&mut scene, ("all", ""), &receiver.url("/quick/all"), &[]);
    let rotating = [("secret_generation", "3"), ("secret_rotated_at", rotated), ("detail", "'full'")];
    let domain = subscribe(&mut scene, ("domain", "mail.axial.net"), &receiver.url("/quick/domain"), &rotating);
    for (resource, path, more) in [
        (("address", "doug@mail.axial.net"), "/quick/address", &[][..]),
        (("mailbox", "doug/INBOX"), "/quick/mailbox", &[]),
        (("message", identity.as_str()), "/quick/message", &[]),
        (("all", ""), "/quick/refused", &[("types", only_refused)]),
        (("all", ""), "/quick/deferred", &[("types", only_deferred)]),
        (("all", ""), "/quick/paused", &[("state", "'paused'")]),
        (("address", "scuba@mail.axial.net"), "/quick/other", &[]),
        (("domain", "axial.net"), "/quick/other", &[]),
        (("mailbox", "doug/Sent"), "/quick/other", &[]),
    ] {
        subscribe(&mut scene, resource, &receiver.url(path), more);
    }
    let notifier = Notifier::start(&mut scene);
    let delivered = happen(&mut scene, 3, "message.delivered");
    let refused = happen(&mut scene, 2, "message.refused");
    let both = [delivered.clone(), refused.clone()].concat();
    // It reaches nobody who does not name it.
    let deferred = happen(&mut scene, 2, "message.deferred");
    // Those of who is paused wait.
    wait_until("all are notified", || {
        scene.database.count("SELECT count(*) FROM events") == 7 && scene.database.count(PENDING) == 5
    });
    for path in ["/quick/all", "/quick/domain", "/quick/address", "/quick/mailbox", "/quick/message"] {
        let came = receiver.came(path);
        assert_eq!((ids(&came), came.len()), (sorted(&both), 5), "{path}");
    }
    assert_eq!(ids(&receiver.came("/quick/refused")), sorted(&refused));
    assert_eq!(ids(&receiver.came("/quick/deferred")), sorted(&deferred));
    for path in ["/quick/paused", "/quick/other"] {
        assert_eq!(receiver.came(path).len(), 0, "{path}");
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM outbox"), 0);
    assert_eq!(scene.database.count("SELECT count(*) FROM notification_attempts WHERE status = 204"), 29);
    for request in receiver.came("/quick/all") {
        verify(&request, all, 1).unwrap();
        verify(&request, all, 2).unwrap_err();
        let body = request.json();
        assert_eq!(
            (body["id"].as_str(), body["diff"]["state"]["+++"].as_str()),
            (Some(request.id()), body["type"].as_str().and_then(|name| name.strip_prefix("message.")))
        );
        assert_eq!(body["data"]["copy"]["address"], "Doug@mail.axial.net");
    }
    // For a day after a change the old secret verifies, too, and no older one.
    for request in receiver.came("/quick/domain") {
        verify(&request, domain, 3).unwrap();
        verify(&request, domain, 2).unwrap();
        verify(&request, domain, 1).unwrap_err();
    }
    // A subscription that is active again is sent what has waited.
    scene.database.execute("UPDATE subscriptions SET state = 'active' WHERE state = 'paused'");
    wait_until("what has waited is notified", || scene.database.count(PENDING) == 0);
    assert_eq!(ids(&receiver.taken("/quick/paused")), sorted(&both));
    notifier.end();
}

fn a_killed_notifier_loses_nothing_and_repeats_only_what_was_under_way(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    subscribe(&mut scene, ("all", ""), &receiver.url("/slow"), &[("max_in_flight", "8")]);
    let ids_of_all = happen(&mut scene, 200, "message.delivered");
    let killed = Notifier::start(&mut scene);
    wait_until("some are under way", || receiver.came("/slow").len() == 8);
    killed.signal(Signal::KILL);
    drop(killed);
    assert_eq!(scene.database.count(PENDING), 200);
    receiver.release();
    // The lease of the dead is over.
    let hour_ago =
        if engine.is_postgres() { "now() - interval '1 hour'" } else { "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR" };
    scene.database.execute(&format!("UPDATE subscription_queues SET leased_until = {hour_ago}"));
    // Two of them share the work.
    let notifiers = [Notifier::start(&mut scene), Notifier::start(&mut scene)];
    wait_until("all are notified", || scene.database.count(PENDING) == 0);
    let came = receiver.came("/slow");
    assert_eq!(ids(&came), sorted(&ids_of_all));
    assert_eq!(came.len(), 208, "what was under way, and nothing else, comes twice");
    for again in &came[..8] {
        let bodies: BTreeSet<&str> =
            came.iter().filter(|one| one.id() == again.id()).map(|one| one.body.as_str()).collect();
        assert_eq!(bodies.len(), 1, "each try has the same bytes");
    }
    notifiers.into_iter().for_each(Notifier::end);
}

fn what_is_answered_is_written_down_while_others_are_under_way_and_comes_no_second_time(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    subscribe(&mut scene, ("all", ""), &receiver.url("/some"), &[("max_in_flight", "8")]);
    let all = happen(&mut scene, 12, "message.delivered");
    let killed = Notifier::start(&mut scene);
    // Of twelve in a row, three.
    wait_until("what is answered is written down", || {
        receiver.came("/some").len() == 12 && scene.database.count(PENDING) == 3
    });
    drop(killed);
    receiver.release();
    // The lease of the dead is over.
    let hour_ago =
        if engine.is_postgres() { "now() - interval '1 hour'" } else { "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR" };
    scene.database.execute(&format!("UPDATE subscription_queues SET leased_until = {hour_ago}"));
    let notifier = Notifier::start(&mut scene);
    wait_until("all are notified", || scene.database.count(PENDING) == 0);
    notifier.end();
    let came = receiver.came("/some");
    assert_eq!((ids(&came), came.len()), (sorted(&all), 15));
    let again = came[12..].iter().all(|request| request.sequence() % 4 == 0);
    assert!(again, "what was under way, and nothing else, comes twice");
}

fn a_dead_and_a_slow_receiver_hold_up_nobody_and_order_is_kept(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let to = |path: &str| receiver.url(path);
    subscribe(&mut scene, ("all", ""), &to("/quick"), &[]);
    subscribe(&mut scene, ("all", ""), &to("/once"), &[("in_order", "true")]);
    let dead = subscribe(&mut scene, ("all", ""), &to("/dead"), &[]);
    subscribe(&mut scene, ("all", ""), &to("/slow"), &[]);
    let notifier = Notifier::start(&mut scene);
    let all = happen(&mut scene, 12, "message.delivered");
    wait_until("the quick ones have all", || {
        receiver.taken("/quick").len() == 12 && receiver.taken("/once").len() == 12
    });
    assert_eq!(ids(&receiver.taken("/quick")), sorted(&all));
    // What failed at first came again before the next one.
    let order: Vec<i64> = receiver.taken("/once").iter().map(Request::sequence).collect();
    assert!(order.is_sorted() && receiver.came("/once").len() == 16, "{order:?}");
    // It is asked by the schedule, and not for each event.
    wait_until("the dead one rests for an hour", || {
        scene
            .database
            .count("SELECT count(*) FROM subscription_queues WHERE failures >= 7 AND paused_until IS NOT NULL")
            == 1
    });
    let tries = receiver.came("/dead").len();
    assert!(tries <= 12, "{tries}");
    assert_eq!(scene.database.count("SELECT count(*) FROM notifications WHERE tries > 0 AND last_status = 503"), {
        i64::try_from(ids(&receiver.came("/dead")).len()).unwrap()
    });
    assert_eq!((receiver.came("/slow").len(), receiver.taken("/slow").len()), (4, 0));
    // On SIGTERM, it waits for the answers that are under way, and records them.
    notifier.signal(Signal::TERM);
    receiver.release();
    notifier.end();
    let taken = receiver.taken("/slow").len();
    assert!(taken >= 4, "{taken}");
    assert_eq!(scene.database.count("SELECT count(*) FROM subscription_queues WHERE leased_by IS NOT NULL"), 0);
    let left = i64::try_from(24 - taken).unwrap();
    assert_eq!(scene.database.count(PENDING), left, "of {dead} and the slow one");
}

/// Its owner sets another callback while the answer of the old one is awaited.
fn a_callback_that_is_set_while_the_old_one_is_asked_is_asked_itself(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let unverified = [("state", "'unverified'")];
    subscribe(&mut scene, ("all", ""), &receiver.url("/asked"), &unverified);
    happen(&mut scene, 1, "message.delivered");
    let notifier = Notifier::start(&mut scene);
    wait_until("the old one is asked", || receiver.came("/asked").len() == 1);
    let mute = receiver.url("/mute");
    scene.database.execute(&format!("UPDATE subscriptions SET callback_url = '{mute}'"));
    receiver.release();
    // Soon more than once, since it does not answer what it is asked.
    wait_until("the new one is asked", || !receiver.came("/mute").is_empty());
    notifier.end();
    assert_eq!(receiver.came("/mute")[0].json()["type"], "subscription.verify");
    assert_eq!(scene.database.texts("SELECT state FROM subscriptions"), ["unverified"]);
}

fn a_new_callback_is_asked_first_and_one_that_is_gone_is_disabled(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let unverified = [("state", "'unverified'")];
    let asked = subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &unverified);
    let mute = subscribe(&mut scene, ("all", ""), &receiver.url("/mute"), &unverified).to_string();
    subscribe(&mut scene, ("all", ""), &receiver.url("/gone"), &[("owner", "'dora'")]);
    subscribe(&mut scene, ("all", ""), "http://10.1.2.3/in", &[]);
    let all = happen(&mut scene, 2, "message.delivered");
    let notifier = Notifier::start(&mut scene);
    wait_until("who answers its question is notified", || receiver.taken("/quick").len() == 3);
    let came = receiver.came("/quick");
    assert_eq!(came[0].json()["type"], "subscription.verify");
    came.iter().for_each(|request| verify(request, asked, 1).unwrap());
    assert_eq!(ids(&came[1..]), sorted(&all));
    wait_until("who wants no more is notified no more", || {
        scene.database.texts("SELECT state_reason FROM subscriptions WHERE state = 'disabled'")
            == ["the receiver answered 410: it wants no more"]
    });
    wait_until("the other one was asked", || !receiver.came("/mute").is_empty());
    // Nobody learns who has not asked for it, nor who may not be called.
    assert!(receiver.came("/mute").iter().all(|request| request.json()["type"] == "subscription.verify"));
    assert!(receiver.came("/gone").len() <= 2);
    wait_until("a callback in another network is not called", || {
        scene.database.count("SELECT count(*) FROM notification_attempts WHERE outcome LIKE 'not called: only https%'")
            > 0
    });
    wait_until("the log says so", || scene.log().contains("a subscription is disabled"));
    let of_it = if engine.is_postgres() { format!("'{mute}'") } else { format!("X'{}'", mute.replace('-', "")) };
    let rests = format!("subscription = {of_it} AND failures >= 3 AND paused_until IS NOT NULL");
    let rests = format!("SELECT count(*) FROM subscription_queues WHERE {rests}");
    wait_until("the one that does not answer its question rests", || scene.database.count(&rests) == 1);
    notifier.end();
    assert_eq!(scene.database.count("SELECT count(*) FROM subscriptions WHERE state = 'unverified'"), 1);

    // Who looks sees what was wrong with the answer to the question.
    for command in [&["subscription", "show", &mute][..], &["notify", "status"]] {
        let printed = String::from_utf8(scene.subcommand(command).stdout).unwrap();
        assert!(printed.contains("the answer lacks the challenge"), "{printed}");
    }
    // What is to be notified again waits until it has answered, and it is asked no sooner.
    let now = if engine.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" };
    let given_up = format!("UPDATE notifications SET due_at = NULL, given_up_at = {now} WHERE subscription = {of_it}");
    scene.database.execute(&given_up);
    let again = ["notify", "redeliver", "--json"];
    let refused = scene.subcommand(&[&again[..], &["--subscription", &mute]].concat());
    assert_eq!(refused.status.code(), Some(65));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("it is unverified: its callback has not"), "{refused:?}");
    let waiting = format!("SELECT count(*) FROM notifications WHERE due_at IS NOT NULL AND subscription = {of_it}");
    assert_eq!(scene.database.count(&waiting), 0);
    assert_eq!(String::from_utf8_lossy(&scene.subcommand(&again).stdout), "{\"due_again\":2}\n");
    assert_eq!(scene.database.count(&waiting), 2);
    let rests =
        format!("SELECT count(*) FROM subscription_queues WHERE subscription = {of_it} AND paused_until > {now}");
    assert_eq!(scene.database.count(&rests), 1);
    // Disabled for its silence, it is asked again where somebody resumes it: nobody learns who never wanted to be.
    let yesterday =
        if engine.is_postgres() { "now() - interval '25 hours'" } else { "UTC_TIMESTAMP(6) - INTERVAL 25 HOUR" };
    scene.database.execute(&format!("UPDATE subscriptions SET updated_at = {yesterday} WHERE id = {of_it}"));
    let due =
        format!("UPDATE subscription_queues SET due_at = {now}, paused_until = NULL WHERE subscription = {of_it}");
    scene.database.execute(&due);
    let notifier = Notifier::start(&mut scene);
    let silent = format!("SELECT state_reason FROM subscriptions WHERE state = 'disabled' AND id = {of_it}");
    wait_until("it is disabled for that", || {
        scene.database.texts(&silent) == ["the callback has not answered its question within a day"]
    });
    notifier.end();
    let resumed = scene.subcommand(&["subscription", "resume", &mute, "--json"]);
    let resumed: Value = serde_json::from_slice(&resumed.stdout).unwrap();
    assert_eq!(resumed["state"], "unverified");
    // Nor is it sent by being disabled for another reason, and resumed.
    let disabled = scene.subcommand(&["subscription", "disable", &mute, "--reason", "x"]);
    assert_eq!(disabled.status.code(), Some(65), "{disabled:?}");
    // And where the database cannot tell, that is said.
    scene.database.execute("DROP TABLE subscription_queues");
    for command in [&["subscription", "show", &mute][..], &["notify", "status"]] {
        let output = scene.subcommand(command);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(69), 0), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("migrate"), "{output:?}");
    }
}

fn what_was_given_up_is_notified_once_more_when_somebody_says_so(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let id = subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[]);
    subscribe(&mut scene, ("all", ""), &receiver.url("/other"), &[("state", "'paused'")]);
    happen(&mut scene, 2, "message.delivered");
    let status = |scene: &Scene| -> Value {
        let printed_text = scene.subcommand(&["notify", "status", "--json"]);
        assert!(printed_text.status.success(), "{printed_text:?}");
        serde_json::from_slice(&printed_text.stdout).unwrap()
    };
    let before = status(&scene);
    assert_eq!((&before["unpublished"], &before["subscriptions"][0]["pending"]), (&2.into(), &0.into()));
    assert!(before["oldest_unpublished_s"].is_number());
    let notifier = Notifier::start(&mut scene);
    wait_until("they are notified", || scene.database.count(PENDING) == 2 && receiver.taken("/quick").len() == 2);
    notifier.end();
    // It had failed to the end.
    let now = if engine.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" };
    let of_it = if engine.is_postgres() { format!("'{id}'") } else { format!("X'{}'", id.simple()) };
    scene.database.execute(&format!(
        "UPDATE notifications SET subscription = {of_it}, due_at = NULL, tries = 4, given_up_at = {now}"
    ));
    assert_eq!(status(&scene)["subscriptions"][0]["given_up"], 2);
    let output_text =
        scene.subcommand(&["notify", "redeliver", "--since", "1h", "--subscription", &id.to_string(), "--json"]);
    assert_eq!(String::from_utf8_lossy(&output_text.stdout), "{\"due_again\":2}\n", "{output_text:?}");
    let notifier = Notifier::start(&mut scene);
    wait_until("they are notified once more", || scene.database.count(PENDING) == 0);
    assert_eq!(receiver.taken("/quick").len(), 4);
    notifier.end();
    // What was sent is forgotten when its time is over.
    let oldest = scene.database.count("SELECT min(position) FROM events");
    let long_ago =
        if engine.is_postgres() { "now() - interval '40 days'" } else { "UTC_TIMESTAMP(6) - INTERVAL 40 DAY" };
    scene.database.execute(&format!("UPDATE events SET created_at = {long_ago} WHERE position = {oldest}"));
    let attempts = scene.database.count("SELECT count(*) FROM notification_attempts");
    for (more, key, left) in [(&["--dry-run"][..], "would_remove", 2), (&[], "removed", 1)] {
        let printed = scene.subcommand(&[&["prune", "--events-older-than", "30d", "--json"], more].concat());
        let output: Value =
            serde_json::from_slice(&printed.stdout).unwrap_or_else(|error| panic!("{error}: {printed:?}"));
        assert_eq!((&output[0]["what"], &output[0][key]), (&"events".into(), &1.into()), "{output}");
        assert_eq!(scene.database.count("SELECT count(*) FROM events"), left);
    }
    assert!(scene.database.count("SELECT count(*) FROM notification_attempts") < attempts);
    assert_eq!(scene.subcommand(&["prune", "--events-older-than", "3d"]).status.code(), Some(64));
    let table = String::from_utf8(scene.subcommand(&["notify", "status"]).stdout).unwrap();
    assert!(table.starts_with("0 events wait to be published.\n") && table.contains(&id.to_string()), "{table}");
}

/// From `subscription create` to `subscription delete`.
fn who_subscribes_manually_is_notified_until_it_is_over(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &["doug"]), Receiver::start());
    let notifier = Notifier::start(&mut scene);
    let config = scene.path("notifier.toml");
    let run = |words: &[&str]| program(&["subscription"]).args(words).args(["--config", &config]).output().unwrap();
    let subscription = |words: &[&str]| -> Value {
        let output = run(&[words, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let request_after = |count: usize| {
        wait_until("it is notified", || receiver.taken("/quick").len() == count);
        receiver.taken("/quick").pop().unwrap()
    };
    let url = receiver.url("/quick");
    let wanted = ["create", "--callback", &url, "--address", "Doug@mail.axial.net", "--type", "message.delivered"];
    let made = subscription(&wanted);
    let (id, secret) = (made["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    assert_eq!((&made["created"], &made["resource_id"]), (&true.into(), &"doug@mail.axial.net".into()));
    let again = subscription(&wanted);
    assert_eq!((&again["created"], &again["id"], &again["secret"]), (&false.into(), &id.into(), &secret.into()));
    assert_eq!((&made["differs"], &again["differs"]), (&serde_json::json!([]), &serde_json::json!([])));
    let otherwise = subscription(&[&wanted[..], &["--detail", "full", "--max-in-flight", "9"]].concat());
    assert_eq!(otherwise["differs"], serde_json::json!(["detail", "max-in-flight"]));
    assert_eq!((&otherwise["detail"], &otherwise["created"]), (&"thin".into(), &false.into()));
    wait_until("the callback has answered its question", || subscription(&["show", id])["state"] == "active");

    scene.deliver("doug", scene.message("a")).delivered();
    verify(&request_after(2), id.parse().unwrap(), 1).unwrap();
    // Both secrets sign for a day.
    let other = subscription(&["secret", "--new", id]);
    assert_ne!(other["secret"], secret);
    scene.deliver("doug", scene.message("b")).delivered();
    let both = request_after(3);
    [1, 2].iter().for_each(|generation| verify(&both, id.parse().unwrap(), *generation).unwrap());

    // What happens while it rests is kept.
    assert_eq!(subscription(&["pause", id])["state"], "paused");
    assert_eq!(run(&["pause", id]).status.code(), Some(65));
    scene.deliver("doug", scene.message("c")).delivered();
    wait_until("it is kept", || subscription(&["show", id])["pending"] == 1);
    assert_eq!(subscription(&["resume", id])["state"], "active");
    verify(&request_after(4), id.parse().unwrap(), 2).unwrap();
    // Refused, it changes nothing: not for how long a receiver rests.
    wait_until("it is written down", || {
        let leased = "SELECT count(*) FROM subscription_queues WHERE leased_by IS NOT NULL";
        scene.database.count(PENDING) == 0 && scene.database.count(leased) == 0
    });
    scene.database.execute("UPDATE subscription_queues SET failures = 3");
    assert_eq!(run(&["resume", id]).status.code(), Some(65));
    assert_eq!(scene.database.count("SELECT count(*) FROM subscription_queues WHERE failures = 3"), 1);

    let listed = subscription(&["list"]);
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["id"]), (1, &id.into()));
    assert_eq!(subscription(&["delete", id]), serde_json::json!({ "id": id }));
    assert_eq!(run(&["show", id]).status.code(), Some(66));
    scene.deliver("doug", scene.message("d")).delivered();
    notifier.end();
    assert_eq!(receiver.came("/quick").len(), 4);
    assert_eq!(scene.database.count("SELECT count(*) FROM outbox"), 0, "nobody is subscribed");
    // By http only within networks of our own; and nothing that is none of ours.
    for (wrong, exit) in [
        (&["create", "--callback", "http://10.1.2.3/in"][..], 65),
        (&["create", "--callback", "https://127.0.0.2:9/", "--address", "doug"], 64),
        (&["create", "--callback", &url, "--type", "message.eaten"], 64),
        (&["show", "x"], 64),
    ] {
        assert_eq!(run(wrong).status.code(), Some(exit), "{wrong:?}");
    }
}

/// The ways of docs/notifications.md, on a notification that came.
#[test]
fn what_the_page_says_of_verifying_holds() {
    let (mut scene, receiver) = (Scene::with(Engine::Postgres17, &[]), Receiver::start());
    let id = subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[]);
    happen(&mut scene, 1, "message.delivered");
    let notifier = Notifier::start(&mut scene);
    wait_until("it came", || receiver.taken("/quick").len() == 1);
    notifier.end();
    let request = receiver.came("/quick").remove(0);
    let secret = MasterKey::new(&KEY).secret(id, 1).expose();
    let page = pages::read(&pages::root().join("docs/notifications.md")).1;
    let blocks = || page.iter().map(|block| (&block.language, block.lines.join("\n")));
    let block = |language: &str, word: &str| {
        let found = blocks().find(|(known, text)| *known == language && text.contains(word));
        found.expect("an example of it is there").1
    };

    let python = |secret: &str, body: &str| {
        let call = "import json, sys\nprint(verify(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3].encode()))";
        let headers = serde_json::to_string(&request.headers).unwrap();
        let script = format!("{}\n{call}", block("python", "def verify"));
        let output_text = Command::new("python3").args(["-c", &script, secret, &headers, body]).output().unwrap();
        assert!(output_text.status.success(), "{output_text:?}");
        String::from_utf8(output_text.stdout).unwrap()
    };
    // Each test here verifies by it.
    assert_eq!(block("rust", "verify").trim(), include_str!("../../support/servers/signature_verifier.rs").trim());
    assert_eq!(python(&secret, &request.body), "True\n");
    assert_eq!(python(&secret, &format!("{} ", request.body)), "False\n");
    assert_eq!(python(&MasterKey::new(&KEY).secret(id, 2).expose(), &request.body), "False\n");

    scene.file("body", &request.body, 0o600);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &block("sh", "openssl dgst")])
        .current_dir(scene.path(""))
        .env("SECRET", &secret)
        .env("ID", request.id());
    let printed = shell.env("TIMESTAMP", &request.headers["webhook-timestamp"]).output().unwrap();
    let by_openssl = format!("v1,{}", String::from_utf8(printed.stdout).unwrap().trim());
    assert_eq!(request.headers["webhook-signature"].split(' ').next(), Some(by_openssl.as_str()));
}

/// What receivers use that nobody here wrote: Standard Webhooks' own library, and Svix's, in Python. While a secret is rotated, both
/// secrets are good.
#[test]
fn the_official_libraries_verify_what_came() {
    const VERIFY: &str = "
import json, sys, standardwebhooks.webhooks, svix.webhooks
headers, body, secrets = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:]
def taken(library, headers, body, secret):
    try:
        library.Webhook(secret).verify(body, headers)
        return True
    except library.WebhookVerificationError:
        return False
for library in (standardwebhooks.webhooks, svix.webhooks):
    for secret in secrets:
        print(*(taken(library, *what, secret) for what in (
            (headers, body),
            (headers, body.replace('message.delivered', 'message.refused')),
            ({**headers, 'webhook-id': headers['webhook-id'] + '0'}, body),
            ({**headers, 'webhook-timestamp': str(int(headers['webhook-timestamp']) - 1)}, body),
        )))
";
    let Some(python) = python_with(&["standardwebhooks==1.1.0", "svix==2.9.1"]) else { return };
    let (mut scene, receiver) = (Scene::with(Engine::Postgres17, &[]), Receiver::start());
    let rotating = [("secret_generation", "2"), ("secret_rotated_at", "now()")];
    let id = subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &rotating);
    happen(&mut scene, 1, "message.delivered");
    let notifier = Notifier::start(&mut scene);
    wait_until("it came", || receiver.taken("/quick").len() == 1);
    notifier.end();
    let request = receiver.came("/quick").remove(0);
    let headers = serde_json::to_string(&request.headers).unwrap();
    let secrets = [1, 2, 3].map(|generation| MasterKey::new(&KEY).secret(id, generation).expose());
    let printed = Command::new(python).args(["-c", VERIFY, &headers, &request.body]).args(&secrets).output().unwrap();
    assert!(printed.status.success(), "{printed:?}");
    let (good, bad) = ("True False False False\n", "False False False False\n");
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), [good, good, bad].concat().repeat(2));
}
