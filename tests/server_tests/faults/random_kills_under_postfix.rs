//! Deliveries of two real Postfixes, whose processes are killed by SIGKILL at random moments, on both hosts, while more
//! messages come in: the program, or the pipe(8) that runs it. Postfix tries them again by itself (pipe(8) defers what a
//! signal has ended, and qmgr(8) the messages of a dead pipe(8)). Afterwards every mailbox has every message once, to its
//! end, the ledger says so, and the queues are empty.

use crate::support::database::Engine;
use crate::support::event_rows::each_change_was_reported_once;
use crate::support::mail_hosts::{MailHosts, Options, long_message};
use crate::support::postfix::{Postfix, wait_for_retries};
use crate::support::program::wait_until;
use crate::support::run::{Report, faults};
use crate::support::site_fixture::LISA;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

on_each_engine!(processes_are_killed_on_both_hosts);

/// Half of them are the one host's to deliver, half the other's.
const RECIPIENTS: usize = 4;

/// How often a message comes in.
const PACE: Duration = Duration::from_millis(250);

/// What Postfix's log says of each program.
const DIED: &str = "Command died with signal 9";

/// And of each pipe(8).
const PIPE_DIED: &str = "/pipe pid ";

/// What the retries of one fault take at most, which are a matter of seconds here, and of minutes in earnest.
const LIMIT: Duration = Duration::from_secs(6);

fn processes_are_killed_on_both_hosts(engine: Engine) {
    let mut site = MailHosts::set_up(&Options::new(engine, RECIPIENTS));
    site.scene.database.subscribe();
    let config = site.edited_configuration("config.toml", "[imap]", "[imap]\nappend_grace = \"24s\"");
    site.edited_configuration("config.toml", "[log]", "[delivery]\ndeadline = \"20s\"\n[log]");
    for host in &site.hosts {
        // So that what waits to be settled does not keep the machine busy.
        // And so that a pipe(8) that is killed does not keep qmgr(8) and master(8) from the transport for a minute.
        host.append_to_main_cf(
            "minimal_backoff_time = 3s\nmaximal_backoff_time = 3s\ntransport_retry_time = 1s\nservice_throttle_time = 1s\n",
        );
    }

    let killers = site.hosts.each_ref().map(|host| Killer::start(host, &config));
    let kills = || killers.iter().map(Killer::kills).sum::<usize>();
    let mut queued = [Vec::new(), Vec::new()];
    let mut message_ids = Vec::new();
    // Some of those killed have just ended: Postfix's log tells.
    let log_lines = |what| site.hosts.each_ref().map(|host| host.log().matches(what).count()).iter().sum::<usize>();
    while kills() < faults(50)
        || log_lines(DIED) < faults(25)
        || log_lines(PIPE_DIED) < faults(25)
        || message_ids.len() * RECIPIENTS < faults(50)
    {
        let message_id = format!("<{}.{}@mail.google.com>", message_ids.len(), site.scene.run);
        let content = long_message(LISA, &message_id);
        for ((host, recipients), queued) in
            site.hosts.iter().zip(site.recipients.chunks(RECIPIENTS / 2)).zip(&mut queued)
        {
            let mut smtp = host.smtp();
            smtp.give(LISA, recipients, content.as_bytes());
            queued.push(smtp.end());
        }
        message_ids.push(message_id);
        assert!(message_ids.len() < faults(1000), "they kill nobody");
        std::thread::sleep(PACE);
    }
    killers.into_iter().for_each(Killer::end);
    let [here, there] = queued;
    wait_for_retries(&[(&site.hosts[0], here), (&site.hosts[1], there)], LIMIT * faults(50) as u32);

    let logs = site.hosts.each_ref().map(Postfix::log).join("\n");
    let mut report = Report {
        deliveries: message_ids.len() * RECIPIENTS,
        tries: logs.matches("relay=maildrop").count(),
        faults: logs.matches(DIED).count() + logs.matches(PIPE_DIED).count(),
        deferred: logs.matches("status=deferred").count(),
        adopted: logs.matches(" adopted").count(),
        taken_out: site.scene.log().matches("removed a duplicate copy").count(),
        ..Report::default()
    };
    site.compare(&mut report, &message_ids);
    report.tell(engine, "SIGKILL under Postfix");
    assert!(report.faults >= faults(50), "Postfix's log has lost some: {report}");
    for bad in ["status=bounced", "SOFTBOUNCE", "panic", "fatal:"] {
        assert!(!logs.contains(bad), "{bad} in the log:\n{logs}");
    }
    let (messages, copies) = (message_ids.len() as i64, (message_ids.len() * (RECIPIENTS + 1)) as i64);
    let database = &mut site.scene.database;
    assert_eq!(database.count("SELECT count(*) FROM messages"), messages);
    assert_eq!(database.count("SELECT count(*) FROM copies"), copies);
    assert_eq!(database.count("SELECT count(*) FROM copies WHERE state = 'delivered'"), copies);
    assert_eq!(database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    each_change_was_reported_once(database);
}

/// A script on a mail host that kills this site's processes, one at a time: any program that runs then, or its pipe(8).
struct Killer {
    script: Child,
    kills: Arc<AtomicUsize>,
}

impl Killer {
    fn start(host: &Postfix, config: &str) -> Self {
        let mut command = host.command(&["bash", "-c", KILL_NOW_AND_THEN, "bash", config]);
        let mut script = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let kills = Arc::new(AtomicUsize::new(0));
        let (log_lines, count) = (BufReader::new(script.stdout.take().unwrap()), kills.clone());
        std::thread::spawn(move || {
            for _ in log_lines.lines() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self { script, kills }
    }

    fn kills(&self) -> usize {
        self.kills.load(Ordering::SeqCst)
    }

    fn end(mut self) {
        drop(self.script.stdin.take());
        wait_until("the killer ends", || self.script.try_wait().unwrap().is_some());
    }
}

/// Says each; until its stdin ends.
const KILL_NOW_AND_THEN: &str = r#"
    while :; do
        printf -v pause '0.%03d' $((1 + RANDOM % 200))
        # More than 128: nothing came in that time (bash(1), read -t).
        # (0 would not wait.)
        read -r -t "$pause" || [ $? -gt 128 ] || exit 0
        running=()
        for file in /proc/[0-9]*/cmdline; do
            mapfile -d '' -t words 2>/dev/null <"$file" || continue
            # (Not pipe(8), whose own arguments name them all: many of those are idle.)
            [[ "${words[0]-}" == */maildrop_command && " ${words[*]} " == *" --config=$1 "* ]] || continue
            running+=("${file//[^0-9]/}")
        done
        if [ ${#running[@]} -gt 0 ]; then
            process=${running[RANDOM % ${#running[@]}]}
            if [ $((RANDOM % 2)) = 0 ]; then
                # proc(5), /proc/pid/stat: pid (name) state parent. It may have ended, or its pipe(8) may have.
                read -r _ _ _ parent _ 2>/dev/null <"/proc/$process/stat" || continue
                read -r name 2>/dev/null <"/proc/$parent/comm" || continue
                [ "$name" = pipe ] || continue
                process=$parent
            fi
            ! kill -KILL "$process" 2>/dev/null || echo "$process"
        fi
    done
"#;
