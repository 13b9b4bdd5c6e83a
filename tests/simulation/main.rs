//! Every interleaving: the real delivery on simulated servers, under a scheduler that decides who goes on and what fails.
//!
//! `SIMULATION_SCHEDULES` sets how many random schedules each scenario runs (default 3,000), `SIMULATION_PREEMPTIONS` how
//! often a process may be interrupted in the exhaustive run (default 1). The long run:
//! `SIMULATION_SCHEDULES=1000000 SIMULATION_PREEMPTIONS=3 cargo test --release --test simulation`.

mod choice;
mod mistake;
mod run;
mod world;

use choice::{Choice, Every, Random};
use mistake::Mistake;
use run::{A_LONG_TIME, Job, Scenario, Trace, run};
use std::time::Duration;
use world::{Engine, SETTLE};

fn to(recipient: &'static str) -> Job {
    Job { recipient, message: 0, sent: true, retried: true }
}

fn two_recipients(engine: Engine) -> Scenario {
    Scenario {
        name: "two recipients of one message",
        engine,
        uid_plus: true,
        jobs: vec![to("scuba"), to("doug")],
        faults: 4,
        preemptions: usize::MAX,
        hasty_retries: 2,
        user_deletes: 0,
        renumberings: 0,
        refusals: false,
        fail_overs: 0,
        clocks_set_back: 0,
        mailboxes_deleted: 0,
        sent_retry_for: A_LONG_TIME,
        mistake: None,
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

fn random(scenario: &Scenario) {
    for seed in 0..setting("SIMULATION_SCHEDULES").unwrap_or(3000) {
        let mut trace = Trace::default();
        let mut choice = Choice::Random(Random::new(seed));
        if let Err(broken) = run(scenario, &mut choice, &mut trace) {
            panic!("{} ({:?}), seed {seed}: {broken}\n{}", scenario.name, scenario.engine, trace.0.join("\n"));
        }
    }
}

fn every(scenario: &Scenario) -> u64 {
    let mut choice = Choice::Every(Every::default());
    let mut schedules = 0;
    loop {
        let mut trace = Trace::default();
        if let Err(broken) = run(scenario, &mut choice, &mut trace) {
            panic!("{} ({:?}), schedule {schedules}: {broken}\n{}", scenario.name, scenario.engine, trace.0.join("\n"));
        }
        schedules += 1;
        let Choice::Every(every) = &mut choice else { unreachable!("it was made as such") };
        if !every.advance() {
            return schedules;
        }
    }
}

#[test]
fn random_schedules_of_two_recipients() {
    random(&two_recipients(Engine::Postgresql));
    random(&two_recipients(Engine::Mysql));
}

#[test]
fn random_schedules_of_three_recipients() {
    let three = |engine| Scenario {
        name: "three recipients",
        jobs: vec![to("scuba"), to("doug"), to("lisa")],
        ..two_recipients(engine)
    };
    random(&three(Engine::Postgresql));
    random(&three(Engine::Mysql));
}

#[test]
fn random_schedules_with_refusals() {
    random(&Scenario { name: "refusals", refusals: true, ..two_recipients(Engine::Mysql) });
}

#[test]
fn random_schedules_where_owners_delete_and_mailboxes_are_renumbered() {
    random(&Scenario { name: "owners", user_deletes: 1, ..two_recipients(Engine::Postgresql) });
    random(&Scenario { name: "renumbered", renumberings: 1, ..two_recipients(Engine::Postgresql) });
}

#[test]
fn random_schedules_without_uidplus() {
    random(&Scenario { name: "no UIDPLUS", uid_plus: false, ..two_recipients(Engine::Postgresql) });
}

#[test]
fn random_schedules_of_two_messages_with_one_message_id() {
    let other = Job { message: 1, ..to("scuba") };
    random(&Scenario {
        name: "two messages, one Message-ID",
        jobs: vec![to("scuba"), other, to("doug")],
        ..two_recipients(Engine::Mysql)
    });
}

#[test]
fn random_schedules_with_a_replay_that_nobody_retries() {
    let replay = Job { retried: false, ..to("doug") };
    random(&Scenario { name: "replay", jobs: vec![to("scuba"), replay], ..two_recipients(Engine::Postgresql) });
}

#[test]
fn random_schedules_of_two_aliases_of_one_recipient() {
    random(&Scenario { name: "aliases", jobs: vec![to("scuba"), to("scuba")], ..two_recipients(Engine::Mysql) });
}

#[test]
fn random_schedules_where_a_sent_copy_is_given_up_and_stays_owed() {
    let sent_retry_for = Duration::from_secs_f64(1.5 * SETTLE);
    for refusals in [false, true] {
        random(&Scenario {
            name: "given up",
            refusals,
            sent_retry_for,
            faults: 6,
            ..two_recipients(Engine::Postgresql)
        });
    }
}

#[test]
fn random_schedules_where_the_database_fails_over_and_forgets() {
    for engine in [Engine::Postgresql, Engine::Mysql] {
        random(&Scenario { name: "fail-over", fail_overs: 2, ..two_recipients(engine) });
    }
}

#[test]
fn random_schedules_where_the_clock_is_set_back() {
    random(&Scenario { name: "clock", clocks_set_back: 2, ..two_recipients(Engine::Mysql) });
    let twins = vec![to("scuba"), to("scuba")];
    random(&Scenario { name: "clock, twins", clocks_set_back: 1, jobs: twins, ..two_recipients(Engine::Postgresql) });
}

#[test]
fn random_schedules_where_a_mailbox_is_deleted_and_made_anew() {
    random(&Scenario { name: "made anew", mailboxes_deleted: 1, ..two_recipients(Engine::Postgresql) });
}

#[test]
fn random_schedules_of_a_note_that_goes_to_others_too() {
    let jobs = vec![to("lisa"), to("doug"), to("lisa")];
    random(&Scenario { name: "note to oneself", jobs, ..two_recipients(Engine::Mysql) });
}

#[test]
fn every_schedule_of_two_recipients_with_one_fault() {
    for engine in [Engine::Postgresql, Engine::Mysql] {
        let preemptions = usize::try_from(setting("SIMULATION_PREEMPTIONS").unwrap_or(1)).expect("a small number");
        let small = Scenario { faults: 1, preemptions, hasty_retries: 0, ..two_recipients(engine) };
        let schedules = every(&small);
        assert!(schedules > 1000, "only {schedules}");
    }
}

/// Whether some random schedule shows the mistake.
fn is_found(mistake: Mistake) {
    let two = |engine| Scenario { mistake: Some(mistake), ..two_recipients(engine) };
    let scenarios = [
        two(Engine::Postgresql),
        two(Engine::Mysql),
        Scenario { user_deletes: 1, ..two(Engine::Postgresql) },
        Scenario { jobs: vec![to("scuba"), to("doug"), to("lisa")], ..two(Engine::Mysql) },
    ];
    let schedules = setting("SIMULATION_MISTAKES").unwrap_or(10_000);
    for seed in 0..schedules {
        for scenario in &scenarios {
            let broken = run(scenario, &mut Choice::Random(Random::new(seed)), &mut Trace::default());
            if let Err(broken) = broken {
                println!("{mistake:?}: found in schedule {seed}: {broken}");
                return;
            }
        }
    }
    panic!("{mistake:?} was not found in {schedules} schedules of each kind");
}

macro_rules! each_mistake_is_found {
    ($($name:ident: $mistake:ident,)*) => {
        mod each_mistake_is_found {
            $(#[test] fn $name() { super::is_found(super::Mistake::$mistake); })*
        }
    };
}

each_mistake_is_found! {
    no_lock: NoLock,
    a_lock_held_elsewhere_taken_for_delivered: BusyIsDone,
    looking_before_the_lock: LookBeforeLock,
    no_journal: NoJournal,
    never_searching: NeverSearch,
    not_looking_again_for_what_is_recorded: NoRecheck,
    not_waiting_until_it_is_settled: NoSettle,
    taking_out_without_a_keeper: NoKeeper,
    recording_before_appending: RecordBeforeAppend,
    exit_0_on_an_unknown_outcome: UnknownIsDone,
    ending_an_attempt_of_unknown_outcome: UnknownEnds,
    reading_the_journal_once: JournalReadOnce,
}
