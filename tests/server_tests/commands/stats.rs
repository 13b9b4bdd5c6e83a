//! `stats` counts what happened: attempts by how they ended, causes of deferrals, contention, how long the stages took.

use crate::support::database::Engine;
use crate::support::ledger_history::{self, Made};
use crate::support::program::{program, wait_until};
use crate::support::site_fixture::Scene;
use serde_json::Value;

on_each_engine!(it_counts_what_happened, it_counts_page_by_page, prometheus_gets_a_file_that_is_whole);

fn counted(scene: &Scene, arguments: &[&str]) -> Value {
    let output = scene.subcommand(&[&["stats", "--json"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn it_counts_what_happened(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    let operator = format!("{}_o", scene.run);
    scene.database.create_operator(&operator, "secret");
    assert_eq!(counted(&scene, &[])["attempts"]["all"], 0);
    let message = scene.message("counted");
    scene.deliver("doug", &message).delivered();
    scene.deliver("scuba", &message).delivered();
    scene.deliver("doug", &message).delivered();
    let key = program(&["lock", "key", "--json", &scene.message_id("held")]).output().unwrap().stdout;
    let key: Value = serde_json::from_slice(&key).unwrap();
    let mut holder = scene.session();
    let hold = if engine.is_postgres() {
        format!("SELECT pg_advisory_lock({})::text", key["postgresql"].as_str().unwrap())
    } else {
        format!("SELECT CAST(GET_LOCK('{}', 0) AS char)", key["mysql"].as_str().unwrap())
    };
    holder.texts(&hold);
    for _ in 0..2 {
        scene.deliver_with("doug", &["--lock-wait", "0s"], scene.message("held")).deferred("4.3.0 ");
    }
    drop(holder);
    wait_until("the lock is free", || scene.deliver("doug", scene.message("held")).exit == Some(0));
    let later = scene.database.count("SELECT count(DISTINCT attempt) FROM attempts") - 6;
    // One that died, one whose mailbox was full, one that the operator's rule refused.
    let open = "UPDATE attempts SET ended_at = NULL, outcome = NULL, stages = NULL WHERE message_id LIKE '<died.%'";
    for id in ["died", "full", "refused"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    scene.database.execute(open);
    for (id, outcome) in [("full", "deferred: over quota: x"), ("refused", "refused: over quota: x")] {
        scene.database.execute(&format!("UPDATE attempts SET outcome = '{outcome}' WHERE message_id LIKE '<{id}.%'"));
    }

    scene.configure(|settings| (settings.role, settings.database_password) = (operator, "secret".into()));
    let json = counted(&scene, &[]);
    let attempts = |what: &str| json["attempts"][what].as_i64().unwrap();
    assert_eq!((attempts("all"), attempts("delivered")), (9 + later, 4), "{json}");
    assert_eq!((attempts("deferred"), attempts("refused"), attempts("not_ended")), (3 + later, 1, 1), "{json}");
    let deferrals = json["deferrals"].as_array().unwrap();
    let number = |cause: &str| deferrals.iter().find(|d| d["cause"] == cause).map(|d| d["attempts"].as_i64().unwrap());
    assert_eq!(number("another delivery held the lock"), Some(2 + later), "{json}");
    assert_eq!(number("over quota"), Some(1), "{json}");
    assert_eq!(json["lock"]["busy"], 2 + later);
    assert_eq!((&json["copies"]["appended"], &json["copies"]["already there"]), (&5.into(), &3.into()), "{json}");
    assert_eq!((&json["messages"]["recorded"], &json["copies_owed_now"]), (&5.into(), &0.into()), "{json}");
    let stage = |name: &str| {
        json["stages"].as_array().unwrap().iter().find(|stage| stage["stage"] == name).cloned().unwrap_or_default()
    };
    // All of them came to the lock; only those that got it looked. The one that died took its stages with it.
    assert_eq!(stage("lock")["attempts"], 8 + later, "{json}");
    assert_eq!(stage("look")["attempts"], 6, "{json}");
    assert!(stage("append")["p50_ms"].as_f64() > Some(0.0) && stage("total")["max_ms"].as_f64() > Some(1.0), "{json}");
    let p50 = stage("total")["p50_ms"].as_f64();
    assert!(
        p50 <= stage("total")["p90_ms"].as_f64()
            && stage("total")["p99_ms"].as_f64() <= stage("total")["max_ms"].as_f64()
    );
    assert_eq!(counted(&scene, &["--since", "0s"])["attempts"]["all"], 0);

    let printed = String::from_utf8(scene.subcommand(&["stats"]).stdout).unwrap();
    assert!(printed.lines().next().unwrap().contains(&format!("{} attempts, 4 delivered, ", 9 + later)), "{printed}");
    assert!(
        printed.contains("over quota") && printed.contains("Not in here: what was deferred while the database"),
        "{printed}"
    );
    assert!(printed.contains("found the lock held elsewhere"), "{printed}");
}

/// Five thousand attempts at two copies each, some hundreds of them within one microsecond: none is counted twice, none is
/// left out, and each is one attempt.
fn it_counts_page_by_page(engine: Engine) {
    const ATTEMPTS: u64 = 5000;
    let mut scene = Scene::empty(engine);
    let now = ledger_history::now();
    let stages: Vec<String> = (1..=ATTEMPTS).map(|n| format!("{{\"lock\": {}}}", n as f64 / 100.0)).collect();
    let mut made = Vec::new();
    for number in 0..ATTEMPTS {
        // A burst in which time hangs, and then one every seven seconds.
        let ago = if number < 900 { 80_000_000_000 } else { (ATTEMPTS - number) * 7_000_000 };
        let (began, stages) = (now - ago, stages[number as usize].as_str());
        let sender = if number % 10 == 0 { "busy" } else { "adopted" };
        made.push(Made { number, role: "recipient", began, outcome: Some("appended"), stages });
        made.push(Made { number, role: "sender", began, outcome: Some(sender), stages });
    }
    scene.add_attempts(&made);
    let json = counted(&scene, &[]);
    assert_eq!((&json["attempts"]["all"], &json["attempts"]["delivered"]), (&ATTEMPTS.into(), &4500.into()), "{json}");
    assert_eq!((&json["lock"]["busy"], &json["lock"]["busy_share"]), (&500.into(), &0.1.into()), "{json}");
    assert_eq!((&json["copies"]["appended"], &json["copies"]["adopted"]), (&5000.into(), &4500.into()), "{json}");
    let lock = &json["stages"][0];
    assert_eq!((&lock["stage"], &lock["attempts"], &lock["max_ms"]), (&"lock".into(), &5000.into(), &50.0.into()));
    for (name, exact) in [("p50_ms", 25.0), ("p90_ms", 45.0), ("p99_ms", 49.5)] {
        let shown = lock[name].as_f64().unwrap();
        assert!((shown - exact).abs() <= exact / 100.0, "{name}: {shown}");
    }
    // Without the burst.
    assert_eq!(counted(&scene, &["--since", "12h"])["attempts"]["all"], ATTEMPTS - 900);
}

fn prometheus_gets_a_file_that_is_whole(engine: Engine) {
    let scene = Scene::with(engine, &["lisa", "doug"]);
    scene.deliver("doug", scene.message("measured")).delivered();
    let file = scene.path("maildrop.prom");
    let export = |more: &[&str]| scene.subcommand(&[&["stats", "--format", "prometheus"], more].concat());
    for _ in 0..2 {
        let output = export(&["--since", "90m", "--output", &file]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{output:?}");
    }
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("maildrop_attempts{ending=\"delivered\",window=\"1h30m\"} 1\n"), "{text}");
    let name = "maildrop_stage_duration_seconds{stage=\"append\",percentile=\"99\",window=\"1h30m\"} ";
    let seconds = text.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
    let json = counted(&scene, &["--since", "90m"]);
    let append = json["stages"].as_array().unwrap().iter().find(|stage| stage["stage"] == "append").unwrap();
    let milliseconds = append["p99_ms"].as_f64().unwrap();
    let near = |seconds: f64| (seconds * 1000.0 - milliseconds).abs() <= milliseconds / 100.0;
    assert!(milliseconds > 0.0 && seconds.is_some_and(near), "{milliseconds} ms: {text}");
    assert!(text.contains("\nmaildrop_owed_copies 0\n"), "{text}");
    is_exposition(&text);
    // Nothing is left beside it.
    let beside = std::fs::read_dir(scene.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!beside.into_iter().any(|name| name.to_string_lossy().contains(".new")));

    let refused = export(&["--since", "2026-11-20"]);
    assert_eq!(refused.status.code(), Some(64), "{refused:?}");
    let nowhere = export(&["--since", "1h", "--output", &scene.path("no/such/folder.prom")]);
    assert_eq!(nowhere.status.code(), Some(73), "{nowhere:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "the old one stays");
}

/// As <https://prometheus.io/docs/instrumenting/exposition_formats/> has it: HELP and TYPE once for each name, before its
/// samples, which stand together and differ in their labels; and what promtool says of names.
fn is_exposition(text: &str) {
    assert!(text.ends_with('\n'));
    let (mut names, mut samples) = (std::collections::HashSet::new(), std::collections::HashSet::new());
    let mut name = "";
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (new, words) = help.split_once(' ').unwrap();
            assert!(names.insert(new) && words.ends_with('.'), "{line}");
            assert!(
                new.starts_with("maildrop_") && new.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{line}"
            );
            for ending in ["_total", "_count", "_sum", "_bucket", "_ms", "_milliseconds", "_gauge"] {
                assert!(!new.ends_with(ending), "{line}");
            }
            name = new;
        } else if line.starts_with("# TYPE") {
            assert_eq!(line, format!("# TYPE {name} gauge"));
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
            let labels = sample.strip_prefix(name).unwrap();
            assert!(labels.is_empty() || (labels.starts_with('{') && labels.ends_with('}')), "{line}");
            assert!(!["{le=", ",le=", "quantile="].iter().any(|label| labels.contains(label)), "{line}");
            assert!(samples.insert(sample), "twice: {line}");
        }
    }
}
