//! `check` asks the Postfix of this host for the limits that the configuration goes by.

use crate::program::program;
use serde_json::Value as Json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What `check` finds of both limits, where postconf is this script. Neither of the servers is there.
fn found(folder: &Path, postconf: &str) -> [(String, String, String); 2] {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    std::fs::write(path("password"), "secret").unwrap();
    let config = format!(
        "[database]\nengine = \"postgresql\"\nsocket = {:?}\ndatabase = \"maildrop\"\nuser = \"maildrop\"\nfailover_timeout = \"0s\"\n\
         [imap]\nsocket = {:?}\nuser = \"service\"\npassword_file = {:?}\n[log]\nto = \"file\"\nfile = {:?}\n",
        path("no database"),
        path("no mailboxes"),
        path("password"),
        path("log"),
    );
    std::fs::write(path("config.toml"), config).unwrap();
    std::fs::write(path("postconf"), format!("#!/bin/sh\n{postconf}\n")).unwrap();
    std::fs::set_permissions(path("postconf"), PermissionsExt::from_mode(0o755)).unwrap();
    let mut check = program(&["check", "--json", "--config", &path("config.toml")]);
    let printed = check.env("PATH", format!("{}:/usr/bin:/bin", folder.display())).output().unwrap();
    let findings: Vec<Json> =
        serde_json::from_slice(&printed.stdout).unwrap_or_else(|error| panic!("{error}: {printed:?}"));
    ["queue lifetime", "deadline"].map(|what| {
        let one = findings.iter().find(|one| one["what"] == what).unwrap_or_else(|| panic!("no {what}: {findings:#?}"));
        let [state, found, fix] = ["state", "found", "fix"].map(|of| one[of].as_str().unwrap_or_default().to_owned());
        (state, found, fix)
    })
}

#[test]
fn a_postfix_that_gives_up_sooner_than_is_reckoned_with_is_bad() {
    let folder = tempfile::tempdir().unwrap();
    // As Postfix 3.10 answers, and warns on stderr of what it does not know.
    let [lifetime, limit] = found(
        folder.path(),
        "echo \"$*\" >\"${0%/*}/asked\"\necho 'maximal_queue_lifetime = 1h'\necho 'maildrop_time_limit = 200'\n\
         echo 'postconf: warning: maildrop-via_time_limit: unknown parameter' >&2",
    );
    assert_eq!(lifetime.0, "bad", "{lifetime:?}");
    assert!(lifetime.1.starts_with("5days, and Postfix's is 1h (maximal_queue_lifetime)"), "{lifetime:?}");
    assert!(lifetime.2.contains("delivery.postfix_queue_lifetime"), "{lifetime:?}");
    assert_eq!((limit.0.as_str(), limit.1.as_str()), ("bad", "4m; Postfix's limit: 3m 20s (maildrop_time_limit)"));
    let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
    assert_eq!(
        asked,
        "-x maximal_queue_lifetime command_time_limit mydestination virtual_mailbox_domains maildrop_time_limit maildrop-via_time_limit\n"
    );

    let says_so = "echo 'maximal_queue_lifetime = 5d'\necho 'maildrop_time_limit = 1000s'";
    for (state, found, fix) in found(folder.path(), says_so) {
        assert_eq!((state.as_str(), fix.as_str()), ("ok", ""), "{found}");
    }
}

#[test]
fn where_postfix_does_not_say_it_somebody_is_to_see_to_it() {
    let folder = tempfile::tempdir().unwrap();
    for postconf in [
        "echo 'postconf: fatal: open /etc/postfix/main.cf: No such file or directory' >&2\nexit 1",
        // It says nothing in time; and is not waited for.
        "exec sleep 1000",
    ] {
        for (state, found, fix) in found(folder.path(), postconf) {
            assert_eq!(state, "ok", "{postconf}: {found}");
            assert!(fix.starts_with("see that main.cf says the same: postconf ma"), "{postconf}: {fix}");
        }
    }
}
