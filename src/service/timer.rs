//! The timer: a process that runs tasks at intervals. It finishes owed copies, prunes, renews the proof that a login leads to the
//! named user's mailbox, and indexes messages by address. Each site has the last task, and prunes at least `failures`. Of all hosts
//! that share a database, one at a time runs a task.
//!
//! | result of a run | when the next one begins |
//! |---|---|
//! | success, even if single copies are still owed | after the interval |
//! | another host runs the task | after the interval |
//! | failure: no database, no right to delete, a lost lock | after a pause that doubles, from 5 s to an hour or the interval |
//!
//! One thread does the work. A second one ends the process if a copy outlives its deadline ([`process_watchdog`](super::process_watchdog)); in
//! the log, that copy is then the last. A file keeps the results of the last runs. So a new process continues the schedule of the
//! previous one, and `service status` shows the results.

use super::error::ServiceError;
use super::process_watchdog;
use crate::base::back_off::doubled;
use crate::base::deadline::Deadline;
use crate::base::readiness;
use crate::base::stop::Stop;
use crate::base::timestamp::{exact, now as wall_clock, read_exact};
use crate::base::watchdog::Watchdog;
use crate::config::{Retention, Service};
use crate::database::DatabaseError;
use crate::operations::finish_owed::{self, finish_owed};
use crate::operations::prune::{self, Pruned};
use crate::operations::search::index_addresses;
use crate::operations::singleton_lock::{self, Held, Turn};
use crate::protocol::control::{LastRun, Task};
use crate::site::{RENEWAL, RENEWED_EVERY, Site};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// What the watchdog calls the work of this process.
const TASK: &str = "what is done at intervals";
/// The first pause after a run that failed, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_hours(1);
/// How long the timer may take to open a session or to request the lock.
const BEGINNING: Duration = Duration::from_mins(2);
/// After this time without a query, the server frees the lock. A copy's deadline is added to the first. Both are longer than a
/// copy or a batch takes.
const AROUND_A_COPY: Duration = Duration::from_mins(2);
const SILENCE_OF_PRUNE: Duration = Duration::from_hours(1);
/// How long a whole run of `prune` may take. The first run may have years of entries to remove.
const LONGEST_PRUNE: Duration = Duration::from_hours(12);
/// How long one batch of `prune`, or the count at its end, may take.
const LONGEST_BATCH: Duration = Duration::from_hours(1);
/// The interval of `prune` at a site that keeps all but the failures.
const PRUNE_FAILURES_EVERY: Duration = Duration::from_hours(24);
/// How often messages are indexed by address: a search finds a message within a minute.
const INDEX_EVERY: Duration = Duration::from_secs(30);
/// How long indexing may take. The rest is left to the next run.
const LONGEST_INDEXING: Duration = Duration::from_mins(5);
/// How long `prune` rests after each batch, for the sake of replicas.
const REST: Duration = Duration::from_millis(50);

/// Whether a timer with this configuration opens mailboxes.
pub fn opens_mailboxes(service: &Service) -> bool {
    !service.finish_owed_every.is_zero()
}

/// Runs the tasks when they are due, until SIGTERM or SIGINT. Then the copy in progress is still finished.
///
/// # Errors
/// If the system provides no signal handlers or threads.
pub fn run(site: &Site, service: &Service, retention: Retention) -> Result<(), ServiceError> {
    let stop = Stop::on_signals().map_err(ServiceError::system("setting up signals"))?;
    let watchdog = process_watchdog::start().map_err(ServiceError::system("starting a thread"))?;
    let state = service.timer_state();
    let mut tasks = planned_tasks(service, retention, site.imap_of_named_users().is_some(), &written_down(&state));
    let timer = Timer { site, stop, watchdog };
    info!(tasks = ?tasks.iter().map(|task| task.kind.name()).collect::<Vec<_>>(), "the timer has begun");
    readiness::report_readiness(true);
    while !timer.stop.is_requested() {
        write_down(&state, &tasks);
        let Some(next) = tasks.iter_mut().min_by_key(|task| task.next) else { break };
        let wait = next.next.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            timer.stop.wait(wait).map_err(ServiceError::system("waiting"))?;
            continue;
        }
        next.task.next_at = None;
        write_down(&state, &tasks);
        if let Some(next) = tasks.iter_mut().min_by_key(|task| task.next) {
            timer.run(next);
        }
    }
    write_down(&state, &tasks);
    info!("the timer has ended");
    Ok(())
}

/// The tasks, in the order in which those of the same due time run. `prune` is first, since it makes the others cheaper. A task
/// during which the previous process ended is last: even if it ends every process, the other tasks run.
///
/// A timer that opens no mailboxes has not read their password, so it has no proof to renew.
fn planned_tasks(service: &Service, retention: Retention, proves_logins: bool, written: &[Task]) -> Vec<Planned> {
    let finish_owed = opens_mailboxes(service).then_some((TaskKind::FinishOwed, service.finish_owed_every));
    let renew_proof = proves_logins.then_some((TaskKind::RenewProof, RENEWED_EVERY));
    let prune = match service.prune_every {
        Some(every) => Some((TaskKind::Prune(retention), every)),
        None => Some((TaskKind::Prune(Retention::default()), PRUNE_FAILURES_EVERY)),
    };
    let index = Some((TaskKind::IndexAddresses, INDEX_EVERY));
    let mut kinds: Vec<(TaskKind, Duration)> = [prune, finish_owed, renew_proof, index].into_iter().flatten().collect();
    kinds.sort_by_key(|(kind, _)| written.iter().any(|task| task.task == kind.name() && task.next_at.is_none()));
    kinds.into_iter().map(|(kind, every)| Planned::new(kind, every, written)).collect()
}

/// The kind of a task.
#[derive(Clone, Copy, Debug)]
enum TaskKind {
    FinishOwed,
    Prune(Retention),
    RenewProof,
    IndexAddresses,
}

impl TaskKind {
    fn name(self) -> &'static str {
        match self {
            Self::FinishOwed => "finish_owed",
            Self::Prune(_) => "prune",
            Self::RenewProof => "renew_proof",
            Self::IndexAddresses => "index_addresses",
        }
    }
}

/// A task, and when it runs next.
struct Planned {
    kind: TaskKind,
    every: Duration,
    next: Instant,
    /// What people see of it, and the next process continues.
    task: Task,
}

impl Planned {
    /// Continues the schedule of the previous process. The task runs at once if there is no record of it, or if that process
    /// ended during the task.
    fn new(kind: TaskKind, every: Duration, written: &[Task]) -> Self {
        let before = written.iter().find(|task| task.task == kind.name()).cloned();
        let (name, every_s) = (kind.name().to_owned(), every.as_secs_f64());
        let new = Task { task: name, every_s, next_at: None, failed_runs: 0, last: None };
        let task = before.map_or(new, |before| Task { every_s, ..before });
        let ended_well = task.failed_runs == 0 && task.next_at.is_some();
        let last_at = task.last.as_ref().filter(|_| ended_well).and_then(|last| read_exact(&last.at));
        let since =
            last_at.map(|at| Duration::from_micros(u64::try_from(wall_clock().saturating_sub(at)).unwrap_or(0)));
        let mut planned = Self { kind, every, next: Instant::now(), task };
        planned.after(since.map_or(Duration::ZERO, |since| every.saturating_sub(since)));
        planned
    }

    fn after(&mut self, wait: Duration) {
        self.next = Instant::now() + wait;
        let wait = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX);
        self.task.next_at = Some(exact(wall_clock().saturating_add(wait)));
    }

    /// The wait after a run with this result.
    fn pause(&self, well: bool) -> Duration {
        if well {
            return self.every;
        }
        doubled(FIRST_PAUSE, self.task.failed_runs.saturating_sub(1), LONGEST_PAUSE.min(self.every))
    }
}

struct Timer<'a> {
    site: &'a Site,
    stop: Stop,
    watchdog: Watchdog,
}

/// The result of a run, in one line; `Err` if it failed.
type TaskResult = Result<String, String>;

impl Timer<'_> {
    fn run(&self, planned: &mut Planned) {
        let (began, at) = (Instant::now(), wall_clock());
        let name = planned.kind.name();
        let ended = catch_unwind(AssertUnwindSafe(|| self.run_task(planned.kind)));
        let ended = ended.unwrap_or_else(|_| Err("an internal error, which the log has".into()));
        let took = began.elapsed();
        let well = ended.is_ok();
        let failed_runs = if well { 0 } else { planned.task.failed_runs.saturating_add(1) };
        planned.task.failed_runs = failed_runs;
        let pause = planned.pause(well);
        match &ended {
            // Twice a minute; `service status` shows it.
            Ok(result) if matches!(planned.kind, TaskKind::IndexAddresses) => {
                debug!(task = name, result, ?took, "done")
            }
            Ok(result) => info!(task = name, result, ?took, "done, as it is at intervals"),
            Err(problem) => {
                warn!(task = name, problem, failed_runs, again_in = ?pause, "what is done at intervals has failed");
            }
        }
        let result = ended.unwrap_or_else(|problem| problem);
        planned.task.last = Some(LastRun { at: exact(at), took_s: took.as_secs_f64(), well, result });
        planned.after(pause);
    }

    fn run_task(&self, kind: TaskKind) -> TaskResult {
        let _watched = self.watchdog.watch(TASK, BEGINNING);
        let (at_most, silence) = match kind {
            TaskKind::FinishOwed => {
                let deadline = self.site.deadline();
                (finish_owed::longest_run(deadline), deadline + AROUND_A_COPY)
            }
            TaskKind::Prune(_) => (LONGEST_PRUNE, SILENCE_OF_PRUNE),
            TaskKind::RenewProof => (BEGINNING, BEGINNING),
            TaskKind::IndexAddresses => (LONGEST_INDEXING, LONGEST_INDEXING),
        };
        let lock = format!("maildropd {}", kind.name());
        let mut held = match singleton_lock::take(self.site, &lock, at_most, silence).map_err(shown)? {
            Turn::Ours(held) => held,
            Turn::HeldBy(holder) => {
                let host = holder.and_then(|holder| holder.host).map(|host| format!(" ({host})")).unwrap_or_default();
                return Ok(format!("another host is at it{host}"));
            }
        };
        let mut may_take = |span: Duration| self.watchdog.watch_always(TASK, span);
        let result = match kind {
            TaskKind::FinishOwed => self.finish_owed(&mut held, &mut may_take),
            TaskKind::Prune(retention) => self.prune(retention, &mut held, &mut may_take),
            TaskKind::RenewProof => {
                let renewed = self.site.renew_proof(Deadline::after(RENEWAL));
                renewed.map(ToOwned::to_owned).map_err(|deferral| deferral.to_string())
            }
            TaskKind::IndexAddresses => self.index_addresses(&mut held, &mut may_take),
        };
        may_take(BEGINNING);
        held.end();
        result
    }

    fn finish_owed(&self, held: &mut Held, may_take: &mut dyn FnMut(Duration)) -> TaskResult {
        let mut watched = finish_owed::Watched { stop: self.stop.flag(), may_take };
        let run = finish_owed(self.site, held, &mut watched).map_err(shown)?;
        match &run.problem {
            None => Ok(run.to_text()),
            Some(problem) => Err(format!("{problem} ({})", run.to_text())),
        }
    }

    fn index_addresses(&self, held: &mut Held, may_take: &mut dyn FnMut(Duration)) -> TaskResult {
        may_take(LONGEST_INDEXING + BEGINNING);
        let deadline = Deadline::after(LONGEST_INDEXING);
        let mut database = self.site.open_database(None, deadline).map_err(shown)?;
        let mut lost = None;
        let indexed = index_addresses(self.site, database.as_mut(), &mut || {
            lost = held.is_still_ours().err();
            lost.is_none() && !self.stop.is_requested() && deadline.remaining() > BEGINNING
        });
        let summary = indexed.map(|added| format!("{added} addresses of messages indexed")).map_err(shown)?;
        lost.map_or(Ok(summary), Err)
    }

    fn prune(&self, retention: Retention, held: &mut Held, may_take: &mut dyn FnMut(Duration)) -> TaskResult {
        let mut done = Vec::new();
        let mut lost = None;
        may_take(LONGEST_BATCH);
        let mut database = self.site.open_database(None, Deadline::after(LONGEST_PRUNE)).map_err(shown)?;
        for (kind, age) in prune::kinds(&retention) {
            let mut go_on = |_| {
                may_take(LONGEST_BATCH);
                lost = lost.take().or_else(|| held.is_still_ours().err());
                lost.is_none() && !self.stop.is_requested()
            };
            if !go_on(0) {
                break;
            }
            done.push(prune::prune(database.as_mut(), kind, age, REST, &mut go_on).map_err(shown)?);
        }
        let counts = |pruned: &Pruned| format!("{} {} removed", pruned.removed, pruned.kind.as_str());
        let summary = done.iter().map(counts).collect::<Vec<_>>().join(", ");
        lost.map_or_else(|| Ok(summary.clone()), |problem| Err(format!("{problem} ({summary})")))
    }
}

fn shown(error: DatabaseError) -> String {
    error.to_string()
}

/// The content of the timer's state file. Empty if there is none, or if another release wrote it.
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

/// Writes the state file. If that fails, a restarted timer runs its tasks at once, which loses nothing.
fn write_down(state: &Path, tasks: &[Planned]) {
    let tasks: Vec<&Task> = tasks.iter().map(|planned| &planned.task).collect();
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
