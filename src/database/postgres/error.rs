//! Classifies a failure of PostgreSQL by its SQLSTATE.

use super::connection::Failed;
use crate::database::{DatabaseError, DatabaseFailure};
use postgres::error::{DbError, SqlState};
use std::error::Error;
use std::io;
use std::iter::successors;

/// The fix for a schema that is missing or too old.
const MIGRATE: &str = "run `maildrop_command migrate`";

pub(super) fn failed(doing: &str, error: &postgres::Error) -> DatabaseError {
    let failure = match error.as_db_error() {
        Some(said) => by_state(said.code()),
        // A failure of the connection: closed, reset. Any other failure is our own, such as a value that cannot be sent.
        None if error.is_closed() || causes(error).any(|cause| cause.is::<io::Error>()) => {
            DatabaseFailure::ConnectionLost
        }
        None => DatabaseFailure::Other,
    };
    DatabaseError::new(failure, doing, detail(error))
}

fn not_connected(doing: &str, error: &postgres::Error, deadline_passed: bool) -> DatabaseError {
    let failure = match error.as_db_error().map(|said| (by_state(said.code()), said.code())) {
        // The server is starting up or shutting down, so a retry may reach it.
        Some((DatabaseFailure::ConnectionLost, _)) => DatabaseFailure::Unreachable,
        Some((_, code)) if *code == SqlState::TOO_MANY_CONNECTIONS || *code == SqlState::INVALID_CATALOG_NAME => {
            DatabaseFailure::Unreachable
        }
        Some((failure, _)) => failure,
        None if deadline_passed => DatabaseFailure::TimedOut,
        // The crate hides its error kinds; only its texts distinguish them (tokio-postgres, error/mod.rs).
        None if error.to_string().starts_with("invalid configuration") => DatabaseFailure::Local,
        None if error.to_string().starts_with("authentication error") => DatabaseFailure::AccessDenied,
        None => DatabaseFailure::Unreachable,
    };
    DatabaseError::new(failure, doing, detail(error))
}

/// The error for a request that failed on an open connection.
pub(super) fn unanswered(doing: &str, failed: &Failed) -> DatabaseError {
    match failed {
        Failed::Said(error) => self::failed(doing, error),
        other => unsaid(doing, other),
    }
}

pub(super) fn unconnected(doing: &str, failed: &Failed, deadline_passed: bool) -> DatabaseError {
    match failed {
        Failed::Said(error) => not_connected(doing, error, deadline_passed),
        other => unsaid(doing, other),
    }
}

fn unsaid(doing: &str, failed: &Failed) -> DatabaseError {
    let (failure, detail) = match failed {
        Failed::Silent(silence) => {
            (DatabaseFailure::TimedOut, format!("the server has said nothing for {:.1} s", silence.as_secs_f64()))
        }
        Failed::Local(error) => (DatabaseFailure::Local, error.to_string()),
        Failed::GivenUp | Failed::Said(_) => {
            (DatabaseFailure::ConnectionLost, "the connection was given up before".to_owned())
        }
    };
    DatabaseError::new(failure, doing, detail)
}

/// Whether no TCP connection was made, so that no server has answered.
pub(super) fn no_server_answered(failed: &Failed) -> bool {
    match failed {
        // See `not_connected`: only the texts distinguish the errors.
        Failed::Said(error) => error.to_string().starts_with("error connecting to server"),
        _ => true,
    }
}

/// Whether a notice that came with a COMMIT leaves the commit's durability in doubt: a warning of class 01 without a
/// context. "There is no transaction in progress" is of class 25, and the warning of a trigger has a context.
pub(super) fn in_doubt(notice: &DbError) -> bool {
    notice.code().code().starts_with("01") && notice.where_().is_none()
}

/// The kind of failure of a SQLSTATE (PostgreSQL manual, appendix A).
fn by_state(state: &SqlState) -> DatabaseFailure {
    match state.code() {
        "40P01" | "40001" | "55P03" => DatabaseFailure::Contention,
        "57014" => DatabaseFailure::TimedOut,
        "25006" => DatabaseFailure::ReadOnly,
        // A table, a column, a schema or a function is missing; no unique index for an ON CONFLICT.
        "42P01" | "42703" | "3F000" | "42883" | "42P10" => DatabaseFailure::Schema,
        "42501" => DatabaseFailure::AccessDenied,
        // The server ended the session: an administrator, a crash, a time limit for idle sessions or transactions.
        "57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25P03" | "25P04" => DatabaseFailure::ConnectionLost,
        // A trigger's RAISE; an index that takes no entry of that length.
        "P0001" | "54000" => DatabaseFailure::Refused,
        // Data exceptions; integrity constraints; WITH CHECK OPTION.
        code if ["22", "23", "44"].iter().any(|class| code.starts_with(class)) => DatabaseFailure::Refused,
        code if code.starts_with("08") => DatabaseFailure::ConnectionLost,
        code if code.starts_with("28") => DatabaseFailure::AccessDenied,
        _ => DatabaseFailure::Other,
    }
}

/// The message of the server or the system. The crate's own text is only "db error"; the causes say what failed.
fn detail(error: &postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        return said_in_full(said);
    }
    let mut text = error.to_string();
    for cause in causes(error) {
        let words = cause.to_string();
        // Some errors repeat the text of their cause.
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
    }
    text
}

/// The server's message, with its code, detail and hint.
pub(super) fn said_in_full(said: &DbError) -> String {
    let mut text = format!("{} (SQLSTATE {}", said.message(), said.code().code());
    for more in [said.detail(), said.hint()].into_iter().flatten() {
        text.push_str("; ");
        text.push_str(more);
    }
    text.push(')');
    if by_state(said.code()) == DatabaseFailure::Schema {
        text.push_str(": ");
        text.push_str(MIGRATE);
    }
    text
}

fn causes(error: &postgres::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    successors(error.source(), |cause| (*cause).source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_says_what_it_is_about() {
        use DatabaseFailure::{AccessDenied, ConnectionLost, Contention, Other, ReadOnly, Refused, Schema, TimedOut};
        for (codes, failure) in [
            ("40P01 40001 55P03", Contention),
            ("57014", TimedOut),
            ("25006", ReadOnly),
            ("42P01 42703 3F000 42883 42P10", Schema),
            ("42501 28000 28P01", AccessDenied),
            ("57P01 57P02 57P03 57P04 57P05 25P03 25P04 08000 08003 08006", ConnectionLost),
            ("P0001 54000 22001 22P05 23505 23514 44000", Refused),
            // A file system that is full, a syntax error, a failed transaction.
            ("53100 42601 25P02 40002 XX000", Other),
        ] {
            for code in codes.split(' ') {
                assert_eq!(by_state(&SqlState::from_code(code)), failure, "{code}");
            }
        }
    }
}
