//! Tests without a database: the OpenAPI document, and the answers to requests.

use super::*;
use crate::ledger::notifications::MessageDetail;
use crate::operations::notifications::Due;
use crate::site::embedded::Embedded;
use crate::webhook::payload;
use axum::http::StatusCode;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use tower::ServiceExt;

/// An API on a directory, which has no tokens.
fn api(directory: &Path) -> Router {
    let site = Site::embedded(Embedded::new(directory.to_owned()));
    api_by(Blocking::new(site, Duration::from_mins(2)), directory)
}

/// The same API with these pools.
fn api_by(blocking: Blocking, directory: &Path) -> Router {
    let site = Site::embedded(Embedded::new(directory.to_owned()));
    let settings = ApiSettings {
        key: None,
        notifications: Notifications::default(),
        queue: directory.join("queue"),
        max_recipients: 10,
        largest_message: 1000,
        public: None,
        site,
    };
    router(blocking, settings, FairQuota::of(1 << 20))
}

/// The answer: status, header fields and body.
fn answer(router: &Router, request: Request) -> (StatusCode, HeaderMap, Value) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        (parts.status, parts.headers, serde_json::from_slice(&body).unwrap_or(Value::Null))
    })
}

fn request(method: &Method, path: &str, token: &str) -> Request {
    let request = Request::builder().method(method).uri(path);
    let request = if token.is_empty() { request } else { request.header(AUTHORIZATION, token) };
    request.body(Body::empty()).unwrap()
}

/// Checks a problem by its type and status.
#[track_caller]
fn is_problem((status, headers, body): &(StatusCode, HeaderMap, Value), expected: u16, kind: &str) {
    assert_eq!(status.as_u16(), expected, "{body}");
    assert_eq!(headers[CONTENT_TYPE], "application/problem+json");
    assert_eq!(body["type"], format!("urn:maildrop_command:problem:{kind}"));
    assert_eq!(body["status"], expected);
    assert!(body["title"].is_string());
}

fn document() -> Value {
    serde_json::from_str(DOCUMENT).unwrap()
}

#[test]
fn the_document_has_each_operation_with_its_scope_and_its_body_and_no_other() {
    let document = document();
    let mut shown = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters") {
            let scope = operation["security"][0]["token"][0].as_str().unwrap().to_owned();
            let content = operation["requestBody"]["content"].as_object();
            let content = content.map(|content| content.keys().next().unwrap().clone());
            shown.insert((method.to_uppercase(), path.clone(), scope, content));
            // Each error is a problem document. Errors of the body appear only in operations with a body.
            let responses = operation["responses"].as_object().unwrap();
            for status in ["400", "401", "403", "421", "429", "503"] {
                assert_eq!(responses[status]["$ref"], "#/components/responses/Problem", "{method} {path} {status}");
            }
            assert_eq!(responses.contains_key("413"), operation.get("requestBody").is_some(), "{method} {path}");
        }
    }
    let there = OPERATIONS.iter().map(|one| {
        let content = one.content.map(ToOwned::to_owned);
        (one.method.to_string(), one.path.to_owned(), one.scope.as_str().to_owned(), content)
    });
    assert_eq!(shown, there.collect());
}

/// Each reference in the document resolves, and each of its components is used.
#[test]
fn the_document_is_whole() {
    fn references<'a>(value: &'a Value, into: &mut BTreeSet<&'a str>) {
        match value {
            Value::Object(object) => {
                into.extend(object.get("$ref").and_then(Value::as_str));
                object.values().for_each(|value| references(value, into));
            }
            Value::Array(all) => all.iter().for_each(|value| references(value, into)),
            _ => {}
        }
    }
    let document = document();
    let mut used = BTreeSet::new();
    references(&document, &mut used);
    let mut there = BTreeSet::new();
    for kind in ["schemas", "responses"] {
        let names = document["components"][kind].as_object().unwrap().keys();
        there.extend(names.map(|name| format!("#/components/{kind}/{name}")));
    }
    assert_eq!(used.into_iter().map(ToOwned::to_owned).collect::<BTreeSet<_>>(), there);
    let types = &document["components"]["schemas"]["Subscription"]["properties"]["types"]["items"]["enum"];
    assert_eq!(types, &serde_json::json!(crate::operations::subscriptions::TYPES));
}

/// Each link leads to an existing operation, with existing parameters, and with all that its path needs.
#[test]
fn the_links_of_the_document_lead_to_its_operations() {
    let document = document();
    let mut operations = std::collections::BTreeMap::new();
    let mut links = Vec::new();
    for item in document["paths"].as_object().unwrap().values() {
        for (_, operation) in item.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters") {
            let both = [&item["parameters"], &operation["parameters"]].map(Value::as_array);
            let parameters: Vec<&Value> = both.into_iter().flatten().flatten().collect();
            operations.insert(operation["operationId"].as_str().unwrap(), parameters);
            let responses = operation["responses"].as_object().unwrap().values();
            links.extend(
                responses.filter_map(|response| response["links"].as_object()).flat_map(|links| links.values()),
            );
        }
    }
    assert!(links.len() > 10, "{links:?}");
    for link in links {
        let parameters = &operations[link["operationId"].as_str().unwrap()];
        let given = link["parameters"].as_object().unwrap();
        for name in given.keys() {
            assert!(parameters.iter().any(|one| one["name"] == **name), "{link}");
        }
        for needed in parameters.iter().filter(|one| one["required"] == true) {
            assert!(given.contains_key(needed["name"].as_str().unwrap()), "{link}");
        }
    }
}

/// The examples of notifications are exactly what is sent, from rows with the same data.
#[test]
fn the_examples_of_the_document_are_what_is_sent() {
    let document = document();
    let examples = |hook: &str| {
        let content = &document["webhooks"][hook]["post"]["requestBody"]["content"]["application/json"];
        content["examples"].as_object().unwrap().values().map(|one| one["value"].clone()).collect::<Vec<_>>()
    };
    let mut types = Vec::new();
    for example in [examples("copy"), examples("subscription")].concat() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (copy, message) = (&example["data"]["copy"], &example["data"]["message"]);
        let uuid = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
        let row = Due {
            message: message.get("size").map(|size| MessageDetail {
                sender: text(&message["sender"]),
                from: message["from"].as_str().map(ToOwned::to_owned),
                to: message["to"].as_str().map(ToOwned::to_owned),
                cc: message["cc"].as_str().map(ToOwned::to_owned),
                subject: message["subject"].as_str().map(ToOwned::to_owned),
                date: Some(1_763_780_641_000_000),
                headers: message["headers"].to_string(),
                size: size.as_u64().unwrap(),
            }),
            position: 1_048_576,
            tries: 0,
            due_at: 0,
            event: payload::read_id(example["id"].as_str().unwrap()).unwrap(),
            event_type: text(&example["type"]),
            copy_key: text(&copy["copy"]),
            identity: text(&message["id"]),
            message_id: text(&message["message_id"]),
            role: text(&copy["role"]),
            recipient: text(&copy["address"]),
            imap_user: text(&copy["user"]),
            mailbox: text(&copy["mailbox"]),
            manner: copy["manner"].as_str().map(ToOwned::to_owned),
            attempt: uuid(&example["data"]["attempt"]),
            queue_id: message["queue_id"].as_str().map(ToOwned::to_owned),
            subscription: uuid(&example["data"]["subscription"]),
            host: text(&message["host"]),
            diff: example["diff"].to_string(),
            created_at: 1_763_780_645_678_901,
        };
        let sent: Value =
            serde_json::from_str(&payload::render(&row, Some("https://mail.example.com/api/v1"))).unwrap();
        assert_eq!(sent, example);
        types.push(row.event_type);
    }
    types.sort_unstable();
    // One of the two has thin detail, the other has full detail.
    assert_eq!(types.iter().filter(|one| *one == "message.delivered").count(), 2);
    types.dedup();
    let mut all = [&crate::operations::subscriptions::TYPES[..], &["subscription.test"]].concat();
    all.sort_unstable();
    assert_eq!(types, all);
    let question = &examples("question")[0];
    let (id, about) = (question["id"].as_str().unwrap(), &question["data"]);
    let subscription = about["subscription"].as_str().unwrap().parse().unwrap();
    let sent = payload::question(id, 1_763_780_645_678_901, subscription, about["challenge"].as_str().unwrap());
    assert_eq!(&serde_json::from_str::<Value>(&sent).unwrap(), question);
}

#[test]
fn everything_in_the_document_is_routed_and_wants_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let router = api(directory.path());
    let (status, headers, shown) = answer(&router, request(&Method::GET, "/api/openapi.json", ""));
    assert_eq!(
        (status, &headers[CONTENT_TYPE], shown),
        (StatusCode::OK, &"application/json".parse().unwrap(), document())
    );
    for operation in &OPERATIONS {
        let path = format!("{BASE}{}", operation.path.replace("{id}", "1"));
        let nobody = answer(&router, request(&operation.method, &path, ""));
        is_problem(&nobody, 401, "no-token");
        assert_eq!(nobody.1["www-authenticate"], "Bearer");
        for wrong in ["Basic YTpi", "Bearer", "Bearer mdt_", "mdt_"] {
            let stranger = answer(&router, request(&operation.method, &path, wrong));
            is_problem(&stranger, 401, "wrong-token");
            assert_eq!(stranger.1["www-authenticate"], "Bearer error=\"invalid_token\"");
        }
    }
}

#[test]
fn what_is_not_there_and_what_cannot_be_done_are_problems_too() {
    let directory = tempfile::tempdir().unwrap();
    let router = api(directory.path());
    for path in ["/api/v1", "/api/v1/nothing", "/api/v2/events", "/api/v1/subscriptions/1/nothing", "/api/v1/events/"] {
        for method in [Method::GET, Method::POST, Method::DELETE, Method::OPTIONS] {
            let there = answer(&router, request(&method, path, ""));
            is_problem(&there, 404, "not-found");
            assert!(!there.1.contains_key("allow"), "{:?}", there.1);
        }
    }
    for (method, path) in [(Method::PUT, "/api/v1/subscriptions"), (Method::DELETE, "/api/v1/events")] {
        let other = answer(&router, request(&method, path, ""));
        is_problem(&other, 405, "another-method");
        assert!(other.1["allow"].to_str().unwrap().contains("GET"), "{:?}", other.1);
    }
    // A path that is not UTF-8 matches nothing, but the token is checked first.
    is_problem(&answer(&router, request(&Method::GET, "/api/v1/subscriptions/%ff", "")), 401, "no-token");
}

/// The ledger in a directory has no table of tokens, so the API cannot check a token.
#[test]
fn where_the_ledger_does_not_answer_it_is_reported_when_to_try_again() {
    let directory = tempfile::tempdir().unwrap();
    let router = api(directory.path());
    let token = format!("Bearer {}", TokenText::parse(A_TOKEN).unwrap().expose());
    let failed = answer(&router, request(&Method::GET, "/api/v1/events", &token));
    assert_eq!(failed.0, StatusCode::SERVICE_UNAVAILABLE, "{failed:?}");
    assert!(failed.1.contains_key("retry-after") && !failed.2.to_string().contains("api_tokens"), "{failed:?}");
}

/// 32 bytes of zeros.
const A_TOKEN: &str = "mdt_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// A body that never arrives.
struct Endless;

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}

/// A body that is too long, or whose memory is in use, is refused at once, and its memory is freed.
#[test]
fn a_message_takes_memory_as_it_comes_and_no_more_than_its_tokens_share() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (memory, token) = (FairQuota::of(20), "one");
        let (nothing, ten) = (HeaderMap::new(), Body::from("0123456789"));
        let status = |read: Result<(Vec<u8>, crate::base::fair_quota::Reservation), Problem>| {
            read.err().unwrap().into_response().status()
        };
        let read = |body, largest| messages::read(&nothing, body, largest, &memory, token);
        // A body of which nothing has arrived takes no memory.
        let endless = read(Body::new(Endless), 10);
        let mut endless = std::pin::pin!(endless);
        assert!(timeout(Duration::from_secs(1), endless.as_mut()).await.is_err());
        let (raw, share) = read(ten, 10).await.unwrap();
        assert_eq!(raw, b"0123456789");
        assert_eq!(status(read(Body::from("0"), 10).await), StatusCode::SERVICE_UNAVAILABLE);
        let other = messages::read(&nothing, Body::from("0123456789"), 10, &memory, "other").await;
        assert!(other.is_ok());
        drop(share);
        assert_eq!(status(read(Body::from("0123456789a"), 10).await), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(status(read(Body::from("0123456789a"), 11).await), StatusCode::SERVICE_UNAVAILABLE);
        assert!(read(Body::from("0123456789"), 10).await.is_ok());
        assert_eq!(status(endless.await), StatusCode::REQUEST_TIMEOUT);
    });
}

#[test]
fn a_body_that_is_too_large_is_not_read() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let said = |length: &str| HeaderMap::from_iter([(CONTENT_LENGTH, length.parse().unwrap())]);
        let minute = Duration::from_mins(1);
        let unread = Body::new(Endless);
        let problem = read(&said("11"), unread, 10, minute).await.unwrap_err().into_response();
        assert_eq!(problem.status(), StatusCode::PAYLOAD_TOO_LARGE);
        // A body without a length is cut off at the limit.
        let problem = read(&HeaderMap::new(), Body::from("0123456789a"), 10, minute).await.unwrap_err().into_response();
        assert_eq!(problem.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(read(&said("10"), Body::from("0123456789"), 10, minute).await.unwrap(), "0123456789");
        let problem = read(&HeaderMap::new(), Body::new(Endless), 10, Duration::ZERO).await.unwrap_err();
        assert_eq!(problem.into_response().status(), StatusCode::REQUEST_TIMEOUT);
    });
}

#[test]
fn a_token_that_was_never_valid_is_refused_once_too_many_failed_and_one_that_was_is_asked_about() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::embedded(Embedded::new(directory.path().to_owned()));
    let blocking = Blocking::new(site, Duration::from_mins(2));
    let router = api_by(blocking.clone(), directory.path());
    let known = tokens::TokenText::random().unwrap();
    blocking.is_valid(known.digest(), "somebody".into());
    let show = |token: &TokenText| {
        answer(&router, request(&Method::GET, "/api/v1/events", &format!("Bearer {}", token.expose())))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let caller = Caller::default();
    let refused = (0..1000).find_map(|number: u32| {
        let mut made_up = [0; 32];
        made_up[..4].copy_from_slice(&number.to_be_bytes());
        let failed = blocking.authenticate(&caller, made_up, |()| "nobody".into(), |_| Ok(None::<()>));
        runtime.block_on(failed).err().map(|_| show(&TokenText::random().unwrap()))
    });
    let refused = refused.expect("a thousand are too many");
    is_problem(&refused, 429, "too-many-requests");
    assert!(refused.1.contains_key("retry-after"));
    // The site has no table of tokens: the database's error proves that it was queried.
    assert_eq!(show(&known).0, StatusCode::SERVICE_UNAVAILABLE);
}
