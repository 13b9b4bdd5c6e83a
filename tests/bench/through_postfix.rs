//! Ours beside its peers through a real Postfix: smtp-source gives it messages, and we look how long it takes until its queue
//! is empty. Each has a transport of its own with as many processes; ours is the one that is shipped, letter by letter.

use crate::comparison::{Comparison, SIZES, Size};
use crate::figures::{Ratio, Report, Series, milliseconds};
use crate::peer::{Envelope, Peer, Peers};
use crate::service::fixture::{Fixture, Service};
use crate::service::processor::Used;
use crate::site::{STRANGER, Site, program};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const ALL: [Peer; 6] = [Peer::Ours, Peer::Lmtp, Peer::Via, Peer::Article, Peer::DovecotLda, Peer::Courier];
/// So many recipients, each with mail from a client of its own.
const RECIPIENTS: usize = 8;
const SPOOL: &str = "/var/spool/postfix";
const LOG: &str = "/var/log/postfix.log";
/// As long as anything may take.
const PATIENCE: Duration = Duration::from_secs(300);

pub fn measure(report: &mut Report, site: &Site, runs: usize) {
    let mut peers = Peers::set_up(site);
    let service = Fixture::set_up(site).start("recycle_after = 1000000\n");
    set_up(&peers, &service);
    for (size, each, rarer) in [(SIZES[0], 12, 12), (SIZES[1], 12, 12), (SIZES[2], 2, 20)] {
        compare(report, &mut peers, size, each, (runs / rarer).max(3));
    }
}

/// Gives each peer its transport, by the first word of the recipient's address.
pub fn set_up(peers: &Peers, service: &Service) {
    fs::copy(program(), "/usr/bin/maildrop_command").expect("the program");
    fs::create_dir_all("/etc/maildrop_command").expect("a directory");
    fs::copy(&peers.configuration, "/etc/maildrop_command/config.toml").expect("the configuration");

    let site = peers.site;
    let (host, port) = &site.servers.postgres;
    let recipients = include_str!("../../postfix/pgsql-recipients.cf")
        .replace("postfix_maps", &format!("{}:{}", site.servers.role, site.servers.password))
        .replace("/maildrop?", &format!("/{}?", site.servers.database))
        .replace("dbname = maildrop", &format!("dbname = {}", site.servers.database))
        .replace("db.axial.net", &format!("{host}:{port}"))
        .replace("/etc/ssl/certs/ca-certificates.crt", "/srv/ca/ca.pem");
    fs::write("/etc/postfix/maildrop-recipients.cf", recipients).expect("/etc/postfix");
    fs::write("/etc/postfix/maildrop-header-checks", include_str!("../../postfix/header-checks.maildrop"))
        .expect("/etc/postfix");

    let mut main = include_str!("../../postfix/main.cf.maildrop").replace("mail.axial.net", "mail.example");
    let mut master = include_str!("../../postfix/master.cf.maildrop").to_owned();
    let mut map = String::new();
    let by_lmtp = include_str!("../../postfix/master.cf.maildropd").replace("maildrop-lmtp", "lmtp-ours");
    let by_pipe =
        master.replace("\nmaildrop ", "\nvia ").replace("/etc/maildrop_command/config.toml", &path(&service.config));
    master += &format!("\n{by_pipe}    --via={}\n{by_lmtp}\n", path(&service.clients));
    main +=
        "\nlmtp-ours_destination_recipient_limit = 50\nvia_destination_recipient_limit = 1\nvia_time_limit = 1000s\n";
    map += &format!(
        " {{/^lmtp-/ lmtp-ours:unix:{}}} {{/^via-/ via:}} {{/^dovecot-/ lmtp:unix:{}}}",
        path(&service.socket),
        path(&Fixture::dovecots_socket())
    );
    for peer in ALL.into_iter().filter(|peer| !matches!(peer, Peer::Ours | Peer::Lmtp | Peer::Via)) {
        let (name, user) = (peer.short(), peer.user());
        let macros =
            Envelope { sender: "${sender}", user: "${user}", recipient: "${recipient}", queue_id: "${queue_id}" };
        let arguments = peers.arguments(peer, &macros).join(" ");
        master +=
            &format!("{name} unix - n n - 20 pipe\n    flags=ORXhu user={user} null_sender=\n    argv={arguments}\n");
        main += &format!("\n{name}_destination_recipient_limit = 1\n{name}_time_limit = 1000s\n");
        map += &format!(" {{/^{name}-/ {name}:}}");
    }
    main += &format!("\ntransport_maps = regexp:{{{map} }}\n");
    // A second's pause for each message that comes faster than others go is for the good of a busy host, and would be all
    // that is measured.
    main += "\nin_flow_delay = 0\n";
    append("/etc/postfix/main.cf", &main);
    append("/etc/postfix/master.cf", &master);
    postfix(&["check"]);
    postfix(&["reload"]);
}

/// What was measured of one peer.
struct Measured {
    peer: Peer,
    users: Vec<String>,
    /// Until the queue was empty, in milliseconds.
    took: Series,
    /// The processor time of all programs, for each message, likewise.
    processor: Series,
}

fn compare(report: &mut Report, peers: &mut Peers, size: Size, each: usize, rounds: usize) {
    let messages = each * RECIPIENTS;
    report.progress(format!("through Postfix, {}, {rounds} rounds of {messages} messages", size.name));
    let mut all: Vec<Measured> = ALL.iter().map(|peer| begin(peers, size, *peer)).collect();
    for round in 0..=rounds {
        let mut deliver = |measured: &mut Measured| {
            let before = Used::now();
            let took = give(&measured.users, size, each);
            let used = milliseconds(Used::now().since(&before).all) / messages as f64;
            measured.processor.push_if(round > 0, used);
            // The first makes Postfix start its processes.
            measured.took.push_if(round > 0, milliseconds(took));
        };
        if round % 2 == 0 {
            all.iter_mut().for_each(&mut deliver);
        } else {
            all.iter_mut().rev().for_each(&mut deliver);
        }
    }
    for measured in &all {
        for user in &measured.users {
            let there = peers.site.messages(user, "INBOX");
            assert_eq!(there, each * (rounds + 1), "{:?} has delivered to {user}", measured.peer);
            peers.remove_mail(user);
        }
    }
    let ours = &all[0];
    let mut rows = Vec::new();
    for measured in &all {
        let per_second: Series = measured.took.values().map(|took| messages as f64 * 1000.0 / took).collect();
        let ratio = Ratio::of(&ours.took, &measured.took);
        let is_ours = measured.peer == Peer::Ours;
        let beside = if is_ours { String::new() } else { ratio.to_string() };
        let processor = Ratio::of(&ours.processor, &measured.processor);
        let beside_processor = if is_ours { String::new() } else { processor.to_string() };
        let title = measured.peer.title().to_owned();
        rows.push([title, per_second.to_string(), beside, measured.processor.to_string(), beside_processor]);
        if !is_ours {
            let what = format!("÷ {}", measured.peer.title());
            report.compare(Comparison { what, how: "through Postfix", size, ratio, target: measured.peer.target() });
        }
    }
    let first = format!("{}, {rounds} rounds of {messages} messages", size.name);
    report.table([&first, "messages per second", "time of ours ÷ its", "CPU of each, ms", "CPU of ours ÷ its"], &rows);
}

fn begin(peers: &mut Peers, size: Size, peer: Peer) -> Measured {
    let users: Vec<String> = (0..RECIPIENTS).map(|n| format!("{}-queue{}-{n}", peer.short(), size.bytes)).collect();
    users.iter().for_each(|user| peers.add_user(user));
    Measured { peer, users, took: Series::default(), processor: Series::default() }
}

/// So many messages to each of these users: how long until Postfix had got rid of the last.
fn give(users: &[String], size: Size, each: usize) -> Duration {
    let began = Instant::now();
    let clients: Vec<_> = users
        .iter()
        .map(|user| {
            Command::new("smtp-source")
                // One session, in which it gives all of them; each has a Message-ID of its own.
                .args(["-d", "-s", "1", "-l", &size.bytes.to_string(), "-m", &each.to_string()])
                .args(["-f", STRANGER, "-t", &format!("{user}@mail.example"), "127.0.0.1:25"])
                .stdout(Stdio::null())
                .spawn()
                .expect("smtp-source")
        })
        .collect();
    for mut client in clients {
        assert!(client.wait().expect("a child").success(), "smtp-source");
    }
    wait_for_the_queue(began);
    began.elapsed()
}

/// Waits until Postfix has got rid of all.
pub fn wait_for_the_queue(began: Instant) {
    let mut tried_again = Instant::now();
    while !queue_is_empty() {
        // What is deferred, since its recipient's mailbox was busy for example, would rest for minutes.
        if tried_again.elapsed() > Duration::from_secs(1) {
            let flushed = Command::new("postqueue").arg("-f").status().expect("postqueue runs");
            assert!(flushed.success(), "postqueue -f: {flushed}");
            tried_again = Instant::now();
        }
        if began.elapsed() > PATIENCE {
            let log = fs::read_to_string(LOG).unwrap_or_default();
            let lines: Vec<&str> = log.lines().rev().take(20).collect();
            panic!("after {PATIENCE:?} there is still mail in the queue; the log, backwards:\n{}", lines.join("\n"));
        }
        sleep(Duration::from_millis(2));
    }
}

/// In the order in which a message passes through, so that none escapes.
fn queue_is_empty() -> bool {
    ["maildrop", "incoming", "active", "deferred"].iter().all(|queue| is_empty(&Path::new(SPOOL).join(queue)))
}

/// Of files; some queues have subdirectories.
fn is_empty(directory: &Path) -> bool {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    entries.flatten().all(|entry| {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        is_directory && is_empty(&entry.path())
    })
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

fn append(file: &str, text: &str) {
    let file = fs::OpenOptions::new().append(true).open(file);
    file.and_then(|mut file| file.write_all(text.as_bytes())).expect("/etc/postfix");
}

fn postfix(arguments: &[&str]) {
    let output = Command::new("postfix").args(arguments).output().expect("postfix");
    assert!(output.status.success(), "postfix {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
