use super::*;
use crate::base::endpoint::Endpoint;
use crate::base::log::Level;
use crate::database::Tls;
use crate::imap::Encryption;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const EXAMPLE: &str = include_str!("../../config.example.toml");

/// What there has to be.
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
    Config::parse(Path::new("/etc/m.toml"), text, None)
}

fn good(text: &str) -> Config {
    parse(text).unwrap()
}

/// The error that [`LEAST`] gives when a line of it is replaced by another one.
fn with(line: &str, other: &str) -> String {
    assert!(LEAST.contains(line), "{line}");
    parse(&LEAST.replacen(line, other, 1)).map(|_| ()).unwrap_err().to_string()
}

/// The error that [`LEAST`] gives with more after its end, which is line 10, so it begins on line 11.
fn and(more: &str) -> String {
    parse(&format!("{LEAST}{more}")).map(|_| ()).unwrap_err().to_string()
}

// --- defaults, and the example

#[test]
fn what_is_left_out_has_its_default() {
    let config = good(LEAST);
    let tcp = |host: &str, port| Endpoint::Tcp { host: host.into(), port };
    assert_eq!(config.database.address, tcp("db.example.com", 5432));
    assert_eq!(config.database.tls, Tls::Verify { ca_file: None });
    assert_eq!(config.database.password, None);
    assert_eq!(config.imap.address, tcp("imap.example.com", 993));
    assert_eq!(config.imap.encryption, Encryption::Implicit);
    assert!(config.imap.act_for_user);
    assert_eq!(
        config.policy(),
        Policy {
            lock_wait: Duration::from_secs(30),
            settle: Duration::from_mins(7),
            sent_retry_for: Duration::from_secs(86400),
            over_quota_refuses: false,
            look_in_sent: false,
            keep_source_up_to: 0,
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
    assert_eq!(config.database.address, Endpoint::Socket("/run/postgresql".into()));
    let config = good(&LEAST.replace("host = \"imap", "encryption = \"starttls\"\nhost = \"imap"));
    assert_eq!(config.imap.address, Endpoint::Tcp { host: "imap.example.com".into(), port: 143 });
}

#[test]
fn the_example_is_good_and_what_it_calls_a_default_is_one() {
    let plain = good(EXAMPLE);
    // Lines that show a default can be put to work, and change nothing.
    let other = ["credentials_directory", "port", "socket", "password_credential", "ca_file", "login_user"];
    let not_default = [
        "authserv_id",
        "message_size_limit",
        "file",
        "attempts_older_than",
        "sources_older_than",
        "messages_older_than",
    ];
    let with_defaults: String = EXAMPLE
        .lines()
        .map(|line| match commented_key(line) {
            Some(key) if !other.contains(&key) && !not_default.contains(&key) => format!("{}\n", &line[2..]),
            _ => format!("{line}\n"),
        })
        .collect();
    let mut explicit = good(&with_defaults);
    // Left out and said are two things to a rule, though they mean the same.
    let rules = |config: &Config| config.routing.domain.iter().map(Domain::rule).collect::<Vec<_>>();
    assert_eq!(rules(&explicit), rules(&plain));
    explicit.routing.domain.clone_from(&plain.routing.domain);
    // So are they to the wait for a lock, which makes room for a short deadline where it is left out.
    assert_eq!(explicit.policy(), plain.policy());
    explicit.lock.wait = plain.lock.wait;
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
    assert_eq!(
        retention("attempts_older_than = \"5d 7m\""),
        "/etc/m.toml, line 12: retention.attempts_older_than: 5days 7m is too short: it has to be longer than 5days 7m, \
         which is for how long Postfix may bring a message back (delivery.postfix_queue_lifetime) and imap.settle; a message \
         that is forgotten sooner would be delivered again"
    );
    assert!(
        retention("messages_older_than = \"1h\"").contains("line 12: retention.messages_older_than: 1h is too short")
    );
    assert!(retention("messages_older_than = \"9\"").contains("is no duration"));
    let config = good(&format!(
        "{LEAST}[retention]\nattempts_older_than = \"5d 8m\"\nsources_older_than = \"1s\"\nmessages_older_than = \"400d\"\n"
    ));
    assert_eq!(config.retention.sources_older_than, Some(Duration::from_secs(1)));
    // Whoever has a shorter queue may forget sooner.
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
    // serde knows the keys: it lists them where it meets one that is none.
    let sections = ["database", "lock", "imap", "routing", "sent", "record", "delivery", "retention", "log"];
    let mut known = std::collections::BTreeSet::new();
    for (header, prefix) in [(String::new(), String::new()), ("[[routing.domain]]\n".into(), "routing.domain.".into())]
        .into_iter()
        .chain(sections.map(|section| (format!("[{section}]\n"), format!("{section}."))))
    {
        let error = toml::from_str::<File>(&format!("{header}nonsense = 1\n")).map(|_| ()).unwrap_err();
        let (_, list) = error.message().split_once(", expected").unwrap();
        known.extend(list.split('`').skip(1).step_by(2).map(|key| format!("{prefix}{key}")));
    }
    assert!(known.len() > 50, "{known:?}");
    assert_eq!(shown, known);
}

#[test]
fn everything_can_be_said() {
    let config = good(
        r#"
        credentials_directory = "/run/credentials"
        [database]
        engine = "mysql"
        host = "db.example.com"
        port = 3307
        database = "mail"
        user = "m"
        password_credential = "db"
        tls = "verify"
        ca_file = "/etc/ca.pem"
        [lock]
        namespace = "test"
        wait = "1m 30s"
        [imap]
        host = "imap.example.com"
        encryption = "none"
        user = "service"
        password_credential = "imap"
        mechanism = "login"
        login_user = "{user}*service"
        settle = "10m"
        over_quota = "reject"
        [routing]
        recipient_delimiter = "+-"
        unknown = "reject"
        [[routing.domain]]
        name = "Example.com"
        user = "{local}"
        [[routing.domain]]
        name = "example.org"
        sent = "INBOX.Sent"
        [sent]
        enabled = false
        look = "mailbox"
        trust = "authenticated"
        authserv_id = "mx.example.com"
        retry_for = "2h"
        [record]
        raw = true
        raw_limit = "1MiB"
        [delivery]
        deadline = "5m"
        postfix_time_limit = "2000s"
        message_size_limit = 50000000
        [log]
        to = "file"
        file = "/var/log/m.log"
        level = "debug"
        format = "json"
        "#,
    );
    assert_eq!(config.database.engine, Engine::Mysql);
    assert_eq!(config.database.address, Endpoint::Tcp { host: "db.example.com".into(), port: 3307 });
    assert_eq!(config.database.password.as_ref().unwrap().path(), Path::new("/run/credentials/db"));
    assert_eq!(config.imap.password.path(), Path::new("/run/credentials/imap"));
    assert!(!config.imap.act_for_user);
    assert_eq!(config.imap.address, Endpoint::Tcp { host: "imap.example.com".into(), port: 143 });
    assert_eq!(
        config.policy(),
        Policy {
            lock_wait: Duration::from_secs(90),
            settle: Duration::from_secs(600),
            sent_retry_for: Duration::from_secs(7200),
            over_quota_refuses: true,
            look_in_sent: true,
            keep_source_up_to: 1 << 20,
        }
    );
    assert_eq!(config.delivery.message_size_limit, Some(50_000_000));
    assert_eq!(config.warnings(), ["/etc/m.toml: imap.encryption: passwords and mail cross the network in the clear"]);
}

/// Who sets a short deadline, and no wait, has a configuration that works.
#[test]
fn the_wait_for_a_lock_that_nobody_chose_makes_room_for_the_deadline() {
    let wait = |more: &str| good(&format!("{LEAST}\n[lock]\n{more}")).policy().lock_wait;
    assert_eq!(wait("[delivery]\ndeadline = \"60s\""), Duration::from_secs(30));
    assert_eq!(wait("[delivery]\ndeadline = \"20s\""), Duration::from_secs(10));
    assert_eq!(wait("wait = \"15s\"\n[delivery]\ndeadline = \"20s\""), Duration::from_secs(15));
    assert_eq!(wait("wait = \"0s\""), Duration::ZERO);
    assert_eq!(
        and("[lock]\nwait = \"30s\"\n[delivery]\ndeadline = \"20s\"\n"),
        "/etc/m.toml, line 12: lock.wait: 30s is not below delivery.deadline (20s): nothing would be left for the delivery"
    );
}

// --- what is wrong is said in one line: file, line, key, mend

#[test]
fn what_is_missing() {
    let f = "/etc/m.toml";
    for (line, error) in [
        (
            "engine = \"postgresql\"",
            ", line 2: database.engine: it is missing: say \"postgresql\" or \"mysql\" (which MariaDB is, too)",
        ),
        (
            "host = \"db.example.com\"",
            ", line 2: database.host: it is missing: name the server's host, or its unix socket as socket",
        ),
        (
            "database = \"maildrop\"",
            ", line 2: database.database: it is missing: name the database that the tables are in",
        ),
        ("user = \"maildrop\"", ", line 2: database.user: it is missing: name our role in the database"),
        (
            "host = \"imap.example.com\"",
            ", line 7: imap.host: it is missing: name the server's host, or its unix socket as socket",
        ),
        (
            "user = \"service\"",
            ", line 7: imap.user: it is missing: name the service account that appends for everybody",
        ),
        (
            "password_file = \"/etc/imap.password\"",
            ", line 7: imap.password_file: it is missing: name the file that the service account's password is in, or \
             say password_credential",
        ),
    ] {
        assert_eq!(with(line, ""), format!("{f}{error}"));
    }
    let empty = parse("").unwrap_err().to_string();
    assert_eq!(
        empty,
        "/etc/m.toml: database.engine: it is missing: say \"postgresql\" or \"mysql\" (which MariaDB is, too)"
    );
}

#[test]
fn what_is_misspelt() {
    for (more, error) in [
        (
            "[imaps]",
            "11: imaps: there is no such key here: expected one of `credentials_directory`, `database`, `lock`, \
             `imap`, `routing`, `sent`, `record`, `delivery`, `retention`, `log`",
        ),
        ("[lock]\nwaits = \"1s\"", "12: lock.waits: there is no such key here: expected `namespace` or `wait`"),
        (
            "[lock]\nwait = 5",
            "12: lock.wait: invalid type: integer `5`, expected a duration, such as \"30s\", \"5m\" or \"1d\"",
        ),
        (
            "[lock]\nwait = \"5\"",
            "12: lock.wait: \"5\" is no duration, such as \"30s\", \"5m\" or \"1d\": time unit needed, for example 5sec or 5ms",
        ),
        ("[record]\nraw = \"yes\"", "12: record.raw: invalid type: string \"yes\", expected a boolean"),
        (
            "[record]\nraw_limit = \"10M\"",
            "12: record.raw_limit: \"10M\" is no size, such as \"10kB\", \"10MB\" or \"10MiB\"",
        ),
        ("[record]\nraw_limit = -1", "12: record.raw_limit: a size cannot be negative"),
        (
            "[record]\nraw_limit = true",
            "12: record.raw_limit: invalid type: boolean `true`, expected a size: a number of bytes, or \"10kB\", \
             \"10MB\", \"10MiB\"",
        ),
        (
            "[log]\nto = \"stderr\"",
            "12: log.to: unknown variant `stderr`, expected one of `syslog`, `journald`, `file`",
        ),
        (
            "[sent]\ntrust = \"nobody\"",
            "12: sent.trust: unknown variant `nobody`, expected `header` or `authenticated`",
        ),
        ("[lock]\nwait =", "12: string values must be quoted, expected literal string"),
        ("[lock]\n[lock]", "12: duplicate key"),
        (
            "[[routing.domain]]\nname = \"a\"\n[[routing.domain]]\nnames = \"b\"",
            "14: routing.domain.names: there is no such key here: expected one of `name`, `user`, `inbox`, `sent`",
        ),
    ] {
        assert_eq!(and(more), format!("/etc/m.toml, line {error}"), "{more}");
    }
    assert_eq!(
        with("host = \"db.example.com\"", "host = 7"),
        "/etc/m.toml, line 4: database.host: invalid type: integer `7`, expected a string"
    );
    assert_eq!(
        with("user = \"service\"", "port = 70000"),
        "/etc/m.toml, line 9: imap.port: invalid value: integer `70000`, expected u16"
    );
}

#[test]
fn a_password_in_the_file_is_refused_and_not_repeated() {
    let error = with("user = \"service\"", "password = \"hunter2\"");
    assert_eq!(
        error,
        "/etc/m.toml, line 9: imap.password: a password does not belong into this file: write it into a file of its own, \
         that nobody else can read, and name that as password_file"
    );
}

#[test]
fn what_contradicts_itself() {
    let f = "/etc/m.toml, line";
    for (line, other, error) in [
        (
            "host = \"db.example.com\"",
            "host = \"a\"\nsocket = \"/b\"",
            "5: database.socket: there is a host, too: leave out one of them",
        ),
        (
            "host = \"db.example.com\"",
            "socket = \"/b\"\nport = 1",
            "5: database.port: a unix socket has none: leave it out",
        ),
        (
            "host = \"db.example.com\"",
            "socket = \"/b\"\ntls = \"verify\"",
            "5: database.tls: a unix socket is never encrypted: leave it out",
        ),
        (
            "host = \"db.example.com\"",
            "socket = \"b\"",
            "4: database.socket: the path has to begin with /: pipe(8) runs us in Postfix's queue directory",
        ),
        ("host = \"db.example.com\"", "host = \"a\"\nport = 0", "5: database.port: 0 is no port"),
        (
            "host = \"db.example.com\"",
            "host = \"a:5433\"",
            "4: database.host: it is a name or an address, and nothing else: the number goes into port, and an IPv6 \
             address stands without brackets",
        ),
        (
            "host = \"imap.example.com\"",
            "host = \"[::1]:143\"",
            "8: imap.host: it is a name or an address, and nothing else: the number goes into port, and an IPv6 \
             address stands without brackets",
        ),
        (
            "host = \"db.example.com\"",
            "host = \"localhost\"\nca_file = \"/a\"",
            "5: database.ca_file: the connection is not encrypted: say tls = \"verify\", or leave it out",
        ),
        (
            "host = \"imap.example.com\"",
            "socket = \"/b\"\nencryption = \"tls\"",
            "9: imap.encryption: a unix socket is never encrypted: leave it out",
        ),
        (
            "host = \"imap.example.com\"",
            "host = \"::1\"\nca_file = \"/a\"",
            "9: imap.ca_file: the connection is not encrypted: say encryption = \"tls\" or \"starttls\", or leave it out",
        ),
        (
            "user = \"service\"",
            "user = \"s\"\npassword_credential = \"x\"",
            "10: imap.password_credential: there is a password_file, too: leave out one of them",
        ),
        (
            "password_file = \"/etc/imap.password\"",
            "password_file = \"x\"",
            "10: imap.password_file: the path has to begin with /: pipe(8) runs us in Postfix's queue directory",
        ),
        (
            "password_file = \"/etc/imap.password\"",
            "password_credential = \"a/b\"",
            "10: imap.password_credential: it is a name, not a path: for a path, say password_file",
        ),
        (
            "password_file = \"/etc/imap.password\"",
            "password_credential = \"a\"",
            "10: imap.password_credential: under pipe(8) there is no $CREDENTIALS_DIRECTORY: say \
             credentials_directory = \"/run/…\" at the top of this file, or use password_file",
        ),
        (
            "user = \"service\"",
            "user = \"s\"\nact_for_user = true\nmechanism = \"login\"",
            "11: imap.mechanism: LOGIN cannot act for another user: say \"plain\", or act_for_user = false",
        ),
        (
            "user = \"service\"",
            "user = \"s\"\nact_for_user = true\nlogin_user = \"{user}\"",
            "11: imap.login_user: it is used only with act_for_user = false: leave out one of them",
        ),
        (
            "user = \"service\"",
            "user = \"s\"\nlogin_user = \"{local}\"",
            "10: imap.login_user: only {user} can stand in it, as in \"{user}*service\"",
        ),
        (
            "[database]",
            "credentials_directory = \"x\"\n[database]",
            "2: credentials_directory: the path has to begin with /: pipe(8) runs us in Postfix's queue directory",
        ),
    ] {
        assert_eq!(with(line, other), format!("{f} {error}"), "{other}");
    }
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
        // Where the names are in the table `addresses`, a delivery looks at them.
        load(login, "").unwrap();
    }
    let no_sent = format!("{}[sent]\nenabled = false\n", rule("user = \"one\"\ninbox = \"user/one\"\n"));
    load("act_for_user = false", &no_sent).unwrap();
    for login in ["", "login_user = \"{user}*service\"", "mechanism = \"login\"\nlogin_user = \"{user}\""] {
        load(login, &rule("")).unwrap();
    }
}

#[test]
fn what_would_lose_or_double_mail() {
    for (more, error) in [
        (
            "[delivery]\ndeadline = \"0s\"",
            ", line 12: delivery.deadline: a delivery needs time: the default is \"240s\"",
        ),
        (
            "[delivery]\ndeadline = \"1000s\"",
            ", line 12: delivery.deadline: 16m 40s is not below delivery.postfix_time_limit (16m 40s), at which \
             Postfix kills the delivery and bounces the message",
        ),
        (
            "[delivery]\npostfix_time_limit = \"60s\"",
            ", line 11: delivery.deadline: 4m is not below delivery.postfix_time_limit (1m), at which Postfix kills \
             the delivery and bounces the message",
        ),
        (
            "settle = \"240s\"",
            ", line 11: imap.settle: 4m is not above delivery.deadline (4m): until that has passed, the APPEND of an \
             earlier attempt may still land",
        ),
        (
            "settle = \"30h 1s\"",
            ", line 11: imap.settle: 1day 6h 1s is more than a quarter of delivery.postfix_queue_lifetime (5days): of \
             a message whose APPEND was not answered, Postfix may give up before anybody has looked for it, and \
             bounce what was delivered",
        ),
        (
            "[delivery]\npostfix_queue_lifetime = \"27m\"",
            ", line 7: imap.settle: 7m is more than a quarter of delivery.postfix_queue_lifetime (27m): of a message \
             whose APPEND was not answered, Postfix may give up before anybody has looked for it, and bounce what was \
             delivered",
        ),
        (
            "[sent]\nretry_for = \"4d 22h 1s\"",
            ", line 12: sent.retry_for: 4days 22h 1s is not 2h below delivery.postfix_queue_lifetime (5days): Postfix \
             may give up before the Sent copy does, and bounce what the recipient has got",
        ),
        (
            "[delivery]\npostfix_queue_lifetime = \"3h\"\n[sent]\nretry_for = \"2h\"",
            ", line 14: sent.retry_for: 2h is not 1h 30m below delivery.postfix_queue_lifetime (3h): Postfix may give \
             up before the Sent copy does, and bounce what the recipient has got",
        ),
        (
            "[lock]\nwait = \"4m\"",
            ", line 12: lock.wait: 4m is not below delivery.deadline (4m): nothing would be left for the delivery",
        ),
        ("[lock]\nnamespace = \"\"", ", line 12: lock.namespace: it is empty: leave it out for \"maildrop\""),
        (
            "[lock]\nnamespace = \"maildrop exec\"",
            ", line 12: lock.namespace: a namespace that ends in \" exec\" belongs to `lock exec`: give it another end",
        ),
        (
            "[routing]\nrecipient_delimiter = \"plus\"",
            ", line 12: routing.recipient_delimiter: write what Postfix's recipient_delimiter says, such as \"+\" or \
             \"+-\"; \"\" for none",
        ),
        (
            "[[routing.domain]]\nuser = \"x\"",
            ", line 11: routing.domain: name = \"\" is no domain: write \"example.com\"",
        ),
        // No address ends in a dot: everybody there would be unknown.
        (
            "[[routing.domain]]\nname = \"axial.net.\"",
            ", line 11: routing.domain: name = \"axial.net.\" is no domain: write \"example.com\"",
        ),
        (
            "[[routing.domain]]\nname = \"axial.net\"\n[[routing.domain]]\nname = \"Axial.net\"\nuser = \"{local}\"",
            ", line 11: routing.domain: \"Axial.net\" has a rule already, and only the first would count",
        ),
        (
            "[[routing.domain]]\nname = \"x\"\nuser = \"{user}\"",
            ", line 11: routing.domain: user = \"{user}\" of x: only {address}, {local} and {domain} can stand in it",
        ),
        (
            "[[routing.domain]]\nname = \"x\"\nsent = \"INBOX\"",
            ", line 11: routing.domain: inbox and sent of x have to be the names of two mailboxes",
        ),
        (
            "[[routing.domain]]\nname = \"x\"\nsent = \"Inbox\"",
            ", line 11: routing.domain: inbox and sent of x have to be the names of two mailboxes",
        ),
        (
            "[routing]\nunknown = \"bounce\"",
            ", line 12: routing.unknown: unknown variant `bounce`, expected `reject` or `defer`",
        ),
        ("[sent]\nauthserv_id = \"\"", ", line 12: sent.authserv_id: it is empty: leave it out, or name your filter's"),
        ("[log]\nto = \"file\"", ", line 11: log.file: it is missing: name the file to log to"),
        ("[log]\nfile = \"/x\"", ", line 12: log.file: it is used only with to = \"file\": leave out one of them"),
        (
            "[log]\nto = \"file\"\nfile = \"x\"",
            ", line 13: log.file: the path has to begin with /: pipe(8) runs us in Postfix's queue directory",
        ),
    ] {
        assert_eq!(and(more), format!("/etc/m.toml{error}"), "{more}");
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

/// 30 seconds in the kernel of the dead process's host, and two minutes at a server that was killed.
#[test]
fn attempts_that_settle_before_their_append_may_have_landed_are_warned_of() {
    assert!(good(&LEAST.replace("[imap]", "[imap]\nsettle = \"6m 30s\"")).warnings().is_empty());
    let warnings = good(&LEAST.replace("[imap]", "[imap]\nsettle = \"6m 29s\"")).warnings();
    assert!(
        matches!(&warnings[..], [warning] if warning.contains("imap.settle: 6m 29s is less than 2m 30s above")),
        "{warnings:?}"
    );
}

#[test]
fn the_time_to_settle_follows_the_deadline() {
    for (deadline, settle) in [("1s", 181), ("2m", 300), ("600s", 780)] {
        let config = good(&format!("{LEAST}[delivery]\ndeadline = \"{deadline}\"\n"));
        assert_eq!(config.imap.settle, Duration::from_secs(settle));
        assert!(config.warnings().is_empty(), "{:?}", config.warnings());
    }
}

/// What is left out never makes Postfix bounce what the recipient has got.
#[test]
fn a_sent_copy_is_tried_for_a_day_and_for_less_where_postfix_gives_up_sooner() {
    for (lifetime, hours) in [("30d", 24.0), ("5d", 24.0), ("2d", 24.0), ("1d", 12.0), ("4h", 2.0), ("28m", 7.0 / 30.0)]
    {
        let config = good(&format!("{LEAST}[delivery]\npostfix_queue_lifetime = \"{lifetime}\"\n"));
        assert_eq!(config.sent.retry_for, Duration::from_secs_f64(hours * 3600.0), "{lifetime}");
    }
    let longest = good(&format!("{LEAST}[sent]\nretry_for = \"4d 22h\"\n"));
    assert_eq!(longest.sent.retry_for, Duration::from_hours(118));
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
}
