//! The figures above the list of Activity. They are counted for all who look, while somebody does: at most once in ten seconds, and
//! no request counts them.

use crate::ledger_threads::LedgerThreads;
use crate::operations::activity::{Figures, figures};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::warn;

/// How long a count may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// After so long they are counted anew: at least this, and [`SHARE`] times as long as counting them took.
const HOLD: Duration = Duration::from_secs(10);
const SHARE: u32 = 20;
/// For so long after that they are shown while they are counted anew.
const STILL_SHOWN: Duration = Duration::from_mins(1);
/// How long a request waits for the first ones. The list is what it is for.
const WAIT: Duration = Duration::from_secs(1);

#[derive(Clone, Default)]
pub(super) struct Shared(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    /// That a count has ended.
    ended: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    last: Option<Counted>,
    under_way: bool,
}

#[derive(Clone, Copy)]
struct Counted {
    figures: Figures,
    at: Instant,
    hold: Duration,
}

impl Shared {
    /// The figures, if they were counted of late: as they are, or as they were while they are counted anew.
    pub(super) async fn of(&self, ledger: &LedgerThreads) -> Option<Figures> {
        let mut ended = self.0.ended.subscribe();
        {
            let mut state = self.state();
            if let Some(figures) = state.no_older_than(Duration::ZERO) {
                return Some(figures);
            }
            if !std::mem::replace(&mut state.under_way, true) {
                tokio::spawn(self.clone().count(ledger.clone()));
            }
            if let Some(figures) = state.no_older_than(STILL_SHOWN) {
                return Some(figures);
            }
        }
        // Whether it has ended, failed, or takes longer: what is there says so.
        let _ = tokio::time::timeout(WAIT, ended.changed()).await;
        self.state().no_older_than(STILL_SHOWN)
    }

    async fn count(self, ledger: LedgerThreads) {
        let began = Instant::now();
        let counted = ledger.ask_long(PATIENCE, figures).await;
        let mut state = self.state();
        state.under_way = false;
        match counted {
            Ok(figures) => {
                let hold = HOLD.max(began.elapsed().saturating_mul(SHARE));
                state.last = Some(Counted { figures, at: Instant::now(), hold });
            }
            Err(problem) => warn!(%problem, "the figures of the page cannot be counted"),
        }
        drop(state);
        self.0.ended.send_replace(());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What was counted, for so long after it was to be counted anew.
    fn no_older_than(&self, beyond: Duration) -> Option<Figures> {
        self.last.filter(|last| last.at.elapsed() < last.hold.saturating_add(beyond)).map(|last| last.figures)
    }
}
