//! The log goes to syslog, to journald or to a file. The log of a delivery never goes to stdout or stderr: Postfix reads both,
//! and sends what it reads to the message's sender. The subcommands for people report problems on stderr ([`to_stderr`]).
//!
//! Strangers write much of what is logged: a Message-ID, an address, a server's reply. So each record is one line, whatever its
//! values are. Control characters (newline and ESC among them) and those that change the direction of text are escaped. A value
//! that could look like another field is quoted. (tracing-subscriber escapes ESC, but not the newline in a `%` field or in the
//! message.)

#[cfg(any(test, feature = "test-properties"))]
pub mod property_tests;

use crate::base::files;
use crate::base::text_enum::text_enum;
use serde::Deserialize;
use std::ffi::CStr;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use syslog_tracing::{Facility, Options, Syslog};
use thiserror::Error;
use tracing::Metadata;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry};

const COMMAND: &CStr = c"maildrop_command";
const SERVICE: &CStr = c"maildropd";
/// The socket that syslog(3) sends to.
const SYSLOG_SOCKET: &str = "/dev/log";
/// The longest line of text, in bytes, but for the mark that ends a line that was cut. rsyslog and syslog-ng accept 8 KiB by
/// default.
const LONGEST_LINE: usize = 8000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub target: Target,
    /// The lowest severity that is written.
    pub level: Level,
    /// The format; journald has its own.
    pub format: Format,
}

/// Where records go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// syslog(3), facility mail: beside Postfix's own log.
    Syslog,
    /// systemd-journald, with each field as a field `MAILDROP_…`.
    Journald,
    /// A file, created with mode 0640 if it is missing. Each record is appended with one write(2).
    File(PathBuf),
}

text_enum! {
    /// The severity of a record.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Level {
        /// A promise is in danger, or an operator has to act.
        Error = "error",
        /// The operation succeeded, but something is wrong.
        Warn = "warn",
        /// What happened to a message.
        #[default]
        Info = "info",
        /// How it happened.
        Debug = "debug",
        /// Every step.
        Trace = "trace",
    }
}

/// The form of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// `INFO delivered queue_id=4bXyz recipient=doug@mail.axial.net`
    #[default]
    Text,
    /// A JSON object.
    Json,
}

/// Why the log cannot be set up.
#[derive(Debug, Error)]
pub enum LogError {
    /// The file cannot be opened for appending.
    #[error("opening the log file {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// The log service is not listening.
    #[error("reaching {service}: {source}")]
    Unreachable {
        /// `syslog at /dev/log` or `journald`.
        service: &'static str,
        source: io::Error,
    },
    /// This process has a log already.
    #[error("setting up the log: this process has one already")]
    Twice,
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| format!("the log level {text:?} is none of {}", Self::TEXTS.join(", ")))
    }
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => Self::ERROR,
            Level::Warn => Self::WARN,
            Level::Info => Self::INFO,
            Level::Debug => Self::DEBUG,
            Level::Trace => Self::TRACE,
        }
    }
}

/// Starts the log of this process. Before that, and after an error, records are dropped.
///
/// # Errors
/// If the file cannot be opened, the log service cannot be reached, or a log was started before. There is no fall-back: the
/// caller decides what to do without a log.
pub fn start(settings: &Settings) -> Result<(), LogError> {
    start_as(COMMAND, settings)
}

/// Starts the log of a process of the service.
///
/// # Errors
/// As for [`start`].
pub(crate) fn start_of_service(settings: &Settings) -> Result<(), LogError> {
    start_as(SERVICE, settings)
}

fn start_as(name: &'static CStr, settings: &Settings) -> Result<(), LogError> {
    let format = settings.format;
    let layer = match &settings.target {
        Target::Syslog => {
            // syslog(3) drops records silently if no service listens.
            std::fs::metadata(SYSLOG_SOCKET)
                .map_err(|source| LogError::Unreachable { service: "syslog at /dev/log", source })?;
            syslog_layer(name, Options::LOG_PID, format)?
        }
        Target::Journald => journald_layer(name)?,
        Target::File(path) => file_layer(path, format)?,
    };
    let level = LevelFilter::from(settings.level);
    tracing::subscriber::set_global_default(Registry::default().with(layer.with_filter(level)))
        .map_err(|_| LogError::Twice)
}

/// Starts the log of a subcommand for people: lines on stderr, of this level and of all more severe ones. No configuration can
/// select this log, so no delivery can get it.
///
/// # Errors
/// If this process has a log already.
pub(crate) fn to_stderr(level: Level) -> Result<(), LogError> {
    let layer = written(io::stderr, Format::Text, false).with_filter(LevelFilter::from(level));
    tracing::subscriber::set_global_default(Registry::default().with(layer)).map_err(|_| LogError::Twice)
}

/// Makes each panic a record of the log. The hook neither prints nor ends the process, since it also runs for panics that are
/// caught.
pub(crate) fn panic_hook() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map_or_else(|| "?".to_owned(), ToString::to_string);
        let thread = std::thread::current().name().unwrap_or("?").to_owned();
        let text = panic.payload_as_str().unwrap_or("?");
        tracing::error!(location, thread, panic = text, "a bug: panicked");
    }));
}

type AnyLayer = Box<dyn Layer<Registry> + Send + Sync>;

fn syslog_layer(name: &'static CStr, options: Options, format: Format) -> Result<AnyLayer, LogError> {
    let syslog = Syslog::new(name, options, Facility::Mail).ok_or(LogError::Twice)?;
    // syslogd adds the time.
    Ok(written(syslog, format, false))
}

fn journald_layer(name: &'static CStr) -> Result<AnyLayer, LogError> {
    let layer = tracing_journald::layer().map_err(|source| LogError::Unreachable { service: "journald", source })?;
    Ok(layer
        .with_syslog_identifier(name.to_string_lossy().into_owned())
        .with_field_prefix(Some("MAILDROP".into()))
        // Facility mail is 2 (RFC 5424 section 6.2.1).
        .with_custom_fields([("SYSLOG_FACILITY", "2")])
        .boxed())
}

fn file_layer(path: &Path, format: Format) -> Result<AnyLayer, LogError> {
    let file = open_log(path).map_err(|source| LogError::File { path: path.to_owned(), source })?;
    let file = Arc::new(Mutex::new(Arc::new(file)));
    // A process has one log. A test that makes a second layer still reopens the first file.
    let _ = LOG_FILE.set((path.to_owned(), Arc::clone(&file)));
    Ok(written(AppendTo(file), format, true))
}

/// The file that this process logs to, and its path.
static LOG_FILE: OnceLock<(PathBuf, Arc<Mutex<Arc<File>>>)> = OnceLock::new();

/// Opens the log file again after logrotate(8) has moved it. syslog and journald do not need this.
///
/// # Errors
/// If the file cannot be opened. Records continue to go to the file that was open.
pub(crate) fn reopen() -> Result<(), LogError> {
    let Some((path, open)) = LOG_FILE.get() else { return Ok(()) };
    let file = open_log(path).map_err(|source| LogError::File { path: path.clone(), source })?;
    *open.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(file);
    Ok(())
}

/// Opens or creates the file, which belongs to the owner of its folder. If an administrator's first `replay` or `check` left a
/// file owned by root, every later delivery would be deferred.
fn open_log(path: &Path) -> io::Result<File> {
    files::open_to_append(path, 0o640)
}

fn written<W>(writer: W, format: Format, time: bool) -> AnyLayer
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // Without `log_internal_errors(false)`, tracing-subscriber reports a record that it cannot write with eprintln!. That text
    // would go to Postfix, or the macro would panic if stderr is closed.
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_target(false)
        .log_internal_errors(false)
        .with_writer(OneLine { inner: writer, format });
    match (format, time) {
        (Format::Text, true) => layer.fmt_fields(QuotedFields).boxed(),
        (Format::Text, false) => layer.fmt_fields(QuotedFields).without_time().boxed(),
        (Format::Json, true) => layer.json().flatten_event(true).with_span_list(false).boxed(),
        (Format::Json, false) => layer.json().flatten_event(true).with_span_list(false).without_time().boxed(),
    }
}

/// The log file, in append mode. Each record is one write, so that records of many processes do not mix.
struct AppendTo(Arc<Mutex<Arc<File>>>);

impl<'a> MakeWriter<'a> for AppendTo {
    type Writer = Arc<File>;

    fn make_writer(&'a self) -> Arc<File> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A writer that makes each record one line.
struct OneLine<W> {
    inner: W,
    format: Format,
}

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for OneLine<W> {
    type Writer = OneLine<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        OneLine { inner: self.inner.make_writer(), format: self.format }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        OneLine { inner: self.inner.make_writer_for(metadata), format: self.format }
    }
}

impl<W: Write> Write for OneLine<W> {
    /// Called once per record, with all of it (tracing-subscriber, `fmt_layer.rs`: `write_all` of the formatted event). A log
    /// that fails must not fail a delivery, so errors are ignored; there is nowhere to report them.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(record);
        let mut line = one_line(text.strip_suffix('\n').unwrap_or(&text), self.format);
        line.push('\n');
        let _ = self.inner.write_all(line.as_bytes());
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.inner.flush();
        Ok(())
    }
}

/// The record, with every character escaped that could start another line, control a terminal or change the direction of text.
fn one_line(record: &str, format: Format) -> String {
    let mut line = String::with_capacity(record.len() + 1);
    for c in record.chars() {
        // Writing to a String cannot fail. All escaped characters are below U+10000, so JSON needs no surrogates.
        let _ = match format {
            _ if !is_unsafe(c) => line.write_char(c),
            Format::Json => write!(line, "\\u{:04x}", u32::from(c)),
            Format::Text => write!(line, "{}", c.escape_default()),
        };
    }
    if format == Format::Text && line.len() > LONGEST_LINE {
        line.truncate(line.floor_char_boundary(LONGEST_LINE));
        line.push_str(" [cut]");
    }
    line
}

/// Characters from strangers that neither the log nor a terminal may show: C0, DEL and C1; line and paragraph separator; the
/// bidirectional controls (Unicode Standard Annex 9, section 2).
pub(crate) fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{061c}')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes fields as `name=value`. A value that is empty, or contains a space, a quote or the like, is quoted. Otherwise a
/// Message-ID like `x result=delivered` would add a field of its own.
struct QuotedFields;

impl<'w> FormatFields<'w> for QuotedFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = QuotingVisitor { writer, first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct QuotingVisitor<'w> {
    writer: Writer<'w>,
    first: bool,
    result: fmt::Result,
}

impl QuotingVisitor<'_> {
    fn write(&mut self, field: &Field, value: &str) -> fmt::Result {
        if !std::mem::take(&mut self.first) {
            self.writer.write_char(' ')?;
        }
        let plain = |c: char| !c.is_whitespace() && !matches!(c, '"' | '=' | '\\') && !is_unsafe(c);
        if field.name() == "message" {
            self.writer.write_str(value)
        } else if !value.is_empty() && value.chars().all(plain) {
            write!(self.writer, "{}={value}", field.name())
        } else {
            write!(self.writer, "{}={value:?}", field.name())
        }
    }
}

impl Visit for QuotingVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if self.result.is_ok() {
            self.result = self.write(field, value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;
    use std::process::Command;

    const HOSTILE: &str = "x\n5.1.1 forged \u{1b}[31m\r\u{85}\u{9b}\u{202e} result=delivered \"";

    /// Logs hostile values to this layer, through a subscriber of this thread only.
    fn log_hostile_things(layer: AnyLayer) {
        let subscriber = Registry::default().with(layer.with_filter(LevelFilter::INFO));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("delivery", queue_id = HOSTILE);
            let _in = span.enter();
            tracing::info!(message_id = %HOSTILE, sender = HOSTILE, size = 3, plain = "a@b", "one");
            tracing::info!("two {HOSTILE}");
            tracing::debug!("too light to be written");
        });
    }

    fn assert_harmless(line: &str) {
        assert!(!line.contains(is_unsafe), "{line:?}");
    }

    #[test]
    fn a_file_belongs_to_whom_its_folder_belongs_to() {
        let directory = tempfile::tempdir().unwrap();
        // Only root can give the directory to another user; otherwise it stays with the user who created it.
        let _ = std::os::unix::fs::chown(directory.path(), Some(65_534), Some(65_534));
        let path = directory.path().join("log");
        open_log(&path).unwrap().write_all(b"one\n").unwrap();
        open_log(&path).unwrap().write_all(b"two\n").unwrap();
        let (file, folder) = (std::fs::metadata(&path).unwrap(), std::fs::metadata(directory.path()).unwrap());
        assert_eq!((file.uid(), file.gid(), file.mode() & 0o777), (folder.uid(), folder.gid(), 0o640));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }

    /// The log file of a service account, while root runs a `replay`.
    #[test]
    fn root_writes_through_no_link_that_another_user_has_planted() {
        use std::os::unix::fs::{chown, symlink};
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        if chown(directory.path(), Some(65_534), Some(65_534)).is_err() {
            // A user other than root has no more rights than the user who planted the link.
            return;
        }
        let secret = tempfile::NamedTempFile::new().unwrap();
        symlink(secret.path(), path("link")).unwrap();
        std::fs::hard_link(secret.path(), path("hard link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe"), rustix::fs::Mode::RWXU).unwrap();
        symlink(path("nothing"), path("dangling")).unwrap();
        for planted in ["link", "hard link", "pipe", "dangling"] {
            assert!(open_log(&path(planted)).is_err(), "{planted}");
        }
        assert!(!path("nothing").exists());
        // A link in a folder of root is as good as root's own.
        chown(directory.path(), Some(0), Some(0)).unwrap();
        open_log(&path("link")).unwrap().write_all(b"one\n").unwrap();
        assert_eq!(std::fs::read_to_string(secret.path()).unwrap(), "one\n");
        // A file of that user, in a folder of root or of that user.
        let own = path("own");
        std::fs::write(&own, "").unwrap();
        chown(&own, Some(65_534), Some(65_534)).unwrap();
        for owner in [0, 65_534] {
            chown(directory.path(), Some(owner), Some(owner)).unwrap();
            open_log(&own).unwrap().write_all(b"two\n").unwrap();
        }
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "two\ntwo\n");
    }

    #[test]
    fn a_record_in_a_file_is_one_line_whatever_it_holds() {
        let directory = tempfile::tempdir().unwrap();
        for format in [Format::Text, Format::Json] {
            let path = directory.path().join(format!("{format:?}"));
            for _ in 0..2 {
                log_hostile_things(file_layer(&path, format).unwrap());
            }
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.lines().count(), 4, "{text}");
            text.lines().for_each(assert_harmless);
            let line = text.lines().next().unwrap();
            match format {
                Format::Json => {
                    let record: serde_json::Value = serde_json::from_str(line).unwrap();
                    let expected = [("message_id", HOSTILE), ("sender", HOSTILE), ("level", "INFO")];
                    assert!(expected.iter().all(|(name, value)| record[name] == *value), "{line}");
                }
                Format::Text => {
                    // Inside quotes, the text is a value; outside them, it would be a field.
                    let outside: String = line.replace("\\\"", "").split('"').step_by(2).collect();
                    assert!(outside.contains("one message_id=") && outside.contains("sender="), "{line}");
                    assert!(!outside.contains("result=delivered"), "{line}");
                    assert!(line.contains("size=3 plain=a@b"), "{line}");
                }
            }
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o137, 0, "more than 0640");
        }
    }

    /// syslog(3) is global to a process and cannot be read back, but LOG_PERROR makes it write to stderr as well. So this test
    /// starts itself as a child and reads the child's stderr.
    #[test]
    fn a_record_in_syslog_is_one_line_whatever_it_holds() {
        const CHILD: &str = "MAILDROP_TEST_SYSLOG_CHILD";
        if std::env::var_os(CHILD).is_some() {
            log_hostile_things(syslog_layer(COMMAND, Options::LOG_PERROR, Format::Text).unwrap());
            return;
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "base::log::tests::a_record_in_syslog_is_one_line_whatever_it_holds", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.starts_with("maildrop_command: ") && text.contains("plain=a@b"), "{text}");
        text.lines().for_each(assert_harmless);
    }

    #[test]
    fn an_endless_record_is_cut() {
        let line = one_line(&"ä".repeat(LONGEST_LINE), Format::Text);
        assert!(line.len() < LONGEST_LINE + 10 && line.ends_with(" [cut]"));
    }

    #[test]
    fn journald_that_is_not_there_is_an_error() {
        if Path::new("/run/systemd/journal/socket").exists() {
            assert!(journald_layer(COMMAND).is_ok());
        } else {
            let error = journald_layer(COMMAND).err().unwrap().to_string();
            assert!(error.contains("journald"), "{error}");
        }
    }

    #[test]
    fn the_words_of_the_settings() {
        assert!("INFO".parse::<Level>().is_err());
        let error = "loud".parse::<Level>().unwrap_err();
        assert_eq!(error, "the log level \"loud\" is none of error, warn, info, debug, trace");
    }
}
