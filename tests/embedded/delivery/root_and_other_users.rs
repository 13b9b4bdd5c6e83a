//! What root makes in a user's directory, that user cannot open: deliveries there would be deferred until Postfix bounces
//! them. And the user can plant links there, for root to write through.

use crate::program::{feed, program};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const MESSAGE: &str = "From: lisa@gmail.com\nMessage-ID: <123-abc@mail.google.com>\nSubject: Hello\n\nHello\n";
const NOBODY: u32 = 65_534;

fn delivery(directory: &Path) -> Command {
    let directory = directory.to_str().unwrap();
    program(&["--embedded", directory, "--sender", "lisa@gmail.com", "--recipient", "doug@x"])
}

fn as_nobody(mut command: Command) -> Command {
    command.uid(NOBODY).gid(NOBODY);
    command
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn root_does_nothing_in_another_users_directory_and_says_why() {
    let home = tempfile::tempdir().unwrap();
    if chown(home.path(), Some(NOBODY), Some(NOBODY)).is_err() {
        // Only root can be kept out so, and only root can try.
        return;
    }
    let message = home.path().join("message.eml");
    std::fs::write(&message, MESSAGE).unwrap();
    // There already, or to be made.
    let there = home.path().join("there");
    feed(as_nobody(delivery(&there)), MESSAGE.as_bytes()).delivered();
    let before = names(&there);
    for directory in [there.clone(), home.path().join("not/there")] {
        let outcome = feed(delivery(&directory), MESSAGE.as_bytes());
        let expected = outcome.deferred(&format!("4.3.5 {} belongs to user {NOBODY}", directory.display()));
        assert!(expected.contains("run this as that user, not as root"), "{expected}");
        let path = directory.to_str().unwrap();
        let source = message.to_str().unwrap();
        for subcommand in [
            &["replay", "--sender", "", "--recipient", "scuba@x", source][..],
            &["replay", "--since", "1d"],
            &["replay", "--owed"],
            &["trace", "<1@x>"],
            &["stats"],
            &["audit"],
            &["prune", "--messages-older-than", "400d"],
            &["lock", "list"],
            &["lock", "try", "x"],
            &["check"],
            &["inject", "--recipient", "scuba@x", source],
            &["web", "login", "--name", "anna", "--role", "viewer"],
            &["web", "sessions"],
        ] {
            let output_text =
                program(&[subcommand, &["--embedded", path]].concat()).stdin(Stdio::null()).output().unwrap();
            let stderr = String::from_utf8(output_text.stderr).unwrap();
            assert_eq!(output_text.status.code(), Some(77), "{subcommand:?}: {stderr}");
            assert!(stderr.contains("not as root") && stderr.lines().count() == 1, "{subcommand:?}: {stderr}");
            assert!(output_text.stdout.is_empty(), "{subcommand:?}");
        }
        // The page's process makes files there, too.
        let page = ["--embedded", path, "--web", "127.0.0.1:8025"];
        let printed = Command::new(env!("CARGO_BIN_EXE_maildropd")).args(page).stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8(printed.stderr).unwrap();
        assert_eq!(printed.status.code(), Some(78), "maildropd: {stderr}");
        assert!(stderr.contains("not as root") && stderr.lines().count() == 1, "maildropd: {stderr}");
        let program = ["lock", "exec", "--embedded", path, "x", "--", "true"];
        assert_eq!(self::program(&program).stdin(Stdio::null()).output().unwrap().status.code(), Some(77));
    }
    assert_eq!(names(&there), before);
    assert_eq!(names(home.path()), ["message.eml", "there"]);
    // The user is not in the way of anything.
    feed(as_nobody(delivery(&there)), MESSAGE.replace("123-abc", "2").as_bytes()).delivered();
    assert_eq!(std::fs::read_dir(there.join("doug@x/new")).unwrap().count(), 2);
}

#[test]
fn in_a_directory_of_its_own_root_delivers_like_anybody() {
    let home = tempfile::tempdir().unwrap();
    for directory in [home.path().to_owned(), home.path().join("made")] {
        feed(delivery(&directory), MESSAGE.as_bytes()).delivered();
    }
}
