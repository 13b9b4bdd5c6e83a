//! The metrics for Prometheus, named by its conventions: base units, `_total` for counters
//! (<https://prometheus.io/docs/practices/naming/>). All names begin with `maildropd_`. Those of `maildrop_command stats`, for
//! all hosts and from the ledger, begin with `maildrop_`.
//!
//! Labels have few values: no address, no queue id, nothing that a client chooses.

use crate::base::exposition::{Exposition, MetricType};
use crate::base::timestamp::{now, read_exact};
use crate::protocol::control::{Ends, Process, Role, State, Status};
use crate::service::broker::sockets::Report;
use crate::service::counters::{ENDS_MS, Spans, Traffic};
use crate::service::disk_figures::DiskFigures;
use crate::service::lmtp::LmtpCounters;
use std::fmt::Display;
use std::iter::once;

/// All figures of one moment.
#[derive(Debug)]
pub(super) struct Figures {
    pub report: Report,
    pub lmtp: LmtpCounters,
    pub max_connections: usize,
    pub service: Option<Status>,
    pub disk: DiskFigures,
}

impl Figures {
    pub(super) fn text(&self) -> String {
        let mut sheet = Sheet::default();
        let build = once((vec![("version", env!("CARGO_PKG_VERSION"))], 1.0));
        sheet.gauges("build_info", "The program that runs.", build);
        self.traffic(&mut sheet);
        self.broker(&mut sheet);
        self.lmtp(&mut sheet);
        self.disk(&mut sheet);
        if let Some(service) = &self.service {
            master(service, &mut sheet);
        }
        sheet.0.into_text()
    }
}

/// The labels of a sample.
type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Writes one metric family after the other.
#[derive(Default)]
struct Sheet(Exposition);

impl Sheet {
    fn family<'a>(
        &mut self,
        name: &str,
        kind: MetricType,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'a>, impl Display)>,
    ) {
        let name = format!("maildropd_{name}");
        self.0.family(&name, kind, help);
        for (labels, value) in samples {
            self.0.sample(&name, &labels, value);
        }
    }

    /// Writes counters. The name gets `_total`.
    fn counters<'a>(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Labels<'a>, u64)>) {
        self.family(&format!("{name}_total"), MetricType::Counter, help, samples);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.counters(name, help, once((vec![], value)));
    }

    fn gauges<'a>(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Labels<'a>, f64)>) {
        self.family(name, MetricType::Gauge, help, samples);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.gauges(name, help, once((vec![], value)));
    }

    /// Writes histograms of durations. The name gets `_seconds`.
    fn spans<'a, 'b>(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Labels<'a>, &'b Spans)>) {
        let name = format!("maildropd_{name}_seconds");
        self.0.family(&name, MetricType::Histogram, help);
        let ends = ENDS_MS.map(|end| format!("{:?}", end as f64 / 1000.0));
        let ends: Vec<&str> = ends.iter().map(String::as_str).chain(["+Inf"]).collect();
        for (labels, spans) in samples {
            let mut count = 0;
            for (end, in_bucket) in ends.iter().zip(spans.buckets.iter().chain([&spans.longer])) {
                count += in_bucket;
                let labels = [&[("le", *end)], labels.as_slice()].concat();
                self.0.sample(&format!("{name}_bucket"), &labels, count);
            }
            self.0.sample(&format!("{name}_sum"), &labels, spans.sum.as_secs_f64());
            self.0.sample(&format!("{name}_count"), &labels, count);
        }
    }
}

impl Figures {
    /// The traffic of each transport. Zeros are written too, so that a rate is known from the first message on.
    fn traffic(&self, sheet: &mut Sheet) {
        let none = Traffic::default();
        let of = |way| self.report.counters.traffics.get(way).unwrap_or(&none);
        let all = || {
            let clients = ["command", "queue", "shunt"].map(|way| (way, of(way)));
            once(("lmtp", &self.lmtp.traffic)).chain(clients)
        };
        let each = |count: fn(&Traffic) -> u64| all().map(move |(way, it)| (vec![("via", way)], count(it)));
        sheet.counters("received_messages", "Messages received completely, by transport.", each(|it| it.messages));
        let help = "Recipients of messages that came in whole: each is owed one reply.";
        sheet.counters("received_recipients", help, each(|it| it.recipients));
        sheet.counters("received_bytes", "Size of the messages that came in whole.", each(|it| it.bytes));
        let replies = all().flat_map(|(way, it)| {
            it.replies.iter().map(move |(code, number)| {
                (vec![("via", way), ("outcome", outcome(code)), ("code", code.as_str())], *number)
            })
        });
        let help = "Replies, one for each recipient of each message, by transport and enhanced status code (RFC 3463).";
        sheet.counters("replies", help, replies);
        let help = "Time from the end of a message to the replies for its recipients.";
        sheet.spans("reply_duration", help, all().map(|(way, it)| (vec![("via", way)], &it.durations)));
    }

    fn broker(&self, sheet: &mut Sheet) {
        let Report { gauges, counters, .. } = &self.report;
        let at_worker = gauges.in_work;
        let stages = [("unconfirmed", gauges.held), ("waiting", gauges.queued), ("at_worker", at_worker)];
        let help = "Messages that are not answered yet: their client has yet to say Go, they wait for a worker, or are at one.";
        sheet.gauges("messages_in_progress", help, stages.map(|(stage, n)| (vec![("stage", stage)], n as f64)));

        let workers = || self.service.iter().flat_map(|it| &it.processes).filter(|it| it.role == Role::Worker);
        let throttled = workers().filter(|it| it.throttled && !it.ready).count();
        let starting = workers().filter(|it| !it.throttled && !it.ready).count();
        let states = [
            ("ready", gauges.ready),
            ("busy", gauges.busy),
            ("silent", gauges.silent),
            ("starting", starting),
            ("throttled", throttled),
        ];
        let help = "Workers by what they do: starting and throttled as the master has it, the others as the broker hears them.";
        sheet.gauges("workers", help, states.map(|(state, n)| (vec![("state", state)], n as f64)));
        sheet.spans("worker_wait", "How long messages waited for a worker.", once((vec![], &counters.waits)));
        let logins = [("database", counters.logins.database), ("imap", counters.logins.imap)];
        let help = "Sessions that workers have opened, with the database and with the IMAP server.";
        sheet.counters("opened_sessions", help, logins.map(|(server, n)| (vec![("server", server)], n)));
        let answers = [("wrong", counters.wrong_answers), ("late", counters.late_answers)];
        let help = "Answers of workers that were none: to another request (wrong), or to nothing that they had (late).";
        sheet.counters("ignored_worker_answers", help, answers.map(|(why, n)| (vec![("why", why)], n)));
        let help = "Messages that have crashed one worker: they are tried one at a time.";
        sheet.gauge("suspect_messages", help, gauges.suspects as f64);
        for (name, help, value) in [
            ("dispatched_messages", "Messages dispatched to a worker.", counters.dispatched),
            (
                "excluded_recipients",
                "Recipients deferred since too many messages for them were delivered at once.",
                counters.excluded_recipients,
            ),
            ("worker_wait_timeouts", "Messages deferred since no worker was free in time.", counters.waited_too_long),
            ("lost_workers", "Workers that ended or hung while they had a message.", counters.workers_lost),
            ("missed_heartbeats", "Heartbeats of workers that did not come, one a second.", counters.missed_heartbeats),
            ("withdrawn_requests", "Requests whose client left before a worker had them.", counters.dropped),
            ("refused_requests", "Clients cut off for a request that makes no sense.", counters.refused_requests),
            (
                "shunted_messages",
                "Messages that were shunted, since they had crashed two workers.",
                counters.newly_shunted,
            ),
            (
                "refused_shunted_messages",
                "Tries of shunted messages that were answered 451 at once, without a worker.",
                counters.refused_shunted,
            ),
        ] {
            sheet.counter(name, help, value);
        }
    }

    fn lmtp(&self, sheet: &mut Sheet) {
        let LmtpCounters { open, accepted, sent_away, refused, .. } = &self.lmtp;
        let of = |socket: &'static str| vec![("socket", socket)];
        let now = SOCKETS.map(|socket| (of(socket), open.get(socket).copied().unwrap_or_default() as f64));
        sheet.gauges("lmtp_connections", "LMTP connections that are open.", now);
        let limit = SOCKETS.map(|socket| (of(socket), self.max_connections as f64));
        sheet.gauges("lmtp_connections_limit", "How many may be open at once (service.max_connections).", limit);
        let so_far = SOCKETS.map(|socket| (of(socket), accepted.get(socket).copied().unwrap_or_default()));
        sheet.counters("lmtp_accepted_connections", "LMTP connections that were accepted.", so_far);
        let help = "LMTP connections that were not served: who may not connect, or too many that have yet to show a certificate.";
        sheet.counter("lmtp_refused_connections", help, *sent_away);
        let refused =
            refused.iter().map(|((command, code), n)| (vec![("command", *command), ("code", code.as_str())], *n));
        let help = "LMTP commands that were refused, by enhanced status code. What is refused after DATA is a reply.";
        sheet.counters("lmtp_refused_commands", help, refused);
    }

    fn disk(&self, sheet: &mut Sheet) {
        let DiskFigures { queue, memory, .. } = &self.disk;
        let folders: Vec<(String, _)> = queue.iter().flatten().map(|(state, it)| (state.to_string(), it)).collect();
        let messages = folders.iter().map(|(state, it)| (vec![("state", state.as_str())], it.messages as f64));
        sheet.gauges("queue_messages", "Messages in the file queue, by folder; and those that are shunted.", messages);
        let oldest =
            folders.iter().filter_map(|(state, it)| Some((vec![("state", state.as_str())], seconds(it.oldest?))));
        let help = "When the oldest message of each folder of the file queue was accepted, or first crashed a worker. Not there where there is none.";
        sheet.gauges("queue_oldest_message_timestamp_seconds", help, oldest);
        let help = "Whether the file queue could be read.";
        sheet.gauge("queue_readable", help, f64::from(u8::from(queue.is_some())));
        let numbers: Vec<(Role, String, u64)> =
            memory.iter().map(|(role, n, it)| (*role, n.to_string(), *it)).collect();
        let memory = numbers
            .iter()
            .map(|(role, number, memory)| (vec![("role", role.as_str()), ("number", number.as_str())], *memory as f64));
        sheet.gauges("process_resident_memory_bytes", "Memory of each process of the service.", memory);
    }
}

/// The kinds of sockets that accept LMTP.
const SOCKETS: [&str; 2] = ["unix", "tcp"];

/// The figures of the master.
fn master(service: &Status, sheet: &mut Sheet) {
    let states = State::ALL.map(|state| (vec![("state", state.as_str())], f64::from(u8::from(state == service.state))));
    sheet.gauges("service_state", "How the service is as a whole: 1 for the state that it is in.", states);
    let started = now() as f64 / 1e6 - service.up_s;
    sheet.gauge("service_start_time_seconds", "When the master began, since 1970.", started.round());
    let roles = Role::ALL;
    let of = |role: Role, which: fn(&&Process) -> bool| {
        service.processes.iter().filter(|it| it.role == role).filter(which).count() as f64
    };
    let count = |which: fn(&&Process) -> bool| roles.map(|role| (vec![("role", role.as_str())], of(role, which)));
    sheet.gauges("processes", "Processes that there are to be, by role.", count(|_| true));
    let help = "Processes that died so often that they are started once a minute only.";
    sheet.gauges("throttled_processes", help, count(|it| it.throttled));
    let counted = |role: &Role| service.counted.roles.get(role);
    let started = roles.iter().map(|role| (vec![("role", role.as_str())], counted(role).map_or(0, |it| it.started)));
    sheet.counters("started_processes", "Processes that the master has started.", started);
    let ended = service.counted.roles.iter().flat_map(|(role, Ends { ended, .. })| {
        ended.iter().map(|(how, n)| (vec![("role", role.as_str()), ("how", how.as_str())], *n))
    });
    let help = "Processes that have ended: asked to, done with their share, killed by the master, by exit status or by signal.";
    sheet.counters("ended_processes", help, ended);
    let tasks = || service.timer.iter();
    let failed = tasks().map(|task| (vec![("task", task.task.as_str())], f64::from(task.failed_runs)));
    sheet.gauges("timer_failed_runs", "Runs of the timer's tasks that have failed since one went well.", failed);
    let at = tasks()
        .filter_map(|task| Some((vec![("task", task.task.as_str())], seconds(read_exact(&task.last.as_ref()?.at)?))));
    sheet.gauges("timer_last_run_timestamp_seconds", "When the last run of a task began that has ended.", at);
    let taken_over = f64::from(u8::from(service.counted.configuration_is_applied));
    let help = "Whether the configuration file was taken over when it was last read.";
    sheet.gauge("config_last_reload_successful", help, taken_over);
    let at = read_exact(&service.counted.configuration_taken_over_at).map_or(0.0, seconds);
    let help = "When a configuration was last taken over, since 1970.";
    sheet.gauge("config_last_reload_success_timestamp_seconds", help, at);
}

/// The class of an enhanced status code (RFC 3463 section 2).
fn outcome(code: &str) -> &'static str {
    match code.as_bytes().first() {
        Some(b'2') => "delivered",
        Some(b'5') => "refused",
        _ => "deferred",
    }
}

fn seconds(microseconds: i64) -> f64 {
    microseconds as f64 / 1e6
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
