//! Every way that the configuration file knows to reach the servers and to log in, each with a whole delivery.

use crate::support::database::Engine;
use crate::support::site_fixture::Scene;
use crate::support::{env, env_if_there, host_and_port, server};

on_each_engine!(encrypted, by_unix_sockets);

const PG: Engine = Engine::Postgres17;

/// Changes the file, and delivers.
fn delivered(scene: &Scene, id: &str, changes: &[(&str, String)]) {
    let file = scene.path("config.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    let mut text = before.clone();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    std::fs::write(&file, text).unwrap();
    scene.deliver("doug", scene.message(id)).delivered();
    let check = scene.subcommand(&["check", "--all", "--self-test"]);
    assert_eq!(check.status.code(), Some(0), "{id}: {}", String::from_utf8_lossy(&check.stdout));
    std::fs::write(&file, before).unwrap();
}

fn encrypted(engine: Engine) {
    let scene = Scene::with(engine, &["doug", "lisa"]);
    let ca = env("MAILDROP_TEST_CA");
    let (host, port) = host_and_port(server("DOVECOT"), 143);
    let database = ("tls = \"off\"", format!("tls = \"verify\"\nca_file = \"{ca}\""));
    for (encryption, to_port) in [("starttls", port), ("tls", port + 850)] {
        let imap = ("encryption = \"none\"", format!("encryption = \"{encryption}\"\nca_file = \"{ca}\""));
        let at = format!("host = \"{host}\"\nport = {port}\nencryption");
        let to = format!("host = \"{host}\"\nport = {to_port}\nencryption");
        delivered(&scene, encryption, &[(&at, to), imap, database.clone()]);
    }
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (2, 2));
    // A certificate that nobody we trust has signed lets nobody in.
    let file = scene.path("config.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("encryption = \"none\"", "encryption = \"starttls\"")).unwrap();
    scene.deliver("doug", scene.message("stranger")).deferred("4.4.1 the mailbox store cannot be reached");
    std::fs::write(&file, text.replace("tls = \"off\"", "tls = \"verify\"")).unwrap();
    scene.deliver("doug", scene.message("stranger")).deferred("4.4.1 the database cannot be reached");
    assert_eq!(scene.inbox("doug").len(), 2);
}

fn by_unix_sockets(engine: Engine) {
    let scene = Scene::with(engine, &["doug", "lisa"]);
    let (imap, to) = (&scene.settings.imap, &scene.settings.database);
    let at = |(host, port): &(String, u16)| format!("host = \"{host}\"\nport = {port}\n");
    let dovecot = (at(imap), format!("socket = \"{}\"\n", env("MAILDROP_TEST_DOVECOT_SOCKET")));
    let mut changes = vec![(dovecot.0.as_str(), dovecot.1)];
    let variable = if engine.is_postgres() { "POSTGRES17_SOCKET_DIR" } else { "MARIADB118_SOCKET" };
    let to = at(to);
    if engine != Engine::Mysql9 {
        let socket = env_if_there(&format!("MAILDROP_TEST_{variable}")).expect("a socket");
        changes.push((&to, format!("socket = \"{socket}\"\n")));
    }
    delivered(&scene, "sockets", &changes);
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (1, 1));
}

#[test]
fn under_other_names() {
    let scene = Scene::with(PG, &["doug", "lisa"]);
    let service = "user = \"service\"\n";
    for (number, imap) in [
        "act_for_user = false\nlogin_user = \"{user}*service\"\n",
        "act_for_user = false\nlogin_user = \"{user}*service\"\nmechanism = \"login\"\n",
    ]
    .into_iter()
    .enumerate()
    {
        delivered(&scene, &format!("login{number}"), &[(service, format!("{service}{imap}"))]);
    }
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (2, 2));
}
