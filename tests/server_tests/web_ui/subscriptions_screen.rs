//! An operator looks after subscriptions on the page: sees who is behind and why, and has what failed sent once more.

use crate::fixtures::rest_client::{Rest, configuration, link, people};
use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{KEY, Notifier, PENDING, happen, subscribe, verify_with};
use crate::support::browser::{Browser, Forwarder};
use crate::support::crawl::crawl;
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use crate::support::visitor::{Page, Visitor, rows, text};
use maildrop_command::config::Config;
use maildrop_command::http::web::WebSettings;
use maildrop_command::site::Site;
use maildrop_command::webhook::MasterKey;
use uuid::Uuid;

on_two_engines![
    what_failed_is_seen_with_its_answer_and_arrives_once_it_is_sent_again,
    a_subscription_is_tested_paused_resumed_and_given_another_secret,
    a_page_without_the_rights_for_it_says_what_fixes_that,
    who_was_notified_of_a_message_and_who_was_not_stands_on_its_screen,
    what_was_taken_is_shown_page_by_page_to_the_first,
];

/// The page with the rights of grants-web.sql and grants-api.sql, and the configuration of people who log in to it.
fn page_of(scene: &mut Scene) -> (Page, String) {
    let people = people(scene, "");
    (page_by_its_role(scene), people)
}

/// The same page, where [`people`] has made its role.
pub fn page_by_its_role(scene: &Scene) -> Page {
    // Notifications say where their message can be read where there is an API, which the notifier of these tests knows nothing of.
    let config = configuration(scene, "", "127.0.0.1:8025");
    std::fs::write(&config, std::fs::read_to_string(&config).unwrap().replace("api = true", "api = false")).unwrap();
    let settings = WebSettings::of(&load(&config)).unwrap();
    let site = Site::configured(load(&scene.path("page.toml"))).unwrap();
    Page::by(&site, &settings)
}

fn load(file: &str) -> Config {
    Config::load(file.as_ref()).unwrap()
}

fn operator<'a>(page: &'a Page, people: &str) -> Visitor<'a> {
    page.log_in(&link(people, "operator"))
}

/// All that was tried has failed to its end. What a receiver in a network of ours has answered is not kept: this stands for another
/// one's.
fn give_up(scene: &mut Scene) {
    let now = if scene.database.engine.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" };
    scene.database.execute(&format!("UPDATE notifications SET due_at = NULL, given_up_at = {now} WHERE tries > 0"));
    scene
        .database
        .execute("UPDATE notification_attempts SET response = '<script>window.hit = 1</script> no room\u{202e}'");
}

/// What the operations log has: who, what, and what came of it, the newest first.
fn log(visitor: &Visitor<'_>) -> String {
    text(visitor.get("/log").shown())
}

/// One notification is requeued, of what happened three hours ago, and another subscription is disabled: until this
/// returns. The figures above the list are counted once for all who look by then.
fn activity_tells_of_it(scene: &mut Scene, page: &Page, people: &str) {
    let (now, hours) = match scene.database.engine.is_postgres() {
        true => ("now()", "interval '3 hours'"),
        false => ("UTC_TIMESTAMP(6)", "INTERVAL 3 HOUR"),
    };
    let one = "WHERE event = (SELECT min(position) FROM events)";
    let disable = |state: &str| format!("UPDATE subscriptions SET state = '{state}' WHERE resource = 'domain'");
    scene.database.execute(&format!("UPDATE events SET created_at = created_at - {hours}"));
    scene.database.execute(&format!("UPDATE notifications SET due_at = {now}, given_up_at = NULL {one}"));
    scene.database.execute(&disable("disabled"));
    let figures_text = operator(page, people).figures();
    assert!(
        figures_text
            .contains("1 subscription is disabled, and 1 notification was given up within a day. Subscriptions"),
        "{figures_text}"
    );
    assert!(
        figures_text.contains("notifications behind") && figures_text.contains("refused, last hour"),
        "{figures_text}"
    );
    let (before, _) = figures_text.split_once("notifications behind").unwrap();
    assert!(
        before.trim_end().rsplit("Returned to the sender.").next().unwrap().trim().starts_with("3h"),
        "{figures_text}"
    );
    // It is another screen's, which is not for all.
    let counts = page.log_in(&link(people, "viewer")).figures();
    assert!(!counts.contains("notifications behind") && !counts.contains("disabled"), "{counts}");
    scene.database.execute(&disable("active"));
    scene.database.execute(&format!("UPDATE events SET created_at = created_at + {hours}"));
    give_up(scene);
}

fn what_failed_is_seen_with_its_answer_and_arrives_once_it_is_sent_again(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let id = subscribe(&mut scene, ("all", ""), &receiver.url("/broken"), &[("description", "'the CRM'")]);
    let other = subscribe(&mut scene, ("domain", "elsewhere.example"), &receiver.url("/quick"), &[]);
    let (page, people) = page_of(&mut scene);
    let anna = operator(&page, &people);
    let events = happen(&mut scene, 2, "message.delivered");
    let notifier = Notifier::start(&mut scene);
    wait_until("both were tried to the long wait", || {
        scene.database.count("SELECT count(*) FROM notifications WHERE tries >= 3") == 2
    });
    notifier.end();
    give_up(&mut scene);
    activity_tells_of_it(&mut scene, &page, &people);

    let list = anna.get("/subscriptions");
    let notifications = text(list.shown());
    assert_eq!(rows(&list.body), 2, "{notifications}");
    for has in
        ["anna the CRM", "all mail", "domain elsewhere.example", "active , failing since", "answered 500", "none yet"]
    {
        assert!(notifications.contains(has), "{has}: {notifications}");
    }
    let it = format!("/subscriptions/{id}");
    let one = text(anna.get(&it).shown());
    for has in ["Given up 2", "failed", "given up", "message.delivered", "Send all of them again", &events[0]] {
        assert!(one.contains(has), "{has}: {one}");
    }
    let shown = |show: &str| rows(anna.get(&format!("{it}?show={show}")).shown());
    assert_eq!([shown("given_up"), shown("pending"), shown("taken")], [2, 0, 0]);
    assert_eq!(anna.get(&format!("{it}?show=gone")).status.as_u16(), 404);
    assert_eq!(anna.get(&format!("{it}?before=x")).status.as_u16(), 404);

    // One of them: what was sent, and what a stranger's server answered, as text.
    let event = anna.get(&format!("{it}/events/{}", events[0]));
    let screen_text = text(event.shown());
    for has in [
        "given up",
        "answered 500",
        "no room[U+202E]",
        "webhook-id",
        &events[0],
        "maildrop-subscription",
        &id.to_string(),
    ] {
        assert!(screen_text.contains(has), "{has}: {screen_text}");
    }
    assert!(!event.body.contains("<script>window"), "{}", event.body);
    let sent = &receiver.came("/broken").into_iter().find(|request| request.id() == events[0]).unwrap().body;
    assert!(screen_text.contains(sent), "the very bytes that came: {sent}: {screen_text}");
    // What is of no concern to the other one is not shown with it.
    assert_eq!(anna.get(&format!("/subscriptions/{other}/events/{}", events[0])).status.as_u16(), 404);
    assert_eq!(anna.get(&format!("{it}/events/evt_{}", Uuid::now_v7().simple())).status.as_u16(), 404);

    // The receiver is fixed.
    receiver.release();
    let done = anna.post(&format!("{it}/redeliver"), &format!("event={}", events[0]));
    let back = anna.get(done.leads_to());
    assert!(text(back.shown()).contains("1 notification is due again."), "{}", back.body);
    let notifier = Notifier::start(&mut scene);
    wait_until("it arrives", || receiver.taken("/broken").len() == 1);
    assert_eq!(receiver.taken("/broken")[0].id(), events[0]);
    let all = anna.post(&format!("{it}/recover"), "since=1h");
    assert!(text(anna.get(all.leads_to()).shown()).contains("1 notification is due again."));
    wait_until("the other one arrives", || receiver.taken("/broken").len() == 2 && scene.database.count(PENDING) == 0);
    notifier.end();
    assert_eq!([shown(""), shown("taken")], [0, 2]);
    let page_text = text(anna.get(&format!("{it}/events/{}", events[1])).shown());
    assert!(page_text.contains("taken, 204") && page_text.contains("answered 500"), "{page_text}");
    let unverified = "UPDATE subscriptions SET state = 'unverified' WHERE owner = 'anna'";
    scene.database.execute(unverified);
    for (what, form) in [("redeliver", format!("event={}", events[0])), ("recover", "since=1h".into())] {
        let not = anna.post(&format!("{it}/{what}"), &form);
        let screen = text(anna.get(not.leads_to()).shown());
        assert!(screen.contains("Nothing was done: it is unverified: its callback has not"), "{screen}");
    }
    assert_eq!(scene.database.count(PENDING), 0);
    scene.database.execute(&unverified.replace("'unverified'", "'active'"));
    let wrong = anna.post(&format!("{it}/recover"), "since=yesterday");
    assert!(wrong.status.as_u16() == 422 && text(&wrong.body).contains("write it like 2d"), "{wrong:?}");

    // Its message is none of this site's, and no service runs.
    let asked = crawl(&anna, &["/messages/", "/service"]);
    assert!(asked > 1000, "{asked}");

    // Who did it is written down, and viewers see none of this.
    let log = log(&anna);
    for has in ["notified again", &events[0], "1 notification is due again", &id.to_string()] {
        assert!(log.contains(has), "{has}: {log}");
    }
    let viewer = page.log_in(&link(&people, "reader"));
    for path in ["/subscriptions".to_owned(), it.clone(), format!("{it}/events/{}", events[0])] {
        assert_eq!(viewer.get(&path).status.as_u16(), 403, "{path}");
    }
    assert_eq!(viewer.post(&format!("{it}/pause"), "").status.as_u16(), 403);
    assert!(!viewer.get("/").shown().contains("/subscriptions"));
}

/// A page has fifty of them, and the last page leads nowhere.
fn what_was_taken_is_shown_page_by_page_to_the_first(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let id = subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[]);
    let (page, people) = page_of(&mut scene);
    let anna = operator(&page, &people);
    let notifier = Notifier::start(&mut scene);
    let taken = format!("/subscriptions/{id}?show=taken");
    let mut pages = |more: usize| {
        happen(&mut scene, more, "message.delivered");
        wait_until("they are taken", || {
            scene.database.count("SELECT count(*) FROM outbox") == 0 && scene.database.count(PENDING) == 0
        });
        let (mut next, mut pages) = (Some(taken.clone()), Vec::new());
        while let Some(address) = next {
            let shown = anna.get(&address);
            pages.push(rows(shown.shown()));
            let older = shown.body.split("rel=\"next\"").next().filter(|before| before.len() < shown.body.len());
            next = older.and_then(|before| {
                before.rsplit("href=\"").next()?.split('"').next().map(|to| to.replace("&amp;", "&"))
            });
        }
        pages
    };
    assert_eq!(pages(3), [3]);
    assert_eq!(pages(51), [50, 4]);
    notifier.end();
}

fn a_subscription_is_tested_paused_resumed_and_given_another_secret(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let id = subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[]);
    let (page, people) = page_of(&mut scene);
    let anna = operator(&page, &people);
    let it = format!("/subscriptions/{id}");
    let after = |action: &str| {
        let done = anna.post(&format!("{it}/{action}"), "");
        text(anna.get(done.leads_to()).shown())
    };
    assert!(after("test").contains("A test notification is being sent"));
    let notifier = Notifier::start(&mut scene);
    wait_until("the test came", || receiver.taken("/quick").len() == 1);
    let test = receiver.taken("/quick").pop().unwrap();
    assert_eq!(test.json()["type"], "subscription.test");
    // The secret by which it was signed.
    let secret = |generation| MasterKey::new(&KEY).secret(id, generation).expose();
    let shown = anna.post(&format!("{it}/secret"), "");
    assert!(shown.shown().contains(&secret(1)), "{}", shown.body);
    assert_eq!(shown.header("cache-control"), "no-store");
    verify_with(&test, &secret(1)).unwrap();
    for path in [it.clone(), "/subscriptions".into(), "/log".into()] {
        assert!(!anna.get(&path).shown().contains("whsec_"), "{path}");
    }
    assert_eq!(anna.get(&format!("{it}/secret")).status.as_u16(), 405, "a link shows none");

    assert!(after("new-secret").contains("It has another secret."));
    let both = anna.post(&format!("{it}/secret"), "");
    assert!(both.shown().contains(&secret(2)) && text(&both.body).contains("signs beside it until"), "{}", both.body);

    assert!(after("pause").contains("It gets nothing now."));
    assert!(after("pause").contains("Nothing was done"));
    assert!(after("test").contains("Nothing was done"));
    happen(&mut scene, 1, "message.delivered");
    wait_until("it is kept", || scene.database.count(PENDING) == 1);
    let screen = text(anna.get(&it).shown());
    assert!(screen.contains("State paused") && screen.contains("Pending 1, the oldest of them for"), "{screen}");
    assert!(after("resume").contains("It gets notifications again"));
    wait_until("what was kept is reported", || receiver.taken("/quick").len() == 2);
    for generation in [1, 2] {
        verify_with(&receiver.taken("/quick")[1], &secret(generation)).unwrap();
    }
    notifier.end();
    let log = log(&anna);
    for has in [
        "tested a subscription",
        "looked at a secret",
        "rotated a secret",
        "paused a subscription",
        "resumed a subscription",
        "it was in another state",
    ] {
        assert!(log.contains(has), "{has}: {log}");
    }
    assert!(!log.contains("whsec_"));

    // Where it cannot be written down, nothing is shown and nothing is done.
    scene.database.execute("DROP TABLE operations");
    let generation = |scene: &mut Scene| {
        scene.database.count("SELECT sum(secret_generation) FROM subscriptions WHERE secret_generation = 2")
    };
    assert_eq!(generation(&mut scene), 2);
    for action in ["secret", "new-secret"] {
        let refused = anna.post(&format!("{it}/{action}"), "");
        assert!(!refused.body.contains("whsec_") && refused.status.as_u16() != 303, "{refused:?}");
    }
    assert_eq!(generation(&mut scene), 2);
}

#[test]
fn a_subscription_is_deleted_once_its_page_has_sent_what_is_lost() {
    let (mut scene, receiver) = (Scene::with(Engine::Postgres17, &[]), Receiver::start());
    let id = subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[]);
    let (page, people) = page_of(&mut scene);
    let anna = operator(&page, &people);
    let it = format!("/subscriptions/{id}");
    assert!(anna.get(&it).shown().contains(&format!("href=\"{it}/delete\"")));
    let question = text(anna.get(&format!("{it}/delete")).shown());
    for has in ["Deleting it cannot be undone", "Notifications that are not accepted yet are lost", "pause it instead"]
    {
        assert!(question.contains(has), "{has}: {question}");
    }
    // The question changes nothing.
    anna.get(&it).shown();
    assert!(!log(&anna).contains("removed a subscription"));
    let done = anna.post(&format!("{it}/delete"), "");
    let list = text(anna.get(done.leads_to()).shown());
    assert!(list.contains("The subscription is deleted.") && list.contains("There is no subscription."), "{list}");
    assert!(log(&anna).contains(&format!("removed a subscription {id}")), "{}", log(&anna));
    assert_eq!(scene.database.count("SELECT count(*) FROM subscriptions"), 0);
    for gone in [anna.get(&it), anna.get(&format!("{it}/delete")), anna.post(&format!("{it}/delete"), "")] {
        assert_eq!(gone.status.as_u16(), 404, "{gone:?}");
    }
    // Nothing is deleted that cannot be recorded.
    let kept = subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[]);
    scene.database.execute("DROP TABLE operations");
    let refused = anna.post(&format!("/subscriptions/{kept}/delete"), "");
    assert_ne!(refused.status.as_u16(), 303, "{refused:?}");
    assert_eq!(scene.database.count("SELECT count(*) FROM subscriptions"), 1);
}

fn a_page_without_the_rights_for_it_says_what_fixes_that(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    subscribe(&mut scene, ("all", ""), "https://anna:hidden@example.com/", &[]);
    let people = people(&mut scene, "");
    let role = format!("{}_p", scene.run);
    scene.database.create_page(&role, "secret");
    let own = scene.other_configuration("page.toml", |settings| settings.role = role);
    let config = std::fs::read_to_string(&own).unwrap().replace("database.password", "page.password");
    std::fs::write(&own, config).unwrap();
    let page = Page::of(&Site::configured(load(&own)).unwrap());
    let anna = operator(&page, &people);
    let folder = if engine.is_postgres() { "postgres" } else { "mysql" };
    for path in ["/subscriptions".to_owned(), format!("/subscriptions/{}", Uuid::now_v7())] {
        let shown = anna.get(&path);
        let page_text = text(shown.shown());
        assert!(
            page_text.contains(&format!("sql/ {folder} /grants-api.sql"))
                || page_text.contains(&format!("sql/{folder}/grants-api.sql")),
            "{page_text}"
        );
        assert!(!page_text.contains("hidden"), "{page_text}");
    }
    let screen = text(anna.get("/").shown());
    assert!(screen.contains("refused, last hour") && !screen.contains("notifications behind"), "{screen}");
}

fn who_was_notified_of_a_message_and_who_was_not_stands_on_its_screen(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &["doug"]), Receiver::start());
    // Without any subscription nothing is sent, and the screen says nothing of it.
    scene.deliver("doug", scene.message("none")).delivered();
    subscribe(&mut scene, ("domain", "elsewhere.example"), &receiver.url("/quick"), &[]);
    let (page, people) = page_of(&mut scene);
    let anna = operator(&page, &people);
    let notifier = Notifier::start(&mut scene);
    scene.deliver("doug", scene.message("one")).delivered();
    wait_until("it is known to the notifier", || scene.database.count("SELECT count(*) FROM events") > 0);
    let quick = subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[]);
    let broken = subscribe(&mut scene, ("all", ""), &receiver.url("/broken"), &[]);
    scene.deliver("doug", scene.message("two")).delivered();
    wait_until("both were tried", || {
        let tried = "SELECT count(*) FROM notifications WHERE tries >= 3";
        let taken = receiver.taken("/quick").len() as i64;
        taken > 0
            && scene.database.count(tried) == taken
            && scene.database.count(PENDING) == taken
            && scene.database.count("SELECT count(*) FROM notification_attempts") == 4 * taken
    });

    let run = scene.run.clone();
    let screen = |visitor: &Visitor<'_>, id: &str| {
        let found = visitor.get(&format!("/?q=%3C{id}.{run}%40mail.google.com%3E"));
        visitor.get(found.leads_to()).shown().to_owned()
    };
    let notifications = |visitor: &Visitor<'_>, id: &str| {
        let screen = screen(visitor, id);
        let (_, notifications) = screen.split_once("Notifications of this message").expect("it says who was notified");
        (text(notifications.split("</table>").next().unwrap()), screen)
    };
    assert!(!screen(&anna, "none").contains("Notifications of this message"));
    let (nobody, _) = notifications(&anna, "one");
    assert!(nobody.contains("message.delivered INBOX of") && nobody.contains("no subscriber 0 –"), "{nobody}");
    let (two, page_of_two) = notifications(&anna, "two");
    assert!(two.contains("accepted 1 ") && two.contains("204"), "{two}");
    assert!(two.contains("pending 3 ") && two.contains("answered 500"), "{two}");
    // Each leads to what was sent, for the operator of subscriptions.
    for id in [quick, broken] {
        let to =
            page_of_two.split("href=\"").find(|to| to.starts_with(&format!("/subscriptions/{id}/events/"))).unwrap();
        anna.get(to.split('"').next().unwrap()).shown();
    }
    let viewer = page.log_in(&link(&people, "viewer"));
    let (seen, page_of_viewer) = notifications(&viewer, "two");
    assert_eq!(seen, two);
    assert!(!page_of_viewer.contains("/subscriptions"), "{page_of_viewer}");
    give_up(&mut scene);
    assert!(notifications(&viewer, "two").0.contains("given up 3 "), "{}", notifications(&viewer, "two").0);
    notifier.end();
}

/// The list is longer than a page, and no key is named.
#[test]
fn a_long_list_goes_on_and_a_secret_without_its_key_says_so() {
    let mut scene = Scene::with(Engine::Postgres17, &[]);
    for number in 0..53 {
        subscribe(&mut scene, ("domain", &format!("{number}.example")), "https://example.com/", &[]);
    }
    let people = people(&mut scene, "");
    // With the settings of a page that knows of no key.
    let page = Page::of(&Site::configured(load(&scene.path("page.toml"))).unwrap());
    let anna = operator(&page, &people);
    let first = anna.get("/subscriptions");
    let next = first.shown().split("href=\"").find(|rest| rest.contains("?after=")).unwrap();
    let second = anna.get(next.split('"').next().unwrap());
    assert_eq!((rows(&first.body), rows(second.shown())), (50, 3));
    let both = first.body.clone() + &second.body;
    for number in 0..53 {
        assert_eq!(both.matches(&format!("domain {number}.example<")).count(), 1, "{number}");
    }
    assert_eq!(anna.get("/subscriptions?after=x").status.as_u16(), 404);
    let id = scene.database.texts("SELECT id::text FROM subscriptions LIMIT 1").remove(0);
    let screen = text(anna.post(&format!("/subscriptions/{id}/secret"), "").shown());
    assert!(screen.contains("notifications.secret_key_file") && screen.contains("not named"), "{screen}");
}

/// In a browser, as it is served.
#[test]
fn in_a_browser_what_failed_is_sent_again_and_arrives() {
    let (mut scene, receiver) = (Scene::with(Engine::Postgres17, &["doug"]), Receiver::start());
    let id = subscribe(&mut scene, ("all", ""), &receiver.url("/broken?for=the-platform-of-the-company"), &[]);
    subscribe(
        &mut scene,
        ("domain", "a-rather-long-name-of-a-domain.of-a-customer.example"),
        "https://hooks.example.com/in",
        &[("state", "'paused'")],
    );
    let mut forwarders = Vec::new();
    let served = Rest::start_at(&mut scene, "", || {
        forwarders.push(Forwarder::start());
        forwarders.last().unwrap().port
    });
    let events = happen(&mut scene, 2, "message.delivered");
    let notifier = Notifier::start(&mut scene);
    wait_until("both were tried to the long wait", || {
        scene.database.count("SELECT count(*) FROM notifications WHERE tries >= 3") == 2
    });
    give_up(&mut scene);

    let origin = format!("http://localhost:{}", forwarders.last().unwrap().port);
    let browser = Browser::start();
    let token = link(&served.config, "operator");
    browser.log_in(&format!("{origin}/login#{}", token.trim().split_once('#').unwrap().1));
    let click = |words: &str| {
        browser.script(&format!(
            "[...document.querySelectorAll('main a, main button, header nav a')].find(one => one.innerText.startsWith({words:?})).click()"
        ));
    };
    let it = format!("{origin}/subscriptions/{id}");
    for (name, url) in [
        ("subscriptions", format!("{origin}/subscriptions")),
        ("subscription", format!("{it}?done=tested")),
        ("notification", format!("{it}/events/{}", events[0])),
        ("delete", format!("{it}/delete")),
    ] {
        browser.is_for_everybody(name, &url);
    }
    browser.looks(1280, "light");

    // As people do it, from the first screen on.
    receiver.release();
    browser.go(&origin);
    click("Subscriptions");
    wait_until("the list is there", || browser.text().contains("all mail"));
    click("anna");
    wait_until("the subscription is there", || browser.text().contains("Send all of them again"));
    click(&events[1]);
    wait_until("the notification is there", || browser.text().contains("no room"));
    click("Send again");
    wait_until("it is due", || browser.text().contains("1 notification is due again."));
    wait_until("it arrives", || receiver.taken("/broken?for=the-platform-of-the-company").len() == 1);
    click("Send all of them again");
    wait_until("the other one arrives", || receiver.taken("/broken?for=the-platform-of-the-company").len() == 2);
    wait_until("there are no others", || {
        let text = browser.text();
        text.contains("Show the secret") && !text.contains("Send all of them again")
    });
    click("Show the secret");
    let secret = MasterKey::new(&KEY).secret(id, 1).expose();
    wait_until("the secret is there", || browser.text().contains(&secret));
    browser.shown_is_for_everybody("secret");

    // A message of which somebody was notified.
    scene.deliver("doug", scene.message("one")).delivered();
    wait_until("it is reported", || {
        receiver.taken("/broken?for=the-platform-of-the-company").len() > 2 && scene.database.count(PENDING) == 0
    });
    let message_id: String = url::form_urlencoded::byte_serialize(scene.message_id("one").as_bytes()).collect();
    browser.go(&format!("{origin}/?q={message_id}"));
    assert!(
        browser.text().contains("Notifications of this message") && browser.text().contains("204"),
        "{}",
        browser.text()
    );
    browser.is_for_everybody("message-notified", &browser.url());

    browser.go(&it);
    click("Delete …");
    wait_until("the question is there", || browser.text().contains("Deleting it cannot be undone"));
    click("Delete this subscription");
    wait_until("it is deleted", || browser.text().contains("The subscription is deleted."));
    notifier.end();
    served.end();
}
