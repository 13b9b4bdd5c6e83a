//! A request of a person who is logged in, and the answers to it.

use super::layout::{self, Screen};
use super::{Answered, Page, failed};
use crate::database::DatabaseError;
use crate::http::blocking_pools::QueryFailure;
use crate::ledger::Database;
use crate::ledger::operations_log::Actor;
use crate::ledger::web_sessions::WebSession;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use maud::Markup;
use std::time::Duration;

#[derive(Clone)]
pub(super) struct Visit {
    pub(super) page: Page,
    pub(super) viewer: WebSession,
}

impl FromRequestParts<Page> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, page: &Page) -> Answered<Self> {
        // `auth::require_role` has set it, or has answered the request.
        let viewer = parts.extensions.get::<WebSession>().cloned();
        let viewer = viewer.ok_or_else(|| StatusCode::FORBIDDEN.into_response())?;
        Ok(Self { page: page.clone(), viewer })
    }
}

impl Visit {
    /// Returns the result of `work` on the ledger, or the error page.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Answered<T> {
        self.page.blocking.query(work).await.map_err(|problem| self.failed(&problem))
    }

    /// The same for a long query, which may take `patience`.
    pub(super) async fn ask_long<T: Send + 'static>(
        &self,
        patience: Duration,
        work: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Answered<T> {
        self.page.blocking.query_long(patience, work).await.map_err(|problem| self.failed(&problem))
    }

    /// The error page if the ledger did not answer.
    pub(super) fn failed(&self, problem: &QueryFailure) -> Response {
        failed(problem, Some(&self.viewer))
    }

    /// The person as the operations log records them.
    pub(super) fn actor(&self) -> Actor<'_> {
        let WebSession { name, role, .. } = &self.viewer;
        Actor { name, interface: "web UI", role: Some(role.as_str()), host: self.page.site.host() }
    }

    /// The page of a screen.
    pub(super) fn screen(&self, screen: Screen, main: &Markup) -> Response {
        self.page_of(screen.name(), screen, main)
    }

    /// A page with a title of its own, which may belong to a screen. The title may be text from a stranger.
    pub(super) fn page_of(&self, title: &str, screen: impl Into<Option<Screen>>, main: &Markup) -> Response {
        layout::page(title, screen.into(), Some(&self.viewer), main).into_response()
    }

    /// A page that says why a request is refused.
    pub(super) fn refusal(&self, status: StatusCode, title: &str, main: &Markup) -> Response {
        (status, self.page_of(title, None, main)).into_response()
    }
}
