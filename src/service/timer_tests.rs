use super::*;
use crate::base::files::create_directory;
use crate::site::embedded::Embedded;

fn service() -> Service {
    crate::service::configured(Path::new("/x")).service
}

fn planned(every: Duration, written: &[Task]) -> Planned {
    Planned::new(TaskKind::FinishOwed, every, written)
}

/// A task whose last run began this long ago.
fn task(ago: Duration, failed_runs: u32, next_at: Option<&str>) -> Task {
    let at = exact(wall_clock() - i64::try_from(ago.as_micros()).unwrap());
    let last = LastRun { at, took_s: 0.1, well: failed_runs == 0, result: "x".into() };
    let next_at = next_at.map(ToOwned::to_owned);
    Task { task: "finish_owed".into(), every_s: 60.0, next_at, failed_runs, last: Some(last) }
}

fn waits(planned: &Planned) -> Duration {
    planned.next.saturating_duration_since(Instant::now())
}

#[test]
fn a_process_that_is_replaced_goes_on_where_the_one_before_it_was() {
    let (hour, day) = (Duration::from_hours(1), Duration::from_hours(24));
    assert_eq!(waits(&planned(day, &[])), Duration::ZERO);
    let before = task(hour, 0, Some("2026-01-01T00:00:00Z"));
    let goes_on = planned(day, std::slice::from_ref(&before));
    assert!(waits(&goes_on) > 22 * hour && waits(&goes_on) <= 23 * hour);
    assert_eq!(goes_on.task.last, before.last);
    // The interval has become shorter.
    assert_eq!(waits(&planned(hour / 2, &[before])), Duration::ZERO);
    // The last run had failed, or the process ended during a run.
    assert_eq!(waits(&planned(day, &[task(hour, 2, Some("2026-01-01T00:00:00Z"))])), Duration::ZERO);
    assert_eq!(waits(&planned(day, &[task(hour, 0, None)])), Duration::ZERO);
    // The clock was set back, but the wait is never longer than the interval.
    let mut future = task(Duration::ZERO, 0, Some("2026-01-01T00:00:00Z"));
    future.last.as_mut().unwrap().at = "2999-01-01T00:00:00Z".into();
    assert!(waits(&planned(day, &[future])) <= day);
}

#[test]
fn what_fails_is_tried_again_after_a_pause_that_grows_and_is_never_given_up() {
    let mut planned = planned(Duration::from_hours(24), &[]);
    let mut pauses = Vec::new();
    for failed in 1..=12 {
        planned.task.failed_runs = failed;
        pauses.push(planned.pause(false).as_secs());
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]);
    planned.task.failed_runs = u32::MAX;
    assert_eq!(planned.pause(false), LONGEST_PAUSE);
    assert_eq!(planned.pause(true), Duration::from_hours(24));
    planned.every = Duration::from_secs(7);
    assert_eq!(planned.pause(false), Duration::from_secs(7));
}

#[test]
fn what_was_written_down_is_read_back_and_nonsense_is_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state/timer.json");
    assert_eq!(written_down(&state), []);
    let mut planned = planned(Duration::from_mins(5), &[task(Duration::ZERO, 0, None)]);
    write_down(&state, std::slice::from_ref(&planned));
    assert_eq!(written_down(&state), [planned.task.clone()]);
    planned.task.next_at = None;
    write_down(&state, std::slice::from_ref(&planned));
    assert_eq!(written_down(&state)[0].next_at, None);
    std::fs::write(&state, "[{\"task\":").unwrap();
    assert_eq!(written_down(&state), []);
}

/// A timer of a site that has had no mail, and its folder.
fn with_timer<T>(play: impl FnOnce(&Timer<'_>, &Path) -> T) -> T {
    let folder = tempfile::tempdir().unwrap();
    let mail = folder.path().join("mail");
    create_directory(&mail).unwrap();
    let site = Site::embedded(Embedded::new(mail.clone()));
    let timer = Timer { site: &site, stop: Stop::on_signals().unwrap(), watchdog: process_watchdog::start().unwrap() };
    play(&timer, &mail)
}

/// If a task ends its process, the process is restarted. The other due tasks must not wait for that task.
#[test]
fn after_a_crash_prune_comes_first_and_what_ended_the_process_last() {
    let service = Service { prune_every: Some(DAY), ..service() };
    let first = |written: &[Task]| {
        let mut tasks = planned_tasks(&service, old(), false, written);
        tasks.iter_mut().min_by_key(|task| task.next).unwrap().kind.name()
    };
    let of = |name: &str, next_at| Task { task: name.into(), ..task(2 * DAY, 0, next_at) };
    let due = Some("2026-01-01T00:00:00Z");
    assert_eq!(first(&[]), "prune");
    assert_eq!(first(&[of("finish_owed", due), of("prune", due)]), "prune");
    assert_eq!(first(&[of("finish_owed", None), of("prune", due)]), "prune");
    assert_eq!(first(&[of("prune", None), of("finish_owed", due)]), "finish_owed");
}

/// A timer without a password has no proof to renew, which is no failure.
#[test]
fn the_proof_is_renewed_once_a_day_by_a_timer_that_logs_in() {
    let service = service();
    let names = |proves_logins| {
        planned_tasks(&service, Retention::default(), proves_logins, &[])
            .iter()
            .map(|task| (task.kind.name(), task.every))
            .collect::<Vec<_>>()
    };
    let finish_owed = ("finish_owed", service.finish_owed_every);
    // Failures are pruned at each site.
    let (prune, index) = (("prune", DAY), ("index_addresses", INDEX_EVERY));
    assert_eq!(names(false), [prune, finish_owed, index]);
    assert_eq!(names(true), [prune, finish_owed, ("renew_proof", DAY), index]);
    with_timer(|timer, _| {
        let result = timer.run_task(TaskKind::RenewProof).unwrap();
        assert!(result.starts_with("nothing to renew"), "{result}");
    });
}

const DAY: Duration = Duration::from_hours(24);

fn old() -> Retention {
    Retention { attempts_older_than: Some(DAY), messages_older_than: Some(DAY), ..Retention::default() }
}

#[test]
fn what_is_old_is_forgotten_kind_by_kind_and_no_more_of_it_once_it_is_reported_to_end() {
    with_timer(|timer, _| {
        // The failures of a week are kept at every site.
        assert_eq!(timer.run_task(TaskKind::Prune(Retention::default())), Ok("0 failures removed".into()));
        let came = timer.run_task(TaskKind::Prune(old())).unwrap();
        assert!(came.contains("0 attempts removed") && came.contains("0 messages removed"), "{came}");
        timer.stop.flag().store(true, std::sync::atomic::Ordering::Release);
        assert_eq!(timer.run_task(TaskKind::Prune(old())), Ok(String::new()));
    });
}

#[test]
fn another_host_is_kept_from_it_by_the_name_that_an_operator_knows() {
    with_timer(|timer, _| {
        for (kind, lock) in [
            (TaskKind::FinishOwed, "maildropd finish_owed"),
            (TaskKind::Prune(old()), "maildropd prune"),
            (TaskKind::RenewProof, "maildropd renew_proof"),
            (TaskKind::IndexAddresses, "maildropd index_addresses"),
        ] {
            assert_ne!(timer.run_task(kind).unwrap(), "another host is at it");
            let Ok(Turn::Ours(held)) = singleton_lock::take(timer.site, lock, DAY, DAY) else {
                panic!("{lock} is held")
            };
            let came = timer.run_task(kind).unwrap();
            assert!(came.starts_with("another host is at it"), "{came}");
            held.end();
        }
    });
}

#[test]
fn what_came_of_a_run_says_when_the_next_one_begins() {
    let mut planned = planned(DAY, &[]);
    with_timer(|timer, mail| {
        timer.run(&mut planned);
        let last = planned.task.last.clone().unwrap();
        assert!(last.well && planned.task.failed_runs == 0, "{last:?}");
        assert!(waits(&planned) > DAY / 2);
        // A file in place of the database's folder makes the database fail.
        std::fs::remove_dir_all(mail).unwrap();
        std::fs::write(mail, "").unwrap();
        for failed_runs in 1..=2 {
            timer.run(&mut planned);
            let last = planned.task.last.clone().unwrap();
            assert_eq!((last.well, planned.task.failed_runs), (false, failed_runs));
            assert!(last.result.contains("mail"), "{last:?}");
            assert!(waits(&planned) <= 2 * FIRST_PAUSE);
        }
    });
}

#[test]
fn mailboxes_are_opened_where_owed_copies_are_finished() {
    assert!(opens_mailboxes(&service()));
    assert!(!opens_mailboxes(&Service { finish_owed_every: Duration::ZERO, ..service() }));
}
