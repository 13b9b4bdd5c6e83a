//! Searches for attempts, and the figures above them.

use super::{Attempt, DAY, MINUTE, Site, THEN, identity, key, lock, mailbox, site};
use crate::database::{Tables, Value};
use crate::ledger::activity::{self, Counted, FoundTried, ResultFilter, SearchBy, Tried, Wanted};
use crate::ledger::audit_queries;
use crate::ledger::time_span;
use crate::message::Role;
use uuid::Uuid;

const HOUR: i64 = 60 * MINUTE;

fn number(one: &Tried) -> i64 {
    i64::from_be_bytes(one.identity[24..].try_into().unwrap())
}

fn numbers(found: &FoundTried) -> Vec<i64> {
    found.tried.iter().map(number).collect()
}

/// All of the day that begins with THEN.
fn that_day() -> Wanted {
    Wanted { since: THEN, until: Some(THEN + DAY), ..Wanted::default() }
}

/// The last two days, which have not ended.
fn of_late(now: i64) -> Wanted {
    Wanted { since: now - 2 * DAY, ..Wanted::default() }
}

impl Site {
    fn now(&mut self) -> i64 {
        time_span::now(&mut self.database).unwrap()
    }

    /// Continues a search that ended because it took too long, as a user of the web UI would.
    fn tried_of(&mut self, wanted: &Wanted, limit: usize) -> FoundTried {
        let is_newest_alone = matches!(wanted.by, Some(SearchBy::QueueId(_, None)));
        let (mut wanted, mut before) = (wanted.clone(), Vec::new());
        loop {
            let mut found = activity::find(&mut self.database, &wanted, limit - before.len()).unwrap();
            before.append(&mut found.tried);
            found.tried = before;
            match found.looked_back_to {
                Some(back_to) if found.tried.is_empty() || !is_newest_alone => wanted.until = Some(back_to),
                _ => return found,
            }
            before = found.tried;
        }
    }

    /// The numbers of the messages whose attempts match.
    fn all_of(&mut self, wanted: &Wanted) -> Vec<i64> {
        let found = self.tried_of(wanted, 500);
        assert!(!found.more && found.looked_back_to.is_none(), "{wanted:?}: {found:?}");
        numbers(&found)
    }

    fn all_by(&mut self, by: SearchBy, wanted: Wanted) -> Vec<i64> {
        self.all_of(&Wanted { by: Some(by), ..wanted })
    }

    fn set(&mut self, sql: &str, values: &[Value<'_>]) {
        self.database.change("filling", sql, values).unwrap();
    }

    fn message_about(&mut self, message: i64, recorded_at: i64, subject: &str, from: &str) {
        self.message(message, recorded_at);
        let values = [Value::Text(subject), Value::Text(from), Value::Integer(message)];
        self.set("UPDATE messages SET subject = ?, header_from = ? WHERE id = ?", &values);
    }
}

#[test]
fn what_is_wanted_is_found_and_reported_from_the_rest_in_the_same_way() {
    let mut site = site();
    let outcomes = [
        Some("appended"),
        Some("already there"),
        Some("busy"),
        Some("deferred: over quota"),
        Some("refused: no such user"),
        None,
        Some("died; its copy was looked for"),
        Some("owed"),
        Some("already there; not looked for"),
        Some("adopted"),
    ];
    for (number, outcome) in (1..).zip(outcomes) {
        let began = THEN + number * MINUTE;
        site.tried(Attempt {
            host: if number % 2 == 0 { "mx2" } else { "mx1" },
            user: if number % 3 == 0 { "anna" } else { "doug" },
            role: if number > 7 { Role::Sender } else { Role::Recipient },
            ended: outcome.map(|outcome| (began + 1, outcome)),
            ..Attempt::at(number, began)
        });
    }
    let with_result = |result| Wanted { result: Some(result), ..that_day() };
    let role = |role| Wanted { role: Some(role), ..that_day() };
    let host = |host: &str, wanted| Wanted { host: Some(host.into()), ..wanted };
    let user = |user: &str, wanted| Wanted { user: Some(user.into()), ..wanted };
    for (wanted, expected) in [
        (that_day(), &[10_i64, 9, 8, 7, 6, 5, 4, 3, 2, 1] as &[_]),
        (with_result(ResultFilter::Delivered), &[10, 9, 8, 2, 1]),
        (with_result(ResultFilter::Deferred), &[4, 3]),
        (with_result(ResultFilter::Refused), &[5]),
        (with_result(ResultFilter::Unended), &[7, 6]),
        (role(Role::Sender), &[10, 9, 8]),
        (role(Role::Recipient), &[7, 6, 5, 4, 3, 2, 1]),
        (host("mx2", that_day()), &[10, 8, 6, 4, 2]),
        (user("anna", that_day()), &[9, 6, 3]),
        (user("anna", host("mx2", that_day())), &[6]),
        (host("mx1", role(Role::Sender)), &[9]),
        (user("doug", role(Role::Sender)), &[10, 8]),
        (host("mx1", with_result(ResultFilter::Deferred)), &[3]),
        (host("mx3", with_result(ResultFilter::Deferred)), &[]),
        (Wanted { role: Some(Role::Recipient), ..with_result(ResultFilter::Delivered) }, &[2, 1]),
        (Wanted { since: THEN + 3 * MINUTE, ..that_day() }, &[10, 9, 8, 7, 6, 5, 4, 3]),
        (Wanted { since: THEN + 3 * MINUTE + 1, ..that_day() }, &[10, 9, 8, 7, 6, 5, 4]),
        (Wanted { until: Some(THEN + 3 * MINUTE), ..that_day() }, &[2, 1]),
        (Wanted { until: Some(THEN + 3 * MINUTE + 1), ..that_day() }, &[3, 2, 1]),
        (Wanted { until: Some(THEN + 3 * MINUTE), ..with_result(ResultFilter::Deferred) }, &[]),
    ] {
        assert_eq!(site.all_of(&wanted), expected, "{wanted:?}");
    }
}

#[test]
fn older_ones_are_shown_page_by_page_however_far_apart_they_are() {
    let mut site = site();
    for number in 1..8 {
        site.tried(Attempt::at(number, THEN + number * 3 * HOUR));
    }
    // Two recipients of one message in one microsecond, which are distinguished by the keys of their copies.
    site.tried(Attempt { user: "anna", ..Attempt::at(4, THEN + 12 * HOUR) });
    let mut seen = Vec::new();
    let mut page = that_day();
    for more in [true, true, false] {
        let found = site.tried_of(&page, 3);
        assert_eq!(found.more, more);
        page.before = found.tried.last().map(|last| last.place);
        seen.extend(found.tried.iter().map(|one| format!("{} {}", number(one), one.user)));
    }
    seen[3..5].sort();
    assert_eq!(seen, ["7 doug", "6 doug", "5 doug", "4 anna", "4 doug", "3 doug", "2 doug", "1 doug"]);
    let (seven, eight) = (site.tried_of(&that_day(), 7), site.tried_of(&that_day(), 8));
    assert_eq!((seven.tried.len(), seven.more, eight.tried.len(), eight.more), (7, true, 8, false));
}

#[test]
fn the_newest_come_with_what_is_known_of_their_messages() {
    let mut site = site();
    let now = site.now();
    for number in 1..6 {
        site.tried(Attempt::at(number, now - number * 10 * MINUTE));
    }
    // By a clock that is ahead; and too long ago.
    site.tried(Attempt::at(6, now + MINUTE / 2));
    site.tried(Attempt::at(7, now - 3 * DAY));
    // A message that was recorded last; and one before many others.
    site.message_about(1, now, "hello", "Lisa <lisa@x>");
    for other in 100..140 {
        site.message(other, now);
    }
    site.message_about(200, now, "the last", "Lisa <lisa@x>");
    site.tried(Attempt::at(200, now - MINUTE));
    let shown = |found: &FoundTried| -> Vec<String> {
        let of = |one: &Tried| format!("{} {}", number(one), one.subject.as_deref().unwrap_or("?"));
        found.tried.iter().map(of).collect()
    };
    let all = ["6 ?", "200 the last", "1 hello", "2 ?", "3 ?", "4 ?", "5 ?"];
    for limit in [3, 6, 7, 8] {
        let found = site.tried_of(&of_late(now), limit);
        assert_eq!(shown(&found), all[..limit.min(7)], "{limit}");
        assert_eq!((found.more, found.looked_back_to), (limit < 7, None), "{limit}");
    }
    // The same with an end of the time, so that it is no list of the newest.
    let named = Wanted { until: Some(now + MINUTE), ..of_late(now) };
    assert_eq!(shown(&site.tried_of(&named, 7)), all);
    let author = site.tried_of(&of_late(now), 7).tried.swap_remove(2).from;
    assert_eq!(author.as_deref(), Some("Lisa <lisa@x>"));
    // The attempts for one user, who has none among the last.
    assert!(site.all_of(&Wanted { user: Some("anna".into()), ..of_late(now) }).is_empty());
}

#[test]
fn how_long_an_attempt_took_is_the_sum_of_its_stages() {
    let mut site = site();
    site.tried(Attempt::at(1, THEN));
    site.tried(Attempt::at(2, THEN));
    site.set(
        "UPDATE attempts SET stages = '{\"connect\":1.5,\"lock\":0.25}' WHERE message_id = '0@x' AND identity = ?",
        &[Value::Bytes(identity(1).as_bytes())],
    );
    let mut took: Vec<_> = site.tried_of(&that_day(), 5).tried.iter().map(|one| (number(one), one.took())).collect();
    took.sort_by_key(|(number, _)| *number);
    assert_eq!(took, [(1, Some(1.75)), (2, None)]);
}

#[test]
fn a_message_id_or_a_queue_id_with_its_lock_finds_old_attempts_too() {
    let mut site = site();
    let now = site.now();
    // Ten messages have one Message-ID.
    for number in [11, 12, 21] {
        site.tried(Attempt { queue_id: Some("4bQ"), ..Attempt::at(number, THEN) });
    }
    site.tried(Attempt { queue_id: Some("4bX"), ..Attempt::at(13, THEN + MINUTE) });
    assert_eq!(site.all_by(SearchBy::Lock(lock(11)), of_late(now))[0], 13);
    assert_eq!(site.all_by(SearchBy::Lock(lock(11)), of_late(now)).len(), 3);
    assert_eq!(site.all_by(SearchBy::Lock(lock(21)), of_late(now)), [21]);
    assert_eq!(site.all_by(SearchBy::QueueId("4bX".into(), Some(lock(11))), of_late(now)), [13]);
    assert_eq!(site.all_by(SearchBy::QueueId("4bQ".into(), Some(lock(21))), of_late(now)), [21]);
    assert!(site.all_by(SearchBy::QueueId("4bX".into(), Some(lock(21))), of_late(now)).is_empty());
}

#[test]
fn a_short_queue_id_is_that_of_the_newest_message_that_has_it() {
    let mut site = site();
    let now = site.now();
    let with = |number, began| Attempt { queue_id: Some("4bQ"), ..Attempt::at(number, began) };
    site.tried(with(11, now - 30 * HOUR));
    site.tried(with(3, now - 2 * HOUR));
    site.tried(with(4, now - 2 * HOUR - 1));
    site.tried(Attempt { queue_id: Some("4bX"), ..Attempt::at(5, now - HOUR) });
    let by = |id: &str, wanted| Wanted { by: Some(SearchBy::QueueId(id.into(), None)), ..wanted };
    let found = site.tried_of(&by("4bQ", of_late(now)), 5);
    assert_eq!((numbers(&found), found.more), (vec![3, 4], false));
    // Older attempts than the last one shown were not searched.
    assert_eq!(found.looked_back_to, Some(now - 2 * HOUR - 1));
    assert!(!site.tried_of(&by("4bQ", of_late(now)), 2).more);
    let first = site.tried_of(&by("4bQ", of_late(now)), 1);
    assert_eq!((numbers(&first), first.more, first.looked_back_to), (vec![3], true, None));
    let next = Wanted { before: Some(first.tried[0].place), ..of_late(now) };
    assert_eq!(numbers(&site.tried_of(&by("4bQ", next), 1)), [4]);
    // The whole time was searched.
    assert!(site.all_of(&by("4bZ", of_late(now))).is_empty());
    let late = Wanted { since: now - HOUR, ..of_late(now) };
    assert!(site.all_of(&by("4bQ", late)).is_empty());
    let day_before = Wanted { until: Some(now - 2 * HOUR - 1), since: now - 30 * HOUR, ..Wanted::default() };
    assert_eq!(site.all_of(&by("4bQ", day_before)), [11]);
    // The search is complete at the beginning of its time, however few slices were read.
    let minute = Wanted { since: now - HOUR, until: Some(now - HOUR + MINUTE), ..Wanted::default() };
    assert_eq!(site.all_of(&by("4bX", minute)), [5]);
    // By the clock of its host it began nine hours later.
    let name = time_span::first_uuid_of(now + 5 * HOUR);
    site.tried(Attempt { name: Some(name), queue_id: Some("4bC"), ..Attempt::at(8, now - 4 * HOUR) });
    assert_eq!(numbers(&site.tried_of(&by("4bC", of_late(now)), 5)), [8]);
}

#[test]
fn the_lock_of_a_queue_id_is_found_about_the_time_when_its_message_came() {
    let mut site = site();
    let now = site.now();
    site.tried(Attempt { queue_id: Some("4bQ"), ..Attempt::at(11, now - 5 * HOUR) });
    let mut of = |queue_id, arrived| activity::lock_of_queue_id(&mut site.database, queue_id, arrived).unwrap();
    for arrived in [now - 5 * HOUR - 1, now - 9 * HOUR, now - 5 * HOUR + 50 * MINUTE] {
        // A machine that is suspended for a moment has no time for the search.
        let found = (0..9).find_map(|_| of("4bQ", arrived));
        assert_eq!(found, Some(lock(11)), "{}", now - arrived);
    }
    assert_eq!(of("4bQ", now - 5 * HOUR + 62 * MINUTE), None);
    assert_eq!(of("4bX", now - 5 * HOUR), None);
}

#[test]
fn an_address_is_a_recipients_a_mailboxs_users_or_a_senders() {
    let mut site = site();
    // The second is sent by Lisa, as the envelope sender is spelt.
    for (number, user, sender) in [(1, "doug", None), (2, "anna", Some("Lisa@x")), (3, "doug", Some("anna@y"))] {
        site.tried(Attempt { user, sender, ..Attempt::at(number, THEN + number * 5 * HOUR) });
    }
    let by = |address: &str, user: &str| SearchBy::Address { address: address.into(), user: user.into() };
    assert_eq!(site.all_by(by("doug@x", "nobody"), that_day()), [3, 1]);
    assert_eq!(site.all_by(by("nobody@x", "doug"), that_day()), [3, 1]);
    assert_eq!(site.all_by(by("anna", "nobody"), that_day()), [2]);
    assert_eq!(site.all_by(by("lisa@x", "doug"), that_day()), [3, 2, 1]);
    assert_eq!(site.all_by(by("lisa@x", "nobody"), that_day()), [2]);
    assert!(site.all_by(by("lisa@y", "nobody"), that_day()).is_empty());
    let of_mx2 = Wanted { host: Some("mx2".into()), ..that_day() };
    assert!(site.all_by(by("lisa@x", "doug"), of_mx2).is_empty());
}

/// Only a long search is answered in parts: a user who waits for the rest would have to repeat it.
#[test]
fn what_is_read_soon_is_answered_at_once() {
    let mut site = site();
    for number in 1..=3 {
        site.tried(Attempt {
            queue_id: Some("4bQ"),
            sender: Some("lisa@x"),
            ..Attempt::at(number, THEN + number * HOUR)
        });
        site.message(number, THEN + number * HOUR);
    }
    let by = |by| Wanted { by: Some(by), ..that_day() };
    let lisas = SearchBy::Address { address: "lisa@x".into(), user: "nobody".into() };
    for (wanted, expected) in [
        (that_day(), &[3_i64, 2, 1] as &[_]),
        (by(lisas), &[3, 2, 1]),
        (by(SearchBy::Piece("nothing".into())), &[]),
        (by(SearchBy::QueueId("4bX".into(), None)), &[]),
    ] {
        // Repeated on a machine that has no time for it.
        let found = (0..100).map(|_| activity::find(&mut site.database, &wanted, 500).unwrap());
        let whole = found.into_iter().find(|found| found.looked_back_to.is_none());
        assert_eq!(whole.as_ref().map(numbers).as_deref(), Some(expected), "{wanted:?}");
    }
}

#[test]
fn a_piece_of_a_subject_or_of_an_author_is_a_piece_and_no_pattern() {
    let mut site = site();
    for (number, subject, from) in [
        (1, "50% off!", "Shop <shop@x>"),
        (2, "50 coffees off", "Anna <anna@x>"),
        (3, "a_b", "Bob <bob@x>"),
        (4, "aXb", ""),
    ] {
        site.tried(Attempt::at(number, THEN + number * MINUTE));
        site.message_about(number, THEN + number * MINUTE, subject, from);
    }
    // Nothing is known of its message.
    site.tried(Attempt::at(5, THEN));
    for (piece, expected) in [
        ("0% o", &[1_i64] as &[_]),
        ("OFF!", &[1]),
        ("off", &[2, 1]),
        ("a_b", &[3]),
        ("A", &[4, 3, 2]),
        ("anna@", &[2]),
        ("SHOP", &[1]),
        // An envelope sender is no part of it.
        ("lisa", &[]),
        ("nothing", &[]),
    ] {
        assert_eq!(site.all_by(SearchBy::Piece(piece.into()), that_day()), expected, "{piece}");
    }
}

#[test]
fn what_came_in_since_a_moment_is_reported_to_who_asks_again_and_again() {
    let mut site = site();
    for number in 1..6 {
        site.tried(Attempt::at(number, THEN + number * MINUTE));
    }
    // The clock of its host is an hour behind.
    let name = time_span::first_uuid_of(THEN - 57 * MINUTE);
    site.tried(Attempt { name: Some(name), ..Attempt::at(6, THEN + 2 * MINUTE + 1) });
    let mut since = |since, limit| -> Vec<i64> {
        let wanted = Wanted { since, ..that_day() };
        let found = activity::find(&mut site.database, &wanted, limit).unwrap();
        found.tried.iter().map(number).collect()
    };
    assert_eq!(since(THEN + 2 * MINUTE + 1, 9), [5, 4, 3, 6]);
    assert_eq!(since(THEN + 3 * MINUTE, 9), [5, 4, 3]);
    assert_eq!(since(THEN + 3 * MINUTE + 1, 9), [5, 4]);
    assert_eq!(since(THEN + 3 * MINUTE, 2), [5, 4]);
}

#[test]
fn the_figures_count_what_came_of_recipients_copies_and_what_waits_still() {
    let mut site = site();
    let mut name = 0;
    let mut came = |site: &mut Site, number, role, began, outcome| {
        name += 1;
        let name = Uuid::from_u128(time_span::first_uuid_of(began).as_u128() + name);
        site.tried(Attempt { role, name: Some(name), ended: Some((began + 1, outcome)), ..Attempt::at(number, began) });
    };
    let (deferred, refused) = ("deferred: over quota", "refused: no such user");
    let hour = THEN + HOUR;
    // Too long ago for the one, and for both.
    for (number, at) in [(1, hour - 1), (2, THEN - 1)] {
        came(&mut site, number, Role::Recipient, at, "appended");
        came(&mut site, number + 10, Role::Recipient, at, refused);
    }
    came(&mut site, 3, Role::Recipient, hour, "appended");
    came(&mut site, 4, Role::Recipient, hour, "already there");
    came(&mut site, 5, Role::Recipient, hour, refused);
    came(&mut site, 6, Role::Sender, hour, "appended");
    // Two that still wait, with two attempts each.
    for number in [20, 21] {
        came(&mut site, number, Role::Recipient, THEN, "busy");
        came(&mut site, number, Role::Recipient, THEN + 1, deferred);
    }
    // Not waiting: delivered in time; delivered, as the copies say; refused, before the time and in it; an author's;
    // too long ago.
    came(&mut site, 22, Role::Recipient, THEN, deferred);
    came(&mut site, 22, Role::Recipient, THEN + 1, "adopted");
    came(&mut site, 23, Role::Recipient, THEN, deferred);
    site.message(23, THEN);
    site.copy(23, Role::Recipient, "doug", Some(1), THEN);
    came(&mut site, 24, Role::Recipient, THEN - MINUTE, refused);
    came(&mut site, 24, Role::Recipient, THEN, deferred);
    came(&mut site, 25, Role::Recipient, THEN, deferred);
    came(&mut site, 25, Role::Recipient, THEN + 1, refused);
    came(&mut site, 26, Role::Sender, THEN, deferred);
    came(&mut site, 27, Role::Recipient, THEN - 1, deferred);
    let counted = activity::count(&mut site.database, hour, THEN).unwrap();
    assert_eq!(counted, Counted { delivered: 2, refused: 1, deferred: 2 });
    let nothing = activity::count(&mut site.database, THEN + DAY, THEN + DAY).unwrap();
    assert_eq!(nothing, Counted::default());
}

#[test]
fn what_is_owed_is_shown_the_newest_first() {
    let mut site = site();
    for number in 1..4 {
        site.message_about(number, THEN, &format!("number {number}"), "Lisa <lisa@x>");
        site.copy(number, Role::Sender, "lisa", None, THEN + number);
    }
    site.message(4, THEN);
    site.copy(4, Role::Sender, "lisa", Some(9), THEN + DAY);
    let printed = |site: &mut Site, limit| {
        let (owed, more) = audit_queries::latest_owed(&mut site.database, limit).unwrap();
        let subjects: Vec<_> = owed.iter().map(|one| one.subject.clone().unwrap()).collect();
        let first = owed.first().map(|one| (one.user.clone(), one.mailbox.clone(), one.reason.clone(), one.updated_at));
        (subjects, more, first)
    };
    let first = Some(("lisa".into(), mailbox(Role::Sender).into(), Some("over quota".into()), THEN + 3));
    assert_eq!(
        printed(&mut site, 3),
        (vec!["number 3".into(), "number 2".into(), "number 1".into()], false, first.clone())
    );
    assert_eq!(printed(&mut site, 2), (vec!["number 3".into(), "number 2".into()], true, first));
    let key = key(3, Role::Sender, "lisa");
    site.set("DELETE FROM copies WHERE copy_key = ?", &[Value::Bytes(key.as_bytes())]);
    assert_eq!(printed(&mut site, 1).0, ["number 2"]);
}

/// More matches than one slice has; many of them in one microsecond, at which a slice may end.
#[test]
fn what_is_rare_is_found_behind_many_slices_in_both_directions() {
    let mut site = site();
    let now = site.now();
    let began = now - 20 * HOUR;
    let fill = "INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, recipient, \
                host, pid, started_at) WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < 12000) \
                SELECT CAST(printf('%016d', i) AS BLOB), zeroblob(32), 'recipient', 'many', 'INBOX', zeroblob(32), zeroblob(32), 'x', \
                'many@x', 'mx1', 1, ? + CASE WHEN i < 7000 THEN 0 ELSE i END FROM n";
    site.set(fill, &[Value::Integer(began)]);
    site.tried(Attempt { queue_id: Some("4bOLD"), ..Attempt::at(1, began - 1) });
    site.tried(Attempt { queue_id: Some("4bNEW"), ..Attempt::at(11, began + HOUR) });
    let wanted = |queue_id: &str| Wanted { by: Some(SearchBy::QueueId(queue_id.into(), None)), ..of_late(now) };
    assert_eq!(numbers(&site.tried_of(&wanted("4bOLD"), 5)), [1]);
    assert_eq!(site.all_of(&Wanted { user: Some("doug".into()), ..of_late(now) }), [11, 1]);
    let mut of = |queue_id, arrived| {
        (0..9).find_map(|_| activity::lock_of_queue_id(&mut site.database, queue_id, arrived).unwrap())
    };
    assert_eq!(of("4bNEW", began - HOUR), Some(lock(11)));
    assert_eq!(of("4bOLD", began - HOUR), Some(lock(1)));
}
