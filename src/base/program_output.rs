//! The output of another program that reads its own configuration and ends, such as postconf(1) and doveconf(1).

use super::deadline::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use std::io::Read as _;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

/// Such a program reads a few files and ends.
const PATIENCE: Duration = Duration::from_secs(5);

const LONGEST_OUTPUT: usize = 64 * 1024;

/// The output of the first of these programs that can be started, without its stderr. `None` if there is none, or if the output
/// does not end in time.
pub(crate) fn output_of(programs: &[&str], arguments: &[&str], deadline: Deadline) -> Option<String> {
    let start = |program: &&str| {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()
    };
    let mut child = programs.iter().find_map(start)?;
    let deadline = deadline.or_sooner(Deadline::after(PATIENCE));
    let output = child.stdout.take().and_then(|stdout| read_all(stdout, deadline));
    // Whether or not the program has ended, nobody reads its output any more.
    let _ = child.kill();
    let _ = child.wait();
    output.map(|output| String::from_utf8_lossy(&output).into_owned())
}

/// All bytes up to the end. `None` if they do not come in time, or are more than `LONGEST_OUTPUT`.
fn read_all(mut from: ChildStdout, deadline: Deadline) -> Option<Vec<u8>> {
    let (mut all, mut some) = (Vec::new(), [0; 4096]);
    while all.len() < LONGEST_OUTPUT {
        let left = Timespec::try_from(deadline.remaining()).ok()?;
        if retry_on_intr(|| poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&left))).ok()? == 0 {
            return None;
        }
        match from.read(&mut some).ok()? {
            0 => return Some(all),
            count => all.extend_from_slice(some.get(..count)?),
        }
    }
    None
}
