//! The standby is cut off and takes over, and the primary goes on answering; commits there wait for the standby, in
//! vain. What had been sent to the mailbox store under the primary's lock, but for its last CRLF, is carried out only
//! after others have been delivered to by the new primary.

use crate::fixtures::last_crlf_gate::Gate;
use crate::fixtures::primary_and_standby::{Pair, go_to, hosts};
use crate::support::check_report::assert_reported_before;
use crate::support::database::{Connection, Engine};
use crate::support::program::{Running, wait_until};
use std::collections::BTreeSet;

const MESSAGES: usize = 8;

#[test]
fn a_last_crlf_that_lands_after_another_primary_has_delivered_leaves_one_copy() {
    let pair = Pair::start("POSTGRES17");
    let (former, new) = (&pair.primary, &pair.standby);
    let mut scene = pair.site(&[], "");
    for name in ["scuba", "lisa"] {
        scene.member(name);
    }
    pair.be_synchronous();
    // One mail host, whose way to the mailbox store is slow, knows the former primary alone: with both it would find the new one.
    let gate = Gate::before(scene.settings.imap.clone(), "APPEND \"Sent\"");
    gate.close();
    let slow = scene.other_configuration("slow.toml", |settings| {
        settings.imap = ("127.0.0.1".into(), gate.address.port());
        settings.database_more = hosts(&[former], "");
        // So long a commit that never comes back is waited for.
        settings.imap_more = "append_grace = \"21s\"".into();
        settings.more = "[delivery]\ndeadline = \"20s\"\n".into();
    });
    go_to(&mut scene, &[new, former], "");
    assert_reported_before(&scene, "replication", "a commit waits for standby", ["ok", "ok"]);
    let messages: Vec<String> = (0..MESSAGES).map(|number| scene.message(&format!("m{number}"))).collect();
    let to_doug = |message: &str| Running::start(scene.command_by(&slow, "doug", &[]), message.as_bytes());
    let under_way: Vec<Running> = messages.iter().map(|message| to_doug(message)).collect();
    wait_until("all of lisa's copies are sent but for the last CRLFs", || gate.waiting() == MESSAGES);

    pair.part();
    pair.promote();
    // It answers, believes itself to be the primary, and commits nothing.
    assert_eq!(Pair::session(former).texts("SELECT pg_is_in_recovery()::text"), ["false"]);
    let meanwhile = to_doug(&scene.message("meanwhile"));
    for message in &messages {
        scene.deliver("scuba", message).delivered();
    }
    assert_eq!((scene.inbox("scuba").len(), scene.sent("lisa").len()), (MESSAGES, MESSAGES));
    gate.open();
    // What was appended is there, and the record of it is committed nowhere.
    for delivery in under_way {
        delivery.end().deferred("4.");
    }
    meanwhile.end().deferred("4.");
    scene.wait_for_dovecot();
    // Each of doug's is there; each of lisa's is duplicated for a while.
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (1 + MESSAGES, 2 * MESSAGES));

    // It is ended, and those that were deferred are tried again, when nothing of them can be on its way any more.
    former.kill();
    let mut ledger = Connection::open_at(Engine::Postgres17, &new.address(), Some(&scene.database.name));
    ledger.execute("UPDATE attempts SET started_at = started_at - interval '10 minutes'");
    for message in &messages {
        scene.deliver("doug", message).delivered();
    }
    let ids: BTreeSet<String> = (0..MESSAGES).map(|number| scene.message_id(&format!("m{number}"))).collect();
    for (name, mailbox) in [("doug", "INBOX"), ("scuba", "INBOX"), ("lisa", "Sent")] {
        let there: Vec<String> = scene.mailbox(name, mailbox).iter().map(|copy| copy.field("Message-ID")).collect();
        // Doug's has the first message of the site, too.
        assert_eq!(there.len(), MESSAGES + usize::from(name == "doug"), "{name}/{mailbox}: {there:?}");
        assert!(ids.iter().all(|id| there.contains(id)), "{name}/{mailbox}: {there:?}");
        let recorded = format!(
            "SELECT m.message_id FROM copies c JOIN messages m ON m.id = c.message \
             WHERE c.state = 'delivered' AND c.imap_user = '{}' AND c.mailbox = '{mailbox}'",
            scene.user(name)
        );
        assert!(ids.is_subset(&ledger.texts(&recorded).into_iter().collect()), "{name}/{mailbox}");
    }
    let open = ledger.texts("SELECT message_id FROM attempts WHERE ended_at IS NULL");
    assert!(!open.iter().any(|id| ids.contains(id)), "{open:?}");
    drop(ledger);
    // So that the site can be removed.
    former.start();
    pair.be_alone();
    scene.database.connect_again();
}
