//! What happens by itself, while deliveries run: servers get on with what was sent to them, connections end, owners tidy up.

use crate::choice::Choice;
use crate::run::Trace;
use crate::scenario::Left;
use crate::world::{Change, Name, SETTLE, SimulatedBox, World};

enum Event {
    /// An APPEND lands, or an expunge gets half done, whose process is gone.
    Lands(usize),
    /// A database session whose client is gone carries out what it was sent, or ends.
    LingersOn(usize),
    /// It ends, and what it was sent is never carried out.
    Notices(usize),
    /// A lock is lost while its holder is busy elsewhere: in the very moment between its last look and its APPEND.
    Severed(usize),
    FailsOver {
        forgotten: usize,
    },
    /// The same, and what is lacking is applied later.
    FailsOverToALateOne {
        lacks: usize,
    },
    CatchesUp,
    /// Another server takes over, and the former primary still answers: commits with a warning, or never.
    Splits {
        warns: bool,
    },
    /// The former primary is gone.
    Fenced,
    ClockSetBack,
    Deleted(Name),
    OwnerTakes(Name, usize),
    OwnerMarks(Name, usize),
    Renumbered(Name),
    /// A server that crashes takes back UIDs that it had given to APPENDs in flight.
    Lowered(Name),
    /// The client of a process dies, with its whole message written.
    CallerDies(usize),
}

/// Something happens, or nothing does. `false`: nothing. Who lives, and who of them has a caller.
pub fn happens(
    (alive, with_callers): (&[usize], &[usize]),
    world: &mut World,
    choice: &mut Choice,
    left: &mut Left,
    trace: &mut Trace,
) -> bool {
    let kinds = possible(alive, with_callers, world, *left);
    let kind = choice.mishap(kinds.len() + 1);
    let Some(kind) = kind.checked_sub(1) else { return false };
    let event = &kinds[kind][choice.one_of(kinds[kind].len())];
    happen(event, alive, world, left, trace);
    true
}

/// What can happen, by kind. Nothing that would change nothing is among it.
fn possible(alive: &[usize], with_callers: &[usize], world: &World, left: Left) -> Vec<Vec<Event>> {
    let late = world.under_way.iter().enumerate().filter(|(_, it)| it.abandoned).map(|(n, _)| Event::Lands(n));
    let lingering = world.lingering.iter().enumerate().flat_map(|(n, session)| {
        let notices = session.statement.as_ref().map(|_| Event::Notices(n));
        [Event::LingersOn(n)].into_iter().chain(notices)
    });
    let mut kinds: Vec<Vec<Event>> = vec![late.collect(), lingering.collect()];
    if left.faults > 0 {
        kinds.push(alive.iter().filter(|process| world.holds(**process)).map(|it| Event::Severed(*it)).collect());
    }
    if left.fail_overs > 0 {
        kinds.push((0..4).map(|forgotten| Event::FailsOver { forgotten }).collect());
    }
    if left.late_fail_overs > 0 {
        kinds.push((1..4).map(|lacks| Event::FailsOverToALateOne { lacks }).collect());
    }
    if world.backlog.is_some() {
        kinds.push(vec![Event::CatchesUp]);
    }
    if left.splits > 0 && world.former.is_none() {
        kinds.push([false, true].map(|warns| Event::Splits { warns }).into());
    }
    if world.former.is_some() {
        kinds.push(vec![Event::Fenced]);
    }
    if left.clocks_set_back > 0 {
        kinds.push(vec![Event::ClockSetBack]);
    }
    if left.mailboxes_deleted > 0 {
        kinds.push(world.boxes.keys().map(|name| Event::Deleted(*name)).collect());
    }
    if left.owner_acts > 0 {
        let copies = |mailbox: &SimulatedBox| {
            let ours = mailbox.messages.iter().enumerate().filter(|(_, there)| there.identity.is_some());
            ours.map(|(n, _)| n).collect::<Vec<_>>()
        };
        let all = || world.boxes.iter().flat_map(|(name, it)| copies(it).into_iter().map(move |n| (*name, n)));
        kinds.push(all().map(|(name, n)| Event::OwnerTakes(name, n)).collect());
        kinds.push(all().map(|(name, n)| Event::OwnerMarks(name, n)).collect());
    }
    if left.renumberings > 0 {
        kinds.push(world.boxes.keys().map(|name| Event::Renumbered(*name)).collect());
    }
    if left.lowerings > 0 {
        let boxes = world.boxes.iter().filter(|(_, mailbox)| mailbox.can_be_lowered());
        kinds.push(boxes.map(|(name, _)| Event::Lowered(*name)).collect());
    }
    if left.callers_die > 0 {
        let living = with_callers.iter().filter(|process| !world.orphans.contains(process));
        kinds.push(living.map(|process| Event::CallerDies(*process)).collect());
    }
    kinds.retain(|events| !events.is_empty());
    kinds
}

fn happen(event: &Event, alive: &[usize], world: &mut World, left: &mut Left, trace: &mut Trace) {
    match *event {
        Event::Lands(which) => {
            trace.say(|| {
                format!("what process {} sent goes on: {}", world.under_way[which].process, describe(world, which))
            });
            world.land(which);
        }
        Event::LingersOn(which) => {
            trace.say(|| format!("the database goes on with {:?}", world.lingering[which]));
            world.linger_on(which);
        }
        Event::Notices(which) => {
            trace.say(|| format!("the database gives up {:?}", world.lingering[which]));
            world.end_lingering(which);
        }
        Event::Severed(process) => {
            left.faults -= 1;
            trace.say(|| format!("the server ends the connection of process {process}, and frees its lock"));
            world.sever(process);
        }
        Event::FailsOver { forgotten } => {
            left.fail_overs -= 1;
            trace.say(|| format!("the database fails over, and forgets {forgotten} commits"));
            world.fail_over(forgotten, alive);
        }
        Event::FailsOverToALateOne { lacks } => {
            left.late_fail_overs -= 1;
            trace.say(|| format!("the database fails over to a server that has {lacks} commits still to apply"));
            world.fail_over_to_a_late_one(lacks, alive);
        }
        Event::CatchesUp => {
            trace.say(|| "the new primary has applied all".into());
            world.catch_up();
        }
        Event::Splits { warns } => {
            left.splits -= 1;
            trace.say(|| {
                let commits = if warns { "with a warning" } else { "never" };
                format!("another server takes over; the former one still answers, and commits {commits}")
            });
            world.split(warns, alive);
        }
        Event::Fenced => {
            trace.say(|| "the former primary is gone".into());
            world.fence();
        }
        Event::ClockSetBack => {
            left.clocks_set_back -= 1;
            trace.say(|| "the database's clock is set back".into());
            world.clock -= 5 * SETTLE / 2;
        }
        Event::Deleted(name) => {
            left.mailboxes_deleted -= 1;
            trace.say(|| format!("{name:?} is deleted, and recreated"));
            let mailbox = world.mailbox(name);
            let owner_acted = mailbox.owner_acted + 1;
            *mailbox = SimulatedBox { owner_acted, ..SimulatedBox::new(mailbox.uid_validity + 1) };
        }
        Event::OwnerTakes(name, which) => {
            left.owner_acts -= 1;
            let mailbox = world.mailbox(name);
            let taken = mailbox.messages.remove(which);
            mailbox.owner_acted += 1;
            trace.say(|| format!("the owner of {name:?} takes {} away", taken.uid));
        }
        Event::OwnerMarks(name, which) => {
            left.owner_acts -= 1;
            let mailbox = world.mailbox(name);
            mailbox.messages[which].deleted = true;
            mailbox.owner_acted += 1;
            trace.say(|| format!("the owner of {name:?} marks {} deleted", mailbox.messages[which].uid));
        }
        Event::Renumbered(name) => {
            left.renumberings -= 1;
            trace.say(|| format!("{name:?} gets a new UIDVALIDITY"));
            world.mailbox(name).renumber();
        }
        Event::Lowered(name) => {
            left.lowerings -= 1;
            trace.say(|| format!("UIDNEXT of {name:?} is lowered"));
            world.mailbox(name).uid_next -= 1;
        }
        Event::CallerDies(process) => {
            left.callers_die -= 1;
            trace.say(|| format!("the caller of process {process} dies"));
            world.orphans.insert(process);
        }
    }
}

/// Time passes until everything that was sent is carried out, or never will be.
pub fn settle(world: &mut World, choice: &mut Choice, trace: &mut Trace) {
    while !world.under_way.is_empty() {
        let lands = choice.of(2) == 0;
        trace.say(|| {
            let becomes = if lands { "goes on" } else { "is lost" };
            format!("what process {} sent {becomes}: {}", world.under_way[0].process, describe(world, 0))
        });
        if lands {
            world.land(0);
        } else {
            world.under_way.remove(0);
        }
    }
    while let Some(session) = world.lingering.first() {
        let carries_out = session.statement.is_some() && choice.of(2) == 0;
        trace.say(|| {
            let becomes = if carries_out { "goes on with" } else { "gives up" };
            format!("the database {becomes} {:?}", world.lingering[0])
        });
        if carries_out { world.linger_on(0) } else { world.end_lingering(0) }
    }
    world.fence();
    world.catch_up();
    world.clock += SETTLE + 1000;
}

fn describe(world: &World, which: usize) -> String {
    let under_way = &world.under_way[which];
    match under_way.what {
        Change::Append(_) => format!("an APPEND to {:?}", under_way.mailbox),
        Change::Expunge { uid, marked: false, .. } => format!("the mark on {uid} in {:?}", under_way.mailbox),
        Change::Expunge { uid, .. } => format!("the expunge of {uid} in {:?}", under_way.mailbox),
    }
}
