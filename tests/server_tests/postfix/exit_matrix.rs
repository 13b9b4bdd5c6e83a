//! Each end that a run of the program can have, through a real Postfix: what becomes of the message. The test prints
//! the table that it holds Postfix and the program to.
//!
//! No way to end bounces a message that could be delivered: whatever is deferred is delivered once, when the trouble is
//! over. At the end of the table stand programs that are not ours, and what no care of the program's can help: of these,
//! too, the shipped entry's filter bounces only what the program says of a message. The last rows are without it, to show
//! what Postfix alone makes of them.

use crate::support::database::{Connection, Engine};
use crate::support::mail_hosts::{MailHosts, Options};
use crate::support::postfix::{OPT, Postfix, tail, wait_until_delivered};
use crate::support::program::{program, wait_until};
use crate::support::site_fixture::LISA;
use crate::support::{host_and_port, server};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use Status::{Bounced, Deferred, Sent};

/// What Postfix does with the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Sent,
    Deferred,
    Bounced,
}

/// One way to end.
struct Row {
    way: String,
    /// Whether it is our program that runs.
    ours: bool,
    /// What Postfix runs, before the options of the shipped entry.
    command: String,
    config: Option<String>,
    /// More lines of the entry: `-o` settings.
    settings: String,
    /// Without the entry's filter of delivery status codes.
    unfiltered: bool,
    /// More options of the program.
    more: String,
    /// Postfix's own time limit.
    limit: Option<&'static str>,
    /// Of the message, in bytes.
    size: usize,
    /// Somebody holds the message's lock.
    held: bool,
    /// In the recipient's place stands one whose mailbox is full, or nobody.
    recipient: Recipient,
    status: Status,
    dsn: &'static str,
    /// What the log says in parentheses.
    reason: &'static str,
    /// Its first try leaves an attempt that never ended.
    stays_open: bool,
}

#[derive(PartialEq)]
enum Recipient {
    LivesHere,
    IsFull,
    Unknown,
}

const PROGRAM: &str = "/opt/maildrop/bin/maildrop_command";
const WITH_FAULTS: &str = "/opt/maildrop/bin/maildrop_command-with-faults";

impl Row {
    fn new(way: impl Into<String>, command: impl Into<String>, status: Status, dsn: &'static str) -> Self {
        Self {
            way: way.into(),
            ours: true,
            command: command.into(),
            config: None,
            settings: String::new(),
            unfiltered: false,
            more: String::new(),
            limit: None,
            size: 0,
            held: false,
            recipient: Recipient::LivesHere,
            status,
            dsn,
            reason: "",
            stays_open: false,
        }
    }

    fn ours(way: &str, status: Status, dsn: &'static str, reason: &'static str) -> Self {
        Self { reason, ..Self::new(way, PROGRAM, status, dsn) }
    }

    /// The program with a fault built in.
    fn fault(way: &str, fault: &str, dsn: &'static str, reason: &'static str) -> Self {
        let settings = format!("    -o {{ export_environment = TZ MAIL_CONFIG LANG MAILDROP_TEST_FAULT={fault} }}\n");
        Self { command: WITH_FAULTS.into(), settings, ..Self::ours(way, Deferred, dsn, reason) }
    }

    /// Another program: a line of shell.
    fn shell(script: &str, status: Status, dsn: &'static str) -> Self {
        Self { ours: false, ..Self::new(script, format!("/bin/sh -c {{{script}}}"), status, dsn) }
    }

    /// What happens before the program takes the place of the shell.
    fn after(self, site: &MailHosts, name: &str, script: &str) -> Self {
        let wrapper = site.script(name, &format!("#!/bin/bash\n{script}\nexec \"$@\"\n"));
        Self { command: format!("{wrapper} {}", self.command), ..self }
    }

    fn with(self, change: impl FnOnce(&mut Self)) -> Self {
        let mut row = self;
        change(&mut row);
        row
    }
}

/// Everything after the command's name, as shipped.
const OPTIONS: &str = include_str!("../../../postfix/master.cf.maildrop");

fn rows(site: &MailHosts) -> Vec<Row> {
    let mut rows = vec![
        // The verdicts.
        Row::ours("delivered", Sent, "2.0.0", "(2.0.0 INBOX appended (uid 1), Sent appended"),
        Row::ours("delivered, 3 MB", Sent, "2.0.0", "(2.0.0 INBOX appended").with(|row| row.size = 3_000_000),
        Row::ours("no such recipient: 67", Bounced, "5.1.1", "no such recipient here").with(|row| {
            row.config = Some(site.edited_configuration(
                "strict.toml",
                "[log]",
                "[routing]\nunknown_recipient = \"reject\"\n[log]",
            ));
            row.recipient = Recipient::Unknown;
        }),
        Row::ours(
            "no such recipient, where nobody is refused",
            Deferred,
            "4.1.1",
            "deferred by routing.unknown_recipient",
        )
        .with(|row| row.recipient = Recipient::Unknown),
        Row::ours("larger than the operator wants: 65", Bounced, "5.3.4", "the message is larger than").with(|row| {
            row.config = Some(site.edited_configuration(
                "small.toml",
                "[log]",
                "[delivery]\nmessage_size_limit = \"10kB\"\n[log]",
            ));
            row.size = 20_000;
        }),
        Row::ours("a full mailbox, which the operator refuses: 77", Bounced, "5.2.2", "mailbox is full").with(|row| {
            row.config =
                Some(site.edited_configuration("refuses.toml", "[imap]", "[imap]\nover_quota_action = \"reject\""));
            row.recipient = Recipient::IsFull;
        }),
        Row::ours("a full mailbox", Deferred, "4.2.2", "the mailbox is full")
            .with(|row| row.recipient = Recipient::IsFull),
        Row::ours("a dry run by mistake", Deferred, "4.0.0", "dry run, nothing done").with(|row| {
            row.more = "--dry-run".into();
        }),
        // What is around it.
        Row::ours("the lock is held elsewhere", Deferred, "4.3.0", "another delivery of this message holds its lock")
            .with(|row| {
                row.held = true;
                row.more = "--lock-wait=1s".into();
            }),
        Row::ours("the database ends the connection", Deferred, "4.4.2", "the connection to the database was lost")
            .with(|row| {
                row.held = true;
                row.stays_open = true;
                row.more = UNTIL_ALL_ARE_THERE.into();
                row.way = THE_CONNECTION_ENDS.into();
            }),
        Row::ours("the database cannot be reached", Deferred, "4.4.1", "the database cannot be reached").with(|row| {
            row.config =
                Some(site.edited_configuration("nobase.toml", &port_of(Engine::Postgres17.address()), "port = 1\n"));
        }),
        Row::ours("a wrong password for the database", Deferred, "4.3.5", "the database is not set up").with(|row| {
            let wrong = site.scene.file("wrong-password", "wrong", 0o644);
            let right = site.scene.seen("database.password");
            // In a line of its own, that of deliveries.
            let [right, wrong] = [right, wrong].map(|file| format!("\npassword_file = \"{file}\""));
            row.config = Some(site.edited_configuration("nologin.toml", &right, &wrong));
        }),
        Row::ours("the mailbox store cannot be reached", Deferred, "4.4.1", "the mailbox store cannot be reached")
            .with(|row| {
                row.config = Some(site.edited_configuration(
                    "noimap.toml",
                    &port_of(host_and_port(server("DOVECOT"), 143)),
                    "port = 2\n",
                ));
            }),
        Row::ours("a wrong password for the mailbox store", Deferred, "4.3.5", "the mailbox store is not set up").with(
            |row| {
                let wrong = site.scene.file("wrong-password", "wrong", 0o644);
                let right = site.scene.seen("imap.password");
                row.config = Some(site.edited_configuration("nomail.toml", &right, &wrong));
            },
        ),
        // How it is set up.
        Row::ours("an unreadable configuration", Deferred, "4.3.5", "config.toml").with(|row| {
            row.config = Some(site.scene.file("secret-config.toml", "", 0));
        }),
        Row::ours("an unreadable configuration, 3 MB unread", Deferred, "4.3.5", "config.toml").with(|row| {
            row.config = Some(site.scene.file("secret-config.toml", "", 0));
            row.size = 3_000_000;
        }),
        Row::ours("no configuration there", Deferred, "4.3.5", "No such file").with(|row| {
            row.config = Some("/nonexistent.toml".into());
        }),
        Row::ours("a configuration that is nonsense", Deferred, "4.3.5", "nonsense.toml").with(|row| {
            row.config = Some(site.scene.file("nonsense.toml", "\0[[[", 0o644));
        }),
        Row::ours("a configuration of another release", Deferred, "4.3.5", "log.not_yet: there is no such key here")
            .with(|row| {
                row.config = Some(site.edited_configuration("newer.toml", "[log]", "[log]\nnot_yet = 1"));
            }),
        Row::ours("a log that cannot be written", Deferred, "4.3.5", "the log: ").with(|row| {
            let log = site.scene.seen("log");
            row.config = Some(site.edited_configuration("nolog.toml", &log, "/nonexistent/log"));
        }),
        Row::ours("an option that it does not know", Deferred, "4.3.5", "bad arguments: unexpected argument")
            .with(|row| row.more = "--no-such-option".into()),
        Row::ours("an option twice", Deferred, "4.3.5", "bad arguments").with(|row| row.more = "--sender=x".into()),
        Row::ours("a stray --help", Deferred, "4.3.5", "bad arguments").with(|row| row.more = "--help".into()),
        Row::ours("a stray --version", Deferred, "4.3.5", "bad arguments").with(|row| row.more = "--version".into()),
        Row::ours("an extra word", Deferred, "4.3.5", "bad arguments").with(|row| row.more = "check".into()),
        Row::ours("a deadline that imap.append_grace is not made for", Deferred, "4.3.5", "--deadline is above")
            .with(|row| row.more = "--deadline=900s".into()),
        Row::ours("no options at all", Deferred, "4.3.5", "neither --config FILE nor --embedded DIR")
            .with(|row| row.command = format!("/usr/bin/env -i {PROGRAM}"))
            .with(|row| row.more = NO_OPTIONS.into()),
        // What Postfix starts.
        Row::ours("the program is not there", Deferred, "4.3.0", "temporary failure")
            .with(|row| row.command = "/nonexistent/maildrop_command".into()),
        Row::ours("the program may not be run", Deferred, "4.3.0", "temporary failure")
            .with(|row| row.command = site.scene.file("no-program", "#!/bin/sh\n", 0o644)),
        // What it has to do with.
        // By then Postfix has closed it, as it would have by dying: nothing is appended.
        Row::ours("a pipe that is full", Deferred, "4.3.0", "xxxx").after(site, "full", FILL_THE_PIPE),
        Row::ours("a pipe that is full, then deferred", Deferred, "4.3.0", "xxxx")
            .with(|row| row.more = "--dry-run".into())
            .after(site, "full-deferred", FILL_THE_PIPE),
        Row::ours("a pipe that is closed", Deferred, "4.3.0", "xxxx").after(site, "closed", CLOSE_THE_PIPE),
        Row::ours("a pipe that is closed, then deferred", Deferred, "4.3.0", "xxxx")
            .with(|row| row.more = "--dry-run".into())
            .after(site, "closed-deferred", CLOSE_THE_PIPE),
        Row::ours("no stdout and no stderr", Sent, "2.0.0", "delivered via").after(site, "mute", "exec >&- 2>&-"),
        Row::ours("no stdin", Deferred, "4.3.0", "message").after(site, "deaf", "exec <&-"),
        Row::ours("no thread available", Deferred, "4.3.0", "out of threads").after(site, "threads", "ulimit -u 1"),
        // The rest of it is read by a thread, while the servers are connected to: the thread's stack, the message or a library
        // may be what finds no memory. So it is unknown whether it says "out of threads", "memory", or aborts.
        Row::ours("no memory for the message, 9 MB", Deferred, "4.3.0", "").with(|row| row.size = 9_000_000).after(
            site,
            "memory",
            "ulimit -v 36000",
        ),
        Row::ours("a log that may not grow", Sent, "2.0.0", "delivered via").after(site, "growth", "ulimit -f 0"),
        // Time.
        Row::ours("its deadline, waiting for the lock", Deferred, "4.", "").with(|row| {
            row.held = true;
            row.more = "--deadline=3s".into();
        }),
        Row::fault("its deadline, hanging", "hang@before", "4.4.5", "the delivery took too long")
            .with(|row| row.more = "--deadline=2s".into()),
        // These have to come that far before it, among a hundred others.
        Row::fault("its deadline, with a thread that hangs", "hang@imap", "4.4.5", "the delivery took too long")
            .with(|row| row.more = "--deadline=45s".into()),
        Row::fault("its deadline, hanging after all is done", "hang@after", "4.4.5", "the delivery took too long")
            .with(|row| row.more = "--deadline=55s".into()),
        // Bugs.
        Row::fault("a panic", "panic@before", "4.3.0", "an internal error"),
        Row::fault("a panic after all is done", "panic@after", "4.3.0", "an internal error"),
        Row::fault("a panic in a thread", "panic@imap", "4.3.0", "an internal error"),
        Row::fault("a panic in the sender's thread", "panic@imap-sender", "4.3.0", "an internal error"),
        Row::fault("a panic in a panic", "panic-twice@before", "4.3.0", "Command died with signal 6"),
        Row::fault("an abort", "abort@before", "4.3.0", "Command died with signal 6"),
        Row::fault("an abort after all is done", "abort@after", "4.3.0", "Command died with signal 6"),
        Row::fault("an abort in a thread", "abort@imap", "4.3.0", "Command died with signal 6"),
        Row::fault("a stack that overflows", "overflow@before", "4.3.0", "Command died with signal 6"),
        Row::fault("an allocation that fails", "memory@before", "4.3.0", "Command died with signal 6"),
    ];
    // Twice: Rust's handler of SIGSEGV and SIGBUS, which tells a stack that overflows, lets the first that was merely sent
    // go by. The real ones come again.
    for signal in ["HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "SEGV", "ALRM", "TERM", "XCPU"] {
        let script = format!(
            "(for i in $(seq 1000); do [ -e {OPT}/{}/go ] && break; sleep 0.2; done; \
             kill -{signal} $$; sleep 1; kill -{signal} $$) </dev/null >/dev/null 2>&1 &",
            site.scene.run
        );
        let row = Row::ours(&format!("SIG{signal}"), Deferred, "4.3.0", "Command died with signal");
        let row = row.with(|row| {
            row.held = true;
            row.stays_open = true;
            row.more = UNTIL_ALL_ARE_THERE.into();
        });
        rows.push(row.after(site, signal, &script));
    }
    rows.extend(not_ours(site));
    rows
}

/// Found again by this.
const THE_CONNECTION_ENDS: &str = "the database ends the connection";

/// For a row that waits for the lock until every other such row does.
const UNTIL_ALL_ARE_THERE: &str = "--lock-wait=200s";

/// A pipe that is full says something else than one that is closed. In a shell of its own, since what a shell ignores the
/// program that takes its place would ignore.
macro_rules! wait_until_closed {
    () => {
        "(trap '' PIPE; until { LC_ALL=C printf x; } 2>&1 >&3 | grep -q 'Broken pipe'; do sleep 0.1; done) 3>&1"
    };
}

/// For a row whose command gets no options.
const NO_OPTIONS: &str = "none";

/// 200 KB into a pipe that nobody reads yet and that does not block: what has no room is lost. Then as below.
const FILL_THE_PIPE: &str = concat!("head -c 200000 /dev/zero | tr '\\0' x 2>/dev/null", "\n", wait_until_closed!());

/// Postfix reads 4096 bytes, once it has written the message, and closes the pipe. On a busy machine it may do so only after
/// a delivery that began before would be at its end: that one would rightly go through.
const CLOSE_THE_PIPE: &str = concat!("head -c 5000 /dev/zero | tr '\\0' x", "\n", wait_until_closed!());

fn not_ours(site: &MailHosts) -> Vec<Row> {
    let mut rows = Vec::new();
    for (code, status, dsn) in [
        (0, Sent, "2.0.0"),
        (1, Deferred, "4.3.0"),
        (2, Deferred, "4.3.0"),
        (64, Deferred, "4.3.0"),
        (65, Bounced, "5.6.0"),
        (66, Deferred, "4.3.0"),
        (67, Bounced, "5.1.1"),
        (68, Deferred, "4.1.2"),
        (69, Deferred, "4.3.0"),
        (70, Deferred, "4.3.0"),
        (71, Deferred, "4.3.0"),
        (72, Deferred, "4.3.0"),
        (73, Deferred, "4.2.0"),
        (74, Deferred, "4.3.0"),
        (75, Deferred, "4.3.0"),
        (76, Deferred, "4.5.0"),
        (77, Bounced, "5.7.0"),
        (78, Deferred, "4.3.5"),
        (101, Deferred, "4.3.0"),
        (126, Deferred, "4.3.0"),
        (127, Deferred, "4.3.0"),
        (137, Deferred, "4.3.0"),
    ] {
        rows.push(Row::shell(&format!("cat >/dev/null; exit {code}"), status, dsn));
    }
    rows.extend([
        Row::shell("exit 0", Sent, "2.0.0").with(|row| row.way.push_str(" (the message unread)")),
        Row::shell("echo 4.2.0 later; exit 1", Deferred, "4.2.0"),
        Row::shell("echo 4.2.0: later; exit 1", Deferred, "4.3.0"),
        Row::shell("echo trouble; echo 4.2.0 later; exit 1", Deferred, "4.3.0"),
        Row::shell("echo 5.1.1 nobody; exit 75", Bounced, "5.1.1"),
        Row::shell("echo 5.3.4 too big; exit 65", Bounced, "5.3.4"),
        Row::shell("echo 5.3.0 whatever; exit 65", Deferred, "4.3.0"),
        Row::shell("echo 2.0.0 fine; exit 75", Deferred, "4.0.0"),
        Row::shell("echo 5.1.1 nobody; kill -9 $$$$", Deferred, "4.3.0"),
        Row::shell("head -c 200000 /dev/zero; exit 75", Deferred, "4.3.0"),
        Row::shell("exec sleep 60", Deferred, "4.3.0").with(|row| {
            row.way.push_str(" (Postfix's limit: 2 s)");
            row.limit = Some("2s");
        }),
        Row::shell("echo 4.3.0 working; exec sleep 60", Deferred, "4.3.0").with(|row| {
            row.way.push_str(" (the same)");
            row.limit = Some("2s");
        }),
        // What no care of the program's can help.
        Row::new("an empty file in the program's place", site.script("empty", ""), Sent, "2.0.0")
            .with(|row| row.ours = false),
        Row::new("the program, whose libraries cannot be opened", PROGRAM, Deferred, "4.3.0")
            .with(|row| {
                row.ours = false;
                row.reason = "error while loading shared libraries";
            })
            .after(site, "loader", "ulimit -n 3"),
        Row::new("the program, stopped until Postfix's limit", PROGRAM, Deferred, "4.3.0")
            .with(|row| {
                row.ours = false;
                row.held = true;
                row.limit = Some("5s");
                row.reason = "Command time limit exceeded";
            })
            .after(site, "stopped", "(sleep 2; kill -STOP $$) </dev/null >/dev/null 2>&1 &"),
        // The same, without the filter.
        Row::shell("exit 78", Bounced, "5.3.5").with(unfiltered),
        Row::shell("exit 101", Bounced, "5.3.0").with(unfiltered),
        Row::shell("exit 127", Bounced, "5.3.0").with(unfiltered),
        Row::shell("exec sleep 60", Bounced, "5.3.0").with(unfiltered).with(|row| row.limit = Some("2s")),
    ]);
    rows
}

fn unfiltered(row: &mut Row) {
    row.way.push_str(" (without the filter)");
    row.unfiltered = true;
}

/// The line of the configuration file.
fn port_of((_, port): (String, u16)) -> String {
    format!("port = {port}\n")
}

#[test]
fn no_way_to_end_bounces_what_could_be_delivered() {
    let mut site = MailHosts::set_up(&Options::new(Engine::Postgres17, 0));
    let rows = rows(&site);
    let mut database = Connection::open(Engine::Postgres17, Some(&site.scene.database.name));
    set_up(&mut site, &rows);

    // Somebody has the lock of some messages.
    let mut holder = Connection::open(Engine::Postgres17, Some(&site.scene.database.name));
    for (number, _) in rows.iter().enumerate().filter(|(_, row)| row.held) {
        let json = program(&["lock", "key", "--json", &message_id(&site, number)]).output().unwrap().stdout;
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        holder.execute(&format!("SELECT pg_advisory_lock({})", json["postgresql"].as_str().unwrap()));
    }

    let ids = inject(&site, &rows);
    // Those that are to be killed have come as far as the lock, and say so in the ledger.
    let waits = |number: usize| {
        format!("FROM pg_stat_activity WHERE wait_event = 'advisory' AND application_name LIKE '%{}%'", ids[number])
    };
    for (number, row) in rows.iter().enumerate().filter(|(_, row)| row.stays_open) {
        wait_until(&format!("{}: it waits for the lock", row.way), || {
            !database.texts(&format!("SELECT 'it' {}", waits(number))).is_empty()
        });
    }
    site.scene.file("go", "", 0o644);
    let cut = rows.iter().position(|row| row.way == THE_CONNECTION_ENDS).unwrap();
    let ended = database.texts(&format!("SELECT pg_terminate_backend(pid)::text {}", waits(cut)));
    assert_eq!(ended, ["true"]);

    let mut tries = BTreeMap::new();
    wait_until("each has had its try", || {
        tries = first_tries(&site.hosts[0].log());
        (0..rows.len()).all(|number| tries.contains_key(&address(number)))
    });
    let mut table = String::from("how it ends | what Postfix does | what the log says\n--- | --- | ---\n");
    let mut wrong = String::new();
    for (number, row) in rows.iter().enumerate() {
        let (status, dsn, reason) = &tries[&address(number)];
        let whose = if row.ours { "" } else { "not ours: " };
        let _ = writeln!(table, "{whose}{} | {dsn} {status:?} | {}", row.way, reason.replace('|', "/"));
        if *status != row.status || !dsn.starts_with(row.dsn) || !reason.contains(row.reason) {
            let _ = writeln!(
                wrong,
                "{}: {status:?} {dsn} {reason:?}, not {:?} {} {:?}",
                row.way, row.status, row.dsn, row.reason
            );
        }
        // 65, 67 and 77 say so themselves; anything else that bounces is a message lost to its recipient.
        let by_a_rule = ["5.1.1", "5.2.2", "5.3.4"].contains(&dsn.as_str());
        if row.ours && *status == Bounced && !by_a_rule {
            let _ = writeln!(wrong, "{}: BOUNCED", row.way);
        }
    }
    println!("{table}");
    assert!(wrong.is_empty(), "{wrong}\n{}", tail(&site.hosts[0].log(), 100));

    drop(holder);
    what_was_deferred_arrives_once(&mut site, &rows, &ids);
}

/// Gives Postfix the message of each row, some at a time; the queue ids.
fn inject(site: &MailHosts, rows: &[Row]) -> Vec<String> {
    let messages = rows.iter().enumerate().map(|(number, row)| (number, message(site, number, row)));
    let (postfix, messages): (&Postfix, Vec<(usize, Vec<u8>)>) = (&site.hosts[0], messages.collect());
    let give = |messages: &[(usize, Vec<u8>)]| -> Vec<String> {
        let mut smtp = postfix.smtp();
        let give = |(number, message): &(usize, Vec<u8>)| {
            smtp.give(LISA, &[address(*number)], message);
            smtp.end()
        };
        messages.iter().map(give).collect()
    };
    std::thread::scope(|scope| {
        let given: Vec<_> = messages.chunks(rows.len() / 6 + 1).map(|some| scope.spawn(move || give(some))).collect();
        given.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// The trouble is over: Postfix tries again by the entry as it is shipped.
fn what_was_deferred_arrives_once(site: &mut MailHosts, rows: &[Row], ids: &[String]) {
    let waiting: Vec<usize> = (0..rows.len()).filter(|&number| rows[number].status == Deferred).collect();
    for (number, _) in rows.iter().enumerate().filter(|(_, row)| row.recipient == Recipient::IsFull) {
        site.scene.database.execute(&format!(
            "UPDATE addresses SET imap_user = '{}' WHERE address = '{}'",
            site.scene.user(&address(number)),
            address(number)
        ));
    }
    for &number in waiting.iter().filter(|&&number| rows[number].recipient == Recipient::Unknown) {
        let user = site.scene.user(&address(number));
        site.scene.database.add_address(&address(number), &user);
    }
    let postfix = &site.hosts[0];
    postfix.run("postconf", &["-e", &format!("transport_maps=inline:{{{LISA}=discard:}}")]);
    postfix.run("postfix", &["reload"]);
    postfix.flush();
    let mut flushed = Instant::now();
    // Those that were killed may have sent something. Not before that is settled does the next try go on.
    let cut_short = rows.iter().filter(|row| row.stays_open).count();
    wait_until("those that were cut short are deferred again", || {
        // (What the queue manager hears while it reloads its settings may be forgotten.)
        if flushed.elapsed() > Duration::from_secs(20) {
            postfix.flush();
            flushed = Instant::now();
        }
        postfix.log().matches("4.3.0, status=deferred (an earlier delivery of this message was cut short").count()
            >= cut_short
    });
    site.scene
        .database
        .execute("UPDATE attempts SET started_at = started_at - interval '10 minutes' WHERE ended_at IS NULL");
    let left = waiting.iter().map(|&number| ids[number].clone()).collect();
    wait_until_delivered(&[(&site.hosts[0], left)], Duration::from_secs(300));

    let sent = site.scene.mailbox(LISA, "Sent");
    let mut delivered = 0;
    for (number, row) in rows.iter().enumerate().filter(|(_, row)| row.ours || row.status == Deferred) {
        let inbox = site.scene.mailbox(&address(number), "INBOX").len();
        let expected = usize::from(row.status != Bounced);
        assert_eq!(inbox, expected, "{}", row.way);
        let copies = sent.iter().filter(|copy| copy.field("Message-ID") == message_id(site, number)).count();
        assert_eq!(copies, expected, "{}, Sent", row.way);
        delivered += expected as i64;
    }
    let database = &mut site.scene.database;
    assert_eq!(database.count("SELECT count(*) FROM copies WHERE state = 'delivered'"), 2 * delivered);
    assert_eq!(database.count("SELECT count(*) FROM messages"), delivered);
}

/// A transport for each row, that tries once until it is asked to try again.
fn set_up(site: &mut MailHosts, rows: &[Row]) {
    let (mut master, mut transports, mut limits) = (String::new(), String::new(), Vec::new());
    for (number, row) in rows.iter().enumerate() {
        let user = match row.recipient {
            Recipient::IsFull => site.scene.user(&format!("full{number}")),
            _ => site.scene.user(&address(number)),
        };
        if row.recipient != Recipient::Unknown {
            site.scene.database.add_address(&address(number), &user);
        }
        master.push_str(&entry(site, number, row));
        let _ = writeln!(transports, "{} row{number}:", address(number));
        limits.push(format!("row{number}_destination_recipient_limit=1"));
        limits.extend(row.limit.map(|limit| format!("row{number}_time_limit={limit}")));
    }
    let _ = writeln!(transports, "{LISA} discard:");
    let transports = site.scene.file("transports", &transports, 0o644);
    let postfix: &Postfix = &site.hosts[0];
    let settings = [
        format!("transport_maps=texthash:{transports}"),
        "virtual_mailbox_maps=static:1".into(),
        "minimal_backoff_time=1h".into(),
        "maximal_backoff_time=1h".into(),
        "queue_run_delay=1h".into(),
    ];
    let settings: Vec<&str> = settings.iter().chain(&limits).map(String::as_str).collect();
    postfix.run("postconf", &[&["-e"], settings.as_slice()].concat());
    postfix.append_to_master_cf(&master);
}

/// The entry as it is shipped, with what this row has different.
fn entry(site: &MailHosts, number: usize, row: &Row) -> String {
    // A setting in braces may go over several lines.
    let (before, rest) = OPTIONS.split_once("    -o {").unwrap();
    let (filter, after) = rest.split_once("}\n    flags").unwrap();
    assert!(filter.contains("pipe_delivery_status_filter") && !filter.contains("-o"), "{filter}");
    let filter = if row.unfiltered { String::new() } else { format!("    -o {{{filter}}}\n") };
    let options = format!("{before}{filter}    flags{after}");
    let lines = options.lines().filter(|line| !line.starts_with('#') && !line.contains("soft_bounce"));
    let mut entry = String::new();
    for line in lines {
        let replaced = line
            .replace("maildrop  unix", &format!("row{number} unix"))
            .replace("argv=/usr/bin/maildrop_command deliver", &format!("argv={} deliver", row.command))
            .replace(
                "/etc/maildrop_command/config.toml",
                row.config.as_deref().unwrap_or(&site.scene.seen("config.toml")),
            );
        if row.more == NO_OPTIONS || row.command.starts_with("/bin/sh -c") {
            if line.trim_start().starts_with("argv=") {
                let _ = writeln!(entry, "    argv={}", row.command);
                break;
            }
        } else if line.contains("--lock-wait") && row.more.contains("--lock-wait") {
            continue;
        }
        let _ = writeln!(entry, "{replaced}");
        if line.starts_with("maildrop") {
            entry.push_str(&row.settings);
        }
    }
    if !row.more.is_empty() && row.more != NO_OPTIONS {
        let _ = writeln!(entry, "    {}", row.more);
    }
    entry
}

fn address(number: usize) -> String {
    format!("user{number}@mail.axial.net")
}

fn message_id(site: &MailHosts, number: usize) -> String {
    format!("<row{number}.{}@mail.google.com>", site.scene.run)
}

fn message(site: &MailHosts, number: usize, row: &Row) -> Vec<u8> {
    let mut message = format!(
        "From: Lisa <{LISA}>\r\nTo: {}\r\nMessage-ID: {}\r\nSubject: {number}\r\n\r\n",
        address(number),
        message_id(site, number)
    );
    message.push_str("At nine.\r\n");
    while message.len() < row.size {
        message.push_str("And bring the other bottle, and the torch, and somebody who knows the way back up.\r\n");
    }
    message.into_bytes()
}

/// By recipient: the first word of the log on each.
fn first_tries(log: &str) -> BTreeMap<String, (Status, String, String)> {
    let mut tries = BTreeMap::new();
    // The last line may still be on its way.
    let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
    for line in whole.lines() {
        let between = |from: &str, to: &str| Some(line.split_once(from)?.1.split_once(to)?.0.to_owned());
        let (Some(to), Some(dsn), Some(status)) =
            (between(" to=<", ">"), between("dsn=", ","), between("status=", " "))
        else {
            continue;
        };
        let status = match status.as_str() {
            "sent" => Sent,
            "deferred" => Deferred,
            "bounced" => Bounced,
            other => panic!("{other}: {line}"),
        };
        let shown = line.split_once(" (").map_or("", |(_, reason)| reason);
        tries.entry(to).or_insert((status, dsn, format!("({shown}")));
    }
    tries
}
