//! What the service and the ledger tell Prometheus, and the alerts that are made of it, as Prometheus' own promtool judges them. It is in
//! the container of `peers`.

use crate::support::database::Engine;
use crate::support::lmtp::Lmtp;
use crate::support::peers::own_sockets;
use crate::support::service::Service;
use crate::support::site_fixture::Scene;
use crate::support::{container, pages};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};

fn promtool(arguments: &[&str], input: &str) -> Output {
    let mut docker = Command::new("docker");
    docker.args(["exec", "--interactive", &container("PEERS"), "promtool"]).args(arguments);
    let mut child = docker.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Where it does not want it, it says so by its status.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// It can be read, and breaks no rule of naming: promtool says nothing at all.
#[track_caller]
fn is_well_made(figures: &str) {
    let shown = promtool(&["check", "metrics"], figures);
    assert!(shown.status.success() && shown.stdout.is_empty() && shown.stderr.is_empty(), "{shown:?} of {figures}");
}

/// In the older text format, which is what promtool reads.
fn scraped(socket: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}

#[test]
fn promtool_has_nothing_to_say_of_the_figures() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    let http = scene.path("http");
    let service = Service::start_with(&mut scene, &format!("workers = 2\nhttp = {http:?}\n"), &[]);
    // One that is delivered and one that is not, so that both kinds are counted.
    let to = ["doug@mail.axial.net".to_owned(), "nobody@mail.axial.net".to_owned()];
    let replies = Lmtp::connect(&service.socket).deliver("lisa@gmail.com", &to, &scene.message("a"));
    assert!(replies[0].starts_with("250 ") && !replies[1].starts_with("250 "), "{replies:?}");
    let figures = scraped(&http);
    assert!(figures.contains("\nmaildropd_replies_total{") && figures.contains("_bucket{"), "{figures}");
    is_well_made(&figures);
    service.end();

    let stats = scene.subcommand(&["stats", "--since", "1h", "--format", "prometheus"]);
    assert!(stats.status.success(), "{stats:?}");
    let figures = String::from_utf8(stats.stdout).unwrap();
    assert!(
        figures.contains("\nmaildrop_attempts{") && figures.contains("\nmaildrop_unpublished_events "),
        "{figures}"
    );
    is_well_made(&figures);
    // It would have said so.
    let refused = promtool(&["check", "metrics"], "# TYPE maildropd_replies counter\nmaildropd_replies 1\n");
    assert!(!refused.status.success(), "{refused:?}");
}

#[test]
fn each_alert_comes_where_it_is_due_and_nowhere_else() {
    let (folder, seen) = own_sockets();
    let text = |file: &str| std::fs::read_to_string(pages::root().join(file)).unwrap();
    let (rules, tests) = ("docs/alerts-maildropd.yml", "tests/alerts-maildropd.test.yml");
    for file in [rules, tests] {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text(file)).unwrap();
    }
    let judged = |what: &str, file: &str| promtool(&[what, "rules", &format!("{seen}/{file}")], "");
    for output in [judged("check", rules), judged("test", tests)] {
        assert!(output.status.success(), "{output:?}");
    }
    // An alert that would not come is missed.
    let later = text(rules).replace("maildropd_timer_failed_runs >= 3", "maildropd_timer_failed_runs >= 4");
    std::fs::write(folder.path().join(rules), later).unwrap();
    let shown = judged("test", tests);
    assert!(!shown.status.success() && format!("{shown:?}").contains("MaildropdTimerFails"), "{shown:?}");
}
