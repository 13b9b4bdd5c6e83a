//! The payloads of webhooks. Each try sends the same bytes, because all data is from rows that never change after
//! publication, and the fields are sorted by name.

use crate::base::timestamp::exact;
use crate::ledger::event::EventType;
use crate::ledger::notifications::{Due, LONGEST_HEADERS, MessageDetail, TEST};
use crate::message::shown_sender;
use serde_json::{Map, Value, json};
use uuid::Uuid;

/// The id of an event, and of each notification of it: the header `webhook-id`.
pub(crate) fn id(event: Uuid) -> String {
    format!("evt_{}", event.simple())
}

/// The event with this id; `None` if the text is no such id.
pub(crate) fn read_id(text: &str) -> Option<Uuid> {
    let digits = text.strip_prefix("evt_").filter(|digits| digits.len() == 32)?;
    Uuid::try_parse(digits).ok()
}

const AGENT: &str = concat!("maildrop_command/", env!("CARGO_PKG_VERSION"));

/// The header fields of a notification with this id, the same in each try.
pub(crate) fn headers(id: &str, subscription: Uuid) -> [(&'static str, String); 4] {
    [
        ("user-agent", AGENT.to_owned()),
        ("content-type", "application/json".to_owned()),
        ("webhook-id", id.to_owned()),
        ("maildrop-subscription", subscription.to_string()),
    ]
}

/// The body of a notification. `api` is the base URL under which the message can be read.
pub(crate) fn render(due: &Due, api: Option<&str>) -> String {
    if due.event_type == TEST {
        return test(due);
    }
    let diff: Map<String, Value> = serde_json::from_str(&due.diff).unwrap_or_default();
    let mut copy = with_values([
        ("copy", json!(due.copy_key)),
        ("role", json!(due.role)),
        ("address", json!(due.recipient)),
        ("user", json!(due.imap_user)),
        ("mailbox", json!(due.mailbox)),
        ("sequence", json!(due.position)),
        ("manner", json!(due.manner)),
    ]);
    // The current state of the copy: state, uid_validity, uid, reason.
    copy.extend(diff.iter().filter_map(|(field, change)| Some((field.clone(), change.get("+++")?.clone()))));
    let mut message = with_values([
        ("id", json!(due.identity)),
        ("message_id", json!(due.message_id)),
        ("queue_id", json!(due.queue_id)),
        ("host", json!(due.host)),
        ("url", json!(api.map(|api| format!("{api}/messages/{}", due.identity)))),
    ]);
    // Such a message may be recorded between two tries. The second body would then differ from the first.
    let is_unrecorded =
        [EventType::MessageRefused, EventType::MessageDeferred].iter().any(|it| it.as_str() == due.event_type);
    if let Some(recorded) = due.message.as_ref().filter(|_| !is_unrecorded) {
        message.extend(detail(recorded));
    }
    let attempt = json!(due.attempt.map(|attempt| attempt.to_string()));
    let moment = exact(due.created_at);
    json!({
        "id": id(due.event),
        "type": due.event_type,
        "timestamp": moment,
        "created_at": moment,
        "resource": "copy",
        "resource_id": due.copy_key,
        "diff": diff,
        "data": with_values([("copy", copy.into()), ("message", message.into()), ("attempt", attempt)]),
    })
    .to_string()
}

/// The fields that have a value.
fn with_values<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The body of a test notification, which a person requests.
fn test(due: &Due) -> String {
    let (moment, subscription) = (exact(due.created_at), due.subscription.unwrap_or_default().to_string());
    serde_json::json!({
        "id": id(due.event),
        "type": due.event_type,
        "timestamp": moment,
        "created_at": moment,
        "resource": "subscription",
        "resource_id": subscription,
        "diff": {},
        "data": { "subscription": subscription },
    })
    .to_string()
}

/// The recorded message, for subscriptions with full detail.
fn detail(message: &MessageDetail) -> Map<String, Value> {
    let (fields, mut is_whole) = fields(&message.headers);
    let (count, mut length) = (fields.len(), 0);
    let headers: Vec<Value> = fields
        .into_iter()
        .take_while(|field| {
            length += field.to_string().len();
            length <= LONGEST_HEADERS
        })
        .collect();
    is_whole &= headers.len() == count;
    let fields = [
        ("size", json!(message.size)),
        ("sender", json!(shown_sender(&message.sender))),
        ("from", json!(message.from)),
        ("to", json!(message.to)),
        ("cc", json!(message.cc)),
        ("subject", json!(message.subject)),
        ("date", json!(message.date.map(exact))),
        ("headers", json!(headers)),
        ("headers_truncated", json!(!is_whole)),
    ];
    fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

/// The complete fields of a JSON array that may be cut anywhere, and whether these are all of its fields.
fn fields(headers: &str) -> (Vec<Value>, bool) {
    let (mut fields, mut rest) = (Vec::new(), headers.strip_prefix('[').unwrap_or_default());
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        let mut next = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match next.next() {
            Some(Ok(field)) => fields.push(field),
            _ => return (fields, rest.starts_with(']')),
        }
        rest = rest.get(next.byte_offset()..).unwrap_or_default();
    }
}

/// The body of the verification request to a new callback, which has to return the challenge.
pub(crate) fn question(id: &str, now: i64, subscription: Uuid, challenge: &str) -> String {
    serde_json::json!({
        "id": id,
        "type": "subscription.verify",
        "timestamp": exact(now),
        "data": { "subscription": subscription.to_string(), "challenge": challenge },
    })
    .to_string()
}

/// Whether the answer to a verification request contains the challenge: `{"challenge": "…"}`.
pub(crate) fn has_challenge(answer: &[u8], challenge: &str) -> bool {
    let answer: Option<Value> = serde_json::from_slice(answer).ok();
    answer.is_some_and(|answer| answer.get("challenge").and_then(Value::as_str) == Some(challenge))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due() -> Due {
        Due {
            position: 1_048_576,
            tries: 0,
            due_at: 0,
            event: Uuid::from_u128(0x0193_a1b2_c3d4_7e5f_8a9b_0c1d_2e3f_4a01),
            event_type: "message.delivered".into(),
            copy_key: "ab12".repeat(16),
            identity: "9f2c".repeat(16),
            message_id: "<123-abc@mail.google.com>".into(),
            role: "recipient".into(),
            recipient: "doug@mail.axial.net".into(),
            imap_user: "doug".into(),
            mailbox: "INBOX".into(),
            manner: Some("appended".into()),
            attempt: Some(Uuid::from_u128(0x0193_a1b2_c3d4_7e5f_8a9b_0c1d_2e3f_4a5b)),
            queue_id: Some("4bXyz12abc".into()),
            subscription: None,
            host: "mx1.axial.net".into(),
            // As PostgreSQL and MySQL return JSON: each in its own order.
            diff: r#"{"uid": {"---": null, "+++": 4711}, "state": {"+++": "delivered", "---": null}}"#.into(),
            created_at: 1_763_780_645_678_901,
            message: None,
        }
    }

    #[test]
    fn a_thin_notification_says_what_changed_and_of_which_copy() {
        let body: Value = serde_json::from_str(&render(&due(), None)).unwrap();
        assert_eq!(
            body,
            serde_json::json!({
                "id": "evt_0193a1b2c3d47e5f8a9b0c1d2e3f4a01",
                "type": "message.delivered",
                "timestamp": "2025-11-22T03:04:05.678901Z",
                "created_at": "2025-11-22T03:04:05.678901Z",
                "resource": "copy",
                "resource_id": "ab12".repeat(16),
                "diff": { "state": { "---": null, "+++": "delivered" }, "uid": { "---": null, "+++": 4711 } },
                "data": {
                    "copy": {
                        "copy": "ab12".repeat(16), "role": "recipient", "address": "doug@mail.axial.net", "user": "doug",
                        "mailbox": "INBOX", "sequence": 1_048_576, "manner": "appended", "state": "delivered", "uid": 4711,
                    },
                    "message": {
                        "id": "9f2c".repeat(16), "message_id": "<123-abc@mail.google.com>", "queue_id": "4bXyz12abc",
                        "host": "mx1.axial.net",
                    },
                    "attempt": "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b",
                },
            })
        );
    }

    #[test]
    fn it_says_where_the_message_can_be_read_if_anybody_knows() {
        let body: Value = serde_json::from_str(&render(&due(), Some("https://m.example/api/v1"))).unwrap();
        let url = format!("https://m.example/api/v1/messages/{}", "9f2c".repeat(16));
        assert_eq!(body["data"]["message"]["url"], url);
    }

    #[test]
    fn a_test_is_about_its_subscription_and_no_copy() {
        let id = Uuid::from_u128(7);
        let test = Due { event_type: TEST.into(), attempt: None, subscription: Some(id), diff: "{}".into(), ..due() };
        let body: Value = serde_json::from_str(&render(&test, Some("https://m.example/api/v1"))).unwrap();
        assert_eq!((&body["type"], &body["resource"]), (&TEST.into(), &"subscription".into()));
        assert_eq!(body["data"], serde_json::json!({ "subscription": id.to_string() }));
    }

    #[test]
    fn each_try_has_the_same_bytes_whatever_order_a_database_gives_json_in() {
        let mut other = due();
        other.diff = r#"{"state":{"---":null,"+++":"delivered"},"uid":{"+++":4711,"---":null}}"#.into();
        other.tries = 3;
        assert_eq!(render(&other, None), render(&due(), None));
    }

    #[test]
    fn a_full_one_tells_of_the_message_and_no_more_header_than_fits() {
        let mut full = due();
        let headers: Vec<[String; 2]> = (0..100).map(|n| [format!("X-{n}"), "x".repeat(1000)]).collect();
        full.message = Some(MessageDetail {
            sender: "list+doug=mail.axial.net@gmail.com".into(),
            from: Some("Lisa <lisa@gmail.com>".into()),
            to: None,
            cc: None,
            subject: Some("Grüße\n\"".into()),
            date: Some(0),
            headers: serde_json::to_string(&headers).unwrap(),
            size: 4096,
        });
        let body: Value = serde_json::from_str(&render(&full, None)).unwrap();
        let message = &body["data"]["message"];
        assert_eq!(message["sender"], "list@gmail.com", "a list's sender names a recipient");
        assert_eq!((&message["subject"], &message["size"]), (&"Grüße\n\"".into(), &4096.into()));
        assert_eq!((message["headers"].as_array().unwrap().len(), &message["headers_truncated"]), (16, &true.into()));
        // For a refused or deferred message it makes no difference whether the message is recorded by now.
        for kind in ["message.refused", "message.deferred"] {
            full.event_type = kind.into();
            let thin = Due { message: None, ..full.clone() };
            assert_eq!(render(&full, None), render(&thin, None));
        }
    }

    #[test]
    fn a_question_is_answered_by_its_challenge_and_nothing_else() {
        assert!(has_challenge(br#"{"challenge":"a1","more":1}"#, "a1"));
        for answer in ["", "a1", r#"{"challenge":"a2"}"#, r#"["a1"]"#, r#"{"challenge":["a1"]}"#] {
            assert!(!has_challenge(answer.as_bytes(), "a1"), "{answer}");
        }
        let question = question("evt_1", 0, Uuid::nil(), "a1");
        assert!(question.contains(r#""challenge":"a1""#) && question.contains(r#""type":"subscription.verify""#));
    }

    #[test]
    fn a_header_that_fits_is_reported_whole_up_to_its_last_byte() {
        let of = |length: usize| {
            let headers = serde_json::to_string(&[["A", &"x".repeat(length)]]).unwrap();
            let message = MessageDetail {
                sender: String::new(),
                from: None,
                to: None,
                cc: None,
                subject: None,
                date: None,
                headers,
                size: 1,
            };
            let body: Value = serde_json::from_str(&render(&Due { message: Some(message), ..due() }, None)).unwrap();
            let message = &body["data"]["message"];
            (message["headers"].as_array().unwrap().len(), message["headers_truncated"].as_bool().unwrap())
        };
        let brackets = r#"["A",""]"#.len();
        assert_eq!(
            [of(1), of(LONGEST_HEADERS - brackets), of(LONGEST_HEADERS - brackets + 1)],
            [(1, false), (1, false), (0, true)]
        );
    }

    /// A partial field is dropped, and a text that looks like the end of a field ends nothing.
    #[test]
    fn of_a_header_that_is_cut_anywhere_the_whole_fields_are_reported_and_that_there_are_more() {
        let all = serde_json::json!([["A", "1"], ["B", "\"], [\"x"], ["Ü", "]"]]);
        for text in [all.to_string(), r#"[["A", "1"], ["B", "\"], [\"x"], ["Ü", "]"]]"#.into()] {
            assert_eq!(fields(&text), (all.as_array().unwrap().clone(), true));
            for (end, _) in text.char_indices() {
                let (fields, is_whole) = fields(&text[..end]);
                assert!(!is_whole && all.as_array().unwrap().starts_with(&fields), "{end} {fields:?}");
                assert_eq!(
                    fields.len(),
                    ["\"1\"]", "x\"]", "]\"]"].iter().filter(|last| text[..end].contains(**last)).count()
                );
            }
        }
        assert_eq!(fields("[]"), (Vec::new(), true));
    }

    #[test]
    fn an_id_is_read_as_it_is_written_and_nothing_else_is_one() {
        let event = due().event;
        assert_eq!(read_id(&id(event)), Some(event));
        for other in [
            "",
            "evt_",
            "evt_0193a1b2",
            &event.to_string(),
            &format!("evt_{event}"),
            &event.simple().to_string(),
            &"x".repeat(36),
        ] {
            assert_eq!(read_id(other), None, "{other}");
        }
    }

    #[test]
    fn each_request_says_who_sends_it_what_and_for_which_subscription() {
        let [agent, kind, id, subscription] = headers("evt_1", Uuid::nil());
        assert!(agent.0 == "user-agent" && agent.1.starts_with("maildrop_command/"));
        assert_eq!((kind.0, kind.1.as_str()), ("content-type", "application/json"));
        assert_eq!((id.0, id.1.as_str()), ("webhook-id", "evt_1"));
        assert_eq!(subscription, ("maildrop-subscription", Uuid::nil().to_string()));
    }
}
