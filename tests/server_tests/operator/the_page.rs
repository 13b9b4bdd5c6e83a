//! The page, on each engine, by a role that has the rights of `grants-web.sql` and no others: what it shows is what `trace` and `stats`
//! tell.

use crate::support::database::Engine;
use crate::support::program::{program, wait_until};
use crate::support::scene::{LISA, Scene};
use crate::support::service::Service;
use crate::support::visitor::{Page, rows, text};
use maildrop_command::config::Config;
use maildrop_command::site::Site;
use maildrop_command::web::WebSettings;

on_each_engine!(
    each_screen_is_shown_with_the_pages_own_rights,
    who_is_logged_in_is_kept_in_the_database_as_digests_only,
    a_session_that_the_server_has_ended_is_opened_anew
);

/// The site as the page's own role sees it, and a link that logs somebody in.
fn page_of(scene: &mut Scene) -> (Site, String) {
    let role = format!("{}_w", scene.run);
    scene.database.create_page(&role, "secret");
    scene.file("page.password", "secret\n", 0o600);
    let own = scene.other_configuration("page.toml", |settings| settings.role = role);
    let config = std::fs::read_to_string(&own).unwrap().replace("database.password", "page.password");
    std::fs::write(&own, config).unwrap();
    (Site::configured(Config::load(own.as_ref()).unwrap()).unwrap(), link(scene, "admin"))
}

/// A link, as an operator has it printed who has the rights for that.
fn link(scene: &mut Scene, role: &str) -> String {
    let operator = format!("{}_o", scene.run);
    let config = scene.path("operator.toml");
    if !std::fs::exists(&config).unwrap() {
        scene.database.create_operator(&operator, "secret");
        scene.file("operator.password", "secret\n", 0o600);
        scene.other_configuration("operator.toml", |settings| {
            settings.role = operator;
            settings.more += "[web]\nlisten = \"127.0.0.1:8025\"\n";
        });
        let text = std::fs::read_to_string(&config).unwrap().replace("database.password", "operator.password");
        std::fs::write(&config, text).unwrap();
    }
    let arguments = ["web", "login", "--name", "anna", "--role", role, "--config", config.as_str()];
    let output = program(&arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn each_screen_is_shown_with_the_pages_own_rights(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    let (site, link) = page_of(&mut scene);
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    let (one, two) = (scene.message("one"), scene.message("two"));
    scene.deliver_with("doug", &["--queue-id", "4bOne"], &one).delivered();
    scene.deliver("scuba", &one).delivered();
    // Of the other message one copy is put off, since somebody has the lock.
    scene.deliver("doug", &two).delivered();
    let id = scene.message_id("two");
    let holder = scene.hold(&id);
    scene.deliver_with("scuba", &["--lock-wait", "0s", "--queue-id", "4bTwo"], &two).deferred("4.3.0 ");
    drop(holder);

    let encoded: String = url::form_urlencoded::byte_serialize(id.as_bytes()).collect();
    for (query, count, has) in [
        (String::new(), 4, "put off: another delivery held the lock"),
        ("state=delivered".into(), 3, "doug@mail.axial.net"),
        ("state=deferred".into(), 1, "put off: another delivery held the lock"),
        ("state=refused".into(), 0, "Nothing was tried"),
        ("state=open".into(), 0, "Nothing was tried"),
        ("state=owed".into(), 0, "No Sent copy is owed"),
        ("role=sent".into(), 4, "copy for Sent of lisa"),
        ("role=all".into(), 8, "doug@mail.axial.net"),
        (format!("user={}", scene.user("doug")), 2, "doug@mail.axial.net"),
        ("host=elsewhere".into(), 0, "Nothing was tried"),
        ("q=scuba%40mail.axial.net".into(), 2, "Taken as an address"),
        (format!("q={LISA}&since=1h"), 4, "Taken as an address"),
        ("q=4bOne&state=delivered".into(), 1, "Taken as a queue id"),
        (format!("q={encoded}&state=deferred"), 1, "Taken as a Message-ID"),
    ] {
        let shown = anna.get(&format!("/?{query}"));
        let text = text(shown.shown());
        assert!(rows(&shown.body) == count && text.contains(has), "{query}: {}: {text}", rows(&shown.body));
    }
    let figures = text(anna.get("/").shown());
    assert!(figures.contains("3 delivered, last hour 1 waiting to be tried again"), "{figures}");
    let message = anna.get(anna.get(&format!("/?q={encoded}")).leads_to());
    let told = text(message.shown());
    for has in
        ["STILL DEFERRED for scuba@mail.axial.net", "Delivered to 1 of 2.", &id, "queue id 4bTwo", "Sent of lisa"]
    {
        assert!(told.contains(has), "{has}: {told}");
    }
    let statistics = text(anna.get("/statistics?span=1d").shown());
    assert!(statistics.contains("Outcomes of 4 attempts") && statistics.contains("put off 1 25.0 %"), "{statistics}");
    assert!(text(anna.get("/logins").shown()).contains("anna admin"));

    // Who waits for a lock, and who has it.
    let (three, id) = (scene.message("three"), scene.message_id("three"));
    let holder = scene.hold(&id);
    let waiting = scene.start("doug", &["--lock-wait", "200s"], &three);
    wait_until("the lock is shown, and who waits for it", || {
        let locks = text(anna.get("/locks").shown());
        locks.contains(&id) && locks.contains(" holds ") && locks.contains(" waits ")
    });
    drop(holder);
    waiting.end().delivered();
}

fn who_is_logged_in_is_kept_in_the_database_as_digests_only(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let (site, link) = page_of(&mut scene);
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    let token = link.trim().split_once('#').unwrap().1;
    let again = page.ask("POST", "/login", &[], &format!("token={token}"));
    assert_eq!(again.status.as_u16(), 403, "it was good once");
    anna.get("/").shown();
    let mut session = scene.session();
    let hex = if engine.is_postgres() { "encode(digest, 'hex')" } else { "lower(hex(digest))" };
    let cookie = anna.cookie.split_once('=').unwrap().1;
    let kept = session.texts(&format!("SELECT {hex} FROM web_sessions"));
    let digest: String = ring::digest::digest(&ring::digest::SHA256, cookie.as_bytes())
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(kept, [digest]);
    // Twelve hours pass.
    session.execute(if engine.is_postgres() {
        "UPDATE web_sessions SET seen_at = seen_at - interval '12 hours 1 second'"
    } else {
        "UPDATE web_sessions SET seen_at = seen_at - INTERVAL 43201 SECOND"
    });
    assert_eq!(anna.get("/").leads_to(), "/login");
    assert!(session.texts(&format!("SELECT {hex} FROM web_sessions")).is_empty());
}

fn a_session_that_the_server_has_ended_is_opened_anew(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let (site, link) = page_of(&mut scene);
    let page = Page::of(&site);
    let anna = page.log_in(&link);
    anna.get("/").shown();
    let role = format!("{}_w", scene.run);
    let mut session = scene.session();
    if engine.is_postgres() {
        session
            .texts(&format!("SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE usename = '{role}'"));
    } else {
        for id in
            session.texts(&format!("SELECT CAST(id AS CHAR) FROM information_schema.processlist WHERE user = '{role}'"))
        {
            session.execute(&format!("KILL {id}"));
        }
    }
    // One that was trusted as it was used a moment ago may fail once, for each thread; then it is another one.
    wait_until("it is shown again", || (0..8).all(|_| anna.get("/").status.is_success()));
}

#[test]
fn operators_see_how_the_service_is_and_viewers_do_not() {
    let mut scene = Scene::empty(Engine::Postgres17);
    let service = Service::start(&mut scene);
    let (site, _) = page_of(&mut scene);
    let config = scene.other_configuration("web.toml", |settings| {
        settings.more += "[web]\nlisten = \"127.0.0.1:8025\"\n";
    });
    let settings = WebSettings::of(&Config::load(config.as_ref()).unwrap()).unwrap();
    let page = Page::by(&site, &settings);
    let operator = page.log_in(&link(&mut scene, "operator"));
    let shown = operator.get("/service");
    let told = text(shown.shown());
    for has in ["It is well: maildropd", "worker 2 ready", "front ready", "runner 1 ready", "set aside 0"] {
        assert!(told.contains(has), "{has}: {told}");
    }
    assert_eq!(rows(&shown.body), service.status()["processes"].as_array().unwrap().len());
    let viewer = page.log_in(&link(&mut scene, "viewer"));
    assert_eq!(viewer.get("/service").status.as_u16(), 403);
    assert!(!viewer.get("/").shown().contains("/service"));
    service.end();
    let gone = operator.get("/service");
    assert_eq!(gone.status.as_u16(), 503);
    assert!(text(&gone.body).contains("maildropd is not running"), "{gone:?}");
}
