//! A run of `replay`, and what it said at its end.
#![allow(dead_code, reason = "every test target uses a part of it")]

use std::io::Write;
use std::process::{Command, Stdio};

/// How a replay ended.
#[derive(Debug)]
pub struct Replayed {
    /// `None` where a signal ended it.
    pub exit: Option<i32>,
    /// What it wrote to stdout, the summary apart.
    pub printed: Vec<serde_json::Value>,
    /// The last line of stdout.
    pub summary: serde_json::Value,
    pub stderr: String,
}

/// Runs a command line of `replay`, with `--json`, to its end.
pub fn replay(mut command: Command, input: &[u8]) -> Replayed {
    command.arg("--json").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    // It may end without having read everything.
    std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let mut printed: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    let summary = printed.pop().unwrap_or_default();
    Replayed { exit: output.status.code(), printed, summary, stderr }
}

impl Replayed {
    /// How many deliveries were made, were there already, were deferred and were refused.
    #[track_caller]
    pub fn numbers(&self) -> [u64; 4] {
        ["delivered", "already_there", "deferred", "refused"]
            .map(|what| self.summary[what].as_u64().unwrap_or_else(|| panic!("no numbers: {self:?}")))
    }

    /// It ended so.
    #[track_caller]
    pub fn ended(&self, exit: i32, numbers: [u64; 4]) {
        assert_eq!((self.exit, self.numbers()), (Some(exit), numbers), "{self:?}");
    }
}
