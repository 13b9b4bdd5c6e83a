//! A server that takes what it is given and from some reply on says nothing, or a byte a second, or stops in the middle of
//! that reply; a name server that does; a pipe whose writer does. At each stage of a delivery: it ends by its deadline,
//! with 75, and the next attempt delivers what is still owed, once.

use crate::support::database::Engine;
use crate::support::program::{Outcome, feed, program, wait_until};
use crate::support::site_fixture::Scene;
use crate::support::wire::{Fate, Speaker, Wire};
use crate::support::{cannot_run, env};
use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PG: Engine = Engine::Postgres17;

on_each_engine!(a_database_that_falls_silent, a_database_that_falls_silent_under_tls);

/// How a server falls silent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    SaysNothing,
    AByteASecond,
    StopsMidReply,
}

const MANNERS: [Manner; 3] = [Manner::SaysNothing, Manner::AByteASecond, Manner::StopsMidReply];

const DEADLINE: Duration = Duration::from_secs(3);
/// The deadline where nothing is in the way but a busy machine.
const UNHURRIED: Duration = Duration::from_secs(60);
/// How long after the deadline a delivery may end, on a machine whose disk holds everybody up now and then. Far below any time
/// limit of a server or of the network: it is the deadline that ends it.
const WITHIN: Duration = Duration::from_secs(20);
/// How many deliveries wait at once. They cost next to nothing meanwhile.
const AT_ONCE: usize = 12;

fn a_database_that_falls_silent(engine: Engine) {
    let scene = Scene::empty(engine);
    let server = scene.settings.database.clone();
    at_each_reply(scene, &server, &[]);
}

fn a_database_that_falls_silent_under_tls(engine: Engine) {
    let scene = Scene::empty(engine);
    let server = scene.settings.database.clone();
    let verified = format!("tls = \"verify\"\nca_file = \"{}\"", env("MAILDROP_TEST_CA"));
    at_each_reply(scene, &server, &[("tls = \"off\"", verified)]);
}

#[test]
fn a_mailbox_store_that_falls_silent() {
    let scene = Scene::empty(PG);
    let server = scene.settings.imap.clone();
    at_each_reply(scene, &server, &[]);
}

#[test]
fn a_mailbox_store_that_falls_silent_under_tls() {
    let scene = Scene::empty(PG);
    let server = scene.settings.imap.clone();
    let verified = format!("encryption = \"starttls\"\nca_file = \"{}\"", env("MAILDROP_TEST_CA"));
    at_each_reply(scene, &server, &[("encryption = \"none\"", verified)]);
}

/// One delivery, to somebody and from somebody who have no other mail.
struct Run {
    name: String,
    message: String,
    config: String,
    wire: Wire,
    /// Whether the server has fallen silent.
    silent: Arc<AtomicBool>,
    /// How many pieces the server has sent.
    heard: Arc<AtomicUsize>,
    what: String,
}

impl Run {
    /// `silence`: from which of the server's pieces on it is silent, and how.
    fn prepare(
        scene: &mut Scene,
        server: &(String, u16),
        changes: &[(&str, String)],
        silence: Option<(usize, Manner)>,
    ) -> Self {
        let what = silence.map_or("untouched".into(), |(from, manner)| format!("{manner:?} from piece {from} on"));
        let name =
            silence.map_or("none".into(), |(from, manner)| format!("{}{from}", format!("{manner:?}").to_lowercase()));
        let (recipient, author) = (format!("to{name}"), format!("by{name}"));
        scene.member(&recipient);
        scene.member(&author);
        let message = scene.message(&name).replace("lisa@mail", &format!("{author}@mail"));

        let (silent, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let wire = Wire::to(server.clone(), {
            let (silent, heard) = (silent.clone(), heard.clone());
            move |speaker, piece| {
                if speaker == Speaker::Program {
                    return Fate::Pass;
                }
                let number = heard.fetch_add(1, Ordering::SeqCst);
                let Some((from, manner)) = silence.filter(|(from, _)| number >= *from) else { return Fate::Pass };
                silent.store(true, Ordering::SeqCst);
                match manner {
                    Manner::SaysNothing => Fate::Hold,
                    Manner::AByteASecond => Fate::Trickle,
                    Manner::StopsMidReply if number == from => {
                        piece.truncate(piece.len() / 2);
                        Fate::Pass
                    }
                    Manner::StopsMidReply => Fate::Hold,
                }
            }
        });
        let at = |(host, port): (&str, u16)| format!("host = \"{host}\"\nport = {port}\n");
        let mut text = std::fs::read_to_string(scene.path("config.toml")).unwrap();
        let on_the_wire = (at((&server.0, server.1)), at(("127.0.0.1", wire.address.port())));
        for (from, to) in
            [(on_the_wire.0.as_str(), &on_the_wire.1)].into_iter().chain(changes.iter().map(|(from, to)| (*from, to)))
        {
            assert_eq!(text.matches(from).count(), 1, "{from}");
            text = text.replace(from, to);
        }
        let config = scene.path(&format!("{name}.toml"));
        std::fs::write(&config, text).unwrap();
        Self { name, message, config, wire, silent, heard, what }
    }

    fn command(&self, config: &str, deadline: Duration) -> Command {
        let deadline = format!("{}s", deadline.as_secs());
        let (recipient, sender) =
            (format!("to{}@mail.axial.net", self.name), format!("by{}@mail.axial.net", self.name));
        program(&["--config", config, "--recipient", &recipient, "--sender", &sender, "--deadline", &deadline])
    }

    fn copies(&self, scene: &Scene) -> (usize, usize) {
        (scene.inbox(&format!("to{}", self.name)).len(), scene.sent(&format!("by{}", self.name)).len())
    }

    /// Delivers it. Where a busy machine did not get as far as the silence, once more, with twice the time.
    fn deliver(&self, clock: &Clock) -> Outcome {
        let mut deadline = DEADLINE;
        loop {
            let started = Instant::now();
            let outcome = feed(self.command(&self.config, deadline), self.message.as_bytes());
            // From when it first turned to a server, a few milliseconds into its life: how long a busy machine takes to start
            // a process is not the program's doing.
            let began =
                self.wire.first_heard().unwrap_or_else(|| panic!("{}: nobody was asked: {outcome:?}", self.what));
            in_time(clock, &self.what, began.max(started), deadline, &outcome);
            if outcome.exit == Some(0) || self.silent.load(Ordering::SeqCst) || deadline >= UNHURRIED {
                return outcome;
            }
            deadline *= 2;
        }
    }
}

/// Goes through the replies of a delivery, and for each through the manners of falling silent there.
fn at_each_reply(mut scene: Scene, server: &(String, u16), changes: &[(&str, String)]) {
    let clock = Clock::start();
    let whole = Run::prepare(&mut scene, server, changes, None);
    let outcome = feed(whole.command(&whole.config, UNHURRIED), whole.message.as_bytes());
    outcome.delivered();
    let pieces = whole.heard.load(Ordering::SeqCst);
    assert!(pieces >= 5, "only {pieces} pieces came from the server");

    // How replies fall into pieces differs a little from time to time.
    let points = (0..pieces + 2).flat_map(|from| MANNERS.map(|manner| (from, manner)));
    let runs: Vec<Run> = points.map(|silence| Run::prepare(&mut scene, server, changes, Some(silence))).collect();
    let outcomes = side_by_side(&runs.iter().collect::<Vec<_>>(), |run| run.deliver(&clock));
    let mut deferred = Vec::new();
    for (run, outcome) in outcomes {
        match outcome.exit {
            // What the server had left to say was nothing that it takes to be delivered: its good-bye.
            Some(0) => assert_eq!(run.copies(&scene), (1, 1), "{}: {outcome:?}", run.what),
            Some(75) => deferred.push(run),
            _ => panic!("{}: {outcome:?}", run.what),
        }
    }
    let silenced = deferred.iter().filter(|run| run.silent.load(Ordering::SeqCst)).count();
    println!("{pieces} replies, {} silences, {silenced} of which deferred the message", runs.len());
    // (The first delivery of all may take more replies than the next: TLS, and MySQL's cache of passwords.)
    assert!(silenced >= pieces, "only {silenced} of {} silences deferred the message", runs.len());

    // Postfix comes again, later, when all is well. (A server may take its time to notice that the lock's connection is
    // gone.)
    let (good, mut left) = (scene.path("config.toml"), deferred.clone());
    wait_until("all are delivered", || {
        scene.ten_minutes_pass();
        let outcomes = side_by_side(&left, |run| feed(run.command(&good, UNHURRIED), run.message.as_bytes()));
        outcomes.iter().for_each(|(_, outcome)| outcome.one_line());
        left = outcomes.iter().filter(|(_, outcome)| outcome.exit != Some(0)).map(|(run, _)| *run).collect();
        left.is_empty()
    });
    for run in deferred {
        assert_eq!(run.copies(&scene), (1, 1), "{}", run.what);
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}

/// Does it for each run, many at once.
fn side_by_side<'a>(runs: &[&'a Run], deliver: impl Fn(&Run) -> Outcome + Sync) -> Vec<(&'a Run, Outcome)> {
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(run) = runs.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let outcome = deliver(run);
                    outcomes.lock().unwrap().push((*run, outcome));
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap();
    assert_eq!(outcomes.len(), runs.len());
    outcomes
}

/// Measures how much later than it should a thread gets to run that wants nothing but to wake up and to write a byte to a
/// file: what a busy machine adds to every deadline.
struct Clock {
    /// Until when each lasted, and how much later that was than it should be.
    ticks: Arc<Mutex<Vec<(Instant, Duration)>>>,
    stop: Arc<AtomicBool>,
}

impl Clock {
    fn start() -> Self {
        let clock = Self { ticks: Arc::default(), stop: Arc::default() };
        let (ticks, stop) = (clock.ticks.clone(), clock.stop.clone());
        // Where the program's log is, too.
        let mut file = tempfile::tempfile().unwrap();
        std::thread::spawn(move || {
            const TICK: Duration = Duration::from_millis(20);
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                std::thread::sleep(TICK);
                file.write_all(b".").unwrap();
                let ended = Instant::now();
                ticks.lock().unwrap().push((ended, ended - began - TICK));
            }
        });
        clock
    }

    /// What a process may be late that began then and ends now: it wakes, its line gets a thread of its own, it exits, its end
    /// is noticed. Each of them waits for its turn, and none longer than the thread here that has waited longest.
    fn lateness_since(&self, then: Instant) -> Duration {
        // The tick that lasts now has what held up all who woke up now.
        let now = Instant::now();
        wait_until("the clock ticks", || self.ticks.lock().unwrap().last().is_some_and(|(ended, _)| *ended >= now));
        let ticks = self.ticks.lock().unwrap();
        let worst = ticks.iter().rev().take_while(|(ended, _)| *ended >= then).map(|(_, late)| *late).max();
        worst.unwrap_or_default() * 4
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Holds it to the deadline.
fn in_time(clock: &Clock, what: &str, began: Instant, deadline: Duration, outcome: &Outcome) {
    let (lived, late) = (began.elapsed(), clock.lateness_since(began));
    assert!(lived < deadline + WITHIN + late, "{what}: {lived:?} where all were {late:?} late: {outcome:?}");
    outcome.one_line();
}

/// The writer of the message stalls: before its first byte, in the header, in the body, before the end of the file; or
/// writes a byte a second. What was read of it is not delivered.
#[test]
fn a_pipe_that_falls_silent() {
    let scene = Scene::with(PG, &["doug", "lisa"]);
    let clock = Clock::start();
    let message = scene.message("stalled");
    let body = message.find("\n\n").unwrap();
    let deadline = format!("{}s", DEADLINE.as_secs());
    std::thread::scope(|scope| {
        for (written, trickles) in
            [(0, false), (body / 2, false), (body + 3, false), (message.len(), false), (0, true), (body + 3, true)]
        {
            let (clock, message) = (&clock, message.as_bytes());
            let mut command = scene.command("doug", &["--deadline", &deadline]);
            scope.spawn(move || {
                let began = Instant::now();
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                let mut child = command.spawn().unwrap();
                // How long a busy machine takes to start it is not the program's doing.
                let runs = Instant::now();
                let mut pipe = child.stdin.take().unwrap();
                pipe.write_all(&message[..written]).unwrap();
                let mut rest = message[written..].iter();
                wait_until("it ends", || {
                    if trickles && began.elapsed().as_secs() as usize > message.len() - written - rest.len() {
                        // It may have ended meanwhile.
                        let _ = pipe.write_all(&[*rest.next().unwrap()]);
                    }
                    child.try_wait().unwrap().is_some()
                });
                let took = began.elapsed();
                drop(pipe);
                let output = child.wait_with_output().unwrap();
                assert_eq!(output.stderr, b"");
                let line = String::from_utf8(output.stdout).unwrap();
                let outcome = Outcome { exit: output.status.code(), line, took };
                in_time(clock, &format!("{written} bytes written, trickles: {trickles}"), runs, DEADLINE, &outcome);
                outcome.deferred("4.4.5 the delivery took too long");
                assert!(took >= DEADLINE - Duration::from_millis(100), "{outcome:?}");
            });
        }
    });
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (0, 0));
    scene.deliver("doug", &message).delivered();
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (1, 1));
}

/// A name server that falls silent: the system's resolver waits for it as long as it likes (`resolv.conf(5)`: five seconds,
/// twice; for an answer by TCP without any limit), and nothing that it calls can be given a deadline.
#[test]
fn a_name_server_that_falls_silent() {
    // A site for each manner: only one delivery at a time finds out what the mailbox store does with a login, and another of
    // the same site would wait for that and not for the name server.
    let sites = MANNERS.map(|_| Scene::with(PG, &["doug", "lisa"]));
    let mysql = Scene::with(Engine::Mysql9, &["doug", "lisa"]);
    let clock = Clock::start();
    std::thread::scope(|scope| {
        for (number, (manner, site)) in MANNERS.into_iter().zip(&sites).enumerate() {
            let resolver = name_server(u8::try_from(number).unwrap(), manner);
            for (scene, whose) in [(site, "database"), (site, "imap"), (&mysql, "database")] {
                let what = format!("{manner:?}, {whose} of {:?}", scene.database.engine);
                let (command, starts) = with_name_server(scene, whose, &resolver, &format!("{whose}{number}"));
                let (clock, message) = (&clock, scene.message("nameless"));
                scope.spawn(move || {
                    let outcome = feed(command, message.as_bytes());
                    // How long a busy machine takes to make room for it is not the program's doing.
                    let started = std::fs::metadata(starts).and_then(|file| file.modified()).expect("it starts");
                    let began = Instant::now() - started.elapsed().unwrap_or_default();
                    in_time(clock, &what, began, DEADLINE, &outcome);
                    outcome.deferred("4.4.");
                    // The resolver gives up on a server that answers with rubbish; on any other it has waited.
                    let waited = manner == Manner::AByteASecond || outcome.took >= DEADLINE / 2;
                    assert!(waited, "{what}: was it asked at all? {outcome:?}");
                });
            }
        }
    });
    for scene in sites.iter().chain([&mysql]) {
        assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (0, 0));
        scene.deliver("doug", scene.message("nameless")).delivered();
        assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (1, 1));
    }
}

/// The program where `whose` server has a name, and this name server, and no other, knows names; and a file that is written
/// when it starts.
fn with_name_server(scene: &Scene, whose: &str, resolver: &str, name: &str) -> (Command, String) {
    let address = if whose == "imap" { &scene.settings.imap } else { &scene.settings.database };
    let text = std::fs::read_to_string(scene.path("config.toml")).unwrap();
    let by_address = format!("host = \"{}\"\nport = {}\n", address.0, address.1);
    let by_name = format!("host = \"{whose}.mail.example\"\nport = {}\n", address.1);
    assert_eq!(text.matches(&by_address).count(), 1, "{text}");
    let file = |kind: &str| scene.path(&format!("{name}.{kind}"));
    std::fs::write(file("toml"), text.replace(&by_address, &by_name)).unwrap();
    std::fs::write(file("resolv"), format!("nameserver {resolver}\n")).unwrap();
    std::fs::write(file("nsswitch"), "hosts: dns\n").unwrap();

    let mounts = "mount --bind \"$1\" /etc/resolv.conf && mount --bind \"$2\" /etc/nsswitch.conf && : >\"$3\" && \
        shift 3 && exec \"$@\"";
    let deadline = format!("{}s", DEADLINE.as_secs());
    let delivery = scene.command("doug", &["--deadline", &deadline]);
    let config = scene.path("config.toml");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", mounts, "sh", &file("resolv"), &file("nsswitch"), &file("starts")]);
    command.arg(delivery.get_program());
    for argument in delivery.get_args() {
        command.arg(if argument.to_str() == Some(&config) { file("toml").into() } else { argument.to_owned() });
    }
    (command, file("starts"))
}

/// Starts a name server, which only root can, and says its address.
fn name_server(number: u8, manner: Manner) -> String {
    let [high, low] = u16::try_from(std::process::id() & 0xffff).unwrap().to_be_bytes();
    let address = format!("127.{}.{high}.{low}", 53 + number);
    let bound =
        UdpSocket::bind((address.as_str(), 53)).and_then(|udp| Ok((udp, TcpListener::bind((address.as_str(), 53))?)));
    let (udp, tcp) = match bound {
        Ok(bound) => bound,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => cannot_run("ROOT"),
        Err(error) => panic!("{address}: {error}"),
    };
    std::thread::spawn(move || {
        let mut question = [0; 512];
        let mut asked = Vec::new();
        udp.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        loop {
            let heard = udp.recv_from(&mut question);
            if let Ok((length @ 12.., from)) = heard {
                match manner {
                    Manner::SaysNothing => {}
                    Manner::AByteASecond => asked.push(from),
                    // The answer is too long for a datagram: ask again by TCP (RFC 1035 section 4.2.1).
                    Manner::StopsMidReply => {
                        let mut answer = question[..length].to_vec();
                        // QR and TC, RA.
                        answer[2] |= 0x82;
                        answer[3] |= 0x80;
                        let _ = udp.send_to(&answer, from);
                    }
                }
            }
            for from in &asked {
                let _ = udp.send_to(&[0], from);
            }
        }
    });
    std::thread::spawn(move || {
        let mut connections = Vec::new();
        for connection in tcp.incoming() {
            let mut connection = connection.unwrap();
            // 100 bytes will follow; these are the first of them.
            let _ = connection.write_all(&[0, 100, 1, 2, 3]);
            connections.push(connection);
        }
    });
    address
}
