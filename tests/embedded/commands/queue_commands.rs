//! `queue list | show | hold | release | drop`: what people do with mail that nobody else has.

use crate::program::program;
use crate::queue_of_tests::{Counts, QueueOfTests, finish};
use maildrop_command::lock::{LockName, Shard};
use maildrop_command::queue::{Envelope, Queue, Recipient, Settlement};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, SystemTime};

const MESSAGE: &[u8] = b"Subject: x\r\n\r\n\0\xff\r\n";

struct Site {
    folder: tempfile::TempDir,
    queue: Queue,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let text = format!(
            "[database]\nfailover_timeout = \"0s\"\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\nport = 1\ndatabase = \"x\"\nuser = \"x\"\n\
             [imap]\nhost = \"127.0.0.1\"\nuser = \"x\"\npassword_file = \"/nonexistent\"\n\
             [retention]\nmessages_older_than = \"400d\"\n[service]\nstate_directory = {state:?}\n"
        );
        std::fs::write(folder.path().join("config.toml"), text).unwrap();
        let queue = Queue::open(&state.join("queue")).unwrap();
        Self { folder, queue }
    }

    fn configuration(&self) -> PathBuf {
        self.folder.path().join("config.toml")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let configuration = self.configuration();
        let mut command = program(&["queue", arguments[0], "--config", configuration.to_str().unwrap()]);
        command.args(&arguments[1..]).output().unwrap()
    }

    /// It went well; what it printed.
    #[track_caller]
    fn output(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// It ended with this status, and says this on standard error.
    #[track_caller]
    fn refused(&self, arguments: &[&str], exit: i32, parts: &[&str]) {
        let output = self.run(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {errors}");
        for part in parts {
            assert!(errors.contains(part), "{arguments:?}: {errors}");
        }
    }

    fn enqueue(&self, lock: &str, ago: Duration) -> String {
        let recipient = |address: &str| Recipient { address: address.into(), original: None };
        let mail = Envelope {
            recipients: vec![recipient("scuba@mail.axial.net"), recipient("\u{202e}doug@x")],
            injected_by: "a test".into(),
            ..Envelope::default()
        };
        let lock = LockName::new("maildrop", lock.as_bytes());
        self.queue.enqueue(&lock, mail, MESSAGE, SystemTime::now() - ago).unwrap().id()
    }

    fn listed(&self, arguments: &[&str]) -> Vec<Value> {
        let listed = self.output(&[&["list", "--json"], arguments].concat());
        serde_json::from_str::<Value>(&listed).unwrap().as_array().unwrap().clone()
    }
}

#[test]
fn what_is_in_the_queue_is_listed_and_shown() {
    let site = Site::new();
    assert_eq!(site.output(&["list"]), "the queue is empty\n");
    assert_eq!(site.listed(&[]), Vec::<Value>::new());
    let older = site.enqueue("a", Duration::from_secs(60));
    let younger = site.enqueue("b", Duration::ZERO);
    let claim = site.queue.claim(Shard::WHOLE, SystemTime::now()).unwrap().unwrap();
    let outcome = [Settlement::Delivered, Settlement::Refused("5.2.2 its mailbox is full".into())];
    let refused = claim.settle(&outcome, SystemTime::now()).unwrap().refused[0].id();
    assert_ne!(refused, older);

    let table = site.output(&["list"]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    let header: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(header.join(" "), "ID STATE QUEUED SIZE SENDER RECIPIENTS TRIES NEXT TRY REASON");
    assert!(lines[1].contains(&younger) && lines[1].contains("scuba@mail.axial.net ?doug@x"), "{table}");
    assert!(lines[2].contains(&refused) && lines[2].contains("5.2.2 its mailbox is full"), "{table}");
    assert!(lines[1].contains(" <> "), "{table}");

    let all = site.listed(&[]);
    let state = |entry: &Value| (entry["id"].as_str().unwrap().to_owned(), entry["state"].as_str().unwrap().to_owned());
    let expected = [(younger.clone(), "new".to_owned()), (refused.clone(), "refused".to_owned())];
    assert_eq!(all.iter().map(state).collect::<Vec<_>>(), expected);
    assert_eq!((&all[0]["size"], &all[0]["tries"], &all[0]["next_try"]), (&18.into(), &0.into(), &Value::Null));
    assert_eq!(site.listed(&["--state", "refused"]), all[1..]);
    assert_eq!(site.output(&["list", "--state", "bad"]), "there is none\n");
    site.refused(&["list", "--state", "lost"], 64, &["new, work, held, refused or bad"]);

    let shown = site.output(&["show", &refused]);
    for part in ["recipient   ?doug@x\n", "reason      5.2.2", "brought by  a test\n", "sender      <>\n", "/refused/"]
    {
        assert!(shown.contains(part), "{shown}");
    }
    assert_eq!(serde_json::from_str::<Value>(&site.output(&["show", "--json", &younger])).unwrap(), all[0]);
    let message = site.run(&["show", "--message", &younger]);
    assert_eq!((message.status.code(), &message.stdout[..]), (Some(0), MESSAGE));
    site.refused(&["show", "17"], 66, &["there is no message 17", "queue list"]);
    site.refused(&["show", "--message", "17"], 66, &["there is no message 17", "queue list"]);
}

#[test]
fn a_message_is_held_released_and_dropped_and_what_cannot_be_done_says_what_can() {
    let site = Site::new();
    let [a, b] = ["a", "b"].map(|lock| site.enqueue(lock, Duration::ZERO));
    let old = site.enqueue("old", Duration::from_hours(24 * 401));
    assert_eq!(site.output(&["hold", &a, &b, &old]), format!("{a} is held\n{b} is held\n{old} is held\n"));
    assert_eq!(site.queue.counts().unwrap(), Counts { held: 3, ..Counts::default() });
    site.refused(&["hold", &a], 65, &["is in held/", "only a message in new/ can be held"]);
    // One that cannot be had does not keep the others.
    site.refused(&["release", &old, &a], 65, &["longer than the ledger remembers", "--again"]);
    assert_eq!(site.queue.counts().unwrap(), Counts { new: 1, held: 2, ..Counts::default() });
    site.refused(&["release", &a], 65, &["is in new/", "held/, refused/ or bad/"]);
    let claim = site.queue.claim(Shard::WHOLE, SystemTime::now()).unwrap().unwrap();
    for what in ["hold", "release"] {
        site.refused(&[what, &a], 75, &["is being delivered at this moment"]);
    }
    site.refused(&["drop", "--yes", &a], 75, &["is being delivered at this moment"]);
    finish(claim);
    site.refused(&["release", &a], 66, &["there is no message"]);

    assert_eq!(site.output(&["release", "--again", &old]), format!("{old} is released\n"));
    let would = site.output(&["drop", &b, &old]);
    assert!(would.contains("a message of 18 bytes from <>") && would.contains("With --yes"), "{would}");
    assert_eq!(site.queue.counts().unwrap(), Counts { new: 1, held: 1, ..Counts::default() });
    assert_eq!(site.output(&["drop", "--yes", &b, &old]), format!("{b} is removed\n{old} is removed\n"));
    assert_eq!(site.queue.counts().unwrap(), Counts::default());
    for what in ["show", "hold", "release", "drop"] {
        site.refused(&[what], 64, &["<ID>"]);
    }
}

#[test]
fn where_there_is_no_queue_or_it_is_somebody_elses_it_says_so_and_makes_none() {
    let site = Site::new();
    let queue = site.queue.path().to_owned();
    std::fs::rename(&queue, site.folder.path().join("away")).unwrap();
    for arguments in [&["list"][..], &["hold", "1"], &["release", "1"], &["drop", "1"]] {
        site.refused(arguments, 66, &["there is no queue at", "service.state_directory"]);
    }
    assert!(!queue.exists());
    let nobody = program(&["queue", "list", "--config", "/nonexistent"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(78), "{nobody:?}");
    std::fs::rename(site.folder.path().join("away"), &queue).unwrap();
    chmod(&queue, 0o777);
    site.refused(&["list"], 77, &["others may write to", "chmod 0700"]);
    chmod(&queue, 0o700);
}

fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
