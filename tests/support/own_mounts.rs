//! A test in a namespace of mounts of its own, which ends with it: what it mounts nobody else sees.

use crate::support::not_run::did_not_run;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const CHILD: &str = "MAILDROP_TEST_CHILD";
const NO_MOUNT: &str = "no file system can be mounted here";

/// Runs this test of the same program in a process that has one.
pub fn alone(test: &str) {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    // There is no removing a folder that something is mounted in: that comes afterwards.
    let folder = tempfile::tempdir().unwrap();
    let output = command.env(CHILD, "1").env("TMPDIR", folder.path()).stdin(Stdio::null()).output().unwrap();
    let errors = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() && (errors.contains("unshare failed") || errors.contains(NO_MOUNT)) {
        // Root may, where nothing forbids it.
        if let Some(list) = std::env::var_os("MAILDROP_TEST_NOT_RUN") {
            did_not_run("MOUNT", Path::new(&list));
        }
        return;
    }
    assert!(output.status.success() && errors.contains("1 passed"), "{errors}");
    print!("{errors}");
}

/// Whether this is that process.
pub fn is_alone() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Makes this folder one of its own file system of this size, in memory, for us alone.
pub fn mount(folder: &str, size: &str) {
    let mount = ["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "tmpfs", folder];
    assert!(Command::new("mount").args(mount).status().unwrap().success(), "{NO_MOUNT}");
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).unwrap();
}
