//! The program as a person runs it: on a terminal, which script(1) provides.

use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a line of the shell on a terminal of so many columns, in this directory, where `maildrop_command` is our program. Returns its
/// exit status, and all that the terminal shows.
pub fn on_a_terminal(directory: &Path, columns: u16, line: &str) -> (Option<i32>, String) {
    let programs = Path::new(env!("CARGO_BIN_EXE_maildrop_command")).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", programs.display());
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &format!("stty rows 40 cols {columns}; {line}"), "/dev/null"]);
    script.env_clear().env("PATH", path).env("SHELL", "/bin/sh").env("TERM", "xterm").current_dir(directory);
    let output = script.stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n"))
}
