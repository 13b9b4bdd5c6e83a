//! However many messages there are, a replay takes the same memory: it holds one of them at a time for each job, and the
//! list of the others is on disk.

use crate::support::replay_runs::{Desk, message};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// The most memory that it ever had, in kB (proc(5), VmHWM), asked for as its lines come, of which it writes one for each
/// message: it cannot end before nearly all have been read.
fn peak_memory(command: &mut Command, messages: usize) -> u64 {
    let command = command.arg("--json").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mark = || {
        let text = std::fs::read_to_string(&status).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().strip_suffix(" kB")?.parse().ok()
    };
    let (mut peak, mut lines, mut asked_at) = (0, 0_usize, 0);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        line.unwrap();
        lines += 1;
        if lines.is_multiple_of(20)
            && let Some(mark) = mark()
        {
            (peak, asked_at) = (mark, lines);
        }
    }
    assert!(child.wait().unwrap().success());
    // All but what a pipe holds.
    assert!(asked_at > messages / 2 && lines > messages, "asked until line {asked_at} of {lines}");
    peak
}

#[test]
fn ten_times_the_messages_take_no_more_memory() {
    let desk = Desk::new();
    desk.replay_input(&["--recipient", "doug@mail.axial.net", "-"], message("first").as_bytes()).ended(0, [1, 0, 0, 0]);
    let peak = |name: &str, count: usize| {
        let mbox: String = (0..count).map(|n| format!("From lisa@gmail.com\n{}\n", message(&n.to_string()))).collect();
        let mbox = desk.file(name, mbox);
        peak_memory(
            &mut desk.command(&["--recipient", "doug@mail.axial.net", "--dry-run", "--jobs", "2", &mbox]),
            count,
        )
    };
    // Enough for every buffer to be full.
    let (some, many) = (peak("some", 3_000), peak("many", 30_000));
    println!("{some} kB for 3000 messages, {many} kB for 30000");
    // Held in memory, the list alone would be some 4 MB; the messages, 5. The kernel may give one huge page, 2 MB, more.
    assert!(many < some + 3_000, "{some} kB for 3000 messages, {many} kB for 30000");
}
