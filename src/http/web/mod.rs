//! The web UI: which messages arrived and what became of them.
//!
//! One thread serves all connections (`server`); a few other threads query the ledger. The server speaks no TLS: it listens on
//! this machine only, and a proxy stands in front. `security_headers` applies to every answer: accepted host names, security
//! headers, and limits on a request's size and time. Authorization is in [`routes`] and `auth`, and nowhere else. Each screen
//! is a file: it reads what `trace`, `stats` and `lock list` read, and works without script. Redelivery is in `redeliver` and
//! `redelivery_jobs`: it runs the code of `replay`, in separate threads (`blocking`).

mod activity;
mod assets;
mod auth;
mod content;
mod html_of_message;
mod layout;
mod list_file;
mod locks;
mod login;
mod login_links;
mod message;
mod notifications;
mod operations_log;
#[cfg(any(test, feature = "test-properties"))]
pub mod property_tests;
mod proxy_auth;
mod redeliver;
mod redelivery_jobs;
mod security_headers;
mod server;
mod service;
mod statistics;
mod subscriptions;
mod time_line;
mod visit;

use crate::base::endpoint::Endpoint;
use crate::base::fair_quota::FairQuota;
use crate::base::listener::Listener;
use crate::base::readiness;
use crate::base::stop::Stop;
use crate::base::summary_cache::SummaryCache;
use crate::config::{Config, SESSION_IDLE, Service, TrustedProxy, Web};
use crate::http::blocking_pools::{Blocking, NotAuthenticated, QueryFailure};
use crate::ledger::web_sessions::{Lifetimes, WebRole, WebSession};
use crate::operations::activity::Figures;
use crate::site::Site;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use layout::Screen;
use maud::html;
use proxy_auth::TrustedUsers;
use redelivery_jobs::Jobs;
use security_headers::Shield;
use server::WebEndpoint;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use subscriptions::{NotificationSettings, actions};
use thiserror::Error;
use tracing::info;

/// How long a query of the ledger may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The largest form without a login, in bytes. In chunks of one byte it takes some thirty times as much memory.
const LARGEST_LOGIN: usize = 8 << 10;

/// The settings of the web UI.
#[derive(Clone, Debug)]
pub struct WebSettings {
    /// The listening endpoint.
    listen: Endpoint,
    /// The origin that browsers use: scheme, host and port.
    origin: String,
    /// The endpoint and origin of the API, if it has its own.
    beside: Option<(Endpoint, String)>,
    lifetimes: Lifetimes,
    /// The users that the proxy in front may name; `None` if the proxy is not trusted.
    trusted: Option<TrustedUsers>,
    trusted_proxies: Vec<TrustedProxy>,
    /// The control socket of the service's master; none if the web UI runs alone.
    control: Option<PathBuf>,
    notifications: NotificationSettings,
    /// How much memory messages may take while they are read or transferred, in bytes.
    memory: usize,
}

/// The upper limit of that memory, in bytes, and its divisor of `service.worker_memory`.
const MOST_MEMORY: usize = 256 << 20;
const PART_OF_MEMORY: u64 = 4;

/// Why the web UI cannot start.
#[derive(Debug, Error)]
pub enum WebError {
    #[error("web.listen: it is missing")]
    NotConfigured,
    #[error("web.{key}: {source}")]
    Listen { key: &'static str, source: io::Error },
    #[error("{doing}: {source}")]
    System { doing: &'static str, source: io::Error },
}

impl WebSettings {
    /// The settings of a configuration.
    ///
    /// # Errors
    /// If the configuration has no web UI.
    pub fn of(config: &Config) -> Result<Self, WebError> {
        let (control, notifications) = (Some(config.service.control_socket()), NotificationSettings::of(config));
        Ok(Self { control, notifications, memory: memory(&config.service), ..Self::by(&config.web)? })
    }

    /// A web UI at this endpoint of this machine, with defaults for all other settings.
    ///
    /// # Errors
    /// If the endpoint is not reachable by a browser on this machine, or is reachable from other machines.
    pub fn at(listen: &str) -> Result<Self, WebError> {
        let web = Web { listen: Some(listen.to_owned()), ..Web::default() };
        Self::by(&web).ok().filter(|settings| settings.listen.is_on_this_machine()).ok_or(WebError::NotConfigured)
    }

    fn by(web: &Web) -> Result<Self, WebError> {
        let listen = web.endpoint().ok_or(WebError::NotConfigured)?;
        let origin = web.origin().ok_or(WebError::NotConfigured)?;
        Ok(Self {
            listen,
            origin,
            beside: web.api_endpoint().zip(web.api_origin()),
            lifetimes: Lifetimes::of(SESSION_IDLE),
            trusted: TrustedUsers::of(web),
            trusted_proxies: web.trusted_proxies.clone(),
            control: None,
            notifications: NotificationSettings::default(),
            memory: memory(&Service::default()),
        })
    }

    /// The origin that browsers use.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }
}

fn memory(service: &Service) -> usize {
    usize::try_from(service.worker_memory / PART_OF_MEMORY).unwrap_or(usize::MAX).min(MOST_MEMORY)
}

/// The open sockets of the web UI, and of the API if it has its own.
#[derive(Debug)]
pub struct WebListeners {
    page: Vec<Listener>,
    beside: Option<Vec<Listener>>,
}

/// Opens the sockets.
///
/// # Errors
/// If it cannot listen: the error names the endpoint.
pub fn listen(settings: &WebSettings) -> Result<WebListeners, WebError> {
    let open = |key, listen| {
        Listener::open_all(std::slice::from_ref(listen)).map_err(|source| WebError::Listen { key, source })
    };
    Ok(WebListeners {
        page: open("listen", &settings.listen)?,
        beside: settings.beside.as_ref().map(|(listen, _)| open("api_listen", listen)).transpose()?,
    })
}

/// Serves the web UI until SIGTERM or SIGINT, and then until the requests in progress are answered. `beside` makes further
/// routes, for the same endpoint or for one of their own. They run in the same threads and behind the same kind of shield, but
/// authenticate their own requests.
///
/// # Errors
/// If the system provides no thread.
pub fn run(
    site: &Site,
    settings: WebSettings,
    listeners: WebListeners,
    beside: impl FnOnce(Blocking, Arc<FairQuota>) -> Router,
) -> Result<(), WebError> {
    let system = |doing| move |source| WebError::System { doing, source };
    let stop = Stop::on_signals().map_err(system("setting up signals"))?;
    let page = Page::new(site, &settings);
    let blocking = page.blocking.clone();
    let (router, router_beside) = page.routers(&settings, beside);
    info!(listen = %settings.listen, origin = settings.origin, "the page has begun");
    readiness::report_readiness(true);
    if let Some((listen, origin)) = &settings.beside {
        info!(%listen, origin, "the API has a place of its own");
    }
    let places = [(Some(listeners.page), Some(router)), (listeners.beside, router_beside)];
    let places = places
        .into_iter()
        .filter_map(|(listening, router)| Some(WebEndpoint { listening: listening?, router: router? }));
    server::run(places.collect(), stop, blocking.end()).map_err(system("serving"))?;
    info!("the page has ended");
    Ok(())
}

/// The router of the web UI's endpoint, behind the shield.
pub fn router(site: &Site, settings: &WebSettings, beside: impl FnOnce(Blocking, Arc<FairQuota>) -> Router) -> Router {
    Page::new(site, settings).routers(settings, beside).0
}

/// A value, or the page that explains why it is not available.
type Answered<T = Response> = Result<T, Response>;

/// The state that all screens share.
#[derive(Clone)]
struct Page {
    site: Arc<Site>,
    blocking: Blocking,
    settings: Arc<WebSettings>,
    /// The memory for messages, those of the API included, in bytes.
    memory: Arc<FairQuota>,
    /// The redeliveries that were started here.
    jobs: Jobs,
    /// The figures of the first screen.
    figures: SummaryCache<Figures>,
    statistics: statistics::SharedStatistics,
}

impl Page {
    fn new(site: &Site, settings: &WebSettings) -> Self {
        Self {
            memory: FairQuota::of(settings.memory),
            blocking: Blocking::new(site.clone(), PATIENCE),
            site: Arc::new(site.clone()),
            settings: Arc::new(settings.clone()),
            jobs: Jobs::default(),
            figures: activity::figures_cache(),
            statistics: statistics::SharedStatistics::default(),
        }
    }

    /// The router of the web UI's endpoint, and that of the separate API endpoint.
    fn routers(
        self,
        settings: &WebSettings,
        beside: impl FnOnce(Blocking, Arc<FairQuota>) -> Router,
    ) -> (Router, Option<Router>) {
        let beside = beside(self.blocking.clone(), Arc::clone(&self.memory));
        let page = routes(&self).with_state(self);
        let proxies = &settings.trusted_proxies;
        let (page, elsewhere) = match &settings.beside {
            Some((listen, origin)) => (page, Some(Shield::new(origin, listen, proxies).over(beside))),
            None => (page.merge(beside), None),
        };
        (Shield::new(&settings.origin, &settings.listen, proxies).over(page.fallback(auth::nothing_here)), elsewhere)
    }
}

/// Each path of the web UI, and the least role that may request it. A screen defines its own role; all others are defined here.
fn routes(page: &Page) -> Router<Page> {
    let needs = |least: WebRole, methods: MethodRouter<Page>| {
        methods.layer(from_fn_with_state((page.clone(), least), auth::require_role))
    };
    let of = |screen: Screen, methods| needs(screen.least(), methods);
    Router::new()
        .route("/", of(Screen::Activity, get(activity::show)))
        .route("/activity/new", of(Screen::Activity, get(activity::new_rows)))
        .route("/messages/{identity}", needs(WebRole::Viewer, get(message::show)))
        .route("/messages/{identity}/content", needs(WebRole::Reader, get(content::show)))
        .route("/messages/{identity}/html", needs(WebRole::Reader, get(content::html)))
        .route("/messages/{identity}/source", needs(WebRole::Reader, get(content::source)))
        .route("/messages/{identity}/parts/{part}", needs(WebRole::Reader, get(content::part)))
        .route("/statistics", of(Screen::Statistics, get(statistics::show)))
        .route("/locks", of(Screen::Locks, get(locks::show)))
        .route("/subscriptions", of(Screen::Subscriptions, get(subscriptions::list)))
        .route("/subscriptions/{id}", of(Screen::Subscriptions, get(subscriptions::one::show)))
        .route("/subscriptions/{id}/events/{event}", of(Screen::Subscriptions, get(subscriptions::notification::show)))
        .route(
            "/subscriptions/{id}/delete",
            of(Screen::Subscriptions, get(actions::confirm_delete).post(actions::delete)),
        )
        .route("/subscriptions/{id}/secret", of(Screen::Subscriptions, post(actions::secret)))
        .route("/subscriptions/{id}/{action}", of(Screen::Subscriptions, post(actions::act)))
        .route("/again", of(Screen::Again, get(redeliver::owed)))
        .route("/again/failed", of(Screen::Again, get(redeliver::not_delivered)))
        .route("/again/lost", of(Screen::Again, get(redeliver::lost)))
        .route("/again/plan", of(Screen::Again, post(redeliver::show_preview)))
        .route("/again/start", of(Screen::Again, post(redeliver::start)))
        .route("/again/runs/{id}", of(Screen::Again, get(redeliver::job)))
        .route("/service", of(Screen::Service, get(service::show)))
        .route("/log", of(Screen::Operations, get(operations_log::show)))
        .route("/logout", needs(WebRole::Viewer, post(login::log_out)))
        .route("/logins", of(Screen::Logins, get(login_links::show)))
        .route("/logins/end", of(Screen::Logins, post(login_links::end)))
        // Without a login:
        .route("/login", get(login::form).post(login::look).layer(DefaultBodyLimit::max(LARGEST_LOGIN)))
        .route("/login/confirm", post(login::log_in).layer(DefaultBodyLimit::max(LARGEST_LOGIN)))
        .route("/assets/{name}", get(assets::serve))
        .layer(from_fn_with_state(page.clone(), auth::of_this_origin))
}

/// The error page if it cannot be determined whether a user may log in, or is logged in.
fn not_authenticated(problem: &NotAuthenticated) -> Response {
    let wait = match problem {
        NotAuthenticated::QueryFailure(problem) => return failed(problem, None),
        NotAuthenticated::TooManyFailures { wait } => wait.as_secs() + 1,
    };
    let shown = html! { p { "There were too many failed logins from your address. Try again in " (wait) " seconds." } };
    let page = layout::page("Too many failed logins", None, None, &shown);
    (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, wait)], page).into_response()
}

/// The error page if the ledger did not answer.
fn failed(problem: &QueryFailure, viewer: Option<&WebSession>) -> Response {
    let shown = html! {
        p { "The database has not answered, so there is nothing to show. Mail waits with Postfix meanwhile, and none is lost." }
        p { "A delivery that fails meanwhile leaves nothing here. The log of its host has it: the record " code { "deferred" } ", with the fields message_id, queue_id and cause." }
        p .hint { @if problem.may_pass() { "Try again in a moment." } @else { "The log of the service tells why: " code { "maildrop_command check" } " shows what is in the way." } }
    };
    let page = layout::page("No answer from the database", None, viewer, &shown);
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "5")], page).into_response()
}
