//! Somebody who follows each link of the page, and who writes odd things into its addresses.
#![allow(dead_code, reason = "every test target uses a part of it")]

use super::visitor::{Answer, Visitor};
use axum::http::StatusCode;
use std::collections::{BTreeMap, BTreeSet};

/// What is put in the place of each part of an address: too long, too large, no text, other people's syntax.
const ODD: [&str; 17] = [
    "",
    "0",
    "-1",
    "9223372036854775808",
    "99999999999999999999999999",
    "1e400",
    "%00",
    "%FF%FE",
    "%C0%AF",
    "..%2F..%2Fetc%2Fpasswd",
    "%27%20OR%201%3D1%20--",
    "%5C%22%3E%3Cscript%3E",
    "%E2%80%AE%EF%BF%BF%F0%9F%A6%80",
    "2026-13-45T99:99:99Z",
    "9999999999d",
    "00000000-0000-0000-0000-000000000000",
    "evt_00000000000000000000000000000000",
];

/// Follows links until there are no more, and then spoils one of each kind in turn. Returns how many addresses were asked for.
///
/// # Panics
/// Where one of them is answered by a failure of ours, or a link of the page leads to nothing. Below those of `but` that end with a
/// slash something may be gone; what else it names may fail.
#[track_caller]
pub fn crawl(visitor: &Visitor<'_>, but: &[&str]) -> usize {
    let asked = follow_links(visitor, but, |_, _| {});
    let kinds: BTreeMap<_, _> = asked.iter().map(|path| (kind(path), path)).collect();
    let spoilt: BTreeSet<String> = kinds.values().flat_map(|path| spoilt(path)).collect();
    for path in &spoilt {
        let answer = visitor.get(path);
        assert!(!answer.status.is_server_error() || may(but, path, &answer), "{path}: {answer:?}");
        // What is no page stays text to a browser (nosniff).
        let is_page = answer.header("content-type").starts_with("text/html");
        assert!(!(is_page && answer.body.contains("<script>")), "{path}: {answer:?}");
    }
    asked.len() + spoilt.len()
}

/// The first half of it: follows links until there are no more, and shows each answer to `look`. The addresses.
#[track_caller]
pub fn follow_links(visitor: &Visitor<'_>, but: &[&str], mut look: impl FnMut(&str, &Answer)) -> BTreeSet<String> {
    let (mut asked, mut waiting) = (BTreeSet::new(), vec!["/".to_owned()]);
    while let Some(path) = waiting.pop() {
        if asked.len() > 400 || !asked.insert(path.clone()) {
            continue;
        }
        let answer = visitor.get(&path);
        let known = answer.status.is_success() || answer.status.is_redirection();
        assert!(known || may(but, &path, &answer), "a link leads to nothing: {path}: {answer:?}");
        look(&path, &answer);
        let links = answer.body.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let links = links.map(|link| link.replace("&amp;", "&")).chain([answer.header("location").to_owned()]);
        waiting.extend(links.filter(|link| link.starts_with('/') && !link.starts_with("/assets/")));
    }
    asked
}

fn may(but: &[&str], path: &str, answer: &Answer) -> bool {
    let place = path.split('?').next().unwrap_or_default();
    but.iter().any(|name| {
        if name.ends_with('/') {
            place.starts_with(name) && answer.status == StatusCode::NOT_FOUND
        } else {
            place == *name
        }
    })
}

/// What addresses have in common that are of one screen: all but their ids and values.
fn kind(path: &str) -> Vec<&str> {
    let (place, query) = path.split_once('?').unwrap_or((path, ""));
    let parts =
        place.split('/').skip(1).map(|part| if part.bytes().any(|byte| byte.is_ascii_digit()) { "#" } else { part });
    parts.chain(query.split('&').filter_map(|pair| pair.split('=').next())).collect()
}

/// The same address with each of its parts spoilt in turn.
fn spoilt(path: &str) -> Vec<String> {
    let (place, query) = path.split_once('?').unwrap_or((path, ""));
    let (parts, pairs): (Vec<&str>, Vec<&str>) = (place.split('/').collect(), query.split('&').collect());
    let mut all = Vec::new();
    for odd in ODD {
        for at in 1..parts.len() {
            let mut other = parts.clone();
            other[at] = odd;
            all.push(other.join("/"));
        }
        for (at, pair) in pairs.iter().enumerate() {
            let mut other: Vec<String> = pairs.iter().map(ToString::to_string).collect();
            other[at] = format!("{}={odd}", pair.split('=').next().unwrap_or_default());
            all.push(format!("{place}?{}", other.join("&")));
        }
        // What no link says, and the screens read.
        for name in ["q", "state", "since", "until", "before", "after", "show", "many", "span", "lock", "host", "to"] {
            all.push(format!("{place}?{name}={odd}"));
        }
    }
    all
}
