//! The service account on Dovecot has no more rights than docs/install.md gives it (lookup, read, write-seen, write-deleted,
//! insert, expunge, create): every test of a delivery goes by those, tests/images/start/dovecot sees to that. Here is what
//! it cannot do with them, in a mailbox of somebody else's.

use crate::support::database::Engine;
use crate::support::imap::Imap;
use crate::support::site_fixture::Scene;
use crate::support::{another_version_may_stand_in, cannot_run, server};
use std::process::Command;

#[test]
fn a_delivery_needs_no_more() {
    if another_version_may_stand_in() {
        let version = Command::new("dovecot").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
        if version.starts_with(b"2.3.") {
            cannot_run("DOVECOT_2.4");
        }
    }
    let scene = Scene::with(Engine::Postgres17, &["doug", "lisa"]);
    scene.deliver("doug", scene.message("least")).delivered();
    let sent = scene.sent("lisa").remove(0);
    assert!(sent.flags.contains(&"\\Seen".to_owned()), "{:?}", sent.flags);

    let mut service = Imap::login(&server("DOVECOT"), &format!("{}*service", scene.user("lisa")), "service-secret");
    for command in ["DELETE \"Sent\"", "RENAME \"Sent\" \"Elsewhere\""] {
        let refused = service.run(command).unwrap_err();
        assert!(refused.contains("NOPERM"), "{command}: {refused}");
    }
    // It may mark as seen, and as deleted what it takes out; of any other mark Dovecot says nothing, and sets none.
    service.run("SELECT \"Sent\"").unwrap();
    service.run("UID STORE 1 +FLAGS (\\Flagged \\Answered $Forwarded)").unwrap();
    let marked = scene.sent("lisa").remove(0);
    assert_eq!(marked.content, sent.content);
    for flag in ["\\Flagged", "\\Answered", "$Forwarded"] {
        assert!(!marked.flags.contains(&flag.to_owned()), "{:?}", marked.flags);
    }
    // Their owner may do all that.
    let mut lisa = scene.look("lisa");
    lisa.run("SELECT \"Sent\"").unwrap();
    lisa.run("UID STORE 1 +FLAGS (\\Flagged)").unwrap();
    assert!(scene.sent("lisa").remove(0).flags.contains(&"\\Flagged".to_owned()));
    lisa.run("RENAME \"Sent\" \"Elsewhere\"").unwrap();
}
