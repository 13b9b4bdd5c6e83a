//! The operations log: what somebody has done manually is written down with who did it, shown to operators, and forgotten in time.

use crate::program::{feed, program};
use crate::support::clients_and_processes;
use crate::visitor::{Page, rows, text};
use maildrop_command::site::Site;
use maildrop_command::site::embedded::Embedded;
use std::path::Path;
use std::process::Output;

fn message(id: &str) -> String {
    format!("From: lisa@gmail.com\nMessage-ID: <{id}>\nSubject: {id}\n\n{id}\n")
}

fn run(arguments: &[&str], directory: &Path) -> Output {
    program(arguments).args(["--embedded", directory.to_str().unwrap()]).output().unwrap()
}

fn operator(page: &Page, directory: &Path) -> String {
    let output = run(&["web", "login", "--name", "olga", "--role", "operator"], directory);
    page.log_in(&String::from_utf8(output.stdout).unwrap()).cookie
}

fn ledger(directory: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(directory.join("ledger.sqlite")).unwrap()
}

/// Delivers to two, one of whom loses his mailbox then.
fn lose_a_mailbox(directory: &Path) {
    for recipient in ["doug@x", "scuba@x"] {
        let arguments =
            ["--embedded", directory.to_str().unwrap(), "--sender", "lisa@gmail.com", "--recipient", recipient];
        feed(program(&arguments), message("one@x").as_bytes()).delivered();
    }
    std::fs::remove_dir_all(directory.join("doug@x")).unwrap();
}

#[test]
fn what_replay_delivers_again_is_on_the_page_with_who_did_it() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    clients_and_processes::open(here);
    lose_a_mailbox(here);
    let page = Page::of(&Site::embedded(Embedded::new(here.to_owned())));
    let cookie = operator(&page, here);
    let log = || page.ask("GET", "/log", &[("cookie", &cookie)], "");
    let first = text(log().shown());
    assert!(first.contains("made a login") && !first.contains("restored"), "{first}");

    // What is looked at only, or is there already, is no operation.
    let restore = ["replay", "--restore", "--since", "1h"];
    assert!(run(&restore, here).status.success());
    assert_eq!(rows(log().shown()), 1, "the link to log in");
    let restored = run(&[&restore[..], &["--yes"]].concat(), here);
    assert!(restored.status.success(), "{restored:?}");
    assert!(run(&[&restore[..], &["--yes"]].concat(), here).status.success());
    std::fs::write(here.join("two.eml"), message("two@x")).unwrap();
    let two = here.join("two.eml");
    let replay = ["replay", "--recipient", "doug@x", two.to_str().unwrap()];
    assert!(run(&[&replay[..], &["--dry-run"]].concat(), here).status.success());
    assert!(run(&replay, here).status.success());
    assert!(run(&replay, here).status.success());

    let shown = log();
    let screen = text(shown.shown());
    assert_eq!(rows(&shown.body), 3, "{screen}");
    let (newer, older) = screen.split_once("restored").expect("both");
    // One row for each run, with its command line.
    for has in ["by command line on ", "delivered again", "replay --recipient doug@x /", "1 delivered by process "] {
        assert!(newer.contains(has), "{has}: {screen}");
    }
    assert!(
        older.contains("replay --restore --since 1h --yes") && older.contains("1 delivered by process "),
        "{screen}"
    );
}

#[test]
fn a_replay_goes_on_where_the_log_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    clients_and_processes::open(here);
    lose_a_mailbox(here);
    ledger(here).execute("ALTER TABLE operations RENAME TO elsewhere", ()).unwrap();
    let restored = run(&["replay", "--restore", "--since", "1h", "--yes"], here);
    assert!(restored.status.success(), "{restored:?}");
    assert_eq!(std::fs::read_dir(here.join("doug@x/new")).unwrap().count(), 1);
}

#[test]
fn it_is_read_page_by_page_and_what_is_old_is_forgotten() {
    const DAY: i64 = 86_400_000_000;
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    clients_and_processes::open(here);
    let ledger = ledger(here);
    let now: i64 =
        ledger.query_row("SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER)", (), |row| row.get(0)).unwrap();
    for number in 0..120_i64 {
        let at = now - (120 - number) * 10 * DAY;
        let sql = "INSERT INTO operations (created_at, actor, interface, host, operation, target, outcome) \
                   VALUES (?1, 'anna', 'web UI', 'mx1', 'a word of a newer release', ?2, '<script>alert(1)</script>')";
        ledger.execute(sql, (at, format!("number {number}."))).unwrap();
    }
    let page = Page::of(&Site::embedded(Embedded::new(here.to_owned())));
    let cookie = operator(&page, here);
    assert_eq!(ledger.execute("DELETE FROM operations WHERE operation = 'made a login'", ()).unwrap(), 1);
    let mut path = "/log".to_owned();
    let mut seen = Vec::new();
    loop {
        let answer = page.ask("GET", &path, &[("cookie", &cookie)], "");
        assert!(!answer.shown().contains("<script>alert"), "{}", answer.body);
        let screen = text(&answer.body);
        let numbers =
            screen.split("number ").skip(1).filter_map(|rest| rest.split_once('.')).map(|(n, _)| n.to_owned());
        seen.extend(numbers);
        let links = answer.body.split("href=\"").filter_map(|rest| rest.split('"').next());
        // The page as a file has a link as well.
        let Some(next) = links.into_iter().find(|link| link.starts_with("/log?before=") && !link.contains("format="))
        else {
            break;
        };
        path = next.to_owned();
    }
    assert_eq!(seen, (0..120).rev().map(|number| number.to_string()).collect::<Vec<_>>());

    let prune = ["prune", "--operations-older-than", "365d", "--json"];
    let output = run(&[&prune[..], &["--dry-run"]].concat(), here);
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"would_remove\":84"), "{output:?}");
    let left = || ledger.query_row("SELECT count(*) FROM operations", (), |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(left(), 120);
    assert!(run(&prune, here).status.success());
    // That it was done is in it, as one more.
    assert_eq!(left(), 37);
    let newest =
        "SELECT interface || ' ' || operation || ' ' || target || ': ' || outcome FROM operations ORDER BY id DESC";
    let newest: String = ledger.query_row(newest, (), |row| row.get(0)).unwrap();
    assert_eq!(newest, "command line pruned operations: 84 removed, older than 365d");
    // A clock that was set back hides what is behind it until that is old, and nothing goes too early.
    ledger.execute("UPDATE operations SET created_at = created_at - ?1 WHERE id > 100", [1000 * DAY]).unwrap();
    assert!(run(&prune, here).status.success());
    assert_eq!(left(), 37);
}
