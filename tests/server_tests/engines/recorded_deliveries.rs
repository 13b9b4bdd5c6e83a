//! What the ledger says of a message afterwards.

use crate::support::database::Engine;
use crate::support::program::as_delivered;
use crate::support::site_fixture::{LISA, Scene};
use serde_json::json;

on_each_engine!(
    the_message_is_recorded_as_it_reads,
    the_source_is_kept_where_the_operator_wants_it,
    hostile_texts_are_recorded_as_they_are,
    of_one_message_that_comes_twice_the_first_is_recorded_and_the_second_says_so,
    the_earlier_copy_is_reported_with_its_own_envelope_sender_in_either_order,
);

fn row(scene: &mut Scene, expression: &str) -> String {
    let rows = scene.database.texts(&format!("SELECT {expression} FROM messages"));
    assert_eq!(rows.len(), 1, "{expression}");
    rows.into_iter().next().unwrap()
}

fn as_text(engine: Engine, expression: &str) -> String {
    if engine.is_postgres() { format!("({expression})::text") } else { format!("CAST({expression} AS char)") }
}

fn hexadecimal(engine: Engine, column: &str) -> String {
    if engine.is_postgres() { format!("encode({column}, 'hex')") } else { format!("LOWER(HEX({column}))") }
}

fn the_message_is_recorded_as_it_reads(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    let id = scene.message_id("odd");
    let message = format!(
        "Received: from a\n\tby b\nFrom: =?utf-8?q?Lis=C3=A4?= <{LISA}>\nTo: doug@mail.axial.net,\n scuba@mail.axial.net\n\
         Cc: =?iso-8859-1?q?Gr=FC=DFe?= <g@x>\nSubject: =?utf-8?b?8J+Yig==?= it's \\ \"odd\"\nDate: Fri, 20 Nov 2026 \
         13:00:00 +0100\n\
         Message-ID: {id}\nX-Twice: 1\nx-twice: 2\n\nBody\n"
    );
    let arguments = ["--sender", "bounces+1@lists.example", "--queue-id", "4bXyz"];
    scene.deliver_with("doug", &arguments, &message).delivered();
    for (column, wanted) in [
        ("message_id", id.as_str()),
        ("sender", "bounces+1@lists.example"),
        ("header_from", &format!("Lisä <{LISA}>")),
        ("header_to", "doug@mail.axial.net, scuba@mail.axial.net"),
        ("header_cc", "Grüße <g@x>"),
        ("subject", "😊 it's \\ \"odd\""),
    ] {
        assert_eq!(row(&mut scene, column), wanted, "{column}");
    }
    let size = row(&mut scene, &as_text(engine, "size"));
    assert_eq!(size, as_delivered(message.as_bytes()).len().to_string());
    let sent_at = if engine.is_postgres() {
        "(extract(epoch FROM sent_at)::bigint)::text"
    } else {
        "CAST(TIMESTAMPDIFF(SECOND, '1970-01-01', sent_at) AS char)"
    };
    assert_eq!(row(&mut scene, sent_at), "1795176000");
    let headers = row(&mut scene, &as_text(engine, "headers"));
    let headers: serde_json::Value = serde_json::from_str(&headers).unwrap();
    assert_eq!(headers[0], json!(["Received", "from a by b"]));
    assert_eq!(headers.as_array().unwrap().len(), 9);
    assert_eq!((&headers[7], &headers[8]), (&json!(["X-Twice", "1"]), &json!(["x-twice", "2"])));

    let doug = scene.user("doug");
    let lisa = scene.user("lisa");
    let copies = "SELECT CONCAT(role, '|', imap_user, '|', mailbox, '|', recipient, '|', state, '|', uid) FROM copies \
                  ORDER BY role";
    assert_eq!(
        scene.database.texts(copies),
        [
            format!("recipient|{doug}|INBOX|doug@mail.axial.net|delivered|1"),
            format!("sender|{lisa}|Sent|doug@mail.axial.net|delivered|1")
        ]
    );
    let attempts = "SELECT CONCAT(role, '|', recipient, '|', queue_id, '|', outcome, '|', uid_next, '|', message_id) \
                    FROM attempts \
                    WHERE ended_at IS NOT NULL ORDER BY role";
    assert_eq!(
        scene.database.texts(attempts),
        [
            format!("recipient|doug@mail.axial.net|4bXyz|appended|1|{id}"),
            format!("sender|doug@mail.axial.net|4bXyz|appended|1|{id}")
        ]
    );
    // By default there is no source.
    assert_eq!(scene.database.count("SELECT count(*) FROM message_sources"), 0);
}

fn the_source_is_kept_where_the_operator_wants_it(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "scuba"]);
    let role = format!("r{}", scene.run);
    scene.database.create_role_of_grants_file(&role, "only-for-this-test");
    scene.configure(|settings| {
        settings.role = role;
        settings.database_password = "only-for-this-test".into();
        settings.more = "[record]\nkeep_source = true\nkeep_source_max = \"100kB\"\n".into();
    });
    let odd: Vec<u8> = [scene.message("raw").as_bytes(), &(1..=255).collect::<Vec<u8>>()].concat();
    scene.deliver("doug", &odd).delivered();
    scene.deliver("scuba", &odd).delivered();
    scene.deliver("doug", scene.message("big") + &"x".repeat(100_000)).delivered();
    let sources = scene.database.texts(&format!("SELECT {} FROM message_sources", hexadecimal(engine, "source")));
    let wanted: String = as_delivered(&odd).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(sources, [wanted]);
    assert_eq!(scene.database.count("SELECT count(*) FROM messages"), 2);
}

fn hostile_texts_are_recorded_as_they_are(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let subject = "'); DROP TABLE messages; -- \\' \\\\ \" $$ ? :x %s {} \u{202e}";
    let message =
        format!("From: a@b\nMessage-ID: <'\"\\;--{}>\nSubject: {subject}\nX-NUL: a\0b\u{7f}\n\nx\n", scene.run);
    let queue_id = ["--queue-id", "4b'\\;--"];
    scene.deliver_with("doug", &queue_id, &message).delivered();
    assert_eq!(row(&mut scene, "message_id"), format!("<'\"\\;--{}>", scene.run));
    assert!(row(&mut scene, "subject").starts_with("'); DROP TABLE messages; -- \\' \\\\ \" $$ ? :x %s {}"));
    assert_eq!(scene.database.texts("SELECT queue_id FROM attempts"), ["4b'\\;--"]);
    assert_eq!(scene.deliver_with("doug", &queue_id, &message).delivered(), "INBOX already there");
}

/// With the least rights, and one statement more than what it costs to find that a copy is there; none more for Sent.
fn of_one_message_that_comes_twice_the_first_is_recorded_and_the_second_says_so(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    let role = format!("r{}", scene.run);
    scene.database.create_role_of_grants_file(&role, "only-for-this-test");
    scene.configure(|settings| {
        settings.role = role;
        settings.database_password = "only-for-this-test".into();
    });
    let genuine = scene.message("ahead");
    let ahead = format!("X-Spam-Flag: YES\nAutocrypt: addr={LISA}; keydata=AAAA\n{genuine}");
    let queue_ids = ["4bAHEAD", "4bSENT", "4bLISA"];
    let deliver = |to, sender, queue_id| {
        let message = if queue_id == "4bAHEAD" { &ahead } else { &genuine };
        scene.deliver_with(to, &["--sender", sender, "--queue-id", queue_id], message).delivered().to_owned()
    };
    assert_eq!(deliver("doug", "bounce@evil.example", queue_ids[0]), "INBOX appended (uid 1), Sent appended (uid 1)");
    assert_eq!(deliver("scuba", LISA, queue_ids[1]), "INBOX appended (uid 1), Sent already there");
    assert_eq!(deliver("doug", LISA, queue_ids[2]), "INBOX already there, Sent already there");
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (1, 1));
    assert!(String::from_utf8_lossy(&scene.inbox("doug")[0].content).contains("X-Spam-Flag: YES"));
    assert_eq!(row(&mut scene, "sender"), "bounce@evil.example");

    let log = scene.log();
    let [ahead, sent, lisa] = queue_ids.map(|queue_id| {
        let is_its = |line: &&str| line.contains(&format!(" delivered queue_id={queue_id} "));
        log.lines().find(is_its).unwrap_or_else(|| panic!("{log}"))
    });
    let field = |record: &str, name: &str| {
        let value = record.split(&format!(" {name}=")).nth(1)?.split(' ').next()?;
        Some(value.trim_matches('"').to_owned())
    };
    for ordinary in [ahead, sent] {
        assert!(!ordinary.contains("earlier_"), "{ordinary}");
    }
    assert_eq!(field(lisa, "earlier_queue_id").as_deref(), Some("4bAHEAD"), "{lisa}");
    assert_eq!(field(lisa, "earlier_sender").as_deref(), Some("bounce@evil.example"), "{lisa}");
    let host = scene.database.texts("SELECT DISTINCT host FROM attempts");
    assert_eq!(field(lisa, "earlier_host"), host.first().cloned(), "{lisa}");
    let trips = |record| field(record, "database_round_trips").unwrap().parse::<u32>().unwrap();
    // Each APPEND is one question about the lock before its end: one of them, and none, but for the one about doug's copy. (The
    // first delivery of all asks more: it finds out whom the mailbox store lets in.)
    assert_eq!(trips(lisa), trips(sent), "{log}");

    let output = scene.subcommand(&["trace", "--json", &scene.message_id("ahead")]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let report = &json["messages"][0];
    let earlier = &report["attempts"][2]["copies"][0]["earlier"];
    assert_eq!(
        (&earlier["queue_id"], &earlier["sender"]),
        (&json!("4bAHEAD"), &json!("bounce@evil.example")),
        "{json}"
    );
    assert_eq!(earlier["host"], host[0].as_str(), "{json}");
    assert_eq!(field(lisa, "earlier_at"), earlier["delivered_at"].as_str().map(str::to_owned), "{json}");
    // The author's copy is there already for each recipient but the first: nobody asks about it.
    assert!(report["attempts"][2]["copies"][1]["earlier"].is_null(), "{json}");
}

/// The message is recorded for another recipient first, as its author sent it; doug's copy is a stranger's.
fn the_earlier_copy_is_reported_with_its_own_envelope_sender_in_either_order(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    let genuine = scene.message("ahead");
    let ahead = format!("X-Spam-Flag: YES\n{genuine}");
    let deliver = |scene: &Scene, to, sender, queue_id, message: &String| {
        scene.deliver_with(to, &["--sender", sender, "--queue-id", queue_id], message).delivered().to_owned()
    };
    assert!(deliver(&scene, "scuba", LISA, "4bSCUBA", &genuine).starts_with("INBOX appended"));
    assert!(deliver(&scene, "doug", "bounce@evil.example", "4bAHEAD", &ahead).starts_with("INBOX appended"));
    assert!(deliver(&scene, "doug", LISA, "4bLISA", &genuine).starts_with("INBOX already there"));
    let logged = |log: &str, queue_id: &str, name: &str| {
        let is_its = |line: &&str| line.contains(&format!(" delivered queue_id={queue_id} "));
        let record = log.lines().find(is_its).unwrap_or_else(|| panic!("{log}"));
        let value = record.split(&format!(" {name}=")).nth(1)?.split(' ').next()?;
        Some(value.trim_matches('"').to_owned())
    };
    let log = scene.log();
    assert_eq!(logged(&log, "4bLISA", "earlier_queue_id").as_deref(), Some("4bAHEAD"), "{log}");
    assert_eq!(logged(&log, "4bLISA", "earlier_sender").as_deref(), Some("bounce@evil.example"), "{log}");

    let traced = |scene: &Scene| -> serde_json::Value {
        let output = scene.subcommand(&["trace", "--json", &scene.message_id("ahead")]);
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let json = traced(&scene);
    let report = &json["messages"][0];
    assert_eq!(report["message"]["sender"], LISA, "{json}");
    let senders: Vec<&serde_json::Value> = (0..3).map(|attempt| &report["attempts"][attempt]["sender"]).collect();
    assert_eq!(senders, [LISA, "bounce@evil.example", LISA], "{json}");
    assert_eq!(report["attempts"][2]["copies"][0]["earlier"]["sender"], "bounce@evil.example", "{json}");

    // As an older program, which does not know the column, has journalled it.
    scene.database.execute("UPDATE attempts SET sender = NULL WHERE queue_id = '4bAHEAD'");
    assert!(deliver(&scene, "doug", LISA, "4bAGAIN", &genuine).starts_with("INBOX already there"));
    let log = scene.log();
    assert_eq!(logged(&log, "4bAGAIN", "earlier_queue_id").as_deref(), Some("4bAHEAD"), "{log}");
    assert_eq!(logged(&log, "4bAGAIN", "earlier_sender"), None, "{log}");
    let json = traced(&scene);
    assert_eq!(json["messages"][0]["attempts"][3]["copies"][0]["earlier"]["sender"], json!(null), "{json}");
}
