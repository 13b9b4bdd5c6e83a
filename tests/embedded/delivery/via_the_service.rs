//! `--via`: a message is the service's, or it is delivered from here, or it is deferred; never two of these.

use crate::broker::{Broker, Client, frame_of};
use crate::program::{Running, feed, program};
use crate::support::clients_and_processes::{child, subject};
use maildrop_command::delivery::{StatusDetail, Verdict};
use maildrop_command::protocol::{Header, LONGEST_HEADER};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// With what is changed on its way into a mailbox: a line that ends in LF, a NUL, a byte of no character set.
const MESSAGE: &[u8] = b"From: lisa@gmail.com\nMessage-ID: <123-abc@mail.google.com>\n\nHello\0\xff\r\n\n";

const ENVELOPE: [&str; 6] =
    ["--sender", "lisa@gmail.com", "--recipient", "doug@mail.axial.net", "--queue-id", "4bXyz12abc"];

fn delivery(directory: &Path, socket: &Path, more: &[&str]) -> Command {
    let (directory, socket) = (directory.to_str().unwrap(), socket.to_str().unwrap());
    program(&[&["--embedded", directory, "--via", socket], &ENVELOPE[..], more].concat())
}

/// How many messages are in his INBOX.
fn inbox(directory: &Path) -> usize {
    std::fs::read_dir(directory.join("doug@mail.axial.net/new")).map_or(0, |entries| entries.count())
}

fn log(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("delivery.log")).unwrap()
}

/// The client has delivered nothing, and has not even begun to.
#[track_caller]
fn nothing_is_delivered_from_here(directory: &Path) {
    assert_eq!(inbox(directory), 0);
    assert!(!directory.join("ledger.sqlite").exists(), "a delivery has begun");
}

/// A delivery whose service is played by `broker`, which runs beside it.
fn with(broker: impl FnOnce(&Broker) + Send, more: &[&str]) -> (tempfile::TempDir, crate::program::Outcome) {
    let directory = tempfile::tempdir().unwrap();
    let played = Broker::new();
    let command = delivery(directory.path(), &played.socket(), more);
    let outcome = thread::scope(|scope| {
        let running = Running::start(command, MESSAGE);
        scope.spawn(|| broker(&played));
        running.end()
    });
    (directory, outcome)
}

#[test]
fn the_service_gets_the_message_as_it_came_and_all_that_is_known_of_it() {
    let more =
        ["--original-recipient=Doug@axial.net", "--client-address=192.0.2.1", "--sasl-username=lisa", "--lock-wait=7s"];
    let (directory, outcome) = with(
        |broker| {
            let mut client = broker.accept();
            let (request, message) = client.deliver();
            assert_eq!(message, MESSAGE);
            assert_eq!(request.sender, "lisa@gmail.com");
            assert_eq!(request.recipients.len(), 1);
            assert_eq!(request.recipients[0].address, "doug@mail.axial.net");
            assert_eq!(request.recipients[0].original.as_deref(), Some("Doug@axial.net"));
            assert_eq!(request.queue_id.as_deref(), Some("4bXyz12abc"));
            assert_eq!(request.client_address.as_deref(), Some("192.0.2.1"));
            assert_eq!(request.sasl_username.as_deref(), Some("lisa"));
            assert_eq!(request.lock_wait_ms, Some(7000));
            assert_eq!(request.file, None);
            // Less than all of it, so that the answer is there before our own end.
            assert!(request.time_left_ms > 0 && request.time_left_ms <= 239_000, "{}", request.time_left_ms);
            client.say(&Header::Received { id: request.id });
            assert_eq!(client.hear(), Some((Header::Go { id: request.id }, Vec::new())));
            client.reply(request.id, &[Verdict::delivered("INBOX appended (uid 17)")]);
            assert_eq!(client.hear(), None);
        },
        &more,
    );
    assert_eq!(outcome.delivered(), "INBOX appended (uid 17)");
    nothing_is_delivered_from_here(directory.path());
}

#[test]
fn what_the_service_says_is_what_postfix_gets() {
    for (verdict, exit) in [
        (Verdict::deferred(StatusDetail::SYSTEM, "the database cannot be reached"), 75),
        (Verdict::unknown_recipient("no such user"), 67),
        (Verdict::too_big("too big"), 65),
        (Verdict::over_quota("full"), 77),
    ] {
        let (directory, outcome) = with(
            |broker| {
                let (mut client, request) = broker.until_go();
                client.reply(request.id, std::slice::from_ref(&verdict));
            },
            &[],
        );
        assert_eq!((outcome.exit, outcome.line), (Some(exit), verdict.line()));
        nothing_is_delivered_from_here(directory.path());
    }
}

#[test]
fn a_service_that_never_answers_is_asked_three_times_and_then_the_message_is_delivered_from_here() {
    let (directory, outcome) = with(
        |broker| {
            let ids: Vec<Option<Uuid>> = (1..=3)
                .map(|number| {
                    let since = Instant::now();
                    let mut client = broker.accept_once();
                    let Some((Header::Deliver(request), message)) = client.as_mut().and_then(Client::hear) else {
                        // It has given up before it was heard: by its own time, as we have hung.
                        assert!(since.elapsed() > Duration::from_secs(2), "try {number} hands nothing over");
                        return None;
                    };
                    assert_eq!(message, MESSAGE);
                    // None is asked to go on.
                    assert_eq!(client.unwrap().hear(), None);
                    Some(request.id)
                })
                .collect();
            let heard: Vec<_> = ids.iter().flatten().collect();
            assert!(heard.iter().all(|id| *id == heard[0]), "{ids:?}");
        },
        &[],
    );
    outcome.delivered();
    assert_eq!(inbox(directory.path()), 1);
    let log = log(directory.path());
    assert!(log.contains("the service did not take the message") && log.contains("4bXyz12abc"), "{log}");
}

#[test]
fn a_connection_that_is_lost_or_makes_no_sense_before_the_message_has_arrived_is_retried() {
    // The third try is a good one.
    let (directory, outcome) = with(
        |broker| {
            broker.accept().deliver();
            let mut client = broker.accept();
            client.deliver();
            client.say_bytes(b"MDR1 and no more");
            assert_eq!(client.hear(), None);
            let (mut client, request) = broker.until_go();
            client.reply(request.id, &[Verdict::delivered("x")]);
        },
        &[],
    );
    outcome.delivered();
    nothing_is_delivered_from_here(directory.path());

    // None of them is.
    let (directory, outcome) = with(
        |broker| {
            broker.accept().deliver();
            // That another message is put off says nothing of this one.
            let mut client = broker.accept();
            client.deliver();
            client.reply(Uuid::nil(), &[Verdict::deferred(StatusDetail::SYSTEM, "x")]);
            assert_eq!(client.hear(), None);
            let mut client = broker.accept();
            client.deliver();
            client.say(&Header::Received { id: Uuid::nil() });
            assert_eq!(client.hear(), None);
        },
        &[],
    );
    outcome.delivered();
    assert_eq!(inbox(directory.path()), 1);
}

#[test]
fn where_no_service_is_the_message_is_delivered_from_here() {
    let directory = tempfile::tempdir().unwrap();
    let (missing, refused) = (directory.path().join("missing"), directory.path().join("refused"));
    drop(UnixListener::bind(&refused).unwrap());
    for (number, socket) in [missing, refused].into_iter().enumerate() {
        let message = format!("Message-ID: <{number}@x>\n\nx\n");
        feed(delivery(directory.path(), &socket, &[]), message.as_bytes()).delivered();
        assert_eq!(inbox(directory.path()), number + 1);
        assert_eq!(log(directory.path()).matches("the service did not take the message").count(), number + 1);
    }
    let only = delivery(directory.path(), &directory.path().join("missing"), &["--via-only"]);
    feed(only, MESSAGE).deferred("4.4.1 the delivery service did not take the message");
    assert_eq!(inbox(directory.path()), 2);
}

#[test]
fn a_peer_that_is_no_service_gets_nothing_and_the_message_is_delivered_from_here() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("x");
    let listener = UnixListener::bind(&socket).unwrap();
    let peer = thread::spawn(move || {
        for _ in 0..3 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"220 mail.axial.net ESMTP\r\n").unwrap();
            let mut collected = Vec::new();
            stream.read_to_end(&mut collected).unwrap_or_default();
            assert!(!collected.windows(5).any(|bytes| bytes == b"Hello"));
        }
    });
    feed(delivery(directory.path(), &socket, &[]), MESSAGE).delivered();
    assert_eq!(inbox(directory.path()), 1);
    peer.join().unwrap();
}

#[test]
fn a_service_that_is_lost_after_go_has_the_message_deferred_and_nothing_is_delivered_from_here() {
    let (directory, outcome) = with(|broker| drop(broker.until_go()), &[]);
    outcome.deferred("4.4.2 the connection to the delivery service was lost");
    nothing_is_delivered_from_here(directory.path());
    let log = log(directory.path());
    let log_text = log.lines().find(|line| line.contains("the service had the message"));
    assert!(log_text.is_some_and(|line| line.contains("4bXyz12abc")), "{log}");
}

/// A thousand recipients have long results: all of them may come, and what is longer is not even read.
#[test]
fn a_reply_may_be_as_long_as_a_header_may_be_and_no_longer() {
    for (more, line) in [(0, "x"), (1, "4.4.2 the connection to the delivery service was lost")] {
        let (directory, outcome) = with(
            |broker| {
                let (mut client, request) = broker.until_go();
                let results = "[{\"code\":\"2.0.0\",\"text\":\"x\"}]";
                let mut reply = format!("{{\"kind\":\"reply\",\"id\":\"{}\",\"results\":{results}}}", request.id);
                // White space may follow JSON.
                reply.push_str(&" ".repeat(LONGEST_HEADER + more - reply.len()));
                client.say_bytes(&frame_of(&reply));
            },
            &[],
        );
        if more == 0 {
            assert_eq!(outcome.delivered(), line);
        } else {
            outcome.deferred(line);
        }
        nothing_is_delivered_from_here(directory.path());
    }
}

#[test]
fn a_service_that_is_silent_after_go_is_waited_for_up_to_the_deadline() {
    let (directory, outcome) = with(
        |broker| {
            let (mut client, _) = broker.until_go();
            assert_eq!(client.hear(), None);
        },
        &["--deadline=10s"],
    );
    // By itself, or by the watchdog on a machine that is that busy.
    outcome.deferred("4.4.");
    nothing_is_delivered_from_here(directory.path());
}

#[test]
fn an_answer_that_makes_no_sense_has_the_message_deferred_and_nothing_is_delivered_from_here() {
    let ours = "ffffffff-ffff-ffff-ffff-ffffffffffff";
    let result = |code: &str| format!("{{\"code\":\"{code}\",\"text\":\"x\"}}");
    let reply =
        |id: &str, results: &str| frame_of(&format!("{{\"kind\":\"reply\",\"id\":\"{id}\",\"results\":[{results}]}}"));
    let two = format!("{0},{0}", result("2.0.0"));
    let answers: Vec<Vec<u8>> = vec![
        reply(ours, ""),
        reply(ours, &two),
        reply(ours, &result("5.0.0")),
        reply(ours, &result("2.1.5")),
        reply(ours, &result("250")),
        reply("00000000-0000-0000-0000-000000000007", &result("2.0.0")),
        frame_of(&format!("{{\"kind\":\"received\",\"id\":\"{ours}\"}}")),
        [reply(ours, &result("2.0.0")), b"x".to_vec()].concat(),
        b"2.0.0 delivered".to_vec(),
        b"MDR1\xff\xff\xff\xff".to_vec(),
        Vec::new(),
    ];
    thread::scope(|scope| {
        for answer in &answers {
            scope.spawn(move || {
                let (directory, outcome) = with(
                    |broker| {
                        let (mut client, request) = broker.until_go();
                        let id = request.id.to_string();
                        client.say_bytes(&replaced(answer, ours.as_bytes(), id.as_bytes()));
                    },
                    &[],
                );
                outcome.deferred("4.3.0 the delivery service's answer makes no sense");
                nothing_is_delivered_from_here(directory.path());
            });
        }
        for frames in [&[&b"x"[..]][..], &[b"", b"", b"x"], &[b"", &vec![b' '; 2 << 20]]] {
            let (directory, outcome) = with(|broker| broker.until_go().0.say_frames(frames), &[]);
            outcome.deferred("4.");
            nothing_is_delivered_from_here(directory.path());
        }
    });
}

/// The same bytes, but for the id, which the client chooses.
fn replaced(bytes: &[u8], id: &[u8], by: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Some(at) = bytes.windows(id.len()).position(|part| part == id) {
        bytes.splice(at..at + id.len(), by.iter().copied());
    }
    bytes
}

#[test]
fn a_service_may_put_a_message_off_at_once_and_may_not_say_more_than_that() {
    for (verdict, line) in [
        (Verdict::deferred(StatusDetail::SYSTEM, "shunted"), "4.3.0 shunted\n"),
        (Verdict::delivered("x"), "4.3.0 the delivery service's answer makes no sense\n"),
        (Verdict::unknown_recipient("x"), "4.3.0 the delivery service's answer makes no sense\n"),
    ] {
        let (directory, outcome) = with(
            |broker| {
                let mut client = broker.accept();
                let (request, _) = client.deliver();
                client.reply(request.id, std::slice::from_ref(&verdict));
                assert_eq!(client.hear(), None);
            },
            &[],
        );
        assert_eq!((outcome.exit, outcome.line.as_str()), (Some(75), line));
        nothing_is_delivered_from_here(directory.path());
    }
}

/// pipe(8) was killed while it wrote: what has come may be the beginning of a message.
#[test]
fn a_caller_that_died_before_go_has_its_message_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let broker = Broker::new();
    let mut command = delivery(directory.path(), &broker.socket(), &[]);
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    running.stdin.take().unwrap().write_all(MESSAGE).unwrap();
    let mut client = broker.accept();
    let (request, _) = client.deliver();
    drop(running.stdout.take());
    client.say(&Header::Received { id: request.id });
    assert_eq!(client.hear(), None);
    assert_eq!(running.wait().unwrap().code(), Some(75));
    nothing_is_delivered_from_here(directory.path());
    assert!(log(directory.path()).contains("the program that handed the message over has died"));
}

#[test]
fn no_password_is_read_and_no_server_asked_before_the_service_has_been() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let text = format!(
        "[database]\nfailover_timeout = \"0s\"\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\nport = 1\ndatabase = \"x\"\nuser = \"x\"\n\
         password_file = \"{password}\"\n[imap]\nhost = \"127.0.0.1\"\nport = 1\nuser = \"x\"\n\
         password_file = \"{password}\"\nencryption = \"none\"\n[log]\nto = \"file\"\nfile = \"{}\"\n\
         [delivery]\nmessage_size_limit = 1000\n",
        path("delivery.log"),
        password = path("no password"),
    );
    std::fs::write(path("config.toml"), text).unwrap();
    let broker = Broker::new();
    let configured = |more: &[&str]| {
        let (config, socket) = (path("config.toml"), broker.socket());
        program(&[&["--config", &config, "--via", socket.to_str().unwrap()], &ENVELOPE[..], more].concat())
    };
    thread::scope(|scope| {
        let running = Running::start(configured(&[]), MESSAGE);
        scope.spawn(|| {
            let (mut client, request) = broker.until_go();
            client.reply(request.id, &[Verdict::delivered("x")]);
        });
        running.end().delivered();
    });
    // What is too large is refused here; nobody asks the service.
    feed(configured(&[]), &[b'x'; 1001]).ended(65, "5.3.4 ");
    // And where it is not there, all of this is needed.
    std::fs::remove_file(broker.socket()).unwrap();
    feed(configured(&[]), MESSAGE).deferred("4.3.5 ");
}

#[test]
fn a_line_of_the_message_may_name_the_recipient() {
    let directory = tempfile::tempdir().unwrap();
    let broker = Broker::new();
    let (folder, socket) = (directory.path().to_str().unwrap(), broker.socket());
    let options = ["--embedded", folder, "--sender=", "--recipient-header=Delivered-To", "--via"];
    let message = b"Delivered-To: doug@mail.axial.net\nSubject: x\n\nx\n";
    thread::scope(|scope| {
        let running = Running::start(program(&[&options[..], &[socket.to_str().unwrap()]].concat()), message);
        scope.spawn(|| {
            let mut client = broker.accept();
            let (request, bytes) = client.deliver();
            assert_eq!((request.recipients[0].address.as_str(), &bytes[..]), ("doug@mail.axial.net", &message[..]));
            client.reply(request.id, &[Verdict::deferred(StatusDetail::SYSTEM, "x")]);
        });
        running.end().deferred("4.3.0 x");
    });
}

#[test]
fn a_dry_run_asks_no_service() {
    let directory = tempfile::tempdir().unwrap();
    let broker = Broker::new();
    feed(delivery(directory.path(), &broker.socket(), &["--dry-run"]), MESSAGE)
        .deferred("4.0.0 dry run, nothing done: ");
}

#[test]
fn a_socket_that_is_none_is_deferred() {
    let directory = tempfile::tempdir().unwrap();
    for socket in ["clients.sock", "tcp://127.0.0.1:5555"] {
        feed(delivery(directory.path(), Path::new(socket), &[]), MESSAGE).deferred("4.3.5 bad arguments: ");
    }
}

const NOBODY: u32 = 65_534;

/// Listens as the user that it runs as, and fails where it is handed a message.
#[test]
fn listener() {
    let Some(socket) = subject() else { return };
    let listener = UnixListener::bind(&socket).unwrap();
    // Each may connect.
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o777)).unwrap();
    println!("listening");
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&maildrop_greeting()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut collected = Vec::new();
    stream.read_to_end(&mut collected).unwrap();
    println!("{}", if collected.windows(4).any(|bytes| bytes == b"MDR1") { "read it" } else { "got nothing" });
}

/// What a ROUTER says first.
fn maildrop_greeting() -> Vec<u8> {
    let mut greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL".to_vec();
    greeting.resize(64, 0);
    greeting.extend_from_slice(b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER");
    greeting
}

/// A user who can put a socket where another user's programs look for one must not read their mail.
#[test]
fn a_socket_of_another_user_in_a_folder_that_is_not_theirs_gets_no_message() {
    let folder = tempfile::tempdir().unwrap();
    // Only root can be somebody else, too.
    if chown(folder.path(), Some(0), Some(0)).is_err() {
        return;
    }
    for (owner, gets_it) in [(0, false), (NOBODY, true)] {
        let directory = tempfile::tempdir().unwrap();
        let folder = tempfile::tempdir().unwrap();
        chown(folder.path(), Some(owner), Some(owner)).unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let socket = folder.path().join("clients.sock");
        let mut command = child("delivery::via_the_service::listener", socket.to_str().unwrap());
        let mut listener = command.uid(NOBODY).gid(NOBODY).stdout(Stdio::piped()).spawn().unwrap();
        let mut received = String::new();
        let mut byte = [0];
        while !received.ends_with("listening\n") {
            listener.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
            received.push(char::from(byte[0]));
        }
        // It never answers, and there is one try alone that it hears.
        feed(delivery(directory.path(), &socket, &[]), MESSAGE).delivered();
        assert_eq!(inbox(directory.path()), 1);
        let mut rest = String::new();
        listener.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        assert!(rest.contains(if gets_it { "read it" } else { "got nothing" }), "{rest}");
        assert_eq!(log(directory.path()).contains("user 65534 listens on"), !gets_it);
        listener.wait().unwrap();
    }
}
