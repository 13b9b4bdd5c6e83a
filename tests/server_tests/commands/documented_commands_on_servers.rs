//! The commands and statements in the pages for people, run on real servers as they stand there, by the configuration that
//! ships (config.example.toml) and the roles that grants.sql and grants-operator.sql make. What a reader puts in the place of
//! an example's names is in [`Desk::here`].

use crate::support::database::{ADMINISTRATOR, Engine};
use crate::support::pages::{Line, Treatment, command_lines, commands_in_the_text, ours, spans, statements, treatment};
use crate::support::postgres::TestDatabase;
use crate::support::program::{feed, program};
use crate::support::replay::replay;
use crate::support::site_fixture::Scene;
use clap::error::ErrorKind;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

on_each_engine!(the_commands_do_what_they_are_shown_for, the_statements_are_understood);

/// A site set up by config.example.toml.
struct Desk {
    scene: Scene,
}

impl Desk {
    fn new(engine: Engine) -> Self {
        let mut desk = Self { scene: Scene::bare(engine) };
        let run = desk.scene.run.clone();
        let (deliveries, people) = (format!("d{run}"), format!("o{run}"));
        desk.configuration(&deliveries, &people);
        desk.run("maildrop_command migrate");
        for name in ["scuba", "doug", "lisa"] {
            desk.scene.member(name);
        }
        desk.scene.database.create_role_of_grants_file(&deliveries, "deliver-secret");
        desk.scene.database.create_operator_who_delivers(&people, "operator-secret");
        let embedded = desk.scene.path("one-machine");
        let recipient = ["--embedded", &embedded, "--sender", "lisa@gmail.com", "--recipient", "scuba@mail.axial.net"];
        let delivered = feed(program(&recipient), b"Subject: the first of an embedded site\n\nhello\n");
        assert_eq!(delivered.exit, Some(0), "{delivered:?}");
        desk
    }

    /// config.example.toml with the site's own values.
    fn configuration(&self, deliveries: &str, people: &str) {
        let scene = &self.scene;
        let (administrator, administrators) = ADMINISTRATOR;
        for (name, password) in
            [("database", "deliver-secret"), ("operator", "operator-secret"), ("owner", administrators)]
        {
            scene.file(&format!("{name}.password"), password, 0o600);
        }
        let engine = if scene.database.engine.is_postgres() { "postgresql" } else { "mysql" };
        let ((database_host, database_port), (imap_host, imap_port)) = (&scene.settings.database, &scene.settings.imap);
        let values = [
            ("# listen = \"127.0.0.1:8025\"", "listen = \"127.0.0.1:8025\"".into()),
            ("engine = \"postgresql\"", format!("engine = \"{engine}\"")),
            ("host = \"db.example.com\"\n# port = 5432", format!("host = \"{database_host}\"\nport = {database_port}")),
            (
                "database = \"maildrop\"\nuser = \"maildrop\"",
                format!("database = \"{}\"\nuser = \"{deliveries}\"", scene.database.name),
            ),
            ("/etc/maildrop_command/database.password", scene.path("database.password")),
            ("# operator = { user = \"maildrop_operator\"", format!("operator = {{ user = \"{people}\"")),
            ("/etc/maildrop_command/operator.password", scene.path("operator.password")),
            ("# owner = { user = \"maildrop_owner\"", format!("owner = {{ user = \"{administrator}\"")),
            ("/etc/maildrop_command/owner.password", scene.path("owner.password")),
            // The test servers have no certificate for their addresses.
            ("# tls = \"verify\"", "tls = \"off\"".into()),
            ("# namespace = \"maildrop\"", format!("namespace = \"{}\"", scene.run)),
            ("# wait = \"30s\"", "wait = \"0s\"".into()),
            ("host = \"imap.example.com\"\n# port = 993", format!("host = \"{imap_host}\"\nport = {imap_port}")),
            ("# encryption = \"tls\"", "encryption = \"none\"".into()),
            (
                "user = \"maildrop\"\npassword_file = \"/etc/maildrop_command/imap",
                "user = \"service\"\npassword_file = \"/etc/maildrop_command/imap".into(),
            ),
            ("/etc/maildrop_command/imap.password", scene.path("imap.password")),
            ("author_check = \"authenticated\"", "author_check = \"header\"".into()),
            ("# keep_source = false", "keep_source = true".into()),
            ("# attempts_older_than", "attempts_older_than".into()),
            ("# messages_older_than", "messages_older_than".into()),
            ("# to = \"syslog\"", "to = \"file\"".into()),
            ("# file = \"/var/log/maildrop_command.log\"", format!("file = \"{}\"", scene.path("log"))),
        ];
        let mut text = include_str!("../../../config.example.toml").to_owned();
        for (shipped, own) in values {
            assert_eq!(text.matches(shipped).count(), 1, "config.example.toml has {shipped:?} once");
            text = text.replace(shipped, &own);
        }
        std::fs::write(scene.path("config.toml"), text).unwrap();
    }

    /// A line of a page with the site's own names in it.
    fn here(&self, text: &str) -> String {
        let scene = &self.scene;
        [
            ("/etc/maildrop_command/config.toml", scene.path("config.toml")),
            ("target/release/maildrop_command", "maildrop_command".into()),
            ("/usr/local/bin/report", "./report".into()),
            ("/var/lib/prometheus/node-exporter", scene.folder.path().display().to_string()),
            ("--mailbox scuba", format!("--mailbox {}", scene.user("scuba"))),
            ("USER/INBOX", format!("{}/INBOX", scene.user("scuba"))),
            ("<MESSAGE-ID>", scene.message_id("delivered")),
            ("QUEUE-ID", "4bXyz".into()),
            ("--embedded DIR", format!("--embedded {}", scene.path("one-machine"))),
            ("/backup/doug", scene.path("backup")),
        ]
        .into_iter()
        .fold(text.to_owned(), |text, (shown, own)| text.replace(shown, &own))
    }

    /// Runs a line in the site's folder, as `sh` does.
    fn run(&self, line: &str) -> Output {
        let path = format!("{}:/usr/bin:/bin", self.scene.path("bin"));
        let mut shell = Command::new("/bin/sh");
        shell.args(["-ec", &self.here(line)]).env_clear().env("PATH", path).current_dir(self.scene.folder.path());
        self.script("bin/maildrop_command", &self.wrapper());
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{line}: {}", text_of(&output));
        output
    }

    /// What stands for the installed program: without --config it takes the site's instead of the one in /etc.
    fn wrapper(&self) -> String {
        let folder = self.scene.folder.path().display();
        format!(
            "case \" $* \" in *' --config '* | *' --embedded '* | ' completions '* | ' man '*) exec {program} \"$@\" ;; esac\n\
             case $1 in lock | notify | subscription | token | web) subcommand=\"$1 $2\" && shift 2 ;; *) subcommand=$1 && shift ;; esac\n\
             exec {program} $subcommand --config {folder}/config.toml \"$@\"\n",
            program = env!("CARGO_BIN_EXE_maildrop_command")
        )
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.scene.path(name);
        std::fs::create_dir_all(std::path::Path::new(&path).parent().unwrap()).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn text_of(output: &Output) -> String {
    format!("{}: {}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Whether the text only names a command, and leaves out what it is to work on.
fn is_only_named(text: &str) -> bool {
    let whole = |command: &Vec<String>| match maildrop_command::program::maildrop_command::definition()
        .try_get_matches_from(command)
    {
        Ok(_) => command.last().is_some_and(|word| word != "replay"),
        Err(error) => !matches!(
            error.kind(),
            ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        ),
    };
    !ours(text).iter().all(whole)
}

fn the_commands_do_what_they_are_shown_for(engine: Engine) {
    let desk = Desk::new(engine);
    let scene = &desk.scene;
    // What they are to work on: a message that was delivered, one that was deferred for doug, one in Postfix's queue, one in a
    // backup, and one that a replay has failed to deliver.
    let delivered = scene.message("delivered");
    for recipient in ["scuba", "doug"] {
        scene.deliver_with(recipient, &["--queue-id", "4bXyz"], &delivered).delivered();
    }
    scene.deliver("scuba", scene.message("deferred")).delivered();
    let holder = scene.hold_in(&scene.run, &scene.message_id("deferred"));
    scene.deliver_with("doug", &[], scene.message("deferred")).deferred("4.3.0 ");
    let failed = "replay-failures-20261121T083000Z-4711.jsonl";
    let mut replay_command = program(&["replay", "--config", &scene.path("config.toml")]);
    replay_command.args(["--failures-to", &scene.path(failed), "--recipient", "lisa@mail.axial.net", "-"]);
    replay(replay_command, scene.message("deferred").as_bytes()).ended(75, [0, 0, 1, 0]);
    drop(holder);
    std::fs::create_dir(scene.path("backup")).unwrap();
    std::fs::write(scene.path("backup/1.eml"), scene.message("in a backup")).unwrap();
    let queued = scene.message("queued");
    std::fs::write(
        scene.path("queue-file"),
        format!(
            "*** ENVELOPE RECORDS deferred/4bXyz ***\nsender: lisa@mail.axial.net\nrecipient: doug@mail.axial.net\n\
             *** MESSAGE CONTENTS deferred/4bXyz ***\n{queued}*** HEADER EXTRACTED deferred/4bXyz ***\n\
             *** MESSAGE FILE END deferred/4bXyz ***\n"
        ),
    )
    .unwrap();
    desk.script("bin/postcat", &format!("[ \"$*\" = '-q 4bXyz' ] && cat {}\n", scene.path("queue-file")));
    // Only root may, and this machine need not have that user.
    desk.script(
        "bin/setpriv",
        "while [ $# -gt 0 ]; do case $1 in --re?id) shift 2 ;; --*) shift ;; *) exec \"$@\" ;; esac; done\n",
    );
    desk.script("report", "echo reported\n");
    desk.script("import", "echo imported \"$@\"\n");

    let mut lines = command_lines();
    lines.extend(commands_in_the_text());
    lines.retain(|line| treatment(&line.text) == Some(Treatment::RunOnServers) && !is_only_named(&line.text));
    let mut run = BTreeSet::new();
    for Line { text, .. } in lines {
        if run.insert(text.clone()) {
            println!("{text}\n{}", text_of(&desk.run(&text)));
        }
    }
    assert!(run.len() > 25, "only {run:?}");

    // And they did what the pages say of them.
    assert_eq!(scene.inbox("lisa").len(), 1);
    let there: BTreeSet<String> = scene.inbox("doug").iter().map(|copy| copy.field("Message-ID")).collect();
    let wanted = ["delivered", "deferred", "queued", "in a backup"].map(|id| scene.message_id(id));
    assert_eq!(there, BTreeSet::from(wanted));
    assert_eq!(scene.inbox("doug").len(), 4);
}

fn the_statements_are_understood(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let role = format!("d{}", scene.run);
    scene.database.create_role_of_grants_file(&role, "deliver-secret");
    let (mut run, mut done) = (0, BTreeSet::new());
    for Line { place, text } in all_statements() {
        // Two pages may have the same one.
        if !done.insert(text.trim_end_matches(';').to_owned()) {
            continue;
        }
        let only_on_18 = text.contains("casefold(");
        let only_on_postgresql = text.starts_with("REINDEX ") || text.starts_with("SET ");
        if only_on_18 || (only_on_postgresql && !engine.is_postgres()) {
            continue;
        }
        println!("{place}: {text}");
        for statement in text.replace("ROLE maildrop ", &format!("ROLE {role} ")).split_terminator(';') {
            match statement.trim().starts_with("SELECT ") {
                true => scene.database.ask(statement),
                false => scene.database.execute(statement),
            }
            run += 1;
        }
    }
    assert!(run >= 6, "only {run} of them were found");
    assert_eq!(scene.database.texts("SELECT imap_user FROM addresses"), ["scuba"]);
}

/// PostgreSQL has `casefold` since 18.
#[test]
fn the_statements_for_postgresql_18_are_understood() {
    let database = TestDatabase::migrated("POSTGRES18");
    let mut administrator = database.admin();
    let folding: Vec<Line> =
        all_statements().into_iter().filter(|statement| statement.text.contains("casefold(")).collect();
    assert_eq!(folding.len(), 2);
    for Line { text, .. } in folding {
        administrator.batch_execute(&text).unwrap();
    }
    let add = |address: &str| format!("INSERT INTO addresses (address, imap_user) VALUES ('{address}', 'x')");
    administrator.batch_execute(&add("gross@mail.axial.net")).unwrap();
    administrator.batch_execute(&add("groß@mail.axial.net")).unwrap_err();
}

/// Those of the examples, and those in the text.
fn all_statements() -> Vec<Line> {
    let begins = |line: &Line| {
        let words = ["SELECT ", "DELETE FROM ", "INSERT INTO ", "REINDEX INDEX ", "SET "];
        words.iter().any(|word| line.text.starts_with(word))
    };
    statements().into_iter().chain(spans().into_iter().filter(begins)).collect()
}
