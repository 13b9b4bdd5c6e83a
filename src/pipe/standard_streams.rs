//! Whether the program that runs `deliver` is still alive.

use super::person::notify_person;
use crate::database::DatabaseError;
use crate::delivery::Caller;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{self, retry_on_intr};
use std::io::stdout;
use tracing::warn;

/// The program at the other ends of standard input and standard output: pipe(8) or local(8).
///
/// Each `postfix stop` may kill that program while it writes the message. The end of standard input then looks like the end
/// of the message.
///
/// But both programs keep the reading end of our standard output open until its end (`src/global/pipe_command.c`), so only
/// their death closes that. Then poll(2) returns POLLERR for a pipe, and POLLHUP for a socket. A file, a terminal and
/// /dev/null show nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct StandardStreams;

impl Caller for StandardStreams {
    fn is_gone(&self) -> bool {
        reader_of_stdout_is_gone().unwrap_or_else(|error| {
            warn!(%error, "whether standard output has a reader is unknown: taken for none");
            true
        })
    }

    fn is_kept_waiting(&self, reason: &DatabaseError) {
        notify_person(&format!("{reason}; it is tried again"));
    }
}

fn reader_of_stdout_is_gone() -> io::Result<bool> {
    let stdout = stdout();
    let kind = FileType::from_raw_mode(fstat(&stdout)?.st_mode);
    if !matches!(kind, FileType::Fifo | FileType::Socket) {
        return Ok(false);
    }
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    retry_on_intr(|| poll(&mut watched, Some(&Timespec::default())))?;
    let [stdout] = &watched;
    Ok(stdout.revents().intersects(PollFlags::ERR | PollFlags::HUP))
}
