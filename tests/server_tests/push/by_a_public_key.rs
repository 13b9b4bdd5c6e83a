//! Signatures that are verified by a public key, as docs/push.md has it: by libraries that nobody here wrote.

use super::receiver::{Receiver, Request};
use super::rest::crm_subscribes;
use super::telling::{Notifier, happen, subscribe, verify};
use crate::support::database::Engine;
use crate::support::program::{program, wait_until};
use crate::support::python::python_with;
use crate::support::scene::Scene;
use crate::support::{container, pages};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// By Node's own library. A key is wrapped as X.509 has it (RFC 8410).
const NODE: &str = "
const { createPublicKey, verify } = require('node:crypto');
const [key, headers, body] = [process.argv[1], JSON.parse(process.argv[2]), process.argv[3]];
const der = Buffer.concat([Buffer.from('302a300506032b6570032100', 'hex'), Buffer.from(key.slice(5), 'base64')]);
const signed = Buffer.from(`${headers['webhook-id']}.${headers['webhook-timestamp']}.${body}`);
const by = createPublicKey({ key: der, format: 'der', type: 'spki' });
const one = (text) => text.startsWith('v1a,') && verify(null, signed, by, Buffer.from(text.slice(4), 'base64'));
console.log(headers['webhook-signature'].split(' ').some(one) ? 'True' : 'False');
";

/// The snippet of the page, called.
fn snippet() -> String {
    let page = pages::read(&pages::root().join("docs/push.md")).1;
    let block = page.iter().find(|block| block.lines.iter().any(|line| line.starts_with("def verify_by_public_key")));
    let call =
        "import json, sys\nprint(verify_by_public_key(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3].encode()))";
    format!("{}\n{call}", block.expect("an example of it is there").lines.join("\n"))
}

/// While a key is replaced, the old one and the new one verify; a third one does not, nor what was changed.
#[test]
fn what_came_is_verified_by_the_public_key_that_the_api_tells() {
    let (mut scene, receiver) = (Scene::with(Engine::Postgres17, &["doug"]), Receiver::start());
    let (notifier, rest, token, made) = crm_subscribes(&mut scene, &receiver.url("/quick"));
    let id = made["id"].as_str().unwrap();
    wait_until("the callback has answered its question", || receiver.taken("/quick").len() == 1);
    let secret = format!("/subscriptions/{id}/secret");
    let rotated = rest.ask(&token, &format!("POST {secret}"), None).good(200);
    scene.deliver("doug", scene.message("a")).delivered();
    wait_until("it is told", || receiver.taken("/quick").len() == 2);
    let request = receiver.taken("/quick").pop().unwrap();
    let later = rest.ask(&token, &format!("POST {secret}"), None).good(200);
    let [old, new, third] = [&made, &rotated, &later].map(|told| told["public_key"].as_str().unwrap().to_owned());
    // On the command line it is the same.
    let said =
        program(&["subscription", "secret", "--public-key", id, "--config", &scene.path("notifier.toml")]).output();
    assert_eq!(String::from_utf8(said.unwrap().stdout).unwrap(), format!("{third}\n"));
    notifier.end();
    rest.end();

    let versions: Vec<&str> =
        request.headers["webhook-signature"].split(' ').map(|one| one.split_once(',').unwrap().0).collect();
    assert_eq!(versions, ["v1", "v1", "v1a", "v1a"]);
    let verify_by = |library: &[&str]| {
        let verified = |key: &str, headers: &Value, body: &str| {
            let (program, arguments) = library.split_first().unwrap();
            let said = Command::new(program).args(arguments).args([key, &headers.to_string(), body]).output().unwrap();
            assert!(said.status.success(), "{library:?}: {said:?}");
            String::from_utf8(said.stdout).unwrap() == "True\n"
        };
        let headers = json!(request.headers);
        for key in [&old, &new] {
            assert!(verified(key, &headers, &request.body), "{library:?}");
        }
        assert!(!verified(&third, &headers, &request.body), "{library:?}");
        let another = request.body.replace("message.delivered", "message.refused");
        assert!(!verified(&new, &headers, &another), "{library:?}");
        for (field, other) in [
            ("webhook-id", format!("{}0", request.id())),
            ("webhook-timestamp", (timestamp(&request) - 1).to_string()),
            // By the secret alone.
            ("webhook-signature", request.headers["webhook-signature"].split_once(" v1a").unwrap().0.to_owned()),
        ] {
            let mut changed = headers.clone();
            changed[field] = other.into();
            assert!(!verified(&new, &changed, &request.body), "{library:?}: {field}");
        }
    };
    if let Some(python) = python_with(&["cryptography==48.0.0"]) {
        verify_by(&[&python.to_string_lossy(), "-c", &snippet()]);
    }
    // Last: where servers are no containers, the test ends here.
    verify_by(&["docker", "exec", &container("PEERS"), "node", "-e", NODE]);
}

fn timestamp(request: &Request) -> u64 {
    request.headers["webhook-timestamp"].parse().unwrap()
}

/// A try that comes later has a timestamp, and signatures, of its own.
#[test]
fn each_try_has_the_same_bytes_and_is_signed_anew() {
    let (mut scene, receiver) = (Scene::with(Engine::Postgres17, &[]), Receiver::start());
    let id = subscribe(&mut scene, ("all", ""), &receiver.url("/broken"), &[]);
    let notifier = Notifier::start(&mut scene);
    happen(&mut scene, 1, "message.delivered");
    wait_until("it has failed, and is tried in an hour", || {
        scene.database.count("SELECT count(*) FROM notifications WHERE tries = 3") == 1
    });
    let last = timestamp(receiver.came("/broken").last().unwrap());
    wait_until("it is another second", || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() > last);
    receiver.release();
    let again = scene.subcommand(&["notify", "redeliver", "--json"]);
    assert!(again.status.success(), "{again:?}");
    scene.database.execute("UPDATE notifications SET due_at = now()");
    scene.database.execute("UPDATE subscription_queues SET due_at = now(), open_until = NULL");
    wait_until("it is taken", || receiver.taken("/broken").len() == 1);
    notifier.end();
    let tries = receiver.came("/broken");
    let of_all = |what: fn(&Request) -> String| tries.iter().map(what).collect::<BTreeSet<String>>().len();
    assert_eq!((tries.len(), of_all(|one| one.id().to_owned()), of_all(|one| one.body.clone())), (4, 1, 1));
    let taken = tries.last().unwrap();
    assert!(timestamp(taken) > last && of_all(|one| one.headers["webhook-signature"].clone()) > 1);
    tries.iter().for_each(|one| verify(one, id, 1).unwrap());
    assert_eq!(of_all(|one| one.headers["maildrop-attempt"].clone()), 4);
}
