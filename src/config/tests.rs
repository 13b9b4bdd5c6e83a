use super::*;
use crate::base::endpoint::Endpoint;
use crate::base::log::Level;
use crate::database::Tls;
use crate::imap::Encryption;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const EXAMPLE: &str = include_str!("../../config.example.toml");

/// The smallest valid configuration.
const LEAST: &str = r#"
[database]
engine = "postgresql"
host = "db.example.com"
database = "maildrop"
user = "maildrop"
[imap]
host = "imap.example.com"
user = "service"
password_file = "/etc/imap.password"
"#;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("/etc/m.toml"), text)
}

fn good(text: &str) -> Config {
    parse(text).unwrap()
}

/// The error that [`LEAST`] gives with more text at its end. [`LEAST`] ends with line 10, so the text begins on line 11.
fn and(more: &str) -> String {
    parse(&format!("{LEAST}{more}")).map(|_| ()).unwrap_err().to_string()
}

// --- defaults, and the example

#[test]
fn what_is_left_out_has_its_default() {
    let config = good(LEAST);
    let tcp = |host: &str, port| Endpoint::Tcp { host: host.into(), port };
    assert_eq!(config.database.addresses, [tcp("db.example.com", 5432)]);
    assert_eq!(config.database.failover_timeout, Duration::from_secs(60));
    assert_eq!(config.database.tls, Tls::Verify { ca_file: None });
    assert_eq!(config.account().unwrap().password, None);
    assert_eq!(config.imap.address, tcp("imap.example.com", 993));
    assert_eq!(config.imap.encryption, Encryption::Implicit);
    assert!(config.imap.act_for_user);
    assert_eq!(
        config.policy(),
        Policy {
            lock_wait: Duration::from_secs(30),
            append_grace: Duration::from_mins(7),
            sent_retry_for: Duration::from_secs(86400),
            queue_lifetime: Duration::from_hours(120),
            slow_mailbox_timeout: Duration::from_secs(5),
            author_patience: None,
            opening_patience: None,
            over_quota_refuses: false,
            look_in_sent: false,
            keep_source_up_to: 0,
            headers: HeaderFields::All,
        }
    );
    assert_eq!(config.log, Log::default());
    assert_eq!((config.log.to, config.log.level), (LogTo::Syslog, Level::Info));
}

#[test]
fn a_server_on_this_machine_is_not_encrypted_unless_asked_for() {
    for host in ["localhost", "127.0.0.1", "::1"] {
        let config = good(&LEAST.replace("db.example.com", host).replace("imap.example.com", host));
        assert_eq!((&config.database.tls, config.imap.encryption), (&Tls::Off, Encryption::None));
        assert_eq!(config.imap.address, Endpoint::Tcp { host: host.into(), port: 143 });
        assert!(config.warnings().is_empty());
    }
    let sockets = LEAST
        .replace("host = \"db.example.com\"", "socket = \"/run/postgresql\"")
        .replace("host = \"imap.example.com\"", "socket = \"/run/imap\"");
    let config = good(&sockets);
    assert_eq!((&config.database.tls, config.imap.encryption), (&Tls::Off, Encryption::None));
    assert_eq!(config.database.addresses, [Endpoint::Socket("/run/postgresql".into())]);
    let config = good(&LEAST.replace("host = \"imap", "encryption = \"starttls\"\nhost = \"imap"));
    assert_eq!(config.imap.address, Endpoint::Tcp { host: "imap.example.com".into(), port: 143 });
}

#[test]
fn several_servers_are_tried_in_their_order_and_encrypted_unless_all_are_here() {
    let with = |hosts: &str| good(&LEAST.replace("host = \"db.example.com\"", &format!("hosts = {hosts}")));
    let config = with(r#"["db1", "db2:5433", "/run/postgresql"]"#);
    let printed: Vec<String> = config.database.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(printed, ["db1 port 5432", "db2 port 5433", "/run/postgresql"]);
    assert_eq!(config.database.tls, Tls::Verify { ca_file: None });
    let servers = config.database_servers().unwrap();
    assert!(servers.iter().all(|server| server.limits.connect == Duration::from_secs(3) && server.timelines.is_some()));
    assert_eq!(with(r#"["localhost", "/run/postgresql"]"#).database.tls, Tls::Off);
    // Settings for several servers do not apply to a single one.
    let one = good(LEAST).database_servers().unwrap();
    assert!(matches!(&one[..], [server] if server.limits == Limits::default() && server.timelines.is_none()));
}

/// A short deadline without an explicit wait is a valid configuration.
#[test]
fn the_wait_for_a_server_makes_room_for_the_deadline() {
    let wait = |more: &str| good(&format!("{LEAST}{more}")).database.failover_timeout;
    assert_eq!(wait("[delivery]\ndeadline = \"2m\""), Duration::from_secs(60));
    assert_eq!(wait("[delivery]\ndeadline = \"20s\""), Duration::from_secs(10));
}

#[test]
fn the_example_is_good_and_what_it_calls_a_default_is_one() {
    let plain = good(EXAMPLE);
    // Lines that show a default can be uncommented, and change nothing.
    let other = ["hosts", "port", "socket", "ca_file", "login_user"];
    let not_default = [
        "authserv_id",
        "lmtp",
        "http",
        "lmtp_clients",
        "client_ca_file",
        "certificate_file",
        "key_file",
        "message_size_limit",
        "file",
        "attempts_older_than",
        "sources_older_than",
        "messages_older_than",
        "events_older_than",
        "operations_older_than",
        "prune_every",
        "operator",
        "timer",
        "notifier",
        "web",
        "owner",
        "secret_key_file",
        "allow_networks",
        "listen",
        "api_listen",
        "api_public_url",
        "public_url",
        "trusted_proxies",
        "trusted_user_header",
        "trusted_user_roles",
        "trusted_user_role",
    ];
    let with_defaults: String = EXAMPLE
        .lines()
        .map(|line| match commented_key(line) {
            Some(key) if !other.contains(&key) && !not_default.contains(&key) => format!("{}\n", &line[2..]),
            _ => format!("{line}\n"),
        })
        .collect();
    let mut explicit = good(&with_defaults);
    // The defaults of these two depend on other keys.
    assert_eq!(explicit.policy(), plain.policy());
    (explicit.lock.wait, explicit.sent.retry_for) = (plain.lock.wait, plain.sent.retry_for);
    assert_eq!(explicit, plain);
}

/// `key` of a line `# key = value`.
fn commented_key(line: &str) -> Option<&str> {
    let (key, _) = line.strip_prefix("# ")?.split_once(" = ")?;
    key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_').then_some(key)
}

#[test]
fn what_may_still_come_back_has_to_be_remembered() {
    let retention = |text: &str| and(&format!("[retention]\n{text}\n"));
    assert!(
        retention("messages_older_than = \"1h\"").contains("line 12: retention.messages_older_than: 1h is too short")
    );
    assert!(retention("messages_older_than = \"9\"").contains("is no duration"));
    assert!(retention("events_older_than = \"3d\"").contains("retention.events_older_than: 3days is too short"));
    let config = good(&format!(
        "{LEAST}[retention]\nattempts_older_than = \"5d 8m\"\nsources_older_than = \"1s\"\nmessages_older_than = \"400d\"\n"
    ));
    assert_eq!(config.retention.sources_older_than, Some(Duration::from_secs(1)));
    // With a shorter queue lifetime, messages may be deleted sooner.
    let shorter = "[delivery]\npostfix_queue_lifetime = \"1d\"\n[retention]\nmessages_older_than = \"2d\"\n";
    assert_eq!(good(&format!("{LEAST}{shorter}")).retention.messages_older_than, Some(Duration::from_secs(172_800)));
}

#[test]
fn the_example_shows_every_key() {
    let mut shown = std::collections::BTreeSet::new();
    let mut section = String::new();
    for line in EXAMPLE.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_matches(['[', ']']).to_owned();
            shown.insert(section.clone());
        } else if let Some(key) = commented_key(line).or_else(|| line.split_once(" = ").map(|(key, _)| key)) {
            shown.insert(format!("{section}.{key}").trim_start_matches('.').to_owned());
        }
    }
    // serde lists the known keys when it finds an unknown one.
    let sections = [
        "database",
        "database.roles",
        "lock",
        "imap",
        "routing",
        "sent",
        "record",
        "delivery",
        "retention",
        "service",
        "notifications",
        "web",
        "log",
    ];
    let mut known = std::collections::BTreeSet::new();
    for (header, prefix) in [(String::new(), String::new()), ("[[routing.domain]]\n".into(), "routing.domain.".into())]
        .into_iter()
        .chain(sections.map(|section| (format!("[{section}]\n"), format!("{section}."))))
    {
        let error = toml::from_str::<ConfigFile>(&format!("{header}nonsense = 1\n")).map(|_| ()).unwrap_err();
        let (_, list) = error.message().split_once(", expected").unwrap();
        known.extend(list.split('`').skip(1).step_by(2).map(|key| format!("{prefix}{key}")));
    }
    assert!(known.len() > 50, "{known:?}");
    assert_eq!(shown, known);
}

#[test]
fn everything_can_be_reported() {
    let config = good(
        r#"
        [database]
        engine = "mysql"
        host = "db.example.com"
        port = 3307
        database = "mail"
        user = "m"
        password_file = "/run/credentials/db"
        roles.operator = { user = "o", password_file = "/run/credentials/operator" }
        roles.owner = { user = "owner" }
        tls = "verify"
        ca_file = "/etc/ca.pem"
        failover_timeout = "0s"
        durability = "replicated"
        [lock]
        namespace = "test"
        wait = "1m 30s"
        [imap]
        host = "imap.example.com"
        encryption = "none"
        user = "service"
        password_file = "/run/credentials/imap"
        mechanism = "login"
        login_user = "{user}*service"
        append_grace = "10m"
        over_quota_action = "reject"
        [routing]
        recipient_delimiter = "+-"
        unknown_recipient = "reject"
        [[routing.domain]]
        name = "Example.com"
        user = "{local}"
        [[routing.domain]]
        name = "example.org"
        sent = "INBOX.Sent"
        [sent]
        enabled = false
        dedup_by = "mailbox"
        author_check = "authenticated"
        authserv_id = "mx.example.com"
        retry_for = "2h"
        [record]
        keep_source = true
        keep_source_max = "1MiB"
        keep_headers = "few"
        [delivery]
        deadline = "5m"
        postfix_time_limit = "2000s"
        postfix_queue_lifetime = "4d"
        message_size_limit = 50000000
        [log]
        to = "file"
        file = "/var/log/m.log"
        level = "debug"
        format = "json"
        "#,
    );
    assert_eq!(config.database.engine, Engine::Mysql);
    assert_eq!(config.database.addresses, [Endpoint::Tcp { host: "db.example.com".into(), port: 3307 }]);
    assert_eq!(config.database.failover_timeout, Duration::ZERO);
    assert_eq!(config.database.durability, Durability::Replicated);
    let account = |role| config.clone().acting_as(role).account().cloned();
    let (deliveries, operator) = (config.account().unwrap(), account(DatabaseRole::Operator).unwrap());
    assert_eq!(deliveries.password.as_ref().unwrap().path(), Path::new("/run/credentials/db"));
    assert_eq!(
        (operator.user.as_str(), operator.password.unwrap().path()),
        ("o", Path::new("/run/credentials/operator"))
    );
    assert_eq!(account(DatabaseRole::Owner).unwrap(), Account { user: "owner".into(), password: None });
    let none = account(DatabaseRole::Timer).unwrap_err().to_string();
    assert!(none.contains("database.roles.timer: it is missing: say timer = {"), "no role uses another's: {none}");
    assert_eq!(config.imap.password.path(), Path::new("/run/credentials/imap"));
    assert!(!config.imap.act_for_user);
    assert_eq!(config.imap.address, Endpoint::Tcp { host: "imap.example.com".into(), port: 143 });
    assert_eq!(
        config.policy(),
        Policy {
            lock_wait: Duration::from_secs(90),
            append_grace: Duration::from_secs(600),
            sent_retry_for: Duration::from_secs(7200),
            queue_lifetime: Duration::from_hours(96),
            slow_mailbox_timeout: Duration::from_secs(5),
            author_patience: None,
            opening_patience: None,
            over_quota_refuses: true,
            look_in_sent: true,
            keep_source_up_to: 1 << 20,
            headers: HeaderFields::Few,
        }
    );
    assert_eq!(config.delivery.message_size_limit, Some(50_000_000));
    assert_eq!(config.warnings(), ["/etc/m.toml: imap.encryption: passwords and mail cross the network in the clear"]);
}

/// A short deadline without an explicit wait is a valid configuration.
#[test]
fn the_wait_for_a_lock_that_nobody_chose_makes_room_for_the_deadline() {
    let wait = |more: &str| good(&format!("{LEAST}\n[lock]\n{more}")).policy().lock_wait;
    assert_eq!(wait("[delivery]\ndeadline = \"60s\""), Duration::from_secs(30));
    assert_eq!(wait("[delivery]\ndeadline = \"20s\""), Duration::from_secs(10));
    assert_eq!(wait("wait = \"15s\"\n[delivery]\ndeadline = \"20s\""), Duration::from_secs(15));
    assert_eq!(wait("wait = \"0s\""), Duration::ZERO);
}

// --- errors are one line: file, line, key, fix

#[test]
fn a_mistake_is_reported_by_file_line_key_and_fix() {
    let mut cases = 0;
    let (mut taken_out, mut put_in) = (None, Vec::new());
    for line in include_str!("mistakes.txt").lines() {
        match line.split_at_checked(2) {
            Some(("- ", line)) => taken_out = Some(line),
            Some(("+ ", line)) => put_in.push(line),
            Some(("= ", error)) => {
                let (taken_out, put_in) = (taken_out.take(), std::mem::take(&mut put_in).join("\n"));
                let text = match taken_out {
                    Some(line) => LEAST.replacen(&format!("\n{line}\n"), &format!("\n{put_in}\n"), 1),
                    None => format!("{LEAST}{put_in}"),
                };
                assert_eq!(parse(&text).unwrap_err().to_string(), format!("/etc/m.toml, line {error}"), "{put_in}");
                cases += 1;
            }
            _ => {}
        }
    }
    assert!(cases > 60, "{cases}");
    let of_nothing = parse("").unwrap_err().to_string();
    assert!(of_nothing.starts_with("/etc/m.toml: database.engine: it is missing"), "{of_nothing}");
}

#[test]
fn a_login_that_names_nobody_is_for_mailboxes_that_are_named_after_their_users() {
    let load = |login: &str, more: &str| {
        let text = LEAST.replacen("user = \"service\"", &format!("user = \"service\"\n{login}"), 1);
        parse(&format!("{text}{more}"))
    };
    let rule = |lines: &str| format!("[[routing.domain]]\nname = \"one.example\"\n{lines}");
    let named = rule("user = \"one\"\ninbox = \"user/one\"\nsent = \"user/one/Sent\"\n");
    for login in ["act_for_user = false", "mechanism = \"login\"", "login_user = \"service\""] {
        for wrong in [
            rule(""),
            rule("user = \"one\"\ninbox = \"user/one\"\n"),
            rule("user = \"one\"\ninbox = \"INBOX\"\nsent = \"user/one/Sent\"\n"),
            rule("user = \"{local}\"\ninbox = \"user/{local}\"\nsent = \"user/{local}/Sent\"\n"),
            format!("{named}{}", rule("").replace("one", "two")),
        ] {
            let error = load(login, &wrong).unwrap_err().to_string();
            assert!(error.contains(" imap.login_user: with n"), "{login} {wrong} {error}");
            assert!(error.contains("say login_user = \"{user}*service\""), "{error}");
        }
        load(login, &named).unwrap();
        // If the names are in the table `addresses`, a delivery checks them.
        load(login, "").unwrap();
    }
    let no_sent = format!("{}[sent]\nenabled = false\n", rule("user = \"one\"\ninbox = \"user/one\"\n"));
    load("act_for_user = false", &no_sent).unwrap();
    for login in ["", "login_user = \"{user}*service\"", "mechanism = \"login\"\nlogin_user = \"{user}\""] {
        load(login, &rule("")).unwrap();
    }
}

// --- files

#[test]
fn a_file_that_cannot_be_read() {
    let error = Config::load(Path::new("/nowhere/m.toml")).unwrap_err().to_string();
    assert_eq!(error, "/nowhere/m.toml: cannot read it: No such file or directory (os error 2)");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latin-1.toml");
    fs::write(&path, b"# \xe4").unwrap();
    assert!(Config::load(&path).unwrap_err().to_string().ends_with("cannot read it: it is not UTF-8"));
}

#[test]
fn a_password_is_the_one_line_of_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("password");
    let config = good(&LEAST.replace("/etc/imap.password", path.to_str().unwrap()));
    let read = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        config.imap_settings().map(|settings| settings.password.expose().to_owned()).map_err(|error| error.to_string())
    };
    for content in [&b"s3cret pass"[..], b"s3cret pass\n", b"s3cret pass\r\n"] {
        assert_eq!(read(content).as_deref(), Ok("s3cret pass"));
    }
    assert_eq!(read(b" spaces stay \n").as_deref(), Ok(" spaces stay "));
    let prefix = format!("/etc/m.toml: imap.password_file: {}: ", folder.path().join("password").display());
    for (content, problem) in [
        (&b"\n"[..], "the file is empty: write the password into it, on one line"),
        (b"a\nb\n", "there is more than one line in it, or a control character: one line, the password"),
        (b"\xff", "the password is not UTF-8"),
        (&[b'x'; 5000], "this is no password: it is longer than 4096 bytes"),
    ] {
        assert_eq!(read(content), Err(format!("{prefix}{problem}")));
    }
    fs::remove_file(folder.path().join("password")).unwrap();
    let error = config.imap_settings().unwrap_err().to_string();
    assert_eq!(error, format!("{prefix}No such file or directory (os error 2)"));
    assert!(!format!("{:?}", Secret::new("s3cret".into())).contains("s3cret"));
}

/// 30 seconds in the kernel of the dead process's host. The rest depends on the server: `check` queries it.
#[test]
fn attempts_that_settle_before_their_append_may_have_arrived_are_warned_of() {
    assert!(good(&LEAST.replace("[imap]", "[imap]\nappend_grace = \"4m 30s\"")).warnings().is_empty());
    let warnings = good(&LEAST.replace("[imap]", "[imap]\nappend_grace = \"4m 29s\"")).warnings();
    assert!(
        matches!(&warnings[..], [warning] if warning.contains("imap.append_grace: 4m 29s is less than 30s above")),
        "{warnings:?}"
    );
}

#[test]
fn the_time_to_settle_follows_the_deadline() {
    for (deadline, append_grace) in [("1s", 181), ("2m", 300), ("600s", 780)] {
        let config = good(&format!("{LEAST}[delivery]\ndeadline = \"{deadline}\"\n"));
        assert_eq!(config.imap.append_grace, Duration::from_secs(append_grace));
        assert!(config.warnings().is_empty(), "{:?}", config.warnings());
    }
}

/// The default never makes Postfix bounce a delivered message.
#[test]
fn a_sent_copy_is_tried_for_a_day_and_for_less_where_postfix_gives_up_sooner() {
    for (lifetime, hours) in [("30d", 24.0), ("5d", 24.0), ("2d", 24.0), ("1d", 12.0), ("4h", 2.0), ("28m", 7.0 / 30.0)]
    {
        let config = good(&format!("{LEAST}[delivery]\npostfix_queue_lifetime = \"{lifetime}\"\n"));
        assert_eq!(config.policy().sent_retry_for, Duration::from_secs_f64(hours * 3600.0), "{lifetime}");
    }
    let longest = good(&format!("{LEAST}[sent]\nretry_for = \"4d 22h\"\n"));
    assert_eq!(longest.policy().sent_retry_for, Duration::from_hours(118));
}

#[test]
fn files_that_others_can_read_or_write_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    let file = folder.path().join("m.toml");
    fs::write(&password, "x").unwrap();
    fs::write(&file, LEAST.replace("/etc/imap.password", password.to_str().unwrap())).unwrap();
    let warnings = |file_mode: u32, password_mode: u32| {
        fs::set_permissions(&file, Permissions::from_mode(file_mode)).unwrap();
        fs::set_permissions(&password, Permissions::from_mode(password_mode)).unwrap();
        Config::load(&file).unwrap().warnings()
    };
    assert!(warnings(0o644, 0o600).is_empty());
    assert!(warnings(0o640, 0o440).is_empty());
    let problem = "others may read it, or more than its owner write it: chmod 640, or 600";
    assert_eq!(warnings(0o644, 0o644), [format!("{}: mode 644: {problem}", password.display())]);
    assert_eq!(warnings(0o644, 0o660), [format!("{}: mode 660: {problem}", password.display())]);
    assert_eq!(warnings(0o664, 0o600), [format!("{}: mode 664: others may write it: chmod go-w", file.display())]);
    // The private key of the service.
    fs::set_permissions(&password, Permissions::from_mode(0o604)).unwrap();
    let key = password.display();
    let service = format!("{LEAST}[service]\ncertificate_file = \"{key}\"\nkey_file = \"{key}\"\n");
    assert_eq!(good(&service).warnings(), [format!("{key}: mode 604: {problem}")]);
    // The key that signs notifications, and the password of another role.
    for named in [
        format!("{LEAST}[notifications]\nsecret_key_file = \"{key}\"\n"),
        format!("{LEAST}[database.roles]\noperator = {{ user = \"o\", password_file = \"{key}\" }}\n"),
    ] {
        fs::set_permissions(&password, Permissions::from_mode(0o604)).unwrap();
        assert_eq!(good(&named).warnings(), [format!("{key}: mode 604: {problem}")]);
        fs::set_permissions(&password, Permissions::from_mode(0o440)).unwrap();
        assert!(good(&named).warnings().is_empty());
    }
}

#[test]
fn a_size_limit_that_does_not_fit_into_a_worker_is_warned_of() {
    let warnings = |more: &str| good(&format!("{LEAST}{more}")).warnings();
    let before = warnings("");
    let new = |more: &str| warnings(more).into_iter().filter(|one| !before.contains(one)).collect::<Vec<_>>();
    let limit = |bytes: u64, raw: bool| {
        new(&format!(
            "[delivery]\nmessage_size_limit = {bytes}\n[record]\nkeep_source = {raw}\n[service]\nworker_memory = {}\n",
            600_000_000 + (256 << 20)
        ))
    };
    assert_eq!(new("[record]\nkeep_source = true\n"), [""; 0], "as shipped");
    assert_eq!(limit(300_000_000, false), [""; 0]);
    let warned = limit(300_000_001, false);
    assert!(
        warned.len() == 1 && warned[0].contains("service.worker_memory") && warned[0].contains("(300000001 bytes)")
    );
    assert_eq!(limit(300_000_000, true).len(), 1);
}
