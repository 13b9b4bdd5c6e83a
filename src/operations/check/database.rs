//! `check`: the database server's settings, the tables and their rows.

use crate::base::timestamp;
use crate::config::{Config, Durability, UnknownRecipient};
use crate::database::{DatabaseError, DatabaseFailure};
use crate::delivery::looked_for;
use crate::ledger::check::{bad, bad_if, good, inspect, is_complete, rows, warning};
use crate::ledger::notifications::overview::{self, NotificationFigures};
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
pub(super) fn look(site: &Site, database: &mut dyn Database, findings: &mut Vec<Finding>) -> bool {
    let mut add = |what, found: Found| findings.extend(found.unwrap_or_else(|error| vec![failed(what, &error)]));
    add("database", describe(database).map(|described| vec![good("database", described)]));
    let wanted = site.config().map_or_else(Requirements::default, |config| Requirements {
        replicated: config.database.durability == Durability::Replicated,
        deadline: config.delivery.deadline,
    });
    let inspected = inspect(database, wanted);
    let refuses = site.config().zip(inspected.as_ref().ok()).and_then(|(config, found)| refuses_alone(config, found));
    add("database", inspected);
    add("database", Ok(refuses.into_iter().collect()));
    // A missing table, or a failed query, is among the findings already.
    if !schema::status(database).is_ok_and(|all| is_complete(&all)) {
        return false;
    }
    // An embedded site has no table of addresses.
    if site.config().is_some() {
        add("addresses", are_there(database));
        add("tables", unfolded(database));
        add("tables", with_one_mailbox(database));
    }
    add("tables", long_owed(database));
    if let Some(config) = site.config() {
        add("notifications", notifications(database, config.notifications.has_notifier()));
        add("clock", clock(database));
        add("epoch", epoch(database, config.delivery.postfix_queue_lifetime));
    }
    true
}

/// Whether a former primary, whose commits wait for no other server, may refuse an address permanently. Only a commit that waits
/// for another server proves that this server is no former primary.
fn refuses_alone(config: &Config, inspected: &[Finding]) -> Option<Finding> {
    if config.routing.unknown_recipient != UnknownRecipient::Reject
        || !inspected.iter().any(Finding::is_unreplicated_commit)
    {
        return None;
    }
    let fix = "say \"defer\", or have commits wait for another server (docs/failover.md): a former primary that still answers bounces mail for \
                recipients that were added after the fail-over (5.1.1)";
    let replicated = config.database.durability == Durability::Replicated;
    Some(bad_if(replicated, "routing.unknown_recipient", "\"reject\", and a commit may wait for no other server", fix))
}

/// Since when the ledger has lost nothing, and until when deliveries search for older copies before they append.
fn epoch(database: &mut dyn Database, queue_lifetime: Duration) -> Found {
    let (what, epoch) = ("epoch", database.epoch()?);
    let Some(present) = &epoch.present else {
        let fix = "after a fail-over that forgot commits, or a restore, see \"After a fail-over\" in docs/failover.md: what may be there \
                    already is not looked for by itself";
        return Ok(vec![warning(what, "the server does not tell it", fix)]);
    };
    let found = match epoch.began() {
        None => format!("{present}: the first; nothing was forgotten"),
        Some(_) if epoch.is_unwritten() => {
            format!("{present}: another one than before; the next delivery writes that down")
        }
        Some(began) => {
            let since = time_span::now(database)?.saturating_sub(time_span::microseconds(began));
            let until = since.saturating_add(time_span::microseconds(looked_for(queue_lifetime)));
            let [since, until] = [since, until].map(timestamp::time_text);
            format!("{present}, since {since}; what came before is looked for before it is appended, until {until}")
        }
    };
    Ok(vec![good(what, found)])
}

fn are_there(database: &mut dyn Database) -> Found {
    let fix = "fill it, or name domains in [routing]: until then unknown recipients are deferred";
    Ok(vec![match database.addresses(&[])?.empty {
        true => warning("addresses", "the table is empty", fix),
        false => good("addresses", "there are some"),
    }])
}

/// Rows whose address is spelled differently from the lookup key: their mail is refused, or goes to another user.
fn unfolded(database: &mut dyn Database) -> Found {
    let mut findings = Vec::new();
    for (address, folded) in rows::unfolded_addresses(database)? {
        if findings.len() == MAX_FINDINGS {
            break;
        }
        // A view, or a collation that ignores case, may still match the spelling.
        let entries = database.addresses(&[&folded])?.entries;
        let has = |spelling: &str| entries.iter().any(|(known, _)| known == spelling);
        let [is, shall_be] = [&address, &folded].map(|text| format!("'{}'", text.replace('\'', "''")));
        let (why, fix) = match (has(&address), has(&folded)) {
            (true, _) => continue,
            (false, false) => (
                format!("Postfix and this program ask for {folded}"),
                format!("UPDATE addresses SET address = {shall_be} WHERE address = {is}"),
            ),
            (false, true) => (
                format!("its mail goes to {folded}, which is the same address to Postfix"),
                format!("give its owner another address, and: DELETE FROM addresses WHERE address = {is}"),
            ),
        };
        findings.push(bad("addresses", format!("{address} is never found: {why}"), fix));
    }
    Ok(findings)
}

/// Rows that name one mailbox for both incoming and sent mail.
fn with_one_mailbox(database: &mut dyn Database) -> Found {
    let found = rows::address_with_one_mailbox(database)?.map(|address| {
        let found = format!("{address}, and maybe others, have one mailbox for what arrives and what is sent");
        let fix = "if that is not meant, give sent another name: what they write to others is in it, as read";
        warning("addresses", found, fix)
    });
    Ok(found.into_iter().collect())
}

fn long_owed(database: &mut dyn Database) -> Found {
    let before = time_span::now(database)?.saturating_sub(time_span::microseconds(LONG_OWED));
    let fix = "maildrop_command replay --owed; where sent.dedup_by is \"mailbox\", a timer has to run it: \
                maildrop-command-owed.timer";
    Ok(match statistics::owed_copies(database, Some(before))? {
        0 => Vec::new(),
        count => vec![warning("Sent copies", format!("{count} are owed for longer than an hour"), fix)],
    })
}

/// The subscribers' backlog, and the subscriptions that receive nothing. `here`: whether a notifier runs on this host.
fn notifications(database: &mut dyn Database, here: bool) -> Found {
    let Some(now) = overview::figures(database)? else { return Ok(Vec::new()) };
    let NotificationFigures { unpublished, pending, resting, given_up, disabled, .. } = now;
    let [oldest, late] =
        [now.oldest_unpublished_s, now.late_s].map(|span| Duration::try_from_secs_f64(span).unwrap_or_default());
    let [waits, lateness] = [oldest, late].map(timestamp::span);
    let is_unpublished = oldest >= PUBLISHED_WITHIN;
    let problems = [
        (
            is_unpublished,
            format!(
                "{unpublished} events wait to be published, the oldest for {waits}: somebody is subscribed, and no notifier runs"
            ),
            "start maildropd on some host, with notifications.secret_key_file; its log has the reason",
        ),
        (
            !is_unpublished && late >= PUBLISHED_WITHIN,
            format!("a subscription has waited for {lateness} to be served, and no notifier does it"),
            "see that maildropd runs on some host with notifications.secret_key_file; if it does, it has no request free: raise \
             notifications.concurrency, or start it on another host as well",
        ),
        (
            resting > 0,
            format!("{resting} receivers rest, since they did not answer"),
            "maildrop_command notify status says which, and why; they are called again by the schedule",
        ),
        (
            given_up > 0,
            format!("{given_up} notifications were given up"),
            "maildrop_command notify status says for which subscriber; once it answers: maildrop_command notify redeliver --given-up. \
             prune removes them with their events",
        ),
        (
            disabled > 0,
            format!("{disabled} subscriptions are disabled, and get nothing"),
            "maildrop_command subscription list says which, and subscription show why: resume them, or delete them",
        ),
    ];
    let problems = problems.into_iter().filter(|(is_so, ..)| *is_so);
    let mut findings: Vec<_> = problems.map(|(_, found, fix)| warning("notifications", found, fix)).collect();
    if here || now != NotificationFigures::default() {
        let found = format!("{pending} are pending; {unpublished} events are to be published");
        findings.push(good("notifications", found));
    }
    Ok(findings)
}

/// Whether this host's clock agrees with the database's.
fn clock(database: &mut dyn Database) -> Found {
    let before = timestamp::now();
    let there = time_span::now(database)?;
    Ok(vec![apart(before, there, timestamp::now())])
}

/// Compares the database's clock with two readings of ours, before and after the query. The clocks may differ by the duration of
/// the query without a finding.
fn apart(before: i64, there: i64, after: i64) -> Finding {
    let (ahead, behind) = (before.saturating_sub(there), there.saturating_sub(after));
    let span = Duration::from_micros(ahead.max(behind).max(0).unsigned_abs());
    if span < CLOCKS_DIFFER {
        return good("clock", "this host's goes as the database's does");
    }
    let (span, side) = (timestamp::span(span), if ahead > behind { "ahead of" } else { "behind" });
    let fix = "let both be set by NTP, and see which is wrong: timedatectl, chronyc tracking. A notification bears the time of the host \
                that sends it, and receivers refuse one that is five minutes off";
    warning("clock", format!("this host's is {span} {side} the database's"), fix)
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
        DatabaseFailure::ReadOnly => "connect to the primary",
        DatabaseFailure::Behind => {
            "see which server is the primary (docs/failover.md); if it is this one, do what the line says"
        }
        DatabaseFailure::Unsupported => "use another database: docs/failover-reference.md, \"Unsupported databases\"",
        DatabaseFailure::Local => "fix the file or setting that it names",
        _ => "the server's own log says more",
    };
    bad(what, error.to_string(), fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::FindingState;
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
        let alone =
            [good("fsync", "on"), warning("replication", "to 1", format!("set it: {}", crate::ledger::check::FORGETS))];
        let waited_for = [good("replication", "a commit waits for pg2"), warning("Citus", "the coordinator", "never")];
        assert_eq!(found(reject, &alone), Some(FindingState::Warning));
        assert_eq!(found(&format!("{replicated}\n{reject}"), &alone), Some(FindingState::Bad));
        assert_eq!([found("", &alone), found("[routing]\nunknown_recipient = \"defer\"", &alone)], [None, None]);
        assert_eq!(found(reject, &waited_for), None);
    }

    #[test]
    fn a_clock_that_is_seconds_off_is_reported_and_a_slow_answer_is_not() {
        const SECOND: i64 = 1_000_000;
        let noon = 1_790_000_000 * SECOND;
        let found = |before: i64, there: i64, after: i64| {
            let finding = apart(noon + before * SECOND, noon + there * SECOND, noon + after * SECOND);
            (finding.state, finding.found)
        };
        let agrees = (FindingState::Good, "this host's goes as the database's does".to_owned());
        for (before, there, after) in
            [(0, 0, 0), (0, 4, 0), (4, 0, 4), (0, 60, 60), (0, 30, 90), (0, 0, 60), (0, 64, 60)]
        {
            assert_eq!(found(before, there, after), agrees, "{before} {there} {after}");
        }
        let warned = |said: &str| (FindingState::Warning, said.to_owned());
        assert_eq!(found(0, -600, 1), warned("this host's is 10m ahead of the database's"));
        assert_eq!(found(0, 601, 1), warned("this host's is 10m behind the database's"));
        assert_eq!(found(0, 5, 0), warned("this host's is 5s behind the database's"));
    }
}
