//! The form of a search, and the URLs that it makes: users can share them.

use super::{OVERLAP, PATIENCE, ROWS};
use crate::base::hex;
use crate::base::timestamp;
use crate::database::DatabaseError;
use crate::http::web::Answered;
use crate::http::web::visit::Visit;
use crate::ledger::Database;
use crate::ledger::activity::{AttemptCursor, ResultFilter, Tried, Wanted};
use crate::ledger::failures::FailureCursor;
use crate::message::Role;
use crate::operations::search::{self, Start};
use maud::{Markup, html};
use serde::Deserialize;
use url::form_urlencoded::Serializer;
use uuid::Uuid;

/// How far back a search goes by default: without and with a name to search for.
pub(super) const DAY: &str = "1d";
const FIVE_DAYS: &str = "5d";

/// The query parameters, as the user typed them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::http::web) struct SearchForm {
    pub(super) q: String,
    pub(super) state: String,
    pub(super) role: String,
    pub(super) host: String,
    pub(super) user: String,
    pub(super) since: String,
    pub(super) until: String,
    /// The last row of the previous page.
    pub(super) before: String,
    /// The start of a page of messages.
    pub(super) messages: String,
}

/// The choices of lists that have no attempts: of owed copies, and of deliveries that failed before their journal.
pub(super) const OWED: &str = "owed";
pub(super) const FAILED: &str = "failed";

/// A choice of a form: the query parameter, its label, and its meaning.
type Choice<T> = (&'static str, &'static str, T);

const STATES: [Choice<Option<ResultFilter>>; 7] = [
    ("", "any", None),
    ("delivered", "delivered", Some(ResultFilter::Delivered)),
    ("deferred", "deferred", Some(ResultFilter::Deferred)),
    ("refused", "refused", Some(ResultFilter::Refused)),
    ("open", "not ended, or never", Some(ResultFilter::Unended)),
    (OWED, "owed now", None),
    (FAILED, "failed before delivery", None),
];
const COPIES: [Choice<Option<Role>>; 3] =
    [("", "of recipients", Some(Role::Recipient)), ("sent", "in Sent", Some(Role::Sender)), ("all", "all", None)];

/// The meaning of a choice.
fn meaning<T: Copy>(choices: &[Choice<T>], chosen: &str) -> Option<T> {
    choices.iter().find(|(name, ..)| *name == chosen).map(|(.., meaning)| *meaning)
}

impl SearchForm {
    /// Queries the ledger. A search with a filter may have to read nearly all of it, so it counts as a long query.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        visit: &Visit,
        find: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Answered<T> {
        let is_narrowed = !self.q.trim().is_empty() || !self.is_a_name_only();
        if is_narrowed { visit.ask_long(PATIENCE, find).await } else { visit.ask(find).await }
    }

    pub(super) fn wanted(&self) -> Result<Wanted, String> {
        let text = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let since = text(&self.since).unwrap_or_else(|| self.usual_since().to_owned());
        let before = text(&self.before).filter(|_| self.state != FAILED);
        let moment = |what: &str, text: &str| timestamp::since(text).map_err(|problem| format!("{what}: {problem}"));
        Ok(Wanted {
            by: None,
            result: meaning(&STATES, &self.state).ok_or("State: there is no such one")?,
            role: meaning(&COPIES, &self.role).ok_or("Copies: there are no such ones")?,
            host: text(&self.host),
            user: text(&self.user),
            since: moment("Since", &since)?,
            until: text(&self.until).map(|until| moment("Until", &until)).transpose()?,
            before: before.map(|text| place(&text).ok_or("This address is not complete")).transpose()?,
        })
    }

    /// The last row of the previous page of failures.
    pub(super) fn failures_after(&self) -> Option<FailureCursor> {
        Some(self.before.trim()).filter(|_| self.state == FAILED).and_then(FailureCursor::from_text)
    }

    /// The URL of the next page of the failures that match this search.
    pub(super) fn older_failures(&self, next: &FailureCursor) -> String {
        let failed = Self { state: FAILED.into(), ..self.clone() };
        format!("/?{}", failed.query().append_pair("before", &next.to_string()).finish())
    }

    /// The filter for new rows, if new rows belong at the head of this list.
    pub(super) fn lives(&self) -> Option<Wanted> {
        let others = [&self.q, &self.until, &self.before];
        let lives = others.iter().all(|text| text.trim().is_empty()) && ![OWED, FAILED].contains(&self.state.as_str());
        self.wanted().ok().filter(|_| lives)
    }

    /// The URL that the list polls. A row is new if it began after the last row of a full page, and recently.
    pub(super) fn live(&self, tried: &[Tried]) -> Option<String> {
        let wanted = self.lives()?;
        let last = tried.get(ROWS - 1).map_or(wanted.since, |last| last.place.began_at);
        let newest = tried.first().map_or(last, |first| first.place.began_at.saturating_sub(OVERLAP));
        let mut query = self.query();
        Some(format!("/activity/new?{}", query.append_pair("after", &newest.max(last).to_string()).finish()))
    }

    pub(super) fn usual_since(&self) -> &'static str {
        if self.q.trim().is_empty() { DAY } else { FIVE_DAYS }
    }

    /// All filters except for the search text.
    pub(super) fn filters(&self) -> [(&'static str, &str); 6] {
        let Self { state, role, host, user, since, until, .. } = self;
        [("state", state), ("role", role), ("host", host), ("user", user), ("since", since), ("until", until)]
    }

    /// Whether only the search text is filled in.
    pub(super) fn is_a_name_only(&self) -> bool {
        self.before.trim().is_empty() && self.filters().iter().all(|(_, text)| text.trim().is_empty())
    }

    /// The query string of this search, without the page.
    pub(super) fn query(&self) -> Serializer<'static, String> {
        let mut query = Serializer::new(String::new());
        let fields = [("q", self.q.as_str())].into_iter().chain(self.filters());
        query.extend_pairs(fields.filter(|(_, text)| !text.is_empty()));
        query
    }

    /// The URL of this search, without the page.
    pub(super) fn path(&self) -> String {
        format!("/?{}", self.query().finish())
    }

    /// The URL of the next page of messages.
    pub(super) fn older_messages(&self, start: Start) -> String {
        format!("/?{}", self.query().append_pair("messages", &search::start_as_text(start)).finish())
    }

    /// The URL of the next, older page.
    pub(super) fn older(&self, last: &Tried) -> String {
        let mut query = self.query();
        let AttemptCursor { began_at, attempt, key } = last.place;
        query.append_pair("before", &format!("{began_at}.{}.{}", attempt.simple(), hex::encode(&key)));
        format!("/?{}", query.finish())
    }
}

/// Parses the row that [`SearchForm::older`] writes.
fn place(text: &str) -> Option<AttemptCursor> {
    let mut parts = text.split('.');
    let (began_at, attempt, key) = (parts.next()?, parts.next()?, parts.next()?);
    Some(AttemptCursor {
        began_at: began_at.parse().ok()?,
        attempt: Uuid::try_parse(attempt).ok()?,
        key: hex::decode(key)?.try_into().ok()?,
    })
}

/// The inputs, with a problem of one of them.
pub(super) fn inputs(form: &SearchForm, problem: Option<&str>) -> Markup {
    let about = |name: &str| problem.is_some_and(|problem| problem.starts_with(name)).then_some("true");
    let since = form.usual_since();
    let (states, copies) = (STATES.map(|(name, words, _)| (name, words)), COPIES.map(|(name, words, _)| (name, words)));
    let choices = [("state", "State", &form.state, &states[..]), ("role", "Copies", &form.role, &copies[..])];
    html! {
        form .search role="search" method="get" action="/#results" {
            label .wide for="q" {
                "Search: a Message-ID, an address, @domain, the beginning of one, a mailbox's user, a part of a subject or author, or a queue id (mail by LMTP has none)"
                input #q name="q" type="search" value=(form.q) placeholder="scuba@mail.axial.net"
                    autocapitalize="none" spellcheck="false";
            }
            @for (name, label, chosen, options) in choices {
                label for=(name) {
                    (label)
                    select id=(name) name=(name) {
                        @for (value, words) in options { option value=(value) selected[chosen == value] { (words) } }
                    }
                }
            }
            @for (name, label, value) in [("host", "Host", &form.host), ("user", "Mailbox's user", &form.user)] {
                label .short for=(name) {
                    (label)
                    input id=(name) name=(name) value=(value) autocapitalize="none" spellcheck="false";
                }
            }
            @for (name, label, value, usual) in [("since", "Since", &form.since, since), ("until", "Until", &form.until, "now")] {
                label .short for=(name) {
                    (label)
                    input id=(name) name=(name) value=(value) placeholder=(usual) list="spans" aria-invalid=[about(label)];
                }
            }
            datalist #spans { @for span in ["1h", "6h", "1d", "7d", "30d"] { option value=(span) {} } }
            button .go { "Search" }
        }
        @if let Some(problem) = problem { p .bad role="alert" { (problem) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_found_again_by_the_address_of_the_next_page() {
        let at = AttemptCursor { began_at: 1_790_000_000_000_001, attempt: Uuid::now_v7(), key: [7; 32] };
        let text = format!("{}.{}.{}", at.began_at, at.attempt.simple(), hex::encode(&at.key));
        assert_eq!(place(&text), Some(at));
        for wrong in ["", "1", "1.2.3", "x.y.z", &text[1..text.len() - 1]] {
            assert_eq!(place(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_reported_and_nothing_is_guessed() {
        let form =
            |since: &str, state: &str| SearchForm { since: since.into(), state: state.into(), ..SearchForm::default() };
        assert!(form("2d", "delivered").wanted().is_ok());
        assert!(form("yesterday", "").wanted().unwrap_err().starts_with("Since: "));
        assert!(form("", "gone").wanted().unwrap_err().starts_with("State: "));
    }
}
