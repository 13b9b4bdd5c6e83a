//! The whole service on real servers, by LMTP: what it answers, and what is in the mailboxes afterwards, whatever of it is killed.

use crate::support::database::Engine;
use crate::support::lmtp::Lmtp;
use crate::support::program::wait_until;
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use crate::support::wire::Wire;
use crate::support::{host_and_port, server};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const TEN: [&str; 10] = ["doug", "scuba", "kim", "anna", "bert", "carl", "dora", "emil", "fred", "gina"];

fn scene(engine: Engine) -> Scene {
    let mut scene = Scene::with(engine, &TEN);
    scene.member("lisa");
    scene
}

fn addresses(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("{name}@mail.axial.net")).collect()
}

/// How often a mailbox has the message of this subject.
fn copies(scene: &Scene, name: &str, mailbox: &str, subject: &str) -> usize {
    scene.mailbox(name, mailbox).iter().filter(|copy| copy.field("Subject") == subject).count()
}

/// A reply, up to what it says of the author's copy.
fn without_sent(reply: &str) -> &str {
    reply.split_once(", Sent ").map_or(reply, |(inbox, _)| inbox)
}

/// Each of these has it once, and so has its author.
#[track_caller]
fn each_has_one(scene: &Scene, names: &[&str], subject: &str) {
    for name in names {
        assert_eq!(copies(scene, name, "INBOX", subject), 1, "{subject}: {name}");
    }
    assert_eq!(copies(scene, "lisa", "Sent", subject), 1, "{subject}: Sent");
}

on_two_engines![
    each_recipient_has_one_copy_and_an_answer_of_its_own,
    a_worker_that_is_killed_in_the_midst_of_a_message_puts_it_off_for_all,
    a_front_that_is_killed_is_there_again_on_the_same_socket,
    processes_that_are_replaced_under_a_stream_of_messages_refuse_none,
    a_database_that_nothing_is_delivered_by_is_reported_until_something_is,
];

fn each_recipient_has_one_copy_and_an_answer_of_its_own(engine: Engine) {
    one_copy_and_an_answer_each(scene(engine));
}

fn one_copy_and_an_answer_each(mut scene: Scene) {
    let service = Service::start(&mut scene);
    let mut lmtp = Lmtp::connect(&service.socket);
    for (round, count) in [1, 2, 10].into_iter().enumerate() {
        let (names, subject) = (&TEN[..count], format!("to {count}"));
        let message = scene.message(&subject.replace(' ', "-")).replace("Subject: to-", "Subject: to ");
        let replies = lmtp.deliver(LISA, &addresses(names), &message);
        // The first reply reports its author's copy.
        let sent = format!(", Sent appended (uid {})", round + 1);
        assert!(replies[0].ends_with(&sent), "{replies:?}");
        for (name, reply) in names.iter().zip(&replies) {
            let uid = scene.inbox(name).pop().unwrap().uid;
            assert_eq!(without_sent(reply), format!("250 2.0.0 INBOX appended (uid {uid})"), "{replies:?}");
        }
        each_has_one(&scene, names, &subject);
        // Once more, as from Postfix's queue after a reply that was lost.
        let replies = lmtp.deliver(LISA, &addresses(names), &message);
        assert_eq!(replies[0], "250 2.0.0 INBOX already there, Sent already there");
        assert!(replies.iter().all(|reply| without_sent(reply) == "250 2.0.0 INBOX already there"), "{replies:?}");
        each_has_one(&scene, names, &subject);
    }
    // Nobody is lost for a stranger among them, and there is nobody's answer in his place.
    let among = addresses(&["doug", "stranger", "scuba"]);
    let replies = lmtp.deliver(LISA, &among, &scene.message("stranger"));
    let codes: Vec<&str> = replies.iter().map(|reply| &reply[..9]).collect();
    assert_eq!(codes, ["250 2.0.0", "451 4.1.1", "250 2.0.0"], "{replies:?}");
    // Not one reply more, which would be taken for that to the next command.
    assert_eq!(lmtp.say("QUIT"), "221 2.0.0 Bye");
    each_has_one(&scene, &["doug", "scuba"], "stranger");
    service.end();
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    assert_eq!(scene.database.count("SELECT count(*) FROM messages"), 4);
}

/// What `/readyz` says.
fn readiness(http: &str) -> String {
    let mut stream = UnixStream::connect(http).unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut received = String::new();
    stream.read_to_string(&mut received).unwrap();
    received
}

fn a_database_that_nothing_is_delivered_by_is_reported_until_something_is(engine: Engine) {
    let mut scene = scene(engine);
    let http = scene.path("http");
    let mut service = Service::start_with(&mut scene, &format!("workers = 2\nhttp = {http:?}\n"), &[]);
    let mut lmtp = Lmtp::connect(&service.socket);
    let message = scene.message("away");
    scene.database.execute("ALTER TABLE addresses RENAME TO addresses_away");
    let replies = lmtp.deliver(LISA, &addresses(&["doug", "scuba"]), &message);
    assert!(replies.iter().all(|reply| reply.starts_with("451 4.3.")), "{replies:?}");
    let away = "the database is away, and mail is deferred: ";
    wait_until("the status says so", || {
        let status = service.status();
        let reasons = status["reasons"].as_array().unwrap();
        let reported = reasons.iter().any(|reason| reason.as_str().unwrap().starts_with(away));
        reported && status["state"] == "degraded"
    });
    wait_until("/readyz says so", || {
        let shown = readiness(&http);
        shown.starts_with("HTTP/1.1 200 ") && shown.contains(away)
    });
    scene.database.execute("ALTER TABLE addresses_away RENAME TO addresses");
    let replies = lmtp.deliver(LISA, &addresses(&["doug", "scuba"]), &message);
    assert!(replies.iter().all(|reply| reply.starts_with("250 2.0.0 ")), "{replies:?}");
    service.wait_until_well();
    wait_until("/readyz says so, too", || readiness(&http).ends_with("\r\n\r\nready\n"));
    service.end();
}

fn a_worker_that_is_killed_in_the_midst_of_a_message_puts_it_off_for_all(engine: Engine) {
    a_killed_worker_puts_it_off(scene(engine));
}

fn a_killed_worker_puts_it_off(mut scene: Scene) {
    let mut service = Service::start(&mut scene);
    let names = &TEN[..3];
    let message = scene.message("killed");
    let mut lmtp = Lmtp::connect(&service.socket);
    let holder = scene.hold(&scene.message_id("killed"));
    lmtp.give(LISA, &addresses(names), &message);
    let open = "SELECT DISTINCT CAST(pid AS char(20)) FROM attempts WHERE ended_at IS NULL";
    wait_until("a worker waits for the lock", || !scene.database.texts(open).is_empty());
    let pid: i32 = scene.database.texts(open).remove(0).trim().parse().unwrap();
    let worker = Pid::from_raw(pid).unwrap();
    assert!(service.processes("worker").contains(&worker));
    kill_process(worker, Signal::KILL).unwrap();
    let replies = lmtp.replies(names.len());
    assert!(replies.iter().all(|reply| reply.starts_with("451 4.3.0 ")), "{replies:?}");
    // The connection has outlived it, and so has the service.
    drop(holder);
    service.wait_until_replaced(&[worker]);
    scene.ten_minutes_pass();
    let replies = lmtp.deliver(LISA, &addresses(names), &message);
    assert!(replies.iter().all(|reply| reply.starts_with("250 2.0.0 INBOX appended")), "{replies:?}");
    each_has_one(&scene, names, "killed");
    service.end();
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}

fn a_front_that_is_killed_is_there_again_on_the_same_socket(engine: Engine) {
    let mut scene = scene(engine);
    let mut service = Service::start(&mut scene);
    let names = &TEN[..3];
    let message = scene.message("front");
    let mut lmtp = Lmtp::connect(&service.socket);
    let holder = scene.hold(&scene.message_id("front"));
    lmtp.give(LISA, &addresses(names), &message);
    wait_until("a worker waits for the lock", || {
        scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL") > 0
    });
    let front = service.processes("front");
    kill_process(front[0], Signal::KILL).unwrap();
    // Nothing is answered: a client without a reply keeps the message.
    assert!(lmtp.is_closed());
    // A client that connects meanwhile waits, since the master holds the socket.
    let mut lmtp = Lmtp::connect(&service.socket);
    drop(holder);
    service.wait_until_replaced(&front);
    wait_until("the worker has ended its delivery", || {
        scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL") == 0
    });
    let replies = lmtp.deliver(LISA, &addresses(names), &message);
    assert!(replies.iter().all(|reply| without_sent(reply) == "250 2.0.0 INBOX already there"), "{replies:?}");
    each_has_one(&scene, names, "front");
    service.end();
}

fn processes_that_are_replaced_under_a_stream_of_messages_refuse_none(engine: Engine) {
    let mut scene = scene(engine);
    let mut service = Service::start(&mut scene);
    let names = [TEN[0], TEN[1]];
    let (recipients, socket) = (addresses(&names), service.socket.clone());
    let template = scene.message("the-id");
    let all_is_new = AtomicBool::new(false);
    let stream = &|client: usize| {
        let mut sent = Vec::new();
        // A few more once all is new.
        let mut left = 3;
        while left > 0 {
            if all_is_new.load(Ordering::SeqCst) {
                left -= 1;
            }
            let id = format!("c{client}m{}", sent.len());
            let message = template.replace("the-id", &id);
            let replies = Lmtp::connect(&socket).deliver(LISA, &recipients, &message);
            assert!(replies.iter().all(|reply| reply.starts_with("250 2.0.0 INBOX appended")), "{id}: {replies:?}");
            sent.push(id);
        }
        sent
    };
    let sent: Vec<String> = std::thread::scope(|scope| {
        let streams = [1, 2].map(|client| scope.spawn(move || stream(client)));
        for _ in 0..2 {
            let old = [service.processes("front"), service.processes("worker")].concat();
            assert_eq!(old.len(), 3);
            service.signal(Signal::USR1);
            service.wait_until_replaced(&old);
        }
        all_is_new.store(true, Ordering::SeqCst);
        streams.into_iter().flat_map(|stream| stream.join().unwrap()).collect()
    });
    service.end();
    println!("{} messages while all processes were replaced twice", sent.len());
    let mailboxes = names.map(|name| scene.inbox(name)).into_iter().chain([scene.sent("lisa")]);
    for mailbox in mailboxes {
        let mut there: Vec<String> = mailbox.iter().map(|copy| copy.field("Subject")).collect();
        let mut wanted = sent.clone();
        there.sort();
        wanted.sort();
        assert_eq!(there, wanted);
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}

/// In transaction mode. The workers' sessions with it stay, and have another session of the server for each transaction.
#[test]
fn behind_pgbouncer_each_has_one_copy_as_well_and_a_killed_worker_leaves_no_lock() {
    let behind = || {
        let mut scene = scene(Engine::Postgres17);
        scene.configure(|settings| settings.database = host_and_port(server("PGBOUNCER"), 5432));
        scene
    };
    one_copy_and_an_answer_each(behind());
    a_killed_worker_puts_it_off(behind());
}

/// Three messages for him, and three workers.
#[test]
fn a_mailbox_that_hangs_takes_two_workers_and_the_third_has_everybody_elses_mail() {
    let mut scene = scene(Engine::Postgres17);
    let hangs = Arc::new(AtomicBool::new(true));
    let (wire, _) = Wire::where_logins_hang(scene.settings.imap.clone(), &scene.user("kim"), &hangs);
    scene.configure(|settings| {
        settings.imap = (wire.address.ip().to_string(), wire.address.port());
        settings.imap_more = "append_grace = \"64s\"\n".into();
        settings.more = "[delivery]\ndeadline = \"60s\"\n".into();
    });
    let mut service = Service::start_with(&mut scene, "workers = 3\nworker_wait = \"20s\"\n", &[]);
    // The login is checked.
    Lmtp::connect(&service.socket).deliver(LISA, &addresses(&["anna"]), &scene.message("before"));
    let ids = ["first", "second", "third"];
    let messages = ids.map(|id| scene.message(id));
    let mut clients = messages.each_ref().map(|message| {
        let mut lmtp = Lmtp::connect(&service.socket);
        lmtp.give(LISA, &addresses(&["kim"]), message);
        lmtp
    });
    wait_until("two workers have him, and the third message waits", || {
        let front = &service.status()["front"];
        front["busy"] == 2 && front["queued"] == 1
    });
    let others: Vec<&str> = TEN.into_iter().filter(|name| *name != "kim").collect();
    for name in &others {
        let replies = Lmtp::connect(&service.socket).deliver(LISA, &addresses(&[name]), &scene.message(name));
        assert!(replies[0].starts_with("250 2.0.0 INBOX appended"), "{name}: {replies:?}");
    }
    let replies = clients.each_mut().map(|lmtp| lmtp.replies(1).remove(0));
    let mut codes = replies.each_ref().map(|reply| &reply[..9]);
    codes.sort_unstable();
    assert_eq!(codes, ["451 4.4.1", "451 4.4.1", "451 4.4.5"], "{replies:?}");
    // He has them once he can be reached, and nobody lends a hand.
    hangs.store(false, Ordering::SeqCst);
    service.wait_until_well();
    for (lmtp, message) in clients.iter_mut().zip(&messages) {
        let replies = lmtp.deliver(LISA, &addresses(&["kim"]), message);
        assert!(replies[0].starts_with("250 2.0.0 INBOX appended"), "{replies:?}");
    }
    service.end();
    for id in ids {
        each_has_one(&scene, &["kim"], id);
    }
    for name in others {
        each_has_one(&scene, &[name], name);
    }
}
