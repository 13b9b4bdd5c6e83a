//! What failed before its journal has no attempt: the web UI and `trace` show it all the same.

use super::screens_embedded::{SiteFolder, message};
use crate::program::program;
use crate::support::clients_and_processes;
use crate::visitor::{rows, text};
use maildrop_command::ledger::{Cause, FailureRecord, Ledger, Outcome};
use maildrop_command::lock::{DEFAULT_NAMESPACE, LockName};
use maildrop_command::mailbox::MailboxFailure;
use maildrop_command::message::Identity;

/// Two tries for doug of one message, and a refusal of another one for a stranger.
fn fail(place: &SiteFolder) {
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
    let place = SiteFolder::new();
    fail(&place);
    let anna = place.visitor("viewer");
    for (query, count, has) in [
        ("state=failed", 2, "refused: unknown recipient"),
        ("state=failed&since=1h", 2, "deferred: the mailbox store is out of reach connecting: refused"),
        ("state=failed&since=30d&until=2000-01-01", 0, "No delivery failed before it began"),
        ("state=failed&host=mx8", 0, "No delivery failed before it began"),
        ("q=lisa%40gmail.com", 2, "Quarterly figures"),
        ("q=doug%40x&since=1h", 1, "2 tries"),
        ("", 2, "2 failed before delivery"),
        ("", 2, "1 recipient waits since"),
        ("", 2, "1 deferred now"),
        ("state=deferred", 1, "Quarterly figures"),
        ("state=deferred&q=doug", 1, "2 tries"),
        ("state=refused", 1, "stranger@x"),
        ("state=delivered", 0, "refused for its size is only in Postfix's log and in this host's log."),
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
        assert!(
            message.contains("failed 2 times before delivery: the mailbox store is out of reach"),
            "{q}: {message}"
        );
        assert!(
            message.contains("postqueue -f") && message.contains("Its sender need not send it again"),
            "{q}: {message}"
        );
        assert_eq!(message.matches("connecting: refused").count(), 1, "{q}: {message}");
    }
    // The whole row leads to the message, by its subject.
    let list = anna.get("/?state=failed").body;
    assert_eq!(list.matches("<a class=\"row\"").count(), 2, "{list}");
    let stranger = text(anna.get(anna.get("/?q=4bStrange").leads_to()).shown());
    assert!(stranger.contains("stranger@x is unknown, and routing.unknown_recipient rejects such mail"), "{stranger}");
    assert!(!stranger.contains("need not send it again"), "{stranger}");
    for query in ["q=lisa%40gmail.com", "state=deferred"] {
        let list = anna.get(&format!("/?{query}"));
        assert!(list.shown().contains("format=csv"), "{query}: {}", list.body);
        let csv = anna.get(&format!("/?{query}&format=csv"));
        assert!(
            csv.shown().contains("deferred: the mailbox store is out of reach: connecting: refused,doug@x"),
            "{csv:?}"
        );
    }
    let text = text(place.visitor("operator").get("/again/failed").shown());
    assert!(text.contains("2 failed before delivery : they have no attempt yet"), "{text}");
}

#[test]
fn after_its_delivery_a_message_says_since_when_it_was_tried_and_statistics_count_it() {
    let place = SiteFolder::new();
    for recipient in ["doug@x", "scuba@x"] {
        place.deliver(&message("late@x", "Late"), recipient, "4b").delivered();
    }
    let ledger = rusqlite::Connection::open(place.path().join("ledger.sqlite")).unwrap();
    let cause = "deferred: the mailbox store is out of reach: connecting: refused";
    let failed = "INSERT INTO failures (identity, recipient, lock_digest, message_id, host, cause, count, first_at, last_at) \
                  SELECT identity, 'doug@x', lock_digest, message_id, 'mx1', ?, 3, recorded_at - 60000000, recorded_at - 1000 \
                  FROM messages";
    ledger.execute(failed, [cause]).unwrap();
    // As by LMTP: one attempt for both recipients.
    ledger.execute("UPDATE attempts SET attempt = (SELECT min(attempt) FROM attempts)", []).unwrap();
    drop(ledger);
    let anna = place.visitor("viewer");
    let shown = text(anna.get(anna.get("/?q=%3Clate%40x%3E").leads_to()).shown());
    assert!(shown.contains("DELIVERED to all 2 recipients") && shown.contains("First tried"), "{shown}");
    assert!(shown.contains("failed 3 times before delivery: the mailbox store is out of reach"), "{shown}");
    assert!(shown.contains("doug@x delivered or refused since 3 tries"), "{shown}");
    let recipients = shown.split_once("Recipients").unwrap().1.split_once("Copies").unwrap().0;
    assert!(recipients.contains("Z 4 scuba@x") && recipients.trim_end().ends_with("Z 1"), "{recipients}");
    assert!(shown.contains("for doug@x, scuba@x") || shown.contains("for scuba@x, doug@x"), "{shown}");
    let list = anna.figures();
    assert!(list.contains("0 deferred now") && !list.contains("recipient waits"), "{list}");
    let statistics = text(anna.statistics("").shown());
    assert!(statistics.contains("the mailbox store is out of reach 1 1 0"), "{statistics}");
}

#[test]
fn trace_and_stats_tell_of_what_failed_before_its_journal() {
    let place = SiteFolder::new();
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
