//! The shipped alerts and the dashboard use only metrics that are exported.

use super::*;
use crate::protocol::control::{self, LastRun, Task};
use crate::queue::{State as Folder, Waiting};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const ALERTS: &str = include_str!("../../../docs/alerts-maildropd.yml");
const DASHBOARD: &str = include_str!("../../../docs/grafana-maildropd.json");

/// Labels that Prometheus adds, or that the viewer of the dashboard chooses.
const NOT_OURS: [&str; 2] = ["job", "instance"];

/// The figures of a service in which each event has happened once.
fn figures() -> Figures {
    let mut traffic = Traffic::default();
    traffic.received(3, 100);
    traffic.replied(["2.0.0", "4.3.0", "5.1.1"], Duration::from_secs(1000));
    let process = |role, throttled: bool| Process {
        role,
        number: 1,
        pid: Some(7),
        since: None,
        up_s: None,
        ready: !throttled,
        ending: false,
        restarts: 0,
        throttled,
        starts_in_s: None,
        last_end: None,
    };
    let task = |task: &str| Task {
        task: task.into(),
        every_s: 60.0,
        next_at: None,
        failed_runs: 3,
        last: Some(LastRun { at: "2026-11-20T10:00:00Z".into(), took_s: 1.0, well: false, result: "away".into() }),
    };
    let ends = Ends { started: 2, ended: BTreeMap::from([("SIGSEGV".into(), 1)]) };
    let service = Status {
        version: "1".into(),
        pid: 6,
        since: "2026-11-20T10:00:00Z".into(),
        up_s: 1.0,
        configuration: "/x".into(),
        state: State::Degraded,
        reasons: Vec::new(),
        listeners: Vec::new(),
        http: Vec::new(),
        processes: vec![process(Role::Front, false), process(Role::Worker, true)],
        front: serde_json::Value::Null,
        timer: vec![task("finish_owed"), task("prune")],
        counted: control::Counted {
            roles: BTreeMap::from([(Role::Worker, ends)]),
            configuration_is_applied: true,
            configuration_taken_over_at: "2026-11-20T10:00:00Z".into(),
        },
    };
    let report = Report::default();
    let refused = BTreeMap::from([(("RCPT", "4.1.3".to_owned()), 1)]);
    let folders = [Folder::New, Folder::Work, Folder::Held, Folder::Refused, Folder::Bad, Folder::Shunted];
    let waiting = folders.map(|folder| (folder, Waiting { messages: 1, oldest: Some(1_000_000) }));
    let memory = [Role::Front, Role::Worker].map(|role| (role, 1, 1 << 20));
    Figures {
        report,
        lmtp: LmtpCounters { traffic, refused, ..LmtpCounters::default() },
        max_connections: 100,
        service: Some(service),
        disk: DiskFigures { queue: Some(waiting.into()), timer: Vec::new(), memory: memory.into() },
    }
}

/// A sample's name and labels.
type Name = (String, BTreeMap<String, String>);

/// The samples as Prometheus reads them.
fn samples() -> Vec<(Name, f64)> {
    let text = figures().text();
    let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap());
    samples.map(|(name, value)| (selector(name, "="), value.parse().unwrap())).collect()
}

/// Parses `name{label="value",…}`. `is` gives the operator of a label, such as `=~`.
fn selector(text: &str, is: &str) -> Name {
    let (name, labels) = text.split_once('{').unwrap_or((text, "}"));
    let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
    let label = |text: &str| {
        let (label, value) = text.trim().split_once(is).or_else(|| text.trim().split_once('=')).unwrap();
        (label.to_owned(), value.trim_matches('"').to_owned())
    };
    (name.to_owned(), labels.map(label).collect())
}

/// All samples that an expression of Prometheus uses.
fn asked(text: &str) -> Vec<Name> {
    let text = text.replace("\\\"", "\"");
    let starts = text.match_indices("maildropd_").map(|(at, _)| &text[at..]);
    let ends = |text: &str| text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let one = |text: &str| {
        let name = ends(text);
        let labels = if text[name..].starts_with('{') { text.find('}').unwrap() + 1 } else { name };
        selector(&text[..labels], "=~")
    };
    starts.map(one).collect()
}

#[test]
fn alerts_and_dashboard_ask_for_what_is_shown() {
    let samples = samples();
    for (file, text, least) in [("alerts", ALERTS, 10), ("dashboard", DASHBOARD, 25)] {
        let asked = asked(text);
        let names: BTreeSet<&str> = asked.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.len() >= least, "{file}: read are {names:?}");
        for (name, labels) in &asked {
            let of_it: Vec<_> = samples.iter().map(|(shown, _)| shown).filter(|(shown, _)| shown == name).collect();
            assert!(!of_it.is_empty(), "{file}: {name} is not shown");
            for (label, values) in labels.iter().filter(|(label, _)| !NOT_OURS.contains(&label.as_str())) {
                for value in values.split('|') {
                    let is_shown = of_it.iter().any(|(_, shown)| shown.get(label).is_some_and(|shown| shown == value));
                    assert!(is_shown, "{file}: {name} is not shown with {label}=\"{value}\"");
                }
            }
        }
    }
}

/// histogram_quantile() is undefined beyond the last bucket, unless that is `+Inf`.
#[test]
fn the_last_bucket_of_each_histogram_has_no_end_and_holds_all() {
    let (samples, text) = (samples(), figures().text());
    let histograms = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" histogram"));
    let histograms: Vec<&str> = histograms.collect();
    assert_eq!(histograms, ["maildropd_reply_duration_seconds", "maildropd_worker_wait_seconds"]);
    for histogram in histograms {
        let of = |what: &str| {
            let name = format!("{histogram}_{what}");
            samples.iter().filter(move |((shown, _), _)| *shown == name).map(|((_, labels), value)| (labels, *value))
        };
        // Grouped by the other labels.
        let mut last = BTreeMap::new();
        for (labels, value) in of("bucket") {
            let mut labels = labels.clone();
            let end = labels.remove("le").unwrap();
            last.insert(labels, (end, value));
        }
        let all: BTreeMap<_, _> = of("count").map(|(labels, n)| (labels.clone(), ("+Inf".to_owned(), n))).collect();
        assert!(!all.is_empty() && last == all, "{histogram}: {last:?}, {all:?}");
    }
    let longest =
        (("maildropd_reply_duration_seconds_bucket".to_owned(), labels(&[("le", "+Inf"), ("via", "lmtp")])), 1.0);
    assert!(samples.contains(&longest), "one reply took longer than every other end: {text}");
}

#[test]
fn each_figure_is_what_it_says() {
    let mut figures = figures();
    let service = figures.service.as_mut().unwrap();
    let worker = |ready, throttled| Process { ready, throttled, ..service.processes[1].clone() };
    let workers = [(true, false), (true, true), (false, false), (false, true), (false, true)];
    let workers = workers.map(|(ready, throttled)| worker(ready, throttled));
    // The start is in the first hour of 1970, so that rounding loses nothing.
    service.up_s = 3600.0;
    service.processes.truncate(1);
    service.processes[0].ready = false;
    service.processes.extend(workers);
    service.processes.push(Process { role: Role::Timer, ..service.processes[0].clone() });
    let before = now() as f64 / 1e6;
    let shown = figures.text();
    let after = now() as f64 / 1e6;
    for line in [
        "# TYPE maildropd_received_messages_total counter",
        "# TYPE maildropd_build_info gauge",
        "# TYPE maildropd_workers gauge",
        "maildropd_replies_total{via=\"lmtp\",outcome=\"delivered\",code=\"2.0.0\"} 1",
        "maildropd_replies_total{via=\"lmtp\",outcome=\"deferred\",code=\"4.3.0\"} 1",
        "maildropd_replies_total{via=\"lmtp\",outcome=\"refused\",code=\"5.1.1\"} 1",
        "maildropd_reply_duration_seconds_bucket{le=\"0.001\",via=\"lmtp\"} 0",
        "maildropd_reply_duration_seconds_bucket{le=\"240.0\",via=\"lmtp\"} 0",
        "maildropd_workers{state=\"starting\"} 1",
        "maildropd_workers{state=\"throttled\"} 2",
        "maildropd_service_state{state=\"well\"} 0",
        "maildropd_service_state{state=\"degraded\"} 1",
        "maildropd_processes{role=\"front\"} 1",
        "maildropd_processes{role=\"worker\"} 5",
        "maildropd_processes{role=\"timer\"} 1",
        "maildropd_processes{role=\"runner\"} 0",
        "maildropd_throttled_processes{role=\"worker\"} 3",
        "maildropd_started_processes_total{role=\"worker\"} 2",
        "maildropd_timer_last_run_timestamp_seconds{task=\"prune\"} 1795168800",
        "maildropd_queue_oldest_message_timestamp_seconds{state=\"shunted\"} 1",
        "maildropd_config_last_reload_success_timestamp_seconds 1795168800",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    let began = shown.lines().find_map(|line| line.strip_prefix("maildropd_service_start_time_seconds ")).unwrap();
    let began: f64 = began.parse().unwrap();
    assert!((before - 3600.5..=after - 3599.5).contains(&began), "{began}");
}

fn labels(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect()
}
