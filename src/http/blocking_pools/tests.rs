use super::*;
use crate::base::blocking_pool::asked_by;
use crate::site::embedded::Embedded;
use std::sync::Condvar;
use std::sync::mpsc::channel;

fn blocking(directory: &std::path::Path, patience: Duration) -> Blocking {
    Blocking::new(Site::embedded(Embedded::new(directory.to_owned())), patience)
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

const LONG: Duration = Duration::from_mins(2);

#[test]
fn a_question_that_fails_or_panics_leaves_the_threads_for_others() {
    let directory = tempfile::tempdir().unwrap();
    let blocking = blocking(directory.path(), LONG);
    run(async {
        for _ in 0..Work::Query.threads() * 2 {
            let failed = blocking.query(|database| database.select("asking", "SELECT nothing", &[])).await;
            assert!(matches!(failed, Err(QueryFailure::Database(_))), "{failed:?}");
            let panicked: Result<(), _> = blocking.query(|_| panic!("as a bug would")).await;
            assert!(matches!(panicked, Err(QueryFailure::Rejected(Rejected::Failed))), "{panicked:?}");
            let rows = blocking.query(|database| database.select("asking", "SELECT 1", &[])).await.unwrap();
            assert_eq!(rows[0].text(0), Some("1"));
        }
    });
}

/// Blocks the answer of each query until the gate is opened.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        drop(self.opened.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
    }
}

type Answer = tokio::task::JoinHandle<Result<(), QueryFailure>>;

/// Starts more queries than can run and wait at once. None is answered before the gate is opened.
fn ask_at_once(blocking: &Blocking, gate: &Arc<Gate>, client: Option<&'static str>) -> Vec<Answer> {
    let ask = |_| {
        let (blocking, gate) = (blocking.clone(), Arc::clone(gate));
        let question = move |_: &mut dyn Database| {
            gate.pass();
            Ok(())
        };
        tokio::spawn(async move {
            match client {
                Some(client) => asked_by(client.into(), blocking.query(question)).await,
                None => blocking.query(question).await,
            }
        })
    };
    (0..=Work::Query.threads() + WAITING).map(ask).collect()
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::task::yield_now().await;
    }
}

async fn others_are_answered(blocking: &Blocking) {
    for _ in 0..Work::Query.threads() * 2 {
        let rows = |database: &mut dyn Database| database.select("asking", "SELECT 1", &[]);
        let found = asked_by("another".into(), blocking.query(rows)).await.unwrap();
        assert_eq!(found[0].text(0), Some("1"));
    }
}

async fn all(answers: Vec<Answer>) -> Vec<Result<(), QueryFailure>> {
    let mut all = Vec::new();
    for answer in answers {
        all.push(answer.await.unwrap());
    }
    all
}

/// An on-call engineer finds a message while another user's script sends long queries as fast as it can.
#[test]
fn the_slow_questions_of_one_login_leave_half_of_the_threads_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let blocking = blocking(directory.path(), LONG);
    let gate = Arc::new(Gate::default());
    run(async {
        let slow = ask_at_once(&blocking, &gate, Some("one"));
        until(|| blocking.pool(Work::Query).has_its_share("one")).await;
        others_are_answered(&blocking).await;
        assert!(!slow.iter().any(Answer::is_finished));
        gate.open();
        assert!(all(slow).await.iter().all(Result::is_ok), "each has had its turn");
    });
}

/// A script requests page after page without permission, under the same name as its other queries.
#[test]
fn one_credential_that_is_shown_again_and_again_leaves_half_of_the_threads_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let blocking = blocking(directory.path(), LONG);
    let (gate, credential) = (Arc::new(Gate::default()), [7; 32]);
    blocking.is_valid(credential, "one".into());
    run(async {
        let show = |_| {
            let (blocking, gate) = (blocking.clone(), Arc::clone(&gate));
            let shown = move |_: &mut dyn Database| {
                gate.pass();
                Ok(Some(()))
            };
            let client = |(): &()| "one".to_owned();
            tokio::spawn(
                async move { blocking.authenticate(&Caller::default(), credential, client, shown).await.is_ok() },
            )
        };
        let shown: Vec<_> = (0..=Work::Query.threads() + WAITING).map(show).collect();
        until(|| blocking.pool(Work::Query).has_its_share("one")).await;
        others_are_answered(&blocking).await;
        gate.open();
        for shown in shown {
            assert!(shown.await.unwrap(), "each has had its turn");
        }
    });
}

/// Two users run long queries, and a third user only needs a page.
#[test]
fn slow_work_leaves_half_of_the_threads_to_quick_work_of_any_client() {
    let directory = tempfile::tempdir().unwrap();
    let blocking = blocking(directory.path(), LONG);
    let gate = Arc::new(Gate::default());
    run(async {
        let ask = |number: u32| {
            let (blocking, gate) = (blocking.clone(), Arc::clone(&gate));
            let question = move |_: &mut dyn Database| {
                gate.pass();
                Ok(())
            };
            let long = async move { blocking.query_long(Duration::from_mins(3), question).await };
            tokio::spawn(asked_by(number.to_string(), long))
        };
        let slow: Vec<Answer> = (0..Work::Query.threads() * 2).map(ask).collect();
        until(|| blocking.pool(Work::Query).long_ones_have_their_share()).await;
        others_are_answered(&blocking).await;
        assert!(!slow.iter().any(Answer::is_finished));
        gate.open();
        assert!(all(slow).await.iter().all(Result::is_ok), "each has had its turn");
    });
}

#[test]
fn who_waits_for_too_long_hears_so() {
    let directory = tempfile::tempdir().unwrap();
    let blocking = blocking(directory.path(), Duration::from_secs(2));
    let gate = Arc::new(Gate::default());
    let answers = run(async { all(ask_at_once(&blocking, &gate, None)).await });
    gate.open();
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    // At least the queries that got no thread are busy. On a slow disk, creating the database may keep a thread for all of this
    // time. The query of that thread then gets a database error.
    let busy = |answer: &&Result<_, _>| matches!(answer, Err(QueryFailure::Rejected(Rejected::Busy)));
    assert!(answers.iter().filter(busy).count() >= (WAITING - Work::Query.threads()) as usize, "{answers:?}");
    assert!(answers.iter().flat_map(|answer| answer.as_ref().err()).all(QueryFailure::may_pass), "{answers:?}");
}

#[test]
fn what_is_read_for_people_holds_up_no_other_work_however_long_it_takes() {
    // This directory cannot be opened.
    let blocking = blocking("/nowhere".as_ref(), LONG);
    let mut gates = Vec::new();
    run(async {
        for _ in 0..Work::Read.threads() {
            let (open, gate) = channel::<()>();
            gates.push(open);
            let late = blocking.run(Work::Read, Duration::from_millis(20), move |_, _| gate.recv()).await;
            assert_eq!(late.map(drop), Err(Rejected::TooLate));
        }
        let short = Duration::from_millis(20);
        assert_eq!(blocking.run(Work::Read, short, |_, _| ()).await, Err(Rejected::Busy));
        assert_eq!(blocking.run(Work::Look, LONG, |_, _| ()).await, Ok(()));
        gates.clear();
        assert_eq!(blocking.run(Work::Read, LONG, |_, _| ()).await, Ok(()));
    });
}

#[test]
fn redeliveries_are_reported_to_end_and_are_waited_for() {
    let blocking = blocking("/nowhere".as_ref(), LONG);
    let (sender, printed) = channel();
    for _ in 0..Work::Redelivery.threads() {
        let sender = sender.clone();
        let begun = blocking.begin_redelivery(move |_, stop| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            sender.send(()).unwrap();
        });
        assert_eq!(begun, Ok(()));
    }
    assert_eq!(blocking.begin_redelivery(|_, _| ()), Err(Rejected::Busy));
    run(blocking.end());
    assert_eq!(printed.try_iter().count(), Work::Redelivery.threads() as usize);
}
