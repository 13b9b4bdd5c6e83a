//! What failed before its journal has no attempt: the web UI and `trace` show it all the same.

use super::screens_embedded::Place;
use crate::program::program;
use crate::support::clients_and_processes;
use crate::visitor::{rows, text};
use maildrop_command::ledger::{Cause, FailureRecord, Ledger, Outcome};
use maildrop_command::lock::{DEFAULT_NAMESPACE, LockName};
use maildrop_command::mailbox::MailboxFailure;
use maildrop_command::message::Identity;

/// Two tries for doug of one message, and a refusal of another one for a stranger.
fn fail(place: &Place) {
    let mut database = clients_and_processes::open(place.path());
    let mut record = |id: &str, recipient: &str, queue_id: &str, outcome: Outcome| {
        let (identity, lock) = (Identity::of(id.as_bytes()), LockName::new(DEFAULT_NAMESPACE, id.as_bytes()));
        let failure = FailureRecord {
            identity: &identity,
            recipient,
            mailbox: None,
            lock: &lock,
            sender: Some("lisa@gmail.com"),
            author: Some("Lisa <lisa@gmail.com>"),
            subject: Some("Quarterly figures"),
            message_id: id,
            queue_id: Some(queue_id),
            host: "mx7",
            outcome,
        };
        database.record_failures(&[failure]).unwrap();
    };
    let down = || Outcome::Deferred(Cause::Mailbox(MailboxFailure::Unreachable), Some("connecting: refused".into()));
    record("down@x", "doug@x", "4bDown", down());
    record("down@x", "doug@x", "4bDown", down());
    record("strange@x", "stranger@x", "4bStrange", Outcome::Refused("unknown recipient".into()));
}

#[test]
fn a_delivery_that_failed_before_its_journal_is_in_its_list_in_searches_and_on_a_page_of_its_own() {
    let place = Place::new();
    fail(&place);
    let anna = place.visitor("viewer");
    for (query, count, has) in [
        ("state=failed", 2, "refused: unknown recipient"),
        ("state=failed&since=1h", 2, "deferred: the mailbox store is out of reach: connecting: refused"),
        ("state=failed&since=30d&until=2000-01-01", 0, "No delivery failed before it began"),
        ("state=failed&host=mx8", 0, "No delivery failed before it began"),
        ("q=lisa%40gmail.com", 2, "Quarterly figures"),
        ("q=doug%40x&since=1h", 1, "2 tries"),
        ("", 2, "2 failed before delivery"),
        ("state=deferred", 0, "No attempt matches"),
    ] {
        let page = anna.get(&format!("/?{query}"));
        let text = text(page.shown());
        assert!(rows(&page.body) == count && text.contains(has), "{query}: {text}");
    }
    for q in ["4bDown", "%3Cdown%40x%3E", "doug%40x"] {
        let answer = anna.get(&format!("/?q={q}"));
        let message = text(anna.get(answer.leads_to()).shown());
        assert!(message.contains("STILL DEFERRED for doug@x (2 attempts)"), "{q}: {message}");
        assert!(message.contains("Quarterly figures") && message.contains("Lisa <lisa@gmail.com>"), "{q}: {message}");
        assert!(message.contains("Failed before delivery") && !message.contains("they were pruned"), "{q}: {message}");
    }
}

#[test]
fn trace_and_stats_tell_of_what_failed_before_its_journal() {
    let place = Place::new();
    fail(&place);
    let run = |arguments: &[&str]| {
        let mut command = program(arguments);
        let output = command.args(["--embedded", place.path().to_str().unwrap()]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for what in ["<down@x>", "down@x", "4bDown", "doug@x"] {
        let result = run(&["trace", what]);
        assert!(result.contains("STILL DEFERRED for doug@x (2 attempts): failed before delivery, last at"), "{result}");
        assert!(result.contains("on mx7: the mailbox store is out of reach: connecting: refused"), "{result}");
        assert!(result.contains("Quarterly figures") && !result.contains("no longer kept"), "{result}");
    }
    assert!(run(&["trace", "4bStrange"]).contains("REFUSED for stranger@x: unknown recipient"));
    let json: serde_json::Value = serde_json::from_str(&run(&["trace", "--json", "4bDown"])).unwrap();
    assert_eq!(json["messages"][0]["failures"][0]["count"], 2);
    let stats: serde_json::Value = serde_json::from_str(&run(&["stats", "--json"])).unwrap();
    let causes: Vec<_> = stats["failures"].as_array().unwrap().iter().map(|it| (&it["cause"], &it["tries"])).collect();
    assert_eq!(format!("{causes:?}").matches("String").count(), 2, "{causes:?}");
    let prometheus = run(&["stats", "--format", "prometheus", "--since", "1h"]);
    let line = "maildrop_failed_deliveries{cause=\"the mailbox store is out of reach\",window=\"1h\"} 1";
    assert!(prometheus.contains(line), "{prometheus}");
}
