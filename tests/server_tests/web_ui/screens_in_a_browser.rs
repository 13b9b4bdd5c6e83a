//! The page in a real Chromium: it is what people see, and what a browser lets a page do, that counts.

use crate::support::browser::{Browser, Canary, Forwarder};
use crate::support::program::{PATIENCE, feed, program, wait_for, wait_until};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::database::Client;
use maildrop_command::delivery::lock_of_message_id;
use maildrop_command::ledger::schema::open_embedded;
use maildrop_command::ledger::{Cause, FailureRecord, Ledger, Outcome};
use maildrop_command::lock::{Acquired, DEFAULT_NAMESPACE, NamedLock};
use maildrop_command::mailbox::MailboxFailure;
use maildrop_command::message::Identity;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A page that is served by the real program, and how it is reached from the browser.
pub(super) struct Served {
    pub(super) directory: TempDir,
    daemon: Child,
    /// `http://localhost:PORT`.
    pub(super) origin: String,
    pub(super) link: String,
    forwarder: Forwarder,
}

impl Served {
    pub(super) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Another process may have taken the port on loopback meanwhile: then another one.
        loop {
            let forwarder = Forwarder::start();
            let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
            command.args(["--embedded", directory.path().to_str().unwrap()]);
            command.args(["--web", &format!("127.0.0.1:{}", forwarder.port)]).env_clear().stdin(Stdio::null());
            let mut daemon = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
            let link = lines.nth(1).and_then(Result::ok);
            let origin = format!("http://localhost:{}", forwarder.port);
            let at = ("127.0.0.1", forwarder.port);
            let mut ended = false;
            wait_for("it listens, or has ended", PATIENCE, || {
                ended = daemon.try_wait().unwrap().is_some();
                ended || std::net::TcpStream::connect(at).is_ok()
            });
            if let (Some(link), false) = (link, ended) {
                let link = format!("{origin}/login#{}", link.split_once('#').unwrap().1);
                return Self { directory, daemon, origin, link, forwarder };
            }
        }
    }

    pub(super) fn deliver(&self, message: &str, recipient: &str) -> crate::support::program::Outcome {
        let directory = self.directory.path().to_str().unwrap();
        let mut command = program(&["--embedded", directory, "--sender", "lisa@gmail.com", "--recipient", recipient]);
        command.args(["--lock-wait", "0s"]);
        feed(command, message.as_bytes())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

pub(super) fn session(directory: &Path) -> impl NamedLock {
    let client = Client { host: "mx2".into(), pid: 4711, queue_id: None };
    open_embedded(directory, &client, Deadline::after(PATIENCE)).unwrap()
}

/// A message whose author tries everything that markup could do.
const HOSTILE: &str = "From: \"</title><script>window.hit = 1</script>\" <lisa@gmail.com>\nTo: <img src=x onerror=window.hit=1>\n\
    Message-ID: <hostile@x>\nSubject: \"><svg onload=window.hit=1><meta http-equiv=refresh content=\"0;url=http://evil.example/\">\n\nHello\n";

pub(super) fn message(id: &str) -> String {
    format!("From: Lisa <lisa@gmail.com>\nTo: scuba@x\nMessage-ID: <{id}>\nSubject: Quarterly figures\n\nHello\n")
}

#[test]
fn each_screen_is_for_everybody_and_breaks_no_rule_of_the_browser() {
    let served = Served::start();
    served.deliver(&message("one@x"), "scuba@x").delivered();
    served.deliver(&message("one@x"), "lisa@gmail.com").delivered();
    served.deliver(HOSTILE, "scuba@x").delivered();
    let mut holder = session(served.directory.path());
    let lock = lock_of_message_id(DEFAULT_NAMESPACE, b"<one@x>");
    assert!(matches!(holder.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
    served.deliver(&message("one@x"), "doug@x").deferred("4.");
    let browser = Browser::start();
    // Without a login, and by a link that was used.
    browser.go(&served.origin);
    assert!(browser.url().ends_with("/login"), "{}", browser.url());
    browser.log_in(&served.link);
    browser.go("about:blank");
    browser.go(&served.link);
    wait_until("it is good once", || browser.text().contains("This link was used already"));
    browser.go(&served.origin);
    assert!(browser.text().contains("Logged in as you"), "{}", browser.text());
    let of = |subject: &str| {
        let found = browser.script(&format!(
            "return [...document.querySelectorAll('tbody tr')].find(row => row.innerText.includes({subject:?})).querySelector('a').href"
        ));
        found.as_str().unwrap().to_owned()
    };
    let (figures, hostile) = (of("Quarterly figures"), of("svg onload"));
    // All is counted, so that nothing is reloaded while it is looked at.
    for span in ["1h", "1d", "7d"] {
        wait_until("statistics are there", || {
            browser.go(&format!("{}/statistics?span={span}", served.origin));
            !browser.text().contains("This is being counted")
        });
    }
    // What is wrong so far is the 403 of the link that was used already.
    let so_far = browser.complaints();
    assert!(so_far.iter().all(|complaint| complaint.contains("/login") && complaint.contains("403")), "{so_far:?}");
    let screens = [
        ("activity", served.origin.clone()),
        ("mistake", format!("{}/?since=yesterday", served.origin)),
        ("message", figures),
        ("hostile", hostile),
        ("search", format!("{}/?q=scuba%40x", served.origin)),
        ("statistics", format!("{}/statistics", served.origin)),
        ("statistics-day", format!("{}/statistics?span=1d", served.origin)),
        ("statistics-week", format!("{}/statistics?span=7d", served.origin)),
        ("locks", format!("{}/locks", served.origin)),
        ("service", format!("{}/service", served.origin)),
        ("logins", format!("{}/logins", served.origin)),
        ("login", format!("{}/login", served.origin)),
    ];
    for (name, url) in &screens {
        browser.is_for_everybody(name, url);
    }
    // The lock stands on the message's line of time, and what its signs mean under it.
    browser.go(&screens[2].1);
    // One has waited in vain; those who had it may have waited for a moment.
    let signs = "const many = sign => document.querySelectorAll(sign).length; \
                 return [many('svg.time .holds'), many('svg.time .waits') > 0, many('ul.legend li')]";
    assert_eq!(browser.script(signs), serde_json::json!([2, true, 5]), "{}", browser.text());
    browser.go(&format!("{}/nowhere", served.origin));
    browser.refusal_is_for_everybody("not-found", 404);
    holder.release(&lock).unwrap();

    browser.go(&served.origin);
    browser.script("[...document.querySelectorAll('header button')].find(one => one.innerText == 'Log out').click()");
    wait_until("it has logged out", || browser.url() == format!("{}/login", served.origin));
    browser.go(&format!("{}/locks", served.origin));
    assert!(browser.url().ends_with("/login?to=%2Flocks"), "{}", browser.url());
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn what_is_live_changes_by_itself_and_rests_when_asked_to() {
    let served = Served::start();
    served.deliver(&message("one@x"), "scuba@x").delivered();
    let browser = Browser::start();
    browser.log_in(&served.link);
    // Nothing moves under the reader: what is new is counted, and shown when it is asked for.
    served.deliver(&message("two@x"), "doug@x").delivered();
    served.deliver(&message("three@x"), "doug@x").delivered();
    wait_until("what is new is counted", || browser.text().contains("2 new: show"));
    assert_eq!(browser.script("return document.querySelectorAll('tbody tr').length"), 1);
    browser.shown_is_for_everybody("activity-new");
    browser.script("document.querySelector('[data-newer] a').click()");
    wait_until("it is shown", || browser.now("return document.querySelectorAll('tbody tr').length") == 3);
    browser.go(&format!("{}/locks", served.origin));
    assert!(browser.text().contains("No lock is held"), "{}", browser.text());
    browser.script("window.same = 1");
    let mut holder = session(served.directory.path());
    let lock = lock_of_message_id(DEFAULT_NAMESPACE, b"<one@x>");
    assert!(matches!(holder.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
    wait_until("the lock is shown", || browser.text().contains("holds"));
    assert_eq!(browser.script("return window.same"), 1, "it was not reloaded");
    browser.script("[...document.querySelectorAll('button')].find(one => one.innerText == 'Pause').click()");
    wait_until("it rests", || browser.text().contains("Resume"));
    holder.release(&lock).unwrap();
    browser.script("[...document.querySelectorAll('button')].find(one => one.innerText == 'Resume').click()");
    wait_until("it goes on", || browser.text().contains("No lock is held"));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn times_are_of_the_viewers_zone_a_row_leads_to_its_message_and_a_slash_to_the_search() {
    let served = Served::start();
    served.deliver(&message("one@x"), "scuba@x").delivered();
    let browser = Browser::start();
    browser.command("Emulation.setTimezoneOverride", serde_json::json!({ "timezoneId": "Asia/Tokyo" }));
    browser.log_in(&served.link);
    let time = browser.script(
        "const time = document.querySelector('td time'); return [time.title, time.firstChild.textContent, time.querySelector('.ago').textContent]",
    );
    let [utc, local, ago] = [0, 1, 2].map(|at| time[at].as_str().unwrap().to_owned());
    // 2026-11-29 08:40:43Z, nine hours earlier than in Tokyo.
    let (hour, rest) = (utc[11..13].parse::<u8>().unwrap(), &utc[13..19]);
    assert!(utc.ends_with('Z') && local.ends_with(&format!("{:02}{rest}", (hour + 9) % 24)), "{time}");
    assert!(ago == "just now" || ago.ends_with(" ago"), "{time}");
    assert!(browser.text().contains("Asia/Tokyo"), "{}", browser.text());
    // Any cell of the row, but not while its text is selected.
    let cell = "const cell = document.querySelector('td[data-label=State]');";
    browser.script(&format!("{cell} getSelection().selectAllChildren(cell); cell.click(); getSelection().empty()"));
    assert_eq!(browser.url(), format!("{}/", served.origin));
    browser.script(&format!("{cell} cell.click()"));
    wait_until("the row leads to its message", || browser.url().contains("/messages/"));
    browser.type_text("/");
    wait_until("the search has the focus", || browser.now("return document.activeElement.id") == "q");
    browser.type_text("1/2");
    assert_eq!(browser.script("return document.getElementById('q').value"), "1/2");
    // Turned off, also on the next page, until it is turned on.
    let toggle = "document.querySelector('footer button').click()";
    browser.script(toggle);
    browser.go(&format!("{}/locks", served.origin));
    browser.type_text("/");
    assert_eq!(browser.now("return location.pathname + document.activeElement.tagName"), "/locksBODY");
    browser.script(toggle);
    browser.script("document.activeElement.blur()");
    browser.type_text("/");
    wait_until("the search has the focus", || browser.now("return document.activeElement.id") == "q");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn an_outage_is_seen_at_once_a_row_leads_to_its_message_and_the_results_are_near() {
    let served = Served::start();
    served.deliver(&message("one@x"), "scuba@x").delivered();
    let client = Client { host: "mx2".into(), pid: 4711, queue_id: None };
    let mut ledger = open_embedded(served.directory.path(), &client, Deadline::after(PATIENCE)).unwrap();
    let down = "connecting to the IMAP server localhost:143: 127.0.0.1:143: Connection refused (os error 111)";
    for recipient in ["doug@x", "scuba@x", "lisa@x"] {
        let failure = FailureRecord {
            identity: &Identity::of(b"down@x"),
            recipient,
            mailbox: None,
            lock: &lock_of_message_id(DEFAULT_NAMESPACE, b"<down@x>"),
            sender: Some("lisa@gmail.com"),
            author: Some("Lisa <lisa@gmail.com>"),
            subject: Some("Sunday: boat leaves at seven"),
            message_id: "<down@x>",
            queue_id: None,
            host: "e0eeaccf2f9e",
            outcome: Outcome::Deferred(Cause::Mailbox(MailboxFailure::Unreachable), Some(down.into())),
        };
        ledger.record_failures(&[failure]).unwrap();
    }
    let browser = Browser::start();
    browser.log_in(&served.link);
    wait_until("it is counted", || {
        browser.go(&served.origin);
        browser.text().contains("3 recipients wait since")
    });
    let text = browser.text();
    assert!(
        text.contains("the mailbox store is out of reach. Nothing is lost") && text.contains("3\ndeferred now"),
        "{text}"
    );
    browser.is_for_everybody("outage", &served.origin);
    browser.is_for_everybody("outage-operations", &format!("{}/log?q=you", served.origin));
    browser.is_for_everybody("outage-list", &format!("{}/?state=deferred", served.origin));
    assert!(!browser.text().contains("os error 111"), "{}", browser.text());
    browser.script("document.querySelector('td summary').click()");
    assert!(browser.text().contains("os error 111") && browser.url().contains("state=deferred"), "{}", browser.text());
    browser.script("document.querySelector('td[data-label=Recipient]').click()");
    wait_until("the row leads to its message", || browser.url().contains("/messages/"));
    browser.shown_is_for_everybody("outage-message");
    // The second link that the keyboard comes to leads to the results; so does a search.
    browser.go(&format!("{}/?q=x", served.origin));
    let (tab, enter) = ("\u{e004}", "\u{e007}");
    browser.type_text(&format!("{tab}{tab}{enter}"));
    wait_until("the focus is at the results", || browser.now("return document.activeElement.id") == "results");
    browser.go(&served.origin);
    browser.script("document.getElementById('q').value = 'boat'; document.querySelector('button.go').click()");
    wait_until("the search is at its results", || browser.url().ends_with("#results"));
    browser.looks(380, "light");
    browser.go(&served.origin);
    let top = browser.script("return document.getElementById('results').getBoundingClientRect().top");
    assert!(top.as_f64().unwrap() < 900.0, "{top}");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// A proxy answers for a server that restarts.
#[test]
fn who_has_lost_the_server_reads_that_and_learns_all_once_it_is_back() {
    let served = Served::start();
    served.deliver(&message("one@x"), "scuba@x").delivered();
    let browser = Browser::start();
    browser.log_in(&served.link);
    let (usual, lost) = ("New attempts are counted here.", "The connection is lost, so nothing new is shown here.");
    assert!(browser.text().contains(usual), "{}", browser.text());
    // Said aloud as well, by those that read a page aloud.
    assert_eq!(browser.script("return document.querySelector('[data-said]').getAttribute('role')"), "status");
    served.forwarder.answers_502(true);
    wait_until("it says so", || browser.text().contains(lost) && !browser.text().contains(usual));
    served.deliver(&message("two@x"), "doug@x").delivered();
    assert!(!browser.text().contains("1 new"), "{}", browser.text());
    served.forwarder.answers_502(false);
    wait_until("what came meanwhile is counted", || browser.text().contains("1 new: show"));
    assert!(browser.text().contains(usual) && !browser.text().contains(lost), "{}", browser.text());
    // And so on what is reloaded.
    browser.go(&format!("{}/locks", served.origin));
    served.forwarder.answers_502(true);
    wait_until("it says so", || browser.text().contains(lost));
    browser.refusal_is_for_everybody("lost", 502);
    served.forwarder.answers_502(false);
    wait_until("it is reloaded", || {
        browser.text().contains("holds the lock of its message") && !browser.text().contains(lost)
    });
}

/// They are reloaded each minute: here as often as the test asks, so that it does not wait for that.
#[test]
fn statistics_are_reloaded_and_pause_when_asked_to() {
    let served = Served::start();
    served.deliver(&message("one@x"), "scuba@x").delivered();
    let browser = Browser::start();
    browser.log_in(&served.link);
    browser.command(
        "Page.addScriptToEvaluateOnNewDocument",
        serde_json::json!({ "source": "\
            const [begin, end, ask] = [window.setInterval, window.clearInterval, window.fetch]; \
            window.timers = new Map(); window.answers = 0; \
            window.setInterval = (run, wait) => { const timer = begin(() => {}, 1e9); window.timers.set(timer, [run, wait]); return timer; }; \
            window.clearInterval = timer => { window.timers.delete(timer); end(timer); }; \
            window.fetch = (...what) => { window.answers += 1; return ask(...what); };" }),
    );
    browser.go(&format!("{}/statistics", served.origin));
    let waits = |browser: &Browser| browser.script("return [...window.timers.values()].map(([run, wait]) => wait)");
    assert_eq!(waits(&browser), serde_json::json!([60_000]));
    browser.script("document.querySelector('[data-refresh]').replaceChildren('old')");
    browser.script("for (const [run] of window.timers.values()) run()");
    wait_until("they are reloaded", || browser.text().contains("Outcomes of 1 attempt"));
    let click = |words: &str| {
        browser.script(&format!(
            "[...document.querySelectorAll('button')].find(one => one.innerText == {words:?}).click()"
        ));
    };
    click("Pause");
    assert!(browser.text().contains("Resume"), "{}", browser.text());
    assert_eq!(waits(&browser), serde_json::json!([]), "nothing is to be reloaded");
    assert_eq!(browser.script("return window.answers"), 1);
    click("Resume");
    assert!(browser.text().contains("Pause"), "{}", browser.text());
    assert_eq!(waits(&browser), serde_json::json!([60_000]));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn it_works_without_script_and_by_the_keyboard_and_nobody_logs_others_out() {
    let served = Served::start();
    served.deliver(&message("one@x"), "scuba@x").delivered();
    let browser = Browser::start();
    browser.command("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": true }));
    browser.go(&served.link);
    // The token is typed, or pasted, into the form.
    let (tab, enter) = ("\u{e004}", "\u{e007}");
    browser.type_text(tab);
    let focus = |browser: &Browser| {
        browser.command("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": false }));
        let focused = browser.script("return document.activeElement.innerText || document.activeElement.name");
        browser.command("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": true }));
        focused.as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(focus(&browser), "To the content", "what the keyboard comes to first");
    let mut came_to = String::new();
    for _ in 0..10 {
        browser.type_text(tab);
        came_to = focus(&browser);
        if came_to == "token" {
            break;
        }
    }
    assert_eq!(came_to, "token");
    browser.type_text(&format!("{}{enter}", served.link.split_once('#').unwrap().1));
    wait_until("it asks who this is", || {
        browser.command("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": false }));
        let title = browser.now("return document.title");
        browser.command("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": true }));
        title.as_str().is_some_and(|title| title.starts_with("Is this you?"))
    });
    wait_until("the keyboard comes to the button", || {
        browser.type_text(tab);
        focus(&browser) == "Log in as you"
    });
    browser.type_text(enter);
    wait_until("the form has logged in", || browser.url() == format!("{}/", served.origin));
    browser.go(&format!("{}/?q=%3Cone%40x%3E", served.origin));
    assert!(browser.url().contains("/messages/"), "{}", browser.url());
    browser.command("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": false }));
    assert!(browser.text().contains("DELIVERED to scuba@x"), "{}", browser.text());
    // A page of another site sends our form.
    browser.go(&format!(
        "data:text/html,<form method=post action='{}/logout'><button>You have won</button></form>",
        served.origin
    ));
    browser.script("document.querySelector('button').click()");
    wait_until("it is refused", || browser.text().contains("sent by another site"));
    // Who follows a link from there is logged in all the same.
    browser.go(&format!("data:text/html,<a href='{}/locks'>Look</a>", served.origin));
    browser.script("document.querySelector('a').click()");
    wait_until("the link leads there", || {
        browser.text().contains("Logged in as you") && browser.url().ends_with("/locks")
    });
    // A page of another site shows ours in a frame: the browser is asked not to, and does not.
    let other = Canary::with_page(&format!("<p>Theirs</p><iframe src='{}/locks'></iframe>", served.origin));
    let mut complaints = browser.complaints();
    browser.go(&other.origin);
    wait_until("it is refused", || {
        complaints.extend(browser.complaints());
        complaints.iter().any(|complaint| complaint.contains("frame-ancestors 'none'"))
    });
    assert_eq!(browser.text().trim(), "Theirs");
    let framed = browser.text_of_frame();
    assert!(!framed.contains("maildrop") && !framed.contains("other site"), "{framed}");
}
