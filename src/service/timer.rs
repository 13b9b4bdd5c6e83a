//! The timer: a process that finishes owed copies, prunes, and renews the proof that logins lead to the users that they name, at intervals.
//! Of all hosts that share a database one does it at a time.
//!
//! | what a run comes to | when the next one begins |
//! |---|---|
//! | it went well, whatever became of single copies | after the interval |
//! | another host is at it | after the interval |
//! | it failed: no database, no right to delete, a lock that was lost | after a pause that doubles, from 5 s to an hour or the interval |
//!
//! It has one thread of work. A second one ends the process where a copy outlives its deadline
//! ([`watchdog`](super::watchdog)): that copy is the last of those that were tried. What came of the last
//! runs is in a file, so that a process that is replaced goes on where the one before it was, and `service status` tells it.

use super::watchdog;
use crate::base::back_off::doubled;
use crate::base::deadline::Deadline;
use crate::base::readiness;
use crate::base::stop::Stop;
use crate::base::timestamp::{exact, now as wall_clock, read_exact};
use crate::base::watchdog::{Watchdog, Watched};
use crate::config::{Config, Retention, Serve};
use crate::database::DatabaseError;
use crate::operations::finish_owed::{self, finish_owed};
use crate::operations::prune::{self, Pruned};
use crate::operations::singleton_lock::{self, Held, Turn};
use crate::protocol::control::{LastRun, Task};
use crate::site::{RENEWAL, RENEWED_EVERY, Site};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::{info, warn};

/// The first pause after a run that failed, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_hours(1);
/// How long opening a session, or asking for the lock, may take.
const BEGINNING: Duration = Duration::from_mins(2);
/// After so long without a question the server frees the lock: more than one copy, or one batch, takes.
const AROUND_A_COPY: Duration = Duration::from_mins(2);
const SILENCE_OF_PRUNE: Duration = Duration::from_hours(1);
/// How long all of `prune` may take: the first time there may be years to forget.
const LONGEST_PRUNE: Duration = Duration::from_hours(12);
/// How long one batch of it may take, or the counting at its end.
const LONGEST_BATCH: Duration = Duration::from_hours(1);
/// How long `prune` rests after each batch, for the sake of replicas.
const REST: Duration = Duration::from_millis(50);

/// What a timer goes by.
#[derive(Clone, Debug)]
pub struct TimerSettings {
    /// How often owed copies are finished; zero: never.
    finish_owed_every: Duration,
    /// How often what is old is forgotten, and what that is.
    prune: Option<(Duration, Retention)>,
    /// Where it is written down what was done.
    state: PathBuf,
}

/// Why there can be no timer.
#[derive(Debug, Error)]
pub enum TimerError {
    #[error("{doing}: {source}")]
    System { doing: &'static str, source: io::Error },
}

impl TimerSettings {
    /// As a configuration says.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let Serve { finish_owed_every, prune_every, .. } = config.serve;
        let prune = prune_every.map(|every| (every, config.retention));
        Self { finish_owed_every, prune, state: config.serve.timer_state() }
    }

    /// Whether it opens mailboxes.
    #[must_use]
    pub fn opens_mailboxes(&self) -> bool {
        !self.finish_owed_every.is_zero()
    }
}

/// Does what is due, until SIGTERM or SIGINT, and then until the copy in hand has ended.
///
/// # Errors
/// Where the system gives us no signals or threads.
pub fn run(site: &Site, settings: TimerSettings) -> Result<(), TimerError> {
    let system = |doing| move |source| TimerError::System { doing, source };
    let stop = Stop::on_signals().map_err(system("setting up signals"))?;
    let watchdog = watchdog::start().map_err(system("starting a thread"))?;
    let written = written_down(&settings.state);
    let mut tasks = planned_tasks(&settings, site.imap_of_named_users().is_some(), &written);
    let timer = Timer { site, stop, watchdog, refused: Cell::default() };
    info!(tasks = ?tasks.iter().map(|task| task.kind.name()).collect::<Vec<_>>(), "the timer has begun");
    readiness::tell_master(true);
    while !timer.stop.is_told() {
        write_down(&settings.state, &tasks);
        let Some(next) = tasks.iter_mut().min_by_key(|task| task.next) else { break };
        let wait = next.next.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            timer.stop.wait(wait).map_err(system("waiting"))?;
            continue;
        }
        next.next_wall = None;
        write_down(&settings.state, &tasks);
        if let Some(next) = tasks.iter_mut().min_by_key(|task| task.next) {
            timer.run(next);
        }
    }
    write_down(&settings.state, &tasks);
    info!("the timer has ended");
    Ok(())
}

/// What is to be done, and of what is due at one time, first: `prune`, which makes all else cheaper; and last, what the process before
/// this one ended in the middle of, so that nothing else waits for what ends each process. A timer that opens no mailboxes has read no
/// password for it, and has no proof to renew.
fn planned_tasks(settings: &TimerSettings, proves_logins: bool, written: &[Task]) -> Vec<Planned> {
    let prune = settings.prune.map(|(every, retention)| (Kind::Prune(retention), every));
    let finish_owed = (!settings.finish_owed_every.is_zero()).then_some((Kind::FinishOwed, settings.finish_owed_every));
    let renew_proof = proves_logins.then_some((Kind::RenewProof, RENEWED_EVERY));
    let mut kinds: Vec<(Kind, Duration)> = prune.into_iter().chain(finish_owed).chain(renew_proof).collect();
    kinds.sort_by_key(|(kind, _)| written.iter().any(|task| task.task == kind.name() && task.next_at.is_none()));
    kinds.into_iter().map(|(kind, every)| Planned::new(kind, every, written)).collect()
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
enum Kind {
    FinishOwed,
    Prune(Retention),
    RenewProof,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::FinishOwed => "finish_owed",
            Self::Prune(_) => "prune",
            Self::RenewProof => "renew_proof",
        }
    }

    /// The name of its lock.
    fn lock(self) -> &'static str {
        match self {
            Self::FinishOwed => "maildropd finish_owed",
            Self::Prune(_) => "maildropd prune",
            Self::RenewProof => "maildropd renew_proof",
        }
    }
}

/// A task, and when it is done next.
struct Planned {
    kind: Kind,
    every: Duration,
    next: Instant,
    /// The same for people; nothing while it runs.
    next_wall: Option<i64>,
    failed_runs: u32,
    last: Option<LastRun>,
}

impl Planned {
    /// It goes on where the process before this one was; at once, if nothing is known, or if that has ended in the
    /// middle of it.
    fn new(kind: Kind, every: Duration, written: &[Task]) -> Self {
        let before = written.iter().find(|task| task.task == kind.name());
        let last_at = before.and_then(|task| task.last.as_ref()).and_then(|last| read_exact(&last.at));
        let ended_well = before.is_some_and(|task| task.failed_runs == 0 && task.next_at.is_some());
        let since =
            last_at.map(|at| Duration::from_micros(u64::try_from(wall_clock().saturating_sub(at)).unwrap_or(0)));
        let wait = since.filter(|_| ended_well).map_or(Duration::ZERO, |since| every.saturating_sub(since));
        let mut planned = Self {
            kind,
            every,
            next: Instant::now(),
            next_wall: None,
            failed_runs: before.map_or(0, |task| task.failed_runs),
            last: before.and_then(|task| task.last.clone()),
        };
        planned.after(wait);
        planned
    }

    fn after(&mut self, wait: Duration) {
        self.next = Instant::now() + wait;
        self.next_wall = Some(wall_clock().saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)));
    }

    /// How long to wait after a run that went so.
    fn pause(&self, well: bool) -> Duration {
        if well {
            return self.every;
        }
        doubled(FIRST_PAUSE, self.failed_runs.saturating_sub(1), LONGEST_PAUSE.min(self.every))
    }

    fn task(&self) -> Task {
        Task {
            task: self.kind.name().into(),
            every_s: self.every.as_secs_f64(),
            next_at: self.next_wall.map(exact),
            failed_runs: self.failed_runs,
            last: self.last.clone(),
        }
    }
}

struct Timer<'a> {
    site: &'a Site,
    stop: Stop,
    watchdog: Watchdog,
    /// The users whose logins were refused when their copies were last tried.
    refused: Cell<BTreeSet<String>>,
}

/// What came of a run: in a line, and whether all went well.
type Came = Result<String, String>;

impl Timer<'_> {
    fn run(&self, planned: &mut Planned) {
        let (began, at) = (Instant::now(), wall_clock());
        let name = planned.kind.name();
        let came = catch_unwind(AssertUnwindSafe(|| self.come_of(planned.kind)));
        let came = came.unwrap_or_else(|_| Err("an internal error, which the log has".into()));
        let took = began.elapsed();
        let well = came.is_ok();
        planned.failed_runs = if well { 0 } else { planned.failed_runs.saturating_add(1) };
        let pause = planned.pause(well);
        match &came {
            Ok(said) => info!(task = name, said, ?took, "done, as it is at intervals"),
            Err(problem) => {
                warn!(task = name, problem, failed_runs = planned.failed_runs, again_in = ?pause, "what is done at intervals has failed");
            }
        }
        let said = came.unwrap_or_else(|problem| problem);
        planned.last = Some(LastRun { at: exact(at), took_s: took.as_secs_f64(), well, said });
        planned.after(pause);
    }

    fn come_of(&self, kind: Kind) -> Came {
        let mut watched = Some(self.watchdog.watch("what is done at intervals", BEGINNING));
        let (at_most, silence) = match kind {
            Kind::FinishOwed => {
                let deadline = self.site.deadline();
                (finish_owed::longest_run(deadline), deadline + AROUND_A_COPY)
            }
            Kind::Prune(_) => (LONGEST_PRUNE, SILENCE_OF_PRUNE),
            Kind::RenewProof => (BEGINNING, BEGINNING),
        };
        let mut held = match singleton_lock::take(self.site, kind.lock(), at_most, silence).map_err(told)? {
            Turn::Ours(held) => held,
            Turn::Anothers(holder) => {
                let host = holder.and_then(|holder| holder.host).map(|host| format!(" ({host})")).unwrap_or_default();
                return Ok(format!("another host is at it{host}"));
            }
        };
        let mut may_take = |span: Duration| {
            // The old one first: to drop it ends what is watched.
            drop(watched.take());
            watched = Some(self.watchdog.watch("what is done at intervals", span));
        };
        let came = match kind {
            Kind::FinishOwed => self.finish_owed(&mut held, &mut may_take),
            Kind::Prune(retention) => self.prune(retention, &mut held, &mut may_take),
            Kind::RenewProof => {
                let renewed = self.site.renew_proof(Deadline::after(RENEWAL));
                renewed.map(ToOwned::to_owned).map_err(|deferral| deferral.to_string())
            }
        };
        may_take(BEGINNING);
        held.end();
        drop::<Option<Watched>>(watched);
        came
    }

    fn finish_owed(&self, held: &mut Held, may_take: &mut dyn FnMut(Duration)) -> Came {
        let mut watched = finish_owed::Watched { stop: self.stop.told(), may_take };
        let mut refused = self.refused.take();
        let run = finish_owed(self.site, held, &mut watched, &mut refused);
        self.refused.set(refused);
        let run = run.map_err(told)?;
        match &run.problem {
            None => Ok(run.told()),
            Some(problem) => Err(format!("{problem} ({})", run.told())),
        }
    }

    fn prune(&self, retention: Retention, held: &mut Held, may_take: &mut dyn FnMut(Duration)) -> Came {
        let mut done = Vec::new();
        let mut lost = None;
        may_take(LONGEST_BATCH);
        let mut database = self.site.open_database(None, Deadline::after(LONGEST_PRUNE)).map_err(told)?;
        for (kind, age) in prune::kinds(&retention) {
            let mut go_on = |_| {
                may_take(LONGEST_BATCH);
                lost = lost.take().or_else(|| held.is_still_ours().err());
                lost.is_none() && !self.stop.is_told()
            };
            if !go_on(0) {
                break;
            }
            done.push(prune::prune(database.as_mut(), kind, age, REST, &mut go_on).map_err(told)?);
        }
        let counts = |pruned: &Pruned| format!("{} {} removed", pruned.removed, pruned.kind.as_str());
        let said = done.iter().map(counts).collect::<Vec<_>>().join(", ");
        lost.map_or_else(|| Ok(said.clone()), |problem| Err(format!("{problem} ({said})")))
    }
}

fn told(error: DatabaseError) -> String {
    error.to_string()
}

/// What the timer has written down; nothing where there is none, or where another release wrote it.
pub(super) fn written_down(state: &Path) -> Vec<Task> {
    match std::fs::read(state) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            warn!(file = %state.display(), %error, "what the timer did last is not known");
            Vec::new()
        }
    }
}

/// Writes it down. Where that fails, a timer that is started anew begins at once: nothing is lost by that.
fn write_down(state: &Path, tasks: &[Planned]) {
    let tasks: Vec<Task> = tasks.iter().map(Planned::task).collect();
    let temporary = state.with_extension("new");
    let write = || {
        if let Some(folder) = state.parent() {
            crate::base::files::create_directory(folder)?;
        }
        std::fs::write(&temporary, serde_json::to_vec(&tasks)?)?;
        std::fs::rename(&temporary, state)
    };
    let written: io::Result<()> = write();
    if let Err(error) = written {
        warn!(file = %state.display(), %error, "what the timer did cannot be written down");
    }
}

#[cfg(test)]
#[path = "timer_tests.rs"]
mod tests;
