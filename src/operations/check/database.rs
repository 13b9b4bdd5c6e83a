//! `check`: the database server's settings, the tables and their rows.

use crate::base::timestamp;
use crate::config::Durability;
use crate::database::{DatabaseError, DatabaseFailure};
use crate::delivery::looked_for;
use crate::ledger::check::{bad, good, rows, warning};
use crate::ledger::notifications::overview;
use crate::ledger::{Database, Finding, statistics, time_span};
use crate::schema::{self, MigrationState};
use crate::site::Site;
use std::time::Duration;

/// How many rows are listed one by one.
const TOLD: usize = 10;

/// For how long a Sent copy may be owed before it is worth a warning.
const LONG_OWED: Duration = Duration::from_hours(1);

/// How long an event may wait to be published before that is worth one.
const LONG_UNPUBLISHED: Duration = Duration::from_mins(5);

type Found = Result<Vec<Finding>, DatabaseError>;

/// Looks at the database, and returns whether its tables are there.
pub(super) fn look(site: &Site, database: &mut dyn Database, findings: &mut Vec<Finding>) -> bool {
    let mut add = |what, found: Found| findings.extend(found.unwrap_or_else(|error| vec![failed(what, &error)]));
    add("database", database.describe().map(|described| vec![good("database", described)]));
    let replicated = site.config().is_some_and(|config| config.database.durability == Durability::Replicated);
    add("database", database.inspect(replicated));
    // What is missing, or cannot be told, is among the findings by now.
    let is_missing = |all: Vec<schema::MigrationStatus>| {
        all.iter().any(|migration| !migration.optional && migration.state == MigrationState::Pending)
    };
    if schema::status(database).map_or(true, is_missing) {
        return false;
    }
    // An embedded site has no table of addresses.
    if site.config().is_some() {
        add("addresses", are_there(database));
        add("tables", unfolded(database));
        add("tables", with_one_mailbox(database));
    }
    add("tables", long_owed(database));
    add("notifications", unpublished(database));
    if let Some(config) = site.config() {
        add("epoch", epoch(database, config.delivery.postfix_queue_lifetime));
    }
    true
}

/// Since when the ledger has forgotten nothing, and until when what came before is looked for.
fn epoch(database: &mut dyn Database, queue_lifetime: Duration) -> Found {
    let (what, epoch) = ("epoch", database.epoch()?);
    let Some(present) = &epoch.present else {
        let mend = "after a fail-over that forgot commits, or a restore, see \"After a fail-over\" in docs/hosts.md: what may be there \
                    already is not looked for by itself";
        return Ok(vec![warning(what, "the server does not tell it", mend)]);
    };
    let found = match (epoch.is_unwritten(), epoch.began()) {
        (true, None) => format!("{present}: the first"),
        (true, Some(_)) => format!("{present}: another one than before; the next delivery writes that down"),
        (false, None) => format!("{present}: the first; nothing was forgotten"),
        (false, Some(began)) => {
            let now = time_span::now(database)?;
            let since = now.saturating_sub(time_span::microseconds(began));
            let until = since.saturating_add(time_span::microseconds(looked_for(queue_lifetime)));
            let [told_since, told_until] = [since, until].map(timestamp::told);
            if until < now {
                format!("{present}, since {told_since}; what came before was looked for until {told_until}")
            } else {
                format!(
                    "{present}, since {told_since}; until {told_until}, what came before is looked for before it is appended"
                )
            }
        }
    };
    Ok(vec![good(what, found)])
}

fn are_there(database: &mut dyn Database) -> Found {
    let mend = "fill it, or name domains in [routing]: until then unknown recipients are deferred";
    Ok(vec![match database.addresses(&[])?.empty {
        true => warning("addresses", "the table is empty", mend),
        false => good("addresses", "there are some"),
    }])
}

/// Rows whose address is not spelled as it is asked for: its mail is refused, or goes to another user.
fn unfolded(database: &mut dyn Database) -> Found {
    let (mut findings, mut more) = (Vec::new(), 0_usize);
    for rows::Unfolded { address, folded } in rows::unfolded_addresses(database)? {
        if findings.len() == TOLD {
            more += 1;
            continue;
        }
        // A view, or a collation that ignores case, may find it all the same.
        let entries = database.addresses(&[&folded])?.entries;
        if entries.iter().any(|(known, _)| *known == address) {
            continue;
        }
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let (found, mend) = match entries.iter().any(|(known, _)| *known == folded) {
            false => (
                format!("{address} is never found: Postfix and this program ask for {folded}"),
                format!("UPDATE addresses SET address = {} WHERE address = {}", quoted(&folded), quoted(&address)),
            ),
            true => (
                format!("{address} is never found: its mail goes to {folded}, which is the same address to Postfix"),
                format!(
                    "give its owner another address, and: DELETE FROM addresses WHERE address = {}",
                    quoted(&address)
                ),
            ),
        };
        findings.push(bad("addresses", found, mend));
    }
    if more > 0 {
        let found = format!("and {more} more that are spelled otherwise");
        findings.push(Finding { mend: None, ..bad("addresses", found, "") });
    }
    Ok(findings)
}

/// Rows that name one mailbox for what arrives and what is sent.
fn with_one_mailbox(database: &mut dyn Database) -> Found {
    let found = rows::address_with_one_mailbox(database)?.map(|address| {
        let found = format!("{address}, and maybe others, have one mailbox for what arrives and what is sent");
        let mend = "if that is not meant, give sent another name: what they write to others is in it, as read";
        warning("addresses", found, mend)
    });
    Ok(found.into_iter().collect())
}

fn long_owed(database: &mut dyn Database) -> Found {
    let before = time_span::now(database)?.saturating_sub(time_span::microseconds(LONG_OWED));
    let mend = "maildrop_command replay --owed; where sent.look is \"mailbox\", a timer has to run it: \
                maildrop-command-owed.timer";
    Ok(match statistics::owed_copies(database, Some(before))? {
        0 => Vec::new(),
        count => vec![warning("Sent copies", format!("{count} are owed for longer than an hour"), mend)],
    })
}

/// Somebody is subscribed, and nobody tells him anything.
fn unpublished(database: &mut dyn Database) -> Found {
    let Some(now) = overview::figures(database)? else { return Ok(Vec::new()) };
    let oldest = Duration::try_from_secs_f64(now.oldest_unpublished_s).unwrap_or_default();
    if oldest < LONG_UNPUBLISHED {
        return Ok(Vec::new());
    }
    let found = format!(
        "{} events wait to be published, the oldest for {}: somebody is subscribed, and no notifier runs",
        now.unpublished,
        timestamp::span(oldest)
    );
    let mend = "start maildropd on some host, with notifications.secret_key_file; its log says what is in the way";
    Ok(vec![warning("notifications", found, mend)])
}

/// What mends a failure at the database.
pub(super) fn failed(what: &str, error: &DatabaseError) -> Finding {
    let mend = match error.failure {
        DatabaseFailure::Unreachable | DatabaseFailure::TimedOut | DatabaseFailure::ConnectionLost => {
            "see that it runs, that database.host and port (or socket) lead to it, that the database is there, and that \
             database.ca_file is of the CA that signed its certificate"
        }
        DatabaseFailure::AccessDenied => {
            "see database.user, its password, and its rights: sql/postgres/grants.sql, sql/mysql/grants.sql"
        }
        DatabaseFailure::Schema => "maildrop_command migrate",
        DatabaseFailure::ReadOnly => "connect to the primary",
        DatabaseFailure::Behind => {
            "see which server is the primary (docs/hosts.md); if it is this one, do what the line says"
        }
        DatabaseFailure::Local => "mend the file or setting that it names",
        _ => "the server's own log says more",
    };
    bad(what, error.to_string(), mend)
}
