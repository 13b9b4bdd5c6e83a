//! After a fail-over the former primary still answers, and nobody has fenced it.

use crate::failover::choice_of_server::check;
use crate::fixtures::primary_and_standby::{Pair, go_to};
use crate::support::check_report::assert_reported_before;
use crate::support::database::{Connection, Engine};
use crate::support::lmtp::Lmtp;
use crate::support::program::wait_until;
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};

/// No commit waits for its standby: only what a worker has met keeps its deliveries off it.
#[test]
fn a_former_primary_is_not_used_by_a_worker_that_has_met_the_new_one() {
    let pair = Pair::start("POSTGRES17");
    let (former, new) = (&pair.primary, &pair.standby);
    let mut scene = pair.site(&[], "");
    go_to(&mut scene, &[former, new], "failover_timeout = \"0s\"\n");
    assert_reported_before(&scene, "replication", "to 1, and no commit waits for it", ["warning", "bad"]);
    let service = Service::start_with(&mut scene, "workers = 1\n", &[]);
    let mut lmtp = Lmtp::connect(&service.socket);
    let mut deliver = |scene: &Scene, id: &str| {
        let replies = lmtp.deliver(LISA, &["doug@mail.axial.net".into()], &scene.message(id));
        assert!(replies[0].starts_with("250 2.0.0 INBOX appended"), "{replies:?}\n{}", scene.log());
    };
    deliver(&scene, "before");
    pair.catch_up();
    former.cut_off();
    pair.promote();
    deliver(&scene, "meanwhile");

    // It has noticed nothing, and comes first for each session that is opened.
    former.connect();
    let mut administrator = Pair::session(new);
    let of_the_worker = "SELECT pid::text FROM pg_stat_activity WHERE application_name LIKE 'maildrop%'";
    for id in ["after", "again"] {
        administrator.texts(&of_the_worker.replacen("pid::text", "pg_terminate_backend(pid)::text", 1));
        wait_until("its session has ended", || administrator.texts(of_the_worker).is_empty());
        deliver(&scene, id);
        let recorded = format!("SELECT message_id FROM messages WHERE message_id = '{}'", scene.message_id(id));
        let mut ledger = Connection::open_at(Engine::Postgres17, &new.address(), Some(&scene.database.name));
        assert_eq!(ledger.texts(&recorded).len(), 1, "{id}");
        assert!(scene.database.texts(&recorded).is_empty(), "{id}");
    }
    assert_eq!(scene.inbox("doug").len(), 5);
    assert!(scene.log().contains("it has missed a fail-over, or was restored"), "{}", scene.log());
    drop(lmtp);
    service.end();

    // A host that has met neither sees two that take writes.
    let found = check(&scene);
    assert!(found.contains("both take writes"), "{found}");
}
