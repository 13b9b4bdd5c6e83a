//! `/metrics`, `/healthz` and `/readyz` of a real service: what it counts is what its clients were answered.

use crate::lmtp::Lmtp;
use crate::program::{program, wait_until};
use crate::support::test_front::{message, request};
use crate::support::whole_service::{Figures, Whole};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;

type Replies = BTreeMap<String, u64>;

/// So many recipients, none of whom any other message of this test has.
fn recipients(count: usize, whose: &str) -> Vec<String> {
    (0..count).map(|number| format!("{whose}{number}@{count}.example")).collect()
}

fn text(id: &str) -> String {
    format!("Message-ID: <{id}@x>\nFrom: lisa@gmail.com\nSubject: x\n\nx\n")
}

/// The replies to a client, by code.
fn count_replies(replies: &[String]) -> Replies {
    let mut shown = Replies::new();
    for reply in replies {
        *shown.entry(reply.split(' ').nth(1).unwrap().to_owned()).or_default() += 1;
    }
    shown
}

fn grown(after: &Replies, before: &Replies) -> Replies {
    let grown = after.iter().map(|(code, number)| (code.clone(), number - before.get(code).unwrap_or(&0)));
    grown.filter(|(_, number)| *number > 0).collect()
}

/// What was counted of messages by LMTP: how many there were, of recipients, and of answers.
fn messages(figures: &Figures) -> [f64; 3] {
    let of = |name| figures.sum(name, &["via=\"lmtp\""]);
    [
        of("maildropd_received_messages_total"),
        of("maildropd_received_recipients_total"),
        of("maildropd_reply_duration_seconds_count"),
    ]
}

/// Lets a client give a message, and compares the figures with its replies.
#[track_caller]
fn counted(service: &Whole, count: usize, expected: &[(&str, usize)], give: impl FnOnce(&mut Lmtp) -> Vec<String>) {
    let before = service.figures();
    let mut client = Lmtp::connect(&service.0.path("lmtp"));
    let replies = give(&mut client);
    assert_eq!(client.say("NOOP"), "250 2.0.0 Ok", "a reply too many, or too few: {replies:?}");
    let expected: Replies = expected.iter().map(|(code, n)| ((*code).to_owned(), *n as u64)).collect();
    assert_eq!(count_replies(&replies), expected, "{replies:?}");
    let after = service.figures();
    assert_eq!(grown(&after.replies("lmtp"), &before.replies("lmtp")), expected, "{count} recipients");
    let [before, after] = [&before, &after].map(messages);
    let grown: Vec<f64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(grown, [1.0, count as f64, 1.0], "{count} recipients");
}

#[test]
fn each_reply_is_counted_once_whatever_it_says_and_to_how_many() {
    let service =
        Whole::started("worker_wait = \"4s\"\nspool_threshold = \"1kB\"\n[delivery]\nmessage_size_limit = \"100kB\"");
    let (messages, away) = (service.0.path("run/messages"), service.0.path("run/away"));
    let blocked = "blocked@mail.example".to_owned();
    std::fs::write(service.0.path(&blocked), "").unwrap();
    for count in [1, 2, 50] {
        let to = recipients(count, "a");
        counted(&service, count, &[("2.0.0", count)], |lmtp| {
            lmtp.deliver("lisa@gmail.com", &to, &text(&format!("delivered{count}")))
        });
        // Once more, and this time all of it is there already.
        counted(&service, count, &[("2.0.0", count)], |lmtp| {
            lmtp.deliver("lisa@gmail.com", &to, &text(&format!("delivered{count}")))
        });
        // Larger than the limit: refused before any worker sees it.
        let large = format!("{}\n{}", text("large"), "x\n".repeat(60_000));
        counted(&service, count, &[("5.3.4", count)], |lmtp| lmtp.deliver("lisa@gmail.com", &to, &large));
        // No room for it: its folder is gone.
        std::fs::rename(&messages, &away).unwrap();
        let file = format!("{}\n{}", text("file"), "x\n".repeat(2000));
        counted(&service, count, &[("4.3.1", count)], |lmtp| lmtp.deliver("lisa@gmail.com", &to, &file));
        std::fs::rename(&away, &messages).unwrap();
        // The mailbox of one of them cannot be made.
        let mut mixed = recipients(count, "b");
        mixed[count / 2] = blocked.clone();
        let expected: &[(&str, usize)] =
            if count == 1 { &[("4.3.5", 1)] } else { &[("2.0.0", count - 1), ("4.3.5", 1)] };
        counted(&service, count, expected, |lmtp| {
            lmtp.deliver("lisa@gmail.com", &mixed, &text(&format!("mixed{count}")))
        });
        // Their worker is killed while it delivers the message.
        let killed = text(&format!("killed{count}"));
        let lock = service.hold_lock_of(&killed);
        counted(&service, count, &[("4.3.0", count)], |lmtp| {
            lmtp.give("lisa@gmail.com", &to, &killed);
            wait_until("a worker has it", || {
                service.figures().sum("maildropd_messages_in_progress", &["stage=\"at_worker\""]) > 0.0
            });
            service.kill_workers();
            lmtp.replies(count)
        });
        drop(lock);
        service.0.wait_until_well();
    }
    service.workers_go();
    // One that is still on the list would be given the next message.
    wait_until("the front has no worker", || {
        let figures = service.figures();
        let heard = ["ready", "busy", "silent"].map(|state| format!("state=\"{state}\""));
        heard.iter().all(|state| figures.sum("maildropd_workers", &[state]) == 0.0)
    });
    for count in [1, 2, 50] {
        let to = recipients(count, "c");
        counted(&service, count, &[("4.4.5", count)], |lmtp| {
            lmtp.deliver("lisa@gmail.com", &to, &text(&format!("waits{count}")))
        });
    }
    // What is refused before DATA is no reply to a message.
    let before = service.figures();
    let mut lmtp = Lmtp::connect(&service.0.path("lmtp"));
    lmtp.say("MAIL FROM:<lisa@gmail.com>");
    assert_eq!(lmtp.say("RCPT TO:<nodomain>"), "450 4.1.3 An address has a domain here");
    let refused = (0..1001).filter(|n| lmtp.say(&format!("RCPT TO:<u{n}@x>")).starts_with("452 4.5.3")).count();
    assert_eq!(refused, 1);
    assert!(lmtp.say("RUBBISH").starts_with("500 5.5.1"));
    let after = service.figures();
    assert_eq!(after.replies("lmtp"), before.replies("lmtp"));
    for (command, code) in [("RCPT", "4.1.3"), ("RCPT", "4.5.3"), ("other", "5.5.1")] {
        let labels = [&*format!("command=\"{command}\""), &*format!("code=\"{code}\"")];
        assert_eq!(after.sum("maildropd_lmtp_refused_commands_total", &labels), 1.0, "{command} {code}");
    }
    assert!(after.sum("maildropd_lmtp_connections", &[]) >= 1.0);
    let (accepted, processes) = ("maildropd_lmtp_accepted_connections_total", "maildropd_ended_processes_total");
    assert_eq!(after.sum(accepted, &[]), 22.0, "one each, and this one");
    assert!(after.sum(processes, &["role=\"worker\"", "how=\"SIGKILL\""]) >= 6.0);
    assert!(after.sum("maildropd_lost_workers_total", &[]) >= 3.0);
}

#[test]
fn what_thin_clients_and_the_queue_bring_is_counted_by_their_ways() {
    let service = Whole::started("");
    let raw = message(1);
    for count in [1, 2, 50] {
        let to = recipients(count, "d");
        let request = request(&to.iter().map(String::as_str).collect::<Vec<_>>(), &raw);
        let verdicts = service.client().deliver(&request, &raw);
        assert!(verdicts.iter().all(|verdict| verdict.starts_with("2.0.0 ")), "{verdicts:?}");
    }
    let figures = service.figures();
    assert_eq!(figures.replies("command"), Replies::from([("2.0.0".into(), 53)]));
    let of = |name: &str, via: &str| service.figures().sum(name, &[&format!("via=\"{via}\"")]);
    assert_eq!(of("maildropd_received_bytes_total", "command"), 3.0 * raw.len() as f64);
    assert_eq!(of("maildropd_received_messages_total", "command"), 3.0);
    assert_eq!(of("maildropd_reply_duration_seconds_count", "command"), 3.0);
    // With the ledger of an embedded site, once for each message.
    assert!(figures.sum("maildropd_opened_sessions_total", &["server=\"database\""]) >= 1.0);
    assert_eq!(figures.sum("maildropd_opened_sessions_total", &["server=\"imap\""]), 0.0);

    std::fs::write(service.0.path("mail"), message(2)).unwrap();
    let mut inject = program(&["inject"]);
    inject.arg(service.0.path("mail")).arg("--embedded").arg(service.0.folder.path());
    let inject = inject.args(["--recipient", "scuba@x", "--sender", "lisa@gmail.com"]).output().unwrap();
    assert!(inject.status.success(), "{inject:?}");
    wait_until("the runner has handed it over", || of("maildropd_replies_total", "queue") > 0.0);
    assert_eq!(service.figures().replies("queue"), Replies::from([("2.0.0".into(), 1)]));
    assert_eq!(of("maildropd_replies_total", "lmtp"), 0.0);
}

#[test]
fn it_is_ready_while_a_worker_is_and_says_why_where_it_is_not() {
    let service = Whole::started("");
    assert_eq!((service.get("/readyz").code, service.get("/readyz").body), (200, "ready\n".into()));
    assert_eq!((service.get("/healthz").code, service.get("/healthz").body), (200, "alive\n".into()));
    service.workers_go();
    wait_until("it is not ready", || service.get("/readyz").code == 503);
    assert!(service.get("/readyz").body.starts_with("no worker is ready\n"));
    // It lives, and can tell.
    assert_eq!(service.get("/healthz").code, 200);
    let workers = |state: &str| service.figures().sum("maildropd_workers", &[&format!("state=\"{state}\"")]);
    wait_until("the master tries to start them", || workers("starting") == 2.0 && workers("ready") == 0.0);
    service.workers_come_back();
    wait_until("it is ready again", || service.get("/readyz").code == 200);
    service.0.wait_until_well();
    assert_eq!(workers("ready") + workers("busy"), 2.0);
}

#[test]
fn workers_that_hang_are_not_ready() {
    let service = Whole::started("");
    let workers = service.pids("worker");
    for pid in &workers {
        crate::support::test_master::send("STOP", *pid);
    }
    // Before the broker kills them, or after: there is none.
    std::fs::write(service.0.path("no workers"), "").unwrap();
    wait_until("it is not ready", || service.get("/readyz").code == 503);
    wait_until("they are killed", || workers.iter().all(|pid| !crate::support::test_master::lives(*pid)));
    assert!(service.figures().sum("maildropd_missed_heartbeats_total", &[]) >= 2.0);
    service.workers_come_back();
    wait_until("it is ready again", || service.get("/readyz").code == 200);
}

#[test]
fn who_asks_slowly_holds_up_neither_mail_nor_those_who_ask_later() {
    let service = Whole::started("");
    let begun: Vec<UnixStream> = (0..20)
        .map(|_| {
            let mut stream = UnixStream::connect(service.0.path("http")).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-").unwrap();
            stream
        })
        .collect();
    for number in 0..20 {
        let to = recipients(1, "e");
        let replies = Lmtp::connect(&service.0.path("lmtp")).deliver("", &to, &text(&number.to_string()));
        assert_eq!(count_replies(&replies), Replies::from([("2.0.0".into(), 1)]));
    }
    // They are cut off one after the other, and make room.
    assert_eq!(service.figures().replies("lmtp"), Replies::from([("2.0.0".into(), 20)]));
    for mut stream in begun {
        let mut rest = Vec::new();
        // Those that still waited have been reset.
        let _ = stream.read_to_end(&mut rest);
    }
}

#[test]
fn what_is_no_request_for_figures_is_refused() {
    let service = Whole::started("");
    assert_eq!(service.get("/").code, 404);
    assert_eq!(service.get("/etc/passwd").code, 404);
    let post = service.ask("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nnot taken");
    assert_eq!((post.code, post.head.contains("allow: get, head")), (405, true), "{post:?}");
    assert_eq!(service.ask(&format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(100_000))).body, "");
    let many = "X: y\r\n".repeat(100);
    assert_eq!(service.ask(&format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{many}\r\n")).code, 431);
    let head = service.ask("HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!((head.code, head.body.as_str()), (200, ""));
    assert_ne!(service.ask("\0\x01\r\n\r\n").code, 200);
    assert_eq!(service.get("/healthz").code, 200);
}

#[test]
fn figures_are_in_the_text_format_of_prometheus_by_names_of_the_services_own() {
    let service = Whole::started("");
    let figures = service.get("/metrics");
    assert!(figures.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{}", figures.head);
    assert!(figures.body.contains("# TYPE maildropd_received_messages_total counter\n"), "{}", figures.body);
    assert!(figures.body.contains("# TYPE maildropd_build_info gauge\n"));
    // What `maildrop_command stats` prints has other names.
    let samples: Vec<_> = figures.body.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(samples.len() > 50 && samples.iter().all(|line| line.starts_with("maildropd_")), "{samples:?}");
}

#[test]
fn a_port_that_is_taken_is_reported_and_mail_is_delivered_all_the_same() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut service = Whole(crate::support::test_master::Stage::new(""));
    service.configure(&format!("http = {address:?}"));
    service.start();
    let status = service.0.wait("it is degraded", |status| status["state"] == "degraded");
    let reason = status["reasons"][0].as_str().unwrap();
    let problem = format!("metrics and health cannot be asked for: listening at {address}: Address already in use");
    assert!(reason.starts_with(&problem), "{reason}");
    let replies = Lmtp::connect(&service.0.path("lmtp")).deliver("", &recipients(1, "f"), &text("f"));
    assert_eq!(count_replies(&replies), Replies::from([("2.0.0".into(), 1)]));
    drop(taken);
    assert_eq!(service.0.service(&["reload"]).status.code(), Some(0));
    service.0.wait_until_well();
    let mut stream = std::net::TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 ") && answer.ends_with("alive\n"), "{answer}");
}

#[test]
fn the_socket_outlives_each_front_and_what_the_master_counts_does_too() {
    let service = Whole::started("");
    let front = service.pids("front")[0];
    crate::support::test_master::send("KILL", front);
    // Nobody is refused. A client of the one that died got no reply.
    wait_until("the next one answers", || service.get("/healthz").code == 200);
    service.0.wait_until_well();
    wait_until("the master has reported it", || {
        service.figures().sum("maildropd_ended_processes_total", &["role=\"front\"", "how=\"SIGKILL\""]) == 1.0
    });
    let figures = service.figures();
    assert_eq!(figures.sum("maildropd_started_processes_total", &["role=\"front\""]), 2.0);
    assert_eq!(figures.sum("maildropd_service_state", &["state=\"well\""]), 1.0);
    assert_eq!(figures.sum("maildropd_config_last_reload_successful", &[]), 1.0);
    // What is read of processes counts for some seconds, also where the master had not named them yet.
    wait_until("the workers' memory is read", || {
        service.figures().sum("maildropd_process_resident_memory_bytes", &["role=\"worker\""]) > 1e6
    });

    service.configure("nonsense = 1");
    assert_eq!(service.0.service(&["reload"]).status.code(), Some(78));
    wait_until("it is reported", || service.figures().sum("maildropd_config_last_reload_successful", &[]) == 0.0);
    // The workers of an embedded site do not know the signal to reopen the log, and are started again.
    wait_until("it is ready all the same", || service.get("/readyz").code == 200);
    let response = service.get("/readyz");
    assert!(response.body.starts_with("ready, and degraded:\nthe configuration has changed"), "{}", response.body);
}
