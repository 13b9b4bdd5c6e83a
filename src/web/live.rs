//! The live tail of Activity: who looks at the list is told what is new in it, by server-sent events (HTML Living Standard,
//! section 9.2). However many look, the ledger is asked once a second, in one round trip; while nobody does, it isn't asked. Whoever
//! was cut off, and comes back, is told from what was read.

use super::activity::{Asked, row_id};
use super::{Page, failed};
use crate::base::shares::Shares;
use crate::ledger::activity::{self, Place, Tried, Wanted};
use crate::ledger::web_sessions::WebSession;
use crate::ledger::{AttemptResult, time_span};
use crate::ledger_threads::AskedAgain;
use crate::site::Site;
use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tracing::warn;
use uuid::Uuid;

/// How often the ledger is asked.
const EVERY: Duration = Duration::from_secs(1);
/// An attempt is seen once its journal is committed, which is later than the moment that it bears; and it comes to something later
/// still. What began within this, in microseconds, is read each time. What takes longer is not counted in a list of a certain state.
pub(super) const OVERLAP: i64 = 15_000_000;
/// How many rows are read at once, the newest. A list counts up to as many as it shows, so that more would tell nobody anything.
const ROWS: usize = 500;
/// Who does not keep up with so many answers of the ledger begins anew.
const BEHIND: usize = 16;
/// How many may look at once, and of one login: each holds a connection.
const VIEWERS: usize = 128;
const OF_ONE_LOGIN: usize = 32;
/// After so long the browser asks anew, so that who was logged out is told no more: until then, names of rows and nothing of what is in
/// them.
const AT_MOST: Duration = Duration::from_mins(5);
/// How far back, in microseconds, is read at first: whose list is older asks for what came since.
const BEFORE: i64 = 600_000_000;
/// How many rows are kept for those who were cut off, or have just begun: the ledger is not asked for each of them.
const KEPT: usize = 2 * ROWS;
/// How often the ledger is asked while nobody listens any more: whoever was cut off comes back within this.
const LINGERS: u32 = 5;

/// What was new when the ledger was asked.
type News = Arc<[Tried]>;

/// An answer of the ledger: what began since `from`, the newest first, asked for at `since` or after it.
struct Read {
    since: i64,
    from: i64,
    tried: Vec<Tried>,
}

/// What was read of late.
#[derive(Default)]
struct Recent {
    rows: BTreeMap<(i64, Uuid, [u8; 32]), Tried>,
    /// Since when nothing is missing.
    whole_since: Option<i64>,
}

impl Recent {
    /// Takes in what was read of what began since a moment, the newest first.
    fn take(&mut self, since: i64, read: &[Tried]) {
        // There may be more than was read.
        let read_since = read.get(ROWS - 1).map_or(since, |oldest| oldest.place.began_at.saturating_add(1));
        let whole_since = self.whole_since.get_or_insert(read_since);
        if read.len() >= ROWS {
            *whole_since = read_since.max(*whole_since);
        }
        self.rows.extend(read.iter().map(|one| ((one.place.began_at, one.place.attempt, one.place.key), one.clone())));
        while self.rows.len() > KEPT
            && let Some(((began_at, ..), _)) = self.rows.pop_first()
        {
            *whole_since = began_at.saturating_add(1).max(*whole_since);
        }
    }

    /// What began since a moment, if nothing of that is missing.
    fn since(&self, since: i64) -> Option<Vec<Tried>> {
        let is_whole = self.whole_since.is_some_and(|whole| whole <= since);
        is_whole.then(|| self.rows.range((since, Uuid::nil(), [0; 32])..).map(|(_, one)| one.clone()).collect())
    }
}

/// Tells all who look.
#[derive(Clone)]
pub(super) struct Tail {
    news: broadcast::Sender<News>,
    /// Whether the ledger is being asked: by one task for all.
    asked: Arc<Mutex<bool>>,
    places: Arc<Shares>,
    recent: Arc<Mutex<Recent>>,
    /// What began since a moment, or a little before it; of late, where no moment is named.
    ledger: AskedAgain<Option<i64>, Read>,
    /// Whether the process is to end: nobody is told anything then, so that it can.
    ending: watch::Receiver<bool>,
}

impl Tail {
    /// # Errors
    /// Where the system gives us no thread.
    pub(super) fn start(site: &Site, patience: Duration, ending: watch::Receiver<bool>) -> io::Result<Self> {
        let (news, _) = broadcast::channel(BEHIND);
        let ledger = AskedAgain::start(site, patience, |database, since: Option<i64>| {
            let (since, before) = match since {
                Some(since) => (since, OVERLAP),
                None => (time_span::now(database)?, BEFORE),
            };
            let from = since.saturating_sub(before);
            Ok(Read { since, from, tried: activity::since(database, from, ROWS)? })
        })?;
        let (asked, recent, places) = (Arc::default(), Arc::default(), Shares::with(VIEWERS, OF_ONE_LOGIN));
        Ok(Self { news, asked, places, recent, ledger, ending })
    }

    /// What is new from now on.
    fn listen(&self) -> broadcast::Receiver<News> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: the task that asks looks for listeners under it, before it ends.
        let listener = self.news.subscribe();
        if !*asked {
            *asked = true;
            tokio::spawn(self.clone().ask());
        }
        listener
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks once a second, while somebody listens.
    async fn ask(self) {
        let mut known: HashMap<Place, AttemptResult> = HashMap::new();
        let (mut newest, mut failed, mut alone) = (None, false, 0);
        loop {
            {
                let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
                alone = if self.news.receiver_count() == 0 { alone + 1 } else { 0 };
                if alone > LINGERS {
                    *asked = false;
                    *self.recent() = Recent::default();
                    return;
                }
            }
            match self.ledger.ask(newest).await {
                Ok(Read { since, from, tried }) => {
                    self.recent().take(from, &tried);
                    let until = tried.first().map_or(since, |one| one.place.began_at.max(since));
                    (newest, failed) = (Some(until), false);
                    known.retain(|place, _| place.began_at > until.saturating_sub(2 * OVERLAP));
                    let changed = |one: &Tried| known.insert(one.place, one.result()) != Some(one.result());
                    let news: Vec<Tried> = tried.into_iter().filter(changed).collect();
                    if !news.is_empty() {
                        // Whoever has gone meanwhile is no loss.
                        let _ = self.news.send(news.into());
                    }
                }
                // Once, and not each second.
                Err(problem) => {
                    if !std::mem::replace(&mut failed, true) {
                        warn!(%problem, "what is new cannot be told to who looks at the page");
                    }
                }
            }
            sleep(EVERY).await;
        }
    }
}

/// Since when a row of the list is new, in microseconds, as the database's clock has it.
#[derive(Debug, Deserialize)]
pub(super) struct After {
    after: i64,
}

/// Rows that are like those of a list, and that began, or came to something, after a moment: by the names that they have there.
pub(super) async fn tell(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Query(asked): Query<Asked>,
    Query(After { after }): Query<After>,
    headers: HeaderMap,
) -> Response {
    let Some(wanted) = asked.lives() else { return StatusCode::NOT_FOUND.into_response() };
    let Some(place) = page.tail.places.take(&viewer.name, 1) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Too many look at what is live. Load the page anew.\n")
            .into_response();
    };
    // Who was cut off says what he heard last.
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<i64>().ok());
    let since = last.map_or(after, |last| after.max(last.saturating_sub(OVERLAP)));
    let missed = Wanted { since, ..wanted.clone() };
    // First this, and then what was missed: so nothing is missed between the two.
    let listener = page.tail.listen();
    let known = page.tail.recent().since(since);
    let missed = match known {
        Some(known) => known,
        None => match page.ledger.ask(move |database| activity::find(database, &missed, ROWS)).await {
            Ok(found) => found.tried,
            Err(problem) => return failed(&problem, Some(&viewer)),
        },
    };
    let (tell, told) = mpsc::channel(4);
    let ending = page.tail.ending.clone();
    tokio::spawn(async move {
        pass_on(Listener { wanted: Wanted { since, ..wanted }, tell, listener, ending }, missed).await;
        drop(place);
    });
    let keep = KeepAlive::new().interval(Duration::from_secs(15));
    Sse::new(ReceiverStream::new(told)).keep_alive(keep).into_response()
}

/// One who looks.
struct Listener {
    wanted: Wanted,
    tell: mpsc::Sender<Result<Event, Infallible>>,
    listener: broadcast::Receiver<News>,
    ending: watch::Receiver<bool>,
}

/// Tells what he missed, even if it is nothing, and then what is new.
async fn pass_on(Listener { wanted, tell, mut listener, mut ending }: Listener, missed: Vec<Tried>) {
    let until_behind = async {
        let mut news: News = missed.into();
        loop {
            if tell.send(Ok(event(&wanted, &news))).await.is_err() {
                return;
            }
            // Who is behind begins anew, and asks for what he missed.
            let Ok(next) = listener.recv().await else { return };
            news = next;
        }
    };
    tokio::select! {
        () = until_behind => {}
        () = tell.closed() => {}
        () = sleep(AT_MOST) => {}
        _ = ending.wait_for(|ending| *ending) => {}
    }
}

/// The rows of a list that are among these, by the names that they have there; and what was heard with them.
fn event(wanted: &Wanted, news: &[Tried]) -> Event {
    let ids: Vec<String> = news.iter().filter(|one| wanted.is_met_by(one)).map(row_id).collect();
    let event = Event::default().retry(EVERY).data(Value::from(ids).to_string());
    match news.iter().map(|one| one.place.began_at).max() {
        Some(newest) => event.id(newest.to_string()),
        None => event,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Outcome;
    use crate::lock::LockName;
    use crate::message::Role;

    fn tried(began_at: i64, outcome: Option<Outcome>) -> Tried {
        let place = Place { began_at, attempt: Uuid::from_u128(7), key: [7; 32] };
        let (text, lock) = (String::new, LockName::from_digest([7; 32]));
        let (message_id, user, mailbox, recipient, host) = (text(), text(), text(), text(), text());
        let (queue_id, took, from, subject) = (None, None, None, None);
        let (identity, role) = ([7; 32], Role::Recipient);
        Tried {
            place,
            identity,
            lock,
            message_id,
            role,
            user,
            mailbox,
            recipient,
            queue_id,
            host,
            outcome,
            took,
            from,
            subject,
        }
    }

    /// So many, the newest first, one in each microsecond up to this one.
    fn until(newest: i64, many: i64) -> Vec<Tried> {
        (0..many).map(|back| tried(newest - back, None)).collect()
    }

    fn began(recent: &Recent, since: i64) -> Option<Vec<i64>> {
        recent.since(since).map(|rows| rows.iter().map(|one| one.place.began_at).collect())
    }

    #[test]
    fn who_comes_back_is_told_of_each_row_or_the_ledger_is_asked() {
        let (mut recent, rows) = (Recent::default(), i64::try_from(ROWS).unwrap());
        assert_eq!(began(&recent, 0), None, "nothing was read");
        recent.take(1000, &until(1002, 2));
        assert_eq!(began(&recent, 999), None, "it was not looked for");
        assert_eq!(began(&recent, 1000), Some(vec![1001, 1002]));
        assert_eq!(began(&recent, 1002), Some(vec![1002]));
        // What is read again is known by its last state.
        recent.take(1001, &[tried(1002, Some(Outcome::Appended))]);
        assert_eq!(recent.since(1002).unwrap()[0].outcome, Some(Outcome::Appended));
        assert_eq!(began(&recent, 1000), Some(vec![1001, 1002]));
        // There may have been more than was read.
        let newest = 1002 + 3 * rows;
        recent.take(1001, &until(newest, rows));
        let oldest = newest - rows + 1;
        assert_eq!(began(&recent, oldest), None);
        assert_eq!(began(&recent, oldest + 1).unwrap().len(), ROWS - 1);
        // No more is kept than anybody is told.
        for next in 1..10 {
            recent.take(newest + 10 * (next - 1), &until(newest + 10 * next, 10));
        }
        recent.take(newest + 90, &until(newest + 90 + rows - 1, rows - 1));
        assert_eq!(began(&recent, oldest + 1), None);
        assert_eq!(recent.rows.len(), KEPT);
        let whole_since = recent.whole_since.unwrap();
        assert_eq!(began(&recent, whole_since).unwrap().len(), KEPT);
        assert_eq!(began(&recent, whole_since - 1), None);
    }
}
