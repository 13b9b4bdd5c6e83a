//! The fragments for Postfix, with the site's values in place of those of mail.axial.net; and the service's units.

use super::{Answers, Passwords, ServerEngine};

pub(super) const MAIN_CF_SERVICE: &str = include_str!("../../../postfix/main.cf.maildropd");
pub(super) const MASTER_CF: &str = include_str!("../../../postfix/master.cf.maildrop");
pub(super) const MASTER_CF_SERVICE: &str = include_str!("../../../postfix/master.cf.maildropd");
pub(super) const UNIT: &str = include_str!("../../../tests/package/debian/maildropd.service");
pub(super) const PROOF: &str = include_str!("../../../tests/package/debian/maildrop-command-proof.service");
pub(super) const PROOF_TIMER: &str = include_str!("../../../tests/package/debian/maildrop-command-proof.timer");
pub(super) const OWED: &str = include_str!("../../../tests/package/debian/maildrop-command-owed.service");
pub(super) const OWED_TIMER: &str = include_str!("../../../tests/package/debian/maildrop-command-owed.timer");
pub(super) const SOCKET: &str = include_str!("../../../tests/package/debian/maildropd.socket");

const MAIN_CF: &str = include_str!("../../../postfix/main.cf.maildrop");
const HEADER_CHECKS: &str = include_str!("../../../postfix/header-checks.maildrop");
const POSTGRES_MAP: &str = include_str!("../../../postfix/pgsql-recipients.cf");
const POSTGRES_MAP_PASSWORD: &str = include_str!("../../../postfix/pgsql-recipients.pgpass");
const MYSQL_MAP: &str = include_str!("../../../postfix/mysql-recipients.cf");

/// Postfix's name of its client for this engine's tables.
pub(super) fn map_type(engine: ServerEngine) -> &'static str {
    match engine {
        ServerEngine::Postgres => "pgsql",
        ServerEngine::Mysql => "mysql",
    }
}

/// main.cf, without virtual_transport, which is set step by step.
pub(super) fn main_cf(answers: &Answers) -> String {
    let domains: Vec<String> = answers.domains.iter().map(ToString::to_string).collect();
    let map = format!("proxy:{}:/etc", map_type(answers.database.engine));
    let text = MAIN_CF.replace("mail.axial.net", &domains.join(" ")).replace("proxy:pgsql:/etc", &map);
    let lines = text.lines().filter(|line| !line.starts_with("virtual_transport"));
    let lines = lines.map(|line| match line.strip_prefix("# Put your own values in, then append to") {
        Some(_) => "# Append to /etc/postfix/main.cf: GOING-LIVE.md. Why",
        None => line.split(" With MySQL or MariaDB:").next().unwrap_or(line),
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// Escapes the dots, since a dot in a pattern matches any character.
pub(super) fn header_checks(answers: &Answers) -> String {
    let name = answers.authserv_id.to_string();
    let text = HEADER_CHECKS.replace("mail\\.axial\\.net", &name.replace('.', "\\."));
    text.replace(" Put the authserv-id of your own verifier in place of mail.axial.net.", "")
}

/// The file with the password of PostgreSQL's map; MySQL's map has its password in itself.
pub(super) fn recipients_password(answers: &Answers, passwords: &Passwords) -> Option<String> {
    let url = &answers.database;
    let text = POSTGRES_MAP_PASSWORD.replace("postfix_maps", &url.maps()).replace("PASSWORD", passwords.maps.expose());
    (url.engine == ServerEngine::Postgres).then_some(text)
}

/// The map of recipients.
pub(super) fn recipients(answers: &Answers, passwords: &Passwords) -> String {
    let url = &answers.database;
    let text = match url.engine {
        ServerEngine::Postgres => {
            POSTGRES_MAP.replace("@db.axial.net/maildrop?", &format!("@{}/{}?", url.server.with_port(), url.database))
        }
        ServerEngine::Mysql => {
            let host = match url.server.is_on_this_machine() {
                // To the client library, "localhost" is a socket, whose path differs between systems.
                true if url.server.host.eq_ignore_ascii_case("localhost") => "127.0.0.1",
                _ => &url.server.host,
            };
            let server = url.server.port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
            MYSQL_MAP.replace("hosts = db.axial.net", &format!("hosts = {server}"))
        }
    };
    let text = text
        .replace("dbname = maildrop", &format!("dbname = {}", url.database))
        .replace("postfix_maps", &url.maps())
        .replace("PASSWORD", passwords.maps.expose());
    if !url.server.is_on_this_machine() {
        return text;
    }
    // A connection within this machine needs no encryption.
    let text = text.replace("sslmode=verify-full&sslrootcert=/etc/ssl/certs/ca-certificates.crt&", "sslmode=disable&");
    let lines = text.lines().filter(|line| !line.starts_with("tls_"));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}
