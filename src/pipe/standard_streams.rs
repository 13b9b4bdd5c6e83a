//! Whether the program that runs `deliver` still lives.

use crate::delivery::Caller;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{self, retry_on_intr};
use std::io::stdout;
use tracing::warn;

/// The program at the other ends of standard input and standard output: pipe(8) or local(8).
///
/// Where it is killed while it writes the message, as by each `postfix stop`, the end of standard input looks like that of the
/// message. But both keep the reading end of our standard output open until they have read all of it
/// (`src/global/pipe_command.c`): only their death closes it. poll(2) then says POLLERR of a pipe, and POLLHUP of a socket. A
/// file, a terminal and /dev/null tell nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct StandardStreams;

impl Caller for StandardStreams {
    fn is_gone(&self) -> bool {
        reader_of_stdout_is_gone().unwrap_or_else(|error| {
            warn!(%error, "whether anybody reads standard output cannot be told: taken for nobody");
            true
        })
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
