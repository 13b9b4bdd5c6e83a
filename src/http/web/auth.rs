//! Authentication and authorization of all requests to the web UI, decided only here.
//!
//! A login is a cookie with three restrictions: no script can read it (HttpOnly), no other site can send it (SameSite=Strict),
//! and no other host can set it (`__Host-`, RFC 6265bis section 4.1.3.2). Such a cookie needs a connection that counts as safe:
//! https, or this machine. Chromium and Firefox count `http://127.0.0.1` and `http://localhost` as such.
//!
//! Changes are made by POST, and only by our own pages. Sec-Fetch-Site proves that, which no script can forge; without it
//! Origin does. GET changes nothing, but a view of a message's content is recorded in the operations log. So another site may
//! link to our pages, but must not load any of them itself.

use super::layout;
use super::{Page, not_authenticated};
use crate::base::blocking_pool::asked_by;
use crate::http::blocking_pools::Caller;
use crate::ledger::Database;
use crate::ledger::web_sessions::{self, WebRole, WebSession};
use crate::operations::web_logins;
use axum::extract::{Request, State};
use axum::http::header::{COOKIE, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use tracing::warn;
use url::form_urlencoded;

pub(super) const COOKIE_NAME: &str = "__Host-maildrop";

/// The login token in the cookie of this request.
pub(super) fn token(headers: &HeaderMap) -> Option<&str> {
    let mut cookies =
        headers.get_all(COOKIE).iter().filter_map(|cookie| cookie.to_str().ok()).flat_map(|c| c.split(';'));
    cookies.find_map(|cookie| cookie.trim().strip_prefix(COOKIE_NAME)?.strip_prefix('='))
}

/// The Set-Cookie value of a login that lasts `seconds`.
pub(super) fn cookie(token: &str, seconds: u64) -> String {
    format!("{COOKIE_NAME}={token}; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age={seconds}")
}

/// Middleware that lets only users with at least the role `least` pass. Handlers get the [`WebSession`] from the extensions.
pub(super) async fn require_role(
    State((page, least)): State<(Page, WebRole)>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = request.extensions().get::<Caller>().cloned().unwrap_or_default();
    let named_by_proxy = page.settings.trusted.as_ref().map_or(Ok(None), |trusted| trusted.who(request.headers()));
    let viewer = match named_by_proxy {
        Ok(Some(viewer)) => {
            caller.has_login(web_logins::digest(&viewer.name));
            Some(viewer)
        }
        // Login links work if the proxy names no user.
        Ok(None) => match who(&page, &caller, request.headers()).await {
            Ok(viewer) => viewer,
            Err(answer) => return answer,
        },
        Err(problem) => {
            warn!(%problem, "somebody whom the proxy has let in is not let in here");
            let content = html! { p { (problem) "." } };
            return (StatusCode::FORBIDDEN, layout::page("Not for you", None, None, &content)).into_response();
        }
    };
    let Some(viewer) = viewer else { return log_in_first(&request) };
    if viewer.role < least {
        let content = html! {
            p { "This needs the role " b { (least.as_str()) } ". You, " (viewer.name) ", are logged in as " b { (viewer.role.as_str()) } "." }
        };
        return (StatusCode::FORBIDDEN, layout::page("Not for you", None, Some(&viewer), &content)).into_response();
    }
    let client = client(&viewer);
    request.extensions_mut().insert(viewer);
    asked_by(client, next.run(request)).await
}

/// The key of a login's share in the blocking pools, and in the memory for messages.
pub(super) fn client(viewer: &WebSession) -> String {
    login_of(&viewer.name)
}

pub(super) fn login_of(name: &str) -> String {
    format!("login of {name}")
}

async fn who(page: &Page, caller: &Caller, headers: &HeaderMap) -> Result<Option<WebSession>, Response> {
    let Some(token) = token(headers) else { return Ok(None) };
    let (digest, lifetimes) = (web_logins::digest(token), page.settings.lifetimes);
    let session = move |database: &mut dyn Database| web_sessions::session(database, &digest, lifetimes);
    let found = page.blocking.authenticate(caller, digest, client, session).await;
    found.map_err(|problem| not_authenticated(&problem))
}

/// The answer to a request without a login.
fn log_in_first(request: &Request) -> Response {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if request.method() != Method::GET {
        let content =
            html! { p { "You are not logged in any more. " a href="/login" { "Log in" } ", and try again." } };
        return (StatusCode::FORBIDDEN, layout::page("Logged out", None, None, &content)).into_response();
    }
    // A browser that follows a link from another site, for example a chat, does not send the cookie. This answer makes the
    // browser request the page again from here, with the cookie.
    if request.headers().get("sec-fetch-site").is_some_and(|site| site == "cross-site") {
        return layout::onward(path).into_response();
    }
    let to: String = form_urlencoded::byte_serialize(path.as_bytes()).collect();
    Redirect::to(&if path == "/" { "/login".to_owned() } else { format!("/login?to={to}") }).into_response()
}

/// Middleware that refuses changes not sent by our own pages, and requests that another site embeds in its pages.
pub(super) async fn of_this_origin(State(page): State<Page>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let content = if [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method()) {
        if !is_loaded_elsewhere(headers) {
            return next.run(request).await;
        }
        html! { p { "A page of another site has asked for this, and it is shown to no other site." } }
    } else {
        // The proxy's users need no cookie of ours. A request without Sec-Fetch-Site and Origin may therefore be forged.
        let sure = page.settings.trusted.is_none() || says_from_where(headers);
        if sure && is_same_origin(headers, &page.settings.origin) {
            return next.run(request).await;
        }
        html! { p { "This was sent by another site, and nothing was done." } }
    };
    (StatusCode::FORBIDDEN, layout::page("Refused", None, None, &content)).into_response()
}

/// Whether a page of another site embeds this: as a picture, a frame, through a script, or by prefetching (Fetch Metadata
/// Request Headers, section 2). A link that a user follows opens in its own window, which the user sees. Old browsers send no
/// such headers.
fn is_loaded_elsewhere(headers: &HeaderMap) -> bool {
    let said = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    let is_link = said("sec-fetch-mode") == Some(b"navigate")
        && said("sec-fetch-dest") == Some(b"document")
        && said("sec-purpose").is_none();
    matches!(said("sec-fetch-site"), Some(b"cross-site" | b"same-site")) && !is_link
}

fn says_from_where(headers: &HeaderMap) -> bool {
    headers.contains_key("sec-fetch-site") || headers.contains_key(ORIGIN)
}

/// Whether a request was sent by a page of `origin`. (The same rule as in Go's CrossOriginProtection.)
fn is_same_origin(headers: &HeaderMap, origin: &str) -> bool {
    match headers.get("sec-fetch-site").map(|site| site.as_bytes()) {
        // `none`: the user started the request in the browser itself.
        Some(b"same-origin" | b"none") => true,
        Some(_) => false,
        // An old browser sends only Origin. A client that sends neither is no browser, so no other site can have misused its
        // cookie.
        None => headers.get(ORIGIN).is_none_or(|from| from.as_bytes() == origin.as_bytes()),
    }
}

/// The path to redirect to after a login: only a path on this server is accepted.
pub(super) fn local_path(to: Option<&str>) -> &str {
    let is_path = |to: &&str| to.starts_with('/') && !to.starts_with("//") && !to.contains(['\\', '\r', '\n', '\t']);
    to.filter(is_path).filter(|to| to.parse::<Uri>().is_ok()).unwrap_or("/")
}

/// The answer to an unknown path.
pub(super) async fn nothing_here() -> Response {
    let content = html! { p { "There is nothing at this address. " a href="/" { "Activity" } } };
    (StatusCode::NOT_FOUND, layout::page("Not found", None, None, &content)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&'static str, &'static str)]) -> HeaderMap {
        of.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn only_a_page_of_ours_may_change_anything() {
        let ours = "https://mail.example.com";
        for good in [
            &[("sec-fetch-site", "same-origin")][..],
            &[("sec-fetch-site", "none")],
            &[("origin", "https://mail.example.com")],
            &[],
        ] {
            assert!(is_same_origin(&headers(good), ours), "{good:?}");
        }
        for bad in [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site"), ("origin", "https://mail.example.com")],
            &[("origin", "https://evil.example")],
            &[("origin", "null")],
            &[("origin", "http://mail.example.com")],
        ] {
            assert!(!is_same_origin(&headers(bad), ours), "{bad:?}");
        }
    }

    #[test]
    fn another_site_may_lead_here_by_a_link_and_load_nothing() {
        let from = |site| [("sec-fetch-site", site), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        for site in ["cross-site", "same-site", "same-origin", "none"] {
            assert!(!is_loaded_elsewhere(&headers(&from(site))), "{site}");
        }
        assert!(!is_loaded_elsewhere(&headers(&[])));
        for site in ["cross-site", "same-site"] {
            for (at, other) in [(1, "no-cors"), (1, "cors"), (2, "iframe"), (2, "image"), (2, "empty"), (2, "object")] {
                let mut loaded = from(site);
                loaded[at].1 = other;
                assert!(is_loaded_elsewhere(&headers(&loaded)), "{loaded:?}");
            }
            assert!(is_loaded_elsewhere(&headers(&[("sec-fetch-site", site)])), "{site} alone");
            let ahead = [&from(site)[..], &[("sec-purpose", "prefetch;prerender")]].concat();
            assert!(is_loaded_elsewhere(&headers(&ahead)), "{site}, ahead of a click");
        }
        let ours = [("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors"), ("sec-fetch-dest", "empty")];
        assert!(!is_loaded_elsewhere(&headers(&ours)));
    }

    #[test]
    fn nobody_is_led_away_by_logging_in() {
        assert_eq!(local_path(Some("/messages/00?x=1")), "/messages/00?x=1");
        for wrong in
            ["", "x", "https://evil.example/", "//evil.example/", "/\\evil.example", "/\t/evil.example", "/x\r\ny"]
        {
            assert_eq!(local_path(Some(wrong)), "/", "{wrong:?}");
        }
        assert_eq!(local_path(None), "/");
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let both = headers(&[("cookie", "a=1; __Host-maildrop=abc; __Host-maildropx=no")]);
        assert_eq!(token(&both), Some("abc"));
        assert_eq!(token(&headers(&[("cookie", "maildrop=abc")])), None);
        assert!(cookie("abc", 5).starts_with("__Host-maildrop=abc; Path=/; Secure; HttpOnly; SameSite=Strict"));
    }
}
