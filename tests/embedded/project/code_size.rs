//! How many lines of code there are: weight hides mistakes, so that it grows only where somebody says so.

use std::process::Command;

/// The most lines of code in `src`, as `tests/weight` counts them. A change that needs more says how many, and why, in its message; one
/// that needs fewer takes them off here.
const MOST: usize = 49_746;

#[test]
fn there_is_no_more_code_than_the_limit() {
    let counted = Command::new("tests/weight").output().unwrap();
    let (output, problem) = (String::from_utf8(counted.stdout).unwrap(), String::from_utf8(counted.stderr).unwrap());
    assert!(counted.status.success(), "{problem}");
    let all = output.lines().last().and_then(|line| line.split_whitespace().next()).unwrap();
    let all: usize = all.parse().unwrap();
    assert!((10_000..=MOST).contains(&all), "{all} lines of code; {MOST} at most:\n{output}");
}
