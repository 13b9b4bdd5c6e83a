//! A time line of the attempts at a message: a lane for each host, and a box for each attempt. Below the box is the time in
//! which the attempt waited for the message's lock, and held it.

use super::layout::{class, milliseconds, moment};
use crate::base::timestamp::{exact, span};
use crate::ledger::trace::{Had, LockSpan, TracedAttempt};
use maud::{Markup, html};
use std::time::Duration;

const LEFT: f64 = 110.0;
const WIDTH: f64 = 700.0;
/// The height of a row of attempts, and of the box in it; the lock is below the box.
const ROW: f64 = 32.0;
const BOX: f64 = 14.0;
/// The least visible width.
const LEAST: f64 = 4.0;
/// A wait that ended with the lock is drawn if it is at least this wide.
const SEEN: f64 = 2.0;
/// The most rows of a host: attempts without a free row are drawn over the last one.
const MOST_ROWS: usize = 8;
/// How many lock holders the text alternative names; the list below has all.
const NAMED: usize = 5;

/// The time axis.
struct Scale {
    /// In microseconds since 1970, as `until`.
    from: i64,
    until: i64,
}

impl Scale {
    fn x(&self, at: i64) -> f64 {
        LEFT + (at - self.from) as f64 / (self.until - self.from) as f64 * WIDTH
    }

    /// The position of a span, and its width.
    fn place(&self, (from, until): (i64, i64), least: f64) -> (f64, f64) {
        let (begin, end) = (self.x(from), self.x(until));
        (begin, (end - begin).max(least))
    }
}

/// The time line with its legend.
pub(super) fn of(now: i64, attempts: &[TracedAttempt]) -> Markup {
    let from = attempts.iter().map(|attempt| attempt.began_at).min().unwrap_or(now);
    let until = attempts.iter().map(|attempt| end_of(now, attempt)).max().unwrap_or(now).max(from + 1000);
    let scale = Scale { from, until };
    let mut hosts: Vec<&str> = attempts.iter().map(|attempt| attempt.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut rows = 0;
    let mut drawn: Vec<(&TracedAttempt, usize)> = Vec::new();
    let mut lanes: Vec<(&str, usize)> = Vec::new();
    for host in hosts {
        lanes.push((host, rows));
        let first = rows;
        // The end of the last box in each row.
        let mut taken: Vec<f64> = Vec::new();
        for attempt in attempts.iter().filter(|attempt| attempt.host == host) {
            let (begin, width) = scale.place((attempt.began_at, end_of(now, attempt)), LEAST);
            let free = taken.iter().position(|until| *until < begin);
            let at = free.unwrap_or(taken.len()).min(MOST_ROWS - 1);
            match taken.get_mut(at) {
                Some(until) => *until = until.max(begin + width),
                None => taken.push(begin + width),
            }
            drawn.push((attempt, first + at));
        }
        rows += taken.len();
    }
    let height = ROW * rows as f64 + 24.0;
    let words = in_words(now, (from, until), lanes.len(), attempts);
    html! {
        svg .time viewBox={ "0 0 840 " (height) } width="840" height=(height) role="img" aria-label=(words) {
            @for (host, row) in &lanes {
                @let y = *row as f64 * ROW;
                @if *row > 0 { line .axis x1="0" x2=(LEFT + WIDTH) y1=(y) y2=(y) {} }
                text x="0" y=(y + 16.0) { (host.chars().take(15).collect::<String>()) }
            }
            @for (attempt, row) in drawn { (draw(now, attempt, row, &scale)) }
            text .soft x=(LEFT + WIDTH) y=(height - 4.0) text-anchor="end" { "+ " (in_milliseconds(from, until)) }
        }
        p .hint { "The line begins " (moment(from)) "." }
        (legend())
    }
}

/// When an attempt ended. For one without an end only the beginning is shown, since its duration is unknown.
fn end_of(now: i64, attempt: &TracedAttempt) -> i64 {
    let took: f64 = attempt.stages.iter().map(|(_, took)| took).sum();
    let open = if attempt.holds_the_lock { now } else { attempt.began_at.saturating_add((took * 1000.0) as i64) };
    attempt.ended_at.unwrap_or(open)
}

/// A box, whose shape repeats the meaning of its colour; below it the wait for the lock, if it is wide enough to be visible, and
/// the time with the lock.
fn draw(now: i64, attempt: &TracedAttempt, row: usize, scale: &Scale) -> Markup {
    let (begin, width) = scale.place((attempt.began_at, end_of(now, attempt)), LEAST);
    let y = row as f64 * ROW + 4.0;
    let lock_y = y + BOX + 5.0;
    let TracedAttempt { host, pid, recipient, .. } = attempt;
    let class = class(attempt.result());
    let (mut waited, mut had) = (None, None);
    if let Some(LockSpan { asked_at, waited_until, had: until }) = attempt.lock_span() {
        let (until, least) = match until {
            Had::Never => (None, LEAST),
            Had::Until(until) => (Some(until), 0.0),
            Had::Still => (Some(now), 0.0),
        };
        waited = Some(scale.place((asked_at, waited_until), least)).filter(|(_, width)| *width >= SEEN);
        had = until.map(|until| scale.place((waited_until, until), LEAST));
    }
    html! {
        g {
            title { (exact(attempt.began_at)) " " (host) ":" (pid) " for " (recipient) }
            @if class == "wait" {
                rect .hollow x=(format!("{:.1}", begin + 1.0)) y=(y + 1.0) width=(format!("{:.1}", width - 2.0)) height=(BOX - 2.0) {}
            } @else {
                rect class={ "f-" (class) } x=(format!("{begin:.1}")) y=(y) width=(format!("{width:.1}")) height=(BOX) rx="2" {}
            }
            @if class == "bad" { rect .stripe x=(format!("{begin:.1}")) y=(y + BOX / 2.0 - 1.5) width=(format!("{width:.1}")) height="3" {} }
        }
        @if let Some((begin, width)) = waited {
            g {
                title { (host) ":" (pid) " waited for the lock" }
                line .waits x1=(format!("{begin:.1}")) x2=(format!("{:.1}", begin + width)) y1=(lock_y) y2=(lock_y) {}
            }
        }
        @if let Some((begin, width)) = had {
            rect .holds x=(format!("{begin:.1}")) y=(lock_y - 3.0) width=(format!("{width:.1}")) height="6" {
                title { (host) ":" (pid) " had the lock" }
            }
        }
    }
}

/// The time between two moments.
pub(super) fn in_milliseconds(from: i64, until: i64) -> String {
    let lasted = Duration::from_micros(u64::try_from(until - from).unwrap_or_default());
    if lasted < Duration::from_secs(10) { milliseconds(lasted.as_secs_f64() * 1000.0) } else { span(lasted) }
}

/// The text alternative of the drawing.
fn in_words(now: i64, (from, until): (i64, i64), hosts: usize, attempts: &[TracedAttempt]) -> String {
    let several = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let (all, hosts) = (several(attempts.len(), "attempt"), several(hosts, "host"));
    let mut words = format!("{all} on {hosts} within {}", in_milliseconds(from, until));
    let (mut holders, mut in_vain) = (Vec::new(), 0);
    for attempt in attempts {
        match attempt.lock_span().map(|span| (span.waited_until, span.had)) {
            Some((_, Had::Never)) => in_vain += 1,
            Some((since, Had::Until(until))) => holders.push((since, until, attempt)),
            Some((since, Had::Still)) => holders.push((since, now, attempt)),
            None => {}
        }
    }
    holders.sort_by_key(|(since, ..)| *since);
    for (number, (since, until, TracedAttempt { host, pid, .. })) in holders.iter().take(NAMED).enumerate() {
        let what = if number == 0 { "; the lock was held by" } else { ", then by" };
        words += &format!("{what} {host}:{pid} for {}", in_milliseconds(*since, *until));
    }
    if holders.len() > NAMED {
        words += &format!(", and by {} more", holders.len() - NAMED);
    }
    if in_vain > 0 {
        words += &format!("; {} waited for the lock in vain", several(in_vain, "attempt"));
    }
    words + "; the list below has each of them"
}

/// What the signs mean.
fn legend() -> Markup {
    let stripe = html! { rect .f-bad x="1" y="1" width="22" height="10" rx="2" {} rect .stripe x="1" y="4.5" width="22" height="3" {} };
    html! {
        ul .legend aria-label="What the line of time shows" {
            li { (sign(&html! { rect .f-good x="1" y="1" width="22" height="10" rx="2" {} })) "delivered" }
            li { (sign(&html! { rect .hollow x="2" y="2" width="20" height="8" {} })) "deferred, or not ended" }
            li { (sign(&stripe)) "refused, or never ended" }
            li { (sign(&html! { rect .holds x="1" y="3" width="22" height="6" {} })) "had the message's lock" }
            li { (sign(&html! { line .waits x1="1" x2="23" y1="6" y2="6" {} })) "waited for it" }
        }
    }
}

/// A drawing of a legend.
pub(super) fn sign(drawn: &Markup) -> Markup {
    html! { svg viewBox="0 0 24 12" width="24" height="12" aria-hidden="true" focusable="false" { (drawn) } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Outcome;
    use crate::ledger::trace::tests::attempt;

    const SECOND: i64 = 1_000_000;

    /// The positions of all elements with this class.
    fn drawn(markup: &Markup, class: &str) -> Vec<f64> {
        let shapes = markup.0.split('<').filter(|tag| tag.contains(&format!("class=\"{class}\"")));
        let begin = |tag: &str| {
            let (_, rest) = tag.split_once(" x=\"").or_else(|| tag.split_once(" x1=\""))?;
            rest.split_once('"')?.0.parse().ok()
        };
        // Elements of the legend are not on the time axis.
        shapes.filter_map(begin).filter(|x| *x >= LEFT).collect()
    }

    #[test]
    fn who_had_the_lock_and_who_waited_for_it_stand_on_one_line_of_time() {
        // From the fifth second on mx1 held the lock to the end. mx2 waited from the second second to the fourth, and did not
        // get it.
        let attempts = [
            attempt("mx1", 0, Some((10 * SECOND, Outcome::Appended)), Some(5_000.0)),
            attempt("mx2", 2 * SECOND, Some((4 * SECOND, Outcome::Busy)), Some(2_000.0)),
        ];
        let line = of(10 * SECOND, &attempts);
        let at = |seconds: i64| LEFT + seconds as f64 / 10.0 * WIDTH;
        assert_eq!(drawn(&line, "holds"), [at(5)], "{}", line.0);
        assert_eq!(drawn(&line, "waits"), [at(0), at(2)], "{}", line.0);
        let printed = "2 attempts on 2 hosts within 10s; the lock was held by mx1:1 for 5.0 s; \
                    1 attempt waited for the lock in vain; the list below has each of them";
        assert!(line.0.contains(&format!("aria-label=\"{printed}\"")), "{}", line.0);
        for sign in ["delivered", "deferred, or not ended", "had the message's lock", "waited for it"] {
            assert!(line.0.contains(&format!("{sign}</li>")), "{sign}: {}", line.0);
        }
        // A wait too short to be visible, and one that was not recorded.
        let quick =
            [attempt("mx1", 0, Some((SECOND, Outcome::Appended)), Some(0.3)), attempt("mx1", SECOND, None, None)];
        assert!(drawn(&of(SECOND, &quick), "waits").is_empty());
        assert_eq!(drawn(&of(SECOND, &quick), "holds").len(), 1);
    }

    #[test]
    fn what_was_under_way_at_once_on_one_host_is_not_drawn_over_each_other() {
        let height = |attempts: &[TracedAttempt]| {
            let line = of(0, attempts).0;
            line.split_once("height=\"").and_then(|(_, rest)| rest.split_once('"')?.0.parse::<f64>().ok())
        };
        let rows = |rows: usize| Some(ROW * rows as f64 + 24.0);
        let at = |began: i64| attempt("mx1", began, Some((began + SECOND, Outcome::Appended)), Some(0.3));
        assert_eq!(height(&[at(0), at(2 * SECOND), at(4 * SECOND)]), rows(1));
        assert_eq!(height(&[at(0), at(SECOND / 2), at(2 * SECOND)]), rows(2));
        assert_eq!(height(&vec![at(0); 50]), rows(MOST_ROWS));
    }
}
