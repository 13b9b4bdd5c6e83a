//! `trace`: a question for a message by its Message-ID, queue id or address shows how it stands, what was tried, where
//! its copies are, and who is at it now.

use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::{LISA, Scene};
use crate::support::wire::{Fate, Speaker, Wire, says};
use serde_json::Value;

on_each_engine!(
    a_delivered_message_has_its_history,
    a_deferral_comes_with_its_reason,
    the_one_that_delivers_now_is_named_and_so_is_the_one_that_died,
    messages_that_share_a_message_id_are_distinguished,
    what_never_got_here_is_reported_to_be_so,
    a_sent_copy_that_is_owed_is_in_the_first_line,
);

fn text(scene: &Scene, arguments: &[&str]) -> (Option<i32>, String) {
    let output = scene.subcommand(&[&["trace"], arguments].concat());
    assert!(output.stderr.is_empty(), "{output:?}");
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

fn traced(scene: &Scene, arguments: &[&str]) -> Value {
    let (exit, text) = text(scene, &[arguments, &["--json"]].concat());
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let found = json["messages"].as_array().unwrap().len();
    assert_eq!(exit, Some(if found == 0 { 66 } else { 0 }), "{text}");
    json
}

/// The only message of an answer.
#[track_caller]
fn only(json: &Value) -> &Value {
    assert_eq!(json["messages"].as_array().unwrap().len(), 1, "{json}");
    &json["messages"][0]
}

fn strings<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    list.as_array().unwrap().iter().map(|item| item[field].as_str().unwrap()).collect()
}

fn a_delivered_message_has_its_history(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    // The reader needs no more than the rights that are meant for it.
    scene.database.create_operator(&format!("{}_o", scene.run), "secret");
    let (message, id) = (scene.message("story"), scene.message_id("story"));
    let queue_id = format!("4b{}", scene.run);
    scene.deliver_with("doug", &["--queue-id", &queue_id], &message).delivered();
    scene.deliver("scuba", &message).delivered();
    scene.deliver("doug", &message).delivered();
    scene.deliver("doug", scene.message("another")).delivered();
    let operator = format!("{}_o", scene.run);
    scene.configure(|settings| (settings.role, settings.database_password) = (operator, "secret".into()));

    let json = traced(&scene, &[&id]);
    let report = only(&json);
    assert_eq!((&json["asked"]["as"], &report["state"]), (&"Message-ID".into(), &"delivered".into()), "{json}");
    assert_eq!(report["message_id"], id.as_str());
    assert_eq!(strings(&report["recipients"], "recipient"), ["doug@mail.axial.net", "scuba@mail.axial.net"]);
    assert_eq!(strings(&report["recipients"], "state"), ["delivered", "delivered"]);
    assert_eq!((&report["message"]["sender"], &report["message"]["subject"]), (&LISA.into(), &"story".into()));
    assert_eq!(report["message"]["size"], message.replace('\n', "\r\n").len());
    // Three copies, and where they are.
    assert_eq!(strings(&report["copies"], "mailbox"), ["INBOX", "INBOX", "Sent"]);
    let uids = report["copies"].as_array().unwrap().iter().map(|copy| copy["uid"].as_u64().unwrap());
    let there = [scene.inbox("doug"), scene.inbox("scuba"), scene.sent("lisa")].map(|found| u64::from(found[0].uid));
    assert_eq!(uids.collect::<Vec<_>>(), there);
    // Three attempts, in their order, each with how long its stages took.
    assert_eq!(
        strings(&report["attempts"], "recipient"),
        ["doug@mail.axial.net", "scuba@mail.axial.net", "doug@mail.axial.net"]
    );
    let attempts = report["attempts"].as_array().unwrap();
    assert_eq!(strings(&attempts[0]["copies"], "outcome"), ["appended", "appended"]);
    assert_eq!(strings(&attempts[1]["copies"], "outcome"), ["appended", "already there"]);
    assert_eq!(strings(&attempts[2]["copies"], "outcome"), ["already there", "already there"]);
    assert_eq!(attempts[0]["queue_id"], queue_id.as_str());
    for attempt in attempts {
        let stage = |name: &str| attempt["stages_ms"][name].as_f64();
        assert!(stage("connect") > Some(0.0) && stage("lock") > Some(0.0), "{attempt}");
        // A delivery that finds all copies appends nothing: that is a matter of microseconds, and may be printed as 0.00 ms.
        let appended = strings(&attempt["copies"], "outcome").contains(&"appended");
        assert!(stage("append").is_some_and(|took| took > 0.0 || !appended), "{attempt}");
        assert!(attempt["pid"].as_u64() > Some(1) && attempt["host"].as_str().is_some_and(|host| !host.is_empty()));
    }
    assert_eq!(report["lock"]["holder"], Value::Null);

    // Every question leads to the same history.
    let bare = id.trim_matches(['<', '>']);
    assert_eq!(traced(&scene, &[bare])["asked"]["as"], "Message-ID");
    for (way, taken_as) in [
        (bare, "Message-ID"),
        (&queue_id, "queue id"),
        ("SCUBA@mail.axial.net", "address"),
        ("@mail.axial.net", "domain"),
        ("scub*", "beginning of an address"),
        ("scub", "beginning of an address"),
        ("*STORY*", "part of a subject or author"),
    ] {
        let json = traced(&scene, &[way]);
        assert_eq!(json["asked"]["as"], taken_as, "{json}");
        // The other message is for Scuba as well, by its header alone.
        let has = |message: &Value| message["identity"] == report["identity"];
        assert!(json["messages"].as_array().unwrap().iter().any(has), "{way}: {json}");
    }
    // Doug, Lisa who sent, and Dovecot's name for Doug: two messages, the newest first.
    let user = scene.user("doug");
    for address in ["doug@mail.axial.net", LISA] {
        assert_eq!(traced(&scene, &[address])["messages"].as_array().unwrap().len(), 2, "{address}");
    }
    assert_eq!(traced(&scene, &[&user])["messages"].as_array().unwrap().len(), 2, "{user}");
    let newest = traced(&scene, &["doug@mail.axial.net", "--limit", "1"]);
    assert_eq!((&newest["more"], &only(&newest)["message_id"]), (&true.into(), &scene.message_id("another").into()));
    assert_eq!(traced(&scene, &[&queue_id, "--since", "0s"])["messages"], serde_json::json!([]));

    // And for people.
    let (_, report) = text(&scene, &[&id]);
    assert!(report.starts_with("DELIVERED to all 2 recipients that were tried.\n"), "{report}");
    assert!(report.contains(&queue_id) && report.contains("INBOX: appended; Sent: already there"), "{report}");
    let (_, report) = text(&scene, &["doug@mail.axial.net", "--limit", "1"]);
    assert!(report.starts_with("Taken as an address: doug@mail.axial.net.\n"), "{report}");
    assert!(report.contains("There are more: these are the newest 1."), "{report}");
}

fn a_deferral_comes_with_its_reason(engine: Engine) {
    let scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    let (message, id) = (scene.message("held"), scene.message_id("held"));
    let holder = scene.hold(&id);
    for _ in 0..2 {
        let outcome = scene.deliver_with("doug", &["--lock-wait", "0s"], &message);
        outcome.deferred("4.3.0 another delivery of this message holds its lock");
    }
    let json = traced(&scene, &[&id]);
    let report = only(&json);
    assert_eq!((&report["state"], &report["message"]), (&"deferred".into(), &Value::Null), "{json}");
    // A DBA's own session says no more of itself than its number.
    assert!(report["lock"]["holder"]["session"].as_u64().is_some(), "{json}");
    assert_eq!(report["lock"]["holder"]["host"], Value::Null);
    let (_, output) = text(&scene, &[&id]);
    let first = "STILL DEFERRED for doug@mail.axial.net (2 attempts): another delivery of this message held its lock.";
    assert_eq!(output.lines().next(), Some(first), "{output}");
    assert!(output.contains("held by a program that does not say who it is, session "), "{output}");
    drop(holder);
    wait_until("one is delivered", || scene.deliver("doug", &message).exit == Some(0));
    assert_eq!(only(&traced(&scene, &[&id]))["state"], "delivered");

    // One of two: the first line is about the one that waits.
    let holder = scene.hold(&id);
    scene.deliver_with("scuba", &["--lock-wait", "0s"], &message).deferred("4.3.0 ");
    let (_, output) = text(&scene, &[&id]);
    assert!(output.starts_with("STILL DEFERRED for scuba@mail.axial.net (1 attempt): "), "{output}");
    assert!(output.lines().next().unwrap().ends_with(" Delivered to 1 of 2."), "{output}");
    drop(holder);
}

fn the_one_that_delivers_now_is_named_and_so_is_the_one_that_died(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    let (message, id) = (scene.message("now"), scene.message_id("now"));
    let dovecot = scene.settings.imap.clone();
    let wire = Wire::to(dovecot.clone(), |speaker, piece| match speaker {
        Speaker::Server if says(piece, "APPENDUID") => Fate::Hold,
        _ => Fate::Pass,
    });
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), wire.address.port()));
    let running = scene.start("doug", &["--queue-id", "4bNOW"], &message);
    wait_until("it has appended", || scene.inbox("doug").len() == 1);
    scene.configure(|settings| settings.imap = dovecot);

    let json = traced(&scene, &[&id]);
    let parsed = only(&json);
    assert_eq!(parsed["state"], "under way", "{json}");
    let holder = &parsed["lock"]["holder"];
    assert_eq!((&holder["pid"], &holder["queue_id"]), (&running.id().into(), &"4bNOW".into()), "{json}");
    assert!(holder["held_for_s"].as_f64().is_some_and(|seconds| seconds < 60.0), "{json}");
    assert_eq!(parsed["attempts"][0]["holds_the_lock"], true);
    let (_, output) = text(&scene, &[&id]);
    let now = format!("being delivered now by {}:{}, ", holder["host"].as_str().unwrap(), running.id());
    assert!(output.starts_with("UNDER WAY to doug@mail.axial.net: ") && output.contains(&now), "{output}");

    running.kill();
    wait_until("the lock is free", || only(&traced(&scene, &[&id]))["lock"]["holder"].is_null());
    let (_, output) = text(&scene, &[&id]);
    assert!(output.contains("has not ended: it is under way, waits for the lock, or was cut short"), "{output}");
    // Past its deadline no delivery lives, and until it is settled no other tries.
    scene.minutes_pass(4);
    let (_, output) = text(&scene, &[&id]);
    assert!(output.starts_with("STILL DEFERRED for doug@mail.axial.net (1 attempt): the attempt of "), "{output}");
    assert!(
        output.contains("the next try is deferred until 7m after that beginning, in case its copy still"),
        "{output}"
    );
    scene.minutes_pass(6);
    let (_, output) = text(&scene, &[&id]);
    assert!(output.contains("the next try looks for its copy first"), "{output}");
    assert!(output.starts_with("STILL DEFERRED for doug@mail.axial.net (1 attempt): the attempt of "), "{output}");
    assert!(output.contains("never ended"), "{output}");
    scene.deliver("doug", &message).delivered();
    let json = traced(&scene, &[&id]);
    let report = only(&json);
    assert_eq!(report["state"], "delivered", "{json}");
    assert_eq!(strings(&report["attempts"][1]["copies"], "outcome"), ["adopted", "appended"], "{json}");
    assert_eq!(report["attempts"][0]["copies"][0]["outcome"], "died; its copy was looked for");
}

fn messages_that_share_a_message_id_are_distinguished(engine: Engine) {
    let scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    let (message, id) = (scene.message("shared"), scene.message_id("shared"));
    scene.deliver("doug", &message).delivered();
    scene.deliver("scuba", format!("{message}another body\n")).delivered();
    let json = traced(&scene, &[&id]);
    let messages = json["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 2, "{json}");
    assert_ne!(messages[0]["identity"], messages[1]["identity"]);
    assert_eq!(strings(&messages[0]["recipients"], "recipient"), ["scuba@mail.axial.net"], "the newest comes first");
    assert_eq!(strings(&messages[1]["recipients"], "recipient"), ["doug@mail.axial.net"]);
    let (_, output) = text(&scene, &[&id]);
    assert!(
        output.starts_with("2 messages bear this Message-ID; each has a history of its own.\n\n== 1 of 2\n"),
        "{output}"
    );
}

fn what_never_got_here_is_reported_to_be_so(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    let id = scene.message_id("lost");
    // The database is out of reach, so that nothing can be written down.
    let database = std::mem::replace(&mut scene.settings.database, ("127.0.0.1".into(), 9));
    scene.configure(|_| {});
    let options = ["--queue-id", "4bLOST", "--deadline", "8s"];
    scene.deliver_with("doug", &options, scene.message("lost")).deferred("4.4.1 ");
    scene.configure(|settings| settings.database = database);
    for (what, first) in [
        (id.as_str(), format!("NEVER SEEN HERE: no message and no attempt bears the Message-ID {id}.")),
        ("4bLOST", "NEVER SEEN HERE: no message since ".to_owned()),
        (
            "doug@mail.axial.net",
            "NEVER SEEN HERE: no message bears the Message-ID <doug@mail.axial.net>, and ".to_owned(),
        ),
    ] {
        let (exit, output) = text(&scene, &[what]);
        assert!(exit == Some(66) && output.starts_with(&first), "{output}");
        assert!(
            output.contains("It never got as far as the ledger")
                && output.contains("fields message_id, queue_id, cause")
        );
    }
    // What it sends people to is there.
    let log = scene.log();
    let line = log.lines().find(|line| line.contains("queue_id=4bLOST") && line.contains("deferred")).unwrap();
    assert!(line.contains("message_id=") && line.contains("cause="), "{line}");

    // Another namespace has other names: that is said, too.
    scene.deliver("doug", scene.message("lost")).delivered();
    scene.configure(|settings| settings.more = "[lock]\nnamespace = \"elsewhere\"\n".into());
    let (_, output) = text(&scene, &[&id]);
    assert!(output.contains("another namespace than \"elsewhere\""), "{output}");
}

fn a_sent_copy_that_is_owed_is_in_the_first_line(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.deliver("doug", scene.message("owed")).delivered();
    scene.database.execute("UPDATE copies SET state = 'owed', reason = 'no such mailbox' WHERE role = 'sender'");
    let (_, output) = text(&scene, &[&scene.message_id("owed")]);
    let first = output.lines().next().unwrap();
    assert!(first.starts_with("DELIVERED to doug@mail.axial.net: delivered "), "{output}");
    let owed = format!("the copy for Sent of {} is OWED: no such mailbox.", scene.user("lisa"));
    assert!(first.ends_with(&owed), "{output}");
}
