//! The page: what came in and what became of it, in a browser. Uses `base`, `config`, `database`, `handover`, `ledger`, `ledger_threads`,
//! `lock`, `message`, `operations` and `site`.
//!
//! One thread serves all connections (`server`); the ledger is asked by a few others. It speaks no TLS: it listens on this
//! machine only, and a proxy stands in front. What holds for each answer, whoever makes it, is in `shield`: the host names that
//! are answered to, headers for browsers, how long a request may be and take. Who may ask for what is in [`routes`] and `guard`, and
//! nowhere else. Each screen is a file: it reads what `trace`, `stats` and `lock list` read, and works without script.

mod activity;
mod assets;
mod guard;
mod layout;
mod locks;
mod login;
mod logins;
mod message;
mod server;
mod service;
mod shield;
mod statistics;

use crate::base::endpoint::Endpoint;
use crate::base::listening::Listening;
use crate::base::stop::Stop;
use crate::config::{Config, Web};
use crate::ledger::web_sessions::{Lifetimes, WebRole, WebSession};
use crate::ledger_threads::{LedgerThreads, Unanswered};
use crate::operations::activity::Figures;
use crate::site::Site;
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use layout::Screen;
use maud::html;
use shield::Shield;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::{info, warn};

/// How long a question to the ledger may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the page goes by.
#[derive(Clone, Debug)]
pub struct WebSettings {
    /// Where it is served.
    listen: Endpoint,
    /// Where browsers find it: scheme, host and port.
    origin: String,
    lifetimes: Lifetimes,
    /// Where the master of the service is asked; none where the page stands alone.
    control: Option<PathBuf>,
}

/// Why there can be no page.
#[derive(Debug, Error)]
pub enum WebError {
    #[error("web.listen: it is missing")]
    NotConfigured,
    #[error("web.listen: {0}")]
    Listen(io::Error),
    #[error("{doing}: {source}")]
    System { doing: &'static str, source: io::Error },
}

impl WebSettings {
    /// As a configuration says.
    ///
    /// # Errors
    /// Where it says nothing of a page.
    pub fn of(config: &Config) -> Result<Self, WebError> {
        Ok(Self { control: Some(config.serve.control_socket()), ..Self::by(&config.web)? })
    }

    /// For a page at this place of this machine, with the rest as it is by default.
    ///
    /// # Errors
    /// Where it is none that a browser on this machine reaches, and nobody else.
    pub fn at(listen: &str) -> Result<Self, WebError> {
        let web = Web { listen: Some(listen.to_owned()), ..Web::default() };
        Self::by(&web).ok().filter(|settings| settings.listen.is_on_this_machine()).ok_or(WebError::NotConfigured)
    }

    fn by(web: &Web) -> Result<Self, WebError> {
        let listen = web.endpoint().ok_or(WebError::NotConfigured)?;
        let origin = web.origin().ok_or(WebError::NotConfigured)?;
        Ok(Self { listen, origin, lifetimes: Lifetimes::of(web.session_idle), control: None })
    }

    /// Where browsers find it.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }
}

/// Serves the page, until SIGTERM or SIGINT, and then until the requests under way are answered. `beside` makes routes that are
/// served beside the page's own, by the same threads and behind the same shield; they see to it themselves who may ask them.
///
/// # Errors
/// Where it cannot listen, or the system gives us no threads.
pub fn run(site: &Site, settings: WebSettings, beside: impl FnOnce(LedgerThreads) -> Router) -> Result<(), WebError> {
    let system = |doing| move |source| WebError::System { doing, source };
    let stop = Stop::on_signals().map_err(system("setting up signals"))?;
    let listening = Listening::open_at(std::slice::from_ref(&settings.listen)).map_err(WebError::Listen)?;
    let router = router(site, &settings, beside).map_err(system("starting a thread"))?;
    info!(listen = %settings.listen, origin = settings.origin, "the page has begun");
    server::run(listening, router, stop).map_err(system("serving"))?;
    info!("the page has ended");
    Ok(())
}

/// All that is answered to, behind the shield.
///
/// # Errors
/// Where the system gives us no threads.
pub fn router(site: &Site, settings: &WebSettings, beside: impl FnOnce(LedgerThreads) -> Router) -> io::Result<Router> {
    let ledger = LedgerThreads::start(site, PATIENCE)?;
    let page = Page {
        site: Arc::new(site.clone()),
        ledger: ledger.clone(),
        lifetimes: settings.lifetimes,
        origin: settings.origin.as_str().into(),
        control: settings.control.as_deref().map(Into::into),
        figures: Arc::default(),
        statistics: Arc::default(),
    };
    let router = routes(&page).with_state(page).merge(beside(ledger)).fallback(guard::nothing_here);
    Ok(Shield::new(&settings.origin, &settings.listen).over(router))
}

/// What the screens share.
#[derive(Clone)]
struct Page {
    site: Arc<Site>,
    ledger: LedgerThreads,
    lifetimes: Lifetimes,
    origin: Arc<str>,
    control: Option<Arc<Path>>,
    /// The figures of the first screen, and when they were counted.
    figures: Arc<Mutex<Option<(Instant, Figures)>>>,
    statistics: Arc<Mutex<statistics::Counted>>,
}

/// Each path of the page, and the least role that may ask for it: a screen's is its own, and the others are said here alone.
fn routes(page: &Page) -> Router<Page> {
    let needs = |least: WebRole, methods: MethodRouter<Page>| {
        methods.layer(from_fn_with_state((page.clone(), least), guard::may))
    };
    let of = |screen: Screen, methods| needs(screen.least(), methods);
    Router::new()
        .route("/", of(Screen::Activity, get(activity::show)))
        .route("/messages/{identity}", needs(WebRole::Viewer, get(message::show)))
        .route("/statistics", of(Screen::Statistics, get(statistics::show)))
        .route("/locks", of(Screen::Locks, get(locks::show)))
        .route("/service", of(Screen::Service, get(service::show)))
        .route("/logout", needs(WebRole::Viewer, post(login::log_out)))
        .route("/logins", of(Screen::Logins, get(logins::show)))
        .route("/logins/end", of(Screen::Logins, post(logins::end)))
        // For everybody:
        .route("/login", get(login::form).post(login::log_in))
        .route("/assets/{name}", get(assets::serve))
        .layer(from_fn_with_state(page.clone(), guard::of_this_origin))
}

/// The page that is shown where the ledger has not answered.
fn failed(problem: &Unanswered, viewer: Option<&WebSession>) -> Response {
    warn!(%problem, "a screen cannot be shown");
    let told = html! {
        p { "The database has not answered, so there is nothing to show. Mail waits with Postfix meanwhile, and none is lost." }
        p .hint { @if problem.may_pass() { "Try again in a moment." } @else { "The log of the service tells why: " code { "maildrop_command check" } " shows what is in the way." } }
    };
    let page = layout::page("No answer from the database", None, viewer, &told);
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "5")], page).into_response()
}
