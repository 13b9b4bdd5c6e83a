//! The page: numbered commands, each step with its way back, and what could not be known.

use super::mailboxes::PORT_OF_INSTANCE;
use super::postfix::map_type;
use super::{Answers, Engine, MailUid, MailboxStore};

/// The page, in Markdown.
pub(super) fn page(answers: &Answers) -> String {
    let url = &answers.database;
    let domain = answers.domain();
    let (administrator, rights) = match url.engine {
        Engine::Postgres => {
            let psql = "runuser -u postgres -- psql --quiet --set=ON_ERROR_STOP=1";
            (psql.to_owned(), format!("{psql} {}", url.database))
        }
        Engine::Mysql => (url.client.to_owned(), format!("{} {}", url.client, url.database)),
    };
    let engine = match url.engine {
        Engine::Postgres => "PostgreSQL",
        Engine::Mysql if url.client == "mariadb" => "MariaDB",
        Engine::Mysql => "MySQL",
    };
    format!(
        "# Going live: {domain}\n\
\n\
The commands are root's, in the folder of this page. Each step can be undone, and up to step 6 no mail goes another way than before.\n\
Every file here is for root alone: there are passwords in them, made at random. Remove the folder once all is done.\n\
\n\
## What could not be known\n\
\n\
{unknown}\
\n\
## What no longer happens\n\
\n\
Mail is appended over IMAP. What the mailbox store did at delivery stops with step 6. Decide about each before:\n\
\n\
- Sieve scripts: on Dovecot, imapsieve can run them at each APPEND to INBOX; elsewhere use rules in the mail program.\n\
- Vacation replies: a program of your own at Postfix, or an address in `virtual_alias_maps` that leads to one, beside the mailbox.\n\
- Forwarding: `virtual_alias_maps` in Postfix.\n\
- Filing of spam by the mailbox store: a milter in Postfix marks, holds or rejects; imapsieve or the mail program files what is marked.\n\
\n\
## 1. The program\n\
\n\
On every mail host, the Debian package (`dpkg -i maildrop-command_*.deb`), which makes the users. Then its files:\n\
\n\
```sh\n\
install -m 644 config.toml /etc/maildrop_command/\n\
install -m 640 -g maildrop database.password imap.password /etc/maildrop_command/\n\
install -m 640 -g maildrop-operator operator.password /etc/maildrop_command/\n\
install -m 600 owner.password /etc/maildrop_command/\n\
```\n\
\n\
People who look after deliveries are root, or in the group maildrop-operator: the password that a subcommand needs says who may run it.\n\
\n\
Way back: `dpkg --purge maildrop-command`, which removes /etc/maildrop_command.\n\
\n\
## 2. The database\n\
\n\
On the server of {engine}, as its administrator:\n\
\n\
```sh\n\
{administrator} <database.sql\n\
```\n\
\n\
On one mail host:\n\
\n\
```sh\n\
maildrop_command migrate\n\
```\n\
\n\
On the server again; `addresses.sql` says who lives here, and is yours to write first:\n\
\n\
```sh\n\
{rights} <rights.sql\n\
{rights} <addresses.sql\n\
```\n\
\n\
Way back: `{administrator} <take-back.sql`.\n\
\n\
## 3. The mailbox store\n\
\n\
{store}\
\n\
## 4. Proof\n\
\n\
On every mail host, as the user that Postfix will use. Mend first whatever is BAD: it would defer mail, or break a promise. It says what mends it:\n\
\n\
```sh\n\
setpriv --reuid maildrop --regid maildrop --clear-groups maildrop_command check --self-test\n\
```\n\
\n\
## 5. Postfix, while mail goes where it went\n\
\n\
`postconf -M maildrop/unix` has to say \"unmatched request\"; Debian 12 has another entry of that name, which\n\
`postconf -MX maildrop/unix` takes out. The map needs the package postfix-{map}.\n\
\n\
```sh\n\
cp -p /etc/postfix/main.cf /etc/postfix/master.cf .\n\
install -m 644 postfix/maildrop-header-checks /etc/postfix/\n\
install -m 640 -g postfix postfix/maildrop-recipients.cf /etc/postfix/\n\
postconf -e \"virtual_transport=$(postconf -hx virtual_transport)\" unknown_virtual_mailbox_reject_code=450\n\
cat postfix/main.cf.maildrop postfix/main.cf.maildropd >>/etc/postfix/main.cf\n\
cat postfix/master.cf.maildrop postfix/master.cf.maildropd >>/etc/postfix/master.cf\n\
postfix check && postfix reload\n\
```\n\
\n\
Way back: `cp -p main.cf master.cf /etc/postfix/ && postfix reload`.\n\
\n\
## 6. One address, then everybody\n\
\n\
`scuba@{domain}` stands for somebody who can be asked.\n\
\n\
```sh\n\
postmap -q scuba@{domain} {map}:/etc/postfix/maildrop-recipients.cf   # says 1\n\
postconf -e 'transport_maps = inline:{{scuba@{domain}=maildrop:}}' && postfix reload\n\
```\n\
\n\
Send that address a message; the log has to say `status=sent (delivered via maildrop service (2.0.0 INBOX appended …`. Then:\n\
\n\
```sh\n\
postconf -e virtual_transport=maildrop && postconf -X transport_maps && postfix reload\n\
```\n\
\n\
A site that stays without step 7 enables the timer that proves once a day that logins lead to the mailboxes of their users:\n\
`systemctl enable --now maildrop-command-proof.timer`. The service does so by itself.\n\
\n\
Way back: that of step 5. What was delivered stays delivered.\n\
\n\
## 7. The service, for more than a few messages a second\n\
\n\
Where the package is not installed, first `install -m 644 systemd/* /etc/systemd/system/ && systemctl daemon-reload`.\n\
\n\
```sh\n\
systemctl enable --now maildropd.socket maildropd.service\n\
postconf -e virtual_transport=maildrop-lmtp:unix:private/maildropd && postfix reload\n\
```\n\
\n\
Way back: `postconf -e virtual_transport=maildrop && postfix reload && systemctl disable --now maildropd.socket maildropd.service`.\n\
Both ways deliver a message once, whichever tried it before.\n\
\n\
## 8. Once nothing has been amiss for a few days\n\
\n\
Until here nothing bounces. In the log `SOFTBOUNCE` is what would have, and `450` who would have been refused.\n\
\n\
```sh\n\
postconf -PX maildrop/unix/soft_bounce maildrop-lmtp/unix/soft_bounce\n\
postconf -X unknown_virtual_mailbox_reject_code && postfix reload\n\
```\n\
\n\
Way back: `postconf -P maildrop/unix/soft_bounce=yes maildrop-lmtp/unix/soft_bounce=yes && postconf -e \
unknown_virtual_mailbox_reject_code=450 && postfix reload`.\n\
What was bounced meanwhile has gone back to its sender.\n",
        unknown = unknown(answers),
        store = store(answers),
        map = map_type(url.engine),
    )
}

fn unknown(answers: &Answers) -> String {
    let mut points = vec![format!("Who lives here: `addresses.sql`. Postfix refuses whoever is missing in it.",)];
    if !answers.mail_hosts_are_named && answers.store != MailboxStore::Cyrus {
        let hosts: Vec<String> = answers.mail_hosts.iter().map(ToString::to_string).collect();
        points.push(match hosts.is_empty() {
            true => "From where the mail hosts reach the mailbox store: `dovecot/maildrop-masters` ends in `allow_nets=`, and \
                     lets in nobody until their addresses stand there (or `--mail-host` says them)."
                .to_owned(),
            false => format!(
                "Whether there are other mail hosts than this one: `dovecot/maildrop-masters` lets in {} (`--mail-host` says others).",
                hosts.join(", ")
            ),
        });
    }
    if answers.store == MailboxStore::Cyrus {
        points.push(
            "How Cyrus names mailboxes. With `altnamespace: yes`, Sent is `Sent`. With `altnamespace: no`, as Debian has it, Sent is \
             `INBOX.Sent`, and `sent` has to say so for everybody in `addresses.sql`: `Sent` could not be made there."
                .to_owned(),
        );
        points.push(match answers.imap.is_on_this_machine() {
            true => "Whether Cyrus offers SASL PLAIN without TLS: `allowplaintext: yes`, as Debian has it.".to_owned(),
            false => format!(
                "Whether Cyrus on {} has a certificate (`tls_server_cert`, `tls_server_key`) and the service `imaps` in \
                 /etc/cyrus.conf. Debian's has neither as it comes.",
                answers.imap.host
            ),
        });
    }
    if !answers.database.server.is_on_this_machine() {
        points.push(match answers.database.engine {
            Engine::Postgres => format!(
                "Whether pg_hba.conf on {} lets the roles `{role}…` in from the mail hosts, by `hostssl` and `scram-sha-256`.",
                answers.database.server.host,
                role = answers.database.role
            ),
            Engine::Mysql => format!("Whether {} can be reached from the mail hosts.", answers.database.server.host),
        });
        points.push(format!(
            "Who signed the certificate of {}: one of the system's authorities, or else `ca_file` in the configuration files, and in \
             `postfix/maildrop-recipients.cf`.",
            answers.database.server.host
        ));
    }
    points.push(format!(
        "Which filter writes Authentication-Results, and by which name: `authserv_id = \"{}\"` in the configuration files, and \
         `postfix/maildrop-header-checks`. Without one, only who logs in to send counts as an author.",
        answers.authserv_id
    ));
    points.push(
        "What Postfix's main.cf has already of `virtual_mailbox_domains`, `virtual_mailbox_maps` and `header_checks`: of a setting that \
         is there twice, the last counts. Put into `postfix/main.cf.maildrop` what has to stay."
            .to_owned(),
    );
    points.iter().map(|point| format!("- {point}\n")).collect()
}

const START_INSTANCE: &str = "\
install -m 644 dovecot/dovecot-delivery.conf /etc/dovecot/
install -m 644 dovecot/dovecot-delivery.service /etc/systemd/system/
doveconf -c /etc/dovecot/dovecot-delivery.conf >/dev/null && systemctl daemon-reload
systemctl enable --now dovecot-delivery.service
";
const REMOVE_INSTANCE: &str = "systemctl disable --now dovecot-delivery.service && rm /etc/dovecot/dovecot-delivery.conf \
                               /etc/systemd/system/dovecot-delivery.service && systemctl daemon-reload && ";
const MORE_OF_KEPT: &str = "/usr/share/doc/maildrop-command/postfix/README.md, \"A Dovecot instance for deliveries\"";

/// Whether Dovecot keeps its processes for the next login, and what that costs; or why it cannot.
fn kept_processes(answers: &Answers) -> String {
    match (answers.mail_uid(), answers.version_of_an_instance()) {
        (MailUid::One(uid), Some(_)) => format!(
            "The last four commands start a Dovecot instance for deliveries, at port {PORT_OF_INSTANCE}, which `config.toml` names. It keeps its\n\
             processes for the next login, since all mailboxes belong to {uid} (`doveconf userdb mail_uid`). In privacy: such a process has held\n\
             another user's mail before. Nobody but the account can log in there; people's sessions have a process each, as before.\n\
             More: {MORE_OF_KEPT}.\n"
        ),
        (MailUid::One(uid), None) => format!(
            "All mailboxes belong to {uid} (`doveconf userdb mail_uid`), so Dovecot can keep its processes for the next login. In privacy: such\n\
             a process has held another user's mail before. The better way is a Dovecot instance for deliveries alone; its lines are\n\
             in {MORE_OF_KEPT}.\n\
             Or, for people's sessions as well, in dovecot.conf:\n\
             \n\
             ```dovecot\n\
             service imap {{\n  {setting} = 1000\n  process_min_avail = 2\n}}\n\
             ```\n",
            setting = if answers.store == MailboxStore::Dovecot23 { "service_count" } else { "restart_request_count" },
        ),
        (MailUid::OfEachUser, _) => "\
             Dovecot starts a process for each login, and has to: each user has a uid of their own (`userdb passwd`), and a process that has\n\
             taken one user's uid cannot take another's.\n"
            .to_owned(),
        (MailUid::Unknown, _) => format!(
            "Dovecot starts a process for each login. If all mailboxes belong to one uid, it can keep them, which halves what a delivery costs:\n\
             {MORE_OF_KEPT}.\n\
             That could not be known here; `doveadm user -f uid USER` says it. With a uid for each user it is not possible.\n"
        ),
    }
}

fn store(answers: &Answers) -> String {
    let host = &answers.imap.host;
    let with_instance = answers.version_of_an_instance().is_some();
    match answers.store {
        MailboxStore::Dovecot | MailboxStore::Dovecot23 => format!(
            "On {host}. The account may act for every user who exists, from the mail hosts only{confined}:\n\
             \n\
             ```sh\n\
             install -m 644 dovecot/00-maildrop.conf /etc/dovecot/conf.d/\n\
             install -m 640 -g dovecot dovecot/maildrop-masters /etc/dovecot/\n\
             doveconf >/dev/null && doveadm reload\n\
             {start_instance}```\n\
             \n\
             `mail_fsync` must not be `never`: `doveconf mail_fsync`.\n\
             \n\
             {kept}\
             \n\
             Way back: `{remove_instance}rm /etc/dovecot/conf.d/00-maildrop.conf /etc/dovecot/maildrop-masters && doveadm reload`.\n",
            start_instance = if with_instance { START_INSTANCE } else { "" },
            kept = kept_processes(answers),
            remove_instance = if with_instance { REMOVE_INSTANCE } else { "" },
            confined = match answers.store {
                MailboxStore::Dovecot23 =>
                    ".\nNothing here confines what it may do in a mailbox: on Dovecot 2.3 it may do all that the owner may, \
                     such as to remove mail.\nDovecot 2.4 has an ACL for it, which `quickstart` writes for `--imap-server dovecot`. \
                     The commands",
                _ => ", and an ACL leaves it what a delivery needs",
            },
        ),
        MailboxStore::Cyrus => format!(
            "On {host}. `grep -E '^(proxyservers|sasl_mech_list):' /etc/imapd.conf` has to say nothing: Cyrus does not start with a setting\n\
             that is there twice. Where it says something, name `maildrop` and `PLAIN` in those lines, in place of the second command.\n\
             The third one is of the package sasl2-bin: it makes the account, where `sasl_pwcheck_method` is `auxprop`.\n\
             \n\
             ```sh\n\
             cp -p /etc/imapd.conf .\n\
             cat cyrus/imapd.conf.maildrop >>/etc/imapd.conf\n\
             saslpasswd2 -p -c maildrop <imap.password\n\
             systemctl restart cyrus-imapd\n\
             ```\n\
             \n\
             Way back: `saslpasswd2 -d maildrop && cp -p imapd.conf /etc/ && systemctl restart cyrus-imapd`.\n"
        ),
    }
}
