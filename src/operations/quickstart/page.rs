//! The page: numbered commands, how to undo each step, and the facts that could not be determined.

use super::mailboxes::PORT_OF_INSTANCE;
use super::postfix::map_type;
use super::{Answers, MailUid, MailboxStore, ServerEngine, fill};

const PAGE: &str = include_str!("templates/going-live.md.in");
const PARTS: &str = include_str!("templates/going-live-parts.md.in");

const REMOVE_INSTANCE: &str = "systemctl disable --now dovecot-delivery.service && rm /etc/dovecot/dovecot-delivery.conf \
                               /etc/systemd/system/dovecot-delivery.service && systemctl daemon-reload && ";
const MORE_OF_KEPT: &str = "/usr/share/doc/maildrop-command/postfix/README.md, \"A Dovecot instance for deliveries\"";

/// A section of the page's template, with its last line end.
fn part(name: &str, values: &[(&str, &str)]) -> String {
    let mut sections = PARTS.split("\n## ").filter_map(|section| section.split_once('\n'));
    let text = sections.find(|(heading, _)| *heading == name).map_or("", |(_, text)| text.trim_end());
    fill(text, values) + "\n"
}

/// The page, in Markdown.
pub(super) fn page(answers: &Answers) -> String {
    let url = &answers.database;
    let (administrator, rights) = match url.engine {
        ServerEngine::Postgres => {
            let psql = "runuser -u postgres -- env --chdir=/ psql --quiet --set=ON_ERROR_STOP=1";
            (psql, format!("{psql} {}", url.database))
        }
        ServerEngine::Mysql => (url.client, format!("{} {}", url.client, url.database)),
    };
    let engine = match url.engine {
        ServerEngine::Postgres => "PostgreSQL",
        ServerEngine::Mysql if url.client == "mariadb" => "MariaDB",
        ServerEngine::Mysql => "MySQL",
    };
    let domains: Vec<String> = answers.domains.iter().map(ToString::to_string).collect();
    let install_password = match url.engine {
        ServerEngine::Postgres => "install -m 600 -o postfix postfix/maildrop-recipients.pgpass /etc/postfix/\n",
        ServerEngine::Mysql => "",
    };
    let values: [(&str, &str); 9] = [
        ("domain", answers.domain()),
        ("domains", &domains.join(", ")),
        ("install_password", install_password),
        ("unknown", &unknown(answers)),
        ("administrator", administrator),
        ("rights", &rights),
        ("engine", engine),
        ("store", &store(answers)),
        ("map", map_type(url.engine)),
    ];
    fill(PAGE, &values)
}

fn unknown(answers: &Answers) -> String {
    let url = &answers.database;
    let mail_hosts: Vec<String> = answers.mail_hosts.iter().map(ToString::to_string).collect();
    let is_cyrus = answers.store == MailboxStore::Cyrus;
    let asks_for_mail_hosts = !answers.mail_hosts_are_named && !is_cyrus;
    let (imap_is_local, database_is_remote) = (answers.imap.is_on_this_machine(), !url.server.is_on_this_machine());
    let points = [
        ("addresses", true),
        ("no mail host", asks_for_mail_hosts && mail_hosts.is_empty()),
        ("other mail hosts", asks_for_mail_hosts && !mail_hosts.is_empty()),
        ("names of Cyrus", is_cyrus),
        ("local Cyrus", is_cyrus && imap_is_local),
        ("remote Cyrus", is_cyrus && !imap_is_local),
        ("PostgreSQL", database_is_remote && url.engine == ServerEngine::Postgres),
        ("MySQL", database_is_remote && url.engine == ServerEngine::Mysql),
        ("certificate", database_is_remote),
        ("rest", true),
    ];
    let values = [
        ("mail_hosts", mail_hosts.join(", ")),
        ("host", answers.imap.host.clone()),
        ("database_host", url.server.host.clone()),
        ("role", url.role.clone()),
        ("authserv_id", answers.authserv_id.to_string()),
    ];
    let values = values.each_ref().map(|(name, value)| (*name, value.as_str()));
    let points = points.iter().filter(|(_, applies)| *applies);
    points.map(|(name, _)| part(&format!("unknown: {name}"), &values)).collect()
}

/// Whether Dovecot keeps its processes for the next login, and at what cost; or why it cannot.
fn kept_processes(answers: &Answers) -> String {
    let setting = if answers.store == MailboxStore::Dovecot23 { "service_count" } else { "restart_request_count" };
    let (name, uid) = match (answers.mail_uid(), answers.version_of_an_instance()) {
        (MailUid::One(uid), Some(_)) => ("kept: instance", uid.as_str()),
        (MailUid::One(uid), None) => ("kept: one uid", uid.as_str()),
        (MailUid::OfEachUser, _) => ("kept: a uid each", ""),
        (MailUid::Unknown, _) => ("kept: unknown", ""),
    };
    let port = PORT_OF_INSTANCE.to_string();
    part(name, &[("uid", uid), ("port", &port), ("setting", setting), ("more", MORE_OF_KEPT)])
}

fn store(answers: &Answers) -> String {
    let host = ("host", answers.imap.host.as_str());
    let confined = match answers.store {
        MailboxStore::Cyrus => return part("store: Cyrus", &[host]),
        MailboxStore::Dovecot23 => part("confined: Dovecot 2.3", &[]),
        MailboxStore::Dovecot => ", and an ACL leaves it what a delivery needs".to_owned(),
    };
    let (start, remove) = match answers.version_of_an_instance() {
        Some(_) => (part("start instance", &[]), REMOVE_INSTANCE),
        None => (String::new(), ""),
    };
    let (kept, confined) = (kept_processes(answers), confined.trim_end());
    let values =
        [host, ("confined", confined), ("start_instance", &start), ("kept", &kept), ("remove_instance", remove)];
    part("store: Dovecot", &values)
}
