//! Classifies the failures of the server, the connection and the crate.

use super::super::{DatabaseError, DatabaseFailure};
use mysql::error::{DriverError, Error};
use std::io::{self, ErrorKind};

/// Classifies an error number of the server.
///
/// The numbers are in MySQL's "Server Error Message Reference" and "Client Error Message Reference", and in MariaDB's
/// "MariaDB Error Codes". A number has the same meaning on both, or exists on only one of them.
pub(super) fn failure(code: u16) -> DatabaseFailure {
    match code {
        // Deadlock; lock wait timeout; "record has changed since last read" (MariaDB's snapshot isolation); deadlock
        // among user-level locks (MySQL; MariaDB says 1213); NOWAIT.
        1213 | 1205 | 1020 | 3058 | 3572 => DatabaseFailure::Contention,
        // Too many connections, of all or of this user, per hour or at once; a Galera node that is not in sync.
        1040 | 1203 | 1226 | 1047 => DatabaseFailure::Unreachable,
        // Host not allowed or blocked; database, account, table, column, SUPER or the like, routine; plugin; password
        // expired; account locked (MySQL, MariaDB); TLS required of the account; functions that binary logging lets only
        // SUPER create.
        1129 | 1130 | 1044 | 1045 | 1698 | 1142 | 1143 | 1227 | 1370 | 1524 | 1820 | 1862 | 3118 | 4151 | 3159
        | 1418 | 1419 => DatabaseFailure::AccessDenied,
        // Shutdown; aborted; the network, seen from the server; killed; idle for longer than wait_timeout.
        1053 | 1152 | 1153 | 1158..=1161 | 1184 | 1927 | 3169 | 4031 => DatabaseFailure::ConnectionLost,
        // max_statement_time (MariaDB), max_execution_time (MySQL).
        1969 | 3024 => DatabaseFailure::TimedOut,
        // No such database, table, column, function; a column that must be given and is not.
        1049 | 1146 | 1054 | 1305 | 1364 => DatabaseFailure::Schema,
        // --read-only and --super-read-only; innodb_read_only; a transaction that is read only.
        1290 | 1836 | 1792 | 1015 => DatabaseFailure::ReadOnly,
        // A value that is NULL, a duplicate, out of range, truncated, an invalid date or character, or too long; a foreign
        // key; a trigger's SIGNAL; invalid JSON (MySQL); a CHECK constraint (MySQL, MariaDB).
        1048 | 1062 | 1264 | 1265 | 1292 | 1366 | 1406 | 1451 | 1452 | 1644 | 3140 | 3819 | 4025 => {
            DatabaseFailure::Refused
        }
        _ => DatabaseFailure::Other,
    }
}

/// A failure on an open connection, and whether the connection is still usable.
pub(super) fn classify(doing: &str, error: &Error) -> (DatabaseError, ConnectionState) {
    let (kind, connection) = match error {
        Error::MySqlError(error) => {
            let kind = failure(error.code);
            let connection = if kind == DatabaseFailure::ConnectionLost {
                ConnectionState::Lost
            } else {
                ConnectionState::StillThere
            };
            (kind, connection)
        }
        Error::IoError(_) | Error::CodecError(_) if out_of_time(error) => {
            (DatabaseFailure::TimedOut, ConnectionState::Lost)
        }
        Error::IoError(_) | Error::CodecError(_) | Error::DriverError(_) | Error::TlsError(_) => {
            (DatabaseFailure::ConnectionLost, ConnectionState::Lost)
        }
        Error::UrlError(_) | Error::FromValueError(_) | Error::FromRowError(_) => {
            (DatabaseFailure::Other, ConnectionState::StillThere)
        }
    };
    (DatabaseError::new(kind, doing, error.to_string()), connection)
}

/// Whether a connection is still usable after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// The server refused, and is ready for the next statement.
    StillThere,
    /// The connection ended, or a late answer may arrive, which would be taken for the answer to the next statement.
    Lost,
}

pub(super) fn connecting(doing: &str, error: &Error) -> DatabaseError {
    let kind = match error {
        Error::MySqlError(error) => match failure(error.code) {
            DatabaseFailure::ConnectionLost => DatabaseFailure::Unreachable,
            other => other,
        },
        Error::DriverError(
            DriverError::UnknownAuthPlugin(_)
            | DriverError::CleartextPluginDisabled
            | DriverError::OldMysqlPasswordDisabled,
        ) => DatabaseFailure::AccessDenied,
        Error::IoError(_) | Error::CodecError(_) if out_of_time(error) => DatabaseFailure::TimedOut,
        // The network, or TLS, which reports a bad certificate as an I/O error.
        _ => DatabaseFailure::Unreachable,
    };
    DatabaseError::new(kind, doing, error.to_string())
}

/// Whether another address of the same server may work: no TCP connection was made.
pub(super) fn another_address_may_do(error: &Error) -> bool {
    matches!(error, Error::DriverError(DriverError::CouldNotConnect(_) | DriverError::ConnectTimeout))
}

/// Whether a read or write on the socket exceeded its time limit. It then fails with EAGAIN (socket(7), SO_RCVTIMEO), which
/// is `WouldBlock`. The crate returns that error bare, or as the source of its codec's error.
fn out_of_time(error: &Error) -> bool {
    let io_error = match error {
        Error::IoError(error) => Some(error),
        Error::CodecError(error) => std::error::Error::source(error).and_then(|source| source.downcast_ref()),
        _ => None,
    };
    io_error.is_some_and(|error: &io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadlock_may_be_tried_again_and_leaves_the_connection_standing() {
        let deadlock = Error::MySqlError(mysql::MySqlError {
            state: "40001".into(),
            message: "Deadlock found when trying to get lock".into(),
            code: 1213,
        });
        let (error, connection) = classify("recording the delivery", &deadlock);
        assert!(error.trying_again_at_once_can_help());
        assert_eq!(connection, ConnectionState::StillThere);
        assert!(error.to_string().contains("1213"), "{error}");
    }

    fn said(code: u16) -> Error {
        Error::MySqlError(mysql::MySqlError { state: "HY000".into(), message: "no".into(), code })
    }

    #[test]
    fn a_number_says_what_it_is_about_and_whether_the_connection_stands() {
        use DatabaseFailure::{
            AccessDenied, ConnectionLost, Contention, Other, ReadOnly, Refused, Schema, TimedOut, Unreachable,
        };
        let each: [(&[u16], DatabaseFailure); 10] = [
            (&[1213, 1205, 1020, 3058, 3572], Contention),
            (&[1040, 1203, 1226, 1047], Unreachable),
            (
                &[1129, 1130, 1044, 1045, 1698, 1142, 1143, 1227, 1370, 1524, 1820, 1862, 3118, 4151, 3159, 1418, 1419],
                AccessDenied,
            ),
            (&[1053, 1152, 1153, 1158, 1159, 1160, 1161, 1184, 1927, 3169, 4031], ConnectionLost),
            (&[1969, 3024], TimedOut),
            (&[1049, 1146, 1054, 1305, 1364], Schema),
            (&[1290, 1836, 1792, 1015], ReadOnly),
            (&[1048, 1062, 1264, 1265, 1292, 1366, 1406, 1451, 1452, 1644, 3140, 3819, 4025], Refused),
            // Their neighbours, and a syntax error.
            (&[1157, 1162, 1064], Other),
            (&[0, u16::MAX], Other),
        ];
        for (code, means) in each.into_iter().flat_map(|(codes, means)| codes.iter().map(move |code| (*code, means))) {
            assert_eq!(failure(code), means, "{code}");
            let (error, connection) = classify("asking", &said(code));
            assert_eq!(error.failure, means);
            assert_eq!(connection == ConnectionState::Lost, means == ConnectionLost, "{code}");
            // A server that shuts down while it greets us may be back soon.
            let not_connected = if means == ConnectionLost { Unreachable } else { means };
            assert_eq!(connecting("connecting", &said(code)).failure, not_connected, "{code}");
        }
    }

    #[test]
    fn what_no_server_has_sent_is_about_the_connection() {
        let io = |kind| Error::IoError(io::Error::from(kind));
        let plugin = || Error::DriverError(DriverError::UnknownAuthPlugin("x".into()));
        for (error, means) in [
            (io(ErrorKind::TimedOut), DatabaseFailure::TimedOut),
            (io(ErrorKind::WouldBlock), DatabaseFailure::TimedOut),
            (io(ErrorKind::ConnectionReset), DatabaseFailure::Unreachable),
            (plugin(), DatabaseFailure::AccessDenied),
            (Error::DriverError(DriverError::ConnectTimeout), DatabaseFailure::Unreachable),
        ] {
            assert_eq!(connecting("connecting", &error).failure, means, "{error}");
        }
        for error in [io(ErrorKind::ConnectionReset), plugin()] {
            let (failed, connection) = classify("asking", &error);
            assert_eq!(
                (failed.failure, connection),
                (DatabaseFailure::ConnectionLost, ConnectionState::Lost),
                "{error}"
            );
        }
        // A server that has let us in far enough to refuse us does so at any of its addresses.
        assert!(another_address_may_do(&Error::DriverError(DriverError::ConnectTimeout)));
        assert!(!another_address_may_do(&plugin()) && !another_address_may_do(&said(1045)));
    }

    #[test]
    fn an_answer_that_does_not_come_in_time_loses_the_connection() {
        let silence = Error::IoError(std::io::Error::from(ErrorKind::WouldBlock));
        let (error, connection) = classify("looking", &silence);
        assert_eq!((error.failure, connection), (DatabaseFailure::TimedOut, ConnectionState::Lost));
    }
}
