//! The statements that are sent in batches. Those of the record end in a semicolon.
//!
//! Times are `clock_timestamp()`: `now()` is when the lock's transaction began, before anything was appended.

use crate::database::postgres::literal;
use crate::ledger::{CopyKey, CopyRecord, CopyState, EndedAttempt, EventRecord, MessageRecord, WayIn};

pub(super) const DOING: &str = "recording the delivery";

pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;";
pub(super) const BEGIN_AGAIN: &str = "ROLLBACK; BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;";
pub(super) const SAVEPOINT: &str = "SAVEPOINT maildrop_record;";
pub(super) const SAVEPOINT_AGAIN: &str = "ROLLBACK TO SAVEPOINT maildrop_record;";

/// A statement that each delivery makes, and the function with the same one in it, whose plan a session keeps
/// (`sql/postgres/0003_cached_plans.sql`).
struct Statement {
    function: &'static str,
    /// `$1` and so on stand for its values.
    sql: &'static str,
}

impl Statement {
    /// With these values, as text. `cached`: by its function.
    fn with(&self, cached: bool, values: &[String]) -> String {
        if cached {
            return format!("SELECT * FROM {}({})", self.function, values.join(","));
        }
        // In one pass, so that what a value says is never taken for the place of another one.
        let length = self.sql.len() + values.iter().map(String::len).sum::<usize>();
        let mut pieces = self.sql.split('$');
        let mut text = String::with_capacity(length);
        text.push_str(pieces.next().unwrap_or_default());
        for piece in pieces {
            let behind = piece.trim_start_matches(|c: char| c.is_ascii_digit());
            let (number, behind) = piece.split_at(piece.len() - behind.len());
            match number.parse::<usize>().ok().and_then(|number| values.get(number.checked_sub(1)?)) {
                Some(value) => text.push_str(value),
                // The server refuses it: there is no such parameter.
                None => text.extend(["$", number]),
            }
            text.push_str(behind);
        }
        text
    }
}

/// The casts are for a view over the platform's own tables, whatever its types are.
///
/// `tells`: whether our role may ask the server for its epoch without our function. The web UI's role has no right to the table of epochs,
/// so that is not read here.
const LOOK_UP: Statement = Statement {
    function: "maildrop_look_up",
    sql: "SELECT a.address::text, a.imap_user::text, a.inbox::text, a.sent::text, t.empty, t.read_only, t.proven, t.tells \
          FROM (SELECT NOT EXISTS (SELECT FROM addresses) AS empty, \
          current_setting('transaction_read_only')::bool AS read_only, \
          (SELECT extract(epoch FROM clock_timestamp() - proven_at)::float8 FROM ways_in WHERE digest = $2) AS proven, \
          coalesce(has_function_privilege(to_regprocedure('pg_control_system()'), 'EXECUTE'), false) AS tells) t \
          LEFT JOIN addresses a ON a.address = ANY ($1)",
};

/// With parameters.
pub(super) fn look_up(cached: bool) -> &'static str {
    if cached { "SELECT * FROM maildrop_look_up($1, $2)" } else { LOOK_UP.sql }
}

/// The attempts of a journal, with parameters.
const JOURNAL: Statement = Statement {
    function: "maildrop_journal",
    sql: "INSERT INTO attempts (attempt, identity, lock_digest, message_id, queue_id, sender, host, pid, session, \
          copy_key, role, imap_user, mailbox, recipient, uid_validity, uid_next, started_at) \
          SELECT $1, $2, $3, $4, $5, $6, $7, $8, pg_backend_pid(), c.*, clock_timestamp() \
          FROM unnest($9, $10, $11, $12, $13, $14, $15) c",
};

/// The types that its parameters have for the server. The attempt comes as text: the crate's uuid type is an extra feature.
const JOURNAL_PARAMETERS: &str = "$1::uuid, $2, $3, $4, $5, $6, $7, $8, $9::bytea[], $10::text[], $11::text[], $12::text[], $13::text[], \
    $14::bigint[], $15::bigint[]";

/// The settings are those of a record's batch (`HEAR_NOTHING`, `HEAR_OF_THE_COMMIT`): the first is made before a row is
/// written, the second once all are.
pub(super) fn journal(cached: bool) -> String {
    let (hear_nothing, hear_of_the_commit) =
        ["error", "warning"].map(|level| format!("set_config('client_min_messages', '{level}', true)")).into();
    if cached {
        return format!("SELECT {hear_nothing}, {}({JOURNAL_PARAMETERS}), {hear_of_the_commit}", JOURNAL.function);
    }
    format!(
        "WITH written AS ({} CROSS JOIN {hear_nothing} RETURNING 1) \
         SELECT {hear_of_the_commit} FROM (SELECT count(*) FROM written) w",
        JOURNAL.sql.replace("SELECT $1,", "SELECT $1::uuid,")
    )
}

/// A row for each pair of a copy asked for and an open attempt at it. The clock is read once for all ages, by a subquery that
/// depends on no row: by a clock read for each row, the younger of two attempts may seem the older one.
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

/// The present epoch, and the last one that is written down.
pub(super) const EPOCH: &str = "SELECT present, last, age FROM maildrop_epoch()";

/// The same without the function, which a server that does not tell it refuses.
pub(super) const EPOCH_BY_ITSELF: &str = "\
    SELECT concat_ws('/', s.system_identifier, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), 'epochs'::regclass::oid), \
    e.epoch, extract(epoch FROM clock_timestamp() - e.since) \
    FROM pg_control_system() s LEFT JOIN (SELECT epoch, since FROM epochs ORDER BY number DESC LIMIT 1) e ON true";

/// The settings are those of a record's batch, as in a journal's statement.
pub(super) const BEGIN_EPOCH: &str = "\
    WITH written AS (\
        INSERT INTO epochs (epoch, since) \
        SELECT e.present, CASE WHEN e.last IS NOT NULL THEN clock_timestamp() END \
        FROM maildrop_epoch() e, set_config('client_min_messages', 'error', true) \
        WHERE e.present IS NOT NULL AND e.present IS DISTINCT FROM e.last \
        RETURNING 1) \
    SELECT set_config('client_min_messages', 'warning', true) FROM (SELECT count(*) FROM written) w";

pub(super) fn look(cached: bool, copies: &[CopyKey]) -> String {
    LOOK.with(cached, &[keys(copies)])
}

/// The age in seconds of the first attempt at any of these copies, ended or not; NULL where there was none.
pub(super) fn first_attempt_age(copies: &[CopyKey]) -> String {
    format!(
        "SELECT extract(epoch FROM clock_timestamp() - min(started_at)) FROM attempts WHERE copy_key = ANY ({})",
        keys(copies)
    )
}

fn keys(copies: &[CopyKey]) -> String {
    let keys: Vec<String> = copies.iter().map(|key| literal::bytes(key.as_bytes())).collect();
    format!("ARRAY[{}]::bytea[]", keys.join(","))
}

/// A way in that was proven just now.
pub(super) fn way_in(way_in: &WayIn, host: &str) -> String {
    format!(
        "INSERT INTO ways_in (digest, way_in, proven_at, host) VALUES ({}, {}, clock_timestamp(), {}) \
         ON CONFLICT (digest) DO UPDATE SET proven_at = excluded.proven_at, host = excluded.host",
        literal::bytes(&way_in.digest),
        literal::text(&way_in.text),
        literal::text(host),
    )
}

/// A way in that is proven no more.
pub(super) fn no_way_in(way_in: &WayIn, host: &str) -> String {
    let (digest, host) = (literal::bytes(&way_in.digest), literal::text(host));
    format!("UPDATE ways_in SET proven_at = 'epoch', host = {host} WHERE digest = {digest}")
}

/// The message's source, once for all its recipients.
pub(super) const SOURCE: &str = "INSERT INTO message_sources (message_id, source) \
    SELECT id, $2 FROM messages WHERE identity = $1 ON CONFLICT (message_id) DO NOTHING";

/// The message, unless another recipient's delivery has recorded it.
const MESSAGE: Statement = Statement {
    function: "maildrop_message",
    sql: "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to, \
          header_cc, subject, sent_at, headers, size, recorded_at) \
          VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, clock_timestamp()) \
          ON CONFLICT (identity) DO NOTHING",
};

pub(super) fn message(cached: bool, message: &MessageRecord<'_>) -> String {
    let values = [
        literal::bytes(message.identity.as_bytes()),
        literal::bytes(message.lock.digest()),
        literal::text(message.message_id),
        literal::bytes(message.content_digest),
        literal::text(message.sender),
        literal::optional_text(message.from),
        literal::optional_text(message.to),
        literal::optional_text(message.cc),
        literal::optional_text(message.subject),
        literal::moment(message.date),
        literal::json(message.headers),
        i64::try_from(message.size).unwrap_or(i64::MAX).to_string(),
    ];
    MESSAGE.with(cached, &values) + ";"
}

/// Whether the message's source is still to be stored.
pub(super) fn source_is_missing(message: &MessageRecord<'_>) -> String {
    format!("SELECT NOT EXISTS (SELECT FROM message_sources WHERE message_id = {});", message_id(message))
}

/// A copy. A delivered one never becomes owed; only another delivery changes where it is.
const COPY: Statement = Statement {
    function: "maildrop_copy",
    sql: "INSERT INTO copies (message, copy_key, role, imap_user, mailbox, recipient, state, uid_validity, uid, reason, \
          delivered_at, updated_at) \
          VALUES ((SELECT id FROM messages WHERE identity = $1), $2, $3, $4, $5, $6, $7, $8, $9, $10, \
          CASE $7 WHEN 'delivered' THEN clock_timestamp() END, clock_timestamp()) \
          ON CONFLICT (copy_key) DO UPDATE SET (recipient, state, uid_validity, uid, reason, delivered_at, updated_at) = \
          ROW (excluded.recipient, excluded.state, excluded.uid_validity, excluded.uid, excluded.reason, \
          coalesce(copies.delivered_at, excluded.delivered_at), excluded.updated_at) \
          WHERE excluded.state = 'delivered' OR copies.state <> 'delivered'",
};

pub(super) fn copy(cached: bool, message: &MessageRecord<'_>, copy: &CopyRecord<'_>) -> String {
    let (state, placement, reason) = match copy.state {
        CopyState::Delivered(placement) => ("'delivered'", placement, None),
        CopyState::Owed(reason) => ("'owed'", None, Some(reason)),
    };
    let values = [
        literal::bytes(message.identity.as_bytes()),
        literal::bytes(copy.key.as_bytes()),
        format!("'{}'", copy.role.as_str()),
        literal::text(copy.user),
        literal::text(copy.mailbox),
        literal::text(copy.recipient),
        state.to_owned(),
        literal::optional_number(placement.map(|p| p.uid_validity)),
        literal::optional_number(placement.map(|p| p.uid)),
        literal::optional_text(reason),
    ];
    COPY.with(cached, &values) + ";"
}

/// An attempt's end. One that has ended stays as it ended.
const ENDED: Statement = Statement {
    function: "maildrop_ended",
    sql: "UPDATE attempts SET ended_at = clock_timestamp(), outcome = $3, stages = $4 \
          WHERE copy_key = $1 AND attempt = $2 AND ended_at IS NULL",
};

pub(super) fn ended(cached: bool, ended: &EndedAttempt<'_>) -> String {
    let values = [
        literal::bytes(ended.key.as_bytes()),
        literal::uuid(ended.attempt),
        literal::text(&ended.outcome.to_string()),
        ended.stages.map_or_else(literal::null, literal::json),
    ];
    ENDED.with(cached, &values) + ";"
}

/// What there is to tell of a copy, where anybody is subscribed: nobody costs a look at an empty table.
const EVENT: Statement = Statement {
    function: "maildrop_event",
    sql: "INSERT INTO outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, \
          attempt, queue_id, host, diff, created_at) \
          SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, clock_timestamp() \
          WHERE EXISTS (SELECT FROM subscriptions)",
};

pub(super) fn event(cached: bool, event: &EventRecord<'_>) -> String {
    let values = [
        literal::uuid(event.event),
        format!("'{}'", event.kind.as_str()),
        literal::bytes(event.key.as_bytes()),
        literal::bytes(event.identity.as_bytes()),
        literal::text(event.message_id),
        format!("'{}'", event.role.as_str()),
        literal::text(event.recipient),
        literal::text(event.user),
        literal::text(event.mailbox),
        literal::optional_text(event.manner),
        event.attempt.map_or_else(literal::null, literal::uuid),
        literal::optional_text(event.queue_id),
        literal::text(event.host),
        literal::json(&event.diff.as_json()),
    ];
    EVENT.with(cached, &values) + ";"
}

fn message_id(message: &MessageRecord<'_>) -> String {
    format!("(SELECT id FROM messages WHERE identity = {})", literal::bytes(message.identity.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a session's first delivery would do another thing than the next ones.
    #[test]
    fn each_function_has_the_statement_that_it_stands_for() {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let migration = words(include_str!("../../../sql/postgres/0003_cached_plans.sql"));
        for Statement { function, sql } in [LOOK_UP, JOURNAL, LOOK, MESSAGE, COPY, ENDED, EVENT] {
            let (_, body) = migration.split_once(&format!("CREATE FUNCTION {function}(")).unwrap();
            let (body, _) = body.split_once("; END $$;").unwrap();
            let (_, body) = body.split_once("BEGIN ").unwrap();
            assert_eq!(body.strip_prefix("RETURN QUERY ").unwrap_or(body), words(sql), "{function}");
        }
    }

    #[test]
    fn a_value_takes_the_place_of_its_own_number() {
        let sql = "$1 $2 $3 $4 $5 $6 $7 $8 $9 $10 $11 $1";
        let statement = Statement { function: "f", sql };
        let values: Vec<String> = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"].map(str::to_owned).into();
        assert_eq!(statement.with(false, &values), "a b c d e f g h i j k a");
        // A value that looks like a place is none.
        let odd = ["$2", "$1$11"].map(str::to_owned);
        assert_eq!(Statement { function: "f", sql: "($1,$2)" }.with(false, &odd), "($2,$1$11)");
        assert_eq!(statement.with(true, &values[..2]), "SELECT * FROM f(a,b)");
    }
}
