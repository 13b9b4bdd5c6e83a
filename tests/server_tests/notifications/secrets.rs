//! What signs, and what lets in, is in no log, in no table and on no page but the one that is asked for it: a copy gives nobody anything.

use crate::fixtures::rest_client::{crm_subscribes, link};
use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::KEY;
use crate::support::crawl::follow_links;
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use crate::web_ui::subscriptions_screen::page_by_its_role;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

on_two_engines!(no_log_no_table_and_no_page_has_a_secret_or_a_token);

/// After all that has to do with them was done.
fn no_log_no_table_and_no_page_has_a_secret_or_a_token(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &["doug"]), Receiver::start());
    let (notifier, rest, token, made) = crm_subscribes(&mut scene, &receiver.url("/quick"));
    let id = made["id"].as_str().unwrap();
    let rotated = rest.ask(&token, &format!("POST /subscriptions/{id}/secret"), None).good(200);
    // One that is nearly right is not written down, either.
    let other = if token.ends_with('x') { 'y' } else { 'x' };
    let wrong = format!("{}{other}", &token[..token.len() - 1]);
    rest.ask(&wrong, "GET /subscriptions", None).problem(401, "wrong-token");
    scene.deliver("doug", scene.message("a")).delivered();
    wait_until("it is notified", || receiver.taken("/quick").len() == 2);
    notifier.end();
    let link = link(&rest.config, "admin");
    rest.end();
    let page = page_by_its_role(&scene);
    let anna = page.log_in(&link);
    let mut pages = String::new();
    // No service runs here.
    let addresses = follow_links(&anna, &["/service"], |path, answer| {
        pages += path;
        pages += &answer.body;
    });
    for wanted in ["/subscriptions", &format!("/subscriptions/{id}"), "/log", "/logins"] {
        assert!(addresses.contains(wanted), "{wanted}: {addresses:?}");
    }
    for kind in ["/messages/", "/events/evt_"] {
        assert!(addresses.iter().any(|address| address.contains(kind)), "{kind}: {addresses:?}");
    }
    let asked_for = anna.post(&format!("/subscriptions/{id}/secret"), "");
    let asked_for = asked_for.shown();

    let dump = dump(&mut scene);
    let log = scene.log();
    // What is looked for would be found.
    let id_is_there = dump.contains(id) || dump.contains(&id.replace('-', ""));
    assert!(id_is_there && dump.contains("token:crm") && log.contains(id));
    assert!(pages.contains(id) && pages.contains("token:crm") && pages.contains("anna"));
    let secret =
        |created: &serde_json::Value| created["secret"].as_str().unwrap().trim_start_matches("whsec_").to_owned();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for (what, text) in [
        ("the first secret", secret(&made)),
        ("the second one", secret(&rotated)),
        ("the first one as bytes", hex(&STANDARD.decode(secret(&made)).unwrap())),
        ("the second one as bytes", hex(&STANDARD.decode(secret(&rotated)).unwrap())),
        ("the token", token.trim_start_matches("mdt_").to_owned()),
        ("the wrong one", wrong.trim_start_matches("mdt_").to_owned()),
        ("the key of secrets", hex(&KEY)),
        ("the key of secrets, in base64", STANDARD.encode(KEY)),
        ("the link to log in", link.trim().split_once('#').unwrap().1.to_owned()),
        ("the cookie", anna.cookie.split_once('=').unwrap().1.to_owned()),
    ] {
        assert!(!dump.contains(&text), "{what} is in a table");
        assert!(!dump.contains(&hex(text.as_bytes())), "{what} is in a table, as bytes");
        assert!(!log.contains(&text), "{what} is in the log");
        assert!(!pages.contains(&text), "{what} is on a page");
        assert_eq!(asked_for.contains(&text), what == "the second one", "{what} is where secrets are asked for");
    }
}

/// Every row of every table. Bytes are written as hexadecimal digits.
fn dump(scene: &mut Scene) -> String {
    let postgres = scene.database.engine.is_postgres();
    let ours = if postgres { "'public'" } else { "DATABASE()" };
    let tables = format!(
        "SELECT CONCAT(table_name, '') FROM information_schema.tables \
         WHERE table_schema = {ours} AND table_type = 'BASE TABLE'"
    );
    let tables = scene.database.texts(&tables);
    assert!(tables.iter().any(|table| table == "subscriptions") && tables.len() > 10, "{tables:?}");
    let mut rows = Vec::new();
    for table in tables {
        let row = if postgres {
            "t::text".to_owned()
        } else {
            let columns = scene.database.texts(&format!(
                "SELECT IF(data_type LIKE '%binary' OR data_type LIKE '%blob', CONCAT('LOWER(HEX(t.`', column_name, '`))'), \
                 CONCAT('t.`', column_name, '`')) FROM information_schema.columns \
                 WHERE table_schema = {ours} AND table_name = '{table}'"
            ));
            format!("CONVERT(CONCAT_WS('|', {}) USING utf8mb4)", columns.join(", "))
        };
        rows.extend(scene.database.texts(&format!("SELECT {row} FROM {table} t")));
    }
    rows.join("\n")
}
