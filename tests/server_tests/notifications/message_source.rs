//! A platform reads messages themselves by the API, with exactly the rights that the grants files give.

use crate::fixtures::rest_client::{HOST, Rest, role};
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

on_two_engines![
    what_is_kept_is_handed_out_to_who_may_and_written_down,
    what_is_not_kept_comes_out_of_a_mailbox_where_they_may_be_opened,
];

/// Delivers a message, with these lines before it: as it came from the network, and its path.
pub(super) fn deliver(scene: &mut Scene, to: &str, prepended: &str, id: &str) -> (String, String) {
    scene.deliver(to, format!("{prepended}{}", scene.message(id))).delivered();
    let hex = if scene.database.engine.is_postgres() { "encode(identity, 'hex')" } else { "LOWER(HEX(identity))" };
    let identity = scene.database.texts(&format!("SELECT {hex} FROM messages WHERE subject = '{id}'")).remove(0);
    (scene.message(id).replace('\n', "\r\n"), format!("/messages/{identity}/source"))
}

const LOG: &str = "SELECT outcome FROM operations WHERE interface = 'api' AND actor = 'crm' AND operation = 'downloaded' \
                   AND target = 'source' ORDER BY id";

fn what_is_kept_is_handed_out_to_who_may_and_written_down(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let (_, unkept) = deliver(&mut scene, "doug", "", "unkept");
    scene.configure(|settings| settings.more += "[record]\nkeep_source = true\n");
    // As pipe(8) has it, with lines for this recipient.
    let prepended =
        "Return-Path: <lisa@mail.axial.net>\nX-Original-To: all@mail.axial.net\nDelivered-To: doug@mail.axial.net\n";
    let (message, kept) = deliver(&mut scene, "doug", prepended, "kept");

    let rest = Rest::start(&mut scene, "");
    let token = |name: &str, more: &[&str]| {
        rest.token(&[&["--name", name, "--rate", "10000", "--scope", "messages:content"], more].concat())
    };
    let own = token("crm", &["--domain", "mail.axial.net"]);
    let (other, all) = (token("other", &["--domain", "axial.net"]), token("all", &[]));
    let narrow = rest.token(&["--name", "crm", "--scope", "messages:read"]);
    let get = |token: &str, path: &str| rest.ask(token, &format!("GET {path}"), None);
    // The role of the page alone may not read it: that is said to who may ask.
    let problem_text = get(&own, &kept).problem(404, "no-source");
    assert!(
        problem_text["detail"].as_str().unwrap().contains("may not read the sources that record.keep_source keeps"),
        "{problem_text}"
    );
    scene.database.let_hand_out_sources(&role(&scene));

    for token in [&own, &all] {
        let answer = get(token, &kept);
        assert_eq!((answer.status, answer.body.as_str()), (200, message.as_str()), "{answer:?}");
        assert_eq!(answer.headers["content-type"], "message/rfc822");
        assert!(answer.headers["content-disposition"].starts_with("attachment"));
        assert_eq!(answer.headers["cache-control"], "no-store");
    }
    let refusal = get(&own, &unkept).problem(404, "no-source");
    let why =
        "its source is not kept (record.keep_source), and mailboxes may not be opened here (web.allow_mailbox_access)";
    assert_eq!(refusal["detail"], why);
    // Another one's is not there, and what was not shown to him for that is nobody's business.
    for (token, path) in [(&other, kept.as_str()), (&other, &unkept), (&own, "/messages/1/source")] {
        get(token, path).problem(404, "not-found");
    }
    let nothing = format!("/messages/{}/source", "0".repeat(64));
    get(&all, &nothing).problem(404, "not-found");
    get(&narrow, &kept).problem(403, "out-of-scope");
    get("", &kept).problem(401, "no-token");
    get(&own, &format!("{kept}?x=1")).problem(400, "wrong-parameter");
    let log = scene.database.texts(LOG);
    assert_eq!(log.len(), 3, "{log:?}");
    assert!(log[0].starts_with("not shown: mailboxes may not be opened here"), "{log:?}");
    assert_eq!((log[1].as_str(), log[2].as_str()), ("shown, from the ledger's sources", &*format!("not shown: {why}")));
    assert_eq!(scene.database.count("SELECT count(*) FROM operations WHERE interface = 'api'"), 4);

    // Nothing is handed out that cannot be written down.
    let role = if engine.is_postgres() { role(&scene) } else { format!("'{}'@'%'", role(&scene)) };
    scene.database.execute(&format!("REVOKE INSERT ON operations FROM {role}"));
    let refused = get(&own, &kept);
    refused.problem(503, "not-set-up");
    assert!(!refused.body.contains("Subject"), "{refused:?}");
    rest.end();
}

fn what_is_not_kept_comes_out_of_a_mailbox_where_they_may_be_opened(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "scuba"]);
    let (message, path) = deliver(&mut scene, "doug", "Delivered-To: doug@mail.axial.net\n", "a");
    let (_, gone) = deliver(&mut scene, "scuba", "", "gone");
    let mut scuba = scene.look("scuba");
    for command in ["SELECT INBOX", "STORE 1:* +FLAGS (\\Deleted)", "EXPUNGE"] {
        scuba.run(command).unwrap();
    }
    let rest = Rest::start_with_mailboxes(&mut scene);
    let token = rest.token(&["--name", "crm", "--scope", "messages:content", "--domain", "mail.axial.net"]);
    let answer = rest.ask(&token, &format!("GET {path}"), None);
    assert_eq!((answer.status, answer.body.as_str()), (200, message.as_str()), "{answer:?}");
    let refusal = rest.ask(&token, &format!("GET {gone}"), None).problem(404, "no-source");
    // Whose mailboxes were looked into is for the operations log alone.
    assert_eq!(refusal["detail"], "it is in no mailbox any more, and its source is not kept (record.keep_source)");
    let log = scene.database.texts(LOG);
    assert_eq!((log.len(), log[0].as_str()), (2, "shown"), "{log:?}");
    assert!(log[1].starts_with("not shown: ") && log[1].contains(&scene.user("scuba")), "{log:?}");
    let user = scene.user("doug");
    assert_eq!(
        scene.database.texts("SELECT imap_user FROM operations WHERE outcome = 'shown' AND mailbox = 'INBOX'"),
        [user]
    );
    rest.end();
}

/// Who asks for messages and does not read them keeps the memory that they take, of which one token has no more than half: 125 MB, as
/// shipped. While it is read, a message takes twice its size.
#[test]
fn a_message_that_is_not_read_keeps_its_memory_until_who_asked_for_it_has_gone() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    scene.configure(|settings| settings.more += "[record]\nkeep_source = true\nkeep_source_max = \"20MB\"\n");
    // Of 13.2 MB: the ninth of one token finds less than twice that, and so does the eighteenth of all.
    let message = scene.message("large") + &"a line of the body\n".repeat(660_000);
    scene.deliver("doug", message).delivered();
    let identity = scene.database.texts("SELECT encode(identity, 'hex') FROM messages").remove(0);
    let path = format!("/messages/{identity}/source");
    let rest = Rest::start(&mut scene, "");
    scene.database.let_hand_out_sources(&role(&scene));
    let [one, other, third] = ["one", "other", "third"]
        .map(|name| rest.token(&["--name", name, "--scope", "messages:content", "--rate", "10000"]));
    rest.limit_memory();
    let begin = |token: &str| {
        let mut stream = UnixStream::connect(&rest.socket).unwrap();
        let head = format!("GET /api/v1{path} HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {token}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut received = [0; "HTTP/1.1 200".len()];
        stream.read_exact(&mut received).unwrap();
        assert_eq!(received, *b"HTTP/1.1 200");
        stream
    };
    let get = |token: &str| rest.ask(token, &format!("GET {path}"), None);
    let ones: Vec<UnixStream> = (0..8).map(|_| begin(&one)).collect();
    get(&one).problem(503, "unavailable");
    let mut others: Vec<UnixStream> = (0..8).map(|_| begin(&other)).collect();
    let thirds = begin(&third);
    get(&third).problem(503, "unavailable");
    others.pop();
    wait_until("there is memory again", || get(&third).status == 200);
    get(&one).problem(503, "unavailable");
    drop(ones);
    wait_until("there is memory for the first one again", || get(&one).status == 200);
    drop((others, thirds));
    rest.end();
}
