//! A list as a file, in CSV (RFC 4180) or JSON: the same filters in the URL, and the same rights, as the page with the list.

use super::auth;
use super::content::not_shown;
use super::visit::Visit;
use crate::base::sent_body::SentBody;
use crate::http::blocking_pools::Rejected;
use axum::body::Body;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most rows of a file.
const MOST_ROWS: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FileFormat {
    Csv,
    Json,
}

/// The query parameter that requests a file instead of the page.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct FileQuery {
    pub(super) format: Option<FileFormat>,
    /// Which list, if the page has several.
    #[serde(default)]
    pub(super) list: String,
}

impl FileQuery {
    /// How many rows are read: those of the page, or those of a file.
    pub(super) fn limit(&self, page: usize) -> usize {
        if self.format.is_some() { MOST_ROWS } else { page }
    }
}

/// The links to the list at `path` as a file.
pub(super) fn links(path: &str) -> Markup {
    let and = if path.contains('?') { '&' } else { '?' };
    html! {
        p .hint {
            "This list as a file: " a href={ (path) (and) "format=csv" } { "CSV" } " " a href={ (path) (and) "format=json" } { "JSON" }
        }
    }
}

/// The rows as a file, whose CSV has these columns. Its name says if there are more rows.
pub(super) fn send(
    visit: &Visit,
    format: FileFormat,
    name: &str,
    columns: &str,
    rows: impl IntoIterator<Item = impl Serialize>,
    more: bool,
) -> Response {
    let rows = rows.into_iter().take(MOST_ROWS).map(|row| serde_json::to_value(row).unwrap_or_default());
    let rows: Vec<Value> = rows.collect();
    let first = if more { format!("-first-{}", rows.len()) } else { String::new() };
    let (extension, kind, text) = match format {
        FileFormat::Csv => ("csv", "text/csv; charset=utf-8", csv(columns, &rows)),
        FileFormat::Json => ("json", "application/json", Value::from(rows).to_string()),
    };
    let disposition = format!("attachment; filename=\"maildrop-{name}{first}.{extension}\"");
    // A client that reads slowly keeps the file in memory meanwhile.
    let Some(share) = visit.page.memory.take(&auth::client(&visit.viewer), text.len()) else {
        return not_shown("This list", &Rejected::Busy.to_string(), true, visit);
    };
    let headers = [(CONTENT_TYPE, kind), (CONTENT_DISPOSITION, disposition.as_str())];
    (headers, Body::new(SentBody::begin(text.into_bytes(), share))).into_response()
}

fn csv(columns: &str, rows: &[Value]) -> String {
    let mut text = format!("{columns}\r\n");
    for row in rows {
        let fields: Vec<String> = columns.split(',').map(|column| field(&row[column])).collect();
        text += &(fields.join(",") + "\r\n");
    }
    text
}

/// A field of a CSV file. A spreadsheet takes a text that begins with one of these signs for a formula (OWASP, CSV injection).
fn field(value: &Value) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) if text.starts_with(['=', '+', '-', '@', '\t', '\r']) => format!("'{text}"),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.contains(['"', ',', '\r', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_spreadsheet_takes_no_text_of_a_stranger_for_a_formula_or_for_two_fields() {
        for (value, written) in [
            (json!("=HYPERLINK(\"http://evil.example\")"), "\"'=HYPERLINK(\"\"http://evil.example\"\")\""),
            (json!("+1"), "'+1"),
            (json!("-1"), "'-1"),
            (json!("@SUM(A1)"), "'@SUM(A1)"),
            (json!("\t=1"), "'\t=1"),
            (json!("a, b\r\nc"), "\"a, b\r\nc\""),
            (json!("Quarterly figures"), "Quarterly figures"),
            (json!(-1.5), "-1.5"),
            (Value::Null, ""),
        ] {
            assert_eq!(field(&value), written, "{value}");
        }
        let rows = [json!({ "number": 1, "name": "one", "other": 2 }), json!({ "name": null, "number": true })];
        assert_eq!(csv("name,number", &rows), "name,number\r\none,1\r\n,true\r\n");
    }

    #[test]
    fn the_links_keep_the_filters() {
        assert!(links("/?q=a").0.contains("/?q=a&amp;format=csv") && links("/locks").0.contains("/locks?format=json"));
    }
}
