//! `shunt retry`: a copy is handed to the service with what it came with; the broker is played.

use crate::broker::Broker;
use crate::program::program;
use maildrop_command::delivery::Verdict;
use maildrop_command::protocol::Source;
use maildrop_command::queue::{Digest, Envelope, Origin, Queue, Recipient};
use std::process::Stdio;
use std::time::SystemTime;
use tempfile::TempDir;

const MESSAGE: &[u8] = b"Message-ID: <1@x>\r\n\r\nx\r\n";

/// A folder with a configuration, `config.toml`, by which a service has run there.
fn service() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let text = format!(
        "[database]\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\ndatabase = \"x\"\nuser = \"x\"\n\
         [imap]\nhost = \"127.0.0.1\"\nuser = \"x\"\npassword_file = \"/nonexistent\"\n\
         [service]\nstate_directory = {:?}\nruntime_directory = {:?}\n",
        path("state"),
        path("run")
    );
    std::fs::write(path("config.toml"), text).unwrap();
    std::fs::create_dir(path("run")).unwrap();
    Queue::open(&path("state/queue")).unwrap();
    folder
}

#[test]
fn where_a_copy_cannot_be_read_it_is_not_said_that_there_is_none() {
    let folder = service();
    let run = |arguments: &[&str]| {
        let mut command = program(&["shunt"]);
        command.args(arguments).arg("--config").arg(folder.path().join("config.toml")).output().unwrap()
    };
    let commands = [&["retry", "--all"][..], &["list"], &["list", "--json"]];
    for arguments in commands {
        let output = run(arguments);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    let name = format!("{}-{},2.msg", "0".repeat(20), "0".repeat(16));
    std::fs::write(folder.path().join("state/queue/shunted").join(&name), "damaged").unwrap();
    for arguments in commands {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(65), "{output:?}");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim(),
            if arguments.len() == 2 && arguments[0] == "list" { "[]" } else { "" }
        );
        assert!(String::from_utf8_lossy(&output.stderr).contains(&name), "{output:?}");
    }
}

#[test]
fn a_copy_is_handed_over_with_all_that_it_came_with() {
    let folder = service();
    let path = |name: &str| folder.path().join(name);
    let queue = Queue::open(&path("state/queue")).unwrap();
    let everybody: Vec<String> = (0..600).map(|number| format!("{number}@x")).collect();
    let recipient = |to: &String| Recipient { address: to.clone(), original: Some("doug@axial.net".into()) };
    let envelope = Envelope {
        sender: "lisa@gmail.com".into(),
        queued_at: 0,
        injected_by: "the service".into(),
        may_owe_sent: false,
        reason: None,
        size: 0,
        origin: Some(Origin {
            queue_id: Some("4bXyz".into()),
            client_address: Some("192.0.2.1".into()),
            sasl_username: Some("lisa".into()),
            ..Origin::default()
        }),
        recipients: everybody.iter().map(recipient).collect(),
    };
    queue.record_crash(Digest::of(MESSAGE), 2, envelope, MESSAGE, SystemTime::now()).unwrap();
    let broker = Broker::at(&path("run"));
    let mut retry = program(&["shunt", "retry", "--all", "--config"]);
    let retry = retry.arg(path("config.toml")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let retry = retry.spawn().unwrap();
    let (mut client, request) = broker.until_go();
    assert_eq!((request.source, request.queue_id.as_deref()), (Source::Shunt, Some("4bXyz")));
    assert_eq!(
        (request.client_address.as_deref(), request.sasl_username.as_deref()),
        (Some("192.0.2.1"), Some("lisa"))
    );
    assert!(request.no_sent && request.sender == "lisa@gmail.com" && request.size == MESSAGE.len() as u64);
    assert_eq!(request.recipients[0].original.as_deref(), Some("doug@axial.net"));
    client.reply(request.id, &vec![Verdict::delivered("INBOX appended (uid 17)"); request.recipients.len()]);
    let named: Vec<String> = request.recipients.into_iter().map(|to| to.address).collect();
    assert_eq!(named, everybody);
    let output = retry.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains("@x: 2.0.0 ")).count(), everybody.len(), "{lines}");
}
