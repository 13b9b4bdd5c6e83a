//! The statements for PostgreSQL only: the look-up and the look, whose plans a session keeps, and those on epochs.

use crate::database::Dialect;
use crate::ledger::{CopyKey, statements};

pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;";
pub(super) const BEGIN_AGAIN: &str = "ROLLBACK; BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;";
pub(super) const SAVEPOINT: &str = "SAVEPOINT maildrop_record;";
pub(super) const SAVEPOINT_AGAIN: &str = "ROLLBACK TO SAVEPOINT maildrop_record;";

/// A statement whose planning is expensive. A function has the same statement, and a session keeps the plan of a function
/// (`sql/postgres/0003_cached_plans.sql`).
struct Statement {
    function: &'static str,
    /// With `$1` and so on for its values.
    sql: &'static str,
}

/// The casts allow a view over the platform's own tables, with other types.
///
/// `tells`: whether our role may read the server's epoch without our function. The web UI's role has no right to the table of
/// epochs, so this statement does not read that table.
const LOOK_UP: Statement = Statement {
    function: "maildrop_addresses",
    sql: "SELECT a.address::text, CASE WHEN a.destination IS NULL THEN a.imap_user::text END AS imap_user, \
          a.inbox::text, a.sent::text, t.empty, t.read_only, t.proven, t.tells \
          FROM (SELECT NOT EXISTS (SELECT FROM addresses) AS empty, \
          current_setting('transaction_read_only')::bool AS read_only, \
          (SELECT extract(epoch FROM clock_timestamp() - verified_at)::float8 FROM login_checks WHERE digest = $2) AS proven, \
          coalesce(has_function_privilege(to_regprocedure('pg_control_system()'), 'EXECUTE'), false) AS tells) t \
          LEFT JOIN addresses a ON a.address = ANY ($1)",
};

/// A statement with parameters, which answers with texts.
pub(super) fn look_up(cached: bool) -> String {
    let Statement { function, sql } = LOOK_UP;
    let rows = if cached { format!("{function}($1, $2)") } else { format!("({sql})") };
    format!(
        "SELECT address, imap_user, inbox, sent, empty::text, read_only::text, proven::text, tells::text FROM {rows} l"
    )
}

/// A row for each pair of a requested copy and an open attempt at it. One subquery, which depends on no row, reads the clock once
/// for all ages. With a clock read for each row, the younger of two attempts might seem the older one.
const LOOK: Statement = Statement {
    function: "maildrop_look",
    sql: "SELECT k.place, coalesce(c.state = 'delivered', false), c.uid_validity, c.uid, a.attempt, a.recipient, \
          extract(epoch FROM (SELECT clock_timestamp()) - a.started_at), a.uid_validity, a.uid_next, \
          a.host, encode(a.lock_digest, 'hex'), \
          encode(m.lock_digest, 'hex'), extract(epoch FROM (SELECT clock_timestamp()) - m.recorded_at), \
          CASE WHEN c.state = 'owed' THEN coalesce(c.reason, '') END \
          FROM unnest($1) WITH ORDINALITY k (copy_key, place) \
          LEFT JOIN copies c ON c.copy_key = k.copy_key \
          LEFT JOIN messages m ON m.id = c.message AND c.state = 'delivered' \
          LEFT JOIN attempts a ON a.copy_key = k.copy_key AND a.ended_at IS NULL \
          ORDER BY k.place, a.started_at, a.attempt",
};

/// The present epoch, and the last recorded one.
pub(super) const EPOCH: &str = "SELECT present, last, age FROM maildrop_epoch()";

/// The same without the function. This fails on a server that does not report its epoch.
pub(super) const EPOCH_BY_ITSELF: &str = "\
    SELECT concat_ws('/', s.system_identifier, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), 'epochs'::regclass::oid), \
    e.epoch, extract(epoch FROM clock_timestamp() - e.since) \
    FROM pg_control_system() s LEFT JOIN (SELECT epoch, since FROM epochs ORDER BY number DESC LIMIT 1) e ON true";

pub(super) const BEGIN_EPOCH: &str = "\
    INSERT INTO epochs (epoch, since) SELECT e.present, CASE WHEN e.last IS NOT NULL THEN clock_timestamp() END \
    FROM maildrop_epoch() e WHERE e.present IS NOT NULL AND e.present IS DISTINCT FROM e.last";

pub(super) fn look(cached: bool, copies: &[CopyKey]) -> String {
    let keys = format!("ARRAY[{}]::bytea[]", statements::keys(Dialect::Postgresql, copies));
    if cached { format!("SELECT * FROM {}({keys})", LOOK.function) } else { LOOK.sql.replace("$1", &keys) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If they differed, a session's first delivery would behave differently from the next ones.
    #[test]
    fn each_function_has_the_statement_that_it_stands_for() {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let migration = words(include_str!("../../../sql/postgres/0003_cached_plans.sql"));
        let copy = statements::delivered_copy(Dialect::Postgresql, ["$1", "$2", "$3", "$4", "$5", "$6", "$7", "$8"]);
        let ended = statements::ended_attempt(Dialect::Postgresql, ["$2", "$9", "$10", "$11"]);
        let message = (1..=12).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ");
        for (function, sql) in [
            (LOOK_UP.function, LOOK_UP.sql),
            (LOOK.function, LOOK.sql),
            (statements::MESSAGE, &statements::inserted_message(Dialect::Postgresql, &message)),
            (statements::COPY, &format!("{copy}; {ended}")),
        ] {
            let (_, body) = migration.split_once(&format!("CREATE FUNCTION {function}(")).unwrap();
            let (body, _) = body.split_once("; END $$;").unwrap();
            let (_, body) = body.split_once("BEGIN ").unwrap();
            assert_eq!(body.strip_prefix("RETURN QUERY ").unwrap_or(body), words(sql), "{function}");
        }
    }
}
