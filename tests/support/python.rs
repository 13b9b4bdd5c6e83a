//! Python with packages of PyPI, for what others have written and no distribution has packed: an environment of its own below the
//! target folder, made once.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The interpreter that has these packages (`name==1.2.3`, and what they need). `None` where they cannot be had: no network, no venv.
/// That is said where `tests/run` says what came of its tests; a registry that does not answer is no mistake of ours.
pub fn python_with(packages: &[&str]) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{}", packages.join("-")));
    fs::create_dir_all(&folder).expect("a folder below the target folder");
    let lock = File::create(folder.join("lock")).expect("a file of it");
    lock.lock().expect("one makes it, the others wait");
    let (done, python) = (folder.join("done"), folder.join("bin/python"));
    if !done.exists() {
        let made = run(Command::new("python3").args(["-m", "venv"]).arg(&folder));
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "10"];
        if let Err(problem) = made.and_then(|()| run(Command::new(&python).args(install).args(packages))) {
            let expected =
                format!("{} of PyPI cannot be had, and what it is for was not tried: {problem}", packages.join(", "));
            eprintln!("{expected}");
            if let Some(report) = std::env::var_os("MAILDROP_TEST_REPORT") {
                let mut report =
                    File::options().append(true).create(true).open(report).expect("the report can be opened");
                writeln!(report, "{}", expected.lines().next().unwrap_or_default()).expect("and written");
            }
            return None;
        }
        File::create(&done).expect("a file of it");
    }
    Some(python)
}

fn run(command: &mut Command) -> Result<(), String> {
    let ended = command.stdin(Stdio::null()).output();
    let Output { status, stderr, .. } = ended.map_err(|error| format!("{command:?}: {error}"))?;
    let failure = || format!("{command:?}: {status}: {}", String::from_utf8_lossy(&stderr));
    status.success().then_some(()).ok_or_else(failure)
}
