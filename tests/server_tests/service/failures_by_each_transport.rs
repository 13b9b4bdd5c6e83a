//! A delivery that fails before its journal is recorded, whichever transport the message came by.

use crate::fixtures::rest_client::Rest;
use crate::support::database::Engine;
use crate::support::lmtp::Lmtp;
use crate::support::program::wait_until;
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};

#[test]
fn while_the_mailbox_store_is_down_each_transport_leaves_one_row_that_trace_shows() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    // Nothing listens there.
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), 9));
    let service = Service::start_with(&mut scene, "workers = 2\nrunners = 1\n", &[]);
    let doug = ["doug@mail.axial.net".to_owned()];
    let mut lmtp = Lmtp::connect(&service.socket);
    let clients = scene.path("run/clients.sock");
    for _ in 0..2 {
        let replies = lmtp.deliver(LISA, &doug, &scene.message("lmtp"));
        assert!(replies[0].starts_with("451 4.4.1 "), "{replies:?}");
        scene.deliver_with("doug", &["--via", &clients], scene.message("via")).deferred("4.4.1 ");
    }
    let file = scene.file("queue.eml", &scene.message("queue"), 0o600);
    let output = scene.subcommand(&["inject", "--sender", LISA, "--recipient", &doug[0], &file]);
    assert!(output.status.success(), "{output:?}");
    let rest = Rest::start(&mut scene, "");
    let token = rest.token(&["--name", "provider", "--scope", "messages:write", "--domain", "mail.axial.net"]);
    let kind = [("content-type", "message/rfc822")];
    let submitted = format!("POST /messages?recipient={}&sender={LISA}", doug[0]);
    rest.send(&token, &submitted, &kind, scene.message("http").replace('\n', "\r\n").as_bytes()).good(202);

    for (transport, tries) in [("lmtp", 2), ("via", 2), ("queue", 1), ("http", 1)] {
        let id = scene.message_id(transport);
        let (rows, counted) = (
            format!("SELECT count(*) FROM failures WHERE message_id = '{id}'"),
            format!("SELECT coalesce(max(count), 0)::bigint FROM failures WHERE message_id = '{id}'"),
        );
        wait_until(&format!("{transport}: the failure is recorded"), || scene.database.count(&counted) >= tries);
        assert_eq!(scene.database.count(&rows), 1, "{transport}");
        let trace = scene.subcommand(&["trace", &id]);
        let output = String::from_utf8(trace.stdout).unwrap();
        assert!(output.contains("failed before delivery to") && output.contains(&doug[0]), "{transport}: {output}");
        assert!(output.contains("deferred: the mailbox store"), "{transport}: {output}");
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM failures"), 4);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts"), 0, "nothing was journalled");
    rest.end();
    service.end();
}
