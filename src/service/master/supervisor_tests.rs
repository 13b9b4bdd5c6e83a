//! The master's actions, turn by turn, at times that the test sets. Its processes are shell scripts.

use super::*;
use crate::protocol::control::{self, Answer, Request, line};
use crate::service::master::children::{Life, Pings, Running};
use crate::service::master::lifecycle::NewConfiguration;
use std::collections::BTreeMap;
use std::io::{Read, Write};

#[path = "replacing_tests.rs"]
mod replacing;

/// The longest wait for something that must happen.
const LONG: Duration = Duration::from_mins(1);
/// Two workers, a runner and the timer, for tests that need no other processes.
const TWO: &str = "workers = 2\nrunners = 1\n";

/// The front stores its notices in a file, and answers each with the content of `report`, if that file exists. Each process
/// creates a file once it has begun.
const FRONT: &str = ": > up.$$; while read -r line; do printf '%s\\n' \"$line\" >> notices; \
                     [ ! -e report ] || cat report >&0; done";
const OTHERS: &str = ": > up.$$; exec sleep 1000";
/// Reports that it is ready. It also sends a front's report, which the master must not accept.
const SAY_READY: &str = "echo '{\"kind\":\"status\",\"accepting\":false,\"database_away\":\"no\"}' >&0; \
                         echo '{\"kind\":\"ready\",\"ready\":true}' >&0; : > up.$$; exec sleep 1000";
/// Ends only with SIGKILL.
const STUBBORN: &str = "trap '' TERM; : > up.$$; exec sleep 1000";

/// A master in a folder of its own. When it is dropped, it kills its processes.
struct Scene {
    it: Supervisor,
    now: Instant,
    folder: tempfile::TempDir,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.it.slots.iter_mut().filter_map(Slot::running_mut).for_each(|running| running.kill());
    }
}

fn configuration(folder: &Path, service: &str) -> String {
    format!(
        "[database]\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\n\
         roles.timer = {{ user = \"t\" }}\nroles.notifier = {{ user = \"n\" }}\nroles.web = {{ user = \"w\" }}\n\
         [imap]\nhost = \"imap.invalid\"\nuser = \"x\"\npassword_file = \"/nowhere\"\n\
         [log]\nto = \"file\"\nfile = {:?}\n\
         [service]\nruntime_directory = {:?}\nstate_directory = {:?}\n{service}",
        folder.join("log"),
        folder.join("run"),
        folder.join("state"),
    )
}

impl Scene {
    fn new(service: &str) -> Self {
        Self::with(service, [FRONT, OTHERS])
    }

    fn with(service: &str, [front, others]: [&'static str; 2]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().to_owned();
        let file = here.join("config.toml");
        let text = configuration(&here, service);
        std::fs::write(&file, &text).unwrap();
        let config = Config::parse(&file, &text).unwrap();
        let program: Program = Box::new(move |start| {
            let mut command = Command::new("sh");
            command.arg("-c").arg(if start.role == Role::Front { front } else { others }).current_dir(&here);
            command
        });
        // The test must not handle other signals of this process.
        let it = Supervisor::begin(&[SIGCHLD], &file, config, &text, program).unwrap();
        let now = it.began;
        Self { it, now, folder }
    }

    /// A master whose processes all run, and are ready.
    fn up(service: &str) -> Self {
        Self::up_with(service, [FRONT, OTHERS])
    }

    fn up_with(service: &str, programs: [&'static str; 2]) -> Self {
        let mut scene = Self::with(service, programs);
        scene.turn();
        let until = Instant::now() + LONG;
        for running in scene.it.slots.iter().filter_map(Slot::running) {
            while !scene.folder.path().join(format!("up.{}", running.pid)).exists() {
                assert!(Instant::now() < until);
            }
        }
        scene.all_ready();
        scene
    }

    fn turn(&mut self) -> bool {
        self.it.turn(self.now)
    }

    /// Turns the loop until the condition holds.
    #[track_caller]
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&Supervisor) -> bool) {
        let until = Instant::now() + LONG;
        while !is_so(&self.it) {
            assert!(Instant::now() < until, "{what}");
            self.turn();
        }
    }

    fn all_ready(&mut self) {
        let now = self.now;
        self.it.slots.iter_mut().filter(|slot| slot.running().is_some()).for_each(|slot| slot.set_ready(true, now));
    }

    fn slot(&mut self, role: Role, number: u32) -> &mut Slot {
        self.it.slots.iter_mut().find(|slot| (slot.role, slot.number) == (role, number)).unwrap()
    }

    fn running(&mut self, role: Role, number: u32) -> &mut Running {
        self.slot(role, number).running_mut().unwrap()
    }

    fn is_killed(&mut self, role: Role, number: u32) -> bool {
        matches!(self.running(role, number).life, Life::Killed { .. })
    }

    fn pings(&mut self) -> &mut Pings {
        &mut self.running(Role::Front, 1).pings
    }

    fn names(&self) -> Vec<String> {
        self.it.slots.iter().map(Slot::name).collect()
    }

    /// The processes that were requested to end.
    fn shown(&self) -> Vec<String> {
        let shown = self.it.slots.iter().filter(|slot| slot.running().is_some_and(Running::is_asked_to_end));
        shown.map(Slot::name).collect()
    }

    /// Sends a request to the control socket.
    fn ask(&mut self, command: control::Command) -> UnixStream {
        let mut client = UnixStream::connect(self.it.config.service.control_socket()).unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        let key = std::fs::read_to_string(control::key_beside(&self.it.config.service.control_socket())).unwrap();
        client.write_all(line(&Request { command, key: Some(key) }).as_bytes()).unwrap();
        self.turn();
        while self.it.reload.is_some() {
            std::thread::sleep(Duration::from_millis(1));
            self.turn();
        }
        client
    }

    /// Sets the front's report, from now on.
    fn report(&mut self, database_away: Option<&str>) {
        let known = serde_json::Map::from_iter([("queued".to_owned(), Value::from(7))]);
        let database_away = database_away.map(str::to_owned);
        let report = FrontReport { accepting: true, database_away, known, timer: Vec::new() };
        let report = FromFront::Status(report);
        std::fs::write(self.folder.path().join("new"), line(&report)).unwrap();
        std::fs::rename(self.folder.path().join("new"), self.folder.path().join("report")).unwrap();
        self.it.send_to_front(&ToFront::Ask, self.now);
    }

    fn notices(&self) -> Vec<ToFront> {
        let text = std::fs::read_to_string(self.folder.path().join("notices")).unwrap_or_default();
        // The last line may be incomplete.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn state(&self) -> (State, Vec<String>) {
        let status = self.it.status(self.now);
        (status.state, status.reasons)
    }
}

/// The answer to the client.
fn answer(mut client: UnixStream) -> Answer {
    let mut received = String::new();
    client.read_to_string(&mut received).unwrap();
    serde_json::from_str(&received).unwrap()
}

/// Whether the client has no answer yet.
fn waits(client: &mut UnixStream) -> bool {
    client.set_nonblocking(true).unwrap();
    let waits = client.read(&mut [0; 1]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    client.set_nonblocking(false).unwrap();
    waits
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn there_are_as_many_processes_as_the_configuration_says_and_what_is_too_much_ends_first() {
    let mut scene = Scene::new(TWO);
    assert_eq!(scene.names(), ["the front", "worker 1", "worker 2", "runner 1", "the timer"]);
    scene.turn();
    assert!(scene.it.slots.iter().all(|slot| slot.running().is_some()));
    assert_eq!(scene.it.counted.roles[&Role::Worker].started, 2);
    let fewer = |scene: &mut Scene, workers| {
        scene.it.config.service.workers = workers;
        scene.it.config.service.runners = 0;
        scene.it.config.database.accounts.remove(&DatabaseRole::Timer);
        scene.it.fit_slots(scene.now);
    };
    fewer(&mut scene, 1);
    // The processes still run.
    assert_eq!(scene.names().len(), 5);
    let surplus: Vec<bool> = scene.it.slots.iter().map(|slot| is_surplus(slot, &scene.it.config)).collect();
    assert_eq!(surplus, [false, false, true, true, true]);
    for (role, number) in [(Role::Worker, 2), (Role::Runner, 1), (Role::Timer, 1)] {
        let now = scene.now;
        scene.running(role, number).request_end(now, LONG);
    }
    scene.until("they end", |it| it.slots.len() == 2);
    fewer(&mut scene, 3);
    assert_eq!(scene.names(), ["the front", "worker 1", "worker 2", "worker 3"]);
    // A slot without a process is dropped at once.
    fewer(&mut scene, 1);
    assert_eq!(scene.names(), ["the front", "worker 1"]);
    // The notifier and the web UI have slots for as long as they are configured.
    let key = configuration(
        scene.folder.path(),
        "[web]\nlisten = \"127.0.0.1:8025\"\n[notifications]\nsecret_key_file = \"/k\"\n",
    );
    let more = Config::parse(&scene.it.file, &key).unwrap();
    let old = std::mem::replace(&mut scene.it.config, more);
    scene.it.fit_slots(scene.now);
    assert!(["the notifier", "the web"].iter().all(|name| scene.names().iter().any(|one| one == name)));
    scene.it.config = old;
    scene.it.fit_slots(scene.now);
    assert_eq!(scene.names(), ["the front", "worker 1"]);
}

#[test]
fn a_front_that_does_not_answer_is_killed_sooner_once_it_has_answered() {
    for (answered, most) in [(false, ASKED_FROM_THE_START), (true, ASKED_IN_VAIN)] {
        let mut scene = Scene::new(TWO);
        scene.turn();
        assert_eq!(scene.pings().unanswered, 1, "it is asked at once");
        scene.pings().has_answered = answered;
        for asked in 2..=most {
            assert!(!scene.is_killed(Role::Front, 1), "asked {asked} times");
            // No poll is sent before it is due.
            scene.now += ASK - Duration::from_millis(1);
            scene.it.ask_the_front(scene.now);
            assert_eq!(scene.it.next(), Some(scene.now + Duration::from_millis(1)));
            scene.now += Duration::from_millis(1);
            scene.it.ask_the_front(scene.now);
        }
        assert!(scene.is_killed(Role::Front, 1));
    }
}

#[test]
fn each_process_says_itself_whether_it_takes_work_and_the_front_how_it_stands() {
    let mut scene = Scene::with(TWO, [FRONT, SAY_READY]);
    scene.turn();
    let worker = scene.running(Role::Worker, 1).pid;
    scene.report(None);
    let ready = |it: &Supervisor| it.slots.iter().map(Slot::is_ready).collect::<Vec<_>>();
    scene.until("it is heard", |it| ready(it) == [true; 5]);
    assert_eq!((scene.pings().has_answered, scene.pings().unanswered), (true, 0));
    assert_eq!(scene.state().0, State::Well);
    assert_eq!(scene.it.status(scene.now).front["queued"], 7);
    // The front learns of the start of each worker, and gets the status without its own figures.
    scene.until("it has heard", |_| true);
    let until = Instant::now() + LONG;
    let pids = [1, 2].map(|number| scene.running(Role::Worker, number).pid);
    loop {
        let notices = scene.notices();
        let named = |pid| notices.contains(&ToFront::WorkerStarted { pid });
        let shown = |one: &ToFront| matches!(one, ToFront::Service { status } if status.front.is_null());
        if pids.into_iter().all(named) && notices.iter().any(shown) {
            assert!(notices.iter().all(|one| !matches!(one, ToFront::Service { .. }) || shown(one)));
            break;
        }
        assert!(Instant::now() < until, "{notices:?}");
    }
    scene.report(Some("no way"));
    scene.until("it is heard", |it| it.front.database_away.is_some());
    let (state, reasons) = scene.state();
    assert_eq!(state, State::Degraded);
    assert_eq!(reasons, ["the database is away, and mail is deferred: no way"]);
    let notified_of_it = |notices: &[ToFront]| {
        let last = notices.iter().rev().find_map(|one| match one {
            ToFront::Service { status } => Some((status.state, status.front.is_null())),
            _ => None,
        });
        last == Some((State::Degraded, true))
    };
    while !notified_of_it(&scene.notices()) {
        assert!(Instant::now() < until, "{:?}", scene.notices());
        scene.turn();
    }
    // The front learns that a worker has ended, and how.
    kill(worker);
    scene.until("it is heard", |it| it.counted.roles[&Role::Worker].ended.get("SIGKILL") == Some(&1));
    let ended = |one: &ToFront| matches!(one, ToFront::WorkerEnded(end) if end.pid == worker && !end.by_us);
    while !scene.notices().iter().any(ended) {
        assert!(Instant::now() < until);
    }
    std::fs::remove_file(scene.folder.path().join("report")).unwrap();
    kill(scene.running(Role::Front, 1).pid);
    scene.until("it is heard", |it| it.counted.roles[&Role::Front].ended.contains_key("SIGKILL"));
    assert!(!ready(&scene.it)[0]);
    assert!(scene.it.front == FrontReport::default());
}

#[test]
fn a_front_that_talks_nonsense_is_ready_no_more_and_is_killed() {
    let mut scene = Scene::with(TWO, ["echo nonsense >&0; trap '' TERM; exec sleep 1000", OTHERS]);
    scene.turn();
    scene.all_ready();
    // Its link may be lost and its end be noticed in one turn.
    scene.until("it is killed", |it| {
        let is_asked = it.slots[0].running().is_some_and(Running::is_asked_to_end);
        assert!(!is_asked, "it got no stop signal: its end is a death");
        it.counted.roles[&Role::Front].ended == BTreeMap::from([("SIGKILL".into(), 1)])
    });
    assert!(!scene.slot(Role::Front, 1).is_ready());
}

#[test]
fn a_service_without_workers_is_degraded_after_a_moment_that_is_longer_at_the_beginning() {
    let mut scene = Scene::new(TWO);
    scene.turn();
    assert_eq!(scene.state(), (State::Starting, vec![]));
    scene.now += Duration::from_secs(30);
    let (state, reasons) = scene.state();
    assert_eq!(state, State::Degraded);
    assert!(reasons.contains(&"no worker takes work".to_owned()), "{reasons:?}");
    assert!(reasons.contains(&"worker 2 runs, and takes no work".to_owned()), "{reasons:?}");
    scene.turn();
    assert_eq!(scene.it.shown, (State::Degraded, reasons));
    // Without a front, the service is not ready.
    let now = scene.now;
    scene.slot(Role::Worker, 1).set_ready(true, now);
    scene.turn();
    assert!(!scene.it.was_ready);
    scene.slot(Role::Worker, 1).set_ready(false, now);
    // One ready worker is enough for the service. The reasons still name the other.
    for (role, number) in [(Role::Front, 1), (Role::Runner, 1), (Role::Timer, 1)] {
        scene.slot(role, number).set_ready(true, now);
    }
    scene.turn();
    assert!(!scene.it.was_ready);
    scene.slot(Role::Worker, 1).set_ready(true, now);
    scene.turn();
    assert!(scene.it.was_ready);
    assert_eq!(scene.state(), (State::Degraded, vec!["worker 2 runs, and takes no work".to_owned()]));
    scene.slot(Role::Worker, 1).set_ready(false, now);
    scene.slot(Role::Worker, 2).set_ready(true, now);
    assert_eq!(scene.state(), (State::Well, vec![]));
    scene.slot(Role::Worker, 2).set_ready(false, now);
    scene.now += Duration::from_millis(4999);
    assert_eq!(scene.state().0, State::Well);
    scene.now += Duration::from_millis(1);
    assert_eq!(scene.state(), (State::Degraded, vec!["no worker takes work".to_owned()]));
    // Only the workers have been unready for this time.
    let ready: Vec<bool> = scene.it.slots.iter().map(Slot::is_ready).collect();
    assert_eq!(ready, [true, false, false, true, true]);
}

#[test]
fn a_configuration_that_is_read_again_counts_at_once_or_not_at_all() {
    let mut scene = Scene::up(TWO);
    let write = |scene: &Scene, text: &str| std::fs::write(&scene.it.file, text).unwrap();
    let here = scene.folder.path().to_owned();
    for (from, to, key) in [("/run\"", "/other\"", "runtime_directory"), ("/state\"", "/other\"", "state_directory")] {
        write(&scene, &configuration(&here, TWO).replace(from, to));
        let problem = answer(scene.ask(control::Command::Reload)).problem.unwrap();
        assert!(problem.starts_with(&format!("service.{key} has changed")), "{problem}");
        assert_eq!(scene.it.not_taken_over, Some(problem));
        assert!(!scene.it.counted.configuration_is_applied && scene.shown().is_empty());
        assert_eq!(scene.state().0, State::Degraded);
    }
    // LMTP has no name of a logged-in user, so a Sent copy needs Authentication-Results if LMTP is used.
    let trusting = |lmtp: &str| configuration(&here, &format!("{TWO}{lmtp}[sent]\nauthor_check = \"authenticated\"\n"));
    let lmtp = format!("lmtp = [{:?}]\n", here.join("lmtp"));
    for (before, after, is_in_order) in [("", "", true), ("", &lmtp, false), (&lmtp, "", false)] {
        let mut scene = Scene::up(TWO);
        let places = if before.is_empty() { vec![] } else { vec![here.join("lmtp").display().to_string()] };
        let new = scene.it.listeners.missing(&places).unwrap();
        scene.it.listeners.take_over(new, &places);
        let text = trusting(after).replace(here.to_str().unwrap(), scene.folder.path().to_str().unwrap());
        write(&scene, &text);
        let now = scene.now;
        let (lmtp, http) = (scene.it.listeners.places(), scene.it.http.places());
        let read = NewConfiguration::read(&scene.it.file, &scene.it.config, lmtp, http);
        assert_eq!(scene.it.reloaded(read, now).is_ok(), is_in_order, "{before} {after}");
    }
    let fewer = configuration(&here, "workers = 1\nrunners = 1\n");
    write(&scene, &fewer);
    let mut client = scene.ask(control::Command::Reload);
    assert!(waits(&mut client));
    assert!(scene.it.counted.configuration_is_applied && scene.it.not_taken_over.is_none());
    assert_eq!(scene.shown(), ["worker 2"]);
    assert_eq!(std::fs::read_to_string(scene.it.config.service.checked_configuration()).unwrap(), fewer);
    assert!(scene.it.is_restarting());
}

#[test]
fn the_loop_waits_for_what_is_due_next() {
    let mut scene = Scene::new("workers = 1\nfinish_owed_every = \"0s\"\n");
    scene.turn();
    let now = scene.now;
    // The next action is the poll of the front.
    assert_eq!(scene.it.next(), Some(now + ASK));
    scene.running(Role::Worker, 1).life = Life::Ending { kill_at: now + Duration::from_secs(1) };
    assert_eq!(scene.it.next(), Some(now + Duration::from_secs(1)));
    scene.slot(Role::Worker, 1).phase = Phase::Waiting(now + Duration::from_millis(100));
    assert_eq!(scene.it.next(), Some(now + Duration::from_millis(100)));
    scene.it.mode = Mode::Running;
    scene.it.stop(now);
    // Nothing is started any more, and no poll is sent.
    let patience = scene.it.config.delivery.deadline + Duration::from_secs(30);
    assert_eq!(scene.it.next(), Some(now + patience));
}

#[test]
fn the_loop_does_not_turn_while_there_is_nothing_to_do() {
    let mut scene = Scene::up(TWO);
    let due = Instant::now() + Duration::from_millis(300);
    scene.running(Role::Worker, 1).life = Life::Ending { kill_at: due };
    scene.pings().next_ask = due + LONG;
    let mut turns = 0;
    while Instant::now() < due {
        scene.it.wait();
        scene.it.handle_signals(scene.now);
        turns += 1;
    }
    // Processes of other tests may end meanwhile.
    assert!(turns < 100, "{turns}");
}

#[test]
fn a_process_gets_nothing_that_is_for_the_master_and_the_front_alone_its_sockets() {
    let file = Path::new("/x");
    let program: Program = Box::new(|_| Command::new("true"));
    for role in [Role::Front, Role::Worker] {
        let start = Start { role, number: 1, file, checked: file };
        let (command, link) = command(&program, &start, &Listeners::default(), &Listeners::default()).unwrap();
        let envs: BTreeMap<_, _> = command.get_envs().collect();
        let value = |name: &str| envs.get(std::ffi::OsStr::new(name)).copied();
        assert_eq!(value("NOTIFY_SOCKET"), Some(None));
        assert_eq!(value("MALLOC_ARENA_MAX"), Some(Some("2".as_ref())));
        let is_front = role == Role::Front;
        assert_eq!(value("LISTEN_FDS"), Some(is_front.then(|| "0".as_ref())));
        assert!(link.is_some(), "each says whether it is ready");
    }
}
