//! Several runners and people act in any order, and a model predicts the result.

use super::tests::{at, lock, mail};
use super::*;
use crate::lock::Shard;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

/// One action. Its numbers select one of the existing items.
#[derive(Clone, Debug)]
enum Act {
    Enqueue {
        lock: usize,
        recipients: usize,
    },
    Claim {
        runner: usize,
        shard: u32,
    },
    Settle {
        claim: usize,
        outcome: Vec<Settlement>,
    },
    Finish {
        claim: usize,
    },
    Defer {
        claim: usize,
    },
    GiveBack {
        claim: usize,
    },
    Die {
        claim: usize,
    },
    Recover {
        runner: usize,
    },
    Hold {
        message: usize,
    },
    Release {
        message: usize,
    },
    Drop {
        message: usize,
    },
    Clock {
        seconds: i32,
    },
    /// A file in `new/` is cut short.
    Spoil {
        message: usize,
    },
    Reopen,
}

/// A file that must exist.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct File {
    state: State,
    name: Name,
    body: usize,
    recipients: Vec<String>,
    spoilt: bool,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let n = || 0..100_usize;
    let settlement = prop_oneof![
        Just(Settlement::Delivered),
        Just(Settlement::Deferred),
        Just(Settlement::Refused("5.1.1 unknown".into()))
    ];
    let act = prop_oneof![
        4 => (0..3_usize, 1..4_usize).prop_map(|(lock, recipients)| Act::Enqueue { lock, recipients }),
        5 => (0..2_usize, 0..3_u32).prop_map(|(runner, shard)| Act::Claim { runner, shard }),
        2 => (n(), vec(settlement, 0..4)).prop_map(|(claim, outcome)| Act::Settle { claim, outcome }),
        1 => n().prop_map(|claim| Act::Finish { claim }),
        1 => n().prop_map(|claim| Act::Defer { claim }),
        1 => n().prop_map(|claim| Act::GiveBack { claim }),
        1 => n().prop_map(|claim| Act::Die { claim }),
        2 => (0..2_usize).prop_map(|runner| Act::Recover { runner }),
        2 => n().prop_map(|message| Act::Hold { message }),
        2 => n().prop_map(|message| Act::Release { message }),
        1 => n().prop_map(|message| Act::Drop { message }),
        1 => (-4000..4000_i32).prop_map(|seconds| Act::Clock { seconds }),
        1 => n().prop_map(|message| Act::Spoil { message }),
        1 => Just(Act::Reopen),
    ];
    vec(act, 1..60)
}

struct World {
    folder: tempfile::TempDir,
    runners: [Queue; 2],
    clock: u64,
    bodies: usize,
    /// All files that must exist.
    files: BTreeSet<File>,
    claims: Vec<Claim>,
}

impl World {
    fn new() -> Self {
        // In memory if possible: thousands of files are synced.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let open = || Queue::open(&folder.path().join("queue")).unwrap();
        let runners = [open(), open()];
        Self { folder, runners, clock: 10_000, bodies: 0, files: BTreeSet::new(), claims: Vec::new() }
    }

    fn file(&self, name: Name) -> File {
        self.files.iter().find(|file| file.name == name).expect("the model has it").clone()
    }

    fn replace(&mut self, old: &File, new: impl IntoIterator<Item = File>) {
        assert!(self.files.remove(old), "{old:?}");
        for file in new {
            assert!(self.files.insert(file));
        }
    }

    fn any(&self, number: usize) -> Option<File> {
        self.files.iter().nth(number.checked_rem(self.files.len())?).cloned()
    }

    fn take_claim(&mut self, number: usize) -> Option<Claim> {
        let at = number.checked_rem(self.claims.len())?;
        Some(self.claims.swap_remove(at))
    }

    fn act(&mut self, act: Act) {
        let queue = self.runners[0].clone();
        let now = at(self.clock);
        match act {
            Act::Enqueue { lock: number, recipients } => {
                let recipients = &["a@x", "b@x", "c@x"][..recipients];
                let body = self.bodies.to_string();
                // No two messages arrive in the same nanosecond, whatever the clock does.
                let now = now + Duration::from_micros(self.bodies as u64);
                let name = queue.enqueue(&lock(&number.to_string()), mail(recipients), body.as_bytes(), now).unwrap();
                assert!(self.files.iter().all(|file| file.name != name), "a name twice");
                let recipients = recipients.iter().map(|&one| one.to_owned()).collect();
                self.files.insert(File { state: State::New, name, body: self.bodies, recipients, spoilt: false });
                self.bodies += 1;
            }
            Act::Claim { runner, shard } => self.claim(runner, shard),
            Act::Settle { claim, outcome } => {
                let Some(claim) = self.take_claim(claim) else { return };
                let file = self.file(claim.name());
                let settled = claim.settle(&outcome, now).unwrap();
                self.settled(&file, &outcome, &settled);
            }
            Act::Finish { claim } => {
                let Some(claim) = self.take_claim(claim) else { return };
                let file = self.file(claim.name());
                claim.finish().unwrap();
                self.replace(&file, []);
            }
            Act::Defer { claim } => {
                let Some(claim) = self.take_claim(claim) else { return };
                let file = self.file(claim.name());
                let name = claim.defer(now).unwrap().unwrap();
                assert_eq!((name.tries, name.is_due(now)), (file.name.tries + 1, false));
                self.replace(&file, [File { state: State::New, name, ..file.clone() }]);
            }
            Act::GiveBack { claim } => {
                let Some(claim) = self.take_claim(claim) else { return };
                let file = self.file(claim.name());
                assert_eq!(claim.give_back().unwrap(), Some(file.name));
                self.replace(&file, [File { state: State::New, ..file.clone() }]);
            }
            // The model keeps it in `work/` until a recovery.
            Act::Die { claim } => drop(self.take_claim(claim)),
            Act::Recover { runner } => {
                let claimed: Vec<Name> = self.claims.iter().map(Claim::name).collect();
                let dead: Vec<File> = self.files.iter().filter(|file| file.state == State::Work).cloned().collect();
                let dead = dead.into_iter().filter(|file| !claimed.contains(&file.name)).collect::<Vec<_>>();
                self.runners[runner].recover(now, Duration::MAX).unwrap();
                for file in dead {
                    self.replace(&file, [File { state: State::New, ..file.clone() }]);
                }
            }
            Act::Hold { message } => {
                let Some(file) = self.any(message) else { return };
                let held = queue.hold(&file.name.to_string());
                assert_eq!(held.is_ok(), file.state == State::New, "{held:?}");
                if held.is_ok() {
                    self.replace(&file, [File { state: State::Held, ..file.clone() }]);
                }
            }
            Act::Release { message } => {
                let Some(file) = self.any(message) else { return };
                let released = queue.release(&file.name.to_string(), None, false, now);
                assert_eq!(released.is_ok(), !matches!(file.state, State::New | State::Work), "{released:?}");
                if let Ok(name) = released {
                    self.replace(&file, [File { state: State::New, name, ..file.clone() }]);
                }
            }
            Act::Drop { message } => {
                let Some(file) = self.any(message) else { return };
                let dropped = queue.drop_message(&file.name.to_string());
                assert_eq!(dropped.is_ok(), file.state != State::Work, "{dropped:?}");
                if dropped.is_ok() {
                    self.replace(&file, []);
                }
            }
            Act::Clock { seconds } => self.clock = self.clock.saturating_add_signed(seconds.into()),
            Act::Spoil { message } => {
                let Some(file) = self.any(message).filter(|file| file.state == State::New) else { return };
                let path = queue.path().join("new").join(file.name.to_string());
                fs::write(path, "cut").unwrap();
                self.replace(&file, [File { spoilt: true, ..file.clone() }]);
            }
            Act::Reopen => self.runners[1] = Queue::open(&self.folder.path().join("queue")).unwrap(),
        }
    }

    /// Claims the expected message: untried ones first, then the one that has been due for longest. It skips messages that are
    /// not in `new/`, and those whose lock is in use.
    fn claim(&mut self, runner: usize, shard: u32) {
        let shard = [Shard::WHOLE, Shard::new(0, 2).unwrap(), Shard::new(1, 2).unwrap()][shard as usize];
        let now = at(self.clock);
        let busy: BTreeSet<u64> =
            self.files.iter().filter(|file| file.state == State::Work).map(|file| file.name.lock).collect();
        let may = |file: &&File| {
            file.state == State::New
                && shard.has_first_bytes(file.name.lock)
                && file.name.is_due(now)
                && !busy.contains(&file.name.lock)
        };
        let mut expected: Vec<File> = self.files.iter().filter(may).cloned().collect();
        expected.sort_by_key(|file| (file.name.tries > 0, file.name.due_since(now), file.name));
        let claim = self.runners[runner].claim(shard, now).unwrap();
        for file in expected {
            if file.spoilt {
                // It has left `new/` for `bad/`, where its name may differ.
                let name = self.newest_in_bad();
                self.replace(&file, [File { state: State::Bad, name, ..file.clone() }]);
                continue;
            }
            let claim = claim.expect("there is one");
            assert_eq!(claim.name(), file.name);
            assert_eq!(claim.message(), file.body.to_string().as_bytes());
            self.replace(&file, [File { state: State::Work, ..file.clone() }]);
            self.claims.push(claim);
            return;
        }
        assert!(claim.is_none());
    }

    /// A name in `bad/` that the model does not know yet.
    fn newest_in_bad(&self) -> Name {
        let known = |name: &Name| self.files.iter().any(|file| file.state == State::Bad && file.name == *name);
        let names = self.runners[0].0.bad.messages().unwrap();
        names.into_iter().find(|name| !known(name)).expect("one was moved to bad/")
    }

    fn settled(&mut self, file: &File, outcome: &[Settlement], settled: &Settled) {
        let outcome = outcome.iter().chain(std::iter::repeat(&Settlement::Deferred));
        let (mut deferred, mut refused) = (Vec::new(), Vec::new());
        for (recipient, outcome) in file.recipients.iter().zip(outcome) {
            match outcome {
                Settlement::Delivered => {}
                Settlement::Deferred => deferred.push(recipient.clone()),
                Settlement::Refused(_) => refused.push(vec![recipient.clone()]),
            }
        }
        assert_eq!((settled.remaining.is_some(), settled.refused.len()), (!deferred.is_empty(), refused.len()));
        let remaining = settled.remaining.map(|name| {
            assert_eq!(name.tries, file.name.tries + 1);
            File { state: State::New, name, recipients: deferred, ..file.clone() }
        });
        let refused = refused.into_iter().zip(&settled.refused);
        let refused =
            refused.map(|(recipients, name)| File { state: State::Refused, name: *name, recipients, ..file.clone() });
        self.replace(file, remaining.into_iter().chain(refused).collect::<Vec<_>>());
    }

    /// The listed messages are those of the model, to the last byte.
    fn check(&self) {
        let listed: BTreeSet<File> = self.runners[1]
            .list()
            .unwrap()
            .into_iter()
            .map(|entry| {
                let name = Name::read(&entry.file).unwrap();
                let model = self.file(name);
                if !model.spoilt {
                    let (_, message) = self.runners[1].read(&entry.file).unwrap();
                    assert_eq!(message, model.body.to_string().as_bytes());
                }
                let recipients = if model.spoilt { model.recipients.clone() } else { entry.recipients };
                File { state: entry.state, recipients, ..model }
            })
            .collect();
        assert_eq!(listed, self.files);
        let ids: BTreeSet<String> = self.files.iter().map(|file| file.name.id()).collect();
        assert_eq!(ids.len(), self.files.len(), "each can be named");
        assert_eq!(fs::read_dir(self.folder.path().join("queue/tmp")).unwrap().count(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whatever_runners_and_people_do_each_message_is_where_it_should_be(acts in acts()) {
        let mut world = World::new();
        for act in acts {
            world.act(act);
            world.check();
        }
    }
}
