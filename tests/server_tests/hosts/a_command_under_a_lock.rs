//! `lock exec` on a primary whose commits reach no standby any more: another server may have taken over, and give out the same lock.

use super::pair::Pair;
use crate::support::program::{Running, program, wait_until};

#[test]
fn a_command_is_ended_when_its_server_cannot_commit_any_more() {
    let pair = Pair::start("POSTGRES17");
    let mut scene = pair.site(&[], "");
    pair.be_synchronous();
    let config = scene.path("config.toml");
    let arguments = [
        "lock",
        "exec",
        "--config",
        &config,
        "--grace",
        "1s",
        "nightly",
        "--",
        "sh",
        "-c",
        "echo begun; exec sleep 3600",
    ];
    let mut running = Running::start(program(&arguments), b"");
    let written = "SELECT asked_at::text || ' ' || session FROM programs WHERE name = 'nightly'";
    wait_until("it is written down", || scene.database.texts(written).len() == 1);
    let before = scene.database.texts(written);
    // The row is another each second, and says the same.
    let version = |scene: &mut crate::support::scene::Scene| scene.database.texts("SELECT xmin::text FROM programs");
    let first = version(&mut scene);
    wait_until("it is committed again", || version(&mut scene) != first);
    assert_eq!(scene.database.texts(written), before);
    assert!(!running.has_ended());

    pair.standby.cut_off();
    wait_until("it has ended", || running.has_ended());
    let (status, (stdout, stderr)) = (running.status(), running.said());
    assert_eq!((status.code(), stdout.as_str()), (Some(69), "begun\n"), "{stderr}");
    assert!(stderr.contains("nightly: the lock was lost while the command ran"), "{stderr}");
    pair.be_alone();
}
