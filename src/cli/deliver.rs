//! `deliver`: the message on standard input, to one envelope recipient.
//!
//! Every path through here ends in one [`Verdict`]. In doubt that is 75.

use super::{complain, duration};
use crate::config::Config;
use crate::core_dumps;
use crate::deadline::Deadline;
use crate::delivery::verdict::{self, StatusDetail, Verdict};
use crate::delivery::{Deferral, Delivered, Refusal, Stages};
use crate::embedded::Embedded;
use crate::log;
use crate::message::{Address, EnvelopeSender, Message};
use crate::site::{Envelope, Site};
use crate::watchdog::Watchdog;
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use sysexits::ExitCode;
use tracing::{info, warn};

/// The deadline where none is configured, in seconds: far below Postfix's limit of 1000 s, past which it bounces.
const DEADLINE: Duration = Duration::from_mins(4);

/// Postfix's limit where no configuration says otherwise (`command_time_limit`, `<transport>_time_limit`).
const POSTFIX_TIME_LIMIT: Duration = Duration::from_secs(1000);

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE", conflicts_with = "embedded")]
    config: Option<PathBuf>,
    /// Deliver on this one machine, into Maildirs and an SQLite ledger under DIR, with no configuration; the log is
    /// DIR/delivery.log
    #[arg(long, value_name = "DIR")]
    embedded: Option<PathBuf>,
    /// The envelope sender: ${sender}; empty, `<>` or MAILER-DAEMON for the null sender. Otherwise $SENDER (local(8))
    #[arg(long, value_name = "ADDRESS", allow_hyphen_values = true)]
    sender: Option<OsString>,
    /// The envelope recipient: ${recipient}. Otherwise $RECIPIENT (local(8))
    #[arg(long, value_name = "ADDRESS", allow_hyphen_values = true)]
    recipient: Option<OsString>,
    /// The recipient before rewriting: ${original_recipient}
    #[arg(long, value_name = "ADDRESS", allow_hyphen_values = true)]
    original_recipient: Option<OsString>,
    /// Take the recipient from the topmost line of this name (only with pipe flag D: otherwise the sender chooses it)
    #[arg(long, value_name = "NAME")]
    recipient_header: Option<String>,
    /// Postfix's queue id: ${queue_id}
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    queue_id: Option<OsString>,
    /// The address of the SMTP client: ${client_address}
    #[arg(long, value_name = "IP", allow_hyphen_values = true)]
    client_address: Option<OsString>,
    /// The name that the SMTP client logged in with: ${sasl_username}
    #[arg(long, value_name = "USER", allow_hyphen_values = true)]
    sasl_username: Option<OsString>,
    /// How long to wait for a lock held elsewhere, like 30s [default: lock.wait of the configuration, otherwise none]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lock_wait: Option<Duration>,
    /// When to give up and exit 75, like 240s; below Postfix's own time limit, past which it bounces
    /// [default: delivery.deadline of the configuration, otherwise 240s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    deadline: Option<Duration>,
    /// What to log: error, warn, info, debug or trace [default: log.level of the configuration, otherwise info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<log::Level>,
    /// Say what would be done, deliver nothing, and exit 75
    #[arg(long)]
    dry_run: bool,
}

/// Delivers, reports, and returns the status to exit with.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let began = Instant::now();
    let too_late = Verdict::deferred(StatusDetail::CONGESTION, "the delivery took too long");
    let watchdog = match Watchdog::start(arguments.deadline.unwrap_or(DEADLINE), too_late) {
        Ok(watchdog) => watchdog,
        Err(_) => return verdict::report(&Verdict::deferred(StatusDetail::SYSTEM, "out of threads")),
    };
    verdict::report(&attempt(arguments, began, &watchdog))
}

fn attempt(arguments: &Arguments, began: Instant, watchdog: &Watchdog) -> Verdict {
    let misconfigured = |text: &str| Verdict::deferred(StatusDetail::SYSTEM_CONFIGURATION, text);

    // Where to.
    let (site, log_settings, deadline, bounced_at, size_limit) = match (&arguments.config, &arguments.embedded) {
        (Some(file), _) => match Config::load(file) {
            Ok(config) => {
                let deadline = arguments.deadline.unwrap_or(config.delivery.deadline);
                let (log, size_limit) = (config.log_settings(), config.delivery.message_size_limit);
                let bounced_at = config.delivery.postfix_time_limit;
                match Site::configured(config) {
                    Ok(site) => (site, log, deadline, bounced_at, size_limit),
                    Err(error) => return misconfigured(&error.to_string()),
                }
            }
            Err(error) => return misconfigured(&error.to_string()),
        },
        // Under pipe(8) the working directory is Postfix's queue.
        (None, Some(directory)) if !directory.is_absolute() => {
            return misconfigured("--embedded wants the whole path of the directory, from / on");
        }
        (None, Some(directory)) => {
            let log = log::Settings {
                target: log::Target::File(directory.join("delivery.log")),
                level: log::Level::Info,
                format: log::Format::Text,
            };
            if let Err(error) = crate::embedded::create_directory(directory) {
                return misconfigured(&format!("{}: {error}", directory.display()));
            }
            let deadline = arguments.deadline.unwrap_or(DEADLINE);
            (Site::embedded(Embedded::new(directory.clone())), log, deadline, POSTFIX_TIME_LIMIT, None)
        }
        // A forgotten option must not swallow mail into a folder.
        (None, None) => return misconfigured("neither --config FILE nor --embedded DIR is given"),
    };
    let mut policy = site.policy();
    policy.lock_wait = arguments.lock_wait.unwrap_or(policy.lock_wait);
    if deadline >= policy.settle {
        let settle = humantime::format_duration(policy.settle);
        let text =
            format!("--deadline is not below {settle} (imap.settle), by which an earlier attempt's APPEND has landed");
        return misconfigured(&text);
    }
    if deadline >= bounced_at {
        return misconfigured(
            "--deadline is not below Postfix's time limit, at which it kills the delivery and bounces",
        );
    }
    watchdog.move_to(deadline.saturating_sub(began.elapsed()));
    let deadline = Deadline::after(deadline.saturating_sub(began.elapsed()));
    let log_settings = log::Settings { level: arguments.log_level.unwrap_or(log_settings.level), ..log_settings };
    if let Err(error) = log::start(&log_settings) {
        return misconfigured(&format!("the log: {error}"));
    }
    if core_dumps::are_possible() {
        warn!("core dumps could not be switched off: one of this process would hold passwords");
    }

    // What. Read to its end, always: Postfix takes exit 0 for delivered, whether anybody has read the message or not.
    let message = match receive(size_limit) {
        Ok(message) => message,
        Err(verdict) => {
            warn!(verdict = %verdict, "no message");
            return verdict;
        }
    };
    let envelope = match envelope(arguments, &message) {
        Ok(envelope) => envelope,
        Err(problem) => {
            warn!(problem, "no envelope");
            return misconfigured(&problem);
        }
    };
    if message.nul_bytes_replaced() > 0 {
        warn!(
            message_id = message.message_id_for_people(),
            nul_bytes = message.nul_bytes_replaced(),
            "NUL bytes, which an IMAP literal cannot carry, were replaced by 0x80"
        );
    }

    if arguments.dry_run {
        return dry_run(&site, &message, &envelope, deadline);
    }
    let mut stages = Stages::default();
    #[cfg(feature = "test-faults")]
    crate::fault::at("before");
    let result = site.deliver(&message, &envelope, &policy, deadline, &mut stages);
    #[cfg(feature = "test-faults")]
    crate::fault::at("after");
    let verdict = match &result {
        Ok(delivered) => Verdict::from(delivered),
        Err(refusal) => Verdict::from(refusal),
    };
    tell(&message, &envelope, &result, &verdict, &stages, began);
    verdict
}

/// Reads the message from standard input.
fn receive(size_limit: Option<u64>) -> Result<Message, Verdict> {
    if std::io::stdin().is_terminal() {
        // No pipe of Postfix's: somebody tries it by hand, and waits.
        complain("reading the message from the terminal; end it with Ctrl-D, or give a file: … < message.eml");
    }
    let mut raw = Vec::new();
    let limit = size_limit.unwrap_or(u64::MAX);
    let read = std::io::stdin().lock().take(limit.saturating_add(1)).read_to_end(&mut raw);
    if let Err(error) = read {
        return Err(Verdict::deferred(StatusDetail::SYSTEM, format!("reading the message: {error}")));
    }
    if raw.len() as u64 > limit {
        return Err(Verdict::too_big(format!("the message is larger than the {limit} bytes allowed here")));
    }
    Message::receive(raw).map_err(|error| Verdict::deferred(StatusDetail::SYSTEM, error.to_string()))
}

/// Who sends it and to whom, from the options; then from a header, where the operator says so; then from what local(8)
/// sets.
fn envelope(arguments: &Arguments, message: &Message) -> Result<Envelope, String> {
    let text = |value: &Option<OsString>| {
        value.as_deref().map(OsStr::to_string_lossy).filter(|value| !value.is_empty()).map(String::from)
    };
    let from_environment = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let recipient = match (text(&arguments.recipient), &arguments.recipient_header) {
        (Some(recipient), _) => recipient,
        (None, Some(name)) => message
            .topmost(name)
            .ok_or_else(|| format!("the message has no {name} line: does master.cf have pipe flag D?"))?,
        (None, None) => from_environment("RECIPIENT").ok_or("no envelope recipient: give --recipient ${recipient}")?,
    };
    let recipient = Address::parse(&recipient).map_err(|error| format!("the envelope recipient: {error}"))?;
    let sender = arguments.sender.as_deref().map(|sender| sender.to_string_lossy().into_owned());
    let sender = sender
        .or_else(|| from_environment("SENDER"))
        .ok_or("no envelope sender: give --sender ${sender}, empty for the null sender")?;
    // The sender is for the record only: one that cannot be read must not hold up a message.
    let sender = match EnvelopeSender::parse(&sender) {
        Ok(sender) => sender.to_string(),
        Err(_) => sender.chars().filter(|c| !c.is_control()).take(320).collect(),
    };
    Ok(Envelope {
        sender,
        recipient,
        original_recipient: text(&arguments.original_recipient),
        queue_id: text(&arguments.queue_id),
        client_address: text(&arguments.client_address),
        sasl_username: text(&arguments.sasl_username),
    })
}

/// One record for one delivery. With Postfix's queue id in it, one search crosses both logs.
fn tell(
    message: &Message,
    envelope: &Envelope,
    result: &Result<Delivered, Refusal>,
    verdict: &Verdict,
    stages: &Stages,
    began: Instant,
) {
    // To the hundredth: most stages take less than one.
    let milliseconds = |span: Duration| (span.as_secs_f64() * 100_000.0).round() / 100.0;
    macro_rules! record {
        ($level:ident, $text:literal, $($field:tt)*) => {
            $level!(
                queue_id = envelope.queue_id.as_deref().unwrap_or_default(),
                message_id = message.message_id_for_people(),
                recipient = %envelope.recipient,
                original_recipient = envelope.original_recipient.as_deref().unwrap_or_default(),
                sender = envelope.sender,
                client_address = envelope.client_address.as_deref().unwrap_or_default(),
                sasl_username = envelope.sasl_username.as_deref().unwrap_or_default(),
                size = message.size(),
                verdict = %verdict,
                connect_ms = milliseconds(stages.connect),
                route_ms = milliseconds(stages.route),
                authenticate_ms = milliseconds(stages.authenticate),
                position_ms = milliseconds(stages.position),
                journal_ms = milliseconds(stages.journal),
                lock_ms = milliseconds(stages.lock),
                look_ms = milliseconds(stages.look),
                append_ms = milliseconds(stages.append),
                record_ms = milliseconds(stages.record),
                total_ms = milliseconds(began.elapsed()),
                $($field)*
                $text
            )
        };
    }
    match result {
        Ok(_) => record!(info, "delivered",),
        Err(refusal @ Refusal::Deferred(Deferral::Busy(holder))) => {
            let holder = holder.clone().unwrap_or_default();
            record!(
                info,
                "deferred",
                cause = %refusal,
                holder_host = holder.host,
                holder_pid = holder.pid,
                holder_queue_id = holder.queue_id,
                holder_session = holder.session,
                held_for_s = holder.held_for.map(|held_for| held_for.as_secs()),
            );
        }
        Err(refusal @ Refusal::Deferred(_)) => record!(warn, "deferred", cause = %refusal,),
        Err(refusal) => record!(warn, "refused", cause = %refusal,),
    }
}

/// Says what a delivery would do. It delivers nothing, so it exits 75, like any delivery that did not happen: in a
/// master.cf by mistake, it must not lose mail.
fn dry_run(site: &Site, message: &Message, envelope: &Envelope, deadline: Deadline) -> Verdict {
    match site.plan(message, envelope, deadline) {
        Ok(plan) => Verdict::deferred(StatusDetail::UNDEFINED, format!("dry run, nothing done: {}", plan.join("; "))),
        Err(refusal) => Verdict::from(&refusal),
    }
}
