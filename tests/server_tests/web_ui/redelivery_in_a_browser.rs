//! Delivering again in a real Chromium, by the keyboard: what would happen, then the delivery, then what came of it.

use crate::support::browser::Browser;
use crate::support::program::wait_until;
use crate::web_ui::screens_in_a_browser::{Served, message, session};
use maildrop_command::delivery::lock_of_message_id;
use maildrop_command::lock::{Acquired, DEFAULT_NAMESPACE, NamedLock};
use std::time::Duration;

const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";

/// Goes on by the keyboard until what is in focus says this.
fn tab_to(browser: &Browser, wanted: &str) {
    let mut seen = Vec::new();
    for _ in 0..60 {
        browser.type_text(TAB);
        let focus = "const it = document.activeElement; return it.getAttribute('aria-label') || it.innerText || it.closest('label')?.innerText || ''";
        let focus = browser.script(focus).as_str().unwrap_or_default().to_owned();
        if focus.contains(wanted) {
            return;
        }
        seen.push(focus);
    }
    panic!("{wanted} is not reached by the keyboard: {seen:?}");
}

fn in_maildir(served: &Served, user: &str) -> usize {
    std::fs::read_dir(served.directory.path().join(user).join("new")).map_or(0, Iterator::count)
}

/// Her Sent copy is owed, as if its mailbox had been full.
fn owe_lisas(served: &Served) {
    let sent = served.directory.path().join("lisa@gmail.com/.Sent/cur");
    for file in std::fs::read_dir(sent).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let ledger = rusqlite::Connection::open(served.directory.path().join("ledger.sqlite")).unwrap();
    let owe = "UPDATE copies SET state = 'owed', reason = 'over quota', delivered_at = NULL WHERE role = 'sender'";
    assert_eq!(ledger.execute(owe, []).unwrap(), 1);
}

#[test]
fn what_would_happen_is_shown_confirmed_and_done_by_the_keyboard_once() {
    let served = Served::start();
    for recipient in ["lisa@gmail.com", "doug@x", "scuba@x"] {
        served.deliver(&message("one@x"), recipient).delivered();
    }
    let lock = lock_of_message_id(DEFAULT_NAMESPACE, b"<one@x>");
    let mut holder = session(served.directory.path());
    assert!(matches!(holder.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
    served.deliver(&message("one@x"), "ada@x").deferred("4.");
    holder.release(&lock).unwrap();
    owe_lisas(&served);
    std::fs::remove_dir_all(served.directory.path().join("doug@x")).unwrap();

    let browser = Browser::start();
    browser.log_in(&served.link);
    for (name, path) in [
        ("again", "/again"),
        ("again-failed", "/again/failed"),
        ("again-lost", "/again/lost?mailbox=doug%40x&since=1h"),
        ("activity-owed", "/?state=owed"),
        ("again-message", "/?q=%3Cone%40x%3E"),
    ] {
        browser.go(&format!("{}{path}", served.origin));
        assert_ne!(browser.now("return document.querySelectorAll('tbody tr').length"), 0, "{name} shows none");
        browser.shown_is_for_everybody(name);
    }

    // On the screen of the message: the recipient who has none is picked already, and so is doug's in the end.
    tab_to(&browser, "check whether it is still in INBOX of doug@x");
    browser.type_text(" ");
    tab_to(&browser, "What would happen?");
    browser.type_text(ENTER);
    wait_until("it is planned", || browser.text().contains("Nothing is done yet."));
    let plan = browser.text();
    assert!(plan.contains("INBOX of ada@x (recipient): to be appended"), "{plan}");
    assert!(plan.contains("its mailbox is not there any more"), "{plan}");
    browser.shown_is_for_everybody("again-plan");
    assert_eq!((in_maildir(&served, "doug@x"), in_maildir(&served, "ada@x")), (0, 0));
    tab_to(&browser, "Deliver the selected copies");
    browser.type_text(ENTER);
    wait_until("it is delivered", || browser.text().contains("2 delivered."));
    assert!(browser.url().contains("/again/runs/"), "{}", browser.url());
    browser.shown_is_for_everybody("again-run");
    assert_eq!((in_maildir(&served, "doug@x"), in_maildir(&served, "ada@x")), (1, 1));

    // Loaded again, it begins nothing.
    let run = browser.url();
    browser.go(&run);
    assert!(browser.text().contains("2 delivered."), "{}", browser.text());
    assert_eq!((in_maildir(&served, "doug@x"), in_maildir(&served, "ada@x")), (1, 1));

    // One, which is named where it is confirmed; without script.
    owe_lisas(&served);
    browser.command("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": true }));
    browser.go(&format!("{}/again", served.origin));
    browser.command("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": false }));
    tab_to(&browser, "What would happen?");
    browser.type_text(ENTER);
    wait_until("it is planned", || browser.text().contains("it is looked for there, and appended"));
    tab_to(&browser, "Deliver the selected copies");
    browser.type_text(ENTER);
    wait_until("it is there", || browser.text().contains("DELIVERED to Sent of lisa@gmail.com"));
    assert_eq!(browser.complaints(), [""; 0]);
}
