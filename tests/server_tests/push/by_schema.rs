//! What is sent is what the API's document says: each type of events, thin and full, a test, a question, and that a subscription is
//! disabled, by a validator of JSON Schema that nobody here wrote.

use super::receiver::Receiver;
use super::rest::crm_subscribes;
use super::telling::{happen, subscribe};
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::python::python_with;
use crate::support::scene::Scene;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

/// Each body by the schema of its webhook; the types that came are printed. Thoroughly: each example of the document as well, and what
/// is wrong is told apart.
const VALIDATE: &str = "
import json, sys, jsonschema
document = json.load(open(sys.argv[1]))
bodies = [json.loads(body) for body in json.load(sys.stdin)]
def validator(name):
    schema = {'$ref': '#/components/schemas/' + name, 'components': document['components']}
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
of = {'copy': validator('OfCopy'), 'subscription': validator('OfSubscription'), 'question': validator('Question')}
def kind(body):
    return 'question' if body['type'] == 'subscription.verify' else body['resource']
print(' '.join(sorted({body['type'] for body in bodies})))
thorough = len(sys.argv) > 2
if thorough:
    for name, hook in document['webhooks'].items():
        content = hook['post']['requestBody']['content']['application/json']
        for title, example in content['examples'].items():
            assert example['value']['type'] == title and kind(example['value']) == name, title
            bodies.append(example['value'])
for body in bodies:
    for error in of[kind(body)].iter_errors(body):
        sys.exit(f'{json.dumps(body)}: {error}')
    if thorough:
        # It is no other one, and what is wrong is told apart.
        assert not any(other.is_valid(body) for name, other in of.items() if name != kind(body)), body
        assert not of[kind(body)].is_valid({**body, 'type': 'message.eaten'})
";

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/api/openapi.json");

/// Holds what was sent to the document; the types of it. `None` where the validator cannot be had.
#[track_caller]
pub fn hold_to_the_document(bodies: &BTreeSet<String>, thoroughly: &[&str]) -> Option<String> {
    let python = python_with(&["jsonschema==4.25.1"])?;
    let mut command = Command::new(python);
    command.args(["-c", VALIDATE, DOCUMENT]).args(thoroughly);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(json!(bodies).to_string().as_bytes()).unwrap();
    let said = child.wait_with_output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    Some(String::from_utf8(said.stdout).unwrap())
}

#[test]
fn all_that_is_sent_is_as_the_document_says() {
    let (mut scene, receiver) = (Scene::with(Engine::Postgres17, &["doug"]), Receiver::start());
    let (notifier, rest, token, made) = crm_subscribes(&mut scene, &receiver.url("/quick/thin"));
    let test = format!("POST /subscriptions/{}/test", made["id"].as_str().unwrap());
    // Once it has answered its question.
    wait_until("it can be tested", || rest.ask(&token, &test, None).status == 202);
    let full = [("detail", "'full'"), ("owner", "'token:crm'")];
    subscribe(&mut scene, ("all", ""), &receiver.url("/quick/full"), &full);
    subscribe(&mut scene, ("all", ""), &receiver.url("/gone"), &[("owner", "'token:crm'")]);
    let read: Value = serde_json::from_str(&std::fs::read_to_string(DOCUMENT).unwrap()).unwrap();
    let types = &read["components"]["schemas"]["Notification"]["properties"]["type"]["enum"];
    let types: Vec<&str> = types.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    // One that was recorded, so that there is something to be told in full.
    scene.deliver("doug", scene.message("a")).delivered();
    let of_copies: Vec<&&str> = types.iter().filter(|name| !name.starts_with("subscription.")).collect();
    for name in &of_copies {
        happen(&mut scene, 1, name);
    }
    // Of each the event, and beside that: the delivery, the test, the question; that the third one is disabled.
    wait_until("all is told", || {
        receiver.taken("/quick/thin").len() == of_copies.len() + 4
            && receiver.taken("/quick/full").len() == of_copies.len() + 2
    });
    notifier.end();
    rest.end();
    let bodies = ["/quick/thin", "/quick/full", "/gone"].map(|path| receiver.came(path)).concat();
    assert!(bodies.iter().any(|request| request.json()["data"]["message"]["subject"] == "a"));
    let bodies = bodies.into_iter().map(|request| request.body).collect();
    let Some(said) = hold_to_the_document(&bodies, &["thoroughly"]) else { return };
    let all: BTreeSet<&str> = types.into_iter().chain(["subscription.verify"]).collect();
    assert_eq!(said.split_whitespace().collect::<BTreeSet<_>>(), all);
}
