//! Somebody who asks the page, by its routes and without a socket.
#![allow(dead_code, reason = "every test target uses a part of it")]

use super::program::{PATIENCE, wait_for};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use maildrop_command::http::web::{self, WebSettings};
use maildrop_command::site::Site;
use std::time::Duration;
use tokio::runtime::Runtime;
use tower::ServiceExt;

pub const HOST: &str = "127.0.0.1:8025";

/// The page of a site.
pub struct Page {
    router: Router,
    runtime: Runtime,
}

/// What it answers.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The body of an answer that is 200.
    #[track_caller]
    pub fn shown(&self) -> &str {
        assert_eq!(self.status, StatusCode::OK, "{self:?}");
        &self.body
    }

    /// Where it leads.
    #[track_caller]
    pub fn leads_to(&self) -> &str {
        assert_eq!(self.status, StatusCode::SEE_OTHER, "{self:?}");
        self.header("location")
    }
}

impl Page {
    pub fn of(site: &Site) -> Self {
        Self::by(site, &WebSettings::at(HOST).unwrap())
    }

    /// The page of a service.
    pub fn by(site: &Site, settings: &WebSettings) -> Self {
        let router = web::router(site, settings, |_, _| Router::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { router, runtime }
    }

    /// Asks; the headers that a browser would send are the caller's to name, but for Host.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if headers.iter().all(|(name, _)| *name != "host") {
            request = request.header("host", HOST);
        }
        if method == "POST" {
            request = request.header("content-type", "application/x-www-form-urlencoded");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        self.runtime.block_on(async {
            let answer = self.router.clone().oneshot(request).await.unwrap();
            let (parts, body) = answer.into_parts();
            let body = String::from_utf8_lossy(&to_bytes(body, 10_000_000).await.unwrap()).into_owned();
            Answer { status: parts.status, headers: parts.headers, body }
        })
    }

    /// Does what is to be done by itself, for so long.
    pub fn rest(&self, span: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(span).await });
    }

    /// Somebody who has followed this link to log in, and has clicked.
    #[track_caller]
    pub fn log_in(&self, link: &str) -> Visitor<'_> {
        let token = format!("token={}", link.trim().split_once("/login#").expect("a link").1);
        let ours = [("sec-fetch-site", "same-origin")];
        assert!(self.ask("POST", "/login", &ours, &token).shown().contains(&token[6..]));
        let answer = self.ask("POST", "/login/confirm", &ours, &token);
        assert_eq!(answer.leads_to(), "/");
        let cookie = answer.header("set-cookie").split(';').next().unwrap().to_owned();
        Visitor { page: self, cookie }
    }
}

/// Somebody who is logged in.
pub struct Visitor<'a> {
    page: &'a Page,
    pub cookie: String,
}

impl Visitor<'_> {
    pub fn get(&self, path: &str) -> Answer {
        self.page.ask("GET", path, &[("cookie", &self.cookie)], "")
    }

    /// What Activity says, in words, once the figures above its list are counted: a request waits for them for a moment only.
    #[track_caller]
    pub fn figures(&self) -> String {
        let mut received = String::new();
        wait_for("the figures are counted", PATIENCE, || {
            received = text(self.get("/").shown());
            received.contains("Counted ")
        });
        received
    }

    /// Statistics, once the span is counted.
    #[track_caller]
    pub fn statistics(&self, span: &str) -> Answer {
        let mut answer = self.get(&format!("/statistics{span}"));
        wait_for("it is counted", PATIENCE, || {
            answer = self.get(&format!("/statistics{span}"));
            !answer.shown().contains("This is being counted")
        });
        answer
    }

    /// Sends a form of the page's own.
    pub fn post(&self, path: &str, body: &str) -> Answer {
        self.page.ask("POST", path, &[("cookie", &self.cookie), ("sec-fetch-site", "same-origin")], body)
    }

    /// Confirms what is planned on this page, and what came of it, in words.
    #[track_caller]
    pub fn confirm(&self, plan: &str) -> String {
        self.ended(self.post("/again/start", &copies(plan).join("&")).leads_to())
    }

    /// What came of a run, in words, once it has ended.
    #[track_caller]
    pub fn ended(&self, run: &str) -> String {
        let mut shown = String::new();
        wait_for("it has ended", PATIENCE, || {
            shown = self.get(run).shown().to_owned();
            !shown.contains("Under way")
        });
        text(&shown)
    }
}

/// What the forms on a page that deliver again send, if all is picked.
pub fn copies(page: &str) -> Vec<String> {
    let values = page.split("name=\"copy\" value=\"").skip(1);
    values.map(|rest| format!("copy={}", rest.split('"').next().unwrap())).collect()
}

impl Visitor<'_> {
    /// Asks, and does not read what is answered for as long as it is kept.
    pub fn hold(&self, path: &str) -> (StatusCode, Body) {
        let request = Request::get(path).header("host", HOST).header("cookie", &self.cookie);
        let answer = self.page.router.clone().oneshot(request.body(Body::empty()).unwrap());
        let answer = self.page.runtime.block_on(answer).unwrap();
        assert!(answer.status().is_success() || answer.headers().contains_key("retry-after"), "{answer:?}");
        (answer.status(), answer.into_body())
    }
}

/// The text of a page, without its markup, each piece of white space one blank.
pub fn text(page: &str) -> String {
    let mut text = String::new();
    for piece in page.split('<') {
        text.push(' ');
        text.push_str(piece.split_once('>').map_or(piece, |(_, after)| after));
    }
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How many rows the table of a page has.
pub fn rows(page: &str) -> usize {
    page.split("<tbody>")
        .nth(1)
        .map_or(0, |body| body.split("</tbody>").next().unwrap_or_default().matches("<tr").count())
}
