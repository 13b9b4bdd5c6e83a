//! Mail in by HTTP: what a provider's webhook brings is on the disk before it is answered, for those that its token is for.

use crate::engines::failures_before_journal::{down, failure};
use crate::fixtures::rest_client::{Answer, HOOKS, HOST, Rest, exchange};
use crate::support::database::Engine;
use crate::support::own_mounts;
use crate::support::program::{program, wait_until};
use crate::support::queue_of_tests::{Counts, QueueOfTests};
use crate::support::site_fixture::{LISA, Scene};
use maildrop_command::lock::LockName;
use maildrop_command::message::Identity;
use maildrop_command::queue::Queue;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

on_two_engines![
    what_is_brought_is_delivered_once_and_to_whom_the_token_is_for,
    only_who_may_speak_for_authors_has_copies_put_in_sent,
    where_the_database_does_not_commit_it_nobody_is_unknown,
    why_a_submission_waits_is_said_to_all_and_which_host_failed_to_who_sees_all_mail,
];

pub fn sections(scene: &Scene, unknown: &str) -> String {
    format!(
        "[routing]\nunknown_recipient = \"{unknown}\"\n[delivery]\nmessage_size_limit = 100000\n[service]\nruntime_directory = {:?}\n\
         state_directory = {:?}\nworkers = 2\nrunners = 2\n",
        scene.path("run"),
        scene.path("state")
    )
}

fn counts(scene: &Scene) -> Counts {
    Queue::existing(scene.path("state/queue").as_ref()).unwrap().counts().unwrap()
}

fn bring(rest: &Rest, token: &str, query: &str, message: &str) -> Answer {
    let kind = [("content-type", "message/rfc822")];
    rest.send(token, &format!("POST /messages?{query}"), &kind, message.replace('\n', "\r\n").as_bytes())
}

/// The service takes all of it out of the queue, and ends.
fn serve(scene: &Scene, sections: &str) {
    let config = scene.other_configuration("service.toml", |settings| settings.more += sections);
    let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
    let mut master = command.args(["--config", &config]).env_clear().stdin(Stdio::null()).spawn().unwrap();
    wait_until("all is delivered", || counts(scene) == Counts::default());
    kill_process(Pid::from_child(&master), Signal::TERM).unwrap();
    assert!(master.wait().unwrap().success());
}

fn what_is_brought_is_delivered_once_and_to_whom_the_token_is_for(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "scuba"]);
    let sections = sections(&scene, "reject");
    let rest = Rest::start(&mut scene, &sections);
    let token = rest.token(&["--name", "provider", "--scope", "messages:write", "--domain", "mail.axial.net"]);
    let both = "recipient=doug@mail.axial.net&recipient=Scuba@mail.axial.net&sender=lisa@gmail.com";
    let lone = "recipient=doug@mail.axial.net";
    let message = format!("Date: Thu, 26 Nov 2026 03:00:00 +0000\n{}", scene.message("a"));
    let taken = [(); 2].map(|()| bring(&rest, &token, both, &message).good(202));
    assert_ne!(taken[0]["id"], taken[1]["id"]);
    // Two nights, in which the same was done.
    for _ in 0..2 {
        bring(&rest, &token, lone, "Subject: Backup\n\nBackup done\n").good(202);
    }
    assert_eq!(counts(&scene), Counts { new: 4, ..Counts::default() });
    // One that is known and one that is not: nothing is accepted.
    let one_unknown = "recipient=doug@mail.axial.net&recipient=nobody@mail.axial.net";
    let refusal = bring(&rest, &token, one_unknown, &message).problem(422, "unknown-recipient");
    assert!(refusal["errors"][0]["detail"].as_str().unwrap().starts_with("nobody@mail.axial.net"), "{refusal}");
    // Of whom it is not for, it hears nothing.
    for other in ["doug@axial.net", "nobody@axial.net", "doug@mail.axial.net.evil.example"] {
        bring(&rest, &token, &format!("{lone}&recipient={other}"), &message).problem(403, "out-of-bounds");
    }
    for wrong in ["", "recipient=doug", "recipient=", "recipient=doug@mail.axial.net&sender=lisa", "recipient=a@b%00"] {
        bring(&rest, &token, wrong, &message).problem(400, "wrong-parameter");
    }
    bring(&rest, &token, lone, &"x".repeat(100_001)).problem(413, "too-large");
    let claims = [("content-type", "message/rfc822"), ("content-length", "100001")];
    rest.send(&token, &format!("POST /messages?{lone}"), &claims, b"").problem(413, "too-large");
    rest.ask(&token, &format!("POST /messages?{lone}"), None).problem(415, "another-media-type");
    let reader = rest.token(&["--name", "reader", "--scope", "messages:read"]);
    bring(&rest, &reader, lone, &message).problem(403, "out-of-scope");
    bring(&rest, "", lone, &message).problem(401, "no-token");
    assert_eq!(counts(&scene), Counts { new: 4, ..Counts::default() });
    let [first, second] = taken.each_ref().map(|answer| format!("GET /submissions/{}", answer["id"].as_str().unwrap()));
    let waiting = rest.ask(&token, &first, None).good(200);
    assert_eq!((&waiting["state"], &waiting["message_id"]), (&json!("queued"), &json!(null)));
    let addresses = |status: &Value| {
        status["recipients"].as_array().unwrap().iter().map(|one| one["address"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(addresses(&waiting), ["doug@mail.axial.net", "scuba@mail.axial.net"]);
    // Another token of the name, for one of the recipients, and tokens of another name.
    let dougs = ["--name", "provider", "--scope", "messages:write", "--address", "doug@mail.axial.net"];
    let dougs = rest.token(&dougs);
    assert_eq!(addresses(&rest.ask(&dougs, &first, None).good(200)), ["doug@mail.axial.net"]);
    let strangers = rest.token(&["--name", "stranger", "--scope", "messages:write"]);
    rest.ask(&strangers, &first, None).problem(404, "not-found");
    rest.ask(&token, "GET /submissions/1", None).problem(404, "not-found");
    rest.ask(&reader, &first, None).problem(403, "out-of-scope");
    let held = bring(&rest, &token, lone, "Subject: Held\n\nx\n").good(202);
    let held = held["id"].as_str().unwrap();
    let queue = Queue::existing(scene.path("state/queue").as_ref()).unwrap();
    queue.hold(held).unwrap();
    let held_is = format!("GET /submissions/{held}");
    assert_eq!(rest.ask(&token, &held_is, None).good(200)["state"], "held");
    queue.drop_message(held).unwrap();
    assert_eq!(rest.ask(&token, &held_is, None).good(200)["state"], "gone");
    serve(&scene, &sections);
    assert_eq!((scene.inbox("doug").len(), scene.inbox("scuba").len()), (3, 1));
    for submission in [first, second] {
        // The second one found both copies there.
        let done = rest.ask(&token, &submission, None).good(200);
        assert_eq!(done["state"], "delivered", "{done}");
        assert_eq!((done["copies"].as_array().unwrap().len(), done["recipients"].as_array().unwrap().len()), (2, 2));
        assert!(done["message_id"].as_str().unwrap().starts_with('<'), "{done}");
        assert_eq!(rest.ask(&dougs, &submission, None).good(200)["copies"].as_array().unwrap().len(), 1);
        rest.ask(&strangers, &submission, None).problem(404, "not-found");
    }
    rest.end();
    let trace = scene.subcommand(&["trace", taken[0]["id"].as_str().unwrap()]);
    assert!(trace.status.success(), "{trace:?}");
}

fn why_a_submission_waits_is_said_to_all_and_which_host_failed_to_who_sees_all_mail(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let sections = sections(&scene, "defer");
    let rest = Rest::start(&mut scene, &sections);
    let scopes = ["--name", "provider", "--scope", "messages:write", "--scope", "messages:read"];
    let (limited, wide) = (rest.token(&[&scopes[..], &["--domain", "mail.axial.net"]].concat()), rest.token(&scopes));
    // A form's decoder makes a space of `+`.
    for query in ["recipient=doug+x@mail.axial.net", "recipient=doug@mail.axial.net&sender=lisa+x@gmail.com"] {
        let problem = bring(&rest, &limited, query, "Subject: x\n\nx\n").problem(400, "wrong-parameter");
        assert!(problem["errors"][0]["detail"].as_str().unwrap().contains("%2B"), "{problem}");
    }
    let message = format!("Date: Thu, 26 Nov 2026 03:00:00 +0000\n{}", scene.message("a"));
    let brought = bring(&rest, &limited, "recipient=doug@mail.axial.net", &message).good(202);
    let submission = format!("GET /submissions/{}", brought["id"].as_str().unwrap());
    let is = |token: &str| rest.ask(token, &submission, None).good(200);
    assert_eq!(is(&limited)["recipients"][0]["reason"], json!(null));
    let (identity, lock) = (Identity::of(message.as_bytes()), LockName::new(&scene.run, b"1@x"));
    scene.open_database().record_failures(&[failure(&identity, &lock, "doug@mail.axial.net", down())]).unwrap();
    let words = "the mailbox store is out of reach";
    for (token, reason) in
        [(&limited, words.to_owned()), (&wide, format!("{words}: connecting to 10.0.0.7:143: refused"))]
    {
        assert_eq!(is(token)["recipients"][0]["reason"], reason);
        assert_eq!(rest.ask(token, "GET /failures", None).good(200)["items"][0]["cause"], reason);
    }
    rest.end();
}

fn only_who_may_speak_for_authors_has_copies_put_in_sent(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "lisa"]);
    let sections = sections(&scene, "reject");
    let rest = Rest::start(&mut scene, &sections);
    let plain = rest.token(&["--name", "plain", "--scope", "messages:write"]);
    let author = rest.token(&["--name", "author", "--scope", "messages:write", "--scope", "sent"]);
    let query = format!("recipient=doug@mail.axial.net&sender={LISA}");
    // That a server vouches for the author counts for nothing here.
    let vouched = format!(
        "Authentication-Results: mail.axial.net; dmarc=pass header.from=mail.axial.net\n{}",
        scene.message("a")
    );
    bring(&rest, &plain, &query, &vouched).good(202);
    bring(&rest, &plain, &format!("{query}&author=true"), &scene.message("b")).problem(403, "out-of-scope");
    bring(&rest, &author, &query, &scene.message("c")).good(202);
    bring(&rest, &author, &format!("{query}&author=true"), &scene.message("d")).good(202);
    // ServerKind it may bring mail for, it may speak for; and for nobody else.
    let scopes = ["--scope", "messages:write", "--scope", "sent"];
    let dougs = rest.token(&[&["--name", "dougs", "--address", "doug@mail.axial.net"], &scopes[..]].concat());
    bring(&rest, &dougs, &query, &scene.message("f")).good(202);
    bring(&rest, &dougs, &format!("{query}&author=true"), &scene.message("f")).problem(403, "out-of-bounds");
    let another = "recipient=doug@mail.axial.net&sender=doug@mail.axial.net&author=true";
    bring(&rest, &author, another, &scene.message("e")).problem(422, "no-message");
    bring(&rest, &dougs, another, &scene.message("e")).problem(422, "no-message");
    rest.end();
    serve(&scene, &sections);
    let sent = scene.sent("lisa");
    assert_eq!((scene.inbox("doug").len(), sent.len()), (4, 1));
}

#[test]
fn a_full_disk_is_notified_and_nothing_is_accepted() {
    own_mounts::alone("notifications::submission_by_http::where_the_disk_is_full");
}

#[test]
fn where_the_disk_is_full() {
    if !own_mounts::is_alone() {
        return;
    }
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    for folder in ["state", "state/queue"] {
        std::fs::create_dir(scene.path(folder)).unwrap();
        std::fs::set_permissions(scene.path(folder), std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    own_mounts::mount(&scene.path("state/queue"), "256k");
    let sections = sections(&scene, "reject");
    let rest = Rest::start(&mut scene, &sections);
    let token = rest.token(&["--name", "provider", "--scope", "messages:write"]);
    let (query, size) = ("recipient=doug@mail.axial.net", 90_000);
    let message = |number: usize| scene.message(&format!("m{number}")) + &"a line of the body\n".repeat(size / 19);
    bring(&rest, &token, query, &message(0)).good(202);
    // Half of the disk is another token's.
    bring(&rest, &token, query, &message(1)).problem(507, "share-full");
    let [another, third] = ["another", "third"].map(|name| rest.token(&["--name", name, "--scope", "messages:write"]));
    bring(&rest, &another, query, &message(1)).good(202);
    // A tenth of it is kept free, and what is there is delivered all the same.
    let left = 256 * 1024 - 2 * (size + 4096);
    let nearly_all = scene.message("third") + &"a line of the body\n".repeat((left - 26 * 1024) / 19);
    bring(&rest, &third, query, &nearly_all).problem(507, "no-space");
    let accepted = 2;
    // Nothing is left of it, and what was accepted is there.
    assert_eq!(counts(&scene), Counts { new: accepted, ..Counts::default() });
    assert_eq!(std::fs::read_dir(scene.path("state/queue/tmp")).unwrap().count(), 0);
    // Once there is room, it is accepted.
    let remount = ["-o", "remount,size=1m", &scene.path("state/queue")];
    assert!(Command::new("mount").args(remount).status().unwrap().success());
    bring(&rest, &third, query, &nearly_all).good(202);
    assert_eq!(counts(&scene), Counts { new: accepted + 1, ..Counts::default() });
    rest.end();
}

/// Of 60 MB each. A client that brings one may be answered that it takes too long, where the machine is slow; it is
/// taken in all the same.
#[test]
fn three_large_messages_at_once_leave_the_api_the_memory_that_it_has_as_shipped() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    let sections = sections(&scene, "reject").replace("[delivery]\nmessage_size_limit = 100000\n", "");
    let rest = Rest::start(&mut scene, &sections);
    let tokens = ["one", "another", "third"].map(|name| rest.token(&["--name", name, "--scope", "messages:write"]));
    rest.limit_memory();
    let body = "Subject: x\n\n".to_owned()
        + &"a line of the body of a large message, as long as such a line may be\n".repeat(860_000);
    let kind = [("content-type", "message/rfc822")];
    let bring = |token: &str| rest.send(token, "POST /messages?recipient=doug@mail.axial.net", &kind, body.as_bytes());
    std::thread::scope(|threads| {
        for token in &tokens {
            threads.spawn(|| {
                let answer = bring(token);
                assert!(answer.status == 202 || answer.body.contains("problem:too-long"), "{answer:?}");
            });
        }
    });
    wait_until("all of them are taken in", || counts(&scene) == Counts { new: 3, ..Counts::default() });
    rest.end();
}

/// No filter of ours has read it (RFC 8601 section 5).
#[test]
fn what_is_brought_loses_results_that_claim_to_be_ours() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    let sections = sections(&scene, "reject") + "[sent]\nauthserv_id = \"mx.axial.net\"\n";
    let rest = Rest::start(&mut scene, &sections);
    let token = rest.token(&["--name", "provider", "--scope", "messages:write"]);
    let message = scene.message("a");
    let claim = "Authentication-Results: mx.axial.net; dmarc=pass header.from=mail.axial.net\n";
    let others = "Authentication-Results: mx.gmail.com; dmarc=pass\n";
    bring(&rest, &token, "recipient=doug@mail.axial.net", &[others, claim, &message].concat()).good(202);
    let config = scene.other_configuration("inject.toml", |settings| settings.more += &sections);
    let file = scene.file("b.eml", &[others, claim, &message].concat(), 0o600);
    let injected =
        program(&["inject", "--config", &config, "--recipient", "doug@mail.axial.net", &file]).output().unwrap();
    assert!(injected.status.success(), "{injected:?}");
    let queue = Queue::existing(scene.path("state/queue").as_ref()).unwrap();
    let kept: Vec<String> = queue.list().unwrap().iter().map(|entry| text_of(&queue, &entry.id)).collect();
    let expected = [others, &message].concat();
    // Without a Date, a field on top distinguishes one from the next.
    assert!(kept.len() == 2 && kept.iter().all(|kept| kept.ends_with(&expected)), "{kept:#?}");
    rest.end();
}

fn text_of(queue: &Queue, id: &str) -> String {
    String::from_utf8(queue.read(id).unwrap().1).unwrap().replace('\r', "")
}

fn where_the_database_does_not_commit_it_nobody_is_unknown(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let sections = sections(&scene, "defer");
    let rest = Rest::start(&mut scene, &sections);
    let token = rest.token(&["--name", "provider", "--scope", "messages:write"]);
    let nobody = bring(&rest, &token, "recipient=nobody@mail.axial.net", &scene.message("a"));
    assert_eq!(nobody.headers["retry-after"], "60");
    let detail = nobody.problem(503, "not-known-now")["errors"][0]["detail"].to_string();
    assert!(
        detail.contains("nobody@mail.axial.net") && detail.contains("routing.unknown_recipient = \\\"defer\\\""),
        "{detail}"
    );
    scene.database.execute("DELETE FROM addresses");
    bring(&rest, &token, "recipient=doug@mail.axial.net", &scene.message("a")).problem(503, "not-known-now");
    assert!(Queue::existing(scene.path("state/queue").as_ref()).is_err(), "nothing was accepted");
    rest.end();
}

/// A provider that reaches the API's own socket gets to no page there, and who reaches the page's gets to no API.
#[test]
fn mail_comes_in_at_a_socket_on_which_no_page_is() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    let sections = sections(&scene, "reject");
    let rest = Rest::start_apart(&mut scene, &sections);
    let token = rest.token(&["--name", "provider", "--scope", "messages:write", "--scope", "messages:read"]);
    bring(&rest, &token, "recipient=doug@mail.axial.net", &scene.message("a")).good(202);
    assert_eq!(counts(&scene), Counts { new: 1, ..Counts::default() });

    let page = scene.path("page.sock");
    let ask = |socket: &str, host: &str, request: &str| {
        let head = format!(
            "{request} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: 0\r\nauthorization: Bearer {token}\r\n"
        );
        exchange(socket, &head, b"")
    };
    // What is there with a token, and what everybody may ask of the page.
    let of_api = ["GET /api/v1/messages/none", "GET /api/openapi.json", "POST /api/v1/messages"];
    let of_page = ["GET /login", "GET /", "POST /login"];
    for request in of_page {
        ask(&rest.socket, HOOKS, request).problem(404, "not-found");
        assert_ne!(ask(&page, HOST, request).status, 404, "{request}");
    }
    for request in of_api {
        let answer = ask(&page, HOST, request);
        assert_eq!((answer.status, answer.body.contains("problem")), (404, false), "{request}: {answer:?}");
        let response = ask(&rest.socket, HOOKS, request);
        assert!(
            response.headers["content-type"].starts_with("application/") && response.status != 421,
            "{request}: {response:?}"
        );
    }
    // Each has its own name, and the other one's is none of its.
    for (socket, another) in [(&rest.socket, HOST), (&page, HOOKS)] {
        assert_eq!(ask(socket, another, "GET /api/openapi.json").status, 421);
    }
    rest.end();
}

/// As many as are taken in at once send a body slowly: they hold up nobody else, and come in all the same.
#[test]
fn who_sends_a_message_slowly_holds_up_nobody_else() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    let sections = sections(&scene, "reject");
    let rest = Rest::start(&mut scene, &sections);
    let [slow, token] =
        ["slow", "provider"].map(|name| rest.token(&["--name", name, "--scope", "messages:write", "--rate", "10000"]));
    let query = "recipient=doug@mail.axial.net";
    let body = scene.message("slow").replace('\n', "\r\n");
    let (begun, left) = body.split_at(10);
    let mut drips = [(); 4].map(|()| {
        let mut stream = UnixStream::connect(&rest.socket).unwrap();
        let head = format!(
            "POST /api/v1/messages?{query} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\nauthorization: Bearer {slow}\r\n\
             content-type: message/rfc822\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // It is answered so once its body is waited for.
        let mut buffer = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
        stream.read_exact(&mut buffer).unwrap();
        assert_eq!(buffer, *b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(begun.as_bytes()).unwrap();
        stream
    });
    bring(&rest, &token, query, &scene.message("a")).good(202);
    for drip in &mut drips {
        drip.set_nonblocking(true).unwrap();
        let error_text = drip.read(&mut [0; 1]).map_err(|error| error.kind());
        assert_eq!(error_text, Err(ErrorKind::WouldBlock), "its body is waited for still");
        drip.set_nonblocking(false).unwrap();
    }
    for mut drip in drips {
        drip.write_all(left.as_bytes()).unwrap();
        let mut received = String::new();
        drip.read_to_string(&mut received).unwrap();
        assert!(received.starts_with("HTTP/1.1 202 "), "{received}");
    }
    assert_eq!(counts(&scene), Counts { new: 5, ..Counts::default() });
    rest.end();
}
