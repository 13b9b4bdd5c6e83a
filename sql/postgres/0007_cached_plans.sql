-- What a delivery says to the database each time, as functions: a session keeps the plans of their statements, and
-- planning is half of what the server does for a delivery. Sessions that serve many deliveries call them, by a simple
-- query as by any other, so that they work through PgBouncer. A session's first delivery sends the statements themselves:
-- a plan that is used once is not worth keeping. They run with the rights of who calls them, and find the tables by the
-- search_path.
--
-- A plan is kept until a table's statistics change: hence enable_seqscan, lest one that was made while a table was nearly
-- empty reads all of it once it has grown.
--
-- The number at the end of a name is its version. A migration that changes a statement makes another function beside this
-- one, and drops none: an older program may still run beside the newer one. A program whose functions are not there
-- sends its statements.

-- The attempts, before the lock.
CREATE FUNCTION maildrop_journal_1(
    attempt uuid, identity bytea, lock_digest bytea, message_id text, queue_id text, host text, pid bigint,
    copy_keys bytea[], roles text[], imap_users text[], mailboxes text[], recipients text[],
    uid_validities bigint[], uid_nexts bigint[]
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO attempts (attempt, identity, lock_digest, message_id, queue_id, host, pid, session,
                          copy_key, role, imap_user, mailbox, recipient, uid_validity, uid_next, started_at)
    SELECT $1, $2, $3, $4, $5, $6, $7, pg_backend_pid(), c.*, clock_timestamp()
    FROM unnest($8, $9, $10, $11, $12, $13, $14) c;
END $$;

-- The look, under the lock. Its snapshot is that of the statement that calls it (STABLE), which has to be a later one
-- than that which took the lock. An array of unknown length is taken for ten rows, for which PostgreSQL would rather
-- plan anew.
CREATE FUNCTION maildrop_look_1(copy_keys bytea[]) RETURNS TABLE (
    place bigint, delivered boolean, uid_validity bigint, uid bigint, attempt uuid, recipient text, age numeric,
    attempt_uid_validity bigint, attempt_uid_next bigint, host text, lock_digest text,
    message_lock_digest text, recorded numeric
) LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT k.place, c.copy_key IS NOT NULL, c.uid_validity, c.uid, a.attempt, a.recipient,
           extract(epoch FROM (SELECT clock_timestamp()) - a.started_at), a.uid_validity, a.uid_next,
           a.host, encode(a.lock_digest, 'hex'),
           encode(m.lock_digest, 'hex'), extract(epoch FROM (SELECT clock_timestamp()) - m.recorded_at)
    FROM unnest($1) WITH ORDINALITY k (copy_key, place)
    LEFT JOIN copies c ON c.copy_key = k.copy_key AND c.state = 'delivered'
    LEFT JOIN messages m ON m.id = c.message
    LEFT JOIN attempts a ON a.copy_key = k.copy_key AND a.ended_at IS NULL
    ORDER BY k.place, a.started_at, a.attempt;
END $$;

-- The record: the message, a copy of it, and the end of an attempt.
CREATE FUNCTION maildrop_message_1(
    identity bytea, lock_digest bytea, message_id text, content_digest bytea, sender text, header_from text,
    header_to text, header_cc text, subject text, sent_at timestamptz, headers jsonb, size bigint
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to,
                          header_cc, subject, sent_at, headers, size, recorded_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, clock_timestamp())
    ON CONFLICT (identity) DO NOTHING;
END $$;

CREATE FUNCTION maildrop_copy_1(
    identity bytea, copy_key bytea, role text, imap_user text, mailbox text, recipient text, state text,
    uid_validity bigint, uid bigint, reason text
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO copies (message, copy_key, role, imap_user, mailbox, recipient, state, uid_validity, uid, reason,
                        delivered_at, updated_at)
    VALUES ((SELECT id FROM messages WHERE identity = $1), $2, $3, $4, $5, $6, $7, $8, $9, $10,
            CASE $7 WHEN 'delivered' THEN clock_timestamp() END, clock_timestamp())
    ON CONFLICT (copy_key) DO UPDATE SET (recipient, state, uid_validity, uid, reason, delivered_at, updated_at) =
        ROW (excluded.recipient, excluded.state, excluded.uid_validity, excluded.uid, excluded.reason,
             coalesce(copies.delivered_at, excluded.delivered_at), excluded.updated_at)
        WHERE excluded.state = 'delivered' OR copies.state <> 'delivered';
END $$;

CREATE FUNCTION maildrop_ended_1(copy_key bytea, attempt uuid, outcome text, stages jsonb)
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    UPDATE attempts SET ended_at = clock_timestamp(), outcome = $3, stages = $4
    WHERE copy_key = $1 AND attempt = $2 AND ended_at IS NULL;
END $$;
