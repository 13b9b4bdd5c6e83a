//! The page behind a proxy that logs people in: the proxy's word counts, and nothing that looks like it.

use crate::program::{PATIENCE, wait_for};
use crate::visitor::{Answer, Page};
use crate::web_ui::screens_embedded::{SiteFolder, make_up_links, message};
use axum::http::StatusCode;
use maildrop_command::config::Config;
use maildrop_command::http::web::WebSettings;
use maildrop_command::site::Site;
use maildrop_command::site::embedded::Embedded;
use std::path::Path;

const LEAST: &str = "[database]\nengine = \"postgresql\"\nhost = \"x\"\ndatabase = \"x\"\nuser = \"x\"\n\
    [imap]\nhost = \"x\"\nuser = \"x\"\npassword_file = \"/x\"\n";

/// The page of a place, where anna is an operator by the proxy's word, clara an admin, and everybody else what `more` says.
fn page(place: &SiteFolder, more: &str) -> Page {
    let text = format!(
        "{LEAST}[web]\nlisten = \"/run/web.sock\"\npublic_url = \"http://127.0.0.1:8025/\"\n\
         trusted_user_header = \"X-Forwarded-User\"\ntrusted_user_roles = {{ anna = \"operator\", clara = \"admin\" }}\n{more}"
    );
    let config = Config::parse(Path::new("/m.toml"), &text).unwrap();
    let site = Site::embedded(Embedded::new(place.path().to_owned()));
    Page::by(&site, &WebSettings::of(&config).unwrap())
}

const USER: &str = "x-forwarded-user";

fn get(page: &Page, path: &str, headers: &[(&str, &str)]) -> Answer {
    page.ask("GET", path, headers, "")
}

#[test]
fn whom_the_proxy_names_is_let_in_with_the_role_of_that_name() {
    let place = SiteFolder::new();
    place.deliver(&message("one@x", "Figures"), "doug@x", "4bOne").delivered();
    let page = page(&place, "");
    let anna = [(USER, "anna")];
    let shown = get(&page, "/", &anna);
    assert!(shown.shown().contains("Figures") && shown.body.contains("<p class=\"who\">anna</p>"), "{}", shown.body);
    assert!(!shown.body.contains("/logout"), "the proxy logs out: {}", shown.body);
    get(&page, "/again", &anna).shown();
    assert_eq!(get(&page, "/logins", &anna).status, StatusCode::FORBIDDEN);
    get(&page, "/logins", &[(USER, "clara")]).shown();
    // Who has no role, and what is no name.
    for (values, why) in [
        (&["boris"][..], "who has no role here"),
        (&["Anna"], "who has no role here"),
        (&["anna", "anna"], "says twice who you are"),
        (&["clara", "boris"], "says twice who you are"),
        (&[""], "is no name"),
        (&["(null)"], "is no name"),
        (&["anna, clara"], "is no name"),
    ] {
        let headers: Vec<(&str, &str)> = values.iter().map(|value| (USER, *value)).collect();
        let answer = get(&page, "/", &headers);
        assert!(answer.status == StatusCode::FORBIDDEN && answer.body.contains(why), "{values:?}: {answer:?}");
        assert!(!answer.body.contains("Figures"), "{values:?}");
    }
    // Another header of the kind is none.
    assert_eq!(get(&page, "/", &[("x-remote-user", "anna")]).leads_to(), "/login");
}

#[test]
fn all_others_have_the_role_for_all_others() {
    let place = SiteFolder::new();
    let page = page(&place, "trusted_user_role = \"viewer\"\n");
    get(&page, "/", &[(USER, "boris@example.com")]).shown();
    assert_eq!(get(&page, "/again", &[(USER, "boris@example.com")]).status, StatusCode::FORBIDDEN);
    get(&page, "/again", &[(USER, "anna")]).shown();
}

#[test]
fn where_the_proxy_says_nothing_a_link_logs_in_and_where_it_speaks_its_word_counts() {
    let place = SiteFolder::new();
    let page = page(&place, "");
    assert_eq!(get(&page, "/", &[]).leads_to(), "/login");
    let visitor = place.visitor("viewer");
    let cookie = ("cookie", visitor.cookie.as_str());
    assert_eq!(get(&page, "/again", &[cookie]).status, StatusCode::FORBIDDEN);
    get(&page, "/again", &[cookie, (USER, "anna")]).shown();
    assert_eq!(get(&page, "/", &[cookie, (USER, "boris")]).status, StatusCode::FORBIDDEN);
}

#[test]
fn what_another_site_sends_changes_nothing_though_the_proxy_knows_the_browser() {
    let place = SiteFolder::new();
    let page = page(&place, "");
    let clara = (USER, "clara");
    for from in [
        &[("sec-fetch-site", "cross-site")][..],
        &[("sec-fetch-site", "same-site")],
        &[("origin", "https://evil.example")],
        &[("origin", "null")],
        // There is no cookie of ours that would not have been sent along.
        &[],
    ] {
        let answer = page.ask("POST", "/logins/end", &[from, &[clara]].concat(), "id=x");
        assert!(answer.status == StatusCode::FORBIDDEN && answer.body.contains("sent by another site"), "{from:?}");
    }
    for from in [("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:8025")] {
        assert_eq!(page.ask("POST", "/logins/end", &[from, clara], "id=x").leads_to(), "/logins");
    }
}

#[test]
fn a_page_of_another_site_loads_nothing_and_a_link_from_there_is_followed() {
    let place = SiteFolder::new();
    place.deliver(&message("one@x", "Figures"), "doug@x", "4bOne").delivered();
    let page = page(&place, "");
    let asked = |path: &str, from: &[(&str, &str)]| get(&page, path, &[from, &[(USER, "anna")]].concat());
    let list = asked("/", &[]);
    let it = list.shown().split("href=\"").find(|rest| rest.starts_with("/messages/")).unwrap();
    let content = format!("{}/content", it.split(['?', '"']).next().unwrap());
    let looks = || asked("/log", &[]).shown().matches("looked at content").count();
    let from = |site, mode, dest| [("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
    for site in ["cross-site", "same-site"] {
        for (mode, dest) in [("no-cors", "image"), ("cors", "empty"), ("navigate", "iframe"), ("navigate", "object")] {
            for path in [content.as_str(), &content.replace("/content", "/source"), "/activity/new?after=0", "/"] {
                let answer = asked(path, &from(site, mode, dest));
                assert_eq!(answer.status, StatusCode::FORBIDDEN, "{site} {mode} {dest} {path}");
                assert!(
                    answer.body.contains("shown to no other site") && !answer.body.contains("Figures"),
                    "{answer:?}"
                );
                let head = page.ask("HEAD", path, &[&from(site, mode, dest)[..], &[(USER, "anna")]].concat(), "");
                assert_eq!(head.status, StatusCode::FORBIDDEN, "HEAD {site} {mode} {dest} {path}");
            }
        }
    }
    assert_eq!(looks(), 0, "nobody has looked");
    // A user who follows a link looks at it; and old browsers do not say where a request comes from.
    for (at, from) in [&from("cross-site", "navigate", "document")[..], &from("same-site", "navigate", "document"), &[]]
        .into_iter()
        .enumerate()
    {
        assert!(asked(&content, from).shown().contains("Hello"), "{from:?}");
        assert_eq!(looks(), at + 1, "{from:?}");
    }
}

#[test]
fn failures_are_counted_by_the_address_that_the_proxy_forwards() {
    let place = SiteFolder::new();
    let page = page(&place, "trusted_proxies = [\"unix\"]\n");
    // What a client writes into the header itself stands before what the proxy adds.
    for made_up in ["", "203.0.113.1, ", "192.0.2.2, "] {
        let refused = make_up_links(&page, &format!("{made_up}192.0.2.1"));
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    }
    let unknown = |forwarded: &str| {
        let headers = [("x-forwarded-for", forwarded), ("cookie", "__Host-maildrop=made-up")];
        page.ask("GET", "/", &headers, "")
    };
    wait_for("it is refused", PATIENCE, || unknown("192.0.2.1").status == StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(unknown("192.0.2.2").leads_to(), "/login");
}
