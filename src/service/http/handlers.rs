//! The answers to HTTP requests.

use super::Sources;
use super::metrics::Figures;
use crate::protocol::control::{State, Status};
use crate::service::broker::sockets::Report;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};
use std::time::Duration;
use tokio::time::timeout;

/// How long the broker may take to report. A turn of its loop takes less than a millisecond.
const BROKER: Duration = Duration::from_secs(5);

const TEXT: &str = "text/plain; charset=utf-8";
/// The text format: <https://prometheus.io/docs/instrumenting/exposition_formats/>
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) struct Answers(pub(super) Sources);

impl Answers {
    pub(super) async fn to(&self, method: &Method, path: &str) -> Response<String> {
        if ![Method::GET, Method::HEAD].contains(method) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here".into());
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        match path {
            "/metrics" => self.metrics().await,
            "/healthz" => match self.report().await {
                Some(_) => text(StatusCode::OK, "alive".into()),
                None => text(StatusCode::SERVICE_UNAVAILABLE, NO_BROKER.into()),
            },
            "/readyz" => {
                let stops = *self.0.stop.borrow();
                let report = self.report().await;
                let ready = ready(report.as_ref(), self.0.service.borrow().as_ref(), stops);
                match ready {
                    Ok(shown) => text(StatusCode::OK, shown),
                    Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
                }
            }
            _ => text(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz here".into()),
        }
    }

    async fn metrics(&self) -> Response<String> {
        let Some(report) = self.report().await else {
            return text(StatusCode::SERVICE_UNAVAILABLE, NO_BROKER.into());
        };
        let service = self.0.service.borrow().clone();
        let disk = self.0.disk.read(service.as_ref()).await;
        let lmtp = self.0.tally.counted();
        let figures = Figures { report, lmtp, max_connections: self.0.max_connections, service, disk };
        of_kind(StatusCode::OK, PROMETHEUS, figures.text())
    }

    /// The broker's report; `None` if its loop hangs.
    async fn report(&self) -> Option<Report> {
        timeout(BROKER, Report::request(&self.0.ask)).await.ok().flatten()
    }
}

const NO_BROKER: &str = "the broker does not answer";

/// Whether messages can be delivered. `Ok` has the reasons if the service is degraded; `Err` says why nothing can be delivered.
///
/// One worker is enough. A degraded service still delivers, and it gets worse if senders stop sending mail to it.
fn ready(report: Option<&Report>, service: Option<&Status>, stops: bool) -> Result<String, String> {
    let reasons = service.map(|service| service.reasons.join("\n")).unwrap_or_default();
    let plain_text = |first: &str| format!("{first}\n{reasons}").trim_end().to_owned();
    let Some(report) = report else { return Err(plain_text(NO_BROKER)) };
    if stops || service.is_some_and(|service| service.state == State::Stopping) {
        return Err(plain_text("this process is being stopped"));
    }
    if report.gauges.ready + report.gauges.busy == 0 {
        return Err(plain_text("no worker is ready"));
    }
    let state = service.map(|service| service.state).filter(|state| *state == State::Degraded);
    Ok(plain_text(&state.map_or_else(|| "ready".to_owned(), |state| format!("ready, and {}:", state.as_str()))))
}

fn text(status: StatusCode, text: String) -> Response<String> {
    of_kind(status, TEXT, text + "\n")
}

fn of_kind(status: StatusCode, kind: &'static str, body: String) -> Response<String> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
#[path = "handlers_tests.rs"]
mod tests;
