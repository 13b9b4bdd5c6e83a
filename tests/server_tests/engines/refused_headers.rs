//! A site's own database may have rules that the header of a message breaks: a constraint, a trigger. That costs the
//! record of the header, and never the message.

use crate::support::database::Engine;
use crate::support::site_fixture::Scene;

on_each_engine!(
    a_subject_that_a_constraint_refuses_costs_no_delivery,
    a_header_that_a_trigger_refuses_costs_no_delivery,
    a_message_id_that_the_journal_may_not_have_costs_no_delivery,
    what_is_refused_in_any_form_is_deferred_and_there_once_in_the_end,
);

/// Two recipients of one message that the database will not have as it is.
fn delivered_without_its_header(scene: &mut Scene) {
    // The source is what the header is a part of.
    scene.configure(|settings| settings.more = "[record]\nkeep_source = true\n".into());
    let message = scene.message("wine");
    for name in ["doug", "scuba"] {
        assert!(scene.deliver(name, &message).delivered().starts_with("INBOX appended"));
        assert_eq!(scene.inbox(name).len(), 1, "{name}");
    }
    assert_eq!(scene.sent("lisa").len(), 1);
    for (rows, wanted) in [
        ("messages", 1),
        ("messages WHERE subject IS NULL AND header_from IS NULL AND header_to IS NULL AND sent_at IS NULL", 1),
        ("message_sources", 0),
        ("copies WHERE state = 'delivered' AND uid IS NOT NULL", 3),
        ("attempts WHERE ended_at IS NULL", 0),
    ] {
        assert_eq!(scene.database.count(&format!("SELECT count(*) FROM {rows}")), wanted, "{rows}");
    }
    let id = scene.message_id("wine");
    assert_eq!(scene.database.texts("SELECT message_id FROM messages"), [id.as_str()]);
    let log_text = scene.log();
    let shown = log_text.lines().find(|line| line.contains("recorded without its header fields")).unwrap_or("nothing");
    assert!(shown.contains("WARN") && shown.contains(&id), "{shown}");

    // Whatever it does not mind, it has in full.
    scene.deliver("doug", scene.message("water")).delivered();
    assert_eq!(scene.database.count("SELECT count(*) FROM messages WHERE subject = 'water'"), 1);
    assert_eq!(scene.database.count("SELECT count(*) FROM message_sources"), 1);
}

fn a_subject_that_a_constraint_refuses_costs_no_delivery(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    scene.database.execute("ALTER TABLE messages ADD CONSTRAINT no_wine CHECK (subject NOT LIKE '%wine%')");
    delivered_without_its_header(&mut scene);
}

fn a_header_that_a_trigger_refuses_costs_no_delivery(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    if engine.is_postgres() {
        scene.database.execute(
            "CREATE FUNCTION no_wine() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF NEW.subject LIKE '%wine%' THEN RAISE EXCEPTION 'no wine'; END IF; RETURN NEW; END $$",
        );
        scene
            .database
            .execute("CREATE TRIGGER no_wine BEFORE INSERT ON messages FOR EACH ROW EXECUTE FUNCTION no_wine()");
    } else {
        scene.database.execute(
            "CREATE TRIGGER no_wine BEFORE INSERT ON messages FOR EACH ROW BEGIN \
             IF NEW.subject LIKE '%wine%' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no wine'; END IF; END",
        );
    }
    delivered_without_its_header(&mut scene);
}

fn a_message_id_that_the_journal_may_not_have_costs_no_delivery(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.database.execute("ALTER TABLE attempts ADD CONSTRAINT short CHECK (char_length(message_id) < 300)");
    let long = format!("<{}@mail.google.com>", "x".repeat(400));
    let message = scene.message("long").replace(&scene.message_id("long"), &long);
    scene.deliver("doug", &message).delivered();
    assert_eq!(scene.deliver("doug", &message).delivered(), "INBOX already there, Sent already there");
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (1, 1));
    let counted = scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NOT NULL");
    assert_eq!((counted, scene.database.texts("SELECT message_id FROM messages")), (4, vec![long.clone()]));
    // All that is looked up goes by digests.
    let traced = scene.subcommand(&["trace", &long]);
    let traced = String::from_utf8(traced.stdout).unwrap();
    assert!(traced.starts_with("DELIVERED to doug@mail.axial.net: "), "{traced}");
    let log_text = scene.log();
    let shown = log_text.lines().find(|line| line.contains("refuses the journal")).unwrap_or("nothing");
    assert!(shown.contains("WARN") && shown.contains(&long), "{shown}");
}

fn what_is_refused_in_any_form_is_deferred_and_there_once_in_the_end(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.database.execute("ALTER TABLE messages ADD CONSTRAINT nothing CHECK (size < 0)");
    let message = scene.message("never");
    scene.deliver("doug", &message).deferred("4.3.0 the database failed");
    assert_eq!(scene.database.count("SELECT count(*) FROM messages"), 0);
    // What was appended is not known to the ledger, and looked for.
    let constraint = if engine == Engine::Mysql9 { "CHECK" } else { "CONSTRAINT" };
    scene.database.execute(&format!("ALTER TABLE messages DROP {constraint} nothing"));
    scene.deliver("doug", &message).deferred("4.3.0 an earlier delivery of this message was cut short");
    scene.ten_minutes_pass();
    assert!(scene.deliver("doug", &message).delivered().starts_with("INBOX adopted"));
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (1, 1));
    assert_eq!(scene.database.count("SELECT count(*) FROM messages WHERE subject = 'never'"), 1);
}
