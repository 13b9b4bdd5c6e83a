//! A site's Dovecot with the second instance that postfix/dovecot-delivery.conf makes: deliveries log in there, people at the first
//! one.

use crate::support::database::Engine;
use crate::support::imap::Imap;
use crate::support::own_server::{OwnServer, PORT_FOR_DELIVERIES, docker};
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn deliveries_by_an_instance_of_dovecots_own_reach_users_of_the_first_one_and_its_processes_serve_several() {
    let dovecot = OwnServer::dovecot_with_an_instance_for_deliveries();
    let mut scene = Scene::with_mailboxes_on(Engine::Postgres17, &dovecot);
    scene.configure(|settings| settings.imap.1 = PORT_FOR_DELIVERIES);
    for name in ["scuba", "doug", "full"] {
        scene.member(name);
    }

    scene.deliver("scuba", scene.message("for-scuba")).delivered();
    let arrived = scene.inbox("scuba");
    assert_eq!(arrived.len(), 1);
    assert_eq!(arrived[0].field("Message-ID"), scene.message_id("for-scuba"));
    // The owner's limit, and not the service account's.
    scene.deliver("full", scene.message("for-full")).deferred("4.2.2 ");

    // Each mailbox is one and the same at both.
    let (host, _) = dovecot.address();
    let second = format!("{host}:{PORT_FOR_DELIVERIES}");
    let guid = "STATUS INBOX (X-GUID)";
    let mut of_service = Imap::connect(&second);
    of_service
        .run(&format!("AUTHENTICATE PLAIN {}", plain(&scene.user("scuba"), "service", "service-secret")))
        .unwrap();
    let [at_first, at_second] = [scene.look("scuba"), of_service].map(|mut imap| imap.run(guid).unwrap());
    assert_eq!(at_first[0].text, at_second[0].text);
    assert!(at_first[0].text.contains("X-GUID"), "{}", at_first[0].text);

    // Whose password opens the mailbox at the first one is refused at the second.
    let scuba = scene.user("scuba");
    for command in [format!("LOGIN {scuba} secret"), format!("AUTHENTICATE PLAIN {}", plain("", &scuba, "secret"))] {
        let refused = Imap::connect(&second).run(&command).unwrap_err();
        assert!(refused.contains("NO [AUTHENTICATIONFAILED]"), "{command}: {refused}");
    }

    let users = ["scuba", "doug"].map(|name| scene.user(name));
    let mut count = 0;
    wait_until("a process has served both", || {
        count += 1;
        for name in ["scuba", "doug"] {
            scene.deliver(name, scene.message(&format!("{name}-{count}"))).delivered();
        }
        served_by_each_process(&dovecot).values().any(|served| users.iter().all(|user| served.contains(user)))
    });
    assert_eq!(scene.inbox("doug").len(), count);
    assert_eq!(scene.inbox("scuba").len(), count + 1);
}

/// An initial response of SASL PLAIN (RFC 4616).
fn plain(acts_for: &str, user: &str, password: &str) -> String {
    STANDARD.encode(format!("{acts_for}\0{user}\0{password}"))
}

/// ServerKind each IMAP process of the second instance has served, by its process id: `imap-login` writes both.
fn served_by_each_process(dovecot: &OwnServer) -> BTreeMap<String, BTreeSet<String>> {
    let log = docker(&["exec", &dovecot.container, "cat", "/srv/delivery.log"]).unwrap();
    let mut served = BTreeMap::<String, BTreeSet<String>>::new();
    let after = |line: &str, mark: &str, end: &str| Some(line.split_once(mark)?.1.split_once(end)?.0.to_owned());
    for line in log.lines() {
        if let (Some(user), Some(process)) = (after(line, "Logged in: user=<", ">"), after(line, "mpid=", ",")) {
            served.entry(process).or_default().insert(user);
        }
    }
    served
}
