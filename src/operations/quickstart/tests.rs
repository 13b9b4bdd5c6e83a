use super::*;
use crate::config::{Config, DatabaseRole};
use std::path::Path;

fn answers(database: &str, imap: &str, store: MailboxStore) -> Answers {
    Answers {
        domains: vec!["mail.example.org".parse().unwrap(), "example.net".parse().unwrap()],
        database: database.parse().unwrap(),
        imap: imap.parse().unwrap(),
        store,
        dovecot: None,
        authserv_id: "mx.example.org".parse().unwrap(),
        mail_hosts: vec!["198.51.100.7".parse().unwrap()],
        mail_hosts_are_named: false,
    }
}

fn passwords() -> Passwords {
    let secret = |text: &str| Secret::new(text.to_owned());
    Passwords {
        database: secret("of-deliveries"),
        operator: secret("of-people"),
        owner: secret("of-the-owner"),
        maps: secret("of-postfix"),
        web: secret("of-the-web-ui"),
        notifier: secret("of-the-notifier"),
        notification_key: secret("of-signatures-32-characters-long"),
        imap: secret("of-imap"),
        salt: *b"0123456789abcdef",
    }
}

fn all() -> Vec<(String, Vec<File>)> {
    let mut all = Vec::new();
    for database in [
        "postgresql://db.example.org/mail",
        "mysql://drop@localhost:3307/mail",
        "mysql://192.0.2.3",
        "postgresql://[::1]/m",
        "mariadb://db.example.org/mail",
    ] {
        for store in [MailboxStore::Dovecot, MailboxStore::Dovecot23, MailboxStore::Cyrus] {
            let files = files(&answers(database, "imap.example.org", store), &passwords());
            all.push((format!("{database} {store:?}"), files));
        }
    }
    let with_instance = with_dovecot(MailboxStore::Dovecot, MailUid::One("vmail".into()));
    all.push(("with an instance for deliveries".into(), files(&with_instance, &passwords())));
    all
}

fn with_dovecot(store: MailboxStore, mail_uid: MailUid) -> Answers {
    let dovecot = Some(DovecotHere { mail_uid, config_version: Some("2.4.1".into()), passwords_are_in_pam: false });
    Answers { dovecot, ..answers("mysql://localhost", "localhost", store) }
}

fn text<'a>(files: &'a [File], path: &str) -> &'a str {
    &files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("no {path}")).text
}

#[test]
fn no_value_of_the_examples_is_left_and_none_is_left_out() {
    for (whose, files) in all() {
        for file in &files {
            assert!(file.text.ends_with('\n') || file.path == "notifications.key", "{whose} {}", file.path);
            for example in
                ["axial", "PASSWORD@", "= PASSWORD", "postfix_maps", ":\"role\"", "Put your own", "{{", "}}}}"]
            {
                let found = file.text.lines().find(|line| line.contains(example));
                assert_eq!(found, None, "{whose} {}", file.path);
            }
            // A password is alone in its file, or in the map with which Postfix looks up recipients. It is in the SQL that
            // creates the account only for MySQL, which keeps it out of its logs.
            for password in [
                "of-deliveries",
                "of-people",
                "of-the-owner",
                "of-postfix",
                "of-the-web-ui",
                "of-the-notifier",
                "of-signatures",
                "of-imap",
            ] {
                let is_sql = ["database.sql", "web.sql", "notifications.sql"].contains(&file.path);
                let wanted = file.path.ends_with(".password")
                    || ["notifications.key", "postfix/maildrop-recipients.pgpass"].contains(&file.path)
                    || file.path == "postfix/maildrop-recipients.cf" && !whose.starts_with("postgresql:")
                    || is_sql && whose.starts_with("mysql:")
                    || is_sql && whose.starts_with("with an instance");
                assert!(wanted || !file.text.contains(password), "{whose} {}", file.path);
            }
        }
        let paths: std::collections::BTreeSet<_> = files.iter().map(|file| file.path).collect();
        assert_eq!(paths.len(), files.len(), "{whose}");
        // Each file that the page's commands name exists.
        let page = text(&files, "GOING-LIVE.md");
        let before = page.split("## 1.").next().unwrap();
        for stops in ["Sieve", "Vacation", "Forwarding", "spam"] {
            assert!(before.contains(stops), "{stops} is named before the first step");
        }
        for word in page.split_whitespace().map(|word| word.trim_matches(['`', '<', ':', ';', ',', '.'])) {
            let ours =
                ["postfix/mai", "postfix/mas", "dovecot/", "cyrus/"].iter().any(|folder| word.starts_with(folder));
            assert!(!ours || word.ends_with('/') || files.iter().any(|file| file.path == word), "{whose}: {word}");
        }
    }
}

#[test]
fn the_configuration_can_be_read_and_names_a_role_for_each_use() {
    for (whose, files) in all() {
        let file = text(&files, "config.toml");
        let config = Config::parse(Path::new("config.toml"), file).unwrap_or_else(|error| panic!("{whose}: {error}"));
        assert_eq!(config.sent.authserv_id.as_deref(), Some("mx.example.org"), "{whose}");
        for (role, ending) in [
            (DatabaseRole::Deliveries, ""),
            (DatabaseRole::Timer, ""),
            (DatabaseRole::Operator, "_operator"),
            (DatabaseRole::Owner, "_owner"),
        ] {
            let user = config.clone().acting_as(role).account().unwrap().user.clone();
            assert!(["maildrop", "drop"].iter().any(|first| user == format!("{first}{ending}")), "{whose}: {user}");
        }
    }
}

/// The steps 9 and 10 of the page append these parts; each is one that `sed` removes.
#[test]
fn web_ui_api_and_notifications_are_configured_by_parts_that_can_be_removed() {
    for (whose, files) in all() {
        let least = text(&files, "config.toml");
        let (web, notifications) = (text(&files, "web.toml"), text(&files, "notifications.toml"));
        for both in [format!("{least}{web}{notifications}"), format!("{least}{notifications}{web}")] {
            let config =
                Config::parse(Path::new("config.toml"), &both).unwrap_or_else(|error| panic!("{whose}: {error}"));
            assert!(config.web.has_web_ui() && config.web.api && config.notifications.has_notifier(), "{whose}");
            for (role, ending) in [(DatabaseRole::Web, "_web"), (DatabaseRole::Notifier, "_notify")] {
                let user = config.clone().acting_as(role).account().unwrap().user.clone();
                assert!(["maildrop", "drop"].iter().any(|first| user == format!("{first}{ending}")), "{whose}: {user}");
            }
        }
        let page = text(&files, "GOING-LIVE.md");
        for (part, name) in [(web, "Web UI and API"), (notifications, "Notifications")] {
            let (begin, end) = (format!("# {name}: begin"), format!("# {name}: end"));
            assert_eq!(part.trim().lines().next().zip(part.trim().lines().last()), Some((&*begin, &*end)), "{whose}");
            assert!(page.contains(&format!("sed -i '/^{begin}/,/^{end}/d' /etc")), "{whose}");
        }
        assert_eq!(text(&files, "notifications.key").len(), 32, "{whose}");
    }
}

#[test]
fn each_role_has_its_rights_in_the_words_of_its_engine() {
    let of = |database| files(&answers(database, "imap.example.org", MailboxStore::Cyrus), &passwords());
    let postgres = of("postgresql://drop@db.example.org/mail");
    assert!(text(&postgres, "database.sql").contains("CREATE ROLE drop_operator LOGIN PASSWORD 'SCRAM-SHA-256$4096:"));
    let rights = text(&postgres, "rights.sql");
    for wanted in [
        "GRANT SELECT, INSERT ON attempts, messages, copies TO drop;",
        "GRANT SELECT, INSERT ON attempts, messages, copies TO drop_operator;",
        "GRANT pg_read_all_stats TO drop_operator;",
        "GRANT SELECT ON addresses TO drop_postfix;",
    ] {
        assert!(rights.contains(wanted), "{wanted}");
    }
    let mysql = of("mysql://drop@db.example.org/mail");
    assert!(text(&mysql, "database.sql").contains("CREATE USER 'drop'@'%' IDENTIFIED BY 'of-deliveries' REQUIRE SSL;"));
    assert!(!text(&of("mysql://localhost"), "database.sql").contains("SSL"));
    for file in ["database.sql", "web.sql", "notifications.sql"] {
        let (guard, password) = (text(&mysql, file).find("@@server_uuid"), text(&mysql, file).find("IDENTIFIED BY"));
        assert!(guard.is_some() && guard < password, "a MariaDB gets no password: {file}");
    }
    let mariadb = of("mariadb://drop@db.example.org/mail");
    assert!(
        text(&mariadb, "database.sql").contains("CREATE USER 'drop'@'%' IDENTIFIED VIA mysql_native_password USING '*")
    );
    let rights = text(&mysql, "rights.sql");
    for wanted in [
        "GRANT SELECT, INSERT, UPDATE ON mail.attempts TO 'drop'@'%';",
        "GRANT SELECT ON mail.* TO 'drop_operator'@'%';",
        "GRANT SELECT ON mail.addresses TO 'drop_postfix'@'%';",
    ] {
        assert!(rights.contains(wanted), "{wanted}");
    }
    assert!(!rights.contains("maildrop."), "{rights}");
    for (files, web, notifier) in [
        (
            &postgres,
            "GRANT SELECT, INSERT ON operations TO drop_web;",
            "GRANT SELECT, DELETE ON outbox TO drop_notify;",
        ),
        (
            &mysql,
            "GRANT SELECT, INSERT ON mail.operations TO 'drop_web'@'%';",
            "GRANT SELECT, DELETE ON mail.outbox TO 'drop_notify'@'%';",
        ),
    ] {
        assert!(text(files, "web.sql").contains(web) && text(files, "notifications.sql").contains(notifier));
        for (sql, role) in [("web.sql", "drop_web"), ("notifications.sql", "drop_notify")] {
            let sql = text(files, sql);
            assert!(
                sql.find("CREATE ").unwrap() < sql.find("GRANT ").unwrap()
                    && !sql.contains("maildrop_web")
                    && !sql.contains("maildrop_notifier"),
                "{role}: {sql}"
            );
        }
        assert!(text(files, "web-take-back.sql").contains("drop_web"));
        assert!(text(files, "notifications-take-back.sql").contains("drop_notify"));
    }
}

#[test]
fn postfix_asks_the_database_that_was_named() {
    let map = |database| {
        let files = files(&answers(database, "imap.example.org", MailboxStore::Dovecot), &passwords());
        let lines = text(&files, "postfix/maildrop-recipients.cf").lines().filter(|line| !line.starts_with(['#', 'q']));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(
        map("postgresql://db.example.org:5433/mail"),
        "hosts = postgresql://maildrop_postfix@db.example.org:5433/mail?sslmode=verify-full&\
         sslrootcert=/etc/ssl/certs/ca-certificates.crt&connect_timeout=5&passfile=/etc/postfix/maildrop-recipients.pgpass\ndbname = mail"
    );
    assert_eq!(
        map("mysql://localhost/mail"),
        "hosts = 127.0.0.1\nuser = maildrop_postfix\npassword = of-postfix\ndbname = mail"
    );
    let files = files(&answers("mysql://db.example.org", "imap.example.org", MailboxStore::Dovecot), &passwords());
    let main = text(&files, "postfix/main.cf.maildrop");
    assert!(main.contains("\nvirtual_mailbox_domains = mail.example.org example.net\n"), "{main}");
    assert!(main.contains("\nvirtual_mailbox_maps = proxy:mysql:/etc/postfix/maildrop-recipients.cf\n"), "{main}");
    assert!(!main.contains("virtual_transport"), "{main}");
    assert!(text(&files, "postfix/maildrop-header-checks").contains(".*mx\\.example\\.org/  IGNORE"));
}

/// Every step that changes something must say how to undo it. The proof changes nothing, and needs none.
#[test]
fn each_step_that_changes_something_has_its_way_back() {
    for (whose, files) in all() {
        let steps: Vec<&str> = text(&files, "GOING-LIVE.md")
            .split("\n## ")
            .filter(|step| step.starts_with(|c: char| c.is_numeric()))
            .collect();
        assert_eq!(steps.len(), 10, "{whose}");
        for step in steps {
            assert_eq!(step.contains("\nWay back: "), !step.starts_with("4. Proof"), "{whose}: {step}");
        }
    }
}

#[test]
fn what_the_account_may_do_in_a_mailbox_is_confined_or_the_page_says_that_it_is_not() {
    for (store, acl) in [(MailboxStore::Dovecot, true), (MailboxStore::Dovecot23, false)] {
        let files = files(&answers("mysql://localhost", "localhost", store), &passwords());
        assert_eq!(text(&files, "dovecot/00-maildrop.conf").contains("acl"), acl, "{store:?}");
        assert_eq!(text(&files, "GOING-LIVE.md").contains("it may do all that the owner may"), !acl, "{store:?}");
    }
}

#[test]
fn deliveries_have_a_dovecot_instance_of_their_own_where_all_mailboxes_belong_to_one_uid_and_the_page_says_why_not() {
    let one = || MailUid::One("vmail".into());
    let files_with = |store, mail_uid| files(&with_dovecot(store, mail_uid), &passwords());
    let instance = files_with(MailboxStore::Dovecot, one());
    let text_of_it = text(&instance, "dovecot/dovecot-delivery.conf");
    assert!(text_of_it.contains("\ndovecot_config_version = 2.4.1\n") && text_of_it.contains("    port = 10143\n"));
    assert!(text(&instance, "dovecot/dovecot-delivery.service").contains("\nPartOf=dovecot.service\n"));
    let config = Config::parse(Path::new("config.toml"), text(&instance, "config.toml")).unwrap();
    assert_eq!(config.imap.address.to_string(), "localhost port 10143");
    let page = text(&instance, "GOING-LIVE.md");
    assert!(page.contains("\nsystemctl enable --now dovecot-delivery.service\n") && page.contains("belong to vmail"));
    assert!(page.contains("In privacy: "));

    for (store, mail_uid, says) in [
        (MailboxStore::Dovecot23, one(), "  service_count = 1000\n"),
        (MailboxStore::Dovecot, MailUid::OfEachUser, "each user has a uid of their own"),
        (MailboxStore::Dovecot, MailUid::Unknown, "could not be known here"),
        (MailboxStore::Dovecot23, MailUid::Unknown, "could not be known here"),
    ] {
        let written = files_with(store, mail_uid.clone());
        let page = text(&written, "GOING-LIVE.md");
        assert!(page.contains(says), "{store:?} {mail_uid:?}: {page}");
        assert!(!page.contains("dovecot-delivery"), "{store:?} {mail_uid:?}");
        assert!(!text(&written, "config.toml").contains("10143"), "{store:?} {mail_uid:?}");
        assert!(written.iter().all(|file| !file.path.contains("delivery")), "{store:?} {mail_uid:?}");
    }
    let cyrus = files(&answers("mysql://localhost", "localhost", MailboxStore::Cyrus), &passwords());
    assert!(!text(&cyrus, "GOING-LIVE.md").contains("process for each login"));
}

#[test]
fn the_page_names_the_timers_of_a_site_without_the_service() {
    let timers = "`systemctl enable --now maildrop-command-proof.timer maildrop-command-owed.timer`";
    for (whose, files) in all() {
        assert!(text(&files, "GOING-LIVE.md").contains(timers), "{whose}");
    }
}

/// With `result_success = continue` PAM refuses every login of the account.
#[test]
fn if_the_passwords_are_in_pam_the_userdb_decides_who_exists() {
    for store in [MailboxStore::Dovecot, MailboxStore::Dovecot23] {
        for (passwords_are_in_pam, continues) in [(false, true), (true, false)] {
            let mut answers = with_dovecot(store, MailUid::OfEachUser);
            answers.dovecot.as_mut().unwrap().passwords_are_in_pam = passwords_are_in_pam;
            let files = files(&answers, &passwords());
            let account = text(&files, "dovecot/00-maildrop.conf");
            assert_eq!(account.contains("\n  result_success = continue\n"), continues, "{store:?}");
            assert_eq!(account.contains("which knows no user without a password"), !continues, "{store:?}");
        }
    }
}

/// On Debian's Cyrus `Sent` could not be created.
#[test]
fn on_cyrus_sent_is_below_inbox_and_the_page_says_when_it_is_not() {
    let of = |store, imap| files(&answers("mysql://localhost", imap, store), &passwords());
    let cyrus = of(MailboxStore::Cyrus, "imap.example.org");
    let addresses = text(&cyrus, "addresses.sql");
    assert!(addresses.contains("('scuba@mail.example.org', 'scuba', 'INBOX.Sent'),"), "{addresses}");
    let page = |files: &[File]| text(files, "GOING-LIVE.md").to_owned();
    assert!(page(&cyrus).contains("`altnamespace: yes`") && page(&cyrus).contains("`imaps`"));
    let here = page(&of(MailboxStore::Cyrus, "localhost"));
    assert!(here.contains("`allowplaintext: yes`") && !here.contains("`imaps`"), "{here}");
    let dovecot = of(MailboxStore::Dovecot, "localhost");
    assert!(!text(&dovecot, "addresses.sql").contains("sent") && !page(&dovecot).contains("Cyrus"));
}

/// `doveadm pw -t '{SSHA512}…' -p secret` prints "verified" for it (Dovecot 2.3 and 2.4).
#[test]
fn the_password_is_stored_as_dovecot_reads_it() {
    assert_eq!(
        mailboxes::hash("secret", b"salt"),
        "{SSHA512}E491yrR9AdCoE7rbOPYS3EZgSuZpVE65AD9xko08s6floNesY/Zpe9zMVvLix4S2FiQSJ99RIkNvhHomNO9uL3NhbHQ="
    );
}

#[test]
fn what_cannot_be_is_refused() {
    for wrong in ["", ".", "a..b", "-a.org", "a b", "a/b", "$x", "a;b", "'"] {
        assert!(wrong.parse::<Domain>().is_err(), "{wrong}");
    }
    assert_eq!("Mail.Example.ORG".parse::<Domain>().unwrap().to_string(), "mail.example.org");
    for wrong in ["", "a:b", "a:0", "a:70000", "[a]", "[::1", "[::1]x", "a b", "a\"b", "::1:x"] {
        assert!(wrong.parse::<ServerAddress>().is_err(), "{wrong}");
    }
    for (text, host, port) in
        [("a", "a", None), ("a:1", "a", Some(1)), ("[::1]:2", "::1", Some(2)), ("192.0.2.1", "192.0.2.1", None)]
    {
        assert_eq!(text.parse(), Ok(ServerAddress { host: host.into(), port }), "{text}");
    }
    for wrong in [
        "db.example.org",
        "oracle://db/x",
        "postgresql://",
        "postgresql:///x",
        "postgresql://u:secret@db/x",
        "postgresql://db/X",
        "postgresql://db/x;y",
        "postgresql://a-b@db/x",
        "mysql://db/x?y",
        "mysql://db/abcdefghijklmnopqrstuvw",
    ] {
        assert!(wrong.parse::<DatabaseUrl>().is_err(), "{wrong}");
    }
}
