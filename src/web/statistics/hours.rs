//! The hours that Statistics adds up. An hour of a busy site takes a while to count, a day of them too long for somebody to wait: so
//! each is counted once it is over, one after the other, the newest first, and no request does it. That begins when somebody looks
//! at any screen, and ends once all are counted or nobody looks any more. Each process of the page counts for itself.

use crate::ledger::time_span;
use crate::ledger_threads::{LedgerThreads, Unanswered};
use crate::operations::stats::{Tally, tally};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// In microseconds.
pub(super) const HOUR: i64 = 3_600_000_000;
/// How many hours are kept: those of a week.
const KEPT: i64 = 7 * 24;
/// An hour is counted once it has been over for so long, in microseconds: what began in it is committed by then.
const SETTLED: i64 = 60_000_000;
/// Attempts that began so long ago have ended, in microseconds: a delivery has its deadline.
const ENDED: i64 = 900_000_000;
/// An hour that was counted before, or in which an attempt had not ended, is counted anew after this, or after a quarter of its age.
const ANEW: Duration = Duration::from_mins(15);
/// For so long after somebody has looked at any screen it goes on.
const LOOKED: Duration = Duration::from_mins(10);
/// How long an hour may take.
const PATIENCE: Duration = Duration::from_mins(5);
/// After an hour that took no little time comes a pause of so many times that, so that deliveries have the database.
const PAUSES: u32 = 3;
const LITTLE: Duration = Duration::from_millis(20);
/// For so long nobody looks for what is due, once all was counted, or after a failure.
const REST: Duration = Duration::from_secs(30);
const AFTER_FAILURE: Duration = Duration::from_mins(1);

#[derive(Clone, Default)]
pub(in super::super) struct Hours(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    /// That an hour was counted.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    /// By their number since 1970.
    counted: BTreeMap<i64, Counted>,
    looked: Option<Instant>,
    under_way: bool,
    /// Until then nothing is looked for.
    rests_until: Option<Instant>,
}

#[derive(Clone)]
struct Counted {
    tally: Arc<Tally>,
    at: Instant,
    /// Whether nothing of it changes any more.
    is_final: bool,
}

/// Hours in a row.
#[derive(Default)]
pub(super) struct Sum {
    pub(super) tally: Tally,
    /// How many there are, from the newest on.
    pub(super) hours: i64,
}

/// The newest hour that can be counted at this moment, by its number since 1970.
fn newest(now: i64) -> i64 {
    (now - SETTLED).div_euclid(HOUR) - 1
}

impl Hours {
    /// Somebody looks at the page: what is missing is counted from now on.
    pub(in super::super) fn look(&self, ledger: &LedgerThreads) {
        let mut state = self.state();
        let now = Instant::now();
        state.looked = Some(now);
        if state.rests_until.is_none_or(|until| until <= now) && !std::mem::replace(&mut state.under_way, true) {
            tokio::spawn(self.clone().count(ledger.clone()));
        }
    }

    /// The newest hour that is over and counted, where that is the newest of all, or the one before it, which was over a moment ago.
    pub(super) fn newest(&self, now: i64) -> i64 {
        let (newest, state) = (newest(now), self.state());
        let is_counted = |hour: i64| state.counted.contains_key(&hour);
        if !is_counted(newest) && is_counted(newest - 1) { newest - 1 } else { newest }
    }

    /// The hours up to and including this one that are counted, at most so many: without a gap between them.
    pub(super) fn sum(&self, newest: i64, at_most: i64) -> Sum {
        let counted: Vec<Arc<Tally>> = {
            let state = self.state();
            let row = (0..at_most).map_while(|back| state.counted.get(&(newest - back)));
            row.map(|counted| Arc::clone(&counted.tally)).collect()
        };
        let mut sum = Sum::default();
        for tally in counted {
            sum.tally.add(&tally);
            sum.hours += 1;
        }
        sum
    }

    /// Waits until so many of them are counted, as long as that takes at most.
    pub(super) async fn wait(&self, newest: i64, hours: i64, at_most: Duration) {
        let mut changed = self.0.changed.subscribe();
        let all = async { while !self.state().has(newest, hours) && changed.changed().await.is_ok() {} };
        // What is there by then is shown.
        let _ = timeout(at_most, all).await;
    }

    async fn count(self, ledger: LedgerThreads) {
        let rest = loop {
            let began = Instant::now();
            match self.count_next(&ledger).await {
                Ok(Some(hour)) => {
                    let took = began.elapsed();
                    debug!(hour, ?took, "an hour was counted for the page's statistics");
                    if took > LITTLE {
                        sleep(took.saturating_mul(PAUSES)).await;
                    }
                }
                Ok(None) => break REST,
                Err(problem) => {
                    warn!(%problem, "an hour cannot be counted for the page's statistics");
                    break AFTER_FAILURE;
                }
            }
            if self.state().looked.is_none_or(|looked| looked.elapsed() > LOOKED) {
                break Duration::ZERO;
            }
        };
        let mut state = self.state();
        state.under_way = false;
        state.rests_until = Some(Instant::now() + rest);
    }

    /// Counts one that is due, if there is one.
    async fn count_next(&self, ledger: &LedgerThreads) -> Result<Option<i64>, Unanswered> {
        let hours = self.clone();
        let counted = ledger.ask_long(PATIENCE, move |database| {
            let now = time_span::now(database)?;
            let Some(hour) = hours.state().due(now) else { return Ok(None) };
            let tally = tally(database, hour * HOUR, (hour + 1) * HOUR)?;
            Ok(Some((now, hour, tally)))
        });
        let Some((now, hour, tally)) = counted.await? else { return Ok(None) };
        let is_final = tally.attempts.not_ended == 0 && now >= (hour + 1) * HOUR + ENDED;
        let counted = Counted { tally: Arc::new(tally), at: Instant::now(), is_final };
        self.state().keep(now, hour, counted);
        self.0.changed.send_replace(());
        Ok(Some(hour))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has(&self, newest: i64, hours: i64) -> bool {
        (0..hours).all(|back| self.counted.contains_key(&(newest - back)))
    }

    /// The newest hour that was not counted yet; else the newest one that is to be counted anew.
    fn due(&self, now: i64) -> Option<i64> {
        let newest = newest(now);
        let all = || (0..KEPT).map(|back| newest - back);
        let anew = |hour: i64| {
            let age = Duration::from_micros(u64::try_from(now - (hour + 1) * HOUR).unwrap_or_default());
            let counted = self.counted.get(&hour);
            counted.is_some_and(|counted| !counted.is_final && counted.at.elapsed() > ANEW.max(age / 4))
        };
        all().find(|hour| !self.counted.contains_key(hour)).or_else(|| all().find(|hour| anew(*hour)))
    }

    fn keep(&mut self, now: i64, hour: i64, counted: Counted) {
        self.counted.insert(hour, counted);
        let oldest = newest(now) - KEPT;
        self.counted.retain(|hour, _| *hour > oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 500_000 * HOUR + 10 * SETTLED;

    fn counted(hour: i64, ago: Duration, is_final: bool, state: &mut State) {
        let at = Instant::now().checked_sub(ago).unwrap();
        state.keep(NOW, hour, Counted { tally: Arc::default(), at, is_final });
    }

    #[test]
    fn an_hour_is_counted_a_minute_after_its_end_the_newest_first_and_none_twice() {
        assert_eq!(newest(500_000 * HOUR), 499_998);
        assert_eq!(newest(500_000 * HOUR + SETTLED), 499_999);
        let mut state = State::default();
        let mut seen = Vec::new();
        while let Some(hour) = state.due(NOW) {
            counted(hour, Duration::ZERO, true, &mut state);
            seen.push(hour);
        }
        assert_eq!(seen, (0..KEPT).map(|back| 499_999 - back).collect::<Vec<_>>());
        // An hour later there is one more, and the oldest is forgotten.
        assert_eq!(state.due(NOW + HOUR), Some(500_000));
        state.keep(NOW + HOUR, 500_000, state.counted[&499_999].clone());
        assert_eq!((state.counted.len(), state.due(NOW + HOUR)), (168, None));
    }

    #[test]
    fn an_hour_in_which_something_had_not_ended_is_counted_anew_later_and_older_ones_less_often() {
        let mut state = State::default();
        (0..KEPT).for_each(|back| counted(499_999 - back, Duration::from_hours(1), true, &mut state));
        counted(499_999, Duration::from_mins(14), false, &mut state);
        counted(499_900, Duration::from_mins(16), false, &mut state);
        assert_eq!(state.due(NOW), None);
        counted(499_999, Duration::from_mins(16), false, &mut state);
        assert_eq!(state.due(NOW), Some(499_999));
    }

    #[test]
    fn a_sum_ends_where_an_hour_is_missing() {
        let hours = Hours::default();
        for back in [0, 1, 2, 4] {
            counted(499_999 - back, Duration::ZERO, true, &mut hours.state());
        }
        assert_eq!([2, 3, 24].map(|at_most| hours.sum(499_999, at_most).hours), [2, 3, 3]);
        assert_eq!(hours.sum(500_000, 24).hours, 0);
        // While the last one is not counted yet, it belongs to what runs.
        assert_eq!([NOW, NOW + HOUR, NOW + 2 * HOUR].map(|now| hours.newest(now)), [499_999, 499_999, 500_001]);
    }
}
