//! docs/sizing.md tells what to buy by a model (tests/scale). It needs no server, but a package of PyPI.

use crate::support::python::python_with;
use std::path::Path;
use std::process::Command;

/// With the shipped wait for a lock nobody is deferred, more hosts never defer more, the service opens no sessions: a change of
/// the model or what it goes by hears of it here when the page no longer says what it shows.
#[test]
fn the_model_keeps_its_rules_and_what_the_page_concludes_holds() {
    let Some(python) = python_with(&["simpy==4.1.1"]) else { return };
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scale/run");
    let ended = Command::new(run).arg("--quick").env("MAILDROP_TEST_PYTHON", python).output().expect("bash runs");
    let errors = [ended.stdout, ended.stderr].map(|stream| String::from_utf8_lossy(&stream).into_owned());
    assert!(
        ended.status.success() && errors[0].contains("the conclusions hold"),
        "{}: {}",
        ended.status,
        errors.join("\n")
    );
}
