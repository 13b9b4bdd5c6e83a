//! Limits and headers that apply to every answer.

use crate::base::endpoint::Endpoint;
use crate::base::http_connections::HttpConnection;
use crate::base::problem::{self, Problem};
use crate::config::TrustedProxy;
use crate::http::blocking_pools::Caller;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, HeaderValue, REFERRER_POLICY, RETRY_AFTER,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long a request may take, its body included. An answer that streams as long as the browser listens starts sooner.
const REQUEST: Duration = Duration::from_secs(30);
/// The largest request body, in bytes, unless a route sets another limit.
const LARGEST_BODY: usize = 64 << 10;

/// Nothing is loaded from another site, and pages have no inline script or style (Content Security Policy Level 3). If a bug of
/// ours let a message header become markup, that markup would still do nothing.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; frame-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The headers of each answer, unless the answer sets them itself.
const HEADERS: [(HeaderName, &str); 8] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    (HeaderName::from_static("x-frame-options"), "DENY"),
];

/// Protection against requests that no user's browser would send.
#[derive(Clone, Debug)]
pub(super) struct Shield {
    /// The accepted values of a request's `Host`.
    hosts: Arc<[String]>,
    proxies: Arc<[TrustedProxy]>,
}

impl Shield {
    pub(super) fn new(origin: &str, listen: &Endpoint, proxies: &[TrustedProxy]) -> Self {
        let mut hosts = vec![origin.split_once("://").map_or(origin, |(_, host)| host).to_owned()];
        if let Endpoint::Tcp { port, .. } = listen {
            hosts.extend(["127.0.0.1", "[::1]", "localhost"].map(|host| format!("{host}:{port}")));
        }
        Self { hosts: hosts.into(), proxies: proxies.into() }
    }

    /// The router behind this shield.
    pub(super) fn over(self, router: Router) -> Router {
        router
            .layer(DefaultBodyLimit::max(LARGEST_BODY))
            .layer(middleware::from_fn(in_time))
            .layer(middleware::from_fn_with_state(self.clone(), with_caller))
            .layer(middleware::from_fn_with_state(self, check_host))
            .layer(middleware::from_fn(with_headers))
    }

    /// Whether this `Host` is accepted. A page of another site can make its own name resolve to this machine (DNS rebinding),
    /// and then sends that name.
    fn knows(&self, asked: &str) -> bool {
        self.hosts.iter().any(|host| host.eq_ignore_ascii_case(asked))
    }
}

async fn with_caller(State(shield): State<Shield>, mut request: Request, next: Next) -> Response {
    let connection = request.extensions_mut().remove::<HttpConnection>();
    let peer = connection.as_ref().and_then(|connection| connection.peer);
    let caller = Caller::new(client(peer, request.headers(), &shield.proxies), connection);
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// The client's address. Each proxy appends its client to X-Forwarded-For, and the entries before the last trusted proxy may be
/// forged.
fn client(peer: Option<IpAddr>, headers: &HeaderMap, proxies: &[TrustedProxy]) -> Option<IpAddr> {
    let fields = headers.get_all("x-forwarded-for").iter().filter_map(|field| field.to_str().ok());
    let hops: Vec<&str> = fields.flat_map(|field| field.split(',')).map(str::trim).collect();
    let address = |hop: &&str| hop.parse::<IpAddr>().ok().or_else(|| Some(hop.parse::<SocketAddr>().ok()?.ip()));
    let mut client = peer;
    for hop in hops.iter().rev().map_while(address) {
        if !proxies.iter().any(|proxy| proxy.is_at(client)) {
            break;
        }
        client = Some(hop);
    }
    client
}

async fn check_host(State(shield): State<Shield>, request: Request, next: Next) -> Response {
    let named = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let named = named.or_else(|| request.uri().host());
    if named.is_some_and(|named| shield.knows(named)) {
        return next.run(request).await;
    }
    let shown = ("This site does not have that name", "see web.public_url in the configuration");
    refusal(request.uri(), StatusCode::MISDIRECTED_REQUEST, "another-host", shown)
}

async fn in_time(request: Request, next: Next) -> Response {
    let path = request.uri().clone();
    match timeout(REQUEST, next.run(request)).await {
        Ok(answer) => answer,
        Err(_) => too_late(&path),
    }
}

fn too_late(uri: &Uri) -> Response {
    tracing::warn!(path = uri.path(), within = ?REQUEST, "a request was not answered in time");
    let shown = ("That took too long", "try again in a moment");
    let mut answer = refusal(uri, StatusCode::SERVICE_UNAVAILABLE, "too-long", shown);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("2"));
    answer
}

/// A refusal with title and detail: one line for people, a problem document for API clients.
fn refusal(uri: &Uri, status: StatusCode, kind: &str, (title, detail): (&str, &str)) -> Response {
    if !uri.path().starts_with("/api/") {
        return (status, format!("{title}: {detail}.\n")).into_response();
    }
    let problem = Problem::<()> { kind, title, status: status.as_u16(), detail: Some(detail), errors: &[] };
    let media_type = [(CONTENT_TYPE, HeaderValue::from_static(problem::MEDIA_TYPE))];
    (status, media_type, problem.document()).into_response()
}

async fn with_headers(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    for (name, value) in HEADERS {
        answer.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};
    use axum::routing::get;
    use tower::ServiceExt;

    #[test]
    fn a_trusted_proxy_says_where_a_request_comes_from_and_nobody_else() {
        let proxies: Vec<TrustedProxy> =
            ["127.0.0.1", "192.0.2.0/24"].map(|text| text.to_owned().try_into().unwrap()).into();
        let socket = [TrustedProxy::UnixSocket];
        let at = |text: &str| (!text.is_empty()).then(|| text.parse::<IpAddr>().unwrap());
        let from = |peer: &str, fields: &[&str], proxies: &[TrustedProxy]| {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append("x-forwarded-for", HeaderValue::from_str(field).unwrap());
            }
            client(at(peer), &headers, proxies)
        };
        for (peer, fields, comes_from) in [
            ("127.0.0.1", &["198.51.100.7"][..], "198.51.100.7"),
            ("127.0.0.1", &["203.0.113.9, 198.51.100.7"], "198.51.100.7"),
            ("127.0.0.1", &["203.0.113.9", "198.51.100.7,192.0.2.1"], "198.51.100.7"),
            ("127.0.0.1", &["198.51.100.7:4711"], "198.51.100.7"),
            ("127.0.0.1", &["[2001:db8::7]:4711"], "2001:db8::7"),
            ("127.0.0.1", &["198.51.100.7, unknown"], "127.0.0.1"),
            ("127.0.0.1", &[], "127.0.0.1"),
            ("::1", &["198.51.100.7"], "::1"),
            ("", &["198.51.100.7"], ""),
        ] {
            assert_eq!(from(peer, fields, &proxies), at(comes_from), "{peer} {fields:?}");
        }
        assert_eq!(from("", &["198.51.100.7"], &socket), at("198.51.100.7"));
        assert_eq!(from("127.0.0.1", &["198.51.100.7"], &socket), at("127.0.0.1"));
        assert_eq!(from("127.0.0.1", &["198.51.100.7"], &[]), at("127.0.0.1"));
    }

    #[test]
    fn it_answers_to_its_own_names_only() {
        let tcp = Endpoint::Tcp { host: "127.0.0.1".into(), port: 8025 };
        let shield = Shield::new("https://mail.example.com", &tcp, &[]);
        for name in ["mail.example.com", "Mail.Example.COM", "127.0.0.1:8025", "localhost:8025", "[::1]:8025"] {
            assert!(shield.knows(name), "{name}");
        }
        for name in ["", "evil.example", "mail.example.com.evil.example", "127.0.0.1", "127.0.0.1:80", "localhost"] {
            assert!(!shield.knows(name), "{name}");
        }
        let socket = Shield::new("https://mail.example.com", &Endpoint::Socket("/run/web.sock".into()), &[]);
        assert!(socket.knows("mail.example.com") && !socket.knows("localhost:8025"));
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    /// Status, content type and body of an answer.
    fn said(answer: Response) -> (u16, String, String) {
        let (parts, body) = answer.into_parts();
        let body = run(to_bytes(body, 1 << 16)).unwrap();
        let media_type = parts.headers[CONTENT_TYPE].to_str().unwrap().to_owned();
        (parts.status.as_u16(), media_type, String::from_utf8(body.to_vec()).unwrap())
    }

    #[test]
    fn what_it_refuses_itself_is_a_problem_below_the_api_and_a_sentence_elsewhere() {
        let router = Router::new().route("/api/v1/token", get(|| async {})).route("/login", get(|| async {}));
        let router =
            Shield::new("https://mail.example.com", &Endpoint::Socket("/run/web.sock".into()), &[]).over(router);
        let asked = |path: &str| {
            let request = Request::builder().uri(path).header(HOST, "evil.example").body(Body::empty()).unwrap();
            said(run(router.clone().oneshot(request)).unwrap())
        };
        let late = |path: &str| too_late(&path.parse().unwrap());
        let problem = |(status, media_type, body): (u16, String, String), kind: &str| {
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!((media_type.as_str(), &body["status"]), ("application/problem+json", &status.into()));
            assert_eq!(body["type"], format!("urn:maildrop_command:problem:{kind}"));
            assert!(body["title"].is_string() && body["detail"].is_string(), "{body}");
            status
        };
        let another_host = problem(asked("/api/v1/token"), "another-host");
        assert!(late("/api/v1/token").headers().contains_key(RETRY_AFTER));
        let too_long = problem(said(late("/api/v1/token")), "too-long");
        assert_eq!((another_host, too_long), (421, 503));
        // The API's document lists both for each operation.
        let document: serde_json::Value = serde_json::from_str(include_str!("../api/openapi.json")).unwrap();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters") {
                for status in [another_host, too_long].map(|status| status.to_string()) {
                    assert!(operation["responses"][&status]["$ref"].is_string(), "{method} {path} {status}");
                }
            }
        }
        for (said, status) in [(asked("/login"), 421), (said(late("/login")), 503)] {
            assert_eq!((said.0, said.1.as_str()), (status, "text/plain; charset=utf-8"));
            assert!(said.2.ends_with(".\n"), "{said:?}");
        }
    }
}
