//! The page delivers again: what would happen first, then the delivery, once, however often it is asked for.

use crate::program::program;
use crate::support::clients_and_processes;
use crate::visitor::{Answer, Page, Visitor, copies, rows, text};
use crate::web_ui::screens_embedded::{SiteFolder, message};
use axum::http::StatusCode;
use maildrop_command::delivery::lock_of_message_id;
use maildrop_command::lock::{Acquired, DEFAULT_NAMESPACE, NamedLock};
use maildrop_command::site::Site;
use maildrop_command::site::embedded::Embedded;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const OURS: (&str, &str) = ("sec-fetch-site", "same-origin");

fn files(directory: &Path) -> Vec<PathBuf> {
    ["new", "cur"]
        .iter()
        .filter_map(|part| fs::read_dir(directory.join(part)).ok())
        .flat_map(|found| found.map(|entry| entry.unwrap().path()))
        .collect()
}

fn empty(directory: &Path) {
    let found = files(directory);
    assert_eq!(found.len(), 1, "{found:?}");
    fs::remove_file(&found[0]).unwrap();
}

fn ledger(place: &SiteFolder) -> rusqlite::Connection {
    rusqlite::Connection::open(place.path().join("ledger.sqlite")).unwrap()
}

/// The operations log, the oldest first: who, what, whose mailbox, what came of it.
fn log(place: &SiteFolder) -> Vec<String> {
    let ledger = ledger(place);
    let mut rows = ledger
        .prepare(
            "SELECT actor || ' ' || operation || ' ' || mailbox || ' ' || imap_user || ': ' || outcome FROM operations \
             WHERE operation <> 'made a login' ORDER BY id",
        )
        .unwrap();
    rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

fn of(answer: &Answer) -> StatusCode {
    answer.status
}

/// Delivered to doug and scuba; lisa, who wrote it, has her copy in Sent.
fn delivered() -> SiteFolder {
    let place = SiteFolder::new();
    place.deliver(&message("zero@x", "Nothing"), "lisa@gmail.com", "4bZero").delivered();
    place.deliver(&message("one@x", "Figures"), "doug@x", "4bOne").delivered();
    place.deliver(&message("one@x", "Figures"), "scuba@x", "4bOne").delivered();
    place
}

/// The screen of the message `<ID>`.
fn screen(anna: &Visitor<'_>, id: &str) -> String {
    let encoded: String = url::form_urlencoded::byte_serialize(format!("<{id}>").as_bytes()).collect();
    anna.get(anna.get(&format!("/?q={encoded}")).leads_to()).shown().to_owned()
}

#[test]
fn a_copy_that_a_mailbox_has_lost_is_restored_once_however_often_the_form_is_sent() {
    let place = delivered();
    let anna = place.visitor("operator");
    let doug = place.path().join("doug@x");
    let before = fs::read(&files(&doug)[0]).unwrap();
    let shown = screen(&anna, "one@x");
    // All is there: there is nothing to do.
    let restores: Vec<String> = copies(&shown).into_iter().filter(|one| one.contains("restore")).collect();
    assert_eq!(restores.len(), 3, "{shown}");
    // The proof that it is in its mailbox is offered where its copies stand, and says what it does.
    for has in
        ["Is a copy still in its mailbox?", "check whether it is still in INBOX of doug@x", "It changes nothing."]
    {
        assert!(text(&shown).contains(has), "{has}: {shown}");
    }
    let plan = anna.post("/again/plan", &restores.join("&"));
    assert!(text(plan.shown()).contains("nothing: it is there") && copies(&plan.body).is_empty(), "{}", plan.body);
    empty(&doug);
    let plan = anna.post("/again/plan", &restores.join("&"));
    let page_text = text(plan.shown());
    assert!(page_text.contains("most likely its owner has deleted or filed it: it is brought back"), "{page_text}");
    assert!(
        copies(&plan.body).len() == 1 && plan.body.contains("aria-label=\"INBOX of doug@x, for doug@x: "),
        "{page_text}"
    );
    // To look changes nothing.
    assert!(files(&doug).is_empty() && log(&place).is_empty());
    let form = copies(&plan.body).join("&");
    let first = anna.post("/again/start", &form);
    let reported = anna.ended(first.leads_to());
    assert!(reported.contains("DELIVERED to INBOX of doug@x, for doug@x: appended."), "{reported}");
    assert_eq!(fs::read(&files(&doug)[0]).unwrap(), before);
    // Loaded again, and sent again.
    assert!(anna.ended(first.leads_to()).contains("DELIVERED"));
    let confirmed = anna.confirm(&plan.body);
    assert!(confirmed.contains("ALREADY THERE: INBOX of doug@x, for doug@x. Nothing was done."), "{confirmed}");
    assert_eq!(files(&doug).len(), 1);
    let expected = [
        "anna restored INBOX doug@x: ",
        "anna restored INBOX doug@x: delivered: appended",
        "anna restored INBOX doug@x: ",
        "anna restored INBOX doug@x: already there",
    ];
    assert_eq!(log(&place), expected);
}

#[test]
fn the_same_form_sent_by_two_at_once_delivers_once() {
    let place = delivered();
    let (anna, boris) = (place.visitor("operator"), place.visitor("admin"));
    let doug = place.path().join("doug@x");
    empty(&doug);
    let plan = anna.post("/again/plan", &copies(&screen(&anna, "one@x")).join("&"));
    let form = copies(plan.shown()).join("&");
    let (first, second) = (anna.post("/again/start", &form), boris.post("/again/start", &form));
    let reported = [anna.ended(first.leads_to()), boris.ended(second.leads_to())];
    let delivered = reported.iter().filter(|reported| reported.contains("DELIVERED to INBOX of doug@x")).count();
    let there = reported.iter().filter(|reported| reported.contains("ALREADY THERE: INBOX of doug@x")).count();
    // One of them may have found the lock of the other.
    assert!(
        delivered == 1 && (there == 1 || reported.iter().any(|reported| reported.contains("but may be later"))),
        "{reported:?}"
    );
    assert_eq!(files(&doug).len(), 1);
}

#[test]
fn an_owed_sent_copy_is_finished_from_the_list() {
    let place = delivered();
    let anna = place.visitor("operator");
    assert!(text(anna.get("/again").shown()).contains("No Sent copy is owed"));
    let sent = place.path().join("lisa@gmail.com/.Sent");
    empty(&sent);
    let owe = "UPDATE copies SET state = 'owed', reason = 'over quota', uid_validity = NULL, uid = NULL, delivered_at = NULL \
               WHERE role = 'sender'";
    assert_eq!(ledger(&place).execute(owe, []).unwrap(), 1);
    let list = anna.get("/again");
    let page_text = text(list.shown());
    assert!(rows(&list.body) == 1 && page_text.contains("Sent of lisa@gmail.com (Sent copy)"), "{page_text}");
    assert!(
        page_text.contains("over quota") && page_text.contains("maildrop_command replay --embedded"),
        "{page_text}"
    );
    let plan = anna.post("/again/plan", &copies(&list.body).join("&"));
    let screen = text(plan.shown());
    assert!(screen.contains("it is looked for there, and appended"), "{screen}");
    let done_page = anna.confirm(&plan.body);
    assert!(done_page.contains("DELIVERED to Sent of lisa@gmail.com, for doug@x: appended."), "{done_page}");
    assert_eq!(files(&sent).len(), 1);
    let confirmed = anna.confirm(&plan.body);
    assert!(confirmed.contains("ALREADY THERE: Sent of lisa@gmail.com"), "{confirmed}");
    assert_eq!(files(&sent).len(), 1);
    assert_eq!(
        log(&place),
        ["anna finished owed Sent lisa@gmail.com: ", "anna finished owed Sent lisa@gmail.com: delivered: appended"]
    );
    assert!(text(anna.get("/log").shown()).contains("finished owed"));
    let late = anna.post("/again/plan", &copies(&list.body).join("&"));
    assert!(text(late.shown()).contains("nothing: it is there"), "{}", late.body);
}

#[test]
fn a_delivery_that_failed_is_made_again_from_another_recipients_copy() {
    let place = delivered();
    let anna = place.visitor("operator");
    let ada = place.path().join("ada@x");
    // Another process has the locks: both are deferred. Of a message that nobody has got, there is no source.
    for (id, recipient) in [("one@x", "ada@x"), ("two@x", "eve@x")] {
        let lock = lock_of_message_id(DEFAULT_NAMESPACE, format!("<{id}>").as_bytes());
        let mut holder = clients_and_processes::open(place.path());
        assert!(matches!(holder.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
        place.deliver(&message(id, "Figures"), recipient, "4bOne").deferred("4.");
        holder.release(&lock).unwrap();
    }
    let list = anna.get("/again/failed");
    let screen_text = text(list.shown());
    assert!(rows(&list.body) == 2 && screen_text.contains("ada@x") && screen_text.contains("eve@x"), "{screen_text}");
    assert_eq!(screen_text.matches("deferred: another delivery held the lock").count(), 2, "{screen_text}");
    // Both are only deferred, and the page says that such mail is among them.
    assert!(
        screen_text.contains("Copies that were not delivered, the oldest first: refused, deferred, or never ended."),
        "{screen_text}"
    );
    assert!(screen_text.contains("Postfix tries deferred mail again by itself"), "{screen_text}");
    let plan = anna.post("/again/plan", &copies(&list.body).join("&"));
    let page_text = text(plan.shown());
    assert!(page_text.contains("INBOX of ada@x (recipient): to be "), "{page_text}");
    assert!(page_text.contains("it cannot be done: nobody has got it yet"), "{page_text}");
    let confirmed = anna.confirm(&plan.body);
    assert!(confirmed.contains("DELIVERED to INBOX of ada@x, for ada@x"), "{confirmed}");
    assert_eq!(files(&ada).len(), 1);
    // By the screen of the message as well, where it is delivered by now.
    let shown = screen(&anna, "one@x");
    assert!(!copies(&shown).iter().any(|one| one.contains("deliver-")), "{shown}");
    let again = anna.confirm(&plan.body);
    assert!(again.contains("ALREADY THERE: INBOX of ada@x"), "{again}");
    assert_eq!(files(&ada).len(), 1);
}

#[test]
fn what_a_mailbox_has_lost_is_found_and_what_its_owner_deleted_is_not_picked() {
    let place = delivered();
    let anna = place.visitor("operator");
    let nothing = anna.get("/again/lost?mailbox=doug%40x&since=1h");
    assert!(text(nothing.shown()).contains("Gone: 0. All of them are in their mailboxes."), "{}", nothing.body);
    let stranger = text(anna.get("/again/lost?mailbox=doug&since=1h").shown());
    assert!(
        stranger.contains("Nothing was delivered to a mailbox of that name") && !stranger.contains("Gone:"),
        "{stranger}"
    );
    assert!(text(anna.get("/again").shown()).contains("what is deferred now"));
    fs::remove_dir_all(place.path().join("doug@x")).unwrap();
    empty(&place.path().join("scuba@x"));
    let lost = anna.get("/again/lost?mailbox=doug%40x&since=1h");
    assert!(text(lost.shown()).contains("its mailbox is not there any more"), "{}", lost.body);
    assert!(lost.body.contains("checked"), "{}", lost.body);
    let deleted = anna.get("/again/lost?mailbox=scuba%40x&since=1h");
    assert!(text(deleted.shown()).contains("most likely its owner"), "{}", deleted.body);
    assert!(!deleted.body.contains("checked"), "{}", deleted.body);
    let plan = anna.post("/again/plan", &copies(&lost.body).join("&"));
    let confirmed = anna.confirm(plan.shown());
    assert!(confirmed.contains("DELIVERED to INBOX of doug@x, for doug@x: appended."), "{confirmed}");
    assert_eq!(files(&place.path().join("doug@x")).len(), 1);
    for mistake in ["/again/lost?mailbox=doug%40x&since=yesterday", "/again/failed?since=yesterday"] {
        assert!(text(anna.get(mistake).shown()).contains("Since: write it like 2d"));
    }
}

#[test]
fn who_may_not_deliver_again_is_offered_nothing_and_refused() {
    let place = delivered();
    let doug = place.path().join("doug@x");
    empty(&doug);
    let operator = place.visitor("operator");
    let form = copies(&screen(&operator, "one@x")).join("&");
    for role in ["viewer", "reader"] {
        let visitor = place.visitor(role);
        assert!(!screen(&visitor, "one@x").contains("again"), "{role}");
        for path in ["/again/plan", "/again/start"] {
            assert_eq!(of(&visitor.post(path, &form)), StatusCode::FORBIDDEN, "{role} {path}");
        }
        assert_eq!(of(&visitor.get("/again")), StatusCode::FORBIDDEN);
    }
    let cookie = ("cookie", operator.cookie.as_str());
    for from in [("sec-fetch-site", "cross-site"), ("origin", "https://evil.example"), ("origin", "null")] {
        for path in ["/again/plan", "/again/start"] {
            assert_eq!(of(&place.page.ask("POST", path, &[from, cookie], &form)), StatusCode::FORBIDDEN, "{from:?}");
        }
    }
    // What changes something is no GET; and nobody is let in without a login.
    for path in ["/again/plan", "/again/start"] {
        assert_eq!(of(&operator.get(&format!("{path}?{form}"))), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(of(&place.page.ask("POST", path, &[OURS], &form)), StatusCode::FORBIDDEN);
    }
    assert!(files(&doug).is_empty() && log(&place).is_empty());
}

#[test]
fn a_form_that_is_not_whole_begins_nothing() {
    let place = delivered();
    let anna = place.visitor("operator");
    let many: Vec<String> = (0..101).map(|number| format!("copy=restore-{number:064}")).collect();
    for (form, why) in [
        ("", "Nothing was selected"),
        ("copy=", "This form is not complete"),
        ("copy=restore-00", "This form is not complete"),
        (&many.join("&"), "More copies were selected"),
    ] {
        for path in ["/again/plan", "/again/start"] {
            let answer = anna.post(path, form);
            assert!(of(&answer) == StatusCode::BAD_REQUEST && answer.body.contains(why), "{form}: {answer:?}");
        }
    }
    // A copy that was pruned meanwhile.
    let gone = format!("copy=restore-{}", "0".repeat(64));
    assert!(text(anna.post("/again/plan", &gone).shown()).contains("the ledger does not know it any more"));
    let started = anna.post("/again/start", &gone);
    assert!(anna.ended(started.leads_to()).contains("the ledger does not know it any more"));
    let unknown = anna.get(&format!("/again/runs/{}", "0".repeat(32)));
    assert_eq!(of(&unknown), StatusCode::NOT_FOUND);
}

#[test]
fn what_cannot_be_written_into_the_operations_log_is_not_done() {
    let place = delivered();
    let anna = place.visitor("operator");
    let doug = place.path().join("doug@x");
    empty(&doug);
    let plan = anna.post("/again/plan", &copies(&screen(&anna, "one@x")).join("&"));
    let full = "CREATE TRIGGER full BEFORE INSERT ON operations BEGIN SELECT RAISE(ABORT, 'full'); END";
    ledger(&place).execute_batch(full).unwrap();
    let confirmed = anna.confirm(plan.shown());
    assert!(
        confirmed.contains("NOT DELIVERED") && confirmed.contains("it cannot be written into the operations log"),
        "{confirmed}"
    );
    assert!(files(&doug).is_empty());
}

/// The command that the page shows where it may not do it itself does it.
#[test]
fn the_command_that_is_shown_does_the_same() {
    let place = delivered();
    let anna = place.visitor("operator");
    let doug = place.path().join("doug@x");
    fs::remove_dir_all(&doug).unwrap();
    let lost = anna.get("/again/lost?mailbox=doug%40x&since=1h");
    let command = lost.shown().split("<code>").nth(1).unwrap().split("</code>").next().unwrap();
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let output = program(&[words.as_slice(), &["--yes"]].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(files(&doug).len(), 1);
    // Another page of the same directory knows nothing of what this one began.
    let other = Page::of(&Site::embedded(Embedded::new(place.path().to_owned())));
    let answer = other.ask("GET", "/again/runs/00", &[("cookie", &anna.cookie)], "");
    assert_eq!(of(&answer), StatusCode::NOT_FOUND);
}
