//! Schemathesis, which nobody here wrote, makes requests of the API's document: good ones, wrong ones, and one after the other, as
//! clients do. Whatever it sends is answered as the document says, and never by a failure of ours.

use crate::fixtures::rest_client::Rest;
use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{Notifier, PENDING, happen, subscribe};
use crate::notifications::submission_by_http::sections;
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::python::python_with;
use crate::support::site_fixture::Scene;
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

/// Its release, and what its checks are called there.
const PACKAGE: &str = "schemathesis==4.32.5";
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                      response_schema_conformance,ignored_auth,unsupported_method,use_after_free";

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/api/openapi.json");

/// It has no serializer for messages of its own.
const HOOKS: &str = r#"
import schemathesis

@schemathesis.serializer("message/rfc822")
def message(context, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
"#;

/// A client that follows links makes subscriptions that can be made, the same one by the same body; lists are of what
/// is there, an event at a time, and what has happened is redelivered.
const HOOKS_OF_LINKS: &str = r#"
import os, schemathesis, zlib

@schemathesis.serializer("message/rfc822")
def message(context, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")

@schemathesis.hook
def map_body(context, body):
    operation = context.operation.definition.raw["operationId"]
    if operation == "redeliver":
        return {"event": os.environ["EVENT"]}
    if operation == "createSubscription":
        number = zlib.crc32(repr(body).encode("utf-8", "surrogatepass"))
        return {"callback_url": f"https://hooks.example.com/{number}", "resource": "all"}
    return body

@schemathesis.hook
def map_query(context, query):
    return {
        "listSubscriptions": {},
        "listNotifications": {},
        "listEvents": {"limit": 1},
        "searchMessages": {"q": "*a*", "limit": 1},
    }.get(context.operation.definition.raw["operationId"], query)
"#;

/// What these lead to is not found here: no mailbox may be opened, and no notifier runs that would publish a test.
const NOT_HERE: [&str; 2] = [
    "GET /events -> [200] source -> GET /messages/{id}/source",
    "POST /subscriptions/{id}/test -> [202] attempts -> GET /subscriptions/{id}/attempts",
];

/// These need a service that takes a message and delivers it: `submission_by_http` asks what became of one.
const OF_SUBMISSIONS: [&str; 2] = [
    "POST /messages -> [202] submission -> GET /submissions/{id}",
    "GET /submissions/{id} -> [200] message -> GET /messages/{id}",
];

/// No links but those of the document.
const ONLY_LINKS: &str = "[phases.stateful.inference]\nalgorithms = []\n";

#[test]
fn whatever_is_asked_of_it_on_postgresql_is_answered_as_the_document_says() {
    each_answer_is_as_the_document_says(Engine::Postgres17);
}

#[test]
fn whatever_is_asked_of_it_on_mysql_is_answered_as_the_document_says() {
    each_answer_is_as_the_document_says(Engine::Mysql9);
}

#[test]
fn each_link_of_the_document_is_followed() {
    each_link_leads_where_the_document_says();
}

fn each_answer_is_as_the_document_says(engine: Engine) {
    let Some(python) = python_with(&[PACKAGE]) else { return };
    let (scene, rest, good, _) = with_something_to_find(engine);
    let narrow =
        rest.token(&["--name", "other", "--rate", "10000", "--scope", "events:read", "--domain", "elsewhere.example"]);
    scene.file("hooks.py", HOOKS, 0o600);
    let run = |token: &str, examples: &str, phases: &str| -> Output {
        let mut command = Command::new(&python);
        command.args(["-m", "schemathesis.cli", "run", DOCUMENT, "--url", &format!("http://{}/api/v1", rest.socket)]);
        // The same requests in each run, so that one that fails fails again.
        command.args(["--seed", "1", "--generation-deterministic", "--no-color"]);
        command.args(["--phases", phases, "--max-examples", examples, "--checks", CHECKS, "--warnings", "off"]);
        command.args(["--continue-on-failure", "--output-sanitize", "false", "--request-timeout", "60"]);
        if !token.is_empty() {
            command.args(["--header", &format!("Authorization: Bearer {token}")]);
        }
        command.env("SCHEMATHESIS_HOOKS", "hooks").env("PYTHONPATH", scene.path("")).env("HOME", scene.path(""));
        command.current_dir(scene.path("")).stdin(Stdio::null()).output().unwrap()
    };
    let wrong = format!("mdt_{}", "x".repeat(49));
    let everything = ("who may do everything", good.as_str(), "10", "coverage,fuzzing,stateful");
    let others = [
        ("who may do little", narrow.as_str(), "3", "coverage,fuzzing"),
        ("a wrong token", &wrong, "1", "coverage"),
        ("no token", "", "1", "coverage"),
    ];
    for (who, token, examples, phases) in [everything].into_iter().chain(others) {
        let result = run(token, examples, phases);
        let printed = String::from_utf8_lossy(&result.stdout);
        assert!(
            result.status.success(),
            "{who}: {}\n{printed}\n{}",
            result.status,
            String::from_utf8_lossy(&result.stderr)
        );
        println!("{who}: {}", printed.lines().rev().find(|line| line.contains("generated")).unwrap_or_default());
    }
    rest.end();
}

fn each_link_leads_where_the_document_says() {
    let Some(python) = python_with(&[PACKAGE]) else { return };
    let (scene, rest, token, event) = with_something_to_find(Engine::Postgres17);
    scene.file("hooks.py", HOOKS_OF_LINKS, 0o600);
    scene.file("links.toml", ONLY_LINKS, 0o600);
    let (links, mut followed) = (links(), BTreeSet::new());
    // Which ones are followed in a round is chance, and what an earlier round has left there plays a part.
    for seed in 1..=40 {
        let mut command = Command::new(&python);
        command.args(["-m", "schemathesis.cli", "--config-file", "links.toml", "run", DOCUMENT]);
        command.args(["--url", &format!("http://{}/api/v1", rest.socket), "--seed", &seed.to_string(), "--no-color"]);
        command.args(["--phases", "stateful", "--mode", "positive", "--max-examples", "50", "--checks", CHECKS]);
        command.args(["--warnings", "off", "--continue-on-failure", "--request-timeout", "60"]);
        command.args(["--header", &format!("Authorization: Bearer {token}")]);
        command.args(["--report", "ndjson", "--report-ndjson-path", "report.ndjson"]);
        command.env("SCHEMATHESIS_HOOKS", "hooks").env("PYTHONPATH", scene.path("")).env("HOME", scene.path(""));
        let output_text =
            command.env("EVENT", &event).current_dir(scene.path("")).stdin(Stdio::null()).output().unwrap();
        let printed = String::from_utf8_lossy(&output_text.stdout);
        assert!(
            output_text.status.success(),
            "{}\n{printed}\n{}",
            output_text.status,
            String::from_utf8_lossy(&output_text.stderr)
        );
        followed.extend(followed_by(&std::fs::read_to_string(scene.path("report.ndjson")).unwrap()));
        println!("after {seed} rounds {} of {} links were followed", followed.len(), links.len());
        if followed == links {
            break;
        }
    }
    rest.end();
    assert_eq!(followed, links);
}

/// The links by which it came to something that is there, by its report.
fn followed_by(report: &str) -> BTreeSet<String> {
    let mut followed = BTreeSet::new();
    for line in report.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let recorder = &line["ScenarioFinished"]["recorder"];
        for (id, case) in recorder["cases"].as_object().into_iter().flatten() {
            let link = case["transition"]["id"].as_str().unwrap_or_default();
            let status = &recorder["interactions"][id]["response"]["status_code"];
            let there = *status != 404 || NOT_HERE.contains(&link);
            if case["is_transition_applied"] == true && status.is_u64() && there {
                followed.insert(link.to_owned());
            }
        }
    }
    followed
}

/// Each link of the document, as schemathesis names it: `GET /events -> [200] next -> GET /events`.
fn links() -> BTreeSet<String> {
    let document: Value = serde_json::from_str(include_str!("../../../src/http/api/openapi.json")).unwrap();
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap().iter().filter(|(_, it)| it["operationId"].is_string()) {
            operations.push((format!("{} {path}", method.to_uppercase()), operation));
        }
    }
    let mut links = BTreeSet::new();
    for (from, operation) in &operations {
        for (status, response) in operation["responses"].as_object().unwrap() {
            for (name, link) in response["links"].as_object().into_iter().flatten() {
                let (to, _) = operations.iter().find(|(_, it)| it["operationId"] == link["operationId"]).unwrap();
                links.insert(format!("{from} -> [{status}] {name} -> {to}"));
            }
        }
    }
    links.retain(|link| !OF_SUBMISSIONS.contains(&link.as_str()));
    links
}

/// A message was delivered and events were sent to one subscriber, while another one failed; the API, a token for
/// everything, and an event's id.
fn with_something_to_find(engine: Engine) -> (Scene, Rest, String, String) {
    let mut scene = Scene::with(engine, &["doug"]);
    let receiver = Receiver::start();
    let crm = [("owner", "'token:crm'")];
    subscribe(&mut scene, ("all", ""), &receiver.url("/dead"), &crm);
    subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &crm);
    scene.deliver("doug", scene.message("a")).delivered();
    let happened = happen(&mut scene, 3, "message.delivered");
    let notifier = Notifier::start(&mut scene);
    wait_until("one has taken all", || receiver.taken("/quick").len() == 4);
    wait_until("what the other one has not taken is there to be listed", || {
        scene.database.count("SELECT count(*) FROM notifications WHERE tries > 0") == 4
            && scene.database.count(PENDING) == 4
    });
    notifier.end();
    // A second page of messages.
    scene.deliver("doug", scene.message("b")).delivered();
    let more = sections(&scene, "reject");
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rest = Rest::start_at(&mut scene, &more, free);
    let scopes = ["subscriptions:write", "events:read", "messages:read", "messages:content", "messages:write", "sent"];
    let scopes: Vec<&str> = scopes.iter().flat_map(|scope| ["--scope", scope]).collect();
    let good = rest.token(&[&["--name", "crm", "--rate", "10000"][..], &scopes].concat());
    (scene, rest, good, happened.into_iter().next().unwrap())
}
