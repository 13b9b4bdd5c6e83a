use super::*;

const MINUTE: i64 = 60_000_000;
const DAY: i64 = 24 * 60 * MINUTE;

/// How often a copy that always fails is tried up to this age, if a run starts every five minutes.
fn tries(age: i64) -> usize {
    let (mut last_try, mut tries) = (0, 0);
    for now in (0..age).step_by(usize::try_from(5 * MINUTE).unwrap()) {
        if is_due(now, 0, last_try) {
            (last_try, tries) = (now, tries + 1);
        }
    }
    tries
}

#[test]
fn what_fails_is_tried_less_and_less_often_and_never_given_up() {
    let hour = tries(DAY / 24);
    let (day, week, month) = (tries(DAY), tries(7 * DAY), tries(30 * DAY));
    assert!((8..=12).contains(&hour), "{hour} in its first hour");
    assert!((25..=50).contains(&day), "{day} on its first day");
    assert!((45..=75).contains(&week), "{week} in its first week");
    // From then on it is tried every six hours.
    assert_eq!(month - tries(20 * DAY), 40);
}

#[test]
fn a_copy_that_was_given_up_after_a_day_is_tried_within_hours() {
    assert!(!is_due(DAY + 2 * 60 * MINUTE, 0, DAY));
    assert!(is_due(DAY + 3 * 60 * MINUTE, 0, DAY));
    // A copy that was only just recorded is due immediately.
    assert!(is_due(0, 0, 0));
}

#[test]
fn what_a_delivery_has_just_left_owed_was_never_tried() {
    assert!(!was_tried(DAY, DAY) && !was_tried(DAY, DAY + MINUTE));
    assert!(was_tried(DAY, DAY + MINUTE + 1));
    // A clock that was set back.
    assert!(!was_tried(DAY, 0) && !was_tried(i64::MAX, i64::MIN));
}

#[test]
fn a_run_has_time_for_its_first_copy_however_long_a_delivery_may_take() {
    assert_eq!(longest_run(Duration::from_mins(4)), Duration::from_hours(1));
    for deadline in [Duration::from_secs(59 * 60 + 30), Duration::from_hours(1), Duration::from_hours(5)] {
        // Listing the owed copies has used this much of the time.
        let left = longest_run(deadline) - LISTING;
        assert!(left > deadline + AROUND_A_DELIVERY, "{deadline:?}");
    }
}

/// An owed copy of this user's mailbox for this recipient.
fn owed(user: &str, recipient: &str) -> OwedCopyKey {
    let key = crate::ledger::CopyKey::from_bytes([0; 32]);
    OwedCopyKey { key, user: user.into(), recipient: recipient.into(), last_try: 0, recorded_at: 0 }
}

/// An embedded ledger with one message, to be filled.
fn ledger(folder: &tempfile::TempDir) -> (Site, Box<dyn Database>, i64) {
    let site = Site::embedded(crate::site::embedded::Embedded::new(folder.path().to_owned()));
    let mut ledger = site.open_database(None, Deadline::after(LISTING)).unwrap();
    let now = time_span::now(ledger.as_mut()).unwrap();
    let sql = format!(
        "INSERT INTO messages (id, identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at) \
         VALUES (1, zeroblob(32), zeroblob(32), '<a@x>', zeroblob(32), '', '[]', 1, {})",
        now - DAY
    );
    ledger.change("filling", &sql, &[]).unwrap();
    (site, ledger, now)
}

/// Adds copies of that message. `user` is an SQL expression with the number `n` of each copy.
fn fill(ledger: &mut dyn Database, kind: &str, number: u32, user: &str, state: &str, last_try: i64) {
    let sql = format!(
        "INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, updated_at) \
         WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < {number} - 1) \
         SELECT CAST(printf('%-20s%12d', '{kind}', n) AS BLOB), 1, 'sender', {user}, 'Sent', 'doug@x', '{state}', \
         {last_try} + n FROM n"
    );
    ledger.change("filling", &sql, &[]).unwrap();
}

/// The users whose copies are tried, in their order.
fn order(plan: &Plan, ledger: &mut dyn Database) -> Vec<String> {
    in_turns(plan, ledger).unwrap().into_iter().map(|owed| owed.user).collect()
}

/// There is more than one page of each kind.
#[test]
fn what_was_never_tried_and_what_was_have_their_turns() {
    let folder = tempfile::tempdir().unwrap();
    let (site, mut ledger, now) = ledger(&folder);
    for (kind, number, last_try) in [("untried", 600, now - DAY), ("tried", 1200, now - DAY / 2), ("late", 1, now)] {
        fill(ledger.as_mut(), kind, number, &format!("'{kind}' || n"), "owed", last_try);
    }
    let plan = Plan::now(&site, ledger.as_mut()).unwrap();
    let order = order(&plan, ledger.as_mut());
    let mut expected: Vec<String> = (0..600).flat_map(|n| [format!("untried{n}"), format!("tried{n}")]).collect();
    expected.extend((600..1200).map(|n| format!("tried{n}")));
    // The copy of "late" is not due yet.
    assert_eq!(order.len(), expected.len());
    assert_eq!(order, expected);
}

/// This holds for any number of strangers, tried or not. The users who got mail do not hold up all others either.
#[test]
fn strangers_who_have_never_got_anything_hold_up_nobody_who_has() {
    let folder = tempfile::tempdir().unwrap();
    let (site, mut ledger, now) = ledger(&folder);
    fill(ledger.as_mut(), "strangers", 2000, "'stranger' || n", "owed", now - DAY);
    fill(ledger.as_mut(), "tried strangers", 2000, "'tried' || n", "owed", now - DAY / 2);
    fill(ledger.as_mut(), "copies of lisa", 12, "'lisa'", "owed", now - DAY + MINUTE / 2);
    fill(ledger.as_mut(), "tried copies of kim", 12, "'kim'", "owed", now - DAY / 2 + MINUTE);
    for user in ["lisa", "kim"] {
        fill(ledger.as_mut(), &format!("got by {user}"), 1, &format!("'{user}'"), "delivered", now - DAY);
    }
    let plan = Plan::now(&site, ledger.as_mut()).unwrap();
    let order = order(&plan, ledger.as_mut());
    assert_eq!(order.len(), 4024);
    let first = |user: &str| order.iter().take(48).filter(|one| one.starts_with(user)).count();
    assert_eq!(["lisa", "kim", "stranger", "tried"].map(first), [12; 4]);
}

/// The state after these users' mailboxes have failed, each with a copy of its own.
fn shown(failures: &[(&str, MailboxFailure)]) -> FailureTracker {
    let mut shown = FailureTracker::default();
    for (user, failure) in failures {
        shown.note(user, &[*failure]);
    }
    shown
}

#[test]
fn a_login_that_is_refused_is_of_its_user_only() {
    use MailboxFailure::{AccessDenied, LoginRefused};
    let three = shown(&[("a", AccessDenied), ("b", LoginRefused), ("c", AccessDenied)]);
    assert_eq!(three.problem(), None);
    assert!(three.should_skip(&owed("a", "doug")) && !three.should_skip(&owed("d", "doug")));
}

#[test]
fn a_store_that_fails_ends_a_run_and_one_user_does_not() {
    use MailboxFailure::{ConnectionLost, IdentityIgnored, OverQuota, TimedOut, Unreachable};
    let down = [("a", Unreachable), ("a", Unreachable), ("a", IdentityIgnored)];
    assert!(shown(&down).problem().is_some());
    assert!(!shown(&down).should_skip(&owed("a", "doug")), "it is not about this user");
    let hangs = [("a", TimedOut), ("b", ConnectionLost), ("c", TimedOut)];
    assert!(shown(&hangs).problem().is_some());
    assert!(shown(&hangs[..1]).should_skip(&owed("a", "doug")));
    let mut one_is_fine = shown(&hangs[..2]);
    one_is_fine.note("c", &[]);
    one_is_fine.note("c", &[TimedOut]);
    assert_eq!(one_is_fine.problem(), None);
    assert_eq!(shown(&[("a", TimedOut), ("b", OverQuota), ("c", TimedOut), ("d", TimedOut)]).problem(), None);
    assert!(!shown(&[("b", OverQuota)]).should_skip(&owed("b", "doug")));
}

/// A mailbox that cannot be read for one copy cannot be read for other copies to the same recipient.
#[test]
fn a_mailbox_that_cannot_be_read_rules_out_what_would_be_read_from_there() {
    use MailboxFailure::{AccessDenied, Local};
    let mut shown = FailureTracker::default();
    shown.note("doug@x", &[AccessDenied, Local]);
    assert!(shown.should_skip(&owed("lisa", "doug@x")) && !shown.should_skip(&owed("lisa", "kim@x")));
}

#[test]
fn a_clock_that_was_set_back_holds_nothing_up() {
    assert!(is_due(0, DAY, DAY));
    assert!(is_due(DAY, 0, 30 * DAY));
    assert!(is_due(i64::MAX, i64::MIN, 0));
}

#[test]
fn a_run_is_reported_in_one_line() {
    assert_eq!(OwedRun::default().to_text(), "nothing is owed");
    let first_failure = Some("full".into());
    let run = OwedRun { finished: 3, failed: 1, passed_over: 2, still_owed: 7, first_failure, ..OwedRun::default() };
    let printed = "3 finished, 1 failed, 2 passed over, since their mailbox has just failed, 7 still owed; the first that failed: full";
    assert_eq!(run.to_text(), printed);
}
