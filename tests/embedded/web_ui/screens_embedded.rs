//! The page, asked by its routes: who gets in, who may see what, and what is shown.

use crate::crawl::crawl;
use crate::program::{PATIENCE, feed, program, wait_for};
use crate::support::clients_and_processes;
use crate::visitor::{Answer, Page, Visitor, rows, text};
use axum::http::StatusCode;
use maildrop_command::delivery::lock_of_message_id;
use maildrop_command::lock::{Acquired, DEFAULT_NAMESPACE, NamedLock};
use maildrop_command::site::Site;
use maildrop_command::site::embedded::Embedded;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const ROLES: [&str; 4] = ["viewer", "reader", "operator", "admin"];

/// A directory to which this was delivered, and its page.
pub struct SiteFolder {
    directory: TempDir,
    pub page: Page,
}

impl SiteFolder {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        clients_and_processes::open(directory.path());
        let page = Page::of(&Site::embedded(Embedded::new(directory.path().to_owned())));
        Self { directory, page }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn deliver(&self, message: &str, recipient: &str, queue_id: &str) -> crate::program::Outcome {
        let directory = self.path().to_str().unwrap();
        let mut command = program(&["--embedded", directory, "--sender", "lisa@gmail.com", "--recipient", recipient]);
        command.args(["--queue-id", queue_id, "--lock-wait", "0s"]);
        feed(command, message.as_bytes())
    }

    /// A link that logs in, as `maildrop_command web login` prints it.
    fn link(&self, name: &str, role: &str) -> String {
        let arguments = ["web", "login", "--embedded", self.path().to_str().unwrap(), "--name", name, "--role", role];
        let output = program(&arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn visitor(&self, role: &str) -> Visitor<'_> {
        self.page.log_in(&self.link("anna", role))
    }

    fn sessions(&self) -> serde_json::Value {
        let arguments = ["web", "sessions", "--json", "--embedded", self.path().to_str().unwrap()];
        serde_json::from_slice(&program(&arguments).output().unwrap().stdout).unwrap()
    }
}

pub fn message(id: &str, subject: &str) -> String {
    format!("From: Lisa <lisa@gmail.com>\nMessage-ID: <{id}>\nSubject: {subject}\n\nHello\n")
}

#[test]
fn a_link_lets_one_person_in_once_and_logging_out_ends_it() {
    let place = SiteFolder::new();
    let link = place.link("anna", "viewer");
    assert!(link.starts_with("http://127.0.0.1:8025/login#"), "{link}");
    let nobody = place.page.ask("GET", "/messages/00?lock=1", &[], "");
    assert_eq!(nobody.leads_to(), "/login?to=%2Fmessages%2F00%3Flock%3D1");
    let login = place.page.ask("GET", nobody.leads_to(), &[], "");
    assert!(login.shown().contains("value=\"/messages/00?lock=1\""), "{}", login.body);
    let words = text(&login.body);
    assert!(
        words.contains("On the machine of this service") && words.contains("viewer, reader, operator or admin"),
        "{words}"
    );
    let wrong = place.page.ask("POST", "/login", &[], "token=x");
    assert_eq!(wrong.status, StatusCode::FORBIDDEN);
    let anna = place.page.log_in(&link);
    let again = format!("token={}", link.trim().split_once('#').unwrap().1);
    for path in ["/login", "/login/confirm"] {
        assert_eq!(place.page.ask("POST", path, &[], &again).status, StatusCode::FORBIDDEN, "{path}");
    }
    assert!(anna.get("/").shown().contains("Logged in as anna"));
    assert_eq!(place.sessions()[0]["name"], "anna");
    let out = anna.post("/logout", "");
    assert_eq!(out.leads_to(), "/login");
    assert!(out.header("set-cookie").contains("Max-Age=0"));
    assert_eq!(anna.get("/").leads_to(), "/login");
    // The token in the cookie is in no file.
    let (_, token) = anna.cookie.split_once('=').unwrap();
    for file in
        std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
    {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!bytes.windows(token.len()).any(|window| window == token.as_bytes()), "{}", file.display());
    }
}

#[test]
fn a_link_says_whom_it_logs_in_and_a_click_ends_the_login_before_it() {
    let place = SiteFolder::new();
    let anna = place.visitor("admin");
    let link = place.link("mallory", "viewer");
    let token = format!("token={}&to=%2Flocks", link.trim().split_once('#').unwrap().1);
    let cookie = ("cookie", anna.cookie.as_str());
    let ours = [("sec-fetch-site", "same-origin"), cookie];
    // However often it is looked at, it is good, and nobody is logged in or out.
    for method in ["GET", "GET", "POST", "POST"] {
        let shown = place.page.ask(method, "/login", &ours, &token);
        assert_eq!(shown.header("set-cookie"), "");
        let shown = text(shown.shown());
        let names = "of http://127.0.0.1:8025 . It logs you in as mallory , with the role viewer . You are logged in as anna . That login ends.";
        assert_eq!(shown.contains(names), method == "POST", "{shown}");
        assert_eq!(shown.contains("Content that you read, and what you deliver again or change"), method == "POST");
    }
    assert!(anna.get("/").shown().contains("Logged in as anna"));
    let other_site = [("sec-fetch-site", "cross-site"), cookie];
    assert_eq!(place.page.ask("POST", "/login/confirm", &other_site, &token).status, StatusCode::FORBIDDEN);
    assert_ne!(place.page.ask("GET", &format!("/login/confirm?{token}"), &ours, "").status, StatusCode::OK);

    let answer = place.page.ask("POST", "/login/confirm", &ours, &token);
    assert_eq!(answer.leads_to(), "/locks");
    assert_eq!(anna.get("/").leads_to(), "/login");
    let sessions = place.sessions();
    assert_eq!((sessions.as_array().unwrap().len(), &sessions[0]["name"]), (1, &"mallory".into()));
    // A link that is not good ends nothing.
    let mallory = ("cookie", answer.header("set-cookie").split(';').next().unwrap());
    assert_eq!(place.page.ask("POST", "/login/confirm", &[mallory], &token).status, StatusCode::FORBIDDEN);
    place.page.ask("GET", "/", &[mallory], "").shown();
}

/// Shows made-up links from this address until that is refused: the last answer.
pub fn make_up_links(page: &Page, forwarded: &str) -> Answer {
    for number in 0..1000 {
        let headers = [("x-forwarded-for", forwarded), ("sec-fetch-site", "same-origin")];
        let answer = page.ask("POST", "/login", &headers, &format!("token=made-up-{number}"));
        if answer.status != StatusCode::FORBIDDEN {
            return answer;
        }
        assert!(answer.body.contains("is not complete"), "{}", answer.body);
    }
    panic!("a thousand made-up links are one like the other");
}

#[test]
fn made_up_links_are_refused_after_a_while_and_who_is_logged_in_notices_nothing() {
    let place = SiteFolder::new();
    let (anna, link) = (place.visitor("viewer"), place.link("boris", "viewer"));
    let refused = make_up_links(&place.page, "192.0.2.1");
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{refused:?}");
    assert!((1..=60).contains(&refused.header("retry-after").parse::<u64>().unwrap()));
    // No proxy is trusted here, so that it is one address all the same.
    assert_eq!(make_up_links(&place.page, "192.0.2.2").status, StatusCode::TOO_MANY_REQUESTS);
    for _ in 0..100 {
        anna.get("/locks").shown();
    }
    // The form is there, and what was refused is none the worse.
    place.page.ask("GET", "/login", &[], "").shown();
    wait_for("the budget is there again", PATIENCE, || {
        let token = format!("token={}", link.trim().split_once('#').unwrap().1);
        place.page.ask("POST", "/login", &[], &token).status == StatusCode::OK
    });
    place.page.log_in(&link).get("/").shown();
}

#[test]
fn a_form_that_comes_without_a_login_is_short() {
    let place = SiteFolder::new();
    for path in ["/login", "/login/confirm"] {
        let answer = place.page.ask("POST", path, &[], &format!("token={}", "x".repeat(10_000)));
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{path}");
    }
}

#[test]
fn a_login_is_ended_by_the_command_line_and_by_an_admin() {
    let place = SiteFolder::new();
    let (anna, boris) = (place.visitor("viewer"), place.page.log_in(&place.link("boris", "admin")));
    let id = |name: &str| {
        let sessions = place.sessions();
        let found = sessions.as_array().unwrap().iter().find(|session| session["name"] == name);
        found.map(|session| session["id"].as_str().unwrap().to_owned())
    };
    let annas = id("anna").unwrap();
    let arguments = ["web", "sessions", "--embedded", place.path().to_str().unwrap(), "--json", "--end", &annas];
    let ended = program(&arguments).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), format!("{{\"id\":\"{annas}\"}}\n"));
    assert_eq!(program(&arguments).output().unwrap().status.code(), Some(66));
    assert_eq!(anna.get("/").leads_to(), "/login");
    let clara = place.page.log_in(&place.link("clara", "reader"));
    assert!(boris.get("/logins").shown().contains("clara"));
    assert_eq!(boris.post("/logins/end", &format!("id={}", id("clara").unwrap())).leads_to(), "/logins");
    assert_eq!((clara.get("/").leads_to(), id("clara")), ("/login", None));
}

/// Each path of the page, how it is asked, and the least role that may.
const PATHS: [(&str, &str, &str); 37] = [
    ("GET", "/", "viewer"),
    ("GET", "/activity/new", "viewer"),
    ("GET", "/messages/00", "viewer"),
    ("GET", "/messages/00/content", "reader"),
    ("GET", "/messages/00/html", "reader"),
    ("GET", "/messages/00/source", "reader"),
    ("GET", "/messages/00/parts/1", "reader"),
    ("GET", "/statistics", "viewer"),
    ("GET", "/locks", "viewer"),
    ("GET", "/again", "operator"),
    ("GET", "/again/failed", "operator"),
    ("GET", "/again/lost", "operator"),
    ("POST", "/again/plan", "operator"),
    ("POST", "/again/start", "operator"),
    ("GET", "/again/runs/00", "operator"),
    ("GET", "/subscriptions", "operator"),
    ("GET", "/subscriptions/0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "operator"),
    ("GET", "/subscriptions/x/events/evt_0193a1b2c3d47e5f8a9b0c1d2e3f4a01", "operator"),
    ("GET", "/?format=csv", "viewer"),
    ("GET", "/locks?format=json", "viewer"),
    ("GET", "/again?format=csv", "operator"),
    ("GET", "/log?format=csv", "operator"),
    ("GET", "/logins?format=csv", "admin"),
    ("GET", "/subscriptions/x/delete", "operator"),
    ("POST", "/subscriptions/x/delete", "operator"),
    ("POST", "/subscriptions/x/secret", "operator"),
    ("POST", "/subscriptions/x/new-secret", "operator"),
    ("POST", "/subscriptions/x/test", "operator"),
    ("POST", "/subscriptions/x/pause", "operator"),
    ("POST", "/subscriptions/x/resume", "operator"),
    ("POST", "/subscriptions/x/redeliver", "operator"),
    ("POST", "/subscriptions/x/recover", "operator"),
    ("GET", "/service", "operator"),
    ("GET", "/log", "operator"),
    ("GET", "/logins", "admin"),
    ("POST", "/logins/end", "admin"),
    ("POST", "/logout", "viewer"),
];

#[test]
fn each_path_wants_its_role_and_a_login() {
    let place = SiteFolder::new();
    for (method, path, least) in PATHS {
        let ours = ("sec-fetch-site", "same-origin");
        let nobody = place.page.ask(method, path, &[ours], "id=none");
        assert!(matches!(nobody.status, StatusCode::SEE_OTHER | StatusCode::FORBIDDEN), "{method} {path}: {nobody:?}");
        let least = ROLES.iter().position(|role| *role == least).unwrap();
        for (at, role) in ROLES.iter().enumerate() {
            let visitor = place.visitor(role);
            let answer = place.page.ask(method, path, &[ours, ("cookie", &visitor.cookie)], "id=none");
            let refused = answer.status == StatusCode::FORBIDDEN;
            assert_eq!(refused, at < least, "{method} {path} as {role}: {answer:?}");
            assert!(!answer.status.is_server_error(), "{method} {path} as {role}: {answer:?}");
            // Who may not see a screen is not led there, either.
            let links_there = answer.body.contains(&format!("href=\"{path}\""));
            assert!(!(refused && links_there), "{method} {path} as {role}");
        }
    }
}

#[test]
fn what_another_site_sends_changes_nothing() {
    let place = SiteFolder::new();
    let anna = place.visitor("admin");
    for from in [
        &[("sec-fetch-site", "cross-site")][..],
        &[("sec-fetch-site", "same-site")],
        &[("origin", "https://evil.example")],
        &[("origin", "null")],
        &[("origin", "http://127.0.0.1:8026")],
    ] {
        for path in ["/logout", "/logins/end", "/login", "/login/confirm"] {
            let headers = [from, &[("cookie", anna.cookie.as_str())]].concat();
            let answer = place.page.ask("POST", path, &headers, "id=x&token=x");
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path} {from:?}");
            assert!(answer.body.contains("sent by another site"), "{path} {from:?}: {}", answer.body);
        }
    }
    anna.get("/").shown();
    // A name that leads here by the DNS of another site.
    for host in ["evil.example", "evil.example:8025", "127.0.0.1"] {
        let answer = place.page.ask("GET", "/", &[("host", host), ("cookie", &anna.cookie)], "");
        assert_eq!(answer.status, StatusCode::MISDIRECTED_REQUEST, "{host}");
    }
    // Who follows a link from elsewhere has the browser ask once more, with the cookie that it did not send at first.
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
    let answer = place.page.ask("GET", "/locks?x=1", &link, "");
    assert!(answer.shown().contains("content=\"0; url=/locks?x=1\""), "{}", answer.body);
}

#[test]
fn what_is_new_is_asked_for_from_a_little_before_the_last_answer() {
    let place = SiteFolder::new();
    let anna = place.visitor("viewer");
    place.deliver(&message("one@x", "One"), "lisa@gmail.com", "4b").delivered();
    // What is new is read again for some seconds: this one is older.
    let ledger = rusqlite::Connection::open(place.path().join("ledger.sqlite")).unwrap();
    ledger.execute("UPDATE attempts SET started_at = started_at - 100000000", []).unwrap();
    drop(ledger);
    place.deliver(&message("two@x", "Two"), "doug@x", "4b").delivered();
    let (path, shown) = live(anna.get("/").shown());
    let (all, next) = new_rows(&anna, &format!("{}after=0", path.split_once("after=").unwrap().0));
    assert_eq!((all.len(), &all), (2, &shown));
    assert_eq!(new_rows(&anna, &next).0, all[..1]);
    assert_eq!(anna.get(&path.replace("after=", "after=x")).status, StatusCode::BAD_REQUEST);
}

#[test]
fn each_answer_says_what_a_browser_may_do_with_it() {
    let place = SiteFolder::new();
    let anna = place.visitor("viewer");
    let cookie = ("cookie", anna.cookie.as_str());
    for (method, path, headers) in [
        ("GET", "/", &[cookie][..]),
        ("GET", "/", &[]),
        ("GET", "/login", &[]),
        ("GET", "/nowhere", &[cookie]),
        ("GET", "/logins", &[cookie]),
        ("PUT", "/", &[cookie]),
        ("POST", "/login", &[("origin", "null")]),
        ("GET", "/", &[("host", "evil.example")]),
    ] {
        let answer = place.page.ask(method, path, headers, "");
        let policy = answer.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"),
            "{method} {path}: {answer:?}"
        );
        let others = ["x-content-type-options", "referrer-policy", "cross-origin-opener-policy", "x-frame-options"];
        assert!(others.iter().all(|name| !answer.header(name).is_empty()), "{method} {path}: {answer:?}");
        assert_eq!(answer.header("cache-control"), "no-store", "{method} {path}");
    }
    let page = anna.get("/");
    let style = page.shown().split("href=\"").find_map(|rest| rest.strip_prefix("/assets/style-")).unwrap();
    let style = format!("/assets/style-{}", style.split('"').next().unwrap());
    let style = place.page.ask("GET", &style, &[], "");
    assert!(style.shown().contains("color-scheme") && style.header("cache-control").contains("immutable"));
    assert_eq!(place.page.ask("GET", "/assets/style-000000000000.css", &[], "").status, StatusCode::NOT_FOUND);
    // No script and no style in a page itself.
    assert!(!page.body.contains("style=") && !page.body.contains("<style") && !page.body.contains("onclick"));
    assert_eq!(page.body.matches("<script").count(), 1);
}

#[test]
fn what_strangers_write_stays_text() {
    let place = SiteFolder::new();
    let hostile = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'&amp;\u{202e}";
    let message =
        format!("From: {hostile} <a@x>\nTo: {hostile}\nMessage-ID: <{hostile}@x>\nSubject: {hostile}\n\nHello\n");
    place.deliver(&message, "scuba@x", "<b>queue</b>").delivered();
    place.deliver(&message, "lisa@gmail.com", "4b").delivered();
    let anna = place.visitor("admin");
    let list = anna.get("/");
    let link = list.shown().split("href=\"").find(|rest| rest.starts_with("/messages/")).unwrap();
    let link = link.split('"').next().unwrap().replace("&amp;", "&");
    let encoded: String = url::form_urlencoded::byte_serialize(hostile.as_bytes()).collect();
    for path in [
        "/".to_owned(),
        link,
        "/locks".into(),
        "/statistics".into(),
        format!("/?q={encoded}"),
        format!("/?host={encoded}&user={encoded}&since={encoded}"),
        format!("/?since={encoded}&state=deferred"),
        format!("/login?to={encoded}"),
    ] {
        let page = anna.get(&path);
        for markup in ["<script>alert", "<img", "<b>queue", "onerror=alert(2)>'"] {
            assert!(!page.shown().contains(markup), "{path}: {}", page.body);
        }
    }
    assert!(list.body.contains("&lt;script&gt;alert(1)"), "{}", list.body);
}

/// Each link leads somewhere, and no address is answered by a failure of ours, whatever it says.
#[test]
fn a_crawler_finds_no_link_that_leads_nowhere_and_no_address_that_breaks_it() {
    let place = SiteFolder::new();
    let hostile = "\"><script>alert(1)</script>'&\u{202e}";
    let hostile = format!("From: {hostile} <a@x>\nMessage-ID: <{hostile}@x>\nSubject: {hostile}\n\nHello\n");
    for recipient in ["scuba@x", "lisa@gmail.com", "doug@x"] {
        place.deliver(&hostile, recipient, "4bOne").delivered();
        place.deliver(&message("one@x", "Backup"), recipient, "4bTwo").delivered();
    }
    let admin = place.visitor("admin");
    let asked = crawl(&admin, &[]);
    assert!(asked > 1000, "{asked}");
    let screen = text(admin.get("/subscriptions").shown());
    assert!(screen.contains("causes no notifications: subscriptions need a database server"), "{screen}");
}

#[test]
fn each_filter_shows_what_it_names_and_nothing_else() {
    let place = SiteFolder::new();
    let two = message("two@x", "Quarterly figures");
    // She has a mailbox from now on, and so a Sent one.
    place.deliver(&message("one@x", "Backup"), "lisa@gmail.com", "4bOne").delivered();
    place.deliver(&two, "doug@x", "4bTwo").delivered();
    // Another process has the lock: the third recipient is deferred.
    let lock = lock_of_message_id(DEFAULT_NAMESPACE, b"<two@x>");
    let mut holder = clients_and_processes::open(place.path());
    assert!(matches!(holder.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
    place.deliver(&two, "scuba@x", "4bThree").deferred("4.");
    let anna = place.visitor("viewer");
    // While it is held, its holder is shown.
    let locks = anna.get("/locks");
    assert!(text(locks.shown()).contains("<two@x>") || rows(&locks.body) == 1, "{}", locks.body);
    holder.release(&lock).unwrap();
    let shown = |query: &str| {
        let page = anna.get(&format!("/?{query}"));
        let text = text(page.shown());
        (rows(&page.body), text)
    };
    for (query, count, has, has_not) in [
        ("", 3, "Quarterly figures", "nothing-like-this"),
        ("state=delivered", 2, "doug@x", "deferred: another"),
        ("state=deferred", 1, "deferred: another delivery held the lock", "Backup"),
        ("state=refused", 0, "No attempt matches", "doug@x"),
        ("state=open", 0, "No attempt matches", "doug@x"),
        ("state=owed", 0, "No Sent copy is owed", "doug@x"),
        ("role=sent", 2, "copy for Sent of lisa@gmail.com", "nothing-like-this"),
        ("role=all", 5, "copy for Sent of lisa@gmail.com", "nothing-like-this"),
        ("user=doug%40x", 1, "doug@x", "Backup"),
        ("host=elsewhere", 0, "No attempt matches", "Backup"),
        ("q=scuba%40x", 1, "Searched as an address", "Backup"),
        ("q=lisa%40gmail.com", 3, "Searched as an address", "nothing-like-this"),
        ("q=4bTwo&state=delivered", 1, "Searched as a queue id", "Backup"),
        ("q=aCKu", 1, "Searched as a part of a subject", "Quarterly figures"),
        ("q=LisA", 3, "Searched as a part of a subject, or of an author", "nothing-like-this"),
        ("q=B%25p&role=all", 0, "Searched as a part of a subject", "scuba"),
        ("q=%3Ctwo%40x%3E&role=all", 4, "Searched as a Message-ID", "Backup"),
        ("q=two%40x&state=deferred", 1, "Searched as a Message-ID", "Backup"),
        ("q=%3Cnever%40x%3E", 0, "No attempt matches", "Backup"),
        ("until=1h", 0, "No attempt matches", "Backup"),
        ("since=1h&until=2000-01-01", 0, "No attempt matches", "Backup"),
        ("since=1h", 3, "Backup", "nothing-like-this"),
        ("since=yesterday", 0, "Since: write it like 2d", "Backup"),
        ("state=gone", 0, "State: there is no such one", "Backup"),
        ("before=x", 0, "This address is not complete", "Backup"),
    ] {
        let (found, text) = shown(query);
        assert!(found == count && text.contains(has) && !text.contains(has_not), "{query}: {found}, {text}");
    }
    // The figures, counted again if another user looks: 2 delivered, 1 deferred.
    let text = anna.figures();
    assert!(text.contains("2 delivered, last hour") && text.contains("0 refused, last hour"), "{text}");
    // Messages are found by what their addresses begin with, however old they are.
    for (query, has) in [
        ("q=%40gmail.com", "Messages with a domain like @gmail.com"),
        ("q=%40gm*", "Messages with the beginning of an address like @gm*"),
        ("q=lis*", "Quarterly figures"),
        ("q=lisa%40gm", "Messages with the beginning of an address like lisa@gm"),
        ("q=*figures*&since=1h&until=2000-01-01", "No attempt matches"),
    ] {
        let (_, text) = shown(query);
        assert!(text.contains(has), "{query}: {text}");
    }
    // A name that is one message's leads to it.
    for q in ["4bThree", "%3Ctwo%40x%3E", "two%40x"] {
        let answer = anna.get(&format!("/?q={q}"));
        let message = anna.get(answer.leads_to());
        let text = crate::visitor::text(message.shown());
        for has in [
            "STILL DEFERRED for scuba@x (1 attempt): another delivery of this message held its lock. Delivered to 1 of 2.",
            "Quarterly figures",
            "INBOX of doug@x",
            "deferred: another delivery held the lock",
            "queue id 4bThree",
        ] {
            assert!(text.contains(has), "{q}: {has}: {text}");
        }
        assert!(message.body.contains("role=\"img\" aria-label=\"2 attempts on 1 host within"), "{}", message.body);
    }
    // Once it is there, it waits no more. Both attempts stand in the list, and it says which one tells how it stands.
    place.deliver(&two, "scuba@x", "4bThree").delivered();
    let (count, list) = shown("q=scuba%40x");
    let newest = list.find("the newest of 2 attempts in this list").expect("the newest");
    let earlier = list.find("lock an earlier attempt: see the newer one above").expect("the earlier");
    assert!(count == 2 && newest < earlier && !shown("user=doug%40x").1.contains("attempts in this list"), "{list}");
    let fresh = Page::of(&Site::embedded(Embedded::new(place.path().to_owned())));
    let boris = fresh.log_in(&place.link("boris", "viewer"));
    let text = boris.figures();
    assert!(text.contains("0 deferred now") && text.contains("3 delivered, last hour"), "{text}");
    for path in ["/messages/zz", "/messages/00", &format!("/messages/{}", "0".repeat(64)), "/statistics?span=%3Cb%3E2h"]
    {
        assert_eq!(anna.get(path).status, StatusCode::NOT_FOUND, "{path}");
    }
}

#[test]
fn a_list_is_a_file_with_the_filters_of_its_page() {
    let place = SiteFolder::new();
    place.deliver(&message("one@x", "=HYPERLINK(\"http://evil.example\")"), "scuba@x", "4bOne").delivered();
    place.deliver(&message("two@x", "Backup, daily"), "doug@x", "4bTwo").delivered();
    let anna = place.visitor("admin");
    let list = anna.get("/?user=doug%40x");
    assert!(list.shown().contains("href=\"/?user=doug%40x&amp;format=csv\""), "{}", list.body);
    let csv = anna.get("/?user=doug%40x&format=csv");
    assert_eq!(csv.header("content-type"), "text/csv; charset=utf-8");
    assert_eq!(csv.header("content-disposition"), "attachment; filename=\"maildrop-activity.csv\"");
    let lines: Vec<&str> = csv.shown().split_terminator("\r\n").collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].starts_with("started_at,state,recipient,") && lines[1].contains(",\"Backup, daily\",<two@x>,"),
        "{lines:?}"
    );
    // No stranger's subject becomes a formula, and a search for one message is a file as well.
    let one = anna.get("/?q=%3Cone%40x%3E&format=csv");
    assert!(one.shown().contains(",\"'=HYPERLINK(\"\"http://evil.example\"\")\",<one@x>,"), "{}", one.body);
    let all: serde_json::Value = serde_json::from_str(anna.get("/?format=json").shown()).unwrap();
    let recipients: Vec<_> = all.as_array().unwrap().iter().map(|row| row["recipient"].as_str().unwrap()).collect();
    assert_eq!(recipients, ["doug@x", "scuba@x"]);
    for (path, name) in [
        ("/?state=owed", "owed"),
        ("/locks", "locks"),
        ("/again", "owed"),
        ("/again/failed", "failed"),
        ("/log", "operations"),
        ("/logins", "logins"),
    ] {
        let and = if path.contains('?') { '&' } else { '?' };
        for format in ["csv", "json"] {
            let file = anna.get(&format!("{path}{and}format={format}"));
            file.shown();
            assert_eq!(
                file.header("content-disposition"),
                format!("attachment; filename=\"maildrop-{name}.{format}\"")
            );
        }
        assert_eq!(anna.get(&format!("{path}{and}format=xml")).status, StatusCode::BAD_REQUEST, "{path}");
    }
}

#[test]
fn a_message_without_subject_or_sender_is_named_as_such() {
    let place = SiteFolder::new();
    place.deliver("Message-ID: <neither@x>\n\nHello\n", "scuba@x", "4b").delivered();
    let anna = place.visitor("viewer");
    let list = anna.get("/");
    assert!(text(list.shown()).contains("(no subject) <neither@x> (no sender) scuba@x"), "{}", list.body);
    let shown = text(anna.get(anna.get("/?q=%3Cneither%40x%3E").leads_to()).shown());
    assert!(shown.contains("(no subject) DELIVERED") && shown.contains("From (no sender)"), "{shown}");
    // Of a message that nobody has got, these are not recorded.
    let lock = lock_of_message_id(DEFAULT_NAMESPACE, b"<late@x>");
    let mut holder = clients_and_processes::open(place.path());
    assert!(matches!(holder.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
    place.deliver(&message("late@x", "Late"), "doug@x", "4b").deferred("4.");
    let list = text(anna.get("/?state=deferred").shown());
    assert!(
        list.contains("<late@x> author not recorded yet doug@x deferred: another delivery held the lock"),
        "{list}"
    );
}

#[test]
fn the_next_page_begins_where_this_one_ends() {
    let place = SiteFolder::new();
    for number in 0..53 {
        place
            .deliver(&message(&format!("{number}@x"), &format!("Number {number} of many")), "scuba@x", "4b")
            .delivered();
    }
    let anna = place.visitor("viewer");
    let first = anna.get("/?user=scuba%40x");
    let next = first.shown().split("href=\"").find(|rest| rest.contains("before=")).unwrap();
    let next = next.split('"').next().unwrap().replace("&amp;", "&");
    assert!(next.starts_with("/?user=scuba%40x&before="), "{next}");
    // What comes meanwhile moves nothing.
    place.deliver(&message("late@x", "Number 99 of many"), "scuba@x", "4b").delivered();
    let second = anna.get(&next);
    assert_eq!((rows(&first.body), rows(second.shown())), (50, 3));
    let both = text(&first.body) + &text(&second.body);
    for number in 0..53 {
        assert_eq!(both.matches(&format!("Number {number} of many")).count(), 1, "{number}");
    }
    assert!(!second.body.contains("before="), "that was the last page");
}

#[test]
fn statistics_say_in_numbers_what_they_show_in_bars() {
    let place = SiteFolder::new();
    place.deliver(&message("one@x", "One"), "scuba@x", "4b").delivered();
    place.deliver(&message("one@x", "One"), "doug@x", "4b").delivered();
    let anna = place.visitor("viewer");
    for span in ["", "?span=1h", "?span=1d", "?span=7d"] {
        let page = anna.statistics(span);
        let text = text(page.shown());
        assert!(text.contains("Outcomes of 2 attempts") && text.contains("delivered 2 100.0 %"), "{text}");
        assert!(text.contains("append 2 ") && page.body.contains("<svg"), "{text}");
    }

    let place = SiteFolder::new();
    place.deliver(&message("one@x", "One"), "scuba@x", "4b").delivered();
    let one = text(place.visitor("viewer").statistics("").shown());
    assert!(one.contains("Outcomes of 1 attempt delivered 1"), "{one}");
    assert!(one.contains("The lock was held elsewhere for 0 attempts, 0.00 %"), "{one}");
}

/// What a newcomer does: one command, and a browser.
#[test]
fn the_page_of_a_directory_is_one_command() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("demo");
    let start = |at: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        command.args(["--embedded", path.to_str().unwrap(), "--web", at]).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // Of a port that is taken it says so, prints no link, and makes no directory.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let output = start(&at).wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.stdout.is_empty() && errors.contains("in use") && errors.contains("give another port"),
        "{output:?}"
    );
    assert!(output.status.code() == Some(69) && !path.exists());
    drop(taken);
    // Another process may take the port before it does: then another one.
    let (mut daemon, at, link) = loop {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = format!("127.0.0.1:{port}");
        let mut daemon = start(&at);
        let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
        let Some(new) = lines.next() else { continue };
        assert_eq!(new.unwrap(), format!("{} is new and empty.", path.display()));
        assert!(lines.next().unwrap().unwrap().starts_with(&format!("The web UI is at http://{at}/")));
        break (daemon, at, lines.next().unwrap().unwrap());
    };
    let ask = |request: String| -> std::io::Result<String> {
        let mut connection = TcpStream::connect(&at)?;
        connection.write_all(request.as_bytes())?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let body = format!("token={}", link.split_once("/login#").unwrap().1);
    let post = format!(
        "POST /login/confirm HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = String::new();
    wait_for("the page answers", PATIENCE, || {
        answer = ask(post.clone()).unwrap_or_default();
        !answer.is_empty()
    });
    assert!(answer.starts_with("HTTP/1.1 303 ") && answer.contains("set-cookie: __Host-maildrop="), "{answer}");
    let cookie = answer.split_once("set-cookie: ").unwrap().1.split(';').next().unwrap();
    let get = format!("GET / HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nCookie: {cookie}\r\n\r\n");
    let first = ask(get).unwrap();
    for has in ["Logged in as you", "No mail has come here yet", "data-newer"] {
        assert!(first.contains(has), "{has}: {first}");
    }
    // What the login screen says is what a person types.
    let login = ask(format!("GET /login HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n")).unwrap();
    let command = login.split("<code>maildrop_command ").nth(1).unwrap().split("</code>").next().unwrap();
    let output = program(&command.split(' ').collect::<Vec<_>>()).output().unwrap();
    let link = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && link.starts_with(&format!("http://{at}/login#")), "{command}: {link}");
    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), rustix::process::Signal::TERM).unwrap();
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn a_page_that_others_could_reach_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for place in ["0.0.0.0:8025", "8025", "/tmp/web.sock"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        let arguments = ["--embedded", directory.path().to_str().unwrap(), "--web", place];
        let output = command.args(arguments).env_clear().output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(64) && errors.contains("an address of this machine"), "{place}: {errors}");
    }
}

/// What tells of what is new in a list, and the names of the rows that it shows.
fn live(page: &str) -> (String, Vec<String>) {
    let live = page.split("data-newer=\"").nth(1).expect("a list that lives").split('"').next().unwrap();
    let rows = page.split("<tr id=\"").skip(1).map(|row| row.split('"').next().unwrap().to_owned());
    (live.replace("&amp;", "&"), rows.collect())
}

/// The rows that are new, and where to ask next.
fn new_rows(anna: &Visitor<'_>, path: &str) -> (Vec<String>, String) {
    let answer: serde_json::Value = serde_json::from_str(anna.get(path).shown()).unwrap();
    let rows = answer["rows"].as_array().unwrap().iter().map(|row| row.as_str().unwrap().to_owned());
    (rows.collect(), format!("{}after={}", path.split_once("after=").unwrap().0, answer["after"]))
}

#[test]
fn what_is_new_is_sent_to_each_list_that_it_is_part_of() {
    let place = SiteFolder::new();
    let anna = place.visitor("viewer");
    place.deliver(&message("one@x", "One"), "lisa@gmail.com", "4b").delivered();
    let two = message("two@x", "Two");
    place.deliver(&two, "doug@x", "4b").delivered();
    let lists = [
        "",
        "state=delivered",
        "state=deferred",
        "state=refused",
        "state=open",
        "role=sent",
        "role=all",
        "user=doug@x",
    ];
    // A question for what came since the list began counts what the list shows: by the same filters.
    let mut polled: Vec<_> = lists
        .iter()
        .map(|list| {
            let (path, shown) = live(anna.get(&format!("/?{list}")).shown());
            let since = format!("{}after=0", path.split_once("after=").unwrap().0);
            assert_eq!(new_rows(&anna, &since).0, shown, "{list}");
            let (rows, next) = new_rows(&anna, &path);
            assert!(rows.iter().all(|id| shown.contains(id)), "{list}: nothing is new yet");
            (list, shown, next)
        })
        .collect();
    // Of these one is deferred, and one comes.
    let lock = lock_of_message_id(DEFAULT_NAMESPACE, b"<two@x>");
    let mut holder = clients_and_processes::open(place.path());
    assert!(matches!(holder.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
    place.deliver(&two, "scuba@x", "4b").deferred("4.");
    holder.release(&lock).unwrap();
    place.deliver(&message("three@x", "Three"), "doug@x", "4b").delivered();
    for (list, shown, next) in &mut polled {
        let (_, mut now) = live(anna.get(&format!("/?{list}")).shown());
        let mut known = shown.clone();
        known.extend(new_rows(&anna, next).0);
        known.sort();
        known.dedup();
        now.sort();
        assert_eq!(known, now, "{list}");
    }
    // A search, an older page and what is owed do not live.
    for still in ["q=doug", "until=1h", "state=owed", "before=1.2.3"] {
        assert!(!anna.get(&format!("/?{still}")).body.contains("data-newer"), "{still}");
        assert_eq!(anna.get(&format!("/activity/new?{still}&after=0")).status, StatusCode::NOT_FOUND, "{still}");
    }
}
