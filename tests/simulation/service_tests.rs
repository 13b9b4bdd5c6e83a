//! The service on two hosts, under the same scheduler: real brokers and sessions of LMTP, workers, and what may become
//! of them.

use crate::mistake::Mistake;
use crate::scenario::{Before, By, Job, Left, Scenario, to, to_all, two_recipients};
use crate::world::Engine;
use crate::{after_a_crash, every, is_found_in, random_of, small_of};

const ENGINES: [Engine; 2] = [Engine::Postgresql, Engine::Mysql];

/// Of each scenario in the regular run: one costs as much as four of two processes.
fn random(scenario: &Scenario) {
    random_of(scenario, 100);
}

fn lmtp(host: usize, recipients: &[&'static str]) -> Job {
    Job { by: By::Lmtp(host), ..to_all(recipients) }
}

fn client(host: usize, recipient: &'static str) -> Job {
    Job { by: By::Client(host), ..to(recipient) }
}

/// What may go wrong with fronts, workers and those who hand messages over, besides what may with deliveries.
fn of_the_service(left: &mut Left) {
    (left.faults, left.fronts_die, left.stops, left.passes, left.late_words, left.callers_die) = (2, 1, 1, 2, 2, 1);
}

/// A message comes to one host for two recipients, and to another for two, of whom they have one in common.
fn two_fronts(engine: Engine) -> Scenario {
    let jobs = vec![lmtp(0, &["scuba", "doug"]), lmtp(1, &["kim", "scuba"])];
    Scenario { jobs, ..two_recipients(engine) }.with("two fronts", of_the_service)
}

/// It comes by LMTP, by a program that asks the service, and by a process of its own.
fn all_transports(engine: Engine) -> Scenario {
    let jobs = vec![lmtp(0, &["scuba", "doug"]), client(1, "kim"), to("lisa")];
    Scenario { jobs, ..two_recipients(engine) }.with("all transports", of_the_service)
}

/// More comes to a host than it has workers.
fn a_queue(engine: Engine) -> Scenario {
    let jobs = vec![client(0, "kim"), lmtp(0, &["scuba", "doug"]), client(0, "lisa"), lmtp(1, &["ann"])];
    Scenario { jobs, ..two_recipients(engine) }.with("a queue", of_the_service)
}

/// Somebody who has a message at work is among the recipients of another one, which goes to the others.
fn too_many_for_one(engine: Engine) -> Scenario {
    let jobs = vec![client(0, "scuba"), lmtp(0, &["doug", "scuba", "kim"]), lmtp(1, &["ann"])];
    let scenario = Scenario { jobs, workers: 2, max_per_recipient: 1, ..two_recipients(engine) };
    scenario.with("too many for one", of_the_service).with("too many for one", |left| left.passes = 6)
}

/// pipe(8) is ended while it writes a message for the program that asks the service.
fn cut_short(engine: Engine) -> Scenario {
    let jobs = vec![Job { cut: true, ..client(0, "scuba") }, lmtp(1, &["doug", "kim"])];
    Scenario { jobs, ..two_recipients(engine) }.with("cut short at the service", of_the_service)
}

/// A delivery has died, and its Sent copy is on its way still.
fn a_crash(before: Before, engine: Engine) -> Scenario {
    let jobs = vec![lmtp(0, &["doug", "scuba"]), client(1, "lisa")];
    Scenario { jobs, ..after_a_crash(before, engine) }.with("the service after a crash", of_the_service)
}

fn of_each_kind(mistake: Option<Mistake>) -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for engine in ENGINES {
        scenarios.extend([two_fronts(engine), all_transports(engine), a_queue(engine), cut_short(engine)]);
        scenarios.push(Scenario { name: "two fronts, refusals", refusals: true, ..two_fronts(engine) });
        scenarios.push(Scenario { name: "two workers on each host", workers: 2, ..a_queue(engine) });
        scenarios.push(too_many_for_one(engine));
    }
    scenarios.iter_mut().for_each(|scenario| scenario.mistake = mistake);
    scenarios
}

#[test]
fn random_schedules_of_two_fronts() {
    for engine in ENGINES {
        random(&two_fronts(engine));
        random(&Scenario { name: "two fronts, refusals", refusals: true, ..two_fronts(engine) });
        random(&two_fronts(engine).with("two fronts, and a fail-over", |left| left.fail_overs = 1));
    }
}

#[test]
fn random_schedules_of_all_transports() {
    for engine in ENGINES {
        random(&all_transports(engine));
        random(&all_transports(engine).with("all transports, and much of it", |left| {
            (left.faults, left.fronts_die, left.stops, left.callers_die, left.late_words) = (4, 3, 3, 3, 4);
        }));
    }
}

#[test]
fn random_schedules_of_more_messages_than_workers() {
    for engine in ENGINES {
        random(&a_queue(engine));
        random(&Scenario { name: "two workers on each host", workers: 2, ..a_queue(engine) });
    }
}

#[test]
fn random_schedules_of_a_message_that_leaves_somebody_out() {
    ENGINES.map(too_many_for_one).iter().for_each(random);
}

#[test]
fn random_schedules_of_a_message_cut_short_on_its_way_to_the_service() {
    ENGINES.map(cut_short).iter().for_each(random);
}

#[test]
fn random_schedules_of_the_service_after_a_crash() {
    for before in [Before::UnderWay, Before::SentUnderWay, Before::BesideRecorded, Before::TwoUnrecorded] {
        ENGINES.map(|engine| a_crash(before, engine)).iter().for_each(random);
    }
}

/// One host has a message by LMTP, the other the same message by a program that asks its service; and one thing goes
/// wrong.
fn every_schedule_with(name: &'static str, change: fn(&mut Left)) {
    for engine in ENGINES {
        let jobs = vec![lmtp(0, &["scuba"]), client(1, "doug")];
        let scenario = small_of(Scenario { jobs, ..two_recipients(engine) }, 0);
        let one = scenario.with(name, |left| left.faults = 0).with(name, change);
        every(&one).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

#[test]
fn all_schedules_of_two_fronts_with_a_fault() {
    every_schedule_with("two fronts, a fault", |left| left.faults = 1);
}

#[test]
fn all_schedules_of_two_fronts_one_of_which_dies() {
    every_schedule_with("two fronts, one dies", |left| left.fronts_die = 1);
}

#[test]
fn all_schedules_of_two_fronts_with_a_worker_that_hangs() {
    every_schedule_with("two fronts, a worker hangs", |left| left.stops = 1);
}

#[test]
fn all_schedules_of_two_fronts_and_callers_that_die() {
    every_schedule_with("two fronts, a caller dies", |left| left.callers_die = 1);
}

#[test]
fn all_schedules_of_two_fronts_and_words_that_are_late() {
    every_schedule_with("two fronts, words are late", |left| left.late_words = 1);
}

macro_rules! each_mistake_is_found {
    ($($name:ident: $mistake:ident,)*) => {
        mod each_mistake_is_found {
            $(#[test]
            fn $name() {
                let mistake = super::Mistake::$mistake;
                super::is_found_in(mistake, &super::of_each_kind(Some(mistake)));
            })*
        }
    };
}

each_mistake_is_found! {
    taking_a_heartbeat_for_ready: ReadyByHeartbeat,
    handing_on_to_a_second_worker: HandedOn,
    beginning_without_go: BeginsWithoutGo,
    one_reply_too_many: OneReplyTooMany,
    replies_in_another_order: RepliesInAnotherOrder,
    answering_before_the_record: ReplyBeforeRecord,
    answering_a_recipient_who_was_left_out: OneLeftOut,
    not_waiting_until_it_is_settled: NoSettle,
}
