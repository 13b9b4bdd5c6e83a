//! What `queue` and `shunt` say where the service's folders cannot be used.

use super::complain;
use crate::queue::QueueError;
use std::io::ErrorKind;
use sysexits::ExitCode;

/// Says what is wrong with the folders, and what mends it.
pub(super) fn failed(error: &QueueError) -> ExitCode {
    let (mend, exit) = match error {
        QueueError::NoQueue { .. } => (
            "the service makes it when it first starts; see serve.state_directory in the configuration",
            ExitCode::NoInput,
        ),
        QueueError::AnotherOwner { .. } => ("run this as that user, or as root", ExitCode::NoPerm),
        QueueError::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            ("run this as the user whom the service runs as, or as root", ExitCode::NoPerm)
        }
        QueueError::WritableByOthers { .. } => ("look first who has put what there", ExitCode::NoPerm),
        QueueError::NoSpace { .. } => ("make room on that disk", ExitCode::Unavailable),
        _ => ("nothing was changed", ExitCode::Unavailable),
    };
    complain(&format!("{error}\n{mend}"));
    exit
}
