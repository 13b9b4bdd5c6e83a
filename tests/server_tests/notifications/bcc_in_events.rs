//! A message with a blind copy to another domain: what API and webhooks show of it names nobody's other recipient, whichever copy came first
//! and whether its source is kept.

use crate::fixtures::rest_client::{Rest, role};
use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::Notifier;
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::{LISA, Scene};
use serde_json::json;

on_two_engines![a_token_of_one_domain_does_not_learn_of_a_blind_copy_to_another];

const OPEN: &str = "doug@mail.axial.net";
const BLIND: &str = "scuba@blind.example";

fn copy_for(scene: &Scene, recipient: &str, id: &str) -> String {
    format!(
        "Return-Path: <{LISA}>\nDelivered-To: {recipient}\nReceived: from a by mx (Postfix) with ESMTPS id 4b\n\tfor <{recipient}>; \
         Mon, 1 Jan 2026 00:00:00 +0000\nBcc: {recipient}\nDate: Mon, 1 Jan 2026 00:00:00 +0000\nFrom: Lisa <{LISA}>\nTo: {OPEN}\n\
         Message-ID: {}\nSubject: {id}\n\n{id}\n",
        scene.message_id(id)
    )
}

fn a_token_of_one_domain_does_not_learn_of_a_blind_copy_to_another(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &["doug", "scuba"]), Receiver::start());
    let scuba = scene.user("scuba");
    scene.database.add_address(BLIND, &scuba);
    let notifier = Notifier::start(&mut scene);
    let rest = Rest::start(&mut scene, "");
    scene.database.let_hand_out_sources(&role(&scene));
    let tokens = [("open", "mail.axial.net"), ("blind", "blind.example")].map(|(name, domain)| {
        let scopes = ["--scope", "subscriptions:write", "--scope", "messages:read", "--scope", "messages:content"];
        let token = rest.token(&[&["--name", name, "--domain", domain, "--rate", "10000"][..], &scopes].concat());
        let wanted = json!({
            "callback_url": receiver.url(&format!("/quick/{name}")), "resource": "domain", "resource_id": domain, "detail": "full",
        });
        let made = rest.ask(&token, "POST /subscriptions", Some(&wanted)).good(201);
        let it = format!("GET /subscriptions/{}", made["id"].as_str().unwrap());
        wait_until("the callback has answered its question", || rest.ask(&token, &it, None).good(200)["state"] == "active");
        token
    });
    let hex = if engine.is_postgres() { "encode(identity, 'hex')" } else { "LOWER(HEX(identity))" };
    for kept in [true, false] {
        scene.configure(|settings| settings.more = format!("[record]\nkeep_source = {kept}\n"));
        for order in [[BLIND, OPEN], [OPEN, BLIND]] {
            let id =
                format!("{}-{}", if kept { "kept" } else { "unkept" }, if order[0] == OPEN { "open" } else { "blind" });
            for recipient in order {
                scene.deliver(recipient, copy_for(&scene, recipient, &id)).delivered();
            }
            let sql = format!("SELECT {hex} FROM messages WHERE subject = '{id}'");
            let identity = scene.database.texts(&sql).remove(0);
            for (token, other) in tokens.iter().zip([BLIND, OPEN]) {
                let message = rest.ask(token, &format!("GET /messages/{identity}"), None);
                let shown = message.good(200);
                assert_eq!((&shown["subject"], shown["copies"].as_array().unwrap().len()), (&id.as_str().into(), 1));
                let headers = shown["headers"].to_string();
                assert!(headers.contains("with ESMTPS id 4b; Mon") && !headers.contains("for <"), "{headers}");
                assert!(other == OPEN || !message.body.contains(other), "{}", message.body);
                for field in ["Bcc", "Delivered-To", "Return-Path"] {
                    assert!(!message.body.contains(field), "{}", message.body);
                }
                let source = rest.ask(token, &format!("GET /messages/{identity}/source"), None);
                if kept {
                    assert_eq!(source.status, 200, "{source:?}");
                    let expected =
                        "Received: from a by mx (Postfix) with ESMTPS id 4b; Mon, 1 Jan 2026 00:00:00 +0000\r\nDate: ";
                    assert!(source.body.starts_with(expected), "{}", source.body);
                    assert!(other == OPEN || !source.body.contains(other), "{}", source.body);
                } else {
                    source.problem(404, "no-source");
                }
            }
        }
    }
    // Each has been sent its own four, and the question.
    for (name, other) in [("open", BLIND), ("blind", OPEN)] {
        let path = format!("/quick/{name}");
        wait_until("all is sent", || receiver.taken(&path).len() == 5);
        for request in receiver.taken(&path).iter().skip(1) {
            let body = &request.body;
            assert!(
                body.contains("with ESMTPS id 4b; Mon") && !body.contains("Bcc") && !body.contains("for <"),
                "{body}"
            );
            assert!(other == OPEN || !body.contains(other), "{body}");
        }
    }
    notifier.end();
    rest.end();
}
