use super::*;
use crate::protocol::control::Command;
use std::io::Read;

/// A control socket, and the time as the test sets it.
struct Scene {
    control: Control,
    now: Instant,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        Self { control: Control::bind(&path).unwrap(), now: Instant::now(), path, _folder: folder }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).unwrap()
    }

    /// A command with the key, as an operator's program sends it.
    fn order(&self, command: Command) -> String {
        line(&Request { command, key: Some(std::fs::read_to_string(key_beside(&self.path)).unwrap()) })
    }

    fn commands(&mut self) -> Vec<Command> {
        self.requests().into_iter().map(|(_, request)| request.command).collect()
    }

    fn requests(&mut self) -> Vec<(ControlConnection, Request)> {
        self.control.requests(self.now)
    }
}

/// All data up to the end of the connection.
fn rest(mut stream: UnixStream) -> String {
    let mut received = String::new();
    stream.read_to_string(&mut received).unwrap();
    received
}

fn status() -> String {
    line(&Request { command: Command::Status, key: None })
}

#[test]
fn a_request_that_comes_in_pieces_is_one_and_its_answer_ends_the_connection() {
    let mut scene = Scene::new();
    let mut client = scene.connect();
    let text = status();
    let (one, two) = text.as_bytes().split_at(5);
    client.write_all(one).unwrap();
    assert_eq!(scene.commands(), []);
    assert_eq!(scene.control.sources().0.len(), 2, "the socket, and who asks");
    client.write_all(two).unwrap();
    let (who, request) = scene.requests().pop().unwrap();
    assert_eq!(request.command, Command::Status);
    assert_eq!(scene.control.sources().0.len(), 1);
    scene.control.answer(who, &Answer::failed("no"), scene.now);
    assert_eq!(rest(client), line(&Answer::failed("no")));
    // Several clients at once, and data after a request.
    let mut clients = [scene.connect(), scene.connect()];
    for client in &mut clients {
        client.write_all(format!("{text}{text}").as_bytes()).unwrap();
    }
    assert_eq!(scene.commands(), [Command::Status, Command::Status]);
}

#[test]
fn what_is_no_request_is_reported_so_and_who_goes_away_is_forgotten() {
    let mut scene = Scene::new();
    for nonsense in ["nonsense\n".to_owned(), "x".repeat(LONGEST_REQUEST + 1)] {
        let mut client = scene.connect();
        client.write_all(nonsense.as_bytes()).unwrap();
        assert_eq!(scene.commands(), []);
        assert!(scene.control.asking.is_empty());
        let report: Answer = serde_json::from_str(&rest(client)).unwrap();
        assert!(report.problem.is_some(), "{report:?}");
    }
    // The longest request is read.
    let mut client = scene.connect();
    client.write_all("x".repeat(LONGEST_REQUEST).as_bytes()).unwrap();
    assert_eq!(scene.commands(), []);
    assert_eq!(scene.control.asking.len(), 1);
    drop(client);
    assert_eq!(scene.commands(), []);
    assert!(scene.control.asking.is_empty());
}

#[test]
fn nobody_is_waited_for_longer_than_he_may_take_to_ask() {
    let mut scene = Scene::new();
    assert_eq!(scene.control.next(), None);
    let client = scene.connect();
    assert_eq!(scene.commands(), []);
    assert_eq!(scene.control.next(), Some(scene.now + PATIENCE));
    scene.now += PATIENCE - Duration::from_millis(1);
    assert_eq!(scene.commands(), []);
    assert_eq!(scene.control.asking.len(), 1);
    scene.now += Duration::from_millis(1);
    assert_eq!(scene.commands(), []);
    assert!(scene.control.asking.is_empty());
    assert_eq!(rest(client), "");
}

#[test]
fn many_who_say_nothing_keep_others_waiting_and_not_for_ever() {
    let mut scene = Scene::new();
    let silent: Vec<UnixStream> = (0..LIMIT).map(|_| scene.connect()).collect();
    let mut client = scene.connect();
    client.write_all(status().as_bytes()).unwrap();
    assert_eq!(scene.commands(), []);
    assert_eq!(scene.control.asking.len(), LIMIT);
    // At the limit, the listening socket is not polled: otherwise the loop would spin.
    assert_eq!(scene.control.sources().0.len(), LIMIT);
    drop(silent);
    assert_eq!(scene.commands(), []);
    assert_eq!(scene.commands(), [Command::Status]);
}

#[test]
fn after_a_failure_of_the_systems_nobody_is_let_in_for_a_moment() {
    let mut scene = Scene::new();
    scene.control.closed_until = Some(scene.now + REST);
    let mut client = scene.connect();
    client.write_all(status().as_bytes()).unwrap();
    assert_eq!((scene.commands(), scene.control.sources().0.len()), (vec![], 0));
    assert_eq!(scene.control.next(), Some(scene.now + REST));
    scene.now += REST;
    assert_eq!(scene.commands(), [Command::Status]);
    assert_eq!(scene.control.next(), None);
}

#[test]
fn who_reads_slowly_gets_all_of_it_and_who_does_not_read_is_given_up() {
    let mut scene = Scene::new();
    let long = Answer::failed("x".repeat(4 << 20));
    let mut clients = [scene.connect(), scene.connect()];
    for client in &mut clients {
        client.write_all(status().as_bytes()).unwrap();
    }
    for (who, _) in scene.requests() {
        scene.control.answer(who, &long, scene.now);
    }
    assert_eq!(scene.control.sources().1.len(), 2, "it does not fit at once");
    assert_eq!(scene.control.next(), Some(scene.now + PATIENCE));
    let [reads, does_not] = clients;
    let reader = std::thread::spawn(move || rest(reads));
    while scene.control.answered.len() == 2 {
        assert_eq!(scene.commands(), []);
    }
    assert_eq!(reader.join().unwrap(), line(&long));
    scene.now += PATIENCE;
    assert_eq!(scene.commands(), []);
    assert!(scene.control.answered.is_empty());
    assert!(rest(does_not).len() < line(&long).len());
}

#[test]
fn the_last_answer_comes_when_the_socket_is_gone() {
    let mut scene = Scene::new();
    let mut client = scene.connect();
    client.write_all(scene.order(Command::Stop).as_bytes()).unwrap();
    let (who, _) = scene.requests().pop().unwrap();
    scene.control.close();
    assert!(!scene.path.exists() && !key_beside(&scene.path).exists());
    who.answer_last(&Answer::done());
    assert_eq!(rest(client), line(&Answer::done()));
}

/// Each process of the service has its user. A process that the kernel confines cannot read the key, so it may only request the
/// status.
#[test]
fn who_does_not_show_the_key_is_reported_how_the_service_is_and_orders_nothing() {
    let mut scene = Scene::new();
    let right = std::fs::read_to_string(key_beside(&scene.path)).unwrap();
    let all = [Command::Stop, Command::Restart, Command::Reload, Command::Reopen];
    for key in [None, Some(String::new()), Some(right.replace(|_: char| true, "0")), Some(right[1..].to_owned())] {
        for command in all {
            let mut client = scene.connect();
            client.write_all(line(&Request { command, key: key.clone() }).as_bytes()).unwrap();
            assert_eq!(scene.commands(), [], "{key:?}");
            let shown: Answer = serde_json::from_str(&rest(client)).unwrap();
            assert!(shown.problem.is_some_and(|problem| problem.contains("control.key")));
        }
    }
    let mut client = scene.connect();
    client.write_all(status().as_bytes()).unwrap();
    assert_eq!(scene.commands(), [Command::Status]);
    for command in all {
        let mut client = scene.connect();
        client.write_all(scene.order(command).as_bytes()).unwrap();
        assert_eq!(scene.commands(), [command]);
    }
    // Each master has a key of its own.
    let Scene { control, path, _folder, .. } = scene;
    drop(control);
    Control::bind(&path).unwrap();
    assert_ne!(std::fs::read_to_string(key_beside(&path)).unwrap(), right);
}
