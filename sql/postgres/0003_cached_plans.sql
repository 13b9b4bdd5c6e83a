-- Statements of a delivery as functions, so that a session keeps their plans: those whose planning is most of what the server does
-- for them (look-up 0.14 ms, look 0.24 ms, copy 0.16 ms, message and attempt's end 0.1 ms of its processor time).
-- Optional: a session whose functions are missing, or not granted, sends the statements themselves; so does each session in its first
-- delivery, since a plan that is used once is not worth its making.
--
-- Functions, and not prepared statements: they are called by a simple query like any other, so they work through PgBouncer.
-- They run with the caller's rights, and find the tables by the search_path.
--
-- A plan is kept until a table's statistics change. Hence enable_seqscan = off: a plan that was made while a table was nearly
-- empty would read all of it once it has grown.
--
-- A test compares each body with the statement of the same function in src/ledger/postgres/statements.rs. From release 1.0 on,
-- a changed statement is a new function under another name, beside this one: a program of the release before may still call
-- this one.

-- Where mail for these addresses goes. A generic plan: an array of unknown length is taken for ten addresses, which is near enough.
CREATE FUNCTION maildrop_addresses(addresses text[], login bytea) RETURNS TABLE (
    address text, imap_user text, inbox text, sent text, empty boolean, read_only boolean, proven float8, tells boolean
) LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT a.address::text, CASE WHEN a.destination IS NULL THEN a.imap_user::text END AS imap_user,
    a.inbox::text, a.sent::text, t.empty, t.read_only, t.proven, t.tells
    FROM (SELECT NOT EXISTS (SELECT FROM addresses) AS empty,
    current_setting('transaction_read_only')::bool AS read_only,
    (SELECT extract(epoch FROM clock_timestamp() - verified_at)::float8 FROM login_checks WHERE digest = $2) AS proven,
    coalesce(has_function_privilege(to_regprocedure('pg_control_system()'), 'EXECUTE'), false) AS tells) t
    LEFT JOIN addresses a ON a.address = ANY ($1);
END $$;

-- The look, under the lock. STABLE: its snapshot is that of the statement that calls it, which has to come after the one that
-- took the lock. A generic plan: PostgreSQL takes an array of unknown length for ten rows, for which it would rather plan each
-- time.
CREATE FUNCTION maildrop_look(copy_keys bytea[]) RETURNS TABLE (
    place bigint, delivered boolean, uid_validity bigint, uid bigint, attempt uuid, recipient text, age numeric,
    attempt_uid_validity bigint, attempt_uid_next bigint, host text, lock_digest text,
    message_lock_digest text, recorded numeric, owed text
) LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT k.place, coalesce(c.state = 'delivered', false), c.uid_validity, c.uid, a.attempt, a.recipient,
           extract(epoch FROM (SELECT clock_timestamp()) - a.started_at), a.uid_validity, a.uid_next,
           a.host, encode(a.lock_digest, 'hex'),
           encode(m.lock_digest, 'hex'), extract(epoch FROM (SELECT clock_timestamp()) - m.recorded_at),
           CASE WHEN c.state = 'owed' THEN coalesce(c.reason, '') END
    FROM unnest($1) WITH ORDINALITY k (copy_key, place)
    LEFT JOIN copies c ON c.copy_key = k.copy_key
    LEFT JOIN messages m ON m.id = c.message AND c.state = 'delivered'
    LEFT JOIN attempts a ON a.copy_key = k.copy_key AND a.ended_at IS NULL
    ORDER BY k.place, a.started_at, a.attempt;
END $$;

-- The message in the record.
CREATE FUNCTION maildrop_message(
    identity bytea, lock_digest bytea, message_id text, content_digest bytea, sender text, header_from text, header_to text,
    header_cc text, subject text, sent_at timestamptz, headers jsonb, size bigint
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to, header_cc, subject,
    sent_at, headers, size, recorded_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, clock_timestamp())
    ON CONFLICT (identity) DO NOTHING;
END $$;

-- A delivered copy in the record, and the end of the attempt at it.
CREATE FUNCTION maildrop_copy(
    identity bytea, copy_key bytea, role text, imap_user text, mailbox text, recipient text, uid_validity bigint, uid bigint,
    attempt uuid, outcome text, stages jsonb
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO copies (message, copy_key, role, imap_user, mailbox, recipient, state, uid_validity, uid, delivered_at, updated_at)
    VALUES ((SELECT id FROM messages WHERE identity = $1), $2, $3, $4, $5, $6, 'delivered', $7, $8,
            clock_timestamp(), clock_timestamp())
    ON CONFLICT (copy_key) DO UPDATE SET recipient = $6, uid_validity = $7, uid = $8, reason = NULL,
        delivered_at = COALESCE(copies.delivered_at, clock_timestamp()), updated_at = clock_timestamp(), state = 'delivered';
    UPDATE attempts SET ended_at = clock_timestamp(), outcome = $10, stages = $11
    WHERE copy_key = $2 AND attempt = $9 AND ended_at IS NULL;
END $$;
