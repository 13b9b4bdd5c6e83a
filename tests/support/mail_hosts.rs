//! A site with two mail hosts before it: a Postfix on each starts the deliveries. The program and its configuration file are
//! where both hosts see them.

use crate::support::database::Engine;
use crate::support::env_if_there;
use crate::support::postfix::{self, OPT, Postfix};
use crate::support::run::Report;
use crate::support::site_fixture::{LISA, Scene};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// What tests vary.
#[derive(Clone, Copy)]
pub struct Options {
    pub engine: Engine,
    /// How many recipients live here.
    pub recipients: usize,
    /// The program, in `$MAILDROP_TEST_OPT/bin`.
    pub command: &'static str,
    /// In place of the shipped `--lock-wait`.
    pub lock_wait: Option<&'static str>,
}

impl Options {
    pub fn new(engine: Engine, recipients: usize) -> Self {
        Self { engine, recipients, command: "maildrop_command", lock_wait: None }
    }
}

/// The site and its hosts. Dropped, everything of it is removed, unless the test failed.
pub struct MailHosts {
    /// `user0@mail.axial.net` and so on.
    pub recipients: Vec<String>,
    /// mx1 and mx2.
    pub hosts: [Postfix; 2],
    pub scene: Scene,
}

impl MailHosts {
    pub fn set_up(options: &Options) -> Self {
        Self::in_scene(Scene::for_mail_hosts(options.engine), options)
    }

    /// The same, with a database elsewhere.
    pub fn set_up_with_database_at(options: &Options, database: (String, u16)) -> Self {
        Self::in_scene(Scene::for_mail_hosts_with_database_at(options.engine, database), options)
    }

    fn in_scene(scene: Scene, options: &Options) -> Self {
        // tests/package/check has it come out of the package.
        let installed = env_if_there("MAILDROP_TEST_COMMAND").filter(|_| options.command == "maildrop_command");
        let command = installed.unwrap_or_else(|| format!("{OPT}/bin/{}", options.command));
        let (mut scene, recipients_map) = prepared(scene, &command);
        let recipients = (0..options.recipients).map(|number| scene.member(&format!("user{number}"))).collect();
        scene.member("lisa");

        let values = postfix::Values {
            run: &scene.run,
            command: &command,
            config: &scene.seen("config.toml"),
            lock_wait: options.lock_wait,
            map_type: if options.engine.is_postgres() { "pgsql" } else { "mysql" },
            recipients_map: &recipients_map,
        };
        let hosts = ["mx1", "mx2"].map(|host| Postfix::start(host, &values));
        Self { recipients, hosts, scene }
    }

    /// Notes what is missing from a mailbox, and what is there more than once; and fails where a [`long_message`] is not
    /// there to its end.
    pub fn compare(&self, report: &mut Report, message_ids: &[String]) {
        let inboxes = self.recipients.iter().map(|recipient| (recipient.as_str(), "INBOX"));
        for (address, mailbox) in inboxes.chain([(LISA, "Sent")]) {
            let there = self.scene.mailbox(address, mailbox);
            report.compare(address, message_ids.iter().cloned(), there.iter().map(|copy| copy.field("Message-ID")));
            let cut = there.iter().find(|copy| !copy.content.ends_with(LAST_LINE.as_bytes()));
            assert!(
                cut.is_none(),
                "{address}: {} bytes of {}",
                cut.unwrap().content.len(),
                cut.unwrap().field("Message-ID")
            );
        }
    }

    /// Puts a copy of the configuration file beside it, with `from` replaced by `to`; its path on the mail hosts.
    pub fn edited_configuration(&self, name: &str, from: &str, to: &str) -> String {
        let text = std::fs::read_to_string(self.scene.path("config.toml")).unwrap();
        assert_eq!(text.matches(from).count(), 1, "{from}: {text}");
        self.scene.file(name, &text.replace(from, to), 0o644)
    }

    /// Makes a directory where the mail hosts see it, which everybody may write to; its path here.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = PathBuf::from(self.scene.path(name));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        path
    }

    /// Puts an executable script where the mail hosts see it; its path there.
    pub fn script(&self, name: &str, text: &str) -> String {
        self.scene.file(name, text, 0o755)
    }
}

/// The end of a [`long_message`].
const LAST_LINE: &str = "the last line\r\n";

/// A message of 300 kB, which a pipe holds a fifth of.
pub fn long_message(sender: &str, message_id: &str) -> String {
    let line = "a line of the body that is as long as most lines of a body are\r\n";
    format!(
        "From: Lisa <{sender}>\r\nTo: everybody\r\nDate: Fri, 20 Nov 2026 10:00:00 +0000\r\n\
         Message-ID: {message_id}\r\nSubject: {message_id}\r\n\r\n{}{LAST_LINE}",
        line.repeat(300_000 / line.len())
    )
}

/// A site where nobody lives yet, for a Postfix on any of the hosts; and the map by which that Postfix asks who lives there. The schema is
/// an administrator's to make; deliveries have a role with what grants.sql gives, and no more.
pub fn a_site(engine: Engine, command: &str) -> (Scene, String) {
    prepared(Scene::for_mail_hosts(engine), command)
}

fn prepared(mut scene: Scene, command: &str) -> (Scene, String) {
    postfix::on("mx1", &[command, "migrate", "--config", &scene.seen("config.toml")]);
    let role = format!("deliver_{}", scene.run);
    scene.database.create_role_of_grants_file(&role, "deliver-secret");
    scene.configure(|settings| {
        settings.role = role;
        settings.database_password = "deliver-secret".into();
    });
    let reader = format!("reader_{}", scene.run);
    scene.database.create_reader_of_addresses(&reader, postfix::READERS_PASSWORD);
    let map = recipients_map(&scene, &reader);
    (scene, map)
}

/// The fragment of `postfix/` with the site's own values in it.
fn recipients_map(scene: &Scene, reader: &str) -> String {
    let database = &scene.database;
    let (host, port) = database.engine.address();
    let fragment = if database.engine.is_postgres() {
        include_str!("../../postfix/pgsql-recipients.cf")
    } else {
        include_str!("../../postfix/mysql-recipients.cf")
    };
    fragment
        .replace("postfix_maps", reader)
        .replace("PASSWORD", postfix::READERS_PASSWORD)
        .replace("/maildrop?", &format!("/{}?", database.name))
        .replace("dbname = maildrop", &format!("dbname = {}", database.name))
        .replace("db.axial.net", &format!("{host}:{port}"))
        .replace("/etc/ssl/certs/ca-certificates.crt", &scene.seen("ca.pem"))
}
