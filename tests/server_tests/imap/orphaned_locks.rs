//! Why `imap.append_grace` may be shorter on Cyrus: what waits for a process that is killed goes on at once, since its locks are the
//! kernel's. On Dovecot with Maildir they are files, and are believed in for as long as their process seems to live.

use crate::imap::server_behaviour::processes;
use crate::support::check_report::Checked;
use crate::support::database::Engine;
use crate::support::imap::Imap;
use crate::support::imap_server::{Server, somebody};
use crate::support::postfix::on;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;

const MESSAGE: &str = "Subject: hello\r\n\r\nHello.\r\n";

/// Sends an APPEND, whole, and does not wait for the answer.
fn begin_append(session: &mut Imap) -> String {
    let tag = session.begin(&format!("APPEND INBOX {{{}+}}\r\n", MESSAGE.len()));
    session.send(format!("{MESSAGE}\r\n").as_bytes());
    tag
}

/// A process on Cyrus's host that keeps the lock on a user's quota, which an APPEND wants once it has those on the mailbox: its
/// number.
fn keep_quota(user: &str) -> String {
    // It ends by itself, if nobody ends it.
    const KEEP: &str = r#"
        use strict; use Fcntl; my $user = shift;
        my $of;
        for (glob "/proc/[0-9]*/cmdline") {
            open(my $file, "<", $_) or next;
            my $command = join " ", split /\0/, do { local $/; <$file> } // next;
            # This script's own command has these words, too, and leads nowhere.
            $of //= (glob "$1/config/quota/*/user.$user")[0] if $command =~ m{master .*-C (\S+)/imapd.conf};
        }
        pipe(my $hear, my $tell) or die $!;
        my $child = fork();
        defined $child or die $!;
        if (!$child) {
            open(STDIN, "<", "/dev/null"); open(STDOUT, ">", "/dev/null"); open(STDERR, ">", "/dev/null");
            alarm 600;
            sysopen(my $quota, $of, O_RDWR) or exit 1;
            # struct flock: the whole file, for writing.
            my $all = pack("s s x4 q q i x4", F_WRLCK, 0, 0, 0, 0);
            fcntl($quota, F_SETLKW, $all) or exit 1;
            print $tell "kept\n"; close $tell;
            sleep 600;
        }
        close $tell;
        (<$hear> // "") eq "kept\n" or die "no lock on the quota of $user ($of)";
        print $child;"#;
    on("cyrus", &["perl", "-e", KEEP, user])
}

fn kill(process: &str) {
    on("cyrus", &["perl", "-e", "kill(9, shift) == 1 or die $!", process]);
}

/// Whether a process waits in the kernel for a lock that the other one holds (proc_locks(5)).
fn waits_for(process: &str, holder: &str) -> bool {
    let locks = on("cyrus", &["cat", "/proc/locks"]);
    let lines: Vec<Vec<&str>> = locks.lines().map(|line| line.split_whitespace().collect()).collect();
    // `12: POSIX ADVISORY WRITE 31 fe:00:866837 0 EOF`, and below it `12: -> POSIX ADVISORY READ 35 fe:00:866837 0 EOF`.
    let held: Vec<&str> =
        lines.iter().filter(|line| line[1] == "POSIX" && line[4] == holder).map(|line| line[0]).collect();
    lines.iter().any(|line| line[1] == "->" && line[5] == process && held.contains(&line[0]))
}

/// A delivery's APPEND waits for a process that is killed: it has the locks without anything else having to happen.
#[test]
fn on_cyrus_an_append_has_the_locks_of_a_process_once_that_is_killed() {
    let user = somebody("locks");
    let mut one = Server::Cyrus.mail_program(&user);
    let mut first = Vec::new();
    wait_until("one process serves the user", || {
        first = processes(Server::Cyrus, &user);
        first.len() == 1
    });
    let mut other = Server::Cyrus.mail_program(&user);
    let mut second = String::new();
    wait_until("another one serves the user, too", || {
        let both = processes(Server::Cyrus, &user);
        second = both.iter().find(|process| **process != first[0]).cloned().unwrap_or_default();
        both.len() == 2
    });
    // The first one has the mailbox's locks, and goes no further.
    let keeper = keep_quota(&user);
    begin_append(&mut one);
    wait_until("the first waits for the quota", || waits_for(&first[0], &keeper));
    let tag = begin_append(&mut other);
    wait_until("the second waits for the first", || waits_for(&second, &first[0]));
    assert!(!waits_for(&second, &keeper));
    kill(&first[0]);
    wait_until("the second has the locks of the first", || waits_for(&second, &keeper));
    kill(&keeper);
    let answer = other.answer(&tag, &mut Vec::new());
    assert!(answer.starts_with("OK"), "{answer}");
    assert_eq!(other.messages("INBOX").len(), 1);
    one.hang_up();
}

/// The other kind: killed before it has written its number into the lock file, a process leaves one that is nobody's.
#[test]
fn on_dovecot_an_append_waits_for_a_lock_file_that_is_nobodys() {
    // Makes the lock file on a Maildir, or removes it.
    const LOCK: &str = r#"
        my ($user, $made) = @ARGV;
        my $of;
        for (glob "/proc/[0-9]*/cmdline") {
            open(my $file, "<", $_) or next;
            my $command = join " ", split /\0/, do { local $/; <$file> } // next;
            $of = "$1/home/$user/Maildir" if $command =~ m{^\S*dovecot .*-c (\S+)/dovecot.conf};
        }
        my $lock = "$of/dovecot-uidlist.lock";
        if ($made) { open(my $file, ">", $lock) or die "$lock: $!" } else { unlink($lock) or die "$lock: $!" }"#;
    let user = somebody("locks");
    let mut session = Server::Dovecot.mail_program(&user);
    let tag = begin_append(&mut session);
    let answer = session.answer(&tag, &mut Vec::new());
    assert!(answer.starts_with("OK"), "{answer}");
    on("dovecot", &["perl", "-e", LOCK, &user, "1"]);
    let tag = begin_append(&mut session);
    // It says so after half a minute, or after one that the file is stale, and would go on for two.
    let response = session.next_response();
    let waits = ["* NO Mailbox is locked, will abort in ", "* OK Stale mailbox lock file detected, will override in "];
    assert!(waits.iter().any(|words| response.starts_with(words)), "{response}");
    on("dovecot", &["perl", "-e", LOCK, &user, "0"]);
    let answer = session.answer(&tag, &mut Vec::new());
    assert!(answer.starts_with("OK"), "{answer}");
}

/// `check` asks the server, and says what is enough there.
#[test]
fn check_knows_by_the_greeting_for_how_long_an_append_may_be_late() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    let mut found = |server: Server, settle: &str| {
        let address = server.address();
        scene.configure(|settings| {
            settings.imap = address;
            settings.imap_more = format!("append_grace = \"{settle}\"");
        });
        let checked = Checked::of(&scene);
        let settle: Vec<(String, String, String)> = checked
            .on("imap.append_grace")
            .into_iter()
            .map(|(state, found)| (state.to_owned(), found.to_owned(), checked.fix(found).to_owned()))
            .collect();
        settle
    };
    const WHERE: &str = "docs/imap-servers.md, \"How late a copy may arrive\"";
    let none: [(String, String, String); 0] = [];
    assert_eq!(found(Server::Cyrus, "4m 30s"), none);
    assert_eq!(found(Server::Dovecot, "6m 30s"), none);
    for (server, settle, late, least) in
        [(Server::Cyrus, "4m 29s", "30s", "4m 30s"), (Server::Dovecot, "6m 29s", "2m 30s", "6m 30s")]
    {
        let shown = found(server, settle);
        let [(state, found, fix)] = &shown[..] else { panic!("{shown:?}") };
        assert_eq!(state, "warning");
        assert!(found.starts_with(&format!("{settle} is less than {late} above delivery.deadline")), "{found}");
        assert_eq!(*fix, format!("say \"{least}\" at least: {WHERE}"));
    }
}
