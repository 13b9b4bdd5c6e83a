//! The page: what came in and what became of it, in a browser. Uses `base`, `config`, `ledger_threads`, `operations` and `site`.
//!
//! One thread serves all connections (`server`); the ledger is asked by a few others. It speaks no TLS: it listens on this
//! machine only, and a proxy stands in front. What holds for each answer, whoever makes it, is in `shield`: the host names that
//! are answered to, headers for browsers, how long a request may be and take.

mod server;
mod shield;

use crate::base::endpoint::Endpoint;
use crate::base::listening::Listening;
use crate::base::stop::Stop;
use crate::config::Config;
use crate::ledger_threads::LedgerThreads;
use crate::site::Site;
use axum::Router;
use shield::Shield;
use std::io;
use std::time::Duration;
use thiserror::Error;
use tracing::info;

/// How long a question to the ledger may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the page goes by.
#[derive(Clone, Debug)]
pub struct WebSettings {
    /// Where it is served.
    listen: Endpoint,
    /// Where browsers find it: scheme, host and port.
    origin: String,
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
        let listen = config.web.endpoint().ok_or(WebError::NotConfigured)?;
        let origin = config.web.origin().ok_or(WebError::NotConfigured)?;
        Ok(Self { listen, origin })
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
    let threads = LedgerThreads::start(site, PATIENCE).map_err(system("starting a thread"))?;
    let router = router(&settings, beside(threads.clone()));
    info!(listen = %settings.listen, origin = settings.origin, "the page has begun");
    server::run(listening, router, stop).map_err(system("serving"))?;
    info!("the page has ended");
    Ok(())
}

fn router(settings: &WebSettings, beside: Router) -> Router {
    Shield::new(&settings.origin, &settings.listen).over(beside)
}
