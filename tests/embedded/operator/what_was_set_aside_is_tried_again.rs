//! `shunt retry`: all that a copy knows of is handed to the service, however many transactions it came by; the broker is played.

use crate::broker::Broker;
use crate::program::program;
use maildrop_command::delivery::Verdict;
use maildrop_command::handover::Source;
use maildrop_command::queue::{Behind, Digest, Shunted, ShuntedEnvelope, ShuntedRecipient, ShuntedStore};
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

const MESSAGE: &[u8] = b"Message-ID: <1@x>\r\n\r\nx\r\n";

/// A folder with a configuration, `config.toml`, by which a service has run there.
fn service() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let text = format!(
        "[database]\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\ndatabase = \"x\"\nuser = \"x\"\n\
         [imap]\nhost = \"127.0.0.1\"\nuser = \"x\"\npassword_file = \"/nonexistent\"\n\
         [serve]\nstate_directory = {:?}\nruntime_directory = {:?}\n",
        path("state"),
        path("run")
    );
    std::fs::write(path("config.toml"), text).unwrap();
    std::fs::create_dir(path("run")).unwrap();
    ShuntedStore::open(&path("state")).unwrap();
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
    std::fs::write(folder.path().join("state/shunted").join("0".repeat(64)), "damaged").unwrap();
    for arguments in commands {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(65), "{output:?}");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim(),
            if arguments.len() == 2 && arguments[0] == "list" { "[]" } else { "" }
        );
        assert!(String::from_utf8_lossy(&output.stderr).contains(&"0".repeat(64)), "{output:?}");
    }
}

/// Each transaction of Postfix's brings some of them, and the copy comes to know them all.
#[test]
fn a_copy_of_more_recipients_than_one_message_may_have_is_handed_over_in_portions() {
    let folder = service();
    let path = |name: &str| folder.path().join(name);
    let store = ShuntedStore::open(&path("state")).unwrap();
    let everybody: Vec<String> = (0..1100).map(|number| format!("{number}@x")).collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros().try_into().unwrap();
    for some in everybody.chunks(50) {
        let recipients =
            some.iter().map(|address| ShuntedRecipient { address: address.clone(), original: None }).collect();
        let envelope = ShuntedEnvelope {
            sender: "lisa@gmail.com".into(),
            recipients,
            queue_id: Some("4bXyz".into()),
            client_address: None,
            sasl_username: None,
            no_sent: false,
            behind: Behind::Mta,
        };
        let copy = Shunted {
            size: MESSAGE.len() as u64,
            since: now,
            set_aside_at: now,
            deaths: Vec::new(),
            envelopes: vec![envelope],
        };
        assert!(store.set_aside(&Digest::of(MESSAGE), copy, MESSAGE).unwrap());
    }
    let broker = Broker::at(&path("run"));
    let mut retry = program(&["shunt", "retry", "--all", "--config"]);
    let retry = retry.arg(path("config.toml")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let retry = retry.spawn().unwrap();
    let mut told = Vec::new();
    while told.len() < everybody.len() {
        let (mut client, request) = broker.until_go();
        assert!(request.recipients.len() <= 500);
        assert_eq!((request.source, request.queue_id.as_deref()), (Source::Shunt, Some("4bXyz")));
        let verdicts = vec![Verdict::delivered("INBOX appended (uid 17)"); request.recipients.len()];
        told.extend(request.recipients.into_iter().map(|to| to.address));
        client.reply(request.id, &verdicts);
    }
    assert_eq!(told, everybody);
    let output = retry.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains("@x: 2.0.0 ")).count(), everybody.len(), "{lines}");
}
