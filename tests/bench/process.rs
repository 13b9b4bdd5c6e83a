//! Processes: how long one takes, what it uses.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use wait4::Wait4;

/// What came of a process.
pub struct Ended {
    /// From the call that started it until it had ended.
    pub took: Duration,
    /// The processor time that it used, user and system, with all that it waited for.
    pub processor: Duration,
    pub output: String,
}

/// Runs a process that must succeed, as pipe(8) would: the message on its standard input, a pipe at its output.
pub fn run(command: &mut Command, input: &[u8]) -> Ended {
    let began = Instant::now();
    let mut child = spawn(command);
    child.stdin.take().expect("a pipe").write_all(input).expect("a reader");
    let mut output = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut output).expect("text");
    let used = child.wait4().expect("a child");
    let took = began.elapsed();
    assert!(used.status.success(), "{command:?}: {}: {output}", used.status);
    Ended { took, processor: used.rusage.utime + used.rusage.stime, output }
}

/// The most memory that a process ever had, in kB: the kernel's own high-water mark, asked for until the process is gone.
pub fn peak_memory(command: &mut Command, input: &[u8]) -> u64 {
    let mut child = spawn(command);
    let mut stdin = child.stdin.take().expect("a pipe");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input).expect("a reader"));
        while let Some(mark) = high_water_mark(Path::new(&status)) {
            peak = peak.max(mark);
        }
    });
    assert!(child.wait().expect("a child").success(), "{command:?}");
    peak
}

fn high_water_mark(status: &Path) -> Option<u64> {
    let text = fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// How many instructions valgrind counts; `None` where there is no valgrind. Immune to whatever else the machine does.
pub fn instructions(command: &Command, input: &[u8]) -> Option<f64> {
    let mut under = Command::new("valgrind");
    under
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(command.get_program())
        .args(command.get_args());
    under.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = under.spawn().ok()?;
    child.stdin.take()?.write_all(input).ok()?;
    let output = child.wait_with_output().ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let count = text.lines().find_map(|line| line.split_once("Collected :"))?.1.trim();
    output.status.success().then(|| count.parse().ok())?
}

fn spawn(command: &mut Command) -> Child {
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
