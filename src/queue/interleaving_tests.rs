//! Two processes at once: at each step of one action, another action runs from beginning to end.

use super::crash_tests::interrupted;
use super::tests::{at, lock, mail};
use super::*;
use crate::lock::Shard;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// One of the two actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Claim,
    Finish,
    FinishAndQueueAnotherOfThatName,
    Settle,
    Defer,
    Recover,
    HoldFirst,
    ReleaseHeld,
    DropFirst,
    DropHeld,
    Enqueue,
    List,
    Open,
}

const ALL: [Act; 13] = [
    Act::Claim,
    Act::Finish,
    Act::FinishAndQueueAnotherOfThatName,
    Act::Settle,
    Act::Defer,
    Act::Recover,
    Act::HoldFirst,
    Act::ReleaseHeld,
    Act::DropFirst,
    Act::DropHeld,
    Act::Enqueue,
    Act::List,
    Act::Open,
];

/// The queue, and its expected content: bodies, with their recipients.
struct World {
    folder: tempfile::TempDir,
    queue: Queue,
    first: Name,
    held: Name,
    expected: BTreeMap<String, String>,
    made: usize,
    claims: Vec<Claim>,
    listed: Vec<Vec<Entry>>,
}

fn world() -> World {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let queue = Queue::open(&folder.path().join("queue")).unwrap();
    let mut expected = BTreeMap::new();
    let mut add = |body: &str, lock_name: &str, seconds| {
        expected.insert(body.to_owned(), "abc".to_owned());
        queue.enqueue(&lock(lock_name), mail(&["a", "b", "c"]), body.as_bytes(), at(seconds)).unwrap()
    };
    let held = add("held", "one", 1);
    queue.hold(&held.id()).unwrap();
    add("of the dead", "of the dead", 2);
    drop(queue.claim(Shard::WHOLE, at(9)).unwrap().unwrap());
    let first = add("first", "one", 3);
    add("second", "one", 4);
    World { folder, queue, first, held, expected, made: 0, claims: Vec::new(), listed: Vec::new() }
}

fn act(world: &Rc<RefCell<World>>, act: Act) {
    // The world must not be borrowed while the queue works, because the other action runs in between.
    let queue = world.borrow().queue.clone();
    let (first, held) = (world.borrow().first.to_string(), world.borrow().held.to_string());
    let claim = || queue.claim(Shard::WHOLE, at(9)).unwrap();
    let body = |claim: &Claim| String::from_utf8(claim.message().to_vec()).unwrap();
    let gone = |body: &str| drop(world.borrow_mut().expected.remove(body));
    match act {
        Act::Claim => {
            if let Some(claim) = claim() {
                world.borrow_mut().claims.push(claim);
            }
        }
        Act::Finish => {
            if let Some(claim) = claim() {
                let body = body(&claim);
                claim.finish().unwrap();
                gone(&body);
            }
        }
        Act::FinishAndQueueAnotherOfThatName => {
            if let Some(claim) = claim() {
                let (name, body) = (claim.name(), body(&claim));
                claim.finish().unwrap();
                gone(&body);
                let moment = SystemTime::UNIX_EPOCH + std::time::Duration::from_nanos(name.time);
                let another = made(world);
                let of = if name.lock == world.borrow().first.lock { "one" } else { "of the dead" };
                queue.enqueue(&lock(of), mail(&["z"]), another.as_bytes(), moment).unwrap();
            }
        }
        Act::Settle => {
            if let Some(claim) = claim() {
                world.borrow_mut().expected.insert(body(&claim), "bc".into());
                let refused = Settlement::Refused("no".into());
                claim.settle(&[Settlement::Delivered, Settlement::Deferred, refused], at(9)).unwrap();
            }
        }
        Act::Defer => drop(claim().map(|claim| claim.defer(at(9)).unwrap().unwrap())),
        Act::Recover => queue.recover(at(9), Duration::MAX).unwrap(),
        Act::HoldFirst => drop(queue.hold(&first)),
        Act::ReleaseHeld => drop(queue.release(&held, None, false, at(9))),
        Act::DropFirst => {
            if queue.drop_message(&first).is_ok() {
                gone("first");
            }
        }
        Act::DropHeld => {
            if queue.drop_message(&held).is_ok() {
                gone("held");
            }
        }
        Act::Enqueue => {
            queue.enqueue(&lock("one"), mail(&["z"]), made(world).as_bytes(), at(3)).unwrap();
        }
        Act::List => {
            let listed = queue.list().unwrap();
            world.borrow_mut().listed.push(listed);
        }
        Act::Open => drop(Queue::open(queue.path()).unwrap()),
    }
}

/// The body of a new message, which must be in the queue from now on.
fn made(world: &Rc<RefCell<World>>) -> String {
    let mut world = world.borrow_mut();
    world.made += 1;
    let body = format!("new {}", world.made);
    world.expected.insert(body.clone(), "z".into());
    body
}

/// The bodies in the queue, each with its recipients.
fn contents(queue: &Queue) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for entry in queue.list().unwrap() {
        let path = queue.path().join(entry.state.to_string()).join(&entry.file);
        let (_, message) = Envelope::read_with_message(std::fs::read(path).unwrap()).unwrap();
        all.entry(String::from_utf8(message).unwrap()).or_default().push_str(&entry.recipients.concat());
    }
    all
}

fn check(world: &World, what: &str) {
    // Each is there once, and whole.
    assert_eq!(contents(&world.queue), world.expected, "{what}");
    // No other process takes a claimed file away, and no two claims are of one lock.
    let names: Vec<Name> = world.claims.iter().map(Claim::name).collect();
    for name in &names {
        assert_eq!(names.iter().filter(|other| other.lock == name.lock).count(), 1, "{what}: {names:?}");
    }
    world.queue.recover(at(9), Duration::MAX).unwrap();
    let mut in_work = world.queue.0.work.messages().unwrap();
    in_work.sort_by_key(|name| names.iter().position(|claimed| claimed == name));
    assert_eq!(in_work, names, "{what}");
    for claim in &world.claims {
        let path = world.queue.path().join("work").join(claim.name().to_string());
        let (_, message) = Envelope::read_with_message(std::fs::read(path).unwrap()).unwrap();
        assert_eq!(message, claim.message(), "{what}");
    }
    assert_eq!(std::fs::read_dir(world.folder.path().join("queue/tmp")).unwrap().count(), 0, "{what}");
    // A message that was there all the time is listed once.
    for listed in &world.listed {
        for (name, body) in [(world.first, "first"), (world.held, "held")] {
            let is = |entry: &&Entry| entry.id == name.id() && entry.recipients.len() == 3;
            let count = listed.iter().filter(is).count();
            let there = world.expected.get(body).is_some_and(|recipients| recipients == "abc");
            assert!(count <= 1 && (count == 1 || !there), "{what}: {body} {count} times in {listed:?}");
        }
    }
}

#[test]
fn whatever_another_does_at_any_step_each_message_is_there_once_and_claimed_by_one() {
    let mut interruptions = 0;
    for one in ALL {
        for other in ALL {
            // The clock decides which of the two messages is dropped by that name.
            let pair = [one, other];
            if pair.contains(&Act::FinishAndQueueAnotherOfThatName) && pair.contains(&Act::DropFirst) {
                continue;
            }
            for step in 0.. {
                let world = Rc::new(RefCell::new(world()));
                let between = {
                    let world = Rc::clone(&world);
                    Box::new(move || act(&world, other))
                };
                let came = interrupted(step, between, || act(&world, one));
                check(&world.borrow(), &format!("{other:?} before step {step} of {one:?}"));
                if !came {
                    break;
                }
                interruptions += 1;
            }
        }
    }
    assert!(interruptions > 900, "{interruptions}");
}
