//! What is sent is what the API's document says: each type of events, thin and full, a test and a question, by a
//! validator of JSON Schema that nobody here wrote.

use crate::fixtures::rest_client::crm_subscribes;
use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{happen, subscribe};
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::python::python_with;
use crate::support::site_fixture::Scene;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

/// Each body by the schema of its type; the types that came are printed. Thoroughly: each example of the document as well, and whatever
/// is nearly one of them is distinguished: of another type, without a part of it, or with one that only others have.
const VALIDATE: &str = "
import json, sys, jsonschema
document = json.load(open(sys.argv[1]))
bodies = [json.loads(body) for body in json.load(sys.stdin)]
schemas = document['components']['schemas']
def validator(name):
    name = name.removeprefix('#/components/schemas/')
    schema = {'$ref': '#/components/schemas/' + name, 'components': document['components']}
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
hooks = {'copy': 'OfCopy', 'subscription': 'SubscriptionTest', 'question': 'VerificationRequest'}
of_hook = {kind: validator(name) for kind, name in hooks.items()}
of_type = {'subscription.verify': of_hook['question'], 'subscription.test': of_hook['subscription']}
for name in hooks.values():
    of_type |= {kind: validator(one) for kind, one in schemas[name].get('discriminator', {}).get('mapping', {}).items()}
def hook(body):
    return 'question' if body['type'] == 'subscription.verify' else body['resource']
FULL = ['size', 'sender', 'from', 'to', 'cc', 'subject', 'date', 'headers', 'headers_truncated']
def without(whole, key):
    return {one: value for one, value in whole.items() if one != key}
def nearly(body):
    for other in [*of_type, 'message.eaten']:
        if other != body['type']:
            yield {**body, 'type': other}
    for key in body:
        yield without(body, key)
    diff, data = body.get('diff', {}), body['data']
    for field, change in diff.items():
        yield {**body, 'diff': without(diff, field)}
        yield {**body, 'diff': {**diff, field: without(change, '---')}}
        yield {**body, 'diff': {**diff, field: {**change, '+++': 7 if isinstance(change['+++'], str) else 'seven'}}}
        if body['type'] != 'copy.restored':
            yield {**body, 'diff': {**diff, field: {'---': change['+++'], '+++': change['---']}}}
    for key in data:
        # An author's own copy is found by nobody's attempt.
        if (body['type'], key) != ('sent.delivered', 'attempt'):
            yield {**body, 'data': without(data, key)}
    if body['type'] == 'subscription.test':
        yield {**body, 'diff': {'state': {'---': 'active', '+++': 'disabled'}}}
    if 'copy' not in data:
        return
    copy, message = data['copy'], data['message']
    for key in copy:
        yield {**body, 'data': {**data, 'copy': without(copy, key)}}
    foreign = {'state': 'delivered', 'uid_validity': 7, 'uid': 7, 'reason': 'why'}
    if body['type'] == 'copy.restored':
        foreign = {'state': 'delivered', 'reason': 'why'}
    for field in foreign.keys() - diff:
        for before, after in [(None, foreign[field]), (foreign[field], None)]:
            yield {**body, 'diff': {**diff, field: {'---': before, '+++': after}}}
            yield {**body, 'data': {**data, 'copy': {**copy, field: after}}}
    if body['type'].endswith('.delivered'):
        other = {'sender': 'recipient', 'recipient': 'sender'}[copy['role']]
        yield {**body, 'data': {**data, 'copy': {**copy, 'role': other}}}
    yield {**body, 'data': {**data, 'copy': {**copy, 'manner': 'manual' if 'manner' in copy else 'appended'}}}
    for key in ['id', 'message_id', 'host', *(FULL if 'size' in message else [])]:
        yield {**body, 'data': {**data, 'message': without(message, key)}}
        yield {**body, 'data': {**data, 'message': {**message, key: {}}}}
    if 'size' not in message:
        yield {**body, 'data': {**data, 'message': {**message, 'subject': 'alone'}}}
    if body['type'] in ['message.refused', 'message.deferred']:
        full = {'size': 1, 'sender': '', 'headers': [], 'headers_truncated': False}
        full |= {key: None for key in ['from', 'to', 'cc', 'subject', 'date']}
        yield {**body, 'data': {**data, 'message': {**message, **full}}}
print(' '.join(sorted({body['type'] for body in bodies})))
thorough = len(sys.argv) > 2
if thorough:
    for name, one in document['webhooks'].items():
        content = one['post']['requestBody']['content']['application/json']
        for title, example in content['examples'].items():
            assert example['value']['type'] == title.split(' ')[0] and hook(example['value']) == name, title
            bodies.append(example['value'])
kinds = set()
for body in bodies:
    for schema in [of_type[body['type']], of_hook[hook(body)]][:1 + thorough]:
        for error in schema.iter_errors(body):
            sys.exit(f'{json.dumps(body)}: {error}')
    # One of each kind: there are many ways to be wrong.
    kind = (body['type'], *sorted(body.get('diff', ())), *sorted(body['data'].get('message', ())))
    if thorough and kind not in kinds:
        kinds.add(kind)
        for wrong in nearly(body):
            if any(schema.is_valid(wrong) for schema in of_hook.values()):
                sys.exit(f'{json.dumps(wrong)} is valid, and only nearly {json.dumps(body)}')
";

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/api/openapi.json");

/// Holds what was sent to the document; the types of it. `None` where the validator cannot be had.
#[track_caller]
pub fn hold_to_the_document(bodies: &BTreeSet<String>, thoroughly: &[&str]) -> Option<String> {
    let python = python_with(&["jsonschema==4.25.1"])?;
    let mut command = Command::new(python);
    command.args(["-c", VALIDATE, DOCUMENT]).args(thoroughly);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(json!(bodies).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// The generators that docs/api.md names: each event that the document has as an example is read by their code.
#[test]
fn code_that_is_generated_from_the_document_reads_each_event() {
    const RUN: &str = "
import json, os, subprocess, sys
document, folder, bin = *sys.argv[1:], os.path.dirname(sys.executable)
os.chdir(folder)
def generate(program, *options):
    subprocess.run([os.path.join(bin, program), *options], check=True, capture_output=True)
generate('openapi-python-client', 'generate', '--path', document, '--meta', 'none', '--output-path', 'client')
generate('datamodel-codegen', '--input', document, '--input-file-type', 'openapi', '--output', 'data_models.py',
         '--output-model-type', 'pydantic_v2.BaseModel')
sys.path.insert(0, folder)
import client.models, data_models
from client.api.default import change_subscription, list_events
hook = json.load(open(document))['webhooks']['copy']['post']['requestBody']['content']['application/json']
for title, example in hook['examples'].items():
    event = client.models.Notification.from_dict(example['value'])
    assert event.to_dict()['diff'] == example['value']['diff'], title
    assert event.data.copy.address == data_models.Notification.model_validate(example['value']).data.copy_.address, title
    data_models.OfCopy.model_validate(example['value'])
";
    let packages = ["openapi-python-client==0.29.1", "datamodel-code-generator==0.89.0"];
    let (Some(python), folder) = (python_with(&packages), tempfile::tempdir().unwrap()) else { return };
    let ended = Command::new(python).args(["-c", RUN, DOCUMENT]).arg(folder.path()).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
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
    let deferred = [("types", "'{message.deferred}'"), ("owner", "'token:crm'")];
    subscribe(&mut scene, ("all", ""), &receiver.url("/quick/deferred"), &deferred);
    let read: Value = serde_json::from_str(&std::fs::read_to_string(DOCUMENT).unwrap()).unwrap();
    let types = &read["components"]["schemas"]["Notification"]["properties"]["type"]["enum"];
    let types: Vec<&str> = types.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    // One that was recorded, so that there is something to send in full.
    scene.deliver("doug", scene.message("a")).delivered();
    let of_copies: Vec<&&str> = types.iter().filter(|name| !name.starts_with("subscription.")).collect();
    for name in &of_copies {
        happen(&mut scene, 1, name);
    }
    // Of each the event but for `message.deferred`, which has to be named, and beside that: the delivery, the test, the question.
    wait_until("all is notified", || {
        receiver.taken("/quick/thin").len() == of_copies.len() + 2
            && receiver.taken("/quick/full").len() == of_copies.len()
            && receiver.taken("/quick/deferred").len() == 1
    });
    notifier.end();
    rest.end();
    let bodies = ["/quick/thin", "/quick/full", "/quick/deferred"].map(|path| receiver.came(path)).concat();
    assert!(bodies.iter().any(|request| request.json()["data"]["message"]["subject"] == "a"));
    let bodies = bodies.into_iter().map(|request| request.body).collect();
    let Some(output) = hold_to_the_document(&bodies, &["thoroughly"]) else { return };
    let all: BTreeSet<&str> = types.into_iter().chain(["subscription.verify"]).collect();
    assert_eq!(output.split_whitespace().collect::<BTreeSet<_>>(), all);
}
