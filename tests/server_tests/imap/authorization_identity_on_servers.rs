//! Nothing is appended before the mailbox store has shown that a login leads to the mailbox of the user whom it names: a
//! server that ignores the name says OK, and mail for everybody would be in the service account's own INBOX.

use crate::imap::server_behaviour::id_of_inbox;
use crate::support::database::Engine;
use crate::support::host_and_port;
use crate::support::imap::Imap;
use crate::support::imap_accounts::{Accounts, Login, Welcome};
use crate::support::imap_server::{Server, somebody};
use crate::support::own_server::OwnServer;
use crate::support::postfix::on;
use crate::support::program::wait_until;
use crate::support::server;
use crate::support::site_fixture::{LISA, Scene};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::delivery::Deferral;
use maildrop_command::imap::Settings;
use maildrop_command::ledger::LoginCheck;
use maildrop_command::ledger::audit_queries::Selection;
use maildrop_command::lock::{Acquired, LockName};
use maildrop_command::mailbox::MailboxFailure::IdentityIgnored;
use maildrop_command::mailbox::imap::authorization::{Honoured, prove, shares_account_with};
use maildrop_command::operations::audit::{NotRemoved, audit, take_out};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PG: Engine = Engine::Postgres17;

const SET_UP: &str = "4.3.5 the mailbox store is not set up for this recipient";
const IGNORES: &str = "4.3.5 the mailbox store ignores on whose behalf it is asked";

on_each_engine!(
    what_a_server_has_shown_is_remembered_for_fourteen_days,
    without_its_table_or_the_right_to_write_it_a_delivery_is_deferred,
);

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(240))
}

/// Lets in who is acted for, each to mailboxes of their own, and nobody who does not exist.
fn honours(login: &Login) -> Welcome {
    match login.acting_for.as_str() {
        name if name.starts_with("maildrop-check-") => Welcome::Refused("NO [AUTHORIZATIONFAILED] no such user"),
        "service" => Welcome::Refused("NO [AUTHENTICATIONFAILED] no"),
        name => Welcome::to(name, 1 + name.bytes().map(u32::from).sum::<u32>(), 1),
    }
}

/// A site whose mailboxes are on this server.
fn scene_on(engine: Engine, port: u16, members: &[&str]) -> Scene {
    let mut scene = Scene::with(engine, members);
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), port));
    scene
}

fn invented(logins: &[String]) -> usize {
    logins.iter().filter(|login| login.starts_with("maildrop-check-")).count()
}

fn verified_at(scene: &mut Scene, ago: &str) {
    let ago = if scene.database.engine.is_postgres() { format!("interval '{ago}'") } else { format!("INTERVAL {ago}") };
    scene.session().execute(&format!("UPDATE login_checks SET verified_at = verified_at - {ago}"));
}

fn days_pass(scene: &mut Scene, days: u32) {
    let ago = if scene.database.engine.is_postgres() { format!("{days} days") } else { format!("{days} DAY") };
    verified_at(scene, &ago);
}

/// What the timer of systemd runs: its exit status, and what it says.
fn renew(scene: &Scene) -> (Option<i32>, String) {
    let output = scene.subcommand(&["check", "--renew-proof"]);
    (output.status.code(), text(&output))
}

fn what_a_server_has_shown_is_remembered_for_fourteen_days(engine: Engine) {
    let server = Accounts::start(None, honours);
    let mut scene = scene_on(engine, server.port, &["doug", "scuba", "lisa"]);
    scene.deliver("doug", scene.message("first")).delivered();
    let logins = server.logins();
    assert_eq!((invented(&logins), logins.len()), (1, 6), "{logins:?}");
    // From then on it costs nothing: one login for each mailbox.
    scene.deliver("scuba", scene.message("first")).delivered();
    scene.deliver("doug", scene.message("second")).delivered();
    assert_eq!(server.logins().len(), 2 + 2);
    days_pass(&mut scene, 13);
    scene.deliver("doug", scene.message("third")).delivered();
    assert_eq!(invented(&server.logins()), 0);
    // A timer renews it, once a day, and another host's finds it fresh.
    for renewals in [1, 0] {
        let (status, output) = renew(&scene);
        assert_eq!((status, invented(&server.logins())), (Some(0), renewals), "{output}");
    }
    days_pass(&mut scene, 13);
    scene.deliver("doug", scene.message("third, too")).delivered();
    assert_eq!(invented(&server.logins()), 0);
    days_pass(&mut scene, 1);
    scene.deliver("doug", scene.message("fourth")).delivered();
    assert_eq!(invented(&server.logins()), 1);
    scene.deliver("doug", scene.message("fifth")).delivered();
    assert_eq!(invented(&server.logins()), 0);
    // Another login checks it again.
    scene.configure(|settings| settings.imap_more = "login_user = \"{user}\"".into());
    let outcome = scene.deliver("doug", scene.message("sixth"));
    outcome.deferred("4.3.5 ");
    assert_eq!(scene.database.count("SELECT count(*) FROM login_checks"), 1);
}

/// From some day on the server never answers logins of users who do not exist.
#[test]
fn a_proof_that_cannot_be_renewed_stops_no_mail_while_it_counts() {
    let is_silent = Arc::new(AtomicBool::new(false));
    let silent = is_silent.clone();
    let server = Accounts::start(None, move |login| match honours(login) {
        Welcome::Refused(_) if silent.load(Ordering::SeqCst) => Welcome::Silent,
        answered => answered,
    });
    let mut scene = scene_on(PG, server.port, &["doug"]);
    scene.deliver("doug", scene.message("first")).delivered();
    is_silent.store(true, Ordering::SeqCst);
    days_pass(&mut scene, 8);
    server.logins();
    let (status, output) = renew(&scene);
    assert_eq!((status, invented(&server.logins())), (Some(69), 1), "{output}");
    scene.deliver("doug", scene.message("second")).delivered();
    assert_eq!(invented(&server.logins()), 0);
    let check = text(&scene.subcommand(&["check", "--all"]));
    assert!(check.contains("proven 8d") && check.contains("and not renewed since"), "{check}");
    server.logins();
    // While one checks it again, deliveries go on.
    let login_check = LoginCheck::new(scene.database.texts("SELECT login FROM login_checks").remove(0));
    let (mut another, lock) = (scene.open_database(), LockName::new("maildrop way in", &login_check.digest));
    assert!(matches!(another.acquire(&lock, Duration::ZERO), Ok(Acquired::Held)));
    scene.deliver("doug", scene.message("third")).delivered();
    assert_eq!((invented(&server.logins()), server.appended().len()), (0, 3));
    another.release(&lock).unwrap();
    days_pass(&mut scene, 7);
    scene.configure(|settings| settings.more = "[delivery]\ndeadline = \"20s\"\n".into());
    scene.deliver("doug", scene.message("fourth")).deferred("4.4.");
    assert_eq!(server.appended().len(), 3);
    // It answers again.
    is_silent.store(false, Ordering::SeqCst);
    scene.configure(|settings| settings.more = String::new());
    scene.deliver("doug", scene.message("fourth")).delivered();
    server.logins();
    scene.deliver("doug", scene.message("fifth")).delivered();
    assert_eq!((invented(&server.logins()), server.appended().len()), (0, 5));
}

#[test]
fn a_server_that_begins_to_ignore_it_is_found_out_by_a_renewal_and_gets_nothing_more() {
    // All names lead to the service account's mailbox; an invented one does, too, or gets no answer.
    for answers_all in [true, false] {
        let is_upgraded = Arc::new(AtomicBool::new(false));
        let upgraded = is_upgraded.clone();
        let server = Accounts::start(None, move |login| match upgraded.load(Ordering::SeqCst) {
            false => honours(login),
            true if !answers_all && login.acting_for.starts_with("maildrop-check-") => Welcome::Silent,
            true => Welcome::to("service", 7, 5),
        });
        let mut scene = scene_on(PG, server.port, &["doug", "scuba"]);
        scene.deliver("doug", scene.message("first")).delivered();
        is_upgraded.store(true, Ordering::SeqCst);
        days_pass(&mut scene, 8);
        let (status, output) = renew(&scene);
        assert_eq!(status, Some(69), "{output}");
        scene.configure(|settings| settings.more = "[delivery]\ndeadline = \"20s\"\n".into());
        scene.deliver("doug", scene.message("second")).deferred(IGNORES);
        // Nobody goes by the old proof any more, nor while another delivery is at a new one.
        assert_eq!(scene.database.count("SELECT count(*) FROM login_checks WHERE verified_at > '2000-01-01'"), 0);
        scene.deliver("scuba", scene.message("third")).deferred("4.");
        assert_eq!(server.appended().len(), 1, "{answers_all}");
    }
}

/// As where the disk of the database is full.
#[test]
fn a_server_that_ignores_it_gets_nothing_even_where_that_cannot_be_written_down() {
    let is_upgraded = Arc::new(AtomicBool::new(false));
    let upgraded = is_upgraded.clone();
    let server = Accounts::start(None, move |login| match upgraded.load(Ordering::SeqCst) {
        false => honours(login),
        true => Welcome::to("service", 7, 5),
    });
    let mut scene = scene_on(Engine::Postgres17, server.port, &["doug"]);
    scene.deliver("doug", scene.message("first")).delivered();
    is_upgraded.store(true, Ordering::SeqCst);
    days_pass(&mut scene, 15);
    scene.session().execute("ALTER TABLE login_checks ADD CHECK (verified_at > '2000-01-01') NOT VALID");
    scene.deliver("doug", scene.message("second")).deferred(IGNORES);
    assert!(scene.log().contains("that the login path is disproved was not recorded"), "{}", scene.log());
    assert_eq!(scene.database.count("SELECT count(*) FROM login_checks WHERE verified_at > '2000-01-01'"), 1);
    assert_eq!(server.appended().len(), 1);
}

fn without_its_table_or_the_right_to_write_it_a_delivery_is_deferred(engine: Engine) {
    let server = Accounts::start(None, honours);
    let mut scene = scene_on(engine, server.port, &["doug"]);
    let role = format!("old_{}", scene.run);
    scene.database.create_role_of_grants_file(&role, "old-secret");
    let account = if engine.is_postgres() { format!("\"{role}\"") } else { format!("'{role}'@'%'") };
    scene.session().execute(&format!("REVOKE INSERT ON login_checks FROM {account}"));
    scene.configure(|settings| {
        settings.role = role;
        settings.database_password = "old-secret".into();
    });
    scene.deliver("doug", scene.message("one")).deferred("4.3.5 the database is not set up for deliveries");
    assert!(scene.log().contains("login_checks"), "{}", scene.log());
    let check = text(&scene.subcommand(&["check", "--all"]));
    assert!(check.contains("INSERT on login_checks") || check.contains("INSERT command denied"), "{check}");
    scene.session().execute("DROP TABLE login_checks");
    scene.deliver("doug", scene.message("one")).deferred("4.3.5 the database is not set up for deliveries");
    assert_eq!(server.appended(), [""; 0]);
}

/// On hosts where only the service's own user reads it, say.
#[test]
fn a_timer_that_has_no_password_fails_at_nothing_and_renews_nothing() {
    let server = Accounts::start(None, honours);
    let mut scene = scene_on(PG, server.port, &["doug"]);
    assert_eq!(renew(&scene).0, Some(0));
    let check = text(&scene.subcommand(&["check", "--all"]));
    assert!(check.lines().any(|line| line.contains("as deliveries know it") && line.contains("ago")), "{check}");
    days_pass(&mut scene, 8);
    server.logins();
    std::fs::remove_file(scene.path("imap.password")).unwrap();
    let (status, output) = renew(&scene);
    assert_eq!((status, server.logins().len()), (Some(0), 0), "{output}");
    assert!(output.contains("nothing to renew"), "{output}");
}

#[test]
fn a_renewal_goes_by_another_user_where_one_cannot_be_let_in() {
    let first = std::sync::OnceLock::new();
    let server =
        Accounts::start(None, move |login| match first.get_or_init(|| login.acting_for.clone()) == &login.acting_for {
            true => Welcome::Refused("NO [UNAVAILABLE] later"),
            false => honours(login),
        });
    let scene = scene_on(PG, server.port, &["doug", "scuba"]);
    let (status, output) = renew(&scene);
    assert_eq!((status, invented(&server.logins())), (Some(0), 1), "{output}");
}

/// It looks at the name, and each existing user is led to the INBOX of the login.
fn looks_and_ignores(login: &Login) -> Welcome {
    match honours(login) {
        Welcome::Refused(refusal) if login.acting_for != "service" => Welcome::Refused(refusal),
        _ => Welcome::to(&login.name, 7, 5),
    }
}

/// As `honours`, and the service account has a mailbox, too.
fn honours_and_has_its_own(login: &Login) -> Welcome {
    if login.acting_for == "service" { Welcome::to("service", 7, 5) } else { honours(login) }
}

/// A site where somebody writes to the service account as well.
fn with_mail_for_the_service_account(server: &Accounts, members: &[&str]) -> Scene {
    let mut scene = scene_on(PG, server.port, members);
    scene.database.add_address("service@mail.axial.net", "service");
    scene
}

/// That goes to its own mailbox in any case, and says nothing of others: it is the first mail of the week here.
#[test]
fn the_service_account_may_have_mail_of_its_own_by_which_nothing_is_proven_for_others() {
    let server = Accounts::start(None, looks_and_ignores);
    let mut scene = with_mail_for_the_service_account(&server, &["doug"]);
    for id in ["first", "second"] {
        scene.deliver("service", scene.message(id)).delivered();
        assert_eq!(server.logins(), ["service by service"]);
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM login_checks"), 0);
    scene.deliver("doug", scene.message("third")).deferred(IGNORES);
    assert_eq!(server.appended(), ["INBOX of service", "INBOX of service"]);

    let server = Accounts::start(None, honours_and_has_its_own);
    let scene = with_mail_for_the_service_account(&server, &["doug"]);
    for (name, proofs) in [("service", 0), ("doug", 1), ("service", 0), ("doug", 0)] {
        scene.deliver(name, scene.message(name)).delivered();
        assert_eq!(invented(&server.logins()), proofs, "{name}");
    }
}

/// A Sent copy is another matter.
#[test]
fn mail_for_the_service_account_checks_the_login_by_its_authors_mailbox() {
    let server = Accounts::start(None, looks_and_ignores);
    let mut scene = with_mail_for_the_service_account(&server, &["lisa"]);
    scene.deliver("service", scene.message("first")).deferred(IGNORES);
    assert_eq!(server.appended(), ["INBOX of service"]);
    assert_eq!(scene.database.count("SELECT count(*) FROM login_checks"), 0);

    let server = Accounts::start(None, honours_and_has_its_own);
    let scene = with_mail_for_the_service_account(&server, &["lisa"]);
    for (id, proofs) in [("first", 1), ("second", 0)] {
        scene.deliver("service", scene.message(id)).delivered();
        assert_eq!(invented(&server.logins()), proofs, "{id}");
    }
    let sent = format!("Sent of {}", scene.user("lisa"));
    assert_eq!(server.appended(), ["INBOX of service", &sent, "INBOX of service", &sent]);

    // An author who cannot be let in holds up nobody.
    let server = Accounts::start(None, |login| match login.acting_for.as_str() {
        "service" => honours_and_has_its_own(login),
        _ => Welcome::Refused("NO [AUTHORIZATIONFAILED] no such user"),
    });
    let mut scene = with_mail_for_the_service_account(&server, &["lisa"]);
    let outcome = scene.deliver("service", scene.message("first"));
    assert_eq!(outcome.delivered(), "INBOX appended (uid 5), Sent owed");
    assert_eq!(scene.database.count("SELECT count(*) FROM login_checks"), 0);
}

#[test]
fn check_does_not_go_by_the_service_accounts_own_mailbox() {
    let finding = |server: &Accounts, members: &[&str]| {
        let scene = with_mail_for_the_service_account(server, members);
        let output = text(&scene.subcommand(&["check", "--all", "--recipient", "service@mail.axial.net"]));
        let line = output.lines().find(|line| line.contains("user of the login"));
        line.unwrap_or_else(|| panic!("{output}")).to_owned()
    };
    let (ignores, honours) = (Accounts::start(None, looks_and_ignores), Accounts::start(None, honours_and_has_its_own));
    let found = finding(&ignores, &["doug"]);
    assert!(found.contains("BAD") && found.contains("other names lead to the same"), "{found}");
    let found = finding(&honours, &["doug"]);
    assert!(found.contains("a user who does not exist is refused"), "{found}");
    for server in [ignores, honours] {
        let found = finding(&server, &[]);
        assert!(found.contains("not tried"), "{found}");
    }
}

/// Courier skips SASL PLAIN's authorization identity.
#[test]
fn nothing_is_appended_on_courier_by_a_service_account_that_acts_for_others() {
    let courier = host_and_port(server("COURIER"), 143);
    let mut scene = Scene::empty(PG);
    for name in ["doug", "scuba"] {
        scene.database.add_address(&format!("{name}@mail.axial.net"), name);
    }
    scene.configure(|settings| settings.imap = courier);
    // A mailbox that nobody has ever selected gets another UIDVALIDITY with each look, and is no mailbox to compare with.
    Imap::login(&server("COURIER"), "service", "service-secret").run("SELECT INBOX").unwrap();
    for _ in 0..2 {
        for name in ["doug", "scuba"] {
            scene.deliver(name, scene.message("one")).deferred(IGNORES);
        }
    }
    let id = scene.message_id("one");
    for (user, password) in [("service", "service-secret"), ("doug", "secret"), ("scuba", "secret")] {
        let mut look = Imap::login(&server("COURIER"), user, password);
        let there = look.messages("INBOX").iter().filter(|there| there.field("Message-ID") == id).count();
        assert_eq!(there, 0, "{user}");
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts"), 0);
    let check = scene.subcommand(&["check", "--all"]);
    let screen = text(&check);
    assert_eq!(check.status.code(), Some(69), "{screen}");
    assert!(screen.lines().any(|line| line.contains("user of the login") && line.contains("BAD")), "{screen}");
}

/// Where two empty mailboxes look the same. Courier, and Cyrus as Debian has it, take mailboxes below INBOX only.
#[test]
fn whose_mailboxes_are_one_is_seen_by_one_that_is_made_for_a_moment() {
    let shown = |settings: &Settings, users: [&str; 2]| {
        shares_account_with(settings, users, Deadline::after(Duration::from_secs(240))).unwrap()
    };
    for server in [Server::Dovecot, Server::Cyrus] {
        let (one, other) = (somebody("behalf"), somebody("behalf"));
        for (users, is_one) in [([&one, &other], false), ([&other, &one], false), ([&one, &one], true)] {
            let users = users.map(String::as_str);
            assert_eq!(shown(&server.settings(), users), Some(is_one), "{server:?} {users:?}");
        }
        let listed = server.mail_program(&other).run("LIST \"\" \"*\"").unwrap();
        let is_listed = |name: &str| listed.iter().any(|mailbox| mailbox.text.contains(name));
        // On this Dovecot the account may delete no mailbox of others (tests/images/start/dovecot).
        assert!(is_listed("INBOX") && is_listed("maildrop-check") == (server == Server::Dovecot), "{listed:?}");
    }
    let (host, port) = host_and_port(server("COURIER"), 143);
    let courier = Settings { address: Endpoint::Tcp { host, port }, ..Server::Dovecot.settings() };
    assert_eq!(shown(&courier, ["doug", "scuba"]), Some(true));
}

/// They have one id, which proves nothing: the rest decides, as on a server that has none. No delivery goes by it.
#[test]
fn two_users_who_were_copied_from_one_skeleton_have_mail_of_their_own() {
    let skeleton = somebody("skeleton");
    let mut scene = Scene::with(PG, &["doug", "scuba"]);
    let users = ["doug", "scuba"].map(|name| scene.user(name));
    Server::Dovecot.mail_program(&skeleton).run("APPEND INBOX {16+}\r\nSubject: hello\r\n").unwrap();
    for user in &users {
        let copied = format!("rm -rf /srv/home/{user}; cp -a /srv/home/{skeleton} /srv/home/{user}");
        on("dovecot", &["sh", "-ec", &copied]);
    }
    let ids = || users.clone().map(|user| id_of_inbox(Server::Dovecot, &mut Server::Dovecot.mail_program(&user)));
    assert_eq!(ids()[0], ids()[1]);
    let [doug, scuba] = users.each_ref().map(String::as_str);
    let found = prove(&Server::Dovecot.settings(), (doug, Some(scuba)), "INBOX", soon(), soon());
    assert_eq!(found.map_err(|error| error.to_string()), Ok(Honoured::EachHasHisOwn), "an invented user shows it");
    scene.deliver("doug", scene.message("one")).delivered();
    assert_eq!(scene.database.count("SELECT count(*) FROM login_checks"), 1);
    assert_eq!((scene.inbox("doug").len(), scene.inbox("scuba").len()), (2, 1));
    // It gets another one, as by a restored backup.
    let maildir = format!("/srv/home/{scuba}/Maildir");
    let changed = format!(
        "sed -i '1s/ G[0-9a-f]*/ G0123456789abcdef0123456789abcdef/' {maildir}/dovecot-uidlist; rm {maildir}/dovecot.index*"
    );
    on("dovecot", &["sh", "-ec", &changed]);
    assert_ne!(ids()[0], ids()[1]);
    scene.deliver("scuba", scene.message("one")).delivered();
    assert_eq!((scene.inbox("doug").len(), scene.inbox("scuba").len()), (2, 2));
}

#[test]
fn what_real_servers_make_of_it() {
    let (host, port) = host_and_port(server("COURIER"), 143);
    let courier = Settings { address: Endpoint::Tcp { host, port }, ..Server::Dovecot.settings() };
    let found = |settings: &Settings, user: &str| {
        prove(settings, (user, None), "INBOX", soon(), soon()).map_err(|error| error.failure)
    };
    // These two let everybody in, as the tests want it: tests/images/start/dovecot, tests/images/start/cyrus.
    for server in [Server::Dovecot, Server::Cyrus] {
        for user in [somebody("behalf"), format!("{}@mail.example", somebody("behalf"))] {
            assert_eq!(found(&server.settings(), &user), Ok(Honoured::EachHasHisOwn), "{server:?} {user}");
        }
        let (user, other) = (somebody("behalf"), somebody("behalf"));
        // Who exists by the table alone is made by the login, as an invented user is.
        drop(server.mail_program(&other));
        let users = (user.as_str(), Some(other.as_str()));
        let found = prove(&server.settings(), users, "INBOX", soon(), soon());
        assert_eq!(found.map_err(|error| error.to_string()), Ok(Honoured::TwoUsersApart), "{server:?}");
    }
    let separator =
        |settings: Settings| Settings { act_for_user: false, login_user: Some("{user}*service".into()), ..settings };
    assert_eq!(found(&separator(Server::Dovecot.settings()), &somebody("behalf")), Ok(Honoured::EachHasHisOwn));
    Imap::login(&server("COURIER"), "service", "service-secret").run("SELECT INBOX").unwrap();
    assert_eq!(found(&courier, "doug"), Err(IdentityIgnored));
    assert_eq!(found(&separator(courier), "doug"), Ok(Honoured::InventedUserRefused));
}

/// Where each account has a second name with the service account's password, a login says for whom it is.
#[test]
fn courier_delivers_to_whom_a_login_names() {
    let courier = host_and_port(server("COURIER"), 143);
    let mut scene = Scene::empty(PG);
    for (address, user) in [("doug@mail.axial.net", "doug"), ("scuba@mail.axial.net", "scuba"), (LISA, "lisa")] {
        scene.database.add_address(address, user);
    }
    let sent = "UPDATE addresses SET sent = 'INBOX.Sent'";
    scene.session().execute(sent);
    scene.configure(|settings| {
        settings.imap = courier;
        settings.imap_more = "login_user = \"{user}*service\"\nmechanism = \"login\"".into();
    });
    let check = scene.subcommand(&["check", "--all"]);
    assert_eq!(check.status.code(), Some(0), "{}", text(&check));
    let (mut inboxes, id) = (Vec::new(), scene.message_id("two"));
    for name in ["doug", "scuba"] {
        scene.deliver(name, scene.message("two")).delivered();
    }
    for (user, mailbox) in [("doug", "INBOX"), ("scuba", "INBOX"), ("lisa", "INBOX.Sent"), ("lisa", "INBOX")] {
        let mut look = Imap::login(&server("COURIER"), user, "secret");
        inboxes.push(look.messages(mailbox).iter().filter(|there| there.field("Message-ID") == id).count());
    }
    assert_eq!(inboxes, [1, 1, 1, 0]);
}

#[test]
fn where_the_login_names_nobody_a_mailbox_is_named_after_its_user() {
    let server = Accounts::start(None, |login| Welcome::to(&login.name, 7, 5));
    let mut scene = scene_on(PG, server.port, &["doug", "lisa"]);
    scene.configure(|settings| settings.imap_more = "act_for_user = false".into());
    scene.deliver("doug", scene.message("one")).deferred(SET_UP);
    assert!(scene.log().contains("imap.login_user does not name the mailbox's user"), "{}", scene.log());
    let check = scene.subcommand(&["check", "--all"]);
    assert_eq!(check.status.code(), Some(69), "{}", text(&check));
    scene.session().execute("UPDATE addresses SET inbox = 'user/' || imap_user");
    // The recipient's copy is where it belongs, and an author's Sent that is everybody's gets none.
    scene.deliver("doug", scene.message("one")).deferred(SET_UP);
    let inbox = format!("user/{} of service", scene.user("doug"));
    assert_eq!(server.appended(), [inbox.as_str()]);
    scene.session().execute("UPDATE addresses SET sent = 'user/' || imap_user || '/Sent'");
    scene.deliver("doug", scene.message("one")).delivered();
    assert_eq!(server.appended(), [inbox, format!("user/{}/Sent of service", scene.user("lisa"))]);
    assert_eq!(invented(&server.logins()), 0);
}

/// However many come at once: a row of failed logins looks like an attack.
#[test]
fn one_delivery_finds_it_out_for_all() {
    // The first of them hears of it when all are there: a connection each, and two more of its own.
    let server = Accounts::start(None, |login| {
        if login.acting_for.starts_with("maildrop-check-") {
            wait_until("all are there", || login.connected.load(Ordering::SeqCst) >= 8 + 2);
        }
        honours(login)
    });
    let names: Vec<String> = (0..8).map(|n| format!("user{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let scene = scene_on(PG, server.port, &names);
    let running: Vec<_> = names.iter().map(|name| scene.start(name, &[], scene.message(name))).collect();
    for delivery in running {
        delivery.end().delivered();
    }
    assert_eq!(invented(&server.logins()), 1);
    assert_eq!(server.appended().len(), 8);
}

#[test]
fn a_server_that_ignores_it_gets_nothing_by_replay_either() {
    let server = Accounts::start(None, |login| Welcome::to(&login.name, 7, 5));
    let scene = scene_on(PG, server.port, &["doug"]);
    std::fs::write(scene.path("one.eml"), scene.message("one")).unwrap();
    let failed = scene.path("failed");
    let to_doug = ["replay", "--recipient", "doug@mail.axial.net", "--failures-to", &failed, &scene.path("one.eml")];
    let replay = scene.subcommand(&to_doug);
    assert_ne!(replay.status.code(), Some(0), "{}", text(&replay));
    assert!(text(&replay).contains("ignores"), "{}", text(&replay));
    assert_eq!(server.appended(), [""; 0]);
}

#[test]
fn a_server_that_ignores_it_gets_no_copy_that_is_still_owed() {
    let (mut scene, _) = crate::commands::finish_owed_copies::owed(PG, "[record]\nkeep_source = true\n");
    let server = Accounts::start(None, |login| Welcome::to(&login.name, 7, 5));
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), server.port));
    let replay = scene.subcommand(&["replay", "--owed"]);
    assert_ne!(replay.status.code(), Some(0), "{}", text(&replay));
    assert!(text(&replay).contains("ignores"), "{}", text(&replay));
    assert_eq!(server.appended(), [""; 0]);
    assert_eq!(scene.database.count("SELECT count(*) FROM copies WHERE state = 'owed'"), 1);
}

/// Nor is anything taken out there.
#[test]
fn a_server_that_ignores_it_is_not_repaired() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    scene.deliver("doug", scene.message("same")).delivered();
    let literal = scene.message("same").replace('\n', "\r\n");
    let mut lisa = scene.look("lisa");
    lisa.run(&format!("APPEND Sent {{{}+}}\r\n{literal}", literal.len())).unwrap();
    let mut database = scene.site().open_database(None, soon()).unwrap();
    let found =
        audit(&scene.site(), database.as_mut(), &Selection { since: 0, mailbox: None }, &mut |_, _| {}).unwrap();
    let [twice] = found.twice.as_slice() else { panic!("{found:?}") };
    let server = Accounts::start(None, |login| Welcome::to(&login.name, 7, 5));
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), server.port));
    let taken = take_out(&scene.site(), twice, soon());
    assert!(
        matches!(&taken, Err(NotRemoved::Unproven(Deferral::Mailbox(e))) if e.failure == IdentityIgnored),
        "{taken:?}"
    );
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}

/// One connection too many is not about the author.
#[test]
fn an_author_who_is_refused_without_a_clear_reason_is_tried_again() {
    for (refusal, owed_at_once) in [
        ("NO [ALERT] too many connections", false),
        ("NO Login failed.", false),
        ("NO [AUTHORIZATIONFAILED] no such user", true),
    ] {
        let server = Accounts::start(None, move |login| match login.acting_for.starts_with("lisa") {
            true => Welcome::Refused(refusal),
            false => honours(login),
        });
        let scene = scene_on(PG, server.port, &["doug", "lisa"]);
        let outcome = scene.deliver("doug", scene.message("one"));
        if owed_at_once {
            assert_eq!(outcome.delivered(), "INBOX appended (uid 1), Sent owed");
        } else {
            outcome.deferred(SET_UP);
        }
        assert_eq!(server.appended(), [format!("INBOX of {}", scene.user("doug"))], "{refusal}");
    }
}

#[test]
fn check_names_the_right_that_is_missing() {
    for (rights, missing) in [("lrswk", "insert"), ("lrswi", "create"), ("lrswic", ""), ("lrikste", "")] {
        let server = Accounts::start(Some(rights), honours);
        let scene = scene_on(PG, server.port, &["doug"]);
        let check = scene.subcommand(&["check", "--all"]);
        let screen = text(&check);
        assert_eq!(check.status.code(), Some(if missing.is_empty() { 0 } else { 69 }), "{screen}");
        assert!(missing.is_empty() || screen.contains(&format!("no right {missing}")), "{screen}");
    }
}

/// Dovecot tells rights by its plugin imap_acl, which docs/install.md has it load: those to a mailbox that is not there, too.
#[test]
fn check_names_the_right_that_is_missing_on_dovecot() {
    for (rights, missing) in [("lrkste", "no right insert"), ("lriste", "no right create"), ("lrikste", "")] {
        let dovecot = OwnServer::dovecot_with(&format!("acl user=service {{\n  rights = {rights}\n}}"));
        let mut scene = Scene::with(PG, &["doug"]);
        scene.configure(|settings| settings.imap = dovecot.address());
        let check = scene.subcommand(&["check", "--all"]);
        let screen = text(&check);
        assert_eq!(check.status.code(), Some(if missing.is_empty() { 0 } else { 69 }), "{screen}");
        assert!(screen.contains("rights to INBOX") && screen.contains(missing), "{rights}: {screen}");
        // It has only looked.
        let mut doug =
            Imap::login(&format!("{}:{}", dovecot.address().0, dovecot.address().1), &scene.user("doug"), "secret");
        assert!(doug.run("STATUS Sent (UIDNEXT)").unwrap_err().contains("NONEXISTENT"), "{rights}");
    }
}
