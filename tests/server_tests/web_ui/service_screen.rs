//! Somebody looks at the page of a real service in a browser: while a Postfix delivers on two hosts the list says what is new, and moves
//! by its command; and the service shows how it is.

use crate::support::browser::{Browser, Forwarder};
use crate::support::database::Engine;
use crate::support::mail_hosts::{MailHosts, Options};
use crate::support::postfix::wait_until_delivered;
use crate::support::program::{PATIENCE, program, wait_for, wait_until};
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The page as the service starts it, with the rights of the page's own role.
struct Served {
    child: Child,
    origin: String,
    link: String,
    _forwarder: Forwarder,
}

impl Served {
    fn start(scene: &mut Scene, role_of_link: &str) -> Self {
        let (role, password) = (format!("{}_w", scene.run), scene.settings.database_password.clone());
        scene.database.create_page(&role, &password);
        let people = format!("{}_o", scene.run);
        scene.database.create_operator(&people, &password);
        // Another process may have taken the port on loopback meanwhile: then another one.
        for _ in 0..10 {
            let forwarder = Forwarder::start();
            let at = ("127.0.0.1", forwarder.port);
            let of = |file: &str, role: &str| {
                scene.other_configuration(file, |settings| {
                    settings.role = role.to_owned();
                    settings.more += &format!("[web]\nlisten = \"127.0.0.1:{}\"\n", at.1);
                });
                // It runs here, and not on the mail hosts.
                let (own, there) = (scene.path(file), scene.seen(""));
                let text = std::fs::read_to_string(&own).unwrap().replace(&there, &scene.path(""));
                std::fs::write(&own, text).unwrap();
                own
            };
            let (own, people) = (of("page.toml", &role), of("people.toml", &people));
            let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
            command.args(["--config", &own, "--role", "web"]).env_clear().stdin(Stdio::null());
            let mut child = command.spawn().unwrap();
            let mut ended = false;
            wait_for("the page is there, or has ended", PATIENCE, || {
                ended = child.try_wait().unwrap().is_some();
                ended || TcpStream::connect(at).is_ok()
            });
            if ended {
                continue;
            }
            let arguments = ["web", "login", "--name", "anna", "--role", role_of_link, "--config", &people];
            let output = program(&arguments).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let link = String::from_utf8(output.stdout).unwrap();
            let origin = format!("http://localhost:{}", at.1);
            let link = format!("{origin}/login#{}", link.trim().split_once('#').unwrap().1);
            return Self { child, origin, link, _forwarder: forwarder };
        }
        panic!("the page has ended each time: what it said is above");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_list_grows_while_postfix_delivers_on_two_hosts() {
    let mut site = MailHosts::set_up(&Options::new(Engine::Postgres17, 10));
    let served = Served::start(&mut site.scene, "viewer");
    let browser = Browser::start();
    browser.log_in(&served.link);
    assert!(browser.text().contains("No mail has come here yet"), "{}", browser.text());
    let deliver = |number: usize| {
        // Without a Date each host would write one of its own, and the two were different messages.
        let content = format!(
            "Date: Tue, 24 Nov 2026 10:00:00 +0000\r\nFrom: Lisa <{LISA}>\r\n\
             Message-ID: <{number}-{}@mail.google.com>\r\nSubject: Number {number}\r\n\r\nHello\r\n",
            site.scene.run
        );
        let (here, there) = site.recipients.split_at(5);
        let ids: Vec<String> = site
            .hosts
            .iter()
            .zip([here, there])
            .map(|(host, recipients)| {
                let mut smtp = host.smtp();
                smtp.give(LISA, recipients, content.as_bytes());
                smtp.end()
            })
            .collect();
        wait_until_delivered(&[(&site.hosts[0], vec![ids[0].clone()]), (&site.hosts[1], vec![ids[1].clone()])], LIMIT);
    };
    let mut session = site.scene.session();
    let mut tried = || session.texts("SELECT count(*)::text FROM attempts WHERE role = 'recipient'").remove(0);
    deliver(1);
    let first = tried();
    wait_until("what is new is counted", || browser.text().contains(&format!("{first} new: show")));
    deliver(2);
    let all = tried();
    assert_ne!(first, all);
    wait_until("it grows", || browser.text().contains(&format!("{all} new: show")));
    assert_eq!(browser.script("return document.querySelectorAll('tbody tr').length"), 0, "nothing has moved");
    browser.script("document.querySelector('[data-newer] a').click()");
    let rows: usize = all.parse::<usize>().unwrap().min(50);
    wait_until("it is shown", || browser.now("return document.querySelectorAll('tbody tr').length") == rows);
    let text = browser.text();
    for host in ["mx1", "mx2"] {
        assert!(text.contains(host), "{host}: {text}");
    }
    assert_eq!(browser.complaints(), [""; 0]);

    // One message, and what both hosts did for it.
    browser.go(&format!("{}/?q=%3C1-{}%40mail.google.com%3E", served.origin, site.scene.run));
    let text = browser.text();
    assert!(browser.url().contains("/messages/"), "{}", browser.url());
    for host in ["mx1", "mx2"] {
        assert!(text.contains(host), "{host}: {text}");
    }
    browser.is_for_everybody("message-two-hosts", &browser.url());
    // What a viewer may not see.
    browser.go(&format!("{}/service", served.origin));
    browser.refusal_is_for_everybody("not-for-you", 403);
    assert!(browser.text().contains("This needs the role operator"), "{}", browser.text());
}

#[test]
fn how_the_service_is_can_be_read_by_everybody() {
    let mut scene = Scene::empty(Engine::Postgres17);
    let service = Service::start(&mut scene);
    let served = Served::start(&mut scene, "operator");
    let browser = Browser::start();
    browser.log_in(&served.link);
    let url = format!("{}/service", served.origin);
    // A busy master may not answer in time, and then the page says so. It is not reloaded while it is looked at.
    wait_until("the master answers", || {
        browser.go(&url);
        browser.text().contains("Its processes are well")
    });
    browser.script("for (let timer = setTimeout(() => {}); timer > 0; timer -= 1) clearInterval(timer)");
    browser.complaints();
    assert_eq!(browser.url(), url);
    browser.shown_is_for_everybody("service-running");
    let text = browser.text();
    assert!(text.contains("Its processes are well") && text.contains("worker 2"), "{text}");
    service.end();
    // The database does not answer with what is asked for.
    scene.database.execute("DROP TABLE operations");
    browser.go(&format!("{}/log", served.origin));
    browser.refusal_is_for_everybody("no-answer", 503);
    assert!(browser.text().contains("The database has not answered"), "{}", browser.text());
}

const LIMIT: Duration = Duration::from_secs(300);
