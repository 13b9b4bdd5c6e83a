//! `inject`: mail that has no Postfix behind it is in the queue, or the program that brings it learns that it is not.

use crate::not_run::did_not_run;
use crate::program::{feed, program};
use crate::queue_of_tests::QueueOfTests;
use maildrop_command::lock::Shard;
use maildrop_command::message::Identity;
use maildrop_command::queue::{Claim, Queue};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

const MESSAGE: &[u8] =
    b"From: Lisa <lisa@gmail.com>\nMessage-ID: <1@x>\nDate: Thu, 26 Nov 2026 03:00:00 +0000\n\nHello\0\xff\r\n\n";

/// The directory of an embedded site, where a message was delivered.
struct Site(tempfile::TempDir);

impl Site {
    fn new() -> Self {
        let site = Self(tempfile::tempdir().unwrap());
        let delivery =
            ["--embedded", site.0.path().to_str().unwrap(), "--sender", "lisa@gmail.com", "--recipient", "doug@x"];
        feed(program(&delivery), b"Subject: the first\n\nx\n").delivered();
        site.file("message.eml", MESSAGE);
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// `inject` with these arguments, in the directory.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program(&["inject", "--embedded"]);
        command.arg(self.0.path()).args(arguments).current_dir(self.0.path());
        command
    }

    fn inject(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// What is in the queue, the oldest first.
    fn queued(&self) -> Vec<Claim> {
        let path = self.path("state/queue");
        if !path.exists() {
            return Vec::new();
        }
        let queue = Queue::open(&path).unwrap();
        std::iter::from_fn(|| queue.claim(Shard::WHOLE, SystemTime::now()).unwrap()).collect()
    }
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// It ended with this status, and said these words on standard error.
#[track_caller]
fn refused(output: &Output, exit: i32, words: &[&str]) {
    let complained = text_of(&output.stderr);
    assert_eq!(output.status.code(), Some(exit), "{complained}");
    for word in words {
        assert!(complained.contains(word), "{word}: {complained}");
    }
}

#[test]
fn each_file_is_one_message_for_all_recipients_as_it_came() {
    let site = Site::new();
    site.file("other.eml", b"Received: by x; Thu, 26 Nov 2026 03:00:00 +0000\nSubject: another\n\nx\n");
    let to =
        ["--recipient", "doug@x", "--recipient", "scuba@x", "--recipient", "Doug@X", "--sender", "<lisa@gmail.com>"];
    let output = site.inject(&[&to[..], &["message.eml", "other.eml"]].concat());
    assert!(output.status.success() && text_of(&output.stderr).contains("maildropd is not running"), "{output:?}");
    let queued = site.queued();
    assert_eq!(queued.len(), 2);
    for (claim, file) in queued.iter().zip(["message.eml", "other.eml"]) {
        assert_eq!(claim.message(), fs::read(site.path(file)).unwrap());
        let envelope = claim.envelope();
        let to: Vec<&str> = envelope.recipients.iter().map(|to| to.address.as_str()).collect();
        assert_eq!((&to[..], envelope.sender.as_str()), (&["doug@x", "scuba@x"][..], "lisa@gmail.com"));
        // Nobody vouches for Lisa.
        assert!(!envelope.may_owe_sent);
        assert!(envelope.injected_by.starts_with("inject, by user "));
        let line = format!("{} ", claim.name().id());
        let row = text_of(&output.stdout).lines().find(|row| row.contains(&line)).map(str::to_owned);
        assert!(row.unwrap().ends_with(file), "{output:?}");
    }
}

#[test]
fn standard_input_is_a_message_and_programs_get_its_id() {
    let site = Site::new();
    let mut child = site.command(&["--recipient", "doug@x", "--json", "-"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(MESSAGE).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [claim] = &site.queued()[..] else { panic!("one message") };
    assert_eq!((claim.message(), claim.envelope().sender.as_str()), (MESSAGE, ""));
    assert_eq!(printed[0]["id"], claim.name().id());
    assert_eq!((&printed[0]["file"], &printed[0]["problem"]), (&"-".into(), &Value::Null));

    refused(&site.inject(&["--recipient=doug@x", "-", "-"]), 64, &["standard input can be read once"]);
}

#[test]
fn two_files_of_one_message_id_have_one_lock() {
    let site = Site::new();
    site.file("again.eml", b"Message-ID:  <1@x> \nDate: Thu, 26 Nov 2026 03:00:00 +0000\nSubject: other\n\nx\n");
    assert!(site.inject(&["--recipient=doug@x", "message.eml", "again.eml"]).status.success());
    let [first] = &site.queued()[..] else { panic!("the second waits for the first") };
    assert_eq!(first.message(), MESSAGE);
}

/// "Backup done", every night: the second would be taken for the first, and be "already there".
#[test]
fn reports_that_nothing_tells_apart_are_as_many_messages_as_were_brought() {
    let reports: [&[u8]; 3] = [
        b"Subject: Backup\n\nBackup done\n",
        b"Message-ID: <report@printer>\r\nSubject: Backup\r\n\r\nBackup done\r\n",
        b"Date: Thu, 26 Nov 2026 03:00:00 +0000\n\nBackup done\n",
    ];
    for report in reports {
        let site = Site::new();
        site.file("report.eml", report);
        for _ in 0..2 {
            assert!(site.inject(&["--recipient=doug@x", "report.eml"]).status.success());
        }
        let queue = Queue::open(&site.path("state/queue")).unwrap();
        let messages: Vec<_> = queue.list().unwrap().iter().map(|entry| queue.read(&entry.id).unwrap().1).collect();
        assert_eq!(messages.len(), 2);
        assert_ne!(Identity::of(&messages[0]), Identity::of(&messages[1]));
        // What was brought is there as it came, below one field that was put on top.
        for message in &messages {
            assert!(message.starts_with(b"Received: by ") && message.ends_with(report), "{}", text_of(message));
        }
    }
}

#[test]
fn a_file_that_cannot_be_accepted_is_named_and_the_others_are_accepted() {
    let site = Site::new();
    site.file("empty.eml", b"");
    let output = site.inject(&["--recipient=doug@x", "missing.eml", "message.eml", "empty.eml", "."]);
    refused(
        &output,
        66,
        &[
            "missing.eml: No such file",
            "empty.eml: the message is empty",
            ".: Is a directory",
            "1 of 4 files were accepted",
        ],
    );
    assert_eq!(text_of(&output.stdout).lines().count(), 2, "{output:?}");
    assert_eq!(site.queued().len(), 1);
    refused(&site.inject(&["--recipient=doug@x", "empty.eml"]), 65, &["0 of 1 files"]);
}

#[test]
fn a_mistake_in_the_arguments_accepts_nothing() {
    let site = Site::new();
    let many: Vec<String> = (0..1001).map(|number| format!("--recipient={number}@x")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).chain(["message.eml"]).collect();
    for (arguments, exit, word) in [
        (&["message.eml"][..], 64, "--recipient"),
        (&["--recipient=doug@x"], 64, "FILE"),
        (&["--recipient=doug", "message.eml"], 64, "\"doug\""),
        (&["--recipient=doug@x", "--sender=lisa", "message.eml"], 64, "\"lisa\""),
        (&["--recipient=doug@x", "--as-author", "message.eml"], 64, "--sender"),
        (&many, 64, "one message may have 1000 recipients"),
    ] {
        refused(&site.inject(arguments), exit, &[word]);
    }
    assert_eq!(site.queued().len(), 0);
}

/// The site has its servers where nobody answers.
fn configured(folder: &Path, more: &str) -> PathBuf {
    let text = format!(
        "[database]\nfailover_timeout = \"0s\"\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\nport = 1\ndatabase = \"x\"\nuser = \"x\"\n\
         [imap]\nhost = \"127.0.0.1\"\nuser = \"x\"\npassword_file = \"/nonexistent\"\n[service]\nstate_directory = {:?}\n{more}",
        folder.join("state"),
    );
    fs::write(folder.join("config.toml"), text).unwrap();
    folder.join("config.toml")
}

#[test]
fn where_the_database_cannot_say_who_is_known_nothing_is_accepted_and_no_mailboxes_password_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let configuration = configured(folder.path(), "");
    fs::write(folder.path().join("message.eml"), MESSAGE).unwrap();
    let mut command = program(&["inject", "--recipient=doug@x", "message.eml", "--config"]);
    let output = command.arg(configuration).current_dir(folder.path()).output().unwrap();
    refused(&output, 75, &["nothing was accepted", "maildrop_command check"]);
    assert!(!folder.path().join("state").exists());
}

#[test]
fn a_full_disk_is_reported_with_what_was_accepted() {
    let site = Site::new();
    site.file("large.eml", &[MESSAGE, &[b'x'; 300_000]].concat());
    site.file("small.eml", b"Subject: small\n\nx\n");
    Queue::open(&site.path("state/queue")).unwrap();
    let inject = site.command(&["--recipient=doug@x", "message.eml", "large.eml", "small.eml"]);
    let mut command = Command::new("unshare");
    // What is mounted there nobody else sees.
    let script = "mount -t tmpfs -o size=128k,mode=0700 tmpfs state/queue || exit 99; \"$0\" \"$@\" || exit=$?; \
                  ls state/queue/tmp state/queue/new; exit $exit";
    command.args(["--mount", "sh", "-c", script]).arg(inject.get_program()).args(inject.get_args());
    let may_unshare = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    let output = may_unshare
        .is_ok_and(|status| status.success())
        .then(|| command.current_dir(site.0.path()).stdin(Stdio::null()).output().unwrap());
    match output {
        Some(output) if output.status.code() != Some(99) => {
            refused(&output, 75, &["large.eml: ", "no room is left on the disk", "2 of 3 files were accepted"]);
            let printed = text_of(&output.stdout);
            assert!(
                printed.contains("message.eml") && printed.contains("small.eml") && !printed.contains("large.eml"),
                "{printed}"
            );
            assert_eq!(printed.matches(".msg").count(), 2, "{printed}");
        }
        // Root may, where nothing forbids it.
        _ => {
            if let Some(list) = std::env::var_os("MAILDROP_TEST_NOT_RUN") {
                did_not_run("MOUNT", Path::new(&list));
            }
        }
    }
}

const NOBODY: u32 = 65_534;

#[test]
fn what_root_takes_in_belongs_to_the_user_of_the_service() {
    let site = Site::new();
    let queue = site.path("state/queue");
    drop(Queue::open(&queue).unwrap());
    // Only root can be somebody else, too.
    if chown(site.path("state"), Some(NOBODY), Some(NOBODY)).is_err() {
        return;
    }
    let folders = fs::read_dir(&queue).unwrap().map(|entry| entry.unwrap().path());
    for folder in folders.chain([queue.clone()]) {
        chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    assert!(site.inject(&["--recipient=doug@x", "message.eml"]).status.success());
    let entries: Vec<_> = fs::read_dir(queue.join("new")).unwrap().map(|entry| entry.unwrap()).collect();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    let found = entry.metadata().unwrap();
    assert_eq!((found.uid(), found.permissions().mode() & 0o777), (NOBODY, 0o600));
    // That user could not open what root makes.
    fs::remove_dir_all(&queue).unwrap();
    refused(&site.inject(&["--recipient=doug@x", "message.eml"]), 77, &["run this as the user"]);
    assert!(!queue.exists());
}
