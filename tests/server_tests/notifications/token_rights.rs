//! Which notifications a token may subscribe to, and how much they contain; and what becomes of subscriptions once
//! theirs is revoked.

use crate::fixtures::rest_client::{Rest, crm_subscribes};
use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{Notifier, happen, subscribe};
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use serde_json::{Value, json};

on_each_engine![
    who_has_answered_no_question_is_asked_when_it_is_resumed_after_its_token_was_revoked,
    of_many_tries_the_newest_can_be_read,
    who_may_not_read_messages_has_nothing_of_them_notified,
];

/// A callback that has not answered its challenge is notified of nothing, even if its subscription is resumed.
fn who_has_answered_no_question_is_asked_when_it_is_resumed_after_its_token_was_revoked(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let rest = Rest::start(&mut scene, "");
    let make = ["token", "create", "--name", "agency", "--scope", "subscriptions:write", "--rate", "10000"];
    let first = rest.cli(&make);
    let token = first["token"].as_str().unwrap().to_owned();
    let made = [
        ("/mute", "all", ""),
        ("/mute", "domain", "mail.axial.net"),
        ("/quick/active", "all", ""),
        ("/quick/paused", "all", ""),
    ]
    .map(|(path, resource, id)| {
        let wanted = json!({ "callback_url": receiver.url(path), "resource": resource, "resource_id": id });
        rest.ask(&token, "POST /subscriptions", Some(&wanted)).good(201)["id"].as_str().unwrap().to_owned()
    });
    for state in ["active", "paused"] {
        scene.database.execute(&format!(
            "UPDATE subscriptions SET state = '{state}', verified_at = created_at WHERE callback_url LIKE '%/{state}'"
        ));
    }
    let states = |scene: &mut Scene| scene.database.texts("SELECT state FROM subscriptions ORDER BY id");
    assert_eq!(states(&mut scene), ["unverified", "unverified", "active", "paused"]);
    rest.cli(&["token", "revoke", first["id"].as_str().unwrap()]);
    assert_eq!(states(&mut scene), ["disabled"; 4]);
    let why = scene.database.texts("SELECT state_reason FROM subscriptions ORDER BY id");
    assert!(why.iter().all(|why| why.starts_with("its token was revoked")), "{why:?}");

    // By another token of the name, and manually.
    let token = rest.cli(&make)["token"].as_str().unwrap().to_owned();
    let [mute, resumed, active, paused] = made;
    for (id, state) in [(&mute, "unverified"), (&active, "active"), (&paused, "active")] {
        let resumed = rest.ask(&token, &format!("PATCH /subscriptions/{id}"), Some(&json!({ "state": "active" })));
        assert_eq!(resumed.good(200)["state"], state, "{resumed:?}");
    }
    assert_eq!(rest.cli(&["subscription", "resume", &resumed])["state"], "unverified");
    let reasons = scene.database.count("SELECT count(*) FROM subscriptions WHERE state_reason IS NOT NULL");
    assert_eq!(
        (states(&mut scene), reasons),
        (["unverified", "unverified", "active", "active"].map(Into::into).into(), 0)
    );
    happen(&mut scene, 1, "message.delivered");
    let notifier = Notifier::start(&mut scene);
    let asked = |id: &str| receiver.came("/mute").iter().any(|request| request.headers["maildrop-subscription"] == id);
    wait_until("both are asked", || asked(&mute) && asked(&resumed));
    wait_until("the others are notified", || {
        ["/quick/active", "/quick/paused"].iter().all(|path| !receiver.taken(path).is_empty())
    });
    notifier.end();
    let came = receiver.came("/mute");
    assert!(came.iter().all(|request| request.json()["type"] == "subscription.verify"), "{came:?}");
    rest.end();
}

fn of_many_tries_the_newest_can_be_read(engine: Engine) {
    const TRIES: usize = 130;
    let mut scene = Scene::with(engine, &[]);
    let rest = Rest::start(&mut scene, "");
    let token = rest.token(&["--name", "crm", "--scope", "subscriptions:read"]);
    let more = [("owner", "'token:crm'"), ("state", "'paused'")];
    let one = subscribe(&mut scene, ("all", ""), "https://example.org/", &more).to_string();
    let event = happen(&mut scene, 1, "message.delivered").remove(0);
    let notifier = Notifier::start(&mut scene);
    wait_until("it is published", || scene.database.count("SELECT count(*) FROM events") == 1);
    notifier.end();
    let postgres = engine.is_postgres();
    let rows = (1..=TRIES).map(|number| {
        let ago = TRIES - number;
        let moment = if postgres {
            format!("now() - interval '{ago} s'")
        } else {
            format!("UTC_TIMESTAMP(6) - INTERVAL {ago} SECOND")
        };
        format!("SELECT s.id, e.position, {moment}, 'mx1', 1, 'try {number}' FROM subscriptions s, events e")
    });
    scene.database.execute(&format!(
        "INSERT INTO notification_attempts (subscription, event, started_at, host, milliseconds, outcome) {}",
        rows.collect::<Vec<_>>().join(" UNION ALL ")
    ));
    let read = rest.ask(&token, &format!("GET /subscriptions/{one}/attempts?event={event}"), None).good(200);
    let read: Vec<&Value> = read["items"].as_array().unwrap().iter().map(|one| &one["outcome"]).collect();
    let newest: Vec<String> = (TRIES - 99..=TRIES).map(|number| format!("try {number}")).collect();
    assert_eq!(read, newest.iter().collect::<Vec<_>>());
    rest.end();
}

fn who_may_not_read_messages_has_nothing_of_them_notified(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let (notifier, rest, token, made) = crm_subscribes(&mut scene, &receiver.url("/quick"));
    let one = format!("/subscriptions/{}", made["id"].as_str().unwrap());
    let reader = rest.token(&["--name", "crm", "--scope", "subscriptions:write", "--scope", "messages:read"]);
    let wanted = json!({ "callback_url": receiver.url("/quick/full"), "resource": "all", "detail": "full" });
    let change = |token: &str, change: Value| rest.ask(token, &format!("PATCH {one}"), Some(&change));
    let refused = |answer: crate::fixtures::rest_client::Answer| {
        let refusal = answer.problem(403, "out-of-scope");
        assert_eq!(refusal["detail"], "it has not the scope messages:read", "{refusal}");
    };
    refused(rest.ask(&token, "POST /subscriptions", Some(&wanted)));
    refused(change(&token, json!({ "detail": "full" })));
    let details = "SELECT detail FROM subscriptions";
    assert_eq!(scene.database.texts(details), ["thin"]);

    assert_eq!(rest.ask(&reader, "POST /subscriptions", Some(&wanted)).good(201)["detail"], "full");
    assert_eq!(change(&reader, json!({ "detail": "full" })).good(200)["detail"], "full");
    // Nor may it send elsewhere what it may not read. The rest is its own to say.
    refused(change(&token, json!({ "callback_url": receiver.url("/quick/elsewhere") })));
    assert_eq!(change(&token, json!({ "description": "the CRM" })).good(200)["description"], "the CRM");
    let thin = json!({ "callback_url": receiver.url("/quick/elsewhere"), "detail": "thin" });
    assert_eq!(change(&token, thin).good(200)["detail"], "thin");
    refused(change(&token, json!({ "callback_url": receiver.url("/quick/else"), "detail": "full" })));
    notifier.end();
    rest.end();
}
