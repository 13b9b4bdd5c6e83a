//! `deliver`: the message on standard input, to one envelope recipient.
//!
//! Every path through this module ends in one [`Verdict`]. In doubt that is a deferral (75).

use super::incoming;
use super::person::{is_at_terminal, notify_person, report_waits};
use super::standard_streams::StandardStreams;
use super::via;
use crate::base::core_dumps;
use crate::base::deadline::{self, Deadline};
use crate::base::log;
use crate::base::timestamp::duration;
use crate::config::DatabaseRole;
use crate::delivery::{Deferral, Refusal, Stages, StatusDetail, Verdict};
use crate::message::{Address, EnvelopeSender, Message};
use crate::pipe::deadline_watchdog::Watchdog;
use crate::pipe::report;
use crate::protocol::client::socket_path;
use crate::site::{self, Envelope, Sessions, Setup, Site, Terms};
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sysexits::ExitCode;
use tracing::{info, warn};

#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct Arguments {
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
    /// How long to wait for a lock held elsewhere, like 10s; 0s: not at all [default: lock.wait of the configuration,
    /// otherwise 30s, and at most half of the deadline]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lock_wait: Option<Duration>,
    /// When to give up and exit 75, like 240s; below Postfix's own time limit, past which it bounces
    /// [default, and most: delivery.deadline of the configuration; with --embedded the default is 240s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    deadline: Option<Duration>,
    /// What to log: error, warn, info, debug or trace [default: log.level of the configuration, otherwise info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<log::Level>,
    /// Hand the message over to the running service (maildropd) by its socket: the whole path of clients.sock in
    /// service.runtime_directory. Where the service does not take the message, it is delivered from here, as without this option
    #[arg(long, value_name = "SOCKET", value_parser = socket_path)]
    via: Option<PathBuf>,
    /// With --via: where the service does not take the message, exit 75 and deliver nothing from here
    #[arg(long, requires = "via")]
    via_only: bool,
    /// Say what would be done, deliver nothing, and exit 75
    #[arg(long)]
    dry_run: bool,
}

/// Delivers, reports, and returns the status to exit with.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let began = Instant::now();
    let too_late = Verdict::deferred(StatusDetail::CONGESTION, "the delivery took too long");
    let watchdog = match Watchdog::start(arguments.deadline.unwrap_or(deadline::OF_A_DELIVERY), too_late) {
        Ok(watchdog) => watchdog,
        Err(_) => return report(&Verdict::deferred(StatusDetail::SYSTEM, "out of threads")),
    };
    let verdict = attempt(arguments, began, &watchdog);
    report(&if arguments.dry_run { nothing_done(verdict) } else { verdict })
}

fn attempt(arguments: &Arguments, began: Instant, watchdog: &Watchdog) -> Verdict {
    let misconfigured = |text: &str| Verdict::deferred(StatusDetail::SYSTEM_CONFIGURATION, text);

    let setting = match (&arguments.config, &arguments.embedded) {
        (Some(file), _) => Setup::configured(file, DatabaseRole::Deliveries),
        // pipe(8) runs a delivery in Postfix's queue directory.
        (None, Some(directory)) if directory.is_relative() && !is_at_terminal() => {
            return misconfigured(
                "--embedded DIR is relative: without a terminal, give the path from the root, such as /var/mail/DIR",
            );
        }
        (None, Some(directory)) => Setup::embedded(directory),
        // A forgotten option must not deliver mail into a folder.
        (None, None) => return misconfigured("neither --config FILE nor --embedded DIR is given"),
    };
    let Setup { place, created, log: log_settings, bounced_at, size_limit, deadline, append_grace } = match setting {
        Ok(setting) => setting,
        Err(problem) => return misconfigured(&problem),
    };
    let allowed = arguments.deadline.unwrap_or(deadline);
    // The difference between imap.append_grace and delivery.deadline covers an APPEND that lands late. `check` verifies that
    // difference, but cannot know this option.
    if !append_grace.is_zero() && allowed > deadline {
        let [deadline, append_grace] = [deadline, append_grace].map(humantime::format_duration);
        let text = format!(
            "--deadline is above delivery.deadline ({deadline}), which imap.append_grace ({append_grace}) goes by: raise both there"
        );
        return misconfigured(&text);
    }
    if allowed >= bounced_at {
        return misconfigured(
            "--deadline is not below Postfix's time limit, at which it kills the delivery and bounces",
        );
    }
    watchdog.move_to(allowed.saturating_sub(began.elapsed()));
    let deadline = Deadline::after(allowed.saturating_sub(began.elapsed()));
    let log_settings = log::Settings { level: arguments.log_level.unwrap_or(log_settings.level), ..log_settings };
    if let Err(error) = log::start(&log_settings) {
        return misconfigured(&format!("the log: {error}"));
    }
    if let Some(directory) = created {
        info!(directory = %directory.display(), "the directory was created");
        notify_person(&format!("{} is a new directory: no delivery was made there before", directory.display()));
    }
    if core_dumps::are_possible() {
        warn!("core dumps could not be switched off: one of this process would hold passwords");
    }

    // The service comes before the site, because it has already opened everything that a delivery needs.
    let mut left = None;
    if let Some(socket) = arguments.via.as_ref().filter(|_| !arguments.dry_run) {
        match by_the_service(arguments, socket, size_limit, deadline) {
            ControlFlow::Break(verdict) => return verdict,
            ControlFlow::Continue(message) => left = Some(message),
        }
    }

    let site = match place.site() {
        Ok(site) => site,
        Err(problem) => return misconfigured(&problem),
    };
    let mut policy = site.policy();
    policy.lock_wait = arguments.lock_wait.unwrap_or_else(|| site.lock_wait(allowed));

    // The message is always read to its end: for Postfix exit 0 means delivered, even if only a part was read.
    let received = left.map_or_else(|| incoming::read(size_limit).and_then(incoming::understood), Ok);
    let message = match received {
        Ok(message) => message,
        Err(verdict) => return no_message(verdict),
    };
    let envelope = match envelope(arguments, |name| message.topmost(name)) {
        Ok(envelope) => envelope,
        Err(problem) => return no_envelope(&problem),
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
    report_waits(&site);
    let mut stages = Stages::default();
    #[cfg(feature = "test-faults")]
    crate::base::fault_injection::at("before");
    let terms = Terms { policy: &policy, caller: &StandardStreams, deadline };
    let result = site.deliver(&mut Sessions::default(), &message, &envelope, &terms, &mut stages);
    #[cfg(feature = "test-faults")]
    crate::base::fault_injection::at("after");
    let verdict = match &result {
        Ok(delivered) => Verdict::from(delivered),
        Err(refusal) => {
            // The verdict may reach the sender, and names no server.
            notify_person(&refusal.to_string());
            Verdict::from(refusal)
        }
    };
    site::log_delivery(&message, &envelope, &site.lock_name(&message), &result, &verdict, &stages, began);
    verdict
}

/// Hands the message over to the service. `Break` has the verdict; `Continue` has the message, which this process must
/// deliver.
fn by_the_service(
    arguments: &Arguments,
    socket: &Path,
    size_limit: Option<u64>,
    deadline: Deadline,
) -> ControlFlow<Verdict, Message> {
    let raw = match incoming::read(size_limit) {
        Ok(raw) => raw,
        Err(verdict) => return ControlFlow::Break(no_message(verdict)),
    };
    // The service parses the message. This process parses a copy only if the recipient comes from `--recipient-header`.
    let topmost = |name: &str| Message::receive(raw.clone()).ok()?.topmost(name);
    let envelope = match envelope(arguments, topmost) {
        Ok(envelope) => envelope,
        Err(problem) => return ControlFlow::Break(no_envelope(&problem)),
    };
    let queue_id = envelope.queue_id.as_deref();
    let reason = match via::hand_over(socket, &envelope, arguments.lock_wait, &raw, &StandardStreams, deadline) {
        Ok(verdict) => return ControlFlow::Break(verdict),
        Err(reason) => reason,
    };
    if arguments.via_only {
        warn!(reason, queue_id, "the service did not take the message, which is deferred");
        let text = "the delivery service did not take the message";
        return ControlFlow::Break(Verdict::deferred(StatusDetail::NO_ANSWER, text));
    }
    warn!(reason, queue_id, "the service did not take the message, which is delivered without it");
    match incoming::understood(raw) {
        Ok(message) => ControlFlow::Continue(message),
        Err(verdict) => ControlFlow::Break(no_message(verdict)),
    }
}

fn no_message(verdict: Verdict) -> Verdict {
    warn!(verdict = %verdict, "no message");
    verdict
}

fn no_envelope(problem: &str) -> Verdict {
    warn!(problem, "no envelope");
    Verdict::deferred(StatusDetail::SYSTEM_CONFIGURATION, problem)
}

/// An option's value, if it is not empty: Postfix passes an option even if its macro is empty.
fn text(value: &Option<OsString>) -> Option<String> {
    value.as_deref().map(OsStr::to_string_lossy).filter(|value| !value.is_empty()).map(String::from)
}

/// Takes sender and recipient from the options, from a header if the operator asks for that, or from local(8)'s environment
/// variables.
fn envelope(arguments: &Arguments, topmost: impl FnOnce(&str) -> Option<String>) -> Result<Envelope, String> {
    let from_environment = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let recipient = match (text(&arguments.recipient), &arguments.recipient_header) {
        (Some(recipient), _) => recipient,
        (None, Some(name)) => {
            topmost(name).ok_or_else(|| format!("the message has no {name} line: does master.cf have pipe flag D?"))?
        }
        (None, None) => from_environment("RECIPIENT").ok_or("no envelope recipient: give --recipient ${recipient}")?,
    };
    let recipient = Address::parse(&recipient).map_err(|error| format!("the envelope recipient: {error}"))?;
    let sender = arguments.sender.as_deref().map(|sender| sender.to_string_lossy().into_owned());
    let sender = sender
        .or_else(|| from_environment("SENDER"))
        .ok_or("no envelope sender: give --sender ${sender}, empty for the null sender")?;
    Ok(Envelope {
        sender: Some(EnvelopeSender::for_the_record(&sender)),
        recipient,
        original_recipient: text(&arguments.original_recipient),
        queue_id: text(&arguments.queue_id),
        client_address: text(&arguments.client_address),
        sasl_username: text(&arguments.sasl_username),
    })
}

/// Reports what a delivery would do, and exits 75: a --dry-run left in master.cf by mistake must not lose mail.
fn dry_run(site: &Site, message: &Message, envelope: &Envelope, deadline: Deadline) -> Verdict {
    let planned = site
        .open_database(envelope.queue_id.as_deref(), deadline)
        .map_err(|error| Refusal::from(Deferral::Database(error)))
        .and_then(|mut database| site.plan(message, envelope, database.as_mut()));
    match planned {
        Ok(copies) => {
            let copies: Vec<String> = copies.iter().map(ToString::to_string).collect();
            Verdict::deferred(StatusDetail::UNDEFINED, format!("dry run, nothing done: {}", copies.join("; ")))
        }
        Err(refusal) => {
            notify_person(&refusal.to_string());
            Verdict::from(&refusal)
        }
    }
}

/// Makes any verdict of a dry run a deferral: Postfix keeps the message even if a delivery would have refused it.
fn nothing_done(verdict: Verdict) -> Verdict {
    match verdict.class() {
        4 => verdict,
        _ => Verdict::deferred(StatusDetail::UNDEFINED, format!("dry run, nothing done: {verdict}")),
    }
}
