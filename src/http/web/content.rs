//! The content of a message, for readers: its text, header and parts, its HTML in a sandboxed frame, and files to download.
//!
//! All content is untrusted. Text is escaped; HTML is an answer of its own with its own policy ([`html_of_message`]). All else
//! is downloaded as bytes without a type. Each view is recorded in the operations log before anything is shown.

use super::html_of_message::{self, MOST_DEPTH, MOST_HTML, MOST_PICTURES, document};
use super::layout::{number, or_dash, table, visible};
use super::visit::Visit;
use super::{Answered, auth};
use crate::base::fair_quota::Reservation;
use crate::base::hex;
use crate::base::sent_body::SentBody;
use crate::http::blocking_pools::{QueryFailure, Rejected, Work};
use crate::ledger::operations_log::Operation;
use crate::message::Message;
use crate::message::parts::{Part, Parts, header_fields};
use crate::message::reading_budget::ReadingBudget;
use crate::operations::content::{ContentResult, Look, TakesTooLong, look};
use axum::body::Body;
use axum::extract::Path;
use axum::http::header::{
    CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use maud::{Markup, Render, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::time::Duration;

/// How long the search for a message may take: a request may take a little longer.
const PATIENCE: Duration = Duration::from_secs(25);
/// How much text is shown, in bytes.
const MOST_TEXT: usize = 256 << 10;
/// The longest name of a file, in characters.
const LONGEST_NAME: usize = 100;

/// The characters that are encoded in the name of a file.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// Shows text, header and parts.
pub(super) async fn show(visit: Visit, Path(identity): Path<String>) -> Answered {
    let wanted = ContentRequest { identity, operation: Operation::LookedAtContent, object: None };
    let seen = wanted.of(&visit, |message, budget| {
        let subject = message.subject().filter(|subject| !subject.trim().is_empty()).map(ToOwned::to_owned);
        let title = subject.unwrap_or_else(|| format!("Message {}", message.message_id_for_people()));
        Some((title, main(&message, budget)))
    });
    let ((title, main), _) = seen.await?;
    Ok(visit.page_of(&title, None, &main))
}

/// Shows the HTML, for the frame of that page. The browser loads it once a reader opens it.
pub(super) async fn html(visit: Visit, Path(identity): Path<String>) -> Answered {
    let wanted = ContentRequest { identity, operation: Operation::LookedAtContent, object: Some("HTML".into()) };
    let seen = wanted.of(&visit, |message, budget| {
        let parts = Parts::of(message.as_received(), budget);
        parts.html().map(|part| document(part, &parts).html)
    });
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, html_of_message::POLICY),
        (HeaderName::from_static("x-frame-options"), "SAMEORIGIN"),
        (HeaderName::from_static("x-dns-prefetch-control"), "off"),
    ];
    let (html, _) = seen.await?;
    Ok((headers, html).into_response())
}

/// Sends the source of the message.
pub(super) async fn source(visit: Visit, Path(identity): Path<String>) -> Answered {
    let name = format!("message-{}.eml", identity.get(..12).unwrap_or_default());
    let wanted = ContentRequest { identity, operation: Operation::Downloaded, object: Some("source".into()) };
    let (bytes, share) = wanted.of(&visit, |message, _| Some(message.into_received())).await?;
    Ok(file(&name, bytes, share))
}

/// Sends a part as a file.
pub(super) async fn part(visit: Visit, Path((identity, which)): Path<(String, usize)>) -> Answered {
    let wanted = ContentRequest { identity, operation: Operation::Downloaded, object: Some(format!("part {which}")) };
    let seen = wanted.of(&visit, move |message, budget| {
        let part = Parts::of(message.as_received(), budget).all.into_iter().nth(which.checked_sub(1)?)?;
        let content = part.content();
        Some((part.name.unwrap_or_else(|| format!("part-{which}")), content))
    });
    let ((name, bytes), share) = seen.await?;
    Ok(file(&name, bytes, share))
}

/// What a page names that cannot show it.
const CONTENT: &str = "The content of this message";

/// The content that a user requests.
struct ContentRequest {
    identity: String,
    operation: Operation,
    object: Option<String>,
}

impl ContentRequest {
    /// Returns the result of `made` on the message, if the message has the requested part, and the memory that it takes.
    /// Otherwise returns the page that explains why it is not shown. A thread of the readers runs `made`: a large message takes
    /// a while, and other requests must not wait for it.
    async fn of<T: Send + 'static>(
        self,
        visit: &Visit,
        made: impl FnOnce(Message, &ReadingBudget) -> Option<T> + Send + 'static,
    ) -> Answered<(T, Reservation)> {
        let Self { identity, operation, object } = self;
        let digest = hex::decode(&identity).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        let Some(identity) = digest else { return Err(auth::nothing_here().await) };
        let (by, client) = (visit.clone(), auth::client(&visit.viewer));
        let read = visit.page.blocking.query_in_pool(Work::Read, PATIENCE, move |site, database, deadline| {
            let memory = (&by.page.memory, client.as_str());
            let wanted = Look { actor: by.actor(), operation, object: object.as_deref(), memory };
            let mailboxes = site.opens_mailboxes().then_some(deadline);
            look(site, database, &identity, wanted, mailboxes, |message| {
                // The rest of the time is for the operations log.
                let budget = ReadingBudget::of(message.as_received(), deadline.half_way());
                let made = made(message, &budget);
                if budget.is_exhausted() { Err(TakesTooLong) } else { Ok(made) }
            })
        });
        match read.await {
            Ok(ContentResult::Shown(made, share)) => Ok((made, share)),
            Ok(ContentResult::Busy) => Err(not_shown(CONTENT, &Rejected::Busy.to_string(), true, visit)),
            Ok(ContentResult::Unavailable { why, may_pass }) => Err(not_shown(CONTENT, &why, may_pass, visit)),
            Ok(ContentResult::Unknown) => Err(auth::nothing_here().await),
            Err(QueryFailure::Rejected(why)) => {
                Err(not_shown(CONTENT, &why.to_string(), why != Rejected::Failed, visit))
            }
            Err(problem) => Err(visit.failed(&problem)),
        }
    }
}

pub(super) fn not_shown(what: &str, why: &str, may_pass: bool, visit: &Visit) -> Response {
    let main = html! {
        p { (what) " cannot be shown: " (visible(why)) "." }
        @if may_pass { p .hint { "Try again in a moment." } }
    };
    let title = "Nothing to show";
    if may_pass {
        ([(RETRY_AFTER, "5")], visit.refusal(StatusCode::SERVICE_UNAVAILABLE, title, &main)).into_response()
    } else {
        visit.refusal(StatusCode::NOT_FOUND, title, &main)
    }
}

fn main(message: &Message, budget: &ReadingBudget) -> Markup {
    let identity = hex::encode(message.identity().as_bytes());
    let here = format!("/messages/{identity}");
    let bytes = message.as_received();
    let parts = Parts::of(bytes, budget);
    html! {
        p { a href=(here) { "Deliveries of this message" } }
        p .hint { "The operations log records who reads this. All text below is the author's, and unchecked." }
        p .hint { "Fields that may name another recipient are left out: Bcc, Delivered-To, and “for” in Received." }
        p { a href=(format!("{here}/source")) download { "Download its source" } " (" (number(bytes.len() as u64)) " bytes)" }
        h2 { "Text" }
        (text(&parts))
        @if let Some(part) = parts.html() { (html_section(part, &parts, &format!("{here}/html"))) }
        h2 { "Parts" }
        (list(&parts, &here))
        h2 { "Header" }
        (header(bytes, budget))
    }
}

fn text(parts: &Parts<'_>) -> Markup {
    html! {
        @match parts.text(MOST_TEXT) {
            Some((text, cut)) => {
                @if text.trim().is_empty() { p { "Its text is empty." } } @else { pre .text dir="auto" { (visible(&text)) } }
                @if cut { p .hint { "These are the first " (MOST_TEXT >> 10) " kB." } }
            }
            None => { p { "It has no text." } }
        }
    }
}

fn html_section(part: &Part<'_>, parts: &Parts<'_>, frame: &str) -> Markup {
    let document = document(part, parts);
    html! {
        h2 { "HTML" }
        details open[parts.text(1).is_none()] {
            summary { "Show it as a mail program does" }
            p .hint {
                "Nothing in it runs, and nothing is loaded from elsewhere: only pictures that came with it are shown. Links lead nowhere."
                @if document.cut { " This is the first " (MOST_HTML >> 20) " MB." }
                @if document.too_deep { " It is cut where more than " (MOST_DEPTH) " elements are nested." }
                @if document.pictures_left_out > 0 {
                    " Pictures left out, since together they exceed " (MOST_PICTURES >> 20) " MB: " (document.pictures_left_out) "."
                }
            }
            // Without any permission. The frame is loaded once it scrolls into view.
            iframe .message src=(frame) title="The message as HTML" sandbox="" referrerpolicy="no-referrer" loading="lazy" {}
        }
    }
}

fn list(parts: &Parts<'_>, here: &str) -> Markup {
    let columns = [("Part", ""), ("Type", ""), ("Name", ""), ("Bytes", "n"), ("Download", "")];
    let rows = parts.all.iter().enumerate().map(|(at, part)| {
        let name = part.name.as_deref().map(|name| html! { bdi { (visible(name)) } });
        let link = html! { a href=(format!("{here}/parts/{}", at + 1)) download { "Part " (at + 1) } };
        let length = number(part.content().len() as u64);
        [(at + 1).render(), visible(&part.kind).render(), or_dash(name), length.render(), link]
    });
    html! {
        (table("untitled", "Its parts", columns, rows))
        @if parts.more { p .hint { "It has more: they are in its source." } }
    }
}

fn header(message: &[u8], budget: &ReadingBudget) -> Markup {
    let (fields, more) = header_fields(message, budget);
    html! {
        @if fields.is_empty() {
            p { "It has none." }
        } @else {
            dl { @for (name, value) in &fields { dt { (visible(name)) } dd { bdi { (visible(value)) } } } }
        }
        @if more { p .hint { "It has more fields: they are in its source." } }
    }
}

/// Bytes without a type, for download.
fn file(name: &str, bytes: Vec<u8>, share: Reservation) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    let disposition = HeaderValue::from_str(&disposition(name));
    headers.insert(CONTENT_DISPOSITION, disposition.unwrap_or_else(|_| HeaderValue::from_static("attachment")));
    (headers, Body::new(SentBody::begin(bytes, share))).into_response()
}

/// The Content-Disposition header (RFC 6266), with a name that is harmless to a shell, a file system and a reader's eye.
fn disposition(name: &str) -> String {
    let name = safe_name(name);
    let plain: String = name.chars().map(|c| if c.is_ascii() { c } else { '_' }).collect();
    let encoded = utf8_percent_encode(&name, ENCODED);
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}")
}

/// Keeps letters, digits and a few signs of a stranger's file name, and no sign at its beginning.
fn safe_name(name: &str) -> String {
    let keep = |c: char| if c.is_alphanumeric() || "-._+@ ".contains(c) { c } else { '_' };
    let name: String = name.chars().map(keep).collect();
    let name = name.trim().trim_start_matches(['.', '-', '_', ' ']);
    // The extension is at the end, and a reader has to see it.
    let skip = name.chars().count().saturating_sub(LONGEST_NAME);
    let name: String = name.chars().skip(skip).collect();
    let name = name.trim_start_matches(['.', '-', '_', ' ']).trim_end_matches(['.', ' ']);
    if name.is_empty() { "file".into() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_saved_under_a_harmless_name() {
        for (name, safe) in [
            ("figures.pdf", "figures.pdf"),
            ("../../etc/passwd", "etc_passwd"),
            ("C:\\Windows\\a.exe", "C__Windows_a.exe"),
            ("\u{202e}fdp.exe", "fdp.exe"),
            ("-rf *", "rf _"),
            (".bashrc", "bashrc"),
            ("a\"; filename=\"b\r\nX: y", "a__ filename__b__X_ y"),
            ("…", "file"),
            ("con. ", "con"),
            ("", "file"),
        ] {
            assert_eq!(safe_name(name), safe, "{name:?}");
        }
        assert_eq!(safe_name(&format!("{}.exe", "x".repeat(500))).chars().count(), LONGEST_NAME);
        assert_eq!(
            disposition("Übersicht 1.pdf"),
            "attachment; filename=\"_bersicht 1.pdf\"; filename*=UTF-8''%C3%9Cbersicht%201.pdf"
        );
    }
}
