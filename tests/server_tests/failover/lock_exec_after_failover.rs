//! `lock exec` on a primary whose commits reach no standby any more: another server may have taken over, and give out the same lock.

use crate::fixtures::primary_and_standby::{Pair, go_to, hosts};
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
    // What it commits each second is a row that is gone at once.
    let committed = "SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'subscription_queues'";
    wait_until("it has committed twice", || scene.database.count(committed) >= 2);
    assert_eq!(scene.database.count("SELECT count(*) FROM subscription_queues"), 0);
    assert!(!running.has_ended());

    pair.standby.cut_off();
    wait_until("it has ended", || running.has_ended());
    let (status, (stdout, stderr)) = (running.status(), running.outputs());
    assert_eq!((status.code(), stdout.as_str()), (Some(69), "begun\n"), "{stderr}");
    assert!(stderr.contains("nightly: the lock was lost while the command ran"), "{stderr}");
    pair.be_alone();
}

/// The former primary stands first and answers. Its commits wait for nobody, so the other one is asked, and has taken over.
#[test]
fn a_command_takes_the_lock_of_the_server_that_took_over() {
    let pair = Pair::start("POSTGRES17");
    let (former, new) = (&pair.primary, &pair.standby);
    let mut scene = pair.site(&[], "");
    pair.be_synchronous();
    go_to(&mut scene, &[former, new], "failover_timeout = \"0s\"\n");
    pair.part();
    pair.promote();
    let by_the_new = scene.other_configuration("new.toml", |settings| settings.database_more = hosts(&[new], ""));
    let begun = format!("{by_the_new}.begun");
    let script = format!(": >{begun}; exec sleep 3600");
    let hold = ["lock", "exec", "--config", &by_the_new, "nightly", "--", "sh", "-c", &script];
    let mut holder = Running::start(program(&hold), b"");
    wait_until("it is held by the new one", || std::fs::exists(&begun).unwrap());
    let config = scene.path("config.toml");
    let output_text =
        program(&["lock", "exec", "--config", &config, "nightly", "--", "echo", "a second one"]).output().unwrap();
    assert_eq!((output_text.status.code(), &output_text.stdout[..]), (Some(75), &b""[..]), "{output_text:?}");
    let printed = program(&["lock", "exec", "--config", &config, "weekly", "--", "echo", "done"]).output().unwrap();
    assert_eq!((printed.status.code(), &printed.stdout[..]), (Some(0), &b"done\n"[..]), "{printed:?}");
    assert!(!holder.has_ended());
    holder.kill();
    pair.be_alone();
    scene.database.connect_again();
}
