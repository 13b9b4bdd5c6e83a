//! The HTML of a message, prepared for a browser that may run, load, send and follow nothing in it.
//!
//! The main protection is the answer's own policy ([`POLICY`]): a sandbox without any permission, in which nothing is fetched
//! except from the document itself. This module embeds the pictures that came with the message, limits the document's size, and
//! removes some elements. For these a browser connects to a host despite the policy, and the host's owner learns that the
//! message is read. They are `link` (its `preconnect` is unknown to the Content Security Policy), `iframe` and `frame`. `a` and
//! `area` connect once they are clicked: Chromium 156 opens a connection first, and checks the policies then. `meta` and `base`
//! are removed as well, since they affect the document as a whole. tests/server_tests/web_ui/hostile_messages_in_a_browser.rs
//! has a host for each.

use crate::message::parts::{Part, Parts};
use crate::message::reading_budget::ReadingBudget;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use std::cell::LazyCell;
use std::collections::HashMap;

/// The browser's permissions for the document: none. Inline styles and pictures in the document are shown.
pub(super) const POLICY: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; \
                                 base-uri 'none'; frame-ancestors 'self'";

/// How much HTML is shown, in bytes.
pub(super) const MOST_HTML: usize = 2 << 20;
/// How much of the pictures that came with it is shown, in bytes.
pub(super) const MOST_PICTURES: usize = 1 << 20;

/// The picture types that are shown. No SVG: it is a document.
const PICTURES: [&str; 5] = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp"];

/// These elements get names that no browser knows.
pub(super) const TAKEN_AWAY: [&str; 7] = ["a", "area", "base", "frame", "iframe", "link", "meta"];

/// The deepest nesting of elements. A browser takes long for deep nesting, since it searches all open elements for each tag,
/// and no mail program generates such HTML.
pub(super) const MOST_DEPTH: usize = 300;
/// These elements need no end tag, and a following tag closes them (HTML, 13.1.2 and 13.1.2.4), so they do not count.
const NEED_NO_END: [&str; 33] = [
    "area", "base", "body", "br", "col", "colgroup", "dd", "dt", "embed", "head", "hr", "html", "img", "input", "li",
    "link", "meta", "optgroup", "option", "p", "param", "rp", "rt", "source", "tbody", "td", "tfoot", "th", "thead",
    "tr", "track", "wbr", "keygen",
];
/// The longest name of these elements, in bytes: no more of a name is read.
const LONGEST_NAME: usize = 8;

/// The document, and what was left out of it.
pub(super) struct Document {
    pub(super) html: String,
    /// Whether the HTML was cut at [`MOST_HTML`].
    pub(super) cut: bool,
    /// Whether the HTML was cut because it is nested too deep from there on.
    pub(super) too_deep: bool,
    /// How many pictures that came with it are left out because they are too large.
    pub(super) pictures_left_out: usize,
}

/// The document of this part.
pub(super) fn document(part: &Part<'_>, parts: &Parts<'_>) -> Document {
    let (html, cut) = part.text(MOST_HTML);
    let Reduced { html, too_deep } = reduced(&html, parts.budget);
    let (html, pictures_left_out) = with_pictures(&html, &pictures(parts), parts.budget);
    Document { html, cut, too_deep, pictures_left_out }
}

/// HTML without the elements in [`TAKEN_AWAY`].
#[derive(Debug, PartialEq)]
struct Reduced {
    html: String,
    /// Whether it was cut at a place where more than [`MOST_DEPTH`] elements seem to be nested.
    too_deep: bool,
}

/// Renames all elements in [`TAKEN_AWAY`], and cuts the HTML where it is nested too deep.
///
/// A tag begins with `<`, directly followed by its name, which ends at white space, `/` or `>` (HTML, 13.2.5.6 tag open state
/// and 13.2.5.8 tag name state). At each `<` only the name is read, and of the name no more than the longest known name needs.
fn reduced(html: &str, budget: &ReadingBudget) -> Reduced {
    let mut reduced = Reduced { html: String::with_capacity(html.len()), too_deep: false };
    let mut depth = 0_usize;
    let mut pieces = html.split('<');
    reduced.html.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let (slash, tag) = piece.strip_prefix('/').map_or(("", piece), |tag| ("/", tag));
        let beginning = tag.get(..tag.floor_char_boundary(LONGEST_NAME + 1)).unwrap_or_default();
        let ends = |c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>');
        let name = beginning.split(ends).next().unwrap_or_default();
        if !budget.spend(1 + piece.len() + beginning.len()) {
            break;
        }
        let is_one_of = |elements: &[&str]| elements.iter().any(|element| name.eq_ignore_ascii_case(element));
        if name.starts_with(|c: char| c.is_ascii_alphabetic()) && !is_one_of(&NEED_NO_END) {
            depth = if slash.is_empty() { depth + 1 } else { depth.saturating_sub(1) };
        }
        if depth > MOST_DEPTH {
            reduced.too_deep = true;
            break;
        }
        reduced.html.push('<');
        reduced.html.push_str(slash);
        if is_one_of(&TAKEN_AWAY) {
            reduced.html.push_str("x-");
        }
        reduced.html.push_str(tag);
    }
    reduced
}

/// A picture that came with a message. It is decoded once, when it is first used: HTML may name it several hundred thousand
/// times.
struct Picture<'a> {
    kind: &'a str,
    bytes: LazyCell<Vec<u8>, Box<dyn FnOnce() -> Vec<u8> + 'a>>,
}

impl<'a> Picture<'a> {
    fn new(kind: &'a str, decode: impl FnOnce() -> Vec<u8> + 'a) -> Self {
        Self { kind, bytes: LazyCell::new(Box::new(decode)) }
    }
}

/// The pictures that may be shown, by their Content-ID: of two with the same one, the first.
fn pictures<'a>(parts: &'a Parts<'_>) -> HashMap<&'a str, Picture<'a>> {
    let mut pictures = HashMap::new();
    for part in parts.all.iter().filter(|part| PICTURES.contains(&part.kind.as_str())) {
        if let Some(id) = &part.content_id {
            pictures.entry(id.as_str()).or_insert_with(|| Picture::new(&part.kind, || part.content()));
        }
    }
    pictures
}

/// Embeds the pictures that `cid:` URLs refer to (RFC 2392). Returns the HTML, and how many pictures are left out.
fn with_pictures(html: &str, pictures: &HashMap<&str, Picture<'_>>, budget: &ReadingBudget) -> (String, usize) {
    const SCHEME: &str = "cid:";
    let mut with = String::with_capacity(html.len());
    let (mut room, mut left_out) = (MOST_PICTURES, 0);
    let mut rest = html;
    while let Some(at) =
        rest.as_bytes().windows(SCHEME.len()).position(|four| four.eq_ignore_ascii_case(SCHEME.as_bytes()))
    {
        let (before, after) = rest.split_at(at);
        let after = after.get(SCHEME.len()..).unwrap_or_default();
        // The scheme begins a URL here. The characters of a URL are read once: it contains no other URL.
        let is_url = before.ends_with(['"', '\'', '=', '(', ' ', '\n', '\t']);
        let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '(' | ')');
        let end = if is_url { after.find(ends).unwrap_or(after.len()) } else { 0 };
        let (id, beyond) = after.split_at(end);
        if !budget.spend(rest.len() - beyond.len()) {
            break;
        }
        with.push_str(before);
        rest = beyond;
        match pictures.get(&*percent_decode_str(id).decode_utf8_lossy()) {
            Some(picture) if picture.bytes.len() <= room => {
                room -= picture.bytes.len();
                with.push_str(&format!("data:{};base64,{}", picture.kind, STANDARD.encode(&*picture.bytes)));
            }
            Some(_) => {
                left_out += 1;
                with.push_str("data:,");
            }
            None => {
                with.push_str(SCHEME);
                with.push_str(id);
            }
        }
    }
    with.push_str(rest);
    (with, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use std::cell::Cell;
    use std::time::Duration;

    fn message(html: &str, picture: &[u8]) -> String {
        format!(
            "Content-Type: multipart/related; boundary=x\n\n--x\nContent-Type: text/html; charset=utf-8\n\n{html}\n\
             --x\nContent-Type: image/png\nContent-ID: <a%b@x>\nContent-Transfer-Encoding: base64\n\n{}\n\
             --x\nContent-Type: image/svg+xml\nContent-ID: <svg@x>\n\n<svg onload=alert(1)></svg>\n--x--\n",
            STANDARD.encode(picture)
        )
    }

    fn budget(message: &[u8]) -> ReadingBudget {
        ReadingBudget::of(message, Deadline::after(Duration::from_hours(1)))
    }

    fn of(html: &str, picture: &[u8]) -> Document {
        let message = message(html, picture);
        let budget = budget(message.as_bytes());
        let parts = Parts::of(message.as_bytes(), &budget);
        let document = document(parts.html().unwrap(), &parts);
        assert!(!budget.is_exhausted());
        document
    }

    fn shown_with(html: &str, pictures: &HashMap<&str, Picture<'_>>) -> (String, usize) {
        let budget = budget(html.as_bytes());
        let shown = with_pictures(html, pictures, &budget);
        assert!(!budget.is_exhausted());
        shown
    }

    #[test]
    fn a_picture_that_is_named_a_hundred_thousand_times_is_decoded_once() {
        let decoded = Cell::new(0);
        let picture = |size: usize| {
            let decoded = &decoded;
            Picture::new("image/png", move || {
                decoded.set(decoded.get() + 1);
                vec![0; size]
            })
        };
        let pictures = HashMap::from([("large", picture(MOST_PICTURES + 1)), ("small", picture(1))]);
        let (shown, left_out) = shown_with(&" cid:large cid:small".repeat(100_000), &pictures);
        assert_eq!((left_out, decoded.get()), (100_000, 2));
        assert_eq!(shown.matches("data:image/png;base64,AA==").count(), 100_000);
        // A picture without a reference is not decoded.
        shown_with("cid:another", &HashMap::from([("small", picture(1))]));
        assert_eq!(decoded.get(), 2);
    }

    #[test]
    fn pictures_that_came_with_it_are_shown_up_to_a_size() {
        let shown =
            of("<img src=\"cid:a%25b@x\"> cid:a%25b@x <img src=CID:a%25b@x><img src='cid:svg@x'><p>acid:x", b"png");
        assert_eq!(
            shown.html,
            "<img src=\"data:image/png;base64,cG5n\"> data:image/png;base64,cG5n <img src=data:image/png;base64,cG5n><img src='cid:svg@x'><p>acid:x"
        );
        assert_eq!((shown.cut, shown.pictures_left_out), (false, 0));
        let large = vec![b'x'; MOST_PICTURES / 2 + 1];
        let shown = of("<img src='cid:a%25b@x'><img src='cid:a%25b@x'>", &large);
        assert!(shown.html.ends_with("<img src='data:,'>") && shown.html.len() < MOST_PICTURES);
        assert_eq!(shown.pictures_left_out, 1);
    }

    #[test]
    fn elements_for_which_a_browser_connects_to_a_host_are_taken_away() {
        for (html, left) in [
            ("<LiNk rel=preconnect href=//evil>", "<x-LiNk rel=preconnect href=//evil>"),
            ("<link\nrel=x><link/rel=x>", "<x-link\nrel=x><x-link/rel=x>"),
            (
                "<meta http-equiv=refresh content=0><base href=//evil>",
                "<x-meta http-equiv=refresh content=0><x-base href=//evil>",
            ),
            ("<A href=//evil>x</a><area href=//evil>", "<x-A href=//evil>x</x-a><x-area href=//evil>"),
            (
                "<iframe src=//evil></iframe ><frame src=//evil>",
                "<x-iframe src=//evil></x-iframe ><x-frame src=//evil>",
            ),
            ("<<a href=//evil><!--<a href=//evil>", "<<x-a href=//evil><!--<x-a href=//evil>"),
            ("<svg><a href=//evil><a", "<svg><x-a href=//evil><x-a"),
            // Other elements stay as they are.
            ("<abbr><article></article><p>< a href>ü<ü<linked><", "<abbr><article></article><p>< a href>ü<ü<linked><"),
        ] {
            let left = Reduced { html: left.into(), too_deep: false };
            assert_eq!(reduced(html, &budget(b"")), left);
        }
    }

    #[test]
    fn html_that_is_nested_without_end_is_cut() {
        let deep = of(&format!("<p>Hello{}", "<b><div x=1>".repeat(1000)), b"");
        assert_eq!((deep.too_deep, deep.html.matches('<').count()), (true, MOST_DEPTH + 1));
        // Long lists, tables and lines do not count as deep.
        for flat in ["<li>x", "<p>x<br>", "<tr><td>x", "<b>x</b>", "<IMG src=x><HR/>", "a < b, c </ d <3 "] {
            let html = flat.repeat(1000);
            let shown = of(&html, b"");
            assert!(!shown.too_deep && shown.html.starts_with(&html), "{flat}");
        }
    }

    /// If a search started again at each of these places, the test would take hours.
    #[test]
    fn html_is_read_in_time_in_proportion_to_its_length() {
        for what in
            ["<", "</", "<a", "<b>", "<!--", "&lt;", "<p a=\"", "<p a=1", " cid:", "=cid:", "cid:", "=cid:%", "ü"]
        {
            // Three megabytes, of which two are shown.
            let shown = of(&what.repeat((3 << 20) / what.len()), b"picture");
            assert!(shown.cut && shown.html.len() <= 3 * MOST_HTML, "{what}");
        }
        let two_million = "<".repeat(2_000_000);
        assert_eq!(of(&two_million, b"").html.trim_end(), two_million);
        // The longest URL refers to a picture like any other.
        let id = "x".repeat(MOST_HTML - 100);
        assert_eq!(shown_with(&format!("=cid:{id}"), &HashMap::new()).0.len(), id.len() + 5);
    }

    #[test]
    fn html_that_is_too_large_is_cut() {
        let shown = of(&"<p>ü".repeat(MOST_HTML), b"");
        assert!(shown.cut && shown.html.len() <= MOST_HTML);
        assert!(!of("<p>", b"").cut);
    }
}
