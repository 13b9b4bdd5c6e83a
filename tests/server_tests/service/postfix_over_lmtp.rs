//! A real Postfix that hands its mail to the service by LMTP and by the thin client, with the shipped fragments, beside the
//! pipe(8) transport: one message is the same by all ways, whatever its bytes, and going from the one way to the other leaves
//! nothing out and nothing twice.

use crate::support::database::Engine;
use crate::support::env_if_there;
use crate::support::mail_hosts::{MailHosts, Options, long_message};
use crate::support::postfix::{OPT, Postfix, on, wait_until_delivered};
use crate::support::program::{as_delivered, wait_until};
use crate::support::run::{Random, Report, faults};
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use rustix::process::{Signal, kill_process};
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);

/// A site, and the service that its first mail host may hand mail to.
struct Stage {
    site: MailHosts,
    service: Service,
}

impl Stage {
    fn set_up(options: &Options) -> Self {
        let mut site = MailHosts::set_up(options);
        // Nobody waits for a lock: who finds one held is deferred, and finds another way later.
        site.scene.configure(|settings| settings.more = "[lock]\nwait = \"0s\"\n".into());
        let service = Service::start(&mut site.scene);
        let mx1 = &site.hosts[0];
        mx1.append_to_master_cf(include_str!("../../../postfix/master.cf.maildropd"));
        mx1.append_to_main_cf(include_str!("../../../postfix/main.cf.maildropd"));
        mx1.append_to_main_cf(include_str!("../../../postfix/main.cf.maildrop-via"));
        mx1.append_to_master_cf(&with_via(&site.scene));
        Self { site, service }
    }

    fn mx1(&self) -> &Postfix {
        &self.site.hosts[0]
    }

    /// The transport, as main.cf has it; the socket is where the host sees it.
    fn by_lmtp(&self) -> String {
        format!("maildrop-lmtp:unix:{}", self.site.scene.seen("lmtp"))
    }

    /// Has Postfix deliver by this transport from now on.
    fn go_by(&self, transport: &str) {
        self.set(&format!("virtual_transport={transport}"));
    }

    fn set(&self, setting: &str) {
        let reloads = || self.mx1().log().matches("reload -- version").count();
        self.mx1().run("postconf", &["-e", setting]);
        let before = reloads();
        self.mx1().run("postfix", &["reload"]);
        wait_until("Postfix has read its settings", || reloads() > before);
    }

    fn counted(&mut self, sql: &str) -> i64 {
        self.site.scene.database.count(sql)
    }
}

/// The thin client's fragment with the site's own values. A relay's socket stands for the service's: Postfix's user is not the one that
/// runs the service here, and root is believed by both ends. It is on the mail host, since the kernel tells nobody of a process in another
/// container.
fn with_via(scene: &Scene) -> String {
    let start = "setsid perl -MIO::Socket::UNIX -MIO::Select -e \"$1\" \"$2\" \"$3\" </dev/null >/dev/null 2>&1 &";
    on("mx1", &["sh", "-c", start, "sh", RELAY, &scene.seen("clients"), &scene.seen("run/clients.sock")]);
    wait_until("the relay listens", || Path::new(&scene.path("clients")).exists());
    let command = env_if_there("MAILDROP_TEST_COMMAND").unwrap_or_else(|| format!("{OPT}/bin/maildrop_command"));
    let mut fragment = include_str!("../../../postfix/master.cf.maildrop-via").to_owned();
    for (shipped, here) in [
        ("=/usr/bin/maildrop_command ", format!("={command} ")),
        ("=/run/maildropd/clients.sock", format!("={}", scene.seen("clients"))),
        ("=/etc/maildrop_command/config.toml", format!("={}", scene.seen("config.toml"))),
    ] {
        assert_eq!(fragment.matches(shipped).count(), 1, "{shipped}");
        fragment = fragment.replace(shipped, &here);
    }
    fragment
}

/// Passes on what anybody says at the first place to the second one, and back. It ends by itself, after the longest test.
const RELAY: &str = r#"
    my ($place, $to) = @ARGV;
    $SIG{CHLD} = "IGNORE";
    umask 0;
    my $listener = IO::Socket::UNIX->new(Local => $place, Listen => 20) or die;
    alarm 900;
    while (my $client = $listener->accept) {
        next if fork;
        my $service = IO::Socket::UNIX->new(Peer => $to) or exit;
        my %other = (fileno $client => $service, fileno $service => $client);
        my $both = IO::Select->new($client, $service);
        while (my @said = $both->can_read) {
            for my $from (@said) {
                sysread($from, my $bytes, 65536) or exit;
                my $at = 0;
                $at += syswrite($other{fileno $from}, $bytes, length($bytes) - $at, $at) || exit while $at < length $bytes;
            }
        }
    }
"#;

pub(super) fn message(id: &str, more: &str, body: &str) -> String {
    format!("From: Lisa <{LISA}>\r\nDate: Fri, 20 Nov 2026 10:00:00 +0000\r\nMessage-ID: {id}\r\n{more}\r\n{body}\r\n")
}

/// The statuses that Postfix has logged of this message by this transport's program.
pub(super) fn log_lines(postfix: &Postfix, id: &str, program: &str) -> Vec<String> {
    let (id, log) = (format!(" {id}: to=<"), postfix.log());
    let lines = log.lines().filter(|line| line.contains(&id) && line.contains(program));
    lines.map(str::to_owned).collect()
}

/// The names of the settings of all fragments: those of main.cf, and those after `-o` of a transport's entry in master.cf, with the
/// transport.
fn settings_of_the_fragments() -> Vec<(Option<&'static str>, &'static str)> {
    let mains = [
        include_str!("../../../postfix/main.cf.maildrop"),
        include_str!("../../../postfix/main.cf.maildropd"),
        include_str!("../../../postfix/main.cf.maildrop-via"),
        include_str!("../../../postfix/main.cf.local"),
    ];
    let masters = [
        include_str!("../../../postfix/master.cf.maildrop"),
        include_str!("../../../postfix/master.cf.maildropd"),
        include_str!("../../../postfix/master.cf.maildrop-via"),
    ];
    let lines = |text: &'static str| text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let name = |setting: &'static str| setting.split_once('=').unwrap().0.trim();
    let mut settings: Vec<_> = mains.into_iter().flat_map(lines).map(|line| (None, name(line))).collect();
    for master in masters {
        let transport = lines(master).next().unwrap().split_whitespace().next().unwrap();
        let options = lines(master).filter_map(|line| line.trim_start().strip_prefix("-o "));
        settings.extend(options.map(|option| (Some(transport), name(option.trim_start_matches(['{', ' '])))));
    }
    settings
}

/// Postfix takes a name that it does not know for one that somebody else may use, and goes by its own default.
#[test]
fn postfix_knows_each_setting_of_the_fragments() {
    let stage = Stage::set_up(&Options::new(Engine::Postgres17, 0));
    let mx1 = stage.mx1();
    mx1.append_to_main_cf(include_str!("../../../postfix/main.cf.local"));
    let settings = settings_of_the_fragments();
    assert!(settings.len() > 15, "{settings:?}");
    let warnings = mx1.warnings();
    for &(transport, name) in &settings {
        let is_set = match transport {
            Some(transport) => mx1.run("postconf", &["-P", &format!("{transport}/unix/{name}")]),
            None => mx1.run("postconf", &["-n", name]),
        };
        assert!(is_set.contains(&format!("{name} =")), "{transport:?}, {name}: {is_set:?}");
        assert!(!warnings.contains(&format!(" {name}=")), "{transport:?}: {warnings}");
    }
}

/// A front that dies drops its connections: Postfix takes each for a failure of the destination, and by its own default no longer tries what
/// waits once as many have failed as were under way. By the fragment's limit each is tried, and the next front has what comes at once.
#[test]
fn connections_that_a_front_drops_suspend_nothing() {
    let stage = Stage::set_up(&Options::new(Engine::Postgres17, 1));
    let (way, next) = (stage.site.scene.path("way"), stage.site.scene.path("next"));
    let leads_to = |name: &str| {
        symlink(stage.site.scene.seen(name), &next).unwrap();
        std::fs::rename(&next, &way).unwrap();
    };
    let dying = UnixListener::bind(stage.site.scene.path("dying")).unwrap();
    std::fs::set_permissions(stage.site.scene.path("dying"), Permissions::from_mode(0o666)).unwrap();
    let (taken, dead) = (AtomicUsize::new(0), AtomicBool::new(false));
    leads_to("dying");
    // What was deferred is not tried again meanwhile, which would count as well.
    stage.set("maximal_backoff_time=1h");
    stage.set("minimal_backoff_time=1h");
    stage.go_by(&format!("maildrop-lmtp:unix:{}", stage.site.scene.seen("way")));
    let (mx1, recipients) = (stage.mx1(), &stage.site.recipients);
    let give = |id: &str| {
        let mut smtp = mx1.smtp();
        smtp.give(
            LISA,
            recipients,
            message(&format!("<{id}.{}@x>", stage.site.scene.run), "Subject: x\r\n", "Hello").as_bytes(),
        );
        smtp.end()
    };
    // More than are under way at once to begin with (initial_destination_concurrency, 5), and fewer than use up the fragment's limit: one
    // after the other, thirteen do.
    let give_many =
        |round: &str, count: usize| (0..count).map(|number| give(&format!("{round}{number}"))).collect::<Vec<_>>();
    let deferred = |ids: &[String], why: &str| {
        let log = mx1.log();
        let is_of = |line: &&str, id: &String| line.contains(&format!(" {id}: to=<")) && line.contains(why);
        ids.iter().filter(|id| log.lines().any(|line| is_of(&line, id))).count()
    };
    let mut queue_ids = Vec::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (over, dying, taken, dead) = (&over, &dying, &taken, &dead);
        dying.set_nonblocking(true).unwrap();
        scope.spawn(move || {
            let mut under_way = Vec::new();
            while !over.load(Ordering::SeqCst) {
                if let Ok((connection, _)) = dying.accept() {
                    under_way.push(connection);
                    taken.fetch_add(1, Ordering::SeqCst);
                }
                if dead.load(Ordering::SeqCst) {
                    under_way.clear();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let at_the_end = SetAtTheEnd(over);
        let die_with = |round: &str, under_way: usize, more: usize| {
            dead.store(false, Ordering::SeqCst);
            taken.store(0, Ordering::SeqCst);
            let ids = give_many(round, under_way + more);
            wait_until("that many are under way", || taken.load(Ordering::SeqCst) >= under_way);
            dead.store(true, Ordering::SeqCst);
            wait_until("all were tried, or put off", || deferred(&ids, "status=deferred") == ids.len());
            ids
        };
        for (round, under_way, more) in [("limit", 5, 5), ("twenty", 20, 2)] {
            if under_way > 5 {
                stage.set(&format!("maildrop-lmtp_initial_destination_concurrency={under_way}"));
                leads_to("dying");
            }
            let ids = die_with(round, under_way, more);
            assert_eq!(deferred(&ids, "lost connection with "), ids.len(), "{}", mx1.log());
            assert_eq!(deferred(&ids, "delivery temporarily suspended"), 0, "{}", mx1.log());
            leads_to("lmtp");
            let id = give(&format!("after-{round}"));
            wait_until("the next front has it", || {
                log_lines(mx1, &id, "/lmtp[").iter().any(|line| line.contains("status=sent"))
            });
            queue_ids.extend(ids);
            queue_ids.push(id);
        }
        // What is different by Postfix's own default.
        stage.set("maildrop-lmtp_destination_concurrency_failed_cohort_limit=1");
        stage.set("maildrop-lmtp_initial_destination_concurrency=5");
        leads_to("dying");
        let ids = die_with("default", 5, 5);
        assert_ne!(deferred(&ids, "delivery temporarily suspended"), 0, "{}", mx1.log());
        queue_ids.extend(ids);
        drop(at_the_end);
    });
    leads_to("lmtp");
    wait_until_delivered(&[(mx1, queue_ids)], LIMIT);
    let copies = stage.site.scene.mailbox(&stage.site.recipients[0], "INBOX").len();
    assert_eq!(copies, 10 + 1 + 22 + 1 + 10);
    stage.service.end();
}

#[test]
fn fifty_recipients_are_one_transaction_and_have_one_copy_each_in_postgresql() {
    fifty_recipients(Engine::Postgres17);
}

#[test]
fn fifty_recipients_are_one_transaction_and_have_one_copy_each_in_mysql() {
    fifty_recipients(Engine::Mysql9);
}

#[test]
fn fifty_recipients_are_one_transaction_and_have_one_copy_each_in_mariadb() {
    fifty_recipients(Engine::Mariadb118);
}

fn fifty_recipients(engine: Engine) {
    let mut stage = Stage::set_up(&Options::new(engine, 50));
    stage.go_by(&stage.by_lmtp());
    let message = message(&format!("<fifty.{}@x>", stage.site.scene.run), "Subject: fifty\r\n", "Hello\r\n.\r\nthere");
    let mut smtp = stage.mx1().smtp();
    smtp.give(LISA, &stage.site.recipients, message.as_bytes());
    let id = smtp.end();
    wait_until_delivered(&[(stage.mx1(), vec![id.clone()])], LIMIT);
    let lines = log_lines(stage.mx1(), &id, "/lmtp[");
    assert!(
        lines.len() == 50 && lines.iter().all(|line| line.contains("dsn=2.0.0, status=sent (250 2.0.0 ")),
        "{lines:?}"
    );
    for recipient in &stage.site.recipients {
        let inbox = stage.site.scene.mailbox(recipient, "INBOX");
        assert!(inbox.len() == 1 && inbox[0].content.ends_with(b"\r\nHello\r\n.\r\nthere\r\n"), "{recipient}");
    }
    assert_eq!(stage.site.scene.mailbox(LISA, "Sent").len(), 1);
    // What XFORWARD tells.
    let queue_ids = stage.site.scene.database.texts("SELECT DISTINCT queue_id FROM attempts");
    assert_eq!(queue_ids, [id]);
    assert_eq!(stage.counted("SELECT count(*) FROM copies"), 51);
    assert_eq!(stage.counted("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    let Stage { site, service } = stage;
    service.end();
    // Each worker says at its end how many it was given.
    let log_text = site.scene.log();
    let numbers =
        log_text.lines().filter_map(|line| line.split_once("the worker has ended delivered=")?.1.parse().ok());
    assert_eq!(numbers.collect::<Vec<u32>>().iter().sum::<u32>(), 1);
}

/// Each message goes to one by pipe(8), to one by pipe(8) and the thin client, and to the others by LMTP: that is two messages if
/// the ways differ in one byte that counts.
#[test]
fn a_message_is_the_same_by_all_three_ways_whatever_its_bytes() {
    let mut stage = Stage::set_up(&Options { lock_wait: Some("30s"), ..Options::new(Engine::Postgres17, 3) });
    let alias = "alias@mail.axial.net";
    let user = stage.site.scene.user("user1@");
    stage.site.scene.database.add_address(alias, &user);
    let [by_pipe, by_lmtp, by_via] = [0, 1, 2].map(|number| stage.site.recipients[number].clone());
    let lmtp = stage.by_lmtp();
    stage.set(&format!(
        "transport_maps=inline:{{{{{by_lmtp}={lmtp}}}, {{{alias}={lmtp}}}, {{{by_via}=maildrop-via:}}}}"
    ));
    let id = |name: &str| format!("<{name}.{}@x>", stage.site.scene.run);
    let long = format!("{}\r\n.{}\r\n{}", "x".repeat(5000), "y".repeat(998), "word ".repeat(1000));
    let ascii = "Subject: x\r\n";
    let messages: Vec<(&str, &str, Vec<u8>)> = vec![
        ("long lines", LISA, message(&id("long"), ascii, &long).into_bytes()),
        (
            "eight bits",
            LISA,
            message(&id("eight"), "Subject: x\r\nContent-Transfer-Encoding: 8bit\r\n", "Größe, 信").into_bytes(),
        ),
        (
            "eight bits without MIME",
            LISA,
            [message(&id("latin"), ascii, "Gr").as_bytes(), b"\xf6\xdfe\xff\r\n"].concat(),
        ),
        ("SMTPUTF8", LISA, message(&id("utf8"), "Subject: Größe\r\nTo: νίκος@mail.axial.net\r\n", "信").into_bytes()),
        ("NUL", LISA, message(&id("nul"), ascii, "before\0after").into_bytes()),
        ("null sender", "", message(&id("null"), ascii, "It cannot be delivered").into_bytes()),
        ("dots", LISA, message(&id("dots"), ascii, ".\r\n..\r\n.x\r\n\r\n\r\n.").into_bytes()),
        ("blanks at the end", LISA, message(&id("blanks"), ascii, "a  \r\n\t\r\n b\t\r\n\r\n\r\n").into_bytes()),
        (
            "no end of line",
            LISA,
            message(&id("mbox"), "Subject: a\r\n\tfolded  \r\n", "From the start\r\n>From").into_bytes(),
        ),
        ("no Message-ID", LISA, format!("From: {LISA}\r\nSubject: none\r\n\r\nx\r\n").into_bytes()),
        ("no header", LISA, b"\r\nx\r\n".to_vec()),
    ];
    let mut ids = Vec::new();
    for (name, sender, message) in &messages {
        let mut smtp = stage.mx1().smtp();
        let extension = if *name == "SMTPUTF8" { "> BODY=8BITMIME SMTPUTF8" } else { "> BODY=8BITMIME" };
        assert_eq!(smtp.say(&format!("MAIL FROM:<{sender}{extension}")).0, 250);
        smtp.give_content(&[by_pipe.clone(), by_lmtp.clone(), alias.into(), by_via.clone()], message);
        ids.push(smtp.end());
    }
    wait_until_delivered(&[(stage.mx1(), ids.clone())], LIMIT);
    for (id, (name, ..)) in ids.iter().zip(&messages) {
        let sent =
            |program| log_lines(stage.mx1(), id, program).iter().filter(|line| line.contains("status=sent")).count();
        assert_eq!((sent("/pipe["), sent("/lmtp[")), (2, 2), "{name}: {}", stage.mx1().log());
    }
    // On a machine with much else to do the thin client may have delivered one or another by itself.
    let workers: Vec<String> = stage.service.processes("worker").iter().map(ToString::to_string).collect();
    let pids = format!("SELECT DISTINCT CAST(pid AS char(20)) FROM attempts WHERE recipient = '{by_via}'");
    let pids = stage.site.scene.database.texts(&pids);
    assert!(pids.iter().any(|pid| workers.contains(&pid.trim().to_owned())), "{pids:?} of {workers:?}");
    let [piped, handed, by_client] = [&by_pipe, &by_lmtp, &by_via].map(|name| stage.site.scene.mailbox(name, "INBOX"));
    assert_eq!([piped.len(), handed.len(), by_client.len()], [messages.len(); 3]);
    for (name, _, message) in &messages {
        // As it was given to Postfix, to its last byte.
        let header = message.windows(4).position(|bytes| bytes == b"\r\n\r\n").map_or(0, |at| at + 4);
        let body = as_delivered(&message[header..]);
        assert!(handed.iter().any(|copy| copy.content.ends_with(&body)), "{name}");
    }
    // By its identity each is one message, with a copy for each of the three mailboxes.
    let identities = stage.site.scene.database.texts("SELECT DISTINCT encode(identity, 'hex') FROM messages");
    assert_eq!(identities.len(), messages.len(), "{identities:?}");
    assert_eq!(stage.counted("SELECT count(*) FROM messages"), messages.len() as i64);
    let all = "SELECT count(*) FROM copies WHERE role = 'recipient'";
    assert_eq!(stage.counted(all), 3 * messages.len() as i64);
    // What stands in the mailbox is the same, but for what pipe(8) puts on top.
    for copy in &handed {
        let end = |content: &[u8]| {
            let at = content.windows(10).position(|bytes| bytes == b"Received: ").unwrap();
            content[at..].to_vec()
        };
        for others in [&piped, &by_client] {
            assert!(
                others.iter().any(|other| end(&other.content) == end(&copy.content)),
                "{}",
                String::from_utf8_lossy(&copy.content)
            );
        }
    }
    assert_eq!(stage.counted("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    stage.service.end();
}

/// Mail flows all the time. Some messages find their lock held, by each way, and go the other one when they are tried again.
#[test]
fn from_pipe_to_lmtp_and_back_while_mail_flows() {
    let mut stage = Stage::set_up(&Options { lock_wait: Some("0s"), ..Options::new(Engine::Postgres17, 3) });
    let run = stage.site.scene.run.clone();
    let text = |id: &str| message(id, "Subject: x\r\n", "the last line");
    let flow_id = |number: usize| format!("<flow{number}.{run}@x>");
    let (by_lmtp, over) = (stage.by_lmtp(), AtomicBool::new(false));
    let (mx1, recipients) = (stage.mx1(), &stage.site.recipients);
    let mut message_ids = Vec::new();
    let mut queue_ids = std::thread::scope(|scope| {
        let flow = scope.spawn(|| {
            let mut queue_ids = Vec::new();
            while !over.load(Ordering::SeqCst) {
                let mut smtp = mx1.smtp();
                smtp.give(LISA, recipients, text(&flow_id(queue_ids.len())).as_bytes());
                queue_ids.push(smtp.end());
                // Not more at once than is delivered.
                wait_until("there is less in the queue", || mx1.unfinished(&queue_ids).len() < 5);
            }
            queue_ids
        });
        let at_the_end = SetAtTheEnd(&over);
        let mut held = Vec::new();
        for round in 0..2 {
            for (way, programs) in [(by_lmtp.as_str(), ["/pipe[", "/lmtp["]), ("maildrop", ["/lmtp[", "/pipe["])] {
                let id = format!("<held{}.{round}.{run}@x>", message_ids.len());
                let holder = stage.site.scene.hold(&id);
                let mut smtp = mx1.smtp();
                smtp.give(LISA, recipients, text(&id).as_bytes());
                let queue_id = smtp.end();
                let log_lines = |program: &str, status: &str| {
                    log_lines(mx1, &queue_id, program).iter().filter(|line| line.contains(status)).count()
                };
                wait_until("all were deferred", || log_lines(programs[0], "status=deferred") >= recipients.len());
                stage.go_by(way);
                // A message that the old transport still delivers would have the lock next. Postfix retries a message
                // once no process delivers it.
                wait_until("the new way has found the lock held", || {
                    mx1.flush();
                    log_lines(programs[1], "status=deferred") > 0
                });
                drop(holder);
                wait_until("it is delivered", || {
                    mx1.flush();
                    mx1.unfinished(std::slice::from_ref(&queue_id)).is_empty()
                });
                assert_eq!(
                    log_lines(programs[0], "status=sent") + log_lines(programs[1], "status=sent"),
                    recipients.len()
                );
                assert!(log_lines(programs[1], "status=sent") > 0, "{}", mx1.log());
                message_ids.push(id);
                held.push(queue_id);
            }
        }
        drop(at_the_end);
        let flowed = flow.join().unwrap();
        message_ids.extend((0..flowed.len()).map(flow_id));
        held.extend(flowed);
        held
    });
    wait_until_delivered(&[(mx1, std::mem::take(&mut queue_ids))], LIMIT);
    let log = mx1.log();
    assert_eq!((log.matches("status=bounced").count(), log.matches("SOFTBOUNCE").count()), (0, 0), "{log}");
    let deliveries = message_ids.len() * recipients.len();
    // A change of the way counts as a fault.
    let mut report =
        Report { deliveries, faults: 4, deferred: log.matches("status=deferred").count(), ..Report::default() };
    stage.site.compare(&mut report, &message_ids);
    report.tell(Engine::Postgres17, "from pipe to LMTP and back");
    assert_eq!(stage.counted("SELECT count(*) FROM messages"), message_ids.len() as i64);
    assert_eq!(stage.counted("SELECT count(*) FROM copies"), (deliveries + message_ids.len()) as i64);
    assert_eq!(stage.counted("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    stage.service.end();
}

/// Half of the kills are fronts, whose clients hear nothing: Postfix takes that for a failure of all that maildropd does.
#[test]
fn fronts_and_workers_that_are_killed_under_postfix() {
    let mut stage = Stage::set_up(&Options::new(Engine::Postgres17, 3));
    stage.go_by(&stage.by_lmtp());
    let mut random = Random::seeded();
    let (mut message_ids, mut queue_ids) = (Vec::new(), Vec::new());
    let mut report = Report::default();
    // Not so often that the master would throttle them (service.restarts).
    for round in 0..faults(6).min(12) {
        for number in 0..4 {
            let id = format!("<killed{round}.{number}.{}@x>", stage.site.scene.run);
            let mut smtp = stage.mx1().smtp();
            smtp.give(LISA, &stage.site.recipients, long_message(LISA, &id).as_bytes());
            queue_ids.push(smtp.end());
            message_ids.push(id);
        }
        let is_busy = |stage: &Stage| stage.service.status()["front"]["busy"].as_u64().is_some_and(|busy| busy > 0);
        let all_done = |stage: &Stage| stage.mx1().unfinished(&queue_ids).is_empty();
        wait_until("there is work", || is_busy(&stage) || all_done(&stage));
        let role = if round % 2 == 0 { "front" } else { "worker" };
        let there = stage.service.processes(role);
        let struck = there[random.next() as usize % there.len()];
        kill_process(struck, Signal::KILL).unwrap();
        report.faults += 1;
        stage.service.wait_until_replaced(&[struck]);
    }
    // What the dead had sent may land until nobody is left who sends; then that has settled.
    let Stage { mut site, service } = stage;
    service.end();
    site.scene.wait_for_dovecot();
    site.scene.ten_minutes_pass();
    let service = Service::start_again(&site.scene);
    wait_until_delivered(&[(&site.hosts[0], queue_ids)], LIMIT);
    let log = site.hosts[0].log();
    assert_eq!((log.matches("status=bounced").count(), log.matches("SOFTBOUNCE").count()), (0, 0), "{log}");
    report.deliveries = message_ids.len() * site.recipients.len();
    report.deferred = log.matches("status=deferred").count();
    site.compare(&mut report, &message_ids);
    report.tell(Engine::Postgres17, "SIGKILL of the service under Postfix");
    let copies = site.scene.database.count("SELECT count(*) FROM copies WHERE state = 'delivered'");
    assert_eq!(copies as usize, report.deliveries + message_ids.len());
    assert_eq!(site.scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    service.end();
}

/// Ends what goes on until then, even where the test fails first.
struct SetAtTheEnd<'a>(&'a AtomicBool);

impl Drop for SetAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
