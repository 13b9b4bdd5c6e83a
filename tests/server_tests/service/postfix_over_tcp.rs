//! A real Postfix on another machine: LMTP by TCP, with a certificate, or from an address that is listed.

use crate::service::postfix_over_lmtp::{log_lines, message};
use crate::service::third_party_relays::here;
use crate::support::container;
use crate::support::database::Engine;
use crate::support::mail_hosts::{MailHosts, Options};
use crate::support::postfix::{Postfix, on, wait_until_delivered};
use crate::support::program::{as_delivered, wait_until};
use crate::support::service::Service;
use crate::support::site_fixture::LISA;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);

struct Stage {
    site: MailHosts,
    service: Service,
}

impl Stage {
    /// A service that is reached by TCP, a Postfix that has its mail go there, and a certificate for either.
    fn set_up(recipients: usize, serve: impl FnOnce(&MailHosts, &str) -> String) -> Self {
        // Servers that are plain processes are on this machine, from which everybody may connect.
        container("MX1");
        let mut site = MailHosts::set_up(&Options::new(Engine::Postgres17, recipients));
        let (host, port, theirs) = here("MX1");
        on("mx1", &["sh", "-ec", CERTIFICATE, "sh", &site.scene.seen("")]);
        let serve = format!("workers = 2\n{}", serve(&site, &theirs));
        let place = format!("{host}:{port}");
        let service = Service::start_with(&mut site.scene, &serve, &[Path::new(&place)]);
        let mx1 = &site.hosts[0];
        mx1.append_to_master_cf(include_str!("../../../postfix/master.cf.maildropd"));
        mx1.append_to_main_cf(include_str!("../../../postfix/main.cf.maildropd"));
        let stage = Self { site, service };
        stage.set(&[&format!("virtual_transport=maildrop-lmtp:inet:[{host}]:{port}"), "message_size_limit=20000000"]);
        stage
    }

    fn mx1(&self) -> &Postfix {
        &self.site.hosts[0]
    }

    fn set(&self, settings: &[&str]) {
        let reloads = || self.mx1().log().matches("reload -- version").count();
        self.mx1().run("postconf", &[&["-e"], settings].concat());
        let before = reloads();
        self.mx1().run("postfix", &["reload"]);
        wait_until("Postfix has read its settings", || reloads() > before);
    }

    fn send(&self, recipients: &[String], message: &[u8]) -> String {
        let mut smtp = self.mx1().smtp();
        smtp.give(LISA, recipients, message);
        smtp.end()
    }

    fn id(&self, name: &str) -> String {
        format!("<{name}.{}@x>", self.site.scene.run)
    }

    /// Each recipient has so many messages, once each, and so has their author.
    fn end(mut self, messages: usize) {
        for recipient in &self.site.recipients {
            assert_eq!(self.site.scene.mailbox(recipient, "INBOX").len(), messages, "{recipient}");
        }
        assert_eq!(self.site.scene.mailbox(LISA, "Sent").len(), messages);
        let copies = (messages * (self.site.recipients.len() + 1)) as i64;
        assert_eq!(self.site.scene.database.count("SELECT count(*) FROM messages"), messages as i64);
        assert_eq!(self.site.scene.database.count("SELECT count(*) FROM copies"), copies);
        self.service.end();
    }
}

/// One for the service and for Postfix, signed by the authority of the tests.
const CERTIFICATE: &str = r#"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=mail.axial.net" \
        -CA /tls/ca.pem -CAkey /tls/ca.key -addext "subjectAltName=DNS:mail.axial.net" \
        -addext basicConstraints=critical,CA:FALSE -keyout "$1/tcp.key" -out "$1/tcp.pem" 2>/dev/null
"#;

fn with_certificates(site: &MailHosts) -> String {
    let [certificate, key, ca] = ["tcp.pem", "tcp.key", "ca.pem"].map(|name| site.scene.seen(name));
    format!("certificate_file = \"{certificate}\"\nkey_file = \"{key}\"\nclient_ca_file = \"{ca}\"\n")
}

#[test]
fn a_client_that_is_not_listed_needs_a_certificate_and_then_hands_over_whatever_its_size() {
    let stage = Stage::set_up(50, |site, _| with_certificates(site));
    let scene = &stage.site.scene;
    let deferred =
        |id: &str| log_lines(stage.mx1(), id, "/lmtp[").iter().filter(|line| line.contains("status=deferred")).count();

    // In the clear, and then encrypted but without a certificate: nothing is taken, and nothing bounces.
    let first = stage.id("first");
    let id = stage.send(&stage.site.recipients, message(&first, "Subject: fifty\r\n", "x").as_bytes());
    wait_until("it is deferred", || deferred(&id) >= 50);
    assert!(stage.mx1().log().contains("530 5.7.0") || stage.mx1().log().contains("STARTTLS"), "{}", stage.mx1().log());
    let [ca, certificate, key] = ["ca.pem", "tcp.pem", "tcp.key"].map(|name| scene.seen(name));
    let verified = [
        "lmtp_tls_security_level=secure".into(),
        format!("lmtp_tls_CAfile={ca}"),
        "lmtp_tls_secure_cert_match=mail.axial.net".into(),
        "lmtp_tls_loglevel=1".into(),
    ];
    stage.set(&verified.each_ref().map(String::as_str));
    let before = deferred(&id);
    wait_until("it is deferred again", || {
        stage.mx1().flush();
        deferred(&id) >= before + 50
    });
    for recipient in &stage.site.recipients[..2] {
        assert_eq!(scene.mailbox(recipient, "INBOX").len(), 0);
    }

    let shown = [format!("lmtp_tls_cert_file={certificate}"), format!("lmtp_tls_key_file={key}")];
    stage.set(&shown.each_ref().map(String::as_str));
    wait_until_delivered(&[(stage.mx1(), vec![id.clone()])], LIMIT);
    let sent =
        log_lines(stage.mx1(), &id, "/lmtp[").iter().filter(|line| line.contains("status=sent (250 2.0.0 ")).count();
    assert_eq!(sent, 50, "{}", stage.mx1().log());
    assert!(stage.mx1().log().contains("Verified TLS connection established to"), "{}", stage.mx1().log());

    // Ten megabytes in lines of any length.
    let body = format!("{}\r\n", "x".repeat(5000)).repeat(1999) + "the last line";
    let large = message(&stage.id("large"), "Subject: large\r\n", &body);
    assert!(large.len() > 9_990_000, "{}", large.len());
    let id = stage.send(&stage.site.recipients, large.as_bytes());
    wait_until_delivered(&[(stage.mx1(), vec![id])], LIMIT);
    for recipient in &stage.site.recipients[..2] {
        let there = scene.mailbox(recipient, "INBOX");
        let copy = there.iter().find(|copy| copy.field("Subject") == "large").unwrap();
        let header = large.find("\r\n\r\n").unwrap() + 4;
        assert!(copy.content.ends_with(&as_delivered(&large.as_bytes()[header..])), "{}", copy.content.len());
    }
    assert_eq!(stage.mx1().log().matches("status=bounced").count(), 0);
    stage.end(2);
}

#[test]
fn a_client_that_is_listed_sends_many_messages_on_one_connection() {
    let stage = Stage::set_up(2, |_, theirs| format!("lmtp_clients = [\"{theirs}\"]\n"));
    // They wait until there are many, and go one after the other: then lmtp(8) keeps its connection.
    stage.set(&["defer_transports=maildrop-lmtp", "maildrop-lmtp_destination_concurrency_limit=1"]);
    let send = |number: usize| {
        let id = stage.id(&format!("many{number}"));
        stage.send(&stage.site.recipients, message(&id, "Subject: many\r\n", "x").as_bytes())
    };
    let ids: Vec<String> = (0..20).map(send).collect();
    stage.set(&["defer_transports="]);
    wait_until_delivered(&[(stage.mx1(), ids)], LIMIT);
    let log = stage.mx1().log();
    assert!(log.contains("conn_use="), "{log}");
    assert!(!log.contains("status=bounced") && !log.contains("lost connection"), "{log}");
    stage.end(20);
}
