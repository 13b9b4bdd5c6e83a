//! A platform's developer looks after subscriptions by the API, and reads what happened.

use crate::fixtures::rest_client::Rest;
use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{Notifier, happen, subscribe, verify_with};
use crate::notifications::requeue_during_delivery::ago;
use crate::support::database::Engine;
use crate::support::program::{program, wait_until};
use crate::support::site_fixture::{LISA, Scene};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use uuid::Uuid;

on_two_engines![
    a_developer_subscribes_is_notified_and_is_notified_again,
    a_domains_token_never_sees_another_ones_mail,
    an_authors_copy_is_for_who_looks_after_the_author,
    events_are_read_without_a_gap_while_they_come,
    pages_have_each_row_once_while_others_come_and_go,
    messages_are_found_by_all_their_names_by_who_may_see_them,
    a_token_counts_until_it_is_revoked_or_over_and_its_subscriptions_go_with_it,
    when_a_token_was_used_is_written_down_once_an_hour,
    what_is_wrong_with_a_request_is_notified_as_a_problem,
    who_looks_after_the_site_sees_who_was_notified_and_that_nobody_is,
];

/// From the first request to the last one.
fn a_developer_subscribes_is_notified_and_is_notified_again(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &["doug"]), Receiver::start());
    let notifier = Notifier::start(&mut scene);
    let rest = Rest::start(&mut scene, "");
    let token = rest.token(&[
        "--name",
        "agency",
        "--scope",
        "subscriptions:write",
        "--scope",
        "messages:read",
        "--rate",
        "10000",
    ]);
    let ask = |request: &str, body: Option<Value>| rest.ask(&token, request, body.as_ref());
    let wanted = json!({
        "callback_url": receiver.url("/quick"), "resource": "address", "resource_id": "Doug@mail.axial.net",
        "types": ["message.delivered"], "description": "the CRM",
    });
    let made = ask("POST /subscriptions", Some(wanted.clone()));
    let one = made.good(201);
    let id = one["id"].as_str().unwrap();
    assert_eq!(made.headers["location"], format!("/api/v1/subscriptions/{id}"));
    assert_eq!((&one["resource_id"], &one["state"]), (&"doug@mail.axial.net".into(), &"unverified".into()));
    let secret = one["secret"].as_str().unwrap();
    // The same once more makes no other one, and has the same secret.
    let again = ask("POST /subscriptions", Some(wanted)).good(200);
    assert_eq!((&again["id"], &again["secret"]), (&one["id"], &one["secret"]));
    let it = format!("/subscriptions/{id}");
    let state = |wanted: &str| ask(&format!("GET {it}"), None).good(200)["state"] == wanted;
    wait_until("the callback has answered its question", || state("active"));

    // What happens is notified, and can be read more of.
    scene.deliver("doug", scene.message("a")).delivered();
    wait_until("it is notified", || receiver.taken("/quick").len() == 2);
    let received = receiver.taken("/quick").pop().unwrap();
    verify_with(&received, secret).unwrap();
    let message = ask(&format!("GET /messages/{}", received.json()["data"]["message"]["id"].as_str().unwrap()), None);
    let message = message.good(200);
    assert_eq!((&message["subject"], &message["copies"][0]["user"]), (&"a".into(), &scene.user("doug").into()));
    assert_eq!(message["message_id"], scene.message_id("a"));

    // Once more, by the same id, whether it is written down by now that it was taken or not; and a test, which is about no copy.
    let event = json!({ "event": received.id() });
    assert_eq!(ask(&format!("POST {it}/redeliver"), Some(event)).good(202), json!({ "notifications": 1 }));
    wait_until("it is notified once more", || receiver.taken("/quick").len() == 3);
    let twice = receiver.taken("/quick").pop().unwrap();
    assert_eq!((twice.id(), &twice.body), (received.id(), &received.body));
    let tried = || ask(&format!("GET {it}/attempts?event={}", received.id()), None).good(200);
    wait_until("both tries are written down", || tried()["items"].as_array().unwrap().len() == 2);
    assert_eq!(tried()["items"][0]["status"], 204);
    let test = ask(&format!("POST {it}/test"), None).good(202);
    wait_until("the test is notified", || receiver.taken("/quick").len() == 4);
    let tested = receiver.taken("/quick").pop().unwrap();
    assert_eq!((&tested.json()["id"], &tested.json()["type"]), (&test["event"], &"subscription.test".into()));
    verify_with(&tested, secret).unwrap();
    let pending = || ask(&format!("GET {it}/notifications"), None).good(200)["items"].clone();
    wait_until("that is written down", || pending() == json!([]));

    // Another secret: both sign for a day.
    let other = ask(&format!("POST {it}/secret"), None).good(200);
    assert!(other["secret"] != one["secret"] && other["previous_valid_until"].is_string(), "{other}");
    assert_eq!(ask(&format!("GET {it}/secret"), None).good(200), other);

    // What happens while it rests is kept; what is sent then has both signatures.
    assert_eq!(ask(&format!("PATCH {it}"), Some(json!({ "state": "paused" }))).good(200)["state"], "paused");
    ask(&format!("POST {it}/test"), None).problem(409, "another-state");
    scene.deliver("doug", scene.message("b")).delivered();
    let kept = || ask(&format!("GET {it}/notifications?state=pending"), None).good(200)["items"].clone();
    wait_until("it is kept", || kept().as_array().unwrap().len() == 1);
    assert_eq!(kept()[0]["type"], "message.delivered");
    assert_eq!(ask(&format!("GET {it}/notifications?state=given_up"), None).good(200)["items"], json!([]));
    let changed = json!({ "state": "active", "types": null, "max_in_flight": 1, "description": null });
    let changed = ask(&format!("PATCH {it}"), Some(changed)).good(200);
    assert_eq!(
        (&changed["types"], &changed["max_in_flight"], &changed["description"]),
        (&json!([]), &1.into(), &"".into())
    );
    for in_order in [true, false] {
        let changed = ask(&format!("PATCH {it}"), Some(json!({ "in_order": in_order }))).good(200);
        assert_eq!((&changed["in_order"], &changed["max_in_flight"]), (&in_order.into(), &1.into()));
    }
    wait_until("it is notified", || receiver.taken("/quick").len() == 5);
    let last = receiver.taken("/quick").pop().unwrap();
    for secret in [secret, other["secret"].as_str().unwrap()] {
        verify_with(&last, secret).unwrap();
    }

    // All of a time, once more.
    wait_until("nothing is pending", || kept() == json!([]));
    let all = json!({ "since": "2020-01-01T00:00:00Z", "only": "all" });
    assert_eq!(ask(&format!("POST {it}/recover"), Some(all)).good(202), json!({ "notifications": 3 }));
    wait_until("they are notified", || receiver.taken("/quick").len() == 8);
    let failed = json!({ "since": "2020-01-01T00:00:00Z" });
    assert_eq!(ask(&format!("POST {it}/recover"), Some(failed)).good(202), json!({ "notifications": 0 }));

    // A new callback is asked first, however old the subscription is.
    let long_ago = if engine.is_postgres() { "now() - interval '9 days'" } else { "UTC_TIMESTAMP(6) - INTERVAL 9 DAY" };
    scene.database.execute(&format!("UPDATE subscriptions SET created_at = {long_ago}"));
    let moved = json!({ "callback_url": receiver.url("/quick/moved") });
    assert_eq!(ask(&format!("PATCH {it}"), Some(moved)).good(200)["state"], "unverified");
    wait_until("it has answered its question", || state("active"));
    let listed = ask("GET /subscriptions?resource=address", None).good(200);
    assert_eq!((listed["items"].as_array().unwrap().len(), &listed["items"][0]["id"]), (1, &one["id"]));
    ask(&format!("DELETE {it}"), None).good(204);
    ask(&format!("GET {it}"), None).problem(404, "not-found");
    ask(&format!("DELETE {it}"), None).problem(404, "not-found");
    notifier.end();
    rest.end();
}

fn a_domains_token_never_sees_another_ones_mail(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &["doug"]), Receiver::start());
    let rest = Rest::start(&mut scene, "");
    let scopes = ["--scope", "subscriptions:write", "--scope", "events:read", "--scope", "messages:read"];
    let token = |name: &str, bounds: &[&str]| rest.token(&[&["--name", name], bounds, &scopes].concat());
    let (everything, own) = (token("all", &[]), token("axial", &["--domain", "mail.axial.net"]));
    let (other, address) =
        (token("other", &["--domain", "axial.net"]), token("x", &["--address", "doug@mail.axial.net"]));
    let wanted = |resource: &str, id: &str| json!({ "callback_url": receiver.url("/quick"), "resource": resource, "resource_id": id });
    // What it may not be notified of it cannot subscribe to.
    for (resource, id) in [
        ("all", ""),
        ("domain", "axial.net"),
        ("address", "doug@axial.net"),
        ("mailbox", "doug/INBOX"),
        ("message", &"ab".repeat(32)),
    ] {
        rest.ask(&own, "POST /subscriptions", Some(&wanted(resource, id))).problem(403, "out-of-bounds");
    }
    let made = rest.ask(&own, "POST /subscriptions", Some(&wanted("domain", "mail.axial.net"))).good(201);
    let id = made["id"].as_str().unwrap();
    // Neither is there for another one, whatever it asks for.
    for request in
        ["GET {it}", "DELETE {it}", "GET {it}/secret", "POST {it}/secret", "POST {it}/test", "GET {it}/notifications"]
    {
        let request = request.replace("{it}", &format!("/subscriptions/{id}"));
        for token in [&other, &everything] {
            rest.ask(token, &request, None).problem(404, "not-found");
        }
    }
    rest.ask(&other, &format!("PATCH /subscriptions/{id}"), Some(&json!({}))).problem(404, "not-found");
    let listed = |token: &str| rest.ask(token, "GET /subscriptions", None).good(200)["items"].as_array().unwrap().len();
    assert_eq!((listed(&own), listed(&other), listed(&everything)), (1, 0, 0));

    // Events, and the message.
    scene.deliver("doug", scene.message("a")).delivered();
    let notifier = Notifier::start(&mut scene);
    wait_until("it is published", || scene.database.count("SELECT count(*) FROM events") == 1);
    notifier.end();
    let events = |token: &str| rest.ask(token, "GET /events", None).good(200);
    let seen = [&everything, &own, &address].map(|token| events(token));
    assert!(seen.iter().all(|seen| seen["items"].as_array().unwrap().len() == 1), "{seen:?}");
    let none = events(&other);
    // It goes on behind what it may not see.
    assert_eq!((&none["items"], &none["next"]), (&json!([]), &seen[0]["next"]));
    let message = format!("GET /messages/{}", seen[0]["items"][0]["data"]["message"]["id"].as_str().unwrap());
    rest.ask(&own, &message, None).good(200);
    rest.ask(&other, &message, None).problem(404, "not-found");
    // Nor can another owner redirect it.
    let his = rest.ask(&other, "POST /subscriptions", Some(&wanted("domain", "axial.net"))).good(201);
    let his = format!("/subscriptions/{}", his["id"].as_str().unwrap());
    let event = json!({ "event": seen[0]["items"][0]["id"] });
    rest.ask(&other, &format!("POST {his}/redeliver"), Some(&event)).problem(404, "not-found");
    let event = seen[0]["items"][0]["id"].as_str().unwrap();
    rest.ask(&other, &format!("GET {his}/attempts?event={event}"), None).problem(404, "not-found");
    rest.end();
}

/// Who looks after recipients is notified of theirs, and who looks after the author of the author's, though one delivery brought both.
fn an_authors_copy_is_for_who_looks_after_the_author(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &["lisa"]), Receiver::start());
    let doug = scene.user("doug");
    scene.database.add_address("doug@axial.net", &doug);
    let rest = Rest::start(&mut scene, "");
    let scopes = ["--scope", "events:read", "--scope", "messages:read"];
    let token = |name: &str, domain: &str| rest.token(&[&["--name", name, "--domain", domain], &scopes[..]].concat());
    let (recipients, authors) = (token("recipients", "axial.net"), token("authors", "mail.axial.net"));
    for (domain, path) in [("axial.net", "/recipients"), ("mail.axial.net", "/authors")] {
        subscribe(&mut scene, ("domain", domain), &receiver.url(path), &[]);
    }
    scene.deliver("doug@axial.net", scene.message("a")).delivered();
    let notifier = Notifier::start(&mut scene);
    let types = |path: &str| {
        let taken = receiver.taken(path);
        taken.iter().map(|one| one.json()["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    wait_until("both are notified", || types("/recipients").len() + types("/authors").len() >= 2);
    notifier.end();
    assert_eq!(
        (types("/recipients"), types("/authors")),
        (vec!["message.delivered".into()], vec!["sent.delivered".into()])
    );

    let sent = ["sender", LISA, &scene.user("lisa"), "Sent"];
    let inbox = ["recipient", "doug@axial.net", &doug, "INBOX"];
    for (token, wanted) in [(&recipients, inbox), (&authors, sent)] {
        let wanted = wanted.map(|field| json!(field));
        let named = |copy: &Value| ["role", "address", "user", "mailbox"].map(|name| copy[name].clone());
        let events = rest.ask(token, "GET /events", None).good(200);
        let shown: Vec<_> = events["items"].as_array().unwrap().iter().map(|one| named(&one["data"]["copy"])).collect();
        assert_eq!(shown, std::slice::from_ref(&wanted), "{events}");
        let id = events["items"][0]["data"]["message"]["id"].as_str().unwrap();
        let message = rest.ask(token, &format!("GET /messages/{id}"), None).good(200);
        let copies: Vec<_> = message["copies"].as_array().unwrap().iter().map(named).collect();
        assert_eq!(copies, [wanted], "{message}");
    }
    rest.end();
}

fn events_are_read_without_a_gap_while_they_come(engine: Engine) {
    const ROUNDS: usize = 20;
    const EACH: usize = 30;
    let mut scene = Scene::with(engine, &[]);
    let rest = Rest::start(&mut scene, "");
    let token = rest.token(&["--name", "crm", "--scope", "events:read", "--rate", "10000"]);
    let notifiers = [Notifier::start(&mut scene), Notifier::start(&mut scene)];
    let (mut expected, mut read, mut after) = (Vec::new(), Vec::new(), json!(0));
    let mut go_on = |read: &mut Vec<String>| {
        let page = rest.ask(&token, &format!("GET /events?after={after}&limit=7"), None).good(200);
        let ids = page["items"].as_array().unwrap().iter().map(|event| event["id"].as_str().unwrap().to_owned());
        read.extend(ids);
        after = page["next"].clone();
    };
    for _ in 0..ROUNDS {
        expected.extend(happen(&mut scene, EACH, "message.delivered"));
        // While they are published.
        (0..3).for_each(|_| go_on(&mut read));
    }
    wait_until("all are read", || {
        go_on(&mut read);
        read.len() >= expected.len()
    });
    assert_eq!(read.len(), ROUNDS * EACH, "none comes twice");
    assert_eq!(read.iter().collect::<BTreeSet<_>>(), expected.iter().collect());
    let now = rest.ask(&token, "GET /events?after=now", None).good(200);
    assert_eq!((&now["items"], now["next"].as_i64() > Some(0)), (&json!([]), true));
    // The page has its next one in its header, too.
    let first = rest.ask(&token, "GET /events?after=0&limit=2", None);
    let next = first.good(200)["next"].clone();
    assert_eq!(first.headers["link"], format!("<?limit=2&after={next}>; rel=\"next\""));
    notifiers.into_iter().for_each(Notifier::end);
    rest.end();
}

fn messages_are_found_by_all_their_names_by_who_may_see_them(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "scuba", "anna"]);
    scene.deliver("doug", scene.message("one")).delivered();
    scene.deliver_with("doug", &["--queue-id", "4jY5Kl1pjDzBFGl"], scene.message("two")).delivered();
    for recipient in ["doug", "scuba", "anna"] {
        scene.deliver(recipient, scene.message("three")).delivered();
    }
    // It indexes what the timer would.
    assert!(scene.subcommand(&["trace", "scuba@mail.axial.net"]).status.success());
    let rest = Rest::start(&mut scene, "");
    let all = rest.token(&["--name", "all", "--scope", "messages:read"]);
    let scubas = rest.token(&["--name", "s", "--scope", "messages:read", "--address", "scuba@mail.axial.net"]);
    let subjects = |token: &str, q: &str, limit: usize| {
        let (mut subjects, mut taken_as, mut cursor) = (Vec::new(), String::new(), String::new());
        loop {
            let page = rest.ask(token, &format!("GET /messages?q={q}&limit={limit}{cursor}"), None).good(200);
            let items = page["items"].as_array().unwrap();
            subjects.extend(items.iter().map(|item| item["subject"].as_str().unwrap().to_owned()));
            taken_as.replace_range(.., page["taken_as"].as_str().unwrap());
            let Some(next) = page["next"].as_str() else { return (subjects, taken_as) };
            cursor = format!("&cursor={next}");
        }
    };
    let id: String = url::form_urlencoded::byte_serialize(scene.message_id("two").as_bytes()).collect();
    let newest_first = ["three", "two", "one"];
    let cases: [(&str, &str, &[&str]); 10] = [
        ("DOUG%40mail.axial.net", "address", &newest_first),
        ("anna%40mail.axial.net", "address", &["three"]),
        ("%40mail.axial.net", "domain", &newest_first),
        ("%40mail*", "beginning of an address", &newest_first),
        ("dou", "beginning of an address", &newest_first),
        ("doug%40mail*", "beginning of an address", &newest_first),
        ("*Wo*", "part of a subject or author", &["two"]),
        ("4jY5Kl1pjDzBFGl", "queue id", &["two"]),
        (&id, "Message-ID", &["two"]),
        ("%3Cnever%40x%3E", "Message-ID", &[]),
    ];
    for (q, taken_as, expected) in cases {
        for limit in [1, 50] {
            let found = subjects(&all, q, limit);
            assert!(found.0 == expected && found.1 == taken_as, "{q}: {found:?}");
        }
    }
    // Scuba's message is for Doug as well by its header, and for Anna by its envelope alone.
    assert_eq!(subjects(&scubas, "%40mail.axial.net", 1).0, ["three"]);
    assert_eq!(subjects(&scubas, "doug%40mail.axial.net", 1).0, ["three"]);
    assert!(subjects(&scubas, "anna%40mail.axial.net", 1).0.is_empty());
    assert!(subjects(&scubas, "*wo*", 1).0.is_empty());
    let item = rest.ask(&scubas, "GET /messages?q=scuba%40mail.axial.net", None).good(200)["items"][0].clone();
    assert_eq!(item["copies"].as_array().unwrap().len(), 1, "{item}");
    assert_eq!(item.get("headers"), None);
    for wrong in ["", "q=", "q=**", "q=a&q=b", "q=a&cursor=1.9.9", "q=a&limit=0", "text=a"] {
        rest.ask(&all, &format!("GET /messages?{wrong}"), None).problem(400, "wrong-parameter");
    }
}

/// Between any two pages rows come before and behind the cursor, and some that were read are gone: what was there from the first page to
/// the last one is read once, and nothing twice.
fn pages_have_each_row_once_while_others_come_and_go(engine: Engine) {
    const THERE: usize = 8;
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let rest = Rest::start(&mut scene, "");
    let token = rest.token(&["--name", "crm", "--scope", "subscriptions:write", "--rate", "10000"]);
    // From page to page; `between` is called before each but the first.
    let read = |list: &str, key: &str, between: &mut dyn FnMut(&[String])| -> Vec<String> {
        let (mut seen, mut query) = (Vec::new(), "?limit=3".to_owned());
        loop {
            let page = rest.ask(&token, &format!("GET {list}{query}"), None);
            let items = page.good(200)["items"].clone();
            seen.extend(items.as_array().unwrap().iter().map(|one| one[key].as_str().unwrap().to_owned()));
            let Some(link) = page.headers.get("link") else { return seen };
            query = link.split(['<', '>']).nth(1).unwrap().to_owned();
            between(&seen);
        }
    };
    let once = |seen: &[String], there: &[String]| {
        let all: BTreeSet<&String> = seen.iter().collect();
        assert_eq!(all.len(), seen.len(), "one comes twice: {seen:?}");
        let missed: Vec<&String> = there.iter().filter(|one| !all.contains(one)).collect();
        assert!(missed.is_empty(), "{missed:?} are not in {seen:?}");
    };
    let owner = ("owner", "'token:crm'");
    let mut numbers = 1..;
    // They are in the order of their ids: each that comes first is first of all, and each that comes last is last.
    let mut subscribe_at = |scene: &mut Scene, first: bool| {
        let number = numbers.next().unwrap();
        let id = Uuid::from_u128(if first { number } else { u128::MAX - 1000 + number });
        let text = if engine.is_postgres() { format!("'{id}'") } else { format!("X'{}'", id.simple()) };
        subscribe(scene, ("all", ""), &receiver.url("/dead"), &[owner, ("id", &text), ("state", "'paused'")]);
        id.to_string()
    };
    let there: Vec<String> = (0..THERE)
        .map(|_| {
            subscribe(&mut scene, ("all", ""), &receiver.url("/dead"), &[owner, ("state", "'paused'")]).to_string()
        })
        .collect();
    let (mut rounds, mut late) = (0, Vec::new());
    let seen = read("/subscriptions", "id", &mut |seen| {
        rounds += 1;
        subscribe_at(&mut scene, true);
        if rounds < 3 {
            late.push(subscribe_at(&mut scene, false));
            rest.ask(&token, &format!("DELETE /subscriptions/{}", seen[0]), None);
        }
    });
    assert!(rounds >= 3, "{rounds} pages");
    once(&seen, &[there, late].concat());

    // Pending notifications are in the order of events, the newest first: what comes is before the first page.
    let one = subscribe(&mut scene, ("all", ""), &receiver.url("/dead"), &[owner, ("state", "'paused'")]).to_string();
    let notifier = Notifier::start(&mut scene);
    let of_it = if engine.is_postgres() { format!("'{one}'") } else { format!("X'{}'", one.replace('-', "")) };
    let pending = format!("SELECT count(*) FROM notifications WHERE subscription = {of_it}");
    let (mut rounds, mut come) = (0, 0);
    let mut happened = |scene: &mut Scene, count: usize| {
        let ids = happen(scene, count, "message.delivered");
        come += count;
        wait_until("they are published", || scene.database.count(&pending) == come as i64);
        ids
    };
    let there = happened(&mut scene, THERE);
    let seen = read(&format!("/subscriptions/{one}/notifications"), "event", &mut |_| {
        rounds += 1;
        happened(&mut scene, 2);
    });
    assert_eq!((rounds, seen.len()), (2, THERE));
    once(&seen, &there);
    notifier.end();
    rest.end();
}

fn a_token_counts_until_it_is_revoked_or_over_and_its_subscriptions_go_with_it(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let rest = Rest::start(&mut scene, "");
    let make = ["token", "create", "--name", "agency", "--scope", "subscriptions:write"];
    let (first, second) = (rest.cli(&make), rest.cli(&[&make[..], &["--rate", "2000"]].concat()));
    let text = |token: &Value| token["token"].as_str().unwrap().to_owned();
    let wanted = json!({ "callback_url": receiver.url("/quick"), "resource": "all" });
    let one = rest.ask(&text(&first), "POST /subscriptions", Some(&wanted)).good(201);
    let it = format!("GET /subscriptions/{}", one["id"].as_str().unwrap());
    // The second one of the name sees what the first one has made, so that it can take its place.
    assert_eq!(rest.ask(&text(&second), &it, None).good(200)["state"], "unverified");
    rest.cli(&["token", "revoke", first["id"].as_str().unwrap()]);
    rest.ask(&text(&first), &it, None).problem(401, "wrong-token");
    rest.ask(&text(&second), &it, None).good(200);
    let state = |scene: &mut Scene| scene.database.texts("SELECT state FROM subscriptions");
    assert_eq!(state(&mut scene), ["unverified"]);
    rest.cli(&["token", "revoke", second["id"].as_str().unwrap()]);
    assert_eq!(state(&mut scene), ["disabled"]);
    let listed = rest.cli(&["token", "list"]);
    let of = |key: &str| listed.as_array().unwrap().iter().map(|token| token[key].clone()).collect::<Vec<_>>();
    assert_eq!((of("valid"), of("rate")), (vec![json!(false); 2], vec![json!(50), json!(2000)]));
    assert!(of("last_used_at").iter().all(Value::is_string), "{listed}");
    // Its text is nowhere.
    assert!(!listed.to_string().contains(&text(&first)) && !scene.log().contains(&text(&first)));
    let twice = ["token", "revoke", second["id"].as_str().unwrap(), "--config", &scene.path("people.toml")];
    let again = program(&twice).output().unwrap();
    assert_eq!(again.status.code(), Some(66), "{again:?}");

    let over = rest.cli(&[&make[..], &["--expires", "1ms"]].concat());
    wait_until("it is over", || rest.ask(&text(&over), "GET /subscriptions", None).status == 401);
    rest.end();
}

/// Each time would be a change of the database for each question.
fn when_a_token_was_used_is_written_down_once_an_hour(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let rest = Rest::start(&mut scene, "");
    let token = rest.token(&["--name", "agency", "--scope", "subscriptions:read"]);
    let lately = format!("SELECT count(*) FROM api_tokens WHERE last_used_at > {}", ago(engine, 15));
    for (minutes, written) in [(30, 0), (90, 1)] {
        let used = format!("UPDATE api_tokens SET last_used_at = {}", ago(engine, minutes));
        scene.database.execute(&used);
        rest.ask(&token, "GET /subscriptions", None).good(200);
        assert_eq!(scene.database.count(&lately), written, "after {minutes} minutes");
    }
    rest.end();
}

fn what_is_wrong_with_a_request_is_notified_as_a_problem(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let rest = Rest::start(&mut scene, "");
    let token = rest.token(&["--name", "agency", "--scope", "subscriptions:write", "--rate", "10000"]);
    let url = receiver.url("/quick");
    let ask = |request: &str, body: Value| rest.ask(&token, request, Some(&body));

    // Fields: all that is wrong is notified at once, and where.
    for (body, wrong) in [
        (json!({}), &["/callback_url", "/resource"][..]),
        (
            json!({ "callback_url": 1, "resource": "x", "detail": "fat", "colour": 1 }),
            &["/callback_url", "/colour", "/detail", "/resource"],
        ),
        (json!({ "callback_url": "ftp://example.com/", "resource": "all" }), &["/callback_url"]),
        (json!({ "callback_url": "http://10.0.0.1/", "resource": "all" }), &["/callback_url"]),
        (json!({ "callback_url": url, "resource": "all", "resource_id": "x" }), &["/resource_id"]),
        (json!({ "callback_url": url, "resource": "address", "resource_id": "doug" }), &["/resource_id"]),
        (json!({ "callback_url": url, "resource": "all", "description": "a\u{0}b" }), &["/description"]),
        (
            json!({ "callback_url": url, "resource": "all", "types": ["x"], "max_in_flight": 65 }),
            &["/max_in_flight", "/types"],
        ),
        (
            json!({ "callback_url": url, "resource": "all", "expires_at": "2020-01-01T00:00:00Z", "in_order": 1 }),
            &["/expires_at", "/in_order"],
        ),
    ] {
        let problem_text = ask("POST /subscriptions", body).problem(422, "wrong-fields");
        let pointers =
            problem_text["errors"].as_array().unwrap().iter().map(|error| error["pointer"].as_str().unwrap());
        assert_eq!(pointers.collect::<BTreeSet<_>>(), wrong.iter().copied().collect(), "{problem_text}");
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM subscriptions"), 0);
    ask("POST /subscriptions", json!([])).problem(400, "unreadable-body");
    rest.send(&token, "POST /subscriptions", &[("content-type", "application/json")], b"{")
        .problem(400, "unreadable-body");
    rest.send(&token, "POST /subscriptions", &[("content-type", "text/plain")], b"{}")
        .problem(415, "another-media-type");
    let long = [("content-type", "application/json"), ("content-length", "65537")];
    rest.send(&token, "POST /subscriptions", &long, b"").problem(413, "too-large");

    // Parameters.
    for query in [
        "limit=0",
        "limit=101",
        "limit=x",
        "limit=1&limit=1",
        "cursor=x",
        "cursor=1.x",
        "state=x",
        "colour=1",
        "resource_id=%00",
    ] {
        ask(&format!("GET /subscriptions?{query}"), Value::Null).problem(400, "wrong-parameter");
    }
    ask(&format!("GET /subscriptions?resource_id={}", "x".repeat(512)), Value::Null).problem(400, "wrong-parameter");
    // Where a token may not; where it may, there is nothing; and what is another one's is the same.
    ask("GET /events", Value::Null).problem(403, "out-of-scope");
    for id in ["x", "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"] {
        ask(&format!("GET /subscriptions/{id}"), Value::Null).problem(404, "not-found");
    }
    // Two that would be the same.
    let make = |path: &str| {
        let made = ask("POST /subscriptions", json!({ "callback_url": receiver.url(path), "resource": "all" }));
        format!("/subscriptions/{}", made.good(201)["id"].as_str().unwrap())
    };
    let (one, _) = (make("/quick/1"), make("/quick/2"));
    ask(&format!("PATCH {one}"), json!({ "callback_url": receiver.url("/quick/2") })).problem(409, "there-already");
    ask(&format!("PATCH {one}"), json!({ "state": "active" })).problem(409, "another-state");
    ask(&format!("PATCH {one}"), json!({ "resource": "all" })).problem(422, "wrong-fields");
    ask(&format!("POST {one}/redeliver"), json!({ "event": "x" })).problem(422, "wrong-fields");
    ask(&format!("POST {one}/redeliver"), json!({ "event": format!("evt_{}", "0".repeat(32)) }))
        .problem(404, "not-found");
    ask(&format!("POST {one}/recover"), json!({})).problem(422, "wrong-fields");
    ask(&format!("GET {one}/attempts"), Value::Null).problem(400, "wrong-parameter");
    // What is notified again to a callback that has not answered its question would not come.
    let event = happen(&mut scene, 1, "message.delivered").remove(0);
    let columns =
        "event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, host, diff, created_at";
    scene
        .database
        .execute(&format!("INSERT INTO events ({columns}, published_at) SELECT {columns}, created_at FROM outbox"));
    for (what, body) in [
        ("redeliver", json!({ "event": event })),
        ("recover", json!({ "since": "2020-01-01T00:00:00Z", "only": "all" })),
    ] {
        let refusal = ask(&format!("POST {one}/{what}"), body).problem(409, "another-state");
        assert!(refusal["detail"].as_str().unwrap().starts_with("it is unverified: its callback has not"), "{refusal}");
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM notifications"), 0);

    // Pages: each of them once.
    (3..8).for_each(|n| drop(make(&format!("/quick/{n}"))));
    let (mut seen, mut query) = (BTreeSet::new(), "?limit=3".to_owned());
    for length in [3, 3, 1] {
        let page = ask(&format!("GET /subscriptions{query}"), Value::Null);
        let items = page.good(200)["items"].clone();
        seen.extend(items.as_array().unwrap().iter().map(|one| one["id"].to_string()));
        assert_eq!(items.as_array().unwrap().len(), length);
        let link = page.headers.get("link").map(|link| link.split(['<', '>']).nth(1).unwrap().to_owned());
        assert_eq!(link.is_none(), length == 1, "{page:?}");
        query = link.unwrap_or_default();
    }
    assert_eq!(seen.len(), 7);

    // Too many of them; and too often, which harms no other token.
    let (postgres, now) = (engine.is_postgres(), if engine.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" });
    let fill = (0..993).map(|n| {
        let (digest, id) = (format!("{n:064x}"), format!("{n:032x}"));
        let bytes = |digits: &str| if postgres { format!("decode('{digits}', 'hex')") } else { format!("X'{digits}'") };
        let id = if postgres { format!("'{id}'") } else { bytes(&id) };
        let more = if postgres { String::new() } else { format!(", {}, '[]', ''", bytes(&digest)) };
        format!("({id}, 'token:agency', 'https://example.com/', {}, 'all', {now}, {now}{more})", bytes(&digest))
    });
    let more = if postgres { "" } else { ", target_digest, types, description" };
    scene.database.execute(&format!(
        "INSERT INTO subscriptions (id, owner, callback_url, callback_digest, resource, created_at, updated_at{more}) VALUES {}",
        fill.collect::<Vec<_>>().join(", ")
    ));
    ask("POST /subscriptions", json!({ "callback_url": url, "resource": "all" }))
        .problem(409, "too-many-subscriptions");
    // One that is there already is answered with itself all the same.
    let again = ask("POST /subscriptions", json!({ "callback_url": receiver.url("/quick/3"), "resource": "all" }));
    assert!(again.good(200)["secret"].is_string(), "{again:?}");
    let slow = rest.token(&["--name", "slow", "--scope", "events:read", "--rate", "1"]);
    wait_until("it is too often", || rest.ask(&slow, "GET /events", None).status == 429);
    // A moment may have passed: the next one is refused again sooner or later.
    wait_until("it says when", || {
        let refused = rest.ask(&slow, "GET /events", None);
        refused.status == 429 && refused.problem(429, "too-many-requests").is_object()
    });
    ask("GET /subscriptions", Value::Null).good(200);
    // Who has no token uses up nobody's share, and is notified nothing.
    rest.ask("", "GET /events", None).problem(401, "no-token");
    rest.end();
}

/// `trace`, `stats` and `check`, by the role of people.
fn who_looks_after_the_site_sees_who_was_notified_and_that_nobody_is(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &["doug"]), Receiver::start());
    let rest = Rest::start(&mut scene, "");
    let token = rest.token(&["--name", "crm", "--scope", "subscriptions:write", "--rate", "10000"]);
    let subscribe = |path: &str| {
        let wanted = json!({ "callback_url": receiver.url(path), "resource": "all" });
        rest.ask(&token, "POST /subscriptions", Some(&wanted)).good(201)["id"].as_str().unwrap().to_owned()
    };
    let (quick, mute) = (subscribe("/quick"), subscribe("/mute"));
    scene.deliver("doug", scene.message("a")).delivered();
    let people = scene.path("people.toml");
    let figure = |name: &str| {
        let asked = ["stats", "--since", "1h", "--format", "prometheus", "--config", &people];
        let text = program(&asked).output().unwrap();
        let text = String::from_utf8(text.stdout).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("maildrop_{name} ")).map(ToOwned::to_owned));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse::<f64>().unwrap()
    };
    assert_eq!((figure("unpublished_events"), figure("pending_notifications")), (1.0, 0.0));
    let warned = || {
        let printed = program(&["check", "--json", "--config", &people]).output().unwrap();
        let findings: Value =
            serde_json::from_slice(&printed.stdout).unwrap_or_else(|error| panic!("{error}: {printed:?}"));
        let unpublished = |found: &&Value| found["found"].as_str().unwrap().ends_with(", and no notifier does it");
        findings.as_array().unwrap().iter().filter(unpublished).count()
    };
    assert_eq!(warned(), 0);
    let minutes_ago =
        if engine.is_postgres() { "created_at - interval '6 minutes'" } else { "created_at - INTERVAL 6 MINUTE" };
    // It happened after they had subscribed.
    for table in ["subscriptions", "outbox"] {
        scene.session().execute(&format!("UPDATE {table} SET created_at = {minutes_ago}"));
    }
    assert_eq!(warned(), 1);
    assert!(figure("oldest_unpublished_event_seconds") > 300.0);

    let notifier = Notifier::start(&mut scene);
    wait_until("the one that answers is notified", || receiver.taken("/quick").len() == 2);
    let message_id = scene.message_id("a");
    let traced = || {
        let traced = rest.cli(&["trace", &message_id]);
        traced["messages"][0]["notifications"].clone()
    };
    let state = |traced: &Value, id: &str| {
        let all = traced[0]["subscriptions"].as_array().unwrap();
        all.iter().find(|to| to["subscription"] == id).map(|to| (to["state"].clone(), to["tries"].clone()))
    };
    wait_until("that is written down", || state(&traced(), &quick) == Some(("accepted".into(), 1.into())));
    // The other one has not shown that it wants to be notified.
    assert_eq!((traced().as_array().unwrap().len(), state(&traced(), &mute)), (1, Some(("pending".into(), 0.into()))));
    assert_eq!(traced()[0]["type"], "message.delivered");
    assert_eq!((warned(), figure("unpublished_events"), figure("pending_notifications")), (0, 0.0, 1.0));
    let text = program(&["trace", &scene.message_id("a"), "--config", &scene.path("people.toml")]).output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains(&quick), "{text:?}");
    // Who delivers sees nothing of it, and no error.
    let role = format!("{}_d", scene.run);
    scene.database.create_role_of_grants_file(&role, "secret");
    let deliveries = scene.other_configuration("deliver.toml", |settings| settings.role = role);
    let text = std::fs::read_to_string(&deliveries).unwrap().replace("database.password", "page.password");
    std::fs::write(&deliveries, text).unwrap();
    let traced = program(&["trace", &scene.message_id("a"), "--json", "--config", &deliveries]).output().unwrap();
    assert!(
        traced.status.success() && !String::from_utf8_lossy(&traced.stdout).contains("notifications"),
        "{traced:?}"
    );
    notifier.end();
    rest.end();
}
