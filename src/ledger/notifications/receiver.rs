//! How a receiver does, as a settlement leaves it in `subscription_queues`.

use super::{Next, Settlement};
use std::fmt::Write;

/// Since when it fails. One that has taken anything among these tries, or has answered its question, has failed since then only: how long
/// it had failed before is over, whatever came in between.
pub(super) fn failing_since(settlement: &Settlement<'_>, now: &str) -> String {
    let is_taken = settlement.tries.iter().any(|one| one.next == Next::Done);
    let is_verified = matches!(settlement.state, Some(("active", _)));
    match settlement.failures {
        0 => "NULL".into(),
        _ if is_taken || is_verified => now.into(),
        _ => format!("COALESCE(failing_since, {now})"),
    }
}

/// When it was last heard of, and what was last amiss.
pub(super) fn last_seen(settlement: &Settlement<'_>, now: &str, literal: impl Fn(&str) -> String) -> String {
    let (tries, mut set) = (settlement.tries, String::new());
    if tries.iter().any(|one| one.next == Next::Done) {
        let _ = write!(set, ", last_success_at = {now}");
    }
    if let Some(failed) = tries.iter().rev().find(|one| one.next != Next::Done) {
        let _ = write!(set, ", last_failure_at = {now}, last_failure = {}", literal(&failed.outcome));
    }
    set
}

#[cfg(test)]
mod tests {
    use super::super::Try;
    use super::*;
    use std::time::Duration;
    use uuid::Uuid;

    fn tried(next: Next) -> Try {
        let outcome = if next == Next::Done { "answered 204" } else { "answered 500" }.to_owned();
        let response = None;
        let (started_at, took) = (0, Duration::ZERO);
        Try { position: Some(1), due_at: 0, started_at, took, status: None, outcome, response, next }
    }

    #[test]
    fn who_has_taken_anything_has_failed_since_then_and_no_longer() {
        let (again, done, given_up) = (Next::Again(Duration::ZERO), Next::Done, Next::GivenUp);
        let (never, new, kept) = ("NULL", "now()", "COALESCE(failing_since, now())");
        for (failures, tries, state, since) in [
            (0, &[done][..], None, never),
            (0, &[again, done], None, never),
            (1, &[again], None, kept),
            (2, &[again, given_up], Some(("disabled", None)), kept),
            (1, &[done, again], None, new),
            // As they came in: what was sent before may be answered later.
            (1, &[again, done, given_up], None, new),
            (1, &[again], Some(("active", None)), new),
        ] {
            let tries: Vec<Try> = tries.iter().copied().map(tried).collect();
            let settlement = Settlement {
                subscription: Uuid::nil(),
                in_order: false,
                by: Uuid::nil(),
                lease: None,
                host: "mx1",
                tries: &tries,
                failures,
                open_for: None,
                state,
                callback: "",
                idle: false,
                alone: false,
            };
            assert_eq!(failing_since(&settlement, "now()"), since, "{settlement:?}");
            let told = last_seen(&settlement, "now()", |outcome| format!("'{outcome}'"));
            let (good, bad) = (tries.iter().any(|one| one.next == done), tries.iter().any(|one| one.next != done));
            assert_eq!(told.contains(", last_success_at = now()"), good, "{told}");
            assert_eq!(told.contains(", last_failure_at = now(), last_failure = 'answered 500'"), bad, "{told}");
        }
    }
}
