//! What a person at a terminal reads, and no program does.

use crate::terminal::on_a_terminal;
use std::net::TcpListener;
use std::path::Path;

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
    let (status, said) = shown(place.path(), &line);
    let lines: Vec<&str> = said.lines().collect();
    let cause = format!("connecting to PostgreSQL at 127.0.0.1 port {port}: ");
    let [first, waits, last, verdict] = lines[..] else { panic!("{said}") };
    assert!(first.contains(&cause) && first.contains("refused") && first.ends_with("; it is tried again"), "{said}");
    assert!(waits.contains(&format!("waiting for the database at 127.0.0.1 port {port} … 5 s")), "{said}");
    assert!(last.contains(&cause) && verdict == "4.4.1 the database cannot be reached", "{said}");
    assert_eq!(status, Some(75));
    // Postfix passes on what it reads to the sender.
    let (_, piped) = shown(place.path(), &format!("{line} --dry-run 2>error | cat; cat error"));
    assert!(piped.starts_with("4.4.1 ") && !piped.contains("127.0.0.1"), "{piped}");
}
