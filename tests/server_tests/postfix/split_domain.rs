//! Two sites, each with a database and a mail host of its own, share one domain: the recipe of docs/split-domain.md. Who lives in the
//! other site is a stranger here: mail to them goes to their site's host, and what they write owes them nothing here. An author's
//! copy is made in the author's own site, where Postfix sends a copy of everything that its people write.

use crate::support::database::Engine;
use crate::support::mail_hosts::a_site;
use crate::support::postfix::{OPT, Postfix, Values};
use crate::support::program::wait_for;
use crate::support::site_fixture::{LISA, Scene};
use std::sync::Barrier;
use std::time::Duration;

const BORIS: &str = "boris@mail.axial.net";
const STRANGER: &str = "anybody@gmail.example";

/// A site and its host.
struct Site {
    scene: Scene,
    host: Postfix,
    members: Vec<String>,
}

impl Site {
    /// Where these live, and the mailbox that takes what they send.
    fn set_up(name: &str, host: &'static str, engine: Engine, members: &[&str]) -> Self {
        let command = format!("{OPT}/bin/maildrop_command");
        let (mut scene, recipients_map) = a_site(engine, &command);
        let members = members.iter().map(|member| scene.member(member)).collect();
        let outgoing = scene.member(&format!("outgoing-{name}"));
        let map_type = if engine.is_postgres() { "pgsql" } else { "mysql" };
        let values = Values {
            run: &scene.run,
            command: &command,
            config: &scene.seen("config.toml"),
            lock_wait: None,
            map_type,
            recipients_map: &recipients_map,
        };
        let host = Postfix::start(host, &values);
        // The map of recipients with another answer.
        let authors = recipients_map.replace("SELECT 1 FROM", &format!("SELECT '{outgoing}' FROM"));
        let authors = host.write("maildrop-authors.cf", &authors.replace("/etc/postfix/", &host.etc("")));
        host.append_to_main_cf(&format!("sender_bcc_maps = proxy:{map_type}:{authors}\n"));
        Self { scene, host, members }
    }

    /// Writes a table of the other site's users for this site's Postfix.
    fn route_to(&self, other: &Self) {
        let (ip, port) = other.host.address().rsplit_once(':').unwrap();
        let line = |member: &String| format!("{member} smtp:[{ip}]:{port}\n");
        let table = self.host.write("site-other", &other.members.iter().map(line).collect::<String>());
        self.host.append_to_main_cf(&format!("transport_maps = texthash:{table}\n"));
        let ours = self.host.run("postconf", &["-h", "virtual_mailbox_maps"]);
        self.host.append_to_main_cf(&format!("virtual_mailbox_maps = {} $transport_maps\n", ours.trim()));
    }

    /// The subjects in a member's mailbox, sorted.
    fn subjects(&self, member: &str, mailbox: &str) -> Vec<String> {
        let mut subjects: Vec<String> =
            self.scene.mailbox(member, mailbox).iter().map(|copy| copy.field("Subject")).collect();
        subjects.sort();
        subjects
    }
}

/// Gives a message to these hosts, the closing dots in the same instant.
fn send(hosts: &[&Postfix], from: &str, to: &[&str], id: &str) {
    let to: Vec<String> = to.iter().map(|name| format!("{name}@mail.axial.net")).collect();
    let message = format!(
        "From: <{from}>\r\nTo: {}\r\nDate: Fri, 20 Nov 2026 10:00:00 +0000\r\nMessage-ID: <{id}@gmail.example>\r\n\
         Subject: {id}\r\n\r\n{id}\r\n",
        to.join(",\r\n\t")
    );
    let together = Barrier::new(hosts.len());
    std::thread::scope(|scope| {
        for host in hosts {
            scope.spawn(|| {
                let mut smtp = host.smtp();
                smtp.give(from, &to, message.as_bytes());
                together.wait();
                smtp.end()
            });
        }
    });
}

#[test]
fn an_author_of_the_other_site_is_owed_nothing_here_and_has_one_copy_at_home() {
    let mut a = Site::set_up("a", "mx1", Engine::Postgres17, &["lisa", "scuba", "anna"]);
    let mut b = Site::set_up("b", "mx2", Engine::Mariadb118, &["boris", "doug"]);
    a.route_to(&b);
    b.route_to(&a);

    send(&[&a.host], LISA, &["scuba", "anna", "doug", "boris"], "to both sites");
    send(&[&a.host], LISA, &["doug"], "to the other site");
    send(&[&b.host], BORIS, &["scuba", "doug"], "from the other site");
    // The sender's MTA gave all of it to one host, missed the reply, and gives it all to the other.
    send(&[&a.host, &b.host], STRANGER, &["scuba", "doug", "lisa"], "twice from outside");

    let everything = [
        (&a, "lisa", "INBOX", vec!["twice from outside"]),
        (&a, "lisa", "Sent", vec!["to both sites", "to the other site"]),
        (&a, "scuba", "INBOX", vec!["from the other site", "to both sites", "twice from outside"]),
        (&a, "anna", "INBOX", vec!["to both sites"]),
        (&a, "outgoing-a", "INBOX", vec!["to both sites", "to the other site"]),
        (&b, "boris", "INBOX", vec!["to both sites"]),
        (&b, "boris", "Sent", vec!["from the other site"]),
        (&b, "doug", "INBOX", vec!["from the other site", "to both sites", "to the other site", "twice from outside"]),
        (&b, "outgoing-b", "INBOX", vec!["from the other site"]),
    ];
    wait_for("all of it is there, and the queues are empty", Duration::from_secs(300), || {
        // What goes from one host to the other does it once: seen on neither, and again not on the first, it is nowhere.
        let empty = [&a, &b, &a].iter().all(|site| {
            site.host.flush();
            site.host.run("postqueue", &["-j"]).is_empty()
        });
        empty
            && everything
                .iter()
                .all(|(site, member, mailbox, there)| site.subjects(member, mailbox).len() >= there.len())
    });
    for (site, member, mailbox, there) in &everything {
        assert_eq!(site.subjects(member, mailbox), *there, "{member}: {mailbox}");
    }
    // Nothing was as much as tried for an author of the other site, and nothing is owed to anybody.
    for (site, author, copies) in [(&mut a, "lisa", 2), (&mut b, "boris", 1)] {
        let user = site.scene.user(author);
        let database = &mut site.scene.database;
        for table in ["copies", "attempts"] {
            let others = format!("SELECT count(*) FROM {table} WHERE role = 'sender' AND imap_user <> '{user}'");
            assert_eq!(database.count(&others), 0, "{author}: {table}");
        }
        assert_eq!(database.count("SELECT count(*) FROM copies WHERE role = 'sender'"), copies);
        assert_eq!(database.count("SELECT count(*) FROM copies WHERE state = 'owed'"), 0);
        assert_eq!(database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
        let log = site.host.log();
        for bad in ["status=bounced", "status=SOFTBOUNCE", "panic", "fatal:"] {
            assert!(!log.contains(bad), "{bad} in the log:\n{log}");
        }
    }
}
