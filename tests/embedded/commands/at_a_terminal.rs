//! What a person at a terminal reads, and no program does.

use crate::program::{feed, program};
use crate::terminal::on_a_terminal;
use maildrop_command::lock::LockName;
use maildrop_command::queue::{Digest, Envelope, Origin, Queue, Recipient, State};
use std::net::TcpListener;
use std::path::Path;
use std::time::SystemTime;

const MESSAGE: &str = "From: lisa@gmail.com\nMessage-ID: <123-abc@mail.google.com>\nSubject: Hello\n\nHello\n";
const DELIVER: &str = "--sender lisa@gmail.com --recipient doug@x <message.eml";

fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("message.eml"), MESSAGE).unwrap();
    place
}

fn shown(place: &Path, line: &str) -> (Option<i32>, String) {
    on_a_terminal(place, 80, line)
}

#[test]
fn a_delivery_into_a_new_directory_says_so_once_and_its_path_may_be_relative() {
    let place = place();
    let line = format!("maildrop_command --embedded new/mail {DELIVER}");
    let (status, first) = shown(place.path(), &line);
    let new = format!("{}/new/mail is a new directory", place.path().display());
    assert!(status == Some(0) && first.contains(&new) && first.contains("2.0.0 INBOX appended"), "{first}");
    let (status, second) = shown(place.path(), &line);
    assert!(status == Some(0) && second == "2.0.0 INBOX already there\n", "{second}");
    // A program gets one line.
    let (_, piped) = shown(place.path(), &format!("maildrop_command --embedded other {DELIVER} 2>error; cat error"));
    assert_eq!(piped, "2.0.0 INBOX appended\n");
}

#[test]
fn a_delivery_without_its_database_names_host_port_and_cause_and_what_it_waits_for() {
    let place = place();
    // Bound and not listening: connections are refused as long as the test holds it.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    std::fs::write(place.path().join("password"), "x").unwrap();
    let path = |name: &str| place.path().join(name).display().to_string();
    let (password, log) = (path("password"), path("log"));
    let text = format!(
        "[database]\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\nport = {port}\ndatabase = \"x\"\nuser = \"x\"\n\
         password_file = \"{password}\"\nfailover_timeout = \"6s\"\n\
         [imap]\nhost = \"127.0.0.1\"\nuser = \"x\"\npassword_file = \"{password}\"\n\
         [log]\nto = \"file\"\nfile = \"{log}\"\n"
    );
    std::fs::write(place.path().join("config.toml"), text).unwrap();
    let line = format!("maildrop_command --config config.toml {DELIVER}");
    let (status, screen) = shown(place.path(), &line);
    let lines: Vec<&str> = screen.lines().collect();
    let cause = format!("connecting to PostgreSQL at 127.0.0.1 port {port}: ");
    let [first, waits, last, verdict] = lines[..] else { panic!("{screen}") };
    assert!(first.contains(&cause) && first.contains("refused") && first.ends_with("; it is tried again"), "{screen}");
    assert!(waits.contains(&format!("waiting for the database at 127.0.0.1 port {port} … 5 s")), "{screen}");
    assert!(last.contains(&cause) && verdict == "4.4.1 the database cannot be reached", "{screen}");
    assert_eq!(status, Some(75));
    // Postfix passes on what it reads to the sender.
    let (_, piped) = shown(place.path(), &format!("{line} --dry-run 2>error | cat; cat error"));
    assert!(piped.starts_with("4.4.1 ") && !piped.contains("127.0.0.1"), "{piped}");
}

/// The command lines of the packaged units that run this program.
fn command_lines_of_units() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/package/debian");
    let units = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let units = units.filter(|path| path.extension().is_some_and(|extension| extension == "service"));
    let text: String = units.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let lines = text.lines().filter_map(|line| line.strip_prefix("ExecStart=/usr/bin/"));
    let mut lines: Vec<String> =
        lines.filter(|line| line.starts_with("maildrop_command ")).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Three messages of Lisa's, of which the Sent copies are owed.
fn site_with_owed_copies() -> tempfile::TempDir {
    let place = place();
    let directory = place.path().join("site");
    let deliver = |sender: &str, recipient: &str, id: &str| {
        let directory = directory.to_str().unwrap();
        let command = program(&["--embedded", directory, "--sender", sender, "--recipient", recipient]);
        let message = format!("From: {sender}\nMessage-ID: <{id}@x>\nSubject: {id}\n\n{id}\n");
        feed(command, message.as_bytes()).delivered();
    };
    deliver("doug@x", "lisa@x", "first");
    for id in ["one", "two", "three"] {
        deliver("lisa@x", "doug@x", id);
    }
    let ledger = rusqlite::Connection::open(directory.join("ledger.sqlite")).unwrap();
    let owe = "UPDATE copies SET state = 'owed', delivered_at = NULL WHERE role = 'sender'";
    assert_eq!(ledger.execute(owe, ()).unwrap(), 3);
    std::fs::remove_dir_all(directory.join("lisa@x/.Sent")).unwrap();
    place
}

fn sent_copies(place: &Path) -> usize {
    std::fs::read_dir(place.join("site/lisa@x/.Sent/cur")).map_or(0, Iterator::count)
}

fn attempts(place: &Path) -> u32 {
    let ledger = rusqlite::Connection::open(place.join("site/ledger.sqlite")).unwrap();
    ledger.query_row("SELECT count(*) FROM attempts", (), |row| row.get(0)).unwrap()
}

#[test]
fn the_packaged_units_act_and_a_person_at_a_terminal_confirms_first() {
    let lines = command_lines_of_units();
    let [proof, prune, owed] = &lines[..] else { panic!("{lines:?}") };
    assert!(proof.contains("check") && prune.contains("prune") && owed.contains("replay --owed"), "{lines:?}");
    let of_site = |line: &str| line.replace(" --config /etc/maildrop_command/config.toml", "") + " --embedded site";
    let place = site_with_owed_copies();
    let (owed, proof) = (of_site(owed), of_site(proof));
    // The site has no [retention], so the age is given here.
    let prune = of_site(prune) + " --attempts-older-than 7d";
    let ledger = rusqlite::Connection::open(place.path().join("site/ledger.sqlite")).unwrap();
    let month = 30 * 86_400_000_000_i64;
    ledger.execute("UPDATE attempts SET started_at = started_at - ?1, ended_at = ended_at - ?1", [month]).unwrap();
    let before = attempts(place.path());

    let (_, screen) = shown(place.path(), &owed);
    assert!(screen.contains("Nothing was delivered. With --yes it is.") && sent_copies(place.path()) == 0, "{screen}");
    let (_, screen) = shown(place.path(), &prune);
    assert!(screen.contains("would remove") && screen.contains("Nothing was removed. With --yes it is."), "{screen}");
    assert_eq!(attempts(place.path()), before);

    for unit in [&proof, &owed, &prune] {
        let words: Vec<&str> = unit.split(' ').skip(1).collect();
        let output = program(&words).current_dir(place.path()).output().unwrap();
        assert!(output.status.success(), "{unit}: {output:?}");
    }
    assert_eq!((sent_copies(place.path()), attempts(place.path()) < before), (3, true));

    let place = site_with_owed_copies();
    let (status, screen) = shown(place.path(), &format!("{owed} --yes"));
    assert!(status == Some(0) && sent_copies(place.path()) == 3, "{screen}");
}

#[test]
fn several_messages_of_the_queue_are_shown_first_and_one_is_changed_at_once() {
    let place = place();
    let state = place.path().join("state");
    let text = format!(
        "[database]\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\nport = 1\ndatabase = \"x\"\nuser = \"x\"\n\
         [imap]\nhost = \"127.0.0.1\"\nuser = \"x\"\npassword_file = \"/nonexistent\"\n[service]\nstate_directory = {state:?}\n"
    );
    std::fs::write(place.path().join("config.toml"), text).unwrap();
    let queue = Queue::open(&state.join("queue")).unwrap();
    let enqueue = |lock: &str| {
        let recipient = Recipient { address: "scuba@mail.axial.net".into(), original: None };
        let mail = Envelope { recipients: vec![recipient], injected_by: "a test".into(), ..Envelope::default() };
        let lock = LockName::new("maildrop", lock.as_bytes());
        queue.enqueue(&lock, mail, MESSAGE.as_bytes(), SystemTime::now()).unwrap().id()
    };
    let (a, b) = (enqueue("a"), enqueue("b"));
    let held = || queue.list().unwrap().iter().filter(|entry| entry.state == State::Held).count();
    let hold = "maildrop_command queue hold --config config.toml";
    let (status, screen) = shown(place.path(), &format!("{hold} {a} {b}"));
    assert!(status == Some(0) && screen.matches("to scuba@mail.axial.net, would be held").count() == 2, "{screen}");
    assert!(screen.ends_with("Nothing was held. With --yes it is.\n") && held() == 0, "{screen}");
    shown(place.path(), &format!("{hold} {a}"));
    assert_eq!(held(), 1);
    shown(place.path(), &format!("{hold} --yes {a} {b}"));
    assert_eq!(held(), 2);

    // No line is wider than the terminal, and no ID is cut.
    let digest = Digest::of(MESSAGE.as_bytes());
    let envelope = Envelope {
        sender: "lisa@gmail.com".into(),
        queued_at: 0,
        injected_by: "the service".into(),
        may_owe_sent: false,
        reason: Some("the worker was killed by SIGABRT".into()),
        size: 0,
        origin: Some(Origin { queue_id: Some("4cBxyz1234z9rs".into()), ..Origin::default() }),
        recipients: vec![Recipient { address: "scuba@mail.axial.net".into(), original: None }],
    };
    queue.record_crash(digest, 2, envelope, MESSAGE.as_bytes(), SystemTime::now()).unwrap();
    for columns in [60, 80, 200] {
        for (list, ids) in [("queue", vec![a.clone(), b.clone()]), ("shunt", vec![digest.to_string()])] {
            let line = format!("maildrop_command {list} list --config config.toml");
            let (_, list) = on_a_terminal(place.path(), columns, &line);
            let plain = list.replace("\u{1b}[33m", "").replace("\u{1b}[0m", "");
            assert!(plain.lines().all(|line| line.chars().count() <= columns.into()), "{columns}: {plain}");
            assert!(
                ids.iter().all(|id| plain.contains(id)) && plain.contains("scuba@mail.axial.net"),
                "{columns}: {plain}"
            );
        }
    }
    let list = "maildrop_command queue list --config config.toml";
    assert!(shown(place.path(), list).1.contains("\u{1b}[33mheld\u{1b}[0m"));
    for plain in [format!("NO_COLOR=1 {list}"), format!("TERM=dumb {list}"), format!("{list} | cat")] {
        assert!(!shown(place.path(), &plain).1.contains('\u{1b}'), "{plain}");
    }
}

#[test]
fn the_sentences_of_stats_are_wrapped_between_words() {
    let place = site_with_owed_copies();
    for columns in [60, 80] {
        let (status, printed) = on_a_terminal(place.path(), columns, "maildrop_command stats --embedded site");
        assert_eq!(status, Some(0), "{printed}");
        assert!(printed.lines().all(|line| line.chars().count() <= columns.into()), "{columns}: {printed}");
        let one_line = printed.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(one_line.contains("`maildrop_command replay --owed` finishes them, and with --dry-run names them."));
    }
    let (_, piped) = shown(place.path(), "maildrop_command stats --embedded site | cat");
    assert!(
        piped.contains("`maildrop_command replay --owed` finishes them, and with --dry-run names them."),
        "{piped}"
    );
}
