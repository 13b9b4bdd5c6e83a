//! What the page shows of what is in a message: to whom, how, and not before it is written down who looks.

use crate::program::{feed, program};
use crate::support::clients_and_processes;
use crate::visitor::{Page, Visitor, rows, text};
use axum::http::StatusCode;
use maildrop_command::message::Identity;
use maildrop_command::site::Site;
use maildrop_command::site::embedded::Embedded;
use std::path::Path;
use tempfile::TempDir;

const ALL: [&str; 4] = ["content", "html", "source", "parts/1"];

/// A directory to which a message was delivered, for doug and for scuba.
struct SiteFolder {
    directory: TempDir,
    page: Page,
    message: String,
    /// `/messages/…`
    path: String,
}

impl SiteFolder {
    fn with(message: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        clients_and_processes::open(directory.path());
        let page = Page::of(&Site::embedded(Embedded::new(directory.path().to_owned())));
        let mut place = Self { directory, page, message: message.to_owned(), path: String::new() };
        place.path = place.deliver(message);
        place
    }

    /// Delivers a message, too, and says where the page has it.
    fn deliver(&self, message: &str) -> String {
        for recipient in ["doug@x", "scuba@x"] {
            let directory = self.path().to_str().unwrap();
            let arguments = ["--embedded", directory, "--sender", "lisa@gmail.com", "--recipient", recipient];
            feed(program(&arguments), message.as_bytes()).delivered();
        }
        let identity = Identity::of(message.as_bytes());
        format!("/messages/{}", identity.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn visitor(&self, role: &str) -> Visitor<'_> {
        self.visitor_named("anna", role)
    }

    fn visitor_named(&self, name: &str, role: &str) -> Visitor<'_> {
        let here = self.path().to_str().unwrap();
        let output = program(&["web", "login", "--embedded", here, "--name", name, "--role", role]).output().unwrap();
        self.page.log_in(&String::from_utf8(output.stdout).unwrap())
    }

    /// What the operations log has: who, what, on which object, whose mailbox, outcome.
    fn log(&self) -> Vec<[String; 5]> {
        let ledger = rusqlite::Connection::open(self.path().join("ledger.sqlite")).unwrap();
        let sql = "SELECT actor || ', ' || role, operation, coalesce(target, '–'), coalesce(imap_user, '–'), outcome \
                   FROM operations WHERE operation <> 'made a login' ORDER BY id";
        let mut statement = ledger.prepare(sql).unwrap();
        let row = |row: &rusqlite::Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?]);
        statement.query_map((), row).unwrap().map(Result::unwrap).collect()
    }
}

const LETTER: &str = "From: Lisa <lisa@gmail.com>\r\nTo: doug@x\r\nMessage-ID: <letter@x>\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n\
    MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n\
    --b\r\nContent-Type: text/plain; charset=iso-8859-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n\
    Sch=F6ne Gr=FC=DFe\r\n\
    --b\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<p>Sch\u{f6}ne <b>Gr\u{fc}\u{df}e</b> <img src=\"cid:pic@x\">\r\n\
    --b\r\nContent-Type: image/png; name=\"../sm\u{f6}rre.png\"\r\nContent-ID: <pic@x>\r\nContent-Transfer-Encoding: base64\r\n\r\n\
    iVBORw0KGgo=\r\n--b--\r\n";

#[test]
fn a_reader_sees_text_html_header_and_parts_and_it_is_written_down() {
    let place = SiteFolder::with(LETTER);
    let reader = place.visitor("reader");
    let link = format!("href=\"{}/content\"", place.path);
    assert!(reader.get(&place.path).shown().contains(&link));
    assert!(place.log().is_empty(), "what became of it shows nothing of what is in it");

    let shown = reader.get(&format!("{}/content", place.path));
    let screen = text(shown.shown());
    for has in [
        "Grüße",
        "Schöne Grüße",
        "Content-Type multipart/mixed; boundary=b",
        "3 image/png ../smörre.png 8 Part 3",
        "From Lisa <lisa@gmail.com>",
    ] {
        assert!(screen.contains(has), "{has}: {screen}");
    }
    assert!(shown.body.contains("sandbox=\"\"") && shown.body.contains("referrerpolicy=\"no-referrer\""));
    let html = reader.get(&format!("{}/html", place.path));
    assert_eq!(html.shown().trim(), "<p>Schöne <b>Grüße</b> <img src=\"data:image/png;base64,iVBORw0KGgo=\">");
    let policy = html.header("content-security-policy");
    for rule in [
        "sandbox; ",
        "default-src 'none'; ",
        "img-src data:; ",
        "form-action 'none'; ",
        "base-uri 'none'; ",
        "frame-ancestors 'self'",
    ] {
        assert!(policy.contains(rule), "{rule}: {policy}");
    }
    assert!(!policy.contains("allow-") && html.header("content-type") == "text/html; charset=utf-8");
    assert_eq!(html.header("x-frame-options"), "SAMEORIGIN");

    let source = reader.get(&format!("{}/source", place.path));
    assert!(source.shown().ends_with(&place.message), "{}", source.body);
    let picture = reader.get(&format!("{}/parts/3", place.path));
    assert_eq!(
        picture.headers["content-disposition"].as_bytes(),
        b"attachment; filename=\"sm_rre.png\"; filename*=UTF-8''sm%C3%B6rre.png"
    );
    for file in [&source, &picture] {
        assert!(!file.shown().is_empty());
        assert_eq!(file.header("content-type"), "application/octet-stream");
        assert!(
            file.header("content-disposition").starts_with("attachment; ")
                && file.header("x-content-type-options") == "nosniff"
        );
    }
    for answer in [&shown, &html, &source, &picture] {
        assert_eq!(answer.header("cache-control"), "no-store");
    }

    let row = |what: &str, object: &str| ["anna, reader", what, object, "doug@x", "shown"].map(ToOwned::to_owned);
    assert_eq!(
        place.log(),
        [
            row("looked at content", "–"),
            row("looked at content", "HTML"),
            row("downloaded", "source"),
            row("downloaded", "part 3"),
        ]
    );
    let operations = place.visitor("operator").get("/log");
    // With the two links to log in.
    assert_eq!(rows(operations.shown()), 6);
    let newest = "anna , reader by web UI on";
    assert!(text(&operations.body).contains(newest), "{}", text(&operations.body));
    let content = "looked at content Grüße in INBOX of doug@x , HTML shown";
    assert!(text(&operations.body).contains(content), "{}", text(&operations.body));
}

#[test]
fn the_frame_shows_the_html_and_each_look_at_it_is_written_down() {
    let place = SiteFolder::with(LETTER);
    let reader = place.visitor("reader");
    let shown = reader.get(&format!("{}/content", place.path));
    let frame = shown.shown().split("iframe").nth(1).expect("a frame").split("src=\"").nth(1).unwrap();
    let frame = frame.split('"').next().unwrap();
    let row =
        |object: &str, user: &str| ["anna, reader", "looked at content", object, user, "shown"].map(ToOwned::to_owned);
    assert!(reader.get(frame).shown().contains("<b>Grüße</b>"));
    assert_eq!(place.log(), [row("–", "doug@x"), row("HTML", "doug@x")]);
    std::fs::remove_dir_all(place.path().join("doug@x")).unwrap();
    assert!(reader.get(frame).shown().contains("<b>Grüße</b>"));
    assert_eq!(place.log()[2..], [row("HTML", "scuba@x")]);
}

#[test]
fn messages_that_readers_do_not_take_have_so_much_memory_and_one_login_half_of_it() {
    let place = SiteFolder::with(LETTER);
    // As much as a site takes by itself. Twice as much while it is read, and half of 250 MB for one login.
    let large = LETTER.replace("letter@x", "large@x")
        + &"a line of the body, as long as such a line may be\r\n".repeat(1_080_000);
    let source = format!("{}/source", place.deliver(&large));
    let [anna, bert, carl] = ["anna", "bert", "carl"].map(|name| place.visitor_named(name, "reader"));
    let (status, held) = anna.hold(&source);
    assert_eq!(status, StatusCode::OK);
    assert_eq!(anna.hold(&source).0, StatusCode::SERVICE_UNAVAILABLE);
    assert!(anna.get(&format!("{}/content", place.path)).status.is_success(), "a small one");
    let others = [&bert, &carl].map(|visitor| visitor.hold(&source));
    assert!(others.iter().all(|(status, _)| status.is_success()));
    assert_eq!(place.visitor_named("dora", "reader").hold(&source).0, StatusCode::SERVICE_UNAVAILABLE);
    drop(held);
    // What sends it sees that in its next turn.
    place.page.rest(std::time::Duration::from_millis(1));
    assert_eq!(anna.hold(&source).0, StatusCode::OK);
}

#[test]
fn a_viewer_sees_nothing_of_it_and_is_not_led_there() {
    let place = SiteFolder::with(LETTER);
    let viewer = place.visitor("viewer");
    let about = viewer.get(&place.path);
    assert!(!about.shown().contains("/content") && !about.body.contains("Schöne"));
    for path in ALL {
        let answer = viewer.get(&format!("{}/{path}", place.path));
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
        assert!(!answer.body.contains("Sch"), "{path}: {}", answer.body);
        let nobody = place.page.ask("GET", &format!("{}/{path}", place.path), &[], "");
        assert!(nobody.leads_to().starts_with("/login?to="), "{path}");
    }
    assert!(place.log().is_empty());
}

#[test]
fn nothing_is_shown_that_cannot_be_written_down() {
    let place = SiteFolder::with(LETTER);
    let reader = place.visitor("reader");
    let ledger = rusqlite::Connection::open(place.path().join("ledger.sqlite")).unwrap();
    ledger.execute("ALTER TABLE operations RENAME TO elsewhere", ()).unwrap();
    for path in ALL {
        let answer = reader.get(&format!("{}/{path}", place.path));
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        for of_it in ["Sch", "letter@x", "iVBOR"] {
            assert!(!answer.body.contains(of_it), "{path}: {}", answer.body);
        }
    }
    ledger.execute("ALTER TABLE elsewhere RENAME TO operations", ()).unwrap();
    assert!(reader.get(&format!("{}/content", place.path)).shown().contains("Schöne"));
}

#[test]
fn what_is_gone_is_reported_to_be_gone_and_that_somebody_looked_is_written_down() {
    let place = SiteFolder::with(LETTER);
    let reader = place.visitor("reader");
    std::fs::remove_dir_all(place.path().join("doug@x")).unwrap();
    assert!(reader.get(&format!("{}/content", place.path)).shown().contains("Schöne"), "scuba has it still");
    assert_eq!(place.log()[0][3], "scuba@x");
    std::fs::remove_dir_all(place.path().join("scuba@x")).unwrap();
    for path in ALL {
        let answer = reader.get(&format!("{}/{path}", place.path));
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert!(
            answer.body.contains("cannot be shown: its source is not kept (record.keep_source)"),
            "{path}: {}",
            answer.body
        );
    }
    let log = place.log();
    assert_eq!(log.len(), 5);
    assert!(log[1..].iter().all(|row| row[4].starts_with("not shown: its source is not kept")), "{log:?}");
    // Where there is no such message, or no such part, nobody has seen anything.
    for path in [
        "/messages/zz/content".to_owned(),
        format!("/messages/{}/source", "0".repeat(64)),
        format!("{}/parts/x", place.path),
    ] {
        assert!(reader.get(&path).status.is_client_error(), "{path}");
    }
    assert_eq!(place.log().len(), 5);
}

#[test]
fn there_is_no_part_beyond_the_last_and_no_html_where_there_is_none() {
    let place = SiteFolder::with("From: Lisa <lisa@gmail.com>\nMessage-ID: <plain@x>\n\n\nplain\n");
    let reader = place.visitor("reader");
    assert!(!reader.get(&format!("{}/content", place.path)).shown().contains("<iframe"));
    for path in ["html", "parts/0", "parts/2", "parts/99999999999999999999"] {
        assert!(reader.get(&format!("{}/{path}", place.path)).status.is_client_error(), "{path}");
    }
    assert!(reader.get(&format!("{}/parts/1", place.path)).shown().contains("plain"));
    // What was not there was not shown, and that is what is written down.
    let results: Vec<String> = place.log().into_iter().map(|[.., result]| result).collect();
    let is_shown: Vec<bool> = results.iter().map(|result| result.starts_with("shown")).collect();
    assert_eq!(is_shown, [true, false, false, false, true], "{results:?}");
    assert_eq!(results[1], "not shown: the message has no such part");
}

#[test]
fn what_a_stranger_wrote_is_text_and_what_turns_it_around_is_named() {
    let hostile = "\"><script>alert(1)</script><img src=x onerror=alert(2)>\u{202e}fdp.exe";
    let message = format!(
        "From: {hostile} <a@x>\nTo: {hostile}\nMessage-ID: <{hostile}@x>\nSubject: {hostile}\nX-<b>bold</b>: {hostile}\n\
         Content-Type: multipart/mixed; boundary=b\n\n--b\n\n{hostile}\n--b\nContent-Type: text/{hostile}\n\
         Content-Disposition: attachment; filename*=utf-8''%22%3E%3Cscript%3Ealert(1)%3C/script%3E%E2%80%AEfdp.exe\n\n{hostile}\n--b--\n"
    );
    let place = SiteFolder::with(&message);
    let reader = place.visitor("admin");
    let shown = reader.get(&format!("{}/content", place.path));
    for markup in ["<script>alert", "<img", "<b>bold", "onerror=alert(2)>'", "\u{202e}"] {
        assert!(!shown.shown().contains(markup), "{markup}: {}", shown.body);
    }
    assert!(text(&shown.body).contains("<img src=x onerror=alert(2)>[U+202E]fdp.exe"), "{}", text(&shown.body));
    assert!(text(&shown.body).contains("\"><script>alert(1)</script>[U+202E]fdp.exe"), "the name of the file");
    let file = reader.get(&format!("{}/parts/2", place.path));
    assert_eq!(
        file.header("content-disposition"),
        "attachment; filename=\"script_alert_1___script__fdp.exe\"; filename*=UTF-8''script_alert_1___script__fdp.exe"
    );
    assert!(!reader.get("/log").shown().contains("<script>alert"));
}

/// Each of these would keep a thread for hours, if the time that it takes grew with the square of its length.
#[test]
fn what_is_made_to_take_long_is_shown_all_the_same() {
    let html = |charset: &str, body: &str| format!("Content-Type: text/html; charset={charset}\n\n{body}\n");
    let parts = |part: &str| format!("Content-Type: multipart/mixed; boundary=b\n\n{}", part.repeat(100_000));
    for (at, content) in [
        html("utf-8", &"<".repeat(4 << 20)),
        html("utf-8", &("<img src=".to_owned() + &"cid:".repeat(1 << 20))),
        html("utf-8", &"<b>".repeat(3 << 20)),
        html("utf-7", &"+-".repeat(1 << 20)),
        parts("--b\n\na\n"),
        parts("--b\nContent-Type: text/html\n\n<p>\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let place = SiteFolder::with(&format!("From: lisa@gmail.com\nMessage-ID: <{at}@x>\n{content}"));
        let reader = place.visitor("reader");
        assert!(reader.get(&format!("{}/content", place.path)).shown().contains("Parts"), "{at}");
        let frame = reader.get(&format!("{}/html", place.path));
        assert!(frame.status.is_success() == content.contains("text/html"), "{at}: {}", frame.status);
    }
}

#[test]
fn what_is_too_much_is_cut_and_that_is_reported() {
    let long = "x".repeat(60) + "\n";
    let message = format!(
        "From: lisa@gmail.com\nMessage-ID: <long@x>\nContent-Type: multipart/alternative; boundary=b\n\n--b\n\n{}\n--b\n\
         Content-Type: text/html\n\n{}\n--b--\n",
        long.repeat(10_000),
        "<p>much</p>\n".repeat(900_000)
    );
    let place = SiteFolder::with(&message);
    let reader = place.visitor("reader");
    let shown = reader.get(&format!("{}/content", place.path));
    assert!(shown.shown().len() < 400_000 && shown.body.contains("These are the first 256 kB"), "{}", shown.body.len());
    assert!(shown.body.contains("This is the first 2 MB"));
    // Its line ends are LF there.
    let html = reader.get(&format!("{}/html", place.path));
    assert!((1 << 20..=2 << 20).contains(&html.shown().len()), "{}", html.body.len());
}
