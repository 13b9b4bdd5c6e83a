//! A server that accepts a connection and never says a word: the user at the terminal learns which one, and the
//! subcommand ends. (server_tests/faults/stopped_servers.rs has servers that stop later.)

use crate::program::{PATIENCE, Running, program};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;

const ID: &str = "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b";

const MESSAGE: &str = "From: lisa@gmail.com\nMessage-ID: <123-abc@mail.google.com>\nSubject: Hello\n\nHello\n";

#[test]
fn every_subcommand_that_asks_a_server_ends_where_it_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("password"), "secret").unwrap();
    std::fs::write(path("message.eml"), MESSAGE).unwrap();
    let mut key = std::fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(path("key")).unwrap();
    writeln!(key, "{}", "5a".repeat(32)).unwrap();
    // Its queue of connections is answered by the kernel.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let message = path("message.eml");
    let subcommands = [
        &["check"][..],
        &["check", "--self-test"],
        &["migrate"],
        &["migrate", "--status"],
        &["trace", "<1@x>"],
        &["stats"],
        &["audit"],
        &["prune", "--messages-older-than", "400d"],
        &["prune", "--dry-run", "--messages-older-than", "400d"],
        &["replay", "--owed"],
        &["replay", "--since", "1d"],
        &["lock", "list"],
        &["lock", "try", "x"],
        &["token", "create", "--name", "x", "--scope", "events:read"],
        &["token", "list"],
        &["token", "revoke", ID],
        &["subscription", "create", "--callback", "https://crm.example.com/hook"],
        &["subscription", "list"],
        &["subscription", "show", ID],
        &["subscription", "pause", ID],
        &["subscription", "resume", ID],
        &["subscription", "secret", ID],
        &["subscription", "delete", ID],
        &["notify", "status"],
        &["subscription", "test", ID],
        &["subscription", "disable", ID, "--reason", "x"],
        &["notify", "redeliver"],
        &["notify", "give-up", "--subscription", ID],
        &["web", "login", "--name", "anna", "--role", "viewer"],
        &["web", "sessions"],
    ];
    let mut running = Vec::new();
    for engine in ["postgresql", "mysql"] {
        let config = path(&format!("{engine}.toml"));
        let text = format!(
            "[database]\nengine = \"{engine}\"\nhost = \"127.0.0.1\"\nport = {port}\ndatabase = \"maildrop\"\n\
             user = \"maildrop\"\npassword_file = \"{password}\"\ntls = \"off\"\n\
             roles.operator = {{ user = \"operator\" }}\nroles.owner = {{ user = \"owner\" }}\n\
             [imap]\nhost = \"127.0.0.1\"\nport = {port}\nuser = \"service\"\npassword_file = \"{password}\"\n\
             encryption = \"none\"\n[log]\nto = \"file\"\nfile = \"{}\"\n[notifications]\nsecret_key_file = \"{}\"\n\
             [web]\nlisten = \"127.0.0.1:8025\"\n[service]\nstate_directory = \"{}\"\n",
            path("log"),
            path("key"),
            path("state"),
            password = path("password"),
        );
        std::fs::write(&config, text).unwrap();
        let failures = path(&format!("{engine}.failures"));
        let replay = ["replay", "--sender", "", "--recipient", "doug@x", "--failures-to", &failures, &message];
        let inject = ["inject", "--recipient", "doug@x", &message];
        for subcommand in subcommands.into_iter().chain([&replay[..], &inject]) {
            let command = program(&[subcommand, &["--config", &config]].concat());
            running.push((engine, subcommand.join(" "), Running::start(command, b"")));
        }
        // It has an end of its own: it must not end while a program runs.
        let lock = ["lock", "exec", "--config", &config, "x", "--", "true"];
        running.push((engine, "lock exec".into(), Running::start(program(&lock), b"")));
    }
    for (engine, subcommand, mut running) in running {
        crate::program::wait_for(&format!("{subcommand} on {engine} ends"), PATIENCE, || running.has_ended());
        let (status, (stdout, stderr)) = (running.status(), running.outputs());
        // `inject` asks to try again, and names the connection.
        let injects = subcommand.starts_with("inject");
        assert_eq!(status.code(), Some(if injects { 75 } else { 69 }), "{subcommand} on {engine}: {stdout}{stderr}");
        let named = format!("the database at 127.0.0.1 port {port} has not answered for ");
        let silent =
            injects && stderr.contains("the server has said nothing for ") && stderr.contains(&port.to_string());
        assert!(subcommand == "lock exec" || silent || stderr.contains(&named), "{subcommand} on {engine}: {stderr}");
    }
}
