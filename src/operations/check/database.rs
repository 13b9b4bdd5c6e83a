//! `check`: the database server's settings, the tables and their rows.

use crate::base::deadline::Deadline;
use crate::base::timestamp;
use crate::config::{Config, DatabaseRole, Durability, UnknownRecipient};
use crate::database::{DatabaseError, DatabaseFailure};
use crate::delivery::looked_for;
use crate::ledger::FindingState::{Bad, Warning};
use crate::ledger::check::{good, inspect, is_complete, rights, rows};
use crate::ledger::notifications::overview;
use crate::ledger::schema;
use crate::ledger::{Database, Finding, Requirements, describe, statistics, time_span};
use crate::site::Site;
use std::time::Duration;

/// The maximum number of rows that are listed. Once they are fixed, `check` lists the next ones.
const MAX_FINDINGS: usize = 10;

/// How long a Sent copy may be owed before `check` warns.
const LONG_OWED: Duration = Duration::from_hours(1);

/// How long an event may wait for its publication, or a subscription for its notifier, before `check` warns.
const PUBLISHED_WITHIN: Duration = Duration::from_mins(5);

/// How far the clocks of this host and the database may differ.
const CLOCKS_DIFFER: Duration = Duration::from_secs(5);

type Found = Result<Vec<Finding>, DatabaseError>;

/// Checks the database, and returns whether its tables exist.
pub(super) fn inspect_all(site: &Site, database: &mut dyn Database, findings: &mut Vec<Finding>) -> bool {
    let mut add = |what, found: Found| findings.extend(found.unwrap_or_else(|error| vec![failed(what, &error)]));
    add("database", describe(database).map(|described| vec![good("database", described)]));
    let wanted = site.config().map_or_else(Requirements::default, |config| Requirements {
        replicated: config.database.durability == Durability::Replicated,
        deadline: config.delivery.deadline,
    });
    let mut inspected = inspect(database, wanted);
    if let (Some(config), Ok(found)) = (site.config(), &mut inspected) {
        found.extend(refuses_alone(config, found));
    }
    add("database", inspected);
    // A missing table, or a failed query, is among the findings already.
    if !schema::status(database).is_ok_and(|all| is_complete(&all)) {
        return false;
    }
    add("Sent copies", long_owed(database));
    // An embedded site has no table of addresses, and nobody to notify.
    if let Some(config) = site.config() {
        add("addresses", addresses(database));
        add("notifications", notifications(database));
        add("clock", time_span::now(database).map(|there| vec![clock(there, timestamp::now())]));
        add("epoch", epoch(database, config.delivery.postfix_queue_lifetime));
    }
    true
}

/// Whether a former primary, whose commits wait for no other server, may refuse an address permanently. Only a commit that waits
/// for another server proves that this server is no former primary.
fn refuses_alone(config: &Config, inspected: &[Finding]) -> Option<Finding> {
    let refuses = config.routing.unknown_recipient == UnknownRecipient::Reject;
    let fix = "say \"defer\", or have commits wait for another server (docs/failover.md): a former primary that still answers bounces mail for \
               recipients that were added after the fail-over (5.1.1)";
    let state = if config.database.durability == Durability::Replicated { Bad } else { Warning };
    (refuses && inspected.iter().any(Finding::is_unreplicated_commit)).then(|| {
        state.finding("routing.unknown_recipient", "\"reject\", and a commit may wait for no other server", fix)
    })
}

/// Since when the ledger has lost nothing, and until when deliveries search for older copies before they append.
fn epoch(database: &mut dyn Database, queue_lifetime: Duration) -> Found {
    let (what, epoch) = ("epoch", database.epoch()?);
    let Some(present) = &epoch.present else {
        let fix = "after a fail-over that forgot commits, or a restore, see \"After a fail-over\" in docs/failover.md: what may be there \
                   already is not looked for by itself";
        return Ok(vec![Warning.finding(what, "the server does not tell it", fix)]);
    };
    let found = match epoch.began() {
        None => format!("{present}: the first; nothing was forgotten"),
        Some(_) if epoch.is_unwritten() => format!("{present}: another one; the next delivery writes that down"),
        Some(began) => {
            let since = time_span::now(database)?.saturating_sub(time_span::microseconds(began));
            let until = since.saturating_add(time_span::microseconds(looked_for(queue_lifetime)));
            let [since, until] = [since, until].map(timestamp::time_text);
            format!("{present}, since {since}; what came before is looked for before it is appended, until {until}")
        }
    };
    Ok(vec![good(what, found)])
}

/// Whether there are addresses, and those that are spelled differently from the lookup key: nobody is found by them.
fn addresses(database: &mut dyn Database) -> Found {
    let what = "addresses";
    if database.addresses(&[])?.empty {
        let fix = "fill it, or name domains in [routing]: until then unknown recipients are deferred";
        return Ok(vec![Warning.finding(what, "the table is empty", fix)]);
    }
    let mut findings = vec![good(what, "there are some")];
    for (address, folded) in rows::unfolded_addresses(database)? {
        if findings.len() > MAX_FINDINGS {
            break;
        }
        // A view, or a collation that ignores case, may still match the spelling.
        let entries = database.addresses(&[&folded])?.entries;
        if !entries.iter().any(|(known, _)| *known == address) {
            let [is, shall_be] = [&address, &folded].map(|text| text.replace('\'', "''"));
            let found = format!("{address} is never found: Postfix and this program ask for {folded}");
            let fix = format!(
                "UPDATE addresses SET address = '{shall_be}' WHERE address = '{is}'; if that row exists already, delete this one, \
                 and give its owner another address"
            );
            findings.push(Bad.finding(what, found, fix));
        }
    }
    Ok(findings)
}

fn long_owed(database: &mut dyn Database) -> Found {
    let before = time_span::now(database)?.saturating_sub(time_span::microseconds(LONG_OWED));
    let owed = statistics::owed_copies(database, Some(before))?;
    let fix = "maildrop_command replay --owed; where sent.dedup_by is \"mailbox\", a timer has to run it: maildrop-command-owed.timer";
    let found =
        (owed > 0).then(|| Warning.finding("Sent copies", format!("{owed} are owed for longer than an hour"), fix));
    Ok(found.into_iter().collect())
}

/// Whether somebody publishes events and serves the subscriptions. `notify status` has the rest.
fn notifications(database: &mut dyn Database) -> Found {
    let Some(now) = overview::figures(database)? else { return Ok(Vec::new()) };
    let late = Duration::try_from_secs_f64(now.oldest_unpublished_s.max(now.late_s)).unwrap_or_default();
    let found = format!("{} are pending; {} events are to be published", now.pending, now.unpublished);
    if late < PUBLISHED_WITHIN {
        return Ok(vec![good("notifications", found)]);
    }
    let fix = "start maildropd on some host, with notifications.secret_key_file; if one runs, see its log, or raise \
               notifications.concurrency";
    let found = format!("{found}: for {}, and no notifier does it", timestamp::span(late));
    Ok(vec![Warning.finding("notifications", found, fix)])
}

/// Whether the notifier's own database role has the rights that it needs. A notifier without them reports that only in its own
/// log. No delivery waits for it, so a failure is only a warning. `None` if no notifier is configured.
pub(super) fn rights_of_the_notifier(config: &Config, deadline: Deadline) -> Option<Finding> {
    if !config.notifications.has_notifier() {
        return None;
    }
    let what = "notifier";
    let fix = "run this as the service's user, who has to read it";
    let site = match Site::without_mailboxes(config.clone().acting_as(DatabaseRole::Notifier)) {
        Ok(site) => site,
        Err(error) => return Some(Warning.finding(what, error.to_string(), fix)),
    };
    let rights = site.open_database(None, deadline).and_then(|mut opened| rights::of_the_notifier(opened.as_mut()));
    Some(rights.unwrap_or_else(|error| Finding { state: Warning, ..failed(what, &error) }))
}

/// Whether this host's clock agrees with the database's.
fn clock(there: i64, here: i64) -> Finding {
    let apart = Duration::from_micros(here.abs_diff(there));
    if apart < CLOCKS_DIFFER {
        return good("clock", "this host's goes as the database's does");
    }
    let (apart, side) = (timestamp::span(apart), if here > there { "ahead of" } else { "behind" });
    let fix = "let both be set by NTP, and see which is wrong: timedatectl, chronyc tracking. A notification bears the time of the host \
               that sends it, and receivers refuse one that is five minutes off";
    Warning.finding("clock", format!("this host's is {apart} {side} the database's"), fix)
}

/// The finding on a database failure, with its fix.
pub(super) fn failed(what: &str, error: &DatabaseError) -> Finding {
    let fix = match error.failure {
        DatabaseFailure::Unreachable | DatabaseFailure::TimedOut | DatabaseFailure::ConnectionLost => {
            "see that it runs, that database.host and port (or socket) lead to it, that the database is there, and that \
             database.ca_file is of the CA that signed its certificate"
        }
        DatabaseFailure::AccessDenied => {
            "see database.user, its password, and its rights: sql/postgres/grants.sql, sql/mysql/grants.sql"
        }
        DatabaseFailure::Schema => "maildrop_command migrate",
        DatabaseFailure::ReadOnly | DatabaseFailure::Behind => {
            "connect to the primary (docs/failover.md); if it is this one, do what the line says"
        }
        DatabaseFailure::Unsupported => "use another database: docs/failover-reference.md, \"Unsupported databases\"",
        DatabaseFailure::Local => "fix the file or setting that it names",
        _ => "the server's own log says more",
    };
    Bad.finding(what, error.to_string(), fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::FindingState::Good;
    use std::path::Path;

    #[test]
    fn who_refuses_for_good_where_no_commit_waits_is_reported_what_that_may_cost() {
        let found = |more: &str, inspected: &[Finding]| {
            let text = format!(
                "[database]\nengine = \"postgresql\"\nhost = \"x\"\ndatabase = \"x\"\nuser = \"x\"\n{more}\n\
                 [imap]\nhost = \"x\"\nuser = \"x\"\npassword_file = \"/x\"\n"
            );
            refuses_alone(&Config::parse(Path::new("/x"), &text).unwrap(), inspected).map(|found| found.state)
        };
        let (reject, replicated) = ("[routing]\nunknown_recipient = \"reject\"", "durability = \"replicated\"");
        let alone = [
            good("fsync", "on"),
            Warning.finding("replication", "to 1", format!("set it: {}", crate::ledger::check::FORGETS)),
        ];
        let waited_for = [good("replication", "a commit waits for pg2"), Warning.finding("citus", "13.0", "never")];
        assert_eq!(found(reject, &alone), Some(Warning));
        assert_eq!(found(&format!("{replicated}\n{reject}"), &alone), Some(Bad));
        assert_eq!([found("", &alone), found("[routing]\nunknown_recipient = \"defer\"", &alone)], [None, None]);
        assert_eq!(found(reject, &waited_for), None);
    }

    #[test]
    fn a_clock_that_is_seconds_off_is_reported() {
        let noon = 1_790_000_000_000_000;
        let found = |seconds: i64| {
            let finding = clock(noon + seconds * 1_000_000, noon);
            (finding.state, finding.found)
        };
        for agrees in [-4, 0, 4] {
            assert_eq!(found(agrees), (Good, "this host's goes as the database's does".to_owned()));
        }
        for (seconds, apart) in [(-600, "10m ahead of"), (600, "10m behind"), (5, "5s behind")] {
            assert_eq!(found(seconds), (Warning, format!("this host's is {apart} the database's")));
        }
    }
}
