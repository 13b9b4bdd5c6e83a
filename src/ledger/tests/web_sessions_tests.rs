//! Who may use the web UI, and for how long.

use super::{DAY, MINUTE, Site, site};
use crate::database::{Tables, Value};
use crate::ledger::web_sessions::{self, Lifetimes, WebRole};
use std::time::Duration;

const LIFETIMES: Lifetimes = Lifetimes { idle: Duration::from_hours(1), longest: Duration::from_hours(24 * 7) };
const HOUR: i64 = 60 * MINUTE;

/// The digest of a link or of a login.
fn link(number: u8) -> [u8; 32] {
    [number; 32]
}

fn login(number: u8) -> [u8; 32] {
    [0xa0 | number; 32]
}

impl Site {
    fn make_link(&mut self, number: u8, name: &str, role: WebRole) {
        let quarter = Duration::from_mins(15);
        web_sessions::make_login(&mut self.database, &link(number), name, role, quarter).unwrap();
    }

    fn redeem(&mut self, number: u8) -> Option<(String, WebRole)> {
        web_sessions::redeem(&mut self.database, &link(number), &login(number)).unwrap()
    }

    fn is_let_in(&mut self, number: u8) -> bool {
        web_sessions::session(&mut self.database, &login(number), LIFETIMES).unwrap().is_some()
    }

    fn names(&mut self) -> Vec<String> {
        let sessions = web_sessions::sessions(&mut self.database, LIFETIMES).unwrap();
        sessions.into_iter().map(|session| session.name).collect()
    }

    /// Moves logins and links so far into the past.
    fn pass(&mut self, span: i64) {
        for column in [
            "web_sessions SET last_seen_at = last_seen_at",
            "web_sessions SET created_at = created_at",
            "web_logins SET expires_at = expires_at",
        ] {
            self.database.change("waiting", &format!("UPDATE {column} - ?"), &[Value::Integer(span)]).unwrap();
        }
    }
}

#[test]
fn a_link_logs_in_once_and_not_for_ever() {
    let mut site = site();
    site.make_link(1, "lisa", WebRole::Operator);
    site.make_link(2, "doug", WebRole::Viewer);
    assert!(!site.is_let_in(1));
    assert_eq!(site.redeem(1), Some(("lisa".into(), WebRole::Operator)));
    assert!(site.is_let_in(1));
    assert_eq!(site.redeem(1), None);
    site.pass(15 * MINUTE);
    assert_eq!(site.redeem(2), None);
    assert!(!site.is_let_in(2));
    // Creating the next link deletes expired rows.
    site.make_link(3, "anna", WebRole::Admin);
    assert_eq!(site.number("SELECT count(*) FROM web_logins"), 1);
}

#[test]
fn a_login_ends_after_an_hour_without_a_request_and_after_a_week_in_any_case() {
    let mut site = site();
    for (number, name) in [(1, "lisa"), (2, "doug")] {
        site.make_link(number, name, WebRole::Reader);
        site.redeem(number).unwrap();
    }
    site.pass(HOUR - MINUTE);
    assert!(site.is_let_in(1));
    assert_eq!(site.names().len(), 2);
    site.pass(2 * MINUTE);
    // Lisa has used the web UI since.
    assert_eq!(site.names(), ["lisa"]);
    assert!(site.is_let_in(1) && !site.is_let_in(2));
    assert_eq!(site.number("SELECT count(*) FROM web_sessions"), 1);
    // However often it is used.
    for _ in 0..7 * 24 {
        site.pass(HOUR - MINUTE);
        assert!(site.is_let_in(1));
    }
    site.pass(4 * HOUR);
    site.database
        .change("looking", "UPDATE web_sessions SET last_seen_at = last_seen_at + ?", &[Value::Integer(4 * HOUR)])
        .unwrap();
    assert!(site.names().is_empty());
    assert!(!site.is_let_in(1));
    assert_eq!(site.number("SELECT count(*) FROM web_sessions"), 0);
}

#[test]
fn that_somebody_is_there_is_written_down_once_a_minute() {
    let mut site = site();
    site.make_link(1, "lisa", WebRole::Reader);
    site.redeem(1).unwrap();
    let mut seen = |span| {
        site.pass(span);
        let before = site.number("SELECT last_seen_at FROM web_sessions");
        assert!(site.is_let_in(1));
        site.number("SELECT last_seen_at FROM web_sessions") > before
    };
    assert!(seen(2 * MINUTE));
    // Five minutes in the future: less than one has passed, however long this takes.
    assert!(!seen(-5 * MINUTE));
    assert!(seen(8 * MINUTE));
}

#[test]
fn logins_end_by_themselves_by_name_or_for_their_age() {
    let mut site = site();
    for (number, name) in [(1, "lisa"), (2, "doug"), (3, "anna")] {
        site.make_link(number, name, WebRole::Admin);
        site.redeem(number).unwrap();
        site.pass(MINUTE);
    }
    assert_eq!(site.names(), ["anna", "doug", "lisa"]);
    web_sessions::end(&mut site.database, &login(2)).unwrap();
    assert_eq!(site.names(), ["anna", "lisa"]);
    let id = web_sessions::sessions(&mut site.database, LIFETIMES).unwrap()[1].id.clone();
    assert_eq!(id, "a1a1a1a1a1a1");
    assert!(web_sessions::end_named(&mut site.database, &id).unwrap());
    assert!(!web_sessions::end_named(&mut site.database, &id).unwrap());
    assert_eq!(site.names(), ["anna"]);
    // A login whose browser never came back.
    site.pass(7 * DAY);
    site.make_link(4, "bob", WebRole::Admin);
    assert_eq!(site.number("SELECT count(*) FROM web_sessions"), 0);
}
